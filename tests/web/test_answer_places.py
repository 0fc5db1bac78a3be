"""Requests whose answer would not reach their agent, on the page in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.browser import Server, in_browser, serving
from tests.support.sample_sessions import OPTIONS, event

PLACE = "Answer in the ACP client. An answer from here would not reach the agent."
BUTTONS = ".decide button, .reason"


@pytest.fixture
def server(browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without pending approvals."""
    with serving(tmp_path_factory.mktemp("places")) as started:
        yield started


def post_acp(server: Server, *messages: dict[str, Any]) -> None:
    server.request("/v1/sessions/editor/events?format=acp", [{"jsonrpc": "2.0", **message} for message in messages])


def request_elsewhere(server: Server) -> str:
    """Post the request of an ACP agent and return the ID of its approval."""
    call = {"toolCallId": "c1", "title": "rm -r build", "kind": "execute", "rawInput": {"command": "rm -r build"}}
    params = {"sessionId": "x", "toolCall": call, "options": OPTIONS}
    post_acp(server, {"id": 1, "method": "session/request_permission", "params": params})
    (approval,) = server.request("/v1/approvals?session=editor")["approvals"]
    return approval["approval"]


@in_browser
def test_a_request_that_must_be_answered_elsewhere_has_no_buttons(server: Server) -> None:
    """The inbox lists it last, with its parameters and the place, does not count it, and shows the real answer."""
    elsewhere = request_elsewhere(server)
    tab = server.window().tab("/inbox")
    status = tab.page.get_by_role("status").filter(has_text="elsewhere")
    row = tab.page.locator(f"[data-approval={elsewhere}]")
    detail = tab.page.locator(f"[data-detail={elsewhere}]")
    row.get_by_role("button").click()
    expect(detail.get_by_label("Command")).to_have_text("rm -r build")
    expect(detail).to_contain_text(PLACE, use_inner_text=True)
    expect(status).to_have_text("1 to answer elsewhere")
    expect(tab.page.get_by_role("link", name="Inbox", exact=True)).to_be_visible()
    assert detail.locator(BUTTONS).count() == 0 and row.get_by_role("checkbox").count() == 0
    detail.focus()
    for key in ("a", "e", "d"):
        tab.page.keyboard.press(key)
    request = {"toolName": "bash", "input": {"command": "make"}, "options": OPTIONS}
    server.append("work", event("approval.requested", "make", description="make", **request))
    expect(status).to_have_text("1 pending, 1 to answer elsewhere")
    expect(tab.page.get_by_role("link", name="Inbox 1 pending")).to_be_visible()
    assert tab.find_overflow() == [] and tab.axe_violations() == []
    tab.reload()
    expect(tab.page.locator("[data-approval]").last).to_have_attribute("data-approval", elsewhere)
    assert server.request(f"/v1/approvals/{elsewhere}")["state"] == "pending"
    post_acp(server, {"id": 1, "result": {"outcome": {"outcome": "selected", "optionId": OPTIONS[0]["optionId"]}}})
    row.get_by_role("button").click()
    expect(detail.locator(".decision")).to_contain_text("✓ Approved by client at")
    expect(detail).not_to_contain_text("Answer in")
    tab.assert_no_problems()


@in_browser
def test_a_session_says_where_its_request_must_be_answered(server: Server) -> None:
    """On the request and on its call; the list of sessions does not count it as to approve."""
    request_elsewhere(server)
    tab = server.window(theme="dark", width=380).tab("/s/editor")
    card = tab.page.locator("article.request")
    expect(card).to_contain_text(PLACE, use_inner_text=True)
    assert card.locator(BUTTONS).count() == 0
    tab.open_all()
    expect(tab.page.get_by_text("Waiting for approval in the ACP client.")).to_be_visible()
    assert tab.find_overflow() == [] and tab.axe_violations() == []
    tab.go("/")
    expect(tab.page.get_by_role("link", name="editor")).to_be_visible()
    expect(tab.page.locator("a.session")).not_to_contain_text("to approve")
    expect(tab.page.locator("a.session")).not_to_contain_text("running")
    tab.assert_no_problems()
