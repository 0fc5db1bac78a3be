"""Content as version 1 of the protocol has it: made of whatever was recorded, whoever recorded it.

A block that the protocol knows keeps the fields that the protocol knows; anything else is shown as text. No item is
dropped: a client shows what it is sent, and what it is not sent it does not miss.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from callslip.formats.json_fields import as_dict, as_list
from callslip.model import codec

Block: TypeAlias = dict[str, Any]

# For each kind of block the fields that it must have, and those that it may have.
KNOWN: dict[str, tuple[dict[str, type], dict[str, type]]] = {
    "text": ({"text": str}, {}),
    "image": ({"data": str, "mimeType": str}, {"uri": str}),
    "audio": ({"data": str, "mimeType": str}, {}),
    "resource_link": (
        {"name": str, "uri": str},
        {"description": str, "mimeType": str, "size": int, "title": str},
    ),
}
INSIDE: tuple[tuple[dict[str, type], dict[str, type]], ...] = (
    ({"uri": str, "text": str}, {"mimeType": str}),
    ({"uri": str, "blob": str}, {"mimeType": str}),
)
DIFF: tuple[dict[str, type], dict[str, type]] = {"path": str, "newText": str}, {"oldText": str}
LARGEST = 2**63 - 1


def text(said: str) -> Block:
    """A text block."""
    return {"type": "text", "text": said}


def shown(said: str) -> Block:
    """A text as an item of a call's content."""
    return {"type": "content", "content": text(said)}


def block(given: Any) -> Block:
    """Something as a block; what is none of the protocol's stands as text."""
    return _known(as_dict(given)) or text(plain(given))


def item(given: Any) -> Block | None:
    """Something as an item of a call's content; None for a terminal: what it printed is shown instead."""
    told = as_dict(given)
    if told.get("type") == "terminal":
        return None
    if told.get("type") == "diff" and (kept := _kept(told, DIFF)):
        return {"type": "diff", **kept}
    inner = told.get("content") if told.get("type") == "content" else given
    return {"type": "content", "content": block(inner)}


def is_text(given: Any) -> bool:
    """Whether something is a text block."""
    return as_dict(given).get("type") == "text"


def listed(content: Any) -> list[Any]:
    """Content as a list."""
    return [] if content is None else as_list(content) if isinstance(content, list) else [content]


def plain(value: Any) -> str:
    """A value as text: itself, or its JSON."""
    return value if isinstance(value, str) else codec.encode(value).decode()


def _known(told: Block) -> Block | None:
    kind = told.get("type")
    if kind == "resource":
        inside = [kept for shape in INSIDE if (kept := _kept(as_dict(told.get("resource")), shape))]
        return {"type": kind, "resource": inside[0]} if inside else None
    shape = KNOWN.get(kind) if isinstance(kind, str) else None
    kept = _kept(told, shape) if shape else None
    return {"type": kind, **kept} if kept else None


def _kept(told: Block, shape: tuple[dict[str, type], dict[str, type]]) -> Block | None:
    """The fields of a shape; None if one is missing that must be there."""
    must, may = shape
    kept = {name: told[name] for name, kind in {**must, **may}.items() if _is(told.get(name), kind)}
    return kept if must.keys() <= kept.keys() else None


def _is(value: Any, kind: type) -> bool:
    return type(value) is kind and (kind is not int or 0 <= value <= LARGEST)
