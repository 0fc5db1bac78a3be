"""Blocks of content: texts are shown, changes of files are shown as such, everything else is named."""

from __future__ import annotations

from typing import Any, cast

from callslip.formats.html import says
from callslip.formats.html.changes import changes
from callslip.formats.html.markup import NOTHING, Html, element, fold, joined, lines, name, printed, text


def listed(value: Any) -> list[Any]:
    """One block or several, without those that only refer to a terminal: its text is what was printed."""
    blocks = cast("list[Any]", value) if isinstance(value, list) else [] if value is None else [value]
    return [item for item in blocks if says.fields(item).get("type") != "terminal"]


def texts(blocks: list[Any]) -> str:
    """What the blocks say."""
    return "\n".join(said for said in map(says.block_text, blocks) if said)


def others(blocks: list[Any]) -> list[Html]:
    """The blocks that are no texts."""
    return [_other(item) for item in blocks if says.block_text(item) is None]


def output(label: str, value: str, *, shown: bool = True) -> Html:
    """What came out, under its name."""
    return fold(text(label), lines(printed(value)), shown=shown) if value else NOTHING


def _other(item: Any) -> Html:
    told = says.fields(item)
    told = says.fields(told.get("content")) or told
    if told.get("type") == "diff":
        return changes(told)
    return attached(told) if isinstance(told.get("data"), str) else output("Content", says.plain(item))


def attached(told: dict[str, Any]) -> Html:
    """What is no text, by name: the page shows texts only."""
    what = [told.get(key) for key in ("type", "mimeType", "name", "uri")]
    said = [name(value) for value in what if isinstance(value, str)] or [text("something that is no text")]
    data = told.get("data")
    much = text(f"about {says.size(len(data) * 3 // 4)}") if isinstance(data, str) else NOTHING
    return element("p", joined([text("Attached:"), joined([*said, much], ", ")], " "), css="note")
