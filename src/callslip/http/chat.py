"""An app for chat clients: they post a user's message, a handler answers, and they read the turn as a stream.

Answering is independent of reading: a lost connection stops nothing, a client that reconnects receives the turn from
its start, and stopping is an action of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from callslip.api import approvals
from callslip.api.client_calls import find_client_call, finish_client_call
from callslip.api.find import find_approval
from callslip.api.sessions import load_turn
from callslip.api.status import age_ms
from callslip.api.turns import cancel_turn, find_running_turn, find_turn_by_key, start_turn
from callslip.errors import ConflictError, InvalidInputError, NotFoundError
from callslip.formats import registry
from callslip.formats.turn_scope import Turn
from callslip.http import access as authorizers
from callslip.http import chat_request, chat_stream, streams
from callslip.http.app import build
from callslip.http.browser_guard import BrowserGuard
from callslip.http.chat_request import ChatRequest, Decision
from callslip.http.chat_stream import TurnRequest, waits_for_client
from callslip.http.request import RequestAccess, RequestContext, Route, json_response, root_path
from callslip.http.server import Server
from callslip.http.turn_runner import Chat, Handler, TurnRunner
from callslip.model.entries import Message
from callslip.model.names import check_session_name
from callslip.model.records import ApprovalRecord, SessionRecord
from callslip.rules.entry_blocks import message_name
from callslip.rules.fold import SessionFold
from callslip.settings import Limits

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from callslip.api.ledger import LocalLedger
    from callslip.ledger.event_log import EventLog


SOURCE = "chat"
REPLACING = ("ui-v5", "ui-v6", "ui-v7")
"""The formats whose clients replace a turn by its replay."""
LINGER_S = 30.0
OMITTED_TURN = "x-callslip-turn"
"""The header that names the turn which a history omits, because it comes with the stream."""


class ChatApp:
    """One handler for clients of one format."""

    def __init__(self, server: Server, handler: Handler, format: str, linger: float) -> None:
        if format not in chat_request.PARSERS:
            known = ", ".join(sorted(chat_request.PARSERS))
            raise InvalidInputError("format", f"{format!r} has no chat client; formats with one: {known}")
        self.server = server
        self.format = format
        self.linger_s = linger
        self.runner = TurnRunner(server.ledger, handler)

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/", self.post, "write"),
            Route("GET", "/", self.resume_by_query),
            Route("GET", "/{chat}", self.history),
            Route("GET", "/{chat}/stream", self.resume),
            Route("POST", "/{chat}/stop", self.stop, "write"),
        ]

    # Posting

    async def post(self, context: RequestContext) -> Response:
        """Start a turn with a prompt, or pass answers to the calls that wait for them. Stream the turn."""
        body = await context.body(dict[str, Any])
        request = chat_request.parse(self.format, body)
        name = check_session_name(request.chat)
        record, principal = await context.admit_to(name)
        await context.admit_to(name, "read")  # The response is the turn.
        if request.has_prompt:
            turn = await self._start_or_find(context, record, principal, request, body)
            turn_request = TurnRequest(name, self.format, turn, request.run)
        else:
            turn_request = await self._answer(context, record, request)
        return self._stream(context, turn_request)

    async def _start_or_find(
        self,
        context: RequestContext,
        record: SessionRecord | None,
        principal: authorizers.Principal,
        request: ChatRequest,
        body: Any,
    ) -> str:
        """Return the turn that answers a prompt: a new one, or the one that an earlier post of it started."""
        log, name = context.ledger.log, check_session_name(request.chat)
        turn = await _find_started(log, record, request)
        if turn:
            return turn
        try:
            started = await start_turn(
                log,
                name,
                request.prompt,
                message_id=request.message_id,
                content=request.content,
                key=_turn_key(record.turns + 1 if record else 1, request),
                source=SOURCE,
                access=context.access,
            )
        except ConflictError:  # Posted twice at once: the other request has started it.
            turn = await _find_started(log, await log.get_session(name), request)
            if not turn:
                raise
            return turn
        session, user = context.ledger.session(name), principal.user or principal.name
        chat = Chat(session, started.turn, request.prompt, request.message, request.messages, body, user)
        self.runner.start(chat, started.seq)
        return started.turn

    async def _answer(self, context: RequestContext, record: SessionRecord | None, request: ChatRequest) -> TurnRequest:
        """Pass on decisions and results, and return the turn from where the client has it."""
        if record is None:
            raise NotFoundError(f"no chat {request.chat!r}")
        log, access = context.ledger.log, context.access
        waiting = await _find_waiting(log, record.name, request)
        if not waiting:
            raise ConflictError("no call in this chat waits for what was posted")
        seq, turn = max(waiting)
        known = chat_stream.encode_turn(self.format, await _client_state(log, record.name, turn, seq), turn)
        if request.decisions:
            await access.require(record.name, "approve")
        for decision in request.decisions:
            await _decide(log, record.name, decision, access)
        for result in request.results:
            await finish_client_call(
                log, record.name, result.call, output=result.output, error=result.error, source=SOURCE
            )
        return TurnRequest(record.name, self.format, turn, request.run, known, request.messages)

    # Reading

    async def resume(self, context: RequestContext) -> Response:
        """Stream the turn in progress from its start; 204 if there is none."""
        return await self._resume(context, context.path_params["chat"])

    async def resume_by_query(self, context: RequestContext) -> Response:
        """Resume a chat, as version 4 does."""
        return await self._resume(context, context.request.query_params.get("chatId", ""))

    async def _resume(self, context: RequestContext, name: str) -> Response:
        record, _ = await context.admit_to(name)
        turn = context.request.query_params.get("turn", "")
        turn = turn or (await self._current_turn(context.ledger.log, record) if record else "")
        if turn:
            return self._stream(context, TurnRequest(name, self.format, turn))
        if self.format == "vercel-v4":  # It treats a response without a body as an error.
            return Response(b"", 200, dict(registry.streaming(self.format).headers))
        return Response(None, 204)

    async def _current_turn(self, log: EventLog, record: SessionRecord) -> str:
        """Return the turn to resume: the one in progress, or for a moment the last one.

        A client that lost its connection shortly before the end would otherwise keep half of the turn. It receives it
        again if it can replace what it has.
        """
        running = await find_running_turn(log, record)
        can_replay = self.format in REPLACING and await age_ms(log, record.updated_at) <= self.linger_s * 1000
        if running or not can_replay:
            return running
        return (await log.snapshot(record.name, limit=1)).info.last_turn

    def _stream(self, context: RequestContext, request: TurnRequest) -> Response:
        headers = registry.streaming(self.format).headers
        work = partial(streams.write_turn, chat_stream.open_turn(self.server, request))
        return context.stream(work, headers, request.session)

    async def history(self, context: RequestContext) -> Response:
        """Return the messages of a chat, oldest first, without the answer in progress, which the stream sends."""
        record = await context.session(context.path_params["chat"])
        running = await find_running_turn(context.ledger.log, record)
        snapshot = await context.ledger.snapshot(record.name)
        if running:
            entries = [entry for entry in snapshot.entries if entry.turn != running or _is_prompt(entry)]
            snapshot = msgspec.structs.replace(snapshot, entries=entries)
        messages = registry.encoder(self.format)(snapshot)
        messages = messages[::-1] if registry.find(self.format).newest_first else messages
        return json_response(messages, headers={OMITTED_TURN: quote(running)} if running else {})

    async def stop(self, context: RequestContext) -> Response:
        """Cancel the turn in progress, in any process. Without one, nothing happens."""
        record = await context.session(context.path_params["chat"])
        stopped = await cancel_turn(context.ledger.log, record.name, source=SOURCE, access=context.access)
        return json_response({"stopped": stopped})


# Prompts


def _turn_key(number: int, request: ChatRequest) -> str:
    """Return the key of a turn by its number and prompt: a prompt that is posted again starts no second turn."""
    return f"chat:{number}:{request.name}" if request.name and not request.regenerate else ""


async def _find_started(log: EventLog, record: SessionRecord | None, request: ChatRequest) -> str:
    """Return the session's last turn if this request started it and wants no other answer, else ""."""
    if record is None or not record.turns or (request.regenerates_by_repeat and not record.turn):
        return ""
    return await find_turn_by_key(log, record.name, _turn_key(record.turns, request))


# Answers


async def _find_waiting(log: EventLog, session: str, request: ChatRequest) -> list[tuple[int, str]]:
    """Return the seq and the turn of everything that waits, or waited, for what was posted."""
    waiting: list[tuple[int, str]] = []
    for decision in request.decisions:
        approval = await find_approval(log, decision.approval, session=session)
        call = await log.get_call(approval.call)
        waiting += [(approval.entry, call.turn or message_name(call.entry))] if call else []
    for result in request.results:
        call = await find_client_call(log, session, result.call)
        waiting += [(call.entry, call.turn or message_name(call.entry))] if call else []
    return waiting


async def _client_state(log: EventLog, session: str, turn: str, seq: int) -> SessionFold:
    """Return the session as the client has it: when its stream ended, because everything waited for the client."""
    state = await load_turn(log, session, turn)
    if state.seq == seq:
        return state
    state_then = Turn(await log.state_at(session, seq), turn)
    async for event in log.events(session, seq):
        if waits_for_client(state_then):
            break
        state_then.apply(event)
    return state_then.state


async def _decide(log: EventLog, session: str, decision: Decision, access: RequestAccess) -> None:
    """Answer an approval. The first answer counts; a client that repeats one gets no error.

    An answer that must be given elsewhere is an error.
    """
    try:
        if decision.approved:
            await approvals.approve(
                log, decision.approval, input=decision.input, reason=decision.reason, session=session, access=access
            )
        else:
            await approvals.deny(log, decision.approval, reason=decision.reason, session=session, access=access)
    except ConflictError as error:
        if isinstance(error.current, ApprovalRecord) and error.current.answer_at:
            raise


def _is_prompt(entry: Any) -> bool:
    return isinstance(entry, Message) and entry.role == "user"


class OneSlash:
    """Treat `//` after the prefix as `/`: version 5 sends it if its address ends with a slash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root = root_path(scope)
        if scope["type"] == "http" and scope["path"].startswith(f"{root}//"):
            scope = {**scope, "path": root + scope["path"][len(root) + 1 :]}
        await self._app(scope, receive, send)


def chat(
    ledger: LocalLedger,
    handler: Handler,
    *,
    format: str = "ui-v6",
    authorize: Callable[..., Any] | None = None,
    allow_origins: Sequence[str] = (),
    limits: Limits | None = None,
    linger: float = LINGER_S,
) -> ASGIApp:
    """Return an app to be mounted where a chat client posts: `useChat` of each AI SDK major, or an AG-UI client.

    `handler(chat)` answers: an async generator of texts and events, a coroutine function that returns one, or any
    function that works in `chat.session`. Without `authorize` every caller may chat; see `callslip.asgi`. For `linger`
    seconds after its end a turn can still be resumed.
    """
    authorizer = authorizers.CallbackAuthorizer(authorize) if authorize else authorizers.AllowAll()
    app = ChatApp(Server(ledger, authorizer, limits), handler, format, linger)
    return BrowserGuard(OneSlash(build(app.server, app.routes())), allow_origins=allow_origins)
