"""One command in the hands of a worker: its function runs, its lease is kept up, and what came of it is told.

Whether the command is still ours is known from the answers to the heartbeats. A server that does not answer has said
nothing: the function goes on, and its result is told when the server is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from callslip.api.call import describe_error, finish_despite_cancel
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
from callslip.worker.actions import Action, Threads
from callslip.worker.desks import CommandSource

SOONEST, LATEST = 0.1, 5.0
"""The pauses before asking again somebody who does not answer, in s."""
LONG_OVER = 60.0
"""For how long after its time was over it is still tried to tell a result, in s."""
HELD_BACK = 64 * 2**10
"""How many characters of progress may wait to be sent before the function has to."""
PARTING = 5.0
"""How long giving a command back may take when the worker is stopped, in s."""
STOPPED = "the worker that ran this command was stopped before it was done"

Say = Callable[[str], None]


def is_passing(error: BaseException) -> bool:
    """Whether it is worth trying again."""
    return isinstance(error, ServerUnavailableError) or (
        isinstance(error, StoreError) and not isinstance(error, ReadOnlyStoreError)
    )


class Away:
    """Whether the desk answers. Whoever watches is told once when it does not any more, and once when it is back."""

    def __init__(self, where: str, say: Say) -> None:
        self._where = where
        self._say = say
        self.away = False

    def reached(self) -> None:
        """It answers."""
        if self.away:
            self._say(f"{self._where} is back")
        self.away = False

    def lost(self, error: BaseException) -> None:
        """It does not."""
        if not self.away:
            self._say(f"{error}; trying again")
        self.away = True


class CommandRun:
    """A claimed command. `run` returns when nothing more is to be done for it."""

    def __init__(self, desk: CommandSource, claim: Claim, lease: float, away: Away, say: Say) -> None:
        self.claim = claim
        self.threads = Threads()
        self._desk = desk
        self._lease = lease
        self._away = away
        self._say = say
        self._text: list[str] = []
        self._held = 0
        self._more, self._sent = asyncio.Event(), asyncio.Event()
        self._over = False
        self._heard = time.monotonic()
        self._time = self._heard + _remaining(claim)

    async def run(self, actions: Mapping[str, Action], before: Callable[[], Awaitable[None]]) -> None:
        """Run the command's function, once what `before` waits for has happened."""

        async def work() -> Any:
            await before()
            try:
                return await _action(actions, self.claim).run(self.claim, self, self.threads)
            except SystemExit as error:  # It would end the loop, and all other commands with it.
                raise RuntimeError(f"the function called exit({error.code})") from error

        working = asyncio.ensure_future(work())
        beating = asyncio.ensure_future(self._beat())
        try:
            await asyncio.wait([working, beating], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                return  # Somebody else ended it, or has it: nobody wants the result.
            self._over = True
            self._more.set()
            await asyncio.wait([beating])
            await self._tell(working)
        except asyncio.CancelledError:
            await _ended(working, beating)
            await finish_despite_cancel(self._part(working))
            raise
        finally:
            await _ended(working, beating)
            if beating.done() and not beating.cancelled() and (error := beating.exception()) is not None:
                raise error

    # While it runs

    async def progress(self, text: str = "") -> None:
        """Tell more of the command. What comes faster than it can be sent is sent together."""
        self._text.append(text)
        self._held += len(text)
        self._more.set()
        while self._held > HELD_BACK:
            self._sent.clear()
            await self._sent.wait()

    async def _beat(self) -> None:
        """Keep the lease up until the function is done and all was sent, or the command is not ours any more."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lease / 3):
                    await self._more.wait()
            if self._over and not self._text:
                return
            self._more.clear()
            text, self._text = "".join(self._text), []
            if not await self._is_ours(text):
                return
            self._held = sum(map(len, self._text))
            self._sent.set()
            if self._over:
                self._more.set()

    async def _is_ours(self, text: str) -> bool:
        """Whether the lease was renewed. What cannot be told of the command is left out: it runs all the same."""
        try:
            await self._again(lambda: self._desk.heartbeat(self.claim, self._lease, text))
        except (ConflictError, NotFoundError):
            return False
        except InvalidInputError as error:
            self._say(f"progress of command {self.claim.correlation_id} was refused: {error}")
            return not text or await self._is_ours("")
        return True

    async def _again(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask until there is an answer, or so late that none is to be expected."""
        pause = SOONEST
        while True:
            try:
                await ask()
            except CallslipError as error:
                if not is_passing(error):
                    self._away.reached()
                    raise
                self._away.lost(error)
                if time.monotonic() > max(self._time, self._heard + self._lease) + LONG_OVER:
                    raise NotFoundError(f"nobody has answered for long: {error}") from error
            else:
                self._away.reached()
                self._heard = time.monotonic()
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LATEST, max(SOONEST, self._lease / 3))

    # At its end

    async def _tell(self, working: asyncio.Future[Any]) -> None:
        try:
            await self._again(lambda: self._outcome(working))
        except InvalidInputError as refusal:
            reason = f"what came out could not be kept: {refusal}"
            with contextlib.suppress(ConflictError, NotFoundError):
                await self._again(lambda: self._desk.fail(self.claim, reason))
        except (ConflictError, NotFoundError) as error:
            self._say(f"the result of command {self.claim.correlation_id} did not count: {error}")

    async def _outcome(self, working: asyncio.Future[Any]) -> None:
        error = asyncio.CancelledError() if working.cancelled() else working.exception()
        if error is None:
            await self._desk.complete(self.claim, working.result())
        else:
            await self._desk.fail(self.claim, describe_error(error))

    async def _part(self, working: asyncio.Future[Any]) -> None:
        """The worker is stopped. What was done is told; else it is given back, or said that it was not done."""
        try:
            async with asyncio.timeout(PARTING):
                if not working.cancelled():
                    await self._outcome(working)
                elif self.threads.busy and self.claim.idempotent:
                    return  # It still runs: others get it when the lease is over, and so is this process.
                elif not await self._desk.give_back(self.claim, begun=True):
                    await self._desk.fail(self.claim, STOPPED)
        except (ConflictError, NotFoundError):
            pass  # It had ended anyhow.
        except (CallslipError, TimeoutError) as error:
            self._say(f"what became of command {self.claim.correlation_id} could not be told: {error}")


def _action(actions: Mapping[str, Action], claim: Claim) -> Action:
    if claim.action in actions:
        return actions[claim.action]
    raise NoAction(f"no action {claim.action!r}; this worker knows {', '.join(sorted(actions))}")


class NoAction(LookupError):
    """A worker was given a command that it has no function for."""


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _remaining(claim: Claim) -> float:
    """How long a command has at most, in s; by the difference of two times of the same clock, whatever ours says."""
    if claim.expires_at is None:
        return 0.0
    try:
        return (datetime.fromisoformat(claim.expires_at) - datetime.fromisoformat(claim.created_at)).total_seconds()
    except ValueError:
        return 0.0
