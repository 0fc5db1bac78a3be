"""Tell other processes what was written, and learn what they wrote.

After its commits a process sends notifications, outside of the transactions that write: a notification inside of them
makes commits wait for each other. A notification is only a hint. It may be lost, and a pooler may not pass it on at
all, so the state of the server's transactions is compared as well: each second, and more often while notifications do
not arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Generator
from typing import Any

import msgspec

from callslip.errors import StoreError
from callslip.store.postgres_database import Connection, Database, finish, translate_errors
from callslip.store.protocol import Changes
from callslip.store.sql import statements

log = logging.getLogger("callslip.store")
SQL = statements("postgres.sql")
MAX_PAYLOAD_BYTES = 7900
"""A notification of PostgreSQL has less than 8000 bytes."""
MAX_PAYLOADS = 16
"""With more, a single notification says that anything may have changed."""
MAX_PENDING_SESSIONS = 10_000
"""With more, while no task waits for them, anything may have changed."""
POLL_S = 0.075
LISTENING_POLL_S = 1.0
PROBE_S = 2.0
PING_S = 10.0
"""How often the connection that listens is checked: the network may drop it without an error."""
TIMEOUT_S = 5.0
CLOSE_S = 1.0
RETRY_S = 1.0
MAX_RETRY_S = 60.0
CHANNEL = "SELECT 'callslip_' || md5(current_schema())"
NOTIFY = "SELECT pg_notify('callslip_' || md5(current_schema()), u.text) FROM unnest($1::text[]) AS u(text)"


class Notification(msgspec.Struct, frozen=True, array_like=True):
    """The text of a notification: the process that sends it, and what it wrote, as in `Changes`.

    A process sends itself a probe to find out whether notifications arrive.
    """

    process: str
    sessions: dict[str, int] | None = None
    commands: bool = False
    is_probe: bool = False


_decode = msgspec.json.Decoder(Notification).decode


def _encode(notification: Notification) -> str:
    return msgspec.json.encode(notification).decode()


def notifications(process: str, changes: Changes) -> list[str]:
    """Return the texts that tell other processes about changes, each short enough for PostgreSQL."""
    anything = [_encode(Notification(process, None, True))]
    if changes.sessions is None:
        return anything
    groups: list[dict[str, int]] = [{}]
    left = MAX_PAYLOAD_BYTES
    for name, head in changes.sessions.items():
        size = len(msgspec.json.encode({name: head}))
        if size > left - 100:  # The other fields take less than that.
            groups.append({})
            left = MAX_PAYLOAD_BYTES
        groups[-1][name] = head
        left -= size
    if len(groups) > MAX_PAYLOADS:
        return anything
    return [_encode(Notification(process, group, changes.commands)) for group in groups]


class PendingChanges:
    """Changes that were not sent or returned yet."""

    def __init__(self) -> None:
        self._sessions: dict[str, int] | None = {}
        self._commands = False

    def add(self, changes: Changes) -> None:
        """Add changes."""
        self._commands |= changes.commands
        if changes.sessions is None:
            self._sessions = None
        elif self._sessions is not None:
            for name, head in changes.sessions.items():
                self._sessions[name] = max(head, self._sessions.get(name, 0))
            if len(self._sessions) > MAX_PENDING_SESSIONS:
                self._sessions = None

    def take(self) -> Changes | None:
        """Return all changes since the last call; None if there are none."""
        sessions, commands = self._sessions, self._commands
        if sessions is not None and not sessions and not commands:
            return None
        self._sessions, self._commands = {}, False
        return Changes(sessions, commands)


class ChangeNotifier:
    """Sends notifications with a connection of its own. What is written meanwhile is sent together."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.process = secrets.token_hex(8)
        self._pending = PendingChanges()
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def add(self, changes: Changes) -> None:
        """Tell other processes about changes soon."""
        self._pending.add(changes)
        if not self._closed and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while (changes := self._pending.take()) is not None:
            try:
                await self._send(notifications(self.process, changes))
            except Exception as error:  # Other processes find out by themselves.
                _log_unexpected(error)
                await asyncio.sleep(RETRY_S)

    async def send_probe(self) -> None:
        """Send a notification to this process itself."""
        await self._send([_encode(Notification(self.process, {}, is_probe=True))])

    async def _send(self, texts: list[str]) -> None:
        async with self._lock:
            with translate_errors(self._database.name):
                try:
                    async with asyncio.timeout(TIMEOUT_S):
                        if self._connection is None or self._connection.is_closed():
                            self._connection = await self._database.connect()
                        await finish(self._connection.fetch(NOTIFY, texts, timeout=TIMEOUT_S))
                except BaseException:
                    connection, self._connection = self._connection, None
                    if connection is not None:
                        connection.terminate()
                    raise

    async def close(self) -> None:
        """Send what is left, if that takes less than a second, and close the connection."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_S)
            await _cancel([self._task])
        connection, self._connection = self._connection, None
        if connection is not None:
            await _close(connection)


class ChangeListener:
    """Learns what other processes wrote, from the first call of `wait` on."""

    def __init__(self, database: Database, notifier: ChangeNotifier) -> None:
        self._database = database
        self._notifier = notifier
        self._pending = PendingChanges()
        self._arrived = asyncio.Event()
        self._is_probed = asyncio.Event()
        self._has_waiter = asyncio.Event()
        self._waiters = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self.is_listening = False
        """Whether notifications arrive."""

    async def wait(self) -> Changes:
        """Wait for changes since the last call returned. The first result is that anything may have changed."""
        if not self._tasks and not self._closed:
            self._tasks = [asyncio.ensure_future(self._poll()), asyncio.ensure_future(self._listen())]
        with self._count_waiter():
            while not self._closed:
                if (changes := self._pending.take()) is not None:
                    return changes
                self._arrived.clear()
                await self._arrived.wait()
        raise StoreError("the ledger is closed")

    @contextlib.contextmanager
    def _count_waiter(self) -> Generator[None]:
        self._waiters += 1
        self._has_waiter.set()
        try:
            yield
        finally:
            self._waiters -= 1
            if not self._waiters:
                self._has_waiter.clear()

    def _add(self, changes: Changes) -> None:
        self._pending.add(changes)
        self._arrived.set()

    async def _poll(self) -> None:
        """Find changes without notifications. Nothing is asked while there is no reader."""
        known = ""
        while True:
            await self._has_waiter.wait()
            try:
                state = (await self._database.fetch(SQL["snapshot"]))[0][0]
            except Exception as error:  # Writes fail as well; the server may return.
                _log_unexpected(error)
                await asyncio.sleep(RETRY_S)
                continue
            if state != known:
                known = state
                self._add(Changes())
            await asyncio.sleep(LISTENING_POLL_S if self.is_listening else POLL_S)

    async def _listen(self) -> None:
        """Receive notifications. After a lost connection, try again."""
        delay_s = RETRY_S
        while True:
            self._is_probed.clear()
            try:
                await self._listen_once()
            except Exception as error:
                _log_unexpected(error)
                if self._is_probed.is_set():
                    delay_s = RETRY_S  # It worked before.
                elif self._database.has_pooler:
                    return  # Each try would leave another connection of the pooler that listens.
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, MAX_RETRY_S)

    async def _listen_once(self) -> None:
        """Receive notifications until the connection is lost, and raise the error."""
        closed = asyncio.Event()
        connection = await self._database.connect()
        try:
            with translate_errors(self._database.name):
                connection.add_termination_listener(lambda *_: closed.set())
                async with asyncio.timeout(TIMEOUT_S):
                    channel = (await finish(connection.fetch(CHANNEL, timeout=TIMEOUT_S)))[0][0]
                    await finish(connection.add_listener(channel, self._receive))
                async with asyncio.timeout(PROBE_S):  # A pooler may accept the listener and pass nothing on.
                    await self._notifier.send_probe()
                    await self._is_probed.wait()
                self.is_listening = True
                self._add(Changes())  # What was sent before is lost.
                while not closed.is_set():
                    await finish(connection.fetch("SELECT 1", timeout=TIMEOUT_S))
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(closed.wait(), PING_S)
                raise StoreError(f"{self._database.name}: the connection that listens was closed")
        finally:
            self.is_listening = False
            connection.terminate()

    def _receive(self, connection: Any, pid: int, channel: str, text: object) -> None:
        try:
            notification = _decode(str(text))
        except msgspec.DecodeError:  # Of another version.
            return self._add(Changes())
        if notification.process != self._notifier.process:
            self._add(Changes(notification.sessions, notification.commands))
        elif notification.is_probe:
            self._is_probed.set()

    async def close(self) -> None:
        """Stop, and end all waits with an error."""
        self._closed = True
        self._arrived.set()
        await _cancel(self._tasks)


def _log_unexpected(error: Exception) -> None:
    """Log an error that is a fault of this program. Others show in the writes and reads of the ledger."""
    if not isinstance(error, StoreError):
        log.error("looking for changes failed, and is tried again", exc_info=error)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def _close(connection: Connection) -> None:
    try:
        await connection.close(timeout=CLOSE_S)
    except Exception:
        connection.terminate()
