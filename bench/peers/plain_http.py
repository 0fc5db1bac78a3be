"""The exchange of commands with nothing behind it: the same routes and requests, a dict, and nothing is stored.

What a server of this kind costs at the least. `python plain_http.py` prints its port, and serves until it is ended.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Body = dict[str, Any]

numbers = itertools.count(1)
results: dict[str, asyncio.Future[Body]] = {}
queue: asyncio.Queue[Body] = asyncio.Queue()


async def submit(request: Request) -> Response:
    command = await request.json()
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
            return JSONResponse(await queue.get())
    except TimeoutError:
        return Response(status_code=204)


async def complete(request: Request) -> Response:
    name = request.path_params["name"]
    results[name].set_result((await request.json())["result"])
    return await _told(name, 0)


ROUTES = [
    Route("/v1/calls", submit, methods=["POST"]),
    Route("/v1/calls/claim", claim, methods=["POST"]),
    Route("/v1/calls/{name}/result", complete, methods=["POST"]),
    Route("/v1/calls/{name}", ask),
]


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}", "token": "none"}), flush=True)
        uvicorn.Server(uvicorn.Config(Starlette(routes=ROUTES), log_level="critical")).run([listening])


if __name__ == "__main__":
    main()
