"""A worker in a process of its own. It says what it does, one line each, and holds what it runs until it is let go.

worker.py SERVER LEASE CONCURRENCY [TOKEN]
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator

import callslip
from callslip.commands import Claim

worker = callslip.Worker(
    sys.argv[1] or None, lease=float(sys.argv[2]), concurrency=int(sys.argv[3]), token="".join(sys.argv[4:])
)


def say(*words: object) -> None:
    print(*words, flush=True)


@worker.action()
async def add(a: int, b: int = 1) -> int:
    return a + b


@worker.action("hold")
async def hold(claim: Claim) -> str:
    """Runs until a file is there."""
    say("began", claim.correlation_id, claim.attempt)
    try:
        while not os.path.exists(claim.params["until"]):
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        say("stopped", claim.correlation_id)
        raise
    return f"held by {os.getpid()}"


@worker.action("block")
def block(params: dict[str, str]) -> str:
    """The same in a thread, which nobody can stop."""
    say("began", params["name"])
    while not os.path.exists(params["until"]):
        time.sleep(0.02)
    say("returned", params["name"])
    return f"blocked {os.getpid()}"


@worker.action("count")
async def count(to: int) -> AsyncGenerator[str]:
    for number in range(to):
        yield f"{number}\n"


if __name__ == "__main__":
    say("ready", os.getpid())
    worker.run()
    say("left")
