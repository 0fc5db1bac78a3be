"""The content that an agent shows for a call: its text, and the preview of content that is stored outside the log.

Content is a list of blocks: texts, wrapped as `content` or not, diffs, images, resources, references to terminals.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec import UNSET

from callslip.model import codec
from callslip.model.events import Blob, CallUpdate, blob_of, read_blob

Json = dict[str, Any]

PRINTED_FIELDS = ("aggregated_output", "output")
STREAMS = ("stdout", "stderr")


def content_text(content: Any) -> str:
    """Return the texts of content, one below the other; "" if it has none."""
    blocks = cast("list[Any]", content) if isinstance(content, list) else [content]
    return "\n".join(text for block in blocks if (text := block_text(block)))


def block_text(block: Any) -> str | None:
    """Return the text of a text block, wrapped as content or not; None for any other block."""
    fields = _fields(block)
    inner = _fields(fields.get("content")) if fields.get("type") == "content" else fields
    text = inner.get("text") if inner.get("type") == "text" else None
    return text if isinstance(text, str) else None


def printed_text(output: Any) -> str | None:
    """Return what a program printed, of an output that agents record as an object; None for any other output."""
    fields = _fields(output)
    for name in PRINTED_FIELDS:
        if isinstance(fields.get(name), str):
            return fields[name]
    if not any(isinstance(fields.get(name), str) for name in STREAMS):
        return None
    texts = [fields[name] for name in STREAMS if isinstance(fields.get(name), str) and fields[name]]
    return "".join(text if text.endswith("\n") or text is texts[-1] else text + "\n" for text in texts)


def content_blob(event: CallUpdate) -> Blob | None:
    """Return the blob with the full content of an event; None if its content is complete."""
    blob = blob_of(event)
    return blob if blob is not None and "content" in blob.fields else None


def output_blob(event: CallUpdate) -> Blob | None:
    """Return the blob with the full output of an event; None if its output is complete.

    An output that is the text of the content is stored with the content.
    """
    blob = blob_of(event)
    if blob is None or not blob.fields or "output" in blob.fields:
        return blob
    output = getattr(event, "output", UNSET)
    return blob if isinstance(output, str) and output == content_text(event.content) else None


def read_output(blob: Blob, data: bytes) -> Any:
    """Return the output in a blob, or else the text of the content in it; content without text as it is."""
    values = read_blob(blob, data)
    return values["output"] if "output" in values else content_text(values.get("content")) or values.get("content")


def describe_content(content: Any) -> str:
    """Return content for a reader: texts, the new text of changes, and the kind of any other block."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else codec.encode(content).decode()
    return "\n".join(_describe_block(block) for block in cast("list[Any]", content))


def preview_content(content: Any, max_bytes: int) -> Any:
    """Return the first blocks of content, up to a size; a longer one becomes the beginning of its text."""
    if not isinstance(content, list):
        return _cut(codec.encode(content).decode(), max_bytes)
    preview: list[Any] = []
    for block in cast("list[Any]", content):
        size = len(codec.encode(block))
        if size > max_bytes:
            text = _cut(_describe_block(block), max_bytes)
            return [*preview, {"type": "content", "content": {"type": "text", "text": text}}]
        preview.append(block)
        max_bytes -= size
    return preview


def _describe_block(block: Any) -> str:
    text = block_text(block)
    if text is not None:
        return text
    fields = _fields(block)
    if fields.get("type") == "diff":
        return f"changes {fields.get('path', '?')}\n{fields.get('newText', '')}"
    inner = _fields(fields.get("content")) if fields.get("type") == "content" else fields
    return f"({inner.get('type', 'content')})"


def _cut(text: str, max_bytes: int) -> str:
    return text.encode("utf-8", "surrogatepass")[:max_bytes].decode("utf-8", "ignore")


def _fields(value: Any) -> Json:
    return cast(Json, value) if isinstance(value, dict) else {}
