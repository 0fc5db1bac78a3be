"""Turns that were never seen live enter from an agent's replay whole, or not at all: recorded runs of real agents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callslip.formats.acp.decode import AcpDecoder
from callslip.model import events as ev
from callslip.model.entries import Message, ToolCall
from tests.support.acp_session import (
    FOLDER,
    AcpHarness,
    a2c,
    agent_text,
    c2a,
    call,
    normalized_entries,
    prompt,
    prompt_response,
    rpc_request,
    rpc_response,
    update,
)

PLEASE, AGAIN, SOMETHING, FINISH = "Use TOOL please", "Use TOOL again", "Say something", "Finish"


def recorded_runs(name: str) -> list[list[Any]]:
    """Return the rows of each recorded run of an agent."""
    runs: list[list[Any]] = [[]]
    for line in (FOLDER / "runs" / f"{name}.jsonl").read_text("utf-8").splitlines():
        runs[-1].append(json.loads(line))
        if "_eof" in runs[-1][-1]["msg"]:
            runs.append([])
    return runs[:-1]


def feed_runs(name: str, harness: AcpHarness | None = None) -> AcpHarness:
    """Record the runs of an agent into one session, each with a decoder of its own."""
    harness = harness or AcpHarness()
    for rows in recorded_runs(name):
        harness.decoder = AcpDecoder()
        harness.feed(*rows).close()
    return harness


def outline(harness: AcpHarness) -> list[tuple[str, ...]]:
    """Return the turn of each call with its tool, and the role and the last words of each message."""
    return [
        (entry.turn, entry.tool_name or entry.kind or "unknown", entry.status)
        if isinstance(entry, ToolCall)
        else (entry.role, entry.content[-20:])
        for entry in harness.entries(Message | ToolCall)  # pyright: ignore[reportArgumentType]
    ]


def notices(harness: AcpHarness) -> list[str]:
    """Return the titles of all notices."""
    return [event.notice["title"] for event in harness.log(ev.SessionInfo) if isinstance(event.notice, dict)]


def tool_turn(text: str, turn: str, tool: str) -> list[tuple[str, ...]]:
    """Return the outline of a turn with a call."""
    return [
        ("user", text),
        ("assistant", "Let me look. "),
        (turn, tool, "completed"),
        ("assistant", "The file says hello."),
    ]


# For each agent: the tool of its first, recorded call, and of the call that was only replayed. The one that names its
# calls otherwise in a replay has the kind of the live one, and a name only in the replay.
AGENTS = {
    "claude": ("Bash", "Bash"),
    "claude-without-ids": ("Bash", "Bash"),
    "codex": ("read", "exec_command"),
    "opencode": ("execute", "execute"),
}


@pytest.mark.parametrize("name", AGENTS)
def test_turns_of_an_agent_used_without_wrap_enter_whole(name: str) -> None:
    """RPL1, S2.11: between two recorded runs. Prompts, answers and the call are in their place."""
    harness = feed_runs(name)
    live, replayed = AGENTS[name]
    first = tool_turn(PLEASE, "t1", live)
    if name == "codex":  # It adds a warning to its first answer.
        first[1] = ("assistant", "issues.Let me look. ")
    assert outline(harness) == [
        *first,
        *tool_turn(AGAIN, "t2", replayed),
        ("user", SOMETHING),
        ("assistant", "er to: Say something"),
        ("user", FINISH),
        ("assistant", "in answer to: Finish"),
    ]
    assert [event.turn for event in harness.log(ev.TurnEnded)] == ["t1", "t2", "t3", "t4"]
    assert not notices(harness) and not [entry for entry in harness.entries(Message) if entry.streaming]


@pytest.mark.parametrize("name", AGENTS)
def test_loading_the_session_again_adds_nothing(name: str) -> None:
    """RPL1: what a replay added is recorded for the next one, with and without message ids."""
    harness = feed_runs(name)
    before = normalized_entries(harness)
    rows = recorded_runs(name)[-1]
    prompts = [number for number, row in enumerate(rows) if row["msg"].get("method") == "session/prompt"]
    harness.decoder = AcpDecoder()
    harness.feed(*rows[: prompts[0]])
    assert (normalized_entries(harness), notices(harness)) == (before, [])
    assert [entry.content for entry in harness.entries(Message) if entry.role == "user"] == [
        PLEASE,
        AGAIN,
        SOMETHING,
        FINISH,
    ]


def test_a_turn_before_the_end_of_the_log_does_not_enter() -> None:
    """RPL2, S2.11: the run after it was resumed without a replay. A notice counts it, once for any number of loads."""
    harness = feed_runs("codex-resume")
    texts = [entry.content for entry in harness.entries(Message) if entry.role == "user"]
    assert texts == [PLEASE, "Carry on"] and [call.turn for call in harness.calls] == ["t1"]
    assert notices(harness) == ["Not added from the agent's replay: 1 turn."]
    (notice,) = [event for event in harness.log(ev.SessionInfo) if event.notice]
    assert notice.source == "callslip" and notice.notice["severity"] == "warning"
    entries = normalized_entries(harness)
    harness.decoder = AcpDecoder()
    harness.feed(*recorded_runs("codex-resume")[-1]).close()
    assert (normalized_entries(harness), len(notices(harness))) == (entries, 1)


def test_a_call_seen_only_in_a_replay_is_counted() -> None:
    """RPL3: its turn is recorded in part, so its place is in the past. The answer after it does not enter either."""
    harness = feed_runs("claude-gap")
    assert outline(harness) == [
        ("user", PLEASE),
        ("assistant", "Let me look. "),
        ("user", FINISH),
        ("assistant", "in answer to: Finish"),
    ]
    assert notices(harness) == ["Not added from the agent's replay: 1 call of recorded turns."]
    (replayed,) = harness.log(ev.CallCompleted)
    assert (replayed.verdict, replayed.call) == ("witness", "")


# Constructed replays


def user_text(text: str, **fields: Any) -> dict[str, Any]:
    return update("user_message_chunk", content={"type": "text", "text": text}, **fields)


def load(*updates: Any) -> list[Any]:
    """Return a load of the session with its replay."""
    return [c2a(rpc_request("session/load", 9)), *updates, a2c(rpc_response(9))]


def record(*turns: tuple[str, str]) -> AcpHarness:
    """Return a session with a turn for each prompt and answer, without message ids."""
    harness = AcpHarness()
    for text, answer in turns:
        harness.feed(prompt(text=text), agent_text(answer), prompt_response())
    return harness


def replay(*turns: tuple[str, str]) -> list[Any]:
    return load(*(row for text, answer in turns for row in (user_text(text), agent_text(answer))))


ONE, TWO, THREE = ("one", "1"), ("two", "2"), ("three", "3")


def test_turns_enter_only_if_all_of_them_follow_everything_recorded() -> None:
    """RPL2: one in the middle keeps the one at the end out too; so does a replay without the newest recorded turn."""
    for recorded, replayed, count in (
        ([ONE, THREE], [ONE, TWO, THREE, ("four", "4")], 2),
        ([TWO], [ONE, TWO], 1),
        ([ONE, TWO], [ONE, THREE], 1),
        ([("A", "1"), TWO], [ONE, TWO, THREE], 2),
    ):
        harness = record(*recorded).feed(*replay(*replayed))
        assert harness.texts == [text for turn in recorded for text in turn], (recorded, replayed)
        turns = "1 turn" if count == 1 else f"{count} turns"
        assert notices(harness) == [f"Not added from the agent's replay: {turns}."]


def test_turns_that_the_agent_forgot_do_not_keep_new_ones_out() -> None:
    """RPL1: the agent did not store a turn that failed. The newest recorded turn is in the replay."""
    harness = record(ONE, TWO, THREE).feed(*replay(ONE, THREE, ("four", "4")))
    assert (harness.texts[-3:], notices(harness)) == (["3", "four", "4"], [])


def test_a_prompt_that_was_sent_twice_is_two_turns() -> None:
    """RPL1: prompts are compared in order and by number, not only by their text."""
    harness = record(ONE, ("on", "2")).feed(*replay(ONE, ("on", "2"), ("on", "3")))
    assert harness.texts == ["one", "1", "on", "2", "on", "3"]


def test_known_message_ids_outweigh_equal_prompts() -> None:
    """RPL2: the replayed turn with the recorded answer is the recorded one, so the other one was before it."""
    harness = AcpHarness().feed(prompt(text="on"), agent_text("2", messageId="b"), prompt_response())
    harness.feed(
        *load(user_text("on"), agent_text("1", messageId="a"), user_text("on"), agent_text("2", messageId="b"))
    )
    assert (harness.texts, len(notices(harness))) == (["on", "2"], 1)


def test_a_prompt_that_was_recorded_without_its_answer_is_recorded() -> None:
    """RPL1: its answer has an id that is not known, and does not enter; the turn after it does."""
    harness = AcpHarness().feed(prompt(text="one"), agent_text("1", messageId="a"), prompt_response())
    harness.feed(prompt(text="two"), prompt_response(reason="cancelled"))
    turns = [(text, agent_text(text[:1], messageId=text)) for text in ("two", "three")]
    replayed = [row for text, answer in turns for row in (user_text(text), answer)]
    harness.feed(*load(user_text("one"), agent_text("1", messageId="a"), *replayed))
    assert (harness.texts, notices(harness)) == (["one", "1", "two", "three", "t"], [])


@pytest.mark.parametrize("answer", ["2", ""])
def test_a_cancelled_prompt_does_not_keep_new_turns_out(answer: str) -> None:
    """RPL1: an agent without message ids replays it and the next prompt as one message of the user."""
    answers = [agent_text(answer)] if answer else []
    harness = AcpHarness().feed(prompt(text="one"), prompt_response(reason="cancelled"))
    harness.feed(prompt(text="two"), *answers, prompt_response())
    replayed = load(user_text("one"), user_text("two"), agent_text("2"), user_text("three"), agent_text("3"))
    harness.feed(*replayed)
    assert (harness.texts, notices(harness)) == (["one", "two", *filter(None, [answer]), "three", "3"], [])
    texts = harness.texts
    assert harness.feed(*replayed).texts == texts and not notices(harness)


def test_a_forgotten_turn_at_the_end_keeps_new_turns_out() -> None:
    """RPL2: the newest message is in the replay, but not the prompt that was recorded after it."""
    harness = AcpHarness().feed(prompt(text="one"), agent_text("1", messageId="a"), prompt_response())
    harness.feed(prompt(text="two"), prompt_response(reason="cancelled"))
    replayed = [user_text("one"), agent_text("1", messageId="a"), user_text("three"), agent_text("3", messageId="c")]
    assert harness.feed(*load(*replayed)).texts == ["one", "1", "two"] and len(notices(harness)) == 1


def test_an_agent_that_numbers_its_calls_in_every_turn_adds_a_new_call() -> None:
    """RPL1, C2: the same id in several turns of a replay is no evidence, and the added call is another one."""
    ended = [call("completed", title="first"), call("completed", title="second")]
    harness = AcpHarness().feed(prompt(text="one"), ended[0], prompt_response())
    harness.feed(*load(user_text("one"), ended[0], user_text("two"), ended[1]))
    assert [(one.turn, one.title, one.status) for one in harness.calls] == [
        ("t1", "first", "completed"),
        ("t2", "second", "completed"),
    ]
    assert len({one.call_id for one in harness.calls}) == 2


def test_prompts_of_several_blocks_are_recognized() -> None:
    """RPL1: agents join blocks in another way than clients."""
    blocks = [{"type": "text", "text": text} for text in ("Look at", "this file")]
    sent = c2a(rpc_request("session/prompt", 1, prompt=blocks))
    harness = AcpHarness().feed(sent, agent_text("1"), prompt_response())
    harness.feed(*load(user_text("Look at"), user_text("this file"), agent_text("1"), *replay(TWO)[1:-1]))
    assert harness.texts == ["Look at\nthis file", "1", "two", "2"]


def test_no_turn_enters_while_a_turn_is_open() -> None:
    """RPL2: an added turn would end the open one."""
    harness = AcpHarness().feed(prompt(text="one"), agent_text("1")).feed(*replay(ONE, TWO))
    assert (harness.texts, notices(harness)) == (["one", "1"], ["Not added from the agent's replay: 1 turn."])
    assert harness.feed(prompt_response()).log(ev.TurnEnded)[0].reason == "end_turn"


def test_plans_stay_in_their_turn() -> None:
    """RPL1: the plan of an added turn is shown in it, that of a recorded one is not."""
    plans = [update("plan", entries=[{"content": text}]) for text in ("recorded", "old", "new")]
    harness = record(ONE)
    harness.feed(
        *load(user_text("one"), plans[0], agent_text("1"), user_text("two"), plans[1], agent_text("2"), plans[2])
    )
    assert [entry["entries"] for entry in normalized_entries(harness) if entry["type"] == "plan"] == [
        [{"content": "new"}]
    ]
    assert harness.texts == ["one", "1", "two", "2"]


@pytest.mark.parametrize(
    "text",
    [
        "<command-name>/model</command-name>\n<command-args>x</command-args>",
        "[Request interrupted by user]",
        "[Request interrupted by user for tool use]",
    ],
)
def test_notes_of_the_agent_are_no_prompts(text: str) -> None:
    """RPL1: they are kept as raw."""
    note = user_text(text)
    harness = record(ONE).feed(*load(user_text("one"), agent_text("1"), note, user_text("two"), agent_text("2")))
    assert harness.texts == ["one", "1", "two", "2"] and note in harness.raws


def test_a_secret_in_a_prompt_does_not_make_it_new() -> None:
    """RPL1: both sides are compared as they are stored."""
    secret = ("use sk-ant-api03-" + "a1B2" * 23 + " now", "done")
    harness = record(secret).feed(*replay(secret, TWO))
    assert harness.texts[1:] == ["done", "two", "2"] and "a1B2" not in str(harness.ledger.log)
