"""`callslip import` of an agent's history, `callslip watch` and `callslip up`."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import time
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from rich.console import Console

from callslip.api.ledger import LocalLedger
from callslip.cli import exit_status
from callslip.cli.terminal.session_printer import SessionPrinter
from callslip.model import codec
from tests.support.claude_files import Script, session_id, write_lines
from tests.support.cli_process import TIMEOUT_S, run_in_process, running_process, with_ledger

FIRST = f"claude-{session_id(1)}"
IMPORT = ("import", "--format", "claude-code")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the agent keeps its history."""
    folder = tmp_path / "claude"
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(folder))
    return folder


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def read_sessions(db: Path) -> dict[str, list[Any]]:
    """Return the entries of all sessions, without the ids that the ledger generates."""

    async def read(ledger: LocalLedger) -> dict[str, list[Any]]:
        rows = (await ledger.sessions(limit=100)).items
        entries = {row.name: (await ledger.snapshot(row.name)).entries for row in rows}
        return {name: codec.parse_json(codec.encode(found)) for name, found in sorted(entries.items())}

    sessions: dict[str, list[Any]] = with_ledger(db, read)
    for entries in sessions.values():
        for entry in entries:
            entry.pop("callId", None)
    return sessions


def test_an_agents_own_folder_is_imported(home: Path, db: Path) -> None:
    """TRN1, TRN2: without a path; the summary counts what is new, and `--json` has the same."""
    Script().turn(1).write(home)
    Script(2).turn(1).write(home)
    first = run_in_process(*IMPORT, "--db", str(db))
    assert first.returncode == 0 and first.stderr.splitlines() == ["8 messages, 20 new events in 2 sessions"]
    again = json.loads(run_in_process(*IMPORT, "--db", str(db), "--json").stdout)
    assert (again["transcripts"], again["events"], again["problems"]) == (0, 0, [])
    assert list(read_sessions(db)) == [FIRST, f"claude-{session_id(2)}"]


def test_the_work_of_a_sub_agent_is_printed_apart(home: Path, db: Path) -> None:
    """SUB1: by `show` and `tail`, under the title of its call; its prompt is not one of the user."""
    Script().prompt("go").call("task", "Agent", description="Look").result("task").text("Done.").write(home)
    sub = (
        Script(agent="abc").prompt("look").call("inner", command="ls").result("inner", "a b").text("found").write(home)
    )
    sub.with_suffix(".meta.json").write_text(json.dumps({"toolUseId": "task"}))
    run_in_process(*IMPORT, "--db", str(db))
    shown = run_in_process("show", FIRST, "--db", str(db)).stdout
    assert "just now" not in shown and " s ago" not in shown
    entries = read_entries(db)
    call = next(entry["callId"] for entry in entries if entry.get("toolName") == "Agent")
    out = Console(file=StringIO(), width=200)
    printer = SessionPrinter(out, "")
    for entry in entries:
        printer.print_changes(entry)
    printer.end_line()
    followed = out.file.getvalue()
    for printed in (shown, followed):
        labels = [line[10:24].strip() for line in printed.splitlines() if line[10:24].strip() and line[:1] in " 0"]
        labels = [label for label in labels if label != "│" and not label.startswith("│ a b")]
        assert labels == ["user", "Agent", "agent", "sub-agent", "│ prompt", "│ Bash", "│ agent"]
        assert f"          sub-agent     Look  {call}\n" in printed


def read_entries(db: Path) -> list[Any]:
    """Return the entries of the first session as a client has them."""

    async def read(ledger: LocalLedger) -> list[Any]:
        return codec.parse_json(codec.encode((await ledger.snapshot(FIRST)).entries))

    return with_ledger(db, read)


def test_files_and_folders_can_be_named(home: Path, db: Path) -> None:
    """TRN1, TRN4: several of them; what was skipped is reported with its first line, and the status is 1."""
    one = Script().turn(1).write(home / "one")
    two = write_lines(home / "two" / "x.jsonl", ["{", *Script(2).turn(1).lines])
    result = run_in_process(*IMPORT, str(one), str(two.parent), "--db", str(db))
    assert result.returncode == exit_status.FAILED
    summary, problem = result.stderr.splitlines()
    assert summary.endswith("in 2 sessions") and problem.startswith(f"skipped 1 of {two}, the first one line 1: ")
    assert "does not exist" in run_in_process(*IMPORT, "--db", str(db)).stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--restore"], "--restore needs --format"),
        (["--format", "claude-code", "--chunks", "delta"], "no effect"),
        ([], "pass one file"),
    ],
)
def test_options_that_do_not_fit_are_refused(home: Path, db: Path, arguments: list[str], problem: str) -> None:
    result = run_in_process("import", *arguments, "--db", str(db))
    assert result.returncode == exit_status.USAGE and problem in result.stderr


def test_a_deleted_session_is_restored_on_request(home: Path, db: Path) -> None:
    """MRG6: the import says that it left it out, and how to get it back."""
    Script().turn(1).write(home)
    run_in_process(*IMPORT, "--db", str(db))
    run_in_process("admin", "delete", FIRST, "--yes", "--db", str(db))
    assert "--restore" in run_in_process(*IMPORT, "--db", str(db)).stderr and not read_sessions(db)
    run_in_process(*IMPORT, "--restore", "--db", str(db))
    assert list(read_sessions(db)) == [FIRST]


def test_a_killed_import_continues(home: Path, db: Path, tmp_path: Path) -> None:
    """TRN10: after kill -9 the next import adds the rest: the ledger is as if none was killed."""
    for number in range(1, 9):
        script = Script(number)
        for turn in range(60):
            script.turn(turn)
        script.write(home)
    with running_process(*IMPORT, "--db", str(db)) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while count_sessions(db) < 2:
            assert time.monotonic() < deadline, process.err
        assert process.signal(signal.SIGKILL) == -signal.SIGKILL
    assert count_sessions(db) < 9
    assert run_in_process(*IMPORT, "--db", str(db)).returncode == 0
    whole = tmp_path / "whole.db"
    run_in_process(*IMPORT, "--db", str(whole))
    assert read_sessions(db) == read_sessions(whole)
    assert run_in_process("verify", "--db", str(db)).returncode == 0


def count_sessions(db: Path) -> int:
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as file,
    ):
        return file.execute("SELECT count(*) FROM sessions").fetchone()[0]
    return 0


def count_searchable(db: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as file:
        return file.execute("SELECT count(*) FROM search_rows WHERE entry").fetchone()[0]


def test_a_history_is_followed_while_it_grows(home: Path, db: Path) -> None:
    """TRN11: in a folder that did not exist, with a file that grows; Ctrl-C ends it in order."""
    script = Script().turn(1)
    with running_process("watch", "claude-code", "--db", str(db), "--json") as process:
        process.until("it does not exist yet")
        path = script.write(home)
        process.until(FIRST)
        write_lines(path, script.turn(2).lines[4:], "a")
        process.until(FIRST, 2)
        assert process.signal(signal.SIGINT) == exit_status.INTERRUPTED
    assert [line["messages"] for line in process.lines()] == [4, 4]
    assert len(read_sessions(db)[FIRST]) == 6


def test_up_serves_what_it_follows(home: Path, db: Path) -> None:
    """TRN12: one process follows the history, serves it and keeps it searchable; a signal ends both."""
    with running_process("up", "claude-code", "--port", "0", "--db", str(db), "--json") as process:
        process.until('"url"')
        info = json.loads(process.out[0])
        Script().turn(1).write(home)
        process.until(FIRST)
        request = Request(f"{info['url']}/v1/sessions", headers={"authorization": f"Bearer {info['token']}"})
        with urlopen(request, timeout=TIMEOUT_S) as answer:
            assert FIRST in answer.read().decode()
        # Without a search, which would add what is missing itself.
        deadline = time.monotonic() + TIMEOUT_S
        while count_searchable(db) < 3:
            assert time.monotonic() < deadline, "the entries were never added to the search index"
            time.sleep(0.05)
        assert process.signal(signal.SIGTERM) == exit_status.TERMINATED
