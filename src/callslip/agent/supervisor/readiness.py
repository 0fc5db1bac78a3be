"""Which descriptors are ready, in the order in which they became so."""

from __future__ import annotations

import select


class Readiness:
    """epoll keeps the order, which tells a line on stdout from an earlier one on stderr; where there is none, poll."""

    def __init__(self) -> None:
        self._ordered = hasattr(select, "epoll")
        self._poller = select.epoll() if self._ordered else select.poll()
        self._wanted: dict[int, int] = {}

    def watch(self, fd: int) -> None:
        """From now on, tell when this one can be read."""
        self._change(fd, select.POLLIN)

    def want_room(self, fd: int, wanted: bool) -> None:
        """Whether to tell when this one can be written."""
        now = self._wanted.get(fd, 0)
        self._change(fd, now | select.POLLOUT if wanted else now & ~select.POLLOUT)

    def no_more(self, fd: int) -> None:
        """This one was read to its end."""
        self._change(fd, self._wanted.get(fd, 0) & ~select.POLLIN)

    def _change(self, fd: int, wanted: int) -> None:
        before, self._wanted[fd] = self._wanted.get(fd, 0), wanted
        if before == wanted:
            return
        if not wanted:
            self._poller.unregister(fd)
        else:
            change = self._poller.modify if before else self._poller.register
            change(fd, wanted)

    def wait(self, seconds: float | None) -> list[int]:
        """Those that are ready; at once if there are any, else within that time."""
        unit = 1 if self._ordered else 1000
        return [fd for fd, _ in self._poller.poll(None if seconds is None else seconds * unit)]
