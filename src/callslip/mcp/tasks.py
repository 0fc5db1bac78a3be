"""MCP tasks over a ledger: `io.modelcontextprotocol/tasks` of protocol 2026-07-28, for any server of the `mcp` SDK.

    tasks = Tasks(ledger)

    @tasks.tool(ttl=3600)
    async def render(scene: str) -> str: ...

    server = MCPServer("studio", extensions=[tasks])

A task is a detached call. It is durable before the client gets its handle, and its end is in the ledger: a client that
asks after the server was killed gets the result if there was one, and otherwise an error of the tool. A client without
support for tasks gets the same tool as an ordinary one. A tool that needs more input returns an InputRequiredResult, as
in an ordinary call; the task then waits for `tasks/update`, and the tool is called again with the responses.

The input requests of a task are in the log as the call's progress, so any process of the ledger can return them. The
responses go to the tool only, unless another process runs it: then they go through the log, without the secrets in
them. The result of a task is read from the log, with secrets redacted.

A client that knows the id of a task may use it, unless `admit` refuses. `await tasks.close()` stops the running tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
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

from callslip.api.cancel import cancel_call
from callslip.api.ledger import LocalLedger
from callslip.api.tasks import begin_task, find_task
from callslip.errors import CallslipError, ConflictError, NotFoundError
from callslip.ledger.aio import cancel_all, finish_despite_cancel
from callslip.mcp.task_run import TaskRun, send_responses
from callslip.mcp.task_wire import (
    EXTENSION,
    SOURCE,
    GetTask,
    UpdateTask,
    check_name,
    load_input_requests,
    parse_responses,
    task_detail,
    task_handle,
)
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import TERMINAL_STATES

F = TypeVar("F", bound=Callable[..., Any])
Context = ServerRequestContext[Any, Any]
Verb = Literal["read", "write"]
Admit = Callable[[Context, CallRecord, Verb], Awaitable[None]]
"""Raises NotFoundError, or another error for the client, if the client may not read or change the task."""


class TaskOptions(msgspec.Struct, frozen=True):
    """How a tool is served as a task. With `asks_first` the task begins once the client has sent the first input."""

    required: bool = False
    asks_first: bool = False
    ttl: float | None = None


class ExternalTasks(Protocol):
    """Tools whose tasks run outside this server."""

    async def begin(self, params: CallToolRequestParams, ctx: Context) -> CallRecord | None:
        """Record the task and return its call, or None if the tool is not one of these."""
        ...

    async def find(self, task: str, ctx: Context) -> CallRecord | None:
        """Return the call of a task by its id, or None."""
        ...

    async def result(self, record: CallRecord) -> dict[str, Any]:
        """Return the result of an ended task as the result of a tool call."""
        ...


class Tasks(Extension):
    """The tools of a server that may run as tasks, and their tasks. Register tools before the server is made."""

    identifier = EXTENSION

    def __init__(
        self,
        ledger: LocalLedger,
        *,
        session: str = "tasks",
        ttl: float | None = None,
        poll: float = 1.0,
        admit: Admit | None = None,
        external: ExternalTasks | None = None,
    ) -> None:
        self._ledger = ledger
        self._session = session
        self._ttl = ttl
        self._poll_ms = max(1, int(poll * 1000))
        self._admit = admit
        self._external = external
        self._options: dict[str, TaskOptions] = {}
        self._tools: list[ToolBinding] = []
        self._runs: dict[str, TaskRun] = {}
        self._running: set[asyncio.Task[None]] = set()

    # Registering tools

    def tool(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str = "",
        required: bool = False,
        asks_first: bool = False,
        ttl: float | None = None,
        **options: Any,
    ) -> Any:
        """Serve a function as a tool that may run as a task. `options` are those of `MCPServer.tool`: title, ..."""

        def register(function: F) -> F:
            tool_name = name or function.__name__
            self.serve(tool_name, required=required, asks_first=asks_first, ttl=ttl)
            self._tools.append(ToolBinding(fn=function, kwargs={"name": tool_name, **options}))
            return function

        return register if function is None else register(function)

    def serve(self, name: str, *, required: bool = False, asks_first: bool = False, ttl: float | None = None) -> None:
        """Run a tool of the server as a task, for clients that support tasks.

        `required` refuses other clients. `asks_first` begins the task only when the client has answered the first input
        request of the tool. A task can be read for `ttl` seconds after its creation; if it still runs then, it expires.
        """
        self._options[name] = TaskOptions(required, asks_first, self._ttl if ttl is None else ttl)

    def attach(self, server: Server[Any]) -> None:
        """Add the tasks to a low-level server that has its tools already. `MCPServer` does this by itself."""
        entry = server.get_request_handler("tools/call")
        assert entry is not None, "the server has no tools"
        wrapped = compose_tool_call_handler([self], entry.handler)
        server.add_request_handler("tools/call", CallToolRequestParams, wrapped)
        for method in self.methods():
            server.add_request_handler(method.method, method.params_type, _modern_only(method.handler))
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

    # Beginning a task

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Context, call_next: CallNext
    ) -> HandlerResult:
        options = self._options.get(params.name)
        if options is None:
            return await call_next(ctx)
        if not supports_tasks(ctx):
            if options.required:
                require_client_extension(ctx, EXTENSION)
            return await call_next(ctx)
        if options.asks_first and not params.input_responses:
            return await call_next(ctx)
        try:
            record = await self._external.begin(params, ctx) if self._external else None
        except (CallslipError, msgspec.ValidationError):
            return await call_next(ctx)  # The tool returns the same error as a result, which the model can read.
        if record is not None:
            return task_handle(record, record.id, self._poll_ms)
        # If the client disconnects after the call was recorded, the task must still run, or the call would stay open.
        return await finish_despite_cancel(self._begin(options, params, lambda: call_next(ctx)))

    async def _begin(
        self, options: TaskOptions, params: CallToolRequestParams, call_tool: Callable[[], Awaitable[HandlerResult]]
    ) -> dict[str, Any]:
        """Record the task, start its tool, and return its handle."""
        task = await begin_task(
            self._ledger.log,
            self._session,
            params.name,
            params.arguments or {},
            ttl=options.ttl,
            source=SOURCE,
        )
        run = self._runs[task.record.id] = TaskRun(task, params, call_tool)
        running = asyncio.create_task(run.run())
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        running.add_done_callback(lambda _: self._runs.pop(task.record.id, None))
        return task_handle(task.record, task.id, self._poll_ms)

    async def close(self) -> None:
        """Stop the tasks that run in this process; they end as lost."""
        await cancel_all(*self._running)

    # Requests about a task

    async def _get(self, ctx: Context, params: GetTask) -> dict[str, Any]:
        record = await self._find(ctx, params.task_id, "read")
        load_result = self._external.result if self._external and record.client else None
        return await task_detail(self._ledger, record, params.task_id, self._poll_ms, load_result)

    async def _update(self, ctx: Context, params: UpdateTask) -> dict[str, Any]:
        """Pass responses to the task. Responses to requests that are not open are ignored."""
        record = await self._find(ctx, params.task_id, "write")
        if record.client or record.state in TERMINAL_STATES:
            return {}
        run = self._runs.get(record.id)
        requests = run.input_requests if run is not None else await load_input_requests(self._ledger, record)
        responses = parse_responses(requests, params.input_responses)
        if run is not None:
            await run.respond(responses)
        elif responses:
            await send_responses(self._ledger, record, requests, responses)
        return {}

    async def _cancel(self, ctx: Context, params: GetTask) -> dict[str, Any]:
        """Cancel the task. One that has ended stays as it is."""
        record = await self._find(ctx, params.task_id, "write")
        with contextlib.suppress(ConflictError):
            await cancel_call(self._ledger.log, record.id, reason="cancelled by the MCP client", source=SOURCE)
        return {}

    async def _find(self, ctx: Context, task: str, verb: Verb) -> CallRecord:
        """Return the call of a task that the client may use."""
        require_client_extension(ctx, EXTENSION)
        check_name(ctx, task)
        record = await find_task(self._ledger.log, task, session=self._session)
        if record is None and self._external:
            record = await self._external.find(task, ctx)
        try:
            if record is None:
                raise NotFoundError(task)
            if self._admit is not None:
                await self._admit(ctx, record, verb)
        except NotFoundError:
            raise MCPError(INVALID_PARAMS, f"no task {task!r}") from None
        return record


def supports_tasks(ctx: Context) -> bool:
    """Return whether the client declared the extension with this request. The older protocol has no tasks."""
    capabilities = ctx.session.client_capabilities
    extensions: Mapping[str, Any] = (capabilities.extensions if capabilities else None) or {}
    return EXTENSION in extensions and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def _modern_only(handler: RequestHandler) -> RequestHandler:
    async def check_version(ctx: Context, params: Any) -> HandlerResult:
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        return await handler(ctx, params)

    return check_version
