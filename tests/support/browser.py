"""A real Chromium for tests of the page, one per test process, with tabs that record every problem.

Playwright's synchronous API keeps an event loop in its thread, so it has its own thread here. A test that uses a tab is
marked `@in_browser` and runs entirely in that thread.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ElementHandle,
    Page,
    Playwright,
    Request,
    Route,
    expect,
    sync_playwright,
)

from tests.chromium.install import ADVICE, environment, find
from tests.conftest import LONG
from tests.support.cli_process import running_process
from tests.support.paths import ROOT

TIMEOUT_S = 40.0
"""The maximum time for anything on a page; only something that hangs takes this long."""
expect.set_options(timeout=TIMEOUT_S * 1000)

TOKEN = "token-of-all-page-tests"

FLAGS = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
IMAGES = ROOT / "docs" / "images"
GOLDENS = os.environ.get("CALLSLIP_GOLDENS", "") not in ("", "0")
LOOKS = [("light", 1280), ("dark", 380), *([("light", 380), ("dark", 1280)] if LONG or GOLDENS else [])]
"""The themes and widths in which every view is checked."""

_RECORD_VIOLATIONS = """
globalThis.__violations = [];
addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) =>
  __violations.push(violatedDirective + " " + blockedURI));
"""


class Chromium:
    """The browser and its thread."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "chromium")
        self._driver: Playwright
        self.browser: Browser
        self.thread.submit(self._start).result()

    def _start(self) -> None:
        path = find()
        assert path, ADVICE
        self._driver = sync_playwright().start()
        self.browser = self._driver.chromium.launch(
            executable_path=path, headless=True, args=list(FLAGS), env={**environment(path)}
        )

    def close(self) -> None:
        self.thread.submit(self._stop).result()
        self.thread.shutdown()

    def _stop(self) -> None:
        self.browser.close()
        self._driver.stop()


_started: Chromium | None = None


def chromium() -> Chromium:
    """Return the browser, started by the first test that needs it. `conftest.py` closes it after the last."""
    global _started
    if _started is None:
        _started = Chromium()
    return _started


def close_chromium() -> None:
    global _started
    if _started is not None:
        _started.close()
        _started = None


def in_browser(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in the browser's thread. Fixtures run outside of it, so they cannot hold a tab."""

    @functools.wraps(test)
    def run_in_thread(*arguments: Any, **named: Any) -> None:
        chromium().thread.submit(_with_tabs_closed, test, arguments, named).result()

    return pytest.mark.usefixtures("browser")(run_in_thread)


def _with_tabs_closed(test: Callable[..., None], arguments: Any, named: Any) -> None:
    try:
        test(*arguments, **named)
    finally:
        for context in chromium().browser.contexts:
            context.close()


class Server:
    """A server of the page: its URL and token, and requests to its API."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url.rstrip("/"), token

    def request(self, path: str, value: Any = None) -> Any:
        """Send a GET request, or POST a value as JSON, and return the response body."""
        body = None if value is None else json.dumps(value).encode()
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read())

    def append(self, session: str, *events: dict[str, Any]) -> int:
        """Append events to a session and return its last seq."""
        return self.request(f"/v1/sessions/{quote(session, safe='')}/events", list(events))["seq"]

    def entries(self, session: str, at: int | None = None) -> list[dict[str, Any]]:
        """Return all entries of a session, oldest first."""
        path = f"/v1/sessions/{quote(session, safe='')}?format=entries" + (f"&at={at}" if at else "")
        return self.request(path)["entries"]

    def seq(self, session: str) -> int:
        return self.request(f"/v1/sessions/{quote(session, safe='')}?limit=1")["seq"]

    def window(self, theme: str = "light", width: int = 1280, height: int = 900, **options: Any) -> Window:
        """Open a browser window with its own cookies and storage, not signed in yet."""
        context = chromium().browser.new_context(
            color_scheme=theme,
            viewport={"width": width, "height": height},
            reduced_motion="reduce",
            **options,
        )
        context.set_default_timeout(TIMEOUT_S * 1000)
        context.add_init_script(_RECORD_VIOLATIONS)
        return Window(context, self)


@contextlib.contextmanager
def serving(folder: Path, *arguments: str, command: str = "serve") -> Iterator[Server]:
    """Run `callslip serve` or `callslip up` on a ledger in a folder, with that folder as its home."""
    home = {name: str(folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")}
    options = ("--db", str(folder / "ledger.db"), "--token", TOKEN, *(arguments or ("--port", "0")))
    with running_process(command, "--json", *options, env=home) as running:
        running.until('"url"')
        yield Server(json.loads(running.out[0])["url"], TOKEN)


class Window:
    """A browser window with its own cookies and storage."""

    def __init__(self, context: BrowserContext, server: Server) -> None:
        self.context, self.server = context, server
        self._is_signed_in = False

    def tab(self, path: str = "/") -> Tab:
        """Open a tab on a path of the page, signed in by the URL with the token, as `callslip serve` prints it."""
        if not self._is_signed_in:
            assert self.context.request.get(f"{self.server.url}/?token={self.server.token}").ok
            self._is_signed_in = True
        return self.signed_out_tab(path)

    def signed_out_tab(self, path: str) -> Tab:
        """Open a tab without signing in first."""
        tab = Tab(self.context.new_page(), self.server)
        tab.go(path)
        return tab


class Row(NamedTuple):
    """A displayed entry: its ID, its state by class name and by label, and all of its text."""

    id: int
    state: str
    label: str
    text: str


_READ_ROWS = """() => [...document.querySelectorAll(".row[data-id]")].map((one) => ({
    id: Number(one.dataset.id),
    state: [...one.querySelectorAll("[class*='is-']"), one].flatMap((part) => [...part.classList])
        .find((name) => name.startsWith("is-"))?.slice(3) ?? "",
    label: one.querySelector(".state")?.innerText ?? "",
    text: one.innerText,
}))"""


_OPEN_ALL = """() => {
    const closed = [...document.querySelectorAll("main [aria-expanded=false], main details:not([open]) > summary")];
    closed.forEach((one) => one.click());
    return closed.length;
}"""


class Tab:
    """A tab and its problems. Every test ends with `assert_no_problems()` on its tabs."""

    def __init__(self, page: Page, server: Server) -> None:
        self.page, self.server = page, server
        self.problems: list[str] = []
        self.requests: list[Request] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        page.on("dialog", self._on_dialog)
        page.on("request", self._on_request)
        page.on("requestfailed", self._on_request_failed)

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _on_dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        self.requests.append(request)
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(self.server.url).netloc:
            self.problems.append(f"external request: {request.url}")

    def _on_request_failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # Leaving a page aborts its connections.
            self.problems.append(f"request: {request.url} {request.failure}")

    def go(self, path: str) -> None:
        self.page.goto(self.server.url + path)

    def reload(self) -> None:
        self.page.reload()

    def until(self, condition: Callable[[], Any], why: str = "") -> Any:
        """Return the value of a condition once it is true. `why` describes it."""
        end = time.monotonic() + TIMEOUT_S
        for wait in itertools.chain([0.005, 0.01, 0.02], itertools.repeat(0.04)):
            if value := condition():
                return value
            assert time.monotonic() < end, f"timed out: {why or condition}\n{self.problems}\n{self.text()[-2000:]}"
            self.page.wait_for_timeout(wait * 1000)

    def hold_responses(self, url: str) -> list[Callable[[], None]]:
        """Delay the responses to POST requests. Each item of the returned list delivers one of them."""
        held: list[Callable[[], None]] = []

        def hold(route: Route) -> None:
            if route.request.method != "POST":
                return route.continue_()
            response = route.fetch()
            held.append(lambda: route.fulfill(response=response))

        self.page.route(url, hold)
        return held

    def rows(self) -> list[Row]:
        """Return the displayed entries, from top to bottom."""
        return [Row(**fields) for fields in self.page.evaluate(_READ_ROWS)]

    def row(self, entry: int) -> Row | None:
        return next((row for row in self.rows() if row.id == entry), None)

    def wait_for_seq(self, seq: int) -> None:
        """Wait until the page of a session has received and drawn this event. The session must have entries."""
        self.until(lambda: self.state("seq") >= seq and self.state("loaded"), f"seq {seq}")
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        self.until(lambda: (rows := self.rows()) and all(row.text for row in rows), "that all rows are drawn")

    def state(self, name: str) -> Any:
        """Return the value of a signal of the page, by its name in state.js."""
        return self.page.evaluate(
            "async (name) => (await import(document.documentElement.dataset.root + '/web/state.js'))[name].value", name
        )

    def open_turns(self) -> None:
        """Open the turns that are folded, as older ones are at first."""
        folded = self.page.locator(".timeline .turn-toggle[aria-expanded=false]")
        while folded.count():
            folded.first.click()

    def open_all(self) -> None:
        """Open every closed card and section, including nested ones."""
        while self.page.evaluate(_OPEN_ALL):
            self.page.wait_for_timeout(50)

    def scroll_to(self, top: str) -> None:
        """Scroll the content of the view to a position: a JavaScript expression, in which `view` is its element."""
        self.page.evaluate(f"(view) => view.scrollTo(0, {top})", self._scroller())

    def scroll(self) -> tuple[float, float, float]:
        """Return the scroll position of the view, its largest position, and the height of its content."""
        top, height, visible = self.page.evaluate(
            "(view) => [view.scrollTop, view.scrollHeight, view.clientHeight]", self._scroller()
        )
        return top, height - visible, height

    def is_at_end(self) -> bool:
        top, last, _ = self.scroll()
        return top >= last - 1

    def wheel(self, by: float) -> None:
        """Turn the mouse wheel over the content of the view."""
        box = self._scroller().bounding_box()
        assert box
        self.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        self.page.mouse.wheel(0, by)

    def _scroller(self) -> ElementHandle:
        return self.page.wait_for_selector("[data-scroller]")

    def text(self) -> str:
        return self.page.inner_text("body")

    def ignore_problems(self, *words: str) -> None:
        """Drop the expected problems, by words that they contain."""
        self.problems = [problem for problem in self.problems if not any(word in problem for word in words)]

    def assert_no_problems(self) -> None:
        """Assert that there was no console error, no failed request and no CSP violation."""
        self.problems += [f"CSP: {violation}" for violation in self._violations()]
        assert not self.problems, "\n".join(self.problems)

    def _violations(self) -> list[str]:
        return list(self.page.evaluate("globalThis.__violations ?? []"))

    def axe_violations(self) -> list[str]:
        """Return the axe violations of WCAG 2.2 AA and best practices, one line each."""
        before = self._violations()
        self.page.evaluate(_axe_source())
        found = self.page.evaluate("""async () => (await axe.run(document, {
            runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
            resultTypes: ["violations"],
            preload: false,
        })).violations.flatMap(({ id, help, nodes }) => nodes.map((node) =>
            `${id}: ${help}: ${node.html.slice(0, 200)} ${node.failureSummary.split("\\n")[1] ?? ""}`))""")
        assert self._violations() == before, "axe itself violated the CSP"
        return list(found)

    def find_overflow(self) -> list[str]:
        """Return the elements that make the page wider than its window, or a part of it wider than its column."""
        return list(
            self.page.evaluate("""() => {
              const parts = [document.documentElement, ...document.querySelectorAll("[data-scroller], .top, .head")];
              return parts.filter((part) => part.scrollWidth > part.clientWidth).flatMap((part) => {
                const edge = part.getBoundingClientRect().left + part.clientWidth + 1;
                return [...part.querySelectorAll("*")].filter((one) => one.getBoundingClientRect().right > edge)
                  .map((one) => one.tagName + "." + one.className).slice(0, 10);
              });
            }""")
        )

    def save_image(self, name: str) -> None:
        """Save a screenshot to docs/images, if this run writes images."""
        if GOLDENS:
            IMAGES.mkdir(parents=True, exist_ok=True)
            high = self.page.evaluate("document.getElementById('app').getBoundingClientRect().height")
            size = self.page.viewport_size or {"width": 0, "height": 0}
            clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], high)}
            self.page.screenshot(path=IMAGES / f"{name}.png", clip=clip, animations="disabled", caret="hide")


def show_filter(tab: Tab) -> None:
    """Show the filter of a session, which is behind a button in a narrow window."""
    filter_input, button = (
        tab.page.get_by_label("Filter", exact=True),
        tab.page.get_by_role("button", name="Show filter"),
    )
    expect(filter_input.or_(button)).to_be_visible()
    if button.is_visible():
        button.click()
    filter_input.wait_for()


def show_facets(tab: Tab) -> None:
    """Show the side panel of a session, unless the window is wide enough for it."""
    button = tab.page.get_by_role("button", name="Plan and facets")
    if button.get_attribute("aria-pressed") != "true":
        button.click()
    tab.page.get_by_role("group", name="Filter by state").wait_for()


@functools.cache
def _axe_source() -> str:
    path = Path(os.environ["CALLSLIP_NODE_MODULES"]) / "axe-core" / "axe.min.js"
    assert path.is_file(), f"{path} is missing; run `make test`"
    return path.read_text()
