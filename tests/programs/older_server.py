"""Use a ledger in PostgreSQL with the package that PYTHONPATH names, beside another process. Each line is a fact.

The other process writes the session "a" too, claims from the queue "new", and submits to the queue "old".
"""

from __future__ import annotations

import asyncio
import json
import sys

import callslip
from callslip.api.ledger import LocalLedger, open_ledger
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model.events import Draft

URL, COUNT = sys.argv[1], int(sys.argv[2])
TIMEOUT_S = 60.0


def show(name: str, value: object) -> None:
    print(json.dumps([name, value]), flush=True)


async def write(ledger: LocalLedger) -> None:
    for number in range(COUNT):
        draft = Draft(ev.MessageUser(text=f"old {number}"), key=f"old {number}")
        (first,) = await ledger.log.append("a", [draft])
        (again,) = await ledger.log.append("a", [draft])
        assert first == again


async def follow(ledger: LocalLedger) -> None:
    seqs: list[int] = []
    async for event in ledger.log.follow("a"):
        seqs.append(event.seq)
        if len(seqs) == 2 * COUNT + 1:
            break
    show("followed", seqs)


async def submit(ledger: LocalLedger) -> None:
    command = await ledger.commands.submit("run", {"n": 1}, queue="new", timeout=TIMEOUT_S, wait=TIMEOUT_S)
    show("result", command.result)


async def work(ledger: LocalLedger) -> None:
    claim = await ledger.commands.claim("old", wait=TIMEOUT_S)
    assert claim is not None
    await ledger.commands.complete(claim.call, {"by": "old", "params": claim.params}, fence=claim.fence)


async def answer(ledger: LocalLedger) -> None:
    while not (pending := await ledger.approvals()):
        await asyncio.sleep(0.02)
    show("approved", (await ledger.approve(pending[0].id, by="old")).state)


async def main() -> None:
    ledger = await open_ledger(URL)
    await ledger.log.append("a", [ev.MessageUser(text="first")])
    show("ready", callslip.__file__)
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*(task(ledger) for task in (write, follow, submit, work, answer)))
    show("problems", [str(problem) for problem in await verify(ledger.log)] + await ledger.log.store.check())
    await ledger.close()


asyncio.run(main())
