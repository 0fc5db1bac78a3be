"""List the formats: their names for import, export, POST and GET, and where their code is.

A format is imported when it is first used. Paths are written `module:attribute`; one that begins with a dot is
relative to this package.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from callslip.errors import InvalidInputError
from callslip.formats.base import Decoder, RequiresValidation, Splitter, Streaming
from callslip.model.events import Chunks


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A format. It supports what it has a path for.

    `decoder` is called with `chunks` (how texts are streamed, None for the default of the format) and `started` (the
    time in ms since the epoch that the times of messages are relative to, 0 if unknown). `splitter` is for formats with
    several conversations in one connection. `is_message` returns whether a message, or a part of the splitter, belongs
    to the format; most messages of a protocol have no events but `raw`. `read_as` is the format that a file is detected
    as, if it has the same decoder. The messages of a `plain` format are texts; `ended` is the message for its decoder
    at the end of a stream of texts.

    With `has_validation` the decoder also takes `requires_validation`, as calls do not tell whether a user must accept
    them. The times in `stored_messages` are kept, also in a live stream. `plain_object` makes JSON of an object that is
    a message, for example of an ORM.

    `encoder` returns the history of a session as a list; `document` returns it as one text of type `media`. `stream` is
    a `Streaming`. A `paged` history can be read in pages: it is the histories of its turns, one after the other.
    `newest_first` is the order of its messages. `client` is the program in which a person answers the format's requests
    for approval, after the word "in".
    """

    name: str
    about: str
    decoder: str = ""
    splitter: str = ""
    is_message: str = ""
    read_as: str = ""
    has_validation: bool = False
    stored_messages: bool = False
    plain_object: str = ""
    encoder: str = ""
    document: str = ""
    media: str = "application/json"
    stream: str = ""
    paged: bool = False
    newest_first: bool = False
    plain: bool = False
    ended: Any = None
    client: str = ""


NATIVE_FORMATS = ("events", "entries")
"""The formats that the ledger writes itself."""
FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        Format(
            name="events",
            about="the log itself, one event per line",
            decoder=".events.decode:EventsDecoder",
            is_message=".events.decode:is_raw_event",
        ),
        Format(
            name="acp",
            about="recorded traffic of the Agent Client Protocol, version 1 and the draft of version 2",
            decoder=".acp.decode:AcpDecoder",
            splitter=".acp.wire:Wire",
            is_message=".acp.wire:is_protocol_message",
            encoder=".acp.encode:history",
            client="the ACP client",
        ),
        Format(
            name="mcp",
            about="recorded traffic of the Model Context Protocol, up to version 2026-07-28",
            decoder=".mcp.decode:McpDecoder",
            splitter=".mcp.wire:Wire",
            is_message=".mcp.wire:is_protocol_message",
        ),
        Format(
            name="shell",
            about="a model's text with <shell> tags in it, and the results of the commands",
            decoder=".shell.decode:ShellDecoder",
            plain=True,
            ended={"type": "iteration-end"},
            encoder=".shell.encode:history",
            stream=".shell.encode:STREAM",
            paged=True,
        ),
        Format(
            name="act-observe",
            about="act and observe events of an agent runtime",
            decoder=".act_observe.decode:ActObserveDecoder",
            encoder=".act_observe.encode:timeline",
            stream=".act_observe.encode:STREAM",
            paged=True,
        ),
        Format(
            name="rows",
            about="messages as a chat backend stores them: USER, AI_TOOL, TOOL, AI_MESSAGE",
            decoder=".ai_sdk_v4.rows_decode:RowsDecoder",
            splitter=".ai_sdk_v4.threads:Threads",
            has_validation=True,
            stored_messages=True,
            plain_object=".ai_sdk_v4.wire:plain_row",
            client="the chat app that stores the rows",
        ),
        Format(
            name="vercel-v4",
            about="messages and data stream of the AI SDK 4, newest first",
            encoder=".ai_sdk_v4.encode:history",
            stream=".ai_sdk_v4.stream:STREAM",
            paged=True,
            newest_first=True,
        ),
        Format(
            name="openai",
            about="OpenAI Chat Completions: streamed chunks, whole completions, messages",
            decoder=".openai.chat:ChatDecoder",
            encoder=".openai.history:chat_history",
        ),
        Format(
            name="responses",
            about="OpenAI Responses: stream events, whole responses, items",
            decoder=".openai.responses:ResponsesDecoder",
            encoder=".openai.history:responses_history",
            client="the program that calls OpenAI",
        ),
        Format(
            name="anthropic",
            about="Anthropic Messages: stream events, whole messages",
            decoder=".anthropic.decode:AnthropicDecoder",
            encoder=".anthropic.history:anthropic_history",
        ),
        *(
            Format(
                name=f"ui-v{major}",
                about=f"UI message stream and messages of the AI SDK {major}",
                decoder=f".ai_sdk.decode:UiV{major}Decoder",
                read_as="ui-v7" if major < 7 else "",
                encoder=f".ai_sdk:history_v{major}",
                stream=f".ai_sdk:STREAM_V{major}",
                paged=True,
                client="the AI SDK client",
            )
            for major in (5, 6, 7)
        ),
        Format(
            name="ag-ui",
            about="events of AG-UI 1.0",
            decoder=".ag_ui.decode:AgUiDecoder",
            encoder=".ag_ui.encode:history",
            stream=".ag_ui.encode:STREAM",
            paged=True,
            client="the AG-UI client",
        ),
        Format(
            name="claude-code",
            about="session files of Claude Code",
            decoder=".claude_code.decode:ClaudeCodeDecoder",
            stored_messages=True,
        ),
        Format(
            name="codex",
            about="rollouts of Codex, the files of its sessions",
            decoder=".codex.decode:CodexDecoder",
            stored_messages=True,
        ),
        Format(
            name="gemini",
            about="chat files of Gemini CLI",
            decoder=".gemini.decode:GeminiDecoder",
            stored_messages=True,
        ),
        Format(
            name="opencode",
            about="sessions of opencode, from its database or `opencode export`",
            decoder=".opencode.decode:OpencodeDecoder",
            stored_messages=True,
        ),
        *(
            Format(
                name=f"{agent}-hook",
                about=f"what the hooks of {title} send",
                decoder=f".hooks.decode:{prefix}HookDecoder",
                client="the agent's terminal",
            )
            for agent, title, prefix in (
                ("claude-code", "Claude Code", "ClaudeCode"),
                ("codex", "Codex", "Codex"),
                ("gemini", "Gemini CLI", "Gemini"),
                ("opencode", "opencode", "Opencode"),
            )
        ),
        Format(
            name="html",
            about="a page in one file, for sharing",
            document=".html.encode:document",
            media="text/html; charset=utf-8",
        ),
        Format(
            name="otel",
            about="spans of OpenTelemetry, as OTLP JSON",
            document=".otel.encode:document",
        ),
    )
}


def find(name: str) -> Format:
    """Return a format by its name."""
    if name not in FORMATS:
        raise InvalidInputError("format", f"unknown format {name!r}; known are {', '.join(sorted(FORMATS))}")
    return FORMATS[name]


def readable() -> list[str]:
    """Return the names of the formats that can be read."""
    return sorted(name for name, entry in FORMATS.items() if entry.decoder)


def is_protocol_message(name: str, part: Any) -> bool:
    """Return whether a message, or a part of the splitter, belongs to a format even if its only event is `raw`."""
    path = find(name).is_message
    return bool(path) and _load(path)(part)


def exportable() -> list[str]:
    """Return the names of the formats that a session can be exported in."""
    return sorted([*NATIVE_FORMATS, *(name for name, entry in FORMATS.items() if entry.encoder or entry.document)])


def check_exportable(name: str) -> None:
    """Raise InvalidInputError unless a session can be exported in this format."""
    if name not in exportable():
        raise _unusable(name, "exported", exportable())


def streamable() -> list[str]:
    """Return the names of the formats that can be streamed."""
    return sorted(name for name, entry in FORMATS.items() if entry.stream)


def decoder(
    name: str,
    *,
    chunks: Chunks | None = None,
    started: int = 0,
    requires_validation: RequiresValidation | None = None,
) -> Decoder:
    """Return a new decoder of a format. `requires_validation` is only for formats with `has_validation`."""
    new_decoder = _load_part(name, "decoder", "read")
    if requires_validation is None:
        return new_decoder(chunks=chunks, started=started)
    check_validation(name)
    return new_decoder(chunks=chunks, started=started, requires_validation=requires_validation)


def check_validation(name: str) -> None:
    """Raise InvalidInputError unless `requires_validation` has an effect in this format."""
    if not find(name).has_validation:
        known = ", ".join(repr(entry.name) for entry in FORMATS.values() if entry.has_validation)
        raise InvalidInputError("requires_validation", f"has no effect in the format {name!r}, only in {known}")


def plain_object(name: str) -> Callable[[Any], Any] | None:
    """Return the function that turns an object that is a message of a format into JSON, if there is one."""
    path = find(name).plain_object
    return _load(path) if path else None


def splitter(name: str, *, started: int = 0) -> Splitter | None:
    """Return a new splitter for a format with several conversations in one connection, else None."""
    path = find(name).splitter
    return _load(path)(started=started) if path else None


def encoder(name: str) -> Any:
    """Return the function that returns the history of a session as a list."""
    return _load_part(name, "encoder", "written")


def document(name: str) -> Any:
    """Return the function that returns a session as the bytes of one document."""
    return _load_part(name, "document", "written as a document")


def streaming(name: str) -> Streaming:
    """Return the streaming of a format."""
    return _load_part(name, "stream", "streamed")


def _load_part(name: str, part: str, use: str) -> Any:
    path = getattr(FORMATS.get(name), part, "")
    if not path:
        alternatives = sorted(entry.name for entry in FORMATS.values() if getattr(entry, part))
        raise _unusable(name, use, alternatives)
    return _load(path)


def _unusable(name: str, use: str, alternatives: list[str]) -> InvalidInputError:
    return InvalidInputError("format", f"{name!r} cannot be {use}; these can: {', '.join(alternatives)}")


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module, "callslip.formats"), attribute)
