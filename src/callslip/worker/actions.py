"""Functions as actions: what of a command becomes which argument, and where a sync function runs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any, cast

from callslip.commands import Claim
from callslip.rules.function_schema import Tells, bind_arguments, run_function

Function = Callable[..., Any]


class Action:
    """A function with a name. It is given a command's params by name; or, if it takes one thing only, all of it.

    That one thing is called `params`, or annotated as Claim.
    """

    def __init__(self, name: str, function: Function) -> None:
        self.name = name
        self._function = function
        self._signature = inspect.signature(function)
        self._whole = _whole(function, self._signature)

    def bound(self, claim: Claim) -> inspect.BoundArguments:
        """The arguments for a command; TypeError if they do not fit."""
        if self._whole is not None:
            return self._signature.bind(claim if self._whole is Claim else claim.params)
        given: Any = {} if claim.params is None else claim.params
        if isinstance(given, dict) and any(one.kind is one.VAR_KEYWORD for one in self._signature.parameters.values()):
            return self._signature.bind(**cast("dict[str, Any]", given))
        return bind_arguments(self._signature, given)

    async def run(self, claim: Claim, tells: Tells, threads: Threads) -> Any:
        """What the function makes of a command."""
        return await run_function(self._function, self.bound(claim), tells, threads.run)


def _whole(function: Function, signature: inspect.Signature) -> Any:
    """Claim or dict, if the function's one parameter stands for all; else None."""
    if len(signature.parameters) != 1:
        return None
    (one,) = signature.parameters.values()
    if one.kind not in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
        return None
    try:
        told = inspect.get_annotations(function, eval_str=True).get(one.name)
    except Exception:  # Names that only a type checker can see.
        told = one.annotation
    if told is Claim or (isinstance(told, str) and told.rpartition(".")[2] == "Claim"):
        return Claim
    return dict if one.name == "params" else None


class Threads:
    """Where the sync functions of one command run. Nothing can stop a thread: it is left alone, and ends with Python.

    They are no threads of the loop's own, so that neither their number nor one that hangs keeps the loop from anything.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Future[Any]] = set()

    @property
    def busy(self) -> bool:
        """Whether a function still runs, though nobody may wait for it any more."""
        return bool(self._running)

    async def left(self) -> None:
        """Wait for functions that could not be stopped."""
        while self._running:
            await asyncio.wait(self._running)

    async def run(self, work: Callable[[], Any]) -> Any:
        """The result of some work, in a thread of its own."""
        loop = asyncio.get_running_loop()
        made: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def done(result: Any, error: BaseException | None) -> None:
            self._running.discard(made)
            if error is None:
                made.set_result(result)
            else:
                made.set_exception(error)
                made.exception()  # Else Python complains of one that nobody waits for.

        def thread() -> None:
            result, error = None, None
            try:
                result = context.run(work)
            except KeyboardInterrupt as raised:  # Nobody's Ctrl-C comes to a thread: it is no reason to end the loop.
                error = RuntimeError("the function raised KeyboardInterrupt")
                error.__cause__ = raised
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(done, result, error)

        self._running.add(made)
        threading.Thread(target=thread, name="callslip-action", daemon=True).start()
        return await asyncio.shield(made)
