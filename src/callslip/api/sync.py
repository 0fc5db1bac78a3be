"""The door for programs without an event loop: the ledger runs in a thread, and this waits for it.

with callslip.blocking("sqlite:///agent.db") as door:
    session = door.ledger.session("thread-1")
    with door.enter(session.call("ls", {"path": "."})) as call:
        call.complete(["a.txt"])
    print(door.run(session.snapshot()).entries)
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Generator
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import TypeVar

from callslip.api.ledger import Ledger, open_ledger
from callslip.settings import Settings

T = TypeVar("T")


class SyncLedger:
    """`run` waits for anything awaitable, `enter` turns an `async with` into a `with`."""

    ledger: Ledger

    def __init__(self, url: str, settings: Settings | None = None) -> None:
        self._url = url
        self._settings = settings

    def __enter__(self) -> SyncLedger:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="callslip-loop", daemon=True)
        self._thread.start()
        try:
            self.ledger = self.run(open_ledger(self._url, self._settings))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self.ledger.close())
        finally:
            self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, awaited: Awaitable[T]) -> T:
        """The result of something awaitable, from a thread without a loop."""

        async def wait() -> T:
            return await awaited

        future = asyncio.run_coroutine_threadsafe(wait(), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    @contextmanager
    def enter(self, manager: AbstractAsyncContextManager[T]) -> Generator[T]:
        """An async context manager, entered and left from here.

        One task of the loop is inside it all the while, so that a timeout of the block strikes when it is due; the
        program hears of it when it leaves the block.
        """
        entered: Future[T] = Future()
        leaving: asyncio.Future[BaseException | None] = self._loop.create_future()
        stay = asyncio.run_coroutine_threadsafe(_inside(manager, entered, leaving), self._loop)
        stay.add_done_callback(lambda _: entered.cancel())
        value = self._entered(entered, stay)
        try:
            yield value
        except BaseException as error:
            if not self._left(leaving, stay, error):
                raise
        else:
            self._left(leaving, stay, None)

    def _entered(self, entered: Future[T], stay: Future[bool]) -> T:
        try:
            return entered.result()
        except CancelledError:
            stay.result()  # Raises what kept it from being entered.
            raise
        except KeyboardInterrupt:
            stay.cancel()
            raise

    def _left(
        self, leaving: asyncio.Future[BaseException | None], stay: Future[bool], error: BaseException | None
    ) -> bool:
        self._loop.call_soon_threadsafe(lambda: leaving.done() or leaving.set_result(error))
        return stay.result()


async def _inside(
    manager: AbstractAsyncContextManager[T], entered: Future[T], leaving: asyncio.Future[BaseException | None]
) -> bool:
    """Whether the manager took the error. It is handed over, not raised here: the loop is not to end by it."""
    entered.set_result(await manager.__aenter__())
    try:
        error = await leaving
    except asyncio.CancelledError as cancelled:
        await manager.__aexit__(type(cancelled), cancelled, cancelled.__traceback__)
        raise
    if error is None:
        return bool(await manager.__aexit__(None, None, None))
    return bool(await manager.__aexit__(type(error), error, error.__traceback__))
