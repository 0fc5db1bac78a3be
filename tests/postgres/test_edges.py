"""Commands, servers, workers and wrapped agents on PostgreSQL, as a user runs them.

The URL of every database here has a password, which must be in no output, no argument and no file.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp.client import Client as McpClient
from mcp.client.stdio import StdioServerParameters, stdio_client

import callslip
from callslip.cli import exit_status
from tests.support import engines, live_server
from tests.support.acp_process import AGENT, Client
from tests.support.cli_process import CommandResult, callslip_command, run_in_process, running_process
from tests.support.cli_process import run as run_in_own_process
from tests.support.invariants import start_program
from tests.support.mcp_client import call_tool
from tests.support.model_server import Server as ModelServer
from tests.support.model_server import text_answer, tool_call_answer
from tests.support.paths import PROGRAMS, ROOT
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.postgres

TIMEOUT_S = 60.0
USER, SECRET = "ann", "S3cr3t-of-Ann"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Run a server with a user who must send a password."""
    server = engines.server()
    server.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{SECRET}'")
    hosts = server.folder / "data" / "pg_hba.conf"
    rules = hosts.read_text()
    hosts.write_text(f"host all {USER} 127.0.0.1/32 scram-sha-256\n{rules}")
    server.execute("SELECT pg_reload_conf()")
    yield server
    hosts.write_text(rules)
    server.execute("SELECT pg_reload_conf()")
    server.execute(f"DROP ROLE {USER}")


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    """Return the URL of a database of the user, without tables."""
    name = f"edges_{next(_numbers)}"
    server.execute(f"CREATE DATABASE {name} OWNER {USER} STRATEGY file_copy")
    yield with_user(server.url(name), USER, SECRET)
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def with_user(url: str, user: str, password: str = "") -> str:
    """Return the URL of a database for another user."""
    return url.replace("postgres@", f"{user}:{password}@" if password else f"{user}@")


def run(url: str, *arguments: str) -> CommandResult:
    """Run a command on a database, and check that its output has no password."""
    result = run_in_process(*arguments, env={"CALLSLIP_DB": url})
    assert SECRET not in result.stdout + result.stderr
    return result


# Errors


def fail(url: str, *arguments: str) -> str:
    """Return the error of a command that fails because of its database."""
    result = run(url, *(arguments or ("ls",)))
    assert result.returncode == exit_status.FAILED, result
    return result.stderr


@pytest.mark.parametrize("command", ["ls", "serve --port 0", "submit x"])
def test_a_server_that_cannot_be_reached_is_named(command: str) -> None:
    """PGE1: the message is no number of the operating system."""
    error = fail(f"postgresql://{USER}:{SECRET}@127.0.0.1:1/app", *command.split())
    assert (
        error
        == f"callslip: postgresql://{USER}:***@127.0.0.1:1/app: the server cannot be reached (Connection refused)\n"
    )


def test_an_unknown_host_is_named() -> None:
    """PGE1: as the operating system describes it."""
    error = fail(f"postgresql://{USER}:{SECRET}@host.invalid/app")
    assert "host.invalid/app: the server cannot be reached (" in error and "Errno" not in error


def test_a_wrong_password_is_named(server: PostgresServer) -> None:
    """PGE1: the server has refused the user; the password may be in the parameters, too."""
    error = fail(with_user(server.url(), USER, "wrong"))
    assert error.endswith(f'the server refuses this user (password authentication failed for user "{USER}")\n')
    assert "wrong" not in fail(with_user(server.url(), USER) + "?password=wrong")
    assert "the server refuses this user" in fail(with_user(server.url(), "missing"))


def test_a_missing_database_is_named(server: PostgresServer) -> None:
    """PGE1: Callslip creates tables, but no database."""
    assert 'database "missing" does not exist. Create it on the server first.' in fail(server.url("missing"))


@pytest.mark.parametrize("command", ["ls", "verify", "tail", "admin prune --keep 1d", "approve @last"])
def test_commands_that_need_a_ledger_create_none(url: str, command: str) -> None:
    """PGE1: as for a file; else a wrong URL would add tables to a database of another program."""
    result = run(url, *command.split())
    assert result.returncode == exit_status.NOT_FOUND and "no ledger in " in result.stderr
    assert run(url, "doctor").returncode == exit_status.NOT_FOUND
    database = url.rpartition("/")[2]
    assert engines.server().execute("SELECT relname::text FROM pg_stat_user_tables", database=database) == []


# doctor


def test_doctor_reports_settings_with_which_a_crash_loses_data(url: str) -> None:
    """PGE2: the servers of these tests are faster without them."""
    assert run(url, "admin", "token", "create").returncode == 0
    result = run(url, "doctor")
    assert result.returncode == exit_status.FAILED
    assert "the server has fsync and full_page_writes off" in result.stdout
    assert " connections in use, synchronous_commit on, fsync off, " in result.stdout
    data = json.loads(run(url, "doctor", "--json").stdout)
    assert data["database"]["isStandby"] is False and data["database"]["connections"]["used"] >= 1
    assert data["server"] is None and data["versions"]["postgresql"].startswith("18")


# Other commands


def test_commands_read_write_and_remove_a_session(url: str, tmp_path: Path) -> None:
    """PGE3: as on a file: what is exported here is imported there, and the copies are equal."""
    exported = tmp_path / "trip.json"
    trace = ROOT / "tests" / "captures" / "claude-allow.jsonl"
    assert "51 new events in trip" in succeed(url, "import", "--format", "acp", str(trace), "--session", "trip").stderr
    assert "completed" in succeed(url, "ls", "trip").stdout
    shown = succeed(url, "show", "trip").stdout
    succeed(url, "export", "trip", "--format", "events", "--output", str(exported))
    succeed(url, "import", "--format", "events", str(exported), "--session", "copy")
    texts = [succeed(url, "export", name, "--format", "openai").stdout for name in ("trip", "copy")]
    assert texts[0].replace('"trip"', '"copy"') == texts[1]
    lines = succeed(url, "tail", "trip", "--until-end", "--format", "events", "--from-start").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, 52))
    assert "51 events" in shown and "OK: no problems found" in succeed(url, "verify").stderr
    assert "removed" in succeed(url, "admin", "prune", "--keep", "0d").stderr
    succeed(url, "admin", "delete", "copy", "--yes")
    assert "copy" not in succeed(url, "ls").stdout and succeed(url, "verify").returncode == 0


def succeed(url: str, *arguments: str) -> CommandResult:
    """Run a command that ends with status 0."""
    result = run(url, *arguments)
    assert result.returncode == 0, result
    return result


def test_a_wrapped_agent_is_recorded_and_does_not_get_the_password(url: str, tmp_path: Path) -> None:
    """PGE4: no process has the password in its arguments, and the agent does not have it in its environment."""
    environment = tmp_path / "environment"
    agent = ["sh", "-c", f'env > "{environment}"; exec "$@"', "sh", *AGENT, "s1"]
    command = [*callslip_command("wrap", "--session", "wrapped", "--"), *agent]
    with Client(command, env={**os.environ, "CALLSLIP_DB": url}) as client:
        session = client.open_session()
        client.prompt(session, "call c1")
        arguments = subprocess.run(["ps", "-axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
        assert "acp_agent.py" in arguments and url.partition("://")[2] not in arguments
        assert client.end() == (0, b"")
    assert SECRET not in environment.read_text()
    (line,) = succeed(url, "ls", "wrapped", "--json").stdout.splitlines()
    assert json.loads(line)["state"] == "completed"


def test_an_agent_with_a_shell_is_approved_from_another_terminal(url: str) -> None:
    """PGE4: `callslip run` asks, and `callslip approve` answers; commands of the agent do not get the password."""
    answers = [tool_call_answer(("c1", "shell", {"command": "env | grep -c S3cr3t; echo done"})), text_answer("Well.")]
    with ModelServer(answers).running() as model:
        arguments = ("--model", "openai:scripted", "--base-url", model.url, "--session", "mine", "Do it.")
        environment = {"CALLSLIP_DB": url, "OPENAI_API_KEY": "none"}
        with running_process("run", *arguments, env=environment) as running:
            running.until("callslip approve")
            succeed(url, "approve", "@last")
            assert running.end() == 0, running.err
            assert SECRET not in "".join(running.out + running.err)
    assert "│ 0\n" in succeed(url, "show", "mine").stdout


def test_a_worker_runs_a_submitted_command(url: str) -> None:
    """PGE4: the worker is a process of its own, which is connected to the database."""
    program = str(PROGRAMS / "worker.py")
    with running_process("", "30", "1", env={"CALLSLIP_DB": url}, program=program) as worker:
        worker.until("ready")
        submitted = succeed(url, "submit", "add", "--params", '{"a": 1, "b": 2}', "--wait", "60")
        assert submitted.stdout.strip() == "3"
        assert worker.signal(signal.SIGTERM) == 0 or "left" in "".join(worker.out)


@pytest.mark.anyio
async def test_an_mcp_client_submits_a_command(url: str) -> None:
    """PGE4: over stdio, with the official client."""
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "callslip", "mcp"], env={**os.environ, "CALLSLIP_DB": url}
    )
    async with McpClient(stdio_client(parameters)) as client, callslip.open(url) as ledger:
        queued = await call_tool(client, "interact", action="ping")
        claim = await ledger.commands.claim(wait=TIMEOUT_S)
        assert claim is not None and claim.action == "ping"
        await ledger.commands.complete(claim.call, "pong", fence=claim.fence)
        query = {"what": "command_result", "correlation_id": queued["correlation_id"]}
        result = await call_tool(client, "observe", **query, wait=30)
        assert (result["status"], result["result"]) == ("complete", "pong")


@pytest.mark.anyio
async def test_a_mounted_app_serves_the_ledger(url: str) -> None:
    """PGE4: `callslip.asgi`, with the users of the app that mounts it."""
    async with callslip.open(url) as ledger:
        async with ledger.session("s").turn("hi") as turn:
            await turn.say("hello")
        app = callslip.asgi(ledger, authorize=lambda request, session, verb: "ann")
        async with live_server.running(app) as address:
            answer = await live_server.fetch(f"{address}/v1/sessions/s?format=openai")
    assert [message["content"] for message in answer.json()["messages"]] == ["hi", "hello"]


def test_a_program_without_an_event_loop_uses_a_ledger(url: str) -> None:
    """PGE4: `callslip.sync`, with timeouts and approvals."""
    program = start_program("script", url)
    out, err = program.communicate(timeout=60)
    assert program.returncode == 0, err
    assert "timed out expired" in out and "threads []" in out


def test_the_demo_plays_on_a_server(url: str) -> None:
    """PGE4: with the command that times out and the worker that is killed."""
    result = run_in_own_process("demo", "--terminal", "--fast", "--db", url)
    assert result.returncode == 0, result.stderr
    assert "11 calls: 8 completed, 1 failed, 1 expired, 1 lost" in result.stdout
    assert SECRET not in result.stdout + result.stderr
