"""What a tool answers: one JSON value, as structured content and as the same text for clients that show only text."""

from __future__ import annotations

from typing import Any, cast

import msgspec
from mcp_types import CallToolResult, TextContent

from callslip.errors import CallslipError
from callslip.http.problems import problem
from callslip.http.request import refused_by
from callslip.model import codec

Json = dict[str, Any]
KIND = "urn:callslip:"


def tool_result(value: Any, *, error: bool = False) -> CallToolResult:
    """A value as a result; with `error` the model is told that the tool did not do what it asked."""
    plain = plain_json(value)
    text = codec.encode(plain).decode()
    return CallToolResult(content=[TextContent(text=text)], structured_content=plain, is_error=error)


def plain_json(value: Any) -> Json:
    """A struct, or anything else that is an object in JSON, as plain values."""
    return cast(Json, msgspec.to_builtins(value, str_keys=True))


def refusal(error: CallslipError | msgspec.ValidationError, **more: Any) -> CallToolResult:
    """Why something was not done, in words that a model can act on."""
    if isinstance(error, msgspec.ValidationError):
        error = refused_by(error, "arguments")
    said = problem(error)
    made: Json = {"error": said.detail or said.title, "kind": said.type.removeprefix(KIND)}
    if said.field:
        made["field"] = said.field
    if said.limit is not None:
        made["limit"] = said.limit
    if said.current is not None:
        made["current"] = said.current
    return tool_result({**made, **more}, error=True)
