"""A route for chat clients: they post what a person said, a handler answers, and the ledger's stream is what they read.

Answering and reading are two things: a lost connection stops nothing, whoever comes back is told the turn from its
start, and stopping is an action of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import uuid4

import msgspec
from starlette.responses import Response

from callslip.errors import ConflictError, InvalidInputError, NotFoundError
from callslip.formats import registry
from callslip.http import access as gates
from callslip.http import chat_request, chat_stream, ingest
from callslip.http.access import Principal
from callslip.http.app import build
from callslip.http.browser_guard import BrowserGuard
from callslip.http.chat_request import ChatRequest, Decision, Result
from callslip.http.chat_stream import Asked, waits
from callslip.http.limits import Limits
from callslip.http.problems import Unsupported
from callslip.http.request import RequestContext, Route, Server, answer
from callslip.http.turn_runner import CLIENT, Chat, Handler, TurnRunner
from callslip.ledger import queries
from callslip.model import events as ev
from callslip.model.entries import Message
from callslip.model.events import Draft, Event, decode_event
from callslip.model.names import check_session_name
from callslip.model.records import CallRecord, SessionRecord
from callslip.rules.fold import SessionFold
from callslip.rules.lifecycle import TERMINAL_STATES

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from callslip.api.ledger import Ledger


REPLACING = ("ui-v5", "ui-v6", "ui-v7")
"""The formats whose clients put a turn that they are told again in the place of the one that they have."""
LINGER = 30.0
LEFT_OUT = "x-callslip-turn"
"""The header that names the turn which a history leaves out, since it comes by the stream."""


class ChatApp:
    """One handler behind one format."""

    def __init__(self, server: Server, handler: Handler, format: str, linger: float) -> None:
        if format not in chat_request.READ:
            raise InvalidInputError(
                "format", f"{format!r} has no chat client; these have: {', '.join(sorted(chat_request.READ))}"
            )
        self.server = server
        self.format = format
        self.linger = linger
        self.answering = TurnRunner(server.ledger, handler)

    def routes(self) -> list[Route]:
        return [
            Route(method="POST", path="/", endpoint=self.post, verb="write", about="Go on with a chat."),
            Route(method="GET", path="/", endpoint=self.resume_asked, about="Come back to a chat, as version 4 does."),
            Route(method="GET", path="/{chat}", endpoint=self.history, about="The messages of a chat."),
            Route(method="GET", path="/{chat}/stream", endpoint=self.resume, about="Come back to a chat."),
            Route(method="POST", path="/{chat}/stop", endpoint=self.stop, verb="write", about="Stop answering."),
        ]

    # Going on

    async def post(self, visit: RequestContext) -> Response:
        """A prompt begins a turn; answers go to the calls that wait for them. Either way the turn is streamed."""
        body = await _body(visit)
        given = chat_request.read(self.format, body)
        name = check_session_name(given.chat)
        row = await visit.ledger.log.store.session(name)
        who = await visit.admit(row or SessionRecord(name=name))
        if given.asks:
            asked = Asked(name, self.format, await self._asked(visit, row, who, given, body), given.run)
        else:
            asked = await self._answered(visit, row, given)
        return self._told(visit, asked)

    async def _asked(
        self, visit: RequestContext, row: SessionRecord | None, who: Principal, given: ChatRequest, body: Any
    ) -> str:
        """The turn that answers a prompt: one that began with it before, or a new one."""
        before = await _begun_before(visit.ledger, row, given)
        if before:
            return before
        try:
            started = await self._begin(visit, row, who, given)
        except ConflictError:  # Posted twice at once: somebody else answers it.
            row = await visit.ledger.log.store.session(check_session_name(given.chat))
            before = await _begun_before(visit.ledger, row, given)
            if not before:
                raise
            return before
        session = visit.ledger.session(check_session_name(given.chat))
        chat = Chat(session, started.turn, given.prompt, given.message, given.messages, body, who.given or who.name)
        self.answering.begin(chat, started.seq)
        return started.turn

    async def _begin(
        self, visit: RequestContext, row: SessionRecord | None, who: Principal, given: ChatRequest
    ) -> ev.TurnStarted:
        """A new turn, with what was said. Its key holds for one request alone, so that whoever wrote it knows."""
        key = _key(row.turns + 1 if row else 1, given)
        turn = Draft(ev.TurnStarted(), key=key, mark=uuid4().hex if key else "")
        drafts = [*([] if row else [ingest.owned_by(who)]), turn, _prompt(given)]
        owner = visit.ledger.log.owner  # The handler works in this process: if that dies, the turn ends.
        made = await ingest.write(visit, who, check_session_name(given.chat), drafts, source="chat", owner=owner)
        return next(event for event in made if isinstance(event, ev.TurnStarted))

    async def _answered(self, visit: RequestContext, row: SessionRecord | None, given: ChatRequest) -> Asked:
        """The turn whose calls were answered, from where the client has it."""
        if row is None:
            raise NotFoundError(f"no chat {given.chat!r}")
        waited = await _waited(visit.ledger, row.name, given)
        if not waited:
            raise ConflictError("nothing in this chat waits for what was posted")
        asked, turn = max(waited)
        known = chat_stream.known(self.format, await _had(visit.ledger, row.name, turn, asked), turn)
        who = await visit.admit(row, "approve") if given.decisions else await visit.admit(row)
        for decision in given.decisions:
            await _decide(visit.ledger, row.name, who, decision)
        for result in given.results:
            await _take(visit.ledger, row.name, result)
        return Asked(row.name, self.format, turn, given.run, known, given.messages)

    # Reading

    async def resume(self, visit: RequestContext) -> Response:
        """The turn that is being answered, from its start; 204 if there is none."""
        return await self._resumed(visit, visit.request.path_params["chat"])

    async def resume_asked(self, visit: RequestContext) -> Response:
        return await self._resumed(visit, visit.request.query_params.get("chatId", ""))

    async def _resumed(self, visit: RequestContext, name: str) -> Response:
        row = await visit.ledger.log.store.session(name)
        await visit.admit(row or SessionRecord(name=name))
        turn = visit.request.query_params.get("turn", "")
        turn = turn or (await self._current(visit.ledger, row) if row else "")
        return self._told(visit, Asked(name, self.format, turn)) if turn else self._idle()

    async def _current(self, ledger: Ledger, row: SessionRecord) -> str:
        """The turn to come back to: the one that is being answered.

        Who lost the connection shortly before its end would have half of it for good, so it may be had for a moment
        more by clients that put it in the place of what they have.
        """
        busy = await _busy(ledger, row)
        if busy or self.format not in REPLACING or await ledger.log.store.clock() - row.updated_at > self.linger * 1000:
            return busy
        return (await ledger.snapshot(row.name, limit=1)).info.last_turn

    def _idle(self) -> Response:
        """That nothing is being answered. Version 4 takes an answer without a body for an error."""
        if self.format == "vercel-v4":
            return Response(b"", 200, dict(registry.streaming(self.format).headers))
        return Response(None, 204)

    def _told(self, visit: RequestContext, asked: Asked) -> Response:
        headers = registry.streaming(self.format).headers
        return visit.stream(partial(chat_stream.write, self.server, asked), headers, asked.session)

    async def history(self, visit: RequestContext) -> Response:
        """The messages to begin with, oldest first. The answer that is still being given comes by the stream."""
        row = await visit.session(visit.request.path_params["chat"])
        busy = await _busy(visit.ledger, row)
        snapshot = await visit.ledger.snapshot(row.name)
        kept = [entry for entry in snapshot.entries if not busy or entry.turn != busy or _is_users(entry)]
        messages = registry.encoder(self.format)(msgspec.structs.replace(snapshot, entries=kept))
        messages = messages[::-1] if registry.find(self.format).newest_first else messages
        return answer(messages, headers={LEFT_OUT: quote(busy)} if busy else {})

    async def stop(self, visit: RequestContext) -> Response:
        """End the turn that is being answered, wherever that is. Nothing to stop is no error."""
        row = await visit.session(visit.request.path_params["chat"])
        who = await visit.admit(row)
        if row.turn:
            ending = ev.TurnEnded(turn=row.turn, reason="cancelled", detail=f"stopped by {who.name}")
            await visit.ledger.log.append(row.name, [ending], source="chat")
        return answer({"stopped": bool(row.turn)})


async def _body(visit: RequestContext) -> dict[str, Any]:
    media = visit.request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media not in ("", "application/json"):
        raise Unsupported(f"{media} is not read here: application/json")
    return await visit.body(dict[str, Any])


# Prompts


def _key(number: int, given: ChatRequest) -> str:
    """A prompt begins one turn, however often it is posted: the turn of this number."""
    return f"chat:{number}:{given.name}" if given.name and not given.again else ""


async def _begun_before(ledger: Ledger, row: SessionRecord | None, given: ChatRequest) -> str:
    """The session's last turn, if it began with this very request; "" if not, or if another answer is wanted."""
    if row is None or not row.turns or (given.repeats and not row.turn):
        return ""
    key = _key(row.turns, given)
    rows = await ledger.log.store.keys(row.name, key[:-1], 1) if key else []
    found = await ledger.log.store.events(row.name, rows[0].seq - 1, 1) if rows and rows[0].key == key else []
    event = decode_event(found[0][1]) if found else None
    return event.turn if isinstance(event, ev.TurnStarted) else ""


def _prompt(given: ChatRequest) -> Event:
    """What the person said. It stands at the beginning of each turn that answers it, as the model has to read it."""
    return ev.MessageUser(text=given.prompt, message_id=given.said, content=given.content)


# Answers


async def _waited(ledger: Ledger, session: str, given: ChatRequest) -> list[tuple[int, str]]:
    """What waits for what was posted, or has waited for it: the events that asked, and their turns."""
    found: list[tuple[int, str]] = []
    for decision in given.decisions:
        row = await ledger.find_approval(decision.approval, session)
        call = await ledger.log.store.call(row.call)
        found += [(row.entry, call.turn)] if call else []
    for result in given.results:
        call = await _theirs(ledger, session, result.call)
        found += [(call.entry, call.turn)] if call else []
    return found


async def _had(ledger: Ledger, session: str, turn: str, asked: int) -> SessionFold:
    """The session as the client has it: as it stood when its stream ended, as all that it was asked for waited."""
    state = await queries.load_turn(ledger.log.store, session, turn)
    if state.seq == asked:
        return state
    state = await ledger.log.state_at(session, asked)
    async for event in ledger.events(session, asked):
        if waits(state, turn):
            break
        state.apply(event)
    return state


async def _theirs(ledger: Ledger, session: str, shown: str) -> CallRecord | None:
    """A call that the client runs, by the id that it knows. Of any other it has no say."""
    found = [row for row in await ledger.log.store.alias(shown, session) if row.client_call_id == shown]
    row = found[0] if found else await ledger.log.store.call(shown)
    return row if row is not None and row.session == session and row.worker == CLIENT else None


async def _decide(ledger: Ledger, session: str, who: Principal, decision: Decision) -> None:
    """The first answer counts; a client that says again what it said before is not told off."""
    told = {"by": who.name, "session": session}
    try:
        if decision.approved:
            input, reason = decision.input, decision.reason
            await ledger.approve(decision.approval, input=input, reason=reason, **told)
        else:
            reason = decision.reason or f"denied by {who.name}"
            await ledger.deny(decision.approval, reason=reason, **told)
    except ConflictError:
        pass


async def _take(ledger: Ledger, session: str, result: Result) -> None:
    """What a tool of the client came to. Of a call that is not open, or not theirs, nothing is taken."""
    row = await _theirs(ledger, session, result.call)
    if row is None or row.state in TERMINAL_STATES:
        return
    error = result.error
    failed = ev.CallFailed(call=row.id, error=error, reason=error)
    ended = failed if error else ev.CallCompleted(call=row.id, output=result.output)
    await ledger.log.append(session, [ended], source="chat")


# Turns


async def _busy(ledger: Ledger, row: SessionRecord) -> str:
    """The turn that is being answered: the open one, or one that has ended and whose last calls have not."""
    if row.turn:
        return row.turn
    page = await ledger.calls(session=row.name, states=("queued", "running", "awaiting_approval"), limit=100)
    return next((call.turn for call in page.items if call.scope == "turn" and call.turn), "")


def _is_users(entry: Any) -> bool:
    return isinstance(entry, Message) and entry.role == "user"


class OneSlash:
    """Takes `//` for `/` after the prefix: version 5 makes that of an address which ends with a slash."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root = scope.get("root_path", "").rstrip("/")
        if scope["type"] == "http" and scope["path"].startswith(f"{root}//"):
            scope = {**scope, "path": root + scope["path"][len(root) + 1 :]}
        await self._app(scope, receive, send)


def chat(
    ledger: Ledger,
    handler: Handler,
    *,
    format: str = "ui-v6",
    authorize: Callable[..., Any] | None = None,
    allow_origins: Sequence[str] = (),
    limits: Limits | None = None,
    linger: float = LINGER,
) -> ASGIApp:
    """An app to be mounted where a chat client posts: `useChat` of each AI SDK major, or an AG-UI client.

    `handler(chat)` answers: an async generator of texts and events, a coroutine function that gives one, or anything
    that works in `chat.session` meanwhile. Without `authorize` everybody may chat; see `callslip.asgi`. For `linger`
    seconds after its end a turn can still be come back to.
    """
    from callslip import http

    gate = gates.CallbackAuthorizer(authorize) if authorize else gates.AllowAll()
    app = ChatApp(http.server(ledger, gate, limits), handler, format, linger)
    return BrowserGuard(OneSlash(build(app.server, app.routes())), allow_origins=allow_origins)
