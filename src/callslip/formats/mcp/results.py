"""What a tool's result says, as the end of its call.

The output is the structured content, else the text, else the blocks of content. Blocks that say more than the output
are what the call shows. A result may be large: then it stands in `output` alone, the one field that may be.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.errors import InvalidInputError
from callslip.formats.json_fields import as_dict, as_list, complaint
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, CallEnd

KNOWN_FIELDS = {"content", "structuredContent", "isError", "resultType", "toolResult"}
FINAL = ("complete", None)
LARGE = 2**15
"""So many bytes are told twice, or as an error."""
FAILED = "the tool failed"


def ended(aliases: tuple[Alias, ...], result: Any) -> CallEnd:
    """How a call ended that has its result."""
    said = as_dict(result)
    output, content = _output(result), _shown(said)
    if said.get("isError") is not True:
        return ev.CallCompleted(aliases=aliases, output=output, content=content)
    text = output if isinstance(output, str) else text_of(said.get("content")) or FAILED
    if text == output and len(text) <= LARGE:
        return ev.CallFailed(aliases=aliases, error=text)
    return ev.CallFailed(aliases=aliases, error=complaint(text), output=output or UNSET, content=content)


def failed(aliases: tuple[Alias, ...], error: Any) -> CallEnd:
    """How a call ended that has an error of the protocol in place of a result."""
    if len(codec.encode(error)) <= LARGE:
        return ev.CallFailed(aliases=aliases, error=error or FAILED)
    return ev.CallFailed(aliases=aliases, error=complaint(error) or FAILED, output=error)


def text_of(content: Any) -> str | None:
    """The text of content that is nothing else; None if there is more to it."""
    blocks = [as_dict(block) for block in as_list(content)]
    texts = [block.get("text") for block in blocks if block.get("type") == "text" and len(block) == 2]
    said = [text for text in texts if isinstance(text, str)]
    return "\n".join(said) if said and len(said) == len(blocks) else None


def _output(result: Any) -> Any:
    said = as_dict(result)
    if not said.keys() & {"content", "structuredContent"}:
        return said.get("toolResult", result)
    content, structured = said.get("content"), said.get("structuredContent")
    text = text_of(content)
    if structured is None:
        return content if text is None else text
    if _is_small(content) or _writes(text, structured):
        return structured
    return {"content": content, "structuredContent": structured}


def _shown(said: dict[str, Any]) -> Any:
    """The content, if it is small and not all of it in the output."""
    content, structured = said.get("content"), said.get("structuredContent")
    text = text_of(content)
    same = text is not None if structured is None else _writes(text, structured)
    return UNSET if same or not as_list(content) or not _is_small(content) else content


def _is_small(content: Any) -> bool:
    return len(codec.encode(content)) <= LARGE


def _writes(text: str | None, structured: Any) -> bool:
    """Whether a text is only the structured content in writing."""
    try:
        return text is not None and codec.json_equal(codec.parse_json(text, max_bytes=2**30), structured)
    except InvalidInputError:
        return False
