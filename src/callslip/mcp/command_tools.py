"""The tools for commands: `interact` submits a command for a worker to run, `observe` returns its result."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from mcp_types import CallToolResult
from msgspec import Meta

from callslip.api.commands import DEFAULT_QUEUE, SubmitOptions
from callslip.api.find import find_command
from callslip.commands import Command
from callslip.errors import InvalidInputError, NotFoundError
from callslip.http.access import AllowAll
from callslip.mcp.results import Json, tool_result
from callslip.mcp.tool import ToolRequest, ToolSpec, check_wait, describe_call, parse_arguments
from callslip.model.records import CallRecord

MAX_LISTED = 100
NOT_FOUND = "not_found"


class Interact(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `interact` that do not belong to the action."""

    action: Annotated[str, Meta(min_length=1, max_length=200, description="The action to run, e.g. execute_js.")]
    params: Annotated[
        dict[str, Any],
        Meta(description="Arguments of the action whose names are used here. All others may be next to `action`."),
    ] = msgspec.field(default_factory=dict[str, Any])
    client: Annotated[str, Meta(min_length=1, max_length=200, description="The queue of its workers.")] = DEFAULT_QUEUE
    timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Seconds until it expires; default 30, or as the server is configured."),
    ] = None
    session: Annotated[str, Meta(description="The session to record it in, if not the default one.")] = ""
    idempotent: Annotated[bool, Meta(description="Whether it may be run again if its worker dies.")] = False
    approve: Annotated[
        Literal["", "ask"], Meta(description='With "ask", it runs only if a person approves it first.')
    ] = ""
    correlation_id: Annotated[
        str, Meta(max_length=200, description="An id of your own. Submitting it again returns the same command.")
    ] = ""


CONTROL = frozenset(Interact.__struct_fields__)
"""Names that an action's own arguments cannot have next to `action`; they go into `params`."""


class Observe(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `observe`."""

    what: Annotated[
        Literal["command_result", "pending_commands", "failed_commands"],
        Meta(description="One command, the pending and recently ended commands, or those that failed."),
    ]
    correlation_id: Annotated[str, Meta(description="The command; for command_result.")] = ""
    wait: Annotated[float, Meta(ge=0, description="Seconds to wait for its end (at most 60).")] = 0
    client: Annotated[str, Meta(description="Only commands of this queue; for the lists.")] = ""


# interact


def parse_flat(arguments: Json) -> Interact:
    """Return flat arguments as a command: those that `interact` does not know belong to the action."""
    command = parse_arguments(Interact, {name: value for name, value in arguments.items() if name in CONTROL})
    flat = {name: value for name, value in arguments.items() if name not in CONTROL}
    twice = sorted(set(flat) & set(command.params))
    if twice:
        raise InvalidInputError(twice[0], "given both at top level and in params")
    command.params = {**flat, **command.params}
    return command


async def submit(request: ToolRequest, arguments: Interact) -> Command:
    """Queue a command. If it creates its session, the session belongs to the caller."""
    options = SubmitOptions(
        queue=arguments.client,
        session=arguments.session or request.context.command_session(request.request_context),
        timeout=arguments.timeout,
        idempotent=arguments.idempotent,
        approval=bool(arguments.approve),
        correlation_id=arguments.correlation_id,
    )
    action, params = arguments.action, arguments.params or None
    has_users = not isinstance(request.context.server.gate, AllowAll)
    return await request.commands.submit_as(request.access, action, params, options, is_owned=has_users)


async def interact(request: ToolRequest, arguments: Interact) -> CallToolResult:
    command = await submit(request, arguments)
    return tool_result({"status": "queued", "correlation_id": command.correlation_id})


# observe


async def observe(request: ToolRequest, arguments: Observe) -> CallToolResult:
    if arguments.what == "command_result":
        return await _observe_command(request, arguments)
    await request.request_context.admit(None, "read")
    commands, queue, access = request.commands, arguments.client, request.access
    failed = await commands.failed(queue, MAX_LISTED, access)
    if arguments.what == "failed_commands":
        return tool_result({"commands": failed})
    pending = await commands.pending(queue, MAX_LISTED, access)
    completed = await commands.completed(queue, MAX_LISTED, access)
    return tool_result({"pending": pending, "completed": completed, "failed": failed})


async def _observe_command(request: ToolRequest, arguments: Observe) -> CallToolResult:
    """Return a command. An unknown one is a final result, so that the model does not ask again."""
    if not arguments.correlation_id:
        raise InvalidInputError("correlation_id", "required for what='command_result'")
    check_wait(request, arguments.wait)
    try:
        record = await find_command(request.ledger.log, arguments.correlation_id, access=request.access)
        return tool_result(await _wait_for_command(request, record, arguments.wait))
    except NotFoundError:
        message = f"no command {arguments.correlation_id!r}. Do not ask again; submit it again if needed."
        result = {
            "correlation_id": arguments.correlation_id,
            "status": NOT_FOUND,
            "error": message,
            "final": True,
        }
        return tool_result(result, error=True)


async def _wait_for_command(request: ToolRequest, record: CallRecord, wait: float) -> Command:
    if not wait:
        return await request.commands.get(record.id)

    async def describe() -> str:
        position = (await request.commands.get(record.id)).position
        queued = f", number {position} of the queue" if position is not msgspec.UNSET else ""
        return await describe_call(request.ledger, record.id) + queued

    command = await request.wait_with_progress(request.commands.get(record.id, wait=wait), wait, describe)
    await request.request_context.session(record.session, "read")  # The rights may have ended meanwhile.
    return command


COMMAND: Json = {
    "type": "object",
    "properties": {
        "correlation_id": {"type": "string"},
        "status": {
            "type": "string",
            "enum": ["pending", "complete", "expired", "timeout", "error", "cancelled", NOT_FOUND],
        },
        "created_at": {"type": "string", "format": "date-time"},
        "completed_at": {"type": "string", "format": "date-time"},
        "result": {"description": "The worker's result, if the command is complete."},
        "error": {"type": "string"},
        "final": {"type": "boolean", "description": "The command has ended and will not change."},
        "position": {"type": "integer", "description": "In the queue; 1 is the next to be claimed."},
        "executor_seen_at": {
            "type": ["string", "null"],
            "description": "When a worker last polled; null if never.",
        },
        **{name: {"type": "string"} for name in ("action", "client", "session")},
    },
}
_LIST: Json = {"type": "array", "items": COMMAND}

TOOLS = (
    ToolSpec(
        name="interact",
        title="Submit a command",
        description=(
            "Submit a command for a worker (a browser extension, a device, a program) to run. Returns its "
            "correlation_id at once, before the command has run: {status: 'queued', correlation_id}. Call `observe` "
            "with what='command_result' and that correlation_id for the result, with `wait` so that you need not ask "
            "often. Name the action in `action` and put its own arguments next to it, e.g. {action: 'execute_js', "
            "script: 'document.title'}. These names are not passed on: " + ", ".join(sorted(CONTROL)) + "; an "
            "argument of the action with such a name goes into `params`. A command that no worker claims expires "
            "after `timeout` seconds; a full queue refuses it."
        ),
        arguments=Interact,
        run=interact,
        output_schema={
            "type": "object",
            "properties": {"status": {"type": "string"}, "correlation_id": {"type": "string"}},
            "required": ["status", "correlation_id"],
        },
        read_only=False,
        destructive=True,
        idempotent=False,
        open_world=True,
        flat=True,
    ),
    ToolSpec(
        name="observe",
        title="Get the results of commands",
        description=(
            "Get the results of commands. what='command_result' with a correlation_id: {status, final, result or "
            "error, ...}; status is pending, complete, expired (no worker claimed it in time), timeout (it ran too "
            "long), error or cancelled. While `final` is false ask again, best with wait=30, which returns as soon as "
            "it has ended. A pending command has its `position` in the queue and `executor_seen_at`: if no worker "
            "has polled recently, none is running. status='not_found' is final: the id is wrong or no longer "
            "stored. what='pending_commands': {pending, completed, failed}, where completed covers the last minute, "
            "or as the server is configured. what='failed_commands': {commands}, the last hundred, newest first."
        ),
        arguments=Observe,
        run=observe,
        output_schema={
            "type": "object",
            "properties": {
                **COMMAND["properties"],
                **dict.fromkeys(("pending", "completed", "failed", "commands"), _LIST),
            },
        },
    ),
)
