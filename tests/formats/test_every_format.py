"""Test every readable format with the cases of tests/inputs, the captures and random messages."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import callslip
from callslip.api.ledger import LocalLedger
from callslip.formats import registry
from callslip.ingest.importer import import_lines
from callslip.model import codec
from callslip.model.entries import ToolCall
from callslip.rules.lifecycle import TERMINAL_STATES
from callslip.settings import Settings
from tests.conftest import LONG
from tests.support import format_cases, scenarios
from tests.support.invariants import find_faults

SETTINGS = Settings(synchronous="NORMAL", reaper_interval=3600, checkpoint_every=50)
MAX_CUTS = 6
READABLE = [name for name in registry.readable() if name != "events"]

anyio = pytest.mark.anyio


async def open_memory_ledger() -> LocalLedger:
    return await callslip.open("sqlite:///:memory:", SETTINGS)


async def import_entries(case: str) -> Any:
    """Return the entries after the import of a case, as JSON values; by session, if the case has several."""
    with scenarios.counted_ids():
        async with await open_memory_ledger() as ledger:
            await import_lines(
                ledger.log, "s", format_cases.format_of(case), format_cases.lines_of(case), started=scenarios.START_MS
            )
            snapshots = {row.name: await ledger.snapshot(row.name) for row in (await ledger.sessions(limit=100)).items}
    entries = {name: codec.parse_json(codec.encode(snapshot.entries)) for name, snapshot in sorted(snapshots.items())}
    return _remove_times(entries["s"] if list(entries) == ["s"] else entries)


def _remove_times(value: Any) -> Any:
    """Remove the times that the store added, because they differ in every run."""
    if isinstance(value, dict):
        return {key: _remove_times(member) for key, member in value.items() if not _is_time(key, member)}
    return [_remove_times(item) for item in value] if isinstance(value, list) else value


def _is_time(key: str, value: Any) -> bool:
    return (
        (key == "at" or key.endswith(("At", "Time", "timestamp")))
        and isinstance(value, int)
        and value > scenarios.START_MS + 10**9
    )


def test_every_format_has_cases() -> None:
    """Every readable format has a case, and every golden file belongs to a case."""
    assert not set(READABLE) - {format_cases.format_of(case) for case in format_cases.CASES}
    goldens = {path.relative_to(format_cases.FOLDER) for path in format_cases.FOLDER.glob("*/*.entries.json")}
    assert goldens == {Path(f"{case}.entries.json") for case in format_cases.CASES}


@anyio
@pytest.mark.parametrize("case", format_cases.CASES)
async def test_the_entries_of_a_case_match_its_golden_file(case: str) -> None:
    """All fields except the times of the store are compared."""
    entries = await import_entries(case)
    golden = format_cases.golden_path(case)
    if os.environ.get("CALLSLIP_GOLDENS"):
        golden.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", "utf-8")
    assert entries == json.loads(golden.read_text("utf-8"))


@anyio
@pytest.mark.parametrize("case", format_cases.CASES)
async def test_reading_a_case_twice_changes_nothing(case: str) -> None:
    """C7: the second import adds no event."""
    async with await open_memory_ledger() as ledger:
        first = await import_lines(ledger.log, "s", format_cases.format_of(case), format_cases.lines_of(case))
        again = await import_lines(ledger.log, "s", format_cases.format_of(case), format_cases.lines_of(case))
        assert first.events and not again.events
        assert not await find_faults(ledger)


@anyio
@pytest.mark.parametrize("case", format_cases.CASES)
async def test_a_truncated_case_leaves_no_open_call(case: str) -> None:
    """C5: any line may be the last. Long cases are truncated after some lines, in `make chaos` after each."""
    lines = format_cases.lines_of(case)
    async with await open_memory_ledger() as ledger:
        for cut in range(len(lines), -1, -1 if LONG else -(1 + len(lines) // MAX_CUTS)):
            await import_lines(ledger.log, f"cut-{cut}", format_cases.format_of(case), lines[:cut])
        assert not await ledger.log.store.open_calls()
        assert not await ledger.approvals()
        assert {row.turn for row in (await ledger.sessions(limit=10_000)).items} == {""}
        assert not await find_faults(ledger)


@pytest.mark.parametrize("format", READABLE)
@settings(max_examples=settings().max_examples // (1 if LONG else 2))  # It is the same check for all formats.
@given(data=st.data())
def test_no_message_makes_a_session_unreadable(format: str, data: st.DataObject) -> None:
    """C11: valid, damaged, reordered and random messages; none is lost, and every call ends."""
    asyncio.run(check_readable(format, data.draw(format_cases.streams(format))))


async def check_readable(format: str, messages: list[Any]) -> None:
    """Check that the messages can be imported, and that every session can be read and has no open call."""
    async with await open_memory_ledger() as ledger:
        await import_lines(ledger.log, "s", format, [json.dumps(message).encode() for message in messages])
        for row in (await ledger.sessions(limit=100)).items:
            snapshot = await ledger.snapshot(row.name)
            assert {entry.status for entry in snapshot.entries if isinstance(entry, ToolCall)} <= TERMINAL_STATES
        assert not await find_faults(ledger)
