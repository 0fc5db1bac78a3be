"""The page of search results in a real Chromium."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.support.browser import LOOKS, Server, in_browser
from tests.support.sample_sessions import completed_call, event

HOSTILE = "zebra <img src=x onerror=alert(1)> <b>zebra</b> \u202etxt 🙂 zebra"


def wait_for_index(site: Server) -> None:
    """Wait until everything can be found, however busy the machine is."""
    while site.request("/v1/search?q=x")["behind"]:
        pass


@in_browser
def test_a_result_leads_to_its_entry(site: Server) -> None:
    """Enter in the search field opens the results; what was found is marked, and its text is only text. SRCH14"""
    site.append("found", *(event("message.user", text=f"message {number}") for number in range(40)))
    seq = site.append("found", event("message.user", text=HOSTILE))
    site.append("found", *(event("message.user", text=f"more {number}") for number in range(40)))
    site.append("found", *completed_call("z1", "grep zebra", output="zebra.txt:1"))
    wait_for_index(site)
    tab = site.window().tab("/")
    field = tab.page.get_by_role("searchbox", name="Search sessions and calls")
    field.fill("zebra")
    field.press("Enter")
    tab.page.wait_for_url("**/search?q=zebra")
    results = tab.page.get_by_role("main").get_by_role("listitem")
    expect(results).to_have_count(2)
    assert results.nth(0).locator("mark").all_inner_texts() == ["zebra"] * 3
    assert "<img src=x onerror=alert(1)>" in results.nth(0).inner_text()
    assert tab.page.locator("main img, main b").count() == 0
    tab.page.get_by_label("Tool").fill("nothing")
    tab.page.get_by_role("button", name="Search", exact=True).click()
    tab.page.get_by_text("Nothing found.").wait_for()
    tab.page.go_back()
    tab.page.get_by_label("Before").fill("2001-01-01")
    tab.page.get_by_role("button", name="Search", exact=True).click()
    tab.page.get_by_text("Nothing found.").wait_for()
    tab.page.go_back()
    results.nth(0).get_by_role("link").click()
    tab.page.wait_for_url(f"**/s/found#entry-{seq}")
    tab.until(lambda: (row := tab.row(seq)) is not None and "zebra" in row.text, "the entry")
    tab.assert_no_problems()


@in_browser
def test_search_results_come_in_pages_and_pass_axe(site: Server) -> None:
    """In both themes, also on a narrow screen. SRCH14"""
    site.append("many", *(event("message.user", text=f"quagga {number}") for number in range(25)))
    wait_for_index(site)
    for theme, width in LOOKS:
        tab = site.window(theme, width).tab("/search?q=quagga&session=many")
        results = tab.page.get_by_role("main").get_by_role("listitem")
        expect(results).to_have_count(20)
        tab.page.get_by_role("button", name="More results").click()
        expect(results).to_have_count(25)
        expect(tab.page.get_by_role("status").filter(has_text="25 found.")).to_be_visible()
        assert tab.axe_violations() == [] and tab.find_overflow() == []
        tab.assert_no_problems()


@in_browser
def test_a_search_that_is_refused_shows_why(site: Server) -> None:
    """SRCH14"""
    tab = site.window().tab("/search?q=x&state=finished")
    expect(tab.page.get_by_role("alert")).to_contain_text("finished")
    tab.go("/search?q=***")
    tab.page.get_by_text("The search has no letters or digits.").wait_for()
    tab.ignore_problems("400")
    tab.assert_no_problems()
