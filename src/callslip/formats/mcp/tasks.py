"""Calls that the server answers later: a task handle first, then states of the task, then its result.

In 2025-11-25 the client requests a task and fetches the result by `tasks/result`; in the extension of 2026-07-28 the
server decides, and `tasks/get` or a notification contains the result. Both are read.
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


def task_handle(result: Any) -> dict[str, Any] | None:
    """Return the task that answers a call; None if the result answers it."""
    fields = as_dict(result)
    task = fields if fields.get("resultType") == "task" else as_dict(fields.get("task"))
    return task if task_id(task) else None


def task_id(task: dict[str, Any]) -> str:
    """Return the id of a task, "" for none."""
    return identifier(task.get("taskId")) if isinstance(task.get("taskId"), str) else ""


def alias(name: str) -> Alias:
    return Alias(NAMESPACE, name)


def progress_fields(task: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a task as progress of its call."""
    message = as_str(task.get("statusMessage"))
    text = {"text": f"{message}\n"} if message else {}
    return {"progress": {"taskId": task.get("taskId"), "status": task.get("status")}, **text}


def cancelled(aliases: tuple[Alias, ...], task: dict[str, Any]) -> CallEnd:
    return ev.CallCancelled(aliases=aliases, reason=as_str(task.get("statusMessage")) or CANCELLED)


def end_without_result(aliases: tuple[Alias, ...], task: dict[str, Any]) -> CallEnd | None:
    """Return the end of a call whose task has ended and whose result the client does not fetch."""
    message = as_str(task.get("statusMessage"))
    if task.get("status") == "completed":
        return ev.CallCompleted(aliases=aliases, reason=message)
    if task.get("status") == "failed":
        return ev.CallFailed(aliases=aliases, error=message or "its task failed")
    return None
