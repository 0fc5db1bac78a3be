"""The frame of the page in a real Chromium: sign-in, theme, keyboard shortcuts and error pages."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.support.browser import LOOKS, Server, in_browser, serving
from tests.support.sample_sessions import event


@in_browser
def test_printed_url_signs_in(site: Server) -> None:
    """Without a token the page shows how to sign in; the URL that `serve` prints is exchanged for a cookie."""
    window = site.window()
    tab = window.signed_out_tab("/")
    tab.until(lambda: "?token=" in tab.text(), "the instructions")
    tab.ignore_problems("401")
    tab.page.goto(f"{site.url}/?token={site.token}")
    tab.until(lambda: tab.state("status") == "live", "that it is signed in")
    assert "token" not in tab.page.url and "token" not in tab.page.evaluate("document.cookie")
    tab.assert_no_problems()


NOT_FOUND = (
    ("/s/none", 'Session "none" not found'),
    ("/c/exec_000000000000", "Call not found"),
    ("/nonsense", "Page not found"),
)


@in_browser
def test_unknown_address_shows_links_to_the_views(site: Server) -> None:
    """`/s/a/b` is answered by the page and not in JSON, with links to the views."""
    tab = site.window().tab("/s/a/b")
    message = tab.page.get_by_text("There is no page at")
    message.get_by_text("/s/a/b").wait_for()
    tab.page.get_by_role("main").get_by_role("link", name="Commands").click()
    tab.page.wait_for_url("**/commands")
    expect(message).to_have_count(0)
    tab.ignore_problems("404")
    tab.assert_no_problems()


@in_browser
def test_all_tabs_of_a_browser_share_one_stream(tmp_path: Path) -> None:
    """The server has one reader per browser, for any number of tabs and sessions."""
    with serving(tmp_path) as server:
        for name in ("one", "two"):
            server.append(name, event("message.user", text=f"Session {name}"))

        def count_readers() -> int:
            headers = {"authorization": f"Bearer {server.token}"}
            request = urllib.request.Request(f"{server.url}/metrics", headers=headers)
            with urllib.request.urlopen(request) as response:
                metrics = response.read().decode()
            return next(int(line.split()[1]) for line in metrics.splitlines() if line.startswith("callslip_readers "))

        window = server.window()
        tabs = [window.tab("/s/one"), window.tab("/s/two"), window.tab("/inbox"), window.tab("/s/two")]
        for tab, name in zip(tabs, ("one", "two", "", "two"), strict=True):
            tab.until(lambda tab=tab: tab.state("status") == "live", "a connection")
            if name:
                tab.wait_for_seq(server.append(name, event("message.user", text="More")))
        tabs[0].until(lambda: count_readers() == 1, "one reader")
        tabs.append(server.window().tab("/s/one"))
        tabs[-1].wait_for_seq(server.seq("one"))
        tabs[-1].until(lambda: count_readers() == 2, "two readers")
        for tab in tabs:
            tab.assert_no_problems()


@pytest.mark.chaos
@pytest.mark.parametrize(("theme", "width"), LOOKS)
@in_browser
def test_not_found_pages_pass_axe(site: Server, theme: str, width: int) -> None:
    """A missing session, call or address: a heading, no axe violation and no horizontal scrolling."""
    window = site.window(theme, width)
    for path, heading in NOT_FOUND:
        tab = window.tab(path)
        tab.page.get_by_role("heading", level=1, name=heading).wait_for()
        assert tab.axe_violations() == [] and tab.find_overflow() == []
        tab.ignore_problems("404")
        tab.assert_no_problems()


@in_browser
def test_theme_is_saved(site: Server) -> None:
    """The theme follows the browser until the user chooses one, which also holds after a reload."""
    tab = site.window("dark").tab("/")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = tab.page.evaluate(background)
    tab.page.get_by_role("button", name="Switch to light theme").click()
    tab.until(lambda: tab.page.evaluate(background) != dark, "light")
    tab.reload()
    assert tab.page.evaluate(background) != dark
    tab.page.get_by_role("button", name="Switch to dark theme").click()
    tab.until(lambda: tab.page.evaluate(background) == dark, "dark")
    tab.assert_no_problems()


@in_browser
def test_keyboard_shortcuts_and_their_help(site: Server) -> None:
    """`?` opens the help and Escape closes it; `g i` goes to the inbox; keys typed in a field are only text."""
    tab = site.window().tab("/")
    tab.until(lambda: tab.state("status") == "live", "that it is live")
    tab.page.keyboard.press("?")
    tab.page.get_by_role("dialog", name="Keyboard shortcuts").wait_for()
    lines = tab.page.get_by_role("dialog").inner_text().split("\n")
    assert {"/", "j", "k", "o", "a", "d", "e", "?", "Esc"} <= set(lines)
    assert tab.axe_violations() == []
    tab.page.keyboard.press("Escape")
    tab.page.get_by_role("dialog", name="Keyboard shortcuts").wait_for(state="hidden")
    tab.page.keyboard.type("gi")
    tab.page.wait_for_url("**/inbox")
    tab.page.keyboard.type("/")
    tab.page.keyboard.type("g?")
    assert tab.page.get_by_role("dialog", name="Keyboard shortcuts").count() == 0
    assert tab.page.get_by_role("searchbox").input_value() == "g?"
    tab.assert_no_problems()


@in_browser
def test_link_to_a_call_opens_its_card(site: Server) -> None:
    """`/c/{id}` shows and focuses the call in its session."""
    messages = [event("message.user", text=f"Message {number}") for number in range(60)]
    site.append("linked", event("call.completed", "linked-call", toolName="look", output="what it saw"), *messages)
    entry = site.entries("linked")[0]["id"]
    tab = site.window().tab("/c/linked-call")
    tab.page.wait_for_url(f"**/s/linked#entry-{entry}")
    tab.until(lambda: "what it saw" in tab.text(), "the call")
    tab.until(lambda: tab.page.evaluate("document.activeElement.closest('.row')?.id") == f"entry-{entry}", "the focus")
    box = tab.page.locator(f"#entry-{entry}").bounding_box()
    assert box and 0 <= box["y"] < 800
    tab.assert_no_problems()
