"""A model server for real agents: it speaks the protocols of four vendors and answers from scripts.

A script is a list of replies. A prompt names its script by a marker, `[[name]]`, and each request of that conversation
gets the next reply. The server records what it sent and what the agents sent back. With that, tests know what the
history of an agent must contain.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MARKER = re.compile(r"\[\[([\w-]+)\]\]")
SUMMARY_REQUEST = re.compile(r"create a detailed summary|CONTEXT CHECKPOINT|<state_snapshot>|anchored summary", re.I)
PIECE_LENGTH = 16
TITLE_SCRIPT, SUMMARY_SCRIPT, OTHER_SCRIPT = "(title)", "(summary)", "(other)"
"""Where requests belong that no script answers: for a title, for a summary of the conversation, and all others."""
OTHER_REPLIES = {
    TITLE_SCRIPT: "Scripted work",
    SUMMARY_SCRIPT: "<summary>The work went well.</summary>",
    OTHER_SCRIPT: "I continue.",
}

Message = dict[str, Any]
Frames = list[tuple[str, Message]]
"""The parts of an answer: the name of an event and its data."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """Tokens of one reply. `input` includes `cached`, `output` includes `thoughts`."""

    input: int = 100
    output: int = 20
    cached: int = 0
    thoughts: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.thoughts + other.thoughts,
        )


NO_USAGE = Usage(0, 0, 0, 0)


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a tool. With OpenAI, a name may have a namespace (`namespace.name`), and the input may be a text."""

    name: str
    input: Any
    id: str = dataclasses.field(default_factory=lambda: f"call_{secrets.token_hex(8)}")


@dataclasses.dataclass(frozen=True)
class Reply:
    """One answer of the model. With `pause`, its second half is sent when that event is set."""

    text: str = ""
    thought: str = ""
    calls: tuple[Call, ...] = ()
    usage: Usage = Usage()
    pause: threading.Event | None = None
    id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))


Step = Reply | Callable[[dict[str, str]], Reply]
"""A reply, or a function that makes it of the results that the agent has sent, by the id of their call."""


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A request and the reply that it got."""

    script: str
    reply: Reply
    path: str
    request: Message


@dataclasses.dataclass
class Truth:
    """What one or several scripts really contained, and which results came back."""

    texts: list[str]
    thoughts: list[str]
    calls: list[Call]
    results: dict[str, str]
    usage: Usage
    replies: list[Reply]


class ScriptedModels:
    """The server. `exchanges` has every request that it answered, in order."""

    def __init__(self, scripts: Mapping[str, Sequence[Step]]) -> None:
        self.scripts = dict(scripts)
        self.exchanges: list[Exchange] = []
        self.unknown: list[str] = []
        self.url = ""
        self._positions: dict[str, int] = {}
        self._last: dict[str, tuple[str, Reply]] = {}
        self._changed = threading.Condition()

    def truth(self, *scripts: str) -> Truth:
        """Return what was sent for these scripts."""
        mine = [item for item in self.exchanges if item.script in scripts]
        replies = [item.reply for item in mine]
        results: dict[str, str] = {}
        for item in mine:
            results.update(_results(item.path, item.request))
        usage = NO_USAGE
        for reply in replies:
            usage += reply.usage
        calls = [call for reply in replies for call in reply.calls]
        return Truth(
            texts=[reply.text for reply in replies if reply.text],
            thoughts=[reply.thought for reply in replies if reply.thought],
            calls=calls,
            results={call.id: results[call.id] for call in calls if call.id in results},
            usage=usage,
            replies=replies,
        )

    def wait_for_requests(self, script: str, count: int, seconds: float = 60) -> None:
        """Wait until this many requests of a script arrived."""

        def arrived() -> bool:
            return sum(item.script == script for item in self.exchanges) >= count

        with self._changed:
            if not self._changed.wait_for(arrived, seconds):
                raise TimeoutError(f"script {script!r} got fewer than {count} requests in {seconds:g} s")

    @contextlib.contextmanager
    def running(self) -> Iterator[ScriptedModels]:
        app = Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "HEAD", "POST"])])
        config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off", ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            threading.Event().wait(0.01)
        self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.should_exit = server.force_exit = True
            thread.join(10)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        raw = await request.body()
        if path.endswith(("/count_tokens", ":countTokens")):
            return JSONResponse({"input_tokens": 10, "totalTokens": 10})
        if path.endswith("/messages"):
            encode = _anthropic_frames
        elif path.endswith("/responses"):
            encode = _responses_frames
        elif path.endswith("/chat/completions"):
            encode = _chat_frames
        elif path.endswith((":streamGenerateContent", ":generateContent")):
            encode = _gemini_frames
        else:
            self.unknown.append(f"{request.method} {path}")
            return JSONResponse({"error": {"type": "not_found_error", "message": "no such route"}}, 404)
        body = json.loads(raw)
        reply = self._next(path, body)
        frames = encode(reply, body)
        if path.endswith(":generateContent"):
            return JSONResponse(_whole_content(reply))
        return StreamingResponse(_send(frames, reply.pause, path), media_type="text/event-stream")

    def _next(self, path: str, body: Message) -> Reply:
        """Return the next reply of the script, or the same once more if the agent repeats its request."""
        script = _script(path, body)
        key = json.dumps(_history(path, body), sort_keys=True)
        with self._changed:
            if script in self._last and self._last[script][0] == key:
                return self._last[script][1]
            replies = self.scripts.get(script, [])
            at = self._positions.get(script, 0)
            self._positions[script] = at + 1
            if script in OTHER_REPLIES:
                reply = Reply(OTHER_REPLIES[script], usage=Usage(7, 3))
            elif at < len(replies):
                step = replies[at]
                reply = step if isinstance(step, Reply) else step(_results(path, body))
            else:
                reply = Reply(f"Script {script!r} has no more replies.", usage=Usage(1, 1))
            self._last[script] = key, reply
            self.exchanges.append(Exchange(script, reply, path, body))
            self._changed.notify_all()
        return reply


async def _send(frames: Frames, pause: threading.Event | None, path: str) -> AsyncIterator[bytes]:
    for number, (event, data) in enumerate(frames):
        if pause and number == len(frames) // 2:
            while not pause.is_set():
                await asyncio.sleep(0.02)
        head = f"event: {event}\n" if event else ""
        yield f"{head}data: {json.dumps(data)}\n\n".encode()
        await asyncio.sleep(0)
    if path.endswith("/chat/completions"):
        yield b"data: [DONE]\n\n"


def _pieces(text: str) -> list[str]:
    return [text[at : at + PIECE_LENGTH] for at in range(0, len(text), PIECE_LENGTH)]


# Reading requests


def _history(path: str, body: Message) -> list[Any]:
    if path.endswith("/responses"):
        items = body.get("input", [])
        return items if isinstance(items, list) else [{"type": "message", "role": "user", "content": items}]
    return body.get("contents", []) if "GenerateContent" in path or ":generate" in path else body.get("messages", [])


def _script(path: str, body: Message) -> str:
    """Return the script of a request: the last that a prompt names, if it is not for a title or a summary."""
    prompts = list(_prompts(path, body))
    has_tools = body.get("tools") or any(item.get("type") == "additional_tools" for item in _history(path, body))
    if SUMMARY_REQUEST.search("".join(prompts[-1:])):
        return SUMMARY_SCRIPT
    if not has_tools:
        return TITLE_SCRIPT
    found = [name for text in prompts for name in MARKER.findall(text)]
    return found[-1] if found else OTHER_SCRIPT


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    return [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _prompts(path: str, body: Message) -> Iterator[str]:
    """Return the texts of the user, or of the agent that started this one, in order, without results of tools."""
    for item in _history(path, body):
        if item.get("role") == "user":
            yield from _texts(item.get("content", item.get("parts")))
        elif item.get("type") == "agent_message":
            # Codex passes the prompt of a sub-agent in a field that the vendor's server would have encrypted.
            yield from (part.get("encrypted_content", "") for part in item["content"])


def _results(path: str, body: Message) -> dict[str, str]:
    """Return the results of tools in a request, by the id of their call."""
    found: dict[str, str] = {}
    for item in _history(path, body):
        if item.get("type") in ("function_call_output", "custom_tool_call_output"):
            found[item["call_id"]] = _text_of(item.get("output"))
        elif item.get("role") == "tool":
            found[item["tool_call_id"]] = _text_of(item.get("content"))
        for part in item.get("content") or item.get("parts") or []:
            if isinstance(part, dict) and part.get("type") == "tool_result":
                found[part["tool_use_id"]] = _text_of(part.get("content"))
            elif isinstance(part, dict) and "functionResponse" in part:
                answer = part["functionResponse"]
                found[answer.get("id", "")] = _text_of(answer["response"].get("output", answer["response"]))
    return found


def _text_of(content: Any) -> str:
    if isinstance(content, (str, list)):
        return "".join(_texts(content))
    return json.dumps(content)


# Anthropic Messages


def _anthropic_usage(usage: Usage) -> Message:
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def _anthropic_blocks(reply: Reply) -> list[Message]:
    blocks: list[Message] = []
    if reply.thought:
        blocks.append({"type": "thinking", "thinking": reply.thought, "signature": "c2lnbmVk"})
    if reply.text:
        blocks.append({"type": "text", "text": reply.text})
    blocks += [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.input} for call in reply.calls]
    return blocks


def _whole_message(reply: Reply, body: Message) -> Message:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": _anthropic_blocks(reply),
        "stop_reason": "tool_use" if reply.calls else "end_turn",
        "stop_sequence": None,
        "usage": _anthropic_usage(reply.usage),
    }


def _anthropic_frames(reply: Reply, body: Message) -> Frames:
    whole = _whole_message(reply, body)
    usage = whole["usage"]
    start = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    frames: Frames = [("message_start", {"type": "message_start", "message": start})]
    for index, block in enumerate(whole["content"]):
        at = {"index": index}
        if block["type"] == "thinking":
            empty = {**block, "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "text":
            empty = {**block, "text": ""}
            deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
        else:
            empty = {**block, "input": {}}
            pieces = _pieces(json.dumps(block["input"]))
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        frames.append(("content_block_start", {"type": "content_block_start", **at, "content_block": empty}))
        frames += [("content_block_delta", {"type": "content_block_delta", **at, "delta": delta}) for delta in deltas]
        frames.append(("content_block_stop", {"type": "content_block_stop", **at}))
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    frames.append(("message_delta", {"type": "message_delta", "delta": ended, "usage": usage}))
    frames.append(("message_stop", {"type": "message_stop"}))
    return frames


# OpenAI Responses


def _responses_frames(reply: Reply, body: Message) -> Frames:
    envelope = {"id": f"resp_{reply.id}", "object": "response", "created_at": 1, "model": body["model"], "output": []}
    frames: Frames = [("response.created", {"response": {**envelope, "status": "in_progress"}})]
    items: list[Message] = []
    if reply.thought:
        summary = [{"type": "summary_text", "text": reply.thought}]
        item = {"type": "reasoning", "id": f"rs_{reply.id}", "summary": summary, "encrypted_content": "c2VjcmV0"}
        where = {"item_id": item["id"], "output_index": 0, "summary_index": 0}
        frames.append(("response.output_item.added", {"output_index": 0, "item": {**item, "summary": []}}))
        frames.append(
            ("response.reasoning_summary_part.added", {**where, "part": {"type": "summary_text", "text": ""}})
        )
        frames += [("response.reasoning_summary_text.delta", {**where, "delta": p}) for p in _pieces(reply.thought)]
        frames.append(("response.reasoning_summary_text.done", {**where, "text": reply.thought}))
        frames.append(("response.reasoning_summary_part.done", {**where, "part": summary[0]}))
        frames.append(("response.output_item.done", {"output_index": 0, "item": item}))
        items.append(item)
    if reply.text:
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        item = {"type": "message", "id": f"msg_{reply.id}", "role": "assistant", "status": "completed"}
        where = {"item_id": item["id"], "output_index": len(items), "content_index": 0}
        begun = {**item, "status": "in_progress", "content": []}
        frames.append(("response.output_item.added", {"output_index": len(items), "item": begun}))
        frames += [("response.output_text.delta", {**where, "delta": piece}) for piece in _pieces(reply.text)]
        frames.append(("response.output_text.done", {**where, "text": reply.text}))
        item = {**item, "content": content}
        frames.append(("response.output_item.done", {"output_index": len(items), "item": item}))
        items.append(item)
    for call in reply.calls:
        namespace, _, name = call.name.rpartition(".")
        item = {"call_id": call.id, "name": name, "status": "completed"} | (
            {"namespace": namespace} if namespace else {}
        )
        if isinstance(call.input, str):
            item |= {"type": "custom_tool_call", "id": f"ctc_{call.id}", "input": call.input}
        else:
            item |= {"type": "function_call", "id": f"fc_{call.id}", "arguments": json.dumps(call.input)}
        frames.append(("response.output_item.done", {"output_index": len(items), "item": item}))
        items.append(item)
    usage = {
        "input_tokens": reply.usage.input,
        "input_tokens_details": {"cached_tokens": reply.usage.cached},
        "output_tokens": reply.usage.output,
        "output_tokens_details": {"reasoning_tokens": reply.usage.thoughts},
        "total_tokens": reply.usage.input + reply.usage.output,
    }
    done = {**envelope, "status": "completed", "output": items, "usage": usage}
    frames.append(("response.completed", {"response": done}))
    return [(name, {"type": name, "sequence_number": number, **data}) for number, (name, data) in enumerate(frames)]


# OpenAI chat completions


def _chat_usage(usage: Usage) -> Message:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.thoughts},
    }


def _chat_calls(reply: Reply) -> list[Message]:
    return [
        {
            "index": index,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.input)},
        }
        for index, call in enumerate(reply.calls)
    ]


def _chat_frames(reply: Reply, body: Message) -> Frames:
    envelope = {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": body.get("model", "scripted"),
    }
    deltas: list[Message] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in _pieces(reply.thought)]
    deltas += [{"content": piece} for piece in _pieces(reply.text)]
    for call in _chat_calls(reply):
        function = {"name": call["function"]["name"], "arguments": ""}
        deltas.append({"tool_calls": [{**call, "function": function}]})
        for piece in _pieces(call["function"]["arguments"]):
            deltas.append({"tool_calls": [{"index": call["index"], "function": {"arguments": piece}}]})
    chunks = [{**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    finish = "tool_calls" if reply.calls else "stop"
    chunks.append({**envelope, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    chunks.append({**envelope, "choices": [], "usage": _chat_usage(reply.usage)})
    return [("", item) for item in chunks]


# Gemini


def _gemini_parts(reply: Reply) -> list[Message]:
    # Each part with a thought is a thought of its own.
    parts: list[Message] = [{"text": reply.thought, "thought": True}] if reply.thought else []
    parts += [{"text": piece} for piece in _pieces(reply.text)]
    parts += [{"functionCall": {"id": call.id, "name": call.name, "args": call.input}} for call in reply.calls]
    return parts


def _gemini_content(reply: Reply, parts: list[Message]) -> Message:
    candidate = {"index": 0, "content": {"role": "model", "parts": parts}}
    return {"modelVersion": "scripted", "responseId": reply.id, "candidates": [candidate]}


def _whole_content(reply: Reply) -> Message:
    whole = _gemini_content(reply, _gemini_parts(reply))
    whole["candidates"][0]["finishReason"] = "STOP"
    whole["usageMetadata"] = {
        "promptTokenCount": reply.usage.input,
        "cachedContentTokenCount": reply.usage.cached,
        "candidatesTokenCount": reply.usage.output - reply.usage.thoughts,
        "thoughtsTokenCount": reply.usage.thoughts,
        "totalTokenCount": reply.usage.input + reply.usage.output,
    }
    return whole


def _gemini_frames(reply: Reply, body: Message) -> Frames:
    frames = [_gemini_content(reply, [part]) for part in _gemini_parts(reply)]
    last = _whole_content(reply)
    last["candidates"][0]["content"]["parts"] = [{"text": ""}]
    return [("", frame) for frame in (*frames, last)]
