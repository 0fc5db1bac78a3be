"""Which ledger is meant, and how a command gets it: `--db`, else CALLSLIP_DB, else one under the XDG data folder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from callslip.client.location import LedgerLocation, default_location, parse_location

if TYPE_CHECKING:
    from callslip.api.ledger import Ledger
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


def place() -> LedgerLocation:
    """The ledger that this command line means."""
    given = click.get_current_context().meta.get(DB)
    return parse_location(given, "--db") if given else default_location()


def with_ledger(work: Callable[[Ledger], Awaitable[T]], *, create: bool = False, settings: Settings | None = None) -> T:
    """Open the ledger that is meant, do something with it, close it."""
    meant = place()
    meant.prepare() if create else meant.require()
    import asyncio

    from callslip.api.ledger import open_ledger

    async def run() -> T:
        async with await open_ledger(meant.url, settings) as ledger:
            return await work(ledger)

    return asyncio.run(run())
