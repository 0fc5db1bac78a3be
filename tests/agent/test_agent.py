"""The agent loop, end to end: with a real SDK, sockets and commands; results are read from the ledger."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callslip.agent.loop import Agent, Limits, Outcome
from callslip.agent.models import OpenAI, Scripted, find_model
from callslip.agent.shell_tool import shell_tool
from callslip.agent.tools import Tool, tool
from callslip.api.ledger import LocalLedger
from callslip.errors import ConflictError, CursorExpiredError, InvalidInputError
from callslip.formats.act_observe.encode import open_stream, timeline
from callslip.model import events as ev
from callslip.model.entries import Message, ToolCall
from callslip.rules.lifecycle import TERMINAL_STATES
from tests.support import provider_rules
from tests.support.invariants import read_events, sound_ledger
from tests.support.model_server import Server, text_answer, tool_call_answer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with sound_ledger(db, synchronous="NORMAL", reaper_interval=0.05) as open_ledger:
        yield open_ledger


@contextlib.asynccontextmanager
async def serving(*answers: Any) -> AsyncIterator[tuple[Server, OpenAI]]:
    """Start an endpoint with these answers, and a client of it."""
    with Server(list(answers)).running() as server:
        client = OpenAI("scripted", base_url=server.url, api_key="none", max_retries=0)
        async with contextlib.aclosing(client):
            yield server, client


async def list_calls(ledger: LocalLedger, session: str = "s") -> list[ToolCall]:
    return [entry for entry in (await ledger.snapshot(session)).entries if isinstance(entry, ToolCall)]


async def list_turn_ends(ledger: LocalLedger, session: str = "s") -> list[str]:
    return [event.reason for event in await read_events(ledger, session) if isinstance(event, ev.TurnEnded)]


def make_shell(**settings: Any) -> Tool:
    return shell_tool(**settings)


def command_input(text: str) -> dict[str, str]:
    return {"command": text}


# With an HTTP endpoint


async def test_a_turn_with_all_kinds_of_calls(ledger: LocalLedger, tmp_path: Path) -> None:
    """Two equal commands in one answer, one that fails, one that times out, one that is denied; then the last text."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("A")
    danger_tool = shell_tool(name="danger", cwd=str(folder), approval=True)
    answers = (
        tool_call_answer(
            ("call_0", "shell", command_input("ls")), ("call_1", "shell", command_input("ls")), text="Looking."
        ),
        tool_call_answer(("call_0", "shell", command_input("echo out; echo err >&2; exit 3"))),
        tool_call_answer(("call_0", "hasty", command_input("echo begun; sleep 60"))),
        tool_call_answer(("call_9", "danger", command_input("touch gone"))),
        text_answer("All done."),
    )
    async with serving(*answers) as (server, model):
        tools = [make_shell(cwd=str(folder)), shell_tool(name="hasty", timeout=1.5), danger_tool]
        agent = Agent(ledger.session("s"), model, tools=tools, system="Be brief.")
        denial = asyncio.ensure_future(deny_first(ledger, "not on a Sunday"))
        outcome = await agent.run("What is here?")
        await denial
    assert outcome == Outcome(outcome.turn, "end_turn", 5, "All done.")
    calls = await list_calls(ledger)
    assert [call.status for call in calls] == ["completed", "completed", "failed", "expired", "denied"]
    assert len({call.call_id for call in calls}) == 5
    assert [call.output for call in calls[:3]] == ["a.txt\n", "a.txt\n", {"stdout": "out\n", "stderr": "err\n"}]
    assert (calls[2].exit_status, calls[4].reason) == (3, "not on a Sunday")
    assert calls[3].output_text == "begun\n"
    assert await list_turn_ends(ledger) == ["end_turn"]
    assert not (folder / "gone").exists()
    for request in server.requests:
        assert not provider_rules.check_openai(request["messages"])
        assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    results = [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "tool"]
    assert len(results) == 5
    assert "a.txt" in results[0] and "err" in results[2] and "3" in results[2]
    assert "1.5 s" in results[3] and "not on a Sunday" in results[4]


async def deny_first(ledger: LocalLedger, reason: str) -> None:
    while not (pending := await ledger.approvals()):
        await asyncio.sleep(0.01)
    await ledger.deny(pending[0].id, by="ann", reason=reason)


async def test_cancelling_stops_the_tool_that_runs(ledger: LocalLedger, tmp_path: Path) -> None:
    """The command is ended, its call and the turn are cancelled, and the turn ends once."""
    pid = tmp_path / "pid"
    async with serving(tool_call_answer(("c", "shell", command_input(f"echo $$ > {pid}; sleep 600")))) as (_, model):
        running = asyncio.ensure_future(Agent(ledger.session("s"), model, tools=[make_shell()]).run("Wait."))
        while not (pid.exists() and pid.read_text().strip()):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert [call.status for call in await list_calls(ledger)] == ["cancelled"]
    assert await list_turn_ends(ledger) == ["cancelled"]
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


async def test_a_call_that_another_process_ends_stops_its_tool(ledger: LocalLedger, tmp_path: Path) -> None:
    """The loop continues, and the model reads that the call was cancelled."""
    pid = tmp_path / "pid"
    answers = (
        tool_call_answer(("c", "shell", command_input(f"echo $$ > {pid}; sleep 600"))),
        text_answer("As you wish."),
    )
    async with serving(*answers) as (server, model):
        agent = Agent(ledger.session("s"), model, tools=[make_shell()])
        running = asyncio.ensure_future(agent.run("Wait."))
        while not (pid.exists() and pid.read_text().strip()):
            await asyncio.sleep(0.01)
        call_id = (await list_calls(ledger))[0].call_id
        await ledger.log.append("s", [ev.CallCancelled(call=call_id, reason="enough")])
        outcome = await running
    assert outcome.text == "As you wish."
    call = (await list_calls(ledger))[0]
    assert (call.status, call.reason, call.late) == ("cancelled", "enough", 0)
    assert "enough" in server.requests[1]["messages"][-1]["content"]
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


async def test_cancelling_during_an_answer_of_the_model(ledger: LocalLedger) -> None:
    """The text so far is kept, and the turn ends once."""
    async with serving(None) as (_, model):
        running = asyncio.ensure_future(Agent(ledger.session("s"), model).run("Hello."))
        while not any(isinstance(event, ev.MessageDelta) for event in await read_events(ledger, "s")):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert await list_turn_ends(ledger) == ["cancelled"]
    last = (await ledger.snapshot("s")).entries[-1]
    assert isinstance(last, Message) and last.content.startswith("Let") and not last.streaming


async def test_an_endpoint_that_fails_ends_the_turn(ledger: LocalLedger) -> None:
    """The error is raised and recorded."""
    async with serving(RuntimeError("out of order")) as (_, model):
        with pytest.raises(Exception, match="out of order"):
            await Agent(ledger.session("s"), model).run("Hello.")
    turn_ends = [event for event in await read_events(ledger, "s") if isinstance(event, ev.TurnEnded)]
    assert [event.reason for event in turn_ends] == ["error"]
    assert "out of order" in turn_ends[0].detail


# With a script


def scripted_model(*answers: Any, format: str = "openai") -> Scripted:
    return Scripted(answers, format)


async def test_a_tool_is_any_function(ledger: LocalLedger) -> None:
    """Its schema comes from its annotations. Errors, unknown tools and bad arguments are recorded for the model."""

    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    async def fails() -> None:
        raise ValueError("no such luck")

    adder = tool(add)
    assert adder.description == "Add two numbers."
    assert adder.parameters["required"] == ["a"]
    assert adder.parameters["properties"]["b"] == {"type": "integer", "default": 1}
    answer = tool_call_answer(
        ("1", "add", {"a": 2}),
        ("2", "fails", {}),
        ("3", "nothing", {}),
        ("4", "add", '{"a": '),
        ("5", "add", {"a": 1, "c": 2}),
        ("6", "add", [1]),
    )
    model = scripted_model(answer, text_answer("Well."))
    await Agent(ledger.session("s"), model, tools=[adder, tool(fails)]).run("Add.")
    calls = await list_calls(ledger)
    assert [(call.status, call.output) for call in calls] == [("completed", 3)] + [("failed", None)] * 5
    assert [call.reason for call in calls[1:]] == [
        "ValueError: no such luck",
        "there is no tool 'nothing'; there are: add, fails",
        "the arguments are not a JSON object",
        "TypeError: arguments: the function has no parameter c",
        "the arguments are not a JSON object",
    ]
    assert not provider_rules.check_openai(model.histories[1])


async def test_a_tool_gets_the_arguments_as_the_model_wrote_them(ledger: LocalLedger) -> None:
    """A secret is redacted in the log and not in the command that runs."""
    key = "sk-" + "a1B2" * 8
    model = scripted_model(
        tool_call_answer(("c", "shell", command_input(f"printf %s {key} | wc -c"))), text_answer("Ok.")
    )
    await Agent(ledger.session("s"), model, tools=[make_shell()]).run("Count it.")
    call = (await list_calls(ledger))[0]
    assert call.output == f"{len(key)}\n"
    assert key not in str(call.raw_input) and "[redacted:" in str(call.raw_input)
    assert call.title and call.title.startswith("printf")


async def test_a_call_with_incomplete_arguments_is_not_run(ledger: LocalLedger) -> None:
    """The stream ends without a finish reason."""
    answer = tool_call_answer(("c", "shell", command_input("touch x")))[:-2]
    await Agent(ledger.session("s"), scripted_model(answer, text_answer("Hm.")), tools=[make_shell()]).run("Go.")
    call = (await list_calls(ledger))[0]
    assert (call.status, call.reason) == ("failed", "the answer ended before the arguments were complete")


def test_a_function_that_a_model_cannot_call_is_refused() -> None:
    """It has arguments without a name."""
    with pytest.raises(InvalidInputError, match="cannot be passed by name"):
        tool(lambda *rest: rest, name="x")


async def test_calls_run_in_sequence_or_in_parallel(ledger: LocalLedger) -> None:
    """A setting decides. In both cases the log has the calls in the order of the model."""
    running = peak = 0
    parallel = False

    async def wait() -> str:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        while parallel and peak < 3:
            await asyncio.sleep(0.001)
        running -= 1
        return "done"

    for parallel in (False, True):
        peak = 0
        answer = tool_call_answer(*((f"{parallel}{n}", "wait", {}) for n in range(3)))
        limits = Limits(parallel=parallel)
        agent = Agent(ledger.session("s"), scripted_model(answer, text_answer("x")), tools=[tool(wait)], limits=limits)
        await asyncio.wait_for(agent.run("Go."), 20)
        assert peak == (3 if parallel else 1)
    assert [call.index for call in await list_calls(ledger)] == [0, 1, 2] * 2


async def test_the_iteration_limit_ends_a_turn(ledger: LocalLedger) -> None:
    """The turn ends exactly once, with its own reason."""
    answers = [tool_call_answer(("c", "shell", command_input(f"echo {n}"))) for n in range(9)]
    limits = Limits(iterations=4)
    outcome = await Agent(ledger.session("s"), Scripted(answers), tools=[make_shell()], limits=limits).run("Go.")
    assert (outcome.reason, outcome.iterations) == ("max_turn_requests", 4)
    assert [call.output for call in await list_calls(ledger)] == ["0\n", "1\n", "2\n", "3\n"]
    assert await list_turn_ends(ledger) == ["max_turn_requests"]


async def test_a_repeated_call_is_not_run_forever(ledger: LocalLedger) -> None:
    """The model reads the reason, and if it proposes no other call the turn ends."""
    answers = [tool_call_answer((f"c{n}", "shell", command_input("date +%s%N"))) for n in range(9)]
    agent = Agent(ledger.session("s"), Scripted(answers), tools=[make_shell()], limits=Limits(repeats=2))
    outcome = await agent.run("What time is it?")
    assert outcome.reason == "repeated_calls"
    calls = await list_calls(ledger)
    assert [call.status for call in calls] == ["completed", "completed", "failed"]
    assert "made 2 times" in calls[2].reason


async def test_an_approval_may_change_the_arguments(ledger: LocalLedger) -> None:
    """The edited command runs."""
    tool_with_approval = shell_tool(approval=True)
    agent = Agent(
        ledger.session("s"),
        scripted_model(tool_call_answer(("c", "shell", command_input("rm -rf x"))), text_answer("Ok.")),
        tools=[tool_with_approval],
    )
    running = asyncio.ensure_future(agent.run("Clean up."))
    while not (pending := await ledger.approvals()):
        await asyncio.sleep(0.01)
    await ledger.approve(pending[0].id, by="me", input=command_input("echo rather not"))
    await running
    assert [call.output for call in await list_calls(ledger)] == ["rather not\n"]


async def test_a_session_continues_after_a_reload(ledger: LocalLedger) -> None:
    """The messages for the model are read from the ledger, so a second agent continues the first one's session."""
    first = scripted_model(tool_call_answer(("c", "shell", command_input("echo one"))), text_answer("One."))
    await Agent(ledger.session("s"), first, tools=[make_shell()]).run("First.")
    second = scripted_model(text_answer("Two."))
    await Agent(ledger.session("s"), second, tools=[make_shell()]).run("Second.")
    history = second.histories[0]
    assert [message["role"] for message in history] == ["user", "assistant", "tool", "assistant", "user"]
    assert not provider_rules.check_openai(history)
    assert [call.status for call in await list_calls(ledger)] == ["completed"]


async def test_the_loop_works_with_anthropic_histories(ledger: LocalLedger) -> None:
    """The same loop works with the format of another provider."""
    call = [
        {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": [], "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Looking."}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "toolu_1", "name": "shell", "input": {}},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": '{"command": "echo hi"}'},
        },
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]
    text_stream = [
        {"type": "message_start", "message": {"id": "msg_2", "role": "assistant", "content": [], "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    model = scripted_model(call, text_stream, format="anthropic")
    outcome = await Agent(ledger.session("s"), model, tools=[make_shell()]).run("Say hi.")
    assert outcome.text == "Hi."
    assert [(call.status, call.output) for call in await list_calls(ledger)] == [("completed", "hi\n")]
    assert not provider_rules.check_anthropic(model.histories[1])


# Commands in tags


async def test_commands_in_tags_run_in_order(ledger: LocalLedger) -> None:
    """Their results go to the model as terminal blocks, and the turn ends once."""
    model = scripted_model(
        text_answer("I look: <shell>echo a</shell> and again <shell> echo a </shell><shell> </shell>"),
        text_answer("And <shell>echo oops >&2; exit 4</shell>"),
        text_answer("Done."),
    )
    outcome = await Agent(ledger.session("s"), model, shell=make_shell()).run("Look.")
    assert (outcome.reason, outcome.text) == ("end_turn", "Done.")
    calls = await list_calls(ledger)
    assert [call.tool_call_id for call in calls] == ["cmd-0-0", "cmd-0-1", "cmd-1-0"]
    assert [call.status for call in calls] == ["completed", "completed", "failed"]
    assert model.histories[1][1:] == [
        {
            "role": "assistant",
            "content": "I look: <shell>echo a</shell> and again <shell>echo a</shell><shell> </shell>",
        },
        {"role": "user", "content": "```terminal\na\n```\n\n```terminal\na\n```"},
    ]
    assert model.histories[2][-1]["content"] == "```terminal\n[stderr]\noops\n[exit status 4]\n```"
    assert await list_turn_ends(ledger) == ["end_turn"]


async def test_a_command_is_proposed_before_the_answer_ends(ledger: LocalLedger) -> None:
    """Its call is in the log as soon as the closing tag is read."""
    answer = text_answer("<shell>true</shell> and then some more words")
    await Agent(ledger.session("s"), scripted_model(answer, text_answer("Done.")), shell=make_shell()).run("Go.")
    log = await read_events(ledger, "s")
    proposed = next(event.seq for event in log if isinstance(event, ev.CallProposed))
    started = next(event.seq for event in log if isinstance(event, ev.CallStarted))
    assert len([event for event in log if isinstance(event, ev.MessageDelta) and proposed < event.seq < started]) > 3


async def test_the_messages_for_the_model_are_the_same_after_a_reload(ledger: LocalLedger) -> None:
    """A new agent on the stored session reads the same messages."""
    model = scripted_model(text_answer("<shell>seq 1 3</shell>"), text_answer("So."))
    await Agent(ledger.session("s"), model, shell=make_shell()).run("Count.")
    new_agent = Agent(ledger.session("s"), scripted_model(), shell=make_shell())
    assert (await new_agent.messages())[: len(model.histories[1])] == model.histories[1]


# Ends of a turn


def make_slow_tool(tmp_path: Path) -> tuple[Tool, Path]:
    """Return a tool that creates a file and then does not end, and the file."""
    started_file = tmp_path / "begun"

    async def wait() -> None:
        started_file.touch()
        await asyncio.sleep(600)

    return tool(wait), started_file


async def wait_until_exists(path: Path) -> None:
    while not path.exists():
        await asyncio.sleep(0.01)


async def test_cancelling_at_the_start_of_a_turn(ledger: LocalLedger) -> None:
    """A turn that was started although its agent is cancelled ends."""
    running = asyncio.ensure_future(Agent(ledger.session("s"), scripted_model()).run("Go."))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await list_turn_ends(ledger) == ["cancelled"]


async def test_cancelling_repeatedly_still_ends_the_turn(ledger: LocalLedger, tmp_path: Path) -> None:
    """No turn is left open."""
    slow_tool, started_file = make_slow_tool(tmp_path)
    agent = Agent(ledger.session("s"), scripted_model(tool_call_answer(("c", "wait", {}))), tools=[slow_tool])
    running = asyncio.ensure_future(agent.run("Go."))
    await wait_until_exists(started_file)
    while not running.done():
        running.cancel()
        await asyncio.sleep(0)
    assert running.cancelled()
    assert await list_turn_ends(ledger) == ["cancelled"]
    assert [call.status for call in await list_calls(ledger)] == ["cancelled"]


def test_an_interrupt_inside_of_the_loop_ends_the_turn(db: str) -> None:
    """KeyboardInterrupt during a request to the model: the turn has ended when the program does."""

    class InterruptedModel(Scripted):
        async def stream(self, messages: list[Any], **_: Any) -> AsyncIterator[Any]:
            yield text_answer("Well")[1]
            raise KeyboardInterrupt

    async def run_agent() -> None:
        async with sound_ledger(db) as ledger:
            await Agent(ledger.session("s"), InterruptedModel([])).run("Go.")

    async def read_turn_ends() -> list[str]:
        async with sound_ledger(db) as ledger:
            return await list_turn_ends(ledger)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run_agent())
    assert asyncio.run(read_turn_ends()) == ["cancelled"]


async def test_an_error_in_parallel_calls_is_raised_unchanged(ledger: LocalLedger, tmp_path: Path) -> None:
    """It cancels the other calls, and the turn has it as its detail."""
    slow_tool, started_file = make_slow_tool(tmp_path)

    class FailingAgent(Agent):
        async def execute(self, proposed: Any) -> None:
            if proposed.tool == "wait":
                return await super().execute(proposed)
            await wait_until_exists(started_file)
            raise RuntimeError("out of paper")

    answer = tool_call_answer(("1", "wait", {}), ("2", "other", {}))
    agent = FailingAgent(ledger.session("s"), scripted_model(answer), tools=[slow_tool], limits=Limits(parallel=True))
    with pytest.raises(RuntimeError, match="out of paper"):
        await agent.run("Go.")
    assert [call.status for call in await list_calls(ledger)] == ["cancelled", "lost"]
    turn_ends = [event for event in await read_events(ledger, "s") if isinstance(event, ev.TurnEnded)]
    assert [(event.reason, event.detail) for event in turn_ends] == [("error", "RuntimeError: out of paper")]


@pytest.mark.parametrize("reason", ["cancelled", "end_turn"])
async def test_a_turn_that_another_process_ends_stops(ledger: LocalLedger, tmp_path: Path, reason: str) -> None:
    """The tool stops, queued calls are not run, the model gets no request, and the turn ends once."""
    slow_tool, started_file = make_slow_tool(tmp_path)
    unwanted_file = tmp_path / "late"
    model = scripted_model(
        tool_call_answer(("1", "wait", {}), ("2", "shell", command_input(f"touch {unwanted_file}"))),
        text_answer("Still here."),
    )
    running = asyncio.ensure_future(Agent(ledger.session("s"), model, tools=[slow_tool, make_shell()]).run("Go."))
    await wait_until_exists(started_file)
    await ledger.end_turn("s", reason)
    outcome = await asyncio.wait_for(running, 20)
    assert (outcome.reason, len(model.histories), unwanted_file.exists()) == (reason, 1, False)
    assert await list_turn_ends(ledger) == [reason]
    while not all(call.status in TERMINAL_STATES for call in await list_calls(ledger)):
        await asyncio.sleep(0.05)


async def test_a_superseded_turn_does_not_end_the_next_turn(ledger: LocalLedger) -> None:
    """A new prompt arrives during an answer: the old turn stops, the new one stays open."""
    async with serving(None) as (_, model):
        running = asyncio.ensure_future(Agent(ledger.session("s"), model).run("First."))
        while not any(isinstance(event, ev.MessageDelta) for event in await read_events(ledger, "s")):
            await asyncio.sleep(0.01)
        turn = await ledger.session("s").start_turn("Second.")
        outcome = await asyncio.wait_for(running, 20)
    assert outcome.reason == "superseded"
    assert await list_turn_ends(ledger) == ["superseded"]
    row = await ledger.log.store.session("s")
    assert row is not None and row.turn == turn


async def test_the_turn_of_a_session_that_is_deleted_stops(ledger: LocalLedger, tmp_path: Path) -> None:
    """The session is not created again."""
    slow_tool, started_file = make_slow_tool(tmp_path)
    agent = Agent(ledger.session("s"), scripted_model(tool_call_answer(("1", "wait", {}))), tools=[slow_tool])
    running = asyncio.ensure_future(agent.run("Go."))
    await wait_until_exists(started_file)
    await ledger.delete("s")
    with pytest.raises(CursorExpiredError):
        await asyncio.wait_for(running, 20)
    assert await list_turn_ends(ledger) == []


@pytest.mark.parametrize("approval", [False, True])
async def test_a_queued_call_that_is_ended_is_not_run(ledger: LocalLedger, tmp_path: Path, approval: bool) -> None:
    """It does not wait for approval either, and the model reads that it was cancelled."""
    started_file, continue_file, unwanted_file = (tmp_path / name for name in ("begun", "go", "late"))
    first_command = f"touch {started_file}; while [ ! -e {continue_file} ]; do sleep 0.02; done"
    tools = [make_shell(), shell_tool(name="later", approval=approval)]
    model = scripted_model(
        tool_call_answer(
            ("1", "shell", command_input(first_command)), ("2", "later", command_input(f"touch {unwanted_file}"))
        ),
        text_answer("Ok."),
    )
    running = asyncio.ensure_future(Agent(ledger.session("s"), model, tools=tools).run("Go."))
    await wait_until_exists(started_file)
    queued = (await list_calls(ledger))[1]
    await ledger.log.append("s", [ev.CallCancelled(call=queued.call_id, reason="not that one")])
    continue_file.touch()
    assert (await asyncio.wait_for(running, 20)).reason == "end_turn"
    call = (await list_calls(ledger))[1]
    assert (call.status, call.started_at, unwanted_file.exists()) == ("cancelled", 0, False)
    assert "not that one" in model.histories[1][-1]["content"]


async def test_a_tool_that_cancels_itself_fails(ledger: LocalLedger) -> None:
    """Its cancellation does not cancel the agent, in sequence or in parallel. A StopIteration is an error too."""

    async def gives_up() -> None:
        raise asyncio.CancelledError

    def stops() -> Any:
        return next(iter(()))

    tools = [tool(gives_up), tool(stops)]
    for parallel in (False, True):
        model = scripted_model(tool_call_answer(("1", "gives_up", {}), ("2", "stops", {})), text_answer("Ok."))
        agent = Agent(ledger.session("s"), model, tools=tools, limits=Limits(parallel=parallel))
        outcome = await asyncio.wait_for(agent.run("Go."), 20)
        assert outcome.reason == "end_turn"
        calls = (await list_calls(ledger))[-2:]
        assert [call.status for call in calls] == ["failed", "failed"]
        assert calls[0].reason == "the tool cancelled itself" and "StopIteration" in calls[1].reason


async def test_cancelling_while_a_call_waits_for_approval(ledger: LocalLedger) -> None:
    """The request is moot, call and turn are cancelled, and an answer is a conflict."""
    agent = Agent(
        ledger.session("s"),
        scripted_model(tool_call_answer(("c", "shell", command_input("true")))),
        tools=[make_shell(approval=True)],
    )
    running = asyncio.ensure_future(agent.run("Go."))
    while not (pending := await ledger.approvals()):
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [call.status for call in await list_calls(ledger)] == ["cancelled"]
    assert await list_turn_ends(ledger) == ["cancelled"]
    with pytest.raises(ConflictError):
        await ledger.approve(pending[0].id, by="me")


async def test_the_model_reads_that_a_request_expired(db: str) -> None:
    """The call is denied and the loop continues."""
    async with sound_ledger(db, reaper_interval=0.05, reaper_grace=0.05, approval_expiry=0.1) as ledger:
        model = scripted_model(tool_call_answer(("c", "shell", command_input("true"))), text_answer("Nobody there."))
        outcome = await asyncio.wait_for(
            Agent(ledger.session("s"), model, tools=[make_shell(approval=True)]).run("Go."), 30
        )
        assert outcome.text == "Nobody there."
        call = (await list_calls(ledger))[0]
        assert call.status == "denied" and call.reason
        assert call.reason in model.histories[1][-1]["content"]
        assert await ledger.approvals() == []


async def test_edited_arguments_must_match_the_schema(ledger: LocalLedger) -> None:
    """Otherwise the request stays pending and can be approved unchanged."""
    agent = Agent(
        ledger.session("s"),
        scripted_model(tool_call_answer(("c", "shell", command_input("true"))), text_answer("Ok.")),
        tools=[make_shell(approval=True)],
    )
    running = asyncio.ensure_future(agent.run("Go."))
    while not (pending := await ledger.approvals()):
        await asyncio.sleep(0.01)
    with pytest.raises(InvalidInputError):
        await ledger.approve(pending[0].id, by="me", input=["true"])
    assert [row.state for row in await ledger.approvals()] == ["pending"]
    await ledger.approve(pending[0].id, by="me")
    await running
    assert (await list_calls(ledger))[0].status == "completed"


async def test_the_last_text_is_complete(ledger: LocalLedger) -> None:
    """The ledger holds back the end of a text in which a secret might start; the outcome has it."""
    for words in ("I will do as you ask", "The key begins with AKIA"):
        outcome = await Agent(ledger.session("s"), scripted_model(text_answer(words))).run("Go.")
        assert outcome.text == words


@pytest.mark.parametrize("tags", [False, True])
async def test_the_model_reads_both_ends_of_a_large_output(ledger: LocalLedger, tags: bool) -> None:
    """The model reads more than the preview of the entry, and the same after a reload."""
    loud_command = "echo first; head -c 3000000 /dev/zero | tr '\\0' a; echo; echo last; exit 1"
    answer = (
        text_answer(f"<shell>{loud_command}</shell>")
        if tags
        else tool_call_answer(("c", "shell", command_input(loud_command)))
    )
    model = scripted_model(answer, text_answer("Well."))
    options: dict[str, Any] = {"shell": make_shell()} if tags else {"tools": [make_shell()]}
    await Agent(ledger.session("s"), model, **options).run("Go.")
    (call,) = await list_calls(ledger)
    assert call.truncated and call.blob and call.blob.size > 10**6
    text = model.histories[1][-1]["content"]
    assert "first" in text and "last" in text and "characters cut" in text
    assert 29_000 < len(text) < 31_000
    new_agent = Agent(ledger.session("s"), scripted_model(), **options)
    assert (await new_agent.messages())[: len(model.histories[1])] == model.histories[1]


@pytest.mark.parametrize("format", ["openai", "anthropic"])
async def test_text_after_a_command_stays_in_its_answer(ledger: LocalLedger, format: str) -> None:
    """Each answer is unchanged, and its results follow it."""
    words = [
        "<shell>echo a</shell> I wait.",
        "<shell>echo b</shell>",
        "<shell>echo c</shell><shell>echo d</shell>\nSo.",
    ]
    answers = [text_answer(text) if format == "openai" else anthropic_answer(text) for text in [*words, "Done."]]
    model = scripted_model(*answers, format=format)
    await Agent(ledger.session("s"), model, shell=make_shell()).run("Go.")
    history = model.histories[-1]
    assert [message["content"] for message in history[1::2]] == words
    assert [message["role"] for message in history] == ["user", "assistant"] * 3 + ["user"]
    assert "c\n" in history[-1]["content"] and "d\n" in history[-1]["content"]
    for messages in model.histories:
        assert not provider_rules.check_openai(messages) and not provider_rules.check_anthropic(messages)


def anthropic_answer(text: str) -> list[Any]:
    """Return an answer with text. All have the same id, as with some gateways."""
    return [
        {"type": "message_start", "message": {"id": "msg_1", "role": "assistant", "content": [], "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]


UNUSUAL_EVENTS: dict[str, list[Any]] = {
    "the agent spoke first": [ev.MessageDelta(text="Welcome. ", chunks="delta"), ev.MessageEnded()],
    "a call without words": [ev.CallProposed(call="", aliases=(ev.Alias("x", "1"),), tool_name="t")],
    "a bare result": [ev.CallCompleted(aliases=(ev.Alias("x", "2"),), output={"a": 1})],
    "an open call": [ev.CallStarted(aliases=(ev.Alias("x", "3"),))],
    "nothing but space": [ev.MessageDelta(text=" \n", chunks="delta"), ev.MessageEnded()],
    "an empty prompt": [ev.TurnStarted(), ev.MessageUser(text="")],
    "odd names": [ev.CallFailed(aliases=(ev.Alias("x", "ü" * 90),), error=None)],
}


@pytest.mark.parametrize("format", ["openai", "anthropic"])
@pytest.mark.parametrize("tags", [False, True])
@pytest.mark.parametrize("before", UNUSUAL_EVENTS)
async def test_providers_accept_the_histories_of_unusual_sessions(
    ledger: LocalLedger, before: str, tags: bool, format: str
) -> None:
    """The history of each request is accepted, after events of another source."""
    await ledger.log.append("s", UNUSUAL_EVENTS[before], source="import")
    texts = ["<shell>echo a</shell> ", "Done."]
    model = scripted_model(
        *(text_answer(text) if format == "openai" else anthropic_answer(text) for text in texts), format=format
    )
    options: Any = {"shell": make_shell()} if tags else {"tools": [make_shell()]}
    await Agent(ledger.session("s"), model, **options).run("Go.")
    check = provider_rules.check_openai if format == "openai" else provider_rules.check_anthropic
    for messages in model.histories:
        assert not check(messages), messages


# Acts and observes


async def test_every_end_of_a_call_is_observed(ledger: LocalLedger) -> None:
    """Success, exception, unknown tool, denied, timed out, cancelled: one act and one observe with one id."""

    async def fails() -> None:
        raise ValueError("no such luck")

    async def slow() -> None:
        await asyncio.sleep(60)

    tools = [
        make_shell(),
        tool(fails),
        tool(slow, timeout=0.05),
        shell_tool(name="danger", approval=True),
        tool(slow, name="endless"),
    ]
    answer = tool_call_answer(
        ("1", "shell", command_input("echo hi")),
        ("2", "fails", {}),
        ("3", "nothing", {}),
        ("4", "slow", {}),
        ("5", "danger", command_input("true")),
        ("6", "endless", {}),
    )
    running = asyncio.ensure_future(Agent(ledger.session("s"), scripted_model(answer), tools=tools).run("Go."))
    await deny_first(ledger, "never")
    while not [call for call in await list_calls(ledger) if call.tool_name == "endless" and call.status == "running"]:
        await asyncio.sleep(0.01)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    encoder = open_stream()
    items = [item for event in await read_events(ledger, "s") for item in encoder.feed(event)]
    items = [item for item in items if item["type"] in ("act", "observe", "user_message")]
    acts = [item for item in items if item["type"] == "act"]
    observes = {item["execution_id"]: item for item in items if item["type"] == "observe"}
    assert (len(acts), len(observes), len(items)) == (6, 6, 13)
    results = [observes[act["execution_id"]] for act in acts]
    assert [item["tool_name"] for item in results] == ["shell", "fails", "nothing", "slow", "danger", "endless"]
    assert [item["is_error"] for item in results] == [False, True, True, True, True, True]
    assert results[0]["result"] == results[0]["observation"] == "hi\n"
    assert "no such luck" in results[1]["result"]["error"]
    assert "no tool" in results[2]["result"]["error"]
    assert results[3]["result"] == {"error": "no result within 0.05 s"}
    assert results[3]["duration_ms"] >= 50
    assert results[4]["result"] == {"error": "never"}
    assert all(item["execution_id"] == item["tool_execution_id"] for item in items if item["type"] != "user_message")
    timeline_items = timeline(await ledger.snapshot("s"))
    assert [item["type"] for item in timeline_items] == ["user_message"] + ["act", "observe"] * 6
    assert [item["isError"] for item in timeline_items if item["type"] == "observe"] == [False] + [True] * 5


# Models by name


def test_a_model_is_named_by_its_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error names the wrong part of a name, or that a key is missing."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert isinstance(find_model("openai:gpt-x"), OpenAI)
    for name in ("gpt-x", "openai:", "acme:y"):
        with pytest.raises(InvalidInputError, match="openai:NAME or anthropic:NAME"):
            find_model(name)
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(InvalidInputError, match=r"(?i)api_key"):
        find_model("openai:gpt-x")


async def test_a_script_that_runs_out_of_answers_is_an_error(ledger: LocalLedger) -> None:
    """A wrong test fails instead of hanging."""
    with pytest.raises(InvalidInputError, match="no further answer"):
        await Agent(ledger.session("s"), scripted_model()).run("Hello.")
    assert await list_turn_ends(ledger) == ["error"]
