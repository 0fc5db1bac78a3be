"""Long hostile texts do not freeze the page: the work grows linearly with the text.

Each text is so long that quadratic work takes many minutes and linear work milliseconds, so a wide time limit decides.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from playwright.sync_api import expect

import callslip
from tests.support.browser import Server, in_browser
from tests.support.paths import ROOT
from tests.support.sample_sessions import event

WEB = Path(callslip.__file__).parent / "web"
TIMEOUT_S = 120
MANY = 190_000
"""Just below the length from which the page shows a text as it is."""
REPEATS = 3
"""How often a text of that length is parsed, as one time alone takes less than a minute."""

TEXTS: dict[str, tuple[str, list[tuple[str, int]]]] = {
    "spaces after a fence": ("markdown", [("```", 1), (" ", MANY), ("`", 1)]),
    "a long fence": ("markdown", [("~", MANY), ("`", 1)]),
    "spaces in a heading": ("markdown", [("# ", 1), (" ", MANY), ("x\u2028y", 1)]),
    "spaces in an item": ("markdown", [("- ", 1), (" ", MANY), ("x\u2028y", 1)]),
    "spaces in a rule": ("markdown", [("-", 1), (" ", MANY), ("-x", 1)]),
    "marks in a rule": ("markdown", [("- ", MANY // 2), ("x", 1)]),
    "a table without cells": ("markdown", [("|a|\n", 1), ("-" + " " * 900 + "x\n|a|\n", MANY // 906)]),
    "an address with dots": ("markdown", [("http://" + ".," * 900 + "a\n", MANY // 1810)]),
    "unclosed marks": ("markdown", [("*a_b~~[c](", MANY // 10)]),
    "unclosed code": ("markdown", [("` `` ``` ", MANY // 10)]),
    "quotes": ("markdown", [(">", MANY)]),
    "spaces before a line end": ("isMarkdown", [("# a\n", 1), (" ", MANY), ("x", 1)]),
    "two long fences": ("stripFence", [("`", 1_000_000), ("\n", 1), ("`a", 1_000_000), ("x", 1)]),
    "fences and spaces": ("stripFence", [("```\n", 1), ("```  ", 500_000), ("x", 1)]),
    "a line that is rewritten": ("terminal", [("\x1b[1mx", 200_000), ("\r\x1b[my", 200_000)]),
    "numbers of a sequence": ("terminal", [("\x1b[", 1), ("!1;", 500_000), ("\x1b", 1)]),
    "unterminated sequences": ("terminal", [("\x1b]", 500_000)]),
    "sequences without end": ("isTerminal", [("\x1b[1;", 500_000)]),
    "joiners": ("inert", [("\u200d", 500_000)]),
    "the start of a diff": ("diff", [("--- a", 200_000)]),
    "words of a filter": ("filter", [('a:"', 300_000)]),
    "stars in a filter": ("filterValue", [("a", 50_000)]),
}


def test_long_texts_take_linear_time(node: str) -> None:
    """The real modules of the page, in Node. The first text that takes too long is named."""
    jobs = [json.dumps({"part": part, "text": text}) for part, text in TEXTS.values() for _ in range(REPEATS)]
    command = [node, str(ROOT / "tests" / "js" / "page_patterns.mjs"), str(WEB)]
    try:
        done = subprocess.run(command, input="\n".join(jobs).encode(), capture_output=True, timeout=TIMEOUT_S)
        answers, errors = done.stdout, done.stderr.decode()
    except subprocess.TimeoutExpired as error:
        answers, errors = error.stdout or b"", "too slow"
    count = len(answers.splitlines())
    assert count == len(jobs), f"{[*TEXTS][count // REPEATS]}: {errors}"


@in_browser
def test_a_long_fence_does_not_freeze_the_page(site: Server) -> None:
    """The page shows the full texts of long messages on request, and still reacts."""
    count = 15
    site.append("fences", *[event("message.user", text=f"{number}\n{'~' * MANY}`") for number in range(count)])
    tab = site.window(height=2000).tab("/s/fences")
    buttons = tab.page.get_by_role("button", name="more characters")
    expect(buttons).to_have_count(count)
    buttons.evaluate_all("buttons => buttons.forEach((button) => button.click())")
    expect(tab.page.locator(".full-text").first).to_be_visible(timeout=TIMEOUT_S * 1000)
    assert tab.page.evaluate("() => 1 + 1") == 2
    tab.assert_no_problems()
