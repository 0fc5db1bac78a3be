"""Release texts that this process holds back, when their time is over, with one timer for all of them."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from callslip.errors import CallslipError
from callslip.ledger.aio import cancel_all
from callslip.ledger.write import WriteContext, release_held_text
from callslip.model.records import SessionRecord
from callslip.store.protocol import Store, Touched


class ReleaseTimer:
    """Watches the sessions that this process writes. What it fails to release, a reaper releases.

    Delays are measured by the clock of the loop, so a text is released in time also if the store's clock is set back.
    """

    def __init__(self, store: Store, context: WriteContext, text_hold: float) -> None:
        self._store = store
        self._context = context
        self._text_hold = text_hold
        self._dues: dict[str, tuple[float, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._release: asyncio.Task[None] | None = None
        self._closed = False
        store.on_sessions(self._watch)

    def _watch(self, sessions: list[SessionRecord], now: int) -> None:
        """Note when the held texts of sessions that were written at `now` (ms) must be released."""
        for session in sessions:
            due = session.release_at
            if not due:
                self._dues.pop(session.name, None)
                continue
            delay = min(max((due - now) / 1000, 0.0), self._text_hold)
            at = asyncio.get_running_loop().time() + delay
            self._dues[session.name] = at, due
            self._set_timer(at)

    def _set_timer(self, at: float) -> None:
        if self._closed or (self._timer is not None and self._timer.when() <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self._start_release)

    def _start_release(self) -> None:
        self._timer = None
        if self._release is None or self._release.done():
            self._release = asyncio.ensure_future(self._release_due())

    async def _release_due(self) -> None:
        clock = asyncio.get_running_loop().time
        while ready := {session: due for session, (at, due) in self._dues.items() if at <= clock()}:
            for session in ready:
                del self._dues[session]
            releases = [
                self._store.transact(
                    partial(release_held_text, session=session, until=due, context=self._context), Touched((session,))
                )
                for session, due in ready.items()
            ]
            for release in releases:
                with contextlib.suppress(CallslipError):
                    await release
        if self._dues:
            self._set_timer(min(at for at, _ in self._dues.values()))

    async def close(self) -> None:
        """Stop. A process that opens the ledger releases what is still held."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._release is not None:
            await cancel_all(self._release)
