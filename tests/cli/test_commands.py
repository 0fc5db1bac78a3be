"""Commands from the command line: submitted, waited for, listed, on a file and by a server; and why one is stuck."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from callslip.api.commands import CommandQueue
from callslip.api.ledger import LocalLedger, open_ledger
from callslip.cli import main
from callslip.cli.commands import doctor_commands
from callslip.cli.commands.doctor_commands import STUCK_MS, Queues, check_commands
from callslip.commands import Command
from callslip.model.records import CallRecord
from callslip.settings import Settings
from tests.support.cli_process import Process, ServeProcess, Terminal, running_process, with_ledger

FILE_AND_HTTP = pytest.mark.parametrize("way", ["file", "http"])


def cli(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin)


def commands_in(path: Path, work: Callable[[CommandQueue], Awaitable[Any]]) -> Any:
    """Do something with the commands of a ledger."""

    async def run_work(ledger: LocalLedger) -> Any:
        commands = CommandQueue(ledger.log)
        try:
            return await work(commands)
        finally:
            await commands.close()

    return with_ledger(path, run_work)


def claimed(path: Path) -> Any:
    """Claim the next command, and return its parameters."""
    return commands_in(path, lambda commands: commands.claim()).params


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def where(path: Path, way: str) -> Iterator[list[str]]:
    """What to say on the command line for the ledger, or for a server of it."""
    if way == "file":
        yield ["--db", str(path)]
        return
    server = ServeProcess(path)
    try:
        yield ["--server", server.url, "--token", server.token]
    finally:
        server.kill()


# Submitting


def test_submit_prints_only_the_id(path: Path) -> None:
    """S3.1: a script reads the id from stdout; a missing ledger is created."""
    done = cli("submit", "reload", "--db", str(path))
    assert done.exit_code == 0 and done.stderr == "added to queue default\n"
    assert commands_in(path, lambda commands: commands.get(done.stdout.strip())).status == "pending"
    data = cli("submit", "reload", "--json", "--db", str(path), "--id", "mine", "--queue", "tab", "--session", "s")
    assert json.loads(data.stdout) == {"status": "queued", "correlation_id": "mine"}
    row: Command = commands_in(path, lambda commands: commands.get("mine"))
    assert (row.client, row.session, row.action) == ("tab", "s", "reload")


@pytest.mark.parametrize("value", [{"a": [1, "ü"]}, {}, [], "text", 0, False, None])
def test_params_reach_the_worker_unchanged(path: Path, value: Any) -> None:
    """As an argument, in a file or on stdin, also an empty value."""
    text, db = json.dumps(value), ("--db", str(path))
    (path.parent / "params.json").write_text(text)
    for params, stdin in ((text, None), (f"@{path.parent / 'params.json'}", None), ("-", text)):
        assert cli("submit", "go", *db, "--params", params, stdin=stdin).exit_code == 0
        assert claimed(path) == value


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["go", "--params", "{"], 2, "--params"),
        (["go", "--params", '{"a": NaN}'], 2, "--params"),
        (["go", "--params", "@nowhere.json"], 1, "nowhere.json: no such file"),
        (["go", "--params", "[" * 5000], 2, "--params"),
        (["go", "--timeout", "0"], 2, "'--timeout': must be above 0 seconds, got 0"),
        (["go", "--timeout", "-1"], 2, "'--timeout': must be above 0 seconds, got -1"),
        (["go", "--timeout", "1e12"], 2, "timeout"),
        (["go", "--timeout", "inf"], 2, "'--timeout': must be a finite number of seconds, got inf"),
        (["go", "--timeout", "nan"], 2, "'--timeout': must be a finite number of seconds, got nan"),
        (["go", "--wait", "nan"], 2, "'--wait': must be a finite number of seconds, got nan"),
        (["go", "--id", "exec_0123456789ab"], 2, "correlation_id"),
        (["go", "--id", ""], 2, "must not be empty"),
        (["go\x1b[2J"], 2, "action"),
        (["x" * 300], 2, "action"),
        (["--wait", "go"], 2, "--wait"),
        ([], 2, "action"),
    ],
)
def test_an_invalid_submission_is_refused_in_a_single_line(
    path: Path, arguments: list[str], status: int, message: str
) -> None:
    """Nothing is queued, and the message has no escape sequences."""
    done = cli("submit", "--db", str(path), *arguments)
    assert done.exit_code == status and not done.stdout
    assert message in done.stderr.lower() and done.stderr.count("\n") == 1 and "\x1b" not in done.stderr
    assert not path.exists() or not commands_in(path, lambda commands: commands.pending())


@FILE_AND_HTTP
def test_a_repeated_submission_with_the_same_id_is_the_same_command(path: Path, where: list[str]) -> None:
    """Other parameters with the same id are a conflict."""
    for _ in range(2):
        assert cli("submit", "go", *where, "--id", "mine", "--params", "[1]").stdout == "mine\n"
    other = cli("submit", "go", *where, "--id", "mine", "--params", "[2]")
    assert other.exit_code == 1 and "was used before" in other.stderr
    assert len(commands_in(path, lambda commands: commands.pending())) == 1


@FILE_AND_HTTP
def test_a_command_id_is_unique_only_within_its_session(path: Path, where: list[str]) -> None:
    """--wait waits for the submitted command, not for one with the same id in another session."""
    assert cli("submit", "go", *where, "--id", "mine", "--session", "other", "--timeout", "60").exit_code == 0
    done = cli("submit", "go", *where, "--id", "mine", "--timeout", "0.1", "--wait")
    assert done.exit_code == 5 and "command mine expired" in done.stderr
    assert [row.session for row in commands_in(path, lambda commands: commands.pending())] == ["other"]


@FILE_AND_HTTP
def test_a_submission_to_a_full_queue_is_refused(path: Path, where: list[str]) -> None:
    """S3.7: the message contains `queue_full`, and the exit status is 1."""

    async def fill(commands: CommandQueue) -> None:
        await asyncio.gather(*(commands.submit("go", timeout=600) for _ in range(100)))

    commands_in(path, fill)
    done = cli("submit", "go", *where)
    assert done.exit_code == 1 and not done.stdout
    assert "queue 'default': full, it has 100 pending commands" in done.stderr
    assert cli("submit", "go", *where, "--queue", "other").exit_code == 0


# Waiting


@FILE_AND_HTTP
def test_the_exit_status_of_wait_depends_on_how_the_command_ended(path: Path, where: list[str]) -> None:
    """0 completed, 1 failed, 4 denied, 5 expired, cancelled or lost, 124 not yet."""
    cases: dict[str, tuple[list[str], int, str]] = {
        "completed": (["--wait", "30"], 0, "command completed completed"),
        "failed": (["--wait"], 1, "command failed failed: it broke"),
        "denied": (["--wait", "--ask"], 4, "command denied denied: not today"),
        "cancelled": (["--wait", "--json"], 5, "command cancelled cancelled: enough"),
        "expired": (["--wait", "--timeout", "0.1"], 5, "command expired expired: no worker claimed it"),
        "later": (["--wait", "0.2"], 124, "command later has not ended within 0.2 s"),
    }

    async def end(commands: CommandQueue) -> None:
        async with asyncio.timeout(30):
            for name in ("completed", "failed", "denied", "cancelled"):
                while not await commands.log.store.alias(name):
                    await asyncio.sleep(0.02)
        await commands.complete("completed", {"title": "Home"})
        await commands.fail("failed", "it broke")
        await LocalLedger(commands.log).cancel("cancelled", reason="enough")
        await LocalLedger(commands.log).deny("denied", by="ann", reason="not today")

    with contextlib.ExitStack() as stack:
        running: dict[str, Process] = {}
        for name, (more, _, _) in cases.items():
            flags = [*where, "--id", name, "--timeout", "60", *more]
            running[name] = stack.enter_context(running_process("submit", "go", *flags))
        commands_in(path, end)
        for name, (_, status, message) in cases.items():
            assert running[name].end() == status, (name, running[name].err)
            assert message in "".join(running[name].err)
    assert running["completed"].out == ['{"title":"Home"}\n']
    (body,) = running["cancelled"].lines()
    assert (body["correlation_id"], body["status"], body["final"]) == ("cancelled", "cancelled", True)
    assert not running["failed"].out and not running["later"].out


@FILE_AND_HTTP
def test_interrupting_a_wait_leaves_the_command_queued(path: Path, where: list[str]) -> None:
    """Ctrl-C gives status 130, and the id was printed before."""
    with running_process("submit", "go", *where, "--id", "mine", "--timeout", "60", "--wait") as waiting:
        waiting.until("submitted as mine")
        assert waiting.signal(signal.SIGINT) == 130
    assert not waiting.out and not any("Traceback" in line for line in waiting.err)
    assert commands_in(path, lambda commands: commands.get("mine")).status == "pending"


@FILE_AND_HTTP
def test_a_command_is_found_by_its_correlation_id(path: Path, where: list[str]) -> None:
    """`wait`, `cancel` and `show` accept it like any id of a call."""
    cli("submit", "go", *where, "--id", "mine", "--idempotent")
    assert cli("wait", "mine", *where, "--timeout", "0.1").exit_code == 124
    assert cli("cancel", "mine", *where, "--reason", "enough").exit_code == 0
    assert cli("wait", "mine", *where).exit_code == 5
    shown = cli("show", "mine", "--db", str(path)).stdout.split()
    assert (
        shown[1] == "cancelled"
        and "correlation id mine" in " ".join(shown)
        and "queue default idempotent" in " ".join(shown)
    )


@FILE_AND_HTTP
def test_ls_lists_pending_completed_and_failed_commands(path: Path, where: list[str]) -> None:
    """S3.5: three lists, as a table or as one object; of one client, if that is wanted."""
    for name, client in (("waits", "a"), ("done", "a"), ("broken", "a"), ("other", "b")):
        cli("submit", "go\u202e", *where, "--id", name, "--queue", client)
    assert "no pending commands" in cli("ls", "--commands", "--queue", "unused", *where).stderr

    async def end(commands: CommandQueue) -> None:
        await commands.complete("done", [1, 2])
        await commands.fail("broken", "no\x1b[31m tab")

    commands_in(path, end)
    data = json.loads(cli("ls", "--commands", "--queue", "a", "--json", *where).stdout)
    assert list(data) == ["pending", "completed", "failed"]
    assert [[row["correlation_id"] for row in rows] for rows in data.values()] == [["waits"], ["done"], ["broken"]]
    table = cli("ls", "--commands", *where).stdout
    assert [line.split()[0] for line in table.splitlines()] == ["COMMAND", "waits", "other", "done", "broken"]
    assert "[1,2]" in table and "\x1b" not in table and "\u202e" not in table
    assert "showing the first 1; use --limit" in cli("ls", "--commands", "--limit", "1", *where).stderr
    assert not cli("ls", "--commands", *where).stderr


@pytest.mark.parametrize(
    ("width", "shown"),
    [(80, ["exec_", "pending", r"just now|\d s ago"]), (40, ["exec…", "pend…", r"just…|\d s a?…"])],
)
def test_a_narrow_terminal_shows_every_column(path: Path, width: int, shown: list[str]) -> None:
    """Long values are truncated; id and status stay complete as long as they fit."""
    cli("submit", "go " + "on" * 40, "--db", str(path), "--queue", "tab" * 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        terminal = Terminal("ls", "--commands", "--db", str(path))
        assert terminal.close() == 0
    head, line = terminal.screen_text.splitlines()
    assert len(head) <= width and len(line) <= width
    assert all(re.search(text, line) for text in shown), line


def test_command_options_of_ls_exclude_call_options(path: Path) -> None:
    cli("submit", "go", "--db", str(path))
    for wrong in (["s", "--commands"], ["--commands", "--state", "open"], ["--queue", "a"]):
        assert cli("ls", *wrong).exit_code == 2


# Why a command is stuck (S3.11)

NOW = 1_800_000_000_000


def row(state: str = "queued", **more: Any) -> CallRecord:
    fields: dict[str, Any] = {"created_at": NOW - 15_000, "deadline": NOW + 15_000, "timeout": 30_000, "client": "tab"}
    return CallRecord(id="exec_1", session="s", entry=1, state=state, client_call_id="c1", **(fields | more))


def expired(**more: Any) -> CallRecord:
    fields = {"created_at": NOW - 40_000, "deadline": NOW - 10_000, "ended_at": NOW - 10_000}
    return row("expired", **(fields | more))


@pytest.mark.parametrize(
    ("open", "failed", "executors", "cause"),
    [
        ([row()], [], {}, "no worker has polled queue tab yet"),
        ([row()], [], {"tab": NOW - 300_000}, "no worker has polled queue tab for 5 min"),
        ([row()], [], {"page": NOW - 1000}, "no worker has polled queue tab yet; active queues: page"),
        ([row()], [], {"tab": NOW - 1000}, "its workers polled 1 s ago and claimed none"),
        ([row(), row("running", lease=NOW + 20_000)], [], {"tab": NOW - 90_000}, "its workers are running c1"),
        ([row(deadline=NOW - 20_000)], [], {}, "their timeout has passed while no process"),
        ([row(deadline=NOW - 20_000), row()], [], {}, "no worker has polled queue tab yet"),
        ([row()] * 100, [], {"tab": NOW}, "more commands are submitted than its workers run"),
        ([row("awaiting_approval")], [], {}, "waiting for approval"),
        ([row("running", lease=NOW + 2000, worker="w1")], [], {}, "the worker has not renewed the lease recently"),
        ([], [expired()], {}, "no worker has polled queue tab yet"),
        ([], [expired()], {"tab": NOW - 60_000}, "no worker has polled queue tab for 1 min"),
        ([], [expired(timeout=1000)], {"tab": NOW}, "no worker claimed it within 1 s"),
        ([], [expired(started_at=NOW - 39_000)], {"tab": NOW}, "its worker did not finish within 30 s"),
        ([], [expired(ended_at=NOW - 39_000, reason="a newer command took its place")], {}, "a newer command took its"),
        ([], [expired(deadline=NOW - 400_000)], {}, "the machine slept, its clock was moved forward"),
        ([], [], {"tab": NOW + 600_000}, "the clock of this machine or of another writer was changed"),
    ],
)
def test_doctor_names_the_likely_cause(
    open: list[CallRecord], failed: list[CallRecord], executors: dict[str, int], cause: str
) -> None:
    """S3.11: one finding for any number of commands, and for every finding something to do."""
    found = check_commands(Queues(open, failed, executors, NOW), Settings())
    assert any(finding.cause.startswith(cause) or cause in finding.cause for finding in found), found
    assert len(found) <= 2 and all(finding.advice for finding in found)


@pytest.mark.parametrize(
    ("open", "failed", "executors"),
    [
        ([row("running", lease=NOW + 20_000)], [], {"tab": NOW - 90_000}),
        ([row(deadline=NOW + 29_900)], [], {"tab": NOW - 100}),
        ([row(deadline=NOW + 30_000 - STUCK_MS)], [], {}),
        ([], [row("failed", ended_at=NOW), row("cancelled", ended_at=NOW)], {}),
        ([], [expired(ended_at=NOW - 24 * 3600_000, deadline=NOW - 24 * 3600_000)], {}),
    ],
)
def test_doctor_reports_nothing_for_healthy_commands(
    open: list[CallRecord], failed: list[CallRecord], executors: dict[str, int]
) -> None:
    """Commands that run, were just queued or were ended on purpose are no finding."""
    assert not check_commands(Queues(open, failed, executors, NOW), Settings())


def test_doctor_reports_a_queue_without_workers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real file: facts, cause and exit status, and no problem once the command is run."""
    monkeypatch.setattr(doctor_commands, "STUCK_MS", -1)
    db = ("--db", str(path))
    cli("submit", "go", *db, "--queue", "tab", "--timeout", "600", "--id", "mine")

    async def ask(ledger: LocalLedger) -> None:
        commands = CommandQueue(ledger.log)
        await commands.claim("page")
        await commands.close()

    with_ledger(path, ask)
    done = cli("doctor", *db)
    assert done.exit_code == 1
    assert "tab  1 queued" in done.stdout and "page  last seen just now" in done.stdout
    assert "likely cause: no worker has polled queue tab yet; active queues: page" in (done.stdout)
    data = json.loads(cli("doctor", "--json", *db).stdout)
    assert data["commands"] == {"tab": {"queued": 1}} and list(data["executors"]) == ["page"]

    async def run(commands: CommandQueue) -> None:
        claim = await commands.claim("tab")
        assert claim is not None
        await commands.complete(claim.call, fence=claim.fence)

    commands_in(path, run)
    assert "no problems found" in cli("doctor", *db).stdout


def test_doctor_prints_each_queue_on_its_own_line(path: Path) -> None:
    """Also in a pipe."""
    for client in ("one", "two"):
        assert cli("submit", "go", "--db", str(path), "--queue", client).exit_code == 0
    lines = [line.split() for line in cli("doctor", "--db", str(path)).stdout.split("\n")]
    assert ["commands", "one", "1", "queued"] in lines and ["two", "1", "queued"] in lines


def test_a_path_a_url_and_the_environment_open_the_same_ledger(path: Path) -> None:
    """CALLSLIP_DB, a path and a URL refer to the same file."""
    cli("submit", "go", "--db", f"sqlite:///{path}", "--id", "mine")

    async def read() -> str:
        async with await open_ledger(f"sqlite:///{path}") as ledger:
            return (await ledger.find_call("mine")).state

    assert asyncio.run(read()) == "queued"
    runner = CliRunner(env={"CALLSLIP_DB": str(path)})
    assert "mine" in runner.invoke(main, ["ls", "--commands"]).stdout
