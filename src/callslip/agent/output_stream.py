"""Send output to a callback while it is printed, at a limited rate.

Output that arrives while the callback runs, or less than `INTERVAL_S` after it, is buffered and sent together. The
buffer is never larger than the part of the output that is kept, so a slow callback does not slow the command down.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Awaitable, Callable
from io import StringIO

from callslip.agent.supervisor.wire import NAMES
from callslip.ledger.aio import wait_for_event

INTERVAL_S = 0.05
MAX_CHUNKS_PER_SEND = 8
MORE = "\n[... there is more; the last of it is shown at the end ...]\n"

Progress = Callable[[str, str], Awaitable[None]]


class OutputStream:
    """Sends the text of both streams to a callback, if there is one, as `(stream, text)`."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._decoders = {stream: codecs.getincrementaldecoder("utf-8")("replace") for stream in NAMES}
        self._chunks: list[tuple[int, StringIO]] = []
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()

    def add(self, stream: int, data: bytes) -> None:
        """Add printed bytes."""
        self._add(stream, self._decoders[stream].decode(data))

    def stop(self, stream: int) -> None:
        """Add a note that the rest of the stream is not sent."""
        self._decoders[stream].reset()
        self._add(stream, MORE)

    def close(self) -> None:
        """End both streams."""
        for stream, decoder in self._decoders.items():
            self._add(stream, decoder.decode(b"", final=True))
        self._closed.set()
        self._changed.set()

    def _add(self, stream: int, text: str) -> None:
        if self._progress is None or not text:
            return
        if not self._chunks or self._chunks[-1][0] != stream:
            self._chunks.append((stream, StringIO()))
        self._chunks[-1][1].write(text)
        self._changed.set()

    async def send(self) -> None:
        """Send output until the streams end."""
        while self._chunks or not self._closed.is_set():
            await self._changed.wait()
            self._changed.clear()
            for stream, text in self._take_chunks():
                assert self._progress is not None
                await self._progress(NAMES[stream], text)
            await wait_for_event(self._closed, INTERVAL_S)

    def _take_chunks(self) -> list[tuple[int, str]]:
        chunks = [(stream, text.getvalue()) for stream, text in self._chunks]
        self._chunks = []
        if len(chunks) <= MAX_CHUNKS_PER_SEND:
            return chunks
        streams = dict.fromkeys(stream for stream, _ in chunks)
        return [(stream, "".join(text for other, text in chunks if other == stream)) for stream in streams]
