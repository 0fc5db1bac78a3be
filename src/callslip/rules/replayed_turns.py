"""Compare the turns of an agent's replay with the recorded prompts, and decide which of them enter the log.

A turn of a replay is a message of the user with what follows it. Turns that are not recorded enter the log whole if all
of them follow everything recorded; else none does, since the log only grows at its end.

Ids are the best evidence that a turn is recorded, but some agents send none, and all of them name prompts only in a
replay. So the prompts are compared by their text, in order: the longest common sequence of both sides is recorded. If
a prompt was cancelled before any answer, an agent without ids replays it and the next prompt as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from callslip.model import events as ev
from callslip.model.display import pluralize
from callslip.model.events import Alias, Event

MAX_COMPARISONS = 250_000
"""Longer lists of prompts that differ are not compared in detail; then no turn enters."""
MAX_JOINED_PROMPTS = 8
"""More recorded prompts in a row are not recognized as one replayed prompt: each comparison costs as much."""


class ReplayedTurn(msgspec.Struct):
    """A turn of a replay: the positions of its events, its prompt, and the ids in it. The first may have no prompt."""

    start: int
    end: int
    prompt: str | None = None
    messages: list[str] = []
    calls: list[Alias] = []


class TurnEvidence(msgspec.Struct, frozen=True):
    """What the ledger knows about a turn of a replay.

    `place` is the recorded prompt after which its calls were recorded, -1 before the first, None if no call was.
    """

    prompt: str | None
    place: int | None = None
    has_known_message: bool = False
    has_newest_message: bool = False
    has_only_new_messages: bool = False

    @property
    def is_known(self) -> bool:
        """Whether something in the turn is recorded."""
        return self.place is not None or self.has_known_message


class ReplayDecision(msgspec.Struct, frozen=True):
    """The turns that are not recorded, and whether they enter the log.

    `first` is the first turn with a prompt in the log. Retention may have removed those before it, and their calls.
    """

    unrecorded: frozenset[int]
    enters: bool
    first: int = 0


def split_turns(events: Sequence[Event]) -> list[ReplayedTurn]:
    """Return the turns of a replay. The events at its edges, `message.ended`, belong to none."""
    turns: list[ReplayedTurn] = []
    for number, event in enumerate(events):
        if isinstance(event, ev.MessageEnded):
            continue
        if isinstance(event, ev.MessageUser) or not turns:
            prompt = event.text if isinstance(event, ev.MessageUser) else None
            turns.append(ReplayedTurn(number, number, prompt))
        turn = turns[-1]
        turn.end = number + 1
        if isinstance(event, ev.CallEvent):
            turn.calls += event.aliases[:1]
        elif isinstance(event, ev.MessageDelta | ev.ThoughtDelta) and event.message_id:
            turn.messages.append(event.message_id)
    return turns


def comparable_prompt(text: str) -> str:
    """Return a prompt as it is compared: agents join its blocks in different ways."""
    return "".join(text.split())


def decide_turns(
    turns: Sequence[TurnEvidence], prompts: Sequence[str], *, is_blank: bool = False, is_pruned: bool = False
) -> ReplayDecision:
    """Return which turns of a replay are not among the recorded prompts, and whether they follow all of these.

    In a blank session nothing is recorded. In a pruned one, earlier turns may have been removed.
    """
    if is_blank:
        return ReplayDecision(frozenset(range(len(turns))), enters=True)
    places = _match_prompts(turns, prompts)
    # Without a prompt and without an id a turn cannot be compared. It is not called unrecorded.
    recorded = [
        number
        for number, turn in enumerate(turns)
        if turn.is_known or turn.prompt is None or places[number] is not None
    ]
    first = _first_in_log(turns, places) if is_pruned else 0
    # A removed turn cannot follow the newest message.
    start = next((number for number, turn in enumerate(turns[:first]) if turn.has_newest_message), first)
    last = recorded[-1] if recorded else -1
    unrecorded = frozenset(range(start, len(turns))) - frozenset(recorded)
    newest = len(prompts) - 1
    has_newest = any(
        _is_newest(turns[number], places[number], newest, is_pruned=is_pruned and not prompts) for number in recorded
    )
    return ReplayDecision(unrecorded, has_newest and all(number > last for number in unrecorded), first)


def _first_in_log(turns: Sequence[TurnEvidence], places: Sequence[int | None]) -> int:
    """Return the first turn whose prompt is in a pruned log, or the number of turns if there is none.

    The call of a removed turn may still be there: it was open. It says nothing about the turns after it.
    """
    for number, (turn, matched) in enumerate(zip(turns, places, strict=True)):
        place = matched if turn.place is None else turn.place
        if place is not None and place >= 0:
            return number
    return len(turns)


def _is_newest(turn: TurnEvidence, matched: int | None, newest: int, *, is_pruned: bool) -> bool:
    """Return whether a recorded turn is the newest one in the log. If all prompts are removed, no place proves it."""
    place = matched if turn.place is None else turn.place
    return turn.has_newest_message if place is None or is_pruned else place == newest


def _match_prompts(turns: Sequence[TurnEvidence], prompts: Sequence[str]) -> list[int | None]:
    """Return the number of the recorded prompt of each turn, None for no prompt. Calls decide before texts.

    If the agent keeps the ids of its messages, a turn with other ids has a recorded prompt only if no turn with a known
    id has it: that was recorded without its answer.
    """
    keeps_ids = any(turn.has_known_message for turn in turns)
    placed = {turn.place for turn in turns if turn.place is not None}
    right = [number if number in placed else prompt for number, prompt in enumerate(prompts)]
    likely: list[tuple[int, str | int]] = []
    unlikely: list[tuple[int, str | int]] = []
    for number, turn in enumerate(turns):
        if turn.prompt is not None:
            is_unlikely = keeps_ids and turn.has_only_new_messages and turn.place is None
            key = turn.prompt if turn.place is None else turn.place
            (unlikely if is_unlikely else likely).append((number, key))
    matches = {likely[one][0]: other for one, other in _common_sequence([key for _, key in likely], right)}
    bounds = [(-1, -1), *matches.items(), (len(turns), len(prompts))]
    rest = deque(unlikely)
    for (_, start), (before, end) in pairwise(bounds):
        between: list[tuple[int, str | int]] = []
        while rest and rest[0][0] < before:
            between.append(rest.popleft())
        pairs = _common_sequence([key for _, key in between], right[start + 1 : end])
        matches |= {between[one][0]: start + 1 + other for one, other in pairs}
    return [matches.get(number) for number in range(len(turns))]


def _common_sequence(left: Sequence[str | int], right: Sequence[str | int]) -> list[tuple[int, int]]:
    """Return the positions of a longest common sequence. Equal beginnings are part of it, then equal ends.

    A prompt on the left may be several prompts in a row on the right; then the position is that of the last.
    """
    pairs: list[tuple[int, int]] = []
    start, other = 0, 0
    while start < len(left) and (after := _match_end(left[start], right, other)):
        pairs.append((start, after - 1))
        start, other = start + 1, after
    end = 0
    while end < min(len(left) - start, len(right) - other) and left[-1 - end] == right[-1 - end]:
        end += 1
    middle = _longest_common(left[start : len(left) - end], right[other : len(right) - end])
    pairs += [(start + one, other + two) for one, two in middle]
    return pairs + [(len(left) - number, len(right) - number) for number in range(end, 0, -1)]


def _match_end(key: str | int, right: Sequence[str | int], start: int) -> int:
    """Return where the prompts end that are one prompt together, 0 if those from `start` are not."""
    if start < len(right) and key == right[start]:
        return start + 1
    if isinstance(key, int):
        return 0
    size = 0
    for end in range(start, min(len(right), start + MAX_JOINED_PROMPTS)):
        part = right[end]
        if isinstance(part, int) or not part or not key.startswith(part, size):
            return 0
        size += len(part)
        if size == len(key):
            return end + 1
    return 0


def _longest_common(left: Sequence[str | int], right: Sequence[str | int]) -> list[tuple[int, int]]:
    if len(left) * len(right) > MAX_COMPARISONS:
        return []
    lengths = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    ends = [[0] * len(right) for _ in left]
    for i in reversed(range(len(left))):
        for j in reversed(range(len(right))):
            end = ends[i][j] = _match_end(left[i], right, j)
            matched = lengths[i + 1][end] + 1 if end else 0
            lengths[i][j] = max(matched, lengths[i + 1][j], lengths[i][j + 1])
    pairs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        end = ends[i][j]
        if end and lengths[i][j] == lengths[i + 1][end] + 1:
            pairs.append((i, end - 1))
            i, j = i + 1, end
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def left_out_notice(turns: int, calls: int) -> dict[str, str]:
    """Return the notice about what is only in the replay: turns, and calls in turns that are recorded."""
    parts = [pluralize(turns, "turn")] if turns else []
    parts += [f"{pluralize(calls, 'call')} of recorded turns"] if calls else []
    return {
        "severity": "warning",
        "title": f"Not added from the agent's replay: {' and '.join(parts)}.",
        "description": "Only turns that follow everything in this log are added, because it grows only at its end.",
    }
