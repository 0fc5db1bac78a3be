"""Checkpoints, so that reading a session costs the same at any length: only events after the checkpoint are folded.

A checkpoint at seq N has the finished entries up to N as rows, the texts in progress as pieces, and the small rest of
the fold's state. It is derived from the log alone, so any process may write it, and writing it twice changes nothing.
One written by another version of the fold is ignored and replaced.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from callslip.errors import CursorExpiredError, InvalidInputError, NotFoundError
from callslip.ledger.aio import LARGE_COUNT, run_off_loop
from callslip.ledger.summaries import complete_summary
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import AnyEntry, Entry, Info, Message, PermissionRequest, Thought, ToolCall, blob_of_entry
from callslip.model.events import decode_event, parse_event
from callslip.model.records import SessionRecord
from callslip.rules.fold import VERSION, SessionFold
from callslip.rules.fold_state import Stream, TextKey
from callslip.rules.streamed_text import IncompleteTextError, Proof, StreamedText
from callslip.store.protocol import Checkpoint, Progress, Store

PAGE_ROWS = 2000
PAGE_BYTES = 2**20
LARGE_PAGE_BYTES = 2**20
"""A page of events of this size is folded in a thread."""
ALL = 2**62
"""A limit or a seq beyond all entries."""


class CheckpointText(msgspec.Struct, array_like=True):
    """A text in progress: how much of it is stored as pieces, and the state of its chunk policy."""

    entry: int
    field: str
    units: int
    chars: int
    generation: int
    previous: str
    growths: int
    only_growths: bool
    partial: str | None = None


class CheckpointState(msgspec.Struct, omit_defaults=True):
    """The state of a fold without its finished entries and without its texts."""

    seq: int
    info: Info
    entries: list[AnyEntry] = []
    texts: list[CheckpointText] = []
    stream: tuple[int, str, str, bool] | None = None
    proven: list[tuple[str, str, Proof]] = []
    parentless: dict[str, list[int]] = {}


_read_state: Callable[[bytes], CheckpointState] = codec.stored_decoder(CheckpointState, "a checkpoint")
read_entry: Callable[[bytes], AnyEntry] = codec.stored_decoder(AnyEntry, "an entry")
encode = msgspec.json.encode


def open_texts(state: SessionFold) -> dict[TextKey, StreamedText]:
    """Return the texts in progress by entry and field."""
    texts = dict(state.texts)
    if state.stream is not None:
        texts[state.stream.entry.id, "content"] = state.stream.text
    return texts


def encode_state(state: SessionFold) -> bytes:
    """Encode a state without its finished entries and its texts."""
    texts = [
        CheckpointText(
            *(*key, t.length(), t.missing_chars + len(t.value()), t.generation),
            *(t.previous, t.growths, t.only_growths, t.partial),
        )
        for key, t in open_texts(state).items()
    ]
    copies = {entry.id: msgspec.structs.replace(entry) for entry in state.entries.values()}
    for text in texts:
        if text.entry in copies:
            setattr(copies[text.entry], text.field, "")
    stream = state.stream
    saved = CheckpointState(
        seq=state.seq,
        info=state.info,
        entries=list(copies.values()),  # pyright: ignore[reportArgumentType]
        texts=texts,
        stream=(stream.entry.id, stream.source, stream.chunks, stream.plain is not None) if stream else None,
        proven=[(*key, proof) for key, proof in state.proven.items()],
        parentless=state.parentless,
    )
    return encode(saved)


def resume(session: str, data: bytes, full_texts: dict[TextKey, str]) -> SessionFold:
    """Decode a state to continue from. Texts not in `full_texts` have only their length, enough to append to them."""
    saved = _read_state(data)
    state = SessionFold(session)
    state.seq, state.info = saved.seq, saved.info
    state.proven = {(source, kind): proof for source, kind, proof in saved.proven}
    state.parentless = saved.parentless
    for entry in saved.entries:
        state.entries[entry.id] = entry
        if isinstance(entry, ToolCall):
            state.calls[entry.call_id] = entry
        elif isinstance(entry, PermissionRequest):
            state.requests[entry.approval] = entry
    texts = {(text.entry, text.field): _resume_text(text, full_texts) for text in saved.texts}
    if saved.stream is not None:
        entry_id, source, chunks, is_plain = saved.stream
        state.stream = _resume_stream(state.entries[entry_id], source, chunks, is_plain)
        state.stream.text = texts.pop((entry_id, "content"))
    state.texts = texts
    return state


def _resume_text(saved: CheckpointText, full_texts: dict[TextKey, str]) -> StreamedText:
    text = StreamedText()
    text.units, text.generation, text.previous = saved.units, saved.generation, saved.previous
    text.growths, text.only_growths, text.partial = saved.growths, saved.only_growths, saved.partial
    if (saved.entry, saved.field) in full_texts:
        text.blocks = [full_texts[saved.entry, saved.field]]
    else:
        text.missing, text.missing_chars = saved.units, saved.chars
    return text


def _resume_stream(entry: Entry, source: str, chunks: str, is_plain: bool) -> Stream:
    assert isinstance(entry, Message | Thought)
    cls = ev.MessageDelta if isinstance(entry, Message) else ev.ThoughtDelta
    stream = Stream(entry, cls, source, chunks)
    stream.plain = cls if is_plain else None
    return stream


async def load_session(store: Store, name: str) -> SessionRecord:
    """Return a session, or raise NotFoundError."""
    session = await store.session(name)
    if session is None:
        raise NotFoundError(f"no session {name!r}")
    return session


async def load_checkpoint(store: Store, name: str) -> Checkpoint | None:
    """Return a session's checkpoint, if this version of the fold wrote it."""
    saved = await store.checkpoint(name)
    return saved if saved is not None and saved.version == VERSION else None


async def load_state(store: Store, name: str, at: Checkpoint | None, *, with_texts: bool) -> SessionFold:
    """Return the state at a checkpoint; without one, the base that retention left, or an empty state."""
    if at is None:
        base = await store.base(name)
        return resume_base(name, base.state) if base else SessionFold(name)
    saved = _read_state(at.state)
    keys: set[TextKey] = set()
    if with_texts:
        keys = {(text.entry, text.field) for text in saved.texts}
    elif saved.stream is not None and not saved.stream[3]:  # Its next chunk may be compared with all of the text.
        keys = {(saved.stream[0], "content")}
    texts = {key: await store.pieces(name, *key) for key in keys}
    return resume(name, at.state, texts)


async def fold_upto(store: Store, state: SessionFold, upto: int) -> None:
    """Fold the events after a state up to a seq."""
    while state.seq < upto:
        rows = await store.events(state.session, state.seq, min(PAGE_ROWS, upto - state.seq), PAGE_BYTES)
        if not rows:
            return
        bodies = [body for _, body in rows]
        is_large = len(bodies) >= LARGE_COUNT or sum(map(len, bodies)) >= LARGE_PAGE_BYTES
        await run_off_loop(is_large, _fold_bodies, state, bodies)


def _fold_bodies(state: SessionFold, bodies: list[bytes]) -> None:
    try:
        events = [parse_event(body) for body in bodies]
    except codec.DECODE_ERRORS:
        events = [decode_event(body) for body in bodies]
    state.fold(events)


StoredLengths = dict[TextKey, tuple[int, int, int]]
"""Units, characters and generation of the texts in progress whose pieces are stored."""


async def project(store: Store, name: str) -> int | None:
    """Move a session's checkpoint to its last event. Return the number of open entries, or None to be called again."""
    session = await store.session(name)
    if session is None:
        return 0
    at = await load_checkpoint(store, name)
    if at is not None and at.seq >= session.last_seq:
        return 0
    try:
        state, lengths = await _advance(store, session, at, with_texts=False)
    except IncompleteTextError:  # A text changed its chunk policy since the checkpoint.
        state, lengths = await _advance(store, session, at, with_texts=True)
    finished = state.take_finished()
    for entry in finished:
        for field in ("content", "input_text", "output_text"):
            if (entry.id, field) in state.headless:
                head = await store.pieces(name, entry.id, field)
                setattr(entry, field, head + getattr(entry, field))
    pieces, dropped = _new_pieces(state, lengths)
    is_large = len(finished) + len(state.entries) >= LARGE_COUNT
    progress = Progress(
        session=name,
        after=at.seq if at else 0,
        checkpoint=Checkpoint(state.seq, VERSION, await run_off_loop(is_large, encode_state, state)),
        entries=await run_off_loop(is_large, lambda: [(entry.id, encode(entry)) for entry in finished]),
        notes=list(state.noted.items()),
        pieces=pieces,
        dropped=dropped,
        rebuild=at is None,
        number=session.id,
    )
    return len(state.entries) if await store.save_progress(progress) else None


async def _advance(
    store: Store, session: SessionRecord, at: Checkpoint | None, *, with_texts: bool
) -> tuple[SessionFold, StoredLengths]:
    """Return the state at the last event, and the lengths of the texts at the checkpoint."""
    state = await load_state(store, session.name, at, with_texts=with_texts)
    texts = open_texts(state) if at is not None else {}
    lengths = {key: (t.length(), t.missing_chars + len(t.value()), t.generation) for key, t in texts.items()}
    await fold_upto(store, state, session.last_seq)
    return state, lengths


def _new_pieces(state: SessionFold, lengths: StoredLengths) -> tuple[list[tuple[int, str, int, str]], list[TextKey]]:
    """Return what was added to the texts in progress, and the texts whose stored pieces are obsolete."""
    texts = open_texts(state)
    pieces: list[tuple[int, str, int, str]] = []
    dropped = [key for key in lengths if key not in texts]
    for key, text in texts.items():
        units, chars, generation = lengths.get(key, (0, 0, text.generation))
        if generation != text.generation:
            dropped.append(key)
            units, chars = 0, 0
        added = text.value()[chars - text.missing_chars :]
        if added:
            pieces.append((*key, units, added))
    return pieces, dropped


async def state_at(store: Store, name: str, seq: int | None = None) -> SessionFold:
    """Return a session as it was after an event, folded from the first event that retention left."""
    while True:
        session = await load_session(store, name)
        upto = session.last_seq if seq is None else seq
        if upto > session.last_seq or upto < 0:
            raise InvalidInputError("at", f"must be from 0 to the last event ({session.last_seq}), got {upto}")
        if upto < session.pruned_seq:
            raise CursorExpiredError(upto, session.pruned_seq)
        state = await load_state(store, name, None, with_texts=True)
        await fold_upto(store, state, upto)
        current = await load_session(store, name)
        if (current.id, current.pruned_seq) == (session.id, session.pruned_seq):
            return state
        # Else it was deleted and created again, or retention removed events meanwhile.


# Retention stores a full state with its open texts as a base, from which the remaining log continues.


class Base(msgspec.Struct):
    """A full state: that of a checkpoint, and its open texts. `until` is the time of the last removed event, in ms."""

    kept: msgspec.Raw
    texts: list[tuple[int, str, str]]
    until: int = 0


_read_base: Callable[[bytes], Base] = codec.stored_decoder(Base, "base snapshot")


def freeze(state: SessionFold, until: int = 0) -> bytes:
    """Encode a state as the base that replaces all events up to its seq. Its finished entries are removed."""
    state.take_finished()
    texts = [(*key, text.value()) for key, text in open_texts(state).items()]
    return encode(Base(msgspec.Raw(encode_state(state)), texts, until))


def resume_base(session: str, data: bytes) -> SessionFold:
    """Decode the state of a base."""
    base = _read_base(data)
    return resume(session, bytes(base.kept), {(entry, field): text for entry, field, text in base.texts})


async def read_pruned_until(store: Store, name: str) -> int:
    """Return the time of the last event that retention removed from a session, in ms; 0 if it is not known."""
    base = await store.base(name)
    return _read_base(base.state).until if base is not None else 0


async def prune(store: Store, name: str, before: int) -> int:
    """Delete the events of a session before a time (ms), and return how many. Open entries stay in the base."""
    session = await load_session(store, name)
    cut = await _last_seq_before(store, session, before)
    if cut <= session.pruned_seq:
        return 0
    state = await state_at(store, name, cut)
    await complete_summary(store, name)
    while await project(store, name) is None:
        pass
    rows = await store.events(name, cut - 1, 1)
    until = max(await read_pruned_until(store, name), decode_event(rows[0][1]).at if rows else 0)
    base = freeze(state, until)
    kept = {number: blob.hash if (blob := blob_of_entry(entry)) else "" for number, entry in state.entries.items()}
    return await store.prune(session, cut, base, kept)


async def _last_seq_before(store: Store, session: SessionRecord, before: int) -> int:
    """Return the last event before a time, by binary search: times grow with seq, except those of other clocks."""
    low, high = session.pruned_seq, session.last_seq
    while low < high:
        middle = (low + high + 1) // 2
        rows = await store.events(session.name, middle - 1, 1)
        if rows and decode_event(rows[0][1]).at < before:
            low = middle
        else:
            high = middle - 1
    return low
