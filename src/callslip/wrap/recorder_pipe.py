"""The front's connection to the recorder: a pipe with a buffer, and the replies.

The thread that read a chunk writes it to the pipe itself if the pipe takes all of it: then the chunk survives the death
of this process and no other thread has to wake up. The rest is buffered, up to a limit. When the buffer is full, the
reading thread waits. After a timeout it continues without recording until half of the buffer is free, and the lines
that are missing are counted. Without a timeout it waits until there is room.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable

from callslip.wrap.frames import Frame, FrameDecoder, Kind, decode_count, decode_text, encode_frame

MAX_BUFFER_BYTES = 64 * 2**20
BACKPRESSURE_TIMEOUT_S = 2.0
CHUNK_BYTES = 2**20


class RecordingError(Exception):
    """Recording failed, and nothing may pass unrecorded."""


class RecorderPipe:
    """Sends frames to the recorder on `pipe` and handles its replies from `replies`.

    `on_problem` is called with a problem, or with "" once recording works again. `on_request_frame` is called with
    frames about held requests, in the thread that reads replies: it must not block. Of the lines that passed,
    `sent_lines` were sent to the recorder, which has recorded `recorded_lines`, and `lost_lines` were left out.
    `timeout_s` None means that nothing may pass unrecorded.
    """

    def __init__(
        self,
        pipe: int,
        replies: int,
        on_problem: Callable[[str], None],
        *,
        timeout_s: float | None = BACKPRESSURE_TIMEOUT_S,
        max_bytes: int = MAX_BUFFER_BYTES,
    ) -> None:
        self.sent_lines = self.recorded_lines = self.lost_lines = 0
        self._pipe, self._replies, self._on_problem = pipe, replies, on_problem
        self.on_request_frame: Callable[[Frame], None] = lambda _: None
        self._timeout_s, self._max_bytes = timeout_s, max_bytes
        self._condition = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._is_full = self._is_closing = self._recorder_ended = self._has_failed = False
        os.set_blocking(pipe, False)
        self._skipping: dict[Kind, bool] = {}  # Streams that are not recorded; True within a line, which is left out.
        self._mid_line: dict[Kind, bool] = {}
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write_queue, self._read_replies)]

    def start(self) -> None:
        """Start the threads that write the buffer and read replies."""
        for thread in self._threads:
            thread.start()

    # Called by the threads that read a stream

    def send(self, kind: Kind, data: bytes) -> int:
        """Send a chunk, or leave it out if there is no room in time. Return the number of lines sent so far."""
        with self._condition:
            is_mid_line = self._mid_line[kind] = not data.endswith(b"\n")
            if self._is_closing:
                pass  # The agent is gone and does not receive this.
            elif not self._wait_for_room(len(data)):
                self.lost_lines += data.count(b"\n")
                self._skipping[kind] = is_mid_line
            elif kind in self._skipping:
                self._resume(kind, data)
            else:
                self._add(kind, data)
            return self.sent_lines

    def end_line(self, kind: Kind) -> None:
        """Complete the last line of a stream that has ended."""
        if self._mid_line.get(kind):
            self.send(kind, b"\n")

    def send_event(self, kind: Kind, payload: bytes = b"") -> None:
        """Send a frame that carries no line, even if the buffer is full."""
        with self._condition:
            if not self._is_closing:
                self._add(kind, payload)

    def try_send(self, kind: Kind, line: bytes) -> int:
        """Send a line if there is room. Return the number of lines sent so far, or 0 if there was no room."""
        with self._condition:
            if self._is_closing or not self._wait_for_room(len(line)):
                return 0
            self._add(kind, line)
            return self.sent_lines

    def wait_recorded(self, lines: int) -> None:
        """Wait until so many lines are recorded. Raise RecordingError if that fails."""
        with self._condition:
            self._condition.wait_for(lambda: self.recorded_lines >= lines or self._recorder_ended or self._has_failed)
            if self._recorder_ended or self._has_failed:
                raise RecordingError

    def _wait_for_room(self, size: int) -> bool:
        if not self._is_full and not self._fits(size, self._max_bytes):
            self._condition.wait_for(lambda: self._fits(size, self._max_bytes) or self._recorder_ended, self._timeout_s)
        limit = self._max_bytes // 2 if self._is_full else self._max_bytes
        self._is_full = self._recorder_ended or not self._fits(size, limit)
        return not self._is_full

    def _fits(self, size: int, limit: int) -> bool:
        return not self._queued_bytes or self._queued_bytes + size <= limit

    def _add(self, kind: Kind, payload: bytes) -> None:
        data = encode_frame(kind, payload)
        rest = data if self._queued_bytes else data[self._write_some(data) :]
        if rest:
            self._queue.append(rest)
            self._queued_bytes += len(rest)
            self._condition.notify_all()
        self.sent_lines += payload.count(b"\n")

    def _write_some(self, data: bytes | memoryview) -> int:
        """Return how many bytes the pipe took without blocking."""
        try:
            return os.write(self._pipe, data)
        except BlockingIOError:
            return 0
        except OSError:  # The recorder is gone; `_read_replies` handles that.
            return len(data)

    def _resume(self, kind: Kind, data: bytes) -> None:
        if self._skipping[kind]:
            _, line_end, data = data.partition(b"\n")
            self.lost_lines += len(line_end)
            if not line_end:
                return
        del self._skipping[kind]
        self._add(Kind.LINES_MISSING, kind)
        if data:
            self._add(kind, data)

    # The threads of this object

    def _write_queue(self) -> None:
        writable = select.poll()
        writable.register(self._pipe, select.POLLOUT)
        while chunk := self._next_chunk():
            left = memoryview(chunk)
            while left:
                writable.poll()
                left = left[self._write_some(left) :]
            with self._condition:
                self._queued_bytes -= len(chunk)
                self._condition.notify_all()
        os.close(self._pipe)

    def _next_chunk(self) -> bytes:
        """Wait for queued bytes and return them; b"" once the pipe is closing and the queue is empty."""
        parts: list[bytes] = []
        with self._condition:
            self._condition.wait_for(lambda: self._queue or self._is_closing)
            while self._queue and sum(map(len, parts)) < CHUNK_BYTES:
                parts.append(self._queue.popleft())
        return b"".join(parts)

    def _read_replies(self) -> None:
        decoder = FrameDecoder()
        with os.fdopen(self._replies, "rb", 0) as replies:
            while data := replies.read(CHUNK_BYTES):
                for frame in decoder.feed(data):
                    self._handle_reply(frame)
        with self._condition:
            self._recorder_ended = True
            is_unexpected = not self._is_closing
            self._condition.notify_all()
        if is_unexpected:
            self._on_problem("the recorder died")

    def _handle_reply(self, frame: Frame) -> None:
        if frame.kind is Kind.LINES_RECORDED:
            with self._condition:
                self.recorded_lines = decode_count(frame.payload)
                self._condition.notify_all()
        elif frame.kind is Kind.PROBLEM:
            problem = decode_text(frame.payload)
            if problem and self._timeout_s is None:
                with self._condition:
                    self._has_failed = True
                    self._condition.notify_all()
            self._on_problem(problem)
        else:
            self.on_request_frame(frame)

    def close(self, timeout_s: float) -> int:
        """Let the recorder finish while it records a line within each timeout. Return how many lines are missing."""
        with self._condition:
            self._is_closing = True
            self._condition.notify_all()
            while self._wait_for_progress(self.recorded_lines, timeout_s) and not self._recorder_ended:
                pass
        return self.lost_lines + self.sent_lines - self.recorded_lines

    def _wait_for_progress(self, recorded: int, timeout_s: float) -> bool:
        return self._condition.wait_for(lambda: self._recorder_ended or self.recorded_lines != recorded, timeout_s)
