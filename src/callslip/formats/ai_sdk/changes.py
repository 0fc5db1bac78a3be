"""The chunks that make the part of a call, or turn the part that a client has into the part as it stands now.

Where no chunks can do that, `RestartNeeded` says why.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.ai_sdk import wire
from callslip.formats.ai_sdk.wire import Chunk, Part
from callslip.formats.turn_stream import RestartNeeded
from callslip.model import codec

# What of a part only the chunks about its input can tell.
_TOLD_FIRST = ("toolName", "title", "input")


def begin(part: Part) -> list[Chunk]:
    """A new part, without the arguments that are still coming: they follow piece by piece."""
    return [wire.input_start(part)] if part["state"] == "input-streaming" else whole(part, {})


def whole(now: Part, before: Part) -> list[Chunk]:
    """All that makes the part, from nothing or from any other state of it."""
    if now["state"] == "input-streaming":
        text = now.get("rawInput", "")
        return [wire.input_start(now), *([wire.input_delta(now, text)] if text else [])]
    ended = now["state"].startswith("output")
    return [wire.input_available(now), *_approval(now, before), *([wire.output(now)] if ended else [])]


def _approval(now: Part, before: Part) -> list[Chunk]:
    """The request unless the client has it, and its answer."""
    if "approval" not in now:
        return []
    known = _same(_asked(before), _asked(now), "id", "descriptor")
    answer = [wire.approval_response(now)] if "approved" in now["approval"] else []
    return answer if known and answer else [wire.approval_request(now), *answer]


def _asked(part: Part) -> dict[str, Any]:
    return part.get("approval", {})


def changes(before: Part, now: Part) -> list[Chunk]:
    """What turns one part into the other. A request for approval and a title stay with a part for good."""
    if "approval" in before and "approval" not in now:
        raise RestartNeeded("a request for approval was closed")
    if "title" in before and "title" not in now:
        raise RestartNeeded("a title was taken away")
    if _same(before, now, *before, *now):
        return []
    if _is_only_an_end(before, now):
        return [wire.output(now)]
    if before["state"] == now["state"] == "input-streaming" and _same(before, now, "toolName", "title", "toolMetadata"):
        return []
    return whole(now, before)


def _is_only_an_end(before: Part, now: Part) -> bool:
    """Whether the chunk of the end says everything that is new. That of a denial takes no metadata along."""
    awaited = before["state"] in ("input-available", "approval-responded")
    ended = now["state"] in ("output-available", "output-error")
    return awaited and ended and _same(before, now, *_TOLD_FIRST, "approval")


def _same(before: Part, now: Part, *names: str) -> bool:
    """Equal as JSON: to Python 1 and True are equal too."""
    return all((name in before) == (name in now) for name in names) and codec.encode(
        [before.get(name) for name in names]
    ) == codec.encode([now.get(name) for name in names])
