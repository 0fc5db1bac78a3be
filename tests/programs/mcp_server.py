"""Run a small MCP server that uses the protocol's own library.

    quick     answers at once
    slow      reports progress, then answers
    failing   fails
    hang      reports its process id as progress, and never answers
    late      never answers, even if it is cancelled
    release   writes an answer to the request with an id, even if it was cancelled
    ask       asks the client something first

The library does not answer cancelled requests, so `release` writes to the client directly.
"""

from __future__ import annotations

import json
import os
from typing import Annotated

import anyio
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.types import ToolAnnotations
from pydantic import BaseModel

CLIENT_FD = os.dup(1)  # While serving, the library redirects file descriptor 1.

app = MCPServer("small server", log_level="CRITICAL")


class Answer(BaseModel):
    name: str


@app.tool(title="Be quick")
async def quick(name: str) -> str:
    return f"hello {name}"


@app.tool(annotations=ToolAnnotations(title="Take your time"))
async def slow(steps: int, ctx: Context) -> str:
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, f"step {step + 1}")
    return "done"


@app.tool()
async def failing() -> str:
    raise ValueError("no such thing")


@app.tool()
async def hang(ctx: Context) -> str:
    await ctx.report_progress(0, message=str(os.getpid()))
    await anyio.sleep_forever()
    return "never"


@app.tool()
async def late() -> str:
    await anyio.sleep_forever()
    return "never"


@app.tool()
async def release(request: int) -> str:
    answer = {"jsonrpc": "2.0", "id": request, "result": {"content": [{"type": "text", "text": "too late"}]}}
    os.write(CLIENT_FD, json.dumps(answer).encode() + b"\n")
    return "released"


def question() -> Elicit[Answer]:
    return Elicit("What is your name?", Answer)


@app.tool()
async def ask(answer: Annotated[Answer, Resolve(question)]) -> str:
    """Ask within the call, or from protocol version 2026-07-28 on by a result after which the client calls again."""
    return f"hello {answer.name}"


if __name__ == "__main__":
    app.run()
