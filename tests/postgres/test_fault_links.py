"""Faults of the network between clients and a server, and between the server and PostgreSQL.

Three writers and three followers use one session while a link has a fault. With each fault, every operation ends in
time with a result or an error, a retry with the same key stores nothing twice, and each follower gets every event once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.client import remote_log
from callslip.client.remote_ledger import RemoteLedger
from callslip.errors import CallslipError, ServerUnavailableError, StoreError
from callslip.model import events as ev
from callslip.model.events import Draft, Event
from callslip.settings import Limits, Settings
from callslip.store import postgres_database
from callslip.store.postgres_database import LostConnectionError
from tests.support import engines
from tests.support.fault_proxy import FaultProxy
from tests.support.invariants import find_faults, read_events
from tests.support.live_server import serving_ledger
from tests.support.tasks import TIMEOUT_S

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
STATEMENT_TIMEOUT_S = CONNECT_TIMEOUT_S = 1.0
DATABASE_TIMEOUT_S = 2.0
REQUEST_TIMEOUT_S = 1.5
RETRY_TIMEOUT_S = 2.0
HEARTBEAT_S = 0.3
BUSY_S = 20.0
"""How much longer than its timeout an operation may take on a busy machine. Without a timeout it takes forever."""
SETTINGS = Settings(statement_timeout=STATEMENT_TIMEOUT_S, database_timeout=DATABASE_TIMEOUT_S)
LOCAL_LIMIT_S = DATABASE_TIMEOUT_S + CONNECT_TIMEOUT_S + STATEMENT_TIMEOUT_S + BUSY_S
REMOTE_LIMIT_S = RETRY_TIMEOUT_S + REQUEST_TIMEOUT_S + BUSY_S
NO_TLS = "?sslmode=disable"
"""The driver logs an error if it gives up a connection at a certain moment before TLS. Tests fail at such an error."""
WRITES = 15
"""How many events each writer writes at least."""


@pytest.fixture
def engine() -> str:
    """Run these tests on PostgreSQL only."""
    return engines.POSTGRES


class Writer:
    """Writes events one after another until `finish` is called, each until it is acknowledged."""

    def __init__(self, name: str, ledger: LocalLedger | RemoteLedger, limit_s: float) -> None:
        self.name = name
        self.acknowledged: list[Event] = []
        self.error_count = 0
        self._ledger = ledger
        self._limit_s = limit_s
        self._is_finishing = False
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while len(self.acknowledged) < WRITES or not self._is_finishing:
            name = f"{self.name} {len(self.acknowledged)}"
            draft = Draft(ev.MessageUser(text=name), key=name)
            while True:
                started_at = time.monotonic()
                try:
                    events = await self._ledger.log.append("a", [draft])
                except CallslipError:
                    self.error_count += 1
                else:
                    break
                finally:
                    assert time.monotonic() - started_at < self._limit_s
            self.acknowledged += events
            await asyncio.sleep(0.01)  # So that it does not take a processor while others wait.

    async def finish(self) -> None:
        self._is_finishing = True
        await self.task


class Follower:
    """Keeps the numbers of the events that it gets."""

    def __init__(self, events: AsyncGenerator[Event]) -> None:
        self.seqs: list[int] = []
        self.task = asyncio.create_task(self._run(events))

    async def _run(self, events: AsyncGenerator[Event]) -> None:
        async with contextlib.aclosing(events):
            async for event in events:
                self.seqs.append(event.seq)


class Links:
    """A server whose links to its clients and to its database are proxies, and a ledger without them."""

    def __init__(self, clients: FaultProxy, database: FaultProxy, server: LocalLedger, remote: RemoteLedger) -> None:
        self.clients = clients
        self.database = database
        self.server = server
        self.remote = remote
        self.reports: list[str] = []


@pytest.fixture
def timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts that no setting has."""
    monkeypatch.setattr(postgres_database, "CONNECT_TIMEOUT_S", CONNECT_TIMEOUT_S)
    monkeypatch.setattr(remote_log, "RETRY_TIMEOUT_S", RETRY_TIMEOUT_S)
    monkeypatch.setattr(remote_log, "MAX_RETRY_DELAY_S", 0.5)


@pytest.fixture
async def links(db: str, timeouts: None) -> AsyncIterator[Links]:
    server = engines.server()
    name = db.rpartition("/")[2]
    reports: list[str] = []
    with FaultProxy(server.port) as database:
        async with (
            callslip.open(server.url(name, port=database.port) + NO_TLS, SETTINGS) as ledger,
            serving_ledger(ledger, limits=Limits(heartbeat=HEARTBEAT_S)) as url,
        ):
            with FaultProxy(int(url.rpartition(":")[2])) as clients:
                async with callslip.connect(f"http://127.0.0.1:{clients.port}", report=reports.append) as remote:
                    remote.log.pool.timeout_s = REQUEST_TIMEOUT_S
                    links = Links(clients, database, ledger, remote)
                    links.reports = reports
                    yield links
                    for proxy in (clients, database):
                        proxy.resume()


async def until(condition: Callable[[], bool], *tasks: asyncio.Task[Any]) -> None:
    """Wait for a condition, or raise the error of a task."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            for task in tasks:
                if task.done():
                    task.result()
                    raise AssertionError("a follower has ended")
            await asyncio.sleep(0.01)


class Traffic:
    """The writers and followers of a test."""

    def __init__(self, links: Links, observer: LocalLedger) -> None:
        self.local = Writer("local", links.server, LOCAL_LIMIT_S)
        self.remote = [Writer(f"remote {number}", links.remote, REMOTE_LIMIT_S) for number in range(2)]
        ledgers = (links.server, links.remote, observer)
        self.followers = [Follower(ledger.log.follow("a")) for ledger in ledgers]

    @property
    def writers(self) -> list[Writer]:
        return [self.local, *self.remote]

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [user.task for user in (*self.writers, *self.followers)]

    async def until_written(self, count: int, writers: list[Writer]) -> None:
        """Wait until each of these writers has written so many more events."""
        before = [len(writer.acknowledged) for writer in writers]
        await until(
            lambda: all(len(w.acknowledged) >= n + count for w, n in zip(writers, before, strict=True)), *self.tasks
        )

    async def until_failed(self, writers: list[Writer]) -> None:
        """Wait until each of these writers has got one more error."""
        before = [writer.error_count for writer in writers]
        await until(lambda: all(w.error_count > n for w, n in zip(writers, before, strict=True)), *self.tasks)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


# The faults. Each returns when it is over.


async def cut_in_frames(proxy: FaultProxy, traffic: Traffic, writers: list[Writer]) -> None:
    """Cut connections in the middle of what is sent, in both directions."""
    for count in (1, 7, 60, 300):
        for direction in ("to_client", "to_server"):
            for connection in proxy.open_connections:
                connection.cut_after(count, direction)
            await traffic.until_written(2, writers)


async def leave_half_open(proxy: FaultProxy, traffic: Traffic, writers: list[Writer]) -> None:
    """Forward nothing on the connections that are open now, for ever. New ones work."""
    for connection in proxy.open_connections:
        connection.stall()
    await traffic.until_written(2, writers)


async def stop_forwarding(proxy: FaultProxy, traffic: Traffic, writers: list[Writer]) -> None:
    """Forward nothing on any connection, until each writer has got an error."""
    proxy.stall()
    await traffic.until_failed(writers)
    proxy.resume()


async def forward_one_byte_a_second(proxy: FaultProxy, traffic: Traffic, writers: list[Writer]) -> None:
    proxy.throttle(1)
    await traffic.until_failed(writers)
    proxy.resume()


async def delay_by_50_ms(proxy: FaultProxy, traffic: Traffic, writers: list[Writer]) -> None:
    proxy.delay(0.05)
    await traffic.until_written(2, writers)
    proxy.resume()


FAULTS = [cut_in_frames, leave_half_open, stop_forwarding, forward_one_byte_a_second, delay_by_50_ms]
Fault = Callable[[FaultProxy, Traffic, list[Writer]], Awaitable[None]]


@pytest.mark.chaos
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("link", ["clients", "database"])
async def test_a_fault_of_a_link_loses_nothing(db: str, links: Links, link: str, fault: Fault, scale: int) -> None:
    """Writes with keys are stored once, followers get each event once, and work continues after the fault."""
    await links.server.log.append("a", [ev.MessageUser(text="first")])
    async with callslip.open(db) as observer:
        traffic = Traffic(links, observer)
        try:
            writers = traffic.remote if link == "clients" else traffic.writers
            proxy = links.clients if link == "clients" else links.database
            for _ in range(min(scale, 5)):
                await traffic.until_written(3, traffic.writers)
                await fault(proxy, traffic, writers)
                await traffic.until_written(3, traffic.writers)
            async with asyncio.timeout(TIMEOUT_S):
                await asyncio.gather(*(writer.finish() for writer in traffic.writers))
            stored = await read_events(observer, "a")
            followers = [follower.task for follower in traffic.followers]
            await until(lambda: all(len(f.seqs) >= len(stored) for f in traffic.followers), *followers)
        finally:
            await traffic.stop()
        assert [event.seq for event in stored] == list(range(1, len(stored) + 1))
        acknowledged = [event for writer in traffic.writers for event in writer.acknowledged]
        assert sorted(acknowledged, key=lambda event: event.seq) == stored[1:]
        for follower in traffic.followers:
            assert follower.seqs == list(range(1, len(stored) + 1))
        assert not await find_faults(observer)


OPERATIONS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "sessions": lambda ledger: ledger.sessions(),
    "calls": lambda ledger: ledger.calls(),
    "approvals": lambda ledger: ledger.approvals(),
    "find": lambda ledger: ledger.find_session("a"),
    "snapshot": lambda ledger: ledger.snapshot("a"),
    "export": lambda ledger: ledger.export("a", "openai"),
    "follow": lambda ledger: anext(ledger.log.follow("a")),
    "append": lambda ledger: ledger.log.append("a", [Draft(ev.MessageUser(text="x"), key="x")]),
    "submit": lambda ledger: ledger.commands.submit("run", key="submit", wait=0.1),
    "pending": lambda ledger: ledger.commands.pending(),
    "claim": lambda ledger: ledger.commands.claim(wait=0.1),
    "cancel": lambda ledger: ledger.cancel("exec_000000000000"),
    "approve": lambda ledger: ledger.approve("appr_000000000000"),
}
"""Operations that local and remote ledgers have in common."""


async def end_of(operation: Callable[[Any], Awaitable[Any]], ledger: Any, limit_s: float) -> BaseException | None:
    """Return the error of an operation, which must end in time."""
    started_at = time.monotonic()
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await operation(ledger)
    except CallslipError as error:
        return error
    finally:
        assert time.monotonic() - started_at < limit_s
    return None


@pytest.mark.parametrize("link", ["clients", "database"])
async def test_no_operation_waits_for_ever(links: Links, link: str) -> None:
    """While a link forwards nothing, every operation fails in time, and so does opening a ledger."""
    await links.server.log.append("a", [ev.MessageUser(text="1")])
    operations = dict(OPERATIONS)
    if link == "database":
        ledger, proxy, limit_s = links.server, links.database, LOCAL_LIMIT_S
        operations["blob"] = lambda ledger: ledger.log.store.put_blob(b"x", "text/plain")
        operations["prune"] = lambda ledger: ledger.prune(0)
        operations["delete"] = lambda ledger: ledger.delete("b")
        operations["open"] = lambda ledger: callslip.open(ledger.log.store.url, SETTINGS)
    else:
        ledger, proxy, limit_s = links.remote, links.clients, REMOTE_LIMIT_S
    proxy.stall()
    errors = await asyncio.gather(*(end_of(operation, ledger, limit_s) for operation in operations.values()))
    assert [name for name, error in zip(operations, errors, strict=True) if error is None] == []
    proxy.resume()
    if link == "database":
        assert {type(error) for error in errors} <= {LostConnectionError, StoreError}
    else:
        assert {type(error) for error in errors} == {ServerUnavailableError}
    assert await end_of(OPERATIONS["append"], ledger, limit_s) is None
    assert await end_of(OPERATIONS["sessions"], ledger, limit_s) is None


async def test_a_ledger_closes_while_its_database_does_not_answer(db: str, timeouts: None) -> None:
    """Writes that wait get an error, and no task or connection is left."""
    server = engines.server()
    with FaultProxy(server.port) as proxy:
        ledger = await callslip.open(server.url(db.rpartition("/")[2], port=proxy.port) + NO_TLS, SETTINGS)
        await ledger.log.append("a", [ev.MessageUser(text="1")])
        follower = Follower(ledger.log.follow("a"))
        await until(lambda: follower.seqs == [1], follower.task)
        proxy.stall()
        append = asyncio.create_task(end_of(OPERATIONS["append"], ledger, LOCAL_LIMIT_S))
        await asyncio.sleep(0)
        started_at = time.monotonic()
        async with asyncio.timeout(TIMEOUT_S):
            await ledger.close()
        assert time.monotonic() - started_at < LOCAL_LIMIT_S
        assert await append is not None
        with pytest.raises(CallslipError, match="closed"):
            await follower.task
        proxy.resume()


async def test_a_remote_ledger_waits_for_the_database_of_its_server(links: Links) -> None:
    """A server whose database is gone says so. Clients that follow, or write with a key, then try again."""
    await links.server.log.append("a", [ev.MessageUser(text="1")])
    follower = Follower(links.remote.log.follow("a"))
    try:
        await until(lambda: follower.seqs == [1], follower.task)
        links.remote.log.pool.timeout_s = TIMEOUT_S  # So that the server answers first.
        links.database.refuse()
        links.clients.cut()
        await until(lambda: any(c.forwarded["to_client"] for c in links.clients.connections[1:]), follower.task)
        with pytest.raises(ServerUnavailableError, match="postgresql://"):
            await links.remote.sessions()
        writing = asyncio.create_task(links.remote.log.append("a", [ev.MessageUser(text="2")]))
        links.database.accept()
        assert [event.seq for event in await asyncio.wait_for(writing, TIMEOUT_S)] == [2]
        await until(lambda: follower.seqs == [1, 2], follower.task)
    finally:
        follower.task.cancel()
        await asyncio.gather(follower.task, return_exceptions=True)


async def test_a_follower_notices_a_half_open_connection(links: Links) -> None:
    """A stream without events has heartbeats. When they stop, the client connects again, and misses nothing."""
    await links.server.log.append("a", [ev.MessageUser(text="1")])
    follower = Follower(links.remote.log.follow("a"))
    try:
        await until(lambda: follower.seqs == [1], follower.task)
        (connection,) = links.clients.open_connections
        # Without heartbeats the connection would count as lost by then.
        for _ in range(6):
            count = connection.forwarded["to_client"]
            await until(lambda count=count: connection.forwarded["to_client"] > count, follower.task)
        connection.stall()
        await links.server.log.append("a", [ev.MessageUser(text="2")])
        await until(lambda: follower.seqs == [1, 2], follower.task)
        assert len(links.clients.connections) == 2 and connection.is_open
        assert len(links.reports) == 2 and "did not respond in time" in links.reports[0]
    finally:
        follower.task.cancel()
        await asyncio.gather(follower.task, return_exceptions=True)
