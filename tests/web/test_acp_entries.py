"""What an agent reports besides calls and answers, in the page: notices, plans, large content, sub-agents."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.support.browser import Server, in_browser
from tests.support.sample_sessions import event
from tests.web.test_card import open_card

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
    card.get_by_role("button", name="Open in place").click()
    expect(card).to_contain_text("9,992 earlier lines hidden")
    panel = open_card(tab, "cat")
    expect(panel).to_contain_text("Full output, 170")
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
        ("cat", ["9,000 lines hidden", "shown line", "Raw output", "Full output, 110"], "The beginning of"),
        ("small", ["9,000 lines hidden", "shown line", "complete"], "The beginning of"),
        ("fails", ["9,000 lines hidden", "shown line", "It did not work."], "The beginning of"),
    ):
        panel = open_card(tab, name)
        for text in shown:
            expect(panel).to_contain_text(text)
        expect(panel).not_to_contain_text(absent)
        if name == "cat":
            panel.get_by_role("group", name="Raw output").get_by_role("button", name="Show").click()
            expect(panel.get_by_role("group", name="Raw output").locator(".log")).to_contain_text("raw line")
    tab.assert_no_problems()


@in_browser
def test_the_work_of_a_sub_agent_is_shown_apart(site: Server) -> None:
    """SUB1: its rows are indented, and its prompt is not one of the user."""
    seq = site.append(
        "sub",
        event("message.user", text="Go."),
        event("call.started", "task", title="Look"),
        event("message.user", text="Look around.", parent="task"),
        event("message.delta", text="Found it.", messageId="m1", chunks="delta", parent="task"),
        event("message.delta", text="Done.", messageId="m2", chunks="delta"),
    )
    tab = site.window().tab("/s/sub")
    tab.wait_for_seq(seq)
    expect(tab.page.locator(".who b")).to_have_text(["You", "Task", "Sub-agent", "Agent"])
    expect(tab.page.locator(".row.of-sub-agent")).to_have_count(2)
    tab.assert_no_problems()
