"""Tools to look at the calls of sessions, to wait for one and to stop one. None of them answers an approval."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from mcp_types import CallToolResult
from msgspec import Meta

from callslip.api.cancel import cancel_call as cancel
from callslip.api.find import find_call
from callslip.api.find import list_calls as list_records
from callslip.http.calls import STATES, wait_ended
from callslip.http.request import RequestAccess, RequestContext
from callslip.ledger.call_entry import call_entry
from callslip.mcp.results import Json, plain_json, tool_result
from callslip.mcp.task_wire import SOURCE
from callslip.mcp.tool import ToolRequest, ToolSpec, check_wait, standing
from callslip.model.records import CallRecord
from callslip.model.views import call_view
from callslip.rules.lifecycle import TERMINAL_STATES

State = Literal[
    "queued", "awaiting_approval", "running", "completed", "failed", "denied", "cancelled", "expired", "lost"
]
assert set(get_args(State)) == set(STATES)

MAX_PAGE = 100
Call = Annotated[str, Meta(min_length=1, description="Its id (exec_...), or the id that its agent gave it.")]
Session = Annotated[str, Meta(description="Look in this session only.")]


class ListCalls(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `list_calls`."""

    session: Annotated[str, Meta(description="Calls of this session only.")] = ""
    states: Annotated[list[State], Meta(max_length=9, description="In one of these states only.")] = []
    tool: Annotated[str, Meta(description="Of the tool with this whole name only.")] = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE, description="How many at most.")] = 20
    cursor: Annotated[str, Meta(description="The `cursor` of the page before.")] = ""


class ReadCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `read_call`."""

    call: Call
    session: Session = ""


class WaitForCall(ReadCall):
    """The arguments of `wait_for_call`."""

    wait: Annotated[float, Meta(ge=0, description="Seconds to wait at most (60 is the most).")] = 30


class CancelCall(ReadCall):
    """The arguments of `cancel_call`."""

    reason: Annotated[str, Meta(max_length=2000, description="Why; whoever waits for the call reads it.")] = ""


# The list


async def list_calls(asked: ToolRequest, given: ListCalls) -> CallToolResult:
    await asked.visit.admit(None, "read")
    if given.session:
        await asked.visit.session(given.session, "read")
    page = await list_records(
        asked.ledger.log,
        session=given.session,
        states=given.states,
        tool=given.tool,
        limit=given.limit,
        cursor=given.cursor,
        access=RequestAccess(asked.visit),
    )
    return tool_result({"calls": [plain_json(call_view(row)) for row in page.items], "cursor": page.cursor})


# One call


async def shown(visit: RequestContext, row: CallRecord) -> Json:
    """A call with its entry: arguments, progress, output."""
    return {
        **plain_json(call_view(row)),
        "final": row.state in TERMINAL_STATES,
        "toolCall": await call_entry(visit.ledger.log, row),
    }


async def read_call(asked: ToolRequest, given: ReadCall) -> CallToolResult:
    row = await find_call(asked.ledger.log, given.call, session=given.session, access=RequestAccess(asked.visit))
    return tool_result(await shown(asked.visit, row))


async def wait_for_call(asked: ToolRequest, given: WaitForCall) -> CallToolResult:
    check_wait(asked, given.wait)
    row = await find_call(asked.ledger.log, given.call, session=given.session, access=RequestAccess(asked.visit))
    if row.state not in TERMINAL_STATES and given.wait:
        ending = wait_ended(asked.visit, row, given.wait)
        row = await asked.waiting(ending, given.wait, lambda: standing(asked.ledger, row))
    return tool_result(await shown(asked.visit, row))


async def cancel_call(asked: ToolRequest, given: CancelCall) -> CallToolResult:
    """A call that was cancelled already stays so; one that has ended otherwise is a conflict."""
    row = await cancel(
        asked.ledger.log,
        given.call,
        reason=given.reason,
        session=given.session,
        source=SOURCE,
        access=RequestAccess(asked.visit),
    )
    return tool_result({**plain_json(call_view(row)), "final": True})


CALL: Json = {
    "type": "object",
    "properties": {
        "call": {"type": "string", "description": "Its execution id."},
        "session": {"type": "string"},
        "state": {"type": "string", "enum": list(STATES)},
        "toolName": {"type": "string"},
        "reason": {"type": "string", "description": "Why it ended so, if it did not complete."},
        "final": {"type": "boolean", "description": "Nothing will change any more."},
        "toolCall": {"type": "object", "description": "rawInput, output, progress, error and more, as far as known."},
    },
    "required": ["call", "session", "state"],
}

TOOLS = (
    ToolSpec(
        name="list_calls",
        title="List tool calls",
        about=(
            "List recorded tool calls, newest first: {calls, cursor}. Each has its id in `call`, its `session`, its "
            "`state` (queued, awaiting_approval, running, completed, failed, denied, cancelled, expired, lost), "
            "`toolName` and times in ms. Pass `cursor` on for more; it is empty at the end. Use read_call for "
            "arguments and output."
        ),
        arguments=ListCalls,
        run=list_calls,
        answers={
            "type": "object",
            "properties": {"calls": {"type": "array", "items": CALL}, "cursor": {"type": "string"}},
            "required": ["calls", "cursor"],
        },
    ),
    ToolSpec(
        name="read_call",
        title="Read a tool call",
        about=(
            "Read one recorded tool call as it stands: its state, and in `toolCall` its arguments (rawInput), progress "
            "and output. `final` says whether anything can still change."
        ),
        arguments=ReadCall,
        run=read_call,
        answers=CALL,
    ),
    ToolSpec(
        name="wait_for_call",
        title="Wait for a tool call",
        about=(
            "Wait until a tool call has ended and read it, or read it as it stands after `wait` seconds. Giving up "
            "waiting does not stop the call. A call in awaiting_approval waits for a person, who answers elsewhere."
        ),
        arguments=WaitForCall,
        run=wait_for_call,
        answers=CALL,
    ),
    ToolSpec(
        name="cancel_call",
        title="Cancel a tool call",
        about="Stop a call that has not ended. Cancelling twice is cancelling once; what has ended otherwise stays so.",
        arguments=CancelCall,
        run=cancel_call,
        answers=CALL,
        reads=False,
        destroys=True,
    ),
)
