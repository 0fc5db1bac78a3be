"""A turn as a chat client reads it: to its end, or to where it waits for the person or for a tool of the client's.

Chat clients send nothing while they read, so a stream that went on while its turn waits for them would wait for ever.
When they have answered they ask to go on, and add what comes to the message that they have: then they are told what is
new, and nothing of what they were told before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import msgspec

from callslip.formats import registry
from callslip.formats.ag_ui import outgoing
from callslip.formats.ai_sdk_v4 import chunks as v4
from callslip.formats.base import Restart, Streaming, TurnEncoder
from callslip.formats.json_fields import as_dict, as_list
from callslip.http import sse, streams
from callslip.http.request import Server
from callslip.http.streams import TurnStream
from callslip.http.turn_runner import CLIENT
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import ToolCall
from callslip.model.events import Event
from callslip.rules.fold import SessionFold

FAILED = "the turn ended with an error"
FAILURES = ("error", "eof")


class Manner(msgspec.Struct, frozen=True):
    """What a format says beside the turn: that it failed, and that it waits for a tool of the client's.

    `always` are the chunks that begin and end a stream, whatever the client was told before.
    """

    failed: Callable[[str], list[Any]]
    waits: Callable[[str, str], list[Any]]
    always: Callable[[Any], bool]


def _nothing(*_: str) -> list[Any]:
    return []


_UI = Manner(
    lambda why: [{"type": "error", "errorText": why}],
    _nothing,
    lambda chunk: chunk["type"] in ("start", "finish"),
)
MANNERS: dict[str, Manner] = {
    "ui-v5": _UI,
    "ui-v6": _UI,
    "ui-v7": _UI,
    "vercel-v4": Manner(lambda why: [v4.error(why)], _nothing, lambda chunk: chunk[0] == "d"),
    "ag-ui": Manner(
        _nothing,
        lambda session, run: [outgoing.finished(session, run, {"type": "success"})],
        lambda chunk: chunk["type"] in ("RUN_STARTED", "RUN_FINISHED", "RUN_ERROR"),
    ),
}


class Asked(msgspec.Struct):
    """What one request reads: a turn, under the name of a run, without the chunks that the client has.

    `messages` is what it has made of them.
    """

    session: str
    format: str
    turn: str
    run: str = ""
    known: list[Any] = []
    messages: list[Any] = []


class Reader:
    """A turn's encoder, for one who answers: it ends where the turn waits."""

    def __init__(self, inner: TurnEncoder, state: SessionFold, asked: Asked) -> None:
        self.finished = False
        self._inner = inner
        self._state = state
        self._asked = asked
        self._manner = MANNERS[asked.format]
        self._failed = ""
        self._step = sum(chunk[0] == "f" for chunk in asked.known) - 1 if asked.format == "vercel-v4" else -1

    def opening(self) -> list[Any]:
        chunks, known = self._inner.opening(), self._asked.known
        info = self._state.info
        self._failed = FAILED if info.last_turn == self._asked.turn and info.last_reason in FAILURES else ""
        if not known:
            return self._said(chunks)
        mended = _mended(chunks, self._asked) if self._asked.format == "ag-ui" else _Mended()
        begin, *rest = _without(chunks, known + mended.told, self._manner) or [None]
        return self._said([begin, *mended.chunks, *rest] if begin else mended.chunks)

    def feed(self, event: Event) -> list[Any] | Restart:
        said = self._inner.feed(event)
        if isinstance(event, ev.TurnEnded) and (event.turn, event.verdict) == (self._asked.turn, "applied"):
            self._failed = (event.detail or FAILED) if event.reason in FAILURES else ""
        return said if isinstance(said, Restart) else self._said(said)

    def close(self, reason: str) -> list[Any]:
        return self._inner.close(reason)

    def _said(self, chunks: list[Any]) -> list[Any]:
        self.finished = self._inner.finished
        if self.finished and self._failed:
            chunks = chunks + self._manner.failed(self._failed)
        elif not self.finished and waits(self._state, self._asked.turn):
            self.finished = True
            chunks = chunks + self._manner.waits(self._asked.session, self._asked.turn)
        return self._named(self._in_step(chunks))

    def _named(self, chunks: list[Any]) -> list[Any]:
        run = self._asked.run
        return [{**chunk, "runId": run} if "runId" in chunk else chunk for chunk in chunks] if run else chunks

    def _in_step(self, chunks: list[Any]) -> list[Any]:
        """Version 4 counts a step when it is asked to go on: what is left of that one must not count as the next."""
        if self._step < 0:
            return chunks
        told: list[Any] = []
        for number, chunk in enumerate(chunks):
            if chunk[0] == "e":
                self._step = -1
                return told + chunks[number + 1 :]
            told.append(["9", {"step": self._step, **chunk[1]}] if chunk[0] == "9" else chunk)
        return told


def waits(state: SessionFold, turn: str) -> bool:
    """Whether all that goes on in a turn waits for the client."""
    calls = [call for call in state.calls.values() if call.scope == "turn" and call.turn == turn]
    return bool(calls) and state.stream is None and all(map(_is_theirs, calls))


def _is_theirs(call: ToolCall) -> bool:
    return call.status == "awaiting_approval" or call.worker == CLIENT


def _without(chunks: list[Any], known: list[Any], manner: Manner) -> list[Any]:
    """Chunks but for those that are known, each as often as it is known."""
    had = Counter(codec.encode(chunk) for chunk in known)
    notes: list[Any] = [note for chunk in known if _is_note(chunk) for note in chunk[1]]
    left: list[Any] = []
    for chunk in chunks:
        told = codec.encode(chunk)
        if had[told] and not manner.always(chunk):
            had[told] -= 1
        elif _is_note(chunk):  # They are added to those that the message has.
            left.append([chunk[0], [note for note in chunk[1] if note not in notes]])
        else:
            left.append(chunk)
    return left


def _is_note(chunk: Any) -> bool:
    return isinstance(chunk, list) and cast("list[Any]", chunk)[0] == "8"


def known(format: str, state: SessionFold, turn: str) -> list[Any]:
    """What a client was told that has a turn as it stands in a state."""
    return registry.streaming(format).encoder(state, turn).opening()


def line(server: Server, asked: Asked) -> TurnStream:
    """The turn as it is read by this request."""
    made = TurnStream(server.ledger, asked.session, asked.format, asked.turn, server.limits)
    streaming: Streaming = made.streaming

    def encoder(state: Any, turn: str) -> Reader:
        return Reader(streaming.encoder(state, turn), state, asked)

    made.streaming = msgspec.structs.replace(streaming, encoder=encoder)
    return made


async def write(server: Server, asked: Asked, write: sse.Write) -> None:
    """The turn from where the client has it, and as it goes on. Who has nothing of it shares the line with others."""
    alone = (asked.run, str(id(asked))) if asked.run or asked.known else ()
    key = (asked.session, asked.format, asked.turn, "chat", *alone)
    with server.hub.reader():
        async with server.hub.line(key, lambda: line(server, asked)) as source:
            number = source.line.next
            await write(source.replay())
            await streams.follow(source.line, number, write, source.streaming.alive)


# AG-UI: arguments that a person changed, and results that the client wrote down under a name of its own. It has no
# event for either, but takes messages in the place of those that it has.


class _Mended(msgspec.Struct):
    """The chunks that mend what the client has, and those that it needs no more."""

    chunks: list[Any] = []
    told: list[Any] = []


def _mended(chunks: list[Any], asked: Asked) -> _Mended:
    """The client's messages with the arguments that stand now, and without the results that it is about to be told."""
    before, now = _arguments(asked.known), _arguments(chunks)
    changed = {call: text for call, text in now.items() if before.get(call, text) != text}
    news = _results(chunks) - _results(asked.known)
    had = [as_dict(message) for message in asked.messages]
    kept = [one for one in had if one.get("role") != "tool" or one.get("toolCallId") not in news]
    if not changed and len(kept) == len(had):
        return _Mended()
    messages = [_with_arguments(message, changed) for message in kept]
    told = [chunk for chunk in chunks if chunk["type"] in _INPUT and chunk["toolCallId"] in changed]
    return _Mended([{"type": "MESSAGES_SNAPSHOT", "messages": messages}], told)


_INPUT = ("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END")


def _results(chunks: list[Any]) -> set[str]:
    """The calls whose results were told."""
    return {chunk["toolCallId"] for chunk in chunks if chunk["type"] == "TOOL_CALL_RESULT"}


def _arguments(chunks: list[Any]) -> dict[str, str]:
    """The arguments of each call, as far as they were told."""
    told: dict[str, str] = {}
    for chunk in chunks:
        if chunk["type"] == "TOOL_CALL_ARGS":
            told[chunk["toolCallId"]] = told.get(chunk["toolCallId"], "") + chunk["delta"]
    return told


def _with_arguments(message: dict[str, Any], changed: dict[str, str]) -> dict[str, Any]:
    calls = [as_dict(call) for call in as_list(message.get("toolCalls"))]
    if not any(call.get("id") in changed for call in calls):
        return message
    told = [
        {**call, "function": {**as_dict(call.get("function")), "arguments": changed[call["id"]]}}
        if call.get("id") in changed
        else call
        for call in calls
    ]
    return {**message, "toolCalls": told}
