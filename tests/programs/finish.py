"""From another process: completes a call, or answers an approval.

finish.py URL call ID | finish.py URL approve ID | finish.py URL deny ID
"""

from __future__ import annotations

import asyncio
import sys

import callslip
from callslip.model import events as ev


async def main(url: str, what: str, identity: str) -> None:
    async with await callslip.open(url) as ledger:
        if what == "call":
            row = await ledger.find_call(identity)
            await ledger.log.append(row.session, [ev.CallCompleted(call=row.id, output="from afar")])
        elif what == "approve":
            await ledger.approve(identity, by="ann")
        else:
            await ledger.deny(identity, by="ann", reason="not today")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
