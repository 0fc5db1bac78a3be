"""Tasks in the JSON of `io.modelcontextprotocol/tasks` (protocol 2026-07-28), made from call records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import HEADER_MISMATCH, INVALID_PARAMS, InputResponse, RequestParams
from msgspec import UNSET
from pydantic import Field, TypeAdapter, ValidationError
from starlette.requests import HTTPConnection

from callslip.api.ledger import LocalLedger
from callslip.ledger.call_entry import load_call_entry
from callslip.model.events import CallEnd
from callslip.model.records import CallRecord
from callslip.model.state_names import STATE_NAMES
from callslip.rules.call_content import output_blob, read_output
from callslip.rules.lifecycle import TERMINAL_STATES

EXTENSION = "io.modelcontextprotocol/tasks"
SOURCE = "mcp"
# Fields of a call's progress: the open input requests of its task, and responses that another process received.
INPUT_REQUESTS = "inputRequests"
INPUT_RESPONSES = "inputResponses"
INPUT_REQUIRED = STATE_NAMES["awaiting_approval"].mcp

Json = dict[str, Any]
LoadResult = Callable[[CallRecord], Awaitable[Json]]
_response: TypeAdapter[Any] = TypeAdapter(InputResponse)


class GetTask(RequestParams):
    """The parameters of `tasks/get` and `tasks/cancel`."""

    task_id: str


class UpdateTask(GetTask):
    """The parameters of `tasks/update`. Responses are parsed later, when their requests are known."""

    input_responses: dict[str, Any] = Field(default_factory=dict[str, Any])


def check_name(ctx: ServerRequestContext[Any, Any], task: str) -> None:
    """Refuse a header that names another task than the body; the SDK checks this for its own methods only."""
    request: Any = ctx.request
    headers: Mapping[str, str] = request.headers if isinstance(request, HTTPConnection) else {}
    if MCP_NAME_HEADER in headers and decode_header_value(headers[MCP_NAME_HEADER]) != task:
        raise MCPError(HEADER_MISMATCH, f"the {MCP_NAME_HEADER} header is not the taskId of the body")


def parse_responses(requests: Mapping[str, Any], responses: Mapping[str, Any]) -> Json:
    """Return the responses to open requests; refuse all of them if one has the wrong shape."""
    try:
        return {name: _response.validate_python(responses[name]) for name in requests if name in responses}
    except ValidationError:
        raise MCPError(INVALID_PARAMS, "inputResponses: a response does not have the requested shape") from None


def task_handle(record: CallRecord, task: str, poll_ms: int) -> Json:
    """Return the handle of a task, which a client gets instead of the result of the tool."""
    return {"resultType": "task", **_task(record, task, poll_ms, STATE_NAMES[record.state].mcp)}


def _task(record: CallRecord, task: str, poll_ms: int, status: str) -> Json:
    fields: Json = {
        "taskId": task,
        "status": status,
        "createdAt": _format_time(record.created_at),
        "lastUpdatedAt": _format_time(max(record.created_at, record.started_at, record.ended_at)),
        "ttlMs": record.deadline - record.created_at if record.deadline and not record.client else None,
        "pollIntervalMs": poll_ms,
    }
    if record.reason:
        fields["statusMessage"] = record.reason
    return fields


async def task_detail(
    ledger: LocalLedger, record: CallRecord, task: str, poll_ms: int, load_result: LoadResult | None
) -> Json:
    """Return a task with its open input requests, its result, or the JSON-RPC error that ended it."""
    status = STATE_NAMES[record.state].mcp
    if record.state not in TERMINAL_STATES:
        # The progress of a command is its worker's, and holds no input requests.
        requests = {} if record.client else await load_input_requests(ledger, record)
        if not requests and status != INPUT_REQUIRED:
            return _task(record, task, poll_ms, status)
        return {**_task(record, task, poll_ms, INPUT_REQUIRED), INPUT_REQUESTS: requests}
    if status == "cancelled":
        return _task(record, task, poll_ms, status)
    result = await (load_result(record) if load_result is not None else _load_result(ledger, record))
    if "content" not in result:
        return {**_task(record, task, poll_ms, "failed"), "error": result}
    return {**_task(record, task, poll_ms, status), "result": result}


async def load_input_requests(ledger: LocalLedger, record: CallRecord) -> Json:
    """Return the open input requests of a task."""
    entry = await load_call_entry(ledger.log, record)
    progress = entry.progress if entry is not None else None
    requests: Any = cast(Json, progress).get(INPUT_REQUESTS) if isinstance(progress, dict) else None
    return cast(Json, requests) if isinstance(requests, dict) else {}


async def _load_result(ledger: LocalLedger, record: CallRecord) -> Json:
    """Return the result of the tool, or a JSON-RPC error with its `code`.

    If the tool did not end the task itself, return an error of the tool with the reason.
    """
    event = await ledger.log.ending_event(record)
    assert isinstance(event, CallEnd)
    result = event.output if event.output is not UNSET else event.error
    if (blob := output_blob(event)) is not None:
        result = read_output(blob, await ledger.blob(blob.hash))
    if isinstance(result, dict) and ("content" in result or "code" in result):
        return cast(Json, result)
    return failed_result(event.reason or f"the task is {record.state}")


def failed_result(text: str) -> Json:
    """Return the result of a tool call that failed."""
    return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete"}


def _format_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
