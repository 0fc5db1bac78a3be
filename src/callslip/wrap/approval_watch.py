"""Permission requests that wait for an answer in the ledger, in the recorder: record them and watch for the answer.

The answer is an event of the log before the agent receives it, whether it came from a user, a rule or the expiry. If
the call ends without an answer, because its turn ended or the client cancelled it, the agent receives `cancelled`, as
the Agent Client Protocol requires.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from callslip.api.rules import answer_by_rules
from callslip.errors import SlowReaderError, StoreError
from callslip.formats.acp.wire import AGENT, CLIENT, Message
from callslip.formats.json_fields import as_dict
from callslip.ingest.conversations import Conversation
from callslip.ledger.event_log import EventLog
from callslip.model import codec, ids
from callslip.model import events as ev
from callslip.model.events import Draft, Event
from callslip.rules.approval_options import choose_option, option_ids
from callslip.wrap.frames import Kind, encode_answer

RETRY_DELAY_S = 0.25
CLIENT_CLOSED = "the client disconnected"
TURN_CANCELLED = "the client cancelled the turn"
REQUEST_WITHDRAWN = "the agent withdrew its request"


class Request(msgspec.Struct):
    """A held request. `is_watched` once it is recorded, `is_settled` once the front is to answer or release it.

    `client` is where it must be answered once it is released. Saved rules answer it unless it `needs_person`.
    """

    request_id: bytes
    conversation: Conversation
    event: ev.ApprovalRequested | None = None
    client: str = ""
    is_watched: bool = False
    is_settled: bool = False
    watch: asyncio.Task[None] | None = None
    needs_person: bool = False


class ApprovalWatcher:
    """The held requests of one run. `reply` sends a frame to the front."""

    def __init__(self, log: EventLog, reply: Callable[[Kind, bytes], None]) -> None:
        self._log, self._reply = log, reply
        self._requests: dict[bytes, Request] = {}
        self._clock_difference_ms = 0
        self._cancelled: set[int] = set()  # The `id()` of conversations, all of which live as long as the run.

    async def read_clock(self) -> None:
        """Compare the store's clock, by which requests expire, with the clock of this machine."""
        with contextlib.suppress(StoreError):
            self._clock_difference_ms = await self._log.store.clock() - int(time.time() * 1000)

    def add(
        self, conversation: Conversation, message: Any, drafts: list[Draft], at: float, *, needs_person: bool = False
    ) -> list[Draft]:
        """Add a held request. Return its drafts with an approval id and the time when it expires."""
        request_id = _request_id(message)
        request = self._requests[request_id] = Request(request_id, conversation, needs_person=needs_person)
        drafts = [self._identify(request, draft, at) for draft in drafts]
        if request.event is not None and id(conversation) in self._cancelled:
            drafts.append(_withdrawal(request.event, "client", TURN_CANCELLED))
        return drafts

    def _identify(self, request: Request, draft: Draft, at: float) -> Draft:
        if not isinstance(draft.event, ev.ApprovalRequested):
            return draft
        expires = int((at + self._log.settings.approval_expiry) * 1000) + self._clock_difference_ms
        request.client = draft.event.answer_at
        request.event = structs.replace(draft.event, approval=ids.approval_id(), expires_at=expires, answer_at="")
        return structs.replace(draft, event=request.event)

    def on_event(self, session: str, event: Event) -> None:
        """Watch a request once it is recorded."""
        if not isinstance(event, ev.ApprovalRequested) or event.verdict != "applied":
            return
        for request in self._requests.values():
            if request.event is not None and request.event.approval == event.approval:
                request.is_watched = True
                request.watch = asyncio.ensure_future(self._watch(request, session, event))

    def release_unrecorded(self) -> None:
        """After a write, release requests that the ledger did not accept, because they cannot be answered in it."""
        for request in self._requests.values():
            if not request.is_watched and not request.is_settled:
                self._release(request)

    def _release(self, request: Request) -> None:
        request.is_settled = True
        self._reply(Kind.RELEASE, request.request_id)

    async def _watch(self, request: Request, session: str, recorded: ev.ApprovalRequested) -> None:
        if not request.needs_person:
            with contextlib.suppress(Exception):  # An error must not block the agent: a person answers.
                await answer_by_rules(self._log, recorded.approval)
        after = recorded.seq
        while not request.is_settled:
            try:
                async with contextlib.aclosing(self._log.batches(session, after)) as batches:
                    async for batch in batches:
                        for event in (stored.event for stored in batch):
                            after = event.seq
                            if _is_answer(event, recorded.call):
                                return self._answer(request, recorded, event)
            except (SlowReaderError, StoreError):
                await asyncio.sleep(RETRY_DELAY_S)
            except Exception:  # The session was deleted, or there is a bug, which must not block the agent.
                self._release(request)

    def _answer(self, request: Request, recorded: ev.ApprovalRequested, event: Event) -> None:
        request.is_settled = True
        if isinstance(event, ev.ApprovalGranted) and event.approval != recorded.approval:
            event = ev.ApprovalWithdrawn()  # Another request about the same call was granted, not this one.
        result = {"outcome": acp_outcome(recorded.options, event)}
        answer = {"jsonrpc": "2.0", "id": codec.parse_json(request.request_id), "result": result}
        self._reply(Kind.ANSWER, encode_answer(request.request_id, codec.encode(answer) + b"\n"))

    # Reports of the front, and messages between client and agent

    def on_answer_sent(self, message: Any, drafts: list[Draft]) -> list[Draft]:
        """Return the drafts of an answer without the answer itself, which the ledger has."""
        self._remove(_request_id(message))
        return [draft for draft in drafts if not isinstance(draft.event, ev.ApprovalAnswer)]

    def on_released(self, request_id: bytes) -> None:
        """Record a released request again, without a time to expire, because the client may take any time."""
        request = self._remove(request_id)
        if request is not None and request.event is not None:
            again = structs.replace(request.event, approval="", expires_at=0, answer_at=request.client)
            request.conversation.keep(None, [Draft(again)])

    def on_message(self, conversation: Conversation, part: Any) -> None:
        """Withdraw requests that a message of the client or the agent cancels."""
        if not isinstance(part, Message):
            return
        if part.method == "session/prompt":  # A new turn, or the end of the cancelled one.
            self._cancelled.discard(id(conversation))
        elif (part.direction, part.method) == (CLIENT, "session/cancel"):
            self._cancelled.add(id(conversation))
            requests = [request for request in self._requests.values() if request.conversation is conversation]
            self._withdraw(requests, "client", TURN_CANCELLED)
        elif (part.direction, part.method) == (AGENT, "$/cancel_request"):
            request = self._requests.get(_request_id({"id": part.params.get("requestId")}))
            self._withdraw([request] if request else [], "agent", REQUEST_WITHDRAWN)

    def on_client_closed(self) -> None:
        """Withdraw all requests: the agent cannot receive an answer any more."""
        self._withdraw(list(self._requests.values()), "client", CLIENT_CLOSED)

    def _withdraw(self, requests: list[Request], by: str, reason: str) -> None:
        for request in requests:
            if request.event is not None and not request.is_settled:
                request.conversation.keep(None, [_withdrawal(request.event, by, reason)])

    def _remove(self, request_id: bytes) -> Request | None:
        request = self._requests.pop(request_id, None)
        if request is not None and request.watch is not None:
            request.watch.cancel()
        return request

    async def close(self) -> None:
        """Stop watching all requests."""
        watches = [request.watch for key in list(self._requests) if (request := self._remove(key)) and request.watch]
        await asyncio.gather(*watches, return_exceptions=True)


def _request_id(message: Any) -> bytes:
    return codec.encode(as_dict(message).get("id"))


def _withdrawal(request: ev.ApprovalRequested, by: str, reason: str) -> Draft:
    return Draft(ev.ApprovalWithdrawn(approval=request.approval, by=by, reason=reason))


def _is_answer(event: Event, call: str) -> bool:
    """Return whether an event answers the requests about a call, or ends the call without an answer."""
    is_about_call = isinstance(event, ev.ApprovalAnswer | ev.CallEnd) and event.call == call
    return is_about_call and event.verdict == "applied"


def acp_outcome(options: list[Any], event: Event) -> dict[str, Any]:
    """Return the outcome for the agent: the option in the answer, or one with that meaning, or `cancelled`.

    An agent that starts the call without an answer is recorded as granting it itself, which allows nothing.
    """
    option = ""
    if isinstance(event, ev.ApprovalGranted | ev.ApprovalRefused) and event.by != "agent":
        is_offered = event.option in option_ids(options)
        option = event.option if is_offered else choose_option(options, isinstance(event, ev.ApprovalGranted))
    return {"outcome": "selected", "optionId": option} if option else {"outcome": "cancelled"}
