"""`callslip up` in a real Chromium: the page follows session files that grow, with the work of a sub-agent."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.support.browser import LOOKS, Server, Tab, in_browser, serving
from tests.support.claude_files import Script, write_lines
from tests.support.paths import TESTS
from tests.support.sample_sessions import event

LOOK_LEFT = "Look <b>left</b>"
"""The title of a call: text, whatever it looks like."""


ROLLOUT = "rollout-2026-11-19T17-53-58-01a1f4f1-a090-7062-8032-617cbd7ff3bb.jsonl"
CALLS, FAILED, TOKENS = 4, 5, 6  # The columns of the table of sessions.
LINES_UNTIL_CALLS = 15
"""In this many lines the agent has started two calls at once, and none has ended."""


class History:
    """The session files of Claude Code and Codex in a home, which grow while the page shows them."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
            monkeypatch.delenv(name, raising=False)
        self.codex = home / ".codex" / "sessions" / "2026" / "11" / "19" / ROLLOUT
        self.folder = home / ".claude"
        self._written: dict[Path, int] = {}

    def grow(self, script: Script) -> Path:
        """Append the lines that were added to a script since the last time."""
        path = script.path(self.folder)
        start = self._written.get(path, 0)
        write_lines(path, list(script.lines[start:]), "a")
        self._written[path] = len(script.lines)
        return path


def row_with(tab: Tab, text: str) -> Locator:
    return tab.page.locator(".row", has_text=text)


@in_browser
def test_the_page_follows_two_agents_and_a_sub_agent(
    browser: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRN16: without a reload, the list and the session show what all of them write, and which of them wrote it."""
    history = History(tmp_path, monkeypatch)
    rollout = (TESTS / "inputs" / "codex" / "parallel.jsonl").read_text("utf-8").splitlines()
    main, helper = Script(1), Script(1, agent="left")
    with serving(tmp_path, command="up") as server:
        tab = server.window().tab("/")
        tab.page.evaluate("() => { globalThis.wasLoadedOnce = true; }")
        main.prompt("Where is the rounding?")
        history.grow(main.call("toolu_agent", "Agent", description=LOOK_LEFT, prompt="Read the left file"))
        write_lines(history.codex, list(rollout[:LINES_UNTIL_CALLS]))
        expect(tab.page.locator(".session-row")).to_have_count(2)
        other = tab.page.locator(".session-row", has_text="Do it [[main]]")
        for text in ("codex", "project", "2 running"):
            expect(other).to_contain_text(text)
        expect(other.get_by_role("cell").nth(CALLS)).to_have_text("2")
        item = tab.page.locator(".session-row", has_text="Where is the rounding?")
        for text in ("claude-code", "shop", "main", "claude-opus-4-8", "1 running"):
            expect(item).to_contain_text(text)
        expect(item.get_by_role("cell").nth(CALLS)).to_have_text("1")
        expect(item.get_by_role("cell").nth(TOKENS)).to_have_text("28")
        item.get_by_role("link").click()
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("Where is the rounding?")

        helper.prompt("Read the left file").text("I read it.", "tool_use").call("toolu_inner", command="cat left")
        details = helper.path(history.folder).with_suffix(".meta.json")
        details.parent.mkdir(parents=True)
        details.write_text(json.dumps({"agentType": "general-purpose", "toolUseId": "toolu_agent"}))
        history.grow(helper)
        task, text, call = (row_with(tab, words).last for words in ("Read the left file", "I read it.", "cat left"))
        expect(task).to_contain_text("Task")
        expect(text).to_contain_text("Sub-agent")
        expect(call).to_contain_text("Running")
        for row in (task, text, call):
            expect(row).to_have_class(re.compile("of-sub-agent"))
        work = tab.page.locator(f".row:has(.call-title:text-is({LOOK_LEFT!r})) ~ .row.in")
        expect(work).to_have_count(3)  # Below the call that started it.

        helper.result("toolu_inner", "left is fine")
        history.grow(helper)
        expect(call).to_contain_text("Completed")
        history.grow(main.result("toolu_agent", "left is fine").text("It is not on the left."))
        last = row_with(tab, "It is not on the left.")
        expect(last).to_contain_text("Agent")
        expect(last).not_to_have_class(re.compile("of-sub-agent"))
        expect(row_with(tab, "Where is the rounding?")).to_contain_text("You")

        tab.page.get_by_role("link", name="Sessions").click()
        write_lines(history.codex, list(rollout[LINES_UNTIL_CALLS:]), "a")
        for column, text in ((CALLS, "5"), (FAILED, "3")):
            expect(other.get_by_role("cell").nth(column)).to_have_text(text)
        expect(other).not_to_contain_text("running")
        for column, text in ((CALLS, "2"), (TOKENS, "112")):
            expect(item.get_by_role("cell").nth(column)).to_have_text(text)
        expect(item).not_to_contain_text("running")
        assert tab.page.evaluate("() => globalThis.wasLoadedOnce"), "the page was loaded again"
        tab.assert_no_problems()


@pytest.mark.parametrize("width", [380, 1280])
@in_browser
def test_the_work_of_a_sub_agent_passes_axe(site: Server, width: int) -> None:
    """TRN16: in the timeline and the waterfall; a parent that is not known is named by its id."""
    session = f"delegated-{width}"
    site.append(
        session,
        event("turn.started"),
        event("message.user", text="Look around"),
        event("call.started", f"p-{width}", toolName="task", title=LOOK_LEFT),
    )
    (parent,) = (entry["callId"] for entry in site.entries(session) if entry["type"] == "tool_call")
    site.append(
        session,
        event("message.user", text="The task", parent=parent),
        event("call.started", f"c-{width}", toolName="sh", parent=parent),
        event("message.delta", text="Of a call that is not loaded", parent="exec_000000000000", messageId="other"),
        event("message.delta", text="Of no known call", parent="helper-7", messageId="third"),
    )
    for theme in {theme for theme, _ in LOOKS}:
        tab = site.window(theme, width).tab(f"/s/{session}")
        tab.wait_for_seq(site.seq(session))
        links = tab.page.locator(".parent-call a")
        expect(links).to_have_text(["exec_000000000000"])
        assert links.first.get_attribute("href") == "/c/exec_000000000000"
        rows = tab.page.locator(".timeline .row").evaluate_all("rows => rows.map((row) => row.matches('.in'))")
        assert rows == [False, False, False, True, True, False, False]  # A heading, a prompt, a call and its work.
        expect(tab.page.locator(".parent-call code")).to_have_text("helper-7")
        assert tab.page.locator(".timeline b", has_text="left").count() == 0
        assert tab.axe_violations() == [] and tab.find_overflow() == []
        tab.page.get_by_role("button", name="Waterfall").click()
        bar = tab.page.get_by_role("option", name=f"Sub-agent of {LOOK_LEFT}")
        expect(bar).to_have_count(1)
        bar.hover()
        expect(tab.page.locator(".wf-details-times")).to_contain_text(f"Sub-agent of {LOOK_LEFT}")
        assert tab.axe_violations() == [] and tab.find_overflow() == []
        tab.assert_no_problems()
