"""What stands around the views of the page: who is let in, light and dark, keys, and words where there is nothing."""

from __future__ import annotations

import pytest

from tests.browser import LOOKS, Server, in_browser
from tests.shown import event


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


@pytest.mark.parametrize(("theme", "width"), LOOKS)
@in_browser
def test_pages_with_nothing_to_show_say_so_and_pass_axe(site: Server, theme: str, width: int) -> None:
    """No such session, call or address: words that say what to do, no finding of axe, no sideways scrolling."""
    window = site.window(theme, width)
    for path, said in (("/s/none", "no such session"), ("/c/exec_000000000000", "not found"), ("/x", "nothing is at")):
        tab = window.tab("/" if path == "/x" else path)
        tab.page.evaluate("async (path) => (await import('/web/state.js')).go(path)", path)
        tab.until(lambda tab=tab, said=said: said in tab.text().lower() and tab.page.locator("h1").count(), said)
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
