"""Calls that the server answers later: a handle first, then where the task stands, then what came of it.

In 2025-11-25 the client asks for a task and fetches the result by `tasks/result`; in the extension of 2026-07-28 the
server decides, and the result stands in what `tasks/get` or a notification tells. Both are read, whoever speaks which.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.json_fields import as_dict, as_str, identifier
from callslip.model import events as ev
from callslip.model.events import Alias, CallEnd

NAMESPACE = "mcp.task"
CANCELLED = "its task was cancelled"
ABANDONED = "the client cancelled its task"
_HANDLE = {"taskId", "status", "statusMessage", "createdAt", "lastUpdatedAt", "ttl", "ttlMs"}
KNOWN_FIELDS = {*_HANDLE, "pollInterval", "pollIntervalMs", "resultType", "task", "result", "error"}


def handle(result: Any) -> dict[str, Any] | None:
    """The task that a call was answered with; None if it was answered with its result."""
    said = as_dict(result)
    told = said if said.get("resultType") == "task" else as_dict(said.get("task"))
    return told if name_of(told) else None


def name_of(told: dict[str, Any]) -> str:
    """The name of a task, "" for none."""
    return identifier(told.get("taskId")) if isinstance(told.get("taskId"), str) else ""


def alias(task: str) -> Alias:
    return Alias(NAMESPACE, task)


def where(told: dict[str, Any]) -> dict[str, Any]:
    """Where a task stands, as the progress of its call."""
    message = as_str(told.get("statusMessage"))
    text = {"text": f"{message}\n"} if message else {}
    return {"progress": {"taskId": told.get("taskId"), "status": told.get("status")}, **text}


def cancelled(aliases: tuple[Alias, ...], told: dict[str, Any]) -> CallEnd:
    return ev.CallCancelled(aliases=aliases, reason=as_str(told.get("statusMessage")) or CANCELLED)


def unfetched(aliases: tuple[Alias, ...], told: dict[str, Any]) -> CallEnd | None:
    """How a call ends whose task is over, if nobody ever asks for the result."""
    message = as_str(told.get("statusMessage"))
    if told.get("status") == "completed":
        return ev.CallCompleted(aliases=aliases, reason=message)
    if told.get("status") == "failed":
        return ev.CallFailed(aliases=aliases, error=message or "its task failed")
    return None
