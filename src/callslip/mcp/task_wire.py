"""Tasks as `io.modelcontextprotocol/tasks` (protocol 2026-07-28) writes them, made from a call's row and its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import HEADER_MISMATCH, INVALID_PARAMS, InputResponse, RequestParams
from msgspec import UNSET
from pydantic import Field, TypeAdapter, ValidationError
from starlette.requests import HTTPConnection

from callslip.api.ledger import Ledger
from callslip.ledger.call_entry import load_call_entry
from callslip.model.events import CallEnd
from callslip.model.records import CallRecord
from callslip.model.state_names import STATE_NAMES
from callslip.rules.lifecycle import TERMINAL_STATES

EXTENSION = "io.modelcontextprotocol/tasks"
ALIAS = "task"
SOURCE = "mcp"
# Members of a call's progress: what its task asks, and what another process was told.
ASKED = "inputRequests"
ANSWERED = "inputResponses"

Json = dict[str, Any]
Result = Callable[[CallRecord], Awaitable[Json]]
_response: TypeAdapter[Any] = TypeAdapter(InputResponse)


class GetTask(RequestParams):
    """Which task; of `tasks/get` and `tasks/cancel`."""

    task_id: str


class UpdateTask(GetTask):
    """Answers, by the names under which they were asked for. Each is read when it is known what it answers."""

    input_responses: dict[str, Any] = Field(default_factory=dict[str, Any])


def check_name(ctx: ServerRequestContext[Any, Any], task: str) -> None:
    """Whoever routes by the header must be led where the body leads. The SDK knows this header for its own methods."""
    request: Any = ctx.request
    headers: Mapping[str, str] = request.headers if isinstance(request, HTTPConnection) else {}
    if MCP_NAME_HEADER in headers and decode_header_value(headers[MCP_NAME_HEADER]) != task:
        raise MCPError(HEADER_MISMATCH, f"the {MCP_NAME_HEADER} header is not the taskId of the body")


def read_responses(asked: Mapping[str, Any], given: Mapping[str, Any]) -> Json:
    """The answers to what is asked; one of the wrong shape is refused, and so are the others with it."""
    try:
        return {name: _response.validate_python(given[name]) for name in asked if name in given}
    except ValidationError:
        raise MCPError(INVALID_PARAMS, "inputResponses: what was asked for has another shape") from None


def created(row: CallRecord, task: str, poll: int) -> Json:
    """The handle of a task, in place of the result of its tool."""
    return {"resultType": "task", **_task(row, task, poll, STATE_NAMES[row.state].mcp)}


def _task(row: CallRecord, task: str, poll: int, status: str) -> Json:
    made: Json = {
        "taskId": task,
        "status": status,
        "createdAt": _time(row.created_at),
        "lastUpdatedAt": _time(max(row.created_at, row.started_at, row.ended_at)),
        "ttlMs": row.deadline - row.created_at if row.deadline and not row.client else None,
        "pollIntervalMs": poll,
    }
    if row.reason:
        made["statusMessage"] = row.reason
    return made


async def detailed(ledger: Ledger, row: CallRecord, task: str, poll: int, result: Result | None) -> Json:
    """A task as it stands: with what it asks, its result, or the JSON-RPC error that it came to."""
    word = STATE_NAMES[row.state].mcp
    if row.state not in TERMINAL_STATES:
        asked = {} if row.client else await asked_of(ledger, row)  # A command's progress is its executor's.
        made = _task(row, task, poll, STATE_NAMES["awaiting_approval"].mcp if asked else word)
        return {**made, ASKED: asked} if made["status"] == STATE_NAMES["awaiting_approval"].mcp else made
    if word == "cancelled":
        return _task(row, task, poll, word)
    ended = await result(row) if result is not None else await _ended(ledger, row)
    if "content" not in ended:
        return {**_task(row, task, poll, "failed"), "error": ended}
    return {**_task(row, task, poll, word), "result": ended}


async def asked_of(ledger: Ledger, row: CallRecord) -> Json:
    """What a task waits to be told. Of a call that waits for a person's approval, nothing can be told here."""
    entry = await load_call_entry(ledger.log, row)
    progress = entry.progress if entry is not None else None
    asked: Any = cast(Json, progress).get(ASKED) if isinstance(progress, dict) else None
    return cast(Json, asked) if isinstance(asked, dict) else {}


async def _ended(ledger: Ledger, row: CallRecord) -> Json:
    """What the tool answered, or an error with its `code`. If somebody else ended the task, an error of the tool."""
    event = await ledger.log.ending_event(row)
    assert isinstance(event, CallEnd)
    said = event.output if event.output is not UNSET else event.error
    if event.blob is not None:
        said = msgspec.json.decode(await ledger.blob(event.blob.hash))
    if isinstance(said, dict) and ("content" in said or "code" in said):
        return cast(Json, said)
    return failed(event.reason or f"the task is {row.state}")


def failed(text: str) -> Json:
    """The result of a tool that did not do it."""
    return {"content": [{"type": "text", "text": text}], "isError": True, "resultType": "complete"}


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
