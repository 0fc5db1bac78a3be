"""What the page claims, in a real Chromium: matches and counts of long sessions, outputs, and clocks."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import expect

from tests.support.browser import Server, in_browser, show_facets
from tests.support.cli_process import free_port, running_process
from tests.support.sample_sessions import event
from tests.web.test_card import copy_text, open_card

CALLS = 1300
LIVE = "".join(f"{number}\n" for number in range(1, 5000))
ALL = "".join(f"{number}\n" for number in range(1, 20_001))


@in_browser
def test_filter_and_counts_cover_calls_that_are_not_loaded(site: Server) -> None:
    """The server filters and counts; a match that is added later appears by itself. VIEW1"""
    events = [
        event("call.completed", f"c{number}", toolName="grep" if number % 500 == 3 else "ls", title=f"step {number}")
        for number in range(CALLS)
    ]
    seq = site.append("not-loaded", *events)
    tab = site.window().tab("/s/not-loaded")
    tab.wait_for_seq(seq)
    page = tab.page
    expect(page.locator(".head")).to_contain_text("1,300 calls")
    page.get_by_role("textbox", name="Filter").fill("tool:grep")
    expect(page.locator(".filter-left")).to_have_text("3 of 1,300 entries")
    expect(page.locator(".row .call-title")).to_have_text(["step 3", "step 503", "step 1003"])
    show_facets(tab)
    expect(page.get_by_role("button", name="ls, 1,297 calls")).to_be_visible()
    site.append("not-loaded", event("call.started", "new", toolName="grep", title="a new one"))
    expect(page.locator(".row .call-title")).to_have_text(["step 3", "step 503", "step 1003", "a new one"])
    expect(page.locator(".filter-left")).to_have_text("4 of 1,301 entries")
    tab.reload()
    expect(page.locator(".filter-left")).to_have_text("4 of 1,301 entries")
    tab.assert_no_problems()


@in_browser
def test_output_ends_where_the_tool_ended(site: Server) -> None:
    """One output with its last lines, its size and what was cut; copying takes all of it. VIEW3, VIEW4"""
    more = "\n[... there is more; the last of it is shown at the end ...]\n"
    seq = site.append(
        "outputs",
        event("call.started", "big", toolName="shell", kind="execute", title="Count"),
        event("call.progress", "big", text=LIVE + more),
        event("call.completed", "big", output=ALL, cutBytes=240_319),
        event(
            "call.completed", "binary", toolName="shell", kind="execute", title="Dump", output="\x7fELF\x02\x01�\x00�"
        ),
        event("call.completed", "imported", toolName="ls", title="Imported", output="a.txt"),
    )
    window = site.window(height=2000, permissions=["clipboard-read", "clipboard-write"])
    tab = window.tab("/s/outputs")
    tab.wait_for_seq(seq)
    cards = {name: tab.page.locator(".call").filter(has_text=name) for name in ("Count", "Dump", "Imported")}
    expect(cards["Count"]).to_contain_text("240.3 kB cut")
    cards["Count"].get_by_role("button", name="Open in place").click()
    expect(cards["Count"].locator("pre")).to_have_text("\n".join(str(number) for number in range(19993, 20001)))
    expect(cards["Dump"].locator(".out")).to_have_text("Binary, 9 bytes")
    expect(cards["Imported"]).to_contain_text("a.txt")
    assert cards["Imported"].locator(".duration").count() == 0
    card = open_card(tab, "Count")
    expect(card.locator(".outputs .part")).to_have_count(1)
    expect(card.locator(".log p").first).to_have_text("11")  # The first line, and its number.
    expect(card.locator(".log p").last).to_have_text("20000")
    expect(card.locator(".outputs")).to_contain_text("The end of 108.9 kB.")
    expect(card.locator(".outputs")).to_contain_text("240.3 kB in the middle of the output were cut when the tool ran.")
    assert copy_text(tab, card, "Copy output") == ALL
    expect(card.locator(".hole")).to_contain_text("19,000 lines hidden")
    expect(card.locator(".log p").last).to_have_text("2000020000")
    tab.assert_no_problems()


@contextmanager
def running_demo(folder: Path, port: int) -> Generator[Server]:
    """Run `callslip demo` on a ledger that stays, and yield its server."""
    home = {name: str(folder) for name in ("HOME", "XDG_DATA_HOME", "TMPDIR")}
    options = ("--json", "--fast", "--no-browser", "--port", str(port), "--db", str(folder / "demo.db"))
    with running_process("demo", *options, env=home) as running:
        running.until('"url"')
        started = json.loads(running.out[0])
        yield Server(started["url"], started["token"])


@in_browser
def test_page_without_its_server_claims_nothing(tmp_path: Path) -> None:
    """It says what the agent waits for, stops its clocks, explains errors, and is signed in after a restart. VIEW5"""
    port = free_port()
    with running_demo(tmp_path, port) as server:
        window = server.window()
        window.context.clock.install()
        server.append("asks", event("turn.started", turn="t1"), event("call.started", "runs", title="Runs"))
        request = event("approval.requested", "asks", approval="appr_00000000a5c5", description="May I?")
        server.append("asks", event("call.proposed", "asks", title="Asks"), request)
        server.append("idle", event("message.user", text="hello"))
        asking, idle = window.tab("/s/asks"), window.tab("/s/idle")
        expect(asking.page.locator(".head")).to_contain_text("Waiting for approval")
        expect(asking.page.locator(".prompt-hint")).to_contain_text("The agent is waiting for an approval.")
        idle.page.get_by_label("Message the agent").fill("hello")
        duration = asking.page.locator(".duration").first
        duration.wait_for()
    asking.until(lambda: asking.state("status") != "live", "the end of the connection")
    window.context.clock.run_for(1_000)
    banner = asking.page.locator(".offline-banner")
    expect(banner).to_contain_text(re.compile(r"Shown as of [\d:]+; clocks are stopped\."))
    before = duration.inner_text()
    window.context.clock.run_for(75_000)
    assert duration.inner_text() == before
    idle.page.get_by_role("button", name="Send").click()
    expect(idle.page.locator(".prompt .error-text")).to_contain_text("The server cannot be reached.")
    assert idle.page.get_by_label("Message the agent").input_value() == "hello"
    with running_demo(tmp_path, port) as restarted:
        assert restarted.token == server.token
        window.context.clock.run_for(60_000)
        asking.until(lambda: asking.state("status") == "live", "that it is live")
        expect(banner).to_have_count(0)
