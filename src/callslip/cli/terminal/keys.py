"""Single keys from a terminal, while something else is drawn on it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

try:
    import termios
    import tty
except ImportError:  # Windows: nobody is asked there, the script answers.
    termios = tty = None


def may_ask() -> bool:
    """Whether a person sits at both ends: keys come from a terminal, what we draw goes to one, and it is ours."""
    if termios is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return False


@asynccontextmanager
async def pressed() -> AsyncGenerator[asyncio.Queue[str]]:
    """Every key that is pressed, one by one, without waiting for the end of a line and without showing it."""
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
        loop.remove_reader(terminal)  # The terminal went away: nobody will answer.
    for key in data.decode("utf-8", "ignore"):
        keys.put_nowait(key)
