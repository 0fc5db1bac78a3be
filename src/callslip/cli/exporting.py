"""`callslip export`: a session as one JSON document, or a turn of it as the stream that a client would have got."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from callslip.cli import output
from callslip.cli.ids import ID
from callslip.cli.place import db_option, json_option, with_ledger
from callslip.errors import Gone, NotFound, Refused
from callslip.formats import registry

if TYPE_CHECKING:
    from callslip.ledger import Ledger
    from callslip.rows import SessionRow

encode = msgspec.json.encode
Pieces = AsyncIterator[bytes]
NATIVE = ("events", "entries")


def _formats() -> list[str]:
    return [*NATIVE, *(name for name in registry.writable() if name not in NATIVE)]


@click.command()
@click.argument("session", type=ID)
@click.option("--format", "format_", type=click.Choice(_formats()), default="entries", show_default=True)
@click.option("--at", type=click.IntRange(0), metavar="SEQ", help="As the session stood after this event.")
@click.option("--stream", is_flag=True, help="Write the server-sent events of one turn instead (ui-v6).")
@click.option("--turn", metavar="TURN", help="Which turn to stream; the last one unless given.")
@click.option("-o", "--output", "file", type=click.Path(dir_okay=False, allow_dash=True), help="Write to this file.")
@db_option
@json_option
def export(session: str, format_: str, at: int | None, stream: bool, turn: str | None, file: str | None) -> None:
    """Write a session in another format.

    It is one JSON document, {"session", "seq", and "events", "entries" or "messages"}, with an item on each line.
    """
    if stream and format_ not in STREAMS:
        raise click.UsageError(f"--stream goes with --format {' or '.join(STREAMS)}")
    if turn and not stream:
        raise click.UsageError("--turn goes with --stream")

    async def work(ledger: Ledger) -> None:
        row = await ledger.find_session(session)
        _check(row, at)
        pieces = STREAMS[format_](ledger, row, at, turn or "") if stream else _document(ledger, row, format_, at)
        await _write(pieces, file)

    with_ledger(work)


def _check(row: SessionRow, at: int | None) -> None:
    if at is not None and at > row.head:
        raise Refused("--at", f"{at} is not a seq of session {row.name}, which goes to {row.head}")
    if at is not None and at < row.low:
        raise Gone(at, row.low)


def _document(ledger: Ledger, row: SessionRow, format_: str, at: int | None) -> Pieces:
    make: Callable[..., Pieces] = {"events": _events, "entries": _entries}.get(format_, _messages)
    return make(ledger, row, at, format_)


async def _events(ledger: Ledger, row: SessionRow, at: int | None, format_: str) -> Pieces:
    """The log as it is stored, a page at a time: however long it is, little of it is in memory."""
    last = row.head if at is None else at
    yield _head(row.name, last, "events")
    after = row.low
    while after < last:
        rows = await ledger.store.events(row.name, after, min(1000, last - after))
        if not rows:
            break
        lead = b"\n" if after == row.low else b",\n"
        after = rows[-1][0]
        yield lead + b",\n".join(body for _, body in rows)
    yield b"\n]}\n"


async def _entries(ledger: Ledger, row: SessionRow, at: int | None, format_: str) -> Pieces:
    snapshot = await ledger.snapshot(row.name) if at is None else (await ledger.state_at(row.name, at)).snapshot()
    yield _head(row.name, snapshot.seq, "entries")
    for piece in _items(snapshot.entries):
        yield piece


async def _messages(ledger: Ledger, row: SessionRow, at: int | None, format_: str) -> Pieces:
    state = await ledger.state_at(row.name, at)
    yield _head(row.name, state.seq, "messages")
    for piece in _items(registry.encoder(format_)(state)):
        yield piece


def _head(session: str, seq: int, what: str) -> bytes:
    return encode({"session": session, "seq": seq})[:-1] + f',"{what}":['.encode()


def _items(items: list[Any]) -> list[bytes]:
    lines = [(b",\n" if number else b"\n") + encode(item) for number, item in enumerate(items)]
    return [*lines, b"\n]}\n"]


async def _ui_stream(ledger: Ledger, row: SessionRow, at: int | None, turn: str) -> Pieces:
    from callslip.formats import ai_sdk

    state = await ledger.state_at(row.name, at)
    known = {entry.turn for entry in state.entries.values()} | {state.info.turn}
    if turn and turn not in known:
        raise NotFound(f"no turn {turn!r} in session {row.name}; there are {', '.join(sorted(known - {''})) or 'none'}")
    yield ai_sdk.sse(ai_sdk.stream(state, turn))


STREAMS: dict[str, Callable[..., Pieces]] = {"ui-v6": _ui_stream}


async def _write(pieces: Pieces, file: str | None) -> None:
    if file is None or file == "-":
        async for piece in pieces:
            output.write_bytes([piece])
        return
    plain = not os.path.exists(file) or os.path.isfile(file)
    beside = f"{file}.part-{os.getpid()}" if plain else file
    try:
        with open(beside, "wb") as out:
            await _copy(pieces, out)
        if plain:
            os.replace(beside, file)
    except BaseException as error:
        if plain and os.path.exists(beside):
            os.unlink(beside)
        if isinstance(error, OSError) and error.filename == beside:
            error.filename = file
        raise
    output.say(f"wrote {file}")


async def _copy(pieces: Pieces, out: IO[bytes]) -> None:
    async for piece in pieces:
        out.write(piece)
