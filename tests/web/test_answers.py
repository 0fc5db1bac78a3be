"""What a person decides on the page, in a real Chromium: the inbox and its keys, the commands board, the prompt box."""

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
def desk(browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on which nothing waits yet."""
    with serving(tmp_path_factory.mktemp("desk")) as server:
        yield server


def ask(server: Server, title: str, session: str = "work", **fields: Any) -> str:
    """A request for approval; its id."""
    given = {"toolName": "bash", "input": {"command": title}, "options": OPTIONS, **fields}
    server.tell(session, event("approval.requested", title, description=title, **given))
    waiting = server.ask("/v1/approvals?state=pending")["approvals"]
    return next(one["approval"] for one in waiting if one["description"] == title)


def asked(server: Server, approval: str) -> dict[str, Any]:
    """The request as the server has it."""
    return server.ask(f"/v1/approvals/{approval}")


def request(tab: Tab, approval: str) -> Locator:
    """Its card in the inbox, opened."""
    card = tab.page.locator(f"[data-approval={approval}]")
    card.wait_for()
    closed = card.get_by_role("button", expanded=False)
    if closed.count():
        closed.click()
    card.locator(".arg-value").first.wait_for()
    return card


@in_browser
def test_requests_are_answered_in_the_agents_words(desk: Server) -> None:
    """S2.6: its own options and nothing without a look; approved by one of them, denied with a reason."""
    make, push = ask(desk, "make install"), ask(desk, "git push", "other")
    tab = desk.window().tab("/inbox")
    expect(tab.page.get_by_role("status").filter(has_text="2 requests wait")).to_be_visible()
    expect(tab.page.get_by_role("link", name="Inbox 2 waiting")).to_be_visible()
    assert tab.page.get_by_role("button", name="Allow once").count() == 0
    card = request(tab, make)
    assert card.locator(".arg-value").all_inner_texts() == ["make install"]
    words = [name.split(maxsplit=1)[1] for name in card.locator(".ways button").all_inner_texts()]
    assert words == ["Allow once", "Always allow this", "Edit, then approve", "Reject"]
    card.get_by_role("button", name="Always allow this").click()
    expect(card.locator(".verdict")).to_contain_text("✓ approved by user at")
    expect(card.locator(".verdict q")).to_have_text("Always allow this")
    expect(card.get_by_role("article")).to_be_focused()
    assert (asked(desk, make)["state"], asked(desk, make)["option"]) == ("granted", "always")
    card = request(tab, push)
    card.get_by_label("Reason to deny").fill("Not on a Friday.")
    card.get_by_role("button", name="Reject").click()
    expect(card.locator(".verdict")).to_contain_text("⊘ denied by user at")
    told = asked(desk, push)
    assert (told["state"], told["option"], told["reason"]) == ("refused", "no", "Not on a Friday.")
    expect(tab.page.get_by_role("link", name="Inbox", exact=True)).to_be_visible()
    tab.fine()


@in_browser
def test_other_arguments_are_approved_only_if_they_fit(desk: Server) -> None:
    """What is no JSON, and what the tool does not take, is said and leaves the request as it was."""
    pay = ask(desk, "pay", input={"amount": 500}, schema=SCHEMA)
    tab = desk.window(width=380).tab("/inbox")
    card = request(tab, pay)
    card.get_by_role("button", name="Edit, then approve").click()
    editor = card.get_by_label("Arguments, as JSON")
    expect(editor).to_be_focused()
    assert "amount integer, at most 100, required" in card.inner_text()
    for written, said in (('{"amount": ', "This is not JSON yet"), ('{"amount": 101}', "amount")):
        editor.fill(written)
        editor.press("Control+Enter")
        expect(card.get_by_role("alert").first).to_contain_text(said)
        assert asked(desk, pay)["state"] == "pending" and editor.input_value() == written
    assert tab.overflows() == [] and tab.axe() == []
    editor.fill('{"amount": 99}')
    held = tab.hold_answers(f"**/v1/approvals/{pay}")
    card.get_by_role("button", name="Approve with these").click()
    expect(card.locator(".verdict")).to_contain_text("✓ approved")  # By the stream, which was faster than the answer.
    tab.until(lambda: held, "the answer").pop()()
    expect(card).to_contain_text("with other arguments: amount 99", use_inner_text=True)
    (call,) = (entry for entry in desk.entries("work") if entry["type"] == "tool_call")
    assert call["rawInput"] == {"amount": 99}
    tab.forgive("422", "400")
    tab.fine()


@in_browser
def test_the_inbox_is_worked_by_keys(desk: Server) -> None:
    """`j` and `k` move, a key opens what was not looked at, then a approves, d denies and e edits: that one only."""
    ids = [ask(desk, title) for title in ("first", "second", "third")]
    tab = desk.window().tab("/inbox")
    tab.page.get_by_text("3 requests wait").wait_for()
    press = tab.page.keyboard.press
    focused = tab.page.locator("[data-approval]:has(> article:focus)")

    def states() -> list[str]:
        return [asked(desk, one)["state"] for one in ids]

    press("j")
    expect(focused).to_contain_text("first")
    press("a")
    focused.get_by_role("button", name="Allow once").wait_for()
    assert states() == ["pending"] * 3
    press("a")
    expect(focused.locator(".verdict")).to_contain_text("approved")
    press("j")
    press("Enter")
    focused.get_by_role("button", name="Reject").wait_for()
    press("d")
    tab.page.keyboard.type("No, and e is a letter")
    press("Enter")
    expect(focused.locator(".verdict")).to_contain_text("denied")
    assert asked(desk, ids[1])["reason"] == "No, and e is a letter"
    press("j")
    press("Enter")
    focused.get_by_role("button", name="Allow once").wait_for()
    press("e")
    expect(tab.page.get_by_label("Arguments, as JSON")).to_be_focused()
    press("Escape")
    expect(focused).to_contain_text("third")
    assert states() == ["granted", "refused", "pending"]
    tab.fine()


@in_browser
def test_a_request_counts_down_and_says_who_answered_elsewhere(desk: Server) -> None:
    """What is left of its time ticks; an answer from elsewhere is shown with its name and time, and goes in the end."""
    wipe = ask(desk, "wipe", expiresAt=int(time.time() * 1000) + 600_000)
    window = desk.window()
    window.context.clock.install()
    tab = window.tab("/inbox")
    card = request(tab, wipe)
    expect(card.get_by_role("timer")).to_have_text(re.compile(r"◷ (9m \d\ds|10m 00s) left"))
    tab.page.clock.run_for(560_000)
    expect(card.get_by_role("timer")).to_have_text(re.compile(r"◷ \d\ds left"))
    card.get_by_label("Reason to deny").fill("Half a sent")
    desk.ask(f"/v1/approvals/{wipe}", {"decision": "deny", "option": "no", "reason": "It is the last copy."})
    expect(card.locator(".verdict")).to_have_text(
        re.compile(r"⊘ denied by user at \d\d:\d\d:\d\d, .*Reject.*Reason: .*It is the last copy\.")
    )
    expect(card.get_by_role("button", name="Allow once")).to_have_count(0)
    tab.page.clock.run_for(10_000)
    tab.page.get_by_text("Nothing waits for you.").wait_for()
    tab.fine()


@in_browser
def test_commands_move_over_the_board(desk: Server) -> None:
    """Pending, complete, failed: a card goes from lane to lane as its command is submitted, taken up and ended."""

    def submit(action: str) -> str:
        given = {"action": action, "params": {"n": 1}, "client": "printer", "timeout": 600}
        return desk.ask("/v1/calls", given)["correlation_id"]

    def finish(end: dict[str, Any]) -> None:
        taken = desk.ask("/v1/calls/claim", {"client": "printer", "worker": "w", "wait": 1})
        expect(lane("Pending").first).to_contain_text("● running")
        desk.ask(f"/v1/calls/{taken['call']}/result", {**end, "fence": taken["fence"]})

    tab = desk.window().tab("/commands")
    tab.page.get_by_text("No commands.").wait_for()

    def lane(name: str) -> Locator:
        return tab.page.get_by_role("region", name=name).get_by_role("article")

    for action in ("print", "staple", "bind"):
        submit(action)
    expect(lane("Pending")).to_have_count(3)
    expect(lane("Pending").first).to_contain_text("○ queued")
    expect(lane("Pending").first).to_contain_text("for printer")
    expect(lane("Pending").first).to_contain_text("Next in the queue. No executor has asked")
    expect(lane("Pending").last).to_contain_text("Number 3 in the queue.")
    finish({"result": {"pages": 12}})
    expect(lane("Complete")).to_contain_text(["print"])
    finish({"error": "no staples"})
    expect(lane("Failed")).to_contain_text(["no staples"])
    lane("Pending").get_by_role("button", name="Cancel bind").click()
    expect(lane("Failed")).to_contain_text(["■ cancelled", "✗ failed"])
    expect(lane("Pending")).to_have_count(0)
    lane("Complete").get_by_role("button", name="More").click()
    expect(lane("Complete").get_by_role("group", name="Result")).to_contain_text('"pages": 12')
    expect(lane("Complete")).to_contain_text("for printer")
    tab.page.set_viewport_size({"width": 380, "height": 800})
    assert tab.axe() == [] and tab.overflows() == []
    tab.fine()


@in_browser
def test_a_prompt_box_says_where_nobody_answers(desk: Server) -> None:
    """On a server that only records there is no box, and why is said."""
    desk.tell("talk", event("message.user", text="Hello?"))
    tab = desk.window().tab("/s/talk")
    tab.page.get_by_text("Nobody answers prompts on this server").wait_for()
    assert tab.page.get_by_label("Say something to the agent").count() == 0
    tab.fine()
