"""A session as bytes to be written: one document, piece by piece, or one turn as a client is streamed it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from callslip.errors import CursorExpiredError, InvalidInputError, NotFoundError
from callslip.formats import registry

if TYPE_CHECKING:
    from callslip.api.ledger import Ledger
    from callslip.model.records import SessionRecord

encode = msgspec.json.encode
Pieces = AsyncGenerator[bytes]
NATIVE = ("events", "entries")
PAGE = 1000


def field_of(format: str) -> str:
    """Under which name a document has its items; "" for a format that is a document of its own."""
    if format in NATIVE:
        return format
    return "" if registry.find(format).document else "messages"


def head(session: str, seq: int, field: str) -> bytes:
    """How a document begins."""
    return encode({"session": session, "seq": seq})[:-1] + f',"{field}":['.encode()


def items(bodies: Iterable[bytes], first: bool = True) -> Iterator[bytes]:
    """Items of a document, each on a line of its own."""
    for body in bodies:
        yield (b"\n" if first else b",\n") + body
        first = False


END = b"\n]}\n"


async def whole(ledger: Ledger, session: str, format: str, at: int | None) -> Pieces:
    """A session in a format, now or as it stood after an event."""
    row = await ledger.find_session(session)
    _check(row, at)
    make: Callable[..., Pieces] = _MADE.get(field_of(format), _messages)
    async for piece in make(ledger, row, at, format):
        yield piece


def _check(row: SessionRecord, at: int | None) -> None:
    if at is not None and at > row.last_seq:
        raise InvalidInputError("--at", f"{at} is not a seq of session {row.name}, which goes to {row.last_seq}")
    if at is not None and at < row.pruned_seq:
        raise CursorExpiredError(at, row.pruned_seq)


async def _events(ledger: Ledger, row: SessionRecord, at: int | None, format: str) -> Pieces:
    """The log as it is stored, a page at a time: however long it is, little of it is in memory."""
    last = row.last_seq if at is None else at
    yield head(row.name, last, "events")
    after = row.pruned_seq
    while after < last:
        rows = await ledger.log.store.events(row.name, after, min(PAGE, last - after))
        if not rows:
            break
        yield b"".join(items((body for _, body in rows), first=after == row.pruned_seq))
        after = rows[-1][0]
    yield END


async def _snapshot(ledger: Ledger, row: SessionRecord, at: int | None) -> Any:
    return await ledger.snapshot(row.name) if at is None else (await ledger.log.state_at(row.name, at)).snapshot()


async def _entries(ledger: Ledger, row: SessionRecord, at: int | None, format: str) -> Pieces:
    snapshot = await _snapshot(ledger, row, at)
    yield head(row.name, snapshot.seq, "entries")
    for piece in items(map(encode, snapshot.entries)):
        yield piece
    yield END


async def _messages(ledger: Ledger, row: SessionRecord, at: int | None, format: str) -> Pieces:
    state = await ledger.log.state_at(row.name, at)
    yield head(row.name, state.seq, "messages")
    for piece in items(map(encode, registry.encoder(format)(state))):
        yield piece
    yield END


async def _document(ledger: Ledger, row: SessionRecord, at: int | None, format: str) -> Pieces:
    yield registry.document(format)(await _snapshot(ledger, row, at))


_MADE: dict[str, Callable[..., Pieces]] = {"events": _events, "entries": _entries, "": _document}


async def turn(ledger: Ledger, session: str, format: str, at: int | None, turn: str) -> Pieces:
    """One turn from its start, as far as it goes."""
    row = await ledger.find_session(session)
    _check(row, at)
    state = await ledger.log.state_at(row.name, at)
    known = {entry.turn for entry in state.entries.values()} | {state.info.turn}
    if turn and turn not in known:
        raise NotFoundError(
            f"no turn {turn!r} in session {row.name}; there are {', '.join(sorted(known - {''})) or 'none'}"
        )
    how = registry.streaming(format)
    yield b"".join(how.frame(chunk) for chunk in how.encoder(state, turn).opening()) + how.done
