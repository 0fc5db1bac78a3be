"""Run a decoder with the write path of the ledger in memory, for tests of decoders."""

from __future__ import annotations

from typing import Any, Self

import msgspec

from callslip.formats.base import Decoder
from callslip.model import events as ev
from callslip.model.entries import Message, PermissionRequest, ToolCall
from callslip.model.events import Draft
from tests.support.strategies import MemoryLedger


class DecoderHarness:
    """Decodes messages and has the resulting entries and events."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.ledger = MemoryLedger()

    def feed(self, *messages: Any) -> Self:
        for message in messages:
            self.write(self.decoder.feed(message))
        return self

    def close(self, reason: str = "eof") -> Self:
        self.write(self.decoder.close(reason))
        return self

    def write(self, drafts: list[Draft]) -> None:
        if drafts:
            self.ledger.write(*drafts)

    def entries(self, kind: type[Any] = msgspec.Struct) -> list[Any]:
        return [entry for entry in self.ledger.state.snapshot().entries if isinstance(entry, kind)]

    @property
    def calls(self) -> list[ToolCall]:
        return self.entries(ToolCall)

    @property
    def call(self) -> ToolCall:
        (only,) = self.calls
        return only

    @property
    def outputs(self) -> list[Any]:
        return [call.output for call in self.calls]

    @property
    def texts(self) -> list[str]:
        return [entry.content for entry in self.entries(Message)]

    @property
    def request(self) -> PermissionRequest:
        return self.entries(PermissionRequest)[-1]

    @property
    def verdicts(self) -> list[str]:
        return [event.verdict for event in self.ledger.log]

    def log(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.ledger.log if isinstance(event, kind)]

    @property
    def raws(self) -> list[Any]:
        return [event.body for event in self.log(ev.Raw)]
