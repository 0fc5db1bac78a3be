"""The view of the rules and the form for a rule, in a real Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import LOOKS, Server, in_browser, serving
from tests.support.sample_sessions import OPTIONS, completed_call, event

POLICY = """
[[rule]]
action = "deny"
input.command = "rm *"
reason = "nothing is removed here"

[[rule]]
action = "ask"
tool = "bash"
input.command = "git push *"
"""
HEIGHT = 900


@pytest.fixture
def server(browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without rules."""
    with serving(tmp_path_factory.mktemp("rules")) as started:
        yield started


@pytest.fixture
def server_with_policy(browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a policy file."""
    folder = tmp_path_factory.mktemp("policy")
    (folder / "rules.toml").write_text(POLICY)
    with serving(folder, "--port", "0", "--policy", str(folder / "rules.toml")) as started:
        yield started


def save(server: Server, action: str, command: str, **fields: Any) -> str:
    """Save a rule and return its ID."""
    rule = {
        "action": action,
        "filters": {"tool": "bash", "input": {"command": command}},
        "scope": "everywhere",
        **fields,
    }
    return server.request("/v1/rules", rule)["rule"]


def request_approval(server: Server, command: str, session: str = "work") -> str:
    """Request an approval and return its ID."""
    request = {"toolName": "bash", "kind": "execute", "input": {"command": command}, "options": OPTIONS}
    server.append(session, event("approval.requested", command, title=command, **request))
    (row,) = [one for one in server.request("/v1/approvals")["approvals"] if one["description"] == command]
    return row["approval"]


def rules_of(server: Server) -> list[tuple[str, Any, str, str]]:
    return [
        (rule["action"], rule["filters"].get("input", {}).get("command"), rule["scope"], rule["lifetime"])
        for rule in server.request("/v1/rules")["rules"]
    ]


def type_command(page: Page, command: str) -> None:
    page.locator(".test").get_by_role("textbox", name="Command").fill(command)


@in_browser
def test_rules_are_added_tested_and_revoked(server: Server) -> None:
    """A rule shows what it would have matched before it can be saved, and revoking it asks first."""
    server.append("work", *completed_call("c1", "pytest -q", text="ok"), *completed_call("c2", "make", text="ok"))
    tab = server.window().tab("/")
    page = tab.page
    page.get_by_role("link", name="Rules").click()
    expect(page.get_by_role("heading", name="No rules yet")).to_be_visible()
    page.get_by_role("button", name="New rule").click()
    form = page.get_by_role("form", name="Save rule")
    saving = form.get_by_role("button", name="Save rule")
    expect(form.get_by_role("alert").first).to_contain_text("needs a filter")
    expect(saving).to_be_disabled()
    form.get_by_label("Command").fill("npm *\nmake *")
    form.get_by_text("Would have matched 0 of the last 2 calls.").wait_for()
    form.get_by_label("Command").fill("pytest -q")
    form.get_by_text("Would have matched 1 of the last 2 calls.").click()
    expect(form.locator(".matched li")).to_have_text("pytest -q work", use_inner_text=True)
    form.get_by_text("An hour").click()
    saving.click()
    expect(form).to_have_count(0)
    expect(page.get_by_role("button", name="New rule")).to_be_focused()
    assert rules_of(server) == [("allow", "pytest -q", "everywhere", "hour")]
    row = page.locator("tr[id^=rule_]")
    expect(row).to_contain_text(re.compile(r"Allow\s*pytest -q"), use_inner_text=True)
    expect(row).to_contain_text(re.compile(r"\d\dm \d\ds left|1h 00m left"))

    type_command(page, "pytest -q")
    verdict = page.get_by_role("region", name="Result")
    expect(verdict.locator("header")).to_contain_text("Allowed")
    row.get_by_role("button", name="Revoke").click()
    expect(row.get_by_role("group")).to_contain_text("Calls like this ask again")
    row.get_by_role("button", name="Keep").click()
    assert len(rules_of(server)) == 1
    row.get_by_role("button", name="Revoke").click()
    row.get_by_role("group").get_by_role("button", name="Revoke").click()
    expect(row).to_have_count(0)
    assert rules_of(server) == []
    expect(verdict.locator("header")).to_contain_text("Asks you")  # It is tested again with the rules as they are.

    save(server, "deny", "npm publish *", reason="releases are made elsewhere")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange', { bubbles: true }))")
    expect(row).to_contain_text("releases are made elsewhere")  # The view was shown again.
    tab.ignore_problems("400", "422")
    tab.assert_no_problems()


@pytest.mark.parametrize(("theme", "width"), LOOKS)
@in_browser
def test_the_policy_file_is_above_saved_rules(server_with_policy: Server, theme: str, width: int) -> None:
    """With its name and lines, and the test lists the rules up to the one that decides."""
    server = server_with_policy
    allowing = save(server, "allow", "pytest *")
    denying = save(server, "deny", "npm *", lifetime="once")
    tab = server.window(theme, width, HEIGHT).tab(f"/rules#{allowing}")
    page = tab.page
    groups = page.locator(".rules-list tbody")
    expect(groups).to_have_count(2)
    expect(groups.first).to_contain_text(re.compile(r"Policy file \S+rules\.toml read-only here"), use_inner_text=True)
    expect(groups.first.locator("tr").nth(1)).to_contain_text(
        re.compile(r"Deny\s+rm \*[^$]*Line 2"), use_inner_text=True
    )
    expect(groups.first.locator("tr").nth(2)).to_contain_text(
        re.compile(r"Ask\s+git push \*[^$]*Line 7"), use_inner_text=True
    )
    expect(groups.first.get_by_role("button")).to_have_count(0)
    expect(groups.last.locator("tr[id]")).to_have_count(2)
    steps = page.get_by_role("list", name="Rules looked at").get_by_role("listitem")
    type_command(page, "rm -r build")
    expect(page.locator(".verdict header")).to_have_text(
        re.compile(r"Denied\s*nothing is removed here"), use_inner_text=True
    )
    expect(steps).to_have_count(1)
    expect(steps.first).to_contain_text("Policy file, line 2. Decides.")
    type_command(page, "pytest -q")
    page.get_by_label("Tool").last.fill("bash")
    expect(page.locator(".verdict header")).to_contain_text("Allowed")
    expect(steps).to_contain_text(["rm *", "git push *", "npm *", "pytest *"])
    expect(steps.nth(2)).to_contain_text("Saved. Does not match.")
    expect(steps.last).to_contain_text("Saved. Decides.")
    type_command(page, "pytest -q && git log")
    expect(page.locator(".verdict header")).to_contain_text("Asks you")
    assert tab.axe_violations() == [] and tab.find_overflow() == []
    page.locator(f"#{denying}").get_by_role("button", name="Revoke").click()
    page.get_by_role("button", name="New rule").click()
    page.get_by_role("form").get_by_label("Command").fill("make *")
    page.get_by_text("Would have matched").wait_for()
    assert tab.axe_violations() == [] and tab.find_overflow() == []
    assert server.request("/v1/calls")["calls"] == []
    tab.ignore_problems("400", "422")
    tab.assert_no_problems()


@in_browser
def test_a_rule_is_saved_with_an_approval(server: Server) -> None:
    """The proposal is edited, shows what it would have matched, and is saved with the approval; then it answers."""
    approval = request_approval(server, "git log -3")
    server.append("other", *completed_call("c1", "git log -1", text="ok"))
    tab = server.window().tab("/inbox")
    page = tab.page
    page.locator(f"[data-approval={approval}] .opener").click()
    detail = page.locator(f"[data-detail={approval}]")
    detail.get_by_role("button", name="Always allow…").click()
    form = page.get_by_role("form", name="Approve and save rule")
    expect(form.get_by_label("Command")).to_have_value("git log\ngit log *")
    expect(form.get_by_label("Command")).to_be_focused()
    expect(form.get_by_label("Tool")).to_have_value("bash")
    form.get_by_text("Would have matched 1 of the last 1 call.").wait_for()
    page.keyboard.press("Escape")
    expect(form).to_have_count(0)
    expect(detail).to_be_focused()
    detail.get_by_role("button", name="Always allow…").click()
    form.get_by_text("Everywhere").click()
    form.get_by_text("Would have matched 2 of the last 2 calls.").wait_for()
    form.get_by_text("Once").click()
    assert server.request("/v1/rules")["rules"] == []
    assert tab.axe_violations() == []
    form.get_by_role("button", name="Approve and save rule").click()
    expect(detail.get_by_text("The rule was saved.")).to_be_visible()
    assert rules_of(server) == [("allow", ["git log", "git log *"], "everywhere", "once")]
    assert server.request(f"/v1/approvals/{approval}")["option"] == "yes"

    # In a session, with a request for which there is no rule.
    protected = request_approval(server, "cat ~/.claude/settings.json", "other")
    entry = server.request(f"/v1/approvals/{protected}")["entry"]
    tab.go(f"/s/other#entry-{entry}")
    card = page.locator("article.request")
    card.get_by_role("button", name="Always allow…").click()
    expect(card.locator(".rule [role=alert]")).to_contain_text("always needs a person")
    expect(card.get_by_role("button", name="Approve and save rule")).to_have_count(0)
    card.get_by_role("button", name="Close").click()
    expect(card.get_by_role("button", name="Allow once")).to_be_visible()
    assert server.request(f"/v1/approvals/{protected}")["state"] == "pending"
    tab.assert_no_problems()


@in_browser
def test_no_rule_is_saved_if_the_approval_does_not_count(server: Server) -> None:
    """Another person denied the request while the form was open."""
    approval = request_approval(server, "git status")
    tab = server.window(width=380).tab(f"/inbox#{approval}")
    page = tab.page
    page.get_by_role("button", name="Always allow…").click()
    form = page.get_by_role("form", name="Approve and save rule")
    form.get_by_text("Would have matched").wait_for()
    page.route(f"**/v1/approvals/{approval}", lambda route: (deny(server, approval), route.continue_()))
    form.get_by_role("button", name="Approve and save rule").click()
    expect(page.locator(".decision")).to_contain_text("Denied")
    assert server.request("/v1/rules")["rules"] == []
    tab.until(lambda: tab.problems, "the conflict")
    tab.ignore_problems("409")
    tab.assert_no_problems()


def deny(server: Server, approval: str) -> None:
    server.request(f"/v1/approvals/{approval}", {"decision": "deny", "option": "no"})
