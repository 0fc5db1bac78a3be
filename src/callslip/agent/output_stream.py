"""Output while it is printed, at a pace that a reader can bear.

What comes while the reader is busy, or sooner than `INTERVAL` after its last turn, waits and comes in one piece. There
is never more waiting than what is kept of the output, so nothing has to be slowed down for a slow reader.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Awaitable, Callable
from io import StringIO

from callslip.agent.supervisor.wire import NAMES

INTERVAL = 0.05
MOST_AT_ONCE = 8
MORE = "\n[... there is more; the last of it is shown at the end ...]\n"

Progress = Callable[[str, str], Awaitable[None]]


class Live:
    """Hands the text of both streams to a reader, if there is one, as `(stream, text)`."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in NAMES}
        self._waiting: list[tuple[int, StringIO]] = []
        self._news = asyncio.Event()
        self._closed = asyncio.Event()

    def add(self, stream: int, data: bytes) -> None:
        """Something was printed."""
        self._add(stream, self._decoders[stream].decode(data))

    def stop(self, stream: int) -> None:
        """The rest of this stream is not shown live; that is said once."""
        self._decoders[stream].reset()
        self._add(stream, MORE)

    def close(self) -> None:
        """Nothing more will come."""
        for stream, decoder in self._decoders.items():
            self._add(stream, decoder.decode(b"", final=True))
        self._closed.set()
        self._news.set()

    def _add(self, stream: int, text: str) -> None:
        if self._progress is None or not text:
            return
        if not self._waiting or self._waiting[-1][0] != stream:
            self._waiting.append((stream, StringIO()))
        self._waiting[-1][1].write(text)
        self._news.set()

    async def tell(self) -> None:
        """Tell the reader all there is until it is closed."""
        while self._waiting or not self._closed.is_set():
            await self._news.wait()
            self._news.clear()
            for stream, text in self._take():
                assert self._progress is not None
                await self._progress(NAMES[stream], text)
            await self._rest()

    def _take(self) -> list[tuple[int, str]]:
        waiting = [(stream, text.getvalue()) for stream, text in self._waiting]
        self._waiting = []
        if len(waiting) <= MOST_AT_ONCE:
            return waiting
        streams = dict.fromkeys(stream for stream, _ in waiting)
        return [(wanted, "".join(text for stream, text in waiting if stream == wanted)) for wanted in streams]

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(INTERVAL):
                await self._closed.wait()
        except TimeoutError:
            pass
