"""Wait for descriptors that are ready, in the order in which they became ready."""

from __future__ import annotations

import select


class Readiness:
    """The watched descriptors. epoll keeps the order of output on stdout and stderr; without it, poll does not."""

    def __init__(self) -> None:
        self._has_epoll = hasattr(select, "epoll")
        self._poller = select.epoll() if self._has_epoll else select.poll()
        self._events: dict[int, int] = {}

    def watch(self, fd: int) -> None:
        """Wait for a descriptor to be readable."""
        self._set_events(fd, select.POLLIN)

    def watch_writable(self, fd: int, enabled: bool) -> None:
        """Wait for a descriptor to be writable, or stop doing so."""
        events = self._events.get(fd, 0)
        self._set_events(fd, events | select.POLLOUT if enabled else events & ~select.POLLOUT)

    def unwatch(self, fd: int) -> None:
        """Stop waiting for a descriptor to be readable."""
        self._set_events(fd, self._events.get(fd, 0) & ~select.POLLIN)

    def _set_events(self, fd: int, events: int) -> None:
        before, self._events[fd] = self._events.get(fd, 0), events
        if before == events:
            return
        if not events:
            self._poller.unregister(fd)
        else:
            register = self._poller.modify if before else self._poller.register
            register(fd, events)

    def wait(self, timeout_s: float | None) -> list[int]:
        """Return the descriptors that are ready; wait for one at most `timeout_s`."""
        unit = 1 if self._has_epoll else 1000  # poll takes milliseconds.
        return [fd for fd, _ in self._poller.poll(None if timeout_s is None else timeout_s * unit)]
