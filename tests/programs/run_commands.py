"""Run the commands of a queue until the process is killed. Some fail, and some take longer than their lease.

run_commands.py LEDGER QUEUE SEED [TOKEN]
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncGenerator

import callslip
from callslip.errors import CallslipError
from callslip.stacks import stacks_on_signal

LEASE_S = 2.0


def make_worker(ledger: str, queue: str, seed: str, token: str) -> callslip.Worker:
    """Return a worker with its functions."""
    worker = callslip.Worker(ledger, queue=queue, token=token, lease=LEASE_S, concurrency=4)
    rng = random.Random(seed)

    @worker.action("work")
    async def work(text: str) -> AsyncGenerator[str]:  # pyright: ignore[reportUnusedFunction]
        yield f"{text} began\n"
        await asyncio.sleep(rng.random() * 0.3)
        if rng.random() < 0.2:
            raise ValueError(f"{text} failed")
        yield f"{text} done"

    return worker


async def main(ledger: str, queue: str, seed: str, token: str = "") -> None:
    with stacks_on_signal(asyncio.get_running_loop()):
        print("ready", flush=True)
        while True:
            try:
                await make_worker(ledger, queue, seed, token).serve()
            except CallslipError as error:  # The database or the server may be down while it opens the ledger.
                print(f"{time.monotonic():.1f} {error}", file=sys.stderr, flush=True)
                await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
