"""Reads the events of runs and the inputs that start them, each by its own row of a table.

A turn begins with a prompt, or with a run if no prompt was seen, and ends with the run. But a run that ends with an
interrupt, or leaves a call for the application to answer, leaves the turn open: the answers come with the input of the
next run, and that run goes on with the same turn. Were the turn to end there, the ledger would close the calls before
they can be answered.

A run that is told again, as servers do for a client that comes back, tells nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from msgspec import structs

from callslip.formats.ag_ui import calls
from callslip.formats.ag_ui.inputs import Inputs
from callslip.formats.ag_ui.lanes import Lanes, Stream
from callslip.formats.ag_ui.messages import Listing, messages_in
from callslip.formats.ag_ui.texts import Texts
from callslip.formats.ag_ui.turns import Turns
from callslip.formats.ag_ui.wire import ENVELOPE, FORMAT, RENAMED, leaves, time_of
from callslip.formats.base import Unfinished
from callslip.formats.json_fields import as_dict, as_list, as_str, identifier
from callslip.model import events as ev
from callslip.model.events import Draft, Event

Said: TypeAlias = dict[str, Any]
Made: TypeAlias = list[Event | Draft] | list[Event] | list[Draft] | None

# What does not end a text or call that comes in chunks; events of the run itself end those of all producers.
PASSING = {"RAW", "ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA", "REASONING_ENCRYPTED_VALUE", "SUBAGENT_STARTED"}
OF_THE_RUN = {"RUN_STARTED", "RUN_FINISHED", "RUN_ERROR", "MESSAGES_SNAPSHOT"}


class AgUiDecoder:
    """One conversation."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._turns = Turns()
        self._calls = calls.Calls()
        self._texts = Texts(chunks or "delta")
        self._listing = Listing(self._calls)
        self._inputs = Inputs(self._turns, self._calls, self._listing)
        self._lanes = Lanes()
        self._unfinished = Unfinished()

    def feed(self, message: Any) -> list[Draft]:
        event = as_dict(message)
        kind = as_str(event.get("type"))
        made = self._event(RENAMED.get(kind, kind), event) if kind else self._inputs.read(event)
        drafts = [Draft(_raw(message))] if made is None else made
        self._unfinished.see(drafts)
        return [_timed(draft, time_of(event)) for draft in drafts]

    def close(self, reason: str) -> list[Draft]:
        """The line ended, and the turn with it."""
        self._turns.end(reason)
        return [Draft(event) for event in self._unfinished.end(reason)]

    def _event(self, kind: str, event: Said) -> list[Draft]:
        rule, taken = self._RULES.get(kind, (None, ENVELOPE))
        made: list[Event | Draft] = [*self._ended(kind, event)]
        said = rule(self, event) if rule else None
        kept = said is None or leaves(event, taken) or _says_more(event)
        made += [*(said or []), *([_raw(event)] if kept else [])]
        drafts = [one if isinstance(one, Draft) else Draft(one) for one in made]
        return self._turns.due(drafts) + drafts

    # Chunks

    def _ended(self, kind: str, event: Said) -> list[Event]:
        """What an event ends of what comes in chunks."""
        if kind.endswith("_CHUNK") or kind in PASSING:
            return []
        closed = self._lanes.close_all() if kind in OF_THE_RUN else self._lanes.close(_owner(event))
        return self._close(closed)

    def _close(self, streams: list[Stream] | tuple[Stream, ...]) -> list[Event]:
        made: list[Event] = []
        for kind, identity in streams:
            made += (
                (self._calls.whole(identity) or [])
                if kind == "tool"
                else self._texts.end(identity, self._role(kind, identity))
            )
        return made

    def _role(self, kind: str, identity: str) -> str:
        return "reasoning" if kind == "reasoning" else self._texts.role_of(identity)

    def _text_chunk(self, event: Said) -> Made:
        return self._spoken_chunk("text", event)

    def _reasoning_chunk(self, event: Said) -> Made:
        return self._spoken_chunk("reasoning", event)

    def _spoken_chunk(self, kind: str, event: Said) -> Made:
        found = self._lanes.take(kind, identifier(event.get("messageId")), _owner(event)) if _is_sound(event) else None
        if found is None:
            return None
        identity, made = found.stream.id, self._close(found.ended)
        if found.begins:
            self._begin(identity, "reasoning" if kind == "reasoning" else as_str(event.get("role")) or "assistant")
        return made + self._texts.more(identity, self._role(kind, identity), as_str(event.get("delta")))

    def _tool_chunk(self, event: Said) -> Made:
        found = (
            self._lanes.take("tool", identifier(event.get("toolCallId")), _owner(event)) if _is_sound(event) else None
        )
        if found is None:
            return None
        identity, made = found.stream.id, self._close(found.ended)
        if found.begins:
            made += self._calls.started(identity, as_str(event.get("toolCallName")), _parent(event))
        return made + self._calls.written(identity, as_str(event.get("delta")))

    # Runs

    def _run_started(self, event: Said) -> Made:
        run = identifier(event.get("runId"))
        told = self._inputs.read(as_dict(event.get("input")), echo=True) or []
        again = self._turns.is_known(run)
        begun = self._turns.run_started(run, identifier(event.get("parentRunId")))
        self._calls.run_started(run, again)
        if again:
            self._texts.read_again()
        elif begun:
            self._calls.turn_started()
        return [*told, *begun]

    def _run_finished(self, event: Said) -> Made:
        """The end of a run, and of the turn, unless somebody is to answer first."""
        last, outcome = self._turns.run_ended(identifier(event.get("runId"))), as_dict(event.get("outcome"))
        if self._turns.phase == "idle":
            return None
        asked = [
            one
            for interrupt in as_list(outcome.get("interrupts"))
            for one in self._calls.interrupted(as_dict(interrupt))
        ]
        made = [*_usage(event), *asked]
        if not last:
            return made
        if outcome.get("type") == "cancelled":
            return made + self._turns.end("cancelled")
        waits = outcome.get("type") == "interrupt" or self._calls.wait()
        return made + (self._turns.hold() if waits else self._turns.end("end_turn"))

    def _run_failed(self, event: Said) -> Made:
        if self._turns.phase == "idle":
            return None
        return [*_usage(event), *self._turns.end("error", as_str(event.get("message")))]

    # Texts

    def _begin(self, identity: str, role: str) -> None:
        self._texts.begin(identity, role)
        self._listing.known.update({identity} - {""})

    def _text_started(self, event: Said) -> Made:
        role = as_str(event.get("role")) or "assistant"
        self._begin(identifier(event.get("messageId")), role)
        return [] if role in ("assistant", "user") else None

    def _text_more(self, event: Said) -> Made:
        identity, piece = identifier(event.get("messageId")), event.get("delta")
        role = self._texts.role_of(identity)
        if not isinstance(piece, str) or role not in ("assistant", "user"):
            return None
        return self._texts.more(identity, role, piece)

    def _text_ended(self, event: Said) -> Made:
        identity = identifier(event.get("messageId"))
        role = self._texts.role_of(identity)
        return self._texts.end(identity, role) if role in ("assistant", "user") else None

    def _reasoning_started(self, event: Said) -> Made:
        self._begin(identifier(event.get("messageId")), "reasoning")
        return []

    def _reasoning_more(self, event: Said) -> Made:
        piece = event.get("delta")
        return (
            self._texts.more(identifier(event.get("messageId")), "reasoning", piece) if isinstance(piece, str) else None
        )

    def _reasoning_ended(self, event: Said) -> Made:
        return self._texts.end(identifier(event.get("messageId")), "reasoning")

    def _span(self, event: Said) -> Made:
        """Reasoning as a whole; its messages tell it."""
        return []

    # Calls

    def _call_started(self, event: Said) -> Made:
        identity, name = identifier(event.get("toolCallId")), as_str(event.get("toolCallName"))
        if not identity:
            return [ev.CallProposed(tool_name=name)] if name else None  # C2: heard of once
        return self._calls.started(identity, name, _parent(event))

    def _call_more(self, event: Said) -> Made:
        identity, piece = identifier(event.get("toolCallId")), event.get("delta")
        return self._calls.written(identity, piece) if identity and isinstance(piece, str) else None

    def _call_whole(self, event: Said) -> Made:
        return self._calls.whole(identifier(event.get("toolCallId")))

    def _call_result(self, event: Said) -> Made:
        self._listing.known.update({identifier(event.get("messageId"))} - {""})
        identity = identifier(event.get("toolCallId"))
        return self._calls.result(identity, event) if identity or "content" in event else None

    def _snapshot(self, event: Said) -> Made:
        messages = event.get("messages")
        return self._listing.read(messages_in(messages)) if isinstance(messages, list) else None

    _RULES: ClassVar[dict[str, tuple[Callable[[Any, Said], Made], set[str]]]] = {
        kind: (rule, ENVELOPE | taken)
        for kind, rule, taken in (
            ("RUN_STARTED", _run_started, {"threadId", "runId", "protocolVersion", "input"}),
            ("RUN_FINISHED", _run_finished, {"threadId", "runId", "outcome", "usage"}),
            ("RUN_ERROR", _run_failed, {"message", "usage"}),
            ("TEXT_MESSAGE_START", _text_started, {"messageId", "role"}),
            ("TEXT_MESSAGE_CONTENT", _text_more, {"messageId", "delta", "subagentRunId"}),
            ("TEXT_MESSAGE_END", _text_ended, {"messageId", "subagentRunId"}),
            ("TEXT_MESSAGE_CHUNK", _text_chunk, {"messageId", "role", "delta", "subagentRunId"}),
            ("REASONING_START", _span, {"messageId"}),
            ("REASONING_MESSAGE_START", _reasoning_started, {"messageId", "role"}),
            ("REASONING_MESSAGE_CONTENT", _reasoning_more, {"messageId", "delta", "subagentRunId"}),
            ("REASONING_MESSAGE_END", _reasoning_ended, {"messageId", "subagentRunId"}),
            ("REASONING_MESSAGE_CHUNK", _reasoning_chunk, {"messageId", "delta", "subagentRunId"}),
            ("REASONING_END", _span, {"messageId", "subagentRunId"}),
            ("TOOL_CALL_START", _call_started, {"toolCallId", "toolCallName", "parentMessageId"}),
            ("TOOL_CALL_ARGS", _call_more, {"toolCallId", "delta", "subagentRunId"}),
            ("TOOL_CALL_END", _call_whole, {"toolCallId", "subagentRunId"}),
            (
                "TOOL_CALL_CHUNK",
                _tool_chunk,
                {"toolCallId", "toolCallName", "parentMessageId", "delta", "subagentRunId"},
            ),
            (
                "TOOL_CALL_RESULT",
                _call_result,
                {"messageId", "toolCallId", "content", "role", "subagentRunId", "metadata"},
            ),
            ("MESSAGES_SNAPSHOT", _snapshot, {"messages"}),
        )
    }


def _raw(body: Any) -> Event:
    return ev.Raw(format=FORMAT, body=body)


def _timed(draft: Draft, at: int) -> Draft:
    return structs.replace(draft, event=structs.replace(draft.event, at=at)) if at else draft


def _is_sound(chunk: Said) -> bool:
    return isinstance(chunk.get("delta"), str | None)


def _owner(event: Said) -> str:
    return identifier(event.get("subagentRunId"))


def _parent(event: Said) -> str:
    return identifier(event.get("parentMessageId"))


def _usage(event: Said) -> list[Event]:
    return [ev.SessionInfo(usage=event["usage"])] if event.get("usage") is not None else []


_OUTCOME = {"type", "interrupts", "pendingToolCallIds"}
_INTERRUPT = {"id", "reason", "message", "toolCallId"}


def _says_more(event: Said) -> bool:
    """Whether an outcome, or what a result carries beside its content, was not taken over whole."""
    outcome, metadata = event.get("outcome"), as_dict(event.get("metadata"))
    asked = [as_dict(one) for one in as_list(as_dict(outcome).get("interrupts"))]
    return bool(
        (outcome is not None and not isinstance(outcome, dict))
        or leaves(as_dict(outcome), _OUTCOME)
        or any(leaves(one, _INTERRUPT) or not identifier(one.get("toolCallId")) for one in asked)
        or leaves(metadata, {"callslip"})
    )
