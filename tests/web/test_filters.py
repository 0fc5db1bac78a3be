"""Filters, facets and waterfall bars of the page: the real modules in Node, on entries of the real types."""

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
REQUEST = PermissionRequest(
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
    REQUEST,
    READ,
    OPEN,
    Message(id=8, at=23_000, turn="t2", role="assistant", content="Done with the build."),
]
NOW = 30_000


@pytest.fixture(scope="module")
def page(node: str) -> Iterator[Client]:
    client = Client(node, "page_filters.mjs", str(WEB))
    yield client
    client.close()


def entry_dicts() -> list[Any]:
    return [msgspec.to_builtins(entry) for entry in ENTRIES]


def ask(page: Client, *jobs: dict[str, Any]) -> list[Any]:
    return list(page.ask(jobs))


def filter_entries(page: Client, typed: str) -> tuple[list[int], list[int]]:
    (answer,) = ask(page, {"do": "filter", "entries": entry_dicts(), "typed": typed, "now": NOW})
    assert answer["together"] == answer["left"], typed
    return answer["alone"], answer["left"]


def test_filter_text_is_parsed_into_terms(page: Client) -> None:
    """Fields, durations, quoted text and negation. An unknown field is text, and an incomplete term is ignored."""
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


FILTERED_IDS: list[tuple[str, list[int]]] = [
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
]
"""Filters, and the ids of the entries that match. The server must find the same ones."""


@pytest.mark.parametrize(("typed", "expected"), FILTERED_IDS)
def test_filter_returns_matching_entries(page: Client, typed: str, expected: list[int]) -> None:
    """A call and its approval request match together."""
    assert filter_entries(page, typed)[1] == expected


def test_predicate_tests_a_single_entry(page: Client) -> None:
    assert filter_entries(page, "status:completed")[0] == [4]
    assert filter_entries(page, "delete")[0] == [1, 3, 5]


def test_text_search_uses_unescaped_text(page: Client) -> None:
    """Quotes and line breaks in parameters are not escaped as in JSON."""
    assert filter_entries(page, "hello")[1] == [4, 5]
    assert filter_entries(page, "\\n")[1] == []


def test_facet_counts_ignore_the_facets_own_term(page: Client) -> None:
    """A count is the number of calls that another choice would select."""
    job = {"do": "facets", "entries": entry_dicts()}
    free, chosen, text = ask(page, *({**job, "typed": typed} for typed in ("", "tool:bash", "file")))
    assert free["tool"] == [["", 1, False], ["Read", 1, False], ["bash", 1, False]]
    assert chosen["tool"] == [["bash", 1, True], ["", 1, False], ["Read", 1, False]]
    assert chosen["status"] == [["completed", 1, False]]
    assert text["tool"] == [["Read", 1, False]]
    assert text["kind"] == [["read", 1, False]]


@pytest.mark.parametrize(
    ("typed", "value", "expected"),
    [
        ("", "bash", "tool:bash"),
        ("a b", "my tool", 'a b tool:"my tool"'),
        ("x tool:bash y", "Read", "x tool:bash,Read y"),
        ("x tool:bash,Read y", "bash", "x tool:Read y"),
        ("x tool:bash y", "bash", "x y"),
        ("-tool:bash", "bash", "-tool:bash tool:bash"),
    ],
)
def test_facet_choice_is_added_to_its_term_or_removed(page: Client, typed: str, value: str, expected: str) -> None:
    assert ask(page, {"do": "toggle", "typed": typed, "field": "tool", "value": value}) == [expected]


def test_bar_has_queued_waiting_and_running_segments(page: Client) -> None:
    (bars,) = ask(page, {"do": "bars", "entries": entry_dicts(), "now": NOW})
    assert bars[0]["segments"] == [
        ["queued", 1_000, 2_000],
        ["waiting", 2_000, 7_500],
        ["queued", 7_500, 8_000],
        ["running", 8_000, 14_000],
    ]
    assert bars[0]["text"] == "Queued 1.0s · Waiting for approval 5.5s · Queued 500ms · Running 6.0s"
    assert bars[1]["segments"] == [["running", 20_000, 20_100]]
    assert bars[2]["segments"] == [["queued", 21_000, 22_000], ["running", 22_000, "open"]]
    assert bars[2]["text"] == "Queued 1.0s · Running 8.0s so far"


def make_call(id: int, at: int, **more: Any) -> dict[str, Any]:
    return {"type": "tool_call", "id": id, "at": at, "callId": f"exec_{id}", "status": "completed", **more}


def make_request(id: int, at: int, call: int, **more: Any) -> dict[str, Any]:
    return {"type": "permission_request", "id": id, "at": at, "callId": f"exec_{call}", **more}


def test_unanswered_requests_end_with_the_next_request_or_the_call(page: Client) -> None:
    ended = [
        make_call(1, 0, endedAt=900),
        make_request(2, 100, 1, state="superseded"),
        make_request(3, 300, 1, state="moot"),
    ]
    waiting = [make_call(4, 1000, status="awaiting_approval"), make_request(5, 1000, 4, state="pending")]
    (bars,) = ask(page, {"do": "bars", "entries": ended + waiting, "now": 2000})
    assert bars[0]["segments"] == [["queued", 0, 100], ["waiting", 100, 900]]
    assert bars[1]["segments"] == [["waiting", 1000, "open"]]
    assert bars[1]["text"] == "Waiting for approval 1.0s so far"


def test_times_out_of_order_give_no_negative_length(page: Client) -> None:
    """Sources have their own clocks: a call may end before it started."""
    (bars,) = ask(page, {"do": "bars", "entries": [make_call(1, 5000, startedAt=7000, endedAt=4000)], "now": 0})
    assert bars == [{"id": 1, "from": 5000, "to": 5000, "text": "", "segments": []}]


def test_idle_time_is_collapsed_and_every_time_has_a_position(page: Client) -> None:
    day = 86_400_000
    calls = [
        make_call(1, 0, endedAt=10_000),
        make_call(2, 12_000, endedAt=20_000),
        make_call(3, day, endedAt=day + 20_000),
    ]
    times = [0, 5_000, 11_000, 20_000, day, day + 7_000]
    job = {"do": "axis", "entries": calls, "now": 0, "times": times}
    folded, unfolded = ask(page, *({**job, "fold": fold} for fold in (True, False)))
    assert folded["folded"] == [[20_000, day]]
    assert folded["gaps"] == unfolded["gaps"] == 1
    assert folded["back"] == unfolded["back"] == times
    assert folded["length"] < 45_000 < unfolded["length"] == day + 20_000
    assert folded["places"] == sorted(folded["places"])
    assert 2 <= len(folded["ticks"]) <= 9
    assert unfolded["half"] == {
        "from": pytest.approx(unfolded["length"] * 0.25, rel=0.05),
        "to": pytest.approx(unfolded["length"] * 0.75, rel=0.05),
    }


def test_many_collapsed_gaps_leave_room_for_the_calls(page: Client) -> None:
    calls = [make_call(n, n * 3_600_000, endedAt=n * 3_600_000 + 1000) for n in range(1, 301)]
    (axis,) = ask(page, {"do": "axis", "entries": calls, "now": 0, "fold": True})
    assert axis["gaps"] == 299
    assert axis["length"] <= 1.25 * 300 * 1000


def test_axis_without_calls_has_length_one(page: Client) -> None:
    (axis,) = ask(page, {"do": "axis", "entries": [], "now": 0, "fold": True, "times": [5]})
    assert (axis["length"], axis["places"]) == (1, [0])


def test_turn_bands_last_from_the_first_entry_to_the_end_of_the_last_call(page: Client) -> None:
    (axis,) = ask(page, {"do": "axis", "entries": entry_dicts(), "now": NOW, "fold": True})
    assert axis["bands"] == [{"turn": "t1", "from": 900, "to": 14_000}, {"turn": "t2", "from": 20_000, "to": "open"}]


def test_filtering_ten_thousand_calls_is_fast(page: Client) -> None:
    """One filter, facets and an axis. The limit is for slow machines."""
    (pace,) = ask(page, {"do": "pace", "calls": 10_000})
    assert pace["ms"] < 3_000
