"""`@callslip.tool`: a function whose every call is recorded in the current session."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from callslip.api.call import CallOptions
from callslip.api.session import current_session
from callslip.model import codec
from callslip.rules.function_schema import bind_arguments, function_schema, run_function

P = ParamSpec("P")
R = TypeVar("R")


class ToolDecorator(Protocol):
    """What `tool(...)` with arguments returns."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Callable[P, Awaitable[R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, Awaitable[R]]: ...


@overload
def tool(function: Callable[P, Awaitable[R]], /) -> Callable[P, Awaitable[R]]: ...
@overload
def tool(function: Callable[P, R], /) -> Callable[P, Awaitable[R]]: ...
@overload
def tool(*, name: str = "", approval: bool = False, timeout: float | None = None) -> ToolDecorator: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    approval: bool = False,
    timeout: float | None = None,
) -> Any:
    """Record every call of a function in the current session.

    The function may be async, sync (it runs in a thread), or a generator of either kind: its items are progress, and
    the last one is also the output. With `approval` a person is asked first, who may edit the arguments to others that
    match the annotations; a denial raises CallDeniedError. Outside a session the call raises NoSessionError.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        recorded = ToolFunction(function, name, CallOptions(approval=approval, timeout=timeout))

        @functools.wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            bound = recorded.bind(args, kwargs)
            async with current_session().call(recorded.name, to_input(bound), **recorded.options) as call:
                arguments = recorded.edited_arguments(call.input, bound) if call.edited else bound
                call.complete(result := await call.run(run_function(function, arguments, call)))
                return result

        return run

    return decorate(function) if function is not None else decorate


class ToolFunction:
    """A function whose calls are recorded: its name, its signature, and the options of its calls."""

    def __init__(self, function: Callable[..., Any], name: str, options: CallOptions) -> None:
        self.name = name or function.__name__
        self.options = options
        self._signature = inspect.signature(function)
        if options.get("approval"):
            self.options["schema"] = function_schema(function, self._signature)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """Return the arguments of one call by name, with defaults."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound

    def edited_arguments(self, input: Any, bound: inspect.BoundArguments) -> inspect.BoundArguments:
        """Return the arguments that a person edited; unchanged ones keep their object."""
        return bind_arguments(self._signature, input, bound)


def to_input(bound: inspect.BoundArguments) -> Any:
    """Return arguments as they are recorded."""
    return codec.to_json(dict(bound.arguments))
