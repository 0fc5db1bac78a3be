"""The demo in a real Chromium: what its tour shows, what it answers, and that Break it breaks the naive side only."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Generator
from pathlib import Path

from playwright.sync_api import Locator, Request, expect

from tests.support.browser import Server, Tab, in_browser
from tests.support.cli_process import process


@contextlib.contextmanager
def demo(folder: Path) -> Generator[tuple[Server, str]]:
    """`callslip demo` without pauses: where it is, and the path of its session."""
    given = ("--json", "--fast", "--no-browser", "--port", "0")
    with process("demo", *given, env={"TMPDIR": str(folder)}) as made:
        made.until('"url"')
        told = json.loads(made.out[0])
        yield Server(told["url"], told["token"]), f"/s/{told['session']}"


ENDS = (
    ("wc -w", "completed", "14 notes/monday.txt"),
    ("sh file-slips.sh", "completed", "✓ slip 5 filed"),
    ("look up a book", "completed", "hexagon"),
    ("cat notes/summary.txt", "failed", "No such file"),
    ("seq -f", "completed", "the whole has 166.9 kB"),
    ("edit notes/tuesday.txt", "completed", "The second copy is on shelf 3."),
    ("sleep 60", "expired", "did not end within 2 s"),
    ("copy the archive", "lost", "the process that ran this call ended"),
)
"""Calls of the tour by a part of their title: how each ends, and something that its card says."""


def card(tab: Tab, text: str) -> Locator:
    """The newest card that has this text."""
    return tab.page.locator(".row", has_text=text).last


def states(tab: Tab, title: str) -> list[str]:
    return [row.state for row in tab.rows() if title in row.text]


@in_browser
def test_the_tour_shows_all_it_promises(tmp_path: Path) -> None:
    """Equal and parallel calls, output as it comes, a long one, a failure, a diff, every end, a plan, an approval."""
    with demo(tmp_path) as (server, path):
        tab = server.window(height=8000).tab(path)
        tab.page.get_by_role("button", name="Approve", exact=True).click()
        card(tab, "Your turn").wait_for()
        tab.until(lambda: not tab.state("info").get("turn"), "the end of the tour")
        one, two = (row for row in tab.rows() if "ls -1 notes" in row.text)
        assert one.state == two.state == "completed" and "tuesday.txt" in one.text and "tuesday.txt" in two.text
        session = path.removeprefix("/s/")
        side_by_side = server.entries(session, at=two.id)[-2:]
        assert [call["status"] in ("queued", "running") for call in side_by_side] == [True, True]
        (stopped,) = (entry for entry in server.entries(session) if "sleep 60" in entry.get("title", ""))
        (before,) = (entry for entry in server.entries(session, at=stopped["end"] - 1) if entry["id"] == stopped["id"])
        assert (before["status"], before["outputText"]) == ("running", "waiting for the archive\n")
        for title, state, told in ENDS:
            assert states(tab, title) == [state] and told in card(tab, title).inner_text(), title
        assert card(tab, "cat notes/summary.txt").inner_text().count("No such file") == 1
        assert card(tab, "edit notes/tuesday.txt").locator(".diff-add").count() == 2
        assert "✓ approved by" in card(tab, "What was asked").inner_text()
        assert "5 of 5 done" in card(tab, "Plan").inner_text() and "two calls" in card(tab, "Thought").inner_text()
        tab.fine()


def say(tab: Tab, text: str) -> None:
    tab.page.get_by_label("Say something to the agent").fill(text)
    tab.page.get_by_role("button", name="Send").click()


@in_browser
def test_prompts_are_answered(tmp_path: Path) -> None:
    """S2.14, S4.10: commands are offered as one types; the samples, a command and anything else get their answer."""
    with demo(tmp_path) as (server, path):
        tab = server.window(height=8000).tab(path)
        tab.page.get_by_role("button", name="Stop").click()
        box = tab.page.get_by_label("Say something to the agent")
        tab.page.get_by_role("button", name="Send").wait_for()
        box.press_sequentially("/")
        offered = tab.page.get_by_role("listbox", name="Commands of the agent").get_by_role("option")
        tab.until(lambda: offered.count() == 4, "all commands")
        box.press_sequentially("i")
        assert [text.split()[0] for text in offered.all_inner_texts()] == ["/time"]
        box.press("Tab")
        assert box.input_value() == "/time " and "takes: Tokyo" in tab.text()
        box.press_sequentially("Paris")
        box.press("Enter")
        card(tab, "In Paris it is").wait_for()
        say(tab, "What's the weather in Paris?")
        card(tab, "The weather in Paris is 20 °C").wait_for()
        say(tab, "What time is it in Tokyo and what's the weather there?")
        card(tab, "The weather in Tokyo is 24 °C").wait_for()
        assert states(tab, "get_weather") == ["completed", "completed"] and states(tab, "get_time") == ["completed"] * 2
        tab.until(lambda: not tab.state("info").get("turn"), "the end of the answer")
        seen = [(row.id, row.state) for row in tab.rows()]
        tab.reload()
        tab.until(lambda: [(row.id, row.state) for row in tab.rows()] == seen, "the same after a reload")
        say(tab, "$ echo hi there | tr a-z A-Z")
        tab.page.get_by_role("button", name="Approve", exact=True).click()
        card(tab, "HI THERE").wait_for()
        card(tab, "Done.").wait_for()
        say(tab, "Write a poem")
        card(tab, "No model is configured").get_by_text("callslip demo --model").wait_for()
        assert box.input_value() == ""
        tab.fine()


@in_browser
def test_nothing_that_is_typed_is_lost_while_an_answer_is_on_its_way(tmp_path: Path) -> None:
    """Neither what is sent before Stop is answered, nor what is typed before the server has what was sent."""
    with demo(tmp_path) as (server, path):
        tab = server.window(height=8000).tab(path)
        held = tab.hold_answers("**/prompt/stop")
        tab.page.get_by_role("button", name="Stop").click()
        say(tab, "/time Paris")
        card(tab, "In Paris it is").wait_for()
        tab.until(lambda: held, "the answer to Stop").pop()()
        held = tab.hold_answers("**/prompt")
        say(tab, "/time Tokyo")
        card(tab, "In Tokyo it is").wait_for()
        box = tab.page.get_by_label("Say something to the agent")
        box.fill("and in Rome?")
        tab.until(lambda: held, "the answer to the prompt").pop()()
        expect(tab.page.get_by_role("button", name="Send")).to_be_enabled()
        assert box.input_value() == "and in Rome?"
        tab.fine()


@in_browser
def test_whoever_says_something_sees_the_answer(tmp_path: Path) -> None:
    """Also who came by a link and was not taken along so far."""
    with demo(tmp_path) as (server, path):
        tab = server.window().tab(path)
        tab.page.get_by_role("button", name="Stop").click()
        tab.page.get_by_role("button", name="Send").wait_for()
        last = server.entries(path.removeprefix("/s/"))[-1]["id"]
        tab.go(f"{path}#entry-{last}")
        expect(tab.page.locator(f"#entry-{last}")).to_be_in_viewport()
        for city in ("Paris", "Tokyo", "Paris"):
            say(tab, f"/time {city}")
            expect(card(tab, f"In {city} it is")).to_be_in_viewport()
            tab.until(lambda: not tab.state("info").get("turn"), "the end of the answer")
            tab.page.mouse.wheel(0, -600)
        tab.fine()


class Side:
    """One half of Break it: its rows, and what is said above them."""

    def __init__(self, tab: Tab, name: str) -> None:
        self.place = tab.page.get_by_role("region", name=name, exact=True)

    def rows(self) -> list[str]:
        return [" ".join(text.split()) for text in self.place.get_by_role("listitem").all_inner_texts()]

    def tally(self) -> str:
        return self.place.locator(".tally").inner_text()


FAULTS = {
    "Two equal calls": (
        ["✓ completed ls monday.txt", "○ queued ls ✗ really completed"],
        ["✓ completed ls monday.txt"] * 2,
    ),
    "Duplicate": (
        ["✓ completed git status nothing to commit", "○ queued git status ✗ there is no such call"],
        ["✓ completed git status nothing to commit"],
    ),
    "Reorder": (
        [
            "✓ completed unknown 12 passed ✗ really make test",
            "● running unknown ✗ there is no such call",
            "○ queued make test ✗ there is no such call",
        ],
        ["✓ completed make test 12 passed something came late"],
    ),
    "Late result": (
        ["✓ completed npm install added 1312 packages ✗ really cancelled"],
        ["■ cancelled npm install cancelled by user something came late"],
    ),
    "Kill worker": (
        ["● running copy the archive … ✗ really lost"],
        ["~ lost copy the archive … the process that ran this call ended"],
    ),
    "Cut the line": (
        ["● running curl archive.zip ✗ really completed"],
        ["✓ completed curl archive.zip 4.1 MB"],
    ),
}
"""What each button leaves on the naive side, and on ours."""


def started_over(tab: Tab, press: str = "over => over.click()") -> None:
    """An empty stage, in another session; `press` presses the button."""
    where = tab.page.get_by_role("link", name="a session of its own")
    before = where.get_attribute("href")
    tab.page.get_by_role("button", name="Start over").evaluate(press)
    tab.until(lambda: where.get_attribute("href") != before, "another session")
    assert tab.page.locator(".broken-told").inner_text() == "Nothing has gone wrong yet."


def broken(tab: Tab, fault: str) -> str:
    """Press a button on a stage that is empty, and wait for its end. What it says then."""
    told = tab.page.locator(".broken-told")
    started_over(tab)
    tab.page.get_by_role("button", name=fault).click()

    def over() -> bool:
        tab.page.clock.fast_forward(500)  # The pauses are for people.
        return not told.inner_text().startswith(("Nothing", "Watch", "The line is cut"))

    tab.until(over, f"the end of {fault}")
    return told.inner_text()


LOOK = """(hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def streaming(tab: Tab) -> set[Request]:
    """The streams that this page itself has open, now and later."""
    found: set[Request] = set()
    tab.page.on("request", lambda request: found.add(request) if "/stream?" in request.url else None)
    tab.page.on("requestfailed", lambda request: found.discard(request))
    tab.page.on("requestfinished", lambda request: found.discard(request))
    return found


@in_browser
def test_break_it_breaks_the_naive_side_only(tmp_path: Path) -> None:
    """Each button leaves the naive client wrong and Callslip as the log is; a refresh costs only the naive one."""
    with demo(tmp_path) as (server, path):
        window = server.window(height=3000)
        window.context.clock.install()
        tab = window.tab(path)
        lines = streaming(tab)
        tab.page.get_by_text("Break it", exact=True).click()
        naive, ours = Side(tab, "A naive client"), Side(tab, "Callslip")
        tab.page.get_by_role("button", name="Duplicate").wait_for()
        started_over(tab, "over => (over.click(), over.parentNode.firstElementChild.click())")  # One at a time.
        for fault, (left, right) in FAULTS.items():
            told = broken(tab, fault)
            shown = [
                [re.sub(r"shelf \d+ of 400|process \d+ at work", "…", row) for row in side.rows()]
                for side in (naive, ours)
            ]
            assert shown == [left, right], fault
            assert naive.tally().startswith("✗") and ours.tally() == "✓ the same as after a reload", (fault, told)
        tab.page.set_viewport_size({"width": 380, "height": 4000})
        assert tab.overflows() == [] and tab.axe() == []
        before = ours.rows()
        tab.page.set_viewport_size({"width": 1280, "height": 800})
        tab.page.get_by_role("button", name="Refresh").click()
        tab.page.get_by_text("1 card is gone").wait_for()
        tab.until(lambda: ours.rows() == before, "the same calls")
        assert naive.rows() == [] and naive.tally() == "✗ 1 missing"
        expect(tab.page.get_by_text("1 card is gone")).to_be_in_viewport()
        tab.until(lambda: len(lines) == 2, "a line for each client")
        tab.page.evaluate(LOOK, True)
        tab.until(lambda: not lines, "that a tab nobody looks at holds no line")
        tab.page.evaluate(LOOK, False)
        broken(tab, "Duplicate")
        assert [naive.rows(), ours.rows()] == list(FAULTS["Duplicate"]) and len(lines) == 2
        tab.forgive("the line is cut", "net::ERR_ABORTED")
        tab.fine()
