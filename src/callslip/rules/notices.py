"""Derive the notices for a person: requests that wait, and sessions whose agent has finished or is idle. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec.structs import replace

from callslip.model.notices import Notice, NoticeDelays
from callslip.model.records import ApprovalRecord, CallRecord, ListedSession
from callslip.rules.lifecycle import strip_mcp_prefix

QUESTION_TOOLS = frozenset(("AskUserQuestion", "ask_user", "question"))
"""Tools with which agents ask their user."""
PLAN_TOOLS = frozenset(("ExitPlanMode", "exit_plan_mode"))
"""Tools with which agents show a plan to accept."""


def question_kind(tool: str) -> Literal["question", "plan", ""]:
    """Return what an agent asks with a tool; "" for any other tool."""
    name = strip_mcp_prefix(tool)
    return "question" if name in QUESTION_TOOLS else "plan" if name in PLAN_TOOLS else ""


def approval_notice(
    approval: ApprovalRecord, call: CallRecord | None, session: ListedSession | None, delays: NoticeDelays
) -> Notice:
    """Return the notice of a pending request."""
    tool = call.tool if call is not None else ""
    return Notice(
        id=approval.id,
        kind="question" if question_kind(tool) else "approval",
        session=approval.session,
        at=approval.created_at,
        due=approval.created_at + _to_ms(delays.approval),
        agent=session.agent if session is not None else "",
        approval=approval.id,
        entry=approval.entry,
        tool=tool,
        answer_at=approval.answer_at,
        expires_at=approval.expires_at,
        title=(call.title if call is not None else "") or approval.description,
        text=approval.description,
        project=session.project if session is not None else "",
    )


def session_notices(session: ListedSession, delays: NoticeDelays) -> Iterator[Notice]:
    """Yield the notices of a session whose last turn has ended: one per turn, and one if nothing follows for long.

    An agent whose program has ended is not idle.
    """
    if session.state not in ("idle", "ended") or not session.turns:
        return
    turn = f"{session.id}_{session.turns}"
    finished = Notice(
        id=f"turn_{turn}",
        kind="finished",
        session=session.name,
        at=session.active_at,
        due=session.active_at + _to_ms(delays.finished),
        agent=session.agent,
        title=session.title or session.prompt,
        project=session.project,
    )
    yield finished
    if session.state == "idle":
        yield replace(finished, id=f"idle_{turn}", kind="idle", due=session.active_at + _to_ms(delays.idle))


def _to_ms(seconds: float) -> int:
    return int(seconds * 1000)
