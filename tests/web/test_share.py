"""An exported HTML file, opened from disk in a real Chromium without network, looks like the page."""

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
from tests.support.browser import TIMEOUT_S, Row, Server, Tab, in_browser
from tests.support.sample_sessions import STATES, EventDict, every_state, example_session, hostile_session, live_run

Sessions = Callable[[str], str]

TALL_PX = 8000
STATE_LABELS = {state: state.capitalize() for state in STATES} | {"awaiting_approval": "Waiting for approval"}
NOW_MS = 1_700_000_000_000


def live_session() -> list[EventDict]:
    return [event for batch in live_run(7, 6) for event in batch]


SAMPLES: dict[str, Callable[[], list[EventDict]]] = {
    "states": every_state,
    "story": lambda: example_session(NOW_MS),
    "demo": live_session,
    "hostile <b>": hostile_session,
}


@pytest.fixture(scope="module")
def sessions(site: Server) -> Sessions:
    """Return a function that creates a sample session once, and returns its name."""
    names: dict[str, str] = {}

    def name_session(kind: str) -> str:
        if kind not in names:
            names[kind] = f"share {kind}"
            site.append(names[kind], *SAMPLES[kind]())
        return names[kind]

    return name_session


def download_export(site: Server, session: str, folder: Path) -> Path:
    """Download the exported file of a session."""
    url = f"{site.url}/v1/sessions/{quote(session)}?format=html"
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {site.token}"})
    path = folder / "shared.html"
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        path.write_bytes(answer.read())
    return path


def open_file(site: Server, path: Path, *look: Any, at: str = "", **options: Any) -> Tab:
    """Open a file in a browser without network."""
    window = site.window(*look, offline=True, **options)
    tab = Tab(window.context.new_page(), site)
    tab.page.clock.set_fixed_time(NOW_MS)
    tab.page.goto(path.as_uri() + at)
    tab.ignore_problems(f"external request: {path.as_uri()}")
    return tab


def wait_for_rows(tab: Tab, count: int = 1) -> Tab:
    """Wait until the page has drawn this many rows."""
    tab.until(lambda: len(rows := tab.rows()) >= count and all(row.text for row in rows), "rows")
    return tab


def open_page(site: Server, session: str, *look: Any) -> Tab:
    """Open the same session on the page, after its last event and without the parts that need a server."""
    tab = site.window(*look).tab("/")
    tab.page.clock.set_fixed_time(NOW_MS)
    tab.go(f"/s/{quote(session)}")
    tab.wait_for_seq(site.seq(session))
    tab.page.add_style_tag(url=f"{site.url}/web/shared.css")
    tab.page.evaluate("async (at) => (await import('/web/state.js')).showPast(at)", site.seq(session))
    tab.page.get_by_text("At event").wait_for()
    tab.page.evaluate("async () => ((await import('/web/state.js')).hasServer.value = false)")
    return tab


def wait_for_redraw(tab: Tab) -> None:
    """Wait until all changes are drawn."""
    tab.page.evaluate("""async () => {
        const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        for (let times = 0; times < 3; times++) await frame();
    }""")


def open_all(tab: Tab) -> None:
    """Open every closed card and section that is visible."""
    while tab.page.evaluate("""() => {
        const closed = [...document.querySelectorAll("main [aria-expanded=false], main details:not([open]) > summary")]
            .filter((one) => one.checkVisibility() && !one.closest(".filter, .head"));
        closed.forEach((one) => one.click());
        return closed.length;
    }"""):
        wait_for_redraw(tab)


STYLES = """() => [".head", ".plan-panel", ".row"]
    .flatMap((part) => [...document.querySelectorAll(`${part}, ${part} *`)])
    .filter((one) => one.checkVisibility() && !one.closest("[data-needs-server]"))
    .map((one) => {
        const { color, backgroundColor, borderColor, borderWidth, fontFamily, fontSize, fontWeight, fontStyle,
                padding, margin, display, whiteSpace } = getComputedStyle(one);
        const { width, height } = one.getBoundingClientRect();
        return [one.tagName + "." + one.className, Math.round(width), Math.round(height), color, backgroundColor,
                borderColor, borderWidth, fontFamily, fontSize, fontWeight, fontStyle, padding, margin, display,
                whiteSpace].join(" ");
    })"""


def assert_same_rows(first: Tab, second: Tab) -> list[Row]:
    """Assert that both show the same rows, with the same texts, colours, fonts and sizes."""
    wait_for_redraw(first)
    wait_for_redraw(second)
    rows = first.rows()
    assert rows == second.rows()
    styles = first.page.evaluate(STYLES), second.page.evaluate(STYLES)
    different = [pair for pair in zip(*styles, strict=False) if pair[0] != pair[1]]
    assert styles[0] == styles[1], different[:3]
    return rows


DETAILS = """(at) => {
    document.querySelectorAll(".call-title")[at]?.click();
    return new Promise((done) => setTimeout(() => done(document.querySelector(".detail").innerText)));
}"""


def assert_same_details(first: Tab, second: Tab) -> None:
    """Assert that both show the same details of each call."""
    for at in range(first.page.locator(".call-title").count()):
        assert first.page.evaluate(DETAILS, at) == second.page.evaluate(DETAILS, at)


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 380)])
@in_browser
def test_file_looks_like_the_page(site: Server, sessions: Sessions, tmp_path: Path, theme: str, width: int) -> None:
    """In every state, rows have the same texts, colours, fonts and sizes, closed and open, and pass axe."""
    session = sessions("states")
    look = (theme, width, TALL_PX)
    file = wait_for_rows(open_file(site, download_export(site, session, tmp_path), *look), len(site.entries(session)))
    page = open_page(site, session, *look)
    states = {entry["id"]: entry.get("status", "") for entry in site.entries(session)}
    rows = assert_same_rows(file, page)
    assert {row.id for row in rows} == set(states)
    assert all(row.state == states[row.id] for row in rows if states[row.id])
    open_all(file)
    open_all(page)
    open_rows = assert_same_rows(file, page)
    assert sum(len(row.text) for row in open_rows) > sum(len(row.text) for row in rows)
    assert_same_details(file, page)
    assert file.axe_violations() == [] and file.find_overflow() == []
    file.assert_no_problems()
    page.assert_no_problems()


@pytest.mark.parametrize("kind", ["story", "demo", "hostile <b>"])
@in_browser
def test_sample_sessions_look_the_same_and_run_no_scripts(
    site: Server, sessions: Sessions, tmp_path: Path, kind: str
) -> None:
    """The rows are the same as on the page; no foreign script runs and no request is sent."""
    session = sessions(kind)
    look = ("light", 1280, 2 * TALL_PX)
    file = wait_for_rows(open_file(site, download_export(site, session, tmp_path), *look), len(site.entries(session)))
    page = open_page(site, session, *look)
    assert_same_rows(file, page)
    open_all(file)
    open_all(page)
    assert_same_rows(file, page)
    active_elements = "script, iframe, link, style, [onerror], [onload], [href^='javascript:'], [src^='http']"
    assert not file.page.locator(f"body :is({active_elements})").count()
    assert {request.url.partition(":")[0] for request in file.requests} <= {"file", "blob", "data"}
    file.assert_no_problems()
    page.assert_no_problems()


@in_browser
def test_file_needs_no_server(site: Server, sessions: Sessions, tmp_path: Path) -> None:
    """The file has no prompt box, history slider, decisions or downloads, and its buttons send no request."""
    session = sessions("states")
    file = wait_for_rows(open_file(site, download_export(site, session, tmp_path), "light", 1280, TALL_PX))
    open_all(file)
    assert "The beginning of 108.0 kB. This file does not contain the rest." in file.text()
    assert "Not answered yet at this point." in file.text()
    assert not file.page.locator("a:visible, textarea:visible, input:visible:not(.filter-input)").count()
    before = len(file.requests)
    labels = file.page.evaluate("""() => [...document.querySelectorAll("main button")]
        .filter((one) => one.isConnected && one.checkVisibility())
        .map((one) => (one.click(), one.innerText.trim()))""")
    assert not {"Export as HTML", "Cancel call", "Load full output", "Link", "curl"} & set(labels)
    assert not [label for label in labels if re.search("event|allow|reject", label, re.IGNORECASE)], labels
    wait_for_redraw(file)
    assert [request.url for request in file.requests[before:] if not request.url.startswith("blob:")] == []
    file.assert_no_problems()


@in_browser
def test_filters_waterfall_links_and_keys_work_in_the_file(site: Server, sessions: Sessions, tmp_path: Path) -> None:
    """Everything that needs no server works as on the page."""
    path = download_export(site, sessions("story"), tmp_path)
    failed = [entry["id"] for entry in site.entries(sessions("story")) if entry.get("status") == "failed"]
    file = wait_for_rows(open_file(site, path))
    file.page.keyboard.press("/")
    file.page.keyboard.type("status:failed")
    file.until(lambda: [row.id for row in file.rows()] == failed, "the failed calls")
    file.page.get_by_label("Clear filters").click()
    file.page.get_by_role("button", name="Waterfall").click()
    file.page.locator(".wf-head").first.wait_for(state="attached")
    assert file.axe_violations() == []
    file.page.locator(".wf-row", has_text="ruff check").click()
    open_card = f"#entry-{failed[-1]} .call.open"
    file.page.locator(open_card).wait_for()
    file.assert_no_problems()
    linked = wait_for_rows(open_file(site, path, at=f"#entry-{failed[-1]}"))
    linked.page.locator(open_card).wait_for()
    linked.page.keyboard.press("o")
    linked.page.locator(open_card).wait_for(state="detached")
    linked.assert_no_problems()


INJECTION = """<script>alert(1)</script><script type=module>alert(2)</script><img src=x onerror=alert(3)>
<script src="data:text/javascript,alert(4)"></script><style>body{display:none}</style><iframe srcdoc="<script>alert(5)
</script>"></iframe><a href="javascript:alert(6)" id=way>x</a><base href="https://192.0.2.1/">"""


@in_browser
def test_injected_markup_runs_nothing(site: Server, sessions: Sessions, tmp_path: Path) -> None:
    """If escaping failed, the file's policy would still block foreign scripts, styles and requests."""
    path = download_export(site, sessions("story"), tmp_path)
    path.write_text(path.read_text().replace("<main>", f"<main>{INJECTION}", 1))
    file = wait_for_rows(open_file(site, path))
    without_scripts = open_file(site, path, java_script_enabled=False)
    assert "Made with Callslip" in without_scripts.text()
    for tab in (file, without_scripts):
        assert not [problem for problem in tab.problems if problem.startswith("dialog")]
        external = [
            request.url for request in tab.requests if not request.url.startswith(("file:", "blob:", "about:", "data:"))
        ]
        assert not external


@pytest.mark.parametrize("theme", ["light", "dark"])
@in_browser
def test_file_is_readable_without_scripts(site: Server, sessions: Sessions, tmp_path: Path, theme: str) -> None:
    """Without scripts, as in a mail preview, the file shows every entry in a plain style."""
    path = download_export(site, sessions("states"), tmp_path)
    file = open_file(site, path, theme, java_script_enabled=False)
    for entry in site.entries(sessions("states")):
        text = file.page.locator(f"#e{entry['id']}").inner_text()
        assert STATE_LABELS.get(entry.get("status"), "") in text
    assert "Made with Callslip" in file.text() and not file.rows()
    assert file.find_overflow() == [] and not file.problems


@in_browser
def test_file_that_fails_to_draw_shows_its_plain_version(site: Server, sessions: Sessions, tmp_path: Path) -> None:
    """An outdated browser shows the plain version, with nothing hidden."""
    path = download_export(site, sessions("story"), tmp_path)
    path.write_text(path.read_text().replace('id="modules" type="text/plain">', 'id="modules" type="text/plain">x'))
    broken = open_file(site, path)
    broken.until(lambda: "Made with Callslip" in broken.text(), "the plain version")
    assert broken.page.locator("article").first.is_visible() and not broken.rows()
    assert broken.problems
    without_scripts = open_file(site, path, java_script_enabled=False)
    assert without_scripts.text() == broken.text()


@in_browser
def test_long_session_opens_at_its_start_and_draws_visible_rows(site: Server, tmp_path: Path) -> None:
    """The file has ten thousand entries, of which a few dozen are drawn."""
    entries: list[Any] = [
        ToolCall(id=n, at=NOW_MS, call_id=f"exec_{n:012x}", tool_call_id="t", title=f"Call {n}", status="completed")
        for n in range(1, 10_000)
    ]
    path = tmp_path / "long.html"
    last = Message(id=10_000, at=NOW_MS, role="assistant", content="The end.")
    path.write_bytes(document(Snapshot("long", 10_000, Info(), [*entries, last])))
    file = wait_for_rows(open_file(site, path))
    assert file.rows()[0].id == 1 and len(file.rows()) < 100 and file.scroll()[0] == 0
    file.wheel(500)
    file.page.get_by_role("button", name="Jump to latest").click()
    file.until(lambda: file.rows()[-1].text.endswith("The end."), "the last row")
    file.assert_no_problems()
