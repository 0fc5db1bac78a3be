"""The history slider, and sessions with ten thousand rows, in a real Chromium."""

from __future__ import annotations

import json
import random
import re

from playwright.sync_api import Route

from tests.support.browser import Server, Tab, in_browser
from tests.support.cli_process import run
from tests.support.sample_sessions import event, live_run, long_session

ROWS = 10_000


def measure_script_seconds(tab: Tab, path: str) -> float:
    """Return the script time in a tab until a session is shown."""
    devtools = tab.page.context.new_cdp_session(tab.page)
    devtools.send("Performance.enable")

    def script_time() -> float:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "ScriptDuration")

    before = script_time()
    tab.go(path)
    tab.until(lambda: tab.page.locator(".row").count() > 3, "entries")
    after = script_time()
    devtools.detach()
    return after - before if after >= before else after


VISIBLE_ROW = """() => {
    const row = [...document.querySelectorAll(".row")].find((row) => row.getBoundingClientRect().top > 150);
    return [Number(row.dataset.id), row.getBoundingClientRect().top];
}"""
ROW_TOP = "(id) => document.getElementById(`entry-${id}`)?.getBoundingClientRect().top ?? -1"


def check_scroll_position_is_kept(tab: Tab) -> None:
    """Assert that the visible rows do not move when older entries are loaded above them."""
    oldest = tab.state("order")[0]
    held: list[Route] = []
    older = re.compile(r"format=entries&limit=\d+&cursor=")
    tab.page.route(older, lambda route: held.append(route))
    tab.scroll_to("700")
    tab.until(lambda: held, "the request for older entries")
    before, _, _ = tab.scroll()
    tab.wheel(120)
    tab.until(lambda: tab.scroll()[0] > before + 100, "that it scrolled")
    entry, top = tab.page.evaluate(VISIBLE_ROW)
    held[0].continue_()
    tab.page.unroute(older)
    tab.until(lambda: tab.state("order")[0] < oldest, "older entries")
    tab.until(lambda: abs(tab.page.evaluate(ROW_TOP, entry) - top) < 2, "the same row at the same position")
    assert tab.scroll()[0] > 5_000


@in_browser
def test_late_response_does_not_replace_a_newer_one(site: Server) -> None:
    """Responses may arrive out of order: the page shows the event that was requested last."""
    seq = site.append("late", *(event("message.user", text=f"Message {number}") for number in range(6)))
    tab = site.window().tab("/s/late")
    tab.wait_for_seq(seq)
    held: list[Route] = []
    tab.page.route("**/*at=2", lambda route: held.append(route))
    tab.page.evaluate("async () => { globalThis.late = (await import('/web/state.js')).showPast(2); }")
    tab.until(lambda: held, "the first request")
    tab.page.evaluate("async () => (await import('/web/state.js')).showPast(4)")
    assert tab.state("past")["seq"] == 4
    held[0].continue_()
    tab.page.evaluate("() => late")
    assert tab.state("past")["seq"] == 4
    tab.page.evaluate("async () => (await import('/web/state.js')).showLive()")
    tab.until(lambda: len(tab.rows()) == 6, "the present")
    tab.assert_no_problems()


@in_browser
def test_history_shows_the_same_as_export_at(site: Server) -> None:
    """At random events of a session, the drawn entries are those of `callslip export --at`."""
    for events in live_run(8, 3):
        seq = site.append("scrub", *events)
    tab = site.window(height=6000).tab("/s/scrub")
    tab.wait_for_seq(seq)
    tab.page.get_by_role("button", name="History").click()
    command = ("export", "scrub", "--server", site.url, "--token", site.token, "--at")
    for at in random.Random(8).sample(range(2, seq), 5):
        tab.page.get_by_role("slider", name="Event", exact=True).fill(str(at))
        tab.until(lambda at=at: (tab.state("past") or {}).get("seq") == at, f"event {at}")
        exported = json.loads(run(*command, str(at)).stdout)
        assert tab.state("past")["entries"] == exported["entries"]
        tab.until(
            lambda exported=exported: [row.id for row in tab.rows()] == [entry["id"] for entry in exported["entries"]]
        )
        states = {entry["id"]: entry["status"] for entry in exported["entries"] if entry["type"] == "tool_call"}
        assert {row.id: row.state for row in tab.rows() if row.id in states} == states
    tab.page.get_by_role("button", name="Return to live").click()
    tab.until(lambda: "Done." in tab.text(), "the present")
    tab.assert_no_problems()


@in_browser
def test_ten_thousand_rows_open_quickly_and_scroll(site: Server) -> None:
    """Opening takes less than a second of script; the oldest rows can be reached, and few rows are in the document."""
    for batch in long_session(ROWS):
        site.append("many", *batch)
    tab = site.window().tab("/")
    seconds = measure_script_seconds(tab, "/s/many")
    print(f"{seconds:.3f} s of script")
    assert seconds < 1.0
    tab.until(lambda: "The end." in tab.text(), "the newest")
    assert tab.page.locator(".row").count() < 100
    check_scroll_position_is_kept(tab)
    tab.until(lambda: tab.scroll_to("0") or "Message 0\n" in tab.text(), "the oldest")
    assert tab.page.locator(".row").count() < 100
    tab.until(lambda: tab.scroll_to("view.scrollHeight / 2") or "Message 5" in tab.text(), "the middle")
    tab.page.get_by_role("button", name="Jump to latest").click()
    tab.until(lambda: "The end." in tab.text(), "the newest again")
    tab.assert_no_problems()
