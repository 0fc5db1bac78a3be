"""The lifecycle: every state with every event, the verdict on an event, and which call it belongs to.

The table below is written by hand from the design; `lifecycle_matrix.json` has the result of the code for every pair.
After an intended change, `CALLSLIP_UPDATE=1 pytest tests/rules/test_lifecycle.py` writes the file again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from msgspec import structs

from callslip.errors import ConflictError, InvalidTransitionError
from callslip.model import events as ev
from callslip.model.events import EVENT_TYPES, Alias, Event
from callslip.model.names import SOURCE_LEDGER
from callslip.model.records import ApprovalRecord, CallRecord
from callslip.rules.lifecycle import (
    OPEN_STATES,
    TERMINAL_STATES,
    TRANSITIONS,
    TURN_CLOSES,
    classify_answer,
    classify_event,
    ending_mark,
    is_terminal,
    opening_mark,
    resolve_call,
    strip_mcp_prefix,
)
from callslip.rules.projection import apply_event
from tests.support.strategies import SESSION, MemoryLedger, canonical_json, scripts, write_script

MATRIX = Path(__file__).with_name("lifecycle_matrix.json")
UPDATE = bool(os.environ.get("CALLSLIP_UPDATE"))  # Read before a fixture replaces the environment.
CALL_TYPES = {name: cls for name, cls in EVENT_TYPES.items() if issubclass(cls, ev.CallEvent)}

UPDATES = ("call.proposed", "call.inputDelta", "call.input", "call.progress")
ENDINGS = ("completed", "failed", "denied", "cancelled", "expired", "lost")
ANSWERS = ("approval.granted", "approval.refused", "approval.withdrawn", "approval.released")


def row_of(
    updates: str, started: str, requeued: str, endings: dict[str, str], requested: str, answers: tuple[str, ...]
) -> dict[str, str]:
    """Return one row of the table of the design."""
    return {
        **dict.fromkeys(UPDATES, updates),
        "call.started": started,
        "call.requeued": requeued,
        **{f"call.{ending}": outcome for ending, outcome in endings.items()},
        "approval.requested": requested,
        **dict(zip(ANSWERS, answers, strict=True)),
    }


OWN_STATES = {ending: ending for ending in ENDINGS}
ILLEGAL = ("illegal",) * 4
UNKNOWN_CALL = {ending: ending if ending in ("completed", "failed") else "orphan" for ending in ENDINGS}
LATE = dict.fromkeys(ENDINGS, "late")

# The table of the design. A request for approval of an unknown call is not here: a proposal is appended before it.
DESIGN: dict[str, dict[str, str]] = {
    "none": row_of("queued", "running", "orphan", UNKNOWN_CALL, "orphan", ("orphan",) * 4),
    "queued": row_of("queued", "running", "illegal", OWN_STATES, "awaiting_approval", ILLEGAL),
    "awaiting_approval": row_of(
        "awaiting_approval",
        "illegal",
        "illegal",
        OWN_STATES,
        "awaiting_approval",
        ("queued", "denied", "cancelled", "queued"),
    ),
    "running": row_of("running", "running", "queued", OWN_STATES, "awaiting_approval", ILLEGAL),
    **{state: row_of("late", "late", "late", LATE, "late", ("late",) * 4) for state in ENDINGS},
}
# What the agent's own record says about a call adds only to a call that has completed or was lost.
REPORTED = {
    "none": "orphan",
    **dict.fromkeys(("queued", "awaiting_approval", "running"), "illegal"),
    **dict.fromkeys(ENDINGS, "late"),
    "completed": "completed",
    "lost": "lost",
}
for state, row in DESIGN.items():
    row["call.reported"] = REPORTED[state]
# Different ends that agents report after a denial or a cancellation; an equal end is repeated too.
REPEATED_ENDS = {(state, f"call.{end}") for state in ("denied", "cancelled") for end in ("failed", "cancelled")}


def make_event(name: str) -> Event:
    """Return an event of a type; its other fields do not matter."""
    cls = CALL_TYPES[name]
    return cls(text="x") if cls is ev.CallInputDelta else cls()


def outcome(state: str, name: str) -> str:
    """Return the next state after an event, or the verdict if there is none."""
    event = make_event(name)
    row = (
        CallRecord(id="exec_000000000001", session="s", entry=1, state=state, ending="other")
        if state != "none"
        else None
    )
    verdict = classify_event(row, event)
    return TRANSITIONS[state][type(event)] if verdict == "applied" else verdict


def transition_matrix() -> dict[str, dict[str, str]]:
    return {state: {name: outcome(state, name) for name in CALL_TYPES} for state in TRANSITIONS}


def test_the_matrix_matches_the_committed_file() -> None:
    """C4: every state with every event, so that a change is visible in the diff."""
    text = json.dumps(transition_matrix(), indent=2) + "\n"
    if UPDATE:
        MATRIX.write_text(text, "utf-8")
    assert MATRIX.read_text("utf-8") == text


def test_the_matrix_matches_the_table_of_the_design() -> None:
    """C4: the table of the design, with repeated ends."""
    expected = {
        state: {name: "duplicate" if (state, name) in REPEATED_ENDS else result for name, result in row.items()}
        for state, row in DESIGN.items()
    }
    assert transition_matrix() == expected


def test_there_are_nine_states_and_none() -> None:
    """C4: three open and six terminal states, and no transition leaves a terminal state."""
    assert {"queued", "awaiting_approval", "running"} == OPEN_STATES
    assert set(ENDINGS) == TERMINAL_STATES
    assert set(TRANSITIONS) == OPEN_STATES | TERMINAL_STATES | {"none"}
    assert all(set(TRANSITIONS[state].values()) <= {state} for state in ENDINGS)


def test_every_state_can_be_reached_and_every_open_call_can_end() -> None:
    """C5: only terminal states cannot be left."""
    reached, new_states = {"none"}, {"none"}
    while new_states:
        new_states = {after for state in new_states for after in TRANSITIONS[state].values()} - reached
        reached |= new_states
    assert reached == set(TRANSITIONS)
    assert all(set(TRANSITIONS[state].values()) >= TERMINAL_STATES for state in OPEN_STATES)


def test_events_to_terminal_states_are_listed_as_ending() -> None:
    """The list of ending events, which wake waiting readers, matches the table."""
    for row in (TRANSITIONS[state] for state in TRANSITIONS if state not in TERMINAL_STATES):
        for cls, after in row.items():
            assert (after in TERMINAL_STATES) == is_terminal(make_event(str(cls.__struct_config__.tag)))


STATES: dict[str, list[Event]] = {
    "queued": [ev.CallProposed(aliases=(Alias("acp", "1"),))],
    "awaiting_approval": [ev.ApprovalRequested(aliases=(Alias("acp", "1"),))],
    "running": [ev.CallStarted(aliases=(Alias("acp", "1"),))],
    "completed": [ev.CallCompleted(aliases=(Alias("acp", "1"),))],
    "denied": [ev.ApprovalRequested(aliases=(Alias("acp", "1"),)), ev.ApprovalRefused(aliases=(Alias("acp", "1"),))],
}


@pytest.mark.parametrize(
    ("state", "name"),
    [(state, name) for state in STATES for name in DESIGN[state] if DESIGN[state][name] in ("illegal", "late")],
)
def test_call_records_make_no_transition_outside_the_table(state: str, name: str) -> None:
    """C4: an applied but impossible event, from another version or from damage, changes no record."""
    memory = write_script(STATES[state])
    (row,) = memory.unit.calls.values()
    assert row.state == state
    before = canonical_json([memory.unit.calls, memory.unit.approvals])
    event = structs.replace(make_event(name), call=row.id, seq=len(memory.log) + 1, at=memory.time + 1)
    apply_event(memory.unit, memory.unit.sessions[SESSION], event)
    assert canonical_json([memory.unit.calls, memory.unit.approvals]) == before


@given(scripts())
def test_verdicts_and_transitions_match_the_table(script: list[Event]) -> None:
    """C4: in any session each applied event about a call is a transition of the table; others change no state."""
    memory, states = MemoryLedger(), dict[str, str]()
    for draft in script:
        before = len(memory.log)
        memory.write(draft)
        for event in memory.log[before:]:
            if isinstance(event, ev.CallEvent) and event.verdict == "applied":
                states[event.call] = TRANSITIONS[states.get(event.call, "none")][type(event)]
        assert {row.id: row.state for row in memory.unit.calls.values()} == states


def test_the_stop_reason_decides_how_open_calls_end() -> None:
    """C5: a cancelled turn cancels its calls; a failed or lost one loses them; other reasons leave a grace period."""
    for reason, state in {"cancelled": "cancelled", "error": "lost", "eof": "lost", "end_turn": "running"}.items():
        memory = write_script(
            [ev.TurnStarted(), ev.CallStarted(), ev.CallProposed(scope="detached"), ev.TurnEnded(reason=reason)]
        )
        assert [row.state for row in memory.unit.calls.values()] == [state, "queued"]
        assert (TURN_CLOSES.get(reason) is None) == (state == "running")


# Verdicts


ROW = CallRecord(id="exec_000000000001", session="s", entry=1, state="completed", turn="t1")


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (ev.CallCompleted(output="x"), ev.CallCompleted(output="x"), "duplicate"),
        (ev.CallCompleted(output="x"), ev.CallCompleted(output="y"), "late"),
        (ev.CallCompleted(output="x"), ev.CallFailed(output="x"), "late"),
        (ev.CallCompleted(), ev.CallCompleted(output=None, content=[]), "duplicate"),
        (ev.CallFailed(error={"a": 1, "b": 2}), ev.CallFailed(error={"a": 1, "b": 2}, title="again"), "duplicate"),
        (ev.CallCompleted(output="x", at=1, source="a"), ev.CallCompleted(output="x", at=2, source="b"), "duplicate"),
        (
            ev.CallCompleted(output="p", blob=ev.Blob("1", 9)),
            ev.CallCompleted(output="p", blob=ev.Blob("2", 9)),
            "late",
        ),
        (ev.CallDenied(reason="no"), ev.CallFailed(error="denied by user"), "duplicate"),
        (ev.CallCancelled(), ev.CallFailed(error="aborted"), "duplicate"),
        (ev.CallCancelled(), ev.CallCompleted(output="x"), "late"),
        (ev.CallExpired(), ev.CallFailed(error="timeout"), "late"),
    ],
)
def test_an_equal_ending_is_a_duplicate(first: ev.CallEnd, second: ev.CallEnd, verdict: str) -> None:
    """C4: equal endings and echoes are duplicates; any other event after an end is late."""
    state = str(type(first).__struct_config__.tag).removeprefix("call.")
    assert classify_event(structs.replace(ROW, state=state, ending=ending_mark(first)), second) == verdict


def test_late_events_change_only_the_late_note() -> None:
    """C4: a start, update or result after the end is stored and shown as late."""
    memory = write_script([ev.CallStarted(), ev.CallCompleted(call="#0", output="done", title="t")])
    before = structs.replace(memory.state.snapshot().entries[0])
    for late in (
        ev.CallStarted(call="#0", worker="w"),
        ev.CallProgress(call="#0", text="more", title="other"),
        ev.CallFailed(call="#0", error="no"),
        ev.ApprovalRequested(call="#0"),
        ev.CallRequeued(call="#0"),
    ):
        (stored,) = memory.write(late)
        assert (stored.verdict, stored.entry) == ("late", 1)
        assert memory.state.snapshot().entries == [structs.replace(before, late=stored.seq)]


def test_an_answer_counts_once_for_the_pending_request() -> None:
    """S2.7: the same answer again is a duplicate, another one is late, one without a request is an orphan."""
    awaiting = structs.replace(ROW, state="awaiting_approval", approval="a")
    pending = ApprovalRecord(id="a", session="s", call=ROW.id, entry=2)
    yes, no = ev.ApprovalGranted(option="yes"), ev.ApprovalRefused(option="no")
    assert classify_answer(awaiting, pending, yes) == classify_answer(awaiting, pending, no) == "applied"
    granted = structs.replace(pending, state="granted", option="yes")
    queued = structs.replace(ROW, state="queued")
    assert classify_answer(queued, granted, yes) == "duplicate"
    assert classify_answer(queued, granted, ev.ApprovalGranted(option="always")) == "late"
    assert classify_answer(queued, granted, no) == "late"
    assert classify_answer(None, None, yes) == classify_answer(queued, None, no) == "orphan"


# Which call an event belongs to


ALIASES = (Alias("acp", "1"),)
OPENING = ev.CallProposed(aliases=ALIASES, tool_name="ls", input={"path": "."})


FROM_FILE = structs.replace(OPENING, source="codex", at=10)


def make_row(state: str, turn: str = "t1", iteration: int = -1, source: str = "") -> CallRecord:
    fields = {"state": state, "turn": turn, "iteration": iteration, "source": source, "ended_at": 9}
    return structs.replace(ROW, opening=opening_mark(OPENING), **fields)


@pytest.mark.parametrize(
    ("newest_call", "event", "turn", "expected"),
    [
        (None, OPENING, "t1", "new"),
        (None, ev.CallProgress(aliases=ALIASES), "t1", "new"),
        # An open call: any event belongs to it,
        (make_row("queued"), OPENING, "t1", "same"),
        (make_row("queued"), ev.CallProposed(aliases=ALIASES, title="other"), "t1", "same"),
        (make_row("running"), ev.CallStarted(aliases=ALIASES), "t1", "same"),
        (make_row("running"), ev.ApprovalRequested(aliases=ALIASES), "t1", "same"),
        (make_row("awaiting_approval"), ev.CallCompleted(aliases=ALIASES), "t2", "same"),
        (make_row("running"), ev.CallStarted(aliases=ALIASES), "t2", "same"),
        # except a proposal in a later turn or round.
        (make_row("queued"), OPENING, "t2", "new"),
        (make_row("queued", turn=""), OPENING, "t1", "new"),
        (make_row("queued"), OPENING, "", "same"),
        (make_row("queued", iteration=0), ev.CallProposed(aliases=ALIASES, iteration=1), "t1", "new"),
        (make_row("queued", iteration=1), ev.CallProposed(aliases=ALIASES, iteration=1), "t1", "same"),
        (make_row("queued", iteration=-1), ev.CallProposed(aliases=ALIASES, iteration=0), "t1", "same"),
        (make_row("queued", iteration=1), ev.CallProposed(aliases=ALIASES), "t1", "same"),
        # An ended call: an opening creates a new call, unless it repeats the first opening;
        (make_row("completed"), OPENING, "t1", "duplicate"),
        (make_row("completed"), structs.replace(OPENING, at=9, source="x", key="k"), "t1", "duplicate"),
        (make_row("completed"), structs.replace(OPENING, input={"path": "/"}), "t1", "new"),
        (make_row("completed"), OPENING, "t2", "new"),
        (make_row("completed"), ev.CallStarted(aliases=ALIASES), "t1", "new"),
        (make_row("completed"), ev.ApprovalRequested(aliases=ALIASES), "t1", "new"),
        (make_row("completed", iteration=0), ev.CallProposed(aliases=ALIASES, iteration=1), "t1", "new"),
        # With a session file there is a new call only if the file has both, in two turns and one after the other;
        (make_row("completed", source="codex"), FROM_FILE, "t2", "new"),
        (make_row("completed", source="codex"), FROM_FILE, "t1", "same"),
        (make_row("completed", source="codex"), structs.replace(FROM_FILE, at=9), "t2", "same"),
        (make_row("running", source="codex"), FROM_FILE, "t2", "same"),
        (make_row("completed", source="acp"), FROM_FILE, "t2", "same"),
        (make_row("completed", source="codex"), structs.replace(FROM_FILE, source="acp"), "t2", "same"),
        # any other event belongs to it, as late.
        (make_row("completed"), ev.CallProgress(aliases=ALIASES, text="x"), "t1", "same"),
        (make_row("completed"), ev.CallProgress(aliases=ALIASES, text="x"), "t2", "same"),
        (make_row("failed"), ev.CallCompleted(aliases=ALIASES), "t1", "same"),
        (make_row("failed"), ev.CallInput(aliases=ALIASES), "t1", "same"),
    ],
)
def test_a_foreign_id_resolves_to_the_newest_call_or_a_new_call(
    newest_call: CallRecord | None, event: ev.CallEvent, turn: str, expected: str
) -> None:
    """C2"""
    assert resolve_call(newest_call, event, turn) == expected


def test_a_foreign_id_reused_in_a_session_gives_four_calls() -> None:
    """C2: a new turn and a new opening create calls, a repetition does not."""
    again = structs.replace(OPENING, title="again")
    memory = write_script(
        [
            ev.TurnStarted(),
            OPENING,
            OPENING,  # Open: updates the call.
            ev.CallCompleted(aliases=ALIASES, output=1),
            OPENING,  # Ended, and equal to the first opening: a duplicate.
            ev.CallProgress(aliases=ALIASES, text="x"),  # Late.
            again,  # Ended, another opening: a new call.
            ev.CallCompleted(aliases=ALIASES, output=2),
            ev.TurnStarted(),
            again,  # A later turn: a new call, although the opening is equal.
            ev.TurnStarted(),
            again,  # Also while the previous call is open.
            ev.CallCompleted(aliases=ALIASES, output=3),
        ]
    )
    calls = list(memory.unit.calls.values())
    assert [row.state for row in calls] == ["completed", "completed", "queued", "completed"]
    assert [event.verdict for event in memory.log if isinstance(event, ev.CallEvent)].count("duplicate") == 1
    assert [entry.late for entry in memory.state.snapshot().entries] == [6, 0, 0, 0]
    assert [row.client_call_id for row in calls] == ["1", *(row.id for row in calls[1:])]


def test_an_event_with_an_execution_id_never_reopens_a_call() -> None:
    """C2: any event with the id of an ended call is late, in this turn and in later ones."""
    memory = write_script(
        [ev.TurnStarted(), ev.CallProposed(tool_name="ls"), ev.CallCompleted(call="#0"), ev.TurnStarted()]
    )
    for opening in (ev.CallProposed(call="#0"), ev.CallStarted(call="#0"), ev.ApprovalRequested(call="#0")):
        assert memory.write(opening)[0].verdict == "late"
    assert len(memory.unit.calls) == 1


COPY = Alias(SOURCE_LEDGER, "exec_000000000001")


@pytest.mark.parametrize(
    ("aliases", "repeated", "verdict"),
    [
        ((COPY,), OPENING, "late"),
        ((COPY,), structs.replace(OPENING, title="again"), "late"),
        ((*ALIASES, COPY), OPENING, "duplicate"),
        ((*ALIASES, COPY), structs.replace(OPENING, title="again"), "late"),
        ((*ALIASES, COPY), ev.CallProgress(text="x"), "late"),
    ],
)
def test_a_copied_execution_id_never_reopens_a_call(
    aliases: tuple[Alias, ...], repeated: ev.CallEvent, verdict: str
) -> None:
    """C2: in an imported log the id of the original refers to its copy; only a foreign id can open a call again."""
    events = [structs.replace(event, aliases=aliases) for event in (OPENING, ev.CallCompleted(), repeated)]
    memory = write_script(events)
    assert [event.verdict for event in memory.log] == ["applied", "applied", verdict]
    assert len(memory.unit.calls) == 1


@pytest.mark.parametrize("fields", [{}, {"aliases": ()}, {"call": ""}])
def test_each_opening_without_a_foreign_id_is_a_new_call(fields: dict[str, object]) -> None:
    """C2, C3: two identical `ls` are two calls."""
    memory = write_script([ev.CallProposed(tool_name="ls", input={}, **fields)] * 2)
    assert len(memory.unit.calls) == 2


def test_the_same_id_in_another_namespace_is_another_call() -> None:
    """C2: only the first of them has it as its client call id."""
    memory = write_script([ev.CallProposed(aliases=(Alias(ns, "1"),)) for ns in ("acp", "shell")])
    first, second = memory.unit.calls.values()
    assert (first.client_call_id, second.client_call_id) == ("1", second.id)


def test_a_call_may_have_several_foreign_ids() -> None:
    """C1: the call is found by each of them, including ids added later."""
    other = (Alias("shell", "cmd-0-0"),)
    memory = write_script([OPENING, ev.CallStarted(aliases=(*ALIASES, *other)), ev.CallCompleted(aliases=other)])
    assert [row.state for row in memory.unit.calls.values()] == ["completed"]


def test_a_request_for_an_unknown_call_proposes_it_first() -> None:
    """S2.6: the call inside a permission request is an update, and creates the call if there is none."""
    memory = write_script([ev.ApprovalRequested(aliases=ALIASES, tool_name="mcp__acp__Read", input={"path": "x"})])
    assert [type(event) for event in memory.log] == [ev.CallProposed, ev.ApprovalRequested]
    call, request = memory.state.snapshot().entries
    assert (call.status, call.tool_name, call.raw_tool_name) == ("awaiting_approval", "Read", "mcp__acp__Read")
    assert (request.call_id, request.raw_input, request.state) == (call.call_id, {"path": "x"}, "pending")


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("mcp__acp__Read", "Read"),
        ("mcp__files__read_file", "read_file"),
        ("mcp__a__b__c", "b__c"),
        ("mcp__x", "mcp__x"),
        ("mcp__x__", "mcp__x__"),
        ("Read", "Read"),
        ("", ""),
    ],
)
def test_server_prefixes_are_removed_from_tool_names(raw: str, clean: str) -> None:
    """S2.5"""
    assert strip_mcp_prefix(raw) == clean


@pytest.mark.parametrize(
    ("state", "name"),
    [(state, name) for state in sorted(OPEN_STATES) for name in DESIGN[state] if DESIGN[state][name] == "illegal"],
)
def test_an_invalid_transition_is_stored_if_foreign_and_raises_if_own(state: str, name: str) -> None:
    """C4: a foreign event is stored and changes nothing; one of this process raises, and nothing is written."""
    opening = {"queued": ev.CallProposed(), "running": ev.CallStarted(), "awaiting_approval": ev.ApprovalRequested()}
    event = structs.replace(make_event(name), call="#0")
    foreign, own = MemoryLedger(), MemoryLedger(strict=True)
    for memory in (foreign, own):
        memory.write(opening[state])
    before, last_seq = foreign.state.snapshot().entries, len(own.log)
    assert foreign.write(event)[0].verdict in ("illegal", "orphan")
    assert foreign.state.snapshot().entries == before
    with pytest.raises((InvalidTransitionError, ConflictError)):
        own.write(event)
    assert len(own.log) == last_seq
