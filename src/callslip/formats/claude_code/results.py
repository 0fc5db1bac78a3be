"""Read the end of a call from its result. Refusals and interruptions are texts there, with no mark of their own."""

from __future__ import annotations

import re
from typing import Any

from callslip.formats.json_fields import Fields, as_dict, as_str, identifier
from callslip.formats.providers.content import plain_output
from callslip.formats.transcripts import call_aliases
from callslip.model import events as ev
from callslip.model.events import Alias, CallEnd

AGENT_NAMESPACE = "claude-code.agent"
"""The alias namespace of sub-agents: each is an alias of the call that started it."""
REJECTED_RESULT = "User rejected tool use"
NOT_PERMITTED = "it was not permitted"
STOPPED = "the user interrupted it"

_DENIED = (
    "The user doesn't want to proceed with this tool use",
    "The agent proposed a plan that was rejected by the user",
    "Permission for this tool use was denied",
    "Permission to use ",
    "Claude requested permissions to ",
    "User refused permission to run tool",
)
_INTERRUPTED = ("The user doesn't want to take this action right now", "[Request interrupted by user")
_REASON = re.compile(r"the user said:\s*(.+)", re.DOTALL | re.IGNORECASE)
_EXIT_STATUS = re.compile(r"(?:Error: )?Exit code (-?\d{1,9})\b")


def read_result(call_id: str, block: Fields, details: Any, at: int) -> CallEnd:
    """Return the end of a call. `details` is the result as the program itself uses it."""
    output, more = plain_output(block.get("content")), as_dict(details)
    fields: Fields = {"aliases": call_aliases(call_id), "at": at}
    if agent := identifier(more.get("agentId")):
        fields["aliases"] += (Alias(AGENT_NAMESPACE, agent),)
    duration = more.get("durationMs", more.get("totalDurationMs"))
    if isinstance(duration, int | float) and not isinstance(duration, bool) and 0 <= duration < 10**12:
        fields["duration_ms"] = duration
    is_error, text = _is_error(block), output if isinstance(output, str) else ""
    if is_error and (text.startswith(_DENIED) or details == REJECTED_RESULT):
        reason = _REASON.search(text)
        return ev.CallDenied(reason=reason[1].strip() if reason else NOT_PERMITTED, error=output, **fields)
    if (is_error and text.startswith(_INTERRUPTED)) or more.get("interrupted") is True:
        return ev.CallCancelled(reason=STOPPED, output=output, **fields)
    if is_error:
        status = _EXIT_STATUS.match(text)
        if status:
            fields["exit_status"] = int(status[1])
        return ev.CallFailed(error=_without_tag(output), **fields)
    return ev.CallCompleted(output=output, **fields)


def _is_error(block: Fields) -> bool:
    inner = as_dict(block.get("content"))
    return block.get("is_error") is True or as_str(inner.get("type")).endswith("_error")


def _without_tag(output: Any) -> Any:
    """Return an error without the tag that marks it for the model."""
    if not isinstance(output, str):
        return output
    return output.removeprefix("<tool_use_error>").removesuffix("</tool_use_error>")
