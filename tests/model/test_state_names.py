"""The name of each state in every protocol (C13), compared with the table of the design."""

from __future__ import annotations

import pytest

from callslip.model.state_names import STATE_NAMES, ai_sdk_v7_state_name, command_state_name
from callslip.rules.lifecycle import OPEN_STATES, TERMINAL_STATES

# The table of the design, column by column.
COLUMNS = ("command", "v4", "v5", "v6", "v7", "acp", "mcp")
DESIGN: dict[str, tuple[str, ...]] = {
    "queued": ("pending", "call", "input-available", "input-available", "input-available", "pending", "working"),
    "running": ("pending", "call", "input-available", "input-available", "input-available", "in_progress", "working"),
    "awaiting_approval": (
        *("pending", "call", "input-available", "approval-requested", "approval-requested"),
        *("pending", "input_required"),
    ),
    "completed": (
        *("complete", "result", "output-available", "output-available", "output-available"),
        *("completed", "completed"),
    ),
    "failed": ("error", "result", "output-error", "output-error", "output-error", "failed", "completed"),
    "lost": ("error", "result", "output-error", "output-error", "output-error", "failed", "completed"),
    "denied": ("error", "result", "output-error", "output-error", "output-denied", "failed", "completed"),
    "cancelled": ("cancelled", "result", "output-error", "output-error", "output-error", "failed", "cancelled"),
    "expired": ("expired", "result", "output-error", "output-error", "output-error", "failed", "completed"),
}


@pytest.mark.parametrize("state", DESIGN)
def test_state_names_match_the_table_of_the_design(state: str) -> None:
    """C13: for commands, the major versions of the AI SDK, ACP and MCP tasks."""
    assert tuple(getattr(STATE_NAMES[state], column) for column in COLUMNS) == DESIGN[state]


def test_every_state_has_names_in_every_protocol() -> None:
    """C13: the table has exactly the states of a call as keys."""
    assert set(STATE_NAMES) == set(DESIGN) == OPEN_STATES | TERMINAL_STATES


@pytest.mark.parametrize(
    ("state", "name"), {"queued": "queued", "awaiting_approval": "queued", "running": "running"}.items()
)
def test_shell_states_are_queued_running_and_completed(state: str, name: str) -> None:
    """C13: for shell calls every end is `completed`, with the error in another field."""
    assert STATE_NAMES[state].shell == name
    assert {STATE_NAMES[end].shell for end in TERMINAL_STATES} == {"completed"}


def test_every_end_except_completed_is_an_error() -> None:
    """C13: `is_error`, `isError` and the failed names agree, and open states are no errors."""
    assert {state for state in STATE_NAMES if STATE_NAMES[state].error} == TERMINAL_STATES - {"completed"}
    for state in TERMINAL_STATES:
        is_failed = state != "completed"
        assert (STATE_NAMES[state].act, STATE_NAMES[state].entry) == (
            ("failed", "failed") if is_failed else ("completed", "completed")
        )
    for state in OPEN_STATES:
        assert STATE_NAMES[state].act == "running"


def test_complete_is_true_for_terminal_states() -> None:
    """C13: `complete` is true for them, and AG-UI has a name for each of its three stages."""
    for state, names in STATE_NAMES.items():
        assert names.complete == (state in TERMINAL_STATES)
        assert names.ag_ui == (
            "result" if state in TERMINAL_STATES else "interrupt" if state == "awaiting_approval" else "open"
        )


def test_a_deadline_that_passed_while_running_is_a_timeout() -> None:
    """C13: commands distinguish it from a deadline that passed in the queue."""
    assert command_state_name("expired", ran=True) == "timeout"
    assert command_state_name("expired", ran=False) == "expired"
    assert {command_state_name(state, ran) for state in ("failed", "denied", "lost") for ran in (True, False)} == {
        "error"
    }
    assert command_state_name("cancelled", ran=True) == "cancelled"


def test_a_denial_without_a_request_is_an_error_in_v7() -> None:
    """C13: in AI SDK 7 only the answer to a request is a denial."""
    assert ai_sdk_v7_state_name("denied", refused=True) == "output-denied"
    assert ai_sdk_v7_state_name("denied", refused=False) == "output-error"
    assert ai_sdk_v7_state_name("failed", refused=True) == "output-error"
    assert ai_sdk_v7_state_name("awaiting_approval", refused=True) == "approval-requested"


def test_acp_draft_2_has_a_cancelled_state() -> None:
    """C13: all other names of the draft are those of version 1."""
    assert {state: names.acp2 for state, names in STATE_NAMES.items() if names.acp2 != names.acp} == {
        "cancelled": "cancelled"
    }


def test_an_approved_call_has_its_own_state_name_in_v7() -> None:
    """C13: until it ends; then it has the usual name."""
    assert ai_sdk_v7_state_name("running", refused=False, granted=True) == "approval-responded"
    assert ai_sdk_v7_state_name("completed", refused=False, granted=True) == "output-available"
    assert ai_sdk_v7_state_name("denied", refused=False, granted=True) == "output-error"
