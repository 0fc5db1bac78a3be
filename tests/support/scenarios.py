"""Load scenarios: each file of tests/scenarios has the drafts of one small session, one JSON object per line.

A line is the JSON form of an event. A call is named by alias, `"aliases": [["t", "call_1"]]`, so no file depends on
generated ids. The loader has two keys of its own: `times` repeats a line, with its number for every `{n}` in the text,
and `witness` marks a draft as an agent's replay.
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
START_MS = 1_700_000_000_000
STEP_MS = 250

# Without the reaper, which would end calls on a slow machine, the log depends on the file only.
NO_REAPER = Settings(synchronous="NORMAL", reaper_interval=3600.0, checkpoint_every=10**9)


def load_drafts(name: str) -> list[Draft]:
    """Return the drafts of a scenario, 250 ms apart unless they have their own time."""
    with (FOLDER / f"{name}.jsonl").open(encoding="utf-8", newline="\n") as file:
        bodies = [body for line in file if line.strip() for body in _repeat(json.loads(line))]
    return [_make_draft(body, START_MS + STEP_MS * number) for number, body in enumerate(bodies)]


def _repeat(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    times = body.pop("times", 1)
    for number in range(times):
        yield body if times == 1 else {**body, "text": body["text"].replace("{n}", str(number))}


def _make_draft(body: dict[str, Any], at: int) -> Draft:
    witness = body.pop("witness", False)
    event = read_event(body)
    return Draft(event if event.at else msgspec.structs.replace(event, at=at), witness=witness)


@contextmanager
def counted_ids() -> Iterator[None]:
    """Generate ids that count from 1 instead of random ones, for golden files."""
    calls, approvals = count(1), count(1)
    with (
        patch("callslip.model.ids.call_id", lambda: f"exec_{next(calls):012x}"),
        patch("callslip.model.ids.approval_id", lambda: f"appr_{next(approvals):012x}"),
    ):
        yield


async def record_events(drafts_or_events: Iterable[Event | Draft], *, settings: Settings = NO_REAPER) -> list[Event]:
    """Append drafts to a new ledger, one at a time, and return its events."""
    async with await open_ledger("sqlite:///:memory:", settings) as ledger:
        for draft in drafts_or_events:
            await ledger.log.append(SESSION, [draft], source="scenario")
        return [event async for event in ledger.events(SESSION)]


@cache
def load_events(name: str) -> tuple[Event, ...]:
    """Return the events of a scenario, identical in every run."""
    with counted_ids():
        return tuple(asyncio.run(record_events(load_drafts(name))))
