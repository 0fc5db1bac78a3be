"""What `verify` finds, and how two things that should be the same are compared."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import structs


class Problem(msgspec.Struct, frozen=True):
    """Something stored that is not as the log, or its own name, says it should be. `what` names the kind of thing."""

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
    """JSON with sorted keys: the same bytes for the same value, and for no other."""
    return msgspec.json.encode(value, order="sorted")


def differences(kept: msgspec.Struct, derived: msgspec.Struct, but: tuple[str, ...] = ()) -> str:
    """Which fields are not as they should be, and what they should be; "" if all are."""
    kept = structs.replace(kept, **{name: getattr(derived, name) for name in but})
    if canonical(kept) == canonical(derived):
        return ""
    pairs = [(name, getattr(kept, name), getattr(derived, name)) for name in kept.__struct_fields__]
    wrong = [f"{name} is {a!r:.80}, should be {b!r:.80}" for name, a, b in pairs if canonical(a) != canonical(b)]
    return ", ".join(wrong) or "is of another type"
