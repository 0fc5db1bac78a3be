"""MCP tasks over a ledger: `io.modelcontextprotocol/tasks` of protocol 2026-07-28, for any server of the `mcp` SDK.

    tasks = Tasks(ledger)

    @tasks.tool(ttl=3600)
    async def render(scene: str) -> str: ...

    server = MCPServer("studio", extensions=[tasks])

A task is a detached call. It is durable before its handle is given away, and it ends in the ledger: a client that asks
after the server was killed is told the result if there was one, and else that nobody is left to finish it. A client
that does not know tasks gets the same tool as an ordinary one. A tool that needs to know more answers with an
InputRequiredResult, as in an ordinary call; the task then waits for `tasks/update`, and the tool is called again with
what it wanted to know.

What a task is asked is in the log as the call's progress, so that any process of the ledger can tell it. What it is
answered goes to the tool alone, unless another process runs it: then it goes through the log, and secrets in it do not.
Nor do those in a result: a task's result is told as the log has it, with secrets redacted.

Who knows a task's id may ask for it, unless `admit` says otherwise. `await tasks.close()` stops what still runs.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from mcp.server import Server
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding, RequestHandler, ToolBinding, compose_tool_call_handler
from mcp.server.mcpserver import require_client_extension
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND, CallToolRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from callslip.api.ledger import Ledger
from callslip.errors import CallslipError, NotFoundError
from callslip.ledger.aio import finish_despite_cancel
from callslip.mcp.task_run import Run, send_answers
from callslip.mcp.task_wire import (
    ALIAS,
    EXTENSION,
    SOURCE,
    GetTask,
    UpdateTask,
    asked_of,
    check_name,
    created,
    detailed,
    read_responses,
)
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import TERMINAL_STATES

F = TypeVar("F", bound=Callable[..., Any])
Context = ServerRequestContext[Any, Any]
Verb = Literal["read", "write"]
Admit = Callable[[Context, CallRecord, Verb], Awaitable[None]]
"""Raises NotFound, or whatever else the client is to be told, if whoever asks may not see the task or change it."""


class Offer(msgspec.Struct, frozen=True):
    """How a tool is served as a task. With `asks_first` it is one only once the client has answered what it asks."""

    required: bool = False
    asks_first: bool = False
    ttl: float | None = None


class Elsewhere(Protocol):
    """Tools whose tasks somebody else runs: begun by a function, told by another."""

    async def begin(self, params: CallToolRequestParams, ctx: Context) -> CallRecord | None:
        """The call that is the task, durable; nothing if this is no tool of theirs."""
        ...

    async def find(self, task: str, ctx: Context) -> CallRecord | None:
        """A task of theirs by its id."""
        ...

    async def result(self, row: CallRecord) -> dict[str, Any]:
        """What the tool answered, as the result of a tool call."""
        ...

    async def cancel(self, row: CallRecord, reason: str) -> None:
        """Stop it."""
        ...


class Tasks(Extension):
    """The tools of a server that may be run as tasks, and the tasks. Register tools before the server is made."""

    identifier = EXTENSION

    def __init__(
        self,
        ledger: Ledger,
        *,
        session: str = "tasks",
        ttl: float | None = None,
        poll: float = 1.0,
        admit: Admit | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._ledger = ledger
        self._session = session
        self._ttl = ttl
        self._poll = max(1, int(poll * 1000))
        self._admit = admit
        self._elsewhere = elsewhere
        self._offers: dict[str, Offer] = {}
        self._tools: list[ToolBinding] = []
        self._runs: dict[str, Run] = {}
        self._work: set[asyncio.Task[None]] = set()

    # Which tools

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str = "",
        required: bool = False,
        asks_first: bool = False,
        ttl: float | None = None,
        **told: Any,
    ) -> Any:
        """Serve a function as a tool that may be run as a task. `told` is what `MCPServer.tool` takes: title, ..."""

        def register(function: F) -> F:
            known = name or function.__name__
            self.serve(known, required=required, asks_first=asks_first, ttl=ttl)
            self._tools.append(ToolBinding(fn=function, kwargs={"name": known, **told}))
            return function

        return register if function is None else register(function)

    def serve(self, name: str, *, required: bool = False, asks_first: bool = False, ttl: float | None = None) -> None:
        """Run a tool that the server has anyhow as a task, for clients that know tasks.

        `required` refuses the others. `asks_first` begins the task only when what the tool wants to know is answered.
        `ttl` is for how many seconds after its creation the task is answered for; a task still running then expires.
        """
        self._offers[name] = Offer(required, asks_first, self._ttl if ttl is None else ttl)

    def attach(self, server: Server[Any]) -> None:
        """Serve a low-level server, whose tools are registered already. `MCPServer` does this by itself."""
        entry = server.get_request_handler("tools/call")
        assert entry is not None, "the server has no tools"
        wrapped = compose_tool_call_handler([self], entry.handler)
        server.add_request_handler("tools/call", CallToolRequestParams, wrapped)
        for method in self.methods():
            server.add_request_handler(method.method, method.params_type, _modern(method.handler))
        server.extensions[self.identifier] = self.settings()

    def tools(self) -> Sequence[ToolBinding]:
        return self._tools

    def methods(self) -> Sequence[MethodBinding]:
        modern = frozenset(MODERN_PROTOCOL_VERSIONS)
        return (
            MethodBinding("tasks/get", GetTask, self._get, modern),
            MethodBinding("tasks/update", UpdateTask, self._update, modern),
            MethodBinding("tasks/cancel", GetTask, self._cancel, modern),
        )

    # Beginning one

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Context, call_next: CallNext
    ) -> HandlerResult:
        offer = self._offers.get(params.name)
        if offer is None:
            return await call_next(ctx)
        if not knows_tasks(ctx):
            if offer.required:
                require_client_extension(ctx, EXTENSION)
            return await call_next(ctx)
        if offer.asks_first and not params.input_responses:
            return await call_next(ctx)
        try:
            row = await self._elsewhere.begin(params, ctx) if self._elsewhere else None
        except (CallslipError, msgspec.ValidationError):
            return await call_next(ctx)  # The tool tells why not, in words for the model.
        if row is not None:
            return created(row, row.id, self._poll)
        # A client that hangs up meanwhile must not leave a call behind that nobody runs.
        return await finish_despite_cancel(self._begin(offer, params, lambda: call_next(ctx)))

    async def _begin(
        self, offer: Offer, params: CallToolRequestParams, call: Callable[[], Awaitable[HandlerResult]]
    ) -> dict[str, Any]:
        """Write the task down, then let it run; only then is its handle given away."""
        ledger, task = self._ledger, f"task_{secrets.token_hex(16)}"
        deadline = 0 if offer.ttl is None else await ledger.log.store.clock() + max(1, int(offer.ttl * 1000))
        proposed = ev.CallProposed(
            call="new:1",
            aliases=(ev.Alias(ALIAS, task),),
            tool_name=params.name,
            input=codec.to_json(params.arguments or {}),
            scope="detached",
            deadline=deadline,
        )
        drafts = [proposed, ev.CallStarted(call="new:1")]
        made = await ledger.log.append(self._session, drafts, source=SOURCE, owner=ledger.log.owner, strict=True)
        assert isinstance(made[-1], ev.CallStarted)
        row = await ledger.log.store.call(made[-1].call)
        assert row is not None
        run = self._runs[row.id] = Run(ledger, row, params, call)
        working = asyncio.create_task(run.work())
        self._work.add(working)
        working.add_done_callback(self._work.discard)
        working.add_done_callback(lambda _: self._runs.pop(row.id, None))
        return created(row, task, self._poll)

    async def close(self) -> None:
        """Stop what runs here; those tasks end as lost."""
        for working in self._work:
            working.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    # Asking for one

    async def _get(self, ctx: Context, params: GetTask) -> dict[str, Any]:
        row = await self._find(ctx, params.task_id, "read")
        result = self._elsewhere.result if self._elsewhere and row.client else None
        return await detailed(self._ledger, row, params.task_id, self._poll, result)

    async def _update(self, ctx: Context, params: UpdateTask) -> dict[str, Any]:
        """Answers to what the task asks. What it does not ask, or not any more, is ignored."""
        row = await self._find(ctx, params.task_id, "write")
        if row.client or row.state in TERMINAL_STATES:
            return {}
        run = self._runs.get(row.id)
        asked = run.asked if run is not None else await asked_of(self._ledger, row)
        answers = read_responses(asked, params.input_responses)
        if run is not None:
            await run.answer(answers)
        elif answers:
            await send_answers(self._ledger, row, asked, answers)
        return {}

    async def _cancel(self, ctx: Context, params: GetTask) -> dict[str, Any]:
        """Stop it. One that has ended stays as it ended."""
        row = await self._find(ctx, params.task_id, "write")
        reason = "cancelled by the MCP client"
        if row.state in TERMINAL_STATES:
            return {}
        if self._elsewhere and row.client:
            await self._elsewhere.cancel(row, reason)
        else:
            await self._ledger.log.append(row.session, [ev.CallCancelled(call=row.id, reason=reason)], source=SOURCE)
        return {}

    async def _find(self, ctx: Context, task: str, verb: Verb) -> CallRecord:
        """The task, if there is one for whoever asks."""
        require_client_extension(ctx, EXTENSION)
        check_name(ctx, task)
        row = await self._known(task)
        if row is None and self._elsewhere:
            row = await self._elsewhere.find(task, ctx)
        try:
            if row is None:
                raise NotFoundError(task)
            if self._admit is not None:
                await self._admit(ctx, row, verb)
        except NotFoundError:
            raise MCPError(INVALID_PARAMS, f"no task {task!r}") from None
        return row

    async def _known(self, task: str) -> CallRecord | None:
        if not task.startswith("task_"):
            return None
        found = await self._ledger.log.store.alias(task, self._session)
        row = found[0] if found else None
        over = row is not None and row.deadline and await self._ledger.log.store.clock() > row.deadline
        return None if over else row


def knows_tasks(ctx: Context) -> bool:
    """Whether the client said so with this request; the older protocol could not carry a task."""
    told = ctx.session.client_capabilities
    declared: Mapping[str, Any] = (told.extensions if told else None) or {}
    return EXTENSION in declared and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def _modern(handle: RequestHandler) -> RequestHandler:
    async def gated(ctx: Context, params: Any) -> HandlerResult:
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        return await handle(ctx, params)

    return gated
