"""`callslip admin copy`: its output, a copy that is killed, many events, and input that it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callslip.api.ledger import LocalLedger, open_ledger
from callslip.cli import exit_status
from callslip.model import events as ev
from callslip.model.events import Event
from tests.support import engines
from tests.support.cli_process import TIMEOUT_S, callslip_command, run_in_process, running_process, with_ledger

PASSWORD = "S3cr3t"
EVENTS = 4000
FORMATS = ("events", "entries", "openai", "anthropic", "ui-v6", "shell")
ON_EACH_ENGINE = pytest.mark.parametrize(
    "engine", [engines.SQLITE, pytest.param(engines.POSTGRES, marks=pytest.mark.postgres)]
)


def make_turn(number: int) -> list[Event]:
    """Return ten events: a prompt, texts, and a call with output."""
    turn, call = f"t{number}", "new:1"
    return [
        ev.TurnStarted(turn=turn),
        ev.MessageUser(text=f"Question {number} \U0001f600"),
        ev.ThoughtDelta(text="thinking", chunks="delta"),
        ev.MessageDelta(text="The ", chunks="delta"),
        ev.MessageDelta(text=f"answer to {number}", chunks="delta"),
        ev.CallProposed(call=call, aliases=[ev.Alias("a", f"c{number}")], tool_name="shell", input={"command": "ls"}),
        ev.CallStarted(call=call),
        ev.CallProgress(call=call, text="line\n"),
        ev.CallCompleted(call=call, output={"n": number, "text": "\0 \u00e9"}),
        ev.TurnEnded(turn=turn),
    ]


async def add_events(ledger: LocalLedger, count: int, sessions: int = 3) -> None:
    """Add about so many events to some sessions."""
    for number in range(count // 10):
        await ledger.log.append(f"s{number % sessions}", make_turn(number))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with some thousand events. It is only read."""
    path = tmp_path_factory.mktemp("source") / "source.db"
    with_ledger(path, lambda ledger: add_events(ledger, EVENTS))
    return path


@pytest.fixture
def target(engine: str, tmp_path: Path) -> Iterator[str]:
    """Return a database that is the target of a copy; the SQLite file does not exist."""
    if engine == engines.SQLITE:
        yield str(tmp_path / "target.db")
    else:
        with engines.new_database(engine) as url:
            yield url


def export_all(url: str, formats: tuple[str, ...] = FORMATS) -> dict[str, bytes]:
    """Return every session in every format, as `callslip export` prints it."""
    names = [json.loads(line)["session"] for line in run_in_process("ls", "--json", "--db", url).stdout.splitlines()]
    assert names

    async def export() -> dict[str, bytes]:
        async with await open_ledger(url) as ledger:
            return {f"{name}.{format}": await ledger.export(name, format) for name in names for format in formats}

    return asyncio.run(export())


def count_events(url: str) -> int:
    try:
        return engines.fetch_rows(url, "SELECT count(*) FROM events")[0][0]
    except Exception:  # The tables do not exist yet.
        return 0


def copy(source: Path | str, target: Path | str, *arguments: str) -> Any:
    """Run the command, which must succeed, and return what it prints with --json and the text."""
    result = run_in_process("admin", "copy", str(source), str(target), "--json", *arguments)
    assert result.returncode == exit_status.OK, result.stderr
    return json.loads(result.stdout), result.stderr


def copy_there_and_back(source: Path, middle: str, back: Path) -> None:
    """Copy a file to PostgreSQL and to another file, and check that all exports and the log are the same bytes."""
    copied, text = copy(source, middle)
    assert copied["rows"]["events"] == count_events(f"sqlite:///{source}")
    assert "OK: all rows are equal, no problems found" in text
    copy(middle, back)
    assert read_log(back) == read_log(source)
    for url in (middle, str(back)):
        assert export_all(url) == export_all(str(source))


def read_log(path: Path) -> list[Any]:
    return engines.fetch_rows(f"sqlite:///{path}", "SELECT session, seq, body FROM events ORDER BY session, seq")


# Moving


@pytest.mark.chaos
@pytest.mark.postgres
def test_a_ledger_comes_back_from_postgres_byte_for_byte(tmp_path: Path, scale: int) -> None:
    """Two thousand events, and a hundred thousand in `make chaos`."""
    count = 2000 * scale
    with_ledger(tmp_path / "source.db", lambda ledger: add_events(ledger, count, sessions=scale))
    with engines.new_database(engines.POSTGRES) as middle:
        copy_there_and_back(tmp_path / "source.db", middle, tmp_path / "back.db")


@pytest.mark.chaos
@ON_EACH_ENGINE
def test_a_copy_that_is_killed_continues(source: Path, target: str, scale: int) -> None:
    """After kill -9 the target is no ledger, and the next run writes only what is missing."""
    url = target if engines.is_postgres(target) else f"sqlite:///{target}"
    for kill in range(1 if scale == 1 else 4):
        with running_process("admin", "copy", str(source), target) as process:
            deadline = time.monotonic() + TIMEOUT_S
            while count_events(url) <= 1000 * kill:
                assert time.monotonic() < deadline, process.err
                time.sleep(0.002)
            assert process.signal(signal.SIGKILL) == -signal.SIGKILL
    opened = run_in_process("ls", "--db", target)
    assert opened.returncode == exit_status.FAILED
    assert f"is an incomplete copy of {source}. Finish it with: callslip admin copy" in opened.stderr
    copied, text = copy(source, target)
    assert copied["isResumed"] and "continued an earlier run" in text
    assert 0 < copied["writtenRows"] < sum(copied["rows"].values())
    assert export_all(target) == export_all(str(source))
    again, text = copy(source, target)
    assert again["wasComplete"] and again["writtenRows"] == 0 and "nothing was copied" in text


def test_a_terminal_shows_the_progress(source: Path, tmp_path: Path) -> None:
    """The last step is always shown, the ones before it if they take long enough."""
    shown = run_on_terminal("admin", "copy", str(source), str(tmp_path / "copy.db"))
    assert "verifying" in shown
    assert "copied 3 sessions, 4,000 events" in shown


def run_on_terminal(*arguments: str) -> str:
    """Return what a command shows on a terminal that can move its cursor."""
    controller, terminal = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "400", "NO_COLOR": "1"}
    with subprocess.Popen(
        callslip_command(*arguments), stdin=terminal, stdout=terminal, stderr=terminal, env=env
    ) as process:
        os.close(terminal)
        shown = b""
        with contextlib.suppress(OSError):  # Linux reports the end of the other side as an error.
            while data := os.read(controller, 65536):
                shown += data
        assert process.wait(TIMEOUT_S) == exit_status.OK, shown
    os.close(controller)
    return shown.decode()


def test_a_snapshot_says_that_later_writes_are_missing(source: Path, tmp_path: Path) -> None:
    """On stderr, where all statuses are."""
    _, text = copy(source, tmp_path / "copy.db", "--snapshot")
    assert "this is a snapshot: later writes to FROM are not included" in text


@ON_EACH_ENGINE
def test_the_source_of_a_running_server_is_refused(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to do, and does not change anything."""
    with running_process("serve", "--port", "0", "--json", env={"CALLSLIP_DB": target}) as server:
        server.until("Web UI: ")
        with monkeypatch.context() as patch:
            patch.setattr("callslip.store.postgres_copy.LEAVE_S", 0.1)  # Its connections stay.
            refused = run_in_process("admin", "copy", target, str(tmp_path / "copy.db"))
        assert refused.returncode == exit_status.FAILED
        assert "is in use: " in refused.stderr and "--snapshot" in refused.stderr
        assert not (tmp_path / "copy.db").exists()
        copy(target, tmp_path / "copy.db", "--snapshot")
        assert server.signal(signal.SIGTERM) == exit_status.TERMINATED
    copy(target, tmp_path / "after.db")


# Refusals


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("missing.db", "to.db"), exit_status.NOT_FOUND, "no ledger at "),
        ((":memory:", "to.db"), exit_status.USAGE, "FROM: a ledger in memory cannot be copied"),
        (("SOURCE", ":memory:"), exit_status.USAGE, "TO: a ledger in memory cannot be copied"),
        (("SOURCE", "SOURCE"), exit_status.USAGE, "TO: is the same database as FROM"),
        (("mysql://host/name", "to.db"), exit_status.USAGE, "FROM: mysql:// is not supported"),
        (("SOURCE", "other.db"), exit_status.FAILED, "is a SQLite database of another program"),
        (("other.db", "to.db"), exit_status.FAILED, "is a SQLite database of another program"),
    ],
)
def test_bad_input_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Any, status: int, message: str
) -> None:
    """The error names what is wrong, and no file is created."""
    monkeypatch.chdir(tmp_path)
    engines.change_rows(f"sqlite:///{tmp_path / 'other.db'}", "CREATE TABLE mail (body TEXT)")
    result = run_in_process("admin", "copy", *(str(source) if name == "SOURCE" else name for name in arguments))
    assert (result.returncode, message in result.stderr) == (status, True), result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.db"]


@pytest.mark.postgres
@pytest.mark.parametrize("as_query", [False, True])
def test_a_server_that_cannot_be_used_is_named_without_its_password(source: Path, as_query: bool) -> None:
    """One that cannot be reached, and one that refuses the user, as the source and as the target."""
    server = engines.server()
    user = f"nobody_here:{PASSWORD}@" if not as_query else "nobody_here@"
    query = f"?password={PASSWORD}" if as_query else ""
    for place, problem in ((f"127.0.0.1:{server.port}", "nobody_here"), ("127.0.0.1:1", "127.0.0.1")):
        url = f"postgresql://{user}{place}/postgres{query}"
        for arguments in ((url, "to.db"), (str(source), url)):
            result = run_in_process("admin", "copy", *arguments)
            assert result.returncode == exit_status.FAILED
            assert problem in result.stderr and "***" in result.stderr
            assert PASSWORD not in result.stderr + result.stdout
