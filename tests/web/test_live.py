"""The page while things happen: entries change where they stand, tabs agree, and a reload shows what stood there."""

from __future__ import annotations

import json
import random
from pathlib import Path

from playwright.sync_api import expect

from tests.support.browser import Server, in_browser, serving
from tests.support.cli_process import free_port, run
from tests.support.sample_sessions import OPTIONS, event, every_state, live_run

NOW = "2030-01-01T12:00:00Z"

FRAMES = """async () => {
    const got = [];
    for (let frame = 0; frame < 8; frame++) {
        await new Promise(requestAnimationFrame);
        got.push([scrollY, document.documentElement.scrollHeight, document.querySelectorAll(".row").length].join());
    }
    return got;
}"""


@in_browser
def test_a_timeline_comes_to_rest(site: Server) -> None:
    """Nothing happens, so nothing moves: in a window of any size the same place, height and rows in every frame."""
    seq = site.tell("rest", *every_state())
    tab = site.window().tab("/s/rest")
    tab.reaches(seq)
    for width in (1280, 380):
        for height in (900, 860, 929):
            tab.page.set_viewport_size({"width": width, "height": height})
            tab.until(lambda: len(set(tab.page.evaluate(FRAMES))) == 1, f"a timeline at rest, {width} by {height}")
    tab.fine()


@in_browser
def test_equal_commands_are_told_apart_by_id(site: Server) -> None:
    """S0: two equal `ls`, the second one ends first: each card goes its own way, queued, running, completed."""
    equal = {"toolName": "bash", "title": "ls", "input": {"command": "ls"}}
    site.tell("equal", event("turn.started"), event("call.proposed", "one", **equal))
    seq = site.tell("equal", event("call.proposed", "two", **equal))
    one, two = (entry["id"] for entry in site.entries("equal"))
    tab = site.window().tab("/s/equal")

    def shows(of_one: str, of_two: str, *told: dict[str, object]) -> None:
        if told:
            tab.reaches(site.tell("equal", *told))
        assert {row.id: row.state for row in tab.rows()} == {one: of_one, two: of_two}

    tab.reaches(seq)
    shows("queued", "queued")
    shows("queued", "running", event("call.started", "two"))
    shows("running", "running", event("call.started", "one"))
    shows("running", "completed", event("call.completed", "two", output="b.txt"))
    assert "b.txt" in tab.row(two).text and "b.txt" not in tab.row(one).text
    shows("completed", "completed", event("call.completed", "one", output="a.txt"))
    tab.fine()


@in_browser
def test_a_reload_at_any_moment_shows_the_same(site: Server) -> None:
    """Twenty random moments of a live run: the same entries with the same texts, before a reload and after it."""
    run = list(live_run(6, 9))
    moments = set(random.Random(6).sample(range(1, len(run)), 20))
    seq = site.tell("reload", *run[0])
    window = site.window(height=12_000)
    window.context.clock.set_fixed_time(NOW)  # What ticks would tick on in between.
    tab = window.tab("/s/reload")
    for number, told in enumerate(run[1:], 1):
        seq = site.tell("reload", *told)
        if number in moments:
            tab.reaches(seq)
            before = tab.rows()
            tab.reload()
            tab.reaches(seq)
            assert tab.rows() == before
    assert len(before) > 20
    tab.fine()


@in_browser
def test_two_tabs_keep_in_step(site: Server) -> None:
    """Tabs of one browser, and of another one, show the same at the end of every step."""
    seq = site.tell("step", event("turn.started"), event("message.user", text="Go."))
    first = site.window(height=4000)
    tabs = [first.tab("/s/step"), first.tab("/s/step"), site.window(height=4000).tab("/s/step")]
    for told in live_run(7, 2):
        seq = site.tell("step", *told)
    for tab in tabs:
        tab.reaches(seq)
    shown = [[(row.id, row.state) for row in tab.rows()] for tab in tabs]
    assert shown[0] == shown[1] == shown[2] and len(shown[0]) > 8
    for tab in tabs:
        tab.fine()


@in_browser
def test_an_answer_given_in_one_tab_freezes_the_other(site: Server) -> None:
    """S2.7: whoever looks at the request elsewhere sees at once that it is answered, how and by whom."""
    asked = event("approval.requested", "a", toolName="cargo", description="Build it?", options=OPTIONS, input={"x": 1})
    seq = site.tell("asked", event("turn.started"), {**asked, "approval": "appr_00000000a5ed"})
    window = site.window()
    here, there, listed = window.tab("/s/asked"), window.tab("/s/asked"), site.window().tab("/inbox")
    for tab in (here, there):
        tab.reaches(seq)
    card = listed.page.locator("[data-approval=appr_00000000a5ed]")
    card.wait_for()
    if card.get_by_role("button", expanded=False).count():
        card.get_by_role("button", expanded=False).click()
    places = (here.page.locator(".row"), there.page.locator(".row"), card)
    for place in places:
        place.get_by_role("button", name="Allow once").wait_for()
    here.page.get_by_role("button", name="Allow once").click()
    for place in places:
        place.get_by_role("button", name="Allow once").wait_for(state="detached")
        place.get_by_text("approved").first.wait_for()
        expect(place.get_by_role("button", name="Reject")).to_have_count(0)
    (request,) = [entry for entry in site.entries("asked") if entry["type"] == "permission_request"]
    assert request["responseOption"] == "yes"
    for tab in (here, there, listed):
        tab.fine()


@in_browser
def test_a_page_catches_up_when_its_server_comes_back(tmp_path: Path) -> None:
    """The server is killed and comes back; what happened meanwhile is shown, without anybody's doing."""
    port = str(free_port())
    with serving(tmp_path, "--port", port) as server:
        seq = server.tell("s", event("turn.started"), event("message.user", text="before"))
        tab = server.window().tab("/s/s")
        tab.reaches(seq)
    tab.until(lambda: tab.state("status") != "live", "that the line is cut")
    (tmp_path / "more").write_text(json.dumps(event("message.user", text="meanwhile")) + "\n")
    told = run(
        "import", "--db", str(tmp_path / "ledger.db"), "--format", "events", "--session", "s", str(tmp_path / "more")
    )
    assert told.returncode == 0, told.stderr
    with serving(tmp_path, "--port", port) as server:
        tab.until(lambda: "meanwhile" in tab.text(), "what happened meanwhile")
        tab.reaches(server.tell("s", event("message.user", text="afterwards")))
        tab.until(lambda: tab.state("status") == "live", "that it is live")
        assert [row.text.split("\n")[-1] for row in tab.rows()] == ["before", "meanwhile", "afterwards"]
        tab.forgive("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_CONNECTION_RESET")
        tab.fine()
