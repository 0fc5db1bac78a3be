"""The command line: its output on stdout and stderr, its exit statuses, and its effects on files."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

import callslip
from callslip.api.ledger import LocalLedger, open_ledger
from callslip.cli import COMMANDS, exit_status, main
from callslip.cli.commands.import_ import session_name
from callslip.cli.terminal import timeline
from callslip.cli.terminal.escape import escape_block, escape_controls, escape_json
from callslip.cli.terminal.formatting import format_age, format_span, parse_duration
from callslip.errors import InvalidInputError
from callslip.model import events as ev
from callslip.model.display import format_duration, format_size
from callslip.model.events import Alias
from callslip.rules.lifecycle import OPEN_STATES, TERMINAL_STATES
from callslip.settings import Settings
from callslip.store import sqlite_open
from tests.support import scenarios

HIDDEN_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31mred\x7f\u202egpj.exe\u2066\r\u200b\ufeff\x00end"


def callslip_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "callslip", *arguments]


def run_process(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in its own process, without a terminal."""
    options: dict[str, Any] = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL, "timeout": 60}
    return subprocess.run(callslip_command(*arguments), **(options | more))


def run_cli(*arguments: str) -> Result:
    """Run a command in this process, which is faster."""
    return CliRunner().invoke(main, arguments)


def with_ledger(db: str, work: Callable[[LocalLedger], Awaitable[Any]], **settings: Any) -> Any:
    async def run_work() -> Any:
        async with await open_ledger(db, Settings(synchronous="NORMAL", **settings)) as ledger:
            return await work(ledger)

    return asyncio.run(run_work())


def db_path(db: str) -> Path:
    return Path(db.removeprefix("sqlite:///"))


def append_scenario(db: str, name: str) -> None:
    """Append a scenario to a session with the scenario's name."""

    async def fill(ledger: LocalLedger) -> None:
        for draft in scenarios.load_drafts(name):
            await ledger.log.append(name, [draft], source="test")

    with_ledger(db, fill)


@pytest.fixture
def work_db(db: str) -> str:
    """A ledger with `work`, which has a completed, a failed and a late call, and `other` with the same foreign id."""

    async def fill(ledger: LocalLedger) -> None:
        work = ledger.session("work")
        await work.start_turn("list it, please")
        await work.say("I am looking.")
        async with work.call("ls", {"path": "."}, title="List the folder") as call:
            call.complete("a.txt\nb.txt")
        try:
            async with work.call("cat", {"path": "x"}):
                raise FileNotFoundError("no x")
        except FileNotFoundError:
            pass
        aliases = (Alias("t", "call_1"),)
        await ledger.log.append("work", [ev.CallProposed(tool_name="mcp__fs__Read", aliases=aliases)])
        await ledger.log.append("work", [ev.CallCompleted(output="first", aliases=aliases)])
        await ledger.log.append("work", [ev.CallFailed(error="too late", aliases=aliases)])
        await work.end_turn()
        await ledger.log.append("other", [ev.CallCompleted(tool_name="Read", output="other", aliases=aliases)])

    with_ledger(db, fill)
    return db


def list_calls(db: str, session: str = "work") -> list[Any]:
    """Return the calls of a session, oldest first."""

    async def read(ledger: LocalLedger) -> list[Any]:
        return sorted((await ledger.calls(session=session)).items, key=lambda row: row.entry)

    return with_ledger(db, read)


# The program


def test_help_imports_no_heavy_modules() -> None:
    """`--help` imports click, but no database, event loop, terminal library or codec."""
    code = "import sys; from callslip.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in result.stdout.splitlines()[-1].split()}
    assert not {"rich", "apsw", "asyncio", "msgspec", "starlette", "uvicorn"} & loaded


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_list_matches_the_help_of_each_command(name: str) -> None:
    """The table repeats the first sentence of each help, so that no command is imported for it."""
    loaded = main.get_command(click.Context(main), name)
    assert loaded is not None and loaded.help is not None
    assert loaded.help.split("\n")[0] == COMMANDS[name][1]
    assert run_cli(name, "--help").exit_code == 0


def test_without_arguments_help_is_printed_to_stderr() -> None:
    """The list of commands is printed, and the status is that of a usage error."""
    result = run_process()
    assert result.returncode == exit_status.USAGE and not result.stdout
    assert "Commands:" in result.stderr and "doctor" in result.stderr


def test_version_option_prints_the_version() -> None:
    """`callslip --version` prints `callslip` and three numbers."""
    assert re.fullmatch(r"callslip \d+\.\d+\.\d+\n", run_process("--version").stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shwo"], "no command 'shwo'; similar: 'show'"),
        (["ls", "--nonsense"], "--nonsense"),
        (["show"], "missing argument 'ID'"),
        (["show", ""], "must not be empty"),
        (["show", " "], "must not be empty"),
        (["ls", "--limit", "0"], "limit"),
        (["ls", "--state", "odd"], "odd"),
        (["--db", "mysql://x", "ls"], "mysql:// is not supported"),
        (["--db", "sqlite://x", "ls"], "three slashes"),
        (["export", "s", "--turn", "t1"], "--turn goes with --stream"),
        (["export", "s", "--stream", "--format", "events"], "--stream goes with"),
        (["admin", "prune", "--keep", "soon"], "must be a duration like"),
        (["approve", "x", "--input", "{"], "invalid JSON"),
    ],
)
def test_a_usage_error_is_a_single_line_with_status_2(arguments: list[str], message: str) -> None:
    """Usage errors name what is wrong and print nothing on stdout."""
    result = run_cli(*arguments)
    assert result.exit_code == exit_status.USAGE and not result.stdout
    assert result.stderr.startswith("callslip: ") and message in result.stderr and result.stderr.count("\n") == 1


def test_an_id_that_is_not_utf8_is_refused(work_db: str) -> None:
    """Python passes such bytes as lone surrogates, which the database cannot store."""
    result = subprocess.run(
        [*map(os.fsencode, callslip_command("show", "--db", work_db)), b"\xff\xfe"], capture_output=True
    )
    assert result.returncode == exit_status.USAGE and b"must be UTF-8" in result.stderr


READ_COMMANDS = ["ls", "show x", "export x", "wait x", "approve x", "deny x", "verify", "admin delete x --yes"]


@pytest.mark.parametrize("line", [*READ_COMMANDS, "ls x", "doctor", "admin prune --keep 1d"])
def test_read_commands_do_not_create_a_ledger(tmp_path: Path, line: str) -> None:
    """The message names the path; the folder stays empty."""
    result = run_cli(*line.split(), "--db", str(tmp_path / "no.db"))
    assert result.exit_code == exit_status.NOT_FOUND
    assert f"no ledger at {tmp_path / 'no.db'}" in result.stderr + result.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", [*READ_COMMANDS, "demo --fast", "doctor"])
def test_a_file_that_is_no_ledger_is_refused_and_unchanged(tmp_path: Path, line: str) -> None:
    """A text file given as the ledger is refused and unchanged, and no other file is created."""
    file = tmp_path / "notes.txt"
    file.write_text("not a ledger at all, and longer than a header\n" * 9)
    result = run_cli(*line.split(), "--db", str(file))
    assert result.exit_code == exit_status.FAILED and "is not a SQLite database" in result.stderr + result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert run_cli(*line.split(), "--db", str(tmp_path)).exit_code in (exit_status.FAILED, exit_status.NOT_FOUND)
    assert not Path(f"{tmp_path}-queue").exists()


def test_read_commands_refuse_an_empty_file(tmp_path: Path) -> None:
    """Reading does not make a database of an empty file."""
    (tmp_path / "e.db").touch()
    assert run_cli("ls", "--db", str(tmp_path / "e.db")).exit_code == exit_status.NOT_FOUND
    assert (tmp_path / "e.db").stat().st_size == 0


def test_the_ledger_path_comes_from_option_environment_or_default(
    work_db: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--db after the command, --db before it, CALLSLIP_DB, then the XDG data folder."""
    assert f"no ledger at {home}/.local/share/callslip/ledger.db" in run_cli("ls").stderr
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert f"no ledger at {tmp_path}/data/callslip/ledger.db" in run_cli("ls").stderr
    monkeypatch.setenv("XDG_DATA_HOME", "relative/does/not/count")
    assert f"no ledger at {home}/.local/share/callslip/ledger.db" in run_cli("ls").stderr
    monkeypatch.setenv("CALLSLIP_DB", str(tmp_path / "env.db"))
    assert "env.db" in run_cli("ls").stderr
    assert "before.db" in run_cli("--db", str(tmp_path / "before.db"), "ls").stderr
    assert "after.db" in run_cli("--db", work_db, "ls", "--db", str(tmp_path / "after.db")).stderr
    assert run_cli("--db", work_db, "ls").exit_code == 0
    assert run_cli("ls", "--db", str(db_path(work_db))).stdout == run_cli("ls", "--db", work_db).stdout


def test_read_commands_refuse_an_in_memory_ledger() -> None:
    """It would always be empty."""
    result = run_cli("ls", "--db", "sqlite:///:memory:")
    assert result.exit_code == exit_status.NOT_FOUND and "in memory" in result.stderr


def test_a_server_that_does_not_run_is_named_in_the_error() -> None:
    """The URL is not used as a file name."""
    result = run_cli("ls", "--db", "postgresql://127.0.0.1:1/x")
    assert result.exit_code == 1 and result.stderr.startswith("callslip: postgresql://127.0.0.1:1/x: ")


def test_a_traceback_is_shown_only_on_request(tmp_path: Path) -> None:
    """CALLSLIP_DEBUG=1 shows where an error came from; without it there is one line."""
    arguments = ("ls", "--db", str(tmp_path / "no.db"))
    assert "Traceback" not in run_process(*arguments).stderr
    assert "Traceback" in run_process(*arguments, env={**os.environ, "CALLSLIP_DEBUG": "1"}).stderr


def test_an_unexpected_error_is_a_single_line(monkeypatch: pytest.MonkeyPatch, work_db: str) -> None:
    """An unexpected error has its type, its text and how to get the traceback."""
    monkeypatch.setattr(LocalLedger, "sessions", lambda *_, **__: 1 / 0)
    result = run_cli("ls", "--db", work_db)
    assert result.exit_code == exit_status.FAILED
    assert result.stderr == "callslip: unexpected ZeroDivisionError: division by zero (CALLSLIP_DEBUG=1 shows where)\n"


@pytest.mark.parametrize("line", ["ls work", "ls work --json", "show work", "show work --json", "doctor"])
def test_a_closed_pipe_ends_the_command_quietly(work_db: str, line: str) -> None:
    """`callslip ls | head` ends quietly, as if by SIGPIPE."""
    for unbuffered in ("", "1"):
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        with subprocess.Popen(
            callslip_command(*line.split(), "--db", work_db),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        ) as process:
            assert process.stdout and process.stderr
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == exit_status.PIPE_CLOSED


def test_a_full_disk_is_reported(work_db: str) -> None:
    """Output that cannot be written is an error, not a success."""
    with open("/dev/full", "wb") as full:
        result = run_process(
            "export", "work", "--db", work_db, capture_output=False, stdout=full, stderr=subprocess.PIPE
        )
    assert result.returncode == exit_status.FAILED and "No space left" in result.stderr


def test_an_ascii_locale_shows_escaped_characters(work_db: str) -> None:
    """No UnicodeEncodeError where the terminal has only ASCII."""
    result = run_process("show", "work", "--db", work_db, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0 and "\\u2713" in result.stdout


def run_in_terminal(*arguments: str, keys: str = "", **environment: str) -> str:
    """Return the output of a command on a terminal of 80 columns; `keys` are typed before it starts."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm-256color", "COLUMNS": "80", **environment})
        os.execv(sys.executable, callslip_command(*arguments))
    os.write(terminal, keys.encode())
    output = b""
    try:
        while piece := os.read(terminal, 65536):
            output += piece
    except OSError:
        pass
    os.close(terminal)
    os.waitpid(pid, 0)
    return output.decode()


def test_a_terminal_gets_colour_unless_disabled(work_db: str) -> None:
    """NO_COLOR disables colours; a pipe never has any."""
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
    assert colour.search(run_in_terminal("ls", "work", "--db", work_db))
    assert not colour.search(run_in_terminal("ls", "work", "--db", work_db, NO_COLOR="1"))
    assert "\x1b" not in run_process("show", "work", "--db", work_db).stdout


# Hostile text


@given(st.text())
def test_escaped_text_has_no_hidden_characters(text: str) -> None:
    """Only visible characters remain; line breaks remain only in blocks."""
    assert (
        not HIDDEN_CHARACTERS.search(escape_controls(text))
        and "\n" not in escape_controls(text)
        and "\t" not in escape_controls(text)
    )
    assert not HIDDEN_CHARACTERS.search(escape_block(text))


@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs"))))
def test_visible_text_is_not_escaped(text: str) -> None:
    """Printable ASCII is unchanged."""
    assert escape_controls(text) == escape_block(text) == text


def test_joiners_are_kept_in_scripts_that_need_them() -> None:
    """Emoji and Persian need invisible joiners; next to ASCII the same characters are escaped."""
    assert escape_controls("👩\u200d💻 می\u200cخواهم") == "👩\u200d💻 می\u200cخواهم"
    assert escape_controls("r\u200dm -rf") == "r\\u200dm -rf"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]8;;http://x\x07link", "\\x1b]8;;http://x\\x07link"),
        ("\u202etxt.exe", "\\u202etxt.exe"),
        ("a\rb", "a\\rb"),
        ("\x9b2J", "\\x9b2J"),
        ("\U000e0041tag", "\\U000e0041tag"),
        ("half \ud800", "half \\ud800"),
    ],
)
def test_escapes_name_the_hidden_character(text: str, shown: str) -> None:
    """An escape contains the code of the character."""
    assert escape_controls(text) == escape_block(text) == shown


@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_escaped_json_has_the_same_value(value: Any) -> None:
    """Escapes inside of strings change the text of JSON, not its value."""
    data = msgspec.json.encode(json.loads(json.dumps(value).encode("utf-8", "replace")))
    safe = escape_json(data)
    assert msgspec.json.decode(safe) == msgspec.json.decode(data)
    assert not HIDDEN_CHARACTERS.search(safe.decode())


@pytest.fixture
def hostile_db(db: str) -> str:
    """A ledger with a session `bad` in which every text is hostile."""

    async def fill(ledger: LocalLedger) -> None:
        text = HOSTILE
        await ledger.log.append("bad", [ev.SessionInfo(title=text), ev.TurnStarted(), ev.MessageUser(text=text)])
        await ledger.log.append("bad", [ev.SessionCapabilities(current_mode=text, current_model=text)])
        await ledger.log.append(
            "bad", [ev.MessageDelta(text=text), ev.ThoughtDelta(text=text), ev.SessionMode(mode=text)]
        )
        await ledger.log.append("bad", [ev.PlanUpdated(entries=[{"content": text, "status": text}, text, 3])])
        fields: dict[str, Any] = {"tool_name": text, "title": text, "kind": text, "input": {text: text}}
        blocks = [{"type": "content", "content": {"type": "text", "text": text}}]
        (proposed,) = await ledger.log.append("bad", [ev.CallProposed(**fields, content=blocks)])
        assert isinstance(proposed, ev.CallProposed)
        await ledger.log.append("bad", [ev.ApprovalRequested(call=proposed.call, description=text, options=[text])])
        error = {"error": text, "type": text}
        await ledger.log.append(
            "bad", [ev.CallFailed(tool_name=text, error=error, reason=text), ev.CallProposed(**fields)]
        )
        aliases = (Alias("t", "x\u202ey"),)
        await ledger.log.append("bad", [ev.CallCompleted(aliases=aliases, output=text)])
        await ledger.log.append("bad", [ev.CallFailed(aliases=aliases, error=text)])

    with_ledger(db, fill)
    return db


def test_hostile_text_is_escaped_in_every_command(hostile_db: str) -> None:
    """Lists, pages and doctor show hostile text only as visible characters. (C11)"""
    rows = list_calls(hostile_db, "bad")
    pages = [["show", row.id] for row in rows] + [["show", "bad"], ["ls"], ["ls", "bad"], ["ls", "--state", "open"]]
    for page in [*pages, ["show", "appr"], ["doctor"]]:
        result = run_cli(*page, "--db", hostile_db)
        assert result.exit_code == 0, result.stderr
        assert not HIDDEN_CHARACTERS.search(result.stdout) and not HIDDEN_CHARACTERS.search(result.stderr), page
        if page[0] == "show":
            assert "\\x1b[2J" in result.stdout and "\\u202e" in result.stdout, page


def test_json_on_a_terminal_is_escaped_and_has_the_same_value(hostile_db: str) -> None:
    """A bidi override or a C1 control is escaped on a terminal, but not in a pipe."""
    shown = run_in_terminal("show", "bad", "--json", "--db", hostile_db)
    assert not re.search("[\x80-\x9f\u202e\u2066\x7f]", shown)
    piped = run_process("show", "bad", "--json", "--db", hostile_db).stdout
    assert "\u202e" in piped and json.loads(shown) == json.loads(piped)


def test_hostile_ids_in_errors_are_escaped(work_db: str) -> None:
    """An error repeats its input as visible characters."""
    result = run_cli("show", "x\x1b[31m", "--db", work_db)
    assert result.exit_code == exit_status.NOT_FOUND and not HIDDEN_CHARACTERS.search(result.stderr)


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_every_scenario_can_be_listed_shown_and_exported(db: str, name: str) -> None:
    """Every command accepts the session of every scenario. (C11)"""
    append_scenario(db, name)
    for line in (["ls"], ["ls", name], ["show", name], ["show", name, "--json"], ["show", name, "--full"]):
        result = run_cli(*line, "--db", db)
        assert result.exit_code == 0, result.stderr
        assert not HIDDEN_CHARACTERS.search(result.stdout) or "--json" in line
    for format_ in ("events", "entries", "ui-v6"):
        assert json.loads(run_cli("export", name, "--format", format_, "--db", db).stdout)["session"] == name
    for row in list_calls(db, name)[:5]:
        assert row.id in run_cli("show", row.id, "--db", db).stdout


# ls


def test_ls_lists_the_last_written_session_first(work_db: str) -> None:
    """The output is a table, or with --json a line of JSON per session."""
    lines = run_cli("ls", "--db", work_db).stdout.splitlines()
    head = ["SESSION", "STATE", "AGENT", "PROJECT", "CALLS", "OPEN", "FAILED", "TOKENS", "LAST", "TITLE"]
    assert lines[0].split() == head
    assert [line.split()[0] for line in lines[1:]] == ["other", "work"]
    rows = [json.loads(line) for line in run_cli("ls", "--json", "--db", work_db).stdout.splitlines()]
    assert [(row["session"], row["calls"], row["openCalls"]) for row in rows] == [("other", 1, 0), ("work", 3, 0)]


def test_ls_of_a_session_lists_its_newest_calls_first(work_db: str) -> None:
    """The newest call is first, independent of clocks. (C8)"""
    rows = [json.loads(line) for line in run_cli("ls", "work", "--json", "--db", work_db).stdout.splitlines()]
    assert [row["call"] for row in rows] == [row.id for row in reversed(list_calls(work_db))]
    assert [row["state"] for row in rows] == ["completed", "failed", "completed"]
    assert rows[0]["toolName"] == "Read" and rows[0]["toolCallId"] == "call_1"
    table = run_cli("ls", "work", "--db", work_db).stdout.splitlines()
    assert [line.split()[0] for line in table[1:]] == [row["call"] for row in rows]


def test_ls_by_state_lists_calls_of_all_sessions(work_db: str) -> None:
    """`open` means every state that is not terminal."""

    def list_sessions(*arguments: str) -> set[str]:
        result = run_cli("ls", *arguments, "--json", "--db", work_db)
        return {json.loads(line)["session"] for line in result.stdout.splitlines()}

    assert list_sessions("--state", "completed") == {"work", "other"}
    assert list_sessions("--state", "failed", "--state", "lost") == {"work"}
    assert list_sessions("--state", "open") == set()
    assert "no such calls" in run_cli("ls", "--state", "open", "--db", work_db).stderr


def test_ls_reports_when_the_limit_cuts_the_list(work_db: str) -> None:
    """stderr names --limit."""
    result = run_cli("ls", "work", "--limit", "2", "--json", "--db", work_db)
    assert len(result.stdout.splitlines()) == 2 and "--limit" in result.stderr


def test_a_table_fits_the_terminal_width(work_db: str) -> None:
    """Ids and states are never truncated; the title is."""
    with_ledger(work_db, lambda ledger: ledger.log.append("work", [ev.CallProposed(title="long " * 60, tool_name="t")]))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", run_in_terminal("ls", "work", "--db", work_db)).replace("\r", "").splitlines()
    assert all(len(line) <= 80 for line in shown)
    assert all(re.match(r"exec_[0-9a-f]{12}  (queued|completed|failed)", line) for line in shown[1:5])
    assert "…" in shown[1]
    assert "long " * 59 in run_process("ls", "work", "--db", work_db).stdout


# show


def test_show_prints_a_session_as_a_timeline(work_db: str) -> None:
    """Messages and calls are in order."""
    shown = run_cli("show", "work", "--db", work_db).stdout
    texts = ["list it, please", "I am looking.", "List the folder", "a.txt", "FileNotFoundError: no x", "Read"]
    assert [shown.index(text) for text in texts] == sorted(shown.index(text) for text in texts)


def test_show_finds_a_call_by_each_of_its_ids(work_db: str) -> None:
    """A call is found by its id, a prefix of it, the agent's id within a session, or @last within a session. (C1)"""
    rows = list_calls(work_db)
    for arguments in (
        [rows[2].id],
        [rows[2].id[:-1]],
        ["call_1", "--session", "work"],
        ["@last", "--session", "work"],
        ["call_1", "--session", "wor"],
    ):
        result = run_cli("show", *arguments, "--json", "--db", work_db)
        assert json.loads(result.stdout)["call"] == rows[2].id, result.stderr


def test_show_at_last_prints_the_last_written_session(work_db: str) -> None:
    """The session that was written last."""
    assert json.loads(run_cli("show", "@last", "--json", "--db", work_db).stdout)["session"] == "other"


def test_an_ambiguous_id_lists_its_matches(work_db: str) -> None:
    """A foreign id of two sessions and a prefix of several calls or sessions are ambiguous. (C2)"""
    result = run_cli("show", "call_1", "--db", work_db)
    call_ids = [list_calls(work_db)[2].id, list_calls(work_db, "other")[0].id]
    assert result.exit_code == exit_status.USAGE and all(id in result.stderr for id in call_ids)
    assert all(row.id in run_cli("show", "exec_", "--db", work_db).stderr for row in list_calls(work_db))
    with_ledger(work_db, lambda ledger: ledger.log.append("exec_things", [ev.MessageUser(text="hi")]))
    call_id = list_calls(work_db)[0].id
    assert run_cli("show", call_id, "--db", work_db).exit_code == 0
    assert "exec_things" in run_cli("show", "exec_", "--db", work_db).stderr
    assert run_cli("show", "exec_things", "--db", work_db).exit_code == 0


def test_an_unknown_id_is_status_3(work_db: str) -> None:
    """This holds for sessions, calls and approvals, and for a call of another session."""
    for line in ("show nothing", "ls nothing", "export nothing", "wait nothing", "approve nothing", "verify nothing"):
        result = run_cli(*line.split(), "--db", work_db)
        assert result.exit_code == exit_status.NOT_FOUND, (line, result.stderr)
        assert result.stderr.startswith("callslip: no ") and not result.stdout
    other = list_calls(work_db, "other")[0].id
    assert run_cli("show", other, "--session", "work", "--db", work_db).exit_code == exit_status.NOT_FOUND


def test_show_prints_all_details_of_a_call(work_db: str) -> None:
    """The page has the state, tool, times, input, outcome and every event, with the verdict of a late one. (C4)"""
    first, second, third = list_calls(work_db)
    shown = run_cli("show", first.id, "--db", work_db).stdout
    assert all(
        text in shown for text in (first.id, "completed", "List the folder", '"path": "."', "a.txt", "call.started")
    )
    failed = run_cli("show", second.id, "--db", work_db).stdout
    assert "FileNotFoundError: no x" in failed
    late = run_cli("show", third.id, "--db", work_db).stdout
    assert "mcp__fs__Read" in late and "first" in late
    assert re.search(r"call\.failed +late +after the end; recorded, no effect +too late", late)
    data = json.loads(run_cli("show", third.id, "--json", "--db", work_db).stdout)
    assert [event["type"] for event in data["events"]] == ["call.proposed", "call.completed", "call.failed"]
    assert data["events"][-1]["verdict"] == "late" and data["toolCall"]["output"] == "first"


@pytest.mark.parametrize("value", [{}, [], 0, False])
def test_show_prints_empty_arguments(db: str, value: Any) -> None:
    """Arguments that are empty differ from arguments that are unknown."""

    async def record() -> None:
        async with callslip.open(db) as ledger, ledger.session("s").call("t", value):
            pass

    asyncio.run(record())
    shown = run_cli("show", list_calls(db, "s")[0].id, "--db", db).stdout
    assert re.search(rf"^input\n│ {re.escape(json.dumps(value))}$", shown, re.MULTILINE)


def test_show_prints_the_approval_of_a_call(db: str) -> None:
    """The page of the approval or of the call has the request and its answer."""
    append_scenario(db, "approval_granted")
    (row,) = list_calls(db, "approval_granted")
    shown = run_cli("show", row.id, "--db", db).stdout
    approval = re.search(r"appr_[0-9a-f]{12}", shown)
    assert approval and "approved" in shown
    assert row.id in run_cli("show", approval[0], "--db", db).stdout
    assert (
        json.loads(run_cli("show", approval[0], "--json", "--db", db).stdout)["approvalRequest"]["state"] == "granted"
    )


def test_show_prints_the_size_of_omitted_output(db: str) -> None:
    """Output that is stored outside the log is shown in part, with its size; --full shows all of it. (S2.8)"""
    full_output = "".join(f"line {number}\n" for number in range(20_000))
    with_ledger(db, lambda ledger: ledger.log.append("big", [ev.CallCompleted(tool_name="cat", output=full_output)]))
    (row,) = list_calls(db, "big")
    part = run_cli("show", row.id, "--db", db).stdout
    assert format_size(len(full_output)) in part and "line 19999" not in part and "more line" in part
    assert "line 19999" in run_cli("show", row.id, "--full", "--db", db).stdout
    assert (
        json.loads(run_cli("show", row.id, "--full", "--json", "--db", db).stdout)["toolCall"]["output"] == full_output
    )
    assert "more line" in run_cli("show", "big", "--db", db).stdout
    assert "line 19999" in run_cli("show", "big", "--full", "--db", db).stdout


def test_long_lines_are_truncated_and_counted(db: str) -> None:
    """One line of output does not fill the page, and --full shows all of it without filling the memory."""
    text = "x" * 40_000 + "\n" + "short\n" * 3_000
    with_ledger(db, lambda ledger: ledger.log.append("wide", [ev.CallCompleted(tool_name="cat", output=text)]))
    shown = run_cli("show", "wide", "--db", db).stdout
    assert len(shown) < 5_000 and "more characters" in shown and "more lines" in shown
    full = run_cli("show", "wide", "--full", "--db", db).stdout
    assert "x" * 40_000 in full and full.count("short") == 3_000 and len(full) < 200_000


def test_show_limits_a_long_session(db: str) -> None:
    """The newest entries are shown, and the option that shows the others."""
    events = [ev.MessageUser(text=f"word {number}.") for number in range(30)]
    with_ledger(db, lambda ledger: ledger.log.append("long", events))
    part = run_cli("show", "long", "--limit", "5", "--db", db).stdout
    assert "word 29." in part and "word 24." not in part and "--limit 0" in part
    assert "word 0." in run_cli("show", "long", "--limit", "0", "--db", db).stdout


def test_out_of_range_times_are_shown(db: str) -> None:
    """An event may have any number as its time."""
    events = [ev.MessageUser(text=f"at {at}", at=at) for at in (1, 10**15, 2**53 - 1)]
    with_ledger(db, lambda ledger: ledger.log.append("odd", [*events, ev.CallCompleted(at=2**53 - 1, output=1)]))
    assert run_cli("show", "odd", "--db", db).exit_code == 0
    assert run_cli("ls", "odd", "--db", db).exit_code == 0
    assert run_cli("show", list_calls(db, "odd")[0].id, "--db", db).exit_code == 0


# export


def test_export_prints_the_event_log_unchanged(work_db: str) -> None:
    """Every event, in order, as one JSON document with one event per line. (C8)"""

    async def read_bodies(ledger: LocalLedger) -> list[bytes]:
        return [body for _, body in await ledger.log.store.events("work", 0, 1000)]

    bodies = with_ledger(work_db, read_bodies)
    result = run_cli("export", "work", "--format", "events", "--db", work_db)
    document = json.loads(result.stdout)
    assert document == {"session": "work", "seq": len(bodies), "events": [json.loads(body) for body in bodies]}
    assert result.stdout.splitlines()[1:-1] == [body.decode() + "," for body in bodies[:-1]] + [bodies[-1].decode()]


def test_export_at_an_earlier_event(work_db: str) -> None:
    """--at exports the state after that event in every format; a seq beyond the log is refused."""
    for format_, key in (("events", "events"), ("entries", "entries"), ("ui-v6", "messages")):
        document = json.loads(run_cli("export", "work", "--format", format_, "--at", "3", "--db", work_db).stdout)
        assert document["seq"] == 3 and len(json.dumps(document[key])) > 2
        empty = json.loads(run_cli("export", "work", "--format", format_, "--at", "0", "--db", work_db).stdout)
        assert empty == {"session": "work", "seq": 0, key: []}
        assert (
            run_cli("export", "work", "--format", format_, "--at", "999", "--db", work_db).exit_code
            == exit_status.USAGE
        )


def test_export_of_entries_equals_the_snapshot(work_db: str) -> None:
    """The exported entries equal the snapshot, also when folded from the log by --at. (C9)"""
    snapshot = with_ledger(work_db, lambda ledger: ledger.snapshot("work"))
    expected = json.loads(msgspec.json.encode(snapshot.entries))
    current = json.loads(run_cli("export", "work", "--db", work_db).stdout)
    at_last_seq = json.loads(run_cli("export", "work", "--at", str(snapshot.seq), "--db", work_db).stdout)
    assert current == at_last_seq == {"session": "work", "seq": snapshot.seq, "entries": expected}


def test_export_streams_a_turn(db: str) -> None:
    """The output is the server-sent events of the last turn, or of the named one, with the closing mark."""
    append_scenario(db, "two_turns")
    last = run_cli("export", "two_turns", "--format", "ui-v6", "--stream", "--db", db).stdout
    assert last.endswith("data: [DONE]\n\n")
    chunks = [json.loads(part.removeprefix("data: ")) for part in last.split("\n\n")[:-2]]
    messages = json.loads(run_cli("export", "two_turns", "--format", "ui-v6", "--db", db).stdout)["messages"]
    assert chunks[0] == {"type": "start", "messageId": messages[-1]["id"]}
    document = json.loads(run_cli("export", "two_turns", "--format", "events", "--db", db).stdout)
    turns = [event["turn"] for event in document["events"] if event["type"] == "turn.started"]
    first = run_cli("export", "two_turns", "--format", "ui-v6", "--stream", "--turn", turns[0], "--db", db).stdout
    assert first != last and first.startswith("data: ")
    result = run_cli("export", "two_turns", "--format", "ui-v6", "--stream", "--turn", "no", "--db", db)
    assert result.exit_code == exit_status.NOT_FOUND and turns[0] in result.stderr


def test_export_writes_a_complete_file_or_none(work_db: str, tmp_path: Path) -> None:
    """A file is replaced once the export is complete; a device is written directly; a failure changes no file."""
    file = tmp_path / "out.json"
    result = run_cli("export", "work", "-o", str(file), "--db", work_db)
    assert json.loads(file.read_text())["session"] == "work" and not result.stdout
    assert run_cli("export", "nothing", "-o", str(file), "--db", work_db).exit_code == exit_status.NOT_FOUND
    assert json.loads(file.read_text())["session"] == "work"
    assert (
        run_cli("export", "work", "-o", "/dev/null", "--db", work_db).exit_code == 0 and not Path("/dev/null").is_file()
    )
    missing = run_cli("export", "work", "-o", str(tmp_path / "no" / "out.json"), "--db", work_db)
    assert missing.exit_code == exit_status.FAILED and str(tmp_path / "no" / "out.json:") in missing.stderr
    assert [path.name for path in tmp_path.iterdir() if "ledger" not in path.name] == ["out.json"]


def test_export_of_removed_events_is_status_3(work_db: str) -> None:
    """The remaining events are exported."""

    async def prune(ledger: LocalLedger) -> int:
        await asyncio.sleep(0.01)
        removed = await ledger.prune(0)
        await ledger.log.append("work", [ev.MessageUser(text="afterwards")])
        return removed

    assert with_ledger(work_db, prune) > 0
    result = run_cli("export", "work", "--at", "1", "--db", work_db)
    assert result.exit_code == exit_status.NOT_FOUND and "retention" in result.stderr
    document = json.loads(run_cli("export", "work", "--format", "events", "--db", work_db).stdout)
    assert [event["text"] for event in document["events"]] == ["afterwards"]
    assert "retention" in run_cli("show", "work", "--db", work_db).stdout


# import


def export_session(db: str, session: str, *arguments: str) -> str:
    result = run_cli("export", session, *arguments, "--db", db)
    assert result.exit_code == 0, result.stderr
    return result.stdout


# The import holds back text that might start a secret again, so numbers may differ by one. Calls and texts that are
# still open at the end of the log are ended by the import (C5). Everything else is equal.
RENUMBERED_FIELDS = ("id", "at", "end", "late")
FIELDS_ENDED_BY_EOF = ("status", "endedAt", "reason", "state", "streaming", "responseTime")


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_an_export_imported_into_another_ledger_gives_the_same_session(db: str, tmp_path: Path, name: str) -> None:
    """This holds for the log of every scenario. (C9)"""
    append_scenario(db, name)
    file, copy_db = tmp_path / f"{name}.json", str(tmp_path / "copy.db")
    file.write_text(export_session(db, name, "--format", "events"))
    result = run_cli("import", "--format", "events", str(file), "--db", copy_db)
    assert result.exit_code == 0, result.stderr
    entries, imported_entries = (json.loads(export_session(ledger, name))["entries"] for ledger in (db, copy_db))
    for entry, imported_entry in zip(entries, imported_entries, strict=True):
        omitted_fields = RENUMBERED_FIELDS + (FIELDS_ENDED_BY_EOF if is_open(entry) else ())
        assert omit_fields(imported_entry, omitted_fields) == omit_fields(entry, omitted_fields)


def is_open(entry: dict[str, Any]) -> bool:
    is_pending = entry["type"] == "permission_request" and entry.get("state", "pending") == "pending"
    return is_pending or bool(entry.get("streaming")) or entry.get("status") in OPEN_STATES


def omit_fields(entry: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name not in fields}


def test_importing_twice_changes_nothing(work_db: str, tmp_path: Path) -> None:
    """The second import may be a document, lines or stdin. (C7)"""
    document = export_session(work_db, "work", "--format", "events")
    events = json.loads(document)["events"]
    lines = "".join(line.removesuffix(",") + "\n" for line in document.splitlines()[1:-1])
    copy_db = str(tmp_path / "copy.db")
    (tmp_path / "a.json").write_text(document)
    (tmp_path / "a.jsonl").write_text(lines)
    first = run_cli("import", "--format", "events", str(tmp_path / "a.json"), "--json", "--db", copy_db)
    data = json.loads(first.stdout)
    assert (data["lines"], data["events"], data["seen"], data["sessions"]) == (len(events), len(events), 0, ["a"])
    assert "stored without effect: 1 late" in first.stderr
    before = export_session(copy_db, "a", "--format", "events")
    second = run_cli("import", "--format", "events", str(tmp_path / "a.jsonl"), "--json", "--db", copy_db)
    assert json.loads(second.stdout)["seen"] == len(events) and "already imported" in second.stderr
    piped = run_process(
        "import", "--format", "events", "-", "--session", "a", "--db", copy_db, stdin=None, input=document
    )
    assert "0 new events in a" in piped.stderr
    assert export_session(copy_db, "a", "--format", "events") == before


def test_a_document_is_imported_in_any_json_layout(work_db: str, tmp_path: Path) -> None:
    """It may be indented by another program, or be a list of events."""
    events = json.loads(export_session(work_db, "work", "--format", "events"))["events"]
    for name, value in (("object", {"events": events}), ("list", events)):
        (tmp_path / name).write_text(json.dumps(value, indent=2))
        result = run_cli("import", "--format", "events", str(tmp_path / name), "--db", str(tmp_path / f"{name}.db"))
        assert result.exit_code == 0 and f"{len(events)} new events in {name}" in result.stderr


def test_importing_a_grown_file_adds_only_the_new_lines(work_db: str, tmp_path: Path) -> None:
    """The known lines are counted as seen. (C7)"""
    lines = export_session(work_db, "work", "--format", "events").splitlines()[1:-1]
    file, copy_db = tmp_path / "grows.jsonl", str(tmp_path / "copy.db")
    file.write_text("\n".join(line.removesuffix(",") for line in lines[:2]))
    assert "2 lines" in run_cli("import", "--format", "events", str(file), "--db", copy_db).stderr
    file.write_text("\n".join(line.removesuffix(",") for line in lines))
    result = run_cli("import", "--format", "events", str(file), "--json", "--db", copy_db)
    assert json.loads(result.stdout)["seen"] == 2


def rpc_line(direction: str, **message: Any) -> str:
    return json.dumps({"dir": direction, "msg": {"jsonrpc": "2.0", **message}}) + "\n"


def agent_chunk(text: str) -> str:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    return rpc_line("a2c", method="session/update", params={"sessionId": "s1", "update": update})


PROMPT = {"sessionId": "s1", "prompt": [{"type": "text", "text": "hello"}]}
AGENT_TRAFFIC = (
    rpc_line("c2a", id=1, method="session/new", params={"cwd": "/", "mcpServers": []})
    + rpc_line("a2c", id=1, result={"sessionId": "s1"})
    + rpc_line("c2a", id=2, method="session/prompt", params=PROMPT)
    + agent_chunk("ha")
    + agent_chunk("ha")
    + rpc_line("a2c", id=2, result={"stopReason": "end_turn"})
)


@pytest.mark.parametrize(("chunks", "text"), [(None, "haha"), ("delta", "haha"), ("cumulative", "ha")])
def test_recorded_agent_traffic_is_imported(tmp_path: Path, chunks: str | None, text: str) -> None:
    """--format acp imports it with each --chunks policy. (S2.4)"""
    (tmp_path / "talk.jsonl").write_text(AGENT_TRAFFIC)
    options = ["--chunks", chunks] if chunks else []
    result = run_cli(
        "import", "--format", "acp", str(tmp_path / "talk.jsonl"), *options, "--db", str(tmp_path / "x.db")
    )
    assert result.exit_code == 0, result.stderr
    entries = json.loads(export_session(str(tmp_path / "x.db"), "talk"))["entries"]
    messages = [(entry["role"], entry["content"]) for entry in entries if entry["type"] == "message"]
    assert messages == [("user", "hello"), ("assistant", text)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{not json\n", "line 1: invalid JSON"),
        ('{"type":"message.user","text":"kept"}\n}\n', "line 2: invalid JSON"),
        ('{"session":"x","seq":2,"events":[\n{"type":"message.user","text":"kept"},\n', "is truncated"),
        ("\x00\x01\x02", "line 1: invalid JSON"),
    ],
)
def test_an_invalid_line_stops_the_import_and_is_named(tmp_path: Path, content: str, message: str) -> None:
    """The lines before it are kept; the status is 1. (C11)"""
    (tmp_path / "b.jsonl").write_text(content)
    result = run_cli("import", "--format", "events", str(tmp_path / "b.jsonl"), "--db", str(tmp_path / "x.db"))
    assert result.exit_code == exit_status.FAILED and message in result.stderr and "b.jsonl" in result.stderr
    if "kept" in content:
        assert [entry["content"] for entry in json.loads(export_session(str(tmp_path / "x.db"), "b"))["entries"]] == [
            "kept"
        ]


def test_import_refuses_missing_or_invalid_arguments(tmp_path: Path) -> None:
    """It needs a known format, an existing file, and a session name for stdin."""
    (tmp_path / "f").touch()
    file = str(tmp_path / "f")
    for line in (["-", "--format", "events"], [file], [file, "--format", "odd"], [file + "x", "--format", "events"]):
        assert run_cli("import", *line, "--db", str(tmp_path / "x.db")).exit_code == exit_status.USAGE
    assert run_cli("import", file, "--format", "events", "--session", "a/b").exit_code == exit_status.USAGE
    assert not (tmp_path / "x.db").exists()
    assert "0 lines" in run_cli("import", file, "--format", "events", "--db", str(tmp_path / "x.db")).stderr


@pytest.mark.parametrize(
    ("path", "name"),
    [("/a/talk.jsonl", "talk"), ("x.tar", "x.tar"), ("a\\b.json", "a_b"), (".jsonl", ".jsonl"), ("é" * 300, "é" * 100)],
)
def test_a_session_is_named_after_its_file(path: str, name: str) -> None:
    """The extension is removed, invalid characters are replaced, and a long name is shortened."""
    assert session_name(path) == name


def test_the_default_ledger_is_private_to_its_owner(tmp_path: Path, home: Path) -> None:
    """The first import creates the data folder, which other users cannot read."""
    (tmp_path / "a.jsonl").write_text('{"type":"message.user","text":"hi"}\n')
    assert run_cli("import", "--format", "events", str(tmp_path / "a.jsonl")).exit_code == 0
    folder = home / ".local" / "share" / "callslip"
    assert (folder / "ledger.db").exists() and folder.stat().st_mode & 0o077 == 0
    assert run_cli("ls").stdout.splitlines()[1].startswith("a ")


def test_a_long_import_shows_its_progress(tmp_path: Path) -> None:
    """A terminal gets a progress bar, a pipe does not."""
    (tmp_path / "long.jsonl").write_text('{"type":"message.user","text":"%s"}\n' % ("hello " * 1000) * 300)
    arguments = ["import", "--format", "events", str(tmp_path / "long.jsonl"), "--db", str(tmp_path / "x.db")]
    shown = run_in_terminal(*arguments)
    assert "importing" in shown and "%" in shown and "300 new events" in shown
    assert "importing" not in run_process(*arguments).stderr


# approve, deny, wait


@pytest.fixture
def approval_db(db: str) -> str:
    """A session `ask` whose only call waits for approval."""

    async def ask(ledger: LocalLedger) -> None:
        aliases = (Alias("t", "call_1"),)
        options = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
        fields: dict[str, Any] = {"tool_name": "rm", "title": "Remove all", "input": {"path": "/"}}
        await ledger.log.append("ask", [ev.ApprovalRequested(aliases=aliases, options=options, **fields)])

    with_ledger(db, ask)
    return db


@pytest.mark.parametrize("target", ["approval", "call", "call_1", "@last", "appr_", "exec_"])
def test_approve_queues_the_call(approval_db: str, target: str) -> None:
    """The id may be the approval's, the call's, or a prefix; the name in --by is recorded. (S2.13)"""
    (row,) = list_calls(approval_db, "ask")
    id = {"approval": row.approval, "call": row.id}.get(target, target)
    result = run_cli("approve", id, "--by", "Ada", "--json", "--db", approval_db)
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert (data["state"], data["option"], data["by"]) == ("granted", "yes", "Ada")
    assert list_calls(approval_db, "ask")[0].state == "queued" and "approved by Ada (yes): Remove all" in result.stderr


def test_approve_can_edit_the_arguments(approval_db: str) -> None:
    """--input replaces them; an option that the request does not have is refused."""
    assert run_cli("approve", "@last", "--option", "maybe", "--db", approval_db).exit_code == exit_status.USAGE
    assert run_cli("approve", "@last", "--input", '{"path": "/tmp"}', "--db", approval_db).exit_code == 0
    shown = json.loads(run_cli("show", "call_1", "--json", "--db", approval_db).stdout)
    assert shown["toolCall"]["rawInput"] == {"path": "/tmp"}


def test_deny_stores_the_reason_on_the_call(approval_db: str) -> None:
    """The call is denied with this reason. (C5)"""
    result = run_cli("deny", "@last", "--reason", "not the root", "--by", "Ada", "--db", approval_db)
    assert result.exit_code == 0
    (row,) = list_calls(approval_db, "ask")
    assert (row.state, row.reason) == ("denied", "not the root")


def test_a_second_decision_fails_and_names_the_first(approval_db: str) -> None:
    """The first decision is unchanged. (S2.7)"""
    (row,) = list_calls(approval_db, "ask")
    assert run_cli("deny", row.approval, "--by", "Ada", "--db", approval_db).exit_code == 0
    result = run_cli("approve", row.approval, "--by", "Bob", "--db", approval_db)
    assert result.exit_code == exit_status.FAILED and "it was denied by Ada" in result.stderr
    assert list_calls(approval_db, "ask")[0].state == "denied"
    assert list_calls(approval_db, "ask")[0].reason == "denied by Ada"
    assert "no pending approvals" in run_cli("approve", "@last", "--db", approval_db).stderr


def test_a_call_without_a_pending_approval_cannot_be_approved(work_db: str) -> None:
    """The message contains the state of the call."""
    result = run_cli("approve", list_calls(work_db)[0].id, "--db", work_db)
    assert result.exit_code == exit_status.NOT_FOUND and "has no pending approval; it is completed" in result.stderr


END_EVENTS = {
    "completed": (ev.CallCompleted(output="made"), 0),
    "failed": (ev.CallFailed(error="broken"), 1),
    "denied": (ev.CallDenied(reason="no"), 4),
    "expired": (ev.CallExpired(reason="too slow"), 5),
    "cancelled": (ev.CallCancelled(reason="stop"), 5),
    "lost": (ev.CallLost(reason="gone"), 5),
}


@pytest.mark.parametrize("state", END_EVENTS)
def test_the_exit_status_of_wait_depends_on_how_the_call_ended(db: str, state: str) -> None:
    """stdout has the output of the call, stderr its state."""
    end, status = END_EVENTS[state]
    aliases = (Alias("t", "call_1"),)
    drafts = [ev.CallProposed(tool_name="t", aliases=aliases), msgspec.structs.replace(end, aliases=aliases)]
    with_ledger(db, lambda ledger: ledger.log.append("s", drafts))
    result = run_cli("wait", "call_1", "--db", db)
    assert result.exit_code == status and state in result.stderr
    assert result.stdout == {"completed": "made\n", "failed": "broken\n"}.get(state, "")
    assert json.loads(run_cli("wait", "@last", "--json", "--db", db).stdout)["state"] == state


def test_wait_exits_after_its_timeout(approval_db: str) -> None:
    """Status 124, as of `timeout`; the call stays pending."""
    for target in ("call_1", list_calls(approval_db, "ask")[0].approval):
        result = run_cli("wait", target, "--timeout", "0.05", "--db", approval_db)
    assert result.exit_code == exit_status.TIMED_OUT and "has not ended within 0.05 s" in result.stderr
    assert list_calls(approval_db, "ask")[0].state == "awaiting_approval"


def wait_until(condition: Callable[[], Any], description: str) -> Any:
    """Return the first true value of a condition, and fail after 30 seconds."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"never happened: {description}")


def test_wait_ends_when_another_process_ends_the_call(approval_db: str) -> None:
    """Another command denies the call that this one waits for."""
    with subprocess.Popen(
        callslip_command("wait", "call_1", "--timeout", "30", "--db", approval_db), stderr=subprocess.PIPE, text=True
    ) as waiting:
        wait_until(lambda: has_open(waiting.pid, db_path(approval_db)), "the ledger is open")
        assert run_process("deny", "call_1", "--reason", "because", "--db", approval_db).returncode == 0
        assert waiting.stderr and "denied: because" in waiting.stderr.read()
    assert waiting.returncode == exit_status.DENIED


def test_an_interrupt_is_status_130(approval_db: str) -> None:
    """Ctrl-C while waiting prints no traceback and changes nothing."""
    with subprocess.Popen(
        callslip_command("wait", "call_1", "--db", approval_db), stderr=subprocess.PIPE, text=True
    ) as waiting:
        wait_until(lambda: has_open(waiting.pid, db_path(approval_db)), "the ledger is open")
        waiting.send_signal(signal.SIGINT)
        assert waiting.stderr and "Traceback" not in waiting.stderr.read()
    assert waiting.returncode == exit_status.INTERRUPTED
    assert list_calls(approval_db, "ask")[0].state == "awaiting_approval"


def has_open(pid: int, path: Path) -> bool:
    """Return whether a process has a file open. It may close files meanwhile."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if link.readlink() == path:
                return True
        except FileNotFoundError:
            pass
    return False


# admin


def test_delete_requires_confirmation(work_db: str) -> None:
    """Without a terminal --yes is required. Only the full name is accepted."""
    result = run_process("admin", "delete", "work", "--db", work_db)
    assert result.returncode == exit_status.USAGE and "--yes" in result.stderr
    assert run_cli("admin", "delete", "wor", "--db", work_db).stderr == "callslip: no session 'wor'\n"
    assert "nothing was deleted" in run_in_terminal("admin", "delete", "work", "--db", work_db, keys="n\n")
    assert run_cli("admin", "delete", "wor", "--yes", "--db", work_db).exit_code == exit_status.NOT_FOUND
    assert len(list_calls(work_db)) == 3
    assert run_cli("admin", "delete", "work", "--yes", "--db", work_db).exit_code == 0
    assert run_cli("show", "work", "--db", work_db).exit_code == exit_status.NOT_FOUND
    assert run_cli("show", "other", "--db", work_db).exit_code == 0
    assert "deleted session other" in run_in_terminal("admin", "delete", "other", "--db", work_db, keys="y\n")


def test_prune_removes_events_older_than_keep(db: str) -> None:
    """Events older than --keep are removed, the others stay."""
    old_time = int((time.time() - 40 * 86400) * 1000)
    events = [ev.MessageUser(text="old", at=old_time), ev.MessageUser(text="new")]
    with_ledger(db, lambda ledger: ledger.log.append("s", events))
    result = run_cli("admin", "prune", "--keep", "30d", "--json", "--db", db)
    assert json.loads(result.stdout) == {"removedEvents": 1} and "1 event older than 30d" in result.stderr
    assert "new" in run_cli("show", "s", "--db", db).stdout


# verify


def tamper(db: str, sql: str) -> None:
    """Change the database file without the ledger."""
    import apsw

    connection = apsw.Connection(str(db_path(db)))
    connection.execute(sql).fetchall()  # pyright: ignore
    connection.close()


def test_verify_reports_rows_that_differ_from_the_log(work_db: str) -> None:
    """Without problems stdout is empty. Otherwise each has a line or an object, and the status is 1. (C9)"""
    good = run_cli("verify", "--db", work_db)
    assert good.exit_code == 0 and not good.stdout and "OK: no problems found" in good.stderr
    (row,) = list_calls(work_db, "other")
    tamper(work_db, f"UPDATE calls SET state = 'failed', title = 'x' || char(27) WHERE id = '{row.id}'")
    bad = run_cli("verify", "--db", work_db)
    assert bad.exit_code == exit_status.FAILED and row.id in bad.stdout and "1 problem in the ledger" in bad.stderr
    assert not HIDDEN_CHARACTERS.search(bad.stdout)
    data = [json.loads(line) for line in run_cli("verify", "--json", "--db", work_db).stdout.splitlines()]
    assert [problem["session"] for problem in data] == ["other"]
    assert run_cli("verify", "work", "--db", work_db).exit_code == 0
    assert run_cli("verify", "other", "--db", work_db).exit_code == exit_status.FAILED


# doctor


def test_doctor_reports_no_problems_for_a_healthy_ledger(work_db: str) -> None:
    """It prints the facts and no finding."""
    result = run_cli("doctor", "--db", work_db)
    assert result.exit_code == 0 and "no problems found" in result.stdout
    data = json.loads(run_cli("doctor", "--json", "--db", work_db).stdout)
    assert data["path"] == str(db_path(work_db)) and data["saidBy"] == "--db" and data["access"] == "read and write"
    assert data["sessions"] == 2 and data["calls"] == {"completed": 3, "failed": 1}
    assert data["schema"]["version"] == data["schema"]["newest"] and data["findings"] == [] and data["open"] == []
    assert set(data["locks"]) == {"queue", "work"} and data["settings"]["synchronous"] == "FULL"


def leave_running_call(db: str) -> str:
    """Start a call in a process that dies during it, and return its id."""
    code = (
        "import asyncio, os, sys, callslip\n"
        "async def main():\n"
        "    ledger = await callslip.open(sys.argv[1])\n"
        "    async with ledger.session('s').call('sleep', {}) as call:\n"
        "        print(call.id, flush=True)\n"
        "        os._exit(1)\n"
        "asyncio.run(main())\n"
    )
    return subprocess.run([sys.executable, "-c", code, db], capture_output=True, text=True).stdout.strip()


def test_doctor_reports_a_dead_owner_and_changes_nothing(db: str) -> None:
    """The call of a dead process is reported and not changed; the next reader ends it. (C5)"""
    call = leave_running_call(db)
    for _ in range(2):
        result = run_cli("doctor", "--db", db)
        assert (
            result.exit_code == 0
            and f"call {call} is running, but process" in result.stdout
            and "gone" in result.stdout
        )
    data = json.loads(run_cli("doctor", "--json", "--db", db).stdout)
    assert data["open"][0]["alive"] is False and data["findings"][0]["level"] == "note"
    assert json.loads(run_cli("ls", "s", "--json", "--db", db).stdout)["state"] == "lost"
    assert "no problems found" in run_cli("doctor", "--db", db).stdout


def test_doctor_lists_pending_approvals(approval_db: str) -> None:
    """It prints the commands that answer them."""
    (row,) = list_calls(approval_db, "ask")
    shown = run_cli("doctor", "--db", approval_db).stdout
    assert f"callslip approve {row.approval}" in shown and "Remove all" in shown


def test_doctor_reports_a_held_lock(work_db: str) -> None:
    """The lock of an active writer is shown."""
    import fcntl

    with open(f"{db_path(work_db)}-work", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = json.loads(run_cli("doctor", "--json", "--db", work_db).stdout)["locks"]
    assert held == {"queue": "free", "work": "held"}


def test_doctor_reports_a_newer_unsupported_schema(work_db: str) -> None:
    """A newer schema that this version can read is no problem."""
    tamper(work_db, "PRAGMA user_version = 99")
    assert run_cli("doctor", "--db", work_db).exit_code == 0
    tamper(work_db, "UPDATE meta SET value = '99' WHERE name = 'oldest_reader'")
    result = run_cli("doctor", "--db", work_db)
    assert result.exit_code == exit_status.FAILED and "upgrade callslip" in result.stdout
    assert run_cli("ls", "--db", work_db).exit_code == exit_status.FAILED


def test_doctor_reports_a_damaged_file(work_db: str) -> None:
    """The available facts are shown, with the likely cause."""
    file = db_path(work_db)
    data = bytearray(file.read_bytes())
    data[4096:8192] = os.urandom(4096)
    file.write_bytes(data)
    result = run_cli("doctor", "--db", work_db)
    assert result.exit_code == exit_status.FAILED and "likely cause" in result.stdout and "files" in result.stdout


def test_a_read_only_ledger_can_be_read(work_db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read commands and doctor work; a write is refused with a message."""
    outputs = {
        line: run_cli(*line.split(), "--db", work_db).stdout for line in ("ls work --json", "show work", "export work")
    }
    before = {path.name: path.read_bytes() for path in db_path(work_db).parent.iterdir()}
    monkeypatch.setattr(sqlite_open, "is_writable", lambda _: False)
    for line, shown in outputs.items():
        result = run_cli(*line.split(), "--db", work_db)
        assert result.exit_code == 0, result.stderr
        assert re.sub(r"last .*", "", result.stdout) == re.sub(r"last .*", "", shown)
    data = json.loads(run_cli("doctor", "--json", "--db", work_db).stdout)
    assert data["access"] == "read only" and data["findings"][0]["level"] == "note"
    result = run_cli("admin", "delete", "work", "--yes", "--db", work_db)
    assert result.exit_code == exit_status.FAILED and "cannot be written" in result.stderr
    assert {name: db_path(work_db).parent.joinpath(name).read_bytes() for name in before if name.endswith(".db")} == {
        name: data for name, data in before.items() if name.endswith(".db")
    }


# Words


def test_every_state_has_an_exit_status_and_a_symbol() -> None:
    """A new state needs an entry in both tables. (C4)"""
    assert set(exit_status.STATES) == TERMINAL_STATES
    assert set(timeline.STATE_STYLES) == TERMINAL_STATES | OPEN_STATES


def test_durations_are_parsed_and_formatted() -> None:
    """Invalid durations are refused."""
    assert [parse_duration(text, "x") for text in ("90", "90s", "1.5h", "30d", "1h30m", "2W")] == [
        90,
        90,
        5400,
        30 * 86400,
        5400,
        14 * 86400,
    ]
    for text in ("", "d", "-1d", "1y", "1 d", "10dd", "1d?"):
        with pytest.raises(InvalidInputError):
            parse_duration(text, "x")
    assert [format_span(n) for n in (0.5, 59, 60, 3600, 86400 * 3)] == ["0 s", "59 s", "1 min", "1 h", "3 d"]
    moments = (1_000_000, 990_000, 1_060_000, 0)
    assert [format_age(at, 1000.0) for at in moments] == ["just now", "10 s ago", "in 1 min", "never"]
    assert [format_duration(*pair) for pair in ((0, 5), (5, 0), (9, 5), (1, 13), (1, 1201))] == [
        "",
        "",
        "",
        "12 ms",
        "1.2 s",
    ]
    assert [format_size(n) for n in (0, 999, 1000, 2_500_000)] == ["0 bytes", "999 bytes", "1.0 KB", "2.5 MB"]
