"""Submit or run commands until the input ends or the process is killed. Each reply is printed as one line.

traffic.py URL submit|run SEED
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys

import callslip
from callslip.api.commands import CommandQueue
from callslip.commands import Claim
from callslip.errors import ConflictError, QueueFullError
from callslip.settings import Settings

QUEUES = ("x", "y")
SETTINGS = Settings(reaper_interval=0.2, reaper_grace=0.1, synchronous="NORMAL")


def report(*fields: object) -> None:
    os.write(1, (json.dumps(fields) + "\n").encode())


class Traffic:
    def __init__(self, commands: CommandQueue, seed: str) -> None:
        self.commands = commands
        self.seed = seed
        self.rng = random.Random(seed)
        self.over = asyncio.Event()
        self.count = 0

    async def submit(self) -> None:
        """Submit commands, some twice, cancel some, and wait for each to end."""
        waiting: set[asyncio.Task[None]] = set()
        while not self.over.is_set():
            self.count += 1
            correlation_id = f"{self.seed}-{self.count}"
            options = {"queue": self.rng.choice(QUEUES), "timeout": self.rng.choice((0.1, 0.5, 1.5))}
            options |= {
                "idempotent": self.rng.random() < 0.6,
                "correlation_id": correlation_id,
                "params": {"n": self.count},
            }
            for _ in range(self.rng.choice((1, 1, 2))):
                try:
                    await self.commands.submit("work", **options)
                except QueueFullError:
                    break
                report("made", correlation_id)
                waiting.add(asyncio.create_task(self.follow(correlation_id)))
            await asyncio.sleep(self.rng.random() * 0.04)
        await asyncio.gather(*waiting)

    async def follow(self, correlation_id: str) -> None:
        if self.rng.random() < 0.1:
            await asyncio.sleep(self.rng.random() * 0.3)
            try:
                await self.commands.cancel(correlation_id)
            except ConflictError:
                pass
        ended = await self.commands.get(correlation_id, wait=30)
        assert ended.final, f"{correlation_id} has not ended"
        report("ended", correlation_id, ended.status, ended.result if ended.status == "complete" else None)

    async def run(self) -> None:
        """Run four workers: quick, slow with heartbeats, and some that stall and report late."""
        await asyncio.gather(*(self.work(f"{self.seed}.{number}") for number in range(4)))

    async def work(self, worker: str) -> None:
        while not self.over.is_set():
            claim = await self.commands.claim(self.rng.choice(QUEUES), worker=worker, wait=0.2, lease=0.2)
            if claim is not None:
                report("claimed", claim.call, claim.fence)
                await self.finish(claim)

    async def finish(self, claim: Claim) -> None:
        try:
            for _ in range(self.rng.choice((0, 0, 1, 4))):
                await asyncio.sleep(0.05)
                await self.commands.heartbeat(claim.call, claim.fence, lease=0.2, text=self.rng.choice(("", ".")))
        except ConflictError:
            pass  # It continues regardless, like a stalled worker.
        if self.rng.random() < 0.2:
            await asyncio.sleep(0.4)
        self.count += 1
        value = f"{self.seed}:{self.count}"
        fence = claim.fence if self.rng.random() < 0.9 else 0
        failing = self.rng.random() < 0.2
        for _ in range(self.rng.choice((1, 1, 2))):
            try:
                await (self.commands.fail if failing else self.commands.complete)(claim.call, value, fence=fence)
                report("failed" if failing else "done", claim.call, value)
            except ConflictError:
                report("refused", claim.call, value)


async def main(url: str, role: str, seed: str) -> None:
    async with await callslip.open(url, SETTINGS) as ledger:
        commands = CommandQueue(ledger.log)
        traffic = Traffic(commands, seed)
        report("ready", os.getpid())
        working = asyncio.create_task(traffic.submit() if role == "submit" else traffic.run())
        stopping = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        traffic.over.set()
        async with asyncio.timeout(60):
            await working
        await commands.close()
    report("over")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
