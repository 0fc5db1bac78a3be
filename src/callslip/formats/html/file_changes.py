"""Render a change of a file: the removed and the added lines, with a few lines of context.

Lines that both texts begin and end with are left out. A finer diff could cost more than reading both texts.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.html.formatting import as_text
from callslip.formats.html.markup import Html, element, fold, joined, lines, name, printed, text

CONTEXT_LINES = 3


def render_diff(block: dict[str, Any]) -> Html:
    """Render a content block with an old and a new text."""
    before, after = (_lines(block.get(side)) for side in ("oldText", "newText"))
    path = as_text(block.get("path")) or "a file"
    return fold(joined([text("Changes"), name(path, "code")], " "), lines(joined(_rows(before, after))), is_open=True)


def _lines(value: Any) -> list[str]:
    return as_text(value).removesuffix("\n").split("\n") if value else []


def _rows(before: list[str], after: list[str]) -> list[Html]:
    head = _common_lines(before, after)
    tail = _common_lines(before[head:][::-1], after[head:][::-1])
    removed, added = (side[head : len(side) - tail] for side in (before, after))
    context = before[max(0, head - CONTEXT_LINES) : head], before[len(before) - tail :][:CONTEXT_LINES]
    return [
        *(_row(" ", line) for line in context[0]),
        *(_row("-", line, "removed") for line in removed),
        *(_row("+", line, "added") for line in added),
        *(_row(" ", line) for line in context[1]),
    ]


def _common_lines(before: list[str], after: list[str]) -> int:
    """Return how many lines both begin with."""
    pairs = enumerate(zip(before, after, strict=False))
    return next((n for n, (one, other) in pairs if one != other), min(len(before), len(after)))


def _row(sign: str, line: str, css: str = "") -> Html:
    row = joined([text(f"{sign} "), printed(line), Html("\n")])
    return element("span", row, css=css) if css else row
