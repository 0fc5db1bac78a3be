"""Tokens and costs in a real Chromium: sums, charts and shares, and what of them is not known."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from playwright.sync_api import expect

from tests.support.browser import LOOKS, Server, in_browser, serving
from tests.support.sample_sessions import HOSTILE, event

DAY_MS = 86_400_000


def used(id: str, model: str, tokens: int, at: int, **fields: Any) -> dict[str, Any]:
    return {"type": "usage.reported", "id": id, "model": model, "inputTokens": tokens, "at": at, **fields}


def add_usage(server: Server) -> None:
    """Append a session of which one model states a cost and another none, one of long ago, and one without usage."""
    now = int(time.time() * 1000)
    cost = {"cost": 0.5, "currency": "USD"}
    info = {"type": "session.info", "agent": "Codex", "project": "/home/ann/shop"}
    server.append("priced", info, used("1", "large", 12_000, now, **cost), used("2", HOSTILE[0], 4000, now))
    server.append(
        "old", {**info, "project": "/home/ann/mails"}, used("1", "large", 1_000_000, now - 40 * DAY_MS, **cost)
    )
    server.append("silent", {"type": "session.info", "agent": "Nightly"}, event("message.user", text="Build"))


@in_browser
def test_what_is_unknown_is_not_zero(browser: None, tmp_path: Path) -> None:
    """USE5: a sum that lacks something says so; a model without a cost and an agent without usage have no number."""
    with serving(tmp_path) as server:
        add_usage(server)
        for theme, width in LOOKS:
            tab = server.window(theme, width).tab("/usage")
            totals = tab.page.locator(".stats > div")
            expect(totals.nth(0)).to_have_text("Costat least$0.5025% of tokens have no stated cost")
            expect(totals.nth(1)).to_have_text("Tokens16k")
            shares = tab.page.locator(".share")
            expect(shares.nth(1).locator("li")).to_have_text(["Codex16k≥ $0.50", "Nightly–not reported"])
            expect(shares.nth(2).locator("li")).to_have_text(["large12k$0.50", f"{HOSTILE[0]}4kunknown"])
            assert shares.nth(2).locator("li").nth(1).locator(".hatch").count() == 1
            today = tab.page.locator(".bars").nth(1).locator("li").last
            expect(today).to_contain_text("≥ $0.50")
            assert today.locator(".hatch").count() == 1
            before = tab.page.locator(".bars").nth(1).locator("li").first
            expect(before).to_contain_text("no usage reported")
            assert before.locator("i").count() == 0
            assert tab.axe_violations() == [] and tab.find_overflow() == []
            tab.assert_no_problems()


@in_browser
def test_usage_has_a_time_and_filters_in_the_address(browser: None, tmp_path: Path) -> None:
    """USE5: 90 days include what 30 do not; a project leaves the others out; a reload shows the same; it is live."""
    with serving(tmp_path) as server:
        add_usage(server)
        tab = server.window().tab("/")
        tab.page.get_by_role("link", name="Usage").click()
        tokens = tab.page.locator(".stats > div").nth(1)
        expect(tokens).to_contain_text("16k")
        tab.page.get_by_role("button", name="90 days").click()
        expect(tokens).to_contain_text("1M")
        tab.page.get_by_label("Project").select_option("mails")
        expect(tab.page.locator(".list tbody tr")).to_have_count(1)
        tab.reload()
        expect(tokens).to_have_text("Tokens1M")
        expect(tab.page.locator(".bars").first.locator("li")).to_have_count(90)
        server.append("old", used("2", "large", 500_000, int(time.time() * 1000)))
        expect(tokens).to_have_text("Tokens1.5M")
        tab.page.get_by_label("Project").select_option("shop")
        tab.page.get_by_role("button", name="Today").click()
        expect(tab.page.locator(".list tbody tr")).to_have_count(1)
        tab.page.get_by_role("link", name="priced").click()
        tab.page.wait_for_url("**/s/priced")
        tab.assert_no_problems()
