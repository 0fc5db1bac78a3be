"""Write to a ledger for some seconds, and print what was acknowledged and how long each write took.

write.py URL NAME SECONDS
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import callslip
from callslip.api.ledger import LocalLedger
from callslip.model import events as ev


async def main(url: str, name: str, seconds: float) -> None:
    report: dict[str, list[object]] = {"acknowledged": [], "waits": [], "errors": []}
    async with await callslip.open(url) as ledger:
        print("ready", flush=True)
        deadline = time.monotonic() + seconds
        writers = [
            write_messages(ledger, "shared", name, deadline, report),
            write_messages(ledger, f"own-{name}", name, deadline, report),
            run_calls(ledger, f"calls-{name}", deadline, report),
        ]
        for failure in await asyncio.gather(*writers, return_exceptions=True):
            if failure is not None:
                report["errors"].append(repr(failure))
    json.dump(report, sys.stdout)


async def write_messages(
    ledger: LocalLedger, session: str, name: str, deadline: float, report: dict[str, list[object]]
) -> None:
    number = 0
    while time.monotonic() < deadline:
        number += 1
        text = f"{name} {number}"
        started = time.monotonic()
        (event,) = await ledger.log.append(session, [ev.MessageUser(text=text)])
        report["waits"].append(time.monotonic() - started)
        report["acknowledged"].append((session, event.seq, text, time.time()))


async def run_calls(ledger: LocalLedger, session: str, deadline: float, report: dict[str, list[object]]) -> None:
    number = 0
    while time.monotonic() < deadline:
        number += 1
        async with ledger.session(session).call("work", number) as call:
            await call.progress(f"{number}\n")
            call.complete(number)
        end = (await call.result()).end
        report["acknowledged"].append((session, end, str(number), time.time()))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
