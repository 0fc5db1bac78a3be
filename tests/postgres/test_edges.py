"""Commands, servers, workers and wrapped agents on PostgreSQL, as a user runs them.

The URL of every database here has a password, which must be in no output, no argument and no file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from callslip.cli import exit_status
from tests.support import engines
from tests.support.cli_process import CommandResult, run_in_process
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.postgres

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
