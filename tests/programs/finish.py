"""Complete a call or answer an approval from another process.

finish.py URL call ID | finish.py URL approve ID | finish.py URL deny ID
"""

from __future__ import annotations

import asyncio
import sys

import callslip
from callslip.model import events as ev


async def main(url: str, action: str, target_id: str) -> None:
    async with await callslip.open(url) as ledger:
        if action == "call":
            row = await ledger.find_call(target_id)
            await ledger.log.append(row.session, [ev.CallCompleted(call=row.id, output="from another process")])
        elif action == "approve":
            await ledger.approve(target_id, by="ann")
        else:
            await ledger.deny(target_id, by="ann", reason="not today")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
