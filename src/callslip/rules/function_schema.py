"""Run functions of any kind (sync, async, generators) with JSON arguments, and describe their arguments."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import types
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal, Protocol, TypeAlias, Union, cast, get_args, get_origin

from callslip.model import codec
from callslip.rules import json_schema


class ProgressSink(Protocol):
    """Receives what a generator yields."""

    async def progress(self, text: str = "") -> None:
        """Report progress."""
        ...


def bind_arguments(
    signature: inspect.Signature, input: Any, before: inspect.BoundArguments | None = None
) -> inspect.BoundArguments:
    """Bind JSON arguments of a model or a user, or raise TypeError.

    Arguments that did not change keep the object that they were `before`.
    """
    if not isinstance(input, dict):
        raise TypeError("arguments: must be an object")
    arguments = cast("dict[str, Any]", input)
    unknown = sorted(set(arguments) - set(signature.parameters))
    if unknown:
        raise TypeError(f"arguments: the function has no parameter {', '.join(unknown)}")
    old = before.arguments if before is not None else {}
    same = {name: old[name] for name in arguments if name in old and _is_json_of(arguments[name], old[name])}
    return inspect.BoundArguments(signature, OrderedDict({**arguments, **same}))


def _is_json_of(json: Any, value: Any) -> bool:
    return codec.encode(codec.to_json(value)) == codec.encode(codec.to_json(json))


# The JSON Schema of an annotation describes what `codec.to_json` returns for its values.
_TYPES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    None: "null",
    type(None): "null",
    list: "array",
    dict: "object",
}
_VARIADIC = {inspect.Parameter.VAR_POSITIONAL: "array", inspect.Parameter.VAR_KEYWORD: "object"}
_MEMBERS = {"array": "items", "object": "additionalProperties"}


def function_schema(function: Callable[..., Any], signature: inspect.Signature) -> dict[str, Any]:
    """Return the JSON Schema of the arguments of a function. An annotation without JSON equivalent allows anything."""
    try:
        annotations = inspect.get_annotations(function, eval_str=True)
    except Exception:  # Names that are imported for type checking only.
        annotations = {}
    parameters = signature.parameters.values()
    return {
        "type": "object",
        "properties": {one.name: _parameter_schema(one, annotations.get(one.name, Any)) for one in parameters},
        "required": [one.name for one in parameters if one.default is one.empty and one.kind not in _VARIADIC],
        "additionalProperties": False,
    }


def _parameter_schema(one: inspect.Parameter, annotation: Any) -> dict[str, Any]:
    if one.kind in _VARIADIC:
        return {"type": _VARIADIC[one.kind], **_member_schema(_VARIADIC[one.kind], annotation)}
    schema = _annotation_schema(annotation)
    if one.default is one.empty or json_schema.find_violation(schema, default := codec.to_json(one.default)) is None:
        return schema
    return {"anyOf": [schema, {"const": default}]}  # `n: int = None` allows its default.


def _member_schema(container: str, annotation: Any) -> dict[str, Any]:
    schema = _annotation_schema(annotation)
    return {_MEMBERS[container]: schema} if schema and container in _MEMBERS else {}


def _annotation_schema(annotation: Any) -> dict[str, Any]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _annotation_schema(inner[0])
    if origin in (Union, types.UnionType):
        any_of = [_annotation_schema(one) for one in inner]
        return {"anyOf": any_of} if all(any_of) else {}
    if origin is Literal:
        is_json = all(isinstance(one, str | int | bool | None) for one in inner)
        return {"enum": list(inner)} if is_json else {}
    name = _TYPES.get(origin or annotation) if isinstance(origin or annotation, type | None) else None
    if not name:
        return {}
    return {"type": name, **(_member_schema(name, inner[-1]) if inner else {})}


ThreadRunner: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function in a thread and returns its result."""


async def run_function(
    function: Callable[..., Any],
    arguments: inspect.BoundArguments,
    call: ProgressSink,
    run_in_thread: ThreadRunner | None = None,
) -> Any:
    """Run a function of any kind; a sync one in a thread, so that it does not block the loop."""
    in_thread = functools.partial(_in_thread, run_in_thread or asyncio.to_thread)
    run = functools.partial(function, *arguments.args, **arguments.kwargs)
    last: Any = None
    if inspect.isasyncgenfunction(function):
        async with contextlib.aclosing(run()) as items:
            async for last in items:
                await call.progress(_to_text(last))
        return last
    if inspect.isgeneratorfunction(function):
        generator = run()
        while (item := await in_thread(functools.partial(next, generator, _DONE))) is not _DONE:
            last = item
            await call.progress(_to_text(item))
        return last
    if inspect.iscoroutinefunction(function):
        return await run()
    result = await in_thread(run)
    return await result if inspect.isawaitable(result) else result


async def _in_thread(run_in_thread: ThreadRunner, run: Callable[[], Any]) -> Any:
    def run_safely() -> Any:
        try:
            return run()
        except StopIteration as error:  # A future cannot hold it, so that the caller would wait forever.
            raise RuntimeError(f"the function raised StopIteration: {error}") from error

    return await run_in_thread(run_safely)


_DONE = object()


def _to_text(item: Any) -> str:
    return item if isinstance(item, str) else codec.encode(codec.to_json(item)).decode() + "\n"
