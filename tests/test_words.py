"""One table gives each state's word in every vocabulary (C13): here it is held against the design's table, by hand."""

from __future__ import annotations

import pytest

from callslip.lifecycle import ENDS, OPEN
from callslip.words import WORDS, command_word, v7_word

# The design's table, column by column as it stands there.
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
def test_each_state_has_the_words_of_the_design(state: str) -> None:
    """C13: 003, the AI SDK's majors, ACP and MCP tasks."""
    assert tuple(getattr(WORDS[state], column) for column in COLUMNS) == DESIGN[state]


def test_every_state_has_its_words() -> None:
    """C13: no state is without, and no word is for a state that is not."""
    assert set(WORDS) == set(DESIGN) == OPEN | ENDS


@pytest.mark.parametrize(
    ("state", "word"), {"queued": "queued", "awaiting_approval": "queued", "running": "running"}.items()
)
def test_the_shell_card_goes_queued_running_completed(state: str, word: str) -> None:
    """C13: in 000 every end is `completed`, and the error is said beside it."""
    assert WORDS[state].shell == word
    assert {WORDS[end].shell for end in ENDS} == {"completed"}


def test_an_end_is_an_error_unless_it_completed() -> None:
    """C13: `is_error`, `isError` and the failed words go together, and what is open is no error."""
    assert {state for state in WORDS if WORDS[state].error} == ENDS - {"completed"}
    for state in ENDS:
        failed = state != "completed"
        assert (WORDS[state].act, WORDS[state].entry) == (
            ("failed", "failed") if failed else ("completed", "completed")
        )
    for state in OPEN:
        assert WORDS[state].act == "running"


def test_complete_says_whether_the_call_ended() -> None:
    """C13: 004's `isComplete`, and AG-UI's three stages."""
    for state, words in WORDS.items():
        assert words.complete == (state in ENDS)
        assert words.ag_ui == ("result" if state in ENDS else "interrupt" if state == "awaiting_approval" else "open")


def test_a_deadline_that_passed_while_running_is_a_timeout() -> None:
    """C13: 003 tells it from one that passed in the queue."""
    assert command_word("expired", ran=True) == "timeout"
    assert command_word("expired", ran=False) == "expired"
    assert {command_word(state, ran) for state in ("failed", "denied", "lost") for ran in (True, False)} == {"error"}
    assert command_word("cancelled", ran=True) == "cancelled"


def test_a_denial_that_nobody_was_asked_for_is_an_error_in_v7() -> None:
    """C13: AI SDK 7 knows a denial only as the answer to a request."""
    assert v7_word("denied", refused=True) == "output-denied"
    assert v7_word("denied", refused=False) == "output-error"
    assert v7_word("failed", refused=True) == "output-error"
    assert v7_word("awaiting_approval", refused=True) == "approval-requested"


def test_the_second_draft_of_acp_knows_cancelled() -> None:
    """C13: all other words of the draft are those of version 1."""
    assert {state: words.acp2 for state, words in WORDS.items() if words.acp2 != words.acp} == {
        "cancelled": "cancelled"
    }


def test_a_call_that_was_granted_has_a_word_of_its_own_in_v7() -> None:
    """C13: until it ends; its end is said as any other."""
    assert v7_word("running", refused=False, granted=True) == "approval-responded"
    assert v7_word("completed", refused=False, granted=True) == "output-available"
    assert v7_word("denied", refused=False, granted=True) == "output-error"
