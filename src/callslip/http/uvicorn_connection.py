"""Connections of `callslip serve`: a client that stops reading, or never finishes its request, is disconnected.

Uvicorn itself waits forever for the rest of a request, and closes a connection only after the client has read
everything, so a client that reads nothing would keep its socket and its unsent data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from callslip.http import problems
from callslip.http.connection import ABORT, reset
from callslip.settings import Limits

CHECKS_PER_STALL = 4


class UvicornConnection(HttpToolsProtocol):
    """A connection with limits for what it receives and sends."""

    def __init__(self, limits: Limits, **settings: Any) -> None:
        super().__init__(**settings)
        self._limits = limits
        self._receive_timer = _Timer(self.loop, self._end_receiving)
        self._send_timer = _Timer(self.loop, self._check_sending)
        self._is_in_head = False
        self._head_bytes = 0
        self._unsent_bytes = 0
        self._accepted_at = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: partial(reset, transport)}
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._receive_timer.stop()
        self._send_timer.stop()
        super().connection_lost(exc)

    # Receiving

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        had_body = before is not None and before.more_body  # pyright: ignore[reportUnnecessaryComparison]
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.cycle is not before:
            self._is_in_head = False
            self._head_bytes = 0
        elif not had_body:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.header_bytes:
                self._refuse(431, "headers", f"the headers are larger than {self._limits.header_bytes} bytes")
                return
        if self.cycle is not None and self.cycle.more_body:  # pyright: ignore[reportUnnecessaryComparison]
            self._receive_timer.start(self._limits.body_timeout)
        elif self._has_request():
            self._receive_timer.stop()
        elif not self._is_in_head:
            self._begin_head()

    def _has_request(self) -> bool:
        """Return whether the app answers a request now."""
        return self.cycle is not None and not self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    def _begin_head(self) -> None:
        """Wait for the headers of a request. Each byte may come late, but not all of them together."""
        self._is_in_head = True
        self._receive_timer.start(self._limits.header_timeout)

    def _end_receiving(self) -> None:
        """Disconnect a client that has not sent the rest of its request in time."""
        if self.flow.read_paused:  # It could not: the app has not accepted what there is.
            self._receive_timer.start(self._limits.body_timeout)
        elif self._has_request() and self.cycle.response_started:
            reset(self.transport)
        elif self._has_request():
            limit = self._limits.body_timeout
            self._refuse(408, "timeout", f"nothing more of the body was received for {limit:g} seconds")
        elif self._head_bytes:
            limit = self._limits.header_timeout
            self._refuse(408, "timeout", f"the headers were not complete after {limit:g} seconds")
        else:
            self.transport.close()
            self._watch_sending()

    def _refuse(self, status: int, kind: str, detail: str) -> None:
        """Send a problem without asking the app, and close the connection."""
        self._receive_timer.stop()
        response = problems.problem_response(status, kind, detail, {"connection": "close"})
        lines = [f"HTTP/1.1 {status} {problems.title_of(status)}".encode()]
        lines += [name + b": " + value for name, value in response.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self.transport.close()
        self._watch_sending()

    # Sending

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sending()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_sending()

    def _watch_sending(self) -> None:
        """Watch the client until it has accepted everything, or nothing for too long."""
        self._unsent_bytes = self.transport.get_write_buffer_size()
        if self._unsent_bytes:
            self._accepted_at = self.loop.time()
            self._send_timer.start(self._limits.stall / CHECKS_PER_STALL)

    def _check_sending(self) -> None:
        before, self._unsent_bytes = self._unsent_bytes, self.transport.get_write_buffer_size()
        if self._unsent_bytes < before:
            self._accepted_at = self.loop.time()
        # An app that still sends may notice it itself, and is given the time to do so.
        limit = self._limits.stall * (2 if self._has_request() else 1)
        if self._unsent_bytes and self.loop.time() - self._accepted_at > limit:
            reset(self.transport)
        elif self._unsent_bytes:
            self._send_timer.start(self._limits.stall / CHECKS_PER_STALL)


class _Timer:
    """A timer that can be started again."""

    def __init__(self, loop: Any, fire: Callable[[], None]) -> None:
        self._loop = loop
        self._fire = fire
        self._handle: Any = None

    def start(self, delay_s: float) -> None:
        self.stop()
        self._handle = self._loop.call_later(delay_s, self._fire)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
