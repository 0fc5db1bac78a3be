"""The card of a call in a real Chromium: its output, its events, and what can be copied from it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from playwright.sync_api import Locator, expect

from tests.support.browser import Server, Tab, in_browser, serving
from tests.support.cli_process import run
from tests.support.sample_sessions import completed_call, event

LINES = "".join(f"line {number}\n" for number in range(40))


def open_card(tab: Tab, title: str) -> Locator:
    """Choose the call with this title, and return the panel with its details."""
    tab.page.locator(".call-title").filter(has_text=title).click()
    panel = tab.page.get_by_role("region", name="Details of the call")
    panel.get_by_role("heading", name=title).wait_for()
    return panel


def copy_text(tab: Tab, part: Locator, label: str) -> str:
    """Press a copy button and return the content of the clipboard."""
    part.get_by_title(label, exact=True).click()
    part.get_by_text("Copied").first.wait_for()
    return str(tab.page.evaluate("navigator.clipboard.readText()"))


@in_browser
def test_output_is_shown_in_place_and_in_full(site: Server) -> None:
    """In place a call shows its last lines; the panel has all of them with numbers, finds a text, and has formats."""
    call = completed_call("lines", "seq 40", text=LINES, title="Many lines")
    weather = event("call.completed", "json", title="Weather", output={"sky": "clear", "wind": {"knots": 7}})
    seq = site.append("output", event("turn.started"), *call, weather)
    tab = site.window(width=1440).tab("/s/output")
    tab.wait_for_seq(seq)
    row = tab.page.locator(".row", has_text="Many lines")
    expect(row.locator(".out")).to_have_text("line 39")
    row.get_by_role("button", name="Open in place").click()
    expect(row.locator(".terminal")).to_have_text(LINES[LINES.index("line 32") :].strip())
    expect(row).to_contain_text("32 earlier lines hidden")
    row.get_by_role("button", name="Open in panel").click()
    lines = open_card(tab, "Many lines")
    log = lines.get_by_role("group", name="Output").locator(".log")
    assert log.locator("p span").all_inner_texts() == LINES.split("\n")[:-1]
    assert log.locator("p i").all_inner_texts() == [str(number) for number in range(1, 41)]
    lines.get_by_role("button", name="Find in output").click()
    lines.get_by_role("textbox", name="Find in output").fill("LINE 3")
    expect(lines.get_by_role("status").first).to_have_text("1 of 11")
    tab.page.keyboard.press("Enter")
    expect(log.locator("p.current span")).to_have_text("line 30")
    json_card = open_card(tab, "Weather")
    shown = json_card.locator(".part-body .json").inner_text().split()
    assert shown == ["sky", '"clear"', "wind", "{knots:", "7}", "knots", "7"]
    json_card.get_by_label("Output format").select_option("plain")
    assert '"knots": 7' in json_card.locator(".log").inner_text()
    tab.assert_no_problems()


@in_browser
def test_hidden_lines_of_a_long_output_are_counted(site: Server) -> None:
    """The panel shows the first and the last lines of a long output, and more of those between them on request."""
    text = "".join(f"line {number}\n" for number in range(3000))
    seq = site.append("hidden-lines", *completed_call("many", "seq 3000", text=text, title="Many lines"))
    tab = site.window(width=1440).tab("/s/hidden-lines")
    tab.wait_for_seq(seq)
    panel = open_card(tab, "Many lines")
    if panel.get_by_role("button", name="Load full output").count():
        panel.get_by_role("button", name="Load full output").click()
    expect(panel.locator(".hole")).to_contain_text("2,000 lines hidden")
    panel.get_by_role("button", name="Show 500 more").click()
    expect(panel.locator(".hole")).to_contain_text("1,500 lines hidden")
    numbers = panel.locator(".log p i").all_inner_texts()
    assert numbers == [str(number) for number in [*range(1, 801), *range(2301, 3001)]]
    tab.assert_no_problems()


@in_browser
def test_events_raw_entry_and_copy_buttons(tmp_path: Path) -> None:
    """A card shows its events and its raw entry, and copies its ID, a link, a curl command and a CLI command."""
    with serving(tmp_path) as site:
        check_copy_buttons(site, tmp_path / "ledger.db")


def check_copy_buttons(site: Server, ledger: Path) -> None:
    seq = site.append("away", event("turn.started"), *completed_call("away-1", "ls", output="a.txt", title="Look"))
    (entry,) = site.entries("away")
    window = site.window(height=2000, permissions=["clipboard-read", "clipboard-write"])
    tab = window.tab("/s/away")
    tab.wait_for_seq(seq)
    card = open_card(tab, "Look")
    assert copy_text(tab, card, "Copy ID of the call") == entry["callId"]
    card.get_by_role("tab", name="Events").click()
    events = card.locator(".events li")
    events.last.wait_for()
    types = events.locator(".fold-head code").all_inner_texts()
    assert types == ["call.proposed", "call.started", "call.completed"]
    card.get_by_role("tab", name="Raw").click()
    assert entry["callId"] in card.locator(".json").last.inner_text()
    card.get_by_role("button", name="More").click()
    assert copy_text(tab, card, "Copy ID") == entry["callId"]
    assert copy_text(tab, card, "Copy link") == f"{site.url}/c/{entry['callId']}"
    curl = shlex.split(copy_text(tab, card, "Copy as curl"))
    assert curl[0] == "curl" and site.request(curl[-1].removeprefix(site.url))["call"] == entry["callId"]
    command = shlex.split(copy_text(tab, card, "Copy as CLI command"))
    result = run(*command[1:], "--db", str(ledger))
    assert result.returncode == 0 and entry["callId"] in result.stdout, result.stderr
    tab.assert_no_problems()


@in_browser
def test_duration_of_an_open_call_ticks(site: Server) -> None:
    """The duration of a running call ticks, that of a completed one does not."""
    times = zip(completed_call("done", "ls", output="a.txt", title="Done"), (1000, 2000, 3500), strict=True)
    completed = [{**one, "at": at} for one, at in times]
    seq = site.append("ticks", event("turn.started"), *completed, event("call.started", "runs", title="Runs"))
    window = site.window()
    window.context.clock.install()
    tab = window.tab("/s/ticks")
    tab.wait_for_seq(seq)
    first, second = tab.page.locator(".duration").all()
    assert (before := first.inner_text()) == "1.5s"
    window.context.clock.run_for(75_000)
    tab.until(lambda: re.match(r"1m [1-5]\d|[2-9]m", second.inner_text()), "a longer duration")
    assert first.inner_text() == before
    tab.assert_no_problems()
