"""Functions of any kind as what a call runs: sync, async, generators of either sort."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

from callslip import codec
from callslip.call import Call


def bound_to(signature: inspect.Signature, input: Any) -> inspect.BoundArguments:
    """Arguments that somebody else made up, a model or a person. What does not fit is not run."""
    if not isinstance(input, dict):
        raise TypeError("the arguments are not an object")
    given = cast("dict[str, Any]", input)
    unknown = sorted(set(given) - set(signature.parameters))
    if unknown:
        raise TypeError(f"the arguments have no place in the function: {', '.join(unknown)}")
    return inspect.BoundArguments(signature, OrderedDict(given))


async def result_of(function: Callable[..., Any], given: inspect.BoundArguments, call: Call) -> Any:
    """Run a function of any kind; a sync one in a thread, so that the loop goes on."""
    run = functools.partial(function, *given.args, **given.kwargs)
    last: Any = None
    if inspect.isasyncgenfunction(function):
        async with contextlib.aclosing(run()) as items:
            async for last in items:
                await call.progress(_line(last))
        return last
    if inspect.isgeneratorfunction(function):
        generator = run()
        while (item := await _in_thread(functools.partial(next, generator, _DONE))) is not _DONE:
            last = item
            await call.progress(_line(item))
        return last
    if inspect.iscoroutinefunction(function):
        return await run()
    result = await _in_thread(run)
    return await result if inspect.isawaitable(result) else result


async def _in_thread(run: Callable[[], Any]) -> Any:
    def told() -> Any:
        try:
            return run()
        except StopIteration as error:  # No future can hold it: whoever waits would wait for ever.
            raise RuntimeError(f"the function raised StopIteration: {error}") from error

    return await asyncio.to_thread(told)


_DONE = object()


def _line(item: Any) -> str:
    return item if isinstance(item, str) else codec.encode(codec.safe(item)).decode() + "\n"
