"""A worker in a process of its own, `python -m callslip.demo.worker LEDGER SESSION`: there to be killed.

It takes up a call, says its id on stdout, and copies what it pretends to copy, a line at a time; each of them names the
title again, as many producers do. It also ends when whoever started it does: then its stdin is closed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading

from callslip.api.ledger import open_ledger

TITLE = "copy the archive"
LINES = 400
STEP = 0.15


async def work(url: str, name: str) -> None:
    """One call, with more to do than there will be time for."""
    async with await open_ledger(url) as ledger:
        given = {"from": "archive", "shelves": LINES}
        async with ledger.session(name).call("copy", given, title=TITLE, kind="execute") as call:
            print(call.id, flush=True)
            await call.progress(f"process {os.getpid()} at work\n", title=TITLE)
            for number in range(1, LINES + 1):
                await asyncio.sleep(STEP)
                await call.progress(f"shelf {number} of {LINES}\n", title=TITLE)
            call.complete(f"{LINES} shelves")


def _leave_with_parent() -> None:
    os.read(0, 1)  # Not by sys.stdin: its lock would be held when we end by ourselves.
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    asyncio.run(work(*sys.argv[1:3]))
