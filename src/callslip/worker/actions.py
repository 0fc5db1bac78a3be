"""Functions as actions: how params become arguments, and where a sync function runs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any, cast

from callslip.commands import Claim
from callslip.rules.function_schema import ProgressSink, bind_arguments, run_function

Function = Callable[..., Any]


class Action:
    """A named function. It receives a command's params by name.

    A function with a single parameter that is called `params`, or annotated as Claim, receives everything.
    """

    def __init__(self, name: str, function: Function) -> None:
        self.name = name
        self._function = function
        self._signature = inspect.signature(function)
        self._single = _single_parameter(function, self._signature)

    def bind(self, claim: Claim) -> inspect.BoundArguments:
        """Return the arguments for a command, or raise TypeError if they do not match."""
        if self._single is not None:
            return self._signature.bind(claim if self._single is Claim else claim.params)
        params: Any = {} if claim.params is None else claim.params
        parameters = self._signature.parameters.values()
        if isinstance(params, dict) and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return self._signature.bind(**cast("dict[str, Any]", params))
        return bind_arguments(self._signature, params)

    async def run(self, claim: Claim, tells: ProgressSink, threads: Threads) -> Any:
        """Run the function and return its result."""
        return await run_function(self._function, self.bind(claim), tells, threads.run)


def _single_parameter(function: Function, signature: inspect.Signature) -> Any:
    """Return Claim or dict if the function's only parameter receives everything, else None."""
    if len(signature.parameters) != 1:
        return None
    (parameter,) = signature.parameters.values()
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return None
    try:
        annotation = inspect.get_annotations(function, eval_str=True).get(parameter.name)
    except Exception:  # Names that only a type checker can see.
        annotation = parameter.annotation
    if annotation is Claim or (isinstance(annotation, str) and annotation.rpartition(".")[2] == "Claim"):
        return Claim
    return dict if parameter.name == "params" else None


class Threads:
    """The threads that run the sync functions of one command. A thread cannot be stopped; it ends with the process.

    They are not the loop's own threads, so neither their number nor one that hangs blocks the loop's other work.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Future[Any]] = set()

    @property
    def busy(self) -> bool:
        """Whether a function still runs, even if its result is no longer awaited."""
        return bool(self._running)

    async def wait_for_threads(self) -> None:
        """Wait for the functions that could not be stopped."""
        while self._running:
            await asyncio.wait(self._running)

    async def run(self, work: Callable[[], Any]) -> Any:
        """Return the result of `work`, run in a thread of its own."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def done(result: Any, error: BaseException | None) -> None:
            self._running.discard(future)
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
                future.exception()  # Mark it as retrieved: the waiter may be gone.

        def thread() -> None:
            result, error = None, None
            try:
                result = context.run(work)
            except KeyboardInterrupt as raised:  # Ctrl-C never reaches a thread: this one must not end the loop.
                error = RuntimeError("the function raised KeyboardInterrupt")
                error.__cause__ = raised
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(done, result, error)

        self._running.add(future)
        threading.Thread(target=thread, name="callslip-action", daemon=True).start()
        return await asyncio.shield(future)
