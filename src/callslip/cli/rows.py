"""Rows as JSON values, as the server gives them too."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from callslip.model import views
from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord

Json = dict[str, Any]


def session_json(row: SessionRecord, opened: int, asks: int) -> Json:
    """A session, with how many calls are open in it and how many requests wait."""
    return {**to_builtins(views.session_view(row)), "openCalls": opened, "pendingApprovals": asks}


def call_json(row: CallRecord) -> Json:
    """A call."""
    return to_builtins(views.call_view(row))


def approval_json(row: ApprovalRecord) -> Json:
    """A request for approval, and its answer."""
    return to_builtins(views.approval_view(row))
