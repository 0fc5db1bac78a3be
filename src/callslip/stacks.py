"""Show what a process waits for: the stacks of its asyncio tasks and threads, for a process that seems to hang."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import signal
import sys
import threading
import traceback
from collections.abc import Generator
from types import FrameType
from typing import Any

MAX_TASKS = 500
"""How many tasks are shown. A server has one for each reader."""


def describe_tasks(loop: asyncio.AbstractEventLoop) -> str:
    """Return the stack of each unfinished task of a loop. Equal stacks are shown once, with their number."""
    stacks: dict[str, list[str]] = {}
    for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
        stacks.setdefault("\n".join(_waiting_lines(task)), []).append(task.get_name())
    lines: list[str] = []
    for stack, names in list(stacks.items())[:MAX_TASKS]:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"{names[0]}{more}:\n{stack}")
    return "\n".join(lines)


def _waiting_lines(task: asyncio.Task[Any]) -> list[str]:
    """Return a line for each coroutine that a task is in, the innermost last, and for what that waits for."""
    lines: list[str] = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = _first(waiting, "cr_frame", "gi_frame", "ag_frame")
        name = getattr(waiting, "__qualname__", type(waiting).__name__)
        lines.append(f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {name}' if frame else f"  {name}")
        waiting = _first(waiting, "cr_await", "gi_yieldfrom", "ag_await")
    return lines


def _first(value: Any, *names: str) -> Any:
    return next((found for name in names if (found := getattr(value, name, None)) is not None), None)


def describe_threads() -> str:
    """Return the stack of each thread."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(identity, identity)}:\n{''.join(traceback.format_stack(frame)).rstrip()}"
        for identity, frame in sys._current_frames().items()  # pyright: ignore[reportPrivateUsage]
    )


@contextlib.contextmanager
def stacks_on_signal(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    """Write all stacks to stderr at SIGUSR1, while the block runs in the main thread.

    Those of threads are written at once, those of tasks as soon as Python code runs in the main thread.
    """
    number: Any = getattr(signal, "SIGUSR1", None)
    if number is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def write_tasks(number: int, frame: FrameType | None) -> None:
        print(f"tasks:\n{describe_tasks(loop)}", file=sys.stderr, flush=True)

    before = signal.signal(number, write_tasks)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be closed, or not a file.
        faulthandler.register(number, all_threads=True, chain=True)
    try:
        yield
    finally:
        faulthandler.unregister(number)
        signal.signal(number, before)
