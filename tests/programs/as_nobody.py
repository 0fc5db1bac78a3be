"""Opens a ledger as a user who may not write it, and tells what came of it.

as_nobody.py URL
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

# What is loaded later could not be read any more.
import callslip
import callslip.api.ledger
import callslip.store.sqlite
from callslip.api.ledger.verify import verify
from callslip.model import events as ev


async def main(url: str) -> dict[str, object]:
    told: dict[str, object] = {}
    try:
        ledger = await callslip.open(url)
    except Exception as error:
        return {"open": f"{type(error).__name__}: {error}"}
    told["open"] = "read-only" if ledger.log.store.read_only else "read-write"
    for name, trying in (
        ("read", read(ledger)),
        ("append", ledger.log.append("a", [ev.MessageUser(text="x")])),
        ("call", enter(ledger)),
        ("delete", ledger.delete("a")),
        ("verify", verify(ledger.log)),
        ("project", ledger.log.project("a")),
    ):
        try:
            told[name] = repr(await trying)
        except Exception as error:
            told[name] = f"{type(error).__name__}: {error}"
    await ledger.close()
    return told


async def read(ledger: callslip.Ledger) -> object:
    async for batch in ledger.log.batches("a"):
        assert [stored.event.seq for stored in batch] == list(range(1, len(batch) + 1))
        break
    return len((await ledger.snapshot("a")).entries), [event.text async for event in ledger.events("a")]  # type: ignore[attr-defined]


async def enter(ledger: callslip.Ledger) -> None:
    async with ledger.session("a").call("t"):
        pass


if __name__ == "__main__":
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    json.dump(asyncio.run(main(sys.argv[1])), sys.stdout)
