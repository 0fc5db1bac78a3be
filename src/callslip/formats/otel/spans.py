"""Which spans a session has: one for every call that has ended, and one around those of each turn that has.

Ids are digests of the session's, the turn's and the call's names, so that a span that is told twice is the same span.
Arguments, results and errors are what people said and did: they are told only when that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from callslip.formats.base import Source, snapshot_of
from callslip.formats.providers.results import arguments_of, result_of
from callslip.model import codec
from callslip.model.entries import Entry, ToolCall
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import TERMINAL_STATES

Attributes: TypeAlias = dict[str, str | int]

MILLISECOND = 10**6
LATEST = 2**63 - 1
UNNAMED = "unknown"
TURN, CALL = "invoke_agent", "execute_tool"


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One span. Ids are hex, times are nanoseconds since the epoch, `parent` is "" for none."""

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
    """A session's spans, turn by turn, each turn before its calls. With `content`, arguments and results too.

    Which turn is still open only a state or a snapshot knows; entries by themselves are taken for all there will be.
    """
    snapshot = snapshot_of(source)
    session, info = snapshot.session, snapshot.info
    made: list[Span] = []
    for turn, group in _turns(snapshot.entries).items():
        calls = [entry for entry in group if isinstance(entry, ToolCall)]
        if turn and turn != info.turn and all(_is_over(call) for call in calls):
            made.append(_turn_span(session, turn, group))
        made += [_call_span(session, call, content) for call in calls if call.status in TERMINAL_STATES]
    return made


def _turns(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The entries of each turn; under "" those that belong to none."""
    turns: dict[str, list[Entry]] = {}
    for entry in entries:
        turns.setdefault(entry.turn, []).append(entry)
    return turns


def _is_over(call: ToolCall) -> bool:
    """Whether a turn waits no more for a call; for a detached one it never does."""
    return call.status in TERMINAL_STATES or call.scope == "detached"


def _turn_span(session: str, turn: str, entries: list[Entry]) -> Span:
    """From the first entry of a turn to the last thing that is known to have happened in it."""
    waited = [entry for entry in entries if isinstance(entry, ToolCall) and entry.scope != "detached"]
    times = [time for call in waited for time in (call.started_at, call.ended_at)]
    times = [time for time in (*(entry.at for entry in entries), *times) if time] or [0]
    return Span(
        name=TURN,
        trace=_trace(session, turn, ""),
        span=_identity(session, "turn", turn),
        start=_time(min(times)),
        end=_time(max(times)),
        attributes=_without_blanks({"gen_ai.operation.name": TURN, "gen_ai.conversation.id": session}),
    )


def _call_span(session: str, call: ToolCall, content: bool) -> Span:
    start = _time(call.started_at or call.at)
    failed = STATE_NAMES[call.status].error
    result = result_of(call).text if content else ""
    arguments = arguments_of(call) if content else ""
    return Span(
        name=f"{CALL} {_tool(call)}",
        trace=_trace(session, call.turn, call.call_id),
        span=_identity(session, "call", call.call_id),
        parent=_identity(session, "turn", call.turn) if call.turn else "",
        start=start,
        end=max(start, _time(call.ended_at)),
        attributes=_without_blanks(
            {
                **_about(session, call, failed),
                "gen_ai.tool.call.arguments": arguments,
                "gen_ai.tool.call.result": result,
            }
        ),
        failed=failed,
        message=result if failed else "",
    )


def _about(session: str, call: ToolCall, failed: bool) -> Attributes:
    return {
        "gen_ai.operation.name": CALL,
        "gen_ai.tool.name": _tool(call),
        "gen_ai.tool.call.id": call.tool_call_id,
        "gen_ai.conversation.id": session,
        "error.type": call.status if failed else "",
        "callslip.call.id": call.call_id,
        "callslip.call.state": call.status,
        "callslip.call.output.size": call.blob.size if call.blob else 0,
    }


def _without_blanks(told: Attributes) -> Attributes:
    return {name: value for name, value in told.items() if value not in ("", 0)}


def _tool(call: ToolCall) -> str:
    return call.tool_name or call.kind or UNNAMED


def _time(ms: int) -> int:
    """A time in nanoseconds, within what the protocol can write."""
    return max(0, min(ms * MILLISECOND, LATEST))


def _trace(session: str, turn: str, call: str) -> str:
    """A turn is a trace; a call outside of turns is one by itself."""
    return codec.digest(codec.encode(["turn", session, turn] if turn else ["call", session, call]))


def _identity(session: str, kind: str, name: str) -> str:
    return codec.digest(codec.encode([session, kind, name]))[:16]
