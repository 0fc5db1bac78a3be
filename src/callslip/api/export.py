"""Write a session as bytes: one document in chunks, or one turn as a client receives it in a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator

import msgspec

from callslip.api.find import find_session
from callslip.errors import CursorExpiredError, InvalidInputError, NotFoundError
from callslip.formats import registry
from callslip.ledger.event_log import EventLog
from callslip.model.entries import Snapshot
from callslip.model.records import SessionRecord

PAGE_ROWS = 1000
DOCUMENT_END = b"\n]}\n"


def document_field(format: str) -> str:
    """Return the name of a document's list of items; "" for a format that has no such list (html, otel)."""
    registry.check_exportable(format)
    if format in registry.NATIVE_FORMATS:
        return format
    return "" if registry.find(format).document else "messages"


def document_start(session: str, seq: int, field: str) -> bytes:
    """Return the beginning of a document, up to its list of items."""
    return msgspec.json.encode({"session": session, "seq": seq})[:-1] + f',"{field}":['.encode()


def document_items(bodies: Iterable[bytes], *, is_first: bool = True) -> Iterator[bytes]:
    """Yield items of a document, each on its own line."""
    for body in bodies:
        yield (b"\n" if is_first else b",\n") + body
        is_first = False


def check_position(record: SessionRecord, at: int | None) -> None:
    """Raise unless a session can be read as it was after event `at`."""
    if at is not None and at > record.last_seq:
        raise InvalidInputError("at", f"{at} is beyond the last event ({record.last_seq})")
    if at is not None and at < record.pruned_seq:
        raise CursorExpiredError(at, record.pruned_seq)


async def export_session(log: EventLog, session: str, format: str, at: int | None = None) -> AsyncGenerator[bytes]:
    """Yield a session in a format, now or as it was after an event."""
    record = await find_session(log, session)
    check_position(record, at)
    field = document_field(format)
    if field == "events":
        async for chunk in _export_events(log, record, at):
            yield chunk
        return
    snapshot: Snapshot = await (log.snapshot(record.name) if at is None else _snapshot_at(log, record.name, at))
    if not field:
        yield registry.document(format)(snapshot)
        return
    items = snapshot.entries if field == "entries" else registry.encoder(format)(snapshot)
    yield document_start(record.name, snapshot.seq, field)
    for chunk in document_items(map(msgspec.json.encode, items)):
        yield chunk
    yield DOCUMENT_END


async def _snapshot_at(log: EventLog, session: str, at: int) -> Snapshot:
    return (await log.state_at(session, at)).snapshot()


async def _export_events(log: EventLog, record: SessionRecord, at: int | None) -> AsyncGenerator[bytes]:
    """Yield the log as it is stored, a page at a time, so that little of it is in memory."""
    last = record.last_seq if at is None else at
    yield document_start(record.name, last, "events")
    after = record.pruned_seq
    while after < last:
        rows = await log.store.events(record.name, after, min(PAGE_ROWS, last - after))
        if not rows:
            break
        yield b"".join(document_items((body for _, body in rows), is_first=after == record.pruned_seq))
        after = rows[-1][0]
    yield DOCUMENT_END


async def export_turn(
    log: EventLog, session: str, format: str, at: int | None = None, turn: str = ""
) -> AsyncGenerator[bytes]:
    """Yield one turn from its start, as far as it has come."""
    record = await find_session(log, session)
    check_position(record, at)
    state = await log.state_at(record.name, at)
    streaming = registry.streaming(format)
    encoder = streaming.encoder(state, turn)
    if turn and not encoder.turn.has_begun:
        turns = {entry.turn for entry in state.entries.values()} | {state.info.turn}
        known = ", ".join(sorted(turns - {""})) or "none"
        raise NotFoundError(f"no turn {turn!r} in session {record.name}; its turns: {known}")
    yield b"".join(streaming.frame(chunk) for chunk in encoder.opening()) + streaming.done
