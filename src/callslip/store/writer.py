"""The thread that writes to a SQLite file, with group commit.

All tasks that are queued when a transaction begins share it: 64 writers need one sync of the disk. Results return to
the event loop in one call per transaction. A refused task writes nothing; a failed commit fails all its tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import apsw

from callslip.errors import StoreError
from callslip.model.records import CallRecord, SessionRecord
from callslip.store.ledger_files import LedgerFiles
from callslip.store.protocol import StoredEvent
from callslip.store.sql import Connection
from callslip.store.sqlite_open import empty_wal, translate_errors
from callslip.store.sqlite_rows import Rows, flush
from callslip.store.unit_of_work import UnitOfWork
from callslip.store.write_lock import WriteLock

MAX_BATCH = 1024
ERASE_DELAY_S = 1.0
"""How long deleted secrets may stay in the WAL."""

Done = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Task(NamedTuple):
    """A function to run in a transaction, on a unit of work or, if `alone`, on the connection itself.

    Data that can be rebuilt from the log need not be `durable`, which saves a sync of the disk. What a task that
    `erases` deletes is soon removed from the WAL too.
    """

    work: Callable[[Any], Any]
    future: asyncio.Future[Any]
    alone: bool
    durable: bool
    erases: bool


class Writer:
    """Runs tasks in order, `alone` ones after the others of their batch.

    `deliver` is called on the loop with the events and commands that were written, `deliver_sessions` with the sessions
    and the time of their transaction.
    """

    def __init__(
        self,
        connection: Connection,
        path: str,
        write_lock: WriteLock,
        files: LedgerFiles,
        deliver: Callable[[list[StoredEvent], list[CallRecord]], None],
        deliver_sessions: Callable[[list[SessionRecord], int], None],
        synchronous: str = "FULL",
    ) -> None:
        self._connection = connection
        self._path = path
        self._write_lock = write_lock
        self._files = files
        self._deliver = deliver
        self._deliver_sessions = deliver_sessions
        self._synchronous = synchronous
        self._rows = Rows(connection)
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._closed = False
        self._erase_at = math.inf
        self._thread = threading.Thread(target=self._run, name="callslip-writer", daemon=True)
        self._thread.start()

    def submit(
        self, work: Callable[[Any], Any], *, alone: bool = False, durable: bool = True, erases: bool = False
    ) -> asyncio.Future[Any]:
        """Queue a task and return a future that is done when its transaction is durable."""
        if self._closed:
            raise StoreError("the ledger is closed")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._tasks.put(Task(work, future, alone, durable, erases))
        return future

    async def close(self) -> None:
        """Finish the queued tasks, then end the thread."""
        if not self._closed:
            self._closed = True
            self._tasks.put(None)
            await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._drain()
            group = [task for task in batch if not task.alone]
            if group:
                self._transact(group)
            for task in batch:
                if task.alone:
                    self._transact([task])
            if self._erase_at <= time.monotonic() or (not is_open and self._erase_at < math.inf):
                self._erase()

    def _erase(self) -> None:
        """Empty the WAL, whose old pages have what was deleted. It is tried again later if a reader needs them."""
        self._erase_at = time.monotonic() + ERASE_DELAY_S
        with contextlib.suppress(StoreError), translate_errors(self._path), self._write_lock.turn():
            self._files.check()
            if empty_wal(self._connection):
                self._erase_at = math.inf

    def _erase_soon(self) -> None:
        self._erase_at = min(self._erase_at, time.monotonic() + ERASE_DELAY_S)

    def _drain(self) -> tuple[list[Task], bool]:
        """Wait for a task; return it with all queued ones, and whether the writer is still open."""
        batch: list[Task] = []
        try:
            wait = None if self._erase_at == math.inf else max(0.0, self._erase_at - time.monotonic())
            task = self._tasks.get(timeout=wait)
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
        written: list[UnitOfWork] = []
        try:
            with translate_errors(self._path), self._write_lock.turn():
                self._files.check()
                written = self._run_batch(batch, results)
        except BaseException as error:  # Every task of the batch must get it, or its caller would wait forever.
            results = [(task.future, None, error) for task in batch]
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._settle, results, written)

    def _run_batch(self, batch: list[Task], results: list[Done]) -> list[UnitOfWork]:
        """Run tasks in a transaction, add their results, and return what they wrote."""
        try:
            if batch[0].alone:
                results.append((batch[0].future, self._alone(batch[0]), None))
                return []
            self._connection.execute("BEGIN IMMEDIATE")
            return self._run_group(batch, results)
        except BaseException:
            self._rows.clear_cache()
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _run_group(self, batch: list[Task], results: list[Done]) -> list[UnitOfWork]:
        self._rows.begin()
        unit = UnitOfWork(self._rows)
        try:
            done: list[Done] = [(task.future, task.work(unit), None) for task in batch]
        except apsw.Error:  # The whole transaction failed.
            raise
        except Exception:
            return self._one_by_one(batch, results)
        has_erased = flush(self._connection, unit)
        self._connection.execute("COMMIT")
        self._rows.update_cache(unit)
        if has_erased:
            self._erase_soon()
        results += done
        return [unit]

    def _one_by_one(self, batch: list[Task], results: list[Done]) -> list[UnitOfWork]:
        """Run the tasks of a batch again, each with a unit of its own, because one of them failed."""
        written: list[UnitOfWork] = []
        for task in batch:
            unit = UnitOfWork(self._rows)
            try:
                results.append((task.future, task.work(unit), None))
            except apsw.Error:
                raise
            except Exception as error:
                results.append((task.future, None, error))
                continue
            if flush(self._connection, unit):
                self._erase_soon()
            self._rows.update_cache(unit)
            written.append(unit)
        self._connection.execute("COMMIT")
        return written

    def _alone(self, task: Task) -> Any:
        run = self._connection.execute
        if not task.durable:
            run("PRAGMA synchronous = NORMAL")
        try:
            run("BEGIN IMMEDIATE")
            value = task.work(self._connection)
            run("COMMIT")
            if task.erases:
                self._erase_soon()
            return value
        finally:
            if self._connection.in_transaction:
                run("ROLLBACK")
            if task.durable:
                self._rows.clear_cache()
            else:
                run(f"PRAGMA synchronous = {self._synchronous}")

    def _settle(self, results: list[Done], written: list[UnitOfWork]) -> None:
        try:
            events = [event for unit in written for event in unit.events]
            commands = [command for unit in written for command in unit.commands()]
            if events or commands:
                self._deliver(events, commands)
            for unit in written:
                self._deliver_sessions(list(unit.sessions.values()), unit.now)
        finally:  # Callers get their result even if a listener fails.
            for future, value, error in results:
                if future.done():
                    continue
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(value)
