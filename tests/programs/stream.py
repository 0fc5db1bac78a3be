"""Append numbered messages to one session as fast as possible, or in batches.

stream.py URL SESSION COUNT [BATCH]
"""

from __future__ import annotations

import asyncio
import sys

import callslip
from callslip.model import events as ev


async def main(url: str, session: str, count: int, batch: int) -> None:
    async with await callslip.open(url) as ledger:
        print("ready", flush=True)
        sys.stdin.readline()
        for start in range(0, count, batch):
            texts = [f"theirs {number}" for number in range(start, min(start + batch, count))]
            await ledger.log.append(session, [ev.MessageUser(text=text) for text in texts])
    print("done", flush=True)


if __name__ == "__main__":
    url, session, count, *batch = sys.argv[1:]
    asyncio.run(main(url, session, int(count), int(batch[0]) if batch else 1))
