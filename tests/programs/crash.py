"""Write to a ledger until the process is killed, and print each acknowledged event as one line.

crash.py URL NAME
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import callslip
from callslip.api.ledger import LocalLedger
from callslip.model import events as ev


def report(*fields: object) -> None:
    os.write(1, (json.dumps(fields) + "\n").encode())


async def main(url: str, name: str) -> None:
    async with await callslip.open(url) as ledger:
        report("ready", os.getpid())
        await asyncio.gather(
            write_messages(ledger, "shared", name),
            write_chunks(ledger, f"text-{name}"),
            run_quick_calls(ledger, f"calls-{name}"),
            *(run_endless_call(ledger, f"calls-{name}") for _ in range(3)),
        )


async def write_messages(ledger: LocalLedger, session: str, name: str) -> None:
    number = 0
    while True:
        number += 1
        drafts = [ev.MessageUser(text=f"{name} {number}.{part}") for part in range(number % 3 + 1)]
        for event in await ledger.log.append(session, drafts):
            assert isinstance(event, ev.MessageUser)
            report("event", session, event.seq, event.text)


async def write_chunks(ledger: LocalLedger, session: str) -> None:
    """Stream long texts, turn after turn, so that checkpoints are written."""
    while True:
        await ledger.session(session).start_turn("go")
        for number in range(50):
            (event,) = await ledger.log.append(session, [ev.MessageDelta(text=f"{number} ", chunks="delta")])
            report("event", session, event.seq, f"{number} ")
        await ledger.session(session).end_turn()


async def run_quick_calls(ledger: LocalLedger, session: str) -> None:
    while True:
        async with ledger.session(session).call("quick") as call:
            await call.progress("some\n")
            call.complete("z" * 3000)
        report("ended", call.id)


async def run_endless_call(ledger: LocalLedger, session: str) -> None:
    async with ledger.session(session).call("endless") as call:
        report("open", call.id)
        while True:
            await call.progress(".")
            await asyncio.sleep(0.005)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
