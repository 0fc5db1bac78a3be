"""Requests that wait for an answer in the ledger: recorded with a time to expire, watched, and told to the front.

The answer is an event of the log before the agent hears of it, whoever gave it: a person, a rule, or time. What ends
the call without one, the end of its turn or the client that cancels it, is `cancelled` to the agent, as ACP has it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from callslip.api.ledger import Ledger
from callslip.errors import SlowReaderError, StoreError
from callslip.formats.acp.wire import AGENT, CLIENT, Message
from callslip.formats.json_fields import as_dict
from callslip.ingest.conversations import Conversation
from callslip.model import codec, ids
from callslip.model import events as ev
from callslip.model.events import Draft, Event

RETRY_DELAY_S = 0.25
HUNG_UP = "the client hung up"
CANCELLED = "the client cancelled the turn"
TAKEN_BACK = "the agent took its request back"
KINDS: dict[type[Event], tuple[str, ...]] = {
    ev.ApprovalGranted: ("allow_once", "allow_always"),
    ev.ApprovalRefused: ("reject_once", "reject_always"),
}
"""The options that say what an answer says, the best first."""


class Request(msgspec.Struct):
    """A request that is held, by its id as JSON. `asked` once it is recorded and waits, `over` once it does not."""

    key: str
    talk: Conversation
    event: ev.ApprovalRequested | None = None
    asked: bool = False
    over: bool = False
    watch: asyncio.Task[None] | None = None


class ApprovalWatcher:
    """All requests of one run that are held. `tell` says to the front what becomes of them."""

    def __init__(self, ledger: Ledger, tell: Callable[[str], None]) -> None:
        self._ledger, self._tell = ledger, tell
        self._all: dict[str, Request] = {}
        self._cancelled: set[int] = set()  # Conversations, by Python's id: those of a run live as long as it does.

    def take(self, talk: Conversation, said: Any, drafts: list[Draft], at: float) -> list[Draft]:
        """What a held request says, with a name by which it is found, and the time that is left for an answer."""
        request = self._all[_key(said)] = Request(_key(said), talk)
        named = [self._named(request, draft, at) for draft in drafts]
        crossed = request.event is not None and id(talk) in self._cancelled
        return [*named, _withdrawn(request, "client", CANCELLED)] if crossed else named

    def _named(self, request: Request, draft: Draft, at: float) -> Draft:
        if not isinstance(draft.event, ev.ApprovalRequested):
            return draft
        expires = int((at + self._ledger.log.settings.approval_expiry) * 1000)
        request.event = structs.replace(draft.event, approval=ids.approval_id(), expires_at=expires)
        return structs.replace(draft, event=request.event)

    def see(self, session: str, event: Event) -> None:
        """Begin to watch a request that is recorded."""
        if not isinstance(event, ev.ApprovalRequested) or event.verdict != "applied":
            return
        for request in self._all.values():
            if request.event is not None and request.event.approval == event.approval:
                request.asked = True
                request.watch = asyncio.ensure_future(self._watch(request, session, event))

    def give_back(self) -> None:
        """After a write: a request that nobody can answer in the ledger goes to the client."""
        for request in self._all.values():
            if not request.asked and not request.over:
                self._leave(request)

    def _leave(self, request: Request) -> None:
        request.over = True
        self._tell(f"~{request.key}")

    async def _watch(self, request: Request, session: str, asked: ev.ApprovalRequested) -> None:
        after = asked.seq
        while not request.over:
            try:
                async with contextlib.aclosing(self._ledger.log.batches(session, after)) as batches:
                    async for batch in batches:
                        for event in (stored.event for stored in batch):
                            after = event.seq
                            if _answers(event, asked.call):
                                return self._answer(request, _meant_for(asked, event))
            except (SlowReaderError, StoreError):
                await asyncio.sleep(RETRY_DELAY_S)
            except Exception:  # Somebody deleted the session; or a defect of ours, which must keep nobody waiting.
                self._leave(request)

    def _answer(self, request: Request, event: Event) -> None:
        assert request.event is not None
        request.over = True
        result = {"outcome": outcome(request.event.options, event)}
        answer = {"jsonrpc": "2.0", "id": codec.parse_json(request.key), "result": result}
        self._tell(f"={request.key}\t{codec.encode(answer).decode()}")

    # What the front and the peers say of requests

    def answered(self, said: Any, drafts: list[Draft]) -> list[Draft]:
        """What an answer on the wire says beside what the ledger knows: it has the answer itself."""
        self._drop(_key(said))
        return [draft for draft in drafts if not isinstance(draft.event, ev.ApprovalAnswer)]

    def released(self, key: str) -> None:
        """The client has the request now, and all the time it wants: it is asked anew, and does not expire."""
        request = self._drop(key)
        if request is not None and request.event is not None:
            again = structs.replace(request.event, approval="", expires_at=0)
            request.talk.keep(None, [Draft(again)])

    def heard(self, talk: Conversation, part: Any) -> None:
        """What a message means for requests that wait: cancelled by the client, or taken back by the agent."""
        if not isinstance(part, Message):
            return
        if part.method == "session/prompt":  # A new turn, or the end of the one that was cancelled.
            self._cancelled.discard(id(talk))
        elif (part.direction, part.method) == (CLIENT, "session/cancel"):
            self._cancelled.add(id(talk))
            self._withdraw([one for one in self._all.values() if one.talk is talk], "client", CANCELLED)
        elif (part.direction, part.method) == (AGENT, "$/cancel_request"):
            request = self._all.get(_key({"id": part.params.get("requestId")}))
            self._withdraw([request] if request else [], "agent", TAKEN_BACK)

    def client_gone(self) -> None:
        self._withdraw(list(self._all.values()), "client", HUNG_UP)

    def _withdraw(self, requests: list[Request], by: str, reason: str) -> None:
        for request in requests:
            if request.event is not None and not request.over:
                request.talk.keep(None, [_withdrawn(request, by, reason)])

    def _drop(self, key: str) -> Request | None:
        request = self._all.pop(key, None)
        if request is not None and request.watch is not None:
            request.watch.cancel()
        return request

    async def close(self) -> None:
        """Nobody can be told any more."""
        watches = [request.watch for key in list(self._all) if (request := self._drop(key)) and request.watch]
        await asyncio.gather(*watches, return_exceptions=True)


def _key(said: Any) -> str:
    return codec.encode(as_dict(said).get("id")).decode()


def _withdrawn(request: Request, by: str, reason: str) -> Draft:
    assert request.event is not None
    return Draft(ev.ApprovalWithdrawn(approval=request.event.approval, by=by, reason=reason))


def _meant_for(asked: ev.ApprovalRequested, event: Event) -> Event:
    """Leave that was given to another request about the same call is none for this one."""
    other = isinstance(event, ev.ApprovalGranted) and event.approval != asked.approval
    return ev.ApprovalWithdrawn() if other else event


def _answers(event: Event, call: str) -> bool:
    about = isinstance(event, ev.ApprovalAnswer | ev.CallEnd) and event.call == call
    return about and event.verdict == "applied"


def outcome(options: list[Any], event: Event) -> dict[str, Any]:
    """What the agent is told: the option that was chosen, or one that says as much; `cancelled` if there is none.

    That an agent began without an answer is no leave to do so.
    """
    wanted = () if getattr(event, "by", "") == "agent" else KINDS.get(type(event), ())
    kinds = {
        identity: one.get("kind") for one in map(as_dict, options) if isinstance(identity := one.get("optionId"), str)
    }
    named = getattr(event, "option", "")
    fitting = [named] if named in kinds else [one for kind in wanted for one in kinds if kinds[one] == kind]
    return {"outcome": "selected", "optionId": fitting[0]} if wanted and fitting else {"outcome": "cancelled"}
