"""Clients of `shell` and `act-observe` get ids and times as the producer gave them, live and after a reload."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
from collections.abc import AsyncIterator
from typing import Any

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.ledger.checkpoint import project
from callslip.model import events as ev
from callslip.model.events import Alias
from callslip.rules.fold import VERSION
from callslip.settings import Settings
from tests.support.live_server import StreamedResponse, fetch, requesting, serving_ledger
from tests.support.paths import TESTS

pytestmark = pytest.mark.anyio

SETTINGS = Settings(synchronous="NORMAL", reaper_interval=3600.0)
WIRES = TESTS / "fixtures" / "wires"
S = "s"
E1 = "exec_a1b2c3d4e5f6"

Item = dict[str, Any]


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db, SETTINGS) as ledger:
        yield ledger


async def post(url: str, format: str, *messages: Any, session: str = S) -> Item:
    answer = await fetch(f"{url}/v1/sessions/{session}/events?format={format}", "POST", value=list(messages))
    assert answer.status in (200, 201), answer.body
    return answer.json()


async def read_history(url: str, format: str, session: str = S) -> list[Item]:
    answer = await fetch(f"{url}/v1/sessions/{session}?format={format}")
    assert answer.status == 200, answer.body
    return answer.json()["messages"]


async def read_items(url: str, format: str, session: str = S) -> list[Item]:
    """Return the items of a timeline, or the parts of the agent's messages."""
    messages = await read_history(url, format, session)
    if format == "act-observe":
        return messages
    return [part for message in messages if message["role"] == "assistant" for part in message["parts"]]


async def read_chunks(reply: StreamedResponse, count: int) -> list[Item]:
    """Return the first `count` events of a stream."""
    chunks: list[Item] = []
    async for frame in reply.frames():
        chunks.append(json.loads(frame["data"]))
        if len(chunks) == count:
            break
    return chunks


def check_wire(literal: list[Item], actual: list[Item], additions: list[str]) -> None:
    """Check that items are as the producer's own clients know them, apart from documented additions."""
    assert [item["type"] for item in actual] == [item["type"] for item in literal]
    for expected, item in zip(literal, actual, strict=True):
        if "execution" in expected:
            item = {**item, "execution": {name: item["execution"][name] for name in expected["execution"]}}
        assert {name: item[name] for name in expected} == expected
        assert set(item) - set(expected) <= set(additions)


# The examples of the formats


# With turn events, because a stream covers a turn.
@pytest.mark.parametrize("name", ["shell", "act-observe"])
async def test_the_examples_of_a_format_pass_live_and_after_a_reload(db: str, name: str) -> None:
    """S0.4, S0.8, S1.1, S1.6: after each message of the producer, and from the file alone."""
    wire = json.loads((WIRES / f"{name}.json").read_text("utf-8"))
    additions = wire["additions"]
    async with await callslip.open(db, SETTINGS) as ledger, serving_ledger(ledger) as url:
        await post(url, "events", {"type": "turn.started"})
        async with requesting(f"{url}/v1/sessions/{S}/stream?format={name}") as live:
            sent: list[Item] = []
            for step in wire["steps"]:
                assert (await post(url, name, *step["post"]))["notUnderstood"] == 0
                sent += step["live"]
                check_wire(sent, await read_chunks(live, len(sent)), additions)
                items = await read_items(url, name)
                check_wire(step["items"], items, additions)
        async with requesting(f"{url}/v1/sessions/{S}/stream?format={name}") as replayed:
            chunks = await read_chunks(replayed, len(sent))
            assert sorted(map(json.dumps, chunks)) == sorted(map(json.dumps, await read_chunks(live, len(sent))))
    async with await callslip.open(db, SETTINGS) as ledger, serving_ledger(ledger) as url:
        assert await read_items(url, name) == items


# Ids


async def test_commands_have_their_ids_in_every_turn(ledger: LocalLedger) -> None:
    """S0.3: live and in history. Formats that need unique ids have unique ids."""
    async with serving_ledger(ledger) as url:
        await post(url, "events", {"type": "turn.started"})
        for turn in ("first", "second", "third"):
            run = [
                "<shell>ls</shell>",
                {"type": "tool-start", "command": "ls", "commandId": "cmd-0-0"},
                {"type": "tool-result", "command": "ls", "commandId": "cmd-0-0", "result": turn},
                "<shell>date</shell>",
            ]
            await post(url, "shell", *run, {"type": "done"})
            async with requesting(f"{url}/v1/sessions/{S}/stream?format=shell") as live:
                chunks = await read_chunks(live, 4)
            assert [(chunk["type"], chunk["commandId"]) for chunk in chunks] == [
                *((f"tool-{kind}", "cmd-0-0") for kind in ("call", "start", "result")),
                ("tool-call", "cmd-1-0"),
            ]
        messages = await read_history(url, "shell")
        shown = [[part["commandId"] for part in message["parts"]] for message in messages]
        assert shown == [["cmd-0-0", "cmd-1-0"]] * 3
        calls = (await ledger.calls(session=S)).items
        ids = [part["callslip_id"] for message in messages for part in message["parts"]]
        assert sorted(ids) == sorted(call.id for call in calls) and len(set(ids)) == 6
        messages = await read_history(url, "ui-v6")
        ui_ids = [part["toolCallId"] for message in messages for part in message["parts"] if "toolCallId" in part]
        assert len(ui_ids) == len(set(ui_ids)) == 6


async def test_commands_of_an_old_ledger_have_their_ids_in_every_turn(db: str) -> None:
    """S0.3: entries that an older version stored are computed again from the events."""
    command = ev.CallProposed(aliases=(Alias("shell", "cmd-0-0"),), tool_name="shell", input={"command": "ls"})
    async with await callslip.open(db, SETTINGS) as ledger:
        for _ in range(2):
            await ledger.log.append(S, [ev.TurnStarted(), command, ev.CallCompleted(aliases=command.aliases)])
            await ledger.log.append(S, [ev.TurnEnded()])
        while await project(ledger.log.store, S) is None:
            pass
    with contextlib.closing(sqlite3.connect(db.removeprefix("sqlite:///"))) as connection, connection:
        old_body = "CAST(json_remove(CAST(body AS TEXT), '$.foreignIds') AS BLOB)"
        stored = connection.execute(f"UPDATE entries SET body = {old_body}")
        assert stored.rowcount == 2
        assert connection.execute("UPDATE checkpoints SET version = ?", (VERSION - 1,)).rowcount == 1
    async with await callslip.open(db, SETTINGS) as ledger, serving_ledger(ledger) as url:
        assert [item["commandId"] for item in await read_items(url, "shell")] == ["cmd-0-0", "cmd-0-0"]


async def test_an_id_that_is_used_twice_in_a_message_is_shown_once(ledger: LocalLedger) -> None:
    """S0.3: the second call has its own id, live and in history, so that a client can tell them apart."""
    async with serving_ledger(ledger) as url:
        await post(url, "events", {"type": "turn.started"})
        for command in ("ls", "pwd"):
            fields = {"command": command, "commandId": "cmd-0-0"}
            await post(url, "shell", {"type": "tool-call", **fields}, {"type": "tool-result", **fields, "result": ""})
        first, second = await read_items(url, "shell")
        assert first["commandId"] == "cmd-0-0" and second["commandId"] == second["callslip_id"]
        async with requesting(f"{url}/v1/sessions/{S}/stream?format=shell") as live:
            chunks = await read_chunks(live, 4)
        assert [chunk["commandId"] for chunk in chunks] == [first["commandId"]] * 2 + [second["commandId"]] * 2


async def test_the_ids_of_a_runtime_return_unchanged_when_the_model_repeats_its_ids(ledger: LocalLedger) -> None:
    """S1.9: the execution id is new in each turn, while the model calls every call `call_1`."""
    async with serving_ledger(ledger) as url:
        for execution in ("exec_000000000001", "exec_000000000002"):
            ids = {"execution_id": execution, "call_id": "call_1", "tool_name": "Read"}
            answer = await post(
                url,
                "act-observe",
                {"type": "user_message", "content": "go"},
                {"type": "act", **ids, "tool_input": {}, "status": "running"},
                {"type": "observe", **ids, "result": {"n": 1}, "duration_ms": 7.5, "is_error": False},
            )
            assert answer["notUnderstood"] == 0
            async with requesting(f"{url}/v1/sessions/{S}/stream?format=act-observe") as live:
                _, act, observe = await read_chunks(live, 3)
            assert (act["execution_id"], act["call_id"]) == (execution, "call_1")
            assert (observe["execution_id"], observe["call_id"], observe["duration_ms"]) == (execution, "call_1", 7.5)
        items = [item for item in await read_history(url, "act-observe") if item["type"] == "observe"]
        assert [(item["execution_id"], item["call_id"], item["duration_ms"]) for item in items] == [
            ("exec_000000000001", "call_1", 7.5),
            ("exec_000000000002", "call_1", 7.5),
        ]


async def test_a_call_without_an_id_of_its_producer_has_its_own(ledger: LocalLedger) -> None:
    """S1.1: act and observe have the same execution id, which is that of the call."""
    async with serving_ledger(ledger) as url:
        await post(url, "act-observe", {"type": "act", "tool_name": "Read", "tool_input": {}})
        await post(url, "act-observe", {"type": "observe", "tool_name": "Read", "result": 1})
        items = await read_history(url, "act-observe")
        assert {item[name] for item in items for name in ("execution_id", "callslip_id", "call_id")} == {
            items[0]["callslip_id"]
        }


async def test_an_execution_id_that_arrives_before_the_start_counts(ledger: LocalLedger) -> None:
    """S1.9: some runtimes create it when the call starts. Later ids do not change what clients have."""
    async with serving_ledger(ledger) as url:
        act = {"type": "act", "tool_name": "Read", "tool_input": {}, "call_id": "call_1"}
        await post(url, "act-observe", {**act, "status": "pending"})
        await post(url, "act-observe", {**act, "status": "running", "execution_id": E1})
        await post(url, "act-observe", {**act, "call_id": "call_2"})
        await post(url, "act-observe", {"type": "observe", "call_id": "call_2", "execution_id": "late", "result": 1})
        first, second, observe = await read_history(url, "act-observe")
        assert (first["execution_id"], first["call_id"]) == (E1, "call_1")
        assert second["execution_id"] == observe["execution_id"] == second["callslip_id"]


@pytest.mark.parametrize(
    ("format", "id_field", "message"),
    [
        ("shell", "commandId", {"type": "tool-call", "command": "sleep 9", "commandId": "cmd-0-0"}),
        ("act-observe", "execution_id", {"type": "act", "tool_name": "Read", "tool_input": {}, "execution_id": E1}),
        ("act-observe", "call_id", {"type": "act", "tool_name": "Read", "tool_input": {}, "call_id": "call_1"}),
    ],
)
async def test_an_id_of_a_producer_names_a_call_only_within_its_session(
    ledger: LocalLedger, format: str, id_field: str, message: Item
) -> None:
    """IDS1: two sessions have the same id, and one call is cancelled. Without a session only `callslip_id` counts."""
    async with serving_ledger(ledger) as url:
        await post(url, format, message, session="only")
        name = message[id_field]
        refused = await fetch(f"{url}/v1/calls/{name}/cancel", "POST", value={})
        assert refused.status == 404 and "pass the session" in refused.text
        assert (await fetch(f"{url}/v1/calls/{name}")).status == 404
        assert (await fetch(f"{url}/v1/find?id={name}")).status == 404
        await post(url, format, message, session="other")
        assert (await fetch(f"{url}/v1/calls/{name}/cancel?session=other", "POST", value={})).status == 200
        (item,), (other, *_) = [await read_items(url, format, session) for session in ("only", "other")]
        states = {session: (await ledger.find_call(name, session)).state for session in ("only", "other")}
        assert states == {"only": "running" if format == "act-observe" else "queued", "other": "cancelled"}
        assert item[id_field] == other[id_field] == name and item["callslip_id"] != other["callslip_id"]
        assert (await fetch(f"{url}/v1/calls/{item['callslip_id']}/cancel", "POST", value={})).status == 200
        assert (await ledger.find_call(name, "only")).state == "cancelled"


async def test_an_id_of_a_producer_is_no_prefix_of_another_call(ledger: LocalLedger) -> None:
    """IDS1: it may begin like the id of a call of another session, which must not be cancelled for it."""
    async with serving_ledger(ledger) as url:
        act = {"type": "act", "tool_name": "Read", "tool_input": {}}
        await post(url, "act-observe", act)
        ((other,),) = [await read_items(url, "act-observe")]
        name = other["callslip_id"][:9]
        await post(url, "act-observe", {**act, "execution_id": name}, session="mine")
        refused = await fetch(f"{url}/v1/calls/{name}/cancel", "POST", value={})
        assert refused.status == 404 and "pass the session" in refused.text
        assert (await fetch(f"{url}/v1/find?id={name}")).status == 404
        assert (await ledger.find_call(other["callslip_id"])).state == "running"


async def test_an_id_of_a_producer_may_be_the_id_of_another_call(ledger: LocalLedger) -> None:
    """A copied timeline has ids of another session: each session finds its own call."""
    async with serving_ledger(ledger) as url:
        await post(url, "act-observe", {"type": "act", "tool_name": "Read", "tool_input": {}})
        ((original,),) = [await read_items(url, "act-observe")]
        copied = {"type": "act", "tool_name": "Read", "tool_input": {}, "execution_id": original["callslip_id"]}
        await post(url, "act-observe", copied, session="copy")
        name = original["callslip_id"]
        copy = await ledger.find_call(name, "copy")
        assert copy.session == "copy" and copy.id != name
        assert (await ledger.find_call(name)).session == S


# Errors


@pytest.mark.parametrize(
    "ended",
    [
        {"error": "boom"},
        {"error": {"message": "boom"}},
        {"error": {"error": "boom", "type": "ValueError"}},
        {"error": {"code": 7, "message": "boom"}},
        {"error": '{"error": "boom"}'},
        {"output": {"error": "boom"}},
        {"output": '{"error": "boom"}'},
        {"output": {"error": "boom"}, "error": "boom"},
        {"output": {"error": "boom"}, "error": {"message": "boom"}},
    ],
)
async def test_an_error_is_encoded_once(ledger: LocalLedger, ended: Item) -> None:
    """S1.2: `{"error": "boom"}` in every format that has results as JSON, and its text in the others."""
    alias = (Alias("t", "1"),)
    await ledger.log.append(S, [ev.TurnStarted(), ev.CallStarted(aliases=alias, tool_name="Read", input={})])
    await ledger.log.append(S, [ev.CallFailed(aliases=alias, **ended), ev.TurnEnded()])
    async with serving_ledger(ledger) as url:
        assert (await read_history(url, "act-observe"))[-1]["toolOutput"] == {"error": "boom"}
        (message,) = await read_history(url, "vercel-v4")
        assert message["parts"][-1]["toolInvocation"]["result"] == {"error": "boom"}
        (message,) = await read_history(url, "ui-v6")
        assert message["parts"][-1]["errorText"] == "boom"
        assert (await read_history(url, "openai"))[-1]["content"] == "boom"
        assert (await read_items(url, "shell"))[-1]["content"] == "(no output)\n[error: boom]"
        async with requesting(f"{url}/v1/sessions/{S}/stream?format=act-observe") as live:
            _, observe = await read_chunks(live, 2)
        assert observe["result"] == observe["observation"] == {"error": "boom"}


async def test_a_command_keeps_its_error_and_its_exit_status(ledger: LocalLedger) -> None:
    """S0.6: if the error is only in the output."""
    alias = (Alias("shell", "cmd-0-0"),)
    await ledger.log.append(S, [ev.CallStarted(aliases=alias, tool_name="shell", input={"command": "ls"})])
    await ledger.log.append(S, [ev.CallFailed(aliases=alias, output={"error": "boom"}, exit_status=2)])
    async with serving_ledger(ledger) as url:
        assert (await read_items(url, "shell"))[-1]["content"] == "(no output)\n[error: boom]\n[exit status 2]"


async def test_the_error_of_a_python_function_is_encoded_once(ledger: LocalLedger) -> None:
    """S1.2: the text of the exception; models also read its type."""
    with pytest.raises(ValueError):
        async with ledger.session(S).call("read", {}):
            raise ValueError("boom")
    async with serving_ledger(ledger) as url:
        assert (await read_history(url, "act-observe"))[-1]["toolOutput"] == {"error": "boom"}
        assert (await read_history(url, "openai"))[-1]["content"] == "ValueError: boom"


async def test_an_error_object_of_a_producer_returns_as_it_is(ledger: LocalLedger) -> None:
    """S1.2: with everything else in the result."""
    result = {"error": {"code": 7}, "retry": True}
    async with serving_ledger(ledger) as url:
        observe = {"type": "observe", "tool_name": "Read", "execution_id": E1, "result": result, "is_error": True}
        await post(url, "act-observe", observe)
        assert (await read_history(url, "act-observe"))[-1]["toolOutput"] == result


# Events without a type


@dataclasses.dataclass
class ActEvent:
    """An event of a runtime that tells its kinds apart by class."""

    tool_execution_id: str
    tool_name: str
    tool_input: dict[str, Any]
    call_id: str
    status: str = "running"


@dataclasses.dataclass
class ObserveEvent:
    """The result of an execution."""

    tool_execution_id: str
    tool_name: str
    result: Any
    call_id: str
    duration_ms: int = 0
    is_error: bool = False


async def test_dataclass_events_without_a_type_are_understood(ledger: LocalLedger) -> None:
    """S1.9: as objects in Python, and as JSON over HTTP."""
    ids = {"tool_execution_id": E1, "tool_name": "Read", "call_id": "call_1"}
    events = [ActEvent(**ids, tool_input={"path": "a"}), ObserveEvent(**ids, result={"n": 1}, duration_ms=12)]
    recorded = [event async for event in ledger.session("python").record(iter(events), format="act-observe")]
    assert recorded == events
    async with serving_ledger(ledger) as url:
        answer = await post(url, "act-observe", *map(dataclasses.asdict, events), session="http")
        assert answer["notUnderstood"] == 0
        for session in ("python", "http"):
            act, observe = await read_history(url, "act-observe", session)
            assert (act["toolName"], act["toolInput"]) == ("Read", {"path": "a"})
            names = ("execution_id", "call_id", "toolOutput", "duration_ms", "isError")
            assert [observe[name] for name in names] == [E1, "call_1", {"n": 1}, 12, False]


@pytest.mark.parametrize(
    "message",
    [
        {"tool_name": "Read"},
        {"tool_input": {}},
        {"result": 1},
        {"type": 7, "tool_name": "Read", "tool_input": {}},
        {"type": "progress", "tool_name": "Read", "tool_input": {}},
        {"tool_name": "", "call_id": None, "result": 1},
    ],
)
async def test_other_messages_without_a_type_are_kept_as_raw(ledger: LocalLedger, message: Item) -> None:
    """C11: they are counted as not understood."""
    async with serving_ledger(ledger) as url:
        assert (await post(url, "act-observe", message))["notUnderstood"] == 1
        assert await read_history(url, "act-observe") == []


def test_the_functions_of_the_shell_format_are_importable() -> None:
    """S0.9: from the package."""
    (first, second) = callslip.extract_commands("<shell>ls</shell> and <shell> pwd </shell>", 2)
    assert (first.id, first.command) == ("cmd-2-0", "ls") and second == ("cmd-2-1", "pwd")
    assert callslip.format_tool_results([{"result": ""}]) == "```terminal\n(no output)\n```"
    assert "939 of 1000 characters cut" in callslip.truncate_output("x" * 1000, 100)
