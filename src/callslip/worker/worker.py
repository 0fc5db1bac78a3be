"""A worker: takes up the commands of a client, one after the other or several at once, and runs a function for each.

worker = callslip.Worker("http://127.0.0.1:7890", client="browser")

@worker.action("execute_js")
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
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from callslip.api.ledger import Ledger
from callslip.commands import Claim
from callslip.errors import CallslipError, InvalidInputError, NotFoundError
from callslip.worker.actions import Action
from callslip.worker.command_run import LATEST, SOONEST, Away, CommandRun, is_passing
from callslip.worker.desks import CommandSource, opened

UNBEGUN = 1.0
"""How often a worker looks whether the session that it works for has begun, in s."""

F = TypeVar("F", bound=Callable[..., Any])
LEASE = 30.0
SHORTEST = 0.1


class Worker:
    """Runs commands for whoever submits them. `server` is the URL of a server, a ledger, or the URL or path of one.

    A function may be async, sync (it runs in a thread of its own), or a generator of either kind, whose pieces are told
    as progress and whose last piece is the result. Params are its arguments by name; one that takes only `params`, or
    something annotated as Claim, is given all. What it raises becomes the error that the submitter reads: the type and
    the message, nothing else of this program.

    While it runs the lease is renewed, three times in its length. If the command is cancelled, runs out of time or is
    given to another worker, an async function is cancelled. A sync one cannot be stopped: it runs to its end, nothing
    else is begun in its place, and its result counts for nothing.
    """

    def __init__(
        self,
        server: str | Ledger | None = None,
        *,
        token: str = "",
        client: str = "default",
        session: str = "",
        concurrency: int = 1,
        lease: float = LEASE,
        name: str = "",
    ) -> None:
        if concurrency < 1:
            raise InvalidInputError("concurrency", f"{concurrency} commands at once are none")
        if not lease >= SHORTEST:
            raise InvalidInputError("lease", f"{lease:g} s are less than {SHORTEST} s")
        self.name = name or f"{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(3)}"
        self._server = server
        self._token = token
        self._client = client
        self._session = session
        self._concurrency = concurrency
        self._lease = lease
        self._actions: dict[str, Action] = {}
        self._errands: dict[asyncio.Task[None], CommandRun] = {}
        self._stop: asyncio.Event | None = None
        self._changed: asyncio.Event | None = None
        self._failure: BaseException | None = None

    def action(self, name: str = "") -> Callable[[F], F]:
        """Let a function run the commands with this action; its own name unless one is given."""

        def named(function: F) -> F:
            called = name or function.__name__
            if called in self._actions:
                raise InvalidInputError("action", f"{called!r} has a function already")
            self._actions[called] = Action(called, function)
            return function

        return named

    def run(self) -> None:
        """Work until Ctrl-C or SIGTERM, then give back or end what runs, and return. A second Ctrl-C waits no more."""

        async def until_told() -> None:
            with _signals(asyncio.get_running_loop(), self.stop):
                await self.serve()

        asyncio.run(until_told())

    def stop(self) -> None:
        """Let `serve` end. To be called in its loop."""
        if self._stop is not None:
            self._stop.set()

    async def serve(self) -> None:
        """Work until `stop`, or for ever."""
        if not self._actions:
            raise InvalidInputError("actions", "this worker has no function yet; give it one with @worker.action(...)")
        if self._stop is not None:
            raise InvalidInputError("worker", "works already")
        self._stop, self._changed, self._failure = asyncio.Event(), asyncio.Event(), None
        try:
            async with opened(self._server, self._token) as desk:
                away = Away(desk.where, _say)
                try:
                    await self._work(desk, away)
                finally:
                    await self._leave()
        finally:
            self._stop = None
        if self._failure is not None:
            raise self._failure

    async def _leave(self) -> None:
        tasks = list(self._errands)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._errands.clear()

    # Taking commands up

    async def _work(self, desk: CommandSource, away: Away) -> None:
        pause = SOONEST
        while await self._free():
            try:
                wait = 0.0 if away.away else desk.patience  # Whether it is back is known at once.
                claim = await self._claimed(desk, wait)
            except NotFoundError:
                if not self._session:
                    raise
                await self._until_stopped(UNBEGUN)
                continue
            except CallslipError as error:
                if not is_passing(error):
                    raise
                away.lost(error)
                await self._until_stopped(pause)
                pause = min(2 * pause, LATEST)
                continue
            away.reached()
            pause = SOONEST
            if claim is not None:
                self._begin(desk, claim, away)

    async def _free(self) -> bool:
        """Wait until one more may run. False if the worker is to stop."""
        assert self._stop is not None and self._changed is not None
        while not self._stop.is_set() and len(self._errands) >= self._concurrency:
            self._changed.clear()
            await _first(self._stop.wait(), self._changed.wait())
        return not self._stop.is_set()

    async def _until_stopped(self, seconds: float) -> None:
        assert self._stop is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _claimed(self, desk: CommandSource, wait: float) -> Claim | None:
        assert self._stop is not None
        asking = asyncio.ensure_future(
            desk.claim(self._client, worker=self.name, wait=wait, lease=self._lease, session=self._session)
        )
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([asking, stopping], return_when=asyncio.FIRST_COMPLETED)
            if self._stop.is_set():
                await self._decline(desk, asking)
                return None
            return asking.result()
        except asyncio.CancelledError:
            await self._decline(desk, asking)
            raise
        finally:
            stopping.cancel()

    async def _decline(self, desk: CommandSource, asking: asyncio.Future[Claim | None]) -> None:
        """What comes just now is for somebody else."""
        if desk.breaks_off:
            asking.cancel()
        await asyncio.wait([asking])
        if asking.cancelled() or asking.exception() is not None:
            return
        claim = asking.result()
        if claim is not None:
            with contextlib.suppress(CallslipError):
                if not await desk.give_back(claim, begun=False):
                    await desk.fail(claim, "the worker that took this command up was stopped before it began")

    # Running them

    def _begin(self, desk: CommandSource, claim: Claim, away: Away) -> None:
        before = [task for task, errand in self._errands.items() if errand.claim.call == claim.call]
        errand = CommandRun(desk, claim, self._lease, away, _say)
        task = asyncio.ensure_future(self._do(errand, before))
        self._errands[task] = errand
        task.add_done_callback(self._done)

    async def _do(self, errand: CommandRun, before: list[asyncio.Task[None]]) -> None:
        async def alone() -> None:
            """Never twice at once: what this worker still does for an earlier claim of the command ends first."""
            if before:
                await asyncio.wait(before)

        await errand.run(self._actions, alone)
        if errand.threads.busy:
            _say(f"{errand.claim.action} of command {errand.claim.correlation_id} cannot be stopped; waiting for it")
            await errand.threads.left()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._errands.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and self._failure is None:
            self._failure = error
            self.stop()
        if self._changed is not None:
            self._changed.set()


async def _first(*waits: Any) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _say(text: str) -> None:
    print(f"callslip worker: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Generator[None]:
    """The first Ctrl-C or SIGTERM stops; the next does what it does to any program."""
    kinds = (signal.SIGINT, signal.SIGTERM)

    def once() -> None:
        for kind in kinds:
            loop.remove_signal_handler(kind)
        stop()

    try:
        for kind in kinds:
            loop.add_signal_handler(kind, once)
    except (NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread.
        yield
        return
    try:
        yield
    finally:
        for kind in kinds:
            loop.remove_signal_handler(kind)
