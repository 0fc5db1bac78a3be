"""Records contain no NUL, which PostgreSQL cannot store in a text. Events keep it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from callslip.model import events as ev
from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord, record_text
from callslip.rules.lifecycle import classify_answer
from callslip.rules.projection import apply_event

CALL, APPROVAL = "exec_000000000000", "appr_000000000000"


class MemoryTables:
    """The tables of a projection in memory."""

    def __init__(self) -> None:
        self.calls: dict[str, CallRecord] = {}
        self.approvals: dict[str, ApprovalRecord] = {}

    def call(self, call: str) -> CallRecord | None:
        return self.calls.get(call)

    def put_call(self, row: CallRecord) -> None:
        self.calls[row.id] = row

    def approval(self, approval: str) -> ApprovalRecord | None:
        return self.approvals.get(approval)

    def put_approval(self, row: ApprovalRecord) -> None:
        self.approvals[row.id] = row

    def put_alias(self, session: str, ns: str, identity: str, call: str) -> None:
        """Ids contain no NUL, so there is nothing to check."""


def project(*events: ev.Event) -> tuple[SessionRecord, MemoryTables]:
    """Return the records of a session with these events."""
    tables, session = MemoryTables(), SessionRecord("s")
    for seq, event in enumerate(events, 1):
        apply_event(tables, session, msgspec.structs.replace(event, seq=seq, at=seq))
    return session, tables


def test_a_text_without_nul_is_not_copied() -> None:
    """Only NUL is replaced, each by one character."""
    text = "other controls \x01\x7f stay"
    assert record_text(text) is text
    assert record_text("\0a\0\0") == "\ufffda\ufffd\ufffd"


def test_the_texts_of_calls_and_sessions_contain_no_nul() -> None:
    """Every shown text of a record has U+FFFD in its place."""
    session, tables = project(
        ev.SessionInfo(title="a\0b"),
        ev.CallProposed(call=CALL, tool_name="mcp__x__t\0", title="ti\0tle", kind="k\0", client="q\0"),
        ev.CallStarted(call=CALL, worker="w\0"),
        ev.CallFailed(call=CALL, reason="r\0"),
    )
    row = tables.calls[CALL]
    assert session.title == "a\ufffdb"
    assert (row.tool, row.title, row.kind) == ("t\ufffd", "ti\ufffdtle", "k\ufffd")
    assert (row.client, row.worker, row.reason) == ("q\ufffd", "w\ufffd", "r\ufffd")


@pytest.mark.parametrize("answer", [ev.ApprovalGranted, ev.ApprovalRefused, ev.ApprovalWithdrawn])
def test_the_texts_of_approvals_contain_no_nul(answer: type[ev.ApprovalAnswer]) -> None:
    """The request and its answer; a new title that comes with the answer, too."""
    extra: dict[str, Any] = {"title": "new\0"} if answer is ev.ApprovalGranted else {}
    _, tables = project(
        ev.CallProposed(call=CALL, tool_name="t"),
        ev.ApprovalRequested(call=CALL, approval=APPROVAL, description="d\0", answer_at="p\0"),
        answer(call=CALL, approval=APPROVAL, option="o\0", by="b\0", reason="r\0", **extra),
    )
    row = tables.approvals[APPROVAL]
    assert (row.description, row.option, row.by, row.reason) == ("d\ufffd", "o\ufffd", "b\ufffd", "r\ufffd")
    assert "\0" not in str(msgspec.to_builtins(tables.calls[CALL])) + str(msgspec.to_builtins(row))
    assert tables.calls[CALL].title == ("new\ufffd" if extra else "")


def test_the_place_of_an_answer_contains_no_nul() -> None:
    """It is shown while the request is pending."""
    request = ev.ApprovalRequested(call=CALL, approval=APPROVAL, answer_at="p\0")
    _, tables = project(ev.CallProposed(call=CALL, tool_name="t"), request)
    assert tables.approvals[APPROVAL].answer_at == "p\ufffd"


def test_a_repeated_answer_with_nul_is_a_duplicate() -> None:
    """The option is compared in the form that records have."""
    answer = ev.ApprovalRefused(call=CALL, approval=APPROVAL, option="no\0")
    request = ev.ApprovalRequested(call=CALL, approval=APPROVAL)
    _, tables = project(ev.CallProposed(call=CALL, tool_name="t"), request, answer)
    row, approval = tables.calls[CALL], tables.approvals[APPROVAL]
    assert classify_answer(row, approval, answer) == "duplicate"
    assert classify_answer(row, approval, msgspec.structs.replace(answer, option="never\0")) == "late"
