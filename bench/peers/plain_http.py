"""The exchange of commands with nothing behind it: the same routes and requests, a dict, and nothing is stored.

What a server of this kind costs at the least. `python plain_http.py` prints its port, and serves until it is ended.
With a file's name after it, each step is one row that a thread commits to that file at FULL before anybody is told:
what one costs at the least that loses nothing. Nothing is decided, looked up or read again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import sys
import threading
from queue import SimpleQueue
from typing import Any

import apsw
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Body = dict[str, Any]

numbers = itertools.count(1)
results: dict[str, asyncio.Future[Body]] = {}
queue: asyncio.Queue[Body] = asyncio.Queue()
rows: SimpleQueue[tuple[bytes, asyncio.Future[None]]] = SimpleQueue()
PATH = "".join(sys.argv[1:])


def write() -> None:
    connection = apsw.Connection(PATH)
    for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "CREATE TABLE e (b BLOB)"):
        connection.execute(statement)
    while True:
        row, done = rows.get()
        connection.execute("INSERT INTO e VALUES (?)", (row,))
        done.get_loop().call_soon_threadsafe(done.set_result, None)


async def kept(row: bytes) -> None:
    if PATH:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        rows.put((row, done))
        await done


async def submit(request: Request) -> Response:
    command = await request.json()
    await kept(await request.body())
    name = f"exec_{next(numbers):012x}"
    results[name] = asyncio.get_running_loop().create_future()
    queue.put_nowait({"call": name, "correlation_id": name, "fence": 1, **command})
    if "wait" in request.query_params:
        return await _told(name, float(request.query_params["wait"]))
    return JSONResponse({"status": "queued", "correlation_id": name}, 202)


async def ask(request: Request) -> Response:
    return await _told(request.path_params["name"], float(request.query_params.get("wait", 0)))


async def _told(name: str, wait: float) -> Response:
    result = results[name]
    if wait and not result.done():
        await asyncio.wait([result], timeout=wait)
    if not result.done():
        return JSONResponse({"correlation_id": name, "status": "pending", "final": False}, 202)
    body = {"correlation_id": name, "status": "complete", "result": result.result(), "final": True}
    return JSONResponse(body)


async def claim(request: Request) -> Response:
    asked = await request.json()
    try:
        async with asyncio.timeout(asked["wait"]):
            command = await queue.get()
    except TimeoutError:
        return Response(status_code=204)
    await kept(await request.body())
    return JSONResponse(command)


async def complete(request: Request) -> Response:
    name = request.path_params["name"]
    result = (await request.json())["result"]
    await kept(await request.body())
    results[name].set_result(result)
    return await _told(name, 0)


ROUTES = [
    Route("/v1/calls", submit, methods=["POST"]),
    Route("/v1/calls/claim", claim, methods=["POST"]),
    Route("/v1/calls/{name}/result", complete, methods=["POST"]),
    Route("/v1/calls/{name}", ask),
]


def main() -> None:
    if PATH:
        threading.Thread(target=write, daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}", "token": "none"}), flush=True)
        uvicorn.Server(uvicorn.Config(Starlette(routes=ROUTES), log_level="critical")).run([listening])


if __name__ == "__main__":
    main()
