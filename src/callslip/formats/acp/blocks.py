"""Convert recorded content of any format to content of version 1 of the protocol.

A block of a known kind keeps the fields that the protocol defines; anything else becomes text. No item is dropped.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from callslip.formats.json_fields import as_dict, as_list
from callslip.model import codec

Block: TypeAlias = dict[str, Any]

# Required and optional fields by kind of block.
BLOCK_FIELDS: dict[str, tuple[dict[str, type], dict[str, type]]] = {
    "text": ({"text": str}, {}),
    "image": ({"data": str, "mimeType": str}, {"uri": str}),
    "audio": ({"data": str, "mimeType": str}, {}),
    "resource_link": (
        {"name": str, "uri": str},
        {"description": str, "mimeType": str, "size": int, "title": str},
    ),
}
RESOURCE_FIELDS: tuple[tuple[dict[str, type], dict[str, type]], ...] = (
    ({"uri": str, "text": str}, {"mimeType": str}),
    ({"uri": str, "blob": str}, {"mimeType": str}),
)
DIFF_FIELDS: tuple[dict[str, type], dict[str, type]] = {"path": str, "newText": str}, {"oldText": str}
MAX_INTEGER = 2**63 - 1


def text(value: str) -> Block:
    """Return a text block."""
    return {"type": "text", "text": value}


def shown(value: str) -> Block:
    """Return a text as an item of a call's content."""
    return {"type": "content", "content": text(value)}


def block(value: Any) -> Block:
    """Return a value as a block; one that the protocol does not define becomes text."""
    return _known_block(as_dict(value)) or text(plain(value))


def item(value: Any) -> Block | None:
    """Return a value as an item of a call's content; None for a terminal, whose output is shown instead."""
    fields = as_dict(value)
    if fields.get("type") == "terminal":
        return None
    if fields.get("type") == "diff" and (diff := _pick(fields, DIFF_FIELDS)):
        return {"type": "diff", **diff}
    inner = fields.get("content") if fields.get("type") == "content" else value
    return {"type": "content", "content": block(inner)}


def is_text(value: Any) -> bool:
    """Return whether a value is a text block."""
    return as_dict(value).get("type") == "text"


def listed(content: Any) -> list[Any]:
    """Return content as a list."""
    return [] if content is None else as_list(content) if isinstance(content, list) else [content]


def plain(value: Any) -> str:
    """Return a string as it is, any other value as JSON."""
    return value if isinstance(value, str) else codec.encode(value).decode()


def _known_block(fields: Block) -> Block | None:
    kind = fields.get("type")
    if kind == "resource":
        resource = as_dict(fields.get("resource"))
        matches = [picked for shape in RESOURCE_FIELDS if (picked := _pick(resource, shape))]
        return {"type": kind, "resource": matches[0]} if matches else None
    shape = BLOCK_FIELDS.get(kind) if isinstance(kind, str) else None
    picked = _pick(fields, shape) if shape else None
    return {"type": kind, **picked} if picked else None


def _pick(fields: Block, shape: tuple[dict[str, type], dict[str, type]]) -> Block | None:
    """Return the fields of a shape; None if a required one is missing."""
    required, optional = shape
    picked = {name: fields[name] for name, kind in {**required, **optional}.items() if _is(fields.get(name), kind)}
    return picked if required.keys() <= picked.keys() else None


def _is(value: Any, kind: type) -> bool:
    return type(value) is kind and (kind is not int or 0 <= value <= MAX_INTEGER)
