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


@in_browser
def test_large_content_and_large_output_are_loaded(site: Server) -> None:
    """ENT4: a later, large output does not replace large content in the card; the error is not taken for either."""
    content = [{"type": "content", "content": {"type": "text", "text": "shown line\n" * 10_000}}]
    seq = site.append(
        "both",
        event("call.started", "one", title="cat", content=content),
        event("call.completed", "one", output="raw line\n" * 10_000),
        event("call.started", "two", title="small", content=content),
        event("call.completed", "two", output="complete"),
        event("call.started", "three", title="fails", content=content),
        event("call.failed", "three", error="It did not work."),
    )
    tab = site.window().tab("/s/both")
    tab.wait_for_seq(seq)
    for name, shown, absent in (
        ("cat", ["9,988 earlier lines", "shown line", "Raw output", "Full output, 110"], "The beginning of"),
        ("small", ["9,988 earlier lines", "shown line", "complete"], "The beginning of"),
        ("fails", ["9,988 earlier lines", "shown line", "It did not work."], "The beginning of"),
    ):
        card = tab.page.locator(".row-tool_call", has_text=name).first
        card.get_by_role("button").first.click()
        for text in shown:
            expect(card).to_contain_text(text)
        expect(card).not_to_contain_text(absent)
        if name == "cat":
            card.get_by_label("Raw output length").select_option("tail")
            expect(card).to_contain_text("raw line")
    tab.assert_no_problems()
