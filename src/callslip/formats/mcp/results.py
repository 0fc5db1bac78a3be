"""Turn the result of a tool into the end of its call.

The output is the structured content, else the text, else the blocks of content. Blocks with more than the output become
the content of the call. A large result is stored only in `output`, the one field that may be large.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.errors import InvalidInputError
from callslip.formats.json_fields import as_dict, as_list, error_text
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, CallEnd

KNOWN_FIELDS = {"content", "structuredContent", "isError", "resultType", "toolResult"}
FINAL = ("complete", None)
MAX_COPY_BYTES = 2**15
"""A larger value is stored neither twice nor as an error."""
FAILED = "the tool failed"


def result_end(aliases: tuple[Alias, ...], result: Any) -> CallEnd:
    """Return the end of a call with a result."""
    fields = as_dict(result)
    output, content = _output(result), _content(fields)
    if fields.get("isError") is not True:
        return ev.CallCompleted(aliases=aliases, output=output, content=content)
    text = output if isinstance(output, str) else text_of(fields.get("content")) or FAILED
    if text == output and len(text) <= MAX_COPY_BYTES:
        return ev.CallFailed(aliases=aliases, error=text)
    return ev.CallFailed(aliases=aliases, error=error_text(text), output=output or UNSET, content=content)


def error_end(aliases: tuple[Alias, ...], error: Any) -> CallEnd:
    """Return the end of a call with a protocol error instead of a result."""
    if _is_small(error):
        return ev.CallFailed(aliases=aliases, error=error or FAILED)
    return ev.CallFailed(aliases=aliases, error=error_text(error) or FAILED, output=error)


def text_of(content: Any) -> str | None:
    """Return the text of content that is only text; None if there is anything else."""
    blocks = [as_dict(block) for block in as_list(content)]
    values = [block.get("text") for block in blocks if block.get("type") == "text" and len(block) == 2]
    texts = [text for text in values if isinstance(text, str)]
    return "\n".join(texts) if texts and len(texts) == len(blocks) else None


def _output(result: Any) -> Any:
    fields = as_dict(result)
    if not fields.keys() & {"content", "structuredContent"}:
        return fields.get("toolResult", result)
    content, structured = fields.get("content"), fields.get("structuredContent")
    text = text_of(content)
    if structured is None:
        return content if text is None else text
    if _is_small(content) or _is_json_of(text, structured):
        return structured
    return {"content": content, "structuredContent": structured}


def _content(fields: dict[str, Any]) -> Any:
    """Return the content if it is small and not fully in the output; else UNSET."""
    content, structured = fields.get("content"), fields.get("structuredContent")
    text = text_of(content)
    is_in_output = text is not None if structured is None else _is_json_of(text, structured)
    return UNSET if is_in_output or not as_list(content) or not _is_small(content) else content


def _is_small(value: Any) -> bool:
    return len(codec.encode(value)) <= MAX_COPY_BYTES


def _is_json_of(text: str | None, structured: Any) -> bool:
    """Return whether a text is only the structured content as JSON."""
    try:
        return text is not None and codec.json_equal(codec.parse_json(text, max_bytes=2**30), structured)
    except InvalidInputError:
        return False
