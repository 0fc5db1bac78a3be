"""Write to a ledger until the input ends, and print each operation as one line. Failures are no reason to stop.

write_until_killed.py URL NAME
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import ConflictError, StoreError
from callslip.model import events as ev
from callslip.model.events import Draft
from callslip.settings import Settings
from callslip.stacks import stacks_on_signal

SETTINGS = Settings(reaper_interval=0.2, statement_timeout=3.0, database_timeout=10.0, owner_lease=5.0)
WRITERS = 3
PAUSE_S = 0.005


def report(kind: str, **fields: Any) -> None:
    os.write(1, (json.dumps({"kind": kind, **fields}) + "\n").encode())


class Writer:
    def __init__(self, ledger: LocalLedger, name: str) -> None:
        self.ledger = ledger
        self.name = name
        self.over = asyncio.Event()
        self.numbers = count(1)

    async def write_messages(self, session: str) -> None:
        """Write with a key and without one, single events and several together."""
        while not self.over.is_set():
            number = next(self.numbers)
            texts = [f"{self.name}-{number}.{part}" for part in range(number % 3 + 1)]
            has_key = number % 2 == 0
            drafts = [Draft(ev.MessageUser(text=text), key=text if has_key else "") for text in texts]
            await self.run(texts, session, has_key, lambda drafts=drafts: self.ledger.log.append(session, drafts))
            await asyncio.sleep(PAUSE_S)

    async def write_calls(self, session: str) -> None:
        """Run calls with output."""
        while not self.over.is_set():
            text = f"{self.name}-{next(self.numbers)}"
            call = ""
            try:
                async with self.ledger.session(session).call("work") as running:
                    call = running.id
                    await self.run(
                        [text], session, False, lambda r=running, t=text: self.append_progress(session, r.id, t)
                    )
                    running.complete(text + " result")
            except (StoreError, ConflictError):
                continue  # The process may still end it, or its lease does.
            report("end", id=call, session=session, state="completed")
            await asyncio.sleep(PAUSE_S)

    async def append_progress(self, session: str, call: str, text: str) -> list[Any]:
        return await self.ledger.log.append(session, [ev.CallProgress(call=call, text=text)])

    async def run(
        self, texts: list[str], session: str, has_key: bool, write: Callable[[], Awaitable[list[Any]]]
    ) -> None:
        """Write once, or with a key until it is acknowledged."""
        started = time.monotonic()
        seqs = [0] * len(texts)
        outcome = "acknowledged"
        while True:
            try:
                seqs = [event.seq for event in await write()]
            except StoreError as error:
                report("error", text=str(error))
                if has_key:
                    await asyncio.sleep(0.1)
                    continue
                outcome = "unknown"
            break
        ended = time.monotonic()
        for text, seq in zip(texts, seqs, strict=True):
            fields = {"session": session, "seq": seq, "key": has_key, "started": started, "ended": ended}
            report("event", id=text, outcome=outcome, **fields)

    async def follow(self, session: str) -> None:
        """Print the seqs that a follower receives. After an outage it continues with its cursor."""
        after = 0
        while True:
            try:
                async for event in self.ledger.log.follow(session, after):
                    after = event.seq
                    report("read", reader=f"{self.name} {session}", session=session, seq=after)
            except StoreError as error:
                report("error", text=str(error))
                await asyncio.sleep(0.1)


async def open_when_possible(url: str) -> LocalLedger:
    """Open the ledger. The server may be killed at this moment, too."""
    while True:
        try:
            return await callslip.open(url, SETTINGS)
        except StoreError:
            await asyncio.sleep(0.1)


async def main(url: str, name: str) -> None:
    with stacks_on_signal(asyncio.get_running_loop()):
        async with await open_when_possible(url) as ledger:
            writer = Writer(ledger, name)
            report("ready")
            followers = [asyncio.create_task(writer.follow("shared"))]
            works = [writer.write_messages("shared") for _ in range(WRITERS)]
            works += [writer.write_messages(f"own-{name}"), writer.write_calls("calls"), writer.write_calls("calls")]
            working = [asyncio.create_task(work) for work in works]
            await asyncio.to_thread(sys.stdin.read)
            writer.over.set()
            await asyncio.gather(*working)
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
    report("over")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
