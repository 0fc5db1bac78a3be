"""A turn as a chat client reads it: to its end, or until it waits for the user or for a tool of the client.

Chat clients send nothing while they read, so a stream that stayed open while its turn waits for them would never end.
When they have answered they ask to continue, and add to the message that they have: then they receive only what is new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import msgspec

from callslip.api.client_calls import CLIENT_WORKER
from callslip.api.turns import find_turn_end
from callslip.formats import registry
from callslip.formats.ag_ui import outgoing
from callslip.formats.ai_sdk_v4 import chunks as v4
from callslip.formats.base import Restart, Streaming, TurnEncoder
from callslip.formats.json_fields import as_dict, as_list
from callslip.formats.turn_scope import Turn
from callslip.http.server import Server
from callslip.http.streams import TurnStream
from callslip.model import codec
from callslip.model.entries import ToolCall
from callslip.model.events import Event, TurnEnded
from callslip.rules.fold import SessionFold

FAILED = "the turn ended with an error"
FAILURES = ("error", "eof")


class Protocol(msgspec.Struct, frozen=True):
    """The chunks of a format that are not part of a turn: that it failed, and that it waits for the client.

    `is_boundary` recognizes the chunks that start and end every stream, also for a client that knows them.
    """

    failed: Callable[[str], list[Any]]
    waits: Callable[[str, str], list[Any]]
    is_boundary: Callable[[Any], bool]


def _no_chunks(*_: str) -> list[Any]:
    return []


_UI = Protocol(
    lambda message: [{"type": "error", "errorText": message}],
    _no_chunks,
    lambda chunk: chunk["type"] in ("start", "finish"),
)
PROTOCOLS: dict[str, Protocol] = {
    "ui-v5": _UI,
    "ui-v6": _UI,
    "ui-v7": _UI,
    "vercel-v4": Protocol(lambda message: [v4.error(message)], _no_chunks, lambda chunk: chunk[0] == "d"),
    "ag-ui": Protocol(
        _no_chunks,
        lambda session, run: [outgoing.finished(session, run, {"type": "success"})],
        lambda chunk: chunk["type"] in ("RUN_STARTED", "RUN_FINISHED", "RUN_ERROR"),
    ),
}


class TurnRequest(msgspec.Struct):
    """What one request reads: a turn, with the id of the run, without the chunks that the client knows.

    `messages` are the messages that the client has.
    """

    session: str
    format: str
    turn: str
    run: str = ""
    known: list[Any] = []
    messages: list[Any] = []


class ClientEncoder:
    """A turn's encoder for a chat client: it finishes where the turn waits for the client."""

    def __init__(self, inner: TurnEncoder, state: SessionFold, request: TurnRequest, detail: Callable[[], str]) -> None:
        self.finished = False
        self._detail = detail
        self._inner = inner
        self._state = state
        self._request = request
        self._protocol = PROTOCOLS[request.format]
        self._failure = ""
        self._step = sum(chunk[0] == "f" for chunk in request.known) - 1 if request.format == "vercel-v4" else -1

    @property
    def turn(self) -> Turn:
        return self._inner.turn

    def opening(self) -> list[Any]:
        if _has_failed(self._state, self._request.turn):
            self.turn.detail = self._detail()
            self._failure = self.turn.detail or FAILED
        chunks, known = self._inner.opening(), self._request.known
        if not known:
            return self._finish(chunks)
        update = _update_messages(chunks, self._request) if self._request.format == "ag-ui" else _Update()
        first, *rest = _remove_known(chunks, known + update.known, self._protocol) or [None]
        return self._finish([first, *update.chunks, *rest] if first else update.chunks)

    def feed(self, event: Event) -> list[Any] | Restart:
        chunks = self._inner.feed(event)
        if isinstance(event, TurnEnded) and (event.turn, event.verdict) == (self._request.turn, "applied"):
            self._failure = (event.detail or FAILED) if event.reason in FAILURES else ""
        return chunks if isinstance(chunks, Restart) else self._finish(chunks)

    def close(self, reason: str) -> list[Any]:
        return self._inner.close(reason)

    def _finish(self, chunks: list[Any]) -> list[Any]:
        """Add the chunks for a failed turn, or for one that waits for the client."""
        self.finished = self._inner.finished
        if self.finished and self._failure:
            chunks = chunks + self._protocol.failed(self._failure)
        elif not self.finished and waits_for_client(self.turn):
            self.finished = True
            chunks = chunks + self._protocol.waits(self._request.session, self.turn.name)
        run, chunks = self._request.run, self._continue_step(chunks)
        return [{**chunk, "runId": run} if "runId" in chunk else chunk for chunk in chunks] if run else chunks

    def _continue_step(self, chunks: list[Any]) -> list[Any]:
        """Keep the step of version 4, which counts a step per request: the rest of one is not the next one."""
        if self._step < 0:
            return chunks
        continued: list[Any] = []
        for number, chunk in enumerate(chunks):
            if chunk[0] == "e":
                self._step = -1
                return continued + chunks[number + 1 :]
            continued.append(["9", {"step": self._step, **chunk[1]}] if chunk[0] == "9" else chunk)
        return continued


def _has_failed(state: SessionFold, turn: str) -> bool:
    return state.info.last_turn == turn and state.info.last_reason in FAILURES


def waits_for_client(turn: Turn) -> bool:
    """Return whether everything that is open in a turn waits for the client."""
    state = turn.state
    calls = [call for call in state.calls.values() if call.scope == "turn" and turn.owns(call)]
    waiting = [call for call in calls if _needs_answer(state, call) or call.worker == CLIENT_WORKER]
    return bool(calls) and state.stream is None and len(waiting) == len(calls)


def _needs_answer(state: SessionFold, call: ToolCall) -> bool:
    """Return whether a call waits for an approval that the client can answer."""
    request = state.requests.get(call.approval)
    return call.status == "awaiting_approval" and not (request and request.answer_at)


def _remove_known(chunks: list[Any], known: list[Any], protocol: Protocol) -> list[Any]:
    """Return chunks without the known ones, each as often as it is known."""
    counts = Counter(codec.encode(chunk) for chunk in known)
    notes: list[Any] = [note for chunk in known if _is_note(chunk) for note in chunk[1]]
    remaining: list[Any] = []
    for chunk in chunks:
        encoded = codec.encode(chunk)
        if counts[encoded] and not protocol.is_boundary(chunk):
            counts[encoded] -= 1
        elif _is_note(chunk):  # The client adds notes to those that its message has.
            remaining.append([chunk[0], [note for note in chunk[1] if note not in notes]])
        else:
            remaining.append(chunk)
    return remaining


def _is_note(chunk: Any) -> bool:
    return isinstance(chunk, list) and cast("list[Any]", chunk)[0] == "8"


def encode_turn(format: str, state: SessionFold, turn: str) -> list[Any]:
    """Return the chunks of a turn up to a state."""
    return registry.streaming(format).encoder(state, turn).opening()


class ChatStream(TurnStream):
    """A turn for chat clients. One that failed before it was opened has the same error as one that fails live."""

    def __init__(self, server: Server, request: TurnRequest) -> None:
        super().__init__(server.ledger, request.session, request.format, request.turn, server.limits)
        self._request = request
        self._detail = ""
        streaming: Streaming = self.streaming

        def encoder(state: Any, turn: str) -> ClientEncoder:
            return ClientEncoder(streaming.encoder(state, turn), state, request, lambda: self._detail)

        self.streaming = msgspec.structs.replace(streaming, encoder=encoder)

    async def _read_more(self, state: SessionFold) -> None:
        request = self._request
        if _has_failed(state, request.turn):
            end = await find_turn_end(self._log, request.session, request.turn, state.seq)
            self._detail = end.detail if end is not None else ""

    def _feed(self, event: Event) -> None:
        if isinstance(event, TurnEnded) and (event.turn, event.verdict) == (self._request.turn, "applied"):
            self._detail = event.detail  # For readers that join later, while a call of the turn is still open.
        super()._feed(event)


def open_turn(server: Server, request: TurnRequest) -> AbstractAsyncContextManager[TurnStream]:
    """Return the stream of a turn from where the client has it. Clients that know nothing of it share a stream."""
    own_key = (request.run, str(id(request))) if request.run or request.known else ()
    key = (request.session, request.format, request.turn, "chat", *own_key)
    return server.hub.open(key, lambda: ChatStream(server, request))


# AG-UI has no events for arguments that a user edited, nor for results that the client stored under its own ids. But a
# client accepts a list of messages that replaces its own.


class _Update(msgspec.Struct):
    """The chunks that replace the client's messages, and those that are known with them."""

    chunks: list[Any] = []
    known: list[Any] = []


def _update_messages(chunks: list[Any], request: TurnRequest) -> _Update:
    """Return the client's messages with current arguments, and without the results that the stream will send."""
    before, now = _arguments(request.known), _arguments(chunks)
    edited = {call: text for call, text in now.items() if before.get(call, text) != text}
    new_results = _results(chunks) - _results(request.known)
    old = [as_dict(message) for message in request.messages]
    kept = [one for one in old if one.get("role") != "tool" or one.get("toolCallId") not in new_results]
    if not edited and len(kept) == len(old):
        return _Update()
    messages = [_replace_arguments(message, edited) for message in kept]
    known = [chunk for chunk in chunks if chunk["type"] in _INPUT_TYPES and chunk["toolCallId"] in edited]
    return _Update([{"type": "MESSAGES_SNAPSHOT", "messages": messages}], known)


_INPUT_TYPES = ("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END")


def _results(chunks: list[Any]) -> set[str]:
    """Return the calls with results."""
    return {chunk["toolCallId"] for chunk in chunks if chunk["type"] == "TOOL_CALL_RESULT"}


def _arguments(chunks: list[Any]) -> dict[str, str]:
    """Return the arguments of each call, as far as they have been sent."""
    arguments: dict[str, str] = {}
    for chunk in chunks:
        if chunk["type"] == "TOOL_CALL_ARGS":
            arguments[chunk["toolCallId"]] = arguments.get(chunk["toolCallId"], "") + chunk["delta"]
    return arguments


def _replace_arguments(message: dict[str, Any], edited: dict[str, str]) -> dict[str, Any]:
    calls = [as_dict(call) for call in as_list(message.get("toolCalls"))]
    if not any(call.get("id") in edited for call in calls):
        return message
    replaced = [
        {**call, "function": {**as_dict(call.get("function")), "arguments": edited[call["id"]]}}
        if call.get("id") in edited
        else call
        for call in calls
    ]
    return {**message, "toolCalls": replaced}
