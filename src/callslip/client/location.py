"""Where a ledger's database is: a path or a URL, else CALLSLIP_DB, else a file in the user's data folder."""

from __future__ import annotations

import os
from typing import NamedTuple

from callslip.errors import InvalidInputError, NotFoundError, StoreError
from callslip.model.data_folder import data_folder
from callslip.model.database_url import (
    DATABASE_VARIABLE,
    SERVER_SCHEMES,
    has_valid_hosts,
    is_server_url,
    mask_password,
)

DEFAULT_ORIGIN = "default"


class LedgerLocation(NamedTuple):
    """The URL of a database, its file ("" in memory or on a server), and which option or variable named it.

    The URL may have a password: messages use `display_name`.
    """

    url: str
    path: str
    origin: str

    def __repr__(self) -> str:
        return f"LedgerLocation({self.display_name!r}, set by {self.origin})"

    @property
    def is_server(self) -> bool:
        """Whether the database is on a server."""
        return is_server_url(self.url)

    @property
    def is_in_memory(self) -> bool:
        """Whether the database ends with the process that opens it."""
        return not self.path and not self.is_server

    @property
    def display_name(self) -> str:
        """The path, or the URL without its password."""
        return self.path or (mask_password(self.url) if self.is_server else "a ledger in memory")

    def require(self) -> None:
        """Raise NotFoundError unless the database exists: a command that reads creates no file.

        Whether a database on a server exists is known only after a connection.
        """
        if self.is_server:
            return
        if self.is_in_memory:
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
    if separator and scheme not in ("sqlite", *SERVER_SCHEMES):
        raise InvalidInputError(origin, f"{scheme}:// is not supported; use sqlite:///FILE or postgresql://HOST/NAME")
    if scheme in SERVER_SCHEMES and separator:
        return LedgerLocation(_check_server_url(text, origin), "", origin)
    if text.partition(":")[0] in SERVER_SCHEMES and not separator:
        raise InvalidInputError(origin, "expected two slashes after the colon: postgresql://HOST/NAME")
    if scheme == "sqlite" and separator and not rest.startswith("/"):
        raise InvalidInputError(origin, f"expected three slashes before the path: sqlite:///{rest}")
    path = os.path.expanduser(rest[1:] if separator else text)
    if not path or "\0" in path:
        raise InvalidInputError(origin, "names no file")
    path = "" if path == ":memory:" else os.path.abspath(path)
    return LedgerLocation(f"sqlite:///{path or ':memory:'}", path, origin)


def _check_server_url(url: str, origin: str) -> str:
    """Return a URL, or raise. The message does not contain it: where its password ends is not known."""
    if "\0" in url or not has_valid_hosts(url):
        problem = "the port of the URL is not a number. Write / ? # @ in the password as %2F %3F %23 %40."
        raise InvalidInputError(origin, problem)
    return url
