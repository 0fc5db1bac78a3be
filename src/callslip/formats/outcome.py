"""What a call came to, for every format that shows calls."""

from __future__ import annotations

from typing import Any, cast

from callslip.model.entries import ToolCall
from callslip.rules.lifecycle import TERMINAL_STATES


def is_open(entry: ToolCall) -> bool:
    """Whether the message waits for this call. A detached one has its answer already: that it is queued."""
    return entry.scope != "detached" and entry.status not in TERMINAL_STATES


def queued(entry: ToolCall) -> dict[str, str]:
    """The answer that a detached call had at once (S3.1)."""
    return {"status": "queued", "correlation_id": entry.call_id}


def output_of(entry: ToolCall) -> Any:
    """The output, else what was shown of it, else what was printed; None if there is nothing."""
    if entry.output is not None:
        return entry.output
    shown = _shown(entry.content)
    if not shown:
        return entry.output_text or None
    texts = [_text_of(block) for block in shown]
    return shown if None in texts else "\n".join(text for text in texts if text)


def _shown(content: Any) -> list[Any]:
    """The blocks of a call's content, but for references to a terminal, whose text is the printed output."""
    blocks = cast("list[Any]", content) if isinstance(content, list) else [] if content is None else [content]
    return [block for block in blocks if _kind(block) != "terminal"]


def _kind(block: Any) -> Any:
    return cast("dict[str, Any]", block).get("type") if isinstance(block, dict) else None


def _text_of(block: Any) -> str | None:
    """The text of a text block, wrapped as content or not; None for any other block."""
    if _kind(block) == "content":
        return _text_of(block.get("content"))
    said = block.get("text") if _kind(block) == "text" else None
    return said if isinstance(said, str) else None
