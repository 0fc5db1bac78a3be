"""Find the call that a hook recorded without an id, when the session file of its agent tells it.

The hooks of Gemini CLI have no ids of calls. A call of which one of them asked for approval is known by its tool and
arguments alone, and several may be equal. Each has one of a few places for such calls, which is an alias of it until
the session file has the call. The first place that is taken is that of the call which was asked about first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from callslip.model import codec
from callslip.model.events import Alias
from callslip.model.names import UNNAMED_NAMESPACE

MAX_EQUAL = 16
UNNAMED_CALLS = Alias(UNNAMED_NAMESPACE, "any")
"""An alias that a session has as soon as it had such a call."""
DIGEST_CHARS = 32


def unnamed_alias(tool: str, arguments: Any) -> Alias:
    """Return the alias of a call without an id, before it has a place."""
    return Alias(UNNAMED_NAMESPACE, codec.digest(codec.encode([tool, arguments]))[:DIGEST_CHARS])


def has_place(alias: Alias) -> bool:
    """Return whether an alias is one of the places."""
    return "." in alias.id


def places(alias: Alias) -> Iterator[Alias]:
    """Yield the places for calls that are equal."""
    return (Alias(UNNAMED_NAMESPACE, f"{alias.id}.{number}") for number in range(1, MAX_EQUAL + 1))
