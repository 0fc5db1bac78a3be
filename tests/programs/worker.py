"""Run a worker. It prints one line per step, and `hold` and `block` run until a file exists.

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


def report(*words: object) -> None:
    print(*words, flush=True)


@worker.action()
async def add(a: int, b: int = 1) -> int:
    return a + b


@worker.action("hold")
async def hold(claim: Claim) -> str:
    """Run until a file exists."""
    report("began", claim.correlation_id, claim.attempt)
    try:
        while not os.path.exists(claim.params["until"]):
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        report("stopped", claim.correlation_id)
        raise
    return f"held by {os.getpid()}"


@worker.action("block")
def block(params: dict[str, str]) -> str:
    """Run until a file exists, in a thread, which cannot be stopped."""
    report("began", params["name"])
    while not os.path.exists(params["until"]):
        time.sleep(0.02)
    report("returned", params["name"])
    return f"blocked {os.getpid()}"


@worker.action("count")
async def count(to: int) -> AsyncGenerator[str]:
    for number in range(to):
        yield f"{number}\n"


if __name__ == "__main__":
    report("ready", os.getpid())
    worker.run()
    report("left")
