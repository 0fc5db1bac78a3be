"""`callslip serve`: start the web UI and API server of a ledger.

While it runs, a file has its address (`callslip.client.server_file`) for other commands.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import click
import msgspec

from callslip.api.commands import MAX_COMMAND_TIMEOUT_S
from callslip.cli import exit_status
from callslip.cli.commands.phone import PhoneSignIn
from callslip.cli.commands.reach import LOOPBACK, Reach, reach_options
from callslip.cli.options import db_option, json_option, refuse_agent, selected_location, wants_json
from callslip.cli.terminal import tables
from callslip.cli.terminal.formatting import Seconds
from callslip.client.location import LedgerLocation, data_folder
from callslip.client.server_file import RunningServer, running_server, server_file
from callslip.errors import InvalidInputError, StoreError
from callslip.settings import Settings

if TYPE_CHECKING:
    import ssl

    import uvicorn

    from callslip.api.ledger import LocalLedger
    from callslip.settings import Limits

PORT = 7890
MAX_QUEUE_LIMIT = 1_000_000
MAX_CONNECTIONS = 1000
MAX_DATABASE_TIMEOUT_S = 86400
LAN_WARNING = (
    "warning: without --tls-cert, others in this network can read what a phone sends and receives, also its token"
)
SHUTDOWN_S = 3
"""The time that running requests have to finish. Streams end at once, and their clients reconnect."""
UNSENT_BYTES = 128 * 2**10
"""How much data the kernel accepts for a connection beyond what is on its way to the client."""
WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
STATUS = {signal.SIGINT: exit_status.INTERRUPTED, signal.SIGTERM: exit_status.TERMINATED}
if hasattr(signal, "SIGHUP"):
    STATUS[signal.SIGHUP] = exit_status.TERMINATED


DEFAULTS = Settings()


class LedgerSettings(TypedDict):
    """The settings of the ledger that `callslip serve` has options for, by the names of `Settings`."""

    command_timeout: float
    queue_limit: int
    queue_overflow: Literal["refuse", "expire_oldest"]
    completed_window: float
    requires_validation: tuple[str, ...]
    read_connections: int
    write_connections: int
    statement_timeout: float
    database_timeout: float
    policy_file: str
    rules_allow_chains: bool


def rule_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options about rules that answer requests for approval, with the names of `Settings`."""
    policy = click.option(
        "--policy",
        "policy_file",
        metavar="FILE",
        default="",
        callback=_check_policy,
        help="A TOML file with rules that answer requests before saved rules do. It is read again when it changes.",
    )
    chains = click.option(
        "--rules-allow-chains",
        is_flag=True,
        help="Let saved rules allow a chain (`a && b`) if each of its commands is allowed by itself.",
    )
    return policy(chains(command))


def _check_policy(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    """Return the absolute path of a policy file, or raise InvalidInputError if it cannot be used."""
    if not value:
        return ""
    from callslip.api.policy_file import read_policy

    return read_policy(value).path


@click.command()
@reach_options
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="The port; 0 is any free one."
)
@click.option(
    "--token",
    default="",
    help="The token with full access, at least 16 characters. [env: CALLSLIP_TOKEN; default: a stored one]",
)
@click.option(
    "--allow-origin", "origins", multiple=True, metavar="ORIGIN", help="Also accept requests from pages of this origin."
)
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Also accept requests for this host name.")
@click.option(
    "--open/--no-browser", "opens_browser", default=False, help="Open the web UI in a browser. [default: --no-browser]"
)
@click.option(
    "--command-timeout",
    metavar="SECONDS",
    type=Seconds(above_zero=True, maximum=MAX_COMMAND_TIMEOUT_S),
    default=DEFAULTS.command_timeout,
    help=f"When a command without its own timeout expires. [default: {DEFAULTS.command_timeout:g}]",
)
@click.option(
    "--queue-limit",
    type=click.IntRange(1, MAX_QUEUE_LIMIT),
    default=DEFAULTS.queue_limit,
    show_default=True,
    help="How many commands may be pending in one queue.",
)
@click.option(
    "--queue-overflow",
    type=click.Choice(["refuse", "expire_oldest"]),
    default=DEFAULTS.queue_overflow,
    show_default=True,
    help="In a full queue, refuse a new command, or expire the oldest pending one.",
)
@click.option(
    "--completed-window",
    metavar="SECONDS",
    type=Seconds(maximum=MAX_COMMAND_TIMEOUT_S),
    default=DEFAULTS.completed_window,
    help=f"How long lists show completed commands. [default: {DEFAULTS.completed_window:g}]",
)
@click.option(
    "--requires-validation",
    multiple=True,
    metavar="TOOL",
    help="In posted rows, a user must accept the calls of this tool; one without an answer is pending.",
)
@click.option(
    "--read-connections",
    type=click.IntRange(1, MAX_CONNECTIONS),
    default=DEFAULTS.read_connections,
    envvar="CALLSLIP_READ_CONNECTIONS",
    help="PostgreSQL: how many connections read. "
    f"[env: CALLSLIP_READ_CONNECTIONS; default: {DEFAULTS.read_connections}]",
)
@click.option(
    "--write-connections",
    type=click.IntRange(1, MAX_CONNECTIONS),
    default=DEFAULTS.write_connections,
    envvar="CALLSLIP_WRITE_CONNECTIONS",
    help="PostgreSQL: how many connections write. Two more send and receive notifications. "
    f"[env: CALLSLIP_WRITE_CONNECTIONS; default: {DEFAULTS.write_connections}]",
)
@click.option(
    "--statement-timeout",
    metavar="SECONDS",
    type=Seconds(above_zero=True, maximum=MAX_DATABASE_TIMEOUT_S),
    default=DEFAULTS.statement_timeout,
    envvar="CALLSLIP_STATEMENT_TIMEOUT",
    help="PostgreSQL: how long one statement may take. "
    f"[env: CALLSLIP_STATEMENT_TIMEOUT; default: {DEFAULTS.statement_timeout:g}]",
)
@click.option(
    "--database-timeout",
    metavar="SECONDS",
    type=Seconds(above_zero=True, maximum=MAX_DATABASE_TIMEOUT_S),
    default=DEFAULTS.database_timeout,
    envvar="CALLSLIP_DATABASE_TIMEOUT",
    help="PostgreSQL: how long a read or a write waits for a server that cannot be reached. "
    f"[env: CALLSLIP_DATABASE_TIMEOUT; default: {DEFAULTS.database_timeout:g}]",
)
@rule_options
@db_option
@json_option
def serve(
    reach: Reach,
    port: int,
    token: str,
    origins: tuple[str, ...],
    hosts: tuple[str, ...],
    opens_browser: bool,
    **ledger_settings: Unpack[LedgerSettings],
) -> int:
    """Start the web UI and API server.

    Prints the URL with the token on stderr, and with --json one line on stdout when it is ready. The token is created
    at the first start and stored in a file that only you can read. It gives full access; `callslip admin token create`
    creates tokens with fewer rights.

    The options for commands apply to commands that are submitted and listed through this server: over HTTP, MCP and
    `callslip --server`.
    """
    refuse_agent("serve a ledger, because the token of the server may answer requests")
    return run_server(
        reach,
        port,
        token,
        opens_browser=opens_browser,
        settings=Settings(**ledger_settings),
        allow_hosts=hosts,
        allow_origins=origins,
    )


Beside = Callable[["LocalLedger"], contextlib.AbstractAsyncContextManager[None]]
"""What runs beside a server on the same ledger."""


def run_server(
    reach: Reach,
    port: int,
    token: str,
    *,
    opens_browser: bool,
    settings: Settings = DEFAULTS,
    beside: Beside | None = None,
    allow_hosts: tuple[str, ...] = (),
    allow_origins: tuple[str, ...] = (),
) -> int:
    """Run a server until a signal stops it, and return the exit status."""
    import asyncio

    from callslip.client.token_file import main_token

    location = selected_location()
    location.prepare()
    secret = main_token(data_folder(), token)
    options: dict[str, Any] = {
        "host": reach.host,
        "allow_hosts": (*allow_hosts, *reach.allowed_hosts),
        "allow_origins": (*allow_origins, *reach.allowed_origins),
    }
    with open_listeners(reach, port) as listeners:
        local_tls = None if reach.lan else reach.tls
        url = _format_url(
            LOOPBACK if reach.lan else WILDCARD_HOSTS.get(reach.host, reach.host), listeners[0], local_tls
        )
        phone_url = reach.public_url or (_format_url(reach.host, listeners[-1], reach.tls) if reach.lan else "")
        info = ServerInfo(
            location,
            url,
            secret,
            opens_browser,
            settings=settings,
            phone_url=phone_url,
            tls=reach.tls,
            is_lan=reach.lan,
        )
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_serve(info, listeners, options, beside, reach))


def _format_url(name: str, listener: socket.socket, tls: ssl.SSLContext | None) -> str:
    scheme = "https" if tls is not None else "http"
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{listener.getsockname()[1]}"


@contextlib.contextmanager
def open_listeners(reach: Reach, port: int) -> Generator[list[socket.socket]]:
    """Listen where a server is to be reached: with `lan` on this machine, and in the network at the same port."""
    with contextlib.ExitStack() as stack:
        if not reach.lan:
            yield [stack.enter_context(open_socket(reach.host, port, is_encrypted=reach.tls is not None))]
            return
        local = stack.enter_context(open_socket(LOOPBACK, port))
        listeners = [local]
        if reach.host != LOOPBACK:
            bound_port = local.getsockname()[1]
            listeners.append(stack.enter_context(open_socket(reach.host, bound_port, is_encrypted=True)))
        if reach.tls is None:
            tables.print_status(LAN_WARNING)
        yield listeners


@dataclass(frozen=True)
class ServerInfo:
    """The address of a server, and the output that announces it.

    `phone_url` is its address for other machines, "" if it has none. With `is_lan`, only the last listener has `tls`.
    """

    location: LedgerLocation
    url: str
    token: str = field(repr=False)
    opens_browser: bool
    settings: Settings = field(default=DEFAULTS, kw_only=True)
    phone_url: str = field(default="", kw_only=True)
    tls: ssl.SSLContext | None = field(default=None, kw_only=True)
    is_lan: bool = field(default=False, kw_only=True)

    @property
    def page(self) -> str:
        return f"{self.url}/?token={self.token}"

    def announce(self) -> None:
        """Print the address once the server listens."""
        if wants_json():
            database = None if self.location.is_in_memory else self.location.display_name
            other = {"phoneUrl": self.phone_url} if self.phone_url else {}
            tables.write_json({"url": self.url, "token": self.token, "pid": os.getpid(), "db": database, **other})
        tables.print_status(f"serving {self.location.display_name}")
        tables.print_status(f"Web UI: {self.page}")
        if self.is_lan:
            tables.print_status(f"For phones: {self.phone_url} (`callslip admin token qr` shows a code to sign in)")
        if self.opens_browser:
            _open_browser(self.page)

    def close(self) -> None:
        """Delete the file that redirected the browser."""
        if self.opens_browser:
            with contextlib.suppress(OSError):
                os.unlink(_redirect_file())


@contextlib.contextmanager
def open_socket(host: str, port: int, *, is_encrypted: bool = False) -> Generator[socket.socket]:
    """Listen on an address, with errors that name the option to change."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=1024)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # Headers and body are two writes.
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # Else the kernel keeps megabytes for each client that reads nothing.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    except (socket.gaierror, UnicodeError):
        raise InvalidInputError("--host", f"must be an address of this machine, got {host!r}") from None
    except OSError as error:
        raise _listen_error(host, port, error) from None
    with listener:
        if not is_encrypted:
            _warn_if_public(host, listener)
        yield listener


def _listen_error(host: str, port: int, error: OSError) -> StoreError | InvalidInputError:
    import errno

    if error.errno == errno.EADDRINUSE:
        return StoreError(f"port {port} of {host} is in use; choose another with --port, or --port 0 for any free one")
    if error.errno == errno.EADDRNOTAVAIL:
        return InvalidInputError("--host", f"must be an address of this machine, got {host!r}")
    return StoreError(f"cannot listen on port {port} of {host}: {error.strerror}")


def _warn_if_public(host: str, listener: socket.socket) -> None:
    from ipaddress import ip_address

    if not ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback:
        tables.print_status(
            f"warning: {host} can be reached from other machines. The token gives full access and is sent unencrypted: "
            "use --tls-cert, or a reverse proxy with TLS"
        )


def _redirect_file() -> Path:
    return data_folder() / f"open-{os.getpid()}.html"


def write_redirect(page: str, file: Path) -> None:
    """Write a page that redirects to the web UI. Other users see the command line of the browser, but not this file."""
    from html import escape

    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(str(file), f'<meta http-equiv="refresh" content="0; url={escape(page)}">'.encode())


def _open_browser(page: str) -> None:
    import webbrowser

    file = _redirect_file()
    write_redirect(page, file)
    if not webbrowser.open(file.as_uri()):
        tables.print_status("no browser could be opened; open the URL above")


# Running


def loop_factory() -> Any:
    """Return the factory of uvloop if it is installed, else None for the default event loop."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(
    info: ServerInfo, listeners: list[socket.socket], options: dict[str, Any], beside: Beside | None, reach: Reach
) -> int:
    import asyncio

    from callslip import http
    from callslip.api.ledger import open_ledger
    from callslip.hooks.server import serving_hooks
    from callslip.http.browser_guard import quiet_access_log
    from callslip.mcp import http_app
    from callslip.stacks import stacks_on_signal

    quiet_access_log()
    with stacks_on_signal(asyncio.get_running_loop()):
        async with await open_ledger(info.location.url, info.settings) as ledger:
            ledger.log.keep_searchable()
            app = http.standalone(ledger, info.token, mcp_app=http_app, **options)
            phone = PhoneSignIn(ledger, info.phone_url) if reach.lan and PhoneSignIn.can_show() else None
            server = create_server(app, ledger, info, phone=phone)
            async with contextlib.AsyncExitStack() as stack:
                await stack.enter_async_context(serving_hooks(ledger, info.location, tables.print_status))
                if beside is not None:
                    await stack.enter_async_context(beside(ledger))
                if reach.notify is not None:
                    await stack.enter_async_context(_notifying(ledger, reach))
                if phone is not None:
                    await stack.enter_async_context(phone.running())
                await server.serve(sockets=listeners)
    return next((STATUS[number] for number in server.stop_signals), exit_status.OK)


def _notifying(ledger: LocalLedger, reach: Reach) -> contextlib.AbstractAsyncContextManager[None]:
    from callslip.notify.notifier import notifying

    assert reach.notify is not None
    return notifying(ledger, reach.notify, reach.public_url, tables.print_status)


def create_server(
    app: Any, ledger: LocalLedger, info: ServerInfo, limits: Limits | None = None, phone: PhoneSignIn | None = None
) -> Any:
    """Return a server that announces itself once it listens; `stop_signals` are the signals that stopped it."""
    import asyncio
    from functools import partial

    import uvicorn

    from callslip.http.uvicorn_connection import UvicornConnection
    from callslip.settings import Limits

    class Server(uvicorn.Server):
        """Uvicorn that ends streams first, and records the signals that stop it."""

        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            self.stop_signals: list[signal.Signals] = []

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None]:
            loop = asyncio.get_running_loop()
            for number in STATUS:
                loop.add_signal_handler(number, self._stop, number)
            try:
                yield
            finally:
                for number in STATUS:
                    loop.remove_signal_handler(number)

        def _stop(self, number: signal.Signals) -> None:
            """Stop after running requests; at the second signal at once."""
            self.force_exit = self.should_exit
            self.should_exit = True
            self.stop_signals.append(number)

        async def _serve(self, sockets: list[socket.socket] | None = None) -> None:
            with _register(info):
                await super()._serve(sockets)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """Listen on all sockets. Uvicorn has one setting of TLS for all, so each is started by itself."""
            servers: list[Any] = []
            for listener in sockets or []:
                uses_tls = not info.is_lan or listener is (sockets or [])[-1]
                self.config.ssl = info.tls if uses_tls else None
                await super().startup([listener])
                servers += self.servers
            self.servers = servers
            info.announce()
            if phone is not None:
                await phone.show()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            info.close()
            await ledger.log.feed.close()  # Streams and waiting requests end now.
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        http=partial(UvicornConnection, limits or Limits()),  # pyright: ignore[reportArgumentType]
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    return Server(config)


# The file with the address


@contextlib.contextmanager
def _register(info: ServerInfo) -> Generator[None]:
    """Let other commands find the server while the block runs, unless another server is registered."""
    from callslip.ledger.liveness import is_here, new_owner

    path, other = server_file(info.location), running_server(info.location)
    if info.location.is_in_memory:
        yield
        return
    if other is not None and is_here(other.owner):
        tables.print_status(f"another server runs for this ledger at {other.url}; other commands use that one")
        yield
        return
    entry = RunningServer(info.url, os.getpid(), new_owner(), info.settings, info.phone_url)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        _write(path, msgspec.json.encode(entry))
    except OSError as error:
        tables.print_status(f"cannot write {path} ({error.strerror}): other commands will not find this server")
    try:
        yield
    finally:
        current = running_server(info.location)
        if current is not None and current.owner == entry.owner:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _write(path: str, data: bytes) -> None:
    """Write a file atomically that only its owner can read."""
    temporary = f"{path}.part-{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(data)
    os.replace(temporary, path)
