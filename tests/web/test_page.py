"""The page in a real Chromium: its size, its look in every state and view, and its handling of hostile text."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator

from tests.support.browser import LOOKS, Server, Tab, in_browser, serving, show_facets, show_filter
from tests.support.sample_sessions import (
    HOSTILE,
    STATES,
    event,
    every_state,
    example_session,
    hostile_session,
    long_texts,
)

MAX_PAGE_BYTES = 200_000
WIDE = 1280
VIEWS_SAVED_NARROW = ("timeline", "waterfall", "inbox")
STATE_LABELS = {state: state.capitalize() for state in STATES} | {"awaiting_approval": "Waiting for approval"}


@pytest.fixture(scope="module")
def gallery(browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the sessions that are shown in the screenshots of the docs."""
    with serving(tmp_path_factory.mktemp("gallery")) as server:
        server.append(
            "notes", event("session.info", title="Notes on the week"), event("message.user", text="What did I do?")
        )
        server.append("states", *every_state())
        server.append("story", *example_session(int(time.time() * 1000)))
        for number, page in enumerate(("News", "Weather", "Trains")):
            params = {"url": f"https://example.org/{page.lower()}"}
            server.request("/v1/calls", {"action": "open_page", "params": params, "client": "browser", "timeout": 600})
            if number < 2:
                claimed = server.request("/v1/calls/claim", {"client": "browser", "worker": "tab 1", "wait": 1})
                end = {"error": "the page timed out"} if number else {"result": page}
                server.request(f"/v1/calls/{claimed['call']}/result", {**end, "fence": claimed["fence"]})
        yield server


def wait_until_drawn(tab: Tab, site: Server, session: str) -> Tab:
    tab.wait_for_seq(site.seq(session))
    tab.until(tab.rows, "entries")
    return tab


@in_browser
def test_page_is_small(gallery: Server) -> None:
    """All views together load less than 200 KB, and nothing from other hosts."""
    tab = gallery.window().tab("/")
    for view, path in (
        ("session", "/s/states"),
        ("inbox", "/inbox"),
        ("commands", "/commands"),
        ("usage", "/usage"),
        ("rules", "/rules"),
        ("sessions", "/"),
    ):
        # As a click on a link does.
        tab.page.evaluate("async (path) => (await import('/web/state.js')).go(path)", path)
        tab.page.locator(f"main.view-{view} h1").first.wait_for(state="attached")
        if view == "session":
            show_waterfall(tab, "A call that is running")
    sizes = tab.page.evaluate("""() => ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind))
        .filter(({ name }) => !name.includes("/v1/")).map(({ name, encodedBodySize }) => [name, encodedBodySize])""")
    total = sum(size for _, size in sizes)
    assert len(sizes) > 10 and total < MAX_PAGE_BYTES, (total, sorted(sizes, key=lambda one: -one[1]))
    tab.assert_no_problems()


@pytest.mark.chaos
@pytest.mark.parametrize(("theme", "width"), LOOKS)
@in_browser
def test_every_state_has_a_label_and_passes_axe(gallery: Server, theme: str, width: int) -> None:
    """Nine states, late events, truncation, a diff, colours: no axe violation and no horizontal scrolling."""
    tab = wait_until_drawn(gallery.window(theme, width, height=6000).tab("/s/states"), gallery, "states")
    for entry in gallery.entries("states"):
        if entry["type"] != "tool_call":
            continue
        row = tab.row(entry["id"])
        assert row and row.state == entry["status"] and row.label.endswith(STATE_LABELS[entry["status"]]), (entry, row)
        assert ("late" in row.text.lower()) == ("late" in entry), row.text
        assert ("truncated" in row.text.lower()) >= ("truncated" in entry), row.text
    assert tab.axe_violations() == [] and tab.find_overflow() == []
    if width == WIDE:
        tab.save_image(f"states-{theme}")
    tab.open_all()
    assert tab.axe_violations() == [] and tab.find_overflow() == []
    tab.assert_no_problems()


def show_timeline_start(tab: Tab) -> None:
    """Scroll to the start: the timeline opens at its end."""
    tab.until(lambda: "git push" in tab.text(), "the end")
    tab.scroll_to("0")
    tab.until(lambda: tab.scroll()[0] == 0, "the start")


def show_waterfall(tab: Tab, shown: str = "git push") -> None:
    tab.page.get_by_role("button", name="Waterfall").click()
    tab.page.locator(".wf-head").wait_for()
    tab.until(lambda: shown in tab.text(), "the waterfall")


def open_request(tab: Tab) -> None:
    tab.page.get_by_role("button", name="git push").click()
    tab.page.get_by_role("button", name="Always allow…").click()
    tab.page.get_by_text("Would have matched").wait_for()


def choose_failed_facet(tab: Tab) -> None:
    show_filter(tab)
    show_facets(tab)
    tab.page.get_by_label("Filter", exact=True).fill("status:failed")
    tab.until(lambda: len(tab.rows()) == 2, "the failed calls")


def show_past(tab: Tab) -> None:
    tab.page.get_by_role("button", name="History").click()
    tab.page.get_by_role("slider", name="Event", exact=True).fill("12")
    tab.page.get_by_text("Viewing event 12 of").wait_for()


def check_a_command(tab: Tab) -> None:
    tab.page.get_by_role("textbox", name="Command").fill("git push --force")
    tab.page.locator(".verdict").wait_for()


VIEWS: dict[str, tuple[str, Callable[[Tab], object]]] = {
    "sessions": ("/", lambda tab: tab.page.get_by_text("Notes on the week").wait_for()),
    "timeline": ("/s/story", show_timeline_start),
    "waterfall": ("/s/story", show_waterfall),
    "filtered": ("/s/story", choose_failed_facet),
    "past": ("/s/story", show_past),
    "inbox": ("/inbox", open_request),
    "rules": ("/rules", check_a_command),
    "commands": ("/commands", lambda tab: tab.page.get_by_text("open_page").first.wait_for()),
}


@pytest.mark.chaos
@pytest.mark.parametrize(("theme", "width"), LOOKS)
@in_browser
def test_every_view_passes_axe(gallery: Server, theme: str, width: int) -> None:
    """Lists, timeline, waterfall, filters, history, inbox, commands: no axe violation and no horizontal scrolling."""
    window = gallery.window(theme, width, 900 if width > 500 else 760)
    problems = []
    for view, (path, prepare) in VIEWS.items():
        tab = window.tab(path)
        if path.startswith("/s/"):
            wait_until_drawn(tab, gallery, path.removeprefix("/s/"))
        prepare(tab)
        problems += [f"{view}: {problem}" for problem in [*tab.axe_violations(), *tab.find_overflow()]]
        if width == WIDE or view in VIEWS_SAVED_NARROW:
            tab.save_image(f"{view}-{theme}" + ("" if width == WIDE else "-narrow"))
        tab.assert_no_problems()
        tab.page.close()
    assert problems == []


@in_browser
def test_long_texts_do_not_overflow(site: Server) -> None:
    """A megabyte of text, long words and right-to-left text make the page neither wide nor very high."""
    seq = site.append("long", *long_texts())
    tab = site.window("light", 380).tab("/s/long")
    tab.wait_for_seq(seq)

    def open_entry(entry: dict[str, Any]) -> Locator:
        tab.page.evaluate("async (to) => (await import('/web/state.js')).go(to)", f"/s/long#entry-{entry['id']}")
        tab.page.locator(f"#entry-{entry['id']}").wait_for()
        return tab.page.locator(f"#entry-{entry['id']}")

    for entry in (entries := site.entries("long")):
        row = open_entry(entry)
        assert tab.find_overflow() == [], entry["type"]
        if entry["type"] == "tool_call":
            row.locator(".call-title").click()
            tab.page.get_by_role("tab", name="Output").wait_for()
            assert tab.find_overflow() == [], entry["title"]
            tab.page.get_by_role("button", name="Close (Esc)").click()
    assert tab.scroll()[2] < 25_000 and tab.page.locator("main *").count() < 20_000
    more = open_entry(entries[0]).get_by_role("button", name="more characters")
    more.evaluate("(button) => button.scrollIntoView({ block: 'center' })")
    more.click()
    tab.page.locator(".full-text").wait_for()
    assert tab.scroll()[2] < 25_000
    assert tab.find_overflow() == []
    tab.assert_no_problems()


@in_browser
def test_hostile_text_is_escaped(site: Server) -> None:
    """Text of a tool, an agent or a user never runs a script or sends a request in any view."""
    site.append("hostile <b>", *hostile_session())
    site.request("/v1/calls", {"action": HOSTILE[0], "params": {"x": HOSTILE[1]}, "client": "h", "timeout": 600})
    window = site.window(height=8000)
    site.request(
        "/v1/rules", {"action": "deny", "filters": {"tool": HOSTILE[0]}, "reason": HOSTILE[1], "scope": "everywhere"}
    )
    for path in ("/s/hostile%20%3Cb%3E", "/inbox", "/commands", "/rules", "/"):
        tab = window.tab(path)
        if path.startswith("/s/"):
            wait_until_drawn(tab, site, "hostile <b>")
        tab.until(lambda tab=tab: "onerror" in tab.text(), "the hostile text")
        tab.open_all()
        active_elements = (
            "main img[onerror], main svg[onload], main script, main [href^='javascript:'], main [src^='http']"
        )
        assert not tab.page.locator(active_elements).count()
        tab.assert_no_problems()
