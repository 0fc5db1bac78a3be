"""`callslip export`: a session as one document, or a turn of it as the stream that a client would have got."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import click

from callslip.cli.ids import ID
from callslip.cli.pieces import NATIVE
from callslip.cli.place import db_option, json_option
from callslip.cli.reach import open_client, server_options
from callslip.cli.terminal import tables
from callslip.formats import registry


def _formats() -> list[str]:
    return [*NATIVE, *(name for name in registry.writable() if name not in NATIVE)]


@click.command()
@click.argument("session", type=ID)
@click.option("--format", "format_", type=click.Choice(_formats()), default="entries", show_default=True)
@click.option("--at", type=click.IntRange(0), metavar="SEQ", help="As the session stood after this event.")
@click.option("--stream", is_flag=True, help="Write one turn instead, as a client is streamed it.")
@click.option("--turn", metavar="TURN", help="Which turn to stream; the last one unless given.")
@click.option("-o", "--output", "file", type=click.Path(dir_okay=False, allow_dash=True), help="Write to this file.")
@server_options
@db_option
@json_option
def export(session: str, format_: str, at: int | None, stream: bool, turn: str | None, file: str | None) -> None:
    """Write a session in another format.

    It is one JSON document, {"session", "seq", and "events", "entries" or "messages"}, with an item on each line; html
    and otel are documents of their own.
    """
    if stream and format_ not in registry.streamable():
        raise click.UsageError(f"--stream goes with --format {' or '.join(registry.streamable())}")
    if turn and not stream:
        raise click.UsageError("--turn goes with --stream")
    with open_client() as reach:
        found = reach.session(session)
        pieces = reach.turn(found, format_, at, turn or "") if stream else reach.export(found, format_, at)
        with closing(pieces):
            _write(pieces, file)


def _write(pieces: Iterator[bytes], file: str | None) -> None:
    if file is None or file == "-":
        tables.write_bytes(pieces)
        return
    plain = not os.path.exists(file) or os.path.isfile(file)
    beside = f"{file}.part-{os.getpid()}" if plain else file
    try:
        with open(beside, "wb") as out:
            out.writelines(pieces)
        if plain:
            os.replace(beside, file)
    except BaseException as error:
        if plain and os.path.exists(beside):
            os.unlink(beside)
        if isinstance(error, OSError) and error.filename == beside:
            error.filename = file
        raise
    tables.print_status(f"wrote {file}")
