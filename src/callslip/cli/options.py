"""Options that commands share, and the ledger that they select: a database, or a server.

A server is selected by `--server` or CALLSLIP_SERVER. Answers to approvals also go through a server if one runs for the
database, so that answering needs a token that a person holds. The token file is not such a token: every program of the
same account can read it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from callslip.client.location import LedgerLocation, default_location, parse_location
from callslip.errors import AuthenticationError, NotFoundError, PermissionDeniedError, ServerUnavailableError

if TYPE_CHECKING:
    from callslip.api.ledger import LocalLedger
    from callslip.api.sync import SyncLedger
    from callslip.client.address import ServerAddress
    from callslip.settings import Settings

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Json = dict[str, Any]

_DB, _JSON, _SERVER, _TOKEN = "callslip.db", "callslip.json", "callslip.server", "callslip.token"
_KEYS = {"db": _DB, "json": _JSON, "server": _SERVER, "token": _TOKEN}


class _Id(click.ParamType[str]):
    """Any text that may name a session, a call or an approval."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text.strip():
            self.fail("must not be empty", param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail("must be UTF-8 text", param, ctx)
        return text


ID = _Id()


def _remember(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Store an option that may be given before or after the command; the last one counts."""
    if value:
        ctx.meta[_KEYS[parameter.name or ""]] = value


def db_option(command: F) -> F:
    """Add `--db`."""
    text = (
        "The ledger: a file, sqlite:///FILE or postgresql://... For a URL with a password use the variable: other "
        "users can see arguments. [env: CALLSLIP_DB; default: ledger.db in the user's data folder]"
    )
    return click.option("--db", metavar="URL|PATH", expose_value=False, callback=_remember, help=text)(command)


def json_option(command: F) -> F:
    """Add `--json`."""
    return click.option("--json", is_flag=True, expose_value=False, callback=_remember, help="Print JSON.")(command)


def server_options(command: F) -> F:
    """Add `--server` and `--token`."""
    server = "Use this server instead of a file. [env: CALLSLIP_SERVER]"
    token = "The token for the server. Prefer the variable: other users can see arguments. [env: CALLSLIP_TOKEN]"
    command = click.option("--token", expose_value=False, callback=_remember, help=token)(command)
    return click.option("--server", metavar="URL", expose_value=False, callback=_remember, help=server)(command)


def wants_json() -> bool:
    """Return whether `--json` was given."""
    return bool(click.get_current_context().meta.get(_JSON))


def selected_location() -> LedgerLocation:
    """Return the database that the command line selects."""
    option = click.get_current_context().meta.get(_DB)
    return parse_location(option, "--db") if option else default_location()


def selected_flags() -> str:
    """Return the options that make another command select the same database."""
    location = selected_location()
    return f" --db {shlex.quote(location.display_name)}" if location.origin == "--db" else ""


def require_ledger(location: LedgerLocation) -> None:
    """Raise NotFoundError unless the database exists; it says what hooks have stored for it."""
    from callslip.hooks.folder import count_spooled, describe_spooled, hook_folder

    try:
        location.require()
    except NotFoundError as error:
        waiting = 0 if location.is_in_memory else count_spooled(hook_folder(location))
        if not waiting:
            raise
        advice = f"run `callslip up{selected_flags()}`"
        raise NotFoundError(f"{error}; {describe_spooled(waiting)}: {advice}") from None


def has_selected_location() -> bool:
    """Return whether `--db` was given."""
    return _DB in click.get_current_context().meta


def select_location(path: str) -> None:
    """Select a database as `--db` does."""
    click.get_current_context().meta[_DB] = path


def with_ledger(
    work: Callable[[LocalLedger], Awaitable[T]], *, create: bool = False, settings: Settings | None = None
) -> T:
    """Open the selected database, do something with it, and close it."""
    location = selected_location()
    if not create:
        require_ledger(location)
    import asyncio

    from callslip.client.open import open_location

    async def run() -> T:
        async with await open_location(location, settings, create=create) as ledger:
            await import_hook_messages(ledger, location)
            return await work(ledger)

    return asyncio.run(run())


async def import_hook_messages(ledger: LocalLedger, location: LedgerLocation) -> None:
    """Import what hooks of agents have stored while no server ran. Without that, this only looks into a folder."""
    from callslip.hooks.folder import has_spooled, hook_folder

    if location.is_in_memory or not has_spooled(folder := hook_folder(location)):
        return
    from callslip.cli.terminal.tables import print_status
    from callslip.hooks.server import import_once

    await import_once(ledger.log, folder, print_status)


class SelectedLedger(NamedTuple):
    """The ledger that the command line selects."""

    ledger: SyncLedger[Any]
    is_remote: bool
    flags: str
    """The options that make another command select the same ledger."""


@contextlib.contextmanager
def open_selected(
    *, for_answer: bool = False, asks_server: bool = False, create: bool = False
) -> Generator[SelectedLedger]:
    """Open the ledger that the command line selects.

    With `for_answer` a person's own token is required where a server runs. With `asks_server` it is asked if it runs,
    because only it knows its policy file. With `create` a database is created.
    """
    address = _server_address()
    if address is not None:
        with _connect(address, _token(address, for_answer, f"--server {address.url}")) as selected:
            yield selected
        return
    location = selected_location()
    if for_answer or asks_server:
        from callslip.client.server_file import running_server, server_file

        running = running_server(location)
        if running is not None:
            from callslip.client.address import parse_address

            address = parse_address(running.url, server_file(location))
            token = _token(
                address, for_answer, f"a server runs for this ledger at {running.url} (process {running.pid})"
            )
            with _connect(address, token, hint=f"; delete {server_file(location)} if it has stopped") as selected:
                yield selected
            return
    if location.is_in_memory or not create:
        require_ledger(location)
    from callslip.api.ledger import OpenLedger
    from callslip.api.sync import SyncLedger
    from callslip.client.open import open_location

    flags = selected_flags()

    async def open_ledger() -> LocalLedger:
        ledger = await open_location(location, create=create)
        await import_hook_messages(ledger, location)
        return ledger

    with SyncLedger(OpenLedger(open_ledger)) as ledger:
        yield SelectedLedger(ledger, False, flags)


def refuse_agent(action: str) -> None:
    """Raise PermissionDeniedError in a program that an agent started: it must not answer its own requests."""
    from callslip.model.agent_env import find_agent_mark

    if mark := find_agent_mark():
        raise PermissionDeniedError(f"programs that an agent started may not {action} ({mark} is set)")


def has_server() -> bool:
    """Return whether the command line or the environment selects a server."""
    return _server_address() is not None


def _server_address() -> ServerAddress | None:
    from callslip.client.address import parse_address

    options = click.get_current_context().meta
    if options.get(_SERVER):
        if options.get(_DB):
            raise click.UsageError("--server and --db are exclusive; pass one of them")
        return parse_address(options[_SERVER], "--server")
    variable = os.environ.get("CALLSLIP_SERVER", "")
    return parse_address(variable, "CALLSLIP_SERVER") if variable and not options.get(_DB) else None


@contextlib.contextmanager
def _connect(address: ServerAddress, token: str, hint: str = "") -> Generator[SelectedLedger]:
    from callslip import sync
    from callslip.cli.terminal.tables import print_status

    try:
        with sync.connect(address.url, token=token, report=print_status) as ledger:
            yield SelectedLedger(ledger, True, f" --server {shlex.quote(address.url)}")
    except ServerUnavailableError as error:
        raise ServerUnavailableError(f"{error}{hint}") from error


def _token(address: ServerAddress, for_answer: bool, reason: str) -> str:
    """Return the token to use; for an answer one that was given or typed, never that of the token file."""
    from callslip.client.open import find_token
    from callslip.client.token_file import check_token

    token = click.get_current_context().meta.get(_TOKEN) or ""
    if not for_answer or token or os.environ.get("CALLSLIP_TOKEN") or address.token:
        return find_token(address, token)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise AuthenticationError(
            f"{reason}: an answer needs a token, and the token file is not used for it. Pass one with --token or"
            " CALLSLIP_TOKEN; `callslip admin token create --can approve` creates one."
        )
    click.echo(f"{reason}.", err=True)
    return check_token(str(click.prompt("Token", hide_input=True, err=True)).strip(), "token")
