"""Reading a session costs the same however long it is: finished entries are stored, only the tail is folded.

A checkpoint at seq N is the finished entries up to N as rows, the texts still being written as pieces, and the small
rest of the fold's state. It is derived from the log alone, so any process may make it, and making it twice changes
nothing. One made by another version of the fold is ignored and made afresh. `reading.py` reads by it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from callslip.errors import CursorExpiredError, InvalidInputError, NotFoundError
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import AnyEntry, Entry, Info, Message, PermissionRequest, Thought, ToolCall
from callslip.model.events import Event, decode_event, parse_event
from callslip.model.records import SessionRecord
from callslip.rules.fold import VERSION, SessionFold
from callslip.rules.fold_state import Stream, TextKey
from callslip.rules.streamed_text import Headless, Proof, StreamedText
from callslip.store.protocol import Checkpoint, Progress, Store

PAGE = 2000
ALL = 2**62


class CheckpointText(msgspec.Struct, array_like=True):
    """A text being written: how much of it is stored as pieces, and what its policy remembers."""

    entry: int
    field: str
    units: int
    chars: int
    generation: int
    previous: str
    growths: int
    only_growths: bool


class CheckpointState(msgspec.Struct, omit_defaults=True):
    """The state of a fold without its finished entries and without its texts."""

    seq: int
    info: Info
    entries: list[AnyEntry] = []
    texts: list[CheckpointText] = []
    stream: tuple[int, str, str, bool] | None = None
    proven: list[tuple[str, str, Proof]] = []


_kept: Callable[[bytes], CheckpointState] = codec.reader(CheckpointState, "a checkpoint")
read_entry: Callable[[bytes], AnyEntry] = codec.reader(AnyEntry, "an entry")
encode = msgspec.json.encode


def open_texts(state: SessionFold) -> dict[TextKey, StreamedText]:
    """The texts being written, by entry and field."""
    texts = dict(state.texts)
    if state.stream is not None:
        texts[state.stream.entry.id, "content"] = state.stream.text
    return texts


def keep(state: SessionFold) -> bytes:
    """What a checkpoint must remember of a state whose finished entries were taken out."""
    texts = [
        CheckpointText(
            *key, t.length(), t.missing_chars + len(t.value()), t.generation, t.previous, t.growths, t.only_growths
        )
        for key, t in open_texts(state).items()
    ]
    bare = [msgspec.structs.replace(entry) for entry in state.entries.values()]
    for entry in bare:
        for text in texts:
            if text.entry == entry.id:
                setattr(entry, text.field, "")
    stream = state.stream
    kept = CheckpointState(
        seq=state.seq,
        info=state.info,
        entries=bare,  # pyright: ignore[reportArgumentType]
        texts=texts,
        stream=(stream.entry.id, stream.source, stream.chunks, stream.plain is not None) if stream else None,
        proven=[(*key, proof) for key, proof in state.proven.items()],
    )
    return encode(kept)


def resume(session: str, data: bytes, whole: dict[TextKey, str]) -> SessionFold:
    """A state to fold on from. Texts that are not given whole keep only their length: enough to append to them."""
    kept = _kept(data)
    state = SessionFold(session)
    state.seq, state.info = kept.seq, kept.info
    state.proven = {(source, kind): proof for source, kind, proof in kept.proven}
    for entry in kept.entries:
        state.entries[entry.id] = entry
        if isinstance(entry, ToolCall):
            state.calls[entry.call_id] = entry
        elif isinstance(entry, PermissionRequest):
            state.requests[entry.request_id] = entry
    texts = {(text.entry, text.field): _text(text, whole) for text in kept.texts}
    if kept.stream is not None:
        identity, source, chunks, plain = kept.stream
        state.stream = _stream(state.entries[identity], source, chunks, plain)
        state.stream.text = texts.pop((identity, "content"))
    state.texts = texts
    return state


def _text(kept: CheckpointText, whole: dict[TextKey, str]) -> StreamedText:
    text = StreamedText()
    text.units, text.generation, text.previous = kept.units, kept.generation, kept.previous
    text.growths, text.only_growths = kept.growths, kept.only_growths
    if (kept.entry, kept.field) in whole:
        text.blocks = [whole[kept.entry, kept.field]]
    else:
        text.missing, text.missing_chars = kept.units, kept.chars
    return text


def _stream(entry: Entry, source: str, chunks: str, plain: bool) -> Stream:
    assert isinstance(entry, Message | Thought)
    cls = ev.MessageDelta if isinstance(entry, Message) else ev.ThoughtDelta
    stream = Stream(entry, cls, source, chunks)
    stream.plain = cls if plain else None
    return stream


def _needs_whole(kept: CheckpointState) -> set[TextKey]:
    """A text whose next chunk may be compared with all of it cannot be folded on by its length alone."""
    if kept.stream is None or kept.stream[3]:
        return set()
    return {(kept.stream[0], "content")}


async def newest(store: Store, name: str) -> Checkpoint | None:
    """The checkpoint, if this version made it."""
    at = await store.checkpoint(name)
    return at if at is not None and at.version == VERSION else None


async def start(store: Store, name: str, at: Checkpoint | None, *, whole: bool) -> SessionFold:
    """The newest state that is stored: the checkpoint, or what retention left, or nothing."""
    if at is None:
        base = await store.base(name)
        return resume_base(name, base.state) if base else SessionFold(name)
    kept = _kept(at.state)
    wanted = {(text.entry, text.field) for text in kept.texts} if whole else _needs_whole(kept)
    texts = {key: await store.pieces(name, *key) for key in wanted}
    return resume(name, at.state, texts)


async def fold_on(store: Store, state: SessionFold, upto: int) -> None:
    while state.seq < upto:
        rows = await store.events(state.session, state.seq, min(PAGE, upto - state.seq))
        if not rows:
            return
        state.fold(_decoded(rows))


Before = dict[TextKey, tuple[int, int, int]]


def _decoded(rows: list[tuple[int, bytes]]) -> list[Event]:
    try:
        return [parse_event(body) for _, body in rows]
    except codec.UNREADABLE:
        return [decode_event(body) for _, body in rows]


async def project(store: Store, name: str) -> int | None:
    """Move a session's checkpoint to its head. How many entries are still open, None if there is more to do."""
    session = await store.session(name)
    if session is None:
        return 0
    at = await newest(store, name)
    if at is not None and at.seq >= session.last_seq:
        return 0
    try:
        state, before = await _moved_on(store, session, at, whole=False)
    except Headless:  # A text changed its policy on the way.
        state, before = await _moved_on(store, session, at, whole=True)
    finished = state.finished()
    for entry in finished:
        for field in ("content", "input_text", "output_text"):
            if (entry.id, field) in state.headless:
                head = await store.pieces(name, entry.id, field)
                setattr(entry, field, head + getattr(entry, field))
    pieces, dropped = _pieces(state, before)
    progress = Progress(
        session=name,
        after=at.seq if at else 0,
        checkpoint=Checkpoint(state.seq, VERSION, keep(state)),
        entries=[(entry.id, encode(entry)) for entry in finished],
        notes=list(state.noted.items()),
        pieces=pieces,
        dropped=dropped,
        afresh=at is None,
        number=session.id,
    )
    return len(state.entries) if await store.save_progress(progress) else None


async def _moved_on(
    store: Store, session: SessionRecord, at: Checkpoint | None, *, whole: bool
) -> tuple[SessionFold, Before]:
    """The state at the head, and how long the open texts are of which pieces are stored already."""
    state = await start(store, session.name, at, whole=whole)
    texts = open_texts(state) if at is not None else {}
    before = {key: (t.length(), t.missing_chars + len(t.value()), t.generation) for key, t in texts.items()}
    await fold_on(store, state, session.last_seq)
    return state, before


def _pieces(state: SessionFold, before: Before) -> tuple[list[tuple[int, str, int, str]], list[TextKey]]:
    """What was added to the open texts, and which texts are no longer open or became others."""
    texts = open_texts(state)
    pieces: list[tuple[int, str, int, str]] = []
    dropped = [key for key in before if key not in texts]
    for key, text in texts.items():
        units, chars, generation = before.get(key, (0, 0, text.generation))
        if generation != text.generation:
            dropped.append(key)
            units, chars = 0, 0
        added = text.value()[chars - text.missing_chars :]
        if added:
            pieces.append((*key, units, added))
    return pieces, dropped


async def state_at(store: Store, name: str, seq: int | None = None) -> SessionFold:
    """A session as it stood after an event, folded from the beginning of what is kept."""
    while True:
        session = await store.session(name)
        if session is None:
            raise NotFoundError(f"no session {name!r}")
        upto = session.last_seq if seq is None else seq
        if upto > session.last_seq or upto < 0:
            raise InvalidInputError("at", f"{upto} is not a seq of this session, which goes to {session.last_seq}")
        if upto < session.pruned_seq:
            raise CursorExpiredError(upto, session.pruned_seq)
        state = await start(store, name, None, whole=True)
        await fold_on(store, state, upto)
        row = await store.session(name)
        if row is None or row.pruned_seq == session.pruned_seq:  # Else retention took away what was being read.
            return state


# Retention freezes a state whole, open texts included, as the base that the kept log goes on from.


class Base(msgspec.Struct):
    """A frozen state: what a checkpoint keeps, and its open texts."""

    kept: msgspec.Raw
    texts: list[tuple[int, str, str]]


_base: Callable[[bytes], Base] = codec.reader(Base, "what retention left")


def freeze(state: SessionFold) -> bytes:
    """The base that replaces everything up to the state's seq. Its finished entries are forgotten."""
    state.finished()
    texts = [(*key, text.value()) for key, text in open_texts(state).items()]
    return encode(Base(msgspec.Raw(keep(state)), texts))


def resume_base(session: str, data: bytes) -> SessionFold:
    """The state that a base froze."""
    base = _base(data)
    return resume(session, bytes(base.kept), {(entry, field): text for entry, field, text in base.texts})


async def prune(store: Store, name: str, before: int) -> int:
    """Forget the events older than a time (ms), up to a whole number of turns' worth: none that an open call needs."""
    session = await store.session(name)
    if session is None:
        raise NotFoundError(f"no session {name!r}")
    cut = await _last_before(store, session, before)
    if cut <= session.pruned_seq:
        return 0
    state = await state_at(store, name, cut)
    while await project(store, name) is None:
        pass
    base = freeze(state)
    return await store.prune(name, cut, base, list(state.entries))


async def _last_before(store: Store, session: SessionRecord, before: int) -> int:
    """The last event before a time: by halves, since `at` grows with seq but for foreign clocks, which may lie."""
    low, high = session.pruned_seq, session.last_seq
    while low < high:
        middle = (low + high + 1) // 2
        rows = await store.events(session.name, middle - 1, 1)
        if rows and decode_event(rows[0][1]).at < before:
            low = middle
        else:
            high = middle - 1
    return low
