"""What an agent reports about a call that has ended: the text of its own end of the call."""

from __future__ import annotations

from typing import Any, cast

from callslip.model import codec
from callslip.model.events import CallCompleted, CallEnd, CallFailed
from callslip.rules.call_content import content_text

_MESSAGE_FIELDS = ("message", "error", "output", "text")
"""Where agents put the text of an error or an output that is an object."""


def report_text(end: CallEnd) -> str:
    """Return the error, output or content of an end as text, the first that is not empty, with a note if it is cut."""
    texts = {"error": _text(end.error), "output": _text(end.output), "content": content_text(end.content)}
    field = next((name for name, text in texts.items() if text), "")
    if not field or end.blob is None:
        return texts.get(field, "")
    cut = end.blob.fields or ("output",)
    # An output that repeats the text of the content is cut with it.
    is_cut = field in cut or (field == "output" and "content" in cut and texts["output"] == texts["content"])
    return texts[field] + (f"\n(cut: the whole {field} has {end.blob.size:,} bytes)" if is_cut else "")


def describe_end(end: CallEnd) -> str:
    """Return how a call ended as a verb, with its exit status if that is not 0."""
    has_failed = isinstance(end, CallFailed)
    verb = "completed" if isinstance(end, CallCompleted) else "failed" if has_failed else "was stopped"
    status = end.exit_status
    return f"{verb} with exit status {status}" if isinstance(status, int) and status else verb


def _text(value: Any) -> str:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        texts = [fields[name] for name in _MESSAGE_FIELDS if isinstance(fields.get(name), str) and fields[name]]
        return texts[0] if texts else codec.encode(fields).decode() if fields else ""
    if isinstance(value, str):
        return value
    return codec.encode(cast("list[Any]", value)).decode() if isinstance(value, list) and value else ""
