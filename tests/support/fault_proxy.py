"""A TCP proxy with faults, between a client and a server: it cuts, stalls, throttles or delays connections.

It runs in a thread of its own, so that synchronous and asynchronous tests control it in the same way. A change is in
effect when the call that makes it returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, Self, TypeVar

T = TypeVar("T")
Direction = Literal["to_server", "to_client"]
DIRECTIONS: tuple[Direction, Direction] = ("to_server", "to_client")
TIMEOUT_S = 30.0
PIECE_BYTES = 65536
MAX_PIECES = 64
"""How many pieces the proxy holds for a receiver before it stops reading."""


class Faults:
    """What the proxy does with the bytes of a connection."""

    def __init__(self) -> None:
        self.is_stalled = False
        self.delay_s = 0.0
        self.bytes_per_s = 0
        """The speed in each direction; 0 is unlimited."""
        self.bytes_left: dict[Direction, int | None] = {"to_server": None, "to_client": None}
        """How many more bytes are forwarded before the connection is cut; None is unlimited."""

    def stall(self) -> None:
        """Forward nothing, and close nothing when a side closes: the other side sees a half-open connection."""
        self.is_stalled = True

    def resume(self) -> None:
        """Forward again at full speed, first what has arrived meanwhile. A planned cut stays planned."""
        self.is_stalled, self.delay_s, self.bytes_per_s = False, 0.0, 0

    def throttle(self, bytes_per_s: int = 1) -> None:
        """Forward this many bytes per second in each direction."""
        self.bytes_per_s = bytes_per_s

    def delay(self, seconds: float = 0.05) -> None:
        """Forward each piece this much later, in each direction."""
        self.delay_s = seconds

    def cut_after(self, count: int, direction: Direction = "to_client") -> None:
        """Cut the connection after this many more bytes in one direction, for example in the middle of a frame."""
        self.bytes_left[direction] = count


class _Controls:
    """The methods of `Faults`, for a connection or for all of a proxy."""

    def _apply(self, change: Callable[[Faults], None]) -> None:
        raise NotImplementedError

    def stall(self) -> None:
        self._apply(lambda faults: faults.stall())

    def resume(self) -> None:
        self._apply(lambda faults: faults.resume())

    def throttle(self, bytes_per_s: int = 1) -> None:
        self._apply(lambda faults: faults.throttle(bytes_per_s))

    def delay(self, seconds: float = 0.05) -> None:
        self._apply(lambda faults: faults.delay(seconds))

    def cut_after(self, count: int, direction: Direction = "to_client") -> None:
        self._apply(lambda faults: faults.cut_after(count, direction))


class ProxiedConnection(_Controls):
    """A connection of a client to the proxy, and its connection to the server."""

    def __init__(self, proxy: FaultProxy, client: asyncio.StreamWriter) -> None:
        self.received: dict[Direction, int] = {"to_server": 0, "to_client": 0}
        """The number of bytes that have arrived here, which may be stalled, throttled or delayed."""
        self.forwarded: dict[Direction, int] = {"to_server": 0, "to_client": 0}
        """The number of bytes that were forwarded."""
        self.is_open = True
        self._proxy = proxy
        self._faults = copy.deepcopy(proxy.faults)
        self._changed = asyncio.Event()
        self._writers = [client]
        self._tasks: list[asyncio.Task[None]] = []

    def cut(self, *, is_reset: bool = True) -> None:
        """Close both sides now: with a reset, or as if the other side had closed."""
        self._proxy._call(lambda: self._close(is_reset=is_reset))

    def wait_until_received(self, count: int, direction: Direction = "to_server") -> None:
        """Wait until this many bytes have arrived here in all."""
        _wait(lambda: self.received[direction] >= count, f"fewer than {count} bytes arrived {direction}")

    def wait_until_forwarded(self, count: int, direction: Direction = "to_server") -> None:
        """Wait until this many bytes were forwarded in all."""
        _wait(lambda: self.forwarded[direction] >= count, f"fewer than {count} bytes were forwarded {direction}")

    def wait_until_closed(self) -> None:
        """Wait until one side has closed the connection and the other one was closed for it."""
        _wait(lambda: not self.is_open, "the connection is still open")

    def _apply(self, change: Callable[[Faults], None]) -> None:
        self._proxy._call(lambda: self._change(change))

    def _change(self, change: Callable[[Faults], None]) -> None:
        change(self._faults)
        self._changed.set()
        self._changed = asyncio.Event()
        self._cut_if_planned()

    async def _run(self, reader: asyncio.StreamReader) -> None:
        """Connect to the server and forward until a side closes."""
        try:
            server_reader, server = await asyncio.open_connection(self._proxy.host, self._proxy.target_port)
        except OSError:
            self._close(is_reset=True)
            return
        if not self.is_open:
            _close_writer(server, is_reset=True)
            return
        (client,) = self._writers
        self._writers.append(server)
        pumps = (self._pump(reader, server, "to_server"), self._pump(server_reader, client, "to_client"))
        self._tasks = [asyncio.create_task(pump) for pump in pumps]
        await asyncio.wait(self._tasks)
        self._close(is_reset=False)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_PIECES)
        forwarding = asyncio.create_task(self._forward(pieces, writer, direction))
        try:
            try:
                while data := await reader.read(PIECE_BYTES):
                    self.received[direction] += len(data)
                    self._proxy._count_piece(direction)
                    await pieces.put((time.monotonic(), data))
            except OSError:  # A reset arrives before bytes that are not forwarded yet.
                await self._until_due(time.monotonic())
                self._close(is_reset=True)
            await pieces.put((time.monotonic(), b""))
            await forwarding
        finally:
            forwarding.cancel()

    async def _forward(
        self, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                arrived_at, data = await pieces.get()
                if not data:  # One side has sent everything, and may still receive.
                    await self._until_due(arrived_at)
                    writer.write_eof()
                    return
                while data:
                    await self._until_due(arrived_at)
                    count = len(data) if not self._faults.bytes_per_s else 1
                    left = self._faults.bytes_left[direction]
                    count = count if left is None else min(count, left)
                    writer.write(data[:count])
                    data = data[count:]
                    if left is not None:
                        self._faults.bytes_left[direction] = left - count
                    self.forwarded[direction] += count
                    self._cut_if_planned()
                    await writer.drain()
                    if self._faults.bytes_per_s and data:
                        await self._sleep(1 / self._faults.bytes_per_s)

    async def _until_due(self, arrived_at: float) -> None:
        """Wait while the connection is stalled, and until the delay of a piece has passed."""
        while self._faults.is_stalled or time.monotonic() < arrived_at + self._faults.delay_s:
            wait_s = None if self._faults.is_stalled else arrived_at + self._faults.delay_s - time.monotonic()
            await self._sleep(wait_s)

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep, but not longer than until the faults change."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    def _cut_if_planned(self) -> None:
        """Cut after the last planned byte. A reset could overtake the bytes before it."""
        if 0 in self._faults.bytes_left.values():
            self._close(is_reset=False)

    def _close(self, *, is_reset: bool) -> None:
        if self.is_open:
            self.is_open = False
            for task in self._tasks:
                task.cancel()
            for writer in self._writers:
                _close_writer(writer, is_reset=is_reset)


class FaultProxy(_Controls):
    """Forwards a port of its own to a port of a server. Its controls change all connections, also later ones."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.host = host
        self.target_port = port
        self.port = 0
        """The port that clients connect to."""
        self.faults = Faults()
        self.connections: list[ProxiedConnection] = []
        """All connections so far, in their order."""
        self.pieces: dict[Direction, int] = {"to_server": 0, "to_client": 0}
        """How many pieces have arrived on all connections. Most requests and most answers are one piece."""
        self._stall_at: tuple[Direction, int] | None = None
        self._refuses = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> None:
        """Listen on a free port."""
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, self.host, 0), self._loop
        ).result(TIMEOUT_S)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Close all connections and stop."""
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    @property
    def open_connections(self) -> list[ProxiedConnection]:
        return [connection for connection in self.connections if connection.is_open]

    def cut(self, *, is_reset: bool = True) -> None:
        """Close all open connections now. New ones are accepted."""
        self._call(lambda: [connection._close(is_reset=is_reset) for connection in self.open_connections])

    def refuse(self) -> None:
        """Close all open connections, and each new one at once, as if the server were gone."""
        self._refuses = True
        self.cut()

    def accept(self) -> None:
        """Accept new connections again."""
        self._refuses = False

    def wait_for_connections(self, count: int) -> list[ProxiedConnection]:
        """Wait until there were this many connections, and return all."""
        _wait(lambda: len(self.connections) >= count, f"fewer than {count} connections")
        return self.connections

    def stall_at_piece(self, number: int, direction: Direction = "to_server") -> None:
        """Stall all connections when this piece arrives, counted from 1. It is not forwarded."""
        self._stall_at = direction, number

    def _count_piece(self, direction: Direction) -> None:
        self.pieces[direction] += 1
        if self._stall_at == (direction, self.pieces[direction]):
            self._change_all(lambda faults: faults.stall())

    def _apply(self, change: Callable[[Faults], None]) -> None:
        self._call(lambda: self._change_all(change))

    def _change_all(self, change: Callable[[Faults], None]) -> None:
        change(self.faults)
        for connection in self.open_connections:
            connection._change(change)

    def _call(self, function: Callable[[], T]) -> T:
        """Run a function in the thread of the proxy and return its result."""

        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(TIMEOUT_S)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            _close_writer(writer, is_reset=True)
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = ProxiedConnection(self, writer)
        self.connections.append(connection)
        try:
            await connection._run(reader)
        except asyncio.CancelledError:  # The proxy is closing.
            pass
        finally:
            self._tasks.discard(task)

    async def _shut_down(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self.connections:
            connection._close(is_reset=True)
            for writer in connection._writers:
                writer.transport.abort()  # A receiver may not have read its last bytes.
        for task in self._tasks:
            task.cancel()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=TIMEOUT_S)


def _close_writer(writer: asyncio.StreamWriter, *, is_reset: bool) -> None:
    if is_reset:
        connection = writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()


def _wait(condition: Callable[[], bool], problem: str) -> None:
    """Wait for a condition in the thread of the proxy. This blocks, so an async test calls it in a thread."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{problem} after {TIMEOUT_S:.0f} s")
        time.sleep(0.002)
