"""How things are measured and told."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

ROUNDS = 7


def best(*works: Callable[[], Any], rounds: int = ROUNDS) -> list[float]:
    """The shortest of several runs of each, in seconds of processor time: noise only ever adds. Run by turns."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, taken in zip(works, times, strict=True):
            gc.collect()
            start = time.process_time()
            work()
            taken.append(time.process_time() - start)
    return [min(taken) for taken in times]


def say(what: str, figure: str, goal: str = "") -> None:
    print(f"  {what:<58} {figure:>22}   {goal}", flush=True)
