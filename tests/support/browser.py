"""A real Chromium for tests of the page, one in each process that runs tests, and tabs in it that tell what went wrong.

Playwright's synchronous API keeps an event loop in the thread that it is used in, so it has a thread of its own here:
a test that uses a tab is marked `@in_browser`, and runs there from its first line to its last.
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
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, Request, Route, expect, sync_playwright

from tests.chromium.install import ADVICE, find, surroundings
from tests.support.cli_process import process
from tests.support.paths import ROOT

PATIENCE = 40.0
"""How long anything on a page may take before a test gives up; nothing takes so long unless it hangs."""
expect.set_options(timeout=PATIENCE * 1000)

TOKEN = "opens-every-page-of-the-tests"

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
LOOKS = [(theme, width) for theme in ("light", "dark") for width in (1280, 380)]
"""What every view must look right in."""

IMAGES = ROOT / "docs" / "images"
GOLDENS = os.environ.get("CALLSLIP_GOLDENS", "") not in ("", "0")

_WITNESS = """
globalThis.__violations = [];
addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) =>
  __violations.push(violatedDirective + " " + blockedURI));
"""


class Chromium:
    """The browser, and the thread that it is spoken to in."""

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
            executable_path=path, headless=True, args=list(FLAGS), env={**surroundings(path)}
        )

    def close(self) -> None:
        self.thread.submit(self._stop).result()
        self.thread.shutdown()

    def _stop(self) -> None:
        self.browser.close()
        self._driver.stop()


_started: Chromium | None = None


def chromium() -> Chromium:
    """Started by the first test that needs it; `conftest.py` closes it after the last."""
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
    """Runs a test in the browser's thread. Fixtures run outside of it, so they may hold no tab."""

    @functools.wraps(test)
    def there(*arguments: Any, **named: Any) -> None:
        chromium().thread.submit(_with_tabs_closed, test, arguments, named).result()

    return pytest.mark.usefixtures("browser")(there)


def _with_tabs_closed(test: Callable[..., None], arguments: Any, named: Any) -> None:
    try:
        test(*arguments, **named)
    finally:
        for context in chromium().browser.contexts:
            context.close()


class Server:
    """Where a page comes from: a URL and the token for it, and what a test says to it over HTTP."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url.rstrip("/"), token

    def ask(self, path: str, value: Any = None) -> Any:
        """GET, or POST of a value as JSON; the answer, or an exception that has it."""
        body = None if value is None else json.dumps(value).encode()
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.loads(answer.read())

    def tell(self, session: str, *events: dict[str, Any]) -> int:
        """Appends events to a session; the seq it is then at."""
        return self.ask(f"/v1/sessions/{quote(session, safe='')}/events", list(events))["seq"]

    def entries(self, session: str, at: int | None = None) -> list[dict[str, Any]]:
        """All of them, oldest first."""
        asked = f"/v1/sessions/{quote(session, safe='')}?format=entries" + (f"&at={at}" if at else "")
        return self.ask(asked)["entries"]

    def seq(self, session: str) -> int:
        return self.ask(f"/v1/sessions/{quote(session, safe='')}?limit=1")["seq"]

    def window(self, theme: str = "light", width: int = 1280, height: int = 900, **options: Any) -> Window:
        """A browser that knows nobody yet: its own cookies and storage, any number of tabs."""
        context = chromium().browser.new_context(
            color_scheme=theme,
            viewport={"width": width, "height": height},
            reduced_motion="reduce",
            **options,
        )
        context.set_default_timeout(PATIENCE * 1000)
        context.add_init_script(_WITNESS)
        return Window(context, self)


@contextlib.contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Server]:
    """`callslip serve` on a ledger in a folder, with that folder as its home."""
    home = {name: str(folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME")}
    options = ("--db", str(folder / "ledger.db"), "--token", TOKEN, *(arguments or ("--port", "0")))
    with process("serve", "--json", *options, env=home) as made:
        made.until('"url"')
        yield Server(json.loads(made.out[0])["url"], TOKEN)


class Window:
    """A browser with cookies and storage of its own."""

    def __init__(self, context: BrowserContext, server: Server) -> None:
        self.context, self.server = context, server
        self._known = False

    def tab(self, path: str = "/") -> Tab:
        """A new tab on a path of the page. The token was shown before, as the printed URL does it."""
        if not self._known:
            assert self.context.request.get(f"{self.server.url}/?token={self.server.token}").ok
            self._known = True
        return self.stranger(path)

    def stranger(self, path: str) -> Tab:
        """A new tab that brings what the window has, which at first is nothing."""
        made = Tab(self.context.new_page(), self.server)
        made.go(path)
        return made


class Row(NamedTuple):
    """An entry as it is shown: its id, its state by class name and in the words that are read, and all of its text."""

    id: int
    state: str
    word: str
    text: str


_ROWS = """() => [...document.querySelectorAll(".row[data-id]")].map((one) => ({
    id: Number(one.dataset.id),
    state: [...one.querySelectorAll("[class*='is-']"), one].flatMap((part) => [...part.classList])
        .find((name) => name.startsWith("is-"))?.slice(3) ?? "",
    word: one.querySelector(".state")?.innerText ?? "",
    text: one.innerText,
}))"""


_OPEN = """() => {
    const closed = [...document.querySelectorAll("main [aria-expanded=false], main details:not([open]) > summary")];
    closed.forEach((one) => one.click());
    return closed.length;
}"""


class Tab:
    """A tab, and all that went wrong in it. Every test ends with `fine()` on its tabs."""

    def __init__(self, page: Page, server: Server) -> None:
        self.page, self.server = page, server
        self.wrong: list[str] = []
        self.requests: list[Request] = []
        page.on(
            "console", lambda told: told.type in ("error", "warning") and self.wrong.append(f"console: {told.text}")
        )
        page.on("pageerror", lambda told: self.wrong.append(f"script: {told}"))
        page.on("dialog", self._asked)
        page.on("request", self._requested)
        page.on("requestfailed", self._failed)

    def _asked(self, told: Any) -> None:
        self.wrong.append(f"dialog: {told.message}")
        told.dismiss()

    def _requested(self, request: Request) -> None:
        self.requests.append(request)
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc != urlsplit(self.server.url).netloc:
            self.wrong.append(f"went elsewhere: {request.url}")

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # A tab that leaves lets go of its lines.
            self.wrong.append(f"request: {request.url} {request.failure}")

    def go(self, path: str) -> None:
        self.page.goto(self.server.url + path)

    def reload(self) -> None:
        self.page.reload()

    def until(self, condition: Callable[[], Any], why: str = "") -> Any:
        """What the condition gives, once it gives something."""
        end = time.monotonic() + PATIENCE
        for wait in itertools.chain([0.005, 0.01, 0.02], itertools.repeat(0.04)):
            if found := condition():
                return found
            assert time.monotonic() < end, f"never came to be: {why or condition}\n{self.wrong}\n{self.text()[-2000:]}"
            self.page.wait_for_timeout(wait * 1000)

    def hold_answers(self, url: str) -> list[Callable[[], None]]:
        """What is posted there is done, but the page hears of it only when what comes into this list is called."""
        held: list[Callable[[], None]] = []

        def hold(route: Route) -> None:
            if route.request.method != "POST":
                return route.continue_()
            answer = route.fetch()
            held.append(lambda: route.fulfill(response=answer))

        self.page.route(url, hold)
        return held

    def rows(self) -> list[Row]:
        """The entries on screen, from top to bottom."""
        return [Row(**told) for told in self.page.evaluate(_ROWS)]

    def row(self, entry: int) -> Row | None:
        return next((row for row in self.rows() if row.id == entry), None)

    def reaches(self, seq: int) -> None:
        """Wait until a session's page has heard of this event, and has drawn it: it must have entries."""
        self.until(lambda: self.state("seq") >= seq and self.state("loaded"), f"seq {seq}")
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        self.until(lambda: (rows := self.rows()) and all(row.text for row in rows), "rows whose parts have come")

    def state(self, name: str) -> Any:
        """One of the page's signals, by its name in state.js: the page's own module, not another one."""
        return self.page.evaluate(
            "async (name) => (await import(document.documentElement.dataset.root + '/web/state.js'))[name].value", name
        )

    def open_all(self) -> None:
        """Open every card and fold that is closed, also those that are in others."""
        while self.page.evaluate(_OPEN):
            self.page.wait_for_timeout(50)

    def text(self) -> str:
        return self.page.inner_text("body")

    def forgive(self, *words: str) -> None:
        """Forget what is meant to go wrong in this test."""
        self.wrong = [told for told in self.wrong if not any(word in told for word in words)]

    def fine(self) -> None:
        """Nothing went wrong: no error in the console, no request that failed, nothing that the CSP forbids."""
        self.wrong += [f"CSP: {told}" for told in self._violations()]
        assert not self.wrong, "\n".join(self.wrong)

    def _violations(self) -> list[str]:
        return list(self.page.evaluate("globalThis.__violations ?? []"))

    def axe(self) -> list[str]:
        """What axe finds against WCAG 2.2 AA and its own good advice, in a line each."""
        before = self._violations()
        self.page.evaluate(_axe())
        found = self.page.evaluate("""async () => (await axe.run(document, {
            runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
            resultTypes: ["violations"],
            preload: false,
        })).violations.flatMap(({ id, help, nodes }) => nodes.map((node) =>
            `${id}: ${help}: ${node.html.slice(0, 200)} ${node.failureSummary.split("\\n")[1] ?? ""}`))""")
        assert self._violations() == before, "axe itself did something that the CSP forbids"
        return list(found)

    def overflows(self) -> list[str]:
        """What makes the page wider than its window, if anything does."""
        return list(
            self.page.evaluate("""() => {
              const wide = document.documentElement.clientWidth;
              if (document.documentElement.scrollWidth <= wide) return [];
              return [...document.body.querySelectorAll("*")]
                .filter((one) => one.getBoundingClientRect().right > wide + 1)
                .map((one) => one.tagName + "." + one.className).slice(0, 10);
            }""")
        )

    def picture(self, name: str) -> None:
        """Into docs/images, if this run is to write pictures."""
        if GOLDENS:
            IMAGES.mkdir(parents=True, exist_ok=True)
            high = self.page.evaluate("document.getElementById('app').getBoundingClientRect().height")
            size = self.page.viewport_size or {"width": 0, "height": 0}
            clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], high)}
            self.page.screenshot(path=IMAGES / f"{name}.png", clip=clip, animations="disabled", caret="hide")


@functools.cache
def _axe() -> str:
    path = Path(os.environ["CALLSLIP_NODE_MODULES"]) / "axe-core" / "axe.min.js"
    assert path.is_file(), f"{path} is missing; run `make test`"
    return path.read_text()
