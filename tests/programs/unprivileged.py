"""Use a ledger as a user without write permission, and print the result of each operation.

unprivileged.py URL
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

# Without permissions, nothing could be imported later.
import callslip
import callslip.client.open
import callslip.store.sqlite
from callslip.ledger.verify import verify
from callslip.model import events as ev


async def main(url: str) -> dict[str, object]:
    report: dict[str, object] = {}
    try:
        ledger = await callslip.open(url)
    except Exception as error:
        return {"open": f"{type(error).__name__}: {error}"}
    report["open"] = "read-only" if ledger.log.store.read_only else "read-write"
    for name, operation in (
        ("read", read(ledger)),
        ("append", ledger.log.append("a", [ev.MessageUser(text="x")])),
        ("call", enter(ledger)),
        ("delete", ledger.delete("a")),
        ("verify", verify(ledger.log)),
        ("project", ledger.log.project("a")),
    ):
        try:
            report[name] = repr(await operation)
        except Exception as error:
            report[name] = f"{type(error).__name__}: {error}"
    await ledger.close()
    return report


async def read(ledger: callslip.LocalLedger) -> object:
    async for batch in ledger.log.batches("a"):
        assert [stored.event.seq for stored in batch] == list(range(1, len(batch) + 1))
        break
    return len((await ledger.snapshot("a")).entries), [event.text async for event in ledger.events("a")]  # type: ignore[attr-defined]


async def enter(ledger: callslip.LocalLedger) -> None:
    async with ledger.session("a").call("t"):
        pass


if __name__ == "__main__":
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    json.dump(asyncio.run(main(sys.argv[1])), sys.stdout)
