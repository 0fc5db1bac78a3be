"""What an ACP agent reports besides calls and answers, in the page: notices, priorities of plans, large content."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.support.browser import Server, in_browser
from tests.support.sample_sessions import event

STEPS = [
    {"content": "Read the tests", "priority": "high", "status": "completed"},
    {"content": "Fix the bug", "status": "in_progress"},
]


@in_browser
def test_notices_and_priorities_are_shown(site: Server) -> None:
    """ENT6, ENT7: a notice has a row at its place; a step has its priority; content that is a blob is loaded."""
    text = "one line of many\n" * 10_000
    seq = site.append(
        "agent",
        event("message.user", text="Go."),
        event("session.info", notice={"severity": "warning", "title": "Rate limit <b>", "description": "2 are left."}),
        event("plan.updated", entries=STEPS),
        event(
            "call.started", "one", title="cat", content=[{"type": "content", "content": {"type": "text", "text": text}}]
        ),
        event("call.completed", "one"),
    )
    tab = site.window().tab("/s/agent")
    tab.wait_for_seq(seq)
    notice = tab.page.locator(".row-notice")
    expect(notice).to_contain_text("Warning")
    expect(notice).to_contain_text("Rate limit <b>")
    expect(notice).to_contain_text("2 are left.")
    plan = tab.page.locator(".row-plan")
    plan.get_by_role("button").first.click()
    expect(plan.locator("li").first).to_contain_text("Read the tests high priority")
    expect(plan.locator("li").last).not_to_contain_text("priority")
    card = tab.page.locator(".row-tool_call")
    expect(card).to_contain_text("9,995 earlier lines")
    card.get_by_role("button").first.click()
    expect(card).to_contain_text("Full output, 170")
    tab.assert_no_problems()
