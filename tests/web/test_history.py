"""The page and long stretches of time: any moment of the past, and sessions of ten thousand rows."""

from __future__ import annotations

import json
import random
import re

from playwright.sync_api import Route

from tests.support.browser import Server, Tab, in_browser
from tests.support.cli_process import run
from tests.support.sample_sessions import event, live_run, many

ROWS = 10_000


def script_seconds(tab: Tab, path: str) -> float:
    """How long scripts run in a tab until a session is shown."""
    devtools = tab.page.context.new_cdp_session(tab.page)
    devtools.send("Performance.enable")

    def so_far() -> float:
        told = devtools.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in told if metric["name"] == "ScriptDuration")

    before = so_far()
    tab.go(path)
    tab.until(lambda: tab.page.locator(".row").count() > 3, "entries")
    after = so_far()
    devtools.detach()
    return after - before if after >= before else after


READ = """() => {
    const row = [...document.querySelectorAll(".row")].find((row) => row.getBoundingClientRect().top > 150);
    return [Number(row.dataset.id), row.getBoundingClientRect().top];
}"""
PLACE = "(id) => document.getElementById(`entry-${id}`)?.getBoundingClientRect().top ?? -1"


def keeps_its_place(tab: Tab) -> None:
    """Whoever reads near the oldest entry that is loaded reads on at the same line when older ones come above it."""
    oldest = tab.state("order")[0]
    held: list[Route] = []
    older = re.compile(r"format=entries&limit=\d+&cursor=")
    tab.page.route(older, lambda route: held.append(route))
    tab.page.evaluate("scrollTo(0, 700)")
    tab.until(lambda: held, "that older entries are asked for")
    before = tab.page.evaluate("scrollY")
    tab.page.mouse.wheel(0, 120)
    tab.until(lambda: tab.page.evaluate("scrollY") > before + 100, "that it has scrolled")
    entry, top = tab.page.evaluate(READ)
    held[0].continue_()
    tab.page.unroute(older)
    tab.until(lambda: tab.state("order")[0] < oldest, "older entries")
    tab.until(lambda: abs(tab.page.evaluate(PLACE, entry) - top) < 2, "the same line in the same place")
    assert tab.page.evaluate("scrollY") > 5_000


@in_browser
def test_an_older_answer_does_not_hide_a_newer_one(site: Server) -> None:
    """The server's answers may overtake each other: what is shown is the moment that was asked for last."""
    seq = site.tell("late", *(event("message.user", text=f"Message {number}") for number in range(6)))
    tab = site.window().tab("/s/late")
    tab.reaches(seq)
    held: list[Route] = []
    tab.page.route("**/*at=2", lambda route: held.append(route))
    tab.page.evaluate("async () => { globalThis.late = (await import('/web/state.js')).showPast(2); }")
    tab.until(lambda: held, "the first question")
    tab.page.evaluate("async () => (await import('/web/state.js')).showPast(4)")
    assert tab.state("past")["seq"] == 4
    held[0].continue_()
    tab.page.evaluate("() => late")
    assert tab.state("past")["seq"] == 4
    tab.page.evaluate("async () => (await import('/web/state.js')).now()")
    tab.until(lambda: len(tab.rows()) == 6, "the present")
    tab.fine()


@in_browser
def test_the_scrubber_shows_what_export_tells_of_that_moment(site: Server) -> None:
    """At random events of a session: the entries are those of `callslip export --at`, and so is what is drawn."""
    for told in live_run(8, 3):
        seq = site.tell("scrub", *told)
    tab = site.window(height=6000).tab("/s/scrub")
    tab.reaches(seq)
    asked = ("export", "scrub", "--server", site.url, "--token", site.token, "--at")
    for at in random.Random(8).sample(range(2, seq), 5):
        tab.page.get_by_role("slider", name="Event", exact=True).fill(str(at))
        tab.until(lambda at=at: (tab.state("past") or {}).get("seq") == at, f"event {at}")
        then = json.loads(run(*asked, str(at)).stdout)
        assert tab.state("past")["entries"] == then["entries"]
        tab.until(lambda then=then: [row.id for row in tab.rows()] == [entry["id"] for entry in then["entries"]])
        states = {entry["id"]: entry["status"] for entry in then["entries"] if entry["type"] == "tool_call"}
        assert {row.id: row.state for row in tab.rows() if row.id in states} == states
    tab.page.get_by_role("button", name="Back to live").click()
    tab.until(lambda: "Done." in tab.text(), "the present")
    tab.fine()


@in_browser
def test_ten_thousand_rows_open_at_once_and_scroll(site: Server) -> None:
    """Under a second of script; the newest are shown, the oldest can be scrolled to, and few are in the document."""
    for batch in many(ROWS):
        site.tell("many", *batch)
    tab = site.window().tab("/")
    seconds = script_seconds(tab, "/s/many")
    print(f"{seconds:.3f} s of script")
    assert seconds < 1.0
    tab.until(lambda: "The end of it." in tab.text(), "the newest")
    assert tab.page.locator(".row").count() < 100
    keeps_its_place(tab)
    tab.until(lambda: tab.page.evaluate("scrollTo(0, 0)") or "Message 0\n" in tab.text(), "the oldest")
    assert tab.page.locator(".row").count() < 100
    middle = "scrollTo(0, document.documentElement.scrollHeight / 2)"
    tab.until(lambda: tab.page.evaluate(middle) or "Message 5" in tab.text(), "the middle")
    tab.page.get_by_role("button", name="jump to the end").click()
    tab.until(lambda: "The end of it." in tab.text(), "the newest again")
    tab.fine()
