"""docket with Redis: `work URL` runs what `submit URL TRIPS` asks for.

Prints {name: [seconds, ...]}. Worker and waiter are as they come; the waiter is woken by pub/sub.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from datetime import timedelta
from typing import Any

from docket import Docket, Worker


async def look(params: dict[str, Any]) -> dict[str, Any]:
    return {"found": params["what"]}


async def submit(docket: Docket, trips: int) -> list[float]:
    times: list[float] = []
    for number in range(trips):
        start = time.perf_counter()
        execution = await docket.add(look)({"what": number})
        result = await execution.get_result(timeout=timedelta(seconds=60))
        times.append(time.perf_counter() - start)
        assert result == {"found": number}
    return times


async def main() -> None:
    async with Docket(name="bench", url=sys.argv[2]) as docket:
        docket.register(look)
        if sys.argv[1] == "work":
            async with Worker(docket) as worker:
                await worker.run_forever()
        else:
            await submit(docket, 20)
            print(json.dumps({"docket": await submit(docket, int(sys.argv[3]))}))


asyncio.run(main())
