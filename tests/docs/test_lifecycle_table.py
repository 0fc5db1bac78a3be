"""The table of states and events in docs/lifecycle.md has the verdicts of the code."""

from __future__ import annotations

from callslip.model import events as ev
from callslip.model.events import EVENT_TYPES
from callslip.model.records import CallRecord
from callslip.rules.lifecycle import TERMINAL_STATES, TRANSITIONS, classify_event
from tests.support.paths import ROOT

ANY_END = "an end"


def read_table() -> dict[tuple[str, str], str]:
    """Return the cells of the table by state and event. A column may be about several states."""
    text = (ROOT / "docs" / "lifecycle.md").read_text("utf-8")
    lines = [line.strip("| ").split(" | ") for line in text.split("## Every event")[1].split("## ")[0].splitlines()]
    head, _, *rows = [cells for cells in lines if len(cells) > 1 or cells[0].startswith("---")]
    columns = [sorted(TERMINAL_STATES) if name == ANY_END else name.split(", ") for name in head[1:]]
    return {
        (state, row[0].strip("`")): cell.strip("*")
        for row in rows
        for states, cell in zip(columns, row[1:], strict=True)
        for state in states
    }


def test_the_table_has_the_verdict_of_the_code_for_every_pair() -> None:
    """IMP6: all states with all events; for example a failure that is reported after a cancellation is a duplicate."""
    table = read_table()
    events = {name: cls for name, cls in EVENT_TYPES.items() if issubclass(cls, ev.CallEvent)}
    assert set(table) == {(state, name) for state in TRANSITIONS for name in events}
    for (state, name), cell in table.items():
        row = None if state == "none" else CallRecord(id="c", session="s", entry=1, state=state, ending="another")
        event = ev.CallInputDelta(text="x") if name == "call.inputDelta" else events[name]()
        verdict = classify_event(row, event)
        expected = dict(TRANSITIONS)[state][type(event)] if verdict == "applied" else verdict  # pyright: ignore[reportArgumentType]
        assert cell == expected, (state, name)
    assert table["cancelled", "call.failed"] == "duplicate"
