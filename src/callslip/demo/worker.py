"""A worker process, `python -m callslip.demo.worker SESSION`, that the demo starts in order to kill it.

The variable CALLSLIP_DB names the ledger. The process runs one call, prints its id on stdout and reports progress line
by line. Every line repeats the title, as many producers do. It also ends when its parent does, which closes its stdin.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import callslip

TITLE = "Build the package"
STEPS = 400
STEP_S = 0.15


async def build(session: str) -> None:
    """Run one call that lasts longer than the demo lets the process live."""
    async with (
        callslip.open() as ledger,
        ledger.session(session).call("build", {"steps": STEPS}, title=TITLE, kind="execute") as call,
    ):
        await call.progress(f"worker process {os.getpid()}\n", title=TITLE)
        print(call.id, flush=True)
        for number in range(1, STEPS + 1):
            await asyncio.sleep(STEP_S)
            await call.progress(f"step {number} of {STEPS}\n", title=TITLE)
        call.complete(f"{STEPS} steps")


def _exit_with_parent() -> None:
    os.read(0, 1)  # Reading sys.stdin would hold its lock when the process exits by itself.
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    asyncio.run(build(sys.argv[1]))
