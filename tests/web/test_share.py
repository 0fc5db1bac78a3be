"""A session that was shared as one file, opened from disk in a real Chromium without any network: it is the page."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from callslip.formats.html.encode import document
from callslip.model.entries import Info, Message, Snapshot, ToolCall
from tests.support.browser import PATIENCE, Row, Server, Tab, in_browser
from tests.support.sample_sessions import Told, every_state, hostile, live_run, story

Sessions = Callable[[str], str]

TALL = 8000
NOON = 1_700_000_000_000


def demo() -> list[Told]:
    return [one for batch in live_run(7, 6) for one in batch]


SHOWN: dict[str, Callable[[], list[Told]]] = {
    "states": every_state,
    "story": lambda: story(NOON),
    "demo": demo,
    "hostile <b>": hostile,
}


@pytest.fixture(scope="module")
def told(site: Server) -> Sessions:
    """The name of a session of this kind, which is told once for all tests here."""
    known: dict[str, str] = {}

    def name(kind: str) -> str:
        if kind not in known:
            known[kind] = f"share {kind}"
            site.tell(known[kind], *SHOWN[kind]())
        return known[kind]

    return name


def shared(site: Server, session: str, folder: Path) -> Path:
    """The file, as whoever presses "share" gets it."""
    asked = f"{site.url}/v1/sessions/{quote(session)}?format=html"
    request = urllib.request.Request(asked, headers={"authorization": f"Bearer {site.token}"})
    path = folder / "shared.html"
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        path.write_bytes(answer.read())
    return path


def opened(site: Server, path: Path, *look: Any, at: str = "", **options: Any) -> Tab:
    """A tab on a file, in a browser that has no network."""
    window = site.window(*look, offline=True, **options)
    tab = Tab(window.context.new_page(), site)
    tab.page.clock.set_fixed_time(NOON)
    tab.page.goto(path.as_uri() + at)
    tab.forgive(f"went elsewhere: {path.as_uri()}")
    return tab


def drawn(tab: Tab, count: int = 1) -> Tab:
    """Once the page's own modules have shown so many rows, each with its text."""
    tab.until(lambda: len(rows := tab.rows()) >= count and all(row.text for row in rows), "rows")
    return tab


def live(site: Server, session: str, *look: Any) -> Tab:
    """The same session on the page, as it stands after its last event, and without what a file cannot have."""
    tab = site.window(*look).tab("/")
    tab.page.clock.set_fixed_time(NOON)
    tab.go(f"/s/{quote(session)}")
    tab.reaches(site.seq(session))
    tab.page.add_style_tag(url=f"{site.url}/web/shared.css")
    tab.page.evaluate("async (at) => (await import('/web/state.js')).showPast(at)", site.seq(session))
    tab.page.get_by_text("as it was after event").wait_for()
    return tab


def drawn_anew(tab: Tab) -> None:
    """Once what was done has been drawn, and what that asked for."""
    tab.page.evaluate("""async () => {
        const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        for (let times = 0; times < 3; times++) await frame();
    }""")


def open_all(tab: Tab) -> None:
    """As `Tab.open_all`, but only what a person can see: the rest is not there for anybody."""
    while tab.page.evaluate("""() => {
        const closed = [...document.querySelectorAll("main [aria-expanded=false], main details:not([open]) > summary")]
            .filter((one) => one.checkVisibility() && !one.closest(".filter"));
        closed.forEach((one) => one.click());
        return closed.length;
    }"""):
        drawn_anew(tab)


LOOK = """() => [".session-head", ".plan-panel", ".row"]
    .flatMap((part) => [...document.querySelectorAll(`${part}, ${part} *`)])
    .filter((one) => one.checkVisibility() && !one.closest(".session-tools"))
    .map((one) => {
        const { color, backgroundColor, borderColor, borderWidth, fontFamily, fontSize, fontWeight, fontStyle,
                padding, margin, display, whiteSpace } = getComputedStyle(one);
        const { width, height } = one.getBoundingClientRect();
        return [one.tagName + "." + one.className, Math.round(width), Math.round(height), color, backgroundColor,
                borderColor, borderWidth, fontFamily, fontSize, fontWeight, fontStyle, padding, margin, display,
                whiteSpace].join(" ");
    })"""


def same(one: Tab, other: Tab) -> list[Row]:
    """Both show the same rows, with the same words, in the same colours, fonts and sizes."""
    drawn_anew(one)
    drawn_anew(other)
    rows = one.rows()
    assert rows == other.rows()
    looks = one.page.evaluate(LOOK), other.page.evaluate(LOOK)
    different = [pair for pair in zip(*looks, strict=False) if pair[0] != pair[1]]
    assert looks[0] == looks[1], different[:3]
    return rows


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 380)])
@in_browser
def test_the_file_shows_what_the_page_shows(
    site: Server, told: Sessions, tmp_path: Path, theme: str, width: int
) -> None:
    """Every state: row by row the same words, colours, fonts and sizes, closed and open; axe finds nothing."""
    session = told("states")
    look = (theme, width, TALL)
    file = drawn(opened(site, shared(site, session, tmp_path), *look), len(site.entries(session)))
    page = live(site, session, *look)
    states = {entry["id"]: entry.get("status", "") for entry in site.entries(session)}
    rows = same(file, page)
    assert {row.id for row in rows} == set(states)
    assert all(row.state == states[row.id] for row in rows if states[row.id])
    open_all(file)
    open_all(page)
    opens = same(file, page)
    assert sum(len(row.text) for row in opens) > 2 * sum(len(row.text) for row in rows)
    assert file.axe() == [] and file.overflows() == []
    file.fine()
    page.fine()


@pytest.mark.parametrize("kind", ["story", "demo", "hostile <b>"])
@in_browser
def test_any_session_looks_the_same_and_nothing_in_it_lives(
    site: Server, told: Sessions, tmp_path: Path, kind: str
) -> None:
    """What agents really do, and what nobody should: the same rows as on the page; no script of others, no request."""
    session = told(kind)
    look = ("light", 1280, 2 * TALL)
    file = drawn(opened(site, shared(site, session, tmp_path), *look), len(site.entries(session)))
    page = live(site, session, *look)
    same(file, page)
    open_all(file)
    open_all(page)
    same(file, page)
    alive = "script, iframe, link, style, [onerror], [onload], [href^='javascript:'], [src^='http']"
    assert not file.page.locator(f"body :is({alive})").count()
    assert {request.url.partition(":")[0] for request in file.requests} <= {"file", "blob", "data"}
    file.fine()
    page.fine()


@in_browser
def test_nothing_in_the_file_needs_a_server(site: Server, told: Sessions, tmp_path: Path) -> None:
    """No prompt, no scrubber, no answers, no downloads; whatever can be pressed asks for nothing and breaks nothing."""
    session = told("states")
    file = drawn(opened(site, shared(site, session, tmp_path), "light", 1280, TALL))
    open_all(file)
    assert "The output is cut short here (truncated). The whole has 108.0 kB." in file.text()
    assert "It had no answer yet at this point." in file.text()
    assert not file.page.locator("a:visible, textarea:visible, input:visible:not(.filter-input)").count()
    asked = len(file.requests)
    words = file.page.evaluate("""() => [...document.querySelectorAll("main button")]
        .filter((one) => one.isConnected && one.checkVisibility())
        .map((one) => (one.click(), one.innerText.trim()))""")
    assert not {"share", "Cancel call", "Load the whole", "link", "curl"} & set(words)
    assert not [word for word in words if re.search("event|allow|reject", word, re.IGNORECASE)], words
    drawn_anew(file)
    assert [request.url for request in file.requests[asked:] if not request.url.startswith("blob:")] == []
    file.fine()


@in_browser
def test_filters_waterfall_links_and_keys_work_in_the_file(site: Server, told: Sessions, tmp_path: Path) -> None:
    """All that the page has for going through a session, but for what the server does."""
    path = shared(site, told("story"), tmp_path)
    failed = [entry["id"] for entry in site.entries(told("story")) if entry.get("status") == "failed"]
    file = drawn(opened(site, path))
    file.page.keyboard.press("/")
    file.page.keyboard.type("status:failed")
    file.until(lambda: [row.id for row in file.rows()] == failed, "those that failed")
    file.page.get_by_label("Clear the filter").click()
    file.page.get_by_role("button", name="waterfall").click()
    file.page.locator(".wf-head").first.wait_for(state="attached")
    assert file.axe() == []
    file.page.locator(".wf-row", has_text="ruff check").click()
    opens = f"#entry-{failed[-1]} .call.open"
    file.page.locator(opens).wait_for()
    file.fine()
    linked = drawn(opened(site, path, at=f"#entry-{failed[-1]}"))
    linked.page.locator(opens).wait_for()
    linked.page.keyboard.press("o")
    linked.page.locator(opens).wait_for(state="detached")
    linked.fine()


HOLE = """<script>alert(1)</script><script type=module>alert(2)</script><img src=x onerror=alert(3)>
<script src="data:text/javascript,alert(4)"></script><style>body{display:none}</style><iframe srcdoc="<script>alert(5)
</script>"></iframe><a href="javascript:alert(6)" id=way>x</a><base href="https://192.0.2.1/">"""


@in_browser
def test_even_markup_of_others_would_run_nothing(site: Server, told: Sessions, tmp_path: Path) -> None:
    """If escaping had a hole: the file's policy lets nothing run, style or load that is not its own."""
    path = shared(site, told("story"), tmp_path)
    path.write_text(path.read_text().replace("<main>", f"<main>{HOLE}", 1))
    file = drawn(opened(site, path))
    plain = opened(site, path, java_script_enabled=False)
    assert "Made with Callslip" in plain.text()
    for tab in (file, plain):
        assert not [said for said in tab.wrong if said.startswith("dialog")]
        gone = [one.url for one in tab.requests if not one.url.startswith(("file:", "blob:", "about:", "data:"))]
        assert not gone


@pytest.mark.parametrize("theme", ["light", "dark"])
@in_browser
def test_where_no_script_runs_the_file_can_be_read(site: Server, told: Sessions, tmp_path: Path, theme: str) -> None:
    """As in the preview of a mail: every entry, in a plain look of its own."""
    path = shared(site, told("states"), tmp_path)
    plain = opened(site, path, theme, java_script_enabled=False)
    for entry in site.entries(told("states")):
        shown = plain.page.locator(f"#e{entry['id']}").inner_text()
        assert entry.get("status", "").replace("_", " ") in shown
    assert "Made with Callslip" in plain.text() and not plain.rows()
    assert plain.overflows() == [] and not plain.wrong


@in_browser
def test_a_file_that_cannot_draw_itself_shows_what_it_has(site: Server, told: Sessions, tmp_path: Path) -> None:
    """As in a browser that is too old for the page: nothing is hidden for good."""
    path = shared(site, told("story"), tmp_path)
    path.write_text(path.read_text().replace('id="modules" type="text/plain">', 'id="modules" type="text/plain">x'))
    broken = opened(site, path)
    broken.until(lambda: "Made with Callslip" in broken.text(), "the plain form")
    assert broken.page.locator("article").first.is_visible() and not broken.rows()
    assert broken.wrong
    fresh = opened(site, path, java_script_enabled=False)
    assert fresh.text() == broken.text()


@in_browser
def test_a_long_session_opens_at_its_beginning_and_draws_what_is_near(site: Server, tmp_path: Path) -> None:
    """Ten thousand entries are in the file, some dozens on the screen."""
    entries: list[Any] = [
        ToolCall(id=n, at=NOON, call_id=f"exec_{n:012x}", tool_call_id="t", title=f"Call {n}", status="completed")
        for n in range(1, 10_000)
    ]
    path = tmp_path / "long.html"
    last = Message(id=10_000, at=NOON, role="assistant", content="The end of it.")
    path.write_bytes(document(Snapshot("long", 10_000, Info(), [*entries, last])))
    file = drawn(opened(site, path))
    assert file.rows()[0].id == 1 and len(file.rows()) < 100 and file.page.evaluate("scrollY") == 0
    file.page.mouse.wheel(0, 500)
    file.page.get_by_role("button", name="Jump to the end").click()
    file.until(lambda: file.rows()[-1].text.endswith("The end of it."), "the last row")
    file.fine()
