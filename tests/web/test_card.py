"""The card of a call in a real Chromium: its output, its events, and what can be copied from it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from playwright.sync_api import Locator

from tests.support.browser import Server, Tab, in_browser, serving
from tests.support.cli_process import run
from tests.support.sample_sessions import completed_call, event

LINES = "".join(f"line {number}\n" for number in range(40))


def open_card(tab: Tab, title: str) -> Locator:
    """Open the card with this title."""
    card = tab.page.locator(".call").filter(has_text=title)
    card.locator(".call-toggle").click()
    card.locator(".actions").wait_for()
    return card


def copy_text(tab: Tab, part: Locator, label: str) -> str:
    """Press a copy button and return the content of the clipboard."""
    part.get_by_title(label, exact=True).click()
    part.get_by_text("Copied").first.wait_for()
    return str(tab.page.evaluate("navigator.clipboard.readText()"))


@in_browser
def test_output_is_shown_as_one_line_last_lines_or_full(site: Server) -> None:
    """The last lines of a long output are shown first; the user can choose the length and the format."""
    call = completed_call("lines", "seq 40", text=LINES, title="Many lines")
    weather = event("call.completed", "json", title="Weather", output={"sky": "clear", "wind": {"knots": 7}})
    seq = site.append("output", event("turn.started"), *call, weather)
    tab = site.window(height=2000).tab("/s/output")
    tab.wait_for_seq(seq)
    lines = open_card(tab, "Many lines")
    body = lines.locator(".part-body")
    assert "line 39" in body.inner_text() and "line 27" not in body.inner_text()
    lines.get_by_role("button", name="Show 28 earlier lines").click()
    assert body.inner_text().strip() == LINES.strip()
    lines.get_by_label("Output length").select_option("One line")
    assert lines.locator(".one-line").inner_text() == "line 39" and not body.count()
    json_card = open_card(tab, "Weather")
    shown = json_card.locator(".part-body .json").inner_text().split()
    assert shown == ["sky", '"clear"', "wind", "{knots:", "7}", "knots", "7"]
    json_card.get_by_label("Output format").select_option("plain")
    assert '"knots": 7' in json_card.locator("pre.plain").inner_text()
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
    card.get_by_role("button", name="Events").click()
    events = card.locator(".events li")
    events.last.wait_for()
    types = [text.split()[2] for text in events.all_inner_texts()]
    assert types == ["call.proposed", "call.started", "call.completed"]
    card.get_by_role("button", name="Raw entry").click()
    assert entry["callId"] in card.locator(".json").last.inner_text()
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
