"""Commands from the command line: submit, wait and list them, on a file and through a server; find why one is stuck."""

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

FILE_AND_HTTP = pytest.mark.parametrize("access", ["file", "http"])


def run_cli(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin)


def run_with_queue(path: Path, work: Callable[[CommandQueue], Awaitable[Any]]) -> Any:
    """Run `work` with the command queue of a ledger, and return its result."""

    async def run_work(ledger: LocalLedger) -> Any:
        commands = CommandQueue(ledger.log)
        try:
            return await work(commands)
        finally:
            await commands.close()

    return with_ledger(path, run_work)


def claim_params(path: Path) -> Any:
    """Claim the next command, and return its parameters."""
    return run_with_queue(path, lambda commands: commands.claim()).params


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def location_options(path: Path, access: str) -> Iterator[list[str]]:
    """Return the options that name the ledger, or a server of it."""
    if access == "file":
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
    result = run_cli("submit", "reload", "--db", str(path))
    assert result.exit_code == 0 and result.stderr == "added to queue default\n"
    assert run_with_queue(path, lambda commands: commands.get(result.stdout.strip())).status == "pending"
    data = run_cli("submit", "reload", "--json", "--db", str(path), "--id", "mine", "--queue", "tab", "--session", "s")
    assert json.loads(data.stdout) == {"status": "queued", "correlation_id": "mine"}
    row: Command = run_with_queue(path, lambda commands: commands.get("mine"))
    assert (row.client, row.session, row.action) == ("tab", "s", "reload")


@pytest.mark.parametrize("value", [{"a": [1, "ü"]}, {}, [], "text", 0, False, None])
def test_params_reach_the_worker_unchanged(path: Path, value: Any) -> None:
    """They may be an argument, a file or stdin, and an empty value."""
    text, db = json.dumps(value), ("--db", str(path))
    (path.parent / "params.json").write_text(text)
    for params, stdin in ((text, None), (f"@{path.parent / 'params.json'}", None), ("-", text)):
        assert run_cli("submit", "go", *db, "--params", params, stdin=stdin).exit_code == 0
        assert claim_params(path) == value


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
    result = run_cli("submit", "--db", str(path), *arguments)
    assert result.exit_code == status and not result.stdout
    assert message in result.stderr.lower() and result.stderr.count("\n") == 1 and "\x1b" not in result.stderr
    assert not path.exists() or not run_with_queue(path, lambda commands: commands.pending())


@FILE_AND_HTTP
def test_a_repeated_submission_with_the_same_id_is_the_same_command(path: Path, location_options: list[str]) -> None:
    """Other parameters with the same id are a conflict."""
    for _ in range(2):
        assert run_cli("submit", "go", *location_options, "--id", "mine", "--params", "[1]").stdout == "mine\n"
    other = run_cli("submit", "go", *location_options, "--id", "mine", "--params", "[2]")
    assert other.exit_code == 1 and "was used before" in other.stderr
    assert len(run_with_queue(path, lambda commands: commands.pending())) == 1


@FILE_AND_HTTP
def test_a_command_id_is_unique_only_within_its_session(path: Path, location_options: list[str]) -> None:
    """--wait waits for the submitted command, not for one with the same id in another session."""
    assert (
        run_cli("submit", "go", *location_options, "--id", "mine", "--session", "other", "--timeout", "60").exit_code
        == 0
    )
    result = run_cli("submit", "go", *location_options, "--id", "mine", "--timeout", "0.1", "--wait")
    assert result.exit_code == 5 and "command mine expired" in result.stderr
    assert [row.session for row in run_with_queue(path, lambda commands: commands.pending())] == ["other"]


@FILE_AND_HTTP
def test_a_submission_to_a_full_queue_is_refused(path: Path, location_options: list[str]) -> None:
    """S3.7: the message contains `queue_full`, and the exit status is 1."""

    async def fill(commands: CommandQueue) -> None:
        await asyncio.gather(*(commands.submit("go", timeout=600) for _ in range(100)))

    run_with_queue(path, fill)
    result = run_cli("submit", "go", *location_options)
    assert result.exit_code == 1 and not result.stdout
    assert "queue 'default': full, it has 100 pending commands" in result.stderr
    assert run_cli("submit", "go", *location_options, "--queue", "other").exit_code == 0


# Waiting


@FILE_AND_HTTP
def test_the_exit_status_of_wait_depends_on_how_the_command_ended(path: Path, location_options: list[str]) -> None:
    """It is 0 for completed, 1 failed, 4 denied, 5 expired, cancelled or lost, and 124 if it has not ended."""
    cases: dict[str, tuple[list[str], int, str]] = {
        "completed": (["--wait", "30"], 0, "command completed completed"),
        "failed": (["--wait"], 1, "command failed failed: it broke"),
        "denied": (["--wait", "--ask"], 4, "command denied denied: not today"),
        "cancelled": (["--wait", "--json"], 5, "command cancelled cancelled: enough"),
        "expired": (["--wait", "--timeout", "0.1"], 5, "command expired expired: no worker claimed it"),
        "later": (["--wait", "0.2"], 124, "command later has not ended within 0.2 s"),
    }

    async def end_commands(commands: CommandQueue) -> None:
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
        for name, (options, _, _) in cases.items():
            flags = [*location_options, "--id", name, "--timeout", "60", *options]
            running[name] = stack.enter_context(running_process("submit", "go", *flags))
        run_with_queue(path, end_commands)
        for name, (_, status, message) in cases.items():
            assert running[name].end() == status, (name, running[name].err)
            assert message in "".join(running[name].err)
    assert running["completed"].out == ['{"title":"Home"}\n']
    (body,) = running["cancelled"].lines()
    assert (body["correlation_id"], body["status"], body["final"]) == ("cancelled", "cancelled", True)
    assert not running["failed"].out and not running["later"].out


@FILE_AND_HTTP
def test_interrupting_a_wait_leaves_the_command_queued(path: Path, location_options: list[str]) -> None:
    """Ctrl-C gives status 130, and the id was printed before."""
    with running_process("submit", "go", *location_options, "--id", "mine", "--timeout", "60", "--wait") as waiting:
        waiting.until("submitted as mine")
        assert waiting.signal(signal.SIGINT) == 130
    assert not waiting.out and not any("Traceback" in line for line in waiting.err)
    assert run_with_queue(path, lambda commands: commands.get("mine")).status == "pending"


@FILE_AND_HTTP
def test_a_command_is_found_by_its_correlation_id(path: Path, location_options: list[str]) -> None:
    """`wait`, `cancel` and `show` accept it like any id of a call."""
    run_cli("submit", "go", *location_options, "--id", "mine", "--idempotent")
    assert run_cli("wait", "mine", *location_options, "--timeout", "0.1").exit_code == 124
    assert run_cli("cancel", "mine", *location_options, "--reason", "enough").exit_code == 0
    assert run_cli("wait", "mine", *location_options).exit_code == 5
    shown = run_cli("show", "mine", "--db", str(path)).stdout.split()
    assert (
        shown[1] == "cancelled"
        and "correlation id mine" in " ".join(shown)
        and "queue default idempotent" in " ".join(shown)
    )


@FILE_AND_HTTP
def test_ls_lists_pending_completed_and_failed_commands(path: Path, location_options: list[str]) -> None:
    """S3.5: the three lists are a table or one object; --queue selects one client."""
    for name, client in (("waits", "a"), ("done", "a"), ("broken", "a"), ("other", "b")):
        run_cli("submit", "go\u202e", *location_options, "--id", name, "--queue", client)
    assert "no pending commands" in run_cli("ls", "--commands", "--queue", "unused", *location_options).stderr

    async def end_commands(commands: CommandQueue) -> None:
        await commands.complete("done", [1, 2])
        await commands.fail("broken", "no\x1b[31m tab")

    run_with_queue(path, end_commands)
    data = json.loads(run_cli("ls", "--commands", "--queue", "a", "--json", *location_options).stdout)
    assert list(data) == ["pending", "completed", "failed"]
    assert [[row["correlation_id"] for row in rows] for rows in data.values()] == [["waits"], ["done"], ["broken"]]
    table = run_cli("ls", "--commands", *location_options).stdout
    assert [line.split()[0] for line in table.splitlines()] == ["COMMAND", "waits", "other", "done", "broken"]
    assert "[1,2]" in table and "\x1b" not in table and "\u202e" not in table
    assert "showing the first 1; use --limit" in run_cli("ls", "--commands", "--limit", "1", *location_options).stderr
    assert not run_cli("ls", "--commands", *location_options).stderr


@pytest.mark.parametrize(
    ("width", "patterns"),
    [(80, ["exec_", "pending", r"just now|\d s ago"]), (40, ["exec…", "pend…", r"just…|\d s a?…"])],
)
def test_a_narrow_terminal_shows_every_column(path: Path, width: int, patterns: list[str]) -> None:
    """Long values are truncated; id and status stay complete as long as they fit."""
    run_cli("submit", "go " + "on" * 40, "--db", str(path), "--queue", "tab" * 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        terminal = Terminal("ls", "--commands", "--db", str(path))
        assert terminal.close() == 0
    head, line = terminal.screen_text.splitlines()
    assert len(head) <= width and len(line) <= width
    assert all(re.search(pattern, line) for pattern in patterns), line


def test_command_options_of_ls_exclude_call_options(path: Path) -> None:
    run_cli("submit", "go", "--db", str(path))
    for options in (["s", "--commands"], ["--commands", "--state", "open"], ["--queue", "a"]):
        assert run_cli("ls", *options).exit_code == 2


# Why a command is stuck (S3.11)

NOW = 1_800_000_000_000


def make_row(state: str = "queued", **more: Any) -> CallRecord:
    fields: dict[str, Any] = {"created_at": NOW - 15_000, "deadline": NOW + 15_000, "timeout": 30_000, "client": "tab"}
    return CallRecord(id="exec_1", session="s", entry=1, state=state, client_call_id="c1", **(fields | more))


def make_expired_row(**more: Any) -> CallRecord:
    fields = {"created_at": NOW - 40_000, "deadline": NOW - 10_000, "ended_at": NOW - 10_000}
    return make_row("expired", **(fields | more))


@pytest.mark.parametrize(
    ("open", "failed", "executors", "cause"),
    [
        ([make_row()], [], {}, "no worker has polled queue tab yet"),
        ([make_row()], [], {"tab": NOW - 300_000}, "no worker has polled queue tab for 5 min"),
        ([make_row()], [], {"page": NOW - 1000}, "no worker has polled queue tab yet; active queues: page"),
        ([make_row()], [], {"tab": NOW - 1000}, "its workers polled 1 s ago and claimed none"),
        (
            [make_row(), make_row("running", lease=NOW + 20_000)],
            [],
            {"tab": NOW - 90_000},
            "its workers are running c1",
        ),
        ([make_row(deadline=NOW - 20_000)], [], {}, "their timeout has passed while no process"),
        ([make_row(deadline=NOW - 20_000), make_row()], [], {}, "no worker has polled queue tab yet"),
        ([make_row()] * 100, [], {"tab": NOW}, "more commands are submitted than its workers run"),
        ([make_row("awaiting_approval")], [], {}, "waiting for approval"),
        ([make_row("running", lease=NOW + 2000, worker="w1")], [], {}, "the worker has not renewed the lease recently"),
        ([], [make_expired_row()], {}, "no worker has polled queue tab yet"),
        ([], [make_expired_row()], {"tab": NOW - 60_000}, "no worker has polled queue tab for 1 min"),
        ([], [make_expired_row(timeout=1000)], {"tab": NOW}, "no worker claimed it within 1 s"),
        ([], [make_expired_row(started_at=NOW - 39_000)], {"tab": NOW}, "its worker did not finish within 30 s"),
        (
            [],
            [make_expired_row(ended_at=NOW - 39_000, reason="a newer command took its place")],
            {},
            "a newer command took its",
        ),
        ([], [make_expired_row(deadline=NOW - 400_000)], {}, "the machine slept, its clock was moved forward"),
        ([], [], {"tab": NOW + 600_000}, "the clock of this machine or of another writer was changed"),
    ],
)
def test_doctor_names_the_likely_cause(
    open: list[CallRecord], failed: list[CallRecord], executors: dict[str, int], cause: str
) -> None:
    """S3.11: there is one finding for any number of commands, and every finding has advice."""
    findings = check_commands(Queues(open, failed, executors, NOW), Settings())
    assert any(finding.cause.startswith(cause) or cause in finding.cause for finding in findings), findings
    assert len(findings) <= 2 and all(finding.advice for finding in findings)


@pytest.mark.parametrize(
    ("open", "failed", "executors"),
    [
        ([make_row("running", lease=NOW + 20_000)], [], {"tab": NOW - 90_000}),
        ([make_row(deadline=NOW + 29_900)], [], {"tab": NOW - 100}),
        ([make_row(deadline=NOW + 30_000 - STUCK_MS)], [], {}),
        ([], [make_row("failed", ended_at=NOW), make_row("cancelled", ended_at=NOW)], {}),
        ([], [make_expired_row(ended_at=NOW - 24 * 3600_000, deadline=NOW - 24 * 3600_000)], {}),
    ],
)
def test_doctor_reports_nothing_for_healthy_commands(
    open: list[CallRecord], failed: list[CallRecord], executors: dict[str, int]
) -> None:
    """Commands that run, were just queued or were ended on purpose are no finding."""
    assert not check_commands(Queues(open, failed, executors, NOW), Settings())


def test_doctor_reports_a_queue_without_workers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It prints facts and cause and fails; once the command has run there is no problem."""
    monkeypatch.setattr(doctor_commands, "STUCK_MS", -1)
    db = ("--db", str(path))
    run_cli("submit", "go", *db, "--queue", "tab", "--timeout", "600", "--id", "mine")

    async def poll_another_queue(ledger: LocalLedger) -> None:
        commands = CommandQueue(ledger.log)
        await commands.claim("page")
        await commands.close()

    with_ledger(path, poll_another_queue)
    result = run_cli("doctor", *db)
    assert result.exit_code == 1
    assert "tab  1 queued" in result.stdout and "page  last seen just now" in result.stdout
    assert "likely cause: no worker has polled queue tab yet; active queues: page" in (result.stdout)
    data = json.loads(run_cli("doctor", "--json", *db).stdout)
    assert data["commands"] == {"tab": {"queued": 1}} and list(data["executors"]) == ["page"]

    async def run_command(commands: CommandQueue) -> None:
        claim = await commands.claim("tab")
        assert claim is not None
        await commands.complete(claim.call, fence=claim.fence)

    run_with_queue(path, run_command)
    assert "no problems found" in run_cli("doctor", *db).stdout


def test_doctor_prints_each_queue_on_its_own_line(path: Path) -> None:
    """This holds in a pipe too."""
    for client in ("one", "two"):
        assert run_cli("submit", "go", "--db", str(path), "--queue", client).exit_code == 0
    lines = [line.split() for line in run_cli("doctor", "--db", str(path)).stdout.split("\n")]
    assert ["commands", "one", "1", "queued"] in lines and ["two", "1", "queued"] in lines


def test_a_path_a_url_and_the_environment_open_the_same_ledger(path: Path) -> None:
    """CALLSLIP_DB, a path and a URL refer to the same file."""
    run_cli("submit", "go", "--db", f"sqlite:///{path}", "--id", "mine")

    async def read() -> str:
        async with await open_ledger(f"sqlite:///{path}") as ledger:
            return (await ledger.find_call("mine")).state

    assert asyncio.run(read()) == "queued"
    runner = CliRunner(env={"CALLSLIP_DB": str(path)})
    assert "mine" in runner.invoke(main, ["ls", "--commands"]).stdout
