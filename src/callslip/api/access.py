"""What a caller may do. Every operation takes an `Access` and asks it in the same place; each edge passes its own."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

Verb = Literal["read", "write", "approve", "execute"]
VERBS: tuple[Verb, ...] = ("read", "write", "approve", "execute")


class Writer(NamedTuple):
    """A caller that writes. `id` tells callers with the same name apart.

    Only one that `can_label` may set labels, and the agent's ids of a session and of the one that it continues.
    """

    id: str = ""
    name: str = ""
    can_label: bool = False


class Access(Protocol):
    """The rights of one caller."""

    async def may(self, session: str, verb: Verb) -> bool:
        """Return whether the caller may use a session in this way."""
        ...

    async def require(self, session: str, verb: Verb) -> str:
        """Return the caller's name, or raise if the caller may not use the session in this way."""
        ...

    async def require_write(self, session: str) -> str:
        """Return the caller's name, or raise if the caller may not write to a session, which may not exist yet."""
        ...

    async def writer(self, session: str) -> Writer:
        """Return the caller, or raise if it may not write to a session, which may not exist yet."""
        ...

    async def allows(self, session: str, verb: Verb) -> bool:
        """Return whether the caller has a right in a session, which may not exist yet."""
        ...

    async def require_everywhere(self, verb: Verb) -> str:
        """Return the caller's name, or raise if the caller may not use all sessions in this way."""
        ...

    async def allows_everywhere(self, verb: Verb) -> bool:
        """Return whether the caller may use all sessions in this way."""
        ...

    async def require_identity(self) -> None:
        """Raise if the caller is unknown, so that only known callers learn that something does not exist."""
        ...


class FullAccess:
    """Allow everything: for code that opens the ledger itself."""

    async def may(self, session: str, verb: Verb) -> bool:
        return True

    async def require(self, session: str, verb: Verb) -> str:
        return ""

    async def require_write(self, session: str) -> str:
        return ""

    async def writer(self, session: str) -> Writer:
        return Writer(can_label=True)

    async def allows(self, session: str, verb: Verb) -> bool:
        return True

    async def require_everywhere(self, verb: Verb) -> str:
        return ""

    async def allows_everywhere(self, verb: Verb) -> bool:
        return True

    async def require_identity(self) -> None:
        return None


FULL_ACCESS = FullAccess()


async def can_see(access: Access, session: str, verb: Verb = "read") -> bool:
    """Return whether a caller may know of a session: it may read it, or use it in this way."""
    return await access.may(session, "read") or (verb != "read" and await access.may(session, verb))
