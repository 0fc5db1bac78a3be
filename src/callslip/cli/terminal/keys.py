"""Read single keys from a terminal while output is printed on it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

try:
    import termios
    import tty
except ImportError:  # Windows has no such terminals: nothing is prompted there.
    termios = tty = None


def can_prompt() -> bool:
    """Return whether stdin and stdout are a terminal with this process in the foreground."""
    if termios is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return False


@asynccontextmanager
async def read_keys() -> AsyncGenerator[asyncio.Queue[str]]:
    """Queue each pressed key, without waiting for the end of the line and without echo."""
    assert termios is not None and tty is not None
    keys: asyncio.Queue[str] = asyncio.Queue()
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    loop = asyncio.get_running_loop()
    tty.setcbreak(terminal)
    loop.add_reader(terminal, lambda: _read(terminal, keys, loop))
    try:
        yield keys
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _read(terminal: int, keys: asyncio.Queue[str], loop: asyncio.AbstractEventLoop) -> None:
    try:
        data = os.read(terminal, 64)
    except OSError:
        data = b""
    if not data:
        loop.remove_reader(terminal)  # The terminal is gone: no key will follow.
    for key in data.decode("utf-8", "ignore"):
        keys.put_nowait(key)
