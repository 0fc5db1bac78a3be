"""Run a shell command and print its result with the peak memory (MB) of this process and its supervisor.

shell_memory.py COMMAND CAP
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from pathlib import Path

from callslip.agent.shell import run_shell


async def main(command: str, cap: int) -> dict[str, float]:
    await run_shell("true")
    before = peak()
    count = 0

    async def progress(stream: str, text: str) -> None:
        nonlocal count
        count += 1

    result = await run_shell(command, cap=cap, timeout=300, progress=progress)
    assert result.exit_status == 0, result.problem
    return {
        "size": result.stdout_size,
        "cut": result.stdout_cut,
        "seconds": result.duration_ms / 1000,
        "progress": count,
        "grown": peak() - before,
        "supervisor": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10,
    }


def peak() -> float:
    """Return the peak memory of this process; `getrusage` includes the process that started it."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 2**10


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2])))))
