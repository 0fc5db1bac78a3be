"""One claimed command: run its function, renew its lease, and report its result.

The answers to the heartbeats say whether the command is still ours. If the server does not respond, the
function continues, and its result is reported when the server responds again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from callslip.api.call import describe_error
from callslip.api.commands import Commands
from callslip.commands import Claim
from callslip.errors import (
    CallslipError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    ReadOnlyStoreError,
    ServerUnavailableError,
    StoreError,
)
from callslip.ledger.aio import cancel_all, finish_despite_cancel, wait_for_event
from callslip.worker.actions import Action, Threads

MIN_RETRY_DELAY_S, MAX_RETRY_DELAY_S = 0.1, 5.0
REPORT_RETRY_S = 60.0
"""How long after the command's deadline its result is still sent again."""
MAX_BUFFERED_CHARS = 64 * 2**10
"""How many characters of progress may be buffered before the function has to wait."""
STOP_TIMEOUT_S = 5.0
"""How long giving a command back may take when the worker is stopped."""
STOPPED_REASON = "the worker that ran this command was stopped before it was done"
RELEASE_REASON = "the worker that ran this command was stopped"

Report = Callable[[str], None]


def is_transient(error: BaseException) -> bool:
    """Return whether a failed request can be retried."""
    return isinstance(error, ServerUnavailableError) or (
        isinstance(error, StoreError) and not isinstance(error, ReadOnlyStoreError)
    )


class Connection:
    """Whether the ledger answers. Reports once when it stops answering, and once when it is back."""

    def __init__(self, name: str, report: Report) -> None:
        self.is_lost = False
        self._name = name
        self._report = report

    def reached(self) -> None:
        """Note that the ledger answers."""
        if self.is_lost:
            self._report(f"Reconnected to {self._name}")
        self.is_lost = False

    def lost(self, error: BaseException) -> None:
        """Note that the ledger does not answer."""
        if not self.is_lost:
            self._report(f"{error}; retrying")
        self.is_lost = True


class CommandRun:
    """A claimed command. `run` returns when nothing is left to do for it."""

    def __init__(self, commands: Commands, claim: Claim, lease: float, connection: Connection, report: Report) -> None:
        self.claim = claim
        self.threads = Threads()
        self._commands = commands
        self._lease = lease
        self._connection = connection
        self._report = report
        self._buffer: list[str] = []
        self._buffered_chars = 0
        self._has_progress, self._was_sent = asyncio.Event(), asyncio.Event()
        self._is_done = False
        self._last_answer = time.monotonic()
        self._deadline = self._last_answer + _seconds_left(claim)

    async def run(self, actions: Mapping[str, Action], wait_for_earlier: Callable[[], Awaitable[None]]) -> None:
        """Run the command's function once earlier runs of the command have ended."""

        async def work() -> Any:
            await wait_for_earlier()
            action = actions.get(self.claim.action)
            if action is None:
                raise UnknownActionError(
                    f"no action {self.claim.action!r}; this worker has {', '.join(sorted(actions))}"
                )
            try:
                return await action.run(self.claim, self, self.threads)
            except SystemExit as error:  # It would end the loop, and all other commands with it.
                raise RuntimeError(f"the function called exit({error.code})") from error

        work_task = asyncio.ensure_future(work())
        lease_task = asyncio.ensure_future(self._renew_lease())
        try:
            await asyncio.wait([work_task, lease_task], return_when=asyncio.FIRST_COMPLETED)
            if not work_task.done():
                return  # The command has ended or belongs to another worker: the result is not wanted.
            self._is_done = True
            self._has_progress.set()
            await asyncio.wait([lease_task])
            await self._report_result(work_task)
        except asyncio.CancelledError:
            await cancel_all(work_task, lease_task)
            await finish_despite_cancel(self._stop(work_task))
            raise
        finally:
            await cancel_all(work_task, lease_task)
            if lease_task.done() and not lease_task.cancelled() and (error := lease_task.exception()) is not None:
                raise error

    # While it runs

    async def progress(self, text: str = "") -> None:
        """Report progress. What comes faster than it can be sent is sent together."""
        self._buffer.append(text)
        self._buffered_chars += len(text)
        self._has_progress.set()
        while self._buffered_chars > MAX_BUFFERED_CHARS:
            self._was_sent.clear()
            await self._was_sent.wait()

    async def _renew_lease(self) -> None:
        """Renew the lease until the function is done and all progress was sent, or the command is no longer ours."""
        while True:
            await wait_for_event(self._has_progress, self._lease / 3)
            if self._is_done and not self._buffer:
                return
            self._has_progress.clear()
            text, self._buffer = "".join(self._buffer), []
            if not await self._send_heartbeat(text):
                return
            self._buffered_chars = sum(map(len, self._buffer))
            self._was_sent.set()
            if self._is_done:
                self._has_progress.set()

    async def _send_heartbeat(self, text: str) -> bool:
        """Return whether the lease was renewed. Progress that is refused is left out: the command still runs."""
        call, fence = self.claim.call, self.claim.fence
        try:
            await self._retry(lambda: self._commands.heartbeat(call, fence, lease=self._lease, text=text))
        except (ConflictError, NotFoundError):
            return False
        except InvalidInputError as error:
            self._report(f"progress of command {self.claim.correlation_id} was refused: {error}")
            return not text or await self._send_heartbeat("")
        return True

    async def _retry(self, request: Callable[[], Awaitable[object]]) -> None:
        """Send a request until it is answered, or until it is too late for an answer."""
        delay_s = MIN_RETRY_DELAY_S
        while True:
            try:
                await request()
            except CallslipError as error:
                if not is_transient(error):
                    self._connection.reached()
                    raise
                self._connection.lost(error)
                if time.monotonic() > max(self._deadline, self._last_answer + self._lease) + REPORT_RETRY_S:
                    raise NotFoundError(f"no answer for {REPORT_RETRY_S:g} s: {error}") from error
            else:
                self._connection.reached()
                self._last_answer = time.monotonic()
                return
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, MAX_RETRY_DELAY_S, max(MIN_RETRY_DELAY_S, self._lease / 3))

    # At its end

    async def _report_result(self, work_task: asyncio.Future[Any]) -> None:
        try:
            await self._retry(lambda: self._finish(work_task))
        except InvalidInputError as refusal:
            reason = f"the result could not be stored: {refusal}"
            with contextlib.suppress(ConflictError, NotFoundError):
                await self._retry(lambda: self._commands.fail(self.claim.call, reason, fence=self.claim.fence))
        except (ConflictError, NotFoundError) as error:
            self._report(f"the result of command {self.claim.correlation_id} was not accepted: {error}")

    async def _finish(self, work_task: asyncio.Future[Any]) -> None:
        call, fence = self.claim.call, self.claim.fence
        error = asyncio.CancelledError() if work_task.cancelled() else work_task.exception()
        if error is None:
            await self._commands.complete(call, work_task.result(), fence=fence)
        else:
            await self._commands.fail(call, describe_error(error), fence=fence)

    async def _stop(self, work_task: asyncio.Future[Any]) -> None:
        """Report the result, give the command back, or fail it, because the worker is stopped."""
        call, fence = self.claim.call, self.claim.fence
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                if not work_task.cancelled():
                    await self._finish(work_task)
                elif self.threads.busy and self.claim.idempotent:
                    return  # It still runs: another worker gets it when the lease has ended, and so has this process.
                elif self.claim.idempotent:
                    await self._commands.release(call, fence, RELEASE_REASON)
                else:
                    await self._commands.fail(call, STOPPED_REASON, fence=fence)
        except (ConflictError, NotFoundError):
            pass  # It has ended already.
        except (CallslipError, TimeoutError) as error:
            self._report(f"the end of command {self.claim.correlation_id} could not be reported: {error}")


class UnknownActionError(LookupError):
    """A worker claimed a command that it has no function for."""


def _seconds_left(claim: Claim) -> float:
    """Return how long a command may take, as the difference of two times of the same clock."""
    if claim.expires_at is None:
        return 0.0
    try:
        return (datetime.fromisoformat(claim.expires_at) - datetime.fromisoformat(claim.created_at)).total_seconds()
    except ValueError:
        return 0.0
