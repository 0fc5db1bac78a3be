"""Following the end of a session, the waterfall and the filter, in a real Chromium."""

from __future__ import annotations

import re
import time

from playwright.sync_api import expect

from tests.support.browser import Server, Tab, in_browser, show_facets, show_filter
from tests.support.sample_sessions import event, example_session

TICK_COUNTS = """() => {
    const edge = document.querySelector(".wf-axis").getBoundingClientRect().right;
    const words = [...document.querySelectorAll(".wf-tick")];
    return [words.length, words.filter((word) => word.getBoundingClientRect().right > edge).length];
}"""


@in_browser
def test_end_is_followed_until_the_user_scrolls_up(site: Server) -> None:
    """At the end, new entries are shown; after scrolling up, the view stays, counts new entries and offers a jump."""
    seq = site.append("follow", *(event("message.user", text=f"Message {number}") for number in range(40)))
    tab = site.window(height=600).tab("/s/follow")
    tab.wait_for_seq(seq)
    tab.wait_for_seq(site.append("follow", event("message.user", text="Message 40")))
    tab.page.get_by_text("Message 40").wait_for()
    tab.until(tab.is_at_end, "the end")
    tab.wheel(-700)
    tab.page.get_by_role("button", name="Jump to latest").wait_for()
    message = tab.page.get_by_text("Message 30", exact=True)
    position = message.bounding_box()
    tab.wait_for_seq(site.append("follow", event("message.user", text="one"), event("message.user", text="two")))
    tab.page.get_by_role("button", name="Jump to latest (2 new)").wait_for()
    assert message.bounding_box() == position
    tab.page.get_by_role("button", name="Jump to latest (2 new)").click()
    tab.until(tab.is_at_end, "the end again")
    expect(tab.page.get_by_role("button", name="Jump to latest")).to_have_count(0)
    tab.assert_no_problems()


@in_browser
def test_waterfall_shows_phases_and_opens_calls(site: Server) -> None:
    """Queued, waiting and running phases are distinguished, and Enter opens the selected call."""
    seq = site.append("falls", *example_session(int(time.time() * 1000)))
    tab = site.window().tab("/s/falls?view=waterfall")
    tab.until(lambda: tab.page.locator(".wf-row").count() == 8, f"the calls, {seq}")
    phases = [
        row.locator(".wf-bar").evaluate_all("(bars) => bars.map((bar) => bar.className.split('wf-').at(-1))")
        for row in tab.page.locator(".wf-row").all()
    ]
    assert phases[0] == ["queued", "running"] and phases[-1] == ["queued", "waiting"]
    tab.page.get_by_role("listbox").focus()
    tab.page.keyboard.press("End")
    tab.page.get_by_text(re.compile(r"Waiting for approval \S+.* so far")).wait_for()
    tab.page.keyboard.press("Enter")
    tab.page.locator(".call.open", has_text="git push").wait_for()
    assert "view=" not in tab.page.url
    tab.assert_no_problems()


def _do_labels_fit(tab: Tab) -> bool:
    """Return whether there are labels, none is cut off, and some are left out."""
    shown, cut = tab.page.evaluate(TICK_COUNTS)
    return cut == 0 and 2 < shown < tab.page.locator(".wf-grid").count()


@in_browser
def test_no_tick_label_is_cut_off(site: Server) -> None:
    """A label that would not fit before the edge is left out; its tick stays."""
    start, end = event("call.started", "edge"), event("call.completed", "edge")
    site.append("edge", {**start, "at": 10_000}, {**end, "at": 100_100})
    tab = site.window().tab("/s/edge?view=waterfall")
    tab.until(lambda: tab.page.locator(".wf-tick").count() > 2, "labels")
    for width in (1280, 640, 380):
        tab.page.set_viewport_size({"width": width, "height": 800})
        tab.until(lambda: _do_labels_fit(tab), f"labels in {width} px")
    tab.assert_no_problems()


@in_browser
def test_filter_selects_entries_and_is_saved_in_the_address(site: Server) -> None:
    """The filter is typed or chosen from facets with counts; nothing covers a single row; a reload shows the same."""
    seq = site.append("filtered", *example_session(int(time.time() * 1000)))
    tab = site.window("light", 380, 760).tab("/s/filtered")
    tab.wait_for_seq(seq)
    show_filter(tab)
    show_facets(tab)
    tab.page.get_by_role("button", name="Failed, 2 calls").click()
    tab.page.keyboard.press("Escape")
    tab.until(lambda: len(tab.rows()) == 2, "the failed calls")
    tab.page.get_by_label("Filter", exact=True).fill("ruff")
    tab.until(lambda: len(tab.rows()) == 1, "the failed call of ruff")
    assert "ruff: command not found" in tab.text() and "1 of " in tab.text()
    tab.scroll_to("300")
    tab.page.get_by_role("button", name="Jump to latest").wait_for(state="detached")
    assert "q=status%3Afailed" in tab.page.url
    tab.reload()
    tab.until(lambda: [row.state for row in tab.rows()] == ["failed"], "the same after a reload")
    tab.page.get_by_role("button", name="Remove status: Failed").click()
    tab.page.get_by_label("Clear filters").click()
    tab.page.get_by_label("Filter", exact=True).fill("tool:edit <5s prices")
    tab.until(lambda: ["Edit prices.py" in row.text for row in tab.rows()] == [True], "only the edit")
    tab.page.get_by_role("button", name="Waterfall").click()
    tab.until(lambda: tab.page.locator(".wf-row").count() == 1, "the same in the waterfall")
    tab.assert_no_problems()
