"""What each chunk about a tool call says, as events. Which call is meant, and what that is worth, the ledger decides.

A call waits for the client from the moment its arguments are whole. Streams of our own carry under
`toolMetadata.callslip` what version 6 has no word for; it is read here, so that a stream of ours reads as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from msgspec import UNSET, structs

from callslip.formats.ai_sdk.account import Account, Call
from callslip.formats.ai_sdk.reading import leaves, mark
from callslip.formats.ai_sdk.wire import Chunk
from callslip.formats.json_fields import as_dict, as_list, as_str, identifier
from callslip.model import events as ev
from callslip.model.events import Alias, CallEnd, Event
from callslip.rules.approval_options import choose_option

Events: TypeAlias = list[Event]

OPTIONS = [
    {"optionId": "approve", "name": "Approve", "kind": "allow_once"},
    {"optionId": "deny", "name": "Deny", "kind": "reject_once"},
]
BEGUN_ANEW = "the model began its step anew"

# How calls end in our own streams, where the client's only word is an error.
ENDED: dict[str, type[CallEnd]] = {
    "denied": ev.CallDenied,
    "cancelled": ev.CallCancelled,
    "expired": ev.CallExpired,
    "lost": ev.CallLost,
}
# What an end means to a request that nobody was seen to answer.
ANSWERS: dict[type[CallEnd], type[ev.ApprovalAnswer]] = {
    ev.CallCompleted: ev.ApprovalGranted,
    ev.CallDenied: ev.ApprovalRefused,
    ev.CallCancelled: ev.ApprovalWithdrawn,
}

_TAKEN = {
    *("type", "toolCallId", "toolName", "title", "dynamic", "inputEncoding", "toolMetadata", "input", "inputTextDelta"),
    *("output", "preliminary", "errorText", "approvalId", "approvalDescriptor", "approved", "reason"),
}
_OURS = {"callId", "state", "kind", "reason", "exitStatus", "scope"}
_QUESTION = {"description", "options"}


def says_more(chunk: Chunk) -> bool:
    """Whether a chunk is to be kept whole beside what was made of it."""
    return bool(
        leaves(chunk, _TAKEN)
        or leaves(as_dict(chunk.get("toolMetadata")), {"callslip"})
        or leaves(_ours(chunk), _OURS)
        or leaves(as_dict(chunk.get("approvalDescriptor")), _QUESTION)
    )


class Calls:
    """All calls of one conversation, by the ids that chunks call them by."""

    def __init__(self, format: str) -> None:
        self._format = format
        self._newest: dict[str, Call] = {}
        self._asked: dict[str, str] = {}

    def read(self, account: Account, chunk: Chunk) -> Events | None:
        """What a chunk says of a call; None if it is not understood."""
        identity = identifier(chunk.get("toolCallId"))
        rule = self._RULES[chunk["type"]]
        return rule(self, account, identity, chunk) if identity else _nameless(account, chunk)

    def dropped(self, account: Account) -> Events:
        """The step of a message is begun anew: nobody runs what it had called for."""
        left = account.drop_step()
        return [ev.CallCancelled(aliases=self._alias(identity), reason=BEGUN_ANEW) for identity in left]

    def _alias(self, identity: str) -> tuple[Alias, ...]:
        return (Alias(self._format, identity),)

    def _heard_of(self, account: Account, identity: str) -> Call:
        """The newest call of an id; one that nobody proposed is heard of now."""
        return self._newest.get(identity) or self._newest.setdefault(identity, account.begin_call(identity))

    # Arguments

    def _begun(self, account: Account, identity: str, chunk: Chunk) -> Events:
        known = account.call(identity)
        if known is not None and account.again:
            return []
        if known is None or known.ended:
            known = account.begin_call(identity)
        self._newest[identity] = known
        return [self._proposed(identity, known, chunk), *self._standing(identity, known, chunk)]

    def _piece(self, account: Account, identity: str, chunk: Chunk) -> Events | None:
        piece = chunk.get("inputTextDelta")
        if not isinstance(piece, str):
            return None
        fresh, other = self._heard_of(account, identity).written.news(piece)
        return [ev.CallInputDelta(aliases=self._alias(identity), text=fresh)] if fresh and not other else []

    def _whole(self, account: Account, identity: str, chunk: Chunk) -> Events:
        """The arguments. In one step they may come again, changed; in the next one they are another call's."""
        call = self._newest[identity] = account.call(identity) or account.begin_call(identity)
        made: Events = []
        said = mark(told(chunk))
        if not call.proposed and not call.ended:
            made = [self._proposed(identity, call, chunk)]
        elif not account.again or call.said != said:
            made = [ev.CallInput(aliases=self._alias(identity), **told(chunk))]
        call.whole, call.said = True, said
        call.remote = call.remote or chunk.get("providerExecuted") is True
        return made + self._standing(identity, call, chunk)

    def _proposed(self, identity: str, call: Call, chunk: Chunk) -> Event:
        call.proposed = True
        aliases, said = self._alias(identity), told(chunk)
        return ev.CallProposed(aliases=aliases, **said, iteration=call.iteration, index=call.index)

    def _standing(self, identity: str, call: Call, chunk: Chunk) -> Events:
        """Where our own streams say that an open call stands; the client has one word for it."""
        state = _ours(chunk).get("state")
        return self._approved(identity, call, state == "running") if state in ("queued", "running") else []

    def _approved(self, identity: str, call: Call, running: bool = True) -> Events:
        """A call that is to run, or runs, has its answer, whoever gave it."""
        if call.ended:
            return []
        made = self._answered(identity, call, ev.ApprovalGranted) if call.asked else []
        if running and not call.started:
            call.started = True
            made.append(ev.CallStarted(aliases=self._alias(identity)))
        return made

    def _malformed(self, account: Account, identity: str, chunk: Chunk) -> Events:
        """The model wrote arguments that the tool does not take: one bad call only (C11)."""
        call = self._newest[identity] = account.call(identity) or account.begin_call(identity)
        made = [] if call.proposed or call.ended else [self._proposed(identity, call, chunk)]
        return made + self._ended(account, identity, ev.CallFailed(**told(chunk), **_error(chunk)))

    # What came out

    def _output(self, account: Account, identity: str, chunk: Chunk) -> Events:
        """The output; `preliminary` is the output so far of a call that goes on."""
        output = chunk.get("output", UNSET)
        if chunk.get("preliminary") is not True:
            return self._ended(account, identity, ev.CallCompleted(output=output, **_ending(chunk)))
        call = self._heard_of(account, identity)
        if account.again and call.ended:
            return []
        running = self._approved(identity, call)
        return [*running, ev.CallProgress(aliases=self._alias(identity), progress=output)]

    def _failed(self, account: Account, identity: str, chunk: Chunk) -> Events:
        """An error; in our own streams also the ends that the client has no word for."""
        kind = ENDED.get(as_str(_ours(chunk).get("state")))
        told = _error(chunk) if kind is None else _came_out(chunk)
        return self._ended(account, identity, (kind or ev.CallFailed)(**told, **_ending(chunk)))

    def _denied(self, account: Account, identity: str, chunk: Chunk) -> Events:
        return self._ended(account, identity, ev.CallDenied())

    def _ended(self, account: Account, identity: str, end: CallEnd) -> Events:
        """A call ends, and with it what it still asked: the way it ended is the answer, if it is one."""
        call, said = self._heard_of(account, identity), mark(end)
        echo = call.refused and isinstance(end, ev.CallDenied)
        if echo or (account.again and call.ended == said):
            return []
        answer = ANSWERS.get(type(end)) if call.asked else None
        made = self._answered(identity, call, answer, end.reason) if answer else []
        call.ended, call.asked = said, ""
        if made and not isinstance(end, ev.CallCompleted):
            return made  # To refuse or to withdraw is the end.
        return [*made, structs.replace(end, aliases=self._alias(identity))]

    # Approval

    def _requested(self, account: Account, identity: str, chunk: Chunk) -> Events | None:
        """A request for approval. The protocol knows only yes and no; the options say so in words."""
        asked, question = identifier(chunk.get("approvalId")), as_dict(chunk.get("approvalDescriptor"))
        if not asked:
            return None
        call = self._heard_of(account, identity)
        if asked == call.asked or asked in call.closed:
            return []
        call.closed.add(call.asked)
        call.asked, self._asked[asked] = asked, identity
        call.options = as_list(question.get("options")) or OPTIONS
        description = as_str(question.get("description")) or as_str(chunk.get("reason"))
        aliases = (*self._alias(identity), *self._question(asked))
        return [ev.ApprovalRequested(aliases=aliases, description=description, options=call.options)]

    def _question(self, asked: str) -> tuple[Alias, ...]:
        """The id of a request is another name of its call, by which an answer that names no call finds it."""
        return (Alias(f"{self._format}-approval", asked),)

    def responded(self, chunk: Chunk) -> Events | None:
        """The answer to a request: in a stream the agent's own, in a message, which names the call, the client's."""
        approved, asked = chunk.get("approved"), identifier(chunk.get("approvalId"))
        if not isinstance(approved, bool) or not asked:
            return None
        kind = ev.ApprovalGranted if approved else ev.ApprovalRefused
        by = "client" if "toolCallId" in chunk and chunk.get("isAutomatic") is not True else "agent"
        identity = identifier(chunk.get("toolCallId")) or self._asked.get(asked, "")
        call, reason = self._newest.get(identity), as_str(chunk.get("reason"))
        if call is not None and (call.ended or asked in call.closed):
            return []  # It has its answer, or is over.
        if call is not None and call.asked == asked:
            return self._answered(identity, call, kind, reason, by, choose_option(call.options, approved))
        option = choose_option(OPTIONS, approved)
        aliases = self._alias(identity) if identity else self._question(asked)
        return [kind(approval=asked, aliases=aliases, option=option, by=by, reason=reason)]

    def _answered(
        self,
        identity: str,
        call: Call,
        kind: type[ev.ApprovalAnswer],
        reason: str = "",
        by: str = "agent",
        option: str = "",
    ) -> Events:
        call.closed.add(call.asked)
        call.asked = ""
        if kind is not ev.ApprovalGranted:
            call.ended, call.refused = kind.__name__, kind is ev.ApprovalRefused
        return [kind(aliases=self._alias(identity), option=option, by=by, reason=reason)]

    _RULES: ClassVar[dict[str, Callable[[Any, Account, str, Chunk], Events | None]]] = {
        "tool-input-start": _begun,
        "tool-input-delta": _piece,
        "tool-input-available": _whole,
        "tool-input-error": _malformed,
        "tool-output-available": _output,
        "tool-output-error": _failed,
        "tool-output-denied": _denied,
        "tool-approval-request": _requested,
    }
    KINDS: ClassVar[frozenset[str]] = frozenset(_RULES)


def told(chunk: Chunk) -> dict[str, Any]:
    """What a chunk mentions of its call."""
    named = {"tool_name": chunk.get("toolName"), "title": chunk.get("title"), "kind": _ours(chunk).get("kind")}
    said: dict[str, Any] = {name: value for name, value in named.items() if value and isinstance(value, str)}
    return {**said, "input": chunk["input"]} if "input" in chunk else said


def _ours(chunk: Chunk) -> dict[str, Any]:
    return as_dict(as_dict(chunk.get("toolMetadata")).get("callslip"))


def _error(chunk: Chunk) -> dict[str, Any]:
    return {"error": chunk["errorText"]} if "errorText" in chunk else {}


def _came_out(chunk: Chunk) -> dict[str, Any]:
    """What our own streams write of a call that did not end well: how, why, and on lines of its own what came out."""
    text, reason = as_str(chunk.get("errorText")), as_str(_ours(chunk).get("reason"))
    head, _, output = text.partition("\n")
    _, told, why = text.partition(": ")
    if told and ": " in head:
        if not reason or not f"{why}\n".startswith(f"{reason}\n"):
            return {"error": why}
        output = why[len(reason) + 1 :]
    return {"output": output} if output else {}


def _ending(chunk: Chunk) -> dict[str, Any]:
    """What our own streams tell of an end beside its output."""
    ours = _ours(chunk)
    told: dict[str, Any] = {"reason": as_str(ours.get("reason"))}
    told |= {"kind": ours["kind"]} if isinstance(ours.get("kind"), str) else {}
    return told | ({"exit_status": ours["exitStatus"]} if "exitStatus" in ours else {})


def _nameless(account: Account, chunk: Chunk) -> Events | None:
    """A call without an id is heard of once: all that is known of it is in one chunk (C2)."""
    kind = chunk["type"]
    if kind == "tool-input-available":
        return [ev.CallProposed(**told(chunk), iteration=account.iteration(), index=account.next_index())]
    if kind in ("tool-input-error", "tool-output-error"):
        return [ev.CallFailed(**told(chunk), **_error(chunk))]
    if kind == "tool-output-available":
        return [ev.CallCompleted(output=chunk.get("output", UNSET))]
    return None
