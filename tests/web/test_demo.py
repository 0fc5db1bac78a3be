"""Test the demo in a real Chromium: its story, its answers to prompts, and its fault lab."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Generator
from pathlib import Path

from playwright.sync_api import Locator, Request, expect

from tests.support.browser import Server, Tab, in_browser
from tests.support.cli_process import running_process


@contextlib.contextmanager
def running_demo(folder: Path) -> Generator[tuple[Server, str]]:
    """Run `callslip demo` without pauses, and yield its server and the path of its session."""
    options = ("--json", "--fast", "--no-browser", "--port", "0")
    with running_process("demo", *options, env={"TMPDIR": str(folder)}) as running:
        running.until('"url"')
        started = json.loads(running.out[0])
        yield Server(started["url"], started["token"]), f"/s/{started['session']}"


ENDED_CALLS = (
    ("python3 -m tabnanny -v app", "completed", "'app/parser.py': Clean bill of health."),
    ("Look up msgspec", "completed", "requiresPython"),
    ("Edit app/parser.py", "completed", '"h": 3600'),
    ("sh deploy.sh log", "completed", "request 6000: POST /parse 200"),
    ("sh deploy.sh health", "expired", "did not end within 2 s"),
    ("Build the package", "lost", "the process that ran this call ended"),
    ("✓ Restart app", "completed", "sh deploy.sh staging"),
)
"""Calls of the story by a text on their card, with their end state and another text."""


def find_card(tab: Tab, text: str) -> Locator:
    """Return the latest card with this text."""
    return tab.page.locator(".row", has_text=text).last


def list_states(tab: Tab, title: str) -> list[str]:
    """Return the states of the cards with this title."""
    return [row.state for row in tab.rows() if title in row.text]


@in_browser
def test_story_shows_every_feature(tmp_path: Path) -> None:
    """Identical and parallel calls, live and truncated output, a diff, every end state, a plan, an approval."""
    with running_demo(tmp_path) as (server, path):
        tab = server.window(height=8000).tab(path)
        tab.page.get_by_role("button", name="Approve", exact=True).click()
        find_card(tab, "Your turn").wait_for()
        tab.until(lambda: not tab.state("info").get("turn"), "the end of the story")
        session = path.removeprefix("/s/")
        identical = {entry["id"] for entry in server.entries(session) if entry.get("title") == "ls"}
        for toggle in reversed(tab.page.get_by_role("button", name="Open in place").all()):
            toggle.click()
        first, second = (row for row in tab.rows() if row.id in identical)
        assert first.state == second.state == "completed" and "deploy.sh" in first.text and "deploy.sh" in second.text
        parallel = server.entries(session, at=second.id)[-2:]
        assert [call["status"] in ("queued", "running") for call in parallel] == [True, True]
        (stopped,) = (entry for entry in server.entries(session) if entry.get("title") == "sh deploy.sh health")
        (before,) = (entry for entry in server.entries(session, at=stopped["end"] - 1) if entry["id"] == stopped["id"])
        assert (before["status"], before["outputText"]) == ("running", "GET https://staging.example/health\n")
        for title, state, text in ENDED_CALLS:
            assert list_states(tab, title) == [state] and text in find_card(tab, title).inner_text(), title
        failed, passed = (row for row in tab.rows() if "python3 -m tests.test_parser" in row.text)
        assert (failed.state, passed.state) == ("failed", "completed")
        assert failed.text.count("FAIL parse('2h') == 7200, got 720") == 1 and "3 tests passed" in passed.text
        assert find_card(tab, "Edit app/parser.py").locator(".diff-add").count() == 1
        assert tab.page.locator(".approval-line").inner_text().startswith("Approved by")
        assert "5 of 5 done" in find_card(tab, "Plan").inner_text()
        assert "two identical calls" in find_card(tab, "Thought").inner_text()
        tab.assert_no_problems()


def send_prompt(tab: Tab, text: str) -> None:
    """Type a prompt and send it."""
    tab.page.get_by_label("Message the agent").fill(text)
    tab.page.get_by_role("button", name="Send").click()


@in_browser
def test_prompts_are_answered(tmp_path: Path) -> None:
    """Commands are offered while typing; sample prompts, commands and other texts are answered."""
    with running_demo(tmp_path) as (server, path):
        tab = server.window(height=8000).tab(path)
        tab.page.get_by_role("button", name="Stop").click()
        box = tab.page.get_by_label("Message the agent")
        tab.page.get_by_role("button", name="Send").wait_for()
        box.press_sequentially("/")
        offered = tab.page.get_by_role("listbox", name="Agent commands").get_by_role("option")
        tab.until(lambda: offered.count() == 4, "all commands")
        box.press_sequentially("i")
        assert [text.split()[0] for text in offered.all_inner_texts()] == ["/time"]
        box.press("Tab")
        assert box.input_value() == "/time " and "expects: Tokyo" in tab.text()
        box.press_sequentially("Paris")
        box.press("Enter")
        find_card(tab, "In Paris it is").wait_for()
        send_prompt(tab, "What's the weather in Paris?")
        find_card(tab, "The weather in Paris is 20 °C").wait_for()
        send_prompt(tab, "What time is it in Tokyo and what's the weather there?")
        find_card(tab, "The weather in Tokyo is 24 °C").wait_for()
        assert (
            list_states(tab, "get_weather") == ["completed", "completed"]
            and list_states(tab, "get_time") == ["completed"] * 2
        )
        tab.until(lambda: not tab.state("info").get("turn"), "the end of the answer")
        rows = [(row.id, row.state) for row in tab.rows()]
        tab.reload()
        tab.until(lambda: [(row.id, row.state) for row in tab.rows()] == rows, "the same after a reload")
        send_prompt(tab, "$ echo hi there | tr a-z A-Z")
        tab.page.get_by_role("button", name="Approve", exact=True).click()
        find_card(tab, "HI THERE").wait_for()
        find_card(tab, "Done.").wait_for()
        send_prompt(tab, "Write a poem")
        find_card(tab, "No model is configured").get_by_text("callslip demo --model").wait_for()
        assert box.input_value() == ""
        tab.assert_no_problems()


@in_browser
def test_typed_text_is_not_lost_while_a_response_is_pending(tmp_path: Path) -> None:
    """A prompt sent before the response to Stop is kept, and text typed before the response to a prompt."""
    with running_demo(tmp_path) as (server, path):
        tab = server.window(height=8000).tab(path)
        held = tab.hold_responses("**/prompt/stop")
        tab.page.get_by_role("button", name="Stop").click()
        send_prompt(tab, "/time Paris")
        find_card(tab, "In Paris it is").wait_for()
        tab.until(lambda: held, "the response to Stop").pop()()
        held = tab.hold_responses("**/prompt")
        send_prompt(tab, "/time Tokyo")
        find_card(tab, "In Tokyo it is").wait_for()
        box = tab.page.get_by_label("Message the agent")
        box.fill("and in Rome?")
        tab.until(lambda: held, "the response to the prompt").pop()()
        expect(tab.page.get_by_role("button", name="Send")).to_be_enabled()
        assert box.input_value() == "and in Rome?"
        tab.assert_no_problems()


@in_browser
def test_the_prompt_box_stays_at_the_bottom_of_the_window(tmp_path: Path) -> None:
    """Also while a short session grows, because a button that moves between press and release gets no click."""
    with running_demo(tmp_path) as (server, path):
        tab = server.window(height=8000).tab(path)
        for button in ("Stop", "Approve"):
            tab.page.get_by_role("button", name=button, exact=True).wait_for()
            box = tab.page.locator(".session-prompt").bounding_box()
            assert box and box["y"] + box["height"] == 8000


@in_browser
def test_sending_a_prompt_scrolls_to_the_answer(tmp_path: Path) -> None:
    """Also if the view does not follow the end, because a link to an entry was opened."""
    with running_demo(tmp_path) as (server, path):
        tab = server.window().tab(path)
        tab.page.get_by_role("button", name="Stop").click()
        tab.until(lambda: tab.page.get_by_role("button", name="Send").is_visible(), "the Send button after Stop")
        last = server.entries(path.removeprefix("/s/"))[-1]["id"]
        tab.go(f"{path}#entry-{last}")
        expect(tab.page.locator(f"#entry-{last}")).to_be_in_viewport()
        for city in ("Paris", "Tokyo", "Paris"):
            send_prompt(tab, f"/time {city}")
            expect(find_card(tab, f"In {city} it is")).to_be_in_viewport()
            tab.until(lambda: not tab.state("info").get("turn"), "the end of the answer")
            tab.wheel(-600)
        tab.assert_no_problems()


class FaultLabSide:
    """One side of the fault lab: its rows and its summary."""

    def __init__(self, tab: Tab, name: str) -> None:
        self.region = tab.page.get_by_role("region", name=name, exact=True)

    def rows(self) -> list[str]:
        return [" ".join(text.split()) for text in self.region.get_by_role("listitem").all_inner_texts()]

    def summary(self) -> str:
        return self.region.locator(".tally").inner_text()


FAULTS = {
    "Identical calls": (
        ["✓ Completed ls monday.txt", "○ Queued ls ✗ should be Completed"],
        ["✓ Completed ls monday.txt"] * 2,
    ),
    "Duplicate": (
        ["✓ Completed git status nothing to commit", "○ Queued git status ✗ no such call"],
        ["✓ Completed git status nothing to commit"],
    ),
    "Reorder": (
        [
            "✓ Completed unknown 12 passed ✗ should be make test",
            "● Running unknown ✗ no such call",
            "○ Queued make test ✗ no such call",
        ],
        ["✓ Completed make test 12 passed late event ignored"],
    ),
    "Late result": (
        ["✓ Completed npm install added 1312 packages ✗ should be Cancelled"],
        ["■ Cancelled npm install cancelled by user late event ignored"],
    ),
    "Kill worker": (
        ["● Running Build the package … ✗ should be Lost"],
        ["~ Lost Build the package … the process that ran this call ended"],
    ),
    "Drop connection": (
        ["● Running curl archive.zip ✗ should be Completed"],
        ["✓ Completed curl archive.zip 4.1 MB"],
    ),
}
"""The rows of the naive client and of Callslip after each fault."""


def reset(tab: Tab, press: str = "button => button.click()") -> None:
    """Start again with an empty session. `press` clicks the button."""
    link = tab.page.get_by_role("link", name="their own session")
    before = link.get_attribute("href")
    tab.page.get_by_role("button", name="Reset").evaluate(press)
    tab.until(lambda: link.get_attribute("href") != before, "another session")
    expect(tab.page.locator(".fault-status")).to_have_text("No faults injected yet.")


def inject_fault(tab: Tab, fault: str) -> str:
    """Inject a fault into an empty session, wait for its end, and return its message."""
    status = tab.page.locator(".fault-status")
    reset(tab)
    tab.page.get_by_role("button", name=fault, exact=True).click()

    def is_over() -> bool:
        tab.page.clock.fast_forward(500)  # The pauses only help users to follow.
        return not status.inner_text().startswith(("No faults", "Injecting", "The connection is down"))

    tab.until(is_over, f"the end of {fault}")
    return status.inner_text()


SET_HIDDEN = """(hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def watch_streams(tab: Tab) -> set[Request]:
    """Return a set that always has the open streams of a page."""
    streams: set[Request] = set()
    tab.page.on("request", lambda request: streams.add(request) if "/stream?" in request.url else None)
    tab.page.on("requestfailed", lambda request: streams.discard(request))
    tab.page.on("requestfinished", lambda request: streams.discard(request))
    return streams


@in_browser
def test_fault_lab_breaks_only_the_naive_client(tmp_path: Path) -> None:
    """Each fault leaves the naive client wrong and Callslip equal to the log; a reload affects only the former."""
    with running_demo(tmp_path) as (server, path):
        window = server.window(height=3000)
        window.context.clock.install()
        tab = window.tab(path)
        streams = watch_streams(tab)
        tab.page.get_by_role("heading", name="Fault lab").click()
        naive, ours = FaultLabSide(tab, "Naive client"), FaultLabSide(tab, "Callslip")
        tab.page.get_by_role("button", name="Duplicate").wait_for()
        reset(tab, "button => (button.click(), button.parentNode.firstElementChild.click())")  # Only one action runs.
        for fault, (left, right) in FAULTS.items():
            message = inject_fault(tab, fault)
            rows = [
                [re.sub(r"step \d+ of 400|worker process \d+", "…", row) for row in side.rows()]
                for side in (naive, ours)
            ]
            assert rows == [left, right], fault
            assert naive.summary().startswith("✗") and ours.summary() == "✓ Same after reload", (fault, message)
        tab.page.set_viewport_size({"width": 380, "height": 4000})
        assert tab.find_overflow() == [] and tab.axe_violations() == []
        before = ours.rows()
        tab.page.set_viewport_size({"width": 1280, "height": 800})
        tab.page.get_by_role("button", name="Reload page").click()
        tab.page.get_by_text("lost 1 card").wait_for()
        tab.until(lambda: ours.rows() == before, "the same calls")
        assert naive.rows() == [] and naive.summary() == "✗ 1 missing"
        expect(tab.page.get_by_text("lost 1 card")).to_be_in_viewport()
        tab.until(lambda: len(streams) == 2, "a stream for each client")
        tab.page.evaluate(SET_HIDDEN, True)
        tab.until(lambda: not streams, "that a hidden tab holds no stream")
        tab.page.evaluate(SET_HIDDEN, False)
        inject_fault(tab, "Duplicate")
        assert [naive.rows(), ours.rows()] == list(FAULTS["Duplicate"]) and len(streams) == 2
        tab.ignore_problems("the connection is down", "net::ERR_ABORTED")
        tab.assert_no_problems()
