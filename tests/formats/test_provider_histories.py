"""Encode sessions as histories for OpenAI (Chat Completions and Responses) and Anthropic, which those APIs accept."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.api.ledger import open_ledger
from callslip.formats import registry
from callslip.formats.anthropic.history import anthropic_history
from callslip.formats.openai.history import chat_history, responses_history
from callslip.ingest.importer import import_lines
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Message, Snapshot, ToolCall
from callslip.model.events import Alias, Blob, Event
from callslip.rules.fold import SessionFold
from callslip.rules.lifecycle import TRANSITIONS
from tests.support import format_cases, scenarios
from tests.support.provider_rules import (
    anthropic_type_errors,
    check_anthropic,
    check_openai,
    check_responses,
    decode_messages,
    list_calls,
    openai_type_errors,
    responses_type_errors,
)
from tests.support.strategies import MemoryLedger, scripts, write_script

PROVIDER_FORMATS = ("openai", "responses", "anthropic")
STATES = sorted(set(TRANSITIONS) - {"none"})


# The encoder of each API, the checker of its rules, and the checker of the types of its SDK.
APIS: dict[str, tuple[Callable[[Any], list[Any]], Callable[[Any], list[str]], Callable[[list[Any]], list[str]]]] = {
    "openai": (chat_history, check_openai, openai_type_errors),
    "responses": (responses_history, check_responses, responses_type_errors),
    "anthropic": (anthropic_history, check_anthropic, anthropic_type_errors),
}
HISTORIES = [history for history, _, _ in APIS.values()]


def find_problems(source: Any, *, typed: bool = True) -> list[str]:
    """Return the errors in the histories of a session."""
    entries = list(source.snapshot().entries if isinstance(source, SessionFold) else source)
    problems: list[str] = []
    for history, check, types in APIS.values():
        messages = history(entries)
        problems += check(messages) + (types(messages) if typed else [])
    return problems


def fold_states(log: Iterable[Event]) -> Iterator[SessionFold]:
    """Yield the state of a session after every event."""
    state = SessionFold("s")
    for event in log:
        state.apply(event)
        yield state


def fold_all(logs: list[list[Event]]) -> Iterator[SessionFold]:
    """Yield the states of several sessions, which must not all be empty."""
    assert any(logs)
    for log in logs:
        yield from fold_states(log)


def call(**fields: Any) -> ToolCall:
    """Return the entry of a call."""
    defaults: dict[str, Any] = {"id": 2, "call_id": "exec_0123456789ab", "tool_call_id": "call_1", "tool_name": "ls"}
    return ToolCall(**(defaults | {"status": "completed", "end": 3} | fields))


def anthropic_result(entry: ToolCall) -> dict[str, Any]:
    """Return the result block of a call in an Anthropic history."""
    return anthropic_history([Message(id=1, role="user", content="Go."), entry])[-1]["content"][0]


# Accepted histories


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_scenario_histories_are_accepted_after_every_event(name: str) -> None:
    """By the rules of the APIs and the types of their SDKs."""
    for state in fold_states(scenarios.load_events(name)):
        assert not find_problems(state), state.seq


@cache
def import_file(format: str, path: Path) -> list[list[Event]]:
    """Import a file and return the logs of its sessions."""

    async def logs() -> list[list[Event]]:
        async with await open_ledger("sqlite:///:memory:", scenarios.NO_REAPER) as ledger:
            report = await import_lines(ledger.log, "s", format, path.read_bytes().splitlines())
            return [[event async for event in ledger.events(session)] for session in report.sessions]

    with scenarios.counted_ids():
        return asyncio.run(logs())


@pytest.mark.parametrize("path", sorted(format_cases.CAPTURES.glob("*.jsonl")), ids=lambda path: path.stem)
def test_capture_histories_are_accepted_after_every_event(path: Path) -> None:
    """Sessions of agents that do not use these APIs."""
    for state in fold_all(import_file("acp", path)):
        assert not find_problems(state), state.seq


@pytest.mark.parametrize(
    "case", [case for case in format_cases.CASES if format_cases.format_of(case) in PROVIDER_FORMATS]
)
def test_provider_case_histories_are_accepted_after_every_event(case: str) -> None:
    """Also with malformed arguments, missing or repeated ids, or results without a call."""
    for state in fold_all(import_file(format_cases.format_of(case), format_cases.input_path(case))):
        assert not find_problems(state), state.seq


@given(scripts())
def test_histories_of_any_session_are_accepted_after_every_event(script: list[Event]) -> None:
    """For any session."""
    for state in fold_states(write_script(script).log):
        assert not find_problems(state, typed=False), state.seq
    assert not find_problems(state)


@given(scripts())
def test_state_snapshot_and_entries_give_the_same_history(script: list[Event]) -> None:
    """Encoding changes none of them."""
    state = write_script(script).state
    snapshot = state.snapshot()
    before = codec.encode(snapshot)
    for history in HISTORIES:
        assert history(state) == history(snapshot) == history(iter(snapshot.entries)) == history(state)
    assert codec.encode(state.snapshot()) == before


# The checkers

GOOD_OPENAI: list[Any] = [
    {"role": "user", "content": "Go."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "ls", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "b", "content": "2"},
    {"role": "tool", "tool_call_id": "a", "content": "1"},
    {"role": "assistant", "content": "Done."},
]
GOOD_RESPONSES: list[Any] = [
    {"role": "user", "content": "Go."},
    {"type": "message", "role": "assistant", "content": "Twice."},
    {"type": "function_call", "call_id": "a", "name": "ls", "arguments": "{}"},
    {"type": "function_call", "call_id": "b", "name": "ls", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "b", "output": "2"},
    {"type": "function_call_output", "call_id": "a", "output": "1"},
    {"type": "message", "role": "assistant", "content": "Done."},
]
GOOD_ANTHROPIC: list[Any] = [
    {"role": "user", "content": "Go."},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "Twice."},
            {"type": "tool_use", "id": "a", "name": "ls", "input": {}},
            {"type": "tool_use", "id": "b", "name": "ls", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "b", "content": "2"},
            {"type": "tool_result", "tool_use_id": "a", "content": "1", "is_error": True},
            {"type": "text", "text": "Go on."},
        ],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
]


def replace_at(messages: list[Any], *path: Any, to: Any = ...) -> list[Any]:
    """Return messages with another value at a path, or without it."""
    copied = copy.deepcopy(messages)
    parent = copied
    for step in path[:-1]:
        parent = parent[step]
    if to is ...:
        del parent[path[-1]]
    else:
        parent[path[-1]] = to
    return copied


def test_the_checker_accepts_valid_histories() -> None:
    """By its own rules and by the SDKs' types."""
    assert not check_openai(GOOD_OPENAI) + openai_type_errors(GOOD_OPENAI)
    assert not check_anthropic(GOOD_ANTHROPIC) + anthropic_type_errors(GOOD_ANTHROPIC)
    assert not check_responses(GOOD_RESPONSES) + responses_type_errors(GOOD_RESPONSES)
    assert not check_openai([]) + check_responses([]) + check_anthropic([])


FIRST_CALL = (1, "tool_calls", 0)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (replace_at(GOOD_OPENAI, 3), "comes before the results"),
        (GOOD_OPENAI[:3], "are missing"),
        ([*GOOD_OPENAI, GOOD_OPENAI[2]], "no call directly before it"),
        (replace_at(GOOD_OPENAI, 2, "tool_call_id", to="a"), "no call directly before it"),
        (replace_at(GOOD_OPENAI, 2, "content", to=""), "blank"),
        (replace_at(GOOD_OPENAI, 1, "tool_calls", to=[]), "empty list"),
        (replace_at(GOOD_OPENAI, *FIRST_CALL, "id", to="b"), "second time"),
        (replace_at(GOOD_OPENAI, *FIRST_CALL, "id", to="x" * 41), "wrong length"),
        (replace_at(GOOD_OPENAI, *FIRST_CALL, "type", to="custom"), "not a function"),
        (replace_at(GOOD_OPENAI, *FIRST_CALL, "function", "arguments", to="[]"), "not an object"),
        (replace_at(GOOD_OPENAI, *FIRST_CALL, "function", "arguments", to="{"), "not JSON"),
        (replace_at(GOOD_OPENAI, *FIRST_CALL, "function", "arguments", to={}), "not JSON"),
        (replace_at(GOOD_OPENAI, *FIRST_CALL, "function", "arguments", to='{"a":NaN}'), "not JSON"),
        (replace_at(GOOD_OPENAI, *FIRST_CALL, "function", "name", to="a b"), "invalid name"),
        (replace_at(GOOD_OPENAI, 4, "content", to=None), "not text"),
        (replace_at(GOOD_OPENAI, 0, "content", to=" "), "blank"),
        (replace_at(GOOD_OPENAI, 0, "role", to="critic"), "unknown role"),
        (replace_at(GOOD_OPENAI, 0, "content", to="\ud800"), "not JSON"),
        (replace_at(GOOD_OPENAI, 0, "at", to=1), "unknown parameter"),
        (replace_at(GOOD_OPENAI, 2, "is_error", to=True), "unknown parameter"),
        (replace_at(GOOD_OPENAI, *FIRST_CALL, "index", to=0), "unknown parameter"),
        ({"role": "user"}, "not a list"),
    ],
)
def test_the_checker_reports_invalid_openai_histories(messages: list[Any], expected: str) -> None:
    """One case for each rule."""
    assert any(expected in problem for problem in check_openai(messages)), check_openai(messages)


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (replace_at(GOOD_RESPONSES, 5), "comes before the results"),
        (GOOD_RESPONSES[:5], "are missing"),
        (GOOD_RESPONSES[:3], "are missing"),
        ([*GOOD_RESPONSES[:5], GOOD_RESPONSES[1], GOOD_RESPONSES[5]], "comes before the results"),
        ([*GOOD_RESPONSES[:3], GOOD_RESPONSES[0], *GOOD_RESPONSES[3:]], "comes before the results"),
        (
            [*GOOD_RESPONSES[:5], {**GOOD_RESPONSES[2], "call_id": "c"}, GOOD_RESPONSES[5]],
            "comes before the results",
        ),
        ([*GOOD_RESPONSES, GOOD_RESPONSES[4]], "no call directly before it"),
        (replace_at(GOOD_RESPONSES, 4, "call_id", to="a"), "no call directly before it"),
        (replace_at(GOOD_RESPONSES, 4, "output", to=""), "blank"),
        (replace_at(GOOD_RESPONSES, 4, "output", to=None), "not text"),
        (replace_at(GOOD_RESPONSES, 2, "call_id", to="b"), "second time"),
        (replace_at(GOOD_RESPONSES, 2, "call_id", to="x" * 65), "wrong length"),
        (replace_at(GOOD_RESPONSES, 2, "call_id", to=""), "wrong length"),
        (replace_at(GOOD_RESPONSES, 2, "arguments", to="[]"), "not an object"),
        (replace_at(GOOD_RESPONSES, 2, "arguments", to={}), "not JSON"),
        (replace_at(GOOD_RESPONSES, 2, "name", to="a b"), "invalid name"),
        (replace_at(GOOD_RESPONSES, 2, "id", to="call_1"), "unknown parameter"),
        (replace_at(GOOD_RESPONSES, 1, "content", to=" "), "blank"),
        (replace_at(GOOD_RESPONSES, 1, "role", to="tool"), "unknown role"),
        (replace_at(GOOD_RESPONSES, 1, "type", to="reasoning"), "of the kind"),
        (replace_at(GOOD_RESPONSES, 1, "content", to="\ud800"), "not JSON"),
        ("Go.", "not a list"),
    ],
)
def test_the_checker_reports_invalid_responses_histories(items: list[Any], expected: str) -> None:
    """One case for each rule."""
    assert any(expected in problem for problem in check_responses(items)), check_responses(items)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (GOOD_ANTHROPIC[1:], "role is assistant instead of user"),
        ([GOOD_ANTHROPIC[0], *GOOD_ANTHROPIC], "role is user instead of assistant"),
        (GOOD_ANTHROPIC[:2], "are missing"),
        (replace_at(GOOD_ANTHROPIC, 2, "content", 0), "results of"),
        (replace_at(GOOD_ANTHROPIC, 2, "content", 0, "tool_use_id", to="a"), "results of"),
        (replace_at(GOOD_ANTHROPIC, 2, "content", to=GOOD_ANTHROPIC[2]["content"][::-1]), "before a result"),
        (replace_at(GOOD_ANTHROPIC, 2, "content", 1, "content", to=""), "blank"),
        (replace_at(GOOD_ANTHROPIC, 2, "content", 1, "is_error", to=1), "is_error"),
        (replace_at(GOOD_ANTHROPIC, 1, "content", 0, "text", to="\n"), "blank"),
        (replace_at(GOOD_ANTHROPIC, 1, "content", 1, "id", to="b"), "second time"),
        (replace_at(GOOD_ANTHROPIC, 1, "content", 1, "id", to="a#1"), "forbidden characters"),
        (replace_at(GOOD_ANTHROPIC, 1, "content", 1, "id", to="x" * 65), "wrong length"),
        (replace_at(GOOD_ANTHROPIC, 1, "content", 1, "input", to="{}"), "not an object"),
        (replace_at(GOOD_ANTHROPIC, 1, "content", 1, "name", to=""), "invalid name"),
        (replace_at(GOOD_ANTHROPIC, 1, "content", 0, "type", to="thinking"), "of the kind"),
        (replace_at(GOOD_ANTHROPIC, 1, "content", to=[]), "no content"),
        (replace_at(GOOD_ANTHROPIC, 0, "content", to=""), "blank"),
        (replace_at(GOOD_ANTHROPIC, 0, "content", to=[{"type": "tool_use", "id": "z"}]), "a call in a user message"),
        (replace_at(GOOD_ANTHROPIC, 3, "content", to=[{"type": "tool_result"}]), "a result in an assistant message"),
        (replace_at(GOOD_ANTHROPIC, 3, "content", 0, "text", to="Done. "), "ends in whitespace"),
        (replace_at(GOOD_ANTHROPIC, 0, "id", to="msg_1"), "unknown parameter"),
        (replace_at(GOOD_ANTHROPIC, 1, "content", 1, "title", to="ls"), "unknown parameter"),
        (None, "not a list"),
    ],
)
def test_the_checker_reports_invalid_anthropic_histories(messages: list[Any], expected: str) -> None:
    """One case for each rule."""
    assert any(expected in problem for problem in check_anthropic(messages)), check_anthropic(messages)


@pytest.mark.parametrize(
    ("typed", "messages"),
    [
        (openai_type_errors, replace_at(GOOD_OPENAI, *FIRST_CALL, "function")),
        (openai_type_errors, replace_at(GOOD_OPENAI, 2, "tool_call_id")),
        (openai_type_errors, replace_at(GOOD_OPENAI, 4, "content", to=1)),
        (responses_type_errors, replace_at(GOOD_RESPONSES, 2, "arguments")),
        (responses_type_errors, replace_at(GOOD_RESPONSES, 2, "name", to=None)),
        (responses_type_errors, replace_at(GOOD_RESPONSES, 4, "output")),
        (responses_type_errors, replace_at(GOOD_RESPONSES, 4, "call_id", to=1)),
        (responses_type_errors, replace_at(GOOD_RESPONSES, 0, "content", to=[{"type": "input_text"}])),
        (responses_type_errors, replace_at(GOOD_RESPONSES, 0, "role", to="nobody")),
        (anthropic_type_errors, replace_at(GOOD_ANTHROPIC, 1, "content", 1, "input", to=[])),
        (anthropic_type_errors, replace_at(GOOD_ANTHROPIC, 2, "content", 0, "tool_use_id")),
    ],
)
def test_nested_types_are_checked(typed: Callable[[list[Any]], list[str]], messages: list[Any]) -> None:
    """Also inside fields that the SDKs declare as iterable."""
    assert typed(messages)


def call_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of the calls and results in a history."""
    if isinstance(value, dict):
        kind = str(value.get("type", "")) or value.get("role")
        if kind in ("function", "function_call", "function_call_output", "tool", "tool_use", "tool_result"):
            yield path
    for name in ("tool_calls", "content") if isinstance(value, dict) else ():
        yield from call_paths(value.get(name), (*path, name))
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from call_paths(item, (*path, number))


@pytest.mark.parametrize("name", ["parallel_calls", "ids_reused_within_a_turn", "approval_pending", "detached_call"])
@pytest.mark.parametrize("format", list(APIS))
def test_the_checker_reports_missing_and_repeated_calls_and_results(format: str, name: str) -> None:
    """At any position of a real history."""
    history, check, _ = APIS[format]
    *_, state = fold_states(scenarios.load_events(name))
    encoded = history(state)
    paths = list(call_paths(encoded))
    assert len(paths) == 2 * len([entry for entry in state.entries.values() if isinstance(entry, ToolCall)]) > 0
    for *parent, number in paths:
        assert check(replace_at(encoded, *parent, number)), (parent, number)
        repeated = copy.deepcopy(encoded)
        container: Any = repeated
        for step in parent:
            container = container[step]
        container.insert(number, copy.deepcopy(container[number]))
        assert check(repeated), (parent, number)


# Content of the messages


@pytest.mark.parametrize("state", STATES)
def test_every_state_has_a_result_for_the_model(state: str) -> None:
    """Only `completed` is no error; the model reads the reason."""
    text = anthropic_result(
        call(status=state, end=0, reason="the reason" if state != "completed" else "", output_text="so far")
    )
    assert text.get("is_error", False) is (state != "completed")
    assert "so far" in text["content"]
    assert ("the reason" in text["content"]) is (state != "completed")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"output": "18 degrees\n"}, "18 degrees\n"),
        ({"output": {"message": "kept whole", "n": 1}}, '{"message":"kept whole","n":1}'),
        ({"output": ""}, "(no output)"),
        ({}, "(no output)"),
        ({"output_text": "printed\n"}, "printed\n"),
        ({"content": [{"type": "content", "content": {"type": "text", "text": "shown"}}]}, "shown"),
        ({"content": [{"type": "terminal", "terminalId": "t"}], "output_text": "printed"}, "printed"),
        ({"content": [{"type": "diff", "path": "a"}]}, '[{"type":"diff","path":"a"}]'),
        ({"output": "no match\n", "exit_status": 1}, "no match\n(exit status 1)"),
        ({"output": "fine", "exit_status": 0}, "fine"),
        ({"exit_status": {"exitCode": 2, "signal": None}}, "(no output)\n(exit status 2)"),
        ({"exit_status": {"exitCode": None, "signal": "SIGKILL"}}, "(no output)\n(ended by signal SIGKILL)"),
        (
            {"output": "begin", "truncated": True, "blob": Blob("h", 9000)},
            "begin\n(cut: only the beginning of 9000 bytes is shown)",
        ),
        ({"status": "failed", "error": {"message": "no such file", "code": 2}}, "no such file"),
        ({"status": "failed", "output": "2 failed\n", "exit_status": 1}, "2 failed\n(exit status 1)"),
        ({"status": "failed", "error": "boom", "reason": "boom", "output": "boom"}, "boom"),
        ({"status": "failed"}, "This call failed."),
        ({"status": "denied", "reason": "not on a Friday"}, "This call was denied and has not run: not on a Friday"),
        ({"status": "lost"}, "The outcome of this call is unknown."),
        (
            {"status": "queued", "end": 0},
            "The outcome of this call is unknown: it had not begun when this was written.",
        ),
        ({"status": "awaiting_approval", "end": 0}, "This call has not run: a person has still to approve it."),
        (
            {"status": "running", "end": 0, "scope": "detached"},
            '{"status":"queued","correlation_id":"exec_0123456789ab"}',
        ),
        ({"output": "first", "late": 9}, "first"),
    ],
)
def test_the_result_text_of_a_call_is_the_same_for_all_apis(fields: dict[str, Any], text: str) -> None:
    """Late events are not in it."""
    entry = call(**fields)
    assert anthropic_result(entry)["content"] == text
    assert chat_history([entry])[-1]["content"] == text
    assert responses_history([entry])[-1]["output"] == text


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"raw_input": {"a": 1}}, {"a": 1}),
        ({"raw_input": None}, {}),
        ({"raw_input": ""}, {}),
        ({"raw_input": "print(1)"}, {"input": "print(1)"}),
        ({"raw_input": [1]}, {"input": [1]}),
        ({"raw_input": 0}, {"input": 0}),
        ({"input_text": '{"a": 1}'}, {"a": 1}),
        ({"input_text": '{"a": '}, {"input": '{"a": '}),
    ],
)
def test_arguments_are_always_an_object(fields: dict[str, Any], expected: Any) -> None:
    """As text for two APIs, as an object for the third."""
    openai, anthropic = chat_history([call(**fields)]), anthropic_history([call(**fields)])
    assert json.loads(responses_history([call(**fields)])[0]["arguments"]) == expected
    assert json.loads(openai[0]["tool_calls"][0]["function"]["arguments"]) == expected
    assert anthropic[1]["content"][0]["input"] == expected


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tool_name": "Read", "raw_tool_name": "mcp__acp__Read"}, "mcp__acp__Read"),
        ({"tool_name": None, "kind": "execute"}, "execute"),
        ({"tool_name": None}, "unknown"),
        ({"tool_name": "rm -rf /; ü"}, "rm_-rf_"),
        ({"tool_name": "x" * 100}, "x" * 64),
    ],
)
def test_a_tool_has_the_name_the_model_used(fields: dict[str, Any], name: str) -> None:
    """With characters that all APIs accept."""
    assert chat_history([call(**fields)])[0]["tool_calls"][0]["function"]["name"] == name
    assert responses_history([call(**fields)])[0]["name"] == name
    assert anthropic_history([call(**fields)])[1]["content"][0]["name"] == name


def call_ids(history: list[dict[str, Any]]) -> list[str]:
    """Return the ids of the calls in a history of any API."""
    if any("call_id" in item for item in history):
        return [item["call_id"] for item in history if item["type"] == "function_call"]
    history = [message for message in history if "role" in message]
    block_lists = [
        message.get("tool_calls") or message["content"] for message in history if message["role"] == "assistant"
    ]
    return [block["id"] for blocks in block_lists for block in blocks if isinstance(block, dict) and "id" in block]


def test_only_invalid_or_repeated_ids_are_replaced() -> None:
    """By stable ids, in calls and results; two calls with one id stay two calls."""
    raw_ids = ["call_1", "call_1", "a#b", "x" * 41, "exec_0000000000a5", "y" * 65, ""]
    entries = [
        call(id=n, call_id=f"exec_0000000000a{n}", tool_call_id=name, raw_input={"n": n}, output=f"result {n}")
        for n, name in enumerate(raw_ids, 1)
    ]
    a = "exec_0000000000a"
    replaced = ["call_1", f"{a}2", f"{a}3", f"{a}4", f"{a}5", f"{a}6", f"{a}7"]
    assert call_ids(chat_history(entries)) == replaced
    assert call_ids(anthropic_history(entries)) == [*replaced[:3], "x" * 41, *replaced[4:]]
    assert call_ids(responses_history(entries)) == [*replaced[:3], "x" * 41, *replaced[4:]]
    result_ids = [item["call_id"] for item in responses_history(entries) if item["type"] == "function_call_output"]
    assert result_ids == call_ids(responses_history(entries))
    assert not find_problems(entries)
    repeated_ids = [call(id=1, tool_call_id="exec_0123456789ab"), call(id=2, tool_call_id="exec_0123456789ab")]
    assert call_ids(chat_history(repeated_ids)) == ["exec_0123456789ab", "exec_0123456789ab_2"]


@pytest.mark.parametrize("format", list(APIS))
def test_each_result_has_the_id_of_its_call(format: str) -> None:
    """Also if ids were replaced."""
    raw_ids = ["same", "same", "a#b", "same", "z" * 70]
    entries = [
        call(id=n, end=99, call_id=f"exec_{n:012x}", tool_call_id=name, raw_input={"n": n}, output=f"result {n}")
        for n, name in enumerate(raw_ids, 1)
    ]
    calls = list_calls(decode_messages(format, registry.encoder(format)(entries)))
    assert [(entry.raw_input, entry.output) for entry in calls] == [({"n": n}, f"result {n}") for n in range(1, 6)]


def summarize(history: list[dict[str, Any]]) -> list[str]:
    """Return the first letter of the role of each message, with its number of calls."""
    return [message["role"][0] + str(len(message.get("tool_calls", [])) or "") for message in history]


def test_calls_of_a_round_and_the_text_before_are_one_message() -> None:
    """Rounds are distinguished by their number, for any entries between them."""
    events: Sequence[Event] = [
        ev.TurnStarted(),
        ev.MessageUser(text="Go."),
        ev.MessageDelta(text="Let me.", chunks="delta"),
        ev.CallProposed(aliases=(Alias("t", "1"),), tool_name="ls", iteration=0),
        ev.CallCompleted(aliases=(Alias("t", "1"),), output="one"),
        ev.MessageDelta(text="And this.", chunks="delta"),
        ev.CallProposed(aliases=(Alias("t", "2"),), tool_name="ls", iteration=0),
        ev.CallProposed(aliases=(Alias("t", "3"),), tool_name="ls", iteration=1),
        ev.MessageDelta(text="Done.", chunks="delta"),
    ]
    history = chat_history(write_script(events).state)
    assert summarize(history) == ["u", "a2", "t", "t", "a1", "t", "a"]
    assert history[1]["content"] == "Let me.\n\nAnd this."
    items = responses_history(write_script(events).state)
    keys = {"message": "content", "function_call": "call_id", "function_call_output": "call_id"}
    assert [(item["type"], item[keys[item["type"]]]) for item in items] == [
        ("message", "Go."),
        ("message", "Let me.\n\nAnd this."),
        ("function_call", "1"),
        ("function_call", "2"),
        ("function_call_output", "1"),
        ("function_call_output", "2"),
        ("function_call", "3"),
        ("function_call_output", "3"),
        ("message", "Done."),
    ]
    assert [item["role"] for item in items if item["type"] == "message"] == ["user", "assistant", "assistant"]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (["1", "2", "1.", "2."], ["a2", "t", "t"]),
        (["1", "1.", "2", "2."], ["a1", "t", "a1", "t"]),
        (["1", "text", "2"], ["a1", "t", "a1", "t"]),
        (["1", "user", "2"], ["a1", "t", "u", "a1", "t"]),
        (["1", "thought", "2"], ["a2", "t", "t"]),
        (["1", "turn", "2"], ["a1", "t", "a1", "t"]),
    ],
)
def test_adjacent_calls_without_round_numbers_are_one_message(order: list[str], expected: list[str]) -> None:
    """Unless one ended before the next started, or a text is between them."""
    kinds: dict[str, Event] = {
        "text": ev.MessageDelta(text="Now.", chunks="delta"),
        "thought": ev.ThoughtDelta(text="Hm.", chunks="delta"),
        "user": ev.MessageUser(text="And?"),
        "turn": ev.TurnStarted(),
        **{name: ev.CallProposed(aliases=(Alias("t", name),), tool_name="ls") for name in "12"},
        **{f"{name}.": ev.CallCompleted(aliases=(Alias("t", name),), output="x") for name in "12"},
    }
    assert summarize(chat_history(write_script([kinds[name] for name in order]).state)) == expected


def count_function_calls(entries: list[Any]) -> int:
    """Return how many function calls it takes to encode a history."""
    count = 0

    def count_call(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(count_call)
    try:
        chat_history(entries)
    finally:
        sys.setprofile(None)
    return count


def test_encoding_time_grows_linearly_with_the_history() -> None:
    """C12: overlapping calls are one long round."""

    def overlapping_calls(length: int) -> list[Any]:
        return [call(id=10 * n, end=10 * n + 15, call_id=f"exec_{n:012x}", tool_call_id=f"c{n}") for n in range(length)]

    assert count_function_calls(overlapping_calls(400)) < 5 * count_function_calls(overlapping_calls(100))


def test_anthropic_histories_begin_with_the_user_and_results_lead() -> None:
    """A user text after a call follows its result, in one message."""
    entries = [call(), Message(id=5, role="user", content="Go on."), Message(id=6, role="user", content="Now!")]
    first, _, last = anthropic_history(entries)
    assert first["role"] == "user" and first["content"][0]["text"]
    assert [block["type"] for block in last["content"]] == ["tool_result", "text", "text"]


def test_entries_that_are_not_for_models_are_left_out() -> None:
    """Thoughts, blank texts, plans and modes; attachments of the user are named."""
    events: Sequence[Event] = [
        ev.MessageUser(text="", content=[{"type": "image", "mimeType": "image/png", "data": "AA=="}]),
        ev.ThoughtDelta(text="Hm.", chunks="delta"),
        ev.MessageDelta(text=" \n", chunks="delta"),
        ev.PlanUpdated(entries=[{"content": "a"}]),
        ev.SessionMode(mode="ask"),
        ev.MessageUser(text="Read.", content=[{"type": "resource", "resource": {"uri": "file:///a", "text": "A"}}]),
    ]
    texts = ["[image: image/png]", "Read.\n[resource: file:///a]\nA"]
    assert [message["content"] for message in chat_history(write_script(events).state)] == texts
    assert [item["content"] for item in responses_history(write_script(events).state)] == texts


def test_an_empty_session_gives_an_empty_history() -> None:
    """No message is added."""
    empty = Snapshot("s", 0, SessionFold("s").info, [])
    assert [history(empty) for history in HISTORIES] == [[], [], []]


# Decode our own histories


def join_texts(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return Anthropic messages with all texts of a message joined."""
    messages = copy.deepcopy(history)
    for message in messages:
        texts = [block["text"] for block in message["content"] if block["type"] == "text"]
        others = [block for block in message["content"] if block["type"] != "text"]
        message["content"] = ["\n".join(texts), *others]
    return messages


def decode_history(format: str, history: list[dict[str, Any]], *, as_request: bool) -> MemoryLedger:
    """Decode a history as the body of a request, or message by message."""
    body = {"model": "m", "input" if format == "responses" else "messages": history}
    return decode_messages(format, [body] if as_request else history)


@given(scripts(), st.booleans())
def test_decoding_a_history_gives_the_same_history(script: list[Event], as_request: bool) -> None:
    """Every call occurs once, with its arguments and its result."""
    state = write_script(script, redact=False).state
    openai, responses, anthropic = (history(state) for history in HISTORIES)
    assert chat_history(decode_history("openai", openai, as_request=as_request).state) == openai
    assert responses_history(decode_history("responses", responses, as_request=as_request).state) == responses
    decoded = anthropic_history(decode_history("anthropic", anthropic, as_request=as_request).state)
    assert join_texts(decoded) == join_texts(anthropic)


@pytest.mark.parametrize("name", scenarios.NAMES)
@pytest.mark.parametrize("format", list(APIS))
def test_decoding_a_history_restores_the_calls(format: str, name: str) -> None:
    """In order, with tool and arguments, and each has ended."""
    *_, state = fold_states(scenarios.load_events(name))
    calls = [entry for entry in state.snapshot().entries if isinstance(entry, ToolCall)]
    history = registry.encoder(format)(state)
    decoded_calls = list_calls(decode_history(format, history, as_request=True))
    assert len(decoded_calls) == len(calls)
    assert [entry.tool_call_id for entry in decoded_calls] == call_ids(history)
    failed = [entry.status != "completed" and entry.scope != "detached" for entry in calls]
    assert [entry.status == "failed" for entry in decoded_calls] == (
        failed if format == "anthropic" else [False] * len(decoded_calls)
    )
