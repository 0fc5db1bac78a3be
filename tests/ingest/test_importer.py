"""Import files into a ledger: native logs and foreign traffic, complete, truncated, extended and damaged."""

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
from callslip.formats.acp.decode import AcpDecoder
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
NO_REAPER = Settings(synchronous="NORMAL", reaper_interval=3600, checkpoint_every=10**9)
SESSION = "s"


def capture_lines(name: str) -> list[bytes]:
    """Return the lines of a capture."""
    return CAPTURES[name].read_bytes().splitlines(keepends=True)


async def open_empty() -> LocalLedger:
    """Open an empty ledger without a reaper and without checkpoints."""
    return await callslip.open("sqlite:///:memory:", NO_REAPER)


async def import_acp(ledger: LocalLedger, lines: Any, session: str = SESSION, **options: Any) -> Report:
    return await import_lines(ledger.log, session, "acp", lines, **options)


async def read_log(ledger: LocalLedger, session: str = SESSION) -> list[Event]:
    return [event async for event in ledger.events(session)]


async def list_calls(ledger: LocalLedger, session: str = SESSION) -> list[ToolCall]:
    return [entry for entry in (await ledger.snapshot(session)).entries if isinstance(entry, ToolCall)]


def export_lines(log: list[Event]) -> list[bytes]:
    """Return the exported form of a log, one event per line."""
    return [encode_event(event) for event in log]


# The list of formats


@pytest.fixture
def export_only_format(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a format that can only be exported."""
    new_format = registry.Format(name="one-way", about="", encoder="callslip.formats.ai_sdk:history_v6")
    monkeypatch.setitem(registry.FORMATS, new_format.name, new_format)
    return new_format.name


def test_an_unknown_format_is_refused_with_the_known_names(export_only_format: str) -> None:
    """An export-only format is refused with the names of the import formats."""
    with pytest.raises(InvalidInputError, match=r"'acpp' cannot be read; these can: acp, .*events"):
        registry.decoder("acpp")
    with pytest.raises(InvalidInputError, match=r"'one-way' cannot be read; these can: acp, .*events"):
        registry.decoder(export_only_format)
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
        decoder = registry.decoder(name, chunks="delta", started=1)
        assert decoder.feed(None) and decoder.feed({"x": [1]}) and not decoder.close("eof")
    if entry.encoder:
        assert callable(registry.encoder(name))
    assert (registry.splitter(name) is not None) == bool(entry.splitter)


# Foreign traffic


@pytest.mark.anyio
@pytest.mark.parametrize("name", CAPTURES)
async def test_importing_a_file_twice_changes_nothing(name: str) -> None:
    """C7: no event is added, and the report says so."""
    async with await open_empty() as ledger:
        first = await import_file(ledger.log, SESSION, "acp", CAPTURES[name])
        log = await read_log(ledger)
        second = await import_file(ledger.log, SESSION, "acp", CAPTURES[name])
        assert export_lines(await read_log(ledger)) == export_lines(log)
        assert (second.events, second.seen, second.drafts, second.verdicts) == (0, first.drafts, first.drafts, {})
        assert first.events == len(log) and first.lines == second.lines == len(capture_lines(name))
        assert not await find_faults(ledger)


@pytest.mark.anyio
async def test_a_file_that_an_earlier_version_imported_adds_only_new_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    """C7: versions before 0.3 read neither usage nor the agent of a session. No text, call or turn is added again."""
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}}
    cost = {"sessionUpdate": "usage_update", "used": 9, "cost": {"amount": 0.5, "currency": "USD"}}
    result = {"stopReason": "end_turn", "usage": {"inputTokens": 9, "outputTokens": 4}, "more": 1}
    lines = [
        {"dir": "c2a", "msg": {"id": 1, "method": "session/new", "params": {"cwd": "/home/ann/shop"}}},
        {"dir": "a2c", "msg": {"id": 1, "result": {"sessionId": "s1", "modes": {"availableModes": [{"id": "m"}]}}}},
        {"dir": "c2a", "msg": {"id": 2, "method": "session/prompt", "params": {"sessionId": "s1", "prompt": []}}},
        {"dir": "a2c", "msg": {"method": "session/update", "params": {"sessionId": "s1", "update": update}}},
        {"dir": "a2c", "msg": {"method": "session/update", "params": {"sessionId": "s1", "update": cost}}},
        {"dir": "a2c", "msg": {"id": 2, "result": result}},
    ]
    file = [json.dumps({**line, "msg": {"jsonrpc": "2.0", **line["msg"]}}).encode() for line in lines]
    feed = AcpDecoder.feed
    with monkeypatch.context() as patch:
        patch.setattr(AcpDecoder, "feed", lambda *args: [each for each in feed(*args) if not is_new_fact(each.event)])  # pyright: ignore
        async with await open_empty() as ledger:
            await import_acp(ledger, file)
            patch.setattr(AcpDecoder, "feed", feed)
            old = await read_log(ledger)
            assert {"turn.ended", "message.delta", "session.capabilities"} <= {ev.type_of(event) for event in old}
            report = await import_acp(ledger, file)
            log = await read_log(ledger)
            assert log[: len(old)] == old and report.seen == len(old)
            assert [ev.type_of(event) for event in log[len(old) :]] == ["session.info", *["usage.reported"] * 2]
            assert (await import_acp(ledger, file)).events == 0


def is_new_fact(event: Event) -> bool:
    return isinstance(event, ev.UsageReported) or (isinstance(event, ev.SessionInfo) and bool(event.project))


@pytest.mark.anyio
@pytest.mark.parametrize("name", CAPTURES)
async def test_the_batch_size_does_not_change_the_entries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All lines in one transaction, or each in its own: the same entries, replays included (S2.11)."""
    entries_by_size: list[bytes] = []
    for size in (1, importer.BATCH_DRAFTS):
        monkeypatch.setattr(importer, "BATCH_DRAFTS", size)
        async with await open_empty() as ledger:
            await import_acp(ledger, capture_lines(name), started=10**12)
            entries_by_size.append(normalized_entries(await read_log(ledger)))
    assert entries_by_size[0] == entries_by_size[1]


def normalized_entries(log: list[Event]) -> bytes:
    """Return the entries of a log as JSON, with numbers in place of generated ids."""
    state = SessionFold(SESSION)
    state.fold(log)
    text = canonical_json(state.snapshot().entries).decode()
    generated_ids = [
        getattr(event, field) for event in log for field in ("call", "approval") if getattr(event, field, "")
    ]
    for number, name in enumerate(dict.fromkeys(generated_ids)):
        text = text.replace(name, f"#{number}")
    return text.encode()


@pytest.mark.anyio
async def test_a_longer_version_of_a_file_adds_only_new_events() -> None:
    """The end of the shorter one ended its turn; events of the longer one about that turn are late."""
    lines = capture_lines("ts-example-allow")
    async with await open_empty() as ledger:
        await import_acp(ledger, lines[:15])
        first_log = await read_log(ledger)
        report = await import_acp(ledger, lines)
        assert (await read_log(ledger))[: len(first_log)] == first_log
        assert [call.status for call in await list_calls(ledger)] == ["completed"] * 4
        assert report.seen == len(first_log) and report.events == len(await read_log(ledger)) - len(first_log)
    async with await open_empty() as ledger:
        await import_acp(ledger, lines[:8])
        assert [call.status for call in await list_calls(ledger)] == ["completed"]
        await import_acp(ledger, lines[:7], "shorter")
        assert [call.status for call in await list_calls(ledger, "shorter")] == ["lost"]
        await import_acp(ledger, lines[:8], "shorter")
        (call,) = await list_calls(ledger, "shorter")
        assert (call.status, bool(call.late)) == ("lost", True)


@pytest.mark.anyio
async def test_calls_outside_of_any_turn_end_with_the_file() -> None:
    """C5: also calls without an owner, left open when their turn ended normally."""
    update = {"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "T", "status": "in_progress"}
    call_update = {"method": "session/update", "params": {"sessionId": "s1", "update": update}}
    prompt = {"id": 1, "method": "session/prompt", "params": {"sessionId": "s1", "prompt": []}}
    response = {"id": 1, "result": {"stopReason": "end_turn"}}
    async with await open_empty() as ledger:
        await import_acp(ledger, json_lines(call_update))
        await import_acp(ledger, json_lines(prompt, call_update, response), "left")
        for session in (SESSION, "left"):
            (call,) = await list_calls(ledger, session)
            assert (call.status, call.reason) == ("lost", importer.LEFT_OPEN)


def json_lines(*messages: Any) -> list[bytes]:
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
    async with await open_empty() as ledger:
        report = await import_acp(ledger, json_lines(*messages))
        assert report.sessions[:2] == [SESSION, "s:two"] and len(report.sessions) == 3
        for session, text in zip(report.sessions, ("one", "two", "a/b"), strict=True):
            log = await read_log(ledger, session)
            assert [event.text for event in log if isinstance(event, ev.MessageUser)] == [text]
            assert [event.reason for event in log if isinstance(event, ev.TurnEnded)] == ["eof"]
        assert (await import_acp(ledger, json_lines(*messages))).events == 0


# Damaged files


@pytest.mark.anyio
@pytest.mark.parametrize("bad_line", [b"{", b'{"a": nope}', b"\xff\xfe", b'{"a":1} {"b":2}', b"[" * 1000])
async def test_a_line_that_is_not_json_is_refused_with_its_number(bad_line: bytes) -> None:
    """Earlier lines stay imported and their calls end; later lines are not read."""
    lines = capture_lines("ts-example-allow")
    async with await open_empty() as ledger:
        with pytest.raises(InvalidInputError) as error:
            await import_acp(ledger, [*lines[:7], b"\n", bad_line, *lines[7:]])
        assert error.value.field == "line 9"
        assert "The 7 lines before it were imported" in error.value.problem
        assert [call.status for call in await list_calls(ledger)] == ["lost"]
        before = await read_log(ledger)
        await import_acp(ledger, lines[:7])
        assert await read_log(ledger) == before


@pytest.mark.anyio
async def test_an_invalid_message_in_a_valid_row_is_stored() -> None:
    """Other output of an agent on its stdout does not end the import."""
    row = {"t": 1, "dir": "a2c", "msg": "npm WARN deprecated {"}
    async with await open_empty() as ledger:
        await import_acp(ledger, [*json_lines(row), b"\r\n", *capture_lines("py-example-agent")])
        assert next(event.body for event in await read_log(ledger) if isinstance(event, ev.Raw)) == row


@pytest.mark.anyio
async def test_a_line_refused_by_the_ledger_is_stored_as_raw() -> None:
    """C11: for example numbers of another version that fit no column; the other lines are imported."""
    refused = {"type": "call.started", "call": "exec_000000000001", "at": 10**30}
    message = {"type": "message.user", "text": "hi"}
    async with await open_empty() as ledger:
        report = await import_lines(ledger.log, SESSION, "events", json_lines(message, refused, message))
        kinds = [ev.type_of(event) for event in await read_log(ledger)]
        assert kinds == ["message.user", "raw", "message.user"]
        assert (await import_lines(ledger.log, SESSION, "events", json_lines(message, refused, message))).events == 0
        assert report.verdicts == {"applied": 3}


@pytest.mark.anyio
async def test_a_wrong_format_or_session_is_refused_before_anything_is_read(export_only_format: str) -> None:
    """No line is read."""

    def fail_if_read() -> Iterator[bytes]:
        raise AssertionError("read")
        yield b""

    async with await open_empty() as ledger:
        for session, format in ((SESSION, "nope"), (SESSION, export_only_format), ("a/b", "acp")):
            with pytest.raises(InvalidInputError):
                await import_lines(ledger.log, session, format, fail_if_read())


@pytest.mark.anyio
async def test_large_output_is_stored_as_a_blob() -> None:
    """S2.8: with a preview and its size on the entry."""
    output = "x" * 200_000
    update = {"sessionUpdate": "tool_call", "toolCallId": "c1", "status": "completed", "rawOutput": output}
    message = {"method": "session/update", "params": {"sessionId": "s1", "update": update}}
    async with await open_empty() as ledger:
        await import_acp(ledger, json_lines(message))
        (call,) = await list_calls(ledger)
        assert call.truncated and call.blob and call.blob.size == len(output)
        assert await ledger.blob(call.blob.hash) == output.encode()


@pytest.mark.anyio
async def test_progress_is_reported_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a callback."""
    monkeypatch.setattr(importer, "BATCH_DRAFTS", 10)
    reported_lines: list[int] = []
    async with await open_empty() as ledger:
        await import_acp(
            ledger, capture_lines("claude-allow"), progress=lambda report: reported_lines.append(report.lines)
        )
    assert reported_lines == sorted(reported_lines) and len(reported_lines) > 3 and reported_lines[-1] == 44


@pytest.mark.anyio
async def test_relative_times_end_at_the_modification_time_of_the_file(tmp_path: Path) -> None:
    """Durations of calls are kept."""
    path = tmp_path / "codex.jsonl"
    path.write_bytes(CAPTURES["codex-allow"].read_bytes())
    os.utime(path, (1_700_000_000, 1_700_000_000))
    async with await open_empty() as ledger:
        await import_file(ledger.log, SESSION, "acp", path)
        (call,) = await list_calls(ledger)
        assert call.ended_at - call.started_at == pytest.approx(1027, abs=2)
        assert call.ended_at == pytest.approx(1_700_000_000_000 - (2549.6 - 2119.2), abs=2)
        os.utime(path)
        assert (await import_file(ledger.log, SESSION, "acp", path)).events == 0


# The native log


def copy_log(log: list[Event], *, redact: bool = False) -> MemoryLedger:
    """Export a log and import it into an empty ledger."""
    decoder, memory = EventsDecoder(), MemoryLedger(redact=redact)
    for line in export_lines(log):
        for draft in decoder.feed(json.loads(line)):
            memory.write(draft)
    return memory


@given(logs)
def test_a_copied_log_gives_the_same_entries(log: list[Event]) -> None:
    """Export, then import into an empty ledger: the same verdicts, the same entries, byte for byte."""
    copy = copy_log(log)
    assert [event.verdict for event in copy.log] == [event.verdict for event in log]
    assert normalized_entries(copy.log) == normalized_entries(log)
    assert [event.call for event in copy.log if isinstance(event, ev.CallEvent)] == [
        event.call for event in log if isinstance(event, ev.CallEvent)
    ]


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_a_copy_of_every_scenario_has_the_same_bytes(name: str) -> None:
    """Replays, late and orphan events and failed turns, including ids and numbers."""
    log = list(scenarios.load_events(name))
    copy = copy_log(log)
    assert [event.verdict for event in copy.log] == [event.verdict for event in log]
    first, second = SessionFold(SESSION), SessionFold(SESSION)
    first.fold(log)
    second.fold(copy.log)
    assert canonical_json(second.snapshot()) == canonical_json(first.snapshot())


@given(logs)
def test_a_copy_of_a_copy_has_the_same_entries(log: list[Event]) -> None:
    """The aliases that the first copy added do not change the second."""
    assert normalized_entries(copy_log(copy_log(log).log).log) == normalized_entries(log)


def declare_deltas(script: list[Event]) -> list[Event]:
    """Return the script with all texts declared as deltas."""
    return [structs.replace(event, chunks="delta") if hasattr(event, "chunks") else event for event in script]


@given(scripts().map(declare_deltas))
def test_redaction_during_a_copy_changes_no_text(script: list[Event]) -> None:
    """Text is held again, so numbers and times may differ, but no text and no outcome."""
    log = write_script(script).log
    copy = copy_log(log, redact=True)
    copy.write(ev.MessageEnded())  # Releases the held text.
    assert list_texts_and_outcomes(copy.log) == list_texts_and_outcomes([*log, ev.MessageEnded(seq=len(log) + 1)])


def list_texts_and_outcomes(log: list[Event]) -> Any:
    """Return all texts, and the end of each call."""
    state = SessionFold(SESSION)
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
    async with await open_empty() as ledger:
        for event in SCENARIO:
            await ledger.log.append(SESSION, [event], source="test")
        request = (await ledger.log.store.approvals(session=SESSION))[1]
        await ledger.log.append(SESSION, [ev.ApprovalGranted(approval=request.id, by="late")])
        open_call = (await ledger.calls(session=SESSION, states=["queued"])).items[0]
        await ledger.log.append(SESSION, [ev.CallCancelled(call=open_call.id, reason="over")])
        await ledger.log.append(SESSION, [ev.CallStarted(call=open_call.id)])
        log, approvals = await read_log(ledger), await ledger.log.store.approvals(session=SESSION)
        await import_lines(ledger.log, "copy", "events", export_lines(log))
        copy = await read_log(ledger, "copy")
        assert [event.verdict for event in copy] == [event.verdict for event in log]
        assert normalized_entries(copy) == expected_copy(copy, log)
        assert await read_log(ledger) == log and await ledger.log.store.approvals(session=SESSION) == approvals
        copies = await ledger.log.store.approvals(session="copy")
        assert sorted((row.state, row.by) for row in copies) == sorted((row.state, row.by) for row in approvals)
        ids = {row.id for row in (await ledger.calls()).items}
        assert len(ids) == 8
        await import_lines(ledger.log, "copy", "events", export_lines(log))
        assert await read_log(ledger, "copy") == copy
        assert not await find_faults(ledger)


def expected_copy(copy: list[Event], log: list[Event]) -> bytes:
    """Return the entries of the original, with the first id of a call that has no foreign ids, as in the copy."""
    entries = json.loads(normalized_entries(log))
    copied_calls = {
        entry["id"]: entry for entry in json.loads(normalized_entries(copy)) if entry["type"] == "tool_call"
    }
    for entry in entries:
        if entry["type"] == "tool_call" and entry["toolCallId"] == entry["callId"]:
            entry["toolCallId"] = copied_calls[entry["id"]]["toolCallId"]
            assert entry["toolCallId"] in [event.call for event in log if isinstance(event, ev.CallEvent)]
    return canonical_json(entries)


@pytest.mark.anyio
@pytest.mark.parametrize("name", CAPTURES)
async def test_a_copied_capture_keeps_its_ids(name: str) -> None:
    """In another database the entries have the same bytes."""
    async with await open_empty() as first, await open_empty() as second:
        await import_file(first.log, SESSION, "acp", CAPTURES[name])
        await import_lines(second.log, SESSION, "events", export_lines(await read_log(first)))
        before, after = await first.snapshot(SESSION), await second.snapshot(SESSION)
        assert canonical_json(after) == canonical_json(before)


@pytest.mark.anyio
async def test_open_calls_of_a_log_end_in_its_copy() -> None:
    """C5: no process continues the copy of a call, not even of one that waits for a worker."""
    async with await open_empty() as ledger:
        await ledger.log.append(SESSION, SCENARIO[:9])
        await ledger.log.append(SESSION, [SCENARIO[13]])
        lines = export_lines(await read_log(ledger))
        await import_lines(ledger.log, "copy", "events", lines)
        assert [call.status for call in await list_calls(ledger, "copy")] == ["completed", "lost", "lost"]
        assert (await ledger.find_session("copy")).turn == ""
        assert [row.session for row in await ledger.log.store.open_calls()] == [SESSION, SESSION]
        assert (await import_lines(ledger.log, "copy", "events", lines)).events == 0


@pytest.mark.anyio
async def test_the_end_of_the_file_ends_an_open_text() -> None:
    """S2.12: it is not streaming, and no part of it is held, in either format."""
    chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "We go by plan B"}}
    message = {"method": "session/update", "params": {"sessionId": "s1", "update": chunk}}
    async with await open_empty() as ledger:
        await import_acp(ledger, json_lines(message))
        await import_lines(
            ledger.log, "copy", "events", json_lines({"type": "message.delta", "text": "We go by plan B"})
        )
        for session in (SESSION, "copy"):
            (entry,) = (await ledger.snapshot(session)).entries
            assert (entry.content, entry.streaming) == ("We go by plan B", False)


def test_an_exported_document_is_imported_as_events() -> None:
    """The document that `export` prints is decoded."""
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
    line = json_lines({"method": "session/update", "params": {"sessionId": "s1", "update": chunk}})[0]
    async with await open_empty() as ledger:
        first = await import_acp(ledger, (line for _ in range(count)))
        second = await import_acp(ledger, (line for _ in range(count)))
        assert (first.events, second.events, second.seen) == (count + 1, 0, count + 1)
        (message,) = (await ledger.snapshot(SESSION)).entries
        assert message.content == "word " * count


# Several drafts per message


class DraftListDecoder:
    """A decoder of messages that are lists of events."""

    def __init__(self, **_: Any) -> None:
        pass

    def feed(self, message: Any) -> list[Draft]:
        return [Draft(read_event(item)) for item in message]

    def close(self, reason: str) -> list[Draft]:
        return []


@pytest.fixture
def draft_list_format(monkeypatch: pytest.MonkeyPatch) -> type[DraftListDecoder]:
    new_format = registry.Format(name="several", about="", decoder=f"{__name__}:DraftListDecoder")
    monkeypatch.setitem(registry.FORMATS, "several", new_format)
    return DraftListDecoder


SMALL_LIMITS = structs.replace(NO_REAPER, max_event=2000, inline_limit=1000, preview=100)


@pytest.mark.anyio
async def test_a_refused_part_does_not_affect_the_rest_of_its_message(
    draft_list_format: type[DraftListDecoder],
) -> None:
    """C11: the rest of the message is written, and the message is kept as raw for the refused part."""
    message = [
        {"type": "message.user", "text": "first"},
        {"type": "message.user", "text": "x" * 5000},
        {"type": "call.proposed", "call": "new:1", "toolName": "ls"},
        {"type": "call.completed", "call": "new:1", "output": "done"},
    ]
    async with await callslip.open("sqlite:///:memory:", SMALL_LIMITS) as ledger:
        report = await import_lines(ledger.log, SESSION, "several", json_lines(message, message))
        log = await read_log(ledger)
        assert [entry.content for entry in (await ledger.snapshot(SESSION)).entries if isinstance(entry, Message)] == [
            "first",
            "first",
        ]
        assert [call.output for call in await list_calls(ledger)] == ["done", "done"]
        assert len([event for event in log if isinstance(event, ev.Raw)]) == 2
        again = await import_lines(ledger.log, SESSION, "several", json_lines(message, message))
        assert report.events and not again.events
        assert not await find_faults(ledger)


@pytest.mark.anyio
async def test_placeholders_for_new_calls_are_local_to_a_message(draft_list_format: type[DraftListDecoder]) -> None:
    """C3: `new:1` in two lines of one write means two calls."""
    message = [
        {"type": "call.proposed", "call": "new:1", "toolName": "ls"},
        {"type": "call.completed", "call": "new:1"},
    ]
    async with await open_empty() as ledger:
        await import_lines(ledger.log, SESSION, "several", json_lines(message, message, message))
        assert [call.status for call in await list_calls(ledger)] == ["completed"] * 3


@pytest.mark.anyio
async def test_many_events_at_the_end_are_written_in_batches(
    draft_list_format: type[DraftListDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no other writer waits for thousands of drafts."""
    sizes: list[int] = []
    append = EventLog.append

    async def counting_append(self: EventLog, session: str, drafts: Any, **options: Any) -> list[Event]:
        sizes.append(len(drafts))
        return await append(self, session, drafts, **options)

    monkeypatch.setattr(EventLog, "append", counting_append)
    monkeypatch.setattr(
        draft_list_format, "close", lambda self, reason: [Draft(ev.MessageUser(text=str(n))) for n in range(2500)]
    )
    async with await open_empty() as ledger:
        report = await import_lines(ledger.log, SESSION, "several", json_lines([{"type": "message.user", "text": "x"}]))
        assert report.events == 2501
        assert sum(sizes) == 2501 and max(sizes) <= 1000
