"""The proxy with faults that other tests put between a client and a server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from tests.support.fault_proxy import FaultProxy

pytestmark = pytest.mark.anyio
TIMEOUT_S = 30.0


class Peer:
    """A client of the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self, count: int) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.reader.readexactly(count)

    async def receive_all(self) -> bytes:
        """Return all bytes up to the end of the connection."""
        async with asyncio.timeout(TIMEOUT_S):
            return await self.reader.read()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    """A proxy in front of a server that sends back what it receives."""
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        with FaultProxy(server.sockets[0].getsockname()[1]) as proxy:
            yield proxy
        server.close()


@contextlib.asynccontextmanager
async def connecting(proxy: FaultProxy) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()


async def test_bytes_pass_unchanged_in_both_directions(proxy: FaultProxy) -> None:
    """Also many of them, and the end of the connection after them."""
    data = bytes(range(256)) * 4000
    async with connecting(proxy) as peer:
        peer.send(data)
        assert await peer.receive(len(data)) == data
        peer.writer.write_eof()
        assert await peer.receive_all() == b""
    (connection,) = proxy.connections
    await asyncio.to_thread(connection.wait_until_closed)
    assert connection.forwarded == {"to_server": len(data), "to_client": len(data)}


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
async def test_a_connection_is_cut_in_the_middle_of_a_frame(proxy: FaultProxy, direction: str) -> None:
    """Exactly the bytes before the cut arrive, and both sides see the end."""
    async with connecting(proxy) as peer:
        peer.send(b"before")
        assert await peer.receive(6) == b"before"
        (connection,) = proxy.connections
        connection.cut_after(3, direction)  # type: ignore[arg-type]
        peer.send(b"a frame")
        received = await peer.receive_all()
        assert received == (b"a f" if direction == "to_client" else b"")
        assert connection.forwarded[direction] == 9  # type: ignore[index]
        await asyncio.to_thread(connection.wait_until_closed)


async def test_a_cut_of_all_connections_resets_them_and_allows_new_ones(proxy: FaultProxy) -> None:
    """A client gets an error at once instead of silence."""
    async with connecting(proxy) as first, connecting(proxy) as second:
        for peer in (first, second):
            peer.send(b"x")
            await peer.receive(1)
        proxy.cut()
        for peer in (first, second):
            with pytest.raises(ConnectionResetError):
                await peer.receive_all()
    async with connecting(proxy) as third:
        third.send(b"x")
        assert await third.receive(1) == b"x"


async def test_a_stalled_connection_is_half_open(proxy: FaultProxy) -> None:
    """It is accepted, forwards nothing and is not closed when the server closes; later everything arrives."""
    proxy.stall()
    async with connecting(proxy) as peer:
        peer.send(b"hello")
        peer.writer.write_eof()
        (connection,) = await asyncio.to_thread(proxy.wait_for_connections, 1)
        await asyncio.to_thread(connection.wait_until_received, 5)
        proxy.stall()  # It returns after a round of the proxy, which would have forwarded the bytes.
        assert connection.is_open and connection.forwarded["to_server"] == 0
        proxy.resume()
        assert await peer.receive_all() == b"hello"


async def test_one_connection_can_be_stalled_alone(proxy: FaultProxy) -> None:
    """The others, and new ones, are not affected."""
    async with connecting(proxy) as first, connecting(proxy) as second:
        for peer in (first, second):
            peer.send(b"x")
            await peer.receive(1)
        proxy.connections[0].stall()
        first.send(b"stalled")
        second.send(b"y")
        assert await second.receive(1) == b"y"
        await asyncio.to_thread(proxy.connections[0].wait_until_received, 8)
        assert proxy.connections[0].forwarded["to_server"] == 1
        proxy.connections[0].resume()
        assert await first.receive(7) == b"stalled"


async def test_a_throttled_connection_forwards_byte_by_byte(proxy: FaultProxy) -> None:
    """At one byte per second only the first one has arrived, until the throttle ends."""
    async with connecting(proxy) as peer:
        proxy.throttle(1)
        peer.send(b"slow")
        await asyncio.to_thread(proxy.wait_for_connections, 1)
        (connection,) = proxy.connections
        await asyncio.to_thread(connection.wait_until_forwarded, 1, "to_client")
        assert await peer.receive(1) == b"s" and connection.forwarded["to_client"] < 4
        proxy.resume()
        assert await peer.receive(3) == b"low"


async def test_latency_is_added_in_each_direction(proxy: FaultProxy) -> None:
    """A round trip takes at least twice as long, and the order stays."""
    async with connecting(proxy) as peer:
        peer.send(b"x")
        await peer.receive(1)
        proxy.delay(0.05)
        started_at = time.monotonic()
        for number in range(20):
            peer.send(b"%d" % (number % 10))
            await asyncio.sleep(0)
        assert await peer.receive(20) == b"0123456789" * 2
        assert time.monotonic() - started_at >= 0.1


async def test_refused_connections_are_closed_at_once(proxy: FaultProxy) -> None:
    """As if there were no server, until the proxy accepts again."""
    async with connecting(proxy) as peer:
        peer.send(b"x")
        await peer.receive(1)
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            await peer.receive_all()
    with pytest.raises((ConnectionResetError, BrokenPipeError, asyncio.IncompleteReadError)):
        async with connecting(proxy) as peer:
            peer.send(b"x")
            await peer.receive(1)
    proxy.accept()
    async with connecting(proxy) as peer:
        peer.send(b"x")
        assert await peer.receive(1) == b"x"


async def test_a_proxy_of_a_missing_server_closes_its_connections() -> None:
    """The client gets an error, not silence."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    # The reset may arrive before the client has connected.
    with FaultProxy(port) as proxy, pytest.raises(ConnectionResetError):
        async with connecting(proxy) as peer:
            await peer.receive_all()
