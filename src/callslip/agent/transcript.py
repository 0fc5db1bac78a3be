"""What a command printed, as far as it was kept, as text: each stream by itself, and both in the order they came."""

from __future__ import annotations

import codecs

import msgspec

from callslip.agent.supervisor.wire import NAMES

CONTINUING = bytes(range(0x80, 0xC0))
BROKEN = 3


class Printed(msgspec.Struct, frozen=True):
    """The text of one stream, all the bytes it had, and how many of them were left out."""

    text: str
    size: int
    cut: int


class Piece(msgspec.Struct):
    """A run of bytes of one stream. The position counts the bytes of both streams."""

    position: int
    stream: int
    data: bytearray
    last: bool


class Transcript:
    """Collects pieces. Those of the `last` part come when all is over, with a gap before them if there was too much."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def add(self, stream: int, position: int, data: bytes, last: bool = False) -> None:
        """Note a piece; one that goes on where the one before it ended becomes part of it."""
        before = self._pieces[-1] if self._pieces else None
        if before and (before.stream, before.last, before.position + len(before.data)) == (stream, last, position):
            before.data += data
        else:
            self._pieces.append(Piece(position, stream, bytearray(data), last))

    def printed(self, sizes: dict[int, int]) -> tuple[str, dict[int, Printed]]:
        """Both streams together, and each; `sizes` is what they had in all, as far as anybody could say."""
        kept = {stream: self._kept(stream) for stream in sizes}
        sizes = {stream: max(size, kept[stream]) for stream, size in sizes.items()}
        readers = {stream: _Reader(stream, size - kept[stream], self._broken(stream)) for stream, size in sizes.items()}
        together: list[str] = []
        for piece in sorted(self._pieces, key=lambda piece: piece.position):
            together += readers[piece.stream].read(piece)
        for reader in readers.values():
            together += reader.close()
        each = {stream: Printed("".join(reader.texts), sizes[stream], reader.cut) for stream, reader in readers.items()}
        return "".join(together), each

    def _kept(self, stream: int) -> int:
        return sum(len(piece.data) for piece in self._pieces if piece.stream == stream)

    def _broken(self, stream: int) -> int:
        """How many bytes of the last part can only be the end of a character that began before it."""
        last = [piece.data[:BROKEN] for piece in self._pieces if piece.stream == stream and piece.last]
        start = b"".join(last[:BROKEN])[:BROKEN]
        return len(start) - len(start.lstrip(CONTINUING))


class _Reader:
    """Decodes one stream piece by piece. A character that the gap cuts through goes with it."""

    def __init__(self, stream: int, cut: int, broken: int) -> None:
        self.texts: list[str] = []
        self.cut = cut
        self._name = NAMES[stream]
        self._marked = not cut
        self._broken = broken if cut else 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, piece: Piece) -> list[str]:
        if not piece.last:
            return self._add(piece.data)
        mark = self._mark()
        broken = min(self._broken, len(piece.data))
        self._broken -= broken
        return [*mark, *self._add(piece.data[broken:])]

    def close(self) -> list[str]:
        return [*self._mark(), *self._add(b"", final=True)]

    def _mark(self) -> list[str]:
        """Say once what is missing here, if anything is."""
        if self._marked:
            return []
        self._marked = True
        self.cut += self._broken + len(self._decoder.getstate()[0])
        self._decoder.reset()
        self.texts.append(f"\n[... {self.cut} bytes of {self._name} left out ...]\n")
        return self.texts[-1:]

    def _add(self, data: bytes | bytearray, final: bool = False) -> list[str]:
        self.texts.append(self._decoder.decode(data, final))
        return self.texts[-1:]
