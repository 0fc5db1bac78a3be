"""The inbox with its keyboard shortcuts, the command board and the prompt box, in a real Chromium."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.support.browser import Server, Tab, in_browser, serving
from tests.support.sample_sessions import OPTIONS, event

SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer", "maximum": 100}}, "required": ["amount"]}


@pytest.fixture
def server(browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without pending approvals."""
    with serving(tmp_path_factory.mktemp("answers")) as started:
        yield started


def request_approval(server: Server, title: str, session: str = "work", **fields: Any) -> str:
    """Request an approval and return its ID."""
    request = {"toolName": "bash", "input": {"command": title}, "options": OPTIONS, **fields}
    server.append(session, event("approval.requested", title, description=title, **request))
    pending = server.request("/v1/approvals?state=pending")["approvals"]
    return next(approval["approval"] for approval in pending if approval["description"] == title)


def get_approval(server: Server, approval: str) -> dict[str, Any]:
    """Return the request as stored by the server."""
    return server.request(f"/v1/approvals/{approval}")


def open_request(tab: Tab, approval: str) -> Locator:
    """Open the card of a request in the inbox."""
    card = tab.page.locator(f"[data-approval={approval}]")
    card.wait_for()
    closed = card.get_by_role("button", expanded=False)
    if closed.count():
        closed.click()
    card.locator(".arg-value").first.wait_for()
    return card


@in_browser
def test_requests_are_answered_with_the_agents_options(server: Server) -> None:
    """A card must be opened first; one request is approved by an option, the other denied with a reason."""
    make, push = request_approval(server, "make install"), request_approval(server, "git push", "other")
    tab = server.window().tab("/inbox")
    expect(tab.page.get_by_role("status").filter(has_text="2 pending")).to_be_visible()
    expect(tab.page.get_by_role("link", name="Inbox 2 pending")).to_be_visible()
    assert tab.page.get_by_role("button", name="Allow once").count() == 0
    card = open_request(tab, make)
    assert card.locator(".arg-value").all_inner_texts() == ["make install"]
    labels = [name.split(maxsplit=1)[1] for name in card.locator(".button-row button").all_inner_texts()]
    assert labels == ["Allow once", "Always allow this", "Edit…", "Reject"]
    card.get_by_role("button", name="Always allow this").click()
    expect(card.locator(".decision")).to_contain_text("✓ Approved by user at")
    expect(card.locator(".decision q")).to_have_text("Always allow this")
    expect(card.get_by_role("article")).to_be_focused()
    assert (get_approval(server, make)["state"], get_approval(server, make)["option"]) == ("granted", "always")
    card = open_request(tab, push)
    card.get_by_label("Reason (sent to the agent)").fill("Not on a Friday.")
    card.get_by_role("button", name="Reject").click()
    expect(card.locator(".decision")).to_contain_text("⊘ Denied by user at")
    denied = get_approval(server, push)
    assert (denied["state"], denied["option"], denied["reason"]) == ("refused", "no", "Not on a Friday.")
    expect(tab.page.get_by_role("link", name="Inbox", exact=True)).to_be_visible()
    tab.assert_no_problems()


@in_browser
def test_edited_parameters_must_match_the_schema(server: Server) -> None:
    """Invalid JSON and invalid parameters show an error and leave the request pending."""
    pay = request_approval(server, "pay", input={"amount": 500}, schema=SCHEMA)
    tab = server.window(width=380).tab("/inbox")
    card = open_request(tab, pay)
    card.get_by_role("button", name="Edit…").click()
    editor = card.get_by_label("Parameters (JSON)")
    expect(editor).to_be_focused()
    assert "amount integer, at most 100, required" in card.inner_text()
    for text, error in (('{"amount": ', "Invalid JSON"), ('{"amount": 101}', "amount")):
        editor.fill(text)
        editor.press("Control+Enter")
        expect(card.get_by_role("alert").first).to_contain_text(error)
        assert get_approval(server, pay)["state"] == "pending" and editor.input_value() == text
    assert tab.find_overflow() == [] and tab.axe_violations() == []
    editor.fill('{"amount": 99}')
    held = tab.hold_responses(f"**/v1/approvals/{pay}")
    card.get_by_role("button", name="Approve with changes").click()
    expect(card.locator(".decision")).to_contain_text("✓ Approved")  # By the stream, before the response arrives.
    tab.until(lambda: held, "the response").pop()()
    expect(card).to_contain_text("with changes: amount 99", use_inner_text=True)
    (call,) = (entry for entry in server.entries("work") if entry["type"] == "tool_call")
    assert call["rawInput"] == {"amount": 99}
    tab.ignore_problems("422", "400")
    tab.assert_no_problems()


@in_browser
def test_inbox_keyboard_shortcuts(server: Server) -> None:
    """`j` and `k` move, a key opens a closed card; then `a` approves, `d` denies and `e` edits the focused one only."""
    ids = [request_approval(server, title) for title in ("first", "second", "third")]
    tab = server.window().tab("/inbox")
    tab.page.get_by_role("status").filter(has_text="3 pending").wait_for()
    press = tab.page.keyboard.press
    focused = tab.page.locator("[data-approval]:has(> article:focus)")

    def read_states() -> list[str]:
        return [get_approval(server, approval)["state"] for approval in ids]

    press("j")
    expect(focused).to_contain_text("first")
    press("a")
    focused.get_by_role("button", name="Allow once").wait_for()
    assert read_states() == ["pending"] * 3
    press("a")
    expect(focused.locator(".decision")).to_contain_text("Approved")
    press("j")
    press("Enter")
    focused.get_by_role("button", name="Reject").wait_for()
    press("d")
    tab.page.keyboard.type("No, and e is a letter")
    press("Enter")
    expect(focused.locator(".decision")).to_contain_text("Denied")
    assert get_approval(server, ids[1])["reason"] == "No, and e is a letter"
    press("j")
    press("Enter")
    focused.get_by_role("button", name="Allow once").wait_for()
    press("e")
    expect(tab.page.get_by_label("Parameters (JSON)")).to_be_focused()
    press("Escape")
    expect(focused).to_contain_text("third")
    assert read_states() == ["granted", "refused", "pending"]
    tab.assert_no_problems()


@in_browser
def test_request_counts_down_and_shows_an_answer_from_elsewhere(server: Server) -> None:
    """The time left ticks; an answer from elsewhere is shown with its author and time, and disappears after a while."""
    wipe = request_approval(server, "wipe", expiresAt=int(time.time() * 1000) + 600_000)
    window = server.window()
    window.context.clock.install()
    tab = window.tab("/inbox")
    card = open_request(tab, wipe)
    expect(card.get_by_role("timer")).to_have_text(re.compile(r"◷ (9m \d\ds|10m 00s) left"))
    tab.page.clock.run_for(560_000)
    expect(card.get_by_role("timer")).to_have_text(re.compile(r"◷ \d\ds left"))
    card.get_by_label("Reason (sent to the agent)").fill("Half a sent")
    server.request(f"/v1/approvals/{wipe}", {"decision": "deny", "option": "no", "reason": "It is the last copy."})
    expect(card.locator(".decision")).to_have_text(
        re.compile(r"⊘ Denied by user at \d\d:\d\d:\d\d, .*Reject.*Reason: .*It is the last copy\.")
    )
    expect(card.get_by_role("button", name="Allow once")).to_have_count(0)
    tab.page.clock.run_for(10_000)
    tab.page.get_by_text("You're all caught up.").wait_for()
    tab.assert_no_problems()


@in_browser
def test_commands_move_across_the_board(server: Server) -> None:
    """A card moves from column to column as its command is submitted, claimed and ended."""

    def submit(action: str) -> str:
        command = {"action": action, "params": {"n": 1}, "client": "printer", "timeout": 600}
        return server.request("/v1/calls", command)["correlation_id"]

    def finish(end: dict[str, Any]) -> None:
        claimed = server.request("/v1/calls/claim", {"client": "printer", "worker": "w", "wait": 1})
        expect(lane("Pending").first).to_contain_text("● Running")
        server.request(f"/v1/calls/{claimed['call']}/result", {**end, "fence": claimed["fence"]})

    tab = server.window().tab("/commands")
    tab.page.get_by_text("No commands yet").wait_for()

    def lane(name: str) -> Locator:
        return tab.page.get_by_role("region", name=name).get_by_role("article")

    for action in ("print", "staple", "bind"):
        submit(action)
    expect(lane("Pending")).to_have_count(3)
    expect(lane("Pending").first).to_contain_text("○ Queued")
    expect(lane("Pending").first).to_contain_text("For printer")
    expect(lane("Pending").first).to_contain_text("Position 1. No worker has connected yet.")
    expect(lane("Pending").last).to_contain_text("Position 3.")
    finish({"result": {"pages": 12}})
    expect(lane("Completed")).to_contain_text(["print"])
    finish({"error": "no staples"})
    expect(lane("Failed")).to_contain_text(["no staples"])
    lane("Pending").get_by_role("button", name="Cancel bind").click()
    expect(lane("Failed")).to_contain_text(["■ Cancelled", "✗ Failed"])
    expect(lane("Pending")).to_have_count(0)
    lane("Completed").get_by_role("button", name="Show details").click()
    expect(lane("Completed").get_by_role("group", name="Result")).to_contain_text('"pages": 12')
    expect(lane("Completed")).to_contain_text("For printer")
    tab.page.set_viewport_size({"width": 380, "height": 800})
    assert tab.axe_violations() == [] and tab.find_overflow() == []
    tab.assert_no_problems()


@in_browser
def test_session_without_an_agent_shows_a_reason_instead_of_a_prompt_box(server: Server) -> None:
    """A server that only records has no prompt box."""
    server.append("talk", event("message.user", text="Hello?"))
    tab = server.window().tab("/s/talk")
    expect(tab.page.locator(".no-prompt")).to_contain_text(re.compile(r"\w+"))
    assert tab.page.get_by_label("Message the agent").count() == 0
    tab.assert_no_problems()
