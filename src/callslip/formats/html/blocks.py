"""Render content blocks: texts and changes of files are shown, everything else is named."""

from __future__ import annotations

from typing import Any

from callslip.formats.html.file_changes import render_diff
from callslip.formats.html.formatting import as_text, block_text
from callslip.formats.html.markup import NO_HTML, Html, element, fold, joined, lines, name, printed, text
from callslip.formats.json_fields import as_dict
from callslip.model.display import format_size


def join_texts(blocks: list[Any]) -> str:
    """Return the texts of the blocks."""
    return "\n".join(value for value in map(block_text, blocks) if value)


def render_others(blocks: list[Any]) -> list[Html]:
    """Render the blocks that are not texts."""
    return [_render_other(block) for block in blocks if block_text(block) is None]


def render_output(label: str, value: str, *, is_open: bool = True) -> Html:
    """Render an output under its label."""
    return fold(text(label), lines(printed(value)), is_open=is_open) if value else NO_HTML


def _render_other(block: Any) -> Html:
    fields = as_dict(block)
    fields = as_dict(fields.get("content")) or fields
    if fields.get("type") == "diff":
        return render_diff(fields)
    is_file = isinstance(fields.get("data"), str)
    return render_attachment(fields) if is_file else render_output("Content", as_text(block))


def render_attachment(fields: dict[str, Any]) -> Html:
    """Render the type, name and size of an attachment: the page shows texts only."""
    values = [fields.get(key) for key in ("type", "mimeType", "name", "uri")]
    facts = [name(value) for value in values if isinstance(value, str)] or [text("not a text")]
    data = fields.get("data")
    if isinstance(data, str):
        facts.append(text(f"about {format_size(len(data) * 3 // 4)}"))
    return element("p", joined([text("Attached:"), joined(facts, ", ")], " "), css="note")
