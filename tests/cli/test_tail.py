"""`callslip tail`: in a pipe and on a terminal, on a file that others write and by a server that comes and goes."""

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
HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
CALL = (Alias("t", "c1"),)
BEGIN: list[Event] = [ev.TurnStarted(), ev.MessageUser(text="go on"), ev.MessageDelta(text="I look. ", chunks="delta")]
PROPOSED = ev.CallProposed(tool_name="rm", title="Remove it", input={"path": "/x"}, scope="detached", aliases=CALL)
WORK: list[Event] = [
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
    write(file, *BEGIN)
    return file


def write(path: Path, *events: Event) -> None:
    """What another process appends to the session, each by itself."""

    async def append(ledger: LocalLedger) -> None:
        for event in events:
            await ledger.log.append("work", [event], source="test")

    with_ledger(path, append)


def where(path: Path, server: ServeProcess | None) -> list[str]:
    return ["--server", server.url] if server else ["--db", str(path)]


@pytest.fixture(params=["file", "server"])
def reach(request: pytest.FixtureRequest, path: Path) -> Any:
    """What to add to a command so that it works on the file, or by a server."""
    if request.param == "file":
        yield where(path, None)
        return
    with serving(path) as server:
        yield where(path, server)


def replayed(lines: list[Any]) -> PatchedSession:
    """What a client has after all of this."""
    view = PatchedSession()
    for line in lines:
        if "snapshot" in line:
            fields = line["snapshot"]
            view.load(Snapshot(fields["session"], fields["seq"], fields["info"], fields["entries"]))
        else:
            view.apply(line["seq"], line["patches"])
    return view


def snapshot(path: Path) -> Snapshot:
    async def read(ledger: LocalLedger) -> Snapshot:
        return await ledger.snapshot("work")

    return with_ledger(path, read)


# In a pipe


def test_tail_prints_a_snapshot_and_then_patches(path: Path, reach: list[str]) -> None:
    """The lines replayed give the snapshot of the ledger; with --until-end it exits after the turn."""
    with running_process("tail", "--until-end", *reach) as tail:
        tail.until('"snapshot"')
        write(path, *WORK)
        assert tail.end() == 0, tail.err
    lines = tail.lines()
    assert list(lines[0]) == ["snapshot"]
    assert [list(line) for line in lines[1:]] == [["seq", "patches"]] * len(WORK)
    assert replayed(lines).equals(snapshot(path))


def test_tail_prints_events_after_the_given_seq(path: Path, reach: list[str]) -> None:
    """The events equal those of export."""
    with running_process("tail", "work", "--format", "events", "--after", "3", "--until-end", *reach) as tail:
        write(path, WORK[0])
        tail.until("call.proposed")
        write(path, *WORK[1:])
        assert tail.end() == 0
    log = json.loads(run("export", "work", "--format", "events", "--db", str(path)).stdout)["events"]
    assert tail.lines() == log[len(BEGIN) :]


def test_tail_from_start_prints_every_event_or_patch(path: Path, reach: list[str]) -> None:
    """In the formats events and entries."""
    write(path, *WORK)
    events = run("tail", "--from-start", "--until-end", "--format", "events", *reach)
    assert [json.loads(line)["seq"] for line in events.stdout.splitlines()] == list(range(1, 10))
    patches = run("tail", "--from-start", "--until-end", *reach)
    lines = [json.loads(line) for line in patches.stdout.splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, 10))
    assert replayed(lines).equals(snapshot(path))


def test_tail_from_start_of_a_pruned_log_prints_the_rest(path: Path, reach: list[str]) -> None:
    """A seq that retention removed gives status 3."""
    write(path, *WORK, ev.TurnStarted(), ev.MessageUser(text="more"))

    async def prune(ledger: LocalLedger) -> None:
        await ledger.log.project("work")
        assert await ledger.prune(-1)

    with_ledger(path, prune)
    gone = run("tail", "--after", "1", *reach)
    assert gone.returncode == exit_status.NOT_FOUND and "retention" in gone.stderr
    with running_process("tail", "--from-start", "--until-end", *reach) as tail:
        tail.until('"snapshot"')
        write(path, ev.TurnEnded(reason="end_turn"))
        assert tail.end() == 0
    assert replayed(tail.lines()).equals(snapshot(path))


def test_an_interrupt_is_status_130(path: Path, reach: list[str]) -> None:
    """Nothing but a line break is printed on stderr."""
    with running_process("tail", *reach) as tail:
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
            write(path, *WORK[:3])
            with serving(path, "--port", port) as second:
                tail.until("Reconnected to")
                tail.until('"seq":6')
                assert second.signal(signal.SIGTERM) == exit_status.TERMINATED
                tail.until("retrying", 2)
            with serving(path, "--port", port):
                tail.until("Reconnected to", 2)
                write(path, *WORK[3:])
                assert tail.end() == 0, tail.err
    assert [line["seq"] for line in tail.lines()] == list(range(1, 10))
    assert len(tail.err) == 4


def test_tail_prints_a_burst_of_another_process(path: Path, reach: list[str]) -> None:
    """The burst is longer than the buffer for readers."""

    async def burst() -> None:
        async with await open_ledger(f"sqlite:///{path}") as ledger:
            for _ in range(20):
                await ledger.log.append("work", [ev.MessageDelta(text="word ", chunks="delta")] * 500, source="test")
            await ledger.log.append("work", [ev.TurnEnded(reason="end_turn")], source="test")

    with running_process("tail", "--until-end", *reach) as tail:
        tail.until('"snapshot"')
        asyncio.run(burst())
        assert tail.end() == 0, tail.err
    assert replayed(tail.lines()).equals(snapshot(path))


# On a terminal

SEEN = ["○ Remove it  queued", "● Remove it  running", "✓ Remove it  completed", "It is", "It is done."]


def test_tail_on_a_terminal_prints_text_and_steps_live(path: Path, reach: list[str]) -> None:
    """First the existing entries, then each new event, until it is interrupted."""
    terminal = Terminal("tail", *reach)
    terminal.until("I look.")
    assert "go on" in terminal.screen_text
    for event, words in zip(WORK, SEEN, strict=False):
        write(path, event)
        terminal.until(words)
    assert re.search(r"^\d\d:\d\d:\d\d  rm            ✓ Remove it  completed", terminal.screen_text, re.MULTILINE)
    terminal.press("\x03")
    assert terminal.close() == exit_status.INTERRUPTED
    assert "Traceback" not in terminal.screen_text


def test_tail_shows_how_to_answer_an_approval_request(path: Path, reach: list[str]) -> None:
    """With the full arguments and the options for this ledger; a pending request is shown at once."""
    long = {"command": "echo " + "harmless " * 40 + "; rm -rf precious"}
    write(path, ev.CallProposed(tool_name="sh", input=long, scope="detached", aliases=CALL))
    write(path, ev.ApprovalRequested(aliases=CALL, description="may I?"))
    terminal = Terminal("tail", "--until-end", *reach)
    terminal.until("callslip deny appr_")
    assert "rm -rf precious" in terminal.screen_text.replace("\n", "")
    [answer] = re.findall(r"callslip (approve appr_\w+.*?)\s*$", terminal.screen_text, re.MULTILINE)
    assert answer.endswith(" ".join(reach))
    other = (Alias("t", "c2"),)
    write(path, ev.CallProposed(tool_name="sh", title="Second", scope="detached", aliases=other))
    write(path, ev.ApprovalRequested(aliases=other, description="and this?"))
    terminal.until("and this?  pending")
    token = (Path.home() / ".local/share/callslip/token").read_text().strip() if "--server" in reach else ""
    done = run(*answer.split(), env={"CALLSLIP_TOKEN": token} if token else {})
    assert done.returncode == 0, done.stderr
    terminal.until("may I?  approved by")
    write(path, ev.TurnEnded(reason="end_turn"))
    assert terminal.close() == 0


def test_tail_on_a_terminal_starts_with_the_latest_entries(path: Path, reach: list[str]) -> None:
    """Ten entries, all after a seq, or all entries; and always the pending requests."""
    write(path, PROPOSED, ev.ApprovalRequested(aliases=CALL, description="may I?"))
    write(path, *(ev.MessageUser(text=f"line {number:02}") for number in range(20)), ev.TurnEnded(reason="end_turn"))
    for more, first in (([], 10), (["--after", "20"], 15), (["--from-start"], 0)):
        terminal = Terminal("tail", "--until-end", *more, *reach)
        assert terminal.close() == 0
        assert re.findall(r"line (\d\d)", terminal.screen_text) == [f"{number:02}" for number in range(first, 20)], more
        assert "callslip approve appr_" in terminal.screen_text and ("go on" in terminal.screen_text) == (first == 0)


def test_tail_escapes_hostile_text(path: Path, reach: list[str]) -> None:
    """In texts, titles, inputs, reasons and names, and in JSON on a terminal. (C11)"""
    hostile = (Alias("t", "evil"),)
    events: list[Event] = [
        ev.MessageDelta(text=HOSTILE, chunks="delta"),
        ev.ThoughtDelta(text=HOSTILE, chunks="delta"),
        ev.CallProposed(tool_name="evil", title=HOSTILE, input={HOSTILE: HOSTILE}, scope="detached", aliases=hostile),
        ev.ApprovalRequested(aliases=hostile, description=HOSTILE, options=[{"optionId": HOSTILE}]),
        ev.CallFailed(error=HOSTILE, aliases=hostile),
        ev.MessageUser(text=HOSTILE),
    ]
    write(path, *events)
    for more in ([], ["--json"], ["--format", "events", "--from-start"]):
        terminal = Terminal("tail", *more, *reach)
        terminal.until("gpj.exe")
        write(path, *events, ev.MessageDelta(text="the last word", chunks="delta"))
        terminal.until("the last word")
        terminal.press("\x03")
        assert terminal.close() == exit_status.INTERRUPTED
        assert not HIDDEN.search(terminal.screen_text.replace("^C", "")), more
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
        write(path, *WORK[:-1])
        with serving(path, "--port", port):
            terminal.until("It is done.")
            write(path, WORK[-1])
            assert terminal.close() == 0, terminal.screen_text
    assert terminal.screen_text.count("I look.") == 1 and terminal.screen_text.count("It is") == 1
