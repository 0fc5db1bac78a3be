"""taskiq with Redis streams: `work URL` runs what `submit URL TRIPS` asks for.

Prints {name: [seconds, ...]}. Its waiter asks again and again: as often as it does unless told, and every millisecond.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

broker = RedisStreamBroker(sys.argv[2]).with_result_backend(RedisAsyncResultBackend(sys.argv[2]))


@broker.task(task_name="look")
async def look(params: dict[str, Any]) -> dict[str, Any]:
    return {"found": params["what"]}


async def submit(trips: int, every: float) -> list[float]:
    times: list[float] = []
    for number in range(trips):
        start = time.perf_counter()
        task = await look.kiq({"what": number})
        result = await task.wait_result(check_interval=every, timeout=60)
        times.append(time.perf_counter() - start)
        assert result.return_value == {"found": number}
    return times


async def main() -> None:
    broker.is_worker_process = sys.argv[1] == "work"
    await broker.startup()
    if broker.is_worker_process:
        await run_receiver_task(broker)
    else:
        trips = int(sys.argv[3])
        await submit(20, 0.001)
        usual, often = await submit(min(trips, 25), 0.2), await submit(trips, 0.001)
        print(json.dumps({"taskiq": usual, "taskiq, asking every ms": often}))
    await broker.shutdown()


asyncio.run(main())
