"""Run the shell command in its input and print its output, for tests that kill this process.

shell_host.py [fork] < COMMAND

With `fork` a child of this process outlives it and holds every open file that it had.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from callslip.agent.shell import run_shell


async def main(command: str, fork: bool) -> None:
    async def progress(stream: str, text: str) -> None:
        if fork and not os.fork():
            time.sleep(30)
            os._exit(0)
        os.write(1, text.encode())

    await run_shell(command, timeout=None, progress=progress)


if __name__ == "__main__":
    asyncio.run(main(sys.stdin.read(), "fork" in sys.argv[1:]))
