"""The ways to look at a session in a real Chromium: the end as it comes, calls on a line of time, and filters."""

from __future__ import annotations

import time

from playwright.sync_api import expect

from tests.support.browser import Server, Tab, in_browser
from tests.support.sample_sessions import event, story

CUT = """() => {
    const edge = document.querySelector(".wf-axis").getBoundingClientRect().right;
    const words = [...document.querySelectorAll(".wf-tick")];
    return [words.length, words.filter((word) => word.getBoundingClientRect().right > edge).length];
}"""


@in_browser
def test_the_end_is_followed_until_somebody_scrolls_up(site: Server) -> None:
    """Who reads at the end sees what comes; who reads above is not moved, is told how much came, and may jump there."""
    seq = site.tell("follow", *(event("message.user", text=f"Message {number}") for number in range(40)))
    tab = site.window(height=600).tab("/s/follow")
    tab.reaches(seq)
    tab.reaches(site.tell("follow", event("message.user", text="Message 40")))
    tab.page.get_by_text("Message 40").wait_for()
    at_end = "innerHeight + scrollY >= document.documentElement.scrollHeight - 1"
    tab.until(lambda: tab.page.evaluate(at_end), "the end")
    tab.page.mouse.wheel(0, -700)
    tab.page.get_by_role("button", name="Jump to the end").wait_for()
    read = tab.page.get_by_text("Message 30", exact=True)
    where = read.bounding_box()
    tab.reaches(site.tell("follow", event("message.user", text="one"), event("message.user", text="two")))
    tab.page.get_by_role("button", name="2 new, jump to the end").wait_for()
    assert read.bounding_box() == where
    tab.page.get_by_role("button", name="2 new, jump to the end").click()
    tab.until(lambda: tab.page.evaluate(at_end), "the end again")
    expect(tab.page.get_by_role("button", name="jump to the end")).to_have_count(0)
    tab.fine()


@in_browser
def test_calls_stand_on_a_line_of_time(site: Server) -> None:
    """Waiting, queued and running are told apart, every time is written whole, and a key opens the call."""
    seq = site.tell("falls", *story(int(time.time() * 1000)))
    tab = site.window().tab("/s/falls?view=waterfall")
    tab.until(lambda: tab.page.locator(".wf-row").count() == 8, f"the calls, {seq}")
    phases = [
        row.locator(".wf-bar").evaluate_all("(bars) => bars.map((bar) => bar.className.split('wf-').at(-1))")
        for row in tab.page.locator(".wf-row").all()
    ]
    assert phases[0] == ["queued", "running"] and phases[-1] == ["queued", "waiting"]
    tab.page.get_by_role("listbox").focus()
    tab.page.keyboard.press("End")
    tab.page.get_by_text("has waited for approval").wait_for()
    tab.page.keyboard.press("Enter")
    tab.page.locator(".call.open", has_text="git push").wait_for()
    assert "view=" not in tab.page.url
    tab.fine()


def _times_fit(tab: Tab) -> bool:
    """Some are there, none is cut, and one is left out."""
    shown, cut = tab.page.evaluate(CUT)
    return cut == 0 and 2 < shown < tab.page.locator(".wf-grid").count()


@in_browser
def test_no_time_is_cut_at_the_edge(site: Server) -> None:
    """One that would end beyond the line of time is left out; its mark stays."""
    began, ended = event("call.started", "edge"), event("call.completed", "edge")
    site.tell("edge", {**began, "at": 10_000}, {**ended, "at": 100_100})
    tab = site.window().tab("/s/edge?view=waterfall")
    tab.until(lambda: tab.page.locator(".wf-tick").count() > 2, "times")
    for width in (1280, 640, 380):
        tab.page.set_viewport_size({"width": width, "height": 800})
        tab.until(lambda: _times_fit(tab), f"times in {width} px")
    tab.fine()


@in_browser
def test_a_filter_leaves_what_was_asked_for_and_is_in_the_address(site: Server) -> None:
    """Typed or chosen among facets with counts; a lone row is covered by nothing; a reload shows the same."""
    told = site.tell("filtered", *story(int(time.time() * 1000)))
    tab = site.window("light", 380, 760).tab("/s/filtered")
    tab.reaches(told)
    tab.page.get_by_role("button", name="Facets").click()
    tab.page.get_by_role("button", name="failed, 2 calls").click()
    tab.until(lambda: len(tab.rows()) == 2, "those that failed")
    tab.page.get_by_label("Filter", exact=True).fill("ruff")
    tab.until(lambda: len(tab.rows()) == 1, "the one of them that is ruff")
    assert "ruff: command not found" in tab.text() and "1 of " in tab.text()
    tab.page.evaluate("scrollTo(0, 300)")
    tab.page.get_by_role("button", name="jump to the end").wait_for(state="detached")
    assert "q=status%3Afailed" in tab.page.url
    tab.reload()
    tab.until(lambda: [row.state for row in tab.rows()] == ["failed"], "the same after a reload")
    tab.page.get_by_role("button", name="Remove status: failed").click()
    tab.page.get_by_label("Clear the filter").click()
    tab.page.get_by_label("Filter", exact=True).fill("tool:edit <5s prices")
    tab.until(lambda: [row.text for row in tab.rows() if "Edit prices.py" in row.text], "the edit")
    assert len(tab.rows()) == 1
    tab.page.get_by_role("button", name="waterfall").click()
    tab.until(lambda: tab.page.locator(".wf-row").count() == 1, "the same on a line of time")
    tab.fine()
