"""Rows as JSON: the public part of what a query gives, in the words of the wire. The ledger's own notes stay out."""

from __future__ import annotations

from typing import Any

from callslip.rows import ApprovalRow, CallRow, SessionRow

Json = dict[str, Any]


def session_json(row: SessionRow, opened: int, asks: int) -> Json:
    """A session. `low`: how far retention removed its events."""
    return {
        "session": row.name,
        "title": row.title,
        "seq": row.head,
        "low": row.low,
        "turn": row.turn,
        "turns": row.turns,
        "calls": row.calls,
        "openCalls": opened,
        "pendingApprovals": asks,
        "createdAt": row.created_at,
        "updatedAt": row.updated_at,
        "owner": row.owner,
        "labels": row.labels,
    }


def call_json(row: CallRow) -> Json:
    """A call."""
    return {
        "call": row.id,
        "session": row.session,
        "toolCallId": row.shown,
        "state": row.state,
        "toolName": row.tool,
        "title": row.title,
        "kind": row.kind,
        "source": row.source,
        "turn": row.turn,
        "scope": row.scope,
        "attempt": row.attempt,
        "approval": row.approval,
        "reason": row.reason,
        "entry": row.entry,
        "createdAt": row.created_at,
        "startedAt": row.started_at,
        "endedAt": row.ended_at,
    }


def approval_json(row: ApprovalRow) -> Json:
    """A request for approval, and its answer."""
    return {
        "approval": row.id,
        "session": row.session,
        "call": row.call,
        "state": row.state,
        "description": row.description,
        "options": row.options,
        "option": row.option,
        "by": row.by,
        "reason": row.reason,
        "entry": row.entry,
        "createdAt": row.created_at,
        "expiresAt": row.expires_at,
        "answeredAt": row.answered_at,
    }
