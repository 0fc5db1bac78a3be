"""A process that seems to hang shows what its tasks and threads wait for."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from callslip.stacks import describe_tasks, describe_threads
from tests.support.cli_process import serving


@pytest.mark.anyio
async def test_the_stack_of_a_task_has_every_coroutine_it_is_in() -> None:
    """A waiting task is shown down to what it waits for, and equal tasks together."""
    never = asyncio.Event()

    async def outer() -> None:
        await inner()

    async def inner() -> None:
        await never.wait()

    tasks = [asyncio.create_task(outer()) for _ in range(3)]
    await asyncio.sleep(0)
    text = describe_tasks(asyncio.get_running_loop())
    stack = text[text.index("outer") :]
    assert stack.index("outer") < stack.index("inner") < stack.index("Event.wait")
    assert "and 2 more:" in text
    never.set()
    await asyncio.gather(*tasks)


def test_the_stacks_of_threads_are_shown() -> None:
    """Each thread is shown with its name and its stack."""
    text = describe_threads()
    assert "thread MainThread:" in text and "test_the_stacks_of_threads_are_shown" in text


def test_a_server_writes_its_stacks_at_a_signal_and_continues(tmp_path: Path) -> None:
    """SIGUSR1 writes the stacks of all threads and tasks to stderr."""
    with serving(tmp_path / "ledger.db") as server:
        for number in range(1, 3):
            server.request(signal.SIGUSR1)
            server.until("tasks:", number)
            server.until("in Server.serve", number)
        assert any("Current thread" in line or "Thread 0x" in line for line in server.err)
        assert server.signal(signal.SIGTERM) == 128 + signal.SIGTERM
