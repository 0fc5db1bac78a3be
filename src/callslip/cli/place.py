"""Which ledger is meant, and how a command gets it: `--db`, else CALLSLIP_DB, else one under the XDG data folder."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from callslip.errors import NotFound, StoreError

if TYPE_CHECKING:
    from callslip.ledger import Ledger
    from callslip.settings import Settings

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

DB = "callslip.db"
JSON = "callslip.json"


def _remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Before the command or after it: what was said last counts."""
    if value:
        ctx.meta[DB if parameter.name == "db" else JSON] = value


def db_option(command: F) -> F:
    """`--db`, remembered for `place`."""
    text = "The ledger: a file or sqlite:///FILE. Else $CALLSLIP_DB, else ledger.db in the data folder of callslip."
    option = click.option("--db", metavar="URL|PATH", expose_value=False, callback=_remember, help=text)
    return option(command)


def json_option(command: F) -> F:
    """`--json`, remembered for `wants_json`."""
    text = "Print JSON on stdout."
    return click.option("--json", is_flag=True, expose_value=False, callback=_remember, help=text)(command)


def wants_json() -> bool:
    """Whether the user asked for JSON."""
    return bool(click.get_current_context().meta.get(JSON))


class Place(NamedTuple):
    """Where a ledger is: its URL, its file ("" in memory), and who said so."""

    url: str
    path: str
    said_by: str

    def require(self) -> None:
        """NotFound unless there is a ledger to read: a command that reads makes no file."""
        if not self.path:
            raise NotFound("a ledger in memory is empty at the beginning of each command; name a file with --db")
        self._refuse_folder()
        if not os.path.exists(self.path):
            raise NotFound(f"no ledger at {self.path}")
        if not os.path.getsize(self.path):
            raise NotFound(f"no ledger at {self.path}: the file is empty")

    def prepare(self) -> None:
        """Make the folder of the default ledger, for its owner alone."""
        self._refuse_folder()
        if self.said_by == DEFAULT:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)

    def _refuse_folder(self) -> None:
        if os.path.isdir(self.path):
            raise StoreError(f"{self.path} is a folder; name a file in it with --db")


DEFAULT = "the default"


def place() -> Place:
    """The ledger that this command line means."""
    given = click.get_current_context().meta.get(DB)
    environment = os.environ.get("CALLSLIP_DB", "")
    if given:
        return _place(given, "--db")
    if environment:
        return _place(environment, "CALLSLIP_DB")
    return _place(str(data_folder() / "ledger.db"), DEFAULT)


def _place(given: str, said_by: str) -> Place:
    scheme, colon, rest = given.partition("://")
    if colon and scheme not in ("sqlite", "postgresql", "postgres"):
        raise click.UsageError(f"{said_by}: {scheme}:// is not supported; use sqlite:///FILE")
    if scheme == "sqlite" and colon and not rest.startswith("/"):
        raise click.UsageError(f"{said_by}: a path comes after three slashes: sqlite:///{rest}")
    if colon and scheme != "sqlite":
        raise StoreError("PostgreSQL is not supported by this version yet; use sqlite:///FILE")
    path = os.path.expanduser(rest[1:] if colon else given)
    if not path or "\0" in path:
        raise click.UsageError(f"{said_by}: names no file")
    path = "" if path == ":memory:" else os.path.abspath(path)
    return Place(f"sqlite:///{path or ':memory:'}", path, said_by)


def data_folder() -> Path:
    """Where this user's data belongs, by the XDG rules: a relative path in the variable does not count."""
    said = os.environ.get("XDG_DATA_HOME", "")
    return (Path(said) if os.path.isabs(said) else Path.home() / ".local" / "share") / "callslip"


def with_ledger(work: Callable[[Ledger], Awaitable[T]], *, create: bool = False, settings: Settings | None = None) -> T:
    """Open the ledger that is meant, do something with it, close it."""
    meant = place()
    meant.prepare() if create else meant.require()
    import asyncio

    from callslip.ledger import open_ledger

    async def run() -> T:
        async with await open_ledger(meant.url, settings) as ledger:
            return await work(ledger)

    return asyncio.run(run())
