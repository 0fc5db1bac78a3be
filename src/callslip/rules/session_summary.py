"""Summarize a session for lists: who ran it and where, its state, what it used. Pure.

A summary is derived from the log, event by event. It has its own place in the log (`seq`), apart from checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import UNSET

from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Event
from callslip.model.records import record_text
from callslip.model.summaries import SessionSummary, UsageRecord, UsageTotals

VERSION = 3
"""Increased whenever the same events give another summary. Summaries of another version are derived again."""
MAX_PROMPT_CHARS = 200
MAX_TEXT_CHARS = 500
COST_DIGITS = 9
"""To how many digits sums of costs are rounded, so that they are the same in any order."""
_INFO_FIELDS = ("agent", "agent_version", "model", "project", "branch", "foreign_id", "continues")
_FAILED = (ev.CallFailed, ev.CallExpired, ev.CallLost)

parse_summary: Callable[[bytes], SessionSummary] = codec.stored_decoder(SessionSummary, "a summary")
encode_summary = msgspec.json.encode


def add_event(summary: SessionSummary, event: Event) -> UsageRecord | None:
    """Add an event to a summary. Return its usage, which is added once the earlier report of the response is known."""
    summary.seq = event.seq
    if event.at:
        summary.started_at = min(summary.started_at or event.at, event.at)
        # A label or a title that a person sets long after the agent's work is no activity.
        if not (isinstance(event, ev.SessionInfo) and summary.active_at):
            summary.active_at = max(summary.active_at, event.at)
    if event.verdict != "applied":
        return None
    if isinstance(event, ev.UsageReported):
        if event.model and not event.parent:
            summary.model = shorten(event.model)
        return _usage_record(event, summary.turn or summary.last_turn)
    if isinstance(event, ev.CallEvent):
        summary.failed += _is_failure(event)
    elif isinstance(event, ev.TurnStarted):
        summary.turn, summary.last_turn, summary.ended = event.turn, "", False
    elif isinstance(event, ev.TurnEnded):
        summary.turn, summary.last_turn = "", summary.turn
    elif isinstance(event, ev.MessageUser):
        if not summary.prompt and not event.parent:
            summary.prompt = first_line(event.text)
    elif isinstance(event, ev.SessionInfo):
        for field in _INFO_FIELDS:
            if (value := getattr(event, field)) is not UNSET:
                setattr(summary, field, shorten(value))
        if event.ended is not UNSET:
            summary.ended = event.ended
    elif isinstance(event, ev.SessionCapabilities):
        summary.model = shorten(event.current_model) or summary.model
    return None


def _is_failure(event: ev.CallEvent) -> bool:
    """Return whether a call did not succeed. A report about a call is applied only if the call has completed."""
    if isinstance(event, ev.CallReported):
        return event.exit_status not in (UNSET, None, 0)
    return isinstance(event, _FAILED)


def add_usage(summary: SessionSummary, usage: UsageRecord, earlier: UsageRecord | None) -> None:
    """Add the usage of a response to a summary, in place of an earlier report of it."""
    if earlier is not None:
        add_to_totals(summary.turn_usage if earlier.of_turn else summary.usage, earlier, -1)
    add_to_totals(summary.turn_usage if usage.of_turn else summary.usage, usage)


def add_to_totals(totals: UsageTotals, usage: UsageRecord, sign: int = 1) -> None:
    """Add the usage of a response to totals, or with the sign -1 remove it."""
    totals.responses += sign * (usage.input_tokens + usage.output_tokens > 0)
    totals.input_tokens += sign * usage.input_tokens
    totals.output_tokens += sign * usage.output_tokens
    totals.cached_tokens += sign * usage.cached_tokens
    totals.cache_write_tokens += sign * usage.cache_write_tokens
    totals.reasoning_tokens += sign * usage.reasoning_tokens
    totals.incomplete += sign * usage.incomplete
    if usage.cost is not None:
        cost = totals.costs.get(usage.currency, 0.0) + sign * usage.cost
        totals.costs = {**totals.costs, usage.currency: round(cost, COST_DIGITS)}


def shorten(text: str | None) -> str:
    """Return a text as the columns of summaries have it: an index of PostgreSQL holds no long texts."""
    return record_text((text or "")[:MAX_TEXT_CHARS])


def first_line(text: str) -> str:
    """Return the first line of a text that is not empty, shortened."""
    line = next((line for line in text[: 10 * MAX_PROMPT_CHARS].splitlines() if line.strip()), "")
    return record_text(" ".join(line.split())[:MAX_PROMPT_CHARS])


def _usage_record(event: ev.UsageReported, turn: str) -> UsageRecord:
    return UsageRecord(
        id=event.id or f"#{event.seq}",
        seq=event.seq,
        at=event.at,
        turn=turn,
        parent=event.parent,
        model=shorten(event.model),
        input_tokens=event.input_tokens,
        output_tokens=event.output_tokens,
        cached_tokens=event.cached_tokens,
        cache_write_tokens=event.cache_write_tokens,
        reasoning_tokens=event.reasoning_tokens,
        cost=event.cost,
        currency=shorten(event.currency),
        incomplete=event.incomplete,
        of_turn=event.of_turn,
    )
