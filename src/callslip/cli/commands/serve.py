"""`callslip serve`: the page, the API and the streams of a ledger, for whoever has the token.

While it runs a file beside the ledger says so (`reach.server_file`), so that other commands find it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from callslip.cli import exit_status
from callslip.cli.options import db_option, json_option, selected_location, wants_json
from callslip.cli.terminal import tables
from callslip.client.location import LedgerLocation, data_folder
from callslip.client.server_file import RunningServer, running_server, server_file
from callslip.errors import InvalidInputError, StoreError

if TYPE_CHECKING:
    import uvicorn

    from callslip.api.ledger import LocalLedger

PORT = 7890
SHUTDOWN_S = 3
"""Seconds that requests under way have to come to their end. Streams end at once, their readers come back."""
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
STATUS = {signal.SIGINT: exit_status.INTERRUPTED, signal.SIGTERM: exit_status.TERMINATED}
if hasattr(signal, "SIGHUP"):
    STATUS[signal.SIGHUP] = exit_status.TERMINATED


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 is any free one.")
@click.option(
    "--token",
    default="",
    help="What opens everything, at least 16 characters. Else $CALLSLIP_TOKEN, else one that is kept.",
)
@click.option("--allow-origin", "origins", multiple=True, metavar="ORIGIN", help="Pages of this origin may ask, too.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="The server goes by this name, too.")
@click.option("--open/--no-browser", "browse", default=False, help="Open the page in a browser, or do not (default).")
@db_option
@json_option
def serve(host: str, port: int, token: str, origins: tuple[str, ...], hosts: tuple[str, ...], browse: bool) -> int:
    """Serve the page, the API and the streams of a ledger.

    Prints the address of the page with its token on stderr, and with --json one line on stdout when it listens. The
    token is made at the first start and kept, readable by you alone. Whoever has it can do everything here; callslip
    admin token create makes one for a part.
    """
    from callslip.client.token_file import main_token

    meant = selected_location()
    meant.prepare()
    secret = main_token(data_folder(), token)
    host = host.removeprefix("[").removesuffix("]")
    with listening(host, port) as bound:
        where = Where(meant, _url(host, bound.getsockname()[1]), secret, browse)
        return _run(where, bound, {"host": host, "allow_hosts": hosts, "allow_origins": origins})


class Where:
    """Where a server is, and how it says so."""

    def __init__(self, meant: LedgerLocation, url: str, token: str, browse: bool) -> None:
        self.place = meant
        self.url = url
        self._token = token
        self._browse = browse

    @property
    def page(self) -> str:
        return f"{self.url}/?token={self._token}"

    @property
    def token(self) -> str:
        return self._token

    def tell(self) -> None:
        """It listens."""
        if wants_json():
            told = {"url": self.url, "token": self._token, "pid": os.getpid(), "db": self.place.path or None}
            tables.write_json(told)
        tables.print_status(f"serving {self.place.path or 'a ledger in memory'} at {self.page}")
        if self._browse:
            _open(self.page)

    def close(self) -> None:
        """What led to the page leads nowhere now."""
        if self._browse:
            with contextlib.suppress(OSError):
                os.unlink(_opener())


def _url(host: str, port: int) -> str:
    named = EVERYWHERE.get(host, host)
    return f"http://[{named}]:{port}" if ":" in named else f"http://{named}:{port}"


@contextlib.contextmanager
def listening(host: str, port: int) -> Generator[socket.socket]:
    """A socket of our own: what is wrong with it is said in our words."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((host, port), family=family, backlog=1024)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # Headers and body are two writes.
    except (socket.gaierror, UnicodeError):
        raise InvalidInputError("--host", f"{host!r} is no address of this machine") from None
    except OSError as error:
        raise _not_bound(host, port, error) from None
    with made:
        _warn(host, made)
        yield made


def _not_bound(host: str, port: int, error: OSError) -> StoreError | InvalidInputError:
    import errno

    if error.errno == errno.EADDRINUSE:
        return StoreError(f"port {port} of {host} is taken; choose another, or --port 0 for any free one")
    if error.errno == errno.EADDRNOTAVAIL:
        return InvalidInputError("--host", f"{host!r} is no address of this machine")
    return StoreError(f"cannot listen at port {port} of {host}: {error.strerror}")


def _warn(host: str, made: socket.socket) -> None:
    from ipaddress import ip_address

    if not ip_address(made.getsockname()[0].partition("%")[0]).is_loopback:
        tables.print_status(
            f"warning: {host} can be reached from other machines. Whoever has the token can do everything here, and it "
            "crosses the network in the clear: put something that speaks TLS in front"
        )


def _opener() -> Path:
    return data_folder() / f"open-{os.getpid()}.html"


def lead_to(page: str, file: Path) -> None:
    """Keep the token out of the command line of the browser, which others can see: a file of our own leads there."""
    from html import escape

    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(str(file), f'<meta http-equiv="refresh" content="0; url={escape(page)}">'.encode())


def _open(page: str) -> None:
    import webbrowser

    file = _opener()
    lead_to(page, file)
    if not webbrowser.open(file.as_uri()):
        tables.print_status("no browser could be opened; open the address yourself")


# Running


def _run(where: Where, bound: socket.socket, settings: dict[str, Any]) -> int:
    import asyncio

    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        return runner.run(_serve(where, bound, settings))


def fast_loop() -> Any:
    """What makes the event loop: uvloop where it is installed, else Python's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(where: Where, bound: socket.socket, settings: dict[str, Any]) -> int:
    from callslip import http
    from callslip.api.ledger import open_ledger
    from callslip.http.browser_guard import quiet_access_log
    from callslip.mcp import http_app

    quiet_access_log()
    async with await open_ledger(where.place.url) as ledger:
        made = server(http.standalone(ledger, where.token, mcp_app=http_app, **settings), ledger, where)
        await made.serve(sockets=[bound])
    return next((STATUS[number] for number in made.asked), exit_status.OK)


def server(app: Any, ledger: LocalLedger, where: Where) -> Any:
    """A server of the app that tells where it is once it listens; its `asked` are the signals that ended it."""
    import asyncio

    import uvicorn

    class Server(uvicorn.Server):
        """Uvicorn that ends streams first, and whose signals become an exit status."""

        def __init__(self, config: uvicorn.Config) -> None:
            super().__init__(config)
            self.asked: list[signal.Signals] = []

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None]:
            loop = asyncio.get_running_loop()
            for number in STATUS:
                loop.add_signal_handler(number, self._end, number)
            try:
                yield
            finally:
                for number in STATUS:
                    loop.remove_signal_handler(number)

        def _end(self, number: signal.Signals) -> None:
            """The second time nothing is waited for."""
            self.force_exit = self.should_exit
            self.should_exit = True
            self.asked.append(number)

        async def _serve(self, sockets: list[socket.socket] | None = None) -> None:
            with _announced(where):
                await super()._serve(sockets)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            where.tell()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            where.close()
            await ledger.log.feed.close()  # Every stream and everything that waits ends now.
            await super().shutdown(sockets)

    return Server(_config(app))


def _config(app: Any) -> uvicorn.Config:
    import uvicorn

    return uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )


# The file that says so


@contextlib.contextmanager
def _announced(where: Where) -> Generator[None]:
    """As long as this lasts other commands find the server. One that is there already keeps its place."""
    from callslip.ledger.liveness import is_here, new_owner

    path, there = server_file(where.place), running_server(where.place)
    if not where.place.path:
        yield
        return
    if there is not None and is_here(there.owner):
        tables.print_status(f"another server runs for this ledger, at {there.url}; other commands will find that one")
        yield
        return
    ours = RunningServer(where.url, os.getpid(), new_owner())
    try:
        _write(path, msgspec.json.encode(ours))
    except OSError as error:
        tables.print_status(f"cannot write {path} ({error.strerror}): other commands will not find this server")
    try:
        yield
    finally:
        found = running_server(where.place)
        if found is not None and found.owner == ours.owner:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _write(path: str, data: bytes) -> None:
    """For its owner alone, whole or not at all."""
    beside = f"{path}.part-{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(data)
    os.replace(beside, path)
