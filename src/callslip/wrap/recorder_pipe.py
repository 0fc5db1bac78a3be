"""What passes, on its way to the recorder, and what the recorder says of it.

Who speaks writes to the recorder's pipe himself if it takes all of it at once: so what passed survives us, and no other
thread need wake. What the pipe does not take waits on the tape, which holds so many bytes. When that is full, who
speaks waits for room; if there is none in time, what is said goes on unrecorded until half of the tape is free, and is
counted. With `patience` None nobody goes on: they wait.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from callslip.wrap.frames import GAP, Frame, pack

MAX_BUFFER_BYTES = 64 * 2**20
BACKPRESSURE_TIMEOUT_S = 2.0
PORTION = 2**20


class Stopped(Exception):
    """Recording failed where nothing may pass unrecorded."""


class RecorderPipe:
    """`pipe` leads to the recorder, `told` from it. `heard` gets what it says: a problem, or "" for none any more.

    `settled` gets what it says of requests that are held. It is called where the recorder is heard: it must not wait.
    Lines are counted: `lines` were put on the tape, `done` of them are recorded, `lost` were left out.
    """

    def __init__(
        self,
        pipe: int,
        told: int,
        heard: Callable[[str], None],
        *,
        patience: float | None = BACKPRESSURE_TIMEOUT_S,
        room: int = MAX_BUFFER_BYTES,
    ) -> None:
        self.lines = self.done = self.lost = 0
        self._pipe, self._told, self._heard = pipe, told, heard
        self.settled: Callable[[bytes], None] = lambda _: None
        self._patience, self._room = patience, room
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._held = 0
        self._full = self._closing = self._dead = self._stopped = False
        os.set_blocking(pipe, False)
        self._skipped: dict[bytes, bool] = {}
        self._torn: dict[bytes, bool] = {}
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._feed, self._listen)]

    def start(self) -> None:
        """Begin to move the tape."""
        for thread in self._threads:
            thread.start()

    # Those who speak

    def put(self, kind: bytes, data: bytes) -> int:
        """Put a piece on the tape. Gives the number of lines that are on it by then."""
        frame = Frame(kind, time.time(), data)
        with self._changed:
            self._torn[kind] = not data.endswith(b"\n")
            if self._closing:
                pass  # The agent is gone: nobody will hear this.
            elif not self._has_room(len(data)):
                self._skip(frame)
            elif kind in self._skipped:
                self._resume(frame)
            else:
                self._add(frame)
            return self.lines

    def end_line(self, kind: bytes) -> None:
        """No more comes of a direction: what it said last counts as a line."""
        if self._torn.get(kind):
            self.put(kind, b"\n")

    def note(self, kind: bytes, data: bytes = b"") -> None:
        """Put something on the tape that nobody said: there is always room for it."""
        with self._changed:
            if not self._closing:
                self._add(Frame(kind, time.time(), data))

    def offer(self, kind: bytes, line: bytes) -> int:
        """Put a line on the tape if there is room. Gives the number of lines by then, 0 if it could not be put."""
        with self._changed:
            if self._closing or not self._has_room(len(line)):
                return 0
            self._add(Frame(kind, time.time(), line))
            return self.lines

    def wait(self, lines: int) -> None:
        """Until so many lines are recorded; Stopped if they will not be."""
        with self._changed:
            self._changed.wait_for(lambda: self.done >= lines or self._dead or self._stopped)
            if self._dead or self._stopped:
                raise Stopped

    def _has_room(self, size: int) -> bool:
        if not self._full and not self._fits(size):
            self._changed.wait_for(lambda: self._fits(size) or self._dead, self._patience)
        least = self._room // 2 if self._full else self._room
        self._full = self._dead or not self._fits(size, least)
        return not self._full

    def _fits(self, size: int, room: int | None = None) -> bool:
        return not self._held or self._held + size <= (self._room if room is None else room)

    def _add(self, frame: Frame) -> None:
        data = pack(frame)
        rest = data if self._held else data[self._taken(data) :]
        if rest:
            self._queue.append(rest)
            self._held += len(rest)
            self._changed.notify_all()
        self.lines += frame.data.count(b"\n")

    def _taken(self, data: bytes | memoryview) -> int:
        """How much of it the pipe takes at once."""
        try:
            return os.write(self._pipe, data)
        except BlockingIOError:
            return 0
        except OSError:  # The recorder is gone; `_listen` hears of it.
            return len(data)

    def _skip(self, frame: Frame) -> None:
        """Leave a piece out. If it ends within a line, the rest of that line is to be left out too."""
        self.lost += frame.data.count(b"\n")
        self._skipped[frame.kind] = not frame.data.endswith(b"\n")

    def _resume(self, frame: Frame) -> None:
        rest = frame.data
        if self._skipped[frame.kind]:
            _, end, rest = frame.data.partition(b"\n")
            self.lost += len(end)
            if not end:
                return
        del self._skipped[frame.kind]
        self._add(Frame(GAP, frame.at, frame.kind))
        if rest:
            self._add(Frame(frame.kind, frame.at, rest))

    # Those who write and listen

    def _feed(self) -> None:
        """Give the recorder what waits, as fast as it takes it."""
        room = select.poll()
        room.register(self._pipe, select.POLLOUT)
        while portion := self._portion():
            left = memoryview(portion)
            while left:
                room.poll()
                left = left[self._taken(left) :]
            with self._changed:
                self._held -= len(portion)
                self._changed.notify_all()
        os.close(self._pipe)

    def _portion(self) -> bytes:
        """What goes to the recorder next; nothing once the tape is closed and empty."""
        taken: list[bytes] = []
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            while self._queue and sum(map(len, taken)) < PORTION:
                taken.append(self._queue.popleft())
        return b"".join(taken)

    def _listen(self) -> None:
        with os.fdopen(self._told, "rb") as told:
            for line in told:
                self._hear(line)
        with self._changed:
            self._dead = True
            unexpected = not self._closing
            self._changed.notify_all()
        if unexpected:
            self._heard("the recorder died")

    def _hear(self, line: bytes) -> None:
        if line.startswith(b"+"):
            with self._changed:
                self.done = int(line[1:])
                self._changed.notify_all()
            return
        if not line.startswith(b"-"):
            return self.settled(line.rstrip(b"\n"))
        problem = line[1:].decode("utf-8", "replace").rstrip("\n")
        if problem and self._patience is None:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
        self._heard(problem)

    # The end

    def close(self, seconds: float) -> int:
        """Let the recorder finish, as long as it gets on within so many seconds. How many lines were not recorded."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            while self._got_on(self.done, seconds) and not self._dead:
                pass
        return self.lost + self.lines - self.done

    def _got_on(self, done: int, seconds: float) -> bool:
        return self._changed.wait_for(lambda: self._dead or self.done != done, seconds)


def write_all(fd: int, data: bytes) -> None:
    """Write everything, however often that takes."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
