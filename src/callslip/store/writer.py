"""The one thread that writes a SQLite file, and its group commit.

Whatever waits when a transaction begins goes into it: 64 writers share one sync of the disk. Results come back to the
event loop in one call per transaction. A refused write leaves no trace; a failed commit fails all that were in it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import apsw

from callslip.errors import StoreError
from callslip.model.records import CallRecord
from callslip.store.protocol import StoredEvent
from callslip.store.sql import Connection
from callslip.store.sqlite_open import plain_errors
from callslip.store.sqlite_rows import Rows, flush
from callslip.store.unit_of_work import UnitOfWork
from callslip.store.write_lock import WriteLock

MAX_BATCH = 1024

Done = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Task:
    """Something to do in a transaction: a decision on a unit of work, or (`alone`) on the bare connection.

    What can be derived again need not be `durable`: it is spared its sync of the disk.
    """

    __slots__ = ("alone", "durable", "future", "work")

    def __init__(
        self, work: Callable[[Any], Any], future: asyncio.Future[Any], alone: bool = False, durable: bool = True
    ) -> None:
        self.work = work
        self.future = future
        self.alone = alone
        self.durable = durable


class WriteResult:
    """What a transaction made durable: events, and commands as they stand by them."""

    __slots__ = ("commands", "events")

    def __init__(self, unit: UnitOfWork | None = None) -> None:
        self.events: list[StoredEvent] = unit.events if unit else []
        self.commands: list[CallRecord] = unit.commands() if unit else []

    def add(self, unit: UnitOfWork) -> None:
        self.events += unit.events
        self.commands += unit.commands()


class Writer:
    """Runs tasks in the order they came, those that want to be alone after the others.

    `deliver` gets, on the loop, what each transaction made durable.
    """

    def __init__(
        self,
        connection: Connection,
        path: str,
        turnstile: WriteLock,
        deliver: Callable[[list[StoredEvent], list[CallRecord]], None],
        synchronous: str = "FULL",
    ) -> None:
        self._connection = connection
        self._path = path
        self._turnstile = turnstile
        self._deliver = deliver
        self._synchronous = synchronous
        self._rows = Rows(connection)
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="callslip-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Any], Any], *, alone: bool = False, durable: bool = True) -> asyncio.Future[Any]:
        """Queue a task; the future is done when its transaction is durable."""
        if self._closed:
            raise StoreError("the ledger is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._tasks.put(Task(work, future, alone, durable))
        return future

    async def close(self) -> None:
        """Finish what was submitted, then end the thread."""
        if not self._closed:
            self._closed = True
            self._tasks.put(None)
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        goes_on = True
        while goes_on:
            batch, goes_on = self._drain()
            together = [task for task in batch if not task.alone]
            if together:
                self._transact(together)
            for task in batch:
                if task.alone:
                    self._transact([task])

    def _drain(self) -> tuple[list[Task], bool]:
        task = self._tasks.get()
        batch: list[Task] = []
        try:
            while task is not None:
                batch.append(task)
                if len(batch) >= MAX_BATCH:
                    return batch, True
                task = self._tasks.get_nowait()
        except Empty:
            return batch, True
        return batch, False

    def _transact(self, batch: list[Task]) -> None:
        results: list[Done] = []
        made = WriteResult()
        try:
            with plain_errors(self._path), self._turnstile.turn():
                made = self._within(batch, results)
        except BaseException as error:  # Every writer of the batch must hear of it, or it would wait for ever.
            results = [(task.future, None, error) for task in batch]
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._settle, results, made)

    def _within(self, batch: list[Task], results: list[Done]) -> WriteResult:
        try:
            if batch[0].alone:
                results.append((batch[0].future, self._alone(batch[0]), None))
                return WriteResult()
            self._connection.execute("BEGIN IMMEDIATE")
            return self._together(batch, results)
        except BaseException:
            self._rows.forget()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _together(self, batch: list[Task], results: list[Done]) -> WriteResult:
        self._rows.begin()
        unit = UnitOfWork(self._rows)
        try:
            done: list[Done] = [(task.future, task.work(unit), None) for task in batch]
        except apsw.Error:  # The transaction itself is in doubt, for all that are in it.
            raise
        except Exception:
            return self._one_by_one(batch, results)
        flush(self._connection, unit)
        self._connection.execute("COMMIT")
        self._rows.remember(unit)
        results += done
        return WriteResult(unit)

    def _one_by_one(self, batch: list[Task], results: list[Done]) -> WriteResult:
        """One of them is refused: each is decided on what those before it wrote. Deciding again has no other effect."""
        made = WriteResult()
        for task in batch:
            unit = UnitOfWork(self._rows)
            try:
                results.append((task.future, task.work(unit), None))
            except apsw.Error:
                raise
            except Exception as error:
                results.append((task.future, None, error))
                continue
            flush(self._connection, unit)
            self._rows.remember(unit)
            made.add(unit)
        self._connection.execute("COMMIT")
        return made

    def _alone(self, task: Task) -> Any:
        run = self._connection.execute
        if not task.durable:
            run("PRAGMA synchronous = NORMAL")
        try:
            run("BEGIN IMMEDIATE")
            value = task.work(self._connection)
            run("COMMIT")
            return value
        finally:
            if self._connection.in_transaction:
                run("ROLLBACK")
            if task.durable:
                self._rows.forget()
            else:
                run(f"PRAGMA synchronous = {self._synchronous}")

    def _settle(self, results: list[Done], made: WriteResult) -> None:
        try:
            if made.events or made.commands:
                self._deliver(made.events, made.commands)
        finally:  # A listener that fails leaves no writer waiting.
            for future, value, error in results:
                if future.done():
                    continue
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(value)
