"""What stands around the views of the page: who is let in, light and dark, keys, and words where there is nothing."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.browser import LOOKS, Server, in_browser, serving
from tests.support.sample_sessions import event


@in_browser
def test_the_printed_url_lets_a_browser_in(site: Server) -> None:
    """Without the token the page says what to do; the URL that `serve` prints is exchanged for a cookie."""
    window = site.window()
    stranger = window.stranger("/")
    stranger.until(lambda: "?token=" in stranger.text(), "what to do")
    stranger.forgive("401")
    stranger.page.goto(f"{site.url}/?token={site.token}")
    stranger.until(lambda: stranger.state("status") == "live", "that it is let in")
    assert "token" not in stranger.page.url and "token" not in stranger.page.evaluate("document.cookie")
    stranger.fine()


NOTHING = (
    ("/s/none", "There is no such session"),
    ("/c/exec_000000000000", "This call was not found"),
    ("/nonsense", "Nothing is at this address"),
)


@in_browser
def test_an_address_that_is_none_leads_on(site: Server) -> None:
    """Whoever comes to `/s/a/b` is told by the page, not in JSON, and gets from there to where something is."""
    tab = site.window().tab("/s/a/b")
    said = tab.page.get_by_text("names no view of this page")
    said.get_by_text("/s/a/b").wait_for()
    tab.page.get_by_role("main").get_by_role("link", name="Commands").click()
    tab.page.wait_for_url("**/commands")
    expect(said).to_have_count(0)
    tab.forgive("404")
    tab.fine()


@in_browser
def test_all_tabs_of_a_browser_share_one_stream(tmp_path: Path) -> None:
    """However many tabs follow however many sessions: the server has one reader for each browser."""
    with serving(tmp_path) as server:
        for name in ("one", "two"):
            server.tell(name, event("message.user", text=f"Session {name}"))

        def readers() -> int:
            headers = {"authorization": f"Bearer {server.token}"}
            asked = urllib.request.Request(f"{server.url}/metrics", headers=headers)
            with urllib.request.urlopen(asked) as answer:
                told = answer.read().decode()
            return next(int(line.split()[1]) for line in told.splitlines() if line.startswith("callslip_readers "))

        window = server.window()
        tabs = [window.tab("/s/one"), window.tab("/s/two"), window.tab("/inbox"), window.tab("/s/two")]
        for tab, name in zip(tabs, ("one", "two", "", "two"), strict=True):
            tab.until(lambda tab=tab: tab.state("status") == "live", "a line")
            if name:
                tab.reaches(server.tell(name, event("message.user", text="More")))
        tabs[0].until(lambda: readers() == 1, "one reader")
        tabs.append(server.window().tab("/s/one"))
        tabs[-1].reaches(server.seq("one"))
        tabs[-1].until(lambda: readers() == 2, "two readers")
        for tab in tabs:
            tab.fine()


@pytest.mark.parametrize(("theme", "width"), LOOKS)
@in_browser
def test_pages_with_nothing_to_show_say_so_and_pass_axe(site: Server, theme: str, width: int) -> None:
    """No such session, call or address: words that say what to do, no finding of axe, no sideways scrolling."""
    window = site.window(theme, width)
    for path, said in NOTHING:
        tab = window.tab(path)
        tab.page.get_by_role("heading", level=1, name=said).wait_for()
        assert tab.axe() == [] and tab.overflows() == []
        tab.forgive("404")
        tab.fine()


@in_browser
def test_light_or_dark_is_kept(site: Server) -> None:
    """The browser's wish at first, then the person's: also after a reload, and before anything is drawn."""
    tab = site.window("dark").tab("/")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = tab.page.evaluate(paper)
    tab.page.get_by_role("button", name="Switch to light").click()
    tab.until(lambda: tab.page.evaluate(paper) != dark, "light")
    tab.reload()
    assert tab.page.evaluate(paper) != dark
    tab.page.get_by_role("button", name="Switch to dark").click()
    tab.until(lambda: tab.page.evaluate(paper) == dark, "dark")
    tab.fine()


@in_browser
def test_keys_lead_everywhere_and_are_told(site: Server) -> None:
    """`?` opens the help and Escape closes it; `g i` goes to the inbox; a key in a field is only a letter."""
    tab = site.window().tab("/")
    tab.until(lambda: tab.state("status") == "live", "that it is live")
    tab.page.keyboard.press("?")
    tab.page.get_by_role("dialog", name="Keys").wait_for()
    told = tab.page.get_by_role("dialog").inner_text().split("\n")
    assert {"/", "j", "k", "o", "a", "d", "e", "?", "Esc"} <= set(told)
    assert tab.axe() == []
    tab.page.keyboard.press("Escape")
    tab.page.get_by_role("dialog", name="Keys").wait_for(state="hidden")
    tab.page.keyboard.type("gi")
    tab.page.wait_for_url("**/inbox")
    tab.page.keyboard.type("/")
    tab.page.keyboard.type("g?")
    assert tab.page.get_by_role("dialog", name="Keys").count() == 0
    assert tab.page.get_by_role("searchbox").input_value() == "g?"
    tab.fine()


@in_browser
def test_a_link_to_a_call_leads_to_its_card(site: Server) -> None:
    """`/c/{id}` shows the call in its session, with the focus on it."""
    told = [event("message.user", text=f"Message {number}") for number in range(60)]
    site.tell("linked", event("call.completed", "linked-call", toolName="look", output="what it saw"), *told)
    entry = site.entries("linked")[0]["id"]
    tab = site.window().tab("/c/linked-call")
    tab.page.wait_for_url(f"**/s/linked#entry-{entry}")
    tab.until(lambda: "what it saw" in tab.text(), "the call")
    tab.until(lambda: tab.page.evaluate("document.activeElement.closest('.row')?.id") == f"entry-{entry}", "the focus")
    box = tab.page.locator(f"#entry-{entry}").bounding_box()
    assert box and 0 <= box["y"] < 800
    tab.fine()
