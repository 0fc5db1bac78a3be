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
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import TypeVar

from callslip.ledger import Ledger, open_ledger
from callslip.settings import Settings

T = TypeVar("T")


class Blocking:
    """`run` waits for anything awaitable, `enter` turns an `async with` into a `with`."""

    ledger: Ledger

    def __init__(self, url: str, settings: Settings | None = None) -> None:
        self._url = url
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="callslip-loop", daemon=True)

    def __enter__(self) -> Blocking:
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
        """An async context manager, entered and left from here."""
        value = self.run(manager.__aenter__())
        try:
            yield value
        except BaseException as error:
            if not self.run(manager.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self.run(manager.__aexit__(None, None, None))
