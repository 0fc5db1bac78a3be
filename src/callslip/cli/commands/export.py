"""`callslip export`: a session as one document, or one turn as the stream that a client receives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

import click

from callslip.cli.options import ID, db_option, json_option, open_selected, server_options
from callslip.cli.terminal import tables
from callslip.formats import registry


@click.command()
@click.argument("session", type=ID)
@click.option("--format", "format_", type=click.Choice(registry.exportable()), default="entries", show_default=True)
@click.option("--at", type=click.IntRange(0), metavar="SEQ", help="Export the session as it was after this event.")
@click.option("--stream", is_flag=True, help="Write one turn as it is streamed to a client.")
@click.option(
    "--turn", metavar="TURN", help="The turn to stream, or a message id outside of turns. [default: the last]"
)
@click.option("-o", "--output", "file", type=click.Path(dir_okay=False, allow_dash=True), help="Write to this file.")
@server_options
@db_option
@json_option
def export(session: str, format_: str, at: int | None, stream: bool, turn: str | None, file: str | None) -> None:
    """Export a session.

    The output is one JSON document, {"session", "seq", and "events", "entries" or "messages"}, with one item per line;
    html and otel are documents of their own.
    """
    if stream and format_ not in registry.streamable():
        raise click.UsageError(f"--stream goes with --format {' or '.join(registry.streamable())}")
    if turn and not stream:
        raise click.UsageError("--turn goes with --stream")
    with open_selected() as selected:
        ledger = selected.ledger
        if stream:
            chunks = ledger.export_turn(session, format_, turn=turn or "", at=at)
        else:
            chunks = ledger.export_chunks(session, format_, at=at)
        with closing(chunks):
            _write(chunks, file)


def _write(chunks: Iterator[bytes], file: str | None) -> None:
    """Write to stdout, or to a file that appears only when it is complete."""
    if file is None or file == "-":
        tables.write_bytes(chunks)
        return
    is_regular = not os.path.exists(file) or os.path.isfile(file)
    target = f"{file}.part-{os.getpid()}" if is_regular else file
    try:
        with open(target, "wb") as out:
            out.writelines(chunks)
        if is_regular:
            os.replace(target, file)
    except BaseException as error:
        if is_regular and os.path.exists(target):
            os.unlink(target)
        if isinstance(error, OSError) and error.filename == target:
            error.filename = file
        raise
    tables.print_status(f"wrote {file}")
