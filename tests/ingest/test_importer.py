"""Files put into a ledger: native logs and foreign traffic, whole, cut short, longer than before, and damaged."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import InvalidInputError
from callslip.formats import registry
from callslip.formats.events.decode import EventsDecoder
from callslip.ingest import importer
from callslip.ingest.importer import Report, import_file, import_lines
from callslip.ledger.event_log import EventLog
from callslip.model import events as ev
from callslip.model.entries import Message, Thought, ToolCall
from callslip.model.events import Alias, Draft, Event, encode_event, read_event
from callslip.rules.fold import SessionFold
from callslip.settings import Settings
from tests.support import scenarios
from tests.support.invariants import find_faults
from tests.support.paths import TESTS
from tests.support.strategies import MemoryLedger, canonical_json, logs, scripts, write_script

CAPTURES = {path.stem: path for path in sorted((TESTS / "captures").glob("*.jsonl"))}
QUIET = Settings(synchronous="NORMAL", reaper_interval=3600, checkpoint_every=10**9)
S = "s"


def lines_of(name: str) -> list[bytes]:
    """The lines of a capture."""
    return CAPTURES[name].read_bytes().splitlines(keepends=True)


async def opened() -> LocalLedger:
    """An empty ledger in which nothing happens by itself."""
    return await callslip.open("sqlite:///:memory:", QUIET)


async def acp(ledger: LocalLedger, lines: Any, session: str = S, **options: Any) -> Report:
    return await import_lines(ledger.log, session, "acp", lines, **options)


async def log_of(ledger: LocalLedger, session: str = S) -> list[Event]:
    return [event async for event in ledger.events(session)]


async def calls_of(ledger: LocalLedger, session: str = S) -> list[ToolCall]:
    return [entry for entry in (await ledger.snapshot(session)).entries if isinstance(entry, ToolCall)]


def native(log: list[Event]) -> list[bytes]:
    """A log as it is exported, one event per line."""
    return [encode_event(event) for event in log]


# The list of formats


@pytest.fixture
def one_way(monkeypatch: pytest.MonkeyPatch) -> str:
    """A format that can only be written."""
    created = registry.Format(name="one-way", about="", encoder="callslip.formats.ai_sdk:history_v6")
    monkeypatch.setitem(registry.FORMATS, created.name, created)
    return created.name


def test_an_unknown_format_is_refused_with_the_known_names(one_way: str) -> None:
    """An export-only format is refused with the names of the import formats."""
    with pytest.raises(InvalidInputError, match=r"'acpp' cannot be read; these can: acp, .*events"):
        registry.decoder("acpp")
    with pytest.raises(InvalidInputError, match=r"'one-way' cannot be read; these can: acp, .*events"):
        registry.decoder(one_way)
    with pytest.raises(InvalidInputError, match="'rows' cannot be written"):
        registry.encoder("rows")


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["foo", "mcp", "rows"])
async def test_an_export_error_lists_the_formats_that_can_be_exported(tmp_path: Path, name: str) -> None:
    """All of them, and no format that can only be imported."""
    async with callslip.open(tmp_path / "ledger.db") as ledger:
        await ledger.session("s").say("hello")
        with pytest.raises(InvalidInputError) as refusal:
            await ledger.export("s", name)
        assert refusal.value.problem == f"{name!r} cannot be exported; these can: {', '.join(registry.exportable())}"
        for format in registry.exportable():
            assert await ledger.export("s", format)


@pytest.mark.parametrize("name", registry.FORMATS)
def test_every_listed_format_can_be_loaded(name: str) -> None:
    """And its decoder accepts any value."""
    entry = registry.find(name)
    assert entry.about and (entry.decoder or entry.encoder or entry.document)
    if entry.decoder:
        created = registry.decoder(name, chunks="delta", started=1)
        assert created.feed(None) and created.feed({"x": [1]}) and not created.close("eof")
    if entry.encoder:
        assert callable(registry.encoder(name))
    assert (registry.splitter(name) is not None) == bool(entry.splitter)


# Foreign traffic


@pytest.mark.anyio
@pytest.mark.parametrize("name", CAPTURES)
async def test_importing_a_file_twice_changes_nothing(name: str) -> None:
    """C7: no event is added, and the report says so."""
    async with await opened() as ledger:
        first = await import_file(ledger.log, S, "acp", CAPTURES[name])
        log = await log_of(ledger)
        second = await import_file(ledger.log, S, "acp", CAPTURES[name])
        assert native(await log_of(ledger)) == native(log)
        assert (second.events, second.seen, second.drafts, second.verdicts) == (0, first.drafts, first.drafts, {})
        assert first.events == len(log) and first.lines == second.lines == len(lines_of(name))
        assert not await find_faults(ledger)


@pytest.mark.anyio
@pytest.mark.parametrize("name", CAPTURES)
async def test_the_batch_size_does_not_change_the_entries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All lines in one transaction, or each in its own: the same entries, replays included (S2.11)."""
    seen: list[bytes] = []
    for size in (1, importer.BATCH_DRAFTS):
        monkeypatch.setattr(importer, "BATCH_DRAFTS", size)
        async with await opened() as ledger:
            await acp(ledger, lines_of(name), started=10**12)
            seen.append(renamed(await log_of(ledger)))
    assert seen[0] == seen[1]


def renamed(log: list[Event]) -> bytes:
    """The entries of a log, with one name for each minted id and none of the store's own times."""
    state = SessionFold(S)
    state.fold(log)
    text = canonical_json(state.snapshot().entries).decode()
    minted = [getattr(event, field) for event in log for field in ("call", "approval") if getattr(event, field, "")]
    for number, name in enumerate(dict.fromkeys(minted)):
        text = text.replace(name, f"#{number}")
    return text.encode()


@pytest.mark.anyio
async def test_a_longer_version_of_a_file_adds_only_new_events() -> None:
    """The end of the shorter one ended its turn; events of the longer one about that turn are late."""
    lines = lines_of("ts-example-allow")
    async with await opened() as ledger:
        await acp(ledger, lines[:15])
        one_turn = await log_of(ledger)
        report = await acp(ledger, lines)
        assert (await log_of(ledger))[: len(one_turn)] == one_turn
        assert [call.status for call in await calls_of(ledger)] == ["completed"] * 4
        assert report.seen == len(one_turn) and report.events == len(await log_of(ledger)) - len(one_turn)
    async with await opened() as ledger:
        await acp(ledger, lines[:8])
        assert [call.status for call in await calls_of(ledger)] == ["completed"]
        await acp(ledger, lines[:7], "shorter")
        assert [call.status for call in await calls_of(ledger, "shorter")] == ["lost"]
        await acp(ledger, lines[:8], "shorter")
        (call,) = await calls_of(ledger, "shorter")
        assert (call.status, bool(call.late)) == ("lost", True)


@pytest.mark.anyio
async def test_calls_outside_of_any_turn_end_with_the_file() -> None:
    """C5: also calls without an owner, left open when their turn ended normally."""
    update = {"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "T", "status": "in_progress"}
    idle = {"method": "session/update", "params": {"sessionId": "s1", "update": update}}
    begun = {"id": 1, "method": "session/prompt", "params": {"sessionId": "s1", "prompt": []}}
    ended = {"id": 1, "result": {"stopReason": "end_turn"}}
    async with await opened() as ledger:
        await acp(ledger, jsonl(idle))
        await acp(ledger, jsonl(begun, idle, ended), "left")
        for session in (S, "left"):
            (call,) = await calls_of(ledger, session)
            assert (call.status, call.reason) == ("lost", importer.LEFT_OPEN)


def jsonl(*messages: Any) -> list[bytes]:
    return [json.dumps(message).encode() + b"\n" for message in messages]


@pytest.mark.anyio
async def test_conversations_of_one_file_are_separate_sessions() -> None:
    """The first one gets the chosen name; ids that are not valid names are replaced by a digest."""
    messages = [
        {
            "id": key,
            "method": "session/prompt",
            "params": {"sessionId": name, "prompt": [{"type": "text", "text": name}]},
        }
        for key, name in enumerate(("one", "two", "a/b"))
    ]
    async with await opened() as ledger:
        report = await acp(ledger, jsonl(*messages))
        assert report.sessions[:2] == [S, "s:two"] and len(report.sessions) == 3
        for session, text in zip(report.sessions, ("one", "two", "a/b"), strict=True):
            log = await log_of(ledger, session)
            assert [event.text for event in log if isinstance(event, ev.MessageUser)] == [text]
            assert [event.reason for event in log if isinstance(event, ev.TurnEnded)] == ["eof"]
        assert (await acp(ledger, jsonl(*messages))).events == 0


# Damaged files


@pytest.mark.anyio
@pytest.mark.parametrize("bad", [b"{", b'{"a": nope}', b"\xff\xfe", b'{"a":1} {"b":2}', b"[" * 1000])
async def test_a_line_that_is_not_json_is_refused_with_its_number(bad: bytes) -> None:
    """Earlier lines stay imported and their calls end; later lines are not read."""
    good = lines_of("ts-example-allow")
    async with await opened() as ledger:
        with pytest.raises(InvalidInputError) as error:
            await acp(ledger, [*good[:7], b"\n", bad, *good[7:]])
        assert error.value.field == "line 9"
        assert "The 7 lines before it were imported" in error.value.problem
        assert [call.status for call in await calls_of(ledger)] == ["lost"]
        before = await log_of(ledger)
        await acp(ledger, good[:7])
        assert await log_of(ledger) == before


@pytest.mark.anyio
async def test_an_invalid_message_in_a_valid_row_is_stored() -> None:
    """Other output of an agent on its stdout does not end the import."""
    row = {"t": 1, "dir": "a2c", "msg": "npm WARN deprecated {"}
    async with await opened() as ledger:
        await acp(ledger, [*jsonl(row), b"\r\n", *lines_of("py-example-agent")])
        assert next(event.body for event in await log_of(ledger) if isinstance(event, ev.Raw)) == row


@pytest.mark.anyio
async def test_a_line_refused_by_the_ledger_is_stored_as_raw() -> None:
    """C11: for example numbers of another version that fit no column; the other lines are imported."""
    odd = {"type": "call.started", "call": "exec_000000000001", "at": 10**30}
    around = {"type": "message.user", "text": "hi"}
    async with await opened() as ledger:
        report = await import_lines(ledger.log, S, "events", jsonl(around, odd, around))
        kinds = [ev.type_of(event) for event in await log_of(ledger)]
        assert kinds == ["message.user", "raw", "message.user"]
        assert (await import_lines(ledger.log, S, "events", jsonl(around, odd, around))).events == 0
        assert report.verdicts == {"applied": 3}


@pytest.mark.anyio
async def test_a_wrong_format_or_session_is_refused_before_anything_is_read(one_way: str) -> None:
    """No line is read."""

    def unread() -> Iterator[bytes]:
        raise AssertionError("read")
        yield b""

    async with await opened() as ledger:
        for session, format in ((S, "nope"), (S, one_way), ("a/b", "acp")):
            with pytest.raises(InvalidInputError):
                await import_lines(ledger.log, session, format, unread())


@pytest.mark.anyio
async def test_large_output_is_stored_as_a_blob() -> None:
    """S2.8: with a preview and its size on the entry."""
    output = "x" * 200_000
    update = {"sessionUpdate": "tool_call", "toolCallId": "c1", "status": "completed", "rawOutput": output}
    message = {"method": "session/update", "params": {"sessionId": "s1", "update": update}}
    async with await opened() as ledger:
        await acp(ledger, jsonl(message))
        (call,) = await calls_of(ledger)
        assert call.truncated and call.blob and call.blob.size == len(output)
        assert await ledger.blob(call.blob.hash) == output.encode()


@pytest.mark.anyio
async def test_progress_is_reported_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a callback."""
    monkeypatch.setattr(importer, "BATCH_DRAFTS", 10)
    heard: list[int] = []
    async with await opened() as ledger:
        await acp(ledger, lines_of("claude-allow"), progress=lambda report: heard.append(report.lines))
    assert heard == sorted(heard) and len(heard) > 3 and heard[-1] == 44


@pytest.mark.anyio
async def test_relative_times_end_at_the_modification_time_of_the_file(tmp_path: Path) -> None:
    """Durations of calls are kept."""
    path = tmp_path / "codex.jsonl"
    path.write_bytes(CAPTURES["codex-allow"].read_bytes())
    os.utime(path, (1_700_000_000, 1_700_000_000))
    async with await opened() as ledger:
        await import_file(ledger.log, S, "acp", path)
        (call,) = await calls_of(ledger)
        assert call.ended_at - call.started_at == pytest.approx(1027, abs=2)
        assert call.ended_at == pytest.approx(1_700_000_000_000 - (2549.6 - 2119.2), abs=2)
        os.utime(path)
        assert (await import_file(ledger.log, S, "acp", path)).events == 0


# The native log


def copied(log: list[Event], *, redact: bool = False) -> MemoryLedger:
    """A log, exported and imported into an empty ledger."""
    decoder, memory = EventsDecoder(), MemoryLedger(redact=redact)
    for line in native(log):
        for draft in decoder.feed(json.loads(line)):
            memory.write(draft)
    return memory


@given(logs)
def test_a_copied_log_gives_the_same_entries(log: list[Event]) -> None:
    """Export, then import into an empty ledger: the same verdicts, the same entries, byte for byte."""
    copy = copied(log)
    assert [event.verdict for event in copy.log] == [event.verdict for event in log]
    assert renamed(copy.log) == renamed(log)
    assert [event.call for event in copy.log if isinstance(event, ev.CallEvent)] == [
        event.call for event in log if isinstance(event, ev.CallEvent)
    ]


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_a_copy_of_every_scenario_has_the_same_bytes(name: str) -> None:
    """Replays, late and orphan events and failed turns, including ids and numbers."""
    log = list(scenarios.load_events(name))
    copy = copied(log)
    assert [event.verdict for event in copy.log] == [event.verdict for event in log]
    first, second = SessionFold(S), SessionFold(S)
    first.fold(log)
    second.fold(copy.log)
    assert canonical_json(second.snapshot()) == canonical_json(first.snapshot())


@given(logs)
def test_a_copy_of_a_copy_has_the_same_entries(log: list[Event]) -> None:
    """The aliases that the first copy added do not change the second."""
    assert renamed(copied(copied(log).log).log) == renamed(log)


def as_deltas(script: list[Event]) -> list[Event]:
    """The script with all texts declared as deltas."""
    return [structs.replace(event, chunks="delta") if hasattr(event, "chunks") else event for event in script]


@given(scripts().map(as_deltas))
def test_redaction_during_a_copy_changes_no_text(script: list[Event]) -> None:
    """Text is held again, so numbers and times may differ, but no text and no outcome."""
    log = write_script(script).log
    copy = copied(log, redact=True)
    copy.write(ev.MessageEnded())  # What waits comes when something follows.
    assert texts_and_ends(copy.log) == texts_and_ends([*log, ev.MessageEnded(seq=len(log) + 1)])


def texts_and_ends(log: list[Event]) -> Any:
    """Return all texts, and the end of each call."""
    state = SessionFold(S)
    state.fold(log)
    entries = state.snapshot().entries
    texts = {
        kind: "".join(entry.content for entry in entries if isinstance(entry, kind)) for kind in (Message, Thought)
    }
    calls = {
        entry.call_id: (entry.status, entry.output, entry.error) for entry in entries if isinstance(entry, ToolCall)
    }
    return texts, calls


SCENARIO: list[Event] = [
    ev.TurnStarted(),
    ev.MessageUser(text="hi", message_id="u1"),
    ev.MessageDelta(text="Well", message_id="m1", chunks="delta"),
    ev.CallProposed(aliases=(Alias("acp", "1"),), tool_name="ls"),
    ev.ApprovalRequested(aliases=(Alias("acp", "1"),), options=[{"optionId": "y", "kind": "allow_once"}]),
    ev.ApprovalGranted(aliases=(Alias("acp", "1"),), option="y", by="ann"),
    ev.CallStarted(aliases=(Alias("acp", "1"),)),
    ev.CallCompleted(aliases=(Alias("acp", "1"),), output="a"),
    ev.CallStarted(aliases=(Alias("acp", "2"),), tool_name="ls"),
    ev.ApprovalRequested(aliases=(Alias("acp", "3"),), tool_name="rm"),
    ev.ApprovalRequested(aliases=(Alias("acp", "3"),), tool_name="rm -r"),
    ev.ApprovalRefused(aliases=(Alias("acp", "3"),), by="ann", reason="no"),
    ev.CallProgress(aliases=(Alias("acp", "3"),), text="late"),
    ev.CallProposed(tool_name="detached", scope="detached"),
    ev.TurnEnded(reason="cancelled"),
]


@pytest.mark.anyio
async def test_a_session_can_be_copied_within_one_database() -> None:
    """Ids of calls and approvals that exist are replaced, and the original is unchanged."""
    async with await opened() as ledger:
        for event in SCENARIO:
            await ledger.log.append(S, [event], source="test")
        request = (await ledger.log.store.approvals(session=S))[1]
        await ledger.log.append(S, [ev.ApprovalGranted(approval=request.id, by="late")])
        open_call = (await ledger.calls(session=S, states=["queued"])).items[0]
        await ledger.log.append(S, [ev.CallCancelled(call=open_call.id, reason="over")])
        await ledger.log.append(S, [ev.CallStarted(call=open_call.id)])
        log, approvals = await log_of(ledger), await ledger.log.store.approvals(session=S)
        await import_lines(ledger.log, "copy", "events", native(log))
        copy = await log_of(ledger, "copy")
        assert [event.verdict for event in copy] == [event.verdict for event in log]
        assert renamed(copy) == shown_as_before(copy, log)
        assert await log_of(ledger) == log and await ledger.log.store.approvals(session=S) == approvals
        copies = await ledger.log.store.approvals(session="copy")
        assert sorted((row.state, row.by) for row in copies) == sorted((row.state, row.by) for row in approvals)
        ids = {row.id for row in (await ledger.calls()).items}
        assert len(ids) == 8
        await import_lines(ledger.log, "copy", "events", native(log))
        assert await log_of(ledger, "copy") == copy
        assert not await find_faults(ledger)


def shown_as_before(copy: list[Event], log: list[Event]) -> bytes:
    """The original's entries; a call without foreign ids goes by its first id in the copy as well."""
    entries = json.loads(renamed(log))
    shown = {entry["id"]: entry for entry in json.loads(renamed(copy)) if entry["type"] == "tool_call"}
    for entry in entries:
        if entry["type"] == "tool_call" and entry["toolCallId"] == entry["callId"]:
            entry["toolCallId"] = shown[entry["id"]]["toolCallId"]
            assert entry["toolCallId"] in [event.call for event in log if isinstance(event, ev.CallEvent)]
    return canonical_json(entries)


@pytest.mark.anyio
@pytest.mark.parametrize("name", CAPTURES)
async def test_a_copied_capture_keeps_its_ids(name: str) -> None:
    """In another database the entries have the same bytes."""
    async with await opened() as first, await opened() as second:
        await import_file(first.log, S, "acp", CAPTURES[name])
        await import_lines(second.log, S, "events", native(await log_of(first)))
        before, after = await first.snapshot(S), await second.snapshot(S)
        assert canonical_json(after) == canonical_json(before)


@pytest.mark.anyio
async def test_open_calls_of_a_log_end_in_its_copy() -> None:
    """C5: no process continues the copy of a call, not even of one that waits for a worker."""
    async with await opened() as ledger:
        await ledger.log.append(S, SCENARIO[:9])
        await ledger.log.append(S, [SCENARIO[13]])
        lines = native(await log_of(ledger))
        await import_lines(ledger.log, "copy", "events", lines)
        assert [call.status for call in await calls_of(ledger, "copy")] == ["completed", "lost", "lost"]
        assert (await ledger.find_session("copy")).turn == ""
        assert [row.session for row in await ledger.log.store.open_calls()] == [S, S]
        assert (await import_lines(ledger.log, "copy", "events", lines)).events == 0


@pytest.mark.anyio
async def test_the_end_of_the_file_ends_an_open_text() -> None:
    """S2.12: it is not streaming, and no part of it is held, in either format."""
    chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "We go by plan B"}}
    message = {"method": "session/update", "params": {"sessionId": "s1", "update": chunk}}
    async with await opened() as ledger:
        await acp(ledger, jsonl(message))
        await import_lines(ledger.log, "copy", "events", jsonl({"type": "message.delta", "text": "We go by plan B"}))
        for session in (S, "copy"):
            (entry,) = (await ledger.snapshot(session)).entries
            assert (entry.content, entry.streaming) == ("We go by plan B", False)


def test_an_exported_document_is_imported_as_events() -> None:
    """What `export` prints."""
    events = [{"type": "message.user", "text": "hi", "seq": 1}, {"type": "turn.started", "turn": "t1"}]
    drafts = EventsDecoder().feed({"session": "x", "seq": 2, "events": events})
    assert [ev.type_of(draft.event) for draft in drafts] == ["message.user", "turn.started"]


@given(st.recursive(st.none() | st.text() | st.integers(), lambda inside: st.dictionaries(st.text(), inside)))
def test_values_that_are_not_events_are_stored_as_raw(value: Any) -> None:
    """C11: also event types of a newer version."""
    for body in (value, {"type": value}, {"type": "call.reborn", "x": value}, {"type": "message.delta", "text": 5}):
        (draft,) = EventsDecoder().feed(body)
        assert draft == Draft(ev.Raw(format="events", body=body))


@pytest.mark.anyio
@pytest.mark.chaos
async def test_a_long_file_is_imported_in_batches(scale: int) -> None:
    """Tens of thousands of chunks, twice: the second import adds nothing, and the text is complete."""
    count = 2000 * scale
    chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "word "}, "messageId": "m"}
    line = jsonl({"method": "session/update", "params": {"sessionId": "s1", "update": chunk}})[0]
    async with await opened() as ledger:
        first = await acp(ledger, (line for _ in range(count)))
        second = await acp(ledger, (line for _ in range(count)))
        assert (first.events, second.events, second.seen) == (count + 1, 0, count + 1)
        (message,) = (await ledger.snapshot(S)).entries
        assert message.content == "word " * count


# Parts of messages


class Several:
    """A decoder whose messages are lists of what to draft."""

    def __init__(self, **_: Any) -> None:
        pass

    def feed(self, message: Any) -> list[Draft]:
        return [Draft(read_event(item)) for item in message]

    def close(self, reason: str) -> list[Draft]:
        return []


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> type[Several]:
    created = registry.Format(name="several", about="", decoder=f"{__name__}:Several")
    monkeypatch.setitem(registry.FORMATS, "several", created)
    return Several


SMALL = structs.replace(QUIET, max_event=2000, inline_limit=1000, preview=100)


@pytest.mark.anyio
async def test_a_refused_part_does_not_affect_the_rest_of_its_message(several: type[Several]) -> None:
    """C11: the rest of the message is written, and the message is kept as raw for the refused part."""
    message = [
        {"type": "message.user", "text": "first"},
        {"type": "message.user", "text": "x" * 5000},
        {"type": "call.proposed", "call": "new:1", "toolName": "ls"},
        {"type": "call.completed", "call": "new:1", "output": "done"},
    ]
    async with await callslip.open("sqlite:///:memory:", SMALL) as ledger:
        report = await import_lines(ledger.log, S, "several", jsonl(message, message))
        log = await log_of(ledger)
        assert [entry.content for entry in (await ledger.snapshot(S)).entries if isinstance(entry, Message)] == [
            "first",
            "first",
        ]
        assert [call.output for call in await calls_of(ledger)] == ["done", "done"]
        assert len([event for event in log if isinstance(event, ev.Raw)]) == 2
        again = await import_lines(ledger.log, S, "several", jsonl(message, message))
        assert report.events and not again.events
        assert not await find_faults(ledger)


@pytest.mark.anyio
async def test_placeholders_for_new_calls_are_local_to_a_message(several: type[Several]) -> None:
    """C3: `new:1` in two lines of one write means two calls."""
    message = [
        {"type": "call.proposed", "call": "new:1", "toolName": "ls"},
        {"type": "call.completed", "call": "new:1"},
    ]
    async with await opened() as ledger:
        await import_lines(ledger.log, S, "several", jsonl(message, message, message))
        assert [call.status for call in await calls_of(ledger)] == ["completed"] * 3


@pytest.mark.anyio
async def test_many_events_at_the_end_are_written_in_batches(
    several: type[Several], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no other writer waits for thousands of drafts."""
    sizes: list[int] = []
    append = EventLog.append

    async def counted(self: EventLog, session: str, drafts: Any, **options: Any) -> list[Event]:
        sizes.append(len(drafts))
        return await append(self, session, drafts, **options)

    monkeypatch.setattr(EventLog, "append", counted)
    monkeypatch.setattr(
        several, "close", lambda self, reason: [Draft(ev.MessageUser(text=str(n))) for n in range(2500)]
    )
    async with await opened() as ledger:
        report = await import_lines(ledger.log, S, "several", jsonl([{"type": "message.user", "text": "x"}]))
        assert report.events == 2501
        assert sum(sizes) == 2501 and max(sizes) <= 1000
