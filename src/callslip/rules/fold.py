"""Fold events into entries. No clock, no I/O, no randomness, constant cost per event.

A state after event N plus the patches of later events gives the later state; live views, stored views and the browser
rely on that. Every end is an event: the fold ends nothing by itself. Only `applied` events change entries; `late` ones,
and agents' own reports of refused calls, are noted on their call. The rules for calls are in `fold_calls.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from msgspec import UNSET

from callslip.model import events as ev
from callslip.model.entries import Append, Message, Meta, ModeChange, Notice, Patch, Plan, Thought
from callslip.model.events import Event
from callslip.rules import fold_calls
from callslip.rules.fold_state import FoldState, Out, Stream, add_entry, end_text, put_entry, set_fields, set_info
from callslip.rules.streamed_text import MAX_PIECES, Change, StreamedText, is_same_message, merge_chunk, utf16_length

VERSION = 7
"""Increased whenever the same events give other entries. Checkpoints of another version are rebuilt."""

NOTICE_TEXTS = ("title", "message", "description", "text", "content")
Chunk = ev.MessageDelta | ev.ThoughtDelta


class SessionFold(FoldState):
    """The state of a session after its events so far."""

    def apply(self, event: Event) -> list[Patch]:
        """Apply one event and return the patches for what it changed."""
        out: list[Patch] = []
        self.fold((event,), out)
        return out

    def fold(self, events: Iterable[Event], out: Out = None) -> None:
        """Apply many events; append patches to `out` unless it is None."""
        # The path for chunks is inlined: a function call per chunk would double the cost of reading a log.
        plain, text, entry, message_id, source, chunks = _chunk_path(self.stream, out)
        event: Any = None
        try:
            for event in events:
                if (
                    event.__class__ is plain
                    and event.message_id == message_id
                    and event.source == source
                    and event.chunks == chunks
                    and event.verdict == "applied"
                ):
                    piece = event.text
                    if out is not None and piece:
                        out.append(Append(entry, "content", text.units, piece))
                        text.units += len(piece) if piece.isascii() else utf16_length(piece)
                    text.pieces.append(piece)
                    continue
                if event.verdict == "applied":
                    rule = RULES.get(event.__class__)
                    if rule is not None:
                        rule(self, event, out)
                elif event.verdict == "late":
                    fold_calls.late(self, event, out)
                elif event.verdict == "duplicate":
                    fold_calls.repeated(self, event, out)
                if self.parentless and isinstance(event, ev.CallEvent) and event.aliases:
                    fold_calls.adopt(self, event, out)
                plain, text, entry, message_id, source, chunks = _chunk_path(self.stream, out)
        finally:
            if event is not None:
                self.seq = event.seq
            if self.stream is not None and len(self.stream.text.pieces) >= MAX_PIECES:
                self.stream.text.squash()


_NO_TEXT = StreamedText()
_NO_CHUNK_PATH = (None, _NO_TEXT, 0, "", "", "")


def _chunk_path(stream: Stream | None, out: Out) -> tuple[type[Event] | None, StreamedText, int, str, str, str]:
    """Return the local variables of the chunk path: what it compares and appends to."""
    if stream is None or stream.plain is None:
        return _NO_CHUNK_PATH
    text = stream.text
    if out is None:
        text.counted = False
    else:
        text.length()
    return stream.plain, text, stream.entry.id, stream.message_id, stream.source, stream.chunks


# The rules: one function per type of event, numbered as in docs/entry-rules.md.


def _chunk(state: SessionFold, event: Chunk, out: Out) -> None:
    """RULE 1, RULE 9: extend the last entry if it has the same type and message id, else start a new one."""
    if not event.text and not event.partial and not event.rest:
        return
    stream = state.stream
    if stream is None or not _continues(stream, event):
        if not event.text:
            return
        stream = _start_stream(state, event, out)
    elif event.message_id and not stream.message_id:
        stream.message_id = stream.entry.message_id = event.message_id
        set_fields(stream.entry, ("message_id",), out)
    source = (event.source, stream.kind)
    proven = state.proven.get(source, "")
    stream.source, stream.chunks = event.source, event.chunks
    before = stream.text.length() if out is not None else 0
    if event.chunks == "delta" or (event.chunks == "auto" and proven == "delta"):
        if event.rest and not proven:  # The chunk continues a secret of the one before: both are deltas.
            state.proven[source] = "delta"
        stream.plain = stream.cls
        stream.text.append(event.text)
        if stream.text.partial is not None:
            stream.text.partial = None
        change = Change(event.text)
    else:
        stream.plain = None
        change = merge_chunk(stream.text, event.text, event.chunks, proven, partial=event.partial, rest=event.rest)
        if change.proof:
            state.proven[source] = change.proof
            stream.plain = stream.cls if change.proof == "delta" else None
    if change.replaced:
        stream.entry.content = stream.text.value()
        put_entry(stream.entry, out)
    elif change.added and out is not None:
        out.append(Append(stream.entry.id, "content", before, change.added))


def _continues(stream: Stream, event: Chunk) -> bool:
    is_same = is_same_message(stream.message_id, event.message_id) and stream.cls is type(event)
    return is_same and stream.entry.parent == event.parent


def _start_stream(state: SessionFold, event: Chunk, out: Out) -> Stream:
    entry: Message | Thought
    if isinstance(event, ev.MessageDelta):
        entry = Message(id=event.seq, at=event.at, role="assistant", content="")
    else:
        entry = Thought(id=event.seq, at=event.at, content="")
    entry.message_id, entry.names_message = event.message_id, event.names_message
    entry.parent, entry.streaming = event.parent, True
    add_entry(state, entry, out)
    state.stream = Stream(entry, type(event), event.source, event.chunks)
    return state.stream


def _message_ended(state: SessionFold, event: ev.MessageEnded, out: Out) -> None:
    """RULE 2: end the streaming text."""
    stream = state.stream
    if stream is not None and (not event.message_id or event.message_id == stream.message_id):
        end_text(state, out)


def _message_user(state: SessionFold, event: ev.MessageUser, out: Out) -> None:
    """RULE 8: add a message of the user."""
    blocks = None if event.content is UNSET else event.content
    entry = Message(id=event.seq, at=event.at, role="user", content=event.text, message_id=event.message_id)
    entry.blocks, entry.names_message, entry.parent = blocks, event.names_message, event.parent
    add_entry(state, entry, out)


def _capabilities(state: SessionFold, event: ev.SessionCapabilities, out: Out) -> None:
    """RULE 7: add the modes, models and options of the agent."""
    state.info.current_mode_id, state.info.current_model_id = event.current_mode, event.current_model
    entry = Meta(
        id=event.seq,
        at=event.at,
        available_modes=event.modes,
        available_models=event.models,
        available_commands=state.info.available_commands,
        current_mode_id=event.current_mode,
        current_model_id=event.current_model,
        options=event.options,
    )
    add_entry(state, entry, out)
    set_info(state, out, "current_mode_id", "current_model_id")


def _commands(state: SessionFold, event: ev.SessionCommands, out: Out) -> None:
    """RULE 12: replace the list of commands."""
    state.info.available_commands = event.commands
    set_info(state, out, "available_commands")


def _mode(state: SessionFold, event: ev.SessionMode, out: Out) -> None:
    """RULE 11: add a change of mode, unless the mode is the same."""
    before = state.info.current_mode_id
    if event.mode == before:
        return
    state.info.current_mode_id = event.mode
    add_entry(state, ModeChange(id=event.seq, at=event.at, previous_mode_id=before, new_mode_id=event.mode), out)
    set_info(state, out, "current_mode_id")


_INFO_FIELDS = (
    *("title", "usage", "options", "notice", "labels"),
    *("agent", "agent_version", "model", "project", "branch", "foreign_id", "continues", "ended"),
)


def _info(state: SessionFold, event: ev.SessionInfo, out: Out) -> None:
    changed = [name for name in _INFO_FIELDS if getattr(event, name) is not UNSET]
    for name in changed:
        setattr(state.info, name, getattr(event, name))
    if event.owner is not UNSET and event.owner and not state.info.owner:
        state.info.owner = event.owner
        changed.append("owner")
    if event.notice is not UNSET and event.notice:
        add_entry(state, _notice(event), out)
    if changed:
        set_info(state, out, *changed)


def _notice(event: ev.SessionInfo) -> Notice:
    """Return the entry of a notice: its texts, and what else it has."""
    fields = cast("dict[str, Any]", event.notice) if isinstance(event.notice, dict) else {"title": event.notice}
    texts = [fields[name] for name in NOTICE_TEXTS if isinstance(fields.get(name), str) and fields[name]]
    details = {name: value for name, value in fields.items() if name != "severity" and value not in texts}
    severity = fields.get("severity")
    return Notice(
        id=event.seq,
        at=event.at,
        content="\n".join(texts),
        severity=severity if isinstance(severity, str) else "",
        details=details or None,
    )


def _plan(state: SessionFold, event: ev.PlanUpdated, out: Out) -> None:
    """RULE 10: add the plan."""
    add_entry(state, Plan(id=event.seq, at=event.at, entries=event.entries), out)


def _turn_started(state: SessionFold, event: ev.TurnStarted, out: Out) -> None:
    end_text(state, out)
    had_ended, state.info.ended = state.info.ended, False
    state.info.turn = event.turn
    set_info(state, out, "turn", *(["ended"] if had_ended else []))


def _turn_ended(state: SessionFold, event: ev.TurnEnded, out: Out) -> None:
    end_text(state, out)
    info = state.info
    info.turn, info.last_turn, info.last_reason = "", event.turn, event.reason
    set_info(state, out, "turn", "last_turn", "last_reason")


RULES: dict[type[Event], Callable[[SessionFold, Any, Out], None]] = {
    ev.SessionCapabilities: _capabilities,
    ev.SessionCommands: _commands,
    ev.SessionMode: _mode,
    ev.SessionInfo: _info,
    ev.TurnStarted: _turn_started,
    ev.TurnEnded: _turn_ended,
    ev.MessageUser: _message_user,
    ev.MessageDelta: _chunk,
    ev.ThoughtDelta: _chunk,
    ev.MessageEnded: _message_ended,
    ev.PlanUpdated: _plan,
    ev.ApprovalRequested: fold_calls.requested,
    ev.ApprovalGranted: fold_calls.answered,
    ev.ApprovalRefused: fold_calls.answered,
    ev.ApprovalWithdrawn: fold_calls.answered,
    ev.ApprovalReleased: fold_calls.answered,
    **dict.fromkeys(
        (ev.CallProposed, ev.CallInputDelta, ev.CallInput, ev.CallStarted, ev.CallRequeued, ev.CallProgress),
        fold_calls.call,
    ),
    **dict.fromkeys(ev.TERMINAL, fold_calls.call),
    ev.CallReported: fold_calls.reported,
}
