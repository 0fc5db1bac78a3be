"""Send notices to webhooks, beside a server.

Notices are read from the ledger after each change, off the path of writes. A receiver has a queue of its own with a
limit; a notice that does not fit is found again with the next read, as long as it still applies.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable

from callslip.api.ledger import LocalLedger
from callslip.api.notices import NoticeClaims, complete_notice, find_notices, ledger_time
from callslip.errors import CallslipError, StoreError
from callslip.ledger.aio import cancel_all
from callslip.ledger.event_log import EventLog
from callslip.model.notices import Notice, NoticeKind
from callslip.notify.messages import encode_message, make_message
from callslip.notify.post import TIMEOUT_S, Outcome, post
from callslip.notify.settings import NotifySettings, Webhook

COALESCE_S = 0.5
"""How long changes are collected before the ledger is read."""
ERROR_DELAY_S = 5.0
MAX_QUEUED = 100
RETRY_DELAYS_S = (1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
MAX_ATTEMPTS = 15
"""With the delays above this is most of an hour."""
HOLD_MARGIN_S = 30.0
START_MARGIN_MS = 60_000
"""How long before the start of the server a turn may have ended of which a notice is sent."""
FULL_DELAY_MS = 1000
"""When to read again if a queue is full."""
FORGET_INTERVAL_S = 24 * 60 * 60.0

Report = Callable[[str], None]


class Notifier:
    """The receivers of one server, and the task that finds notices for them."""

    def __init__(
        self,
        log: EventLog,
        settings: NotifySettings,
        public_url: str,
        report: Report,
        delays_s: tuple[float, ...] = RETRY_DELAYS_S,
    ) -> None:
        self._log = log
        self._settings = settings
        self._report = report
        self._kinds: set[NoticeKind] = {kind for webhook in settings.webhooks for kind in webhook.events}
        self.current: dict[str, Notice] = {}
        self.has_read = asyncio.Event()
        """Set once `current` was read from the ledger."""
        self.receivers = [
            Receiver(self, log, webhook, settings, public_url, report, delays_s) for webhook in settings.webhooks
        ]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Send notices while the block runs."""
        tasks = [asyncio.ensure_future(receiver.run()) for receiver in self.receivers]
        tasks.append(asyncio.ensure_future(self._watch()))
        for task in tasks:
            task.add_done_callback(self._report_end)
        try:
            yield
        finally:
            await cancel_all(*tasks)

    def _report_end(self, task: asyncio.Future[None]) -> None:
        """Report that no more notices are sent, while the server still runs."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report(f"notifications have stopped: {error}")

    def _now(self) -> int:
        return ledger_time(self._log)

    async def _watch(self) -> None:
        feed, log = self._log.feed, self._log
        longest_s = max(self._settings.delays.finished, self._settings.delays.idle)
        since = self._now() - START_MARGIN_MS - int(longest_s * 1000)
        with feed.watch():
            while True:
                seen = feed.changes
                try:
                    self.current = await find_notices(log, self._settings.delays, self._kinds, since, self.current)
                    self.has_read.set()
                    await self._wait(seen, self._offer())
                except StoreError:  # The disk or the database may recover. If the ledger is closed, this ends soon.
                    await asyncio.sleep(ERROR_DELAY_S)
                await asyncio.sleep(COALESCE_S)

    def _offer(self) -> int | None:
        """Queue what is due. Return after how many ms to read again, None if only a change matters."""
        now = self._now()
        due = [notice for notice in self.current.values() if notice.due <= now]
        times = [notice.due for notice in self.current.values() if notice.due > now]
        for receiver in self.receivers:
            is_full = not receiver.offer(due, now)
            times += [*receiver.later.values(), *([now + FULL_DELAY_MS] if is_full else [])]
        return max(min(times) - now, 0) if times else None

    async def _wait(self, seen: int, wait_ms: int | None) -> None:
        """Wait for a change of the ledger, or for a time."""
        try:
            async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
                await self._log.feed.wait_change(seen)
        except TimeoutError:
            pass


class _Delivery:
    """A notice in the queue of a receiver."""

    def __init__(self, notice: Notice) -> None:
        self.notice = notice
        self.attempts = 0
        self.due = time.monotonic()
        self.is_sent: bool | None = None
        """Whether it was accepted or given up, None while it is to be sent."""


class Receiver:
    """A webhook with its queue. It sends one message at a time."""

    def __init__(
        self,
        notifier: Notifier,
        log: EventLog,
        webhook: Webhook,
        settings: NotifySettings,
        public_url: str,
        report: Report,
        delays_s: tuple[float, ...],
    ) -> None:
        self._notifier = notifier
        self._log = log
        self._webhook = webhook
        self._networks = settings.networks
        self._public_url = public_url
        self._report = report
        self._delays_s = delays_s
        self._claims = NoticeClaims(log, webhook.receiver)
        self._queue: dict[str, _Delivery] = {}
        self._arrived = asyncio.Event()
        self._done: set[str] = set()
        self._is_failing = False
        self.later: dict[str, int] = {}
        """The notices that another process sends, and when to check whether it did (ms)."""

    def offer(self, due: list[Notice], now: int) -> bool:
        """Add the notices that are due and were not sent yet. Return whether there was room for all of them."""
        current, is_full = self._notifier.current, False
        self._done &= current.keys()
        self.later = {notice: at for notice, at in self.later.items() if notice in current and at > now}
        for notice in due:
            is_new = notice.id not in self._done and notice.id not in self._queue and notice.id not in self.later
            if is_new and notice.kind in self._webhook.events:
                is_full = len(self._queue) >= MAX_QUEUED
                if is_full:
                    break
                self._queue[notice.id] = _Delivery(notice)
                self._arrived.set()
        return not is_full

    async def run(self) -> None:
        """Send what is in the queue, until this task is cancelled."""
        await self._notifier.has_read.wait()  # What is forgotten depends on what is current.
        forget_at = 0.0
        while True:
            try:
                if time.monotonic() >= forget_at:
                    await self._claims.forget_old(self._notifier.current)
                    forget_at = time.monotonic() + FORGET_INTERVAL_S
                await self._deliver(await self._next())
            except CallslipError:  # The ledger fails. What is not delivered stays in the queue.
                await asyncio.sleep(ERROR_DELAY_S)

    async def _next(self) -> _Delivery:
        """Return the next delivery when its time has come."""
        while True:
            self._arrived.clear()
            delivery = min(self._queue.values(), key=lambda one: one.due, default=None)
            wait_s = None if delivery is None else delivery.due - time.monotonic()
            if delivery is not None and wait_s is not None and wait_s <= 0:
                return delivery
            try:
                async with asyncio.timeout(wait_s):
                    await self._arrived.wait()
            except TimeoutError:
                pass

    async def _deliver(self, delivery: _Delivery) -> None:
        notice = delivery.notice
        if delivery.is_sent is not None:  # Only the ledger failed.
            return await self._finish(delivery, is_sent=delivery.is_sent)
        if notice.id not in self._notifier.current:  # It was answered, or the agent works again.
            await self._claims.release(notice.id)
            del self._queue[notice.id]
            return
        delay_s = self._delays_s[min(delivery.attempts, len(self._delays_s) - 1)]
        retry_at = await self._claims.claim(notice.id, TIMEOUT_S + delay_s + HOLD_MARGIN_S)
        if retry_at != 0:
            del self._queue[notice.id]
            if retry_at is None:
                self._done.add(notice.id)
            else:
                self.later[notice.id] = retry_at
            return
        outcome = await self._send(notice)
        self._report_outcome(outcome)
        delivery.attempts += 1
        if outcome.problem and outcome.may_retry and delivery.attempts < MAX_ATTEMPTS:
            delivery.due = time.monotonic() + max(delay_s, outcome.retry_after_s)
            if outcome.retry_after_s > delay_s:
                await self._claims.claim(notice.id, outcome.retry_after_s + HOLD_MARGIN_S)
        else:
            await self._finish(delivery, is_sent=not outcome.problem)

    async def _finish(self, delivery: _Delivery, *, is_sent: bool) -> None:
        """Store that a message was accepted or given up. If that fails it is stored later, and not sent again."""
        delivery.is_sent = is_sent
        await self._claims.finish(delivery.notice.id, is_sent=is_sent)
        del self._queue[delivery.notice.id]
        self._done.add(delivery.notice.id)

    async def _send(self, notice: Notice) -> Outcome:
        webhook = self._webhook
        complete = await complete_notice(self._log, notice)
        message = make_message(complete, self._public_url, include_text=webhook.include_text)
        body, headers = encode_message(webhook, message, int(time.time()))
        return await post(webhook, body, headers, self._networks)

    def _report_outcome(self, outcome: Outcome) -> None:
        """Report the first failure, and when it works again."""
        if bool(outcome.problem) != self._is_failing:
            self._is_failing = bool(outcome.problem)
            name = self._webhook.name
            self._report(
                f"notifications to {name} fail: {outcome.problem}" if outcome.problem else f"{name} is notified again"
            )


@contextlib.asynccontextmanager
async def notifying(
    ledger: LocalLedger, settings: NotifySettings, public_url: str, report: Report
) -> AsyncGenerator[None]:
    """Send notices of a ledger while the block runs."""
    if not settings.webhooks:
        yield
        return
    async with Notifier(ledger.log, settings, public_url, report).running():
        yield
