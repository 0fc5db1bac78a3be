"""Functions of any kind as what a call runs: sync, async, generators of either sort; and what arguments they take."""

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


class Tells(Protocol):
    """Whatever takes the pieces that a generator gives before its end."""

    async def progress(self, text: str = "") -> None:
        """Tell more while it runs."""
        ...


def bind_arguments(
    signature: inspect.Signature, input: Any, before: inspect.BoundArguments | None = None
) -> inspect.BoundArguments:
    """Arguments that somebody else made up, a model or a person. What does not fit is not run.

    What is as it was `before` stays the very object that it was.
    """
    if not isinstance(input, dict):
        raise TypeError("the arguments are not an object")
    given = cast("dict[str, Any]", input)
    unknown = sorted(set(given) - set(signature.parameters))
    if unknown:
        raise TypeError(f"the arguments have no place in the function: {', '.join(unknown)}")
    known = before.arguments if before is not None else {}
    kept = {name: known[name] for name in given if name in known and _is_json_of(given[name], known[name])}
    return inspect.BoundArguments(signature, OrderedDict({**given, **kept}))


def _is_json_of(given: Any, value: Any) -> bool:
    return codec.encode(codec.to_json(value)) == codec.encode(codec.to_json(given))


# JSON Schema. What stands for an annotation is the JSON that `codec.safe` makes of a value of it.
_WORDS: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    None: "null",
    type(None): "null",
    list: "array",
    dict: "object",
}
_COLLECTED = {inspect.Parameter.VAR_POSITIONAL: "array", inspect.Parameter.VAR_KEYWORD: "object"}


def function_schema(function: Callable[..., Any], signature: inspect.Signature) -> dict[str, Any]:
    """What `bound_to` takes for a function, as a JSON Schema. An annotation that says nothing in JSON is no limit."""
    try:
        told = inspect.get_annotations(function, eval_str=True)
    except Exception:  # Names that only a type checker can see.
        told = {}
    given = signature.parameters.values()
    return {
        "type": "object",
        "properties": {one.name: _argument(one, told.get(one.name, Any)) for one in given},
        "required": [one.name for one in given if one.default is one.empty and one.kind not in _COLLECTED],
        "additionalProperties": False,
    }


def _argument(one: inspect.Parameter, annotation: Any) -> dict[str, Any]:
    if one.kind in _COLLECTED:
        inner = {"array": "items", "object": "additionalProperties"}[_COLLECTED[one.kind]]
        return {"type": _COLLECTED[one.kind], **_member(inner, annotation)}
    schema = _annotated(annotation)
    if one.default is one.empty or json_schema.find_violation(schema, default := codec.to_json(one.default)) is None:
        return schema
    return {"anyOf": [schema, {"const": default}]}  # `n: int = None` takes what it has.


def _member(word: str, annotation: Any) -> dict[str, Any]:
    schema = _annotated(annotation)
    return {word: schema} if schema else {}


def _annotated(annotation: Any) -> dict[str, Any]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _annotated(inner[0])
    if origin in (Union, types.UnionType):
        any_of = [_annotated(one) for one in inner]
        return {"anyOf": any_of} if all(any_of) else {}
    if origin is Literal:
        plain = all(isinstance(one, str | int | bool | None) for one in inner)
        return {"enum": list(inner)} if plain else {}
    word = _WORDS.get(origin or annotation) if isinstance(origin or annotation, type | None) else None
    if not word:
        return {}
    last = _member({"array": "items", "object": "additionalProperties"}.get(word, ""), inner[-1]) if inner else {}
    return {"type": word, **last}


Apart: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs something beside the loop, and gives its result."""


async def run_function(
    function: Callable[..., Any], given: inspect.BoundArguments, call: Tells, apart: Apart | None = None
) -> Any:
    """Run a function of any kind; a sync one in a thread, so that the loop goes on: in `apart`, if that is given."""
    in_thread = functools.partial(_in_thread, apart or asyncio.to_thread)
    run = functools.partial(function, *given.args, **given.kwargs)
    last: Any = None
    if inspect.isasyncgenfunction(function):
        async with contextlib.aclosing(run()) as items:
            async for last in items:
                await call.progress(_line(last))
        return last
    if inspect.isgeneratorfunction(function):
        generator = run()
        while (item := await in_thread(functools.partial(next, generator, _DONE))) is not _DONE:
            last = item
            await call.progress(_line(item))
        return last
    if inspect.iscoroutinefunction(function):
        return await run()
    result = await in_thread(run)
    return await result if inspect.isawaitable(result) else result


async def _in_thread(apart: Apart, run: Callable[[], Any]) -> Any:
    def told() -> Any:
        try:
            return run()
        except StopIteration as error:  # No future can hold it: whoever waits would wait for ever.
            raise RuntimeError(f"the function raised StopIteration: {error}") from error

    return await apart(told)


_DONE = object()


def _line(item: Any) -> str:
    return item if isinstance(item, str) else codec.encode(codec.to_json(item)).decode() + "\n"
