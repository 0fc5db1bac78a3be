"""The problems that `verify` reports, and the comparison of stored and derived values."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs


class Problem(msgspec.Struct, frozen=True):
    """A stored value that differs from what the log gives. `what` is the kind of value."""

    session: str
    what: str
    detail: str

    def __str__(self) -> str:
        return f"{self.session or 'ledger'}: {self.what}: {self.detail}"


class Report:
    """The problems of one session."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.problems: list[Problem] = []

    def add(self, what: str, detail: str) -> None:
        self.problems.append(Problem(self.session, what, detail))


def canonical(value: Any) -> bytes:
    """Encode a value as JSON with sorted keys, so that equal values have equal bytes."""
    return msgspec.json.encode(value, order="sorted")


def differences(stored: msgspec.Struct, derived: msgspec.Struct, ignored: tuple[str, ...] = ()) -> str:
    """Describe the fields that differ, with their expected values; "" if none does."""
    stored = structs.replace(stored, **{name: getattr(derived, name) for name in ignored})
    if canonical(stored) == canonical(derived):
        return ""
    pairs = [(name, getattr(stored, name), getattr(derived, name)) for name in stored.__struct_fields__]
    wrong = [f"{name} is {a!r:.80}, should be {b!r:.80}" for name, a, b in pairs if canonical(a) != canonical(b)]
    return ", ".join(wrong) or "is of another type"
