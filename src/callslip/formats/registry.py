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
    carries several conversations. `encoder` gives a session's whole history.
    """

    name: str
    about: str
    decoder: str = ""
    splitter: str = ""
    encoder: str = ""


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
            about="recorded traffic of the Agent Client Protocol, version 1",
            decoder="callslip.formats.acp.decode:AcpDecoder",
            splitter="callslip.formats.acp.wire:Wire",
        ),
        Format(
            name="ui-v6",
            about="UI messages of the AI SDK 6",
            encoder="callslip.formats.ai_sdk:encode_history",
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
