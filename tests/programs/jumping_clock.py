"""Own calls in a ledger in PostgreSQL while the clock of this machine, not that of the server, jumps.

For each jump it prints how many rounds its reaper has run since, and the states of all calls and approvals.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

JUMPS_S = (3600.0, -3600.0, 0.0)
ROUNDS = 4
real_time, offset_s = time.time, 0.0
time.time = lambda: real_time() + offset_s  # Before anything else can import the function.

from callslip.api.ledger import LocalLedger, open_ledger  # noqa: E402
from callslip.ledger.liveness import Reaper  # noqa: E402
from callslip.model import events as ev  # noqa: E402
from callslip.settings import Settings  # noqa: E402

rounds = 0
reap = Reaper.reap


async def count_round(self: Reaper, *, only_dead: bool = False) -> int:
    global rounds
    ended = await reap(self, only_dead=only_dead)
    rounds += 1
    return ended


Reaper.reap = count_round  # type: ignore[method-assign]


async def show(ledger: LocalLedger, session: str) -> None:
    (event,) = await ledger.log.append(session, [ev.MessageUser(text="now")])
    states = sorted(record.state for record in (await ledger.calls()).items)
    pending = [record.state for record in await ledger.approvals()]
    print(json.dumps({"states": states, "approvals": pending, "at": event.at}), flush=True)


async def main() -> None:
    global rounds, offset_s
    ledger = await open_ledger(sys.argv[1], Settings(reaper_interval=0.05))
    async with ledger, ledger.session("jumping").call("t") as call:
        await ledger.commands.submit("run", queue="jumping", timeout=600)
        await ledger.commands.claim("jumping", lease=600)
        await ledger.commands.submit("run", queue="jumping", timeout=600)
        await ledger.commands.submit("run", queue="jumping", approval=True)
        for jump_s in JUMPS_S:
            rounds, offset_s = 0, jump_s
            while rounds < ROUNDS:
                await asyncio.sleep(0.01)
            await show(ledger, "jumping")
        sys.stdin.readline()
        call.complete(1)


asyncio.run(main())
