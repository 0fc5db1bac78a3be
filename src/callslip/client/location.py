"""Where a ledger's database is: a path or a URL, else CALLSLIP_DB, else a file in the user's data folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from callslip.errors import InvalidInputError, NotFoundError, StoreError

DATABASE_VARIABLE = "CALLSLIP_DB"
DEFAULT_ORIGIN = "default"


class LedgerLocation(NamedTuple):
    """The URL of a database, its file ("" in memory), and which option or variable named it."""

    url: str
    path: str
    origin: str

    def require(self) -> None:
        """Raise NotFoundError unless the database exists: a command that reads creates no file."""
        if not self.path:
            raise NotFoundError("a ledger in memory is empty at the start of every command; name a file with --db")
        self._refuse_folder()
        if not os.path.exists(self.path):
            raise NotFoundError(f"no ledger at {self.path}")
        if not os.path.getsize(self.path):
            raise NotFoundError(f"no ledger at {self.path}: the file is empty")

    def prepare(self) -> None:
        """Create the folder of the default database, readable by its owner only."""
        self._refuse_folder()
        if self.origin == DEFAULT_ORIGIN:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)

    def _refuse_folder(self) -> None:
        if os.path.isdir(self.path):
            raise StoreError(f"{self.path} is a folder; name a file in it")


def default_location() -> LedgerLocation:
    """Return the location of the ledger that is used if none is named."""
    variable = os.environ.get(DATABASE_VARIABLE, "")
    if variable:
        return parse_location(variable, DATABASE_VARIABLE)
    return parse_location(str(data_folder() / "ledger.db"), DEFAULT_ORIGIN)


def parse_location(text: str, origin: str) -> LedgerLocation:
    """Parse a path or a URL."""
    scheme, separator, rest = text.partition("://")
    if separator and scheme not in ("sqlite", "postgresql", "postgres"):
        raise InvalidInputError(origin, f"{scheme}:// is not supported; use sqlite:///FILE")
    if scheme == "sqlite" and separator and not rest.startswith("/"):
        raise InvalidInputError(origin, f"expected three slashes before the path: sqlite:///{rest}")
    if separator and scheme != "sqlite":
        raise StoreError("PostgreSQL is not supported by this version yet; use sqlite:///FILE")
    path = os.path.expanduser(rest[1:] if separator else text)
    if not path or "\0" in path:
        raise InvalidInputError(origin, "names no file")
    path = "" if path == ":memory:" else os.path.abspath(path)
    return LedgerLocation(f"sqlite:///{path or ':memory:'}", path, origin)


def data_folder() -> Path:
    """Return the user's data folder by the XDG rules; a relative path in the variable is ignored."""
    folder = os.environ.get("XDG_DATA_HOME", "")
    return (Path(folder) if os.path.isabs(folder) else Path.home() / ".local" / "share") / "callslip"
