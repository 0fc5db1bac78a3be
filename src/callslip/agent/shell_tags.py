"""Decode the stream of a model that writes its commands as `<shell>` tags in its text."""

from __future__ import annotations

from msgspec import structs

from callslip.formats.base import Decoder
from callslip.formats.shell import Command, Piece, ShellParser, command_id
from callslip.formats.shell.history import round_name
from callslip.model import events as ev
from callslip.model.events import Alias, Draft, Event
from callslip.model.names import SHELL_NAMESPACE


class ShellTagDecoder:
    """Wraps the decoder of the model's format. Each round ends with `end_round`.

    Every text gets the name of its round as its message id, so that rounds are known after a reload.
    """

    def __init__(self, inner: Decoder, tool: str, turn: str) -> None:
        self._inner = inner
        self._tool = tool
        self._turn = turn
        self._iteration = 0
        self._parser = ShellParser()
        self._last = ev.MessageDelta(text="", chunks="delta")

    def feed(self, message: object) -> list[Draft]:
        return [result for draft in self._inner.feed(message) for result in self._split(draft)]

    def end_round(self) -> list[Draft]:
        """End the answer; a tag that is not closed is text."""
        rest = self._drafts(self._parser.close())
        self._iteration += 1
        return rest

    def close(self, reason: str) -> list[Draft]:
        return [*self.end_round(), *self._inner.close(reason)]

    def holds_input(self) -> bool:
        return self._parser.holds_text or self._inner.holds_input()

    def _split(self, draft: Draft) -> list[Draft]:
        event = draft.event
        if isinstance(event, ev.MessageDelta):
            self._last = structs.replace(event, message_id=round_name(self._turn, self._iteration))
            return self._drafts(self._parser.feed(event.text))
        return [draft]

    def _drafts(self, pieces: list[Piece]) -> list[Draft]:
        return [Draft(self._event(piece)) for piece in pieces]

    def _event(self, piece: Piece) -> Event:
        if not isinstance(piece, Command):
            return structs.replace(self._last, text=piece.text)
        return ev.CallProposed(
            aliases=(Alias(SHELL_NAMESPACE, command_id(self._iteration, piece.index)),),
            tool_name=self._tool,
            title=piece.command,
            kind="execute",
            input={"command": piece.command},
            iteration=self._iteration,
            index=piece.index,
        )
