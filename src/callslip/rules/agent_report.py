"""What an agent reports about a call that was denied or cancelled before: the text of its own end of the call."""

from __future__ import annotations

from typing import Any, cast

from callslip.model import codec
from callslip.model.events import CallEnd

_MESSAGE_FIELDS = ("message", "error", "output", "text")
"""Where agents put the text of an error or an output that is an object."""


def report_text(end: CallEnd) -> str:
    """Return the error, output or content of an end as text, the first that is not empty."""
    return _text(end.error) or _text(end.output) or _content_text(end.content)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        texts = [fields[name] for name in _MESSAGE_FIELDS if isinstance(fields.get(name), str) and fields[name]]
        return texts[0] if texts else codec.encode(fields).decode() if fields else ""
    if isinstance(value, str):
        return value
    return codec.encode(cast("list[Any]", value)).decode() if isinstance(value, list) and value else ""


def _content_text(content: Any) -> str:
    """Return the text of content blocks, which agents wrap in an item of type `content`."""
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    items = [cast("dict[str, Any]", block) for block in blocks if isinstance(block, dict)]
    inner = [item["content"] if isinstance(item.get("content"), dict) else item for item in items]
    return "\n".join(block["text"] for block in inner if isinstance(block.get("text"), str))
