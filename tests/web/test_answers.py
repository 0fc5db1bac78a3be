"""The inbox with its keyboard shortcuts, the command board and the prompt box, in a real Chromium."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.support.browser import Server, Tab, in_browser, serving
from tests.support.sample_sessions import OPTIONS, completed_call, event

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
    """Choose a request of the inbox, and return its page when it is shown in full."""
    tab.page.locator(f"[data-approval={approval}] .opener").click()
    detail = tab.page.locator(f"[data-detail={approval}]")
    detail.locator(".bigcmd, .arg-value, .question, .plan-text").first.wait_for()
    return detail


def wait_for_keys(tab: Tab, approval: str) -> None:
    """Wait until the list has not changed for so long that keys answer the chosen request."""
    tab.page.locator(f"[data-detail={approval}][aria-keyshortcuts]").wait_for()


def press_until_focused(tab: Tab, key: str, field: Locator) -> None:
    """Press a key until it has moved the focus: while the list changes, keys do nothing."""

    def press() -> bool:
        if not field.count() or not field.evaluate("(field) => field === document.activeElement"):
            tab.page.keyboard.press(key)
        return bool(field.count()) and bool(field.evaluate("(field) => field === document.activeElement"))

    tab.until(press, f"the focus after {key}")


@in_browser
def test_requests_are_answered_with_the_agents_options(server: Server) -> None:
    """One request is approved by an option, the other denied with a reason; then both are among the decided ones."""
    make, push = request_approval(server, "make install"), request_approval(server, "git push", "other")
    tab = server.window().tab("/inbox")
    expect(tab.page.get_by_role("status").filter(has_text="2 pending")).to_be_visible()
    expect(tab.page.get_by_role("link", name="Inbox 2 pending")).to_be_visible()
    detail = open_request(tab, make)
    expect(detail.get_by_label("Command")).to_have_text("make install")
    expect(detail.get_by_role("button", name="Allow once")).to_be_visible()
    labels = [name.split("\n")[0] for name in detail.locator(".decide button").all_inner_texts()]
    assert labels == ["Allow once", "Always allow this", "Edit…", "Always allow…", "Reject"]
    detail.get_by_role("button", name="Always allow this").click()
    expect(detail.locator(".decision")).to_contain_text("✓ Approved by user at")
    expect(detail.locator(".decision q")).to_have_text("Always allow this")
    expect(detail).to_be_focused()
    assert (get_approval(server, make)["state"], get_approval(server, make)["option"]) == ("granted", "always")
    detail = open_request(tab, push)
    detail.get_by_label("Reason (sent to the agent)").fill("Not on a Friday.")
    detail.get_by_role("button", name="Reject").click()
    expect(detail.locator(".decision")).to_contain_text("⊘ Denied by user at")
    denied = get_approval(server, push)
    assert (denied["state"], denied["option"], denied["reason"]) == ("refused", "no", "Not on a Friday.")
    expect(tab.page.get_by_role("link", name="Inbox", exact=True)).to_be_visible()
    tab.reload()
    decided = tab.page.locator("[data-decided]")
    expect(decided).to_have_count(2)
    expect(decided.nth(0)).to_contain_text("Denied by user: Not on a Friday.")
    expect(decided.nth(1)).to_contain_text("Approved by user")
    decided.nth(1).get_by_role("button").click()
    expect(tab.page.locator(f"[data-detail={make}] .decision")).to_contain_text("Approved by user")
    tab.assert_no_problems()


LONG_COMMAND = "cd /srv/app && ./deploy.sh " + " ".join(f"--set key{number}=value{number}" for number in range(60))


@in_browser
def test_a_request_shows_why_and_what_came_before(server: Server) -> None:
    """The full command, what the agent said, its last calls, the turn, and the files; on a phone as its own screen."""
    server.append("work", event("turn.started"), event("message.user", text="Deploy it."))
    for number in range(4):
        server.append("work", *completed_call(f"c{number}", f"make step{number}", text="ok"))
    server.append("work", event("message.delta", text="The steps are done, so I deploy.", chunks="delta"))
    locations = [{"path": "/srv/app/deploy.sh"}]
    server.append("work", event("call.proposed", LONG_COMMAND[:50], toolName="bash", locations=locations))
    server.append(
        "work",
        event(
            "approval.requested",
            LONG_COMMAND[:50],
            description="Deploy",
            input={"command": LONG_COMMAND, "cwd": "/srv"},
            options=OPTIONS,
        ),
    )
    (approval,) = server.request("/v1/approvals")["approvals"]
    window = server.window("dark", 380, 780, has_touch=True)
    tab = window.tab("/inbox")
    opener = tab.page.locator(f"[data-approval={approval['approval']}] .opener")
    opener.wait_for()
    expect(tab.page.locator(".request.whole")).to_have_count(0)
    detail = open_request(tab, approval["approval"])
    expect(opener).to_be_hidden()
    expect(detail.get_by_label("Command")).to_have_text(LONG_COMMAND)
    assert detail.get_by_label("Command").evaluate("(one) => one.scrollHeight <= one.clientHeight + 2")
    expect(detail.get_by_label("What the agent said")).to_have_text("The steps are done, so I deploy.")
    expect(detail.locator(".flat-rows li")).to_have_count(3)
    expect(detail.locator(".flat-rows li").last).to_contain_text("make step3")
    expect(detail.get_by_role("list", name="Files")).to_have_text("/srv/app/deploy.sh")
    expect(detail.locator(".about")).to_contain_text("turn 1, asked just now, with bash", use_inner_text=True)
    assert tab.axe_violations() == [] and tab.find_overflow() == []
    tab.reload()  # The address names the request.
    detail.get_by_role("button", name="Back to the list").click()
    expect(opener).to_be_focused()
    tab.assert_no_problems()


@in_browser
def test_questions_and_plans_are_readable(server: Server) -> None:
    """A question shows its options with what they mean; a plan is Markdown. Neither can be edited, or have a rule."""
    choices = [
        {"label": "PostgreSQL", "description": "Several servers."},
        {"label": "SQLite", "description": "One file."},
    ]
    question = {"question": "Which database?", "header": "Database", "options": choices, "multiSelect": False}
    options = [{"optionId": "choice-1", "name": "PostgreSQL", "kind": "choice"}, OPTIONS[2]]
    approval = request_approval(
        server, "Which database?", toolName="AskUserQuestion", input={"questions": [question]}, options=options
    )
    plan = request_approval(server, "Plan", toolName="ExitPlanMode", input={"plan": "# Steps\n\n1. Copy **all**"})
    leave = [{"optionId": "leave", "name": "Let the agent decide", "kind": "allow_once"}, OPTIONS[2]]
    left = request_approval(server, "rm -r build", options=leave)
    tab = server.window().tab("/inbox")
    detail = open_request(tab, approval)
    expect(detail.locator(".question li")).to_have_text(["PostgreSQL: Several servers.", "SQLite: One file."])
    expect(detail.locator(".decide button")).to_have_text(["PostgreSQL", re.compile("Reject")])
    wait_for_keys(tab, approval)
    detail.focus()
    tab.page.keyboard.press("a")  # No option allows the call as such.
    assert tab.axe_violations() == []
    detail.get_by_role("button", name="PostgreSQL").click()
    expect(detail.locator(".decision")).to_contain_text("PostgreSQL")
    assert get_approval(server, approval)["option"] == "choice-1"
    detail = open_request(tab, plan)
    expect(detail.locator(".plan-text strong")).to_have_text("all")
    expect(detail.get_by_role("button", name="Edit…")).to_have_count(0)
    detail = open_request(tab, left)
    expect(detail.locator(".decide button").first).to_have_text("Let the agent decide")
    expect(detail.get_by_role("button", name="Always allow…")).to_have_count(0)
    expect(detail.locator(".yes")).to_have_count(0)
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
    """`j` and `k` choose a request; `a` approves, `d` denies and `e` edits the focused one only."""
    ids = [request_approval(server, title) for title in ("first", "second", "third")]
    tab = server.window().tab("/inbox")
    tab.page.get_by_role("status").filter(has_text="3 pending").wait_for()
    press = tab.page.keyboard.press
    focused = tab.page.locator("[data-approval]:has(:focus)")
    detail = tab.page.locator(".request.whole")

    def read_states() -> list[str]:
        return [get_approval(server, approval)["state"] for approval in ids]

    wait_for_keys(tab, ids[0])
    press("a")  # Nothing has the focus.
    press("j")
    expect(focused).to_contain_text("first")
    for key in ("Control+a", "Shift+A", "Alt+d", "Meta+a"):
        press(key)
    tab.page.evaluate(
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key: 'a', repeat: true, bubbles: true }))"
    )
    assert read_states() == ["pending"] * 3
    press("a")
    expect(detail.locator(".decision")).to_contain_text("Approved")
    press("j")
    expect(focused).to_contain_text("second")
    wait_for_keys(tab, ids[1])
    press_until_focused(tab, "d", detail.locator(".reason"))
    tab.page.keyboard.type("No, and e is a letter")
    press("Enter")
    expect(detail.locator(".decision")).to_contain_text("Denied")
    assert get_approval(server, ids[1])["reason"] == "No, and e is a letter"
    expect(detail).to_be_focused()
    press("j")
    wait_for_keys(tab, ids[2])
    press_until_focused(tab, "e", tab.page.get_by_label("Parameters (JSON)"))
    press("Escape")
    expect(detail).to_be_focused()
    assert read_states() == ["granted", "refused", "pending"]
    tab.assert_no_problems()


@in_browser
def test_keys_answer_nothing_shortly_after_the_list_has_changed(server: Server) -> None:
    """For half a second, because the list may change while the finger is on its way. The clock is that of the test."""
    first = request_approval(server, "first")
    window = server.window()
    window.context.clock.install()
    tab = window.tab("/inbox")
    detail = open_request(tab, first)
    detail.get_by_role("button", name="Allow once").wait_for()
    tab.page.clock.run_for(1000)
    wait_for_keys(tab, first)
    tab.page.clock.pause_at(tab.page.evaluate("Date.now()") + 1000)
    second = request_approval(server, "second")
    tab.page.locator(f"[data-approval={second}]").wait_for()
    expect(tab.page.locator(f"[data-detail={first}][aria-keyshortcuts]")).to_have_count(0)
    detail.focus()
    tab.page.keyboard.press("a")
    tab.page.clock.run_for(400)
    tab.page.keyboard.press("a")
    assert [get_approval(server, one)["state"] for one in (first, second)] == ["pending", "pending"]
    tab.page.clock.run_for(200)
    wait_for_keys(tab, first)
    tab.page.keyboard.press("a")
    expect(detail.locator(".decision")).to_contain_text("Approved")
    assert get_approval(server, second)["state"] == "pending"
    tab.assert_no_problems()


@in_browser
def test_request_counts_down_and_shows_an_answer_from_elsewhere(server: Server) -> None:
    """The time left ticks; an answer from elsewhere is shown with its author and time, and then among the decided."""
    wipe = request_approval(server, "wipe", expiresAt=int(time.time() * 1000) + 600_000)
    window = server.window()
    window.context.clock.install()
    tab = window.tab("/inbox")
    card = open_request(tab, wipe)
    expect(card.get_by_role("timer")).to_have_text(re.compile(r"(9m \d\ds|10m 00s) left"))
    tab.page.clock.run_for(560_000)
    expect(card.get_by_role("timer")).to_have_text(re.compile(r"\d\ds left"))
    card.get_by_label("Reason (sent to the agent)").fill("Half a sent")
    server.request(f"/v1/approvals/{wipe}", {"decision": "deny", "option": "no", "reason": "It is the last copy."})
    expect(card.locator(".decision")).to_have_text(
        re.compile(r"⊘ Denied by user at \d\d:\d\d:\d\d, .*Reject.*Reason: .*It is the last copy\.")
    )
    expect(card.get_by_role("button", name="Allow once")).to_have_count(0)
    tab.page.clock.run_for(10_000)
    tab.page.get_by_text("You're all caught up.").wait_for()
    expect(tab.page.locator(f"[data-decided={wipe}]")).to_contain_text("Denied by user: It is the last copy.")
    tab.assert_no_problems()


@in_browser
def test_several_requests_are_answered_as_they_were_shown(server: Server) -> None:
    """Each is shown in full first. Those that were answered, changed or came meanwhile are left out."""
    titles = ("make one", "make two " + "x" * 200, "make three", "make four")
    ids = [request_approval(server, title) for title in titles]
    tab = server.window().tab("/inbox")
    for title in titles:
        tab.page.get_by_role("checkbox", name=f"Choose {title}").check()
    tab.page.get_by_role("checkbox", name="Choose make four").uncheck()
    held = tab.hold_responses("**/v1/approvals/answers")
    tab.page.get_by_role("button", name="Approve 3…").click()
    dialog = tab.page.get_by_role("dialog")
    expect(dialog.get_by_label("Command")).to_have_text(list(titles[:3]))
    assert tab.axe_violations() == []
    late = request_approval(server, "too late")
    server.request(f"/v1/approvals/{ids[0]}", {"decision": "deny", "option": "no"})
    expect(dialog.locator(f"[data-request={ids[0]}]")).to_contain_text("Left out: it was answered meanwhile")
    # The call of the third request changes its arguments: the server knows it before the page does.
    server.append("work", event("call.progress", titles[2], input={"command": "make something else"}))
    dialog.get_by_role("button", name="Approve 2", exact=True).click()
    tab.until(lambda: held, "the answers").pop()()
    expect(dialog.get_by_role("heading", name="Results")).to_be_visible()
    expect(dialog.locator(f"[data-request={ids[1]}]")).to_contain_text("Approved")
    expect(dialog.locator(f"[data-request={ids[2]}]")).to_contain_text("Left out: it has changed since it was shown")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)
    states = [get_approval(server, approval)["state"] for approval in (*ids, late)]
    assert states == ["refused", "granted", "pending", "pending", "pending"]
    tab.page.set_viewport_size({"width": 380, "height": 780})
    tab.page.get_by_role("button", name="Back to the list").click()
    tab.page.get_by_role("checkbox", name="Choose make four").check()
    tab.page.get_by_role("button", name="Deny 1…").click()
    dialog.get_by_label("Reason (sent to the agents)").fill("not now")
    assert tab.axe_violations() == [] and tab.find_overflow() == []
    dialog.get_by_role("button", name="Deny 1", exact=True).click()
    tab.until(lambda: held, "the answers").pop()()
    expect(dialog.locator(f"[data-request={ids[3]}]")).to_contain_text("Denied")
    assert get_approval(server, ids[3])["reason"] == "not now"
    tab.assert_no_problems()


@in_browser
def test_commands_move_from_group_to_group(server: Server) -> None:
    """A row moves from group to group as its command is submitted, claimed and ended."""

    def submit(action: str) -> str:
        command = {"action": action, "params": {"n": 1}, "client": "printer", "timeout": 600}
        return server.request("/v1/calls", command)["correlation_id"]

    def finish(end: dict[str, Any]) -> None:
        claimed = server.request("/v1/calls/claim", {"client": "printer", "worker": "w", "wait": 1})
        expect(rows("Running")).to_contain_text(["Running"])
        server.request(f"/v1/calls/{claimed['call']}/result", {**end, "fence": claimed["fence"]})

    tab = server.window().tab("/commands")
    tab.page.get_by_text("No commands yet").wait_for()

    def rows(group: str) -> Locator:
        return tab.page.locator("tbody", has=tab.page.get_by_role("rowheader", name=group)).locator(".command")

    for action in ("print", "staple", "bind"):
        submit(action)
    expect(rows("Queued")).to_have_count(3)
    expect(rows("Queued").first).to_contain_text("printer")
    expect(rows("Queued").first).to_contain_text("Position 1. No worker has connected yet.")
    expect(rows("Queued").last).to_contain_text("Position 3.")
    finish({"result": {"pages": 12}})
    expect(rows("Finished")).to_contain_text(["print"])
    expect(rows("Queued").last).to_contain_text("Worker last seen")
    finish({"error": "no staples"})
    expect(rows("Finished")).to_contain_text(["Failed: no staples", "Completed"])
    rows("Queued").get_by_role("button", name="Cancel bind").click()
    expect(rows("Finished")).to_contain_text(["Cancelled", "Failed", "Completed"])
    expect(rows("Queued")).to_have_count(0)
    rows("Finished").get_by_role("button", name="Show details of print").click()
    expect(tab.page.get_by_role("group", name="Result")).to_contain_text('"pages": 12')
    tab.page.set_viewport_size({"width": 380, "height": 800})
    assert tab.axe_violations() == [] and tab.find_overflow() == []
    tab.assert_no_problems()


@in_browser
def test_a_command_is_approved_or_denied_in_the_table(server: Server) -> None:
    """A command that waits for approval shows what it would do, with the buttons of its request."""
    commands = {
        name: server.request("/v1/calls", {"action": name, "params": {"env": f"{name}-env"}, "approve": "ask"})
        for name in ("deploy", "wipe")
    }
    tab = server.window("dark", 380).tab("/commands")
    group = tab.page.locator("tbody", has=tab.page.get_by_role("rowheader", name="Waiting for approval"))
    expect(group.locator(".command")).to_have_count(2)
    deploy, wipe = (tab.page.get_by_role("group", name=f"Approval of {name}") for name in commands)
    expect(deploy).to_contain_text("deploy-env")
    expect(wipe).to_contain_text("wipe-env")
    assert tab.axe_violations() == [] and tab.find_overflow() == []
    deploy.locator("[data-action=edit]").click()
    deploy.get_by_role("button", name="Cancel").click()
    expect(deploy.locator("[data-action=allow]")).to_be_visible()
    deploy.focus()
    tab.page.keyboard.press("a")
    expect(group.locator(".command")).to_have_count(1)
    expect(tab.page.locator("tbody", has_text="Queued").locator(".command")).to_contain_text(["deploy"])
    wipe.get_by_placeholder("Reason").fill("not now")
    wipe.locator("[data-action=deny]").click()
    expect(tab.page.locator(".command", has_text="Denied: not now")).to_contain_text("wipe")
    states = [server.request(f"/v1/calls/{one['correlation_id']}")["state"] for one in commands.values()]
    assert states == ["queued", "denied"]
    tab.assert_no_problems()


@in_browser
def test_session_without_an_agent_shows_a_reason_instead_of_a_prompt_box(server: Server) -> None:
    """A server that only records has no prompt box."""
    server.append("talk", event("message.user", text="Hello?"))
    tab = server.window().tab("/s/talk")
    expect(tab.page.locator(".no-prompt")).to_contain_text(re.compile(r"\w+"))
    assert tab.page.get_by_label("Message the agent").count() == 0
    tab.assert_no_problems()
