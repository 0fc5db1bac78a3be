"""JSON as others wrote it: members, items and ids of values that may be anything."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from callslip.model import codec


def mark(*values: Any) -> str:
    """What values are compared by. Of texts that are no Unicode too."""
    return codec.digest(repr(values).encode("utf-8", "surrogatepass"))


def leaves(said: dict[str, Any], taken: Collection[str]) -> bool:
    """Whether there is more to a message than was taken over."""
    return any(value is not None for name, value in said.items() if name not in taken)
