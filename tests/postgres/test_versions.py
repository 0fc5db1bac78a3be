"""Servers of two versions on one database, as while servers are upgraded one after another."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
from importlib.resources import files
from typing import Any

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.model import events as ev
from callslip.model.events import Draft
from tests.support import engines
from tests.support.invariants import find_faults, read_events
from tests.support.paths import PROGRAMS, TESTS
from tests.support.tasks import TIMEOUT_S

OLDER = TESTS / "fixtures" / "postgres-engine" / "callslip.zip"
COUNT = 10
"""How many events each version writes to the session of both."""

LANDED = {
    "0001_postgres.sql": "5ff513aab2e7022cfe2dac2ad34c0da5a52a8908bc3770a2efa19f13838dec7d",
    "0001_sqlite.sql": "a1b480588d393f992d7db411a10e8b1f588bf99e6ee63c3ac4c3cac4546947a6",
    "0002_sqlite.sql": "6c502a29d69ec1a262f7a11cb0b13dbb6ed67b819f922e948fe16bddf3a29070",
    "0003_sqlite.sql": "863bad3428be1f8da70bfad2e0c095a4b4b3f3b9a9d95f3854000723c69f2880",
    "0004_sqlite.sql": "d7d95cbf8a61982be2077c7d85bf33572cc92e6ef09d6356631fb6e5a6c9fc68",
    "0005_sqlite.sql": "7c7cda4f417eb20b7436675f6f29b4bd4e18d9eac88196f0ef0216913164759c",
}
"""The digests of the migrations that have landed."""


@pytest.mark.parametrize("name", sorted(LANDED))
def test_a_migration_that_has_landed_does_not_change(name: str) -> None:
    """Databases have run it already, so a change would never reach them. A change of the schema is a new migration."""
    data = files("callslip.store").joinpath("migrations", name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == LANDED[name], "add a migration instead"


def test_every_migration_is_recorded() -> None:
    """A new migration needs its digest here."""
    names = {item.name for item in files("callslip.store").joinpath("migrations").iterdir()}
    assert {name for name in names if name.endswith(".sql")} == LANDED.keys()


class OlderServer:
    """A process that runs the first version of the engine."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, url: str) -> OlderServer:
        environment = {"PATH": os.defpath, "PYTHONPATH": str(OLDER)}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(PROGRAMS / "older_server.py"), url, str(COUNT)),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
        )
        return cls(process)

    async def read(self, name: str) -> Any:
        """Return the next fact, which must have this name."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert line, "the older server has failed"
        found, value = json.loads(line)
        assert found == name
        return value

    async def finish(self) -> dict[str, Any]:
        """Wait until the process ends, and return the facts that are left by name."""
        output, _ = await self._process.communicate()
        assert self._process.returncode == 0
        return dict(json.loads(line) for line in output.splitlines())

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()


async def write(ledger: LocalLedger) -> None:
    for number in range(COUNT):
        await ledger.log.append("a", [Draft(ev.MessageUser(text=f"new {number}"), key=f"new {number}")])


async def follow(ledger: LocalLedger) -> list[int]:
    seqs: list[int] = []
    async for event in ledger.log.follow("a"):
        seqs.append(event.seq)
        if len(seqs) == 2 * COUNT + 1:
            break
    return seqs


async def work(ledger: LocalLedger) -> None:
    claim = await ledger.commands.claim("new", wait=TIMEOUT_S)
    assert claim is not None
    await ledger.commands.complete(claim.call, "by new", fence=claim.fence)


async def submit(ledger: LocalLedger) -> Any:
    """Submit a command that the older server must approve and run."""
    command = await ledger.commands.submit(
        "run", {"n": 2}, queue="old", approval=True, timeout=TIMEOUT_S, wait=TIMEOUT_S
    )
    return command.result


@pytest.mark.anyio
@pytest.mark.postgres
async def test_the_first_version_of_the_engine_works_beside_the_newest() -> None:
    """Both write, follow, submit, claim and answer on a database that the newest one has migrated meanwhile."""
    server = engines.server()
    url = server.create_database(template="template0")
    older = await OlderServer.start(url)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            assert str(OLDER) in await older.read("ready")
            async with callslip.open(url) as ledger:
                _, seqs, _, result = await asyncio.gather(write(ledger), follow(ledger), work(ledger), submit(ledger))
                facts = await older.finish()
                assert seqs == facts["followed"] == list(range(1, 2 * COUNT + 2))
                texts = [event.text for event in await read_events(ledger, "a")]
                expected = ["first", *(f"{name} {number}" for name in ("old", "new") for number in range(COUNT))]
                assert sorted(texts) == sorted(expected)
                assert result == {"by": "old", "params": {"n": 2}}
                assert (facts["result"], facts["approved"], facts["problems"]) == ("by new", "granted", [])
                assert not await find_faults(ledger)
    finally:
        await older.stop()
        server.drop_database(url)
