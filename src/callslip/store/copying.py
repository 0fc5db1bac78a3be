"""What a copy of a ledger reads and writes, the same for every engine: the tables, their rows, and the mark of a copy.

Rows are equal in all engines, and a table is read in the order of its key, so a copy is a comparison of two ordered
lists. Not copied is what belongs to one database: the lanes of PostgreSQL, the numbers of changes, and the counts of
queues, which the target derives.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from callslip.errors import IncompleteCopyError
from callslip.model import codec

Key = tuple[Any, ...]
Row = tuple[Any, ...]
PAGE_ROWS = 1000
PAGE_BYTES = 4 * 2**20
"""How much of a table is read at once, but at least one row."""


class Table(msgspec.Struct, frozen=True):
    """A table of a ledger: its columns with their types, of which the first `key_columns` are its key.

    A table of records has a row of its key, its session and the record instead, except that sessions have no session.
    `unique` are other columns, which are texts and of which no two rows have the same. `where` selects the rows of a
    source, and `constants` are columns that have the same value in all of them.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    key_columns: int = 1
    unique: tuple[str, ...] = ()
    is_of_records: bool = False
    where: str = ""
    constants: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [name for name, _ in self.columns]

    @property
    def key_names(self) -> list[str]:
        """The names of the columns of the key."""
        return self.names[: self.key_columns]

    @property
    def large_columns(self) -> list[str]:
        """The columns that may be large."""
        return [name for name, kind in self.columns if kind == "bytea"]

    def key(self, row: Row) -> Key:
        """Return the key of a row."""
        return row[: self.key_columns]

    def unique_values(self, row: Row) -> Key:
        """Return the values of the columns that are unique besides the key."""
        if self.is_of_records:
            return tuple(getattr(row[-1], name) for name in self.unique)
        return tuple(row[self.names.index(name)] for name in self.unique)


def _table(name: str, key_columns: int, columns: str, **options: Any) -> Table:
    pairs = [column.split() for column in columns.split(", ")]
    return Table(name, tuple((column, kind) for column, kind in pairs), key_columns, **options)


SESSIONS = _table("sessions", 1, "id bigint, record bytea", is_of_records=True, unique=("name",))
CALLS = _table("calls", 1, "id text, session bigint, record bytea", is_of_records=True)
APPROVALS = _table("approvals", 1, "id text, session bigint, record bytea", is_of_records=True)
EVENTS = _table("events", 2, "session bigint, seq bigint, body bytea")
OWNERS = _table("owners", 1, "id text, until bigint")
PIECES = _table("pieces", 4, "session bigint, entry bigint, field text, at bigint, text bytea")
TABLES = (
    SESSIONS,
    EVENTS,
    _table("keys", 2, "session bigint, key text, mark text, seq bigint"),
    CALLS,
    _table("aliases", 3, "session bigint, id text, ns text, call text"),
    APPROVALS,
    _table("sealed", 1, "call text, session bigint, input bytea"),
    _table("entries", 2, "session bigint, id bigint, body bytea"),
    PIECES,
    _table("checkpoints", 1, "session bigint, seq bigint, version bigint, state bytea"),
    _table("bases", 1, "session bigint, seq bigint, state bytea"),
    _table(
        "summaries",
        1,
        "session bigint, seq bigint, version bigint, state text, title text, agent text, model text, project text, "
        "branch text, labels text, calls bigint, open_calls bigint, pending bigint, failed bigint, tokens bigint, "
        "has_responses bigint, started_at bigint, active_at bigint, body bytea",
    ),
    _table(
        "usage",
        2,
        "session bigint, id text, seq bigint, at bigint, turn text, parent text, model text, input_tokens bigint, "
        "output_tokens bigint, cached_tokens bigint, cache_write_tokens bigint, reasoning_tokens bigint, "
        "cost float8, currency text, incomplete bigint, of_turn bigint",
    ),
    # An upload that was interrupted is not copied: no event can name it.
    _table(
        "blobs",
        1,
        "hash text, size bigint, media text, created_at bigint",
        where="whole",
        constants=(("whole", "true"),),
    ),
    # SQLite stores no piece for an empty blob, and PostgreSQL an empty one, which is never read.
    _table(
        "blob_pieces",
        2,
        "hash text, number bigint, data bytea",
        where="length(data) > 0 AND EXISTS (SELECT 1 FROM blobs b WHERE b.hash = t.hash AND b.whole)",
    ),
    _table("blob_uses", 2, "session bigint, seq bigint, hash text"),
    OWNERS,
    _table("executors", 1, "client text, asked_at bigint"),
    _table(
        "tokens",
        1,
        "id text, hash text, label text, session text, verbs text, created_at bigint, expires_at bigint",
        unique=("hash",),
    ),
    _table(
        "rules",
        1,
        "id text, action text, filters bytea, reason text, scope text, scope_value text, expires_at bigint, "
        "uses_left bigint, created_at bigint, created_by text, used_at bigint, uses bigint",
    ),
    _table(
        "conversations",
        1,
        "id bigint, session text, format text, caller text, chunks text, version bigint, state_version bigint, "
        "state bytea, claimed_by text, claimed_until bigint, updated_at bigint",
        unique=("session", "format", "caller"),
    ),
    _table("inputs", 2, "conversation bigint, version bigint, body bytea"),
    _table("posts", 2, "session text, key text, mark text, answer bytea, created_at bigint"),
    _table("deleted_sessions", 2, "foreign_id text, name text, deleted_at bigint"),
)
"""In an order in which the triggers and references of a target delete nothing that was copied before."""

DATA_TABLES = ("sessions", "tokens", "rules", "conversations", "posts", "blobs", "deleted_sessions")
"""A database with a row in one of these tables is not empty."""


class Counters(msgspec.Struct, frozen=True):
    """The last ids that a database has given to sessions and conversations. They are never given again."""

    sessions: int
    conversations: int


class CopyMark(msgspec.Struct, frozen=True, rename="camel"):
    """What the target of a copy stores about it: the source and its name, and when the copy was completed, 0 if not.

    `run` is the process that copies. A process that was replaced by another one finds another `run`.
    """

    source: str
    name: str
    run: str
    completed_at: int = 0


MARK = "copy"
"""The name of the mark in the table `meta`."""
_decode_mark = codec.stored_decoder(CopyMark, "the mark of a copy")


def read_mark(value: str | None) -> CopyMark | None:
    """Return the mark of a copy from its value in the table `meta`."""
    return _decode_mark(value.encode()) if value is not None else None


def encode_mark(mark: CopyMark) -> str:
    """Return the value of a mark."""
    return msgspec.json.encode(mark).decode()


def require_complete(value: str | None, name: str) -> None:
    """Raise IncompleteCopyError if a database is the target of a copy that has not finished."""
    mark = read_mark(value)
    if mark is not None and not mark.completed_at:
        raise IncompleteCopyError(
            f"{name} is an incomplete copy of {mark.name}. Finish it with: callslip admin copy {mark.name} {name}"
        )


def row_bytes(row: Row) -> int:
    """Return about how many bytes a row has."""
    return sum(len(value) if isinstance(value, bytes | str) else 8 for value in row)


class CopySide(Protocol):
    """A database that a copy reads. `identity` is the same for all URLs of a database."""

    identity: str
    display_name: str

    async def read(self, table: Table, after: Key | None) -> list[Row]:
        """Return the next rows of a table after a key, in the order of keys; none at the end."""
        ...

    async def close(self) -> None: ...


class CopySource(CopySide, Protocol):
    """One snapshot of a database."""

    async def describe_users(self) -> str:
        """Return which other processes of Callslip may write to the database now, "" if there are none."""
        ...

    async def has_changed(self) -> bool:
        """Return whether the database was written since the snapshot began."""
        ...

    async def counters(self) -> Counters: ...
    async def count_events(self) -> int: ...


class CopyTarget(CopySide, Protocol):
    """A database that a copy fills. It cannot be opened as a ledger between `begin` and `complete`."""

    async def mark(self) -> CopyMark | None: ...
    async def is_empty(self) -> bool: ...

    async def begin(self, mark: CopyMark) -> None:
        """Store the mark. Earlier runs of this copy cannot write any more."""
        ...

    async def write(self, table: Table, removed: list[Key], added: list[Row]) -> None:
        """Remove and add rows in one transaction. Rows with the unique values of those that are added are removed, too.

        After an interruption the target may have them under a later key: ids of sessions do not always grow.
        """
        ...

    async def finish(self, counters: Counters) -> None:
        """Derive what is not copied, once all tables are."""
        ...

    async def complete(self, mark: CopyMark) -> None:
        """Replace the mark: from now on the database is a ledger. All that was written is durable."""
        ...
