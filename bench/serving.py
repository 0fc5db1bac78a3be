"""The server: what a page of a long session costs, and what one more reader of a live session costs.

The peer of the fan-out is the usual way to write it: a queue for each reader, and each event encoded for each of them.
The limit is a server that does nothing but write bytes that are there already. Each runs in a process of its own, whose
processor time is what is counted; the readers are another process that discards what it reads.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from measure import say

import callslip
from callslip.formats import registry
from callslip.ledger import queries
from callslip.model.events import Alias, CallCompleted, CallStarted, MessageDelta, MessageUser, TurnEnded, TurnStarted
from callslip.settings import Settings

READERS, EVENTS, BATCH = 200, 4000, 20
TEXT = "some words, as a model says them "

# Pages


async def _session(url: str, turns: int) -> None:
    async with await callslip.open(url, Settings(synchronous="NORMAL")) as ledger:
        for number in range(turns):
            one = (Alias("b", str(number)),)
            deltas = [MessageDelta(text=TEXT, chunks="delta") for _ in range(6)]
            call = [CallStarted(aliases=one, tool_name="look"), CallCompleted(aliases=one, output="found")]
            await ledger.log.append("s", [TurnStarted(), MessageUser(text="Go."), *call, *deltas, TurnEnded()])
        await ledger.log.project("s")


async def _page(url: str, limit: int) -> tuple[float, float]:
    """Seconds for a page just after opening the ledger, and for the same once more."""
    async with await callslip.open(url) as ledger:
        encode = registry.encoder("ui-v6")
        times: list[float] = []
        for _ in range(20):
            start = time.perf_counter()
            await queries.messages(ledger.log.store, "s", encode, limit=limit)
            times.append(time.perf_counter() - start)
        return times[0], min(times[1:])


async def _bench_pages() -> None:
    with tempfile.TemporaryDirectory() as folder:
        figures: list[tuple[float, float]] = []
        for turns in (100, 9_100):
            url = f"sqlite:///{Path(folder) / f'{turns}.db'}"
            await _session(url, turns)
            figures.append(await _page(url, 50))
        (cold, warm), (long_cold, long_warm) = figures
        what = "a page of 50 messages, session of 100k events to one of 1k"
        say(what, f"{long_warm / warm:.2f}x  ({long_warm * 1e3:.1f} / {warm * 1e3:.1f} ms)", "about 1x")
        say("the same just after a restart", f"{long_cold / cold:.2f}x  ({long_cold * 1e3:.1f} ms)", "about 1x")


# Fan-out


async def _callslip(serve: Callable[[Any], Awaitable[None]]) -> None:
    from callslip import http
    from callslip.http.access import AllowAll
    from callslip.http.app import build

    with tempfile.TemporaryDirectory() as folder:
        async with await callslip.open(f"sqlite:///{folder}/b.db", Settings(synchronous="NORMAL")) as ledger:
            await ledger.log.append("s", [MessageUser(text="Go.")])
            edge = http.Server(ledger, AllowAll(), http.Limits(readers=10_000, backlog=2 * EVENTS))

            async def write() -> None:
                while edge.hub.readers < READERS:
                    await asyncio.sleep(0.01)
                for _ in range(EVENTS // BATCH):
                    await ledger.log.append("s", [MessageDelta(text=TEXT, chunks="delta") for _ in range(BATCH)])
                    await asyncio.sleep(0)

            writing = asyncio.ensure_future(write())
            await serve(build(edge, http.ROUTES))
            await writing


async def _queues(serve: Callable[[Any], Awaitable[None]]) -> None:
    """The peer."""
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    queues: list[asyncio.Queue[dict[str, Any]]] = []

    async def stream(request: Any) -> StreamingResponse:
        queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        queues.append(queue)

        async def frames() -> Any:
            while True:
                event = await queue.get()
                yield f"id: {event['seq']}\nevent: event\ndata: {json.dumps(event)}\n\n"

        return StreamingResponse(frames(), media_type="text/event-stream")

    async def write() -> None:
        while len(queues) < READERS:
            await asyncio.sleep(0.01)
        for start in range(0, EVENTS, BATCH):
            for number in range(start, start + BATCH):
                for queue in queues:
                    queue.put_nowait({"type": "message.delta", "text": TEXT, "chunks": "delta", "seq": number})
            await asyncio.sleep(0.001)

    writing = asyncio.ensure_future(write())
    await serve(Starlette(routes=[Route("/v1/sessions/s/stream", stream)]))
    await writing


async def _bytes(serve: Callable[[Any], Awaitable[None]]) -> None:
    """The limit: every batch is there already, and is written in one piece."""
    body = {"type": "message.delta", "text": TEXT, "chunks": "delta", "seq": 1000, "at": 1_700_000_000_000}
    piece = f"id: 1000\nevent: event\ndata: {json.dumps(body)}\n\n".encode() * BATCH
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    there = asyncio.Condition()
    readers = batches = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal readers
        await send(start)
        readers += 1
        for number in range(EVENTS // BATCH):
            async with there:
                await there.wait_for(lambda number=number: batches > number)
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def write() -> None:
        nonlocal batches
        while readers < READERS:
            await asyncio.sleep(0.01)
        for _ in range(EVENTS // BATCH):
            async with there:
                batches += 1
                there.notify_all()
            await asyncio.sleep(0.001)

    writing = asyncio.ensure_future(write())
    await serve(app)
    await writing


def _serving(variant: Any, listening: socket.socket, results: Any) -> None:
    """One server in a process of its own, until its readers have gone. Tells its processor time."""
    import uvicorn
    import uvloop

    async def serve(app: Any) -> None:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
        running = asyncio.ensure_future(server.serve(sockets=[listening]))
        await asyncio.to_thread(results.recv)
        results.send(time.process_time() - begun)
        server.should_exit = server.force_exit = True
        await running

    async def main() -> None:
        await variant(serve)

    begun = time.process_time()
    uvloop.run(main())


async def _reads(port: int) -> None:
    """One reader: until it has got the last event."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(b"GET /v1/sessions/s/stream?format=events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    events = 0
    while events < EVENTS:
        piece = await reader.read(2**20)
        if not piece:
            break
        events += piece.count(b"data: ")
    writer.close()


async def _all_read(port: int) -> None:
    await asyncio.gather(*(_reads(port) for _ in range(READERS)))


def _cpu(variant: Any) -> tuple[float, float]:
    """Microseconds of processor a delivery, and deliveries a second."""
    with socket.create_server(("127.0.0.1", 0), backlog=READERS) as listening:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("fork").Process(target=_serving, args=(variant, listening, theirs))
        process.start()
        start = time.perf_counter()
        asyncio.run(_all_read(listening.getsockname()[1]))
        took = time.perf_counter() - start
        ours.send("done")
        spent = ours.recv()
        process.join(10)
        process.kill()
    return spent / (READERS * EVENTS) * 1e6, READERS * EVENTS / took


def bench_serve() -> None:
    print("pages of a long session")
    asyncio.run(_bench_pages())
    print(f"server: {READERS} readers of one session, {EVENTS} events (uvicorn, {os.cpu_count()} processors)")
    limit, most = _cpu(_bytes)
    ours, rate = _cpu(_callslip)
    peer, slow = _cpu(_queues)
    say("processor a delivery, to writing ready bytes", f"{ours / limit:.2f}x  ({ours:.2f} / {limit:.2f} us)")
    say("a queue for each reader, to ours", f"{peer / ours:.1f}x  ({peer:.1f} us)")
    say("deliveries a second", f"{rate / 1e3:.0f}k  (limit {most / 1e3:.0f}k, peer {slow / 1e3:.0f}k)")
