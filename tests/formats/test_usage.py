"""The tokens of a response are read from every format that states them."""

from __future__ import annotations

from typing import Any

import pytest

from callslip.formats import registry
from callslip.formats.usage import read_usage
from callslip.model.events import MAX_TOKENS, Event, UsageReported
from tests.support.acp_session import AcpHarness, a2c, c2a, prompt, rpc_response, update


def report(usage: Any, **options: Any) -> UsageReported:
    (event,) = read_usage(usage, **options)
    assert isinstance(event, UsageReported)
    return event


def counts(event: Event) -> tuple[int, ...]:
    """Return the tokens of input, output, cache, writes to the cache, and reasoning."""
    assert isinstance(event, UsageReported)
    cache = (event.cached_tokens, event.cache_write_tokens)
    return (event.input_tokens, event.output_tokens, *cache, event.reasoning_tokens)


def reports(format: str, *messages: Any) -> list[UsageReported]:
    """Return the reports in the messages of a conversation, which then breaks off."""
    decoder = registry.decoder(format)
    drafts = [draft for message in messages for draft in decoder.feed(message)] + decoder.close("eof")
    return [draft.event for draft in drafts if isinstance(draft.event, UsageReported)]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}
            | {"completion_tokens_details": {"reasoning_tokens": 3}},
            (9, 4, 5, 0, 3),
        ),
        (
            {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 5}, "output_tokens": 4}
            | {"output_tokens_details": {"reasoning_tokens": 3}},
            (9, 4, 5, 0, 3),
        ),
        (
            {"input_tokens": 9, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2, "output_tokens": 4},
            (16, 4, 5, 2, 0),
        ),
        ({"inputTokens": 9, "outputTokens": 4, "cachedInputTokens": 5, "reasoningTokens": 3}, (9, 4, 5, 0, 3)),
        ({"inputTokens": 9, "inputTokenDetails": {"cacheReadTokens": 5, "cacheWriteTokens": 2}}, (9, 0, 5, 2, 0)),
        (
            {"inputTokens": 9, "outputTokens": 4, "cachedReadTokens": 5, "cachedWriteTokens": 2, "totalTokens": 20},
            (16, 4, 5, 2, 0),
        ),
        (
            {"inputTokens": 9, "outputTokens": 4, "cachedReadTokens": 5, "thoughtTokens": 1, "totalTokens": 13},
            (9, 4, 5, 0, 1),
        ),
        ({"promptTokens": 9.0, "completionTokens": None}, (9, 0, 0, 0, 0)),
    ],
)
def test_each_api_counts_in_its_own_way(usage: dict[str, Any], expected: tuple[int, ...]) -> None:
    """USE4: the input includes what was read from and written to the cache, in whichever way an API states it."""
    assert counts(report(usage)) == expected


@pytest.mark.parametrize(
    "usage", [None, [], "7", {}, {"input_tokens": "7"}, {"input_tokens": -1}, {"input_tokens": True}]
)
def test_a_value_without_tokens_is_no_report(usage: Any) -> None:
    """USE4: nothing is invented."""
    assert read_usage(usage) == []
    assert read_usage({"output_tokens": MAX_TOKENS + 1}) == []


def test_a_cost_is_read_where_it_is_stated() -> None:
    """USE4: a number, or an amount with a currency; nothing else."""
    costs = (0.25, {"amount": 2, "currency": "EUR"}, -1, float("inf"), "1", True, {"amount": "x"})
    found = [report({"input_tokens": 1, "cost": cost}) for cost in costs]
    assert [(event.cost, event.currency) for event in found[:2]] == [(0.25, ""), (2.0, "EUR")]
    assert {event.cost for event in found[2:]} == {None}


def test_a_stream_of_chat_completions_reports_its_usage_once() -> None:
    """USE4: in the last chunk, or in several, with the id of the response and its model."""
    first = {"id": "r1", "model": "m", "choices": [{"index": 0, "delta": {"content": "Hi"}}]}
    usage = {"prompt_tokens": 9, "completion_tokens": 1}
    end = {"id": "r1", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage}
    last = {"id": "r1", "model": "m", "choices": [], "usage": {**usage, "completion_tokens": 4}}
    found = reports("openai", first, end, last)
    assert [(event.id, event.model, counts(event)[:2], event.incomplete) for event in found] == [
        ("r1", "m", (9, 1), False),
        ("r1", "m", (9, 4), False),
    ]
    assert [event.id for event in reports("openai", first, end, first, end)] == ["r1", ""]


def test_a_response_of_the_messages_api_that_breaks_off_is_marked() -> None:
    """USE4: its input is known from the start, its output only in part."""
    start = {
        "type": "message_start",
        "message": {"id": "r1", "model": "m", "usage": {"input_tokens": 9, "output_tokens": 1}},
    }
    text = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hi"}}
    (event,) = reports("anthropic", start, text)
    assert (event.id, event.model, counts(event)[:2], event.incomplete) == ("r1", "m", (9, 1), True)
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}}
    (event,) = reports("anthropic", start, text, delta, {"type": "message_stop"})
    assert (counts(event)[:2], event.incomplete) == ((9, 4), False)


def test_a_response_of_the_responses_api_reports_its_usage() -> None:
    """USE4: with its id and its model."""
    usage = {"input_tokens": 9, "output_tokens": 4}
    response = {"id": "r1", "model": "m", "status": "completed", "output": [], "usage": usage}
    (event,) = reports("responses", {"type": "response.completed", "response": response})
    assert (event.id, event.model, counts(event)[:2], event.of_turn) == ("r1", "m", (9, 4), False)


@pytest.mark.parametrize("format", ["ui-v5", "ui-v6", "ui-v7"])
def test_metadata_of_the_ai_sdk_is_the_usage_of_a_turn(format: str) -> None:
    """USE4: in a stream and in a stored message, under the id of the message."""
    metadata = {"model": "m", "totalUsage": {"inputTokens": 9, "outputTokens": 4}}
    finish = {"type": "finish", "messageMetadata": metadata}
    (event,) = reports(format, {"type": "start", "messageId": "a1"}, {"type": "text-start", "id": "t"}, finish)
    stored = {"id": "a1", "role": "assistant", "parts": [{"type": "text", "text": "Hi"}], "metadata": metadata}
    assert reports(format, stored) == [event]
    assert (event.id, event.model, counts(event)[:2], event.of_turn) == ("a1", "m", (9, 4), True)


def test_a_run_of_ag_ui_reports_the_usage_of_a_turn() -> None:
    """USE4: under the id of the run."""
    run = {"threadId": "t", "runId": "r1"}
    usage = {"inputTokens": 9, "outputTokens": 4}
    (event,) = reports("ag-ui", {"type": "RUN_STARTED", **run}, {"type": "RUN_FINISHED", **run, "usage": usage})
    assert (event.id, counts(event)[:2], event.of_turn) == ("r1", (9, 4), True)


def test_acp_reports_the_tokens_of_a_turn_and_the_cost_of_the_session() -> None:
    """USE4: the answer to a prompt has the tokens, an update what the session has cost so far."""
    usage = {"inputTokens": 9, "outputTokens": 4, "totalTokens": 13}
    cost = update("usage_update", used=9, size=100, cost={"amount": 0.5, "currency": "USD"})
    harness = AcpHarness().feed(prompt(), cost, a2c(rpc_response(1, stopReason="end_turn", usage=usage)))
    session, turn = (event for event in harness.ledger.log if isinstance(event, UsageReported))
    assert (session.cost, session.currency, session.of_turn) == (0.5, "USD", True)
    assert (turn.id, counts(turn)[:2], turn.of_turn) == ("", (9, 4), True)


def test_acp_names_the_agent_and_the_folder_of_a_session() -> None:
    """LIST5: from the answer to `initialize` and the request of the session; a resumed session repeats nothing."""
    info = {"name": "claude", "title": "Claude Code", "version": "2.1"}
    opened = {"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {"cwd": "/home/ann/shop"}}
    harness = AcpHarness().feed(
        c2a({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}),
        a2c({"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 1, "agentInfo": info}}),
        c2a(opened),
        a2c({"jsonrpc": "2.0", "id": 2, "result": {"sessionId": "s1"}}),
        c2a({**opened, "id": 3, "method": "session/resume"}),
        a2c({"jsonrpc": "2.0", "id": 3, "result": {"sessionId": "s1"}}),
    )
    state = harness.ledger.state.info
    assert (state.agent, state.agent_version, state.project) == ("Claude Code", "2.1", "/home/ann/shop")
    assert sum(getattr(event, "project", None) == "/home/ann/shop" for event in harness.ledger.log) == 1
