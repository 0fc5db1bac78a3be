"""Submit a command for each line of the input, and print its correlation id.

submit.py URL QUEUE
"""

from __future__ import annotations

import asyncio
import sys

import callslip
from callslip.api.commands import CommandQueue


async def main(url: str, queue: str) -> None:
    async with await callslip.open(url) as ledger:
        commands = CommandQueue(ledger.log)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = await commands.submit(line.strip(), queue=queue)
            print(command.correlation_id, flush=True)
        await commands.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
