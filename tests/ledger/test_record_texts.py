"""Shown texts may contain any character: events keep NUL, records have U+FFFD instead, and ids refuse it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model.entries import Message
from callslip.model.events import Alias, parse_event
from callslip.settings import Settings
from tests.support.engines import change_rows, fetch_rows, list_columns, list_tables

pytestmark = pytest.mark.anyio

SETTINGS = Settings(synchronous="NORMAL", checkpoint_every=10**9, reaper_interval=3600)
EXACT_TEXTS = {("pieces", "text")}
"""Columns whose texts are streamed output, which is kept exactly. In PostgreSQL they are bytes."""
ONE, TWO, THREE, FOUR = ((Alias("acp", name),) for name in ("1", "2", "3", "4"))


def events_with(text: str) -> list[ev.Event]:
    """Return events with a text in every field that is shown in a record."""
    return [
        ev.SessionInfo(title=text, labels={text: text}),
        ev.CallProposed(aliases=ONE, tool_name=text, title=text, kind=text),
        ev.CallStarted(aliases=ONE),
        ev.CallFailed(aliases=ONE, reason=text, error=text, output=text),
        ev.ApprovalRequested(aliases=TWO, tool_name="rm", description=text, options=[{"optionId": text}]),
        ev.ApprovalRefused(aliases=TWO, option=text, by=text, reason=text),
        ev.CallProposed(aliases=THREE, tool_name=text, title=text, kind=text),
        ev.ApprovalRequested(aliases=FOUR, title=text, description=text, answer_at=text),
        ev.TurnStarted(),
        ev.MessageUser(text=text),
        ev.MessageDelta(text=text, chunks="delta"),
    ]


def columns_with_nul(db: str) -> set[tuple[str, str]]:
    """Return the columns in which a row contains NUL."""
    found: set[tuple[str, str]] = set()
    for table in list_tables(db):
        if table.startswith("search_index"):  # Its own tables have binary blocks.
            continue
        columns = list_columns(db, table)
        for row in fetch_rows(db, f'SELECT * FROM "{table}"'):
            found |= {(table, name) for name, value in zip(columns, row, strict=True) if has_nul(name, value)}
    return found


def has_nul(column: str, value: Any) -> bool:
    """Return whether a value contains NUL. In JSON it is escaped, so it may be in labels, options and events."""
    if column == "record":  # PostgreSQL has the fields of a record in one column.
        return any(has_nul("", field) for field in msgspec.json.decode(value))
    if isinstance(value, str):
        return "\0" in value
    return isinstance(value, bytes) and b"\0" in value


async def test_no_text_column_contains_nul(db: str) -> None:
    """Neither while a text streams nor after a checkpoint, and `verify` agrees."""
    async with callslip.open(db, SETTINGS) as ledger:
        await ledger.log.append("s", events_with("a\0b"))
        assert await verify(ledger.log) == []
        await ledger.log.project("s")
        assert columns_with_nul(db) == EXACT_TEXTS
        assert await verify(ledger.log) == []
        (row,) = await ledger.log.store.approvals(state="pending")
        assert (row.description, row.answer_at) == ("a\ufffdb", "a\ufffdb")


async def test_events_and_entries_keep_nul(db: str) -> None:
    """Also after a reload: a streaming text is put together from its pieces."""
    async with callslip.open(db, SETTINGS) as ledger:
        await ledger.log.append("s", events_with("a\0b"))
        await ledger.log.project("s")
    async with callslip.open(db, SETTINGS) as ledger:
        rows = await ledger.log.store.events("s", 0, 100)
        info = parse_event(rows[0][1])
        assert isinstance(info, ev.SessionInfo) and (info.title, info.labels) == ("a\0b", {"a\0b": "a\0b"})
        await ledger.log.append("s", [ev.MessageDelta(text="\0!", chunks="delta")])
        snapshot = await ledger.snapshot("s")
        assert [entry.content for entry in snapshot.entries if isinstance(entry, Message)][-1] == "a\0b\0!"


async def test_lone_surrogates_do_not_reach_records(db: str) -> None:
    """They become U+FFFD before anything is written, in events as well as in records."""
    async with callslip.open(db, SETTINGS) as ledger:
        await ledger.log.append("s", events_with("a\ud800b"))
        await ledger.log.project("s")
        session = await ledger.log.store.session("s")
        assert session is not None and session.title == "a\ufffdb" and session.labels == {"a\ufffdb": "a\ufffdb"}
        ((_, body),) = await ledger.log.store.events("s", 0, 1)
        assert body.decode().count("a\ufffdb") == 3
        assert {call.title for call in (await ledger.calls()).items} == {"a\ufffdb", ""}
        assert await verify(ledger.log) == []


@pytest.mark.parametrize("retention", [False, True])
async def test_an_older_ledger_with_nul_is_migrated(db: str, monkeypatch: pytest.MonkeyPatch, retention: bool) -> None:
    r"""DB1, S1.7: its records are cleaned, and `verify` reports nothing; a text \u0000 is not NUL and stays."""
    text = '\0a\\u0000\\\0\\\\"\x01b\0\0'
    with monkeypatch.context() as patch:
        await write_as_before(patch, db, text)
    columns = {"calls": "tool title kind worker reason client", "approvals": "description option by reason"}
    expected = {(table, column) for table, names in columns.items() for column in names.split()}
    assert columns_with_nul(db) == expected | {("sessions", "title")}
    triggers = ("search_entry_deleted", "search_session_deleted", "search_checkpoint_replaced", "summaries_deleted")
    triggers = (*triggers, "rules_session_deleted")
    tables = ("search_rows", "search_places", "search_index", "summaries", "usage", "deleted_sessions", "rules")
    added = [
        *(f"TRIGGER {name}" for name in triggers),
        *(f"TABLE {name}" for name in tables),
        "INDEX approvals_answered",
    ]
    for name in added:
        change_rows(db, f"DROP {name}")
    change_rows(db, "PRAGMA user_version = 4")
    async with callslip.open(db, SETTINGS) as ledger:
        assert columns_with_nul(db) == set()
        assert await verify(ledger.log) == []
        session = await ledger.log.store.session("s")
        assert session is not None and session.title == text.replace("\0", "\ufffd")
        await check_writable(ledger, retention=retention)


async def write_as_before(patch: pytest.MonkeyPatch, db: str, text: str) -> None:
    """Write a ledger as earlier versions did: with NUL in records, and in names of workers and queues."""
    patch.setattr("callslip.rules.projection.record_text", lambda text: text)
    patch.setattr("callslip.ledger.validation._NAME_FIELDS", ())
    async with callslip.open(db, SETTINGS) as ledger:
        await ledger.log.append("s", events_with(text))
        await ledger.log.append(
            "s", [ev.CallProposed(call="new:1", client=text), ev.CallStarted(call="new:1", worker=text)]
        )


async def check_writable(ledger: LocalLedger, *, retention: bool) -> None:
    """Check that calls of the migrated ledger can be ended, also from the base that retention leaves."""
    if retention:
        assert await ledger.prune(-60) > 0
        assert await verify(ledger.log) == []
    await ledger.log.append("s", [ev.CallCompleted(aliases=THREE), ev.ApprovalGranted(aliases=FOUR)])
    assert await verify(ledger.log) == []
