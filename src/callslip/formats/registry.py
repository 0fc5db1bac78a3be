"""The one list of formats: what import, export, POST and GET call them, and where their code is.

Nothing is imported before it is asked for. Paths are written `module:attribute`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import msgspec

from callslip.errors import InvalidInputError
from callslip.formats.base import Decoder, Splitter, Streaming
from callslip.model.events import Chunks


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One format. A way that has no path does not exist.

    `decoder` is called with `chunks` (how texts come in pieces, None for the format's own way) and `started` (ms since
    the epoch of what the messages count their times from, 0 if unknown). `splitter` is there for formats whose wire
    carries several conversations. The messages of a `plain` format are texts; `ended` is the message that tells its
    decoder that a stream of them is over.

    `encoder` gives a session's whole history as a list; `document` gives it as one text of type `media`. `stream` is a
    `Streaming`. A `paged` history can be had in pieces: it is the histories of its turns, one after the other; and
    `newest_first` says how it is handed out.
    """

    name: str
    about: str
    decoder: str = ""
    splitter: str = ""
    encoder: str = ""
    document: str = ""
    media: str = "application/json"
    stream: str = ""
    paged: bool = False
    newest_first: bool = False
    plain: bool = False
    ended: Any = None


FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        Format(
            name="events",
            about="the log itself, one event per line",
            decoder="callslip.formats.events.decode:EventsDecoder",
        ),
        Format(
            name="acp",
            about="recorded traffic of the Agent Client Protocol, version 1 and the draft of version 2",
            decoder="callslip.formats.acp.decode:AcpDecoder",
            splitter="callslip.formats.acp.wire:Wire",
            encoder="callslip.formats.acp.encode:history",
        ),
        Format(
            name="mcp",
            about="recorded traffic of the Model Context Protocol, up to version 2026-07-28",
            decoder="callslip.formats.mcp.decode:McpDecoder",
            splitter="callslip.formats.mcp.wire:Wire",
        ),
        Format(
            name="shell",
            about="a model's text with <shell> tags in it, and what became of the commands",
            decoder="callslip.formats.shell.decode:ShellDecoder",
            plain=True,
            ended={"type": "iteration-end"},
            encoder="callslip.formats.shell.encode:history",
            stream="callslip.formats.shell.encode:STREAM",
            paged=True,
        ),
        Format(
            name="act-observe",
            about="act and observe events of an agent runtime",
            decoder="callslip.formats.act_observe.decode:ActObserveDecoder",
            encoder="callslip.formats.act_observe.encode:timeline",
            stream="callslip.formats.act_observe.encode:STREAM",
            paged=True,
        ),
        Format(
            name="rows",
            about="messages as a chat backend stores them: USER, AI_TOOL, TOOL, AI_MESSAGE",
            decoder="callslip.formats.ai_sdk_v4.rows_decode:RowsDecoder",
            splitter="callslip.formats.ai_sdk_v4.threads:Threads",
        ),
        Format(
            name="vercel-v4",
            about="messages and data stream of the AI SDK 4, newest first",
            encoder="callslip.formats.ai_sdk_v4.encode:history",
            stream="callslip.formats.ai_sdk_v4.stream:STREAM",
            paged=True,
            newest_first=True,
        ),
        Format(
            name="openai",
            about="OpenAI Chat Completions: streamed chunks, whole completions, messages",
            decoder="callslip.formats.openai.chat:ChatDecoder",
            encoder="callslip.formats.openai.history:chat_history",
        ),
        Format(
            name="responses",
            about="OpenAI Responses: stream events, whole responses, items",
            decoder="callslip.formats.openai.responses:ResponsesDecoder",
            encoder="callslip.formats.openai.input:responses_history",
        ),
        Format(
            name="anthropic",
            about="Anthropic Messages: stream events, whole messages",
            decoder="callslip.formats.anthropic.decode:AnthropicDecoder",
            encoder="callslip.formats.anthropic.history:anthropic_history",
        ),
        Format(
            name="ui-v5",
            about="UI message stream and messages of the AI SDK 5",
            decoder="callslip.formats.ai_sdk.decode:UiV5Decoder",
            encoder="callslip.formats.ai_sdk:history_v5",
            stream="callslip.formats.ai_sdk:STREAM_V5",
            paged=True,
        ),
        Format(
            name="ui-v6",
            about="UI message stream and messages of the AI SDK 6",
            decoder="callslip.formats.ai_sdk.decode:UiV6Decoder",
            encoder="callslip.formats.ai_sdk:history_v6",
            stream="callslip.formats.ai_sdk:STREAM_V6",
            paged=True,
        ),
        Format(
            name="ui-v7",
            about="UI message stream and messages of the AI SDK 7",
            decoder="callslip.formats.ai_sdk.decode:UiV7Decoder",
            encoder="callslip.formats.ai_sdk:history_v7",
            stream="callslip.formats.ai_sdk:STREAM_V7",
            paged=True,
        ),
        Format(
            name="ag-ui",
            about="events of AG-UI 1.0",
            decoder="callslip.formats.ag_ui.decode:AgUiDecoder",
            encoder="callslip.formats.ag_ui.encode:history",
            stream="callslip.formats.ag_ui.encode:STREAM",
            paged=True,
        ),
        Format(
            name="html",
            about="one page that needs nothing else, to be shared",
            document="callslip.formats.html.encode:document",
            media="text/html; charset=utf-8",
        ),
        Format(
            name="otel",
            about="spans of OpenTelemetry, as OTLP JSON",
            document="callslip.formats.otel.encode:document",
        ),
    )
}


def find(name: str) -> Format:
    """A format by its name, or Refused with the names there are."""
    if name not in FORMATS:
        raise InvalidInputError("format", f"unknown format {name!r}; known are {_listed(FORMATS)}")
    return FORMATS[name]


def readable() -> list[str]:
    """The formats that can be read."""
    return sorted(name for name, entry in FORMATS.items() if entry.decoder)


def writable() -> list[str]:
    """The formats that can be written."""
    return sorted(name for name, entry in FORMATS.items() if entry.encoder or entry.document)


def streamable() -> list[str]:
    """The formats in which a turn can be streamed."""
    return sorted(name for name, entry in FORMATS.items() if entry.stream)


def decoder(name: str, *, chunks: Chunks | None = None, started: int = 0) -> Decoder:
    """A new decoder."""
    path = find(name).decoder
    if not path:
        raise InvalidInputError("format", f"{name} cannot be read; these can: {_listed(readable())}")
    return _load(path)(chunks=chunks, started=started)


def splitter(name: str, *, started: int = 0) -> Splitter | None:
    """What tells the conversations of a format's wire apart; None if it carries only one."""
    path = find(name).splitter
    return _load(path)(started=started) if path else None


def encoder(name: str) -> Any:
    """What gives a session's history in a format, as a list."""
    path = find(name).encoder
    if not path:
        raise InvalidInputError("format", f"{name} cannot be written; these can: {_listed(writable())}")
    return _load(path)


def document(name: str) -> Any:
    """What gives a session in a format that is one text: bytes."""
    path = find(name).document
    if not path:
        raise InvalidInputError("format", f"{name} is no document")
    return _load(path)


def streaming(name: str) -> Streaming:
    """How a turn is streamed in a format."""
    path = find(name).stream
    if not path:
        raise InvalidInputError("format", f"{name} cannot be streamed; these can: {_listed(streamable())}")
    return _load(path)


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)
