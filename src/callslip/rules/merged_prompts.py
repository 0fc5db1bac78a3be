"""Recognize a prompt that was recorded twice: live, without an id, and from the session file of the agent.

Both have the same text, and the agent writes it to its file after it received it. A user may send the same text many
times, so each prompt of one side is that of one prompt of the other side, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from callslip.model.events import MessageUser
from callslip.model.names import TRANSCRIPT_SOURCES
from callslip.rules.replayed_turns import comparable_prompt

CLOCK_TOLERANCE_MS = 2000
"""How much earlier than the live recording the file may say that the prompt was sent."""


class SharedTurn(NamedTuple):
    """A turn that both sources have: the events of its prompt, live and from the file, 0 if it is not written yet."""

    live: int
    read: int


class RecordedPrompts:
    """The prompts of a session by their source, and which of them are the same prompt.

    `turn` is that of the newest prompt of the file, None if it was not recorded live.
    """

    def __init__(self, messages: Iterable[MessageUser]) -> None:
        self._live: dict[str, deque[MessageUser]] = {}
        self._read: dict[str, deque[MessageUser]] = {}
        self._live_starts: list[int] = []
        self._newest_read = 0
        self.turn: SharedTurn | None = None
        for message in messages:
            is_read, is_shown = message.source in TRANSCRIPT_SOURCES, message.verdict == "applied"
            if message.parent or not (is_read or not message.message_id):
                continue
            if not is_read:
                self._live_starts.append(message.seq)
            other = self.match_read(message) if is_read else self.match_live(message)
            if is_shown and other is None:
                unmatched = self._read if is_read else self._live
                unmatched.setdefault(comparable_prompt(message.text), deque()).append(message)

    def match_read(self, prompt: MessageUser) -> MessageUser | None:
        """Return the next live prompt that a prompt of the file repeats; that is then matched."""
        found = self._live.get(comparable_prompt(prompt.text))
        live = found.popleft() if found and _is_same_time(found[0], prompt) else None
        self.turn = None if live is None else SharedTurn(live.seq, prompt.seq)
        self._newest_read = prompt.seq
        return live

    def match_live(self, prompt: MessageUser) -> MessageUser | None:
        """Return the next prompt of the file that a live prompt repeats; that is then matched."""
        found = self._read.get(comparable_prompt(prompt.text), deque[MessageUser]())
        while found and not _is_same_time(prompt, found[0]):
            found.popleft()  # Later live prompts have later times.
        if not found:
            return None
        read = found.popleft()
        if read.seq == self._newest_read:
            self.turn = SharedTurn(prompt.seq, read.seq)
        return read

    def end_of_live(self, start: int) -> int:
        """Return the event of the live prompt after one, 0 if there is none."""
        return next((seq for seq in self._live_starts if seq > start), 0)


def _is_same_time(live: MessageUser, read: MessageUser) -> bool:
    """Return whether a prompt of the file was not sent before a live one."""
    return read.at >= live.at - CLOCK_TOLERANCE_MS
