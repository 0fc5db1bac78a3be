"""The list of sessions in a real Chromium: what each session does, filters, labels and deletion."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

from tests.support.browser import Server, in_browser
from tests.support.sample_sessions import HOSTILE, event

SHOP = {"agent": "Claude Code", "project": "/home/ann/shop", "labels": {"team": "a"}}


def add_sessions(site: Server) -> None:
    """Append a session that has ended, with a failed call and usage, and one that runs."""
    used: dict[str, Any] = {
        "type": "usage.reported",
        "id": "r",
        "inputTokens": 12_000,
        "outputTokens": 345,
        "cost": 0.42,
        "currency": "USD",
    }
    site.append("listed-shop", {"type": "session.info", **SHOP}, event("message.user", text="Fix <b>the</b> cart"))
    failed = event("call.failed", "listed-1", toolName="sh")
    end = {"type": "session.info", "ended": True, "branch": "fix-cart", "model": "opus"}
    site.append("listed-shop", failed, used, end)
    site.append("listed-run", event("turn.started"), event("message.user", text="Write tests"))


@in_browser
def test_sessions_show_what_people_recognize(site: Server) -> None:
    """LIST7: title, labels, state, agent, project, calls, failures, tokens and cost; a title is text, – is unknown."""
    add_sessions(site)
    tab = site.window().tab("/")
    cells = tab.page.get_by_role("row", name="Fix <b>the</b> cart").get_by_role("cell")
    facts = ["Ended", "Claude Code opus", "shop fix-cart", "1", "1", "12.3k", "$0.42"]
    expect(cells).to_have_text(
        ["Fix <b>the</b> cartteam: a", *facts, re.compile(".+"), "just now", re.compile("Labels")]
    )
    cells = tab.page.get_by_role("row", name="Write tests").get_by_role("cell")
    unknown = ["–", "–", "–", "–"]
    expect(cells).to_have_text(
        ["Write tests", "Running", "", "", *unknown, re.compile(".+"), "just now", re.compile("Labels")]
    )
    tab.assert_no_problems()


@in_browser
def test_sessions_are_filtered_by_words_and_state(site: Server) -> None:
    """LIST7: words of the agent and the project count, and a state that the session leaves removes it."""
    add_sessions(site)
    tab = site.window().tab("/")
    rows = tab.page.locator(".session-row")
    tab.page.get_by_role("button", name="Running").click()
    expect(rows.filter(has_text="Write tests")).to_have_count(1)
    expect(rows.filter(has_text="the</b> cart")).to_have_count(0)
    site.append("listed-run", event("turn.ended"))
    expect(rows.filter(has_text="Write tests")).to_have_count(0)
    tab.page.get_by_role("button", name="All", exact=True).click()
    tab.page.get_by_role("searchbox").fill("claude shop")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("the</b> cart")
    tab.assert_no_problems()


@in_browser
def test_filters_of_sessions_are_in_the_address(site: Server) -> None:
    """LIST7: agent, project and label are chosen from what there is; a reload shows the same; all can be cleared."""
    add_sessions(site)
    site.append("listed-other", {"type": "session.info", **SHOP, "agent": "Codex"}, event("message.user", text="Other"))
    site.append("listed-other", event("call.failed", "listed-2", toolName="sh"))
    tab = site.window().tab("/")
    rows = tab.page.locator(".session-row")
    tab.page.get_by_label("Project").select_option("shop")
    tab.page.get_by_label("Label").select_option("team: a")
    expect(rows).to_have_count(2)
    tab.page.get_by_label("Agent").select_option("Codex")
    tab.page.get_by_role("group", name="State").get_by_role("button", name="Failed").click()
    tab.reload()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Other")
    expect(tab.page.get_by_role("status").filter(has_text="1 of")).to_be_visible()
    tab.page.get_by_role("button", name="Ended").click()
    tab.page.get_by_role("button", name="Clear filters").click()
    expect(rows.filter(has_text="Write tests")).to_have_count(1)
    tab.assert_no_problems()


@in_browser
def test_sessions_are_sorted(site: Server) -> None:
    """LIST7: by the last activity at first, in groups of days, else the greatest number first."""
    for name, calls in (("sorted-more", 2), ("sorted-less", 1)):
        site.append(name, *(event("call.started", f"{name}-{number}", toolName="sh") for number in range(calls)))
    tab = site.window().tab("/")
    rows = tab.page.locator(".session-row", has_text="sorted-")
    expect(rows).to_contain_text(["sorted-less", "sorted-more"])
    expect(tab.page.get_by_role("rowheader", name="Today")).to_be_visible()
    tab.page.get_by_role("button", name="Calls").click()
    expect(rows).to_contain_text(["sorted-more", "sorted-less"])
    expect(tab.page.get_by_role("columnheader", name="Calls")).to_have_attribute("aria-sort", "descending")
    expect(tab.page.get_by_role("rowheader")).to_have_count(0)
    tab.assert_no_problems()


@in_browser
def test_rows_have_one_height(site: Server) -> None:
    """A long title, labels and a hostile text make no row higher: 36 px, and 60 on a phone."""
    labels = {f"label-{number}": "x" * 60 for number in range(5)}
    site.append("listed-long", {"type": "session.info", "title": "Long " * 60, "labels": labels, "project": "/p" * 90})
    site.append("listed-hostile", {"type": "session.info", "title": HOSTILE[2], "agent": HOSTILE[0]})
    for width, height in ((1440, 36), (380, 60)):
        tab = site.window(width=width).tab("/")
        tab.page.locator(".session-row", has_text="Long").wait_for()
        heights = tab.page.locator(".session-row").evaluate_all("(rows) => rows.map((row) => row.offsetHeight)")
        assert {height - 1, height, height + 1} >= set(heights), heights
        assert tab.find_overflow() == []
        tab.assert_no_problems()


@in_browser
def test_a_session_is_deleted_after_a_confirmation(site: Server) -> None:
    """LIST7: a refusal keeps it; labels are changed next to it."""
    site.append("listed-gone", event("message.user", text="Remove me"))
    tab = site.window().tab("/")
    row = tab.page.locator(".session-row", has_text="Remove me")

    def choose(action: str) -> None:
        row.get_by_role("button", name="Actions of listed-gone").click()
        row.get_by_role("button", name=action).click()

    choose("Labels…")
    tab.page.get_by_label("Labels of listed-gone").fill("team=b, urgent=yes")
    tab.page.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("team: b")
    expect(row).to_contain_text("urgent: yes")
    choose("Delete…")
    tab.page.get_by_role("button", name="Cancel").click()
    expect(row).to_have_count(1)
    choose("Delete…")
    expect(tab.page.locator(".question")).to_contain_text("for ever")
    assert tab.axe_violations() == []
    tab.page.get_by_role("button", name="Delete session").click()
    expect(row).to_have_count(0)
    tab.assert_no_problems()
