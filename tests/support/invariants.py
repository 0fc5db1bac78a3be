"""What must hold of any ledger at rest, however it came to be so: used after every fault."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

import callslip
from callslip.api.ledger import Ledger
from callslip.ledger.verify import verify
from callslip.settings import Settings
from tests.support.paths import PROGRAMS


def program(name: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """One of the small programs, started."""
    command = [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen(command, **options)


async def faults(ledger: Ledger) -> list[str]:
    """Everything that is wrong with a ledger; nothing, it is hoped."""
    found = await ledger.log.store.check()
    for session in await names(ledger):
        found += await _session_faults(ledger, session)
    return found + [str(difference) for difference in await verify(ledger.log)]


async def names(ledger: Ledger) -> list[str]:
    """Every session."""
    return [row.name for row in (await ledger.sessions(limit=100_000)).items]


async def _session_faults(ledger: Ledger, session: str) -> list[str]:
    row = await ledger.log.store.session(session)
    assert row is not None
    log = [event async for event in ledger.events(session, upto=row.last_seq)]
    seqs = [event.seq for event in log]
    found = (
        []
        if seqs == list(range(row.pruned_seq + 1, row.last_seq + 1))
        else [f"{session}: seqs {seqs[:5]} ... {seqs[-5:]}"]
    )
    blobs = [event.blob for event in log if getattr(event, "blob", None)]
    found += [f"{session}: blob {blob.hash}" for blob in blobs if len(await ledger.blob(blob.hash)) != blob.size]
    if not row.pruned_seq:
        read = await ledger.snapshot(session)
        folded = (await ledger.log.state_at(session, read.seq)).snapshot()
        if msgspec.json.encode(folded.entries) != msgspec.json.encode(read.entries):
            found.append(f"{session}: the stored entries are not those that the log gives")
    return found


async def events(ledger: Ledger, session: str, after: int = 0) -> list[Any]:
    """The log of a session."""
    return [event async for event in ledger.events(session, after)]


async def opened(url: str, **settings: Any) -> Ledger:
    """A ledger with some settings of its own."""
    return await callslip.open(url, Settings(**settings))


@asynccontextmanager
async def sound_ledger(url: str, **settings: Any) -> AsyncGenerator[Ledger]:
    """A ledger for one test, which must leave it without faults."""
    ledger = await opened(url, **settings)
    try:
        yield ledger
        assert not await faults(ledger)
    finally:
        await ledger.close()
