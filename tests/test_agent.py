"""The agent loop, end to end: a real SDK, real sockets, real commands, and everything from the ledger."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callslip import approvals
from callslip import events as ev
from callslip.agent.command import shell_tool
from callslip.agent.loop import Agent, Limits, Outcome
from callslip.agent.models import OpenAI, Scripted, find_model
from callslip.agent.tools import Tool, tool
from callslip.entries import Message, ToolCall
from callslip.errors import Refused
from callslip.formats.act_observe.encode import ActObserveEncoder, timeline
from callslip.ledger import Ledger
from tests import providers
from tests.model_server import Server, calls, says
from tests.sound import events, sound_ledger

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[Ledger]:
    async with sound_ledger(db, synchronous="NORMAL", reaper_interval=0.05) as made:
        yield made


@contextlib.asynccontextmanager
async def serving(*answers: Any) -> AsyncIterator[tuple[Server, OpenAI]]:
    """An endpoint with these answers, and the real client of it."""
    with Server(list(answers)).running() as server:
        client = OpenAI("scripted", base_url=server.url, api_key="none", max_retries=0)
        async with contextlib.aclosing(client):
            yield server, client


async def calls_of(ledger: Ledger, session: str = "s") -> list[ToolCall]:
    return [entry for entry in (await ledger.snapshot(session)).entries if isinstance(entry, ToolCall)]


async def ends_of(ledger: Ledger, session: str = "s") -> list[str]:
    return [event.reason for event in await events(ledger, session) if isinstance(event, ev.TurnEnded)]


def shell(**settings: Any) -> Tool:
    return shell_tool(**settings)


def command(text: str) -> dict[str, str]:
    return {"command": text}


# Against a real endpoint


async def test_a_turn_with_everything_in_it(ledger: Ledger, tmp_path: Path) -> None:
    """Two equal commands in one answer, a failing one, one that takes too long, one denied; then the last words."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("A")
    danger = shell_tool(name="danger", cwd=str(folder), approve="ask")
    answers = (
        calls(("call_0", "shell", command("ls")), ("call_1", "shell", command("ls")), text="Looking."),
        calls(("call_0", "shell", command("echo out; echo err >&2; exit 3"))),
        calls(("call_0", "shell", command("echo begun; sleep 60"))),
        calls(("call_9", "danger", command("touch gone"))),
        says("All done."),
    )
    async with serving(*answers) as (server, model):
        tools = [shell(cwd=str(folder), timeout=0.5), danger]
        agent = Agent(ledger.session("s"), model, tools=tools, system="Be brief.")
        refusing = asyncio.ensure_future(deny_first(ledger, "not on a Sunday"))
        outcome = await agent.run("What is here?")
        await refusing
    assert outcome == Outcome(outcome.turn, "end_turn", 5, "All done.")
    made = await calls_of(ledger)
    assert [call.status for call in made] == ["completed", "completed", "failed", "expired", "denied"]
    assert len({call.call_id for call in made}) == 5
    assert [call.output for call in made[:3]] == ["a.txt\n", "a.txt\n", {"stdout": "out\n", "stderr": "err\n"}]
    assert (made[2].exit_status, made[4].reason) == (3, "not on a Sunday")
    assert made[3].output_text == "begun\n"
    assert await ends_of(ledger) == ["end_turn"]
    assert not (folder / "gone").exists()
    for asked in server.asked:
        assert not providers.check_openai(asked["messages"])
        assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
    told = [message["content"] for message in server.asked[-1]["messages"] if message["role"] == "tool"]
    assert len(told) == 5
    assert "a.txt" in told[0] and "err" in told[2] and "3" in told[2]
    assert "0.5 s" in told[3] and "not on a Sunday" in told[4]


async def deny_first(ledger: Ledger, reason: str) -> None:
    while not (waiting := await ledger.approvals()):
        await asyncio.sleep(0.01)
    await approvals.deny(ledger, waiting[0].id, by="somebody", reason=reason)


async def test_cancelling_stops_the_tool_that_runs(ledger: Ledger, tmp_path: Path) -> None:
    """C5: the command is gone, its call and the turn are cancelled, and the turn ended once."""
    pid = tmp_path / "pid"
    async with serving(calls(("c", "shell", command(f"echo $$ > {pid}; sleep 600")))) as (_, model):
        running = asyncio.ensure_future(Agent(ledger.session("s"), model, tools=[shell()]).run("Wait."))
        while not (pid.exists() and pid.read_text().strip()):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert [call.status for call in await calls_of(ledger)] == ["cancelled"]
    assert await ends_of(ledger) == ["cancelled"]
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


async def test_a_call_that_somebody_else_ends_stops_its_tool(ledger: Ledger, tmp_path: Path) -> None:
    """The loop goes on, and the model reads that the call was cancelled."""
    pid = tmp_path / "pid"
    answers = calls(("c", "shell", command(f"echo $$ > {pid}; sleep 600"))), says("As you wish.")
    async with serving(*answers) as (server, model):
        agent = Agent(ledger.session("s"), model, tools=[shell()])
        running = asyncio.ensure_future(agent.run("Wait."))
        while not (pid.exists() and pid.read_text().strip()):
            await asyncio.sleep(0.01)
        call = (await calls_of(ledger))[0].call_id
        await ledger.append("s", [ev.CallCancelled(call=call, reason="enough")])
        outcome = await running
    assert outcome.text == "As you wish."
    made = (await calls_of(ledger))[0]
    assert (made.status, made.reason, made.late) == ("cancelled", "enough", 0)
    assert "enough" in server.asked[1]["messages"][-1]["content"]
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()


async def test_cancelling_while_the_model_speaks(ledger: Ledger) -> None:
    """What it had said is kept; the turn ended once."""
    async with serving(None) as (_, model):
        running = asyncio.ensure_future(Agent(ledger.session("s"), model).run("Hello."))
        while not any(isinstance(event, ev.MessageDelta) for event in await events(ledger, "s")):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert await ends_of(ledger) == ["cancelled"]
    last = (await ledger.snapshot("s")).entries[-1]
    assert isinstance(last, Message) and last.content.startswith("Let") and not last.streaming


async def test_an_endpoint_that_fails_ends_the_turn(ledger: Ledger) -> None:
    """The error is raised, and stands in the log."""
    async with serving(RuntimeError("out of order")) as (_, model):
        with pytest.raises(Exception, match="out of order"):
            await Agent(ledger.session("s"), model).run("Hello.")
    ended = [event for event in await events(ledger, "s") if isinstance(event, ev.TurnEnded)]
    assert [event.reason for event in ended] == ["error"]
    assert "out of order" in ended[0].detail


# Against a script


def scripted(*answers: Any, format: str = "openai") -> Scripted:
    return Scripted(answers, format)


async def test_a_tool_is_any_function(ledger: Ledger) -> None:
    """Its schema comes from its annotations; errors, unknown tools and bad arguments are the model's to read."""

    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    async def fails() -> None:
        raise ValueError("no such luck")

    made = tool(add)
    assert made.description == "Add two numbers."
    assert made.parameters["required"] == ["a"]
    assert made.parameters["properties"]["b"] == {"type": "integer", "default": 1}
    answer = calls(
        ("1", "add", {"a": 2}),
        ("2", "fails", {}),
        ("3", "nothing", {}),
        ("4", "add", '{"a": '),
        ("5", "add", {"a": 1, "c": 2}),
        ("6", "add", [1]),
    )
    model = scripted(answer, says("Well."))
    await Agent(ledger.session("s"), model, tools=[made, tool(fails)]).run("Add.")
    done = await calls_of(ledger)
    assert [(call.status, call.output) for call in done] == [("completed", 3)] + [("failed", None)] * 5
    assert [call.reason for call in done[1:]] == [
        "ValueError: no such luck",
        "there is no tool 'nothing'; there are: add, fails",
        "the arguments are not a JSON object",
        "TypeError: the arguments have no place in the function: c",
        "the arguments are not a JSON object",
    ]
    assert not providers.check_openai(model.asked[1])


async def test_a_call_whose_arguments_never_came_is_not_run(ledger: Ledger) -> None:
    """A stream that just stops; an answer without a finish is no answer to act on."""
    answer = calls(("c", "shell", command("touch x")))[:-2]
    await Agent(ledger.session("s"), scripted(answer, says("Hm.")), tools=[shell()]).run("Go.")
    made = (await calls_of(ledger))[0]
    assert (made.status, made.reason) == ("failed", "the answer ended before the arguments were whole")


def test_a_function_that_a_model_cannot_call_is_refused() -> None:
    """Arguments without a name."""
    with pytest.raises(Refused, match="cannot be named"):
        tool(lambda *rest: rest, name="x")


async def test_calls_run_one_after_the_other_or_together(ledger: Ledger) -> None:
    """By setting; the order of the calls in the log is the model's either way."""
    running = most = 0

    async def wait() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return "done"

    for parallel in (False, True):
        most = 0
        answer = calls(*((f"{parallel}{n}", "wait", {}) for n in range(3)))
        limits = Limits(parallel=parallel)
        await Agent(ledger.session("s"), scripted(answer, says("x")), tools=[tool(wait)], limits=limits).run("Go.")
        assert most == (3 if parallel else 1)
    assert [call.index for call in await calls_of(ledger)] == [0, 1, 2] * 2


async def test_the_iteration_limit_ends_a_turn_that_would_not(ledger: Ledger) -> None:
    """S0.5: exactly one end, with a reason of its own."""
    answers = [calls(("c", "shell", command(f"echo {n}"))) for n in range(9)]
    limits = Limits(iterations=4)
    outcome = await Agent(ledger.session("s"), Scripted(answers), tools=[shell()], limits=limits).run("Go.")
    assert (outcome.reason, outcome.iterations) == ("max_turn_requests", 4)
    assert [call.output for call in await calls_of(ledger)] == ["0\n", "1\n", "2\n", "3\n"]
    assert await ends_of(ledger) == ["max_turn_requests"]


async def test_the_same_call_over_and_over_is_not_run_for_ever(ledger: Ledger) -> None:
    """The model is told, and if it wants nothing else the turn ends."""
    answers = [calls((f"c{n}", "shell", command("date +%s%N"))) for n in range(9)]
    agent = Agent(ledger.session("s"), Scripted(answers), tools=[shell()], limits=Limits(repeats=2))
    outcome = await agent.run("What time is it?")
    assert outcome.reason == "repeated_calls"
    made = await calls_of(ledger)
    assert [call.status for call in made] == ["completed", "completed", "failed"]
    assert "made 2 times" in made[2].reason


async def test_an_approval_may_change_the_arguments(ledger: Ledger) -> None:
    """S4.6 at library level: the edited command is the one that runs."""
    asking = shell_tool(approve="ask")
    agent = Agent(
        ledger.session("s"), scripted(calls(("c", "shell", command("rm -rf x"))), says("Ok.")), tools=[asking]
    )
    running = asyncio.ensure_future(agent.run("Clean up."))
    while not (waiting := await ledger.approvals()):
        await asyncio.sleep(0.01)
    await approvals.approve(ledger, waiting[0].id, by="me", input=command("echo rather not"))
    await running
    assert [call.output for call in await calls_of(ledger)] == ["rather not\n"]


async def test_a_session_goes_on_after_a_reload(ledger: Ledger) -> None:
    """What the model is shown is made from the ledger: a second agent object continues where the first stopped."""
    first = scripted(calls(("c", "shell", command("echo one"))), says("One."))
    await Agent(ledger.session("s"), first, tools=[shell()]).run("First.")
    second = scripted(says("Two."))
    await Agent(ledger.session("s"), second, tools=[shell()]).run("Second.")
    shown = second.asked[0]
    assert [message["role"] for message in shown] == ["user", "assistant", "tool", "assistant", "user"]
    assert not providers.check_openai(shown)
    assert [call.status for call in await calls_of(ledger)] == ["completed"]


async def test_anthropic_histories(ledger: Ledger) -> None:
    """The same loop with the other provider's format."""
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
    done = [
        {"type": "message_start", "message": {"id": "msg_2", "role": "assistant", "content": [], "usage": {}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    model = scripted(call, done, format="anthropic")
    outcome = await Agent(ledger.session("s"), model, tools=[shell()]).run("Say hi.")
    assert outcome.text == "Hi."
    assert [(call.status, call.output) for call in await calls_of(ledger)] == [("completed", "hi\n")]
    assert not providers.check_anthropic(model.asked[1])


# Commands in tags


async def test_commands_in_tags_run_in_order(ledger: Ledger) -> None:
    """S0.1 to S0.5: found in the stream, run in order, told back as terminal blocks, one end."""
    model = scripted(
        says("I look: <shell>echo a</shell> and again <shell> echo a </shell><shell> </shell>"),
        says("And <shell>echo oops >&2; exit 4</shell>"),
        says("Done."),
    )
    outcome = await Agent(ledger.session("s"), model, shell=shell()).run("Look.")
    assert (outcome.reason, outcome.text) == ("end_turn", "Done.")
    made = await calls_of(ledger)
    assert [call.tool_call_id for call in made] == ["cmd-0-0", "cmd-0-1", "cmd-1-0"]
    assert [call.status for call in made] == ["completed", "completed", "failed"]
    assert model.asked[1][1:] == [
        {
            "role": "assistant",
            "content": "I look: <shell>echo a</shell> and again <shell>echo a</shell><shell> </shell>",
        },
        {"role": "user", "content": "```terminal\na\n```\n\n```terminal\na\n```"},
    ]
    assert model.asked[2][-1]["content"] == "```terminal\n[stderr]\noops\n[exit status 4]\n```"
    assert await ends_of(ledger) == ["end_turn"]


async def test_a_command_is_queued_before_the_model_has_finished_speaking(ledger: Ledger) -> None:
    """S0.4: its call is in the log as soon as the closing tag was read."""
    said = says("<shell>true</shell> and then some more words")
    await Agent(ledger.session("s"), scripted(said, says("Done.")), shell=shell()).run("Go.")
    log = await events(ledger, "s")
    proposed = next(event.seq for event in log if isinstance(event, ev.CallProposed))
    started = next(event.seq for event in log if isinstance(event, ev.CallStarted))
    assert len([event for event in log if isinstance(event, ev.MessageDelta) and proposed < event.seq < started]) > 3


async def test_what_the_model_was_shown_is_the_same_after_a_reload(ledger: Ledger) -> None:
    """S0.6: a new agent on the stored session shows the same text."""
    model = scripted(says("<shell>seq 1 3</shell>"), says("So."))
    await Agent(ledger.session("s"), model, shell=shell()).run("Count.")
    again = Agent(ledger.session("s"), scripted(), shell=shell())
    assert (await again.messages())[: len(model.asked[1])] == model.asked[1]


# Acts and observes


async def test_every_way_out_of_an_execution_is_observed(ledger: Ledger) -> None:
    """S1.2: success, exception, unknown tool, denied, timed out, cancelled: one act and one observe, with one id."""

    async def fails() -> None:
        raise ValueError("no such luck")

    async def slow() -> None:
        await asyncio.sleep(60)

    tools = [
        shell(),
        tool(fails),
        tool(slow, timeout=0.05),
        shell_tool(name="danger", approve="ask"),
        tool(slow, name="endless"),
    ]
    answer = calls(
        ("1", "shell", command("echo hi")),
        ("2", "fails", {}),
        ("3", "nothing", {}),
        ("4", "slow", {}),
        ("5", "danger", command("true")),
        ("6", "endless", {}),
    )
    running = asyncio.ensure_future(Agent(ledger.session("s"), scripted(answer), tools=tools).run("Go."))
    await deny_first(ledger, "never")
    while not [call for call in await calls_of(ledger) if call.tool_name == "endless" and call.status == "running"]:
        await asyncio.sleep(0.01)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    encoder = ActObserveEncoder()
    told = [item for event in await events(ledger, "s") for item in encoder.feed(event)]
    acts = [item for item in told if item["type"] == "act"]
    seen = {item["execution_id"]: item for item in told if item["type"] == "observe"}
    assert (len(acts), len(seen), len(told)) == (6, 6, 13)
    results = [seen[act["execution_id"]] for act in acts]
    assert [item["tool_name"] for item in results] == ["shell", "fails", "nothing", "slow", "danger", "endless"]
    assert [item["is_error"] for item in results] == [False, True, True, True, True, True]
    assert results[0]["result"] == results[0]["observation"] == "hi\n"
    assert "no such luck" in results[1]["result"]["error"]
    assert "no tool" in results[2]["result"]["error"]
    assert results[3]["result"] == {"error": "no result within 0.05 s"}
    assert results[3]["duration_ms"] >= 50
    assert results[4]["result"] == {"error": "never"}
    assert all(item["execution_id"] == item["tool_execution_id"] for item in told if item["type"] != "user_message")
    shown = timeline(await ledger.snapshot("s"))
    assert [item["type"] for item in shown] == ["user_message"] + ["act", "observe"] * 6
    assert [item["isError"] for item in shown if item["type"] == "observe"] == [False] + [True] * 5


# Models by name


def test_a_model_is_named_by_its_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is wrong with a name, or lacks, is said."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert isinstance(find_model("openai:gpt-x"), OpenAI)
    for name in ("gpt-x", "openai:", "acme:y"):
        with pytest.raises(Refused, match="openai:NAME, anthropic:NAME"):
            find_model(name)
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(Refused, match=r"(?i)api_key"):
        find_model("openai:gpt-x")


async def test_a_script_that_is_over_ends_the_turn_with_an_error(ledger: Ledger) -> None:
    """So that a wrong test fails and does not hang."""
    with pytest.raises(Refused, match="no further answer"):
        await Agent(ledger.session("s"), scripted()).run("Hello.")
    assert await ends_of(ledger) == ["error"]
