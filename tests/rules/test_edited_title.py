"""The title of a call with edited arguments names the edited values."""

from __future__ import annotations

from typing import Any

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.model import events as ev
from callslip.model.entries import ToolCall
from callslip.rules.edited_title import retitle
from tests.support.invariants import find_faults


@pytest.mark.parametrize(
    ("title", "before", "after", "expected"),
    [
        ("rm a.txt", {"command": "rm a.txt"}, {"command": "rm b.txt"}, "rm b.txt"),
        ("Deploy to production", {"env": "production"}, {"env": "staging"}, "Deploy to staging"),
        ("Resize to 300 px", {"width": 300}, {"width": 20}, "Resize to 20 px"),
        ("Copy a to b", {"from": "a", "to": "b"}, {"from": "a", "to": "c"}, "Copy a to c"),
        ("git commit -m …", {"command": "git commit -m 'long text'"}, {"command": "git status"}, "git status"),
        ("Run bash -c ls", {"command": ["bash", "-c", "ls"]}, {"command": ["bash", "-c", "pwd"]}, "Run bash -c pwd"),
        ("Move \\1 away", {"path": "\\1"}, {"path": "\\g<0>"}, "Move \\g<0> away"),
        ("Deploy", {"env": "production"}, {"env": "staging"}, "Deploy"),
        ("also a so", {"word": "so"}, {"word": "no"}, "also a no"),
        ("Set flag", {"flag": True}, {"flag": False}, "Set flag"),
        ("rm a.txt", {"command": "rm a.txt"}, {"other": 1}, "rm a.txt"),
        ("rm a.txt", None, {"command": "rm b.txt"}, "rm a.txt"),
        ("x", {"a": ""}, {"a": "y"}, "x"),
    ],
)
def test_a_title_names_the_edited_values(title: str, before: Any, after: Any, expected: str) -> None:
    """Values are replaced as whole words; a shortened command is replaced by the new one."""
    assert retitle(title, before, after) == expected


@pytest.mark.anyio
@pytest.mark.parametrize("has_input", [True, False], ids=["request", "proposal"])
async def test_every_view_shows_the_edited_title(has_input: bool) -> None:
    """The entry, the list of calls and the state after any later event have the title of what was run."""
    async with callslip.open("sqlite:///:memory:") as ledger:
        proposal = ev.CallProposed(call="new:1", tool_name="bash", title="rm -r /", input={"command": "rm -r /"})
        request = ev.ApprovalRequested(call="new:1", **({"input": {"command": "rm -r /"}} if has_input else {}))
        *_, requested = await ledger.log.append("s", [proposal, request], source="python", strict=True)
        assert isinstance(requested, ev.ApprovalRequested)
        await ledger.approve(requested.approval, by="ann", input={"command": "rm -r /tmp/x"})
        assert await read_titles(ledger) == ["rm -r /tmp/x"] * 3
        await ledger.log.append("s", [ev.CallCompleted(call=requested.call, output="")], source="python", strict=True)
        assert await read_titles(ledger) == ["rm -r /tmp/x"] * 3
        assert not await find_faults(ledger)


@pytest.mark.anyio
@pytest.mark.parametrize("before", [{"path": "a", "n": 1}, {"path": "a", "n": 1.0}])
async def test_approving_the_same_arguments_keeps_all_views_equal(before: Any) -> None:
    """An approval that repeats the arguments is no edit; if only a number is written differently, the views agree."""
    async with callslip.open("sqlite:///:memory:") as ledger:
        proposal = ev.CallProposed(call="new:1", tool_name="rm", title="rm a")
        drafts = [proposal, ev.CallInput(call="new:1", input=before), ev.ApprovalRequested(call="new:1")]
        *_, requested = await ledger.log.append("s", drafts, source="python", strict=True)
        assert isinstance(requested, ev.ApprovalRequested)
        await ledger.approve(requested.approval, by="ann", input={"path": "a", "n": 1})
        assert await read_titles(ledger) == ([""] * 3 if isinstance(before["n"], float) else ["rm a"] * 3)
        assert not await find_faults(ledger)


@pytest.mark.anyio
async def test_a_title_for_unknown_arguments_is_removed() -> None:
    """If the arguments came in a separate event, the title might name them, so views show the arguments instead."""
    async with callslip.open("sqlite:///:memory:") as ledger:
        proposal = ev.CallProposed(call="new:1", tool_name="rm", title="rm a")
        drafts = [proposal, ev.CallInput(call="new:1", input={"path": "a"}), ev.ApprovalRequested(call="new:1")]
        *_, requested = await ledger.log.append("s", drafts, source="python", strict=True)
        assert isinstance(requested, ev.ApprovalRequested)
        await ledger.approve(requested.approval, by="ann", input={"path": "b"})
        assert await read_titles(ledger) == [""] * 3


@pytest.mark.anyio
async def test_an_answer_cannot_set_another_title() -> None:
    """The ledger sets the title of edited arguments and ignores that of the answer."""
    async with callslip.open("sqlite:///:memory:") as ledger:
        request = ev.ApprovalRequested(tool_name="bash", title="rm a", input={"command": "rm a"})
        *_, requested = await ledger.log.append("s", [request], source="python", strict=True)
        assert isinstance(requested, ev.ApprovalRequested)
        await ledger.log.append("s", [ev.ApprovalGranted(approval=requested.approval, title="harmless")])
        assert await read_titles(ledger) == ["rm a"] * 3


async def read_titles(ledger: LocalLedger) -> list[str | None]:
    """Return the title of the only call in its row, in the snapshot, and in the fold of the whole log."""
    (record,) = (await ledger.calls()).items
    snapshots = [await ledger.snapshot("s"), (await ledger.log.state_at("s")).snapshot()]
    entries = [entry for snapshot in snapshots for entry in snapshot.entries if isinstance(entry, ToolCall)]
    return [record.title, *(entry.title for entry in entries)]
