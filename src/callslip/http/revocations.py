"""End what a revoked token still has open: streams, requests that wait, MCP streams.

The store is asked for changes a few dozen times a second, as for every followed session. After a change that removed a
token, by any process, the rights of all open requests are checked again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from callslip.api.tokens import list_tokens
from callslip.errors import CallslipError, StoreError
from callslip.ledger.event_log import EventLog

RETRY_DELAY_S = 0.5

CheckAccess = Callable[[], Awaitable[object]]


class _OpenRequest:
    """A request that waits or streams, and the error that ended it."""

    def __init__(self, task: asyncio.Task[object], check_access: CheckAccess) -> None:
        self.task = task
        self.check_access = check_access
        self.error: CallslipError | None = None


class Revocations:
    """The open requests of one server. The store is watched while there are some."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._requests: set[_OpenRequest] = set()
        self._watcher: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def cancel_when_refused(self, check_access: CheckAccess) -> AsyncGenerator[None]:
        """Cancel the block when a token was revoked and `check_access` raises an error. The block then raises it."""
        task = asyncio.current_task()
        assert task is not None
        request = _OpenRequest(task, check_access)
        self._requests.add(request)
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch())
        try:
            await check_access()  # The token may have been revoked since the request was admitted.
            yield
        except asyncio.CancelledError:
            if request.error is None or task.uncancel():
                raise
            raise request.error from None
        finally:
            self._requests.discard(request)
            if not self._requests:
                watcher, self._watcher = self._watcher, None
                watcher.cancel()

    async def _watch(self) -> None:
        feed = self._log.feed
        known: set[str] | None = None
        with feed.watch():
            while True:
                seen = feed.external_changes
                try:
                    tokens = {token.id for token in await list_tokens(self._log)}
                    if known is None or known - tokens:
                        await self._check_requests()
                    known = tokens
                    await feed.wait_external_change(seen)
                except StoreError:  # The disk may recover. If the ledger is closed, the end of the requests ends this.
                    await asyncio.sleep(RETRY_DELAY_S)

    async def _check_requests(self) -> None:
        for request in list(self._requests):
            try:
                await request.check_access()
            except StoreError:  # This says nothing about the rights of the request.
                raise
            except CallslipError as error:
                if request in self._requests and request.error is None:
                    request.error = error
                    request.task.cancel()
