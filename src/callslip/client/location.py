"""Where a ledger is: a path or a URL, else CALLSLIP_DB, else one under the XDG data folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from callslip.errors import InvalidInputError, NotFoundError, StoreError


class LedgerLocation(NamedTuple):
    """Where a ledger is: its URL, its file ("" in memory), and who said so."""

    url: str
    path: str
    said_by: str

    def require(self) -> None:
        """NotFound unless there is a ledger to read: a command that reads makes no file."""
        if not self.path:
            raise NotFoundError("a ledger in memory is empty at the beginning of each command; name a file with --db")
        self._refuse_folder()
        if not os.path.exists(self.path):
            raise NotFoundError(f"no ledger at {self.path}")
        if not os.path.getsize(self.path):
            raise NotFoundError(f"no ledger at {self.path}: the file is empty")

    def prepare(self) -> None:
        """Make the folder of the default ledger, for its owner alone."""
        self._refuse_folder()
        if self.said_by == DEFAULT:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)

    def _refuse_folder(self) -> None:
        if os.path.isdir(self.path):
            raise StoreError(f"{self.path} is a folder; name a file in it with --db")


DEFAULT = "the default"


def default_location() -> LedgerLocation:
    """The ledger that is meant if none is named."""
    environment = os.environ.get("CALLSLIP_DB", "")
    if environment:
        return parse_location(environment, "CALLSLIP_DB")
    return parse_location(str(data_folder() / "ledger.db"), DEFAULT)


def parse_location(given: str, said_by: str) -> LedgerLocation:
    """The ledger that a path or a URL means."""
    scheme, colon, rest = given.partition("://")
    if colon and scheme not in ("sqlite", "postgresql", "postgres"):
        raise InvalidInputError(said_by, f"{scheme}:// is not supported; use sqlite:///FILE")
    if scheme == "sqlite" and colon and not rest.startswith("/"):
        raise InvalidInputError(said_by, f"a path comes after three slashes: sqlite:///{rest}")
    if colon and scheme != "sqlite":
        raise StoreError("PostgreSQL is not supported by this version yet; use sqlite:///FILE")
    path = os.path.expanduser(rest[1:] if colon else given)
    if not path or "\0" in path:
        raise InvalidInputError(said_by, "names no file")
    path = "" if path == ":memory:" else os.path.abspath(path)
    return LedgerLocation(f"sqlite:///{path or ':memory:'}", path, said_by)


def data_folder() -> Path:
    """Where this user's data belongs, by the XDG rules: a relative path in the variable does not count."""
    said = os.environ.get("XDG_DATA_HOME", "")
    return (Path(said) if os.path.isabs(said) else Path.home() / ".local" / "share") / "callslip"
