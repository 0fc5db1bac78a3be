"""Rows as JSON values, as the server gives them too."""

from __future__ import annotations

from typing import Any

from msgspec import to_builtins

from callslip import outward
from callslip.rows import ApprovalRow, CallRow, SessionRow

Json = dict[str, Any]


def session_json(row: SessionRow, opened: int, asks: int) -> Json:
    """A session, with how many calls are open in it and how many requests wait."""
    return {**to_builtins(outward.session_out(row)), "openCalls": opened, "pendingApprovals": asks}


def call_json(row: CallRow) -> Json:
    """A call."""
    return to_builtins(outward.call_out(row))


def approval_json(row: ApprovalRow) -> Json:
    """A request for approval, and its answer."""
    return to_builtins(outward.approval_out(row))
