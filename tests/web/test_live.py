"""Live updates of the page: entries change in place, tabs agree, and a reload shows the same."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.conftest import LONG
from tests.support.browser import Server, in_browser, serving
from tests.support.cli_process import free_port, run
from tests.support.sample_sessions import OPTIONS, event, every_state, live_run

NOW = "2030-01-01T12:00:00Z"

READ_FRAMES = """async () => {
    const got = [];
    for (let frame = 0; frame < 8; frame++) {
        await new Promise(requestAnimationFrame);
        const view = document.querySelector("[data-scroller]");
        got.push([view.scrollTop, view.scrollHeight, document.querySelectorAll(".row").length].join());
    }
    return got;
}"""


@in_browser
def test_timeline_does_not_move_without_changes(site: Server) -> None:
    """Without changes, the scroll position, height and rows are the same in every frame, at any window size."""
    seq = site.append("rest", *every_state())
    tab = site.window().tab("/s/rest")
    tab.wait_for_seq(seq)
    for width in (1280, 380):
        for height in (900, 860, 929):
            tab.page.set_viewport_size({"width": width, "height": height})
            tab.until(lambda: len(set(tab.page.evaluate(READ_FRAMES))) == 1, f"a stable timeline, {width} by {height}")
    tab.assert_no_problems()


@in_browser
def test_identical_commands_are_distinguished_by_id(site: Server) -> None:
    """Two identical `ls` calls, of which the second ends first: each card shows the state of its own call."""
    same_fields = {"toolName": "bash", "title": "ls", "input": {"command": "ls"}}
    site.append("equal", event("turn.started"), event("call.proposed", "one", **same_fields))
    seq = site.append("equal", event("call.proposed", "two", **same_fields))
    one, two = (entry["id"] for entry in site.entries("equal"))
    tab = site.window().tab("/s/equal")

    def check_states(of_one: str, of_two: str, *events: dict[str, object]) -> None:
        if events:
            tab.wait_for_seq(site.append("equal", *events))
        assert {row.id: row.state for row in tab.rows()} == {one: of_one, two: of_two}

    tab.wait_for_seq(seq)
    check_states("queued", "queued")
    check_states("queued", "running", event("call.started", "two"))
    check_states("running", "running", event("call.started", "one"))
    check_states("running", "completed", event("call.completed", "two", output="b.txt"))
    assert "b.txt" in tab.row(two).text and "b.txt" not in tab.row(one).text
    check_states("completed", "completed", event("call.completed", "one", output="a.txt"))
    tab.assert_no_problems()


@pytest.mark.chaos
@in_browser
def test_reload_at_any_time_shows_the_same(site: Server) -> None:
    """At random times of a live run, the entries and texts are the same before and after a reload."""
    run = list(live_run(6, 9))
    moments = set(random.Random(6).sample(range(1, len(run)), 40 if LONG else 8))
    seq = site.append("reload", *run[0])
    window = site.window(height=12_000)
    window.context.clock.set_fixed_time(NOW)  # Otherwise durations would tick between the two reads.
    tab = window.tab("/s/reload")
    buttons_off = tab.page.locator(".answer button:disabled")  # The page asks first what the agent can honour.
    for number, events in enumerate(run[1:], 1):
        seq = site.append("reload", *events)
        if number in moments:
            tab.wait_for_seq(seq)
            expect(buttons_off).to_have_count(0)
            before = tab.rows()
            tab.reload()
            tab.wait_for_seq(seq)
            expect(buttons_off).to_have_count(0)
            assert tab.rows() == before
    assert len(before) > 20
    tab.assert_no_problems()


@in_browser
def test_tabs_show_the_same(site: Server) -> None:
    """Two tabs of one browser and one of another show the same entries."""
    seq = site.append("step", event("turn.started"), event("message.user", text="Go."))
    first = site.window(height=4000)
    tabs = [first.tab("/s/step"), first.tab("/s/step"), site.window(height=4000).tab("/s/step")]
    for events in live_run(7, 2):
        seq = site.append("step", *events)
    for tab in tabs:
        tab.wait_for_seq(seq)
        tab.open_turns()
    states = [[(row.id, row.state) for row in tab.rows()] for tab in tabs]
    assert states[0] == states[1] == states[2] and len(states[0]) > 8
    for tab in tabs:
        tab.assert_no_problems()


@in_browser
def test_decision_in_one_tab_is_shown_in_the_others(site: Server) -> None:
    """Other tabs and the inbox show the decision and its author at once."""
    request = event(
        "approval.requested", "a", toolName="cargo", description="Build it?", options=OPTIONS, input={"x": 1}
    )
    seq = site.append("asked", event("turn.started"), {**request, "approval": "appr_00000000a5ed"})
    window = site.window()
    first, second, inbox = window.tab("/s/asked"), window.tab("/s/asked"), site.window().tab("/inbox")
    for tab in (first, second):
        tab.wait_for_seq(seq)
    inbox.page.locator("[data-approval=appr_00000000a5ed] .opener").click()
    detail = inbox.page.locator("[data-detail=appr_00000000a5ed]")
    cards = (first.page.locator(".row-permission_request"), second.page.locator(".row-permission_request"), detail)
    for shown in cards:
        shown.get_by_role("button", name="Allow once").wait_for()
    first.page.get_by_role("button", name="Allow once").click()
    for shown in cards:
        shown.get_by_role("button", name="Allow once").wait_for(state="detached")
        shown.get_by_text("Approved").first.wait_for()
        expect(shown.get_by_role("button", name="Reject")).to_have_count(0)
    (request_entry,) = [entry for entry in site.entries("asked") if entry["type"] == "permission_request"]
    assert request_entry["responseOption"] == "yes"
    for tab in (first, second, inbox):
        tab.assert_no_problems()


@in_browser
def test_page_catches_up_after_a_server_restart(tmp_path: Path) -> None:
    """The page reconnects by itself after a restart and shows the events that it missed."""
    port = str(free_port())
    with serving(tmp_path, "--port", port) as server:
        seq = server.append("s", event("turn.started"), event("message.user", text="before"))
        tab = server.window().tab("/s/s")
        tab.wait_for_seq(seq)
    tab.until(lambda: tab.state("status") != "live", "the end of the connection")
    (tmp_path / "more").write_text(json.dumps(event("message.user", text="meanwhile")) + "\n")
    imported = run(
        "import", "--db", str(tmp_path / "ledger.db"), "--format", "events", "--session", "s", str(tmp_path / "more")
    )
    assert imported.returncode == 0, imported.stderr
    with serving(tmp_path, "--port", port) as server:
        tab.until(lambda: "meanwhile" in tab.text(), "the missed events")
        tab.wait_for_seq(server.append("s", event("message.user", text="afterwards")))
        tab.until(lambda: tab.state("status") == "live", "that it is live")
        assert [row.text.split("\n")[-1] for row in tab.rows()] == ["before", "meanwhile", "afterwards"]
        tab.ignore_problems("net::ERR_", "503")  # How a request fails depends on how far the server has stopped.
        tab.assert_no_problems()
