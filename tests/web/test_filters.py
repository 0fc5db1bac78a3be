"""The page's filters, facets and bars of time: the real files, in Node, on entries as the fold makes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import callslip
from callslip.model.entries import Message, PermissionRequest, Plan, Thought, ToolCall
from tests.support.stream_checks import Client

WEB = Path(callslip.__file__).parent / "web"

CALL = ToolCall(
    id=4,
    at=1_000,
    turn="t1",
    call_id="exec_aaaa1111",
    tool_call_id="call_1",
    status="completed",
    tool_name="bash",
    kind="execute",
    title="rm -rf build",
    raw_input={"command": 'echo "Hello"\nls'},
    output={"text": "gone"},
    started_at=8_000,
    ended_at=14_000,
    approval="appr_1",
)
ASKED = PermissionRequest(
    id=5,
    at=2_000,
    turn="t1",
    request_id="appr_1",
    call_id="exec_aaaa1111",
    state="granted",
    description="May I delete it?",
    response_time=7_500,
)
READ = ToolCall(
    id=6,
    at=20_000,
    turn="t2",
    call_id="exec_bbbb2222",
    tool_call_id="call_2",
    status="failed",
    tool_name="Read",
    raw_tool_name="mcp__acp__Read",
    kind="read",
    error="no such file",
    started_at=20_000,
    ended_at=20_100,
)
OPEN = ToolCall(
    id=7, at=21_000, turn="t2", call_id="exec_cccc3333", tool_call_id="call_3", status="running", started_at=22_000
)
ENTRIES = [
    Message(id=1, at=900, turn="t1", role="user", content="Delete the build, please"),
    Thought(id=2, at=950, turn="t1", content="Which build?"),
    Plan(id=3, at=960, turn="t1", entries=[{"content": "delete", "status": "pending"}]),
    CALL,
    ASKED,
    READ,
    OPEN,
    Message(id=8, at=23_000, turn="t2", role="assistant", content="Done with the build."),
]
NOW = 30_000


@pytest.fixture(scope="module")
def page(node: str) -> Iterator[Client]:
    made = Client(node, "page_filters.mjs", str(WEB))
    yield made
    made.close()


def entries() -> list[Any]:
    return [msgspec.to_builtins(entry) for entry in ENTRIES]


def ask(page: Client, *jobs: dict[str, Any]) -> list[Any]:
    return list(page.ask(jobs))


def filtered(page: Client, typed: str) -> tuple[list[int], list[int]]:
    (answer,) = ask(page, {"do": "filter", "entries": entries(), "typed": typed, "now": NOW})
    assert answer["together"] == answer["left"], typed
    return answer["alone"], answer["left"]


def test_what_is_typed_becomes_terms(page: Client) -> None:
    """Fields, times, quoted text and negation; what is no field is text, and half a term is none yet."""
    typed = 'tool:bash,"my tool" -status:open >5s "no such" http://x tool: - <=1.5m'
    (terms,) = ask(page, {"do": "terms", "typed": typed})
    assert [(term["field"], term["values"], term["negated"]) for term in terms] == [
        ("tool", ["bash", "my tool"], False),
        ("status", ["open"], True),
        ("time", [">5s"], False),
        ("text", ["no such"], False),
        ("text", ["http://x"], False),
        ("time", ["<=1.5m"], False),
    ]
    assert [term["word"] for term in terms][:2] == ['tool:bash,"my tool"', "-status:open"]


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        ("", [1, 2, 3, 4, 5, 6, 7, 8]),
        ("tool:bash", [4, 5]),
        ("tool:BASH,read", [4, 5, 6]),
        ("tool:mcp*", [6]),
        ("status:failed", [6]),
        ("status:open", [7]),
        ("status:granted", [4, 5]),
        ("kind:execute", [4, 5]),
        ("type:message", [1, 8]),
        ("type:user", [1]),
        ("type:call -type:approval", [4, 6, 7]),
        ("turn:2", [6, 7, 8]),
        ("turn:t1 type:call", [4, 5]),
        ("id:exec_bb", [6]),
        ("id:cccc", [7]),
        ("id:3", [3]),
        (">5s", [4, 5, 7]),
        ("<200ms", [6]),
        (">=6s <=6s", [4, 5]),
        ("BUILD", [1, 2, 4, 5, 8]),
        ('"the build"', [1, 8]),
        ('"delete it"', [4, 5]),
        ("-build type:call", [6, 7]),
        ("tool:bash status:failed", []),
        ("colour:red", []),
        ("tool:constructor", []),
        (".*", []),
    ],
)
def test_a_filter_leaves_what_was_asked_for(page: Client, typed: str, left: list[int]) -> None:
    """A call and its request for approval stay or go together."""
    assert filtered(page, typed)[1] == left


def test_an_entry_alone_is_judged_by_itself(page: Client) -> None:
    assert filtered(page, "status:completed")[0] == [4]
    assert filtered(page, "delete")[0] == [1, 3, 5]


def test_text_is_found_as_it_is_read(page: Client) -> None:
    """Quotes and line breaks in arguments are not looked for as JSON writes them."""
    assert filtered(page, "hello")[1] == [4, 5]
    assert filtered(page, "\\n")[1] == []


def test_facets_count_what_the_other_terms_leave(page: Client) -> None:
    """The facet's own term does not count: one sees what another choice would give."""
    job = {"do": "facets", "entries": entries()}
    free, chosen, text = ask(page, *({**job, "typed": typed} for typed in ("", "tool:bash", "file")))
    assert free["tool"] == [["", 1, False], ["Read", 1, False], ["bash", 1, False]]
    assert chosen["tool"] == [["bash", 1, True], ["", 1, False], ["Read", 1, False]]
    assert chosen["status"] == [["completed", 1, False]]
    assert text["tool"] == [["Read", 1, False]]
    assert text["kind"] == [["read", 1, False]]


@pytest.mark.parametrize(
    ("typed", "value", "then"),
    [
        ("", "bash", "tool:bash"),
        ("a b", "my tool", 'a b tool:"my tool"'),
        ("x tool:bash y", "Read", "x tool:bash,Read y"),
        ("x tool:bash,Read y", "bash", "x tool:Read y"),
        ("x tool:bash y", "bash", "x y"),
        ("-tool:bash", "bash", "-tool:bash tool:bash"),
    ],
)
def test_a_choice_joins_its_term_or_leaves_it(page: Client, typed: str, value: str, then: str) -> None:
    assert ask(page, {"do": "toggle", "typed": typed, "field": "tool", "value": value}) == [then]


def test_a_bar_tells_waiting_queued_and_running_apart(page: Client) -> None:
    (bars,) = ask(page, {"do": "bars", "entries": entries(), "now": NOW})
    assert bars[0]["segments"] == [
        ["queued", 1_000, 2_000],
        ["waiting", 2_000, 7_500],
        ["queued", 7_500, 8_000],
        ["running", 8_000, 14_000],
    ]
    assert bars[0]["told"] == "was queued 1.0s, waited for approval 5.5s, was queued 500ms, ran 6.0s"
    assert bars[1]["segments"] == [["running", 20_000, 20_100]]
    assert bars[2]["segments"] == [["queued", 21_000, 22_000], ["running", 22_000, "open"]]
    assert bars[2]["told"] == "was queued 1.0s, has run for 8.0s"


def call(id: int, at: int, **more: Any) -> dict[str, Any]:
    return {"type": "tool_call", "id": id, "at": at, "callId": f"exec_{id}", "status": "completed", **more}


def request(id: int, at: int, call: int, **more: Any) -> dict[str, Any]:
    return {"type": "permission_request", "id": id, "at": at, "callId": f"exec_{call}", **more}


def test_requests_that_nobody_answered_end_with_the_next_or_with_the_call(page: Client) -> None:
    asked = [call(1, 0, endedAt=900), request(2, 100, 1, state="superseded"), request(3, 300, 1, state="moot")]
    waits = [call(4, 1000, status="awaiting_approval"), request(5, 1000, 4, state="pending")]
    (bars,) = ask(page, {"do": "bars", "entries": asked + waits, "now": 2000})
    assert bars[0]["segments"] == [["queued", 0, 100], ["waiting", 100, 900]]
    assert bars[1]["segments"] == [["waiting", 1000, "open"]]
    assert bars[1]["told"] == "has waited for approval for 1.0s"


def test_times_out_of_order_make_no_bar_of_negative_length(page: Client) -> None:
    """Sources have clocks of their own: a call may end before it began."""
    (bars,) = ask(page, {"do": "bars", "entries": [call(1, 5000, startedAt=7000, endedAt=4000)], "now": 0})
    assert bars == [{"id": 1, "from": 5000, "to": 5000, "told": "", "segments": []}]


def test_idle_time_is_folded_and_every_moment_has_its_place(page: Client) -> None:
    day = 86_400_000
    calls = [call(1, 0, endedAt=10_000), call(2, 12_000, endedAt=20_000), call(3, day, endedAt=day + 20_000)]
    times = [0, 5_000, 11_000, 20_000, day, day + 7_000]
    job = {"do": "axis", "entries": calls, "now": 0, "times": times}
    folded, whole = ask(page, *({**job, "fold": fold} for fold in (True, False)))
    assert folded["folded"] == [[20_000, day]]
    assert folded["gaps"] == whole["gaps"] == 1
    assert folded["back"] == whole["back"] == times
    assert folded["length"] < 45_000 < whole["length"] == day + 20_000
    assert folded["places"] == sorted(folded["places"])
    assert 2 <= len(folded["ticks"]) <= 9
    assert whole["half"] == {
        "from": pytest.approx(whole["length"] * 0.25, rel=0.05),
        "to": pytest.approx(whole["length"] * 0.75, rel=0.05),
    }


def test_many_folds_leave_room_for_what_went_on(page: Client) -> None:
    calls = [call(n, n * 3_600_000, endedAt=n * 3_600_000 + 1000) for n in range(1, 301)]
    (axis,) = ask(page, {"do": "axis", "entries": calls, "now": 0, "fold": True})
    assert axis["gaps"] == 299
    assert axis["length"] <= 1.25 * 300 * 1000


def test_a_line_of_nothing_is_a_line(page: Client) -> None:
    (axis,) = ask(page, {"do": "axis", "entries": [], "now": 0, "fold": True, "times": [5]})
    assert (axis["length"], axis["places"]) == (1, [0])


def test_turns_are_bands_from_their_first_entry_until_nothing_of_them_is_open(page: Client) -> None:
    (axis,) = ask(page, {"do": "axis", "entries": entries(), "now": NOW, "fold": True})
    assert axis["bands"] == [{"turn": "t1", "from": 900, "to": 14_000}, {"turn": "t2", "from": 20_000, "to": "open"}]


def test_ten_thousand_calls_are_filtered_in_time(page: Client) -> None:
    """Once for a filter, facets and the line of time; the bound is for slow machines."""
    (pace,) = ask(page, {"do": "pace", "calls": 10_000})
    assert pace["ms"] < 3_000
