"""The list of sessions in a real Chromium: what each session does, filters, labels and deletion."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from tests.support.browser import Server, in_browser
from tests.support.sample_sessions import event

SHOP = {"agent": "Claude Code", "project": "/home/ann/shop", "labels": {"team": "a"}}


def add_sessions(site: Server) -> None:
    """Append a session that has ended, with a failed call and usage, and one that runs."""
    used: dict[str, Any] = {"type": "usage.reported", "id": "r", "inputTokens": 12_000, "outputTokens": 345}
    site.append("listed-shop", {"type": "session.info", **SHOP}, event("message.user", text="Fix <b>the</b> cart"))
    failed = event("call.failed", "listed-1", toolName="sh")
    end = {"type": "session.info", "ended": True, "branch": "fix-cart", "model": "opus"}
    site.append("listed-shop", failed, used, end)
    site.append("listed-run", event("turn.started"), event("message.user", text="Write tests"))


@in_browser
def test_sessions_show_what_people_recognize(site: Server) -> None:
    """LIST7: title, agent, project, calls, failures, tokens and state; a title is text."""
    add_sessions(site)
    tab = site.window().tab("/")
    row = tab.page.locator(".session-row", has_text="listed-shop")
    for text in (
        "Fix <b>the</b> cart",
        "Claude Code",
        "shop",
        "fix-cart",
        "opus",
        "1 call",
        "1 failed",
        "12.3k tokens",
        "Ended",
        "team: a",
    ):
        expect(row).to_contain_text(text)
    expect(tab.page.locator(".session-row", has_text="listed-run")).to_contain_text("Running")
    tab.assert_no_problems()


@in_browser
def test_sessions_are_filtered_by_words_and_state(site: Server) -> None:
    """LIST7: words of the agent and the project count, and a state that the session leaves removes it."""
    add_sessions(site)
    tab = site.window().tab("/")
    rows = tab.page.locator(".session-row")
    tab.page.get_by_label("State").select_option("running")
    expect(rows.filter(has_text="listed-run")).to_have_count(1)
    expect(rows.filter(has_text="listed-shop")).to_have_count(0)
    site.append("listed-run", event("turn.ended"))
    expect(rows.filter(has_text="listed-run")).to_have_count(0)
    tab.page.get_by_label("State").select_option("")
    tab.page.get_by_role("searchbox").fill("claude shop")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("listed-shop")
    tab.assert_no_problems()


@in_browser
def test_sessions_are_sorted(site: Server) -> None:
    """LIST7: by the last activity at first, else the greatest number first."""
    for name, calls in (("sorted-more", 2), ("sorted-less", 1)):
        site.append(name, *(event("call.started", f"{name}-{number}", toolName="sh") for number in range(calls)))
    tab = site.window().tab("/")
    rows = tab.page.locator(".session-row", has_text="sorted-")
    expect(rows).to_contain_text(["sorted-less", "sorted-more"])
    tab.page.get_by_label("Sort by").select_option("Calls")
    expect(rows).to_contain_text(["sorted-more", "sorted-less"])
    tab.assert_no_problems()


@in_browser
def test_a_session_is_deleted_after_a_confirmation(site: Server) -> None:
    """LIST7: a refusal keeps it; labels are changed next to it."""
    site.append("listed-gone", event("message.user", text="Remove me"))
    tab = site.window().tab("/")
    row = tab.page.locator(".session-row", has_text="listed-gone")
    row.get_by_role("button", name="Label listed-gone").click()
    row.get_by_role("textbox").fill("team=b, urgent=yes")
    row.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("team: b")
    expect(row).to_contain_text("urgent: yes")
    row.get_by_role("button", name="Delete listed-gone").click()
    row.get_by_role("button", name="Cancel").click()
    expect(row).to_have_count(1)
    row.get_by_role("button", name="Delete listed-gone").click()
    expect(row).to_contain_text("for ever")
    row.get_by_role("button", name="Delete session").click()
    expect(row).to_have_count(0)
    tab.assert_no_problems()
