"""`callslip import`: a file of foreign messages, taken into a session. Twice is the same as once."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, cast

import click
import msgspec

from callslip.cli.options import ID, db_option, json_option, wants_json, with_ledger
from callslip.cli.terminal import tables
from callslip.cli.terminal.formatting import pluralize
from callslip.errors import InvalidInputError
from callslip.formats import registry
from callslip.ingest.importer import BOM, Report, import_file, import_lines
from callslip.ingest.stream_parser import MAX_LINE_BYTES
from callslip.model.names import MAX_NAME_BYTES, check_session_name

if TYPE_CHECKING:
    from callslip.api.ledger import LocalLedger
    from callslip.model.events import Chunks

LONG = 2**20
ENDINGS = (".json", ".jsonl", ".ndjson", ".log", ".txt")


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--format", "format_", type=click.Choice(registry.readable()), required=True)
@click.option("--session", type=ID, help="The session to write; the name of the file unless given.")
@click.option(
    "--chunks",
    type=click.Choice(["auto", "delta", "cumulative", "dedupe"]),
    help="How texts come in pieces, if you know better than the format.",
)
@db_option
@json_option
def import_(file: str, format_: str, session: str | None, chunks: Chunks | None) -> None:
    """Take what a file tells into a session.

    FILE has one JSON value on each line, or is a document that `callslip export` wrote; - is stdin. What an earlier
    import brought is passed over, so a file that grew may be imported again.
    """
    if file == "-" and not session:
        raise click.UsageError("stdin has no name: say --session")
    name = check_session_name(session or name_of(file))
    try:
        report = with_ledger(lambda ledger: _take(ledger, file, name, format_, chunks), create=True)
    except InvalidInputError as error:
        raise click.ClickException(f"{file}: {error}") from error
    if wants_json():
        tables.write_json(report)
    _tell(report, name)


def name_of(path: str) -> str:
    """The session that a file is for: its name, without its ending and without what no name may have."""
    name = os.fsencode(os.path.basename(path)).decode("utf-8", "replace")
    stem, ending = os.path.splitext(name)
    bare = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\\]", "_", stem if ending.lower() in ENDINGS else name)
    return bare.encode()[:MAX_NAME_BYTES].decode("utf-8", "ignore") or "imported"


async def _take(ledger: LocalLedger, file: str, session: str, format_: str, chunks: Chunks | None) -> Report:
    if file == "-":
        lines, _ = messages(sys.stdin.buffer)
        return await import_lines(ledger.log, session, format_, lines, chunks=chunks)
    with open(file, "rb") as opened, _progress(file) as progress:
        lines, plain = messages(opened)
        if plain:
            return await import_file(ledger.log, session, format_, file, chunks=chunks, progress=progress)
        return await import_lines(ledger.log, session, format_, lines, chunks=chunks, progress=progress)


# A document holds the same messages, wrapped in one JSON value.


def messages(file: IO[bytes]) -> tuple[Iterable[bytes], bool]:
    """The messages of a file, one per line, and whether they are simply its lines."""
    first = file.readline(MAX_LINE_BYTES)
    start = first.strip().removeprefix(BOM)
    if start.startswith(b'{"session":') and start.endswith(b":["):
        return _items(file), False
    if start[:1] in (b"{", b"[") and not _whole(start):
        return _document(first.removeprefix(BOM) + file.read()), False
    return chain([first], file), True


def _items(file: IO[bytes]) -> Iterator[bytes]:
    """What `export` wrote: an item on each line."""
    for line in file:
        item = line.strip().removesuffix(b",")
        if item == b"]}":
            return
        yield item
    raise InvalidInputError("document", "ends before its closing bracket: it was cut short")


def _whole(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _document(text: bytes) -> Iterator[bytes]:
    """A document in any layout: a list of messages, or an object with `events`. If it is neither: its lines."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        yield from text.splitlines()
        return
    listed: Any = cast("dict[str, Any]", value).get("events") if isinstance(value, dict) else value
    items = cast("list[Any]", listed) if isinstance(listed, list) else [cast(Any, value)]
    for item in items:
        yield msgspec.json.encode(item)


# What the person hears


@contextmanager
def _progress(path: str) -> Generator[Callable[[Report], None] | None]:
    """A bar on the terminal while a long file is read."""
    if not sys.stderr.isatty() or os.path.getsize(path) < LONG:
        yield None
        return
    from rich.progress import Progress

    with open(path, "rb") as file:
        total = sum(piece.count(b"\n") for piece in iter(lambda: file.read(LONG), b""))
    with Progress(console=tables.console(stderr=True), transient=True) as bar:
        task = bar.add_task("importing", total=total)
        yield lambda report: bar.update(task, completed=report.lines)


def _tell(report: Report, session: str) -> None:
    into = ", ".join(report.sessions) or session
    tables.print_status(f"{pluralize(report.lines, 'line')}, {pluralize(report.events, 'new event')} in {into}")
    odd = [f"{count} {verdict}" for verdict, count in report.verdicts.items() if verdict != "applied"]
    if odd:
        tables.print_status(f"kept without effect: {', '.join(odd)}")
    if report.seen:
        tables.print_status(f"known from an earlier import: {report.seen:,} of {report.drafts:,}")
