"""What leaves the program: JSON for programs, columns and styled text for people, both inert."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from callslip.cli.terminal.escape import escape_block, escape_controls, escape_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

WIDE = 100_000
WIDEST, NARROW, NARROWEST = 32, 8, 4
MAX_CELL_CHARS = 1000


def write_json(*values: Any) -> None:
    """One line of JSON for each value."""
    import msgspec

    write_bytes(msgspec.json.encode(value) + b"\n" for value in values)


def write_bytes(pieces: Iterable[bytes]) -> None:
    """JSON as it is, but on a terminal, where it is made inert."""
    sys.stdout.flush()
    out = sys.stdout.buffer
    watched = sys.stdout.isatty()
    for piece in pieces:
        out.write(escape_json(piece) if watched else piece)
    out.flush()


def write_text(text: str) -> None:
    """Text as it is, but on a terminal, where it is made inert."""
    if text:
        click.echo(escape_block(text) if sys.stdout.isatty() else text, nl=not text.endswith("\n"))


def print_status(text: str) -> None:
    """A line for the person, beside the data."""
    click.echo(escape_controls(text), err=True)


def print_status_more(cut: bool, limit: int) -> None:
    """That a list may have been cut short."""
    if cut:
        print_status(f"there may be more than these {limit}: --limit shows them")


def console(*, stderr: bool = False) -> Console:
    """Where styled text goes. In a pipe nothing is styled, wrapped or cut."""
    from rich import console as rich_console

    class Console(rich_console.Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1.

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDE
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def columns(head: Sequence[str], rows: Sequence[Sequence[str | Text]], *, right: Iterable[str] = ()) -> None:
    """A list under its heads; on a terminal its last column gives way, in a pipe none does."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    made = [
        [cell if isinstance(cell, Text) else Text(escape_controls(cell[:MAX_CELL_CHARS])) for cell in row]
        for row in rows
    ]
    out = console()
    widths = [max(cell_len(name), *(row[number].cell_len for row in made)) for number, name in enumerate(head)]
    if out.is_terminal:
        widths = _fitted(widths, out.width)
    for name, width in zip(head, widths, strict=True):
        side = "right" if name in right else "left"
        table.add_column(name, justify=side, width=width, no_wrap=True, overflow="ellipsis")
    for row in made:
        table.add_row(*row)
    emit(out, table)


def _fitted(widths: list[int], room: int) -> list[int]:
    """The last column gives way first, then the widest, at last the first: it is what a person copies."""
    fitted = [min(width, WIDEST) for width in widths[:-1]]
    fitted.append(max(NARROW, min(widths[-1], room - sum(width + 2 for width in fitted))))
    while sum(fitted) + 2 * (len(fitted) - 1) > room and max(fitted) > NARROWEST:
        others = fitted[1:]
        fitted[others.index(max(others)) + 1 if max(others) > NARROW else fitted.index(max(fitted))] -= 1
    return fitted


def emit(out: Console, shown: RenderableType) -> None:
    """Print something; in a pipe without the blanks that fill its lines, and plain text without any ado."""
    from rich.text import Text

    if out.is_terminal:
        out.print(shown)
        return
    with out.capture() as caught:
        if not isinstance(shown, Text):
            out.print(shown)
    text = shown.plain if isinstance(shown, Text) else caught.get().rstrip("\n")
    for line in text.split("\n"):
        out.file.write(line.rstrip() + "\n")
