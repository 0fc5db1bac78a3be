"""Output: JSON for programs, tables and styled text for people. On a terminal all of it is escaped."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from callslip.cli.terminal.escape import escape_block, escape_controls, escape_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

PIPE_WIDTH = 100_000
MAX_COLUMN, SMALL_COLUMN, MIN_COLUMN = 32, 8, 4
MAX_CELL_CHARS = 1000


def write_json(*values: Any) -> None:
    """Write one line of JSON for each value."""
    import msgspec

    write_bytes(msgspec.json.encode(value) + b"\n" for value in values)


def write_bytes(chunks: Iterable[bytes]) -> None:
    """Write JSON, escaped on a terminal."""
    sys.stdout.flush()
    out = sys.stdout.buffer
    is_terminal = sys.stdout.isatty()
    for chunk in chunks:
        out.write(escape_json(chunk) if is_terminal else chunk)
    out.flush()


def write_text(text: str) -> None:
    """Write text, escaped on a terminal."""
    if text:
        click.echo(escape_block(text) if sys.stdout.isatty() else text, nl=not text.endswith("\n"))


def print_status(text: str) -> None:
    """Print a line about the command on stderr."""
    click.echo(escape_controls(text), err=True)


def print_more_hint(has_more: bool, limit: int) -> None:
    """Print that a list may be longer."""
    if has_more:
        print_status(f"showing the first {limit}; use --limit to show more")


def console(*, stderr: bool = False) -> Console:
    """Return a console for styled text. In a pipe nothing is styled, wrapped or truncated."""
    from rich import console as rich_console

    class Console(rich_console.Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1.

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=False)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str | Text]], *, right: Iterable[str] = ()) -> None:
    """Print a table. On a terminal its columns are shortened to fit, the last one first."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_edge=False)
    texts = [
        [cell if isinstance(cell, Text) else Text(escape_controls(cell[:MAX_CELL_CHARS])) for cell in row]
        for row in rows
    ]
    out = console()
    widths = [max(cell_len(name), *(row[number].cell_len for row in texts)) for number, name in enumerate(head)]
    if out.is_terminal:
        widths = _fit(widths, out.width)
    for name, width in zip(head, widths, strict=True):
        side = "right" if name in right else "left"
        table.add_column(name, justify=side, width=width, no_wrap=True, overflow="ellipsis")
    for row in texts:
        table.add_row(*row)
    print_block(out, table)


def grid(*columns: dict[str, Any]) -> Table:
    """Return a table without lines and head; each column has options of rich."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for options in columns:
        table.add_column(**options)
    return table


def print_facts(out: Console, facts: Iterable[tuple[str, Text | str | list[str]]], indent: str = "") -> None:
    """Print a line for each fact with its name. A list of texts has a line for each."""
    from rich.text import Text

    table = grid({"no_wrap": True, "style": "dim"}, {"overflow": "fold"})
    for name, value in facts:
        lines = [value] if isinstance(value, str) else value
        table.add_row(indent + name, lines if isinstance(lines, Text) else Text("\n".join(map(escape_controls, lines))))
    print_block(out, table)


def _fit(widths: list[int], total: int) -> list[int]:
    """Shorten the last column first, then the widest, and at last the first, which users copy."""
    fitted = [min(width, MAX_COLUMN) for width in widths[:-1]]
    fitted.append(max(SMALL_COLUMN, min(widths[-1], total - sum(width + 2 for width in fitted))))
    while sum(fitted) + 2 * (len(fitted) - 1) > total and max(fitted) > MIN_COLUMN:
        others = fitted[1:]
        fitted[others.index(max(others)) + 1 if max(others) > SMALL_COLUMN else fitted.index(max(fitted))] -= 1
    return fitted


def print_block(out: Console, content: RenderableType) -> None:
    """Print styled content; in a pipe without trailing blanks."""
    from rich.text import Text

    if out.is_terminal:
        out.print(content)
        return
    with out.capture() as captured:
        if not isinstance(content, Text):
            out.print(content)
    text = content.plain if isinstance(content, Text) else captured.get().rstrip("\n")
    for line in text.split("\n"):
        out.file.write(line.rstrip() + "\n")
