"""A change of a file: what was taken out and what was put in, with a few lines around it.

Lines that both texts begin and end with are left out, and nothing finer is looked for: that costs no more than reading
both, whatever they are.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.html import says
from callslip.formats.html.markup import Html, element, fold, joined, lines, name, printed, text

AROUND = 3


def changes(block: dict[str, Any]) -> Html:
    """A block of content that tells an old and a new text."""
    before, after = (_lines(block.get(side)) for side in ("oldText", "newText"))
    path = says.plain(block.get("path")) or "a file"
    return fold(joined([text("Changes"), name(path, "code")], " "), lines(joined(_rows(before, after))), shown=True)


def _lines(value: Any) -> list[str]:
    return says.plain(value).removesuffix("\n").split("\n") if value else []


def _rows(before: list[str], after: list[str]) -> list[Html]:
    head = _same(before, after)
    tail = _same(before[head:][::-1], after[head:][::-1])
    removed, added = (side[head : len(side) - tail] for side in (before, after))
    around = before[max(0, head - AROUND) : head], before[len(before) - tail :][:AROUND]
    return [
        *(_row(" ", line) for line in around[0]),
        *(_row("-", line, "removed") for line in removed),
        *(_row("+", line, "added") for line in added),
        *(_row(" ", line) for line in around[1]),
    ]


def _same(before: list[str], after: list[str]) -> int:
    """How many lines both begin with."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((n for n, (one, other) in pairs if one != other), min(len(before), len(after)))


def _row(sign: str, line: str, css: str = "") -> Html:
    row = joined([text(f"{sign} "), printed(line), Html("\n")])
    return element("span", row, css=css) if css else row
