"""What a command works on: the ledger's file, or a server that has it. A command is written once, for both.

A server is meant by `--server` or CALLSLIP_SERVER. Answers to requests for approval go through the server also if one
is known to run for the file, so that whoever answers needs a token that a person holds. The token file would be no
such thing: whatever runs in the same account can read it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import click
import msgspec

from callslip.cli.place import DB, place
from callslip.client.location import LedgerLocation, data_folder
from callslip.errors import AmbiguousIdError, AuthenticationError, NotFoundError, ServerUnavailableError

if TYPE_CHECKING:
    from callslip.client.address import ServerAddress

F = TypeVar("F", bound=Callable[..., Any])
Json = dict[str, Any]

SERVER = "callslip.server"
TOKEN = "callslip.token"


class Session(NamedTuple):
    """A session that was found, how far it goes, and its open turn ("" for none)."""

    name: str
    seq: int
    turn: str


class News(NamedTuple):
    """Something of a session: its `snapshot`, the `patches` of one event, or the `event` itself; `body` is JSON."""

    kind: str
    seq: int
    body: bytes


class LedgerClient(Protocol):
    """The ledger, wherever it is. What is found is JSON in the words of the wire."""

    flags: str
    """What to add to another command so that it means the same ledger."""
    names_answerer: bool
    """Whether an answer bears the name that it is given here; else that of the token."""

    def session(self, given: str) -> Session:
        """A session by its name, the beginning of one, or `@last`."""
        ...

    def call(self, given: str, session: str = "") -> Json:
        """A call by any of its ids, or that of a request for its approval."""
        ...

    def approval(self, given: str) -> Json:
        """A request for approval by its id, or that of its call; `@last` is the newest that waits."""
        ...

    def answer(self, approval: Json, answer: Json, by: str) -> Json:
        """Approve, deny or edit, as `POST /v1/approvals/{id}` takes it. Conflict with whatever was there first."""
        ...

    def cancel(self, call: str, reason: str, by: str) -> Json:
        """Stop a call, unless it has ended; the call as it stands then."""
        ...

    def submit(self, order: Json) -> Json:
        """Queue a command, given and answered as `POST /v1/calls` has it (S3.1)."""
        ...

    def command(self, call: str) -> Json:
        """How a command stands (S3.2)."""
        ...

    def commands(self, client: str, limit: int) -> Json:
        """The lists of commands: pending, completed, failed (S3.5)."""
        ...

    def wait(self, call: str, timeout: float | None) -> Json:
        """The call, with its entry as `toolCall`, once it has ended; TimeoutError if it takes longer."""
        ...

    def blob(self, identity: str) -> bytes:
        """A value that was too large to stand in its event."""
        ...

    def export(self, session: Session, format: str, at: int | None) -> Generator[bytes]:
        """A session in a format, whole."""
        ...

    def turn(self, session: Session, format: str, at: int | None, turn: str) -> Generator[bytes]:
        """One turn as it is streamed in a format."""
        ...

    def follow(self, session: str, format: str, after: int | None) -> Generator[News]:
        """Everything after a cursor, for ever; without one, `entries` begin with a snapshot and `events` with all."""
        ...


# Which is meant


def _remember(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value:
        ctx.meta[SERVER if parameter.name == "server" else TOKEN] = value


def server_options(command: F) -> F:
    """`--server` and `--token`, remembered for `reached`."""
    where = "Ask this server instead of the file. Else $CALLSLIP_SERVER."
    token = "The token for the server. Else $CALLSLIP_TOKEN, which others cannot see."
    command = click.option("--token", expose_value=False, callback=_remember, help=token)(command)
    return click.option("--server", metavar="URL", expose_value=False, callback=_remember, help=where)(command)


@contextlib.contextmanager
def open_client(*, answers: bool = False, create: bool = False) -> Generator[LedgerClient]:
    """What this command line means. With `answers` a person's own token is asked for where a server runs.

    With `create` a ledger that is not there yet is made.
    """
    address = _address()
    if address is not None:
        with _on_server(address, _token(address, answers, f"--server {address.url}")) as reach:
            yield reach
        return
    meant = place()
    running = running_server(meant) if answers else None
    if running is None:
        with _on_file(meant, create) as reach:
            yield reach
        return
    from callslip.client.address import parse_address

    address = parse_address(running.url, server_file(meant))
    token = _token(address, True, f"a server runs for this ledger at {running.url} (process {running.pid})")
    with _on_server(address, token, hint=f"; delete {server_file(meant)} if it has ended") as reach:
        yield reach


def _address() -> ServerAddress | None:
    from callslip.client.address import parse_address

    known = click.get_current_context().meta
    if known.get(SERVER):
        if known.get(DB):
            raise click.UsageError("--server and --db name two places; give one of them")
        return parse_address(known[SERVER], "--server")
    said = os.environ.get("CALLSLIP_SERVER", "")
    return parse_address(said, "CALLSLIP_SERVER") if said and not known.get(DB) else None


@contextlib.contextmanager
def _on_file(meant: LedgerLocation, create: bool) -> Generator[LedgerClient]:
    meant.prepare() if create and meant.path else meant.require()
    from callslip.cli.on_file import opened

    flags = f" --db {shlex.quote(meant.path)}" if meant.said_by == "--db" else ""
    with opened(meant.url, flags) as reach:
        yield reach


@contextlib.contextmanager
def _on_server(address: ServerAddress, token: str, hint: str = "") -> Generator[LedgerClient]:
    from callslip.cli.on_server import OnServer
    from callslip.cli.remote import Remote

    try:
        yield OnServer(Remote(address, token))
    except ServerUnavailableError as error:
        raise ServerUnavailableError(f"{error}{hint}") from error


# Tokens


def _token(address: ServerAddress, answers: bool, why: str) -> str:
    known = click.get_current_context().meta.get(TOKEN) or os.environ.get("CALLSLIP_TOKEN", "") or address.token
    if known:
        from callslip.client.token_file import checked

        return checked(known, "token")
    return _asked(why) if answers else _from_file(address)


def _asked(why: str) -> str:
    """From whoever sits at the terminal, without showing it."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        advice = "give the token that a person holds with --token or CALLSLIP_TOKEN"
        raise AuthenticationError(f"{why}: {advice} (callslip admin token create --can approve makes one)")
    from callslip.client.token_file import checked

    click.echo(f"{why}.", err=True)
    return checked(str(click.prompt("Its token", hide_input=True, err=True)).strip(), "token")


def _from_file(address: ServerAddress) -> str:
    """The main token of this user's servers; it is theirs alone, so that no other machine is told it."""
    if not address.local or not os.access(data_folder() / "token", os.R_OK):
        return ""
    from callslip.client.token_file import main_token

    return main_token(data_folder())


# The server of a file


class Running(msgspec.Struct, frozen=True):
    """A server that said that it runs for a ledger. `owner` tells whether its process lives."""

    url: str
    pid: int
    owner: str


def server_file(meant: LedgerLocation) -> str:
    """Where a server says that it runs."""
    return f"{meant.path}.server"


def running_server(meant: LedgerLocation) -> Running | None:
    """The server of a ledger, unless its process is dead."""
    if not meant.path:
        return None
    try:
        with open(server_file(meant), "rb") as file:
            data = file.read(65536)
    except (OSError, ValueError):
        return None
    return _read(data)


def _read(data: bytes) -> Running | None:
    from callslip.ledger.liveness import is_dead

    try:
        found = msgspec.json.decode(data, type=Running)
    except msgspec.DecodeError:
        return None
    return None if is_dead(found.owner) else found


# Shared by both


def only(found: list[Json], kind: str, field: str, given: str) -> Json:
    """The one thing that an id means, in the words of the ledger."""
    if not found:
        raise NotFoundError(f"no {kind} {given!r}")
    if len(found) > 1:
        names = [row[field] for row in found]
        raise AmbiguousIdError(f"{given!r} fits several: {', '.join(names)}", names)
    return found[0]
