"""Prompts and the turns they make.

A prompt is a turn: it begins with the request and ends with the answer, not with `session/cancel`, since results may
still come. Prompts that wait behind another begin their turns when that one ends. In draft 2 an answer only says that
the prompt was taken; the agent tells when it is at work and when it is idle, prompted or not.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.acp import speech
from callslip.formats.acp.calls import Calls
from callslip.formats.acp.update import DRAFT
from callslip.formats.acp.wire import Message, kept, leaves
from callslip.formats.json_fields import as_dict
from callslip.model import events as ev
from callslip.model.events import Event

AT_WORK = ("running", "requires_action")
IDLE = {"sessionUpdate", "state", "stopReason"}


class Turns:
    """The turns of one conversation. `_prompts` are those that were not answered for yet, with what they say."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._prompts: dict[str, str] = {}
        self._taken: set[str] = set()
        self._open = self._at_work = False

    def close(self) -> None:
        """The line ended."""
        self._prompts.clear()
        self._taken.clear()
        self._open = self._at_work = False

    def repeats(self, text: str) -> bool:
        """Whether an agent repeats the prompt that it works on."""
        return any(text in prompt for prompt in self._prompts.values())

    def prompted(self, read: Message) -> list[Event]:
        if not read.key or not isinstance(read.params.get("prompt"), list):
            return []
        said = speech.prompted(read.params)
        begun = self._begin()
        self._prompts[read.key] = said.text
        return [*begun, said, *kept(leaves(read.params, {"sessionId", "prompt", "messageId"}), read)]

    def answered(self, read: Message) -> list[Event]:
        if read.key not in self._prompts:
            return []
        result, error = as_dict(read.result), as_dict(read.error)
        reason = result.get("stopReason")
        if read.version >= DRAFT and (self._at_work or (reason is None and read.error is UNSET)):
            return self._take(read)
        del self._prompts[read.key]
        if read.error is not UNSET:
            detail = error.get("message")
            ended = self._end("error", detail if isinstance(detail, str) else "")
            return self._next(ended, kept(leaves(error, {"message"}), read))
        ended = self._end(_reason(reason))
        return self._next(ended, kept(leaves(result, {"stopReason"}), read))

    def _take(self, read: Message) -> list[Event]:
        """Draft 2: that a prompt was taken, or was not, ends no work."""
        if read.error is UNSET:
            self._taken.add(read.key)
        else:
            del self._prompts[read.key]
        return []

    def state(self, update: dict[str, Any], read: Message) -> list[Event]:
        """Draft 2: the agent is at work, or it is idle, so that every prompt it took is done with."""
        state = update.get("state")
        if state in AT_WORK:
            self._at_work = True
            begun = self._begin()
            return begun + kept(begun and leaves(update, IDLE), read)
        if state != "idle":
            return []
        self._prompts = {key: text for key, text in self._prompts.items() if key not in self._taken}
        self._taken, self._at_work = set(), False
        if not self._open:
            return []
        error = as_dict(update.get("error"))
        detail = error.get("message")
        ended = self._end(_reason(update.get("stopReason")), detail if isinstance(detail, str) else "")
        more = leaves(update, {*IDLE, "error"}) or leaves(error, {"message"})
        return ended + kept(more, read)

    def _begin(self) -> list[Event]:
        if self._open:
            return []
        self._open = True
        self._calls.turn_started()
        return [ev.TurnStarted()]

    def _end(self, reason: str, detail: str = "") -> list[Event]:
        if not self._open:
            return []
        self._open = False
        self._calls.turn_ended(reason)
        return [ev.TurnEnded(reason=reason, detail=detail)]

    def _next(self, ended: list[Event], more: list[Event]) -> list[Event]:
        """A prompt is done with; if others waited, the next one has its turn now."""
        return [*ended, *more, *(self._begin() if self._prompts else [])]


def _reason(word: Any) -> str:
    return word if word and isinstance(word, str) else "end_turn"
