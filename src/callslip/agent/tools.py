"""Tools that an agent may call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec

from callslip.api.call import Call
from callslip.errors import InvalidInputError
from callslip.rules.function_schema import bind_arguments, run_function


def _empty_schema() -> dict[str, Any]:
    return {"type": "object", "properties": {}}


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. `run` receives the call and its arguments, and returns the output.

    With `approval=True` a call waits for approval. `timeout` is in seconds. `title` describes a call in one line.
    """

    name: str
    run: Callable[[Call, dict[str, Any]], Coroutine[Any, Any, Any]]
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=_empty_schema)
    approval: bool = False
    timeout: float | None = None
    kind: str = ""
    title: Callable[[dict[str, Any]], str] | None = None


def tool(
    function: Callable[..., Any],
    *,
    name: str = "",
    description: str = "",
    approval: bool = False,
    timeout: float | None = None,
) -> Tool:
    """Make a tool of a function: its annotations are the schema, its docstring the description for the model."""
    signature = inspect.signature(function)

    async def run(call: Call, input: dict[str, Any]) -> Any:
        return await run_function(function, bind_arguments(signature, input), call)

    return Tool(
        name=name or function.__name__,
        run=run,
        description=description or inspect.getdoc(function) or "",
        parameters=_schema(function, signature),
        approval=approval,
        timeout=timeout,
    )


def _schema(function: Callable[..., Any], signature: inspect.Signature) -> dict[str, Any]:
    """Return the JSON Schema of a function's arguments."""
    hints = inspect.get_annotations(function, eval_str=True)
    fields: list[Any] = []
    for parameter in signature.parameters.values():
        name, default = parameter.name, parameter.default
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidInputError("function", f"{parameter} of {function.__name__} cannot be passed by name")
        type_ = hints.get(name, Any)
        fields.append((name, type_) if default is parameter.empty else (name, type_, default))
    arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    schemas, definitions = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema = cast("dict[str, Any]", definitions.pop("Arguments", schemas[0]))
    schema.pop("title", None)
    return {**schema, "$defs": definitions} if definitions else schema
