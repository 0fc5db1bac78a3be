"""Use a ledger in PostgreSQL with the package that PYTHONPATH names, beside other processes. Each line is a fact.

`older_server.py URL NAME COUNT TOTAL`: after the fact "ready" the process waits for a line. Then it writes COUNT events
to the session "a", which gets TOTAL events in all, submits to the queue "new", and approves and runs what others submit
to the queue NAME.
"""

from __future__ import annotations

import asyncio
import json
import sys

import callslip
from callslip.api.ledger import LocalLedger, open_ledger
from callslip.errors import ConflictError
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model.events import Draft

URL, NAME, COUNT, TOTAL = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
TIMEOUT_S = 60.0


def show(name: str, value: object) -> None:
    print(json.dumps([name, value]), flush=True)


async def write(ledger: LocalLedger) -> None:
    for number in range(COUNT):
        draft = Draft(ev.MessageUser(text=f"{NAME} {number}"), key=f"{NAME} {number}")
        (first,) = await ledger.log.append("a", [draft])
        (again,) = await ledger.log.append("a", [draft])
        assert first == again


async def follow(ledger: LocalLedger) -> None:
    seqs: list[int] = []
    async for event in ledger.log.follow("a"):
        seqs.append(event.seq)
        if len(seqs) == TOTAL:
            break
    show("followed", seqs)


async def submit(ledger: LocalLedger) -> None:
    command = await ledger.commands.submit("run", {"for": NAME}, queue="new", timeout=TIMEOUT_S, wait=TIMEOUT_S)
    show("result", command.result)


async def work(ledger: LocalLedger) -> None:
    claim = await ledger.commands.claim(NAME, wait=TIMEOUT_S)
    assert claim is not None
    await ledger.commands.complete(claim.call, {"by": NAME, "params": claim.params}, fence=claim.fence)


async def answer(ledger: LocalLedger) -> None:
    """Approve the command in the queue of this process.

    The first version may refuse an answer although its request is pending: it reads the request and then the call, and
    if another process writes to their session between the two, it has forgotten the request. Nothing was written then,
    and the error names no other answer. Later versions read both together.
    """
    while True:
        for request in await ledger.approvals():
            if (await ledger.find_call(request.call)).client != NAME:
                continue
            try:
                record = await ledger.approve(request.id, by=NAME)
            except ConflictError as error:
                if error.current is not None:
                    raise
            else:
                return show("approved", record.state)
        await asyncio.sleep(0.02)


async def main() -> None:
    ledger = await open_ledger(URL)
    await ledger.log.append("a", [ev.MessageUser(text=f"{NAME} starts")])
    show("ready", callslip.__file__)
    await asyncio.to_thread(sys.stdin.readline)
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*(task(ledger) for task in (write, follow, submit, work, answer)))
    show("problems", [str(problem) for problem in await verify(ledger.log)] + await ledger.log.store.check())
    await ledger.close()


asyncio.run(main())
