"""What an agent may call: a name, a schema that the model reads, and something that runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec

from callslip.api.call import Call
from callslip.errors import InvalidInputError
from callslip.rules.function_schema import bind_arguments, run_function


def _nothing() -> dict[str, Any]:
    return {"type": "object", "properties": {}}


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One tool. `run` gets the call while it runs, and its arguments; what it returns is the output.

    With `approve="ask"` a person is asked first. `timeout` is in seconds. `title` says in a line what a call does.
    """

    name: str
    run: Callable[[Call, dict[str, Any]], Coroutine[Any, Any, Any]]
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=_nothing)
    approve: str = ""
    timeout: float | None = None
    kind: str = ""
    title: Callable[[dict[str, Any]], str] | None = None


def tool(
    function: Callable[..., Any],
    *,
    name: str = "",
    description: str = "",
    approve: str = "",
    timeout: float | None = None,
) -> Tool:
    """A function of any kind as a tool: its annotations are the schema, its docstring is what the model reads."""
    signature = inspect.signature(function)

    async def run(call: Call, input: dict[str, Any]) -> Any:
        return await run_function(function, bind_arguments(signature, input), call)

    return Tool(
        name=name or function.__name__,
        run=run,
        description=description or inspect.getdoc(function) or "",
        parameters=_schema(function, signature),
        approve=approve,
        timeout=timeout,
    )


def _schema(function: Callable[..., Any], signature: inspect.Signature) -> dict[str, Any]:
    """The JSON schema of a function's arguments."""
    hints = inspect.get_annotations(function, eval_str=True)
    fields: list[Any] = []
    for given in signature.parameters.values():
        if given.kind in (given.VAR_POSITIONAL, given.VAR_KEYWORD, given.POSITIONAL_ONLY):
            raise InvalidInputError("function", f"{given} of {function.__name__} cannot be named by a model")
        kind = hints.get(given.name, Any)
        fields.append((given.name, kind) if given.default is given.empty else (given.name, kind, given.default))
    made = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    schemas, parts = msgspec.json.schema_components([made], ref_template="#/$defs/{name}")
    schema = cast("dict[str, Any]", parts.pop("Arguments", schemas[0]))
    schema.pop("title", None)
    return {**schema, "$defs": parts} if parts else schema
