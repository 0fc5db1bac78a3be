"""The kept output of a command as text: each stream, and both in the order of printing."""

from __future__ import annotations

import codecs

import msgspec

from callslip.agent.supervisor.wire import NAMES

CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
MAX_CONTINUATION_BYTES = 3


class StreamOutput(msgspec.Struct, frozen=True):
    """The text of a stream, its size in bytes, and how many bytes are left out of the text."""

    text: str
    size: int
    cut: int


class Chunk(msgspec.Struct):
    """A run of bytes of one stream. The position counts the bytes of both streams."""

    position: int
    stream: int
    data: bytearray
    is_tail: bool


class Transcript:
    """Collects chunks. Those of the tail come at the end; bytes before them may be missing."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []

    def add(self, stream: int, position: int, data: bytes, is_tail: bool = False) -> None:
        """Add a chunk, or extend the previous one if it continues it."""
        before = self._chunks[-1] if self._chunks else None
        end = before.position + len(before.data) if before else -1
        if before and (before.stream, before.is_tail, end) == (stream, is_tail, position):
            before.data += data
        else:
            self._chunks.append(Chunk(position, stream, bytearray(data), is_tail))

    def render(self, sizes: dict[int, int]) -> tuple[str, dict[int, StreamOutput]]:
        """Return the text of both streams together, and each. `sizes` are their sizes as reported."""
        kept = dict.fromkeys(sizes, 0)
        for chunk in self._chunks:
            kept[chunk.stream] += len(chunk.data)
        sizes = {stream: max(size, kept[stream]) for stream, size in sizes.items()}
        decoders = {
            stream: _StreamDecoder(stream, size - kept[stream], self._split_bytes(stream))
            for stream, size in sizes.items()
        }
        together: list[str] = []
        for chunk in sorted(self._chunks, key=lambda chunk: chunk.position):
            together += decoders[chunk.stream].read(chunk)
        for decoder in decoders.values():
            together += decoder.close()
        each = {
            stream: StreamOutput("".join(decoder.texts), sizes[stream], decoder.cut)
            for stream, decoder in decoders.items()
        }
        return "".join(together), each

    def _split_bytes(self, stream: int) -> int:
        """Return how many bytes at the start of the tail are the end of a character that starts before it."""
        size = MAX_CONTINUATION_BYTES
        tail = [chunk.data[:size] for chunk in self._chunks if chunk.stream == stream and chunk.is_tail]
        start = b"".join(tail[:size])[:size]
        return len(start) - len(start.lstrip(CONTINUATION_BYTES))


class _StreamDecoder:
    """Decodes the chunks of a stream. A character that is split by the gap is left out."""

    def __init__(self, stream: int, cut: int, split: int) -> None:
        self.texts: list[str] = []
        self.cut = cut
        self._name = NAMES[stream]
        self._has_note = not cut
        self._split_left = split if cut else 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, chunk: Chunk) -> list[str]:
        if not chunk.is_tail:
            return self._add(chunk.data)
        note = self._gap_note()
        split = min(self._split_left, len(chunk.data))
        self._split_left -= split
        return [*note, *self._add(chunk.data[split:])]

    def close(self) -> list[str]:
        return [*self._gap_note(), *self._add(b"", final=True)]

    def _gap_note(self) -> list[str]:
        """Return a note about the bytes that are left out, once."""
        if self._has_note:
            return []
        self._has_note = True
        self.cut += self._split_left + len(self._decoder.getstate()[0])
        self._decoder.reset()
        self.texts.append(f"\n[... {self.cut} bytes of {self._name} left out ...]\n")
        return self.texts[-1:]

    def _add(self, data: bytes | bytearray, final: bool = False) -> list[str]:
        self.texts.append(self._decoder.decode(data, final))
        return self.texts[-1:]
