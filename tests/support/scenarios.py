"""Scenarios are data: each file of tests/scenarios holds the drafts of one small session, one JSON object per line.

A line is an event as `read_event` takes it. A call is named by alias, `"aliases": [["t", "call_1"]]`, so that no file
depends on ids the ledger mints. The loader has two keys of its own: `times` repeats a line, with its number for every
`{n}` in the text, and `witness` marks a draft as an agent's replay.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any
from unittest.mock import patch

import msgspec

from callslip.api.ledger import open_ledger
from callslip.model.events import Draft, Event, read_event
from callslip.settings import Settings
from tests.support.paths import TESTS

FOLDER = TESTS / "scenarios"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
SESSION = "scenario"
NOON = 1_700_000_000_000
STEP = 250

# Nothing but the file decides what is in the log: no reaper ends a call while a slow machine reads it.
QUIET = Settings(synchronous="NORMAL", reaper_interval=3600.0, checkpoint_every=10**9)


def drafts(name: str) -> list[Draft]:
    """The drafts of a scenario, 250 ms apart unless they tell their own time."""
    with (FOLDER / f"{name}.jsonl").open(encoding="utf-8", newline="\n") as file:
        bodies = [body for line in file if line.strip() for body in _repeated(json.loads(line))]
    return [_draft(body, NOON + STEP * number) for number, body in enumerate(bodies)]


def _repeated(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    times = body.pop("times", 1)
    for number in range(times):
        yield body if times == 1 else {**body, "text": body["text"].replace("{n}", str(number))}


def _draft(body: dict[str, Any], at: int) -> Draft:
    witness = body.pop("witness", False)
    event = read_event(body)
    return Draft(event if event.at else msgspec.structs.replace(event, at=at), witness=witness)


@contextmanager
def counted_ids() -> Iterator[None]:
    """Ids that count up from 1 instead of random ones, so that a golden file can hold them."""
    calls, approvals = count(1), count(1)
    with (
        patch("callslip.model.ids.call_id", lambda: f"exec_{next(calls):012x}"),
        patch("callslip.model.ids.approval_id", lambda: f"appr_{next(approvals):012x}"),
    ):
        yield


async def record(given: Iterable[Event | Draft], *, settings: Settings = QUIET) -> list[Event]:
    """What a ledger of its own makes of drafts, one append each: its whole log, in order."""
    async with await open_ledger("sqlite:///:memory:", settings) as ledger:
        for draft in given:
            await ledger.log.append(SESSION, [draft], source="scenario")
        return [event async for event in ledger.events(SESSION)]


@cache
def events(name: str) -> tuple[Event, ...]:
    """The log of a scenario, the same on every run."""
    with counted_ids():
        return tuple(asyncio.run(record(drafts(name))))
