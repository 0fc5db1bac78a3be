"""Prompts and their turns.

A turn begins with the request of a prompt and ends with the answer, not with `session/cancel`, since results may still
arrive. A queued prompt begins its turn when the one before it ends. In draft 2 an answer only confirms the prompt; the
agent reports when it is running and when it is idle, with or without a prompt.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.acp import messages
from callslip.formats.acp.calls import Calls
from callslip.formats.acp.update import DRAFT
from callslip.formats.acp.wire import Message, raw_message_if
from callslip.formats.json_fields import as_dict, as_str, has_other_fields
from callslip.formats.usage import read_usage
from callslip.model import events as ev
from callslip.model.events import Event

RUNNING = ("running", "requires_action")
STATE_FIELDS = {"sessionUpdate", "state", "stopReason"}


class Turns:
    """The turns of one conversation. `_prompts` are the texts of the prompts without an answer, by request."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._prompts: dict[str, str] = {}
        self._confirmed: set[str] = set()
        self._is_open = self._is_running = False

    def close(self) -> None:
        """Forget all prompts at the end of the connection."""
        self._prompts.clear()
        self._confirmed.clear()
        self._is_open = self._is_running = False

    def is_prompt(self, text: str) -> bool:
        """Return whether a text only repeats a prompt that the agent works on."""
        return any(text in prompt for prompt in self._prompts.values())

    def prompt(self, message: Message) -> list[Event]:
        """Read the request of a prompt."""
        if not message.key or not isinstance(message.params.get("prompt"), list):
            return []
        prompt = messages.prompt_message(message.params)
        started = self._begin()
        self._prompts[message.key] = prompt.text
        needs_raw = has_other_fields(message.params, {"sessionId", "prompt", "messageId"})
        return [*started, prompt, *raw_message_if(needs_raw, message)]

    def answer(self, message: Message) -> list[Event]:
        """Read the answer to a prompt."""
        if message.key not in self._prompts:
            return []
        result, error = as_dict(message.result), as_dict(message.error)
        reason = result.get("stopReason")
        if message.version >= DRAFT and (self._is_running or (reason is None and message.error is UNSET)):
            return self._confirm(message)
        del self._prompts[message.key]
        if message.error is not UNSET:
            ended = self._end("error", as_str(error.get("message")))
            return self._next(ended, raw_message_if(has_other_fields(error, {"message"}), message))
        ended = self._end(as_str(reason) or "end_turn", usage=result.get("usage"))
        return self._next(ended, raw_message_if(has_other_fields(result, {"stopReason"}), message))

    def _confirm(self, message: Message) -> list[Event]:
        """Read an answer of draft 2, which accepts or rejects a prompt and ends no turn."""
        if message.error is UNSET:
            self._confirmed.add(message.key)
        else:
            del self._prompts[message.key]
        return []

    def state(self, update: dict[str, Any], message: Message) -> list[Event]:
        """Read a state of draft 2: the agent is running, or idle and done with every confirmed prompt."""
        state = update.get("state")
        if state in RUNNING:
            self._is_running = True
            started = self._begin()
            return started + raw_message_if(started and has_other_fields(update, STATE_FIELDS), message)
        if state != "idle":
            return []
        self._prompts = {key: text for key, text in self._prompts.items() if key not in self._confirmed}
        self._confirmed, self._is_running = set(), False
        if not self._is_open:
            return []
        error = as_dict(update.get("error"))
        reason = as_str(update.get("stopReason")) or "end_turn"
        ended = self._end(reason, as_str(error.get("message")), update.get("usage"))
        needs_raw = has_other_fields(update, {*STATE_FIELDS, "error"}) or has_other_fields(error, {"message"})
        return ended + raw_message_if(needs_raw, message)

    def _begin(self) -> list[Event]:
        if self._is_open:
            return []
        self._is_open = True
        self._calls.start_turn()
        return [ev.TurnStarted()]

    def _end(self, reason: str, detail: str = "", usage: Any = None) -> list[Event]:
        if not self._is_open:
            return []
        self._is_open = False
        self._calls.end_turn(reason)
        return [*read_usage(usage, of_turn=True), ev.TurnEnded(reason=reason, detail=detail)]

    def _next(self, ended: list[Event], raw: list[Event]) -> list[Event]:
        """Begin the turn of the next queued prompt after one has ended."""
        return [*ended, *raw, *(self._begin() if self._prompts else [])]
