"""A worker: claims the commands of a queue, one or several at once, and runs a function for each.

worker = callslip.Worker(callslip.connect("http://127.0.0.1:7890"), queue="browser")

@worker.action
async def execute_js(script: str) -> object: ...

worker.run()
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any, TypeVar, overload

from callslip.api.commands import Commands
from callslip.api.ledger import Ledger, OpenLedger
from callslip.client.open import describe, open_any
from callslip.commands import Claim
from callslip.errors import CallslipError, InvalidInputError, NotFoundError
from callslip.ledger.aio import cancel_all, race, wait_for_event
from callslip.worker.actions import Action
from callslip.worker.command_run import (
    MAX_RETRY_DELAY_S,
    MIN_RETRY_DELAY_S,
    RELEASE_REASON,
    CommandRun,
    Connection,
    is_transient,
)

SESSION_POLL_S = 1.0
"""How often a worker checks whether the session that it works for exists."""
LEASE_S = 30.0
MIN_LEASE_S = 0.1
F = TypeVar("F", bound=Callable[..., Any])


class Worker:
    """Runs the commands of a queue.

    `ledger` is an open ledger, `callslip.open(...)`, `callslip.connect(...)`, or the URL of a server, or the path or
    URL of a database. The default is $CALLSLIP_SERVER, else the default database.

    A function may be async, sync (it runs in a thread of its own), or a generator of either kind, whose items are
    progress and whose last item is the result. The command's params are its arguments by name; a function with the
    single parameter `params`, or with one annotated as Claim, receives everything. What it raises becomes the error of
    the command: the type and the message.

    The lease is renewed three times in its length. If the command is cancelled, expires or is given to another worker,
    an async function is cancelled. A sync one cannot be stopped: it runs to its end, counts toward `concurrency` until
    then, and its result is discarded.
    """

    def __init__(
        self,
        ledger: Ledger | OpenLedger[Any] | str | Path | None = None,
        *,
        token: str = "",
        queue: str = "default",
        session: str = "",
        concurrency: int = 1,
        lease: float = LEASE_S,
        name: str = "",
    ) -> None:
        if concurrency < 1:
            raise InvalidInputError("concurrency", f"must be at least 1, got {concurrency}")
        if not lease >= MIN_LEASE_S:
            raise InvalidInputError("lease", f"must be at least {MIN_LEASE_S} s, got {lease:g}")
        self.name = name or f"{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(3)}"
        self._ledger = ledger
        self._token = token
        self._queue = queue
        self._session = session
        self._concurrency = concurrency
        self._lease = lease
        self._actions: dict[str, Action] = {}
        self._runs: dict[asyncio.Task[None], CommandRun] = {}
        self._stop: asyncio.Event | None = None
        self._run_ended: asyncio.Event | None = None
        self._failure: BaseException | None = None

    @overload
    def action(self, name: F, /) -> F: ...
    @overload
    def action(self, name: str = "", /) -> Callable[[F], F]: ...
    def action(self, name: Any = "", /) -> Any:
        """Let a function run the commands with this action; by default the action is the function's name."""

        def register(function: F) -> F:
            action = name if isinstance(name, str) and name else function.__name__
            if action in self._actions:
                raise InvalidInputError("action", f"{action!r} already has a function")
            self._actions[action] = Action(action, function)
            return function

        return register if isinstance(name, str) else register(name)

    def run(self) -> None:
        """Run until Ctrl-C or SIGTERM, then give back or end what is in progress. A second Ctrl-C does not wait."""

        async def run_until_signal() -> None:
            with _stop_on_signals(asyncio.get_running_loop(), self.stop):
                await self.serve()

        asyncio.run(run_until_signal())

    def stop(self) -> None:
        """Let `serve` end. Call it in its event loop."""
        if self._stop is not None:
            self._stop.set()

    async def serve(self) -> None:
        """Run until `stop` is called."""
        if not self._actions:
            raise InvalidInputError("actions", "this worker has no functions; add one with @worker.action")
        if self._stop is not None:
            raise InvalidInputError("worker", "is already running")
        self._stop, self._run_ended, self._failure = asyncio.Event(), asyncio.Event(), None
        try:
            async with self._open_ledger() as ledger:
                connection = Connection(describe(ledger), _print_status)
                try:
                    await self._claim_and_run(ledger.commands, connection)
                finally:
                    await cancel_all(*self._runs)
                    self._runs.clear()
        finally:
            self._stop = None
        if self._failure is not None:
            raise self._failure

    @contextlib.asynccontextmanager
    async def _open_ledger(self) -> AsyncGenerator[Ledger]:
        ledger = self._ledger
        if ledger is None or isinstance(ledger, str | Path):
            ledger = open_any(None if ledger is None else str(ledger), token=self._token)
        if isinstance(ledger, OpenLedger):
            async with ledger as opened:
                yield opened
        else:
            yield ledger

    # Claiming

    async def _claim_and_run(self, commands: Commands, connection: Connection) -> None:
        assert self._stop is not None
        delay_s = MIN_RETRY_DELAY_S
        while await self._wait_for_capacity():
            try:
                # While the connection is lost do not wait for commands: the answer shows at once that it is back.
                claim = await self._claim(commands, 0.0 if connection.is_lost else commands.max_claim_wait_s)
            except NotFoundError:
                if not self._session:
                    raise
                await wait_for_event(self._stop, SESSION_POLL_S)
                continue
            except CallslipError as error:
                if not is_transient(error):
                    raise
                connection.lost(error)
                await wait_for_event(self._stop, delay_s)
                delay_s = min(2 * delay_s, MAX_RETRY_DELAY_S)
                continue
            connection.reached()
            delay_s = MIN_RETRY_DELAY_S
            if claim is not None:
                self._start(commands, claim, connection)

    async def _wait_for_capacity(self) -> bool:
        """Wait until one more command may run. Return False if the worker should stop."""
        assert self._stop is not None and self._run_ended is not None
        while not self._stop.is_set() and len(self._runs) >= self._concurrency:
            self._run_ended.clear()
            await race(self._stop.wait(), self._run_ended.wait())
        return not self._stop.is_set()

    async def _claim(self, commands: Commands, wait: float) -> Claim | None:
        assert self._stop is not None
        claiming = asyncio.ensure_future(
            commands.claim(self._queue, worker=self.name, wait=wait, lease=self._lease, session=self._session)
        )
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([claiming, stopping], return_when=asyncio.FIRST_COMPLETED)
            if self._stop.is_set():
                await self._decline(commands, claiming)
                return None
            return claiming.result()
        except asyncio.CancelledError:
            await self._decline(commands, claiming)
            raise
        finally:
            stopping.cancel()

    async def _decline(self, commands: Commands, claiming: asyncio.Future[Claim | None]) -> None:
        """Give back a command that arrives while the worker stops."""
        if commands.can_cancel_claim:
            claiming.cancel()
        await asyncio.wait([claiming])
        if claiming.cancelled() or claiming.exception() is not None:
            return
        claim = claiming.result()
        if claim is not None:
            with contextlib.suppress(CallslipError):
                await commands.release(claim.call, claim.fence, RELEASE_REASON)

    # Running

    def _start(self, commands: Commands, claim: Claim, connection: Connection) -> None:
        earlier = [task for task, run in self._runs.items() if run.claim.call == claim.call]
        run = CommandRun(commands, claim, self._lease, connection, _print_status)
        task = asyncio.ensure_future(self._run_command(run, earlier))
        self._runs[task] = run
        task.add_done_callback(self._on_run_done)

    async def _run_command(self, run: CommandRun, earlier: list[asyncio.Task[None]]) -> None:
        async def wait_for_earlier() -> None:
            """Wait for runs of the same command under an earlier claim: a command never runs twice at once here."""
            if earlier:
                await asyncio.wait(earlier)

        await run.run(self._actions, wait_for_earlier)
        if run.threads.busy:
            claim = run.claim
            _print_status(f"{claim.action} of command {claim.correlation_id} cannot be stopped; waiting for it")
            await run.threads.wait_for_threads()

    def _on_run_done(self, task: asyncio.Task[None]) -> None:
        self._runs.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and self._failure is None:
            self._failure = error
            self.stop()
        if self._run_ended is not None:
            self._run_ended.set()


def _print_status(text: str) -> None:
    print(f"callslip worker: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _stop_on_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Generator[None]:
    """Call `stop` on the first Ctrl-C or SIGTERM; the next one has its default effect."""
    signals = (signal.SIGINT, signal.SIGTERM)

    def stop_once() -> None:
        for number in signals:
            loop.remove_signal_handler(number)
        stop()

    try:
        for number in signals:
            loop.add_signal_handler(number, stop_once)
    except (NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread.
        yield
        return
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
