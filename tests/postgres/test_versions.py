"""Servers of two versions on one database, as while servers are upgraded one after another."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Generator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import ConflictError
from callslip.model import events as ev
from callslip.model.events import Draft
from callslip.store import postgres_database
from tests.programs import migrate_further as migration
from tests.support import engines
from tests.support.cli_process import running_process
from tests.support.invariants import find_faults, read_events
from tests.support.paths import PROGRAMS, TESTS
from tests.support.tasks import TIMEOUT_S

OLDER = TESTS / "fixtures" / "postgres-engine" / "callslip.zip"
FURTHEST = migration.migrations("postgres")[-1][0]
"""The schema with one more migration than the newest version has."""
COUNT = 10
"""How many events each process writes to the session of all."""
OLDER_NAMES = ("before the migration", "after the migration")
"""The names of the older processes and of their queues: when they are started."""
TOTAL = len(OLDER_NAMES) * (1 + COUNT) + COUNT
"""How many events that session gets. Each older process writes one more when it starts."""

LANDED = {
    "0001_postgres.sql": "5ff513aab2e7022cfe2dac2ad34c0da5a52a8908bc3770a2efa19f13838dec7d",
    "0001_sqlite.sql": "a1b480588d393f992d7db411a10e8b1f588bf99e6ee63c3ac4c3cac4546947a6",
    "0002_postgres.sql": "26faf6f9df16d31c18d6b83a3687b669d845d5a05832c42d0eb43ccdab825d3d",
    "0002_sqlite.sql": "6c502a29d69ec1a262f7a11cb0b13dbb6ed67b819f922e948fe16bddf3a29070",
    "0003_postgres.sql": "1b2c3f96ace98b38fcee8dca63a1fcc2679e7561f712330d05121fefa02e987c",
    "0003_sqlite.sql": "863bad3428be1f8da70bfad2e0c095a4b4b3f3b9a9d95f3854000723c69f2880",
    "0004_postgres.sql": "8538897f2a3b5d549de7c431cf668cf765274b169857e0b34de4ace11ef6c781",
    "0004_sqlite.sql": "d7d95cbf8a61982be2077c7d85bf33572cc92e6ef09d6356631fb6e5a6c9fc68",
    "0005_postgres.sql": "5fbed08fdbf45c60c305db621dbaf9321517ecc9fbad3b486d3fbeca49ca6e50",
    "0005_sqlite.sql": "7c7cda4f417eb20b7436675f6f29b4bd4e18d9eac88196f0ef0216913164759c",
    "0006_postgres.sql": "7c4b2669a0caae4cb2d7bd880778491375097e8909c43c85f54faad888a86a87",
    "0006_sqlite.sql": "b5a25e96589de2d73ca9da7385ea0833289621c2623f7b15bb27c5a8c336caa1",
    "0007_sqlite.sql": "e1d414afa8ed0b0d75f8d08eeee6ed3aaf48bc5863f6754e0fbaa40c08fa4ef3",
    "0008_sqlite.sql": "c3641399dfdcae2acdb4688e8a38088ee1d33169ef189042608bc6fc1e9fdd1a",
    "0009_sqlite.sql": "7bb10ff1a2f7323930a5d36e4bbce4403abade0c4b9c6b8d09987eb7f0acf3ad",
    "0010_sqlite.sql": "7c4b2669a0caae4cb2d7bd880778491375097e8909c43c85f54faad888a86a87",
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
    async def start(cls, url: str, name: str) -> OlderServer:
        """Start a process, and return when it has opened the ledger and written to it."""
        environment = {"PATH": os.defpath, "PYTHONPATH": str(OLDER)}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(PROGRAMS / "older_server.py"), url, name, str(COUNT), str(TOTAL)),
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        server = cls(process)
        try:
            assert process.stdout is not None
            found, package = json.loads(await process.stdout.readline() or "null") or ("nothing", "")
            assert found == "ready", "the older server has failed"
            assert str(OLDER) in package
        except BaseException:
            await server.stop()
            raise
        return server

    async def run(self) -> dict[str, Any]:
        """Let the process use the ledger until it ends, and return its facts by name."""
        output, _ = await self._process.communicate(b"go\n")
        assert self._process.returncode == 0, "the older server has failed"
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
        if len(seqs) == TOTAL:
            break
    return seqs


async def work(ledger: LocalLedger) -> None:
    """Run one command of each older process."""
    for _ in OLDER_NAMES:
        claim = await ledger.commands.claim("new", wait=TIMEOUT_S)
        assert claim is not None
        await ledger.commands.complete(claim.call, {"by": "new", "params": claim.params}, fence=claim.fence)


async def submit(ledger: LocalLedger, name: str) -> Any:
    """Submit a command that the older process with this name must approve and run."""
    command = await ledger.commands.submit(
        "run", {"for": name}, queue=name, approval=True, timeout=TIMEOUT_S, wait=TIMEOUT_S
    )
    return command.result


def migrate_further(url: str) -> None:
    """Run `callslip admin migrate` of a version with one more migration."""
    with running_process(
        "admin", "migrate", "--json", env={"CALLSLIP_DB": url}, program=migration.__file__ or ""
    ) as process:
        assert process.end() == 0, process.err
        (line,) = process.lines()
        assert (line["before"], line["after"]) == (1, FURTHEST)


@pytest.mark.anyio
@pytest.mark.postgres
async def test_the_first_version_of_the_engine_works_beside_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    """DBF3: on a schema that was migrated further, which the newest version knows and the first one does not.

    One older process had opened the database before, and another one opens it afterwards. All three write, follow,
    submit, claim and answer.
    """
    server = engines.server()
    url = server.create_database(template="template0")
    older: list[OlderServer] = []
    try:
        older.append(await OlderServer.start(url, OLDER_NAMES[0]))
        await asyncio.to_thread(migrate_further, url)
        older.append(await OlderServer.start(url, OLDER_NAMES[1]))
        monkeypatch.setattr(postgres_database, "migrations", migration.migrations)
        async with asyncio.timeout(TIMEOUT_S), callslip.open(url) as ledger:
            async with asyncio.TaskGroup() as group:
                runs = [group.create_task(process.run()) for process in older]
                results = [group.create_task(submit(ledger, name)) for name in OLDER_NAMES]
                followed = group.create_task(follow(ledger))
                group.create_task(write(ledger))
                group.create_task(work(ledger))
            for name, run, result in zip(OLDER_NAMES, runs, results, strict=True):
                assert result.result() == {"by": name, "params": {"for": name}}
                output = run.result()
                # An older version does not know the aliases by which the newest one recognizes prompts.
                output["problems"] = [problem for problem in output["problems"] if "'prompt'" not in problem]
                assert output == {
                    "followed": list(range(1, TOTAL + 1)),
                    "approved": "granted",
                    "result": {"by": "new", "params": {"for": name}},
                    "problems": [],
                }
            assert followed.result() == list(range(1, TOTAL + 1))
            texts = [event.text for event in await read_events(ledger, "a")]
            expected = [f"{name} {number}" for name in ("new", *OLDER_NAMES) for number in range(COUNT)]
            assert sorted(texts) == sorted([*expected, *(f"{name} starts" for name in OLDER_NAMES)])
            assert not await find_faults(ledger)
        meta = dict(engines.fetch_rows(url, "SELECT name, value FROM meta"))
        assert (meta["schema"], meta["oldest_reader"]) == (str(FURTHEST), "1")
    finally:
        for process in older:
            await process.stop()
        server.drop_database(url)


# Servers

SERVE = "import callslip; print(callslip.__file__, flush=True); from callslip.cli import main; main()"
SERVED = ("a", "b", "new")
"""The users of the servers, and their queues. The servers of the first two are older."""
TOKEN = "the-main-token-of-these-tests"


@contextlib.contextmanager
def serving(url: str, home: Path, *, is_older: bool) -> Generator[str]:
    """Run `callslip serve` of the first version, or of the newest one with one more migration, and yield its URL."""
    environment = {"CALLSLIP_DB": url, "CALLSLIP_TOKEN": TOKEN, "HOME": str(home)}
    options = ("serve", "--json", "--port", "0")
    if is_older:
        start = running_process(SERVE, *options, env={**environment, "PYTHONPATH": str(OLDER)}, program="-c")
    else:
        start = running_process(*options, env=environment, program=migration.__file__ or "")
    with start as process:
        process.until('"url"')
        assert not is_older or str(OLDER) in process.out[0]
        yield json.loads(process.out[-1])["url"]


async def use(server: str, user: str, other: str) -> dict[str, Any]:
    """Write, follow, submit to the queue of another user, and approve and run what is submitted to the own queue."""
    async with callslip.connect(server, token=TOKEN) as ledger:

        async def write() -> None:
            for number in range(COUNT):
                draft = Draft(ev.MessageUser(text=f"{user} {number}"), key=f"{user} {number}")
                assert await ledger.log.append("s", [draft]) == await ledger.log.append("s", [draft])

        async def follow() -> list[int]:
            seqs: list[int] = []
            async with contextlib.aclosing(ledger.log.follow("s")) as events:
                async for event in events:
                    seqs.append(event.seq)
                    if len(seqs) == 1 + len(SERVED) * COUNT:
                        break
            return seqs

        async def submit() -> Any:
            command = await ledger.commands.submit(
                "run", {"by": user}, queue=other, approval=True, timeout=TIMEOUT_S, wait=TIMEOUT_S
            )
            return command.result

        async def answer() -> str:
            while True:
                for request in await ledger.approvals():
                    if (await ledger.find_call(request.call)).client == user:
                        try:
                            return (await ledger.approve(request.id)).state
                        except ConflictError as error:  # The fault that `older_server.py` describes.
                            if error.current is not None:
                                raise
                await asyncio.sleep(0.02)

        async def work() -> None:
            claim = await ledger.commands.claim(user, wait=TIMEOUT_S)
            assert claim is not None
            await ledger.commands.complete(claim.call, {"for": claim.params, "by": user}, fence=claim.fence)

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            group.create_task(work())
            followed, result, answered = (group.create_task(step) for step in (follow(), submit(), answer()))
        return {"follow": followed.result(), "submit": result.result(), "answer": answered.result()}


@pytest.mark.anyio
@pytest.mark.postgres
async def test_servers_of_the_first_version_work_beside_the_newest(tmp_path: Path) -> None:
    """DBF3: one was started before the database was migrated further, one after that. Each has a client.

    What a client submits is approved and run by the client of another server.
    """
    server = engines.server()
    url = server.create_database(template="template0")
    try:
        with contextlib.ExitStack() as stack:

            def start(name: str) -> str:
                home = tmp_path / name
                return stack.enter_context(serving(url, home, is_older=name != "new"))

            urls = [await asyncio.to_thread(start, SERVED[0])]
            await asyncio.to_thread(migrate_further, url)
            urls += [await asyncio.to_thread(start, name) for name in SERVED[1:]]
            async with asyncio.timeout(TIMEOUT_S), callslip.connect(urls[0], token=TOKEN) as ledger:
                await ledger.log.append("s", [ev.MessageUser(text="first")])
                others = [*SERVED[1:], SERVED[0]]
                async with asyncio.TaskGroup() as group:
                    users = [group.create_task(use(*names)) for names in zip(urls, SERVED, others, strict=True)]
        for task, user, other in zip(users, SERVED, others, strict=True):
            assert task.result() == {
                "follow": list(range(1, len(SERVED) * COUNT + 2)),
                "submit": {"for": {"by": user}, "by": other},
                "answer": "granted",
            }
        async with callslip.open(url) as ledger:
            assert not await find_faults(ledger)
    finally:
        server.drop_database(url)
