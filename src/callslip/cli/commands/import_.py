"""`callslip import`: import messages from a file. Importing a file again adds only what is new."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, TypedDict, cast

import click
import msgspec

from callslip.cli.options import ID, db_option, json_option, wants_json, with_ledger
from callslip.cli.terminal import tables
from callslip.errors import InvalidInputError
from callslip.formats import registry
from callslip.ingest.importer import BOM, Report, import_file, import_lines
from callslip.ingest.stream_parser import MAX_LINE_BYTES
from callslip.model.display import pluralize
from callslip.model.names import MAX_NAME_BYTES, check_session_name

if TYPE_CHECKING:
    from callslip.api.ledger import LocalLedger
    from callslip.model.events import Chunks

LONG_FILE_BYTES = 2**20
SUFFIXES = (".json", ".jsonl", ".ndjson", ".log", ".txt")


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--format", "format_", type=click.Choice(registry.readable()), required=True)
@click.option("--session", type=ID, help="The session to write. [default: the name of the file]")
@click.option(
    "--chunks",
    type=click.Choice(["auto", "delta", "cumulative", "dedupe"]),
    help="How streamed texts are split. [default: that of the format]",
)
@click.option(
    "--requires-validation",
    "tools",
    multiple=True,
    metavar="TOOL",
    help="For rows: a user must accept the calls of this tool; one without an answer is pending.",
)
@db_option
@json_option
def import_(file: str, format_: str, session: str | None, chunks: Chunks | None, tools: tuple[str, ...]) -> None:
    """Import messages from a file.

    FILE has one JSON value per line, or is a document that `callslip export` wrote; - is stdin. What was imported
    before is skipped, so a file that has grown can be imported again.
    """
    if file == "-" and not session:
        raise click.UsageError("stdin has no name; pass --session")
    name = check_session_name(session or session_name(file))
    try:
        options = Options(chunks=chunks, requires_validation=dict.fromkeys(tools, True) if tools else None)
        report = with_ledger(lambda ledger: _import(ledger, file, name, format_, options), create=True)
    except InvalidInputError as error:
        raise click.ClickException(f"{file}: {error}") from error
    if wants_json():
        tables.write_json(report)
    _print_report(report, name)


def session_name(path: str) -> str:
    """Return the session name for a file: its name without the suffix and without forbidden characters."""
    name = os.fsencode(os.path.basename(path)).decode("utf-8", "replace")
    stem, suffix = os.path.splitext(name)
    clean = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\\]", "_", stem if suffix.lower() in SUFFIXES else name)
    return clean.encode()[:MAX_NAME_BYTES].decode("utf-8", "ignore") or "imported"


class Options(TypedDict):
    """How the messages of a file are read."""

    chunks: Chunks | None
    requires_validation: dict[str, bool] | None


async def _import(ledger: LocalLedger, file: str, session: str, format_: str, options: Options) -> Report:
    if file == "-":
        lines, _ = read_messages(sys.stdin.buffer)
        return await import_lines(ledger.log, session, format_, lines, **options)
    with open(file, "rb") as opened, _progress(file) as progress:
        lines, is_plain = read_messages(opened)
        if is_plain:
            return await import_file(ledger.log, session, format_, file, **options, progress=progress)
        return await import_lines(ledger.log, session, format_, lines, **options, progress=progress)


# A document contains the same messages in one JSON value.


def read_messages(file: IO[bytes]) -> tuple[Iterable[bytes], bool]:
    """Return the messages of a file, and whether they are simply its lines."""
    first = file.readline(MAX_LINE_BYTES)
    start = first.strip().removeprefix(BOM)
    if start.startswith(b'{"session":') and start.endswith(b":["):
        return _items(file), False
    if start[:1] in (b"{", b"[") and not _is_json(start):
        return _document(first.removeprefix(BOM) + file.read()), False
    return chain([first], file), True


def _items(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the items of a document that `export` wrote, one per line."""
    for line in file:
        item = line.strip().removesuffix(b",")
        if item == b"]}":
            return
        yield item
    raise InvalidInputError("document", "is truncated: the closing bracket is missing")


def _is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _document(text: bytes) -> Iterator[bytes]:
    """Yield the items of a document in any layout: a list, or an object with `events`; else its lines."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        yield from text.splitlines()
        return
    listed: Any = cast("dict[str, Any]", value).get("events") if isinstance(value, dict) else value
    items = cast("list[Any]", listed) if isinstance(listed, list) else [cast(Any, value)]
    for item in items:
        yield msgspec.json.encode(item)


# Progress and report


@contextmanager
def _progress(path: str) -> Generator[Callable[[Report], None] | None]:
    """Show a progress bar on the terminal while a long file is read."""
    if not sys.stderr.isatty() or os.path.getsize(path) < LONG_FILE_BYTES:
        yield None
        return
    from rich.progress import Progress

    with open(path, "rb") as file:
        total = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(LONG_FILE_BYTES), b""))
    with Progress(console=tables.console(stderr=True), transient=True) as bar:
        task = bar.add_task("importing", total=total)
        yield lambda report: bar.update(task, completed=report.lines)


def _print_report(report: Report, session: str) -> None:
    sessions = ", ".join(report.sessions) or session
    tables.print_status(f"{pluralize(report.lines, 'line')}, {pluralize(report.events, 'new event')} in {sessions}")
    names = {verdict: "replayed" if verdict == "witness" else verdict for verdict in report.verdicts}
    ineffective = [f"{count} {names[verdict]}" for verdict, count in report.verdicts.items() if verdict != "applied"]
    if ineffective:
        tables.print_status(f"stored without effect: {', '.join(ineffective)}")
    if report.seen:
        tables.print_status(f"already imported: {report.seen:,} of {report.drafts:,}")
