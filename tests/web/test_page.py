"""The page in a real Chromium: what it weighs, how it looks in every state and view, and that nothing hostile lives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator

from tests.support.browser import GOLDENS, LOOKS, Server, Tab, in_browser, serving
from tests.support.sample_sessions import HOSTILE, STATES, event, every_state, hostile, long_texts, story

LIGHT_ENOUGH = 200_000
WIDE = 1280
NARROW_TOO = ("timeline", "waterfall", "inbox")
WORDS = {state: state.replace("_", " ") for state in STATES}


@pytest.fixture(scope="module")
def gallery(browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own with what is worth looking at: pictures of it are in the docs."""
    with serving(tmp_path_factory.mktemp("gallery")) as server:
        server.tell(
            "notes", event("session.info", title="Notes on the week"), event("message.user", text="What did I do?")
        )
        server.tell("states", *every_state())
        server.tell("story", *story(int(time.time() * 1000)))
        for number, page in enumerate(("News", "Weather", "Trains")):
            params = {"url": f"https://example.org/{page.lower()}"}
            server.ask("/v1/calls", {"action": "open_page", "params": params, "client": "browser", "timeout": 600})
            if number < 2:
                taken = server.ask("/v1/calls/claim", {"client": "browser", "worker": "tab 1", "wait": 1})
                end = {"error": "the page did not answer"} if number else {"result": page}
                server.ask(f"/v1/calls/{taken['call']}/result", {**end, "fence": taken["fence"]})
        yield server


def settled(tab: Tab, site: Server, session: str) -> Tab:
    tab.reaches(site.seq(session))
    tab.until(tab.rows, "entries")
    return tab


@in_browser
def test_the_whole_page_is_light(gallery: Server) -> None:
    """Every view of it, visited once: under 200 KB in all, and nothing from elsewhere."""
    tab = gallery.window().tab("/")
    for view, path in (("session", "/s/states"), ("inbox", "/inbox"), ("commands", "/commands"), ("sessions", "/")):
        tab.page.evaluate("async (path) => (await import('/web/state.js')).go(path)", path)  # As a click does.
        tab.page.locator(f"main.view-{view} h1").first.wait_for(state="attached")
        if view == "session":
            waterfall(tab, "A call that is running")
    sizes = tab.page.evaluate("""() => ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind))
        .filter(({ name }) => !name.includes("/v1/")).map(({ name, encodedBodySize }) => [name, encodedBodySize])""")
    total = sum(size for _, size in sizes)
    assert len(sizes) > 10 and total < LIGHT_ENOUGH, (total, sorted(sizes, key=lambda one: -one[1]))
    tab.fine()


@pytest.mark.parametrize(("theme", "width"), LOOKS)
@in_browser
def test_every_state_is_told_in_words_and_passes_axe(gallery: Server, theme: str, width: int) -> None:
    """Nine states, late, truncated, a diff, colours: each with its word; no finding of axe, no sideways scrolling."""
    tab = settled(gallery.window(theme, width, height=6000).tab("/s/states"), gallery, "states")
    for entry in gallery.entries("states"):
        if entry["type"] != "tool_call":
            continue
        row = tab.row(entry["id"])
        assert row and row.state == entry["status"] and row.word.lower().endswith(WORDS[entry["status"]]), (entry, row)
        assert ("late" in row.text.lower()) == ("late" in entry), row.text
        assert ("truncated" in row.text.lower()) >= ("truncated" in entry), row.text
    assert tab.axe() == [] and tab.overflows() == []
    if width == WIDE:
        tab.picture(f"states-{theme}")
    tab.open_all()
    assert tab.axe() == [] and tab.overflows() == []
    tab.fine()


def timeline(tab: Tab) -> None:
    """It opens at its end; looked at is its beginning."""
    tab.until(lambda: "git push" in tab.text(), "the end")
    tab.page.evaluate("scrollTo(0, 0)")
    tab.page.get_by_role("button", name="Jump to the end").wait_for()


def waterfall(tab: Tab, shown: str = "git push") -> None:
    tab.page.get_by_role("button", name="waterfall").click()
    tab.page.locator(".wf-head").wait_for()
    tab.until(lambda: shown in tab.text(), "the waterfall")


def asked(tab: Tab) -> None:
    tab.page.get_by_role("button", name="git push").click()
    tab.page.get_by_role("button", name="Allow once").wait_for()


def facets(tab: Tab) -> None:
    tab.page.get_by_role("button", name="Facets").click()
    tab.page.get_by_label("Filter", exact=True).fill("status:failed")
    tab.until(lambda: len(tab.rows()) == 2, "those that failed")


def past(tab: Tab) -> None:
    tab.page.get_by_role("slider", name="Event", exact=True).fill("12")
    tab.page.get_by_text("You see the past").wait_for()


VIEWS: dict[str, tuple[str, Callable[[Tab], object]]] = {
    "sessions": ("/", lambda tab: tab.page.get_by_text("Notes on the week").wait_for()),
    "timeline": ("/s/story", timeline),
    "waterfall": ("/s/story", waterfall),
    "filtered": ("/s/story", facets),
    "past": ("/s/story", past),
    "inbox": ("/inbox", asked),
    "commands": ("/commands", lambda tab: tab.page.get_by_text("open_page").first.wait_for()),
}


@pytest.mark.parametrize(("theme", "width"), LOOKS if GOLDENS else [("light", WIDE), ("dark", 380)])
@in_browser
def test_every_view_passes_axe(gallery: Server, theme: str, width: int) -> None:
    """Lists, timeline, waterfall, filters, the past, inbox, commands: no finding of axe, no sideways scrolling."""
    window = gallery.window(theme, width, 900 if width > 500 else 760)
    found = []
    for view, (path, prepare) in VIEWS.items():
        tab = window.tab(path)
        if path.startswith("/s/"):
            settled(tab, gallery, path.removeprefix("/s/"))
        prepare(tab)
        found += [f"{view}: {told}" for told in [*tab.axe(), *tab.overflows()]]
        if width == WIDE or view in NARROW_TOO:
            tab.picture(f"{view}-{theme}" + ("" if width == WIDE else "-narrow"))
        tab.fine()
        tab.page.close()
    assert found == []


@in_browser
def test_long_texts_stay_in_their_place(site: Server) -> None:
    """A megabyte in a message or an output, words without blanks, text from right to left: narrow and not too high."""
    seq = site.tell("long", *long_texts())
    tab = site.window("light", 380).tab("/s/long")
    tab.reaches(seq)

    def opened(entry: dict[str, Any]) -> Locator:
        tab.page.evaluate("async (to) => (await import('/web/state.js')).go(to)", f"/s/long#entry-{entry['id']}")
        tab.page.locator(f"#entry-{entry['id']}").wait_for()
        return tab.page.locator(f"#entry-{entry['id']}")

    for entry in (entries := site.entries("long")):
        row = opened(entry)
        for choice in row.get_by_label("How much of").all():
            choice.select_option("full")
        assert tab.overflows() == [], entry["type"]
    high, elements = tab.page.evaluate(
        "[document.documentElement.scrollHeight, document.querySelectorAll('main *').length]"
    )
    assert high < 25_000 and elements < 20_000
    more = opened(entries[0]).get_by_role("button", name="more characters")
    more.evaluate("(button) => button.scrollIntoView({ block: 'center' })")
    more.click()
    tab.page.locator(".whole").wait_for()
    assert tab.page.evaluate("document.documentElement.scrollHeight") < 25_000
    assert tab.overflows() == []
    tab.fine()


@in_browser
def test_hostile_text_stays_text(site: Server) -> None:
    """Whatever a tool, an agent or a person says, wherever it is shown: no script runs and nothing is asked for."""
    site.tell("hostile <b>", *hostile())
    site.ask("/v1/calls", {"action": HOSTILE[0], "params": {"x": HOSTILE[1]}, "client": "h", "timeout": 600})
    window = site.window(height=8000)
    for path in ("/s/hostile%20%3Cb%3E", "/inbox", "/commands", "/"):
        tab = window.tab(path)
        if path.startswith("/s/"):
            settled(tab, site, "hostile <b>")
        tab.until(lambda tab=tab: "onerror" in tab.text(), "the hostile text")
        tab.open_all()
        alive = "main img[onerror], main svg[onload], main script, main [href^='javascript:'], main [src^='http']"
        assert not tab.page.locator(alive).count()
        tab.fine()
