"""`ShellMessages` and `Timeline` of `callslip.js`: the state of commands and executions, live and after a reload."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.model.events import Event
from tests.conftest import LONG
from tests.support import scenarios, stream_checks

CLIENT = Path(callslip.__file__).parent / "web" / "callslip.js"
FEW = ("commands", "ids_reused_across_turns", "ids_reused_within_a_turn", "parallel_calls", "thoughts_and_text")
NAMES = scenarios.NAMES if LONG else FEW


@pytest.fixture(scope="module")
def shell(node: str) -> Iterator[stream_checks.Client]:
    client = stream_checks.Client(node, "views.mjs", str(CLIENT), "shell")
    yield client
    client.close()


@pytest.fixture(scope="module")
def timeline(node: str) -> Iterator[stream_checks.Client]:
    client = stream_checks.Client(node, "views.mjs", str(CLIENT), "act-observe")
    yield client
    client.close()


def parts_of_turn(messages: list[Any], turn: str) -> list[Any]:
    """Return the parts of the agent's message of a turn."""
    return next((message["parts"] for message in messages if message["id"] == f"turn-{turn}"), list[Any]())


def loaded_items_of_turn(client: stream_checks.Client, log: tuple[Event, ...]) -> Callable[[list[Any], str], Any]:
    """Return the function that selects what the client shows of a turn after it has loaded a history."""
    turns = {entry.id: entry.turn for entry in stream_checks.fold_log(log).entries.values()}

    def select(items: list[Any], turn: str) -> Any:
        (answer,) = client.ask([{"history": [item for item in items if turns[item["seq"]] == turn]}])
        return answer["shown"]

    return select


@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_commands_is_the_same_live_and_after_a_reload(shell: stream_checks.Client, name: str) -> None:
    """JS1: after every event, for streams from the start, replays and late connections."""
    log = scenarios.load_events(name)
    stream_checks.Law(shell, "shell", parts_of_turn).check_log(log, stream_checks.resume_points(log))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_executions_is_the_same_live_and_after_a_reload(timeline: stream_checks.Client, name: str) -> None:
    """JS2: after every event, for streams from the start, replays and late connections."""
    log = scenarios.load_events(name)
    law = stream_checks.Law(timeline, "act-observe", loaded_items_of_turn(timeline, log))
    law.check_log(log, stream_checks.resume_points(log))


def read_shell(client: stream_checks.Client, *events: dict[str, Any]) -> list[Any]:
    """Return the parts after each event."""
    (answer,) = client.ask([{"id": 0, "chunks": events, "at": list(range(1, len(events) + 1))}])
    assert answer["error"] is None
    return answer["messages"]


def command_event(kind: str, number: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "command": "ls", "commandId": f"cmd-0-{number}", **more}


def test_equal_commands_are_updated_by_id(shell: stream_checks.Client) -> None:
    """JS1: two `ls` go from queued to running to completed, each by its own events, also without `callslip_id`."""
    shown = read_shell(
        shell,
        {"type": "text", "content": "Two "},
        {"type": "text", "content": "lists."},
        command_event("tool-call", 0),
        command_event("tool-call", 1),
        command_event("tool-start", 1),
        command_event("tool-result", 1, result="b.txt", isError=False),
        command_event("tool-start", 0),
        command_event("tool-result", 0, result="broken", isError=True),
    )
    assert shown[1] == [{"type": "text", "content": "Two lists."}]
    statuses = [[part["toolStatus"] for part in parts[1:]] for parts in shown[2:]]
    assert statuses == [
        ["queued"],
        ["queued", "queued"],
        ["queued", "running"],
        ["queued", "completed"],
        ["running", "completed"],
        ["completed", "completed"],
    ]
    assert [(part["content"], part["isError"]) for part in shown[-1][1:]] == [("broken", True), ("b.txt", False)]


def test_unknown_and_late_events_change_no_command(shell: stream_checks.Client) -> None:
    """JS1: an event of an unknown command or of a later version is ignored, and a completed command stays completed."""
    shown = read_shell(
        shell,
        command_event("tool-call", 0),
        command_event("tool-result", 0, result="a.txt"),
        command_event("tool-start", 0),
        command_event("tool-result", 0, result="other"),
        command_event("tool-call", 0),
        command_event("tool-start", 7),
        command_event("tool-result", 7, result="x"),
        {"type": "tool-later", "command": "ls", "commandId": "cmd-0-0"},
        {"type": "restart"},
        {"type": "done"},
    )
    assert all(parts == shown[1] for parts in shown[1:])
    assert shown[1] == [{**command_event("tool", 0), "toolStatus": "completed", "content": "a.txt", "isError": False}]


def test_a_replay_of_an_older_state_moves_no_command_back(shell: stream_checks.Client) -> None:
    """JS1: after a reload, the history may be newer than the first events of the stream."""
    part = {**command_event("tool", 0), "toolStatus": "completed", "content": "a", "isError": False}
    history = [{"id": "live", "role": "assistant", "parts": [part]}]
    events = [command_event("tool-call", 0), command_event("tool-start", 0), command_event("tool-call", 1)]
    (answer,) = shell.ask([{"loaded": history, "chunks": events, "at": [1, 2, 3]}])
    assert answer["messages"][:2] == [[part], [part]]
    assert [one["toolStatus"] for one in answer["messages"][2]] == ["completed", "queued"]


def test_a_replay_repeats_no_text(timeline: stream_checks.Client) -> None:
    """JS2: a thought begins with its first delta, also if the loaded history has some of it."""
    history = [{"type": "thought", "seq": 2, "content": "hm"}]
    events = [{"type": "thought_delta", "seq": 2, "delta": text} for text in ("hm", " so")]
    (answer,) = timeline.ask([{"loaded": history, "chunks": events, "at": [0, 1, 2]}])
    assert [items[0]["content"] for items in answer["messages"]] == ["hm", "hm", "hm so"]


def test_the_same_id_in_two_messages_is_two_commands(shell: stream_checks.Client) -> None:
    """JS1: `cmd-0-0` of each turn is found by its message."""
    part = {**command_event("tool", 0), "toolStatus": "completed", "content": "a", "isError": False}
    history = [
        {"id": f"turn-{turn}", "role": "assistant", "parts": [{**part, "content": turn}]} for turn in ("t1", "t2")
    ]
    (answer,) = shell.ask([{"history": history}])
    assert answer == {"shown": history, "found": [True, True]}


def test_an_execution_id_is_found_by_its_message(timeline: stream_checks.Client) -> None:
    """JS2: an id that is used again after the next user message is another execution; ends and errors are on it."""

    def act(seq: int, status: str) -> dict[str, Any]:
        execution = {"status": status, "startTime": seq, "endTime": None if status == "running" else seq + 1}
        ids = {"seq": seq, "execution_id": "exec_a", "callslip_id": f"exec_{seq}", "call_id": "c"}
        return {"type": "act", **ids, "toolName": "read", "toolInput": {}, "execution": execution}

    def observe(seq: int) -> dict[str, Any]:
        ids = {"seq": seq, "execution_id": "exec_a", "callslip_id": f"exec_{seq}", "call_id": "c"}
        return {"type": "observe", **ids, "toolName": "read", "toolOutput": {"error": "boom"}, "isError": True}

    def user(seq: int) -> dict[str, Any]:
        return {"type": "user_message", "seq": seq, "content": "again"}

    items = [user(1), act(2, "failed"), observe(2), user(5), act(6, "running")]
    (answer,) = timeline.ask([{"history": items}])
    executions = [item for item in answer["shown"] if item["type"] == "execution"]
    assert [(one["message"], one["status"], one.get("isError")) for one in executions] == [
        ("msg-1", "failed", True),
        ("msg-5", "running", None),
    ]
    assert executions[0]["toolOutput"] == {"error": "boom"} and answer["found"] == [True, True]
    assert json.dumps(executions[1]).count("toolOutput") == 0
