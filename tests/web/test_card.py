"""The card of a call in a real Chromium: what it tells, how much of it, and what can be taken away from it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from playwright.sync_api import Locator

from tests.support.browser import Server, Tab, in_browser, serving
from tests.support.cli_process import run
from tests.support.sample_sessions import event, ran

LINES = "".join(f"line {number}\n" for number in range(40))


def card(tab: Tab, title: str) -> Locator:
    """The card with this title, opened."""
    found = tab.page.locator(".call").filter(has_text=title)
    found.locator(".call-toggle").click()
    found.locator(".actions").wait_for()
    return found


def copied(tab: Tab, part: Locator, label: str) -> str:
    """What a button puts on the clipboard."""
    part.get_by_title(label).click()
    part.get_by_text("copied").first.wait_for()
    return str(tab.page.evaluate("navigator.clipboard.readText()"))


@in_browser
def test_what_came_out_is_shown_as_one_line_its_tail_or_all_of_it(site: Server) -> None:
    """The end of a long output at first; the reader's choices of how much and in which way hold."""
    told = ran("lines", "seq 40", text=LINES, title="Many lines")
    weather = event("call.completed", "json", title="Weather", output={"sky": "clear", "wind": {"knots": 7}})
    seq = site.tell("output", event("turn.started"), *told, weather)
    tab = site.window(height=2000).tab("/s/output")
    tab.reaches(seq)
    lines = card(tab, "Many lines")
    body = lines.locator(".part-body")
    assert "line 39" in body.inner_text() and "line 27" not in body.inner_text()
    lines.get_by_role("button", name="28 lines before this").click()
    assert body.inner_text().strip() == LINES.strip()
    lines.get_by_label("How much of Output").select_option("one line")
    assert lines.locator(".one-line").inner_text() == "line 39" and not body.count()
    json_card = card(tab, "Weather")
    shown = json_card.locator(".part-body .json").inner_text().split()
    assert shown == ["sky", '"clear"', "wind", "{knots:", "7}", "knots", "7"]
    json_card.get_by_label("Show Output as").select_option("plain")
    assert '"knots": 7' in json_card.locator("pre.plain").inner_text()
    tab.fine()


@in_browser
def test_events_raw_and_lines_to_take_away(tmp_path: Path) -> None:
    """A card's events as the log has them, its entry, and a link, a curl line and a command line that lead to it."""
    with serving(tmp_path) as site:
        takes_away(site, tmp_path / "ledger.db")


def takes_away(site: Server, ledger: Path) -> None:
    seq = site.tell("away", event("turn.started"), *ran("away-1", "ls", output="a.txt", title="Look"))
    (entry,) = site.entries("away")
    window = site.window(height=2000, permissions=["clipboard-read", "clipboard-write"])
    tab = window.tab("/s/away")
    tab.reaches(seq)
    look = card(tab, "Look")
    look.get_by_role("button", name="Events").click()
    events = look.locator(".events li")
    events.last.wait_for()
    happened = [one.split()[2] for one in events.all_inner_texts()]
    assert happened == ["call.proposed", "call.started", "call.completed"]
    look.get_by_role("button", name="Raw entry").click()
    assert entry["callId"] in look.locator(".json").last.inner_text()
    assert copied(tab, look, "Copy the whole id") == entry["callId"]
    assert copied(tab, look, "Copy a link to this call") == f"{site.url}/c/{entry['callId']}"
    curl = shlex.split(copied(tab, look, "Copy a curl line that reads this call"))
    assert curl[0] == "curl" and site.ask(curl[-1].removeprefix(site.url))["call"] == entry["callId"]
    command = shlex.split(copied(tab, look, "Copy a command line that shows this call"))
    told = run(*command[1:], "--db", str(ledger))
    assert told.returncode == 0 and entry["callId"] in told.stdout, told.stderr
    tab.fine()


@in_browser
def test_time_goes_on_for_what_is_open(site: Server) -> None:
    """The clock of a call that runs ticks, that of one that is done does not."""
    done = ran("done", "ls", output="a.txt", title="Done")
    seq = site.tell("ticks", event("turn.started"), *done, event("call.started", "runs", title="Runs"))
    window = site.window()
    window.context.clock.install()
    tab = window.tab("/s/ticks")
    tab.reaches(seq)
    first, second = tab.page.locator(".took").all()
    before = first.inner_text()
    window.context.clock.run_for(75_000)
    tab.until(lambda: re.match(r"1m [1-5]\d|[2-9]m", second.inner_text()), "that time went on")
    assert first.inner_text() == before
    tab.fine()
