"""Encode sessions as updates of the Agent Client Protocol: its Python package accepts them, and we can decode them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from acp.contrib.session_state import SessionAccumulator
from acp.schema import SessionNotification
from hypothesis import given

from callslip.formats import registry
from callslip.formats.acp.encode import history
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Entry, Info, Message, Meta, Plan, Snapshot, Thought, ToolCall
from callslip.model.events import Alias, Blob, Event
from callslip.model.state_names import STATE_NAMES
from callslip.rules.fold import SessionFold
from callslip.rules.lifecycle import TERMINAL_STATES, TRANSITIONS
from tests.support import scenarios, stream_checks
from tests.support.provider_rules import decode_messages, list_calls
from tests.support.strategies import canonical_json, scripts, write_script

STATES = sorted(set(TRANSITIONS) - {"none"})


def fold_states(log: Sequence[Event], session: str = "s") -> Iterator[SessionFold]:
    """Yield the state of a session after every event."""
    state = SessionFold(session)
    for event in log:
        state.apply(event)
        yield state


def scenario_states(name: str) -> Iterator[SessionFold]:
    """Yield the state of a scenario after every event; of the long one after every 25th and the last."""
    log = scenarios.load_events(name)
    for state in fold_states(log):
        if name != "long" or state.seq % 25 == 0 or state.seq == len(log):
            yield state


def invalid_updates(notes: list[Any]) -> list[Any]:
    """Return the updates that the protocol's models refuse, or whose fields they do not keep."""
    return [note for note in notes if parsed_params(note) != sent_params(note)]


def sent_params(note: dict[str, Any]) -> Any:
    assert note.keys() == {"jsonrpc", "method", "params"}
    assert (note["jsonrpc"], note["method"]) == ("2.0", "session/update")
    params = json.loads(codec.encode(note["params"]))
    params["update"].pop("name", None)  # Agents send `name`, but these models are older than the field.
    return params


def parsed_params(note: dict[str, Any]) -> Any:
    read = SessionNotification.model_validate(sent_params(note))
    return read.model_dump(mode="json", by_alias=True, exclude_unset=True)


def updates(source: Any) -> list[dict[str, Any]]:
    return [note["params"]["update"] for note in history(source)]


def standard_updates(source: Any) -> list[dict[str, Any]]:
    """Return the updates of a session without our metadata, and without modes, which may be sent twice."""
    without_metadata = [
        {name: value for name, value in update.items() if name != "_meta"} for update in updates(source)
    ]
    return [update for update in without_metadata if update["sessionUpdate"] != "current_mode_update"]


def split_turns(entries: list[Entry]) -> list[list[Entry]]:
    """Group entries by turn; outside of turns, a user message begins a group."""
    groups: list[list[Entry]] = []
    for entry in entries:
        is_user_message = isinstance(entry, Message) and entry.role == "user" and not entry.turn
        if not groups or groups[-1][-1].turn != entry.turn or is_user_message:
            groups.append([])
        groups[-1].append(entry)
    return groups


def call_fields(call: ToolCall) -> tuple[Any, ...]:
    """Return the fields of a call that decoding our updates must restore."""
    status = STATE_NAMES[call.status].acp
    return (
        call.tool_call_id,
        call.tool_name or None,
        status,
        canonical_json(call.output if call.status in TERMINAL_STATES else None),
    )


def calls_of(source: SessionFold) -> list[ToolCall]:
    return [entry for entry in source.snapshot().entries if isinstance(entry, ToolCall)]


# Valid updates


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_scenario_updates_are_valid_after_every_event(name: str) -> None:
    """The protocol's models accept every update with all of its fields."""
    for state in scenario_states(name):
        assert not invalid_updates(history(state)), state.seq


@pytest.mark.parametrize("name", stream_checks.CAPTURE_NAMES)
def test_capture_updates_are_valid_after_every_event(name: str) -> None:
    """Every session of every capture."""
    logs = stream_checks.load_capture(name)
    assert any(logs)
    for log in logs:
        for state in fold_states(log):
            assert not invalid_updates(history(state)), state.seq


@given(scripts())
def test_updates_of_any_session_are_valid(script: list[Event]) -> None:
    """Any recorded content, plan, command or location gives a valid update."""
    for state in fold_states(write_script(script).log):
        assert not invalid_updates(history(state)), state.seq


@given(scripts())
def test_a_history_is_the_concatenation_of_its_turns(script: list[Event]) -> None:
    """So it can be read in pages; encoding does not change the session."""
    state = write_script(script).state
    snapshot = state.snapshot()
    before = codec.encode(snapshot)
    full_history = history(iter(snapshot.entries))
    assert full_history == [note for block in split_turns(snapshot.entries) for note in history(block)]
    assert history(state) == history(snapshot)
    assert standard_updates(Snapshot("s", 0, Info(), snapshot.entries)) == standard_updates(snapshot.entries)
    assert codec.encode(state.snapshot()) == before


# Decode our own updates


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_decoding_scenario_updates_gives_the_same_updates(name: str) -> None:
    """Texts, calls, plans and commands, in their order."""
    *_, state = fold_states(scenarios.load_events(name))
    assert standard_updates(decode_messages("acp", history(state)).state) == standard_updates(state)


@pytest.mark.parametrize("name", stream_checks.CAPTURE_NAMES)
def test_decoding_capture_updates_gives_the_same_updates(name: str) -> None:
    """The updates of a capture are decoded as a session load."""
    for log in stream_checks.load_capture(name):
        *_, state = fold_states(log)
        decoded = decode_messages("acp", history(state))
        assert standard_updates(decoded.state) == standard_updates(state)
        assert list(map(call_fields, list_calls(decoded))) == list(map(call_fields, calls_of(state)))


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_decoding_updates_restores_the_calls_after_every_event(name: str) -> None:
    """With the same ids, names and states."""
    for state in scenario_states(name):
        assert list(map(call_fields, list_calls(decode_messages("acp", history(state))))) == list(
            map(call_fields, calls_of(state))
        )


@given(scripts())
def test_decoding_updates_restores_the_calls_of_any_session(script: list[Event]) -> None:
    """Also with unusual arguments and outputs."""
    state = write_script(script, redact=False).state
    decoded = decode_messages("acp", history(state))
    assert list(map(call_fields, list_calls(decoded))) == list(map(call_fields, calls_of(state)))
    inputs = [update.get("rawInput") for update in updates(state) if update["sessionUpdate"] == "tool_call"]
    assert [canonical_json(entry.raw_input) for entry in list_calls(decoded)] == list(map(canonical_json, inputs))


def test_the_official_client_shows_the_session() -> None:
    """With the accumulator of the protocol's package, which user interfaces use."""
    *_, state = fold_states(scenarios.load_events("plan_mode_commands"), "thread-1")
    client = SessionAccumulator(auto_reset_on_session_change=False)
    for note in history(state):
        shown = client.apply(SessionNotification.model_validate(note["params"]))
    assert shown.session_id == "thread-1"
    assert [(call.title, call.status, call.raw_output) for call in shown.tool_calls.values()] == [
        ("do", "completed", "done")
    ]
    assert shown.current_mode_id == state.info.current_mode_id == "ask"
    assert [(step.content, step.status) for step in shown.plan_entries] == [("think", "completed"), ("do", "pending")]
    assert [chunk.content.type for chunk in shown.user_messages] == ["text", "image", "resource_link"]
    assert [chunk.content.text for chunk in shown.agent_messages] == ["First I think.", "Done."]


# Content of the updates


def call(**fields: Any) -> ToolCall:
    """Return the entry of a call."""
    defaults: dict[str, Any] = {"id": 2, "call_id": "exec_0123456789ab", "tool_call_id": "call_1", "tool_name": "ls"}
    return ToolCall(**(defaults | {"status": "completed", "end": 3} | fields))


def make_update(**fields: Any) -> dict[str, Any]:
    """Return the update of a call, which must be valid."""
    (note,) = history([call(**fields)])
    assert not invalid_updates([note])
    return note["params"]["update"]


def texts(update: dict[str, Any]) -> list[str]:
    return [item["content"]["text"] for item in update.get("content", [])]


@pytest.mark.parametrize("state", STATES)
def test_every_state_has_its_name(state: str) -> None:
    """The protocol's status and our own state; a call that did not complete has a reason."""
    update = make_update(status=state, reason="the reason", output_text="so far")
    assert update["status"] == STATE_NAMES[state].acp
    assert update["_meta"]["callslip"]["state"] == state
    assert texts(update)[0] == "so far"
    assert any("the reason" in text for text in texts(update)) is STATE_NAMES[state].error


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"output": "18 degrees\n"}, ["18 degrees\n"]),
        ({"output": {"n": 1}}, []),
        ({"output": {"n": 1}, "output_text": "printed"}, ["printed"]),
        ({}, []),
        ({"content": [{"type": "terminal", "terminalId": "t"}], "output_text": "printed"}, ["printed"]),
        ({"content": [{"type": "content", "content": {"type": "text", "text": "shown"}}], "output": "x"}, ["shown"]),
        ({"content": [{"type": "text", "text": "shown"}]}, ["shown"]),
        ({"content": "shown"}, ["shown"]),
        ({"content": [{"type": "chart", "n": 1}, 7]}, ['{"type":"chart","n":1}', "7"]),
        ({"content": [{"type": "text", "text": None}]}, ['{"type":"text","text":null}']),
        ({"content": [{"type": "diff", "path": 1}]}, ['{"type":"diff","path":1}']),
        ({"content": [{"type": "diff", "path": "/a"}]}, ['{"type":"diff","path":"/a"}']),
        ({"content": [{"type": "image", "data": "AA=="}]}, ['{"type":"image","data":"AA=="}']),
        ({"content": [{"type": "resource", "resource": {"uri": "a"}}]}, ['{"type":"resource","resource":{"uri":"a"}}']),
        ({"status": "failed", "error": {"message": "no such file", "code": 2}}, ["no such file"]),
        ({"status": "failed", "error": ["a", 1]}, ['["a",1]']),
        ({"status": "failed", "output": "boom", "error": "boom"}, ["boom"]),
        ({"status": "failed"}, []),
        ({"status": "denied", "reason": "not now"}, ["This call was denied and has not run: not now"]),
        ({"status": "lost"}, ["The outcome of this call is unknown."]),
        (
            {"output": "begin", "truncated": True, "blob": Blob("h", 9000)},
            ["begin", "(cut: only the beginning of 9000 bytes is shown)"],
        ),
    ],
)
def test_a_call_shows_its_content_or_output_then_its_reason(fields: dict[str, Any], shown: list[str]) -> None:
    """The content of the agent, or else the text of the output; then the reason if the call did not complete."""
    assert texts(make_update(**fields)) == shown


def test_diffs_images_and_links_are_passed_unchanged() -> None:
    """With the fields of the protocol, without unknown ones."""
    picture = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    diff = {"type": "diff", "path": "/a", "newText": "b"}
    resource = {"type": "resource", "resource": {"uri": "file:///a", "text": "A"}}
    link = {"type": "resource_link", "name": "a", "uri": "file:///a", "title": "A"}
    content = [
        {**diff, "oldText": None, "lines": 3},
        {"type": "content", "content": {**picture, "annotations": {"audience": 7}}},
        {"type": "content", "content": {**resource, "more": 1}},
        {"type": "content", "content": {**link, "size": 2**64, "mimeType": 1}},
        {**link, "size": 9},
    ]
    assert make_update(content=content)["content"] == [
        diff,
        {"type": "content", "content": picture},
        {"type": "content", "content": resource},
        {"type": "content", "content": link},
        {"type": "content", "content": {**link, "size": 9}},
    ]


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"kind": "execute"}, "kind", "execute"),
        ({"kind": "bash"}, "kind", "other"),
        ({"title": None}, "title", "ls"),
        ({"title": "", "tool_name": None, "kind": "read"}, "title", "read"),
        ({"tool_name": None}, "title", "unknown"),
        ({"raw_tool_name": "mcp__acp__ls"}, "name", "mcp__acp__ls"),
        ({"raw_tool_name": "shell"}, "name", "ls"),
        ({"raw_input": [1]}, "rawInput", [1]),
        ({"input_text": '{"a": 1}'}, "rawInput", {"a": 1}),
        ({"input_text": '{"a": '}, "rawInput", '{"a": '),
        ({"status": "running", "progress": {"done": 1}, "output": None}, "rawOutput", {"done": 1}),
        ({"output": ""}, "rawOutput", ""),
        ({"locations": [{"path": "/a", "line": 3}, {"path": 1}, {"path": "/b", "line": -1}, 7]}, "locations", ...),
    ],
)
def test_invalid_call_fields_are_corrected_or_left_out(fields: dict[str, Any], field: str, value: Any) -> None:
    """Values recorded from another format give valid updates."""
    expected = [{"path": "/a", "line": 3}, {"path": "/b"}] if value is ... else value
    assert make_update(**fields)[field] == expected


def test_unknown_fields_of_a_call_are_left_out() -> None:
    """C10: null would clear the field."""
    assert make_update().keys() == {"sessionUpdate", "toolCallId", "title", "status", "name", "_meta"}


def test_fields_without_a_protocol_name_are_in_the_metadata() -> None:
    """Under our own key only."""
    update = make_update(
        kind="bash", exit_status=3, scope="detached", turn="t", at=5, truncated=True, blob=Blob("h", 9), iteration=0
    )
    expected = {"entry": 2, "at": 5, "turn": "t", "callId": "exec_0123456789ab", "state": "completed", "kind": "bash"}
    details = {"exitStatus": 3, "scope": "detached", "iteration": 0, "truncated": True, "size": 9, "blob": "h"}
    assert update["_meta"] == {"callslip": {**expected, **details}}


def test_consecutive_texts_have_different_ids() -> None:
    """The id of the message, or else of its entry."""
    entries: list[Entry] = [
        Message(id=1, role="user", content="Go."),
        Thought(id=2, content="Hm."),
        Message(id=3, role="assistant", content="One.", message_id="m1"),
        Message(id=4, role="assistant", content="Two."),
    ]
    assert [
        (update["sessionUpdate"], update["messageId"], update["content"]["text"])
        for update in standard_updates(entries)
    ] == [
        ("user_message_chunk", "entry-1", "Go."),
        ("agent_thought_chunk", "entry-2", "Hm."),
        ("agent_message_chunk", "m1", "One."),
        ("agent_message_chunk", "entry-4", "Two."),
    ]


def test_user_content_other_than_text_is_sent() -> None:
    """Blocks of other protocols are sent as text; text among the blocks is not repeated."""
    odd = {"type": "input_image", "image_url": "data:,"}
    content = [{"type": "text", "text": "Look."}, {"type": "image", "data": "AA==", "mimeType": "image/png"}, odd]
    entries = [Message(id=1, role="user", content="Look.", blocks=content), Message(id=2, role="user", content="")]
    assert [update["content"] for update in standard_updates(entries)] == [
        {"type": "text", "text": "Look."},
        content[1],
        {"type": "text", "text": codec.encode(odd).decode()},
        {"type": "text", "text": ""},
    ]
    assert not invalid_updates(history(entries))


def test_a_plan_is_valid_for_any_steps() -> None:
    """Unknown statuses and priorities become defaults of the protocol."""
    steps = [{"content": "a", "priority": "high", "status": "completed"}, {"content": "b", "status": "done"}, "c", 1]
    (update,) = updates([Plan(id=1, entries=steps)])
    assert [tuple(step.values()) for step in update["entries"]] == [
        ("a", "high", "completed"),
        ("b", "medium", "pending"),
        ("c", "medium", "pending"),
        ("1", "medium", "pending"),
    ]


def test_commands_and_title_come_last_and_need_a_snapshot() -> None:
    """Commands without a name are left out. A list of entries has neither commands nor title."""
    commands: list[Any] = [
        {"name": "init", "description": "set up", "input": {"hint": "where"}},
        {"name": "go", "input": {"hint": 1}},
        {"description": "no name"},
        "init",
    ]
    events = [ev.SessionInfo(title="A plan"), ev.SessionCommands(commands=commands), ev.MessageUser(text="Go.")]
    snapshot = write_script(events).state.snapshot()
    *_, commands_update, title_update = history(snapshot)
    assert not invalid_updates([commands_update, title_update])
    assert commands_update["params"]["sessionId"] == snapshot.session
    assert commands_update["params"]["update"]["availableCommands"] == [
        {"name": "init", "description": "set up", "input": {"hint": "where"}},
        {"name": "go", "description": ""},
    ]
    assert title_update["params"]["update"] == {"sessionUpdate": "session_info_update", "title": "A plan"}
    (update,) = history(snapshot.entries)
    assert update["params"]["sessionId"] == ""


def test_capabilities_give_the_current_mode() -> None:
    """Updates have no field for the other capabilities."""
    entries = [Meta(id=1, current_mode_id="ask", available_modes=[{"id": "ask"}]), Meta(id=2)]
    assert [update["currentModeId"] for update in updates(entries)] == ["ask"]


def test_the_registry_has_the_acp_encoder() -> None:
    """It is not paged, since it ends with the current commands and title."""
    assert registry.encoder("acp") is history and not registry.find("acp").paged


def test_two_calls_with_one_foreign_id_stay_two_calls() -> None:
    """C2: the second one gets its execution id, also after decoding."""
    aliases = (Alias("acp", "1"),)
    events: list[Event] = []
    for turn in ("a", "b"):
        events += [
            ev.TurnStarted(turn=turn),
            ev.CallStarted(aliases=aliases),
            ev.CallCompleted(aliases=aliases, output=turn),
        ]
    state = write_script(events).state
    calls = list_calls(decode_messages("acp", history(state)))
    assert [(entry.tool_call_id, entry.output) for entry in calls] == [
        ("1", "a"),
        (calls_of(state)[1].call_id, "b"),
    ]
