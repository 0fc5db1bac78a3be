"""The one list of formats: what import, export, POST and GET call them, and where their code is.

Nothing is imported before it is asked for. Paths are written `module:attribute`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import msgspec

from callslip.errors import Refused
from callslip.events import Chunks
from callslip.formats import Decoder, Splitter


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One format. A way that has no path does not exist.

    `decoder` is called with `chunks` (how texts come in pieces, None for the format's own way) and `started` (ms since
    the epoch of what the messages count their times from, 0 if unknown). `splitter` is there for formats whose wire
    carries several conversations. `encoder` gives a session's whole history. The messages of a `plain` format are
    texts; `ended` is the message that tells its decoder that a stream of them is over.
    """

    name: str
    about: str
    decoder: str = ""
    splitter: str = ""
    encoder: str = ""
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
        ),
        Format(
            name="shell",
            about="a model's text with <shell> tags in it, and what became of the commands",
            decoder="callslip.formats.shell.decode:ShellDecoder",
            plain=True,
            ended={"type": "iteration-end"},
        ),
        Format(
            name="act-observe",
            about="act and observe events of an agent runtime",
            decoder="callslip.formats.act_observe.decode:ActObserveDecoder",
        ),
        Format(
            name="rows",
            about="messages as a chat backend stores them: USER, AI_TOOL, TOOL, AI_MESSAGE",
            decoder="callslip.formats.rows.decode:RowsDecoder",
            splitter="callslip.formats.rows.threads:Threads",
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
        ),
        Format(
            name="ui-v6",
            about="UI message stream and messages of the AI SDK 6",
            decoder="callslip.formats.ai_sdk.decode:UiV6Decoder",
            encoder="callslip.formats.ai_sdk:encode_history",
        ),
        Format(
            name="ui-v7",
            about="UI message stream and messages of the AI SDK 7",
            decoder="callslip.formats.ai_sdk.decode:UiV7Decoder",
        ),
        Format(
            name="ag-ui",
            about="events of AG-UI 1.0",
            decoder="callslip.formats.ag_ui.decode:AgUiDecoder",
        ),
    )
}


def find(name: str) -> Format:
    """A format by its name, or Refused with the names there are."""
    if name not in FORMATS:
        raise Refused("format", f"unknown format {name!r}; known are {_listed(FORMATS)}")
    return FORMATS[name]


def readable() -> list[str]:
    """The formats that can be read."""
    return sorted(name for name, entry in FORMATS.items() if entry.decoder)


def writable() -> list[str]:
    """The formats that can be written."""
    return sorted(name for name, entry in FORMATS.items() if entry.encoder)


def decoder(name: str, *, chunks: Chunks | None = None, started: int = 0) -> Decoder:
    """A new decoder."""
    path = find(name).decoder
    if not path:
        raise Refused("format", f"{name} cannot be read; these can: {_listed(readable())}")
    return _load(path)(chunks=chunks, started=started)


def splitter(name: str, *, started: int = 0) -> Splitter | None:
    """What tells the conversations of a format's wire apart; None if it carries only one."""
    path = find(name).splitter
    return _load(path)(started=started) if path else None


def encoder(name: str) -> Any:
    """What gives a session's history in a format."""
    path = find(name).encoder
    if not path:
        raise Refused("format", f"{name} cannot be written; these can: {_listed(writable())}")
    return _load(path)


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))


def _load(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)
