"""Tool results: one JSON value, as structured content and as the same text for clients that show only text.

An error is only text: its fields are not those of the tool's output schema, and the TypeScript SDK 1.x validates the
structured content of errors too, and throws an exception in place of the error.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
from mcp_types import CallToolResult, TextContent

from callslip.errors import CallslipError
from callslip.http.problems import problem
from callslip.http.request import validation_error
from callslip.model import codec

Json = dict[str, Any]
PROBLEM_PREFIX = "urn:callslip:"


def tool_result(value: Any, *, error: bool = False) -> CallToolResult:
    """Return a value as a result; `error` marks it for the model as an error of the tool."""
    fields = plain_json(value)
    text = TextContent(text=codec.encode(fields).decode())
    return CallToolResult(content=[text], structured_content=None if error else fields, is_error=error)


def plain_json(value: Any) -> Json:
    """Return a struct, or anything else that is an object in JSON, as a plain dict."""
    return cast(Json, msgspec.to_builtins(value, str_keys=True))


def error_result(error: CallslipError | msgspec.ValidationError) -> CallToolResult:
    """Return an error as a result that a model can act on."""
    if isinstance(error, msgspec.ValidationError):
        error = validation_error(error, "arguments")
    details = problem(error)
    fields: Json = {"error": details.detail or details.title, "kind": details.type.removeprefix(PROBLEM_PREFIX)}
    if details.field:
        fields["field"] = details.field
    if details.limit is not None:
        fields["limit"] = details.limit
    if details.current is not None:
        fields["current"] = details.current
    return tool_result(fields, error=True)
