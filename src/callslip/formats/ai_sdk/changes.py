"""Make the chunks that create the part of a call, or that change the part of a client into the current one.

`RestartNeededError` is raised if there are no such chunks.
"""

from __future__ import annotations

from callslip.formats.ai_sdk import wire
from callslip.formats.ai_sdk.wire import Chunk, Part
from callslip.formats.turn_stream import RestartNeededError
from callslip.model import codec

# The fields of a part that only the chunks about its input carry.
_INPUT_FIELDS = ("toolName", "title", "input")


def begin(part: Part) -> list[Chunk]:
    """Return the chunks of a new part, without streamed arguments: they follow as deltas."""
    return [wire.input_start(part)] if part["state"] == "input-streaming" else whole(part, {})


def whole(now: Part, before: Part) -> list[Chunk]:
    """Return the chunks that create the part, or replace any other state of it."""
    if now["state"] == "input-streaming":
        text = now.get("rawInput", "")
        return [wire.input_start(now), *([wire.input_delta(now, text)] if text else [])]
    ended = now["state"].startswith("output")
    return [wire.input_available(now), *_approval(now, before), *([wire.output(now)] if ended else [])]


def _approval(now: Part, before: Part) -> list[Chunk]:
    """Return the request, unless the client has it, and its answer."""
    if "approval" not in now:
        return []
    is_known = _same(before.get("approval", {}), now["approval"], "id", "descriptor")
    answer = [wire.approval_response(now)] if "approved" in now["approval"] else []
    return answer if is_known and answer else [wire.approval_request(now), *answer]


def changes(before: Part, now: Part) -> list[Chunk]:
    """Return the chunks that change one part into the other. The client cannot remove a request or a title."""
    if "approval" in before and "approval" not in now:
        raise RestartNeededError("a request for approval was closed")
    if "title" in before and "title" not in now:
        raise RestartNeededError("a title was taken away")
    if _same(before, now, *before, *now):
        return []
    if _differs_by_end_only(before, now):
        return [wire.output(now)]
    if before["state"] == now["state"] == "input-streaming" and _same(before, now, "toolName", "title", "toolMetadata"):
        return []
    return whole(now, before)


def _differs_by_end_only(before: Part, now: Part) -> bool:
    """Return whether the chunk of the end carries every change. The chunk of a denial carries no metadata."""
    was_open = before["state"] in ("input-available", "approval-responded")
    ended = now["state"] in ("output-available", "output-error")
    return was_open and ended and _same(before, now, *_INPUT_FIELDS, "approval")


def _same(before: Part, now: Part, *names: str) -> bool:
    """Return whether fields are equal as JSON: in Python, 1 equals True."""
    return all((name in before) == (name in now) for name in names) and codec.encode(
        [before.get(name) for name in names]
    ) == codec.encode([now.get(name) for name in names])
