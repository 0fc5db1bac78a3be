"""A model endpoint for tests: an HTTP server with OpenAI's streaming format and prepared answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Chunk = dict[str, Any]


def chunk(delta: dict[str, Any], finish: str | None = None, number: int = 0) -> Chunk:
    """Return a chunk as the API sends it."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    envelope = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    return {**envelope, "choices": [choice]}


def text_answer(text: str, number: int = 0) -> list[Chunk]:
    """Return an answer with text, three characters per chunk."""
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    return [
        chunk({"role": "assistant", "content": ""}, number=number),
        *(chunk({"content": piece}, number=number) for piece in pieces),
        chunk({}, "stop", number),
    ]


def tool_call_answer(*proposed: tuple[str, str, Any], text: str = "", number: int = 0) -> list[Chunk]:
    """Return an answer that calls tools, (id, name, arguments); chunks of their arguments alternate."""
    parts = [arguments if isinstance(arguments, str) else json.dumps(arguments) for _, _, arguments in proposed]
    chunks = [chunk({"role": "assistant", "content": text or None}, number=number)]
    for index, (call_id, name, _) in enumerate(proposed):
        function = {"name": name, "arguments": ""}
        chunks.append(_call_chunk({"index": index, "id": call_id, "type": "function", "function": function}, number))
    for at in range(0, max(map(len, parts)), 5):
        for index, part in enumerate(parts):
            if part[at : at + 5]:
                chunks.append(_call_chunk({"index": index, "function": {"arguments": part[at : at + 5]}}, number))
    return [*chunks, chunk({}, "tool_calls", number)]


def _call_chunk(call: dict[str, Any], number: int) -> Chunk:
    return chunk({"tool_calls": [call]}, number=number)


class Server:
    """Answers each request with the next answer; `requests` has the bodies of the requests.

    An answer is a list of chunks, an exception for an error response, or None to hang after the first words.
    """

    def __init__(self, answers: list[Any]) -> None:
        self.requests: list[Any] = []
        self.url = ""
        self._answers = iter(answers)

    async def _complete(self, request: Request) -> Response:
        self.requests.append(await request.json())
        answer = next(self._answers, text_answer("I have nothing more to say."))
        if isinstance(answer, Exception):
            return JSONResponse({"error": {"message": str(answer), "type": "invalid_request_error"}}, 400)
        return StreamingResponse(self._stream(answer), media_type="text/event-stream")

    async def _stream(self, answer: list[Chunk] | None) -> AsyncIterator[bytes]:
        for item in text_answer("Let me think")[:3] if answer is None else answer:
            yield b"data: " + json.dumps(item).encode() + b"\n\n"
            await asyncio.sleep(0)
        if answer is None:
            await asyncio.sleep(3600)
        yield b"data: [DONE]\n\n"

    @contextlib.contextmanager
    def running(self) -> Iterator[Server]:
        app = Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            threading.Event().wait(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        try:
            yield self
        finally:
            server.should_exit = server.force_exit = True
            thread.join(10)
