"""The tools of seed 003 (S3.9): `interact` submits a command for somebody else to run, `observe` tells its outcome."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, Literal

import msgspec
from mcp_types import CallToolResult
from msgspec import Meta

from callslip.api.commands import DEFAULT_QUEUE
from callslip.api.find import find_command
from callslip.commands import Command
from callslip.errors import ConflictError, InvalidInputError, NotFoundError
from callslip.http.access import AllowAll
from callslip.http.ingest import owned_by
from callslip.http.request import RequestAccess
from callslip.mcp.results import Json, tool_result
from callslip.mcp.tool import ToolRequest, ToolSpec, check_wait, read, standing
from callslip.model.events import Draft
from callslip.model.names import check_session_name
from callslip.model.records import CallRecord, SessionRecord

LISTED = 100
NOT_FOUND = "not_found"


class Interact(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `interact` that are not the action's own."""

    action: Annotated[str, Meta(min_length=1, max_length=200, description="What is to be done, e.g. execute_js.")]
    params: Annotated[
        dict[str, Any],
        Meta(description="Arguments of the action whose names are taken here. All others may stand beside `action`."),
    ] = msgspec.field(default_factory=dict[str, Any])
    client: Annotated[str, Meta(min_length=1, max_length=200, description="The queue of its workers.")] = DEFAULT_QUEUE
    timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="Seconds until it expires; 30 unless set otherwise.")
    ] = None
    session: Annotated[str, Meta(description="The session that it is recorded in, if not the usual one.")] = ""
    idempotent: Annotated[
        bool, Meta(description="Whether it may safely be run again if the executor dies half-way.")
    ] = False
    approve: Annotated[Literal["", "ask"], Meta(description='"ask" lets a person decide first whether it is run.')] = ""
    correlation_id: Annotated[
        str, Meta(max_length=200, description="An id of your own. Submitting the same again is the same command.")
    ] = ""


CONTROL = frozenset(Interact.__struct_fields__)
"""What an action cannot have as a flat argument; it goes into `params`."""


class Observe(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `observe`."""

    what: Annotated[
        Literal["command_result", "pending_commands", "failed_commands"],
        Meta(description="One command, all that are under way, or those that failed."),
    ]
    correlation_id: Annotated[str, Meta(description="Which command; for command_result.")] = ""
    wait: Annotated[
        float, Meta(ge=0, description="Answer when it has ended, or after so many seconds (60 at most).")
    ] = 0
    client: Annotated[str, Meta(description="Of this client's commands only; for the lists.")] = ""


# interact


def sorted_out(given: Json) -> Interact:
    """Flat arguments as a command: what is not ours is the action's."""
    made = read(Interact, {name: value for name, value in given.items() if name in CONTROL})
    flat = {name: value for name, value in given.items() if name not in CONTROL}
    twice = sorted(set(flat) & set(made.params))
    if twice:
        raise InvalidInputError(twice[0], "stands beside `action` and in `params`; which is meant?")
    made.params = {**flat, **made.params}
    return made


async def submit(asked: ToolRequest, given: Interact) -> Command:
    """Queue it, if they may write there. A session that begins with it is theirs."""
    name = check_session_name(given.session or asked.desk.session(asked.visit))
    row = await asked.ledger.log.store.session(name)
    who = await asked.visit.admit(row or SessionRecord(name=name), "write")
    theirs = row is None and not isinstance(asked.desk.server.gate, AllowAll)
    try:
        return await _register(asked, given, name, [owned_by(who)] if theirs else [])
    except ConflictError:
        row = await asked.ledger.log.store.session(name)
        if not theirs or row is None or row.owner == who.name:
            raise
        await asked.visit.admit(row, "write")  # Somebody else has begun the session meanwhile.
        return await _register(asked, given, name, [])


def _register(asked: ToolRequest, given: Interact, session: str, before: list[Draft]) -> Awaitable[Command]:
    return asked.commands.submit(
        given.action,
        given.params or None,
        queue=given.client,
        session=session,
        timeout=given.timeout,
        idempotent=given.idempotent,
        approval=bool(given.approve),
        correlation_id=given.correlation_id,
        before=before,
    )


async def interact(asked: ToolRequest, given: Interact) -> CallToolResult:
    """S3.1"""
    command = await submit(asked, given)
    return tool_result({"status": "queued", "correlation_id": command.correlation_id})


# observe


async def observe(asked: ToolRequest, given: Observe) -> CallToolResult:
    if given.what == "command_result":
        return await _result(asked, given)
    await asked.visit.admit(None, "read")
    commands, access = asked.commands, RequestAccess(asked.visit)
    failed = await commands.failed(given.client, LISTED, access)
    if given.what == "failed_commands":
        return tool_result({"commands": failed})
    pending = await commands.pending(given.client, LISTED, access)
    completed = await commands.completed(given.client, LISTED, access)
    return tool_result({"pending": pending, "completed": completed, "failed": failed})


async def _result(asked: ToolRequest, given: Observe) -> CallToolResult:
    """S3.2. That there is no such command is an answer, and a final one: nobody must go on asking."""
    if not given.correlation_id:
        raise InvalidInputError("correlation_id", "is missing: which command?")
    check_wait(asked, given.wait)
    try:
        row = await find_command(asked.ledger.log, given.correlation_id, access=RequestAccess(asked.visit))
        return tool_result(await _after(asked, row, given.wait))
    except NotFoundError:
        said = f"no command {given.correlation_id!r} is known here; do not ask again, submit it anew if need be"
        gone = {"correlation_id": given.correlation_id, "status": NOT_FOUND, "error": said, "final": True}
        return tool_result(gone, error=True)


async def _after(asked: ToolRequest, row: CallRecord, wait: float) -> Command:
    """How it stands, or stands after waiting for its end."""
    if not wait:
        return await asked.commands.get(row.id)

    async def how() -> str:
        position = (await asked.commands.get(row.id)).position
        queued = f", number {position} of the queue" if position is not msgspec.UNSET else ""
        return await standing(asked.ledger, row) + queued

    return await asked.waiting(asked.commands.get(row.id, wait=wait), wait, how)


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
        "result": {"description": "What the executor answered, if the command is complete."},
        "error": {"type": "string"},
        "final": {"type": "boolean", "description": "Nothing will change any more."},
        "position": {"type": "integer", "description": "In the queue; 1 is the next to be taken up."},
        "executor_seen_at": {
            "type": ["string", "null"],
            "description": "When an executor last asked for work; null if never.",
        },
        **{name: {"type": "string"} for name in ("action", "client", "session")},
    },
}
_LIST: Json = {"type": "array", "items": COMMAND}

TOOLS = (
    ToolSpec(
        name="interact",
        title="Submit a command",
        about=(
            "Submit a command for an executor (a browser extension, a device, a worker) to run, and get its "
            "correlation_id at once: {status: 'queued', correlation_id}. The command has not run then. Ask `observe` "
            "with what='command_result' and that correlation_id for the outcome, with `wait` so that you need not ask "
            "often. Name the action in `action` and put its own arguments beside it, e.g. {action: 'execute_js', "
            "script: 'document.title'}. These names are not passed on: " + ", ".join(sorted(CONTROL)) + "; an "
            "argument of the action with such a name goes into `params`. A command that nobody takes up expires "
            "after `timeout` seconds; a full queue refuses it."
        ),
        arguments=Interact,
        run=interact,
        answers={
            "type": "object",
            "properties": {"status": {"type": "string"}, "correlation_id": {"type": "string"}},
            "required": ["status", "correlation_id"],
        },
        reads=False,
        destroys=True,
        repeatable=False,
        open_world=True,
        flat=True,
    ),
    ToolSpec(
        name="observe",
        title="See what became of commands",
        about=(
            "See what became of commands. what='command_result' with a correlation_id: {status, final, result or "
            "error, ...}; status is pending, complete, expired (nobody took it up in time), timeout (it ran too long), "
            "error or cancelled. While `final` is false ask again, best with wait=30, which answers as soon as it "
            "has ended. A pending one tells its `position` in the queue and `executor_seen_at`: if no executor has "
            "asked lately, none is running. status='not_found' is final: the id is wrong or no longer kept. "
            "what='pending_commands': {pending, completed, failed}, where completed is the last minute's. "
            "what='failed_commands': {commands}, the last hundred, newest first."
        ),
        arguments=Observe,
        run=observe,
        answers={
            "type": "object",
            "properties": {
                **COMMAND["properties"],
                **dict.fromkeys(("pending", "completed", "failed", "commands"), _LIST),
            },
        },
    ),
)
