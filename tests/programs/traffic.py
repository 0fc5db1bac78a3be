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

CLIENTS = ("x", "y")
SETTINGS = Settings(reaper_interval=0.05, reaper_grace=0.1, synchronous="NORMAL")


def tell(*what: object) -> None:
    os.write(1, (json.dumps(what) + "\n").encode())


class Traffic:
    def __init__(self, commands: CommandQueue, seed: str) -> None:
        self.commands = commands
        self.seed = seed
        self.chance = random.Random(seed)
        self.over = asyncio.Event()
        self.count = 0

    async def submit(self) -> None:
        """Submit, sometimes twice, sometimes cancel; wait for each of them to end."""
        waiting: set[asyncio.Task[None]] = set()
        while not self.over.is_set():
            self.count += 1
            own = f"{self.seed}-{self.count}"
            how = {"queue": self.chance.choice(CLIENTS), "timeout": self.chance.choice((0.1, 0.5, 1.5))}
            how |= {"idempotent": self.chance.random() < 0.6, "correlation_id": own, "params": {"n": self.count}}
            for _ in range(self.chance.choice((1, 1, 2))):
                try:
                    await self.commands.submit("work", **how)
                except QueueFullError:
                    break
                tell("made", own)
                waiting.add(asyncio.create_task(self.follow(own)))
            await asyncio.sleep(self.chance.random() * 0.04)
        await asyncio.gather(*waiting)

    async def follow(self, own: str) -> None:
        if self.chance.random() < 0.1:
            await asyncio.sleep(self.chance.random() * 0.3)
            try:
                await self.commands.cancel(own)
            except ConflictError:
                pass
        ended = await self.commands.get(own, wait=30)
        assert ended.final, f"{own} has not ended"
        tell("ended", own, ended.status, ended.result if ended.status == "complete" else None)

    async def run(self) -> None:
        """Four workers: quick ones, slow ones that keep their lease, and some that stall and come back late."""
        await asyncio.gather(*(self.work(f"{self.seed}.{number}") for number in range(4)))

    async def work(self, worker: str) -> None:
        while not self.over.is_set():
            claim = await self.commands.claim(self.chance.choice(CLIENTS), worker=worker, wait=0.2, lease=0.2)
            if claim is not None:
                tell("claimed", claim.call, claim.fence)
                await self.finish(claim)

    async def finish(self, claim: Claim) -> None:
        try:
            for _ in range(self.chance.choice((0, 0, 1, 4))):
                await asyncio.sleep(0.05)
                await self.commands.heartbeat(claim.call, claim.fence, lease=0.2, text=self.chance.choice(("", ".")))
        except ConflictError:
            pass  # It continues regardless, like a stalled worker.
        if self.chance.random() < 0.2:
            await asyncio.sleep(0.4)
        self.count += 1
        value = f"{self.seed}:{self.count}"
        fence = claim.fence if self.chance.random() < 0.9 else 0
        failing = self.chance.random() < 0.2
        for _ in range(self.chance.choice((1, 1, 2))):
            try:
                await (self.commands.fail if failing else self.commands.complete)(claim.call, value, fence=fence)
                tell("failed" if failing else "done", claim.call, value)
            except ConflictError:
                tell("refused", claim.call, value)


async def main(url: str, role: str, seed: str) -> None:
    async with await callslip.open(url, SETTINGS) as ledger:
        commands = CommandQueue(ledger.log)
        traffic = Traffic(commands, seed)
        tell("ready", os.getpid())
        working = asyncio.create_task(traffic.submit() if role == "submit" else traffic.run())
        stopping = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        traffic.over.set()
        async with asyncio.timeout(60):
            await working
        await commands.close()
    tell("over")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
