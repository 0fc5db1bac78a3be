"""Run an MCP server with our task runtime and our request checks, and the tools of the conformance suites.

python mcp_fixtures.py LEDGER        prints its URL
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
import warnings
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.server.mcpserver.tools import Tool
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from starlette.applications import Starlette
from starlette.routing import Route

from callslip.api.ledger import open_ledger
from callslip.http.access import AllowAll
from callslip.http.browser_guard import BrowserGuard
from callslip.http.origins import Hosts
from callslip.mcp.http_transport import HttpTransport
from callslip.mcp.tasks import Tasks

PNG = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
        "0000000c4944415408d763f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
    )
).decode()
WAV = base64.b64encode(b"RIFF$\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00").decode()


# Tools that run as tasks


async def slow_compute(seconds: float, label: str = "") -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return f"computed {label}"


async def failing_job() -> str:
    """Fail."""
    await asyncio.sleep(0.2)
    raise ToolError("this job always fails")


async def protocol_error_job() -> str:
    """End with a protocol error."""
    raise MCPError(types.INTERNAL_ERROR, "this job breaks its server")


def _question(message: str, name: str, kind: str) -> types.ElicitRequest:
    schema: dict[str, Any] = {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _content(answer: Any) -> dict[str, Any]:
    return (answer.content or {}) if isinstance(answer, types.ElicitResult) else {}


async def confirm_delete(filename: str, ctx: Context) -> str | types.InputRequiredResult:
    """Ask for confirmation."""
    if not ctx.input_responses:
        question = _question(f"Delete {filename}?", "confirm", "boolean")
        return types.InputRequiredResult(input_requests={"confirm": question})
    confirmed = _content(ctx.input_responses["confirm"]).get("confirm")
    return f"{filename} was {'deleted' if confirmed else 'kept'}"


async def multi_input(ctx: Context) -> str | types.InputRequiredResult:
    """Ask two questions at once."""
    if not ctx.input_responses:
        questions = {"name": _question("Who?", "name", "string"), "sure": _question("Sure?", "confirm", "boolean")}
        return types.InputRequiredResult(input_requests=questions, request_state="second round")
    return f"{ctx.request_state}: {sorted(ctx.input_responses)}"


async def test_tool_with_task(ctx: Context) -> str | types.InputRequiredResult:
    """Ask first, then run as a task."""
    if not ctx.input_responses:
        return types.InputRequiredResult(input_requests={"user_name": _question("Your name?", "name", "string")})
    return f"Hello, {_content(ctx.input_responses['user_name']).get('name')}!"


# Tools that answer immediately


def greet(name: str) -> str:
    """Greet."""
    return f"Hello, {name}!"


def test_simple_text() -> str:
    return "This is a simple text response for testing."


def _image() -> types.ImageContent:
    return types.ImageContent(data=PNG, mime_type="image/png")


def _embedded(uri: str, text: str, media: str = "text/plain") -> types.EmbeddedResource:
    return types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, text=text, mime_type=media))


def test_image_content() -> types.ImageContent:
    return _image()


def test_audio_content() -> types.AudioContent:
    return types.AudioContent(data=WAV, mime_type="audio/wav")


def test_embedded_resource() -> types.EmbeddedResource:
    return _embedded("test://embedded-resource", "This is an embedded resource content.")


def test_multiple_content_types() -> list[Any]:
    resource = _embedded("test://mixed-content-resource", '{"test":"data","value":123}', "application/json")
    return [types.TextContent(text="Multiple content types test:"), _image(), resource]


async def test_tool_with_logging(ctx: Context) -> str:
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            await ctx.session.send_log_message("info", text, related_request_id=ctx.request_id)
        await asyncio.sleep(0.05)
    return "logged"


def test_error_handling() -> str:
    raise ToolError("This tool intentionally returns an error for testing")


async def test_tool_with_progress(ctx: Context) -> str:
    for done in (0, 50, 100):
        await ctx.report_progress(done, 100)
        await asyncio.sleep(0.05)
    return "done"


async def test_sampling(prompt: str, ctx: Context) -> str:
    message = types.SamplingMessage(role="user", content=types.TextContent(text=prompt))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        result = await ctx.session.create_message([message], max_tokens=100, related_request_id=ctx.request_id)
    return f"LLM response: {result.content}"


async def _elicit(ctx: Context, message: str, properties: dict[str, Any], required: list[str]) -> types.ElicitResult:
    schema = {"type": "object", "properties": properties, "required": required}
    return await ctx.session.elicit_form(message, schema, related_request_id=ctx.request_id)


async def test_elicitation(message: str, ctx: Context) -> str:
    properties = {"username": {"type": "string"}, "email": {"type": "string"}}
    result = await _elicit(ctx, message, properties, ["username", "email"])
    return f"User response: {result.action}, {result.content}"


async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
    properties = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": True},
    }
    result = await _elicit(ctx, "Who are you?", properties, [])
    return f"Elicitation completed: action={result.action}, content={result.content}"


def _titled(*titles: str) -> list[dict[str, str]]:
    return [{"const": f"value{number}", "title": title} for number, title in enumerate(titles, 1)]


async def test_elicitation_sep1330_enums(ctx: Context) -> str:
    options = ["option1", "option2", "option3"]
    names = ["Option One", "Option Two", "Option Three"]
    properties = {
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": _titled("First Option", "Second Option", "Third Option")},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": names},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": _titled("First Choice", "Second Choice", "Third Choice")}},
    }
    result = await _elicit(ctx, "Choose", properties, [])
    return f"Elicitation completed: action={result.action}, content={result.content}"


async def test_reconnection(ctx: Context) -> str:
    """Close the own stream; the client gets the answer after it has reconnected."""
    await ctx.close_sse_stream()
    await asyncio.sleep(0.1)
    return "reconnected"


def _schema_tool() -> Tool:
    def json_schema_2020_12_tool(name: str = "", address: dict[str, str] | None = None) -> str:
        """Tool with JSON Schema 2020-12 features"""
        return name

    tool = Tool.from_function(json_schema_2020_12_tool)
    tool.parameters = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}}}},
        "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
        "additionalProperties": False,
    }
    return tool


PLAIN_TOOLS = (
    greet,
    test_simple_text,
    test_image_content,
    test_audio_content,
    test_embedded_resource,
    test_multiple_content_types,
    test_tool_with_logging,
    test_error_handling,
    test_tool_with_progress,
    test_sampling,
    test_elicitation,
    test_elicitation_sep1034_defaults,
    test_elicitation_sep1330_enums,
    test_reconnection,
)


def add_resources(server: MCPServer) -> None:
    @server.resource("test://static-text", mime_type="text/plain")
    def text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def binary() -> bytes:
        return base64.b64decode(PNG)

    @server.resource("test://watched-resource", mime_type="text/plain")
    def watched() -> str:
        return "watched"

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> str:
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def add_prompts(server: MCPServer) -> None:
    @server.prompt(description="For the conformance suite.")
    def test_simple_prompt() -> str:
        return "This is a simple prompt for testing."

    @server.prompt(description="For the conformance suite.")
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt(description="For the conformance suite.")
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[Any]:
        embedded = _embedded(resourceUri, "Embedded resource content for testing.")
        return [UserMessage(embedded), UserMessage("Please process the embedded resource above.")]

    @server.prompt(description="For the conformance suite.")
    def test_prompt_with_image() -> list[Any]:
        return [UserMessage(_image()), UserMessage("Please analyze the image above.")]

    @server.completion()
    async def complete(ref: Any, argument: Any, context: Any) -> types.Completion:
        return types.Completion(values=[], total=0, has_more=False)


async def _ignore(ctx: Any, params: Any) -> types.EmptyResult:
    return types.EmptyResult()


class StoredEvents(EventStore):
    """Store sent events, so that an interrupted stream can be resumed."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        stream = self._events[int(last_event_id) - 1][0]
        for number, (name, message) in enumerate(self._events, 1):
            if number > int(last_event_id) and name == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


def build_server(tasks: Tasks) -> Any:
    """Return the server."""
    tasks.tool(slow_compute, ttl=3600)
    tasks.tool(failing_job, required=True)
    tasks.tool(protocol_error_job)
    tasks.tool(confirm_delete)
    tasks.tool(multi_input)
    tasks.tool(test_tool_with_task, required=True, asks_first=True)
    server = MCPServer("fixtures", version="1", extensions=[tasks], tools=[_schema_tool()], log_level="WARNING")
    for function in PLAIN_TOOLS:
        server.add_tool(function, description=function.__doc__ or "For the conformance suite.")
    add_resources(server)
    add_prompts(server)
    lowlevel = server._lowlevel_server  # pyright: ignore[reportPrivateUsage]
    lowlevel.add_request_handler("logging/setLevel", types.SetLevelRequestParams, _ignore)
    lowlevel.add_request_handler("resources/subscribe", types.SubscribeRequestParams, _ignore)
    lowlevel.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, _ignore)
    return lowlevel


async def main(path: str) -> None:
    async with await open_ledger(f"sqlite:///{path}") as ledger:
        tasks = Tasks(ledger, poll=0.2)
        mcp = HttpTransport(lambda: build_server(tasks), AllowAll(), event_store=StoredEvents(), retry_interval=100)
        app = BrowserGuard(Starlette(routes=[Route("/mcp", mcp)]), hosts=Hosts("127.0.0.1", ()))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
            await uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).serve([listener])
        await mcp.close()
        await tasks.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
