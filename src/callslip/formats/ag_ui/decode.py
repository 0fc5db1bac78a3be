"""Read the events of runs and the inputs that start them, each by its entry of a table.

A turn begins with a prompt, or with a run if there was no prompt, and ends with the run. A run that ends with an
interrupt, or with a call for the application, leaves the turn open: the answers are in the input of the next run, which
continues the turn. Otherwise the ledger would close the calls before they can be answered.

A run that is sent again, as servers do for a client that reconnects, gives no event twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from msgspec import structs

from callslip.formats.ag_ui.calls import Calls
from callslip.formats.ag_ui.chunk_streams import ChunkStreams, Stream
from callslip.formats.ag_ui.inputs import Inputs
from callslip.formats.ag_ui.messages import MessageLists, messages_in
from callslip.formats.ag_ui.texts import Texts
from callslip.formats.ag_ui.turns import Turns
from callslip.formats.ag_ui.wire import ENVELOPE, FORMAT, RENAMED, time_of
from callslip.formats.base import Unfinished, raw_if
from callslip.formats.json_fields import as_dict, as_list, as_str, has_other_fields, identifier
from callslip.formats.usage import read_usage
from callslip.model import events as ev
from callslip.model.events import Draft, Event

Fields: TypeAlias = dict[str, Any]
Result: TypeAlias = list[Event | Draft] | list[Event] | list[Draft] | None

# Events that do not end a stream of chunks; events of the run end the streams of all producers.
PASSING = {"RAW", "ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA", "REASONING_ENCRYPTED_VALUE", "SUBAGENT_STARTED"}
OF_THE_RUN = {"RUN_STARTED", "RUN_FINISHED", "RUN_ERROR", "MESSAGES_SNAPSHOT"}


class AgUiDecoder:
    """One conversation."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._turns = Turns()
        self._calls = Calls()
        self._texts = Texts(chunks or "delta")
        self._lists = MessageLists(self._calls)
        self._inputs = Inputs(self._turns, self._calls, self._lists)
        self._streams = ChunkStreams()
        self._unfinished = Unfinished()

    def feed(self, message: Any) -> list[Draft]:
        event = as_dict(message)
        kind = as_str(event.get("type"))
        drafts = self._read_event(RENAMED.get(kind, kind), event) if kind else self._inputs.read(event)
        if drafts is None:
            drafts = [Draft(ev.Raw(format=FORMAT, body=message))]
        self._unfinished.follow(drafts)
        at = time_of(event)
        return [structs.replace(draft, event=structs.replace(draft.event, at=at)) if at else draft for draft in drafts]

    def close(self, reason: str) -> list[Draft]:
        self._turns.end(reason)
        return self._unfinished.close(reason)

    def holds_input(self) -> bool:
        return self._texts.hold_user_text()

    def _read_event(self, kind: str, event: Fields) -> list[Draft]:
        handler, known = self._HANDLERS.get(kind, (None, ENVELOPE))
        ended = self._end_streams(kind, event)
        result = handler(self, event) if handler else None
        needs_raw = result is None or has_other_fields(event, known) or _needs_raw(event)
        items: list[Event | Draft] = [*ended, *(result or []), *raw_if(needs_raw, FORMAT, event)]
        drafts = [item if isinstance(item, Draft) else Draft(item) for item in items]
        return self._turns.start_if_due(drafts) + drafts

    # Chunks

    def _end_streams(self, kind: str, event: Fields) -> list[Event]:
        """End the streams of chunks that an event ends."""
        if kind.endswith("_CHUNK") or kind in PASSING:
            return []
        closed = self._streams.close_all() if kind in OF_THE_RUN else self._streams.close(_producer(event))
        return self._end_events(closed)

    def _end_events(self, streams: list[Stream] | tuple[Stream, ...]) -> list[Event]:
        events: list[Event] = []
        for kind, stream_id in streams:
            if kind == "tool":
                events += self._calls.end_input(stream_id) or []
            else:
                events += self._texts.end(stream_id, self._role(kind, stream_id))
        return events

    def _role(self, kind: str, message_id: str) -> str:
        return "reasoning" if kind == "reasoning" else self._texts.role_of(message_id)

    def _text_chunk(self, event: Fields) -> Result:
        return self._message_chunk("text", event)

    def _reasoning_chunk(self, event: Fields) -> Result:
        return self._message_chunk("reasoning", event)

    def _message_chunk(self, kind: str, event: Fields) -> Result:
        if not isinstance(event.get("delta"), str | None):
            return None
        target = self._streams.find(kind, identifier(event.get("messageId")), _producer(event))
        if target is None:
            return None
        message_id, events = target.stream.id, self._end_events(target.ended)
        if target.begins:
            role = "reasoning" if kind == "reasoning" else as_str(event.get("role")) or "assistant"
            self._begin_message(message_id, role)
        return events + self._texts.add(message_id, self._role(kind, message_id), as_str(event.get("delta")))

    def _tool_chunk(self, event: Fields) -> Result:
        if not isinstance(event.get("delta"), str | None):
            return None
        target = self._streams.find("tool", identifier(event.get("toolCallId")), _producer(event))
        if target is None:
            return None
        call_id, events = target.stream.id, self._end_events(target.ended)
        if target.begins:
            events += self._calls.start(call_id, as_str(event.get("toolCallName")), _parent(event))
        return events + self._calls.add_input(call_id, as_str(event.get("delta")))

    # Runs

    def _start_run(self, event: Fields) -> Result:
        run = identifier(event.get("runId"))
        input_drafts = self._inputs.read(as_dict(event.get("input")), is_echo=True) or []
        is_repeated = self._turns.is_known(run)
        started = self._turns.start_run(run, identifier(event.get("parentRunId")))
        self._calls.start_run(run, is_repeated)
        if is_repeated:
            self._texts.restart()
        elif started:
            self._calls.start_turn()
        return [*input_drafts, *started]

    def _finish_run(self, event: Fields) -> Result:
        """End a run, and the turn unless the client must answer first."""
        is_last, outcome = self._turns.end_run(identifier(event.get("runId"))), as_dict(event.get("outcome"))
        if self._turns.phase == "idle":
            return None
        events = _usage(event)
        for interrupt in as_list(outcome.get("interrupts")):
            events += self._calls.interrupt(as_dict(interrupt))
        if not is_last:
            return events
        if outcome.get("type") == "cancelled":
            return events + self._turns.end("cancelled")
        must_wait = outcome.get("type") == "interrupt" or self._calls.await_client()
        return events + (self._turns.hold() if must_wait else self._turns.end("end_turn"))

    def _fail_run(self, event: Fields) -> Result:
        if self._turns.phase == "idle":
            return None
        return [*_usage(event), *self._turns.end("error", as_str(event.get("message")))]

    # Texts

    def _begin_message(self, message_id: str, role: str) -> None:
        self._texts.begin(message_id, role)
        self._lists.known.update({message_id} - {""})

    def _start_text(self, event: Fields) -> Result:
        role = as_str(event.get("role")) or "assistant"
        self._begin_message(identifier(event.get("messageId")), role)
        return [] if role in ("assistant", "user") else None

    def _add_text(self, event: Fields) -> Result:
        message_id, piece = identifier(event.get("messageId")), event.get("delta")
        role = self._texts.role_of(message_id)
        if not isinstance(piece, str) or role not in ("assistant", "user"):
            return None
        return self._texts.add(message_id, role, piece)

    def _end_text(self, event: Fields) -> Result:
        message_id = identifier(event.get("messageId"))
        role = self._texts.role_of(message_id)
        return self._texts.end(message_id, role) if role in ("assistant", "user") else None

    def _start_reasoning(self, event: Fields) -> Result:
        self._begin_message(identifier(event.get("messageId")), "reasoning")
        return []

    def _add_reasoning(self, event: Fields) -> Result:
        message_id, piece = identifier(event.get("messageId")), event.get("delta")
        return self._texts.add(message_id, "reasoning", piece) if isinstance(piece, str) else None

    def _end_reasoning(self, event: Fields) -> Result:
        return self._texts.end(identifier(event.get("messageId")), "reasoning")

    def _reasoning_section(self, event: Fields) -> Result:
        """Skip the frame around the messages of reasoning."""
        return []

    # Calls

    def _start_call(self, event: Fields) -> Result:
        call_id, name = identifier(event.get("toolCallId")), as_str(event.get("toolCallName"))
        if not call_id:
            return [ev.CallProposed(tool_name=name)] if name else None  # No other event can refer to this call.
        return self._calls.start(call_id, name, _parent(event))

    def _add_call_input(self, event: Fields) -> Result:
        call_id, piece = identifier(event.get("toolCallId")), event.get("delta")
        return self._calls.add_input(call_id, piece) if call_id and isinstance(piece, str) else None

    def _end_call_input(self, event: Fields) -> Result:
        return self._calls.end_input(identifier(event.get("toolCallId")))

    def _call_result(self, event: Fields) -> Result:
        self._lists.known.update({identifier(event.get("messageId"))} - {""})
        call_id = identifier(event.get("toolCallId"))
        return self._calls.result(call_id, event) if call_id or "content" in event else None

    def _snapshot(self, event: Fields) -> Result:
        messages = event.get("messages")
        return self._lists.read(messages_in(messages)) if isinstance(messages, list) else None

    _HANDLERS: ClassVar[dict[str, tuple[Callable[[Any, Fields], Result], set[str]]]] = {
        kind: (handler, ENVELOPE | known)
        for kind, handler, known in (
            ("RUN_STARTED", _start_run, {"threadId", "runId", "protocolVersion", "input"}),
            ("RUN_FINISHED", _finish_run, {"threadId", "runId", "outcome", "usage"}),
            ("RUN_ERROR", _fail_run, {"message", "usage"}),
            ("TEXT_MESSAGE_START", _start_text, {"messageId", "role"}),
            ("TEXT_MESSAGE_CONTENT", _add_text, {"messageId", "delta", "subagentRunId"}),
            ("TEXT_MESSAGE_END", _end_text, {"messageId", "subagentRunId"}),
            ("TEXT_MESSAGE_CHUNK", _text_chunk, {"messageId", "role", "delta", "subagentRunId"}),
            ("REASONING_START", _reasoning_section, {"messageId"}),
            ("REASONING_MESSAGE_START", _start_reasoning, {"messageId", "role"}),
            ("REASONING_MESSAGE_CONTENT", _add_reasoning, {"messageId", "delta", "subagentRunId"}),
            ("REASONING_MESSAGE_END", _end_reasoning, {"messageId", "subagentRunId"}),
            ("REASONING_MESSAGE_CHUNK", _reasoning_chunk, {"messageId", "delta", "subagentRunId"}),
            ("REASONING_END", _reasoning_section, {"messageId", "subagentRunId"}),
            ("TOOL_CALL_START", _start_call, {"toolCallId", "toolCallName", "parentMessageId"}),
            ("TOOL_CALL_ARGS", _add_call_input, {"toolCallId", "delta", "subagentRunId"}),
            ("TOOL_CALL_END", _end_call_input, {"toolCallId", "subagentRunId"}),
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


def _producer(event: Fields) -> str:
    return identifier(event.get("subagentRunId"))


def _parent(event: Fields) -> str:
    return identifier(event.get("parentMessageId"))


def _usage(event: Fields) -> list[Event]:
    usage = event.get("usage")
    if usage is None:
        return []
    return [ev.SessionInfo(usage=usage), *read_usage(usage, id=identifier(event.get("runId")), of_turn=True)]


_OUTCOME_FIELDS = {"type", "interrupts", "pendingToolCallIds"}
_INTERRUPT_FIELDS = {"id", "reason", "message", "toolCallId"}


def _needs_raw(event: Fields) -> bool:
    """Return whether an outcome or the metadata of a result has more than the events carry."""
    outcome, metadata = event.get("outcome"), as_dict(event.get("metadata"))
    interrupts = [as_dict(interrupt) for interrupt in as_list(as_dict(outcome).get("interrupts"))]
    return (
        (outcome is not None and not isinstance(outcome, dict))
        or has_other_fields(as_dict(outcome), _OUTCOME_FIELDS)
        or any(
            has_other_fields(interrupt, _INTERRUPT_FIELDS) or not identifier(interrupt.get("toolCallId"))
            for interrupt in interrupts
        )
        or has_other_fields(metadata, {"callslip"})
    )
