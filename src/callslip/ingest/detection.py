"""Detect the format of a file from its first lines, and whether a format understood a line.

The decoders decide: a line is understood if its decoder finds something in it. The format of a file is the one that
understands most of its first lines completely.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from callslip.errors import InvalidInputError
from callslip.formats import registry
from callslip.ingest.conversations import Conversation, Conversations
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Draft

HEAD_LINES = 64
HEAD_BYTES = 2**20
BOM = b"\xef\xbb\xbf"

_WITHOUT_CONTENT = (ev.Raw, ev.TurnStarted, ev.TurnEnded, ev.MessageEnded)
"""Events that a decoder may add to a message it does not understand."""


class Score(msgspec.Struct, frozen=True, order=True):
    """How many messages a format understands completely, and how many at least in part."""

    complete: int = 0
    partial: int = 0


def is_understood(format: str, decoded: Sequence[tuple[Conversation, Any, list[Draft]]]) -> bool:
    """Return whether a decoder understood a message at least in part, or it is a message of the format's protocol."""
    events = [draft.event for _, _, drafts in decoded for draft in drafts]
    if not _has_raw(events) or not all(isinstance(event, _WITHOUT_CONTENT) for event in events):
        return True
    return any(registry.is_protocol_message(format, part) for _, part, _ in decoded)


def _has_raw(events: list[ev.Event]) -> bool:
    return any(isinstance(event, ev.Raw) for event in events)


def detect_format(messages: Sequence[Any]) -> str:
    """Return the format that understands the messages best, and most of them.

    Raise InvalidInputError if there is no such format, or if several are equally good.
    """
    scores = {name: _score(name, messages) for name in registry.readable() if not registry.find(name).read_as}
    best = max(scores.values())
    candidates = [name for name, score in sorted(scores.items()) if score == best]
    if not messages:
        problem = f"there is no JSON value in the first {HEAD_BYTES:,} bytes"
    elif 2 * best.partial <= len(messages):
        problem = f"of the first {len(messages)} messages no format understands most; known are {', '.join(scores)}"
    elif len(candidates) > 1:
        problem = f"the first {len(messages)} messages may be in any of {', '.join(candidates)}"
    else:
        return candidates[0]
    raise InvalidInputError("format", f"cannot be detected: {problem}. Pass the format.")


def _score(format: str, messages: Sequence[Any]) -> Score:
    conversations = Conversations(format, lambda name: name)
    complete = partial = 0
    for message in messages:
        decoded = conversations.read(message)
        complete += not any(_has_raw([draft.event for draft in drafts]) for _, _, drafts in decoded)
        partial += is_understood(format, decoded)
    return Score(complete, partial)


class Head(NamedTuple):
    """The first messages of a file, all its lines again, and the error of the first line if there are none."""

    messages: list[Any]
    lines: Iterator[bytes]
    error: InvalidInputError | None = None


def read_head(lines: Iterable[bytes]) -> Head:
    """Return the messages in the first lines, and all lines again. The head ends before a line that is not JSON.

    Lines beyond the size of a head are not parsed, so that the work does not depend on the size of the file. An error
    while reading is raised when the lines are read again.
    """
    rest = iter(lines)
    seen: list[bytes] = []
    messages: list[Any] = []
    problem: InvalidInputError | None = None
    size = 0
    while len(messages) < HEAD_LINES and size < HEAD_BYTES:
        try:
            line = next(rest)
        except StopIteration:
            break
        except InvalidInputError as error:
            problem = error
            rest = _raise_later(error)
            break
        seen.append(line)
        size += len(line)
        text = (line.removeprefix(BOM) if len(seen) == 1 else line).strip()
        if text and size <= HEAD_BYTES:
            try:
                messages.append(codec.parse_json(text))
            except InvalidInputError as error:
                problem = InvalidInputError(f"line {len(seen)}", _describe_problem(text, error), error.limit)
                break
    return Head(messages, chain(seen, rest), None if messages else problem)


def _describe_problem(line: bytes, error: InvalidInputError) -> str:
    """Return why a line is not JSON, and what to do if it is of a known kind."""
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16 text. Save the file as UTF-8."
    if line.startswith((b"data:", b"event:", b"id:", b":")):
        return "is a server-sent event. Import only the data of the events, one JSON value per line."
    return f"{error.problem}. Nothing was imported."


def _raise_later(error: InvalidInputError) -> Iterator[bytes]:
    """Yield nothing and raise an error when the first line is read."""
    raise error
    yield
