"""Check what must hold for every ledger, and open ledgers for tests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

import callslip
from callslip.api.ledger import LocalLedger
from callslip.ledger.verify import verify
from callslip.model import codec
from callslip.settings import Settings
from tests.support.paths import PROGRAMS


def start_program(name: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Start one of the programs of tests/programs."""
    command = [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen(command, **options)


async def find_faults(ledger: LocalLedger) -> list[str]:
    """Return everything that is wrong with a ledger."""
    found = await ledger.log.store.check()
    for session in await session_names(ledger):
        found += await _session_faults(ledger, session)
    return found + [str(difference) for difference in await verify(ledger.log)]


async def session_names(ledger: LocalLedger) -> list[str]:
    """Return the names of all sessions."""
    return [row.name for row in (await ledger.sessions(limit=100_000)).items]


async def _session_faults(ledger: LocalLedger, session: str) -> list[str]:
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
        stored = await ledger.snapshot(session)
        folded = (await ledger.log.state_at(session, stored.seq)).snapshot()
        if msgspec.json.encode(folded.entries) != msgspec.json.encode(stored.entries):
            found.append(f"{session}: the stored entries differ from the fold of the log")
    return found


async def read_events(ledger: LocalLedger, session: str, after: int = 0) -> list[Any]:
    """Return the events of a session."""
    return [event async for event in ledger.log.events(session, after)]


async def open_with_settings(url: str, **settings: Any) -> LocalLedger:
    """Open a ledger with settings."""
    return await callslip.open(url, Settings(**settings))


@asynccontextmanager
async def sound_ledger(url: str, **settings: Any) -> AsyncGenerator[LocalLedger]:
    """Open a ledger for one test, and check it at the end."""
    ledger = await open_with_settings(url, **settings)
    try:
        yield ledger
        assert not await find_faults(ledger)
    finally:
        await ledger.close()


def normalize_entries(entries: Sequence[Any]) -> str:
    """Return entries as text, without times, and with the ids of entries, events, calls and approvals by their order.

    Whether a held text is released as an event of its own depends on time, and shifts the seq of later events.
    """
    text = json.dumps(codec.parse_json(codec.encode(list(entries))), sort_keys=True)
    text = re.sub(r'"(\w*[aA]t|\w*Time|timestamp)": \d{13}', r'"\1": 0', text)
    seqs = sorted({int(seq) for seq in re.findall(r'"(?:id|end|late)": (\d+)', text)})
    text = re.sub(r'"(id|end|late)": (\d+)', lambda match: f'"{match[1]}": {seqs.index(int(match[2]))}', text)
    ids: dict[str, str] = {}
    return re.sub(r"(exec|appr)_[0-9a-f]{12}", lambda match: ids.setdefault(match[0], f"{match[1]}{len(ids)}"), text)
