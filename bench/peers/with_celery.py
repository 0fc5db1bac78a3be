"""Celery with Redis as broker and result backend: `work URL` runs what `submit URL TRIPS` asks for.

Prints {name: [seconds, ...]}. The worker is Celery's usual one with a single child; the waiter is woken by pub/sub.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from celery import Celery

app = Celery("with_celery", broker=sys.argv[2], backend=sys.argv[2])
app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)


@app.task(name="look")
def look(params: dict[str, Any]) -> dict[str, Any]:
    return {"found": params["what"]}


def submit(trips: int) -> list[float]:
    times: list[float] = []
    for number in range(trips):
        start = time.perf_counter()
        result = look.delay({"what": number}).get(timeout=60)
        times.append(time.perf_counter() - start)
        assert result == {"found": number}
    return times


if __name__ == "__main__":
    if sys.argv[1] == "work":
        app.worker_main(["worker", "--concurrency=1", "--loglevel=ERROR", "--without-gossip", "--without-mingle"])
    else:
        submit(20)
        print(json.dumps({"Celery": submit(int(sys.argv[3]))}))
