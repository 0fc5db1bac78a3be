"""Tools to list, read, wait for and cancel calls. None of them answers a request for approval."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from mcp_types import CallToolResult
from msgspec import Meta

from callslip.api import cancel, find
from callslip.api.ledger import LocalLedger
from callslip.api.status import get_approval
from callslip.http.calls import wait_ended
from callslip.ledger.call_entry import call_entry
from callslip.mcp.results import Json, plain_json, tool_result
from callslip.mcp.task_wire import SOURCE
from callslip.mcp.tool import ToolRequest, ToolSpec, check_wait, describe_call
from callslip.model.receipts import call_receipt
from callslip.model.records import CallRecord
from callslip.model.views import call_view
from callslip.rules.lifecycle import TERMINAL_STATES

State = Literal[
    "queued", "awaiting_approval", "running", "completed", "failed", "denied", "cancelled", "expired", "lost"
]
assert set(get_args(State)) == set(find.CALL_STATES)

MAX_PAGE = 100
Call = Annotated[str, Meta(min_length=1, description="Its id (exec_...), or the id that its agent gave it.")]
Session = Annotated[str, Meta(description="Search in this session only.")]


class ListCalls(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `list_calls`."""

    session: Annotated[str, Meta(description="Only calls of this session.")] = ""
    states: Annotated[list[State], Meta(max_length=9, description="Only calls in one of these states.")] = []
    tool: Annotated[str, Meta(description="Only calls of the tool with exactly this name.")] = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE, description="The maximum number of calls.")] = 20
    cursor: Annotated[str, Meta(description="The `cursor` of the previous page.")] = ""


class ReadCall(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `read_call`."""

    call: Call
    session: Session = ""


class WaitForCall(ReadCall):
    """The arguments of `wait_for_call`."""

    wait: Annotated[float, Meta(ge=0, description="The maximum time to wait, in seconds (at most 60).")] = 30


class CancelCall(ReadCall):
    """The arguments of `cancel_call`."""

    reason: Annotated[str, Meta(max_length=2000, description="Why; readers of the call see it.")] = ""


async def list_calls(request: ToolRequest, arguments: ListCalls) -> CallToolResult:
    await request.request_context.admit(None, "read")
    if arguments.session:
        await request.request_context.session(arguments.session, "read")
    page = await find.list_calls(request.ledger.log, **msgspec.structs.asdict(arguments), access=request.access)
    calls = [await _call_json(request.ledger, record) for record in page.items]
    return tool_result({"calls": calls, "cursor": page.cursor})


async def _call_json(ledger: LocalLedger, record: CallRecord) -> Json:
    """Return a call, with the place where its pending request for approval must be answered if that is not here."""
    approval = await get_approval(ledger.log, record.approval) if record.approval else None
    place: Json = {"answerAt": approval.answer_at} if approval is not None and approval.answer_at else {}
    return {**plain_json(call_view(record)), **place}


async def call_detail(ledger: LocalLedger, record: CallRecord) -> Json:
    """Return a call with its entry: arguments, progress, output."""
    return {
        **await _call_json(ledger, record),
        "final": record.state in TERMINAL_STATES,
        "toolCall": await call_entry(ledger.log, record),
    }


async def read_call(request: ToolRequest, arguments: ReadCall) -> CallToolResult:
    return tool_result(await call_detail(request.ledger, await _find(request, arguments)))


async def wait_for_call(request: ToolRequest, arguments: WaitForCall) -> CallToolResult:
    check_wait(request, arguments.wait)
    record = await _find(request, arguments)
    if record.state not in TERMINAL_STATES and arguments.wait:
        waiting = wait_ended(request.request_context, record, arguments.wait)
        call = record.id
        record = await request.wait_with_progress(waiting, arguments.wait, lambda: describe_call(request.ledger, call))
        await request.request_context.session(record.session, "read")  # The rights may have ended meanwhile.
    return tool_result(await call_detail(request.ledger, record))


async def _find(request: ToolRequest, arguments: ReadCall) -> CallRecord:
    return await find.find_call(request.ledger.log, arguments.call, session=arguments.session, access=request.access)


async def cancel_call(request: ToolRequest, arguments: CancelCall) -> CallToolResult:
    record = await cancel.cancel_call(
        request.ledger.log,
        arguments.call,
        reason=arguments.reason,
        session=arguments.session,
        source=SOURCE,
        access=request.access,
    )
    view = call_view(record)
    view = view if await request.access.may(record.session, "read") else call_receipt(view)
    return tool_result({**plain_json(view), "final": True})


CALL: Json = {
    "type": "object",
    "properties": {
        "call": {"type": "string", "description": "Its execution id."},
        "session": {"type": "string"},
        "state": {"type": "string", "enum": list(find.CALL_STATES)},
        "toolName": {"type": "string"},
        "answerAt": {"type": "string", "description": "Where the person approves it, if not in Callslip."},
        "reason": {"type": "string", "description": "Why it ended this way, if it did not complete."},
        "final": {"type": "boolean", "description": "The call has ended and will not change."},
        "toolCall": {"type": "object", "description": "rawInput, output, progress, error and more, if known."},
    },
    "required": ["call", "session", "state"],
}

TOOLS = (
    ToolSpec(
        name="list_calls",
        title="List tool calls",
        description=(
            "List recorded tool calls, newest first: {calls, cursor}. Each has its id in `call`, its `session`, its "
            "`state` (queued, awaiting_approval, running, completed, failed, denied, cancelled, expired, lost), "
            "`toolName` and times in ms. Pass `cursor` to get the next page; it is empty on the last one. Use "
            "read_call for arguments and output."
        ),
        arguments=ListCalls,
        run=list_calls,
        output_schema={
            "type": "object",
            "properties": {"calls": {"type": "array", "items": CALL}, "cursor": {"type": "string"}},
            "required": ["calls", "cursor"],
        },
    ),
    ToolSpec(
        name="read_call",
        title="Read a tool call",
        description=(
            "Read one recorded tool call: its current state, and in `toolCall` its arguments (rawInput), progress and "
            "output. If `final` is true, it has ended and will not change."
        ),
        arguments=ReadCall,
        run=read_call,
        output_schema=CALL,
    ),
    ToolSpec(
        name="wait_for_call",
        title="Wait for a tool call",
        description=(
            "Wait until a tool call has ended and read it, or read its current state after `wait` seconds. The end of "
            "the wait does not stop the call. A call in awaiting_approval waits for the decision of a person, which "
            "is made outside of MCP."
        ),
        arguments=WaitForCall,
        run=wait_for_call,
        output_schema=CALL,
    ),
    ToolSpec(
        name="cancel_call",
        title="Cancel a tool call",
        description=(
            "Stop a call that has not ended. Cancelling it again changes nothing; a call that has ended otherwise "
            "stays as it is, and this is an error."
        ),
        arguments=CancelCall,
        run=cancel_call,
        output_schema=CALL,
        read_only=False,
        destructive=True,
    ),
)
