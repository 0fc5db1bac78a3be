"""What a store is: the few methods the ledger needs, the same for every engine.

Writing is one method. `transact` runs a decision inside one transaction: the decision is a plain function that reads
rows, writes rows and adds events through `Unit`, and knows nothing of SQL, threads or await. An engine that cannot read
while the function runs loads what it asked for and runs it again; so it must have no other effects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar, cast

import msgspec

from callslip import codec
from callslip.errors import Refused
from callslip.events import Event
from callslip.rows import AliasRow, ApprovalRow, CallRow, KeyRow, OwnerRow, SessionRow

T = TypeVar("T")


class Stored(msgspec.Struct, frozen=True, gc=False):
    """An event that is durable: decoded for the fold, encoded once for everybody who sends it on."""

    session: str
    event: Event
    body: bytes


class Reads(Protocol):
    """Rows as they stand in the transaction."""

    def now(self) -> int: ...
    def session(self, name: str) -> SessionRow | None: ...
    def call(self, call: str) -> CallRow | None: ...
    def approval(self, approval: str) -> ApprovalRow | None: ...
    def alias(self, session: str, ns: str, identity: str) -> str | None: ...
    def alias_known(self, session: str, identity: str) -> bool: ...
    def key(self, session: str, key: str) -> KeyRow | None: ...
    def event(self, session: str, seq: int) -> Event | None: ...
    def has_blob(self, identity: str) -> bool: ...
    def open_calls(self, session: str) -> list[CallRow]: ...
    def owned_calls(self, owner: str) -> list[CallRow]: ...


class Page(msgspec.Struct, frozen=True):
    """Some rows of a list, and the cursor to the next ones ("" at the end)."""

    items: list[Any]
    cursor: str = ""


def read_cursor(given: str, *kinds: type) -> list[Any]:
    """What a page's cursor says, or Refused: a list never silently begins anew."""
    found: Any = codec.parse(given, field="cursor")
    parts = cast("list[Any]", found) if isinstance(found, list) else []
    if [type(part) for part in parts] != list(kinds) or any(type(part) is int and abs(part) >= 2**63 for part in parts):
        raise Refused("cursor", "is none that this list gave")
    return parts


class Checkpoint(msgspec.Struct, frozen=True):
    """How far a session's finished entries are stored, and the state to fold on from."""

    seq: int
    version: int
    state: bytes


class Progress(msgspec.Struct, frozen=True):
    """What a projector adds to a checkpoint. It counts only if the checkpoint still stands at `after`.

    `number` is the session's row: one that was deleted and came again under its name is another.
    """

    session: str
    after: int
    checkpoint: Checkpoint
    entries: list[tuple[int, bytes]]
    notes: list[tuple[int, dict[str, Any]]]
    pieces: list[tuple[int, str, int, str]]
    dropped: list[tuple[int, str]]
    afresh: bool = False
    number: int = 0


class Tally(msgspec.Struct, frozen=True):
    """How many rows a session has of each kind; of pieces, how many texts they belong to."""

    events: int
    keys: int
    calls: int
    approvals: int
    entries: int
    texts: int
    blobs: int


class Store(Protocol):
    """One database. All methods may be used from one event loop at once."""

    url: str
    read_only: bool

    def transact(self, work: Callable[[Any], T]) -> Awaitable[T]: ...
    def on_commit(self, listener: Callable[[list[Stored]], None]) -> None: ...
    async def changed(self) -> bool: ...
    async def clock(self) -> int: ...

    async def session(self, name: str) -> SessionRow | None: ...
    async def sessions(self, *, limit: int, cursor: str = "", prefix: str = "") -> Page: ...
    async def events(self, session: str, after: int, limit: int) -> list[tuple[int, bytes]]: ...
    async def call(self, call: str) -> CallRow | None: ...
    async def calls(
        self, *, session: str = "", states: Sequence[str] = (), prefix: str = "", limit: int = 100, cursor: str = ""
    ) -> Page: ...
    async def alias(self, identity: str, session: str = "") -> list[CallRow]: ...
    async def approval(self, approval: str) -> ApprovalRow | None: ...
    async def approvals(
        self, *, session: str = "", state: str = "", prefix: str = "", limit: int = 100
    ) -> list[ApprovalRow]: ...
    async def drop_owner(self, owner: str) -> None: ...
    async def open_calls(self) -> list[CallRow]: ...
    async def owners(self) -> list[OwnerRow]: ...

    async def checkpoint(self, session: str) -> Checkpoint | None: ...
    async def base(self, session: str) -> Checkpoint | None: ...
    async def entries(self, session: str, before: int, limit: int) -> list[tuple[int, bytes]]: ...
    async def pieces(self, session: str, entry: int, field: str) -> str: ...
    async def save_progress(self, progress: Progress) -> bool: ...

    async def put_blob(self, data: bytes, media: str) -> str: ...
    async def blob(self, identity: str) -> tuple[bytes, str] | None: ...

    def still(self) -> AbstractAsyncContextManager[Store]: ...
    async def tally(self, session: str) -> Tally: ...
    async def keys(self, session: str, after: str, limit: int) -> list[KeyRow]: ...
    async def aliases(self, session: str, after: AliasRow | None, limit: int) -> list[AliasRow]: ...
    async def blob_piece(self, identity: str, number: int) -> bytes: ...
    async def used_blob(self, session: str, seq: int) -> str: ...

    async def prune(self, session: str, seq: int, base: bytes, kept: list[int]) -> int: ...
    async def delete(self, session: str) -> bool: ...
    async def check(self) -> list[str]: ...
    async def close(self) -> None: ...
