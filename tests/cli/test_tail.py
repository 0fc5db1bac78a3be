"""`callslip tail` in a pipe and on a terminal, on a file that another process writes, and through a server."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from callslip.api.ledger import LocalLedger, open_ledger
from callslip.cli import exit_status
from callslip.cli.terminal.patched_session import PatchedSession
from callslip.model import events as ev
from callslip.model.entries import Snapshot
from callslip.model.events import Alias, Event
from tests.support.cli_process import ServeProcess, Terminal, run, running_process, serving, with_ledger

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x1b]52;c;aGk=\x07\x9b31mred\x7f\u202egpj.exe\u2066\r\u200b\ufeffend"
HIDDEN_CHARACTERS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)
CALL = (Alias("t", "c1"),)
FIRST_EVENTS: list[Event] = [
    ev.TurnStarted(),
    ev.MessageUser(text="go on"),
    ev.MessageDelta(text="I look. ", chunks="delta"),
]
PROPOSED = ev.CallProposed(tool_name="rm", title="Remove it", input={"path": "/x"}, scope="detached", aliases=CALL)
LATER_EVENTS: list[Event] = [
    PROPOSED,
    ev.CallStarted(aliases=CALL),
    ev.CallCompleted(output="gone", aliases=CALL),
    ev.MessageDelta(text="It is ", chunks="delta"),
    ev.MessageDelta(text="done.", chunks="delta"),
    ev.TurnEnded(reason="end_turn"),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "ledger.db"
    append_events(file, *FIRST_EVENTS)
    return file


def append_events(path: Path, *events: Event) -> None:
    """Append events to the session, one at a time, as another process does."""

    async def append(ledger: LocalLedger) -> None:
        for event in events:
            await ledger.log.append("work", [event], source="test")

    with_ledger(path, append)


def location_options(path: Path, server: ServeProcess | None) -> list[str]:
    return ["--server", server.url] if server else ["--db", str(path)]


@pytest.fixture(params=["file", "server"])
def location(request: pytest.FixtureRequest, path: Path) -> Any:
    """Return the options with which a command uses the file, or a server."""
    if request.param == "file":
        yield location_options(path, None)
        return
    with serving(path) as server:
        yield location_options(path, server)


def replay_lines(lines: list[Any]) -> PatchedSession:
    """Return the session that a client has after these lines."""
    view = PatchedSession()
    for line in lines:
        if "snapshot" in line:
            fields = line["snapshot"]
            view.load(Snapshot(fields["session"], fields["seq"], fields["info"], fields["entries"]))
        else:
            view.apply(line["seq"], line["patches"])
    return view


def read_snapshot(path: Path) -> Snapshot:
    async def read(ledger: LocalLedger) -> Snapshot:
        return await ledger.snapshot("work")

    return with_ledger(path, read)


# In a pipe


def test_tail_prints_a_snapshot_and_then_patches(path: Path, location: list[str]) -> None:
    """The lines replayed give the snapshot of the ledger; with --until-end it exits after the turn."""
    with running_process("tail", "--until-end", *location) as tail:
        tail.until('"snapshot"')
        append_events(path, *LATER_EVENTS)
        assert tail.end() == 0, tail.err
    lines = tail.lines()
    assert list(lines[0]) == ["snapshot"]
    assert [list(line) for line in lines[1:]] == [["seq", "patches"]] * len(LATER_EVENTS)
    assert replay_lines(lines).equals(read_snapshot(path))


def test_tail_prints_events_after_the_given_seq(path: Path, location: list[str]) -> None:
    """The events equal those of export."""
    with running_process("tail", "work", "--format", "events", "--after", "3", "--until-end", *location) as tail:
        append_events(path, LATER_EVENTS[0])
        tail.until("call.proposed")
        append_events(path, *LATER_EVENTS[1:])
        assert tail.end() == 0
    log = json.loads(run("export", "work", "--format", "events", "--db", str(path)).stdout)["events"]
    assert tail.lines() == log[len(FIRST_EVENTS) :]


def test_tail_from_start_prints_every_event_or_patch(path: Path, location: list[str]) -> None:
    """This holds in the formats events and entries."""
    append_events(path, *LATER_EVENTS)
    events = run("tail", "--from-start", "--until-end", "--format", "events", *location)
    assert [json.loads(line)["seq"] for line in events.stdout.splitlines()] == list(range(1, 10))
    patches = run("tail", "--from-start", "--until-end", *location)
    lines = [json.loads(line) for line in patches.stdout.splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, 10))
    assert replay_lines(lines).equals(read_snapshot(path))


def test_tail_from_start_of_a_pruned_log_prints_the_rest(path: Path, location: list[str]) -> None:
    """A seq that retention removed gives status 3."""
    append_events(path, *LATER_EVENTS, ev.TurnStarted(), ev.MessageUser(text="more"))

    async def prune(ledger: LocalLedger) -> None:
        await ledger.log.project("work")
        assert await ledger.prune(-1)

    with_ledger(path, prune)
    result = run("tail", "--after", "1", *location)
    assert result.returncode == exit_status.NOT_FOUND and "retention" in result.stderr
    with running_process("tail", "--from-start", "--until-end", *location) as tail:
        tail.until('"snapshot"')
        append_events(path, ev.TurnEnded(reason="end_turn"))
        assert tail.end() == 0
    assert replay_lines(tail.lines()).equals(read_snapshot(path))


def test_an_interrupt_is_status_130(path: Path, location: list[str]) -> None:
    """Nothing but a line break is printed on stderr."""
    with running_process("tail", *location) as tail:
        tail.until('"snapshot"')
        assert tail.signal(signal.SIGINT) == exit_status.INTERRUPTED
    assert tail.err == ["\n"]  # The prompt of the shell starts on a new line.


@pytest.mark.parametrize("format_", ["entries", "events"])
def test_tail_reconnects_to_a_restarted_server(path: Path, format_: str) -> None:
    """Every event is printed once, also those written in between; stderr reports both."""
    with serving(path) as server:
        port = server.url.rpartition(":")[2]
        with running_process(
            "tail", "--format", format_, "--after", "0", "--until-end", "--server", server.url
        ) as tail:
            tail.until('"seq":3')
            server.kill()
            tail.until("retrying")
            append_events(path, *LATER_EVENTS[:3])
            with serving(path, "--port", port) as second:
                tail.until("Reconnected to")
                tail.until('"seq":6')
                assert second.signal(signal.SIGTERM) == exit_status.TERMINATED
                tail.until("retrying", 2)
            with serving(path, "--port", port):
                tail.until("Reconnected to", 2)
                append_events(path, *LATER_EVENTS[3:])
                assert tail.end() == 0, tail.err
    assert [line["seq"] for line in tail.lines()] == list(range(1, 10))
    assert len(tail.err) == 4


def test_tail_prints_a_burst_of_another_process(path: Path, location: list[str]) -> None:
    """The burst is longer than the buffer for readers."""

    async def append_burst() -> None:
        async with await open_ledger(f"sqlite:///{path}") as ledger:
            for _ in range(20):
                await ledger.log.append("work", [ev.MessageDelta(text="word ", chunks="delta")] * 500, source="test")
            await ledger.log.append("work", [ev.TurnEnded(reason="end_turn")], source="test")

    with running_process("tail", "--until-end", *location) as tail:
        tail.until('"snapshot"')
        asyncio.run(append_burst())
        assert tail.end() == 0, tail.err
    assert replay_lines(tail.lines()).equals(read_snapshot(path))


# On a terminal

LATER_TEXTS = ["○ Remove it  queued", "● Remove it  running", "✓ Remove it  completed", "It is", "It is done."]


def test_tail_on_a_terminal_prints_text_and_steps_live(path: Path, location: list[str]) -> None:
    """First the existing entries, then each new event, until it is interrupted."""
    terminal = Terminal("tail", *location)
    terminal.until("I look.")
    assert "go on" in terminal.screen_text
    for event, words in zip(LATER_EVENTS, LATER_TEXTS, strict=False):
        append_events(path, event)
        terminal.until(words)
    assert re.search(r"^\d\d:\d\d:\d\d  rm            ✓ Remove it  completed", terminal.screen_text, re.MULTILINE)
    terminal.press("\x03")
    assert terminal.close() == exit_status.INTERRUPTED
    assert "Traceback" not in terminal.screen_text


def test_tail_shows_how_to_answer_an_approval_request(path: Path, location: list[str]) -> None:
    """The full arguments and the command for this ledger are shown; a pending request is shown immediately."""
    long_input = {"command": "echo " + "harmless " * 40 + "; rm -rf precious"}
    append_events(path, ev.CallProposed(tool_name="sh", input=long_input, scope="detached", aliases=CALL))
    append_events(path, ev.ApprovalRequested(aliases=CALL, description="may I?"))
    terminal = Terminal("tail", "--until-end", *location)
    terminal.until("callslip deny appr_")
    assert "rm -rf precious" in terminal.screen_text.replace("\n", "")
    [answer] = re.findall(r"callslip (approve appr_\w+.*?)\s*$", terminal.screen_text, re.MULTILINE)
    assert answer.endswith(" ".join(location))
    other_call = (Alias("t", "c2"),)
    append_events(path, ev.CallProposed(tool_name="sh", title="Second", scope="detached", aliases=other_call))
    append_events(path, ev.ApprovalRequested(aliases=other_call, description="and this?"))
    terminal.until("and this?  pending")
    token = (Path.home() / ".local/share/callslip/token").read_text().strip() if "--server" in location else ""
    result = run(*answer.split(), env={"CALLSLIP_TOKEN": token} if token else {})
    assert result.returncode == 0, result.stderr
    terminal.until("may I?  approved by")
    append_events(path, ev.TurnEnded(reason="end_turn"))
    assert terminal.close() == 0


def test_tail_on_a_terminal_starts_with_the_latest_entries(path: Path, location: list[str]) -> None:
    """It prints ten entries, all after a seq, or all entries, and always the pending requests."""
    append_events(path, PROPOSED, ev.ApprovalRequested(aliases=CALL, description="may I?"))
    append_events(
        path, *(ev.MessageUser(text=f"line {number:02}") for number in range(20)), ev.TurnEnded(reason="end_turn")
    )
    for options, first in (([], 10), (["--after", "20"], 15), (["--from-start"], 0)):
        terminal = Terminal("tail", "--until-end", *options, *location)
        assert terminal.close() == 0
        assert re.findall(r"line (\d\d)", terminal.screen_text) == [f"{number:02}" for number in range(first, 20)], (
            options
        )
        assert "callslip approve appr_" in terminal.screen_text and ("go on" in terminal.screen_text) == (first == 0)


def test_tail_escapes_hostile_text(path: Path, location: list[str]) -> None:
    """This holds for texts, titles, inputs, reasons and names, and for JSON on a terminal. (C11)"""
    hostile_call = (Alias("t", "evil"),)
    events: list[Event] = [
        ev.MessageDelta(text=HOSTILE, chunks="delta"),
        ev.ThoughtDelta(text=HOSTILE, chunks="delta"),
        ev.CallProposed(
            tool_name="evil", title=HOSTILE, input={HOSTILE: HOSTILE}, scope="detached", aliases=hostile_call
        ),
        ev.ApprovalRequested(aliases=hostile_call, description=HOSTILE, options=[{"optionId": HOSTILE}]),
        ev.CallFailed(error=HOSTILE, aliases=hostile_call),
        ev.MessageUser(text=HOSTILE),
    ]
    append_events(path, *events)
    for options in ([], ["--json"], ["--format", "events", "--from-start"]):
        terminal = Terminal("tail", *options, *location)
        terminal.until("gpj.exe")
        append_events(path, *events, ev.MessageDelta(text="the last word", chunks="delta"))
        terminal.until("the last word")
        terminal.press("\x03")
        assert terminal.close() == exit_status.INTERRUPTED
        assert not HIDDEN_CHARACTERS.search(terminal.screen_text.replace("^C", "")), options
        assert "\r" not in terminal.screen_text
        assert "\\x1b[2J" in terminal.screen_text or "\\u001b[2J" in terminal.screen_text


def test_tail_on_a_terminal_continues_after_a_server_restart(path: Path) -> None:
    """No text is printed twice."""
    with serving(path) as server:
        port = server.url.rpartition(":")[2]
        terminal = Terminal("tail", "--until-end", "--server", server.url)
        terminal.until("I look.")
        server.kill()
        terminal.until("retrying")
        append_events(path, *LATER_EVENTS[:-1])
        with serving(path, "--port", port):
            terminal.until("It is done.")
            append_events(path, LATER_EVENTS[-1])
            assert terminal.close() == 0, terminal.screen_text
    assert terminal.screen_text.count("I look.") == 1 and terminal.screen_text.count("It is") == 1
