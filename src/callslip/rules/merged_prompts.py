"""Recognize a prompt that was recorded twice: live, without an id, and from the session file of the agent.

Both have the same text, and the agent writes it to its file after it received it. A user may send the same text many
times, so each prompt of one side is that of one prompt of the other side, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from callslip.model.events import MessageUser
from callslip.model.names import TRANSCRIPT_SOURCES
from callslip.rules.replayed_turns import comparable_prompt

CLOCK_TOLERANCE_MS = 2000
"""How much earlier than the live recording the file may say that the prompt was sent."""


def is_same_prompt(live: MessageUser, recorded: MessageUser) -> bool:
    """Return whether a live prompt is the one that was just read from the session file."""
    is_same_time = recorded.at >= live.at - CLOCK_TOLERANCE_MS
    return is_same_time and comparable_prompt(recorded.text) == comparable_prompt(live.text)


class LivePrompts:
    """The times of the live prompts of a session that no prompt of its file has matched yet, by text."""

    def __init__(self, messages: Iterable[MessageUser]) -> None:
        self._times: dict[str, deque[int]] = {}
        for message in messages:
            if message.source in TRANSCRIPT_SOURCES:
                if message.verdict == "witness":
                    self.match(message)
            elif message.verdict == "applied" and not message.message_id:
                self._times.setdefault(comparable_prompt(message.text), deque()).append(message.at)

    def match(self, prompt: MessageUser) -> bool:
        """Return whether a prompt of the session file is the next live prompt with its text; that is then matched."""
        times = self._times.get(comparable_prompt(prompt.text))
        if not times or times[0] > prompt.at + CLOCK_TOLERANCE_MS:
            return False
        times.popleft()
        return True
