"""Make the spans of a session: one for every ended call, and one for every ended turn around its calls.

Ids are digests of the names of session, turn and call, so that a span that is exported twice has the same id.
Arguments, results and errors may be private: they are included only on request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from callslip.formats.base import Source, snapshot_of
from callslip.formats.providers.results import arguments_of, result_of
from callslip.model import codec
from callslip.model.entries import Entry, ToolCall
from callslip.model.ids import CALL
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import TERMINAL_STATES

Attributes: TypeAlias = dict[str, str | int]

NS_PER_MS = 10**6
MAX_TIME_NS = 2**63 - 1
UNNAMED = "unknown"
TURN_OPERATION, CALL_OPERATION = "invoke_agent", "execute_tool"


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A span. Ids are hex, times are nanoseconds since the epoch, `parent` is "" for none."""

    name: str
    trace: str
    span: str
    parent: str = ""
    start: int
    end: int
    attributes: Attributes
    failed: bool = False
    message: str = ""


def spans_of(source: Source, *, content: bool = False) -> list[Span]:
    """Return the spans of a session, each turn before its calls. With `content`, with arguments and results.

    Plain entries do not tell which turn is open: they count as complete.
    """
    snapshot = snapshot_of(source)
    session, info = snapshot.session, snapshot.info
    spans: list[Span] = []
    for turn, group in _turns(snapshot.entries).items():
        calls = [entry for entry in group if isinstance(entry, ToolCall)]
        # A turn does not wait for detached calls.
        is_over = all(call.status in TERMINAL_STATES or call.scope == "detached" for call in calls)
        if turn and turn != info.turn and is_over:
            spans.append(_turn_span(session, turn, group))
        spans += [_call_span(session, call, content) for call in calls if call.status in TERMINAL_STATES]
    return spans


def _turns(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the entries of each turn; under "" those outside of turns."""
    turns: dict[str, list[Entry]] = {}
    for entry in entries:
        turns.setdefault(entry.turn, []).append(entry)
    return turns


def _turn_span(session: str, turn: str, entries: list[Entry]) -> Span:
    """Return a span from the first to the last known time of a turn."""
    calls = [entry for entry in entries if isinstance(entry, ToolCall) and entry.scope != "detached"]
    times = [time for call in calls for time in (call.started_at, call.ended_at)]
    times = [time for time in (*(entry.at for entry in entries), *times) if time] or [0]
    return Span(
        name=TURN_OPERATION,
        trace=_trace(session, turn, ""),
        span=_identity(session, "turn", turn),
        start=_time(min(times)),
        end=_time(max(times)),
        attributes=_drop_empty({"gen_ai.operation.name": TURN_OPERATION, "gen_ai.conversation.id": session}),
    )


def _call_span(session: str, call: ToolCall, content: bool) -> Span:
    start = _time(call.started_at or call.at)
    failed = STATE_NAMES[call.status].error
    result = result_of(call).text if content else ""
    arguments = arguments_of(call) if content else ""
    return Span(
        name=f"{CALL_OPERATION} {_tool(call)}",
        trace=_trace(session, call.turn, call.parent if CALL.match(call.parent) else call.call_id),
        span=_identity(session, "call", call.call_id),
        parent=_parent(session, call),
        start=start,
        end=max(start, _time(call.ended_at)),
        attributes=_drop_empty(
            {
                **_about(session, call, failed),
                "gen_ai.tool.call.arguments": arguments,
                "gen_ai.tool.call.result": result,
            }
        ),
        failed=failed,
        message=result if failed else "",
    )


def _parent(session: str, call: ToolCall) -> str:
    """Return the span around a call: the call whose sub-agent made it, else the turn."""
    if CALL.match(call.parent):
        return _identity(session, "call", call.parent)
    return _identity(session, "turn", call.turn) if call.turn else ""


def _about(session: str, call: ToolCall, failed: bool) -> Attributes:
    return {
        "gen_ai.operation.name": CALL_OPERATION,
        "gen_ai.tool.name": _tool(call),
        "gen_ai.tool.call.id": call.tool_call_id,
        "gen_ai.conversation.id": session,
        "error.type": call.status if failed else "",
        "callslip.call.id": call.call_id,
        "callslip.call.state": call.status,
        "callslip.call.output.size": call.blob.size if call.blob else 0,
    }


def _drop_empty(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value not in ("", 0)}


def _tool(call: ToolCall) -> str:
    return call.tool_name or call.kind or UNNAMED


def _time(ms: int) -> int:
    """Return a time in nanoseconds, within the range of the protocol."""
    return max(0, min(ms * NS_PER_MS, MAX_TIME_NS))


def _trace(session: str, turn: str, call: str) -> str:
    """Return the trace id: a turn is a trace, and so is a call outside of turns."""
    return codec.digest(codec.encode(["turn", session, turn] if turn else ["call", session, call]))


def _identity(session: str, kind: str, name: str) -> str:
    return codec.digest(codec.encode([session, kind, name]))[:16]
