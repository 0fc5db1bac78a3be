"""Commands on a database on a server: no file is looked for, and no output has the password.

A SQLite file takes the place of the server here, because these tests are about the command line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import callslip
from callslip.cli import exit_status
from callslip.cli.commands import serve
from callslip.client.location import data_folder, parse_location
from callslip.client.server_file import running_server, server_file
from callslip.demo import workers
from callslip.errors import InvalidInputError, NotFoundError, StoreError
from callslip.model import events as ev
from callslip.model.agent_env import agent_environment
from callslip.settings import Settings
from callslip.store import sqlite_facts
from callslip.store.sqlite import SqliteStore
from callslip.wrap.launch import Recording
from tests.support.cli_process import CommandResult, run_in_process, with_ledger

SECRET = "S3cr3t"
URL = f"postgresql://ann:{SECRET}@db.example:5432/app"
MASKED_URL = "postgresql://ann:***@db.example:5432/app"


class Engine:
    """The engine of servers in these tests: its store and its facts are those of a file."""

    path = ""
    error: Exception | None = None
    access = "read and write"

    @classmethod
    async def open(cls, url: str, settings: Settings, *, create: bool = True) -> SqliteStore:
        if cls.error is not None:
            raise cls.error
        store = SqliteStore(cls.path, settings)
        store.url, store.display_name = url, MASKED_URL
        return store

    @classmethod
    async def read_facts(cls, url: str) -> dict[str, Any]:
        if cls.error is not None:
            raise cls.error
        facts = sqlite_facts.read_facts(cls.path)
        return {**facts, "access": cls.access, "versions": {"postgresql": "18.1"}}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Engine]:
    """A server whose database has a session `s`."""

    class Server(Engine):
        path = str(tmp_path / "server.db")

    monkeypatch.setitem(sys.modules, "callslip.store.postgres", SimpleNamespace(PostgresStore=Server))
    monkeypatch.setitem(sys.modules, "callslip.store.postgres_facts", Server)
    events = [ev.MessageUser(text="hello"), ev.CallProposed(call="new:1", tool_name="t", scope="detached")]
    with_ledger(Path(Server.path), lambda ledger: ledger.log.append("s", events))
    return Server


def run_on_server(*arguments: str) -> CommandResult:
    """Run a command with the URL in the environment, and check that its output has no password."""
    result = run_in_process(*arguments, env={"CALLSLIP_DB": URL})
    assert SECRET not in result.stdout + result.stderr
    return result


# Where the database is


def test_a_server_url_is_a_location_without_a_path() -> None:
    """DB2: it is shown, also by repr, without the password."""
    location = parse_location(URL, "--db")
    assert (location.url, location.path, location.display_name) == (URL, "", MASKED_URL)
    assert location.is_server and not location.is_in_memory
    location.require()
    location.prepare()
    info = serve.ServerInfo(location, "http://127.0.0.1:1", "token", False)
    recording = Recording(location.url, location.prepare)
    for value in (location, info, recording):
        assert SECRET not in repr(value) and MASKED_URL in repr(value)


def test_a_location_in_memory_is_no_server() -> None:
    """It has no path either."""
    location = parse_location("sqlite:///:memory:", "url")
    assert location.is_in_memory and not location.is_server and location.display_name == "a ledger in memory"


@pytest.mark.parametrize("text", [f"postgresql://ann:{SECRET}/x@db/app", f"postgres:ann:{SECRET}@db/app"])
def test_an_invalid_server_url_is_refused_without_showing_it(text: str) -> None:
    """DB2: it is not used as a file name, and where the password ends is not known."""
    with pytest.raises(InvalidInputError) as error:
        parse_location(text, "--db")
    assert SECRET not in str(error.value)
    result = run_in_process("ls", "--db", text)
    assert result.returncode == exit_status.USAGE and SECRET not in result.stderr


def test_the_address_of_a_server_is_stored_in_the_data_folder() -> None:
    """There is no folder beside the database; other commands of the user find the file, which has no password."""
    location = parse_location(URL, "--db")
    info = serve.ServerInfo(location, "http://127.0.0.1:1", "token", False)
    path = Path(server_file(location))
    assert path.parent == data_folder() and not path.parent.exists()
    with serve._register(info):  # pyright: ignore[reportPrivateUsage]
        running = running_server(location)
        assert running is not None and running.url == "http://127.0.0.1:1"
        assert running_server(parse_location(URL.replace("/app", "/other"), "--db")) is None
        assert SECRET not in path.read_text() and path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.exists()


# Commands


@pytest.mark.parametrize("line", ["ls", "ls --json", "show s", "export s", "verify"])
def test_commands_read_a_database_on_a_server(engine: type[Engine], line: str) -> None:
    """DB3: it is named by CALLSLIP_DB, and read by the same commands as a file."""
    result = run_on_server(*line.split())
    assert result.returncode == 0, result.stderr


def test_an_empty_list_names_the_database_without_its_password(engine: type[Engine], tmp_path: Path) -> None:
    """DB2: as it names the path of a file."""
    engine.path = str(tmp_path / "empty.db")
    assert f"no sessions in {MASKED_URL}" in run_on_server("ls").stderr


def test_an_error_of_the_engine_is_shown(engine: type[Engine]) -> None:
    """The command ends with its message."""
    engine.error = StoreError(f"{MASKED_URL}: the server cannot be reached")
    result = run_on_server("ls")
    assert result.returncode == exit_status.FAILED and "the server cannot be reached" in result.stderr


@pytest.mark.anyio
async def test_a_ledger_is_shown_without_a_password(engine: type[Engine]) -> None:
    """DB2: also in a debugger."""
    async with callslip.open(URL) as ledger:
        assert repr(ledger) == f"<LocalLedger {MASKED_URL!r}>"


# doctor


def test_doctor_reports_a_server_without_files(engine: type[Engine]) -> None:
    """DB3: the facts come from the server; there are no sizes, locks or free space."""
    result = run_on_server("doctor")
    assert result.returncode == 0 and "no problems found" in result.stdout
    assert MASKED_URL in result.stdout and "PostgreSQL 18.1" in result.stdout and "read and write" in result.stdout
    data = json.loads(run_on_server("doctor", "--json").stdout)
    assert (data["path"], data["url"], data["saidBy"], data["exists"]) == ("", MASKED_URL, "CALLSLIP_DB", True)
    assert not data.keys() & {"files", "locks", "freeBytes"} and data["versions"]["postgresql"] == "18.1"
    assert data["sessions"] == 1 and data["calls"] == {"queued": 1} and len(data["open"]) == 1


def test_doctor_reports_a_server_that_allows_only_reads(engine: type[Engine]) -> None:
    """The advice is not about files."""
    engine.access = "read only"
    result = run_on_server("doctor")
    assert result.returncode == 0 and f"{MASKED_URL} cannot be written by this user" in result.stdout
    assert "standby" in result.stdout and "folder" not in result.stdout


def test_doctor_reports_a_server_that_cannot_be_reached(engine: type[Engine]) -> None:
    """The available facts are shown, with the likely cause."""
    engine.error = StoreError(f"{MASKED_URL}: the server cannot be reached")
    result = run_on_server("doctor")
    assert result.returncode == exit_status.FAILED and "the server does not run" in result.stdout
    assert "-wal" not in result.stdout


def test_doctor_reports_a_database_without_a_ledger(engine: type[Engine]) -> None:
    """The exit status is the same as for a missing file."""
    engine.error = NotFoundError("no tables")
    result = run_on_server("doctor")
    assert result.returncode == exit_status.NOT_FOUND and f"no ledger in {MASKED_URL}" in result.stdout


def test_doctor_reports_an_older_schema_of_a_database(engine: type[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called a database, not a file."""
    newest = sqlite_facts.migrations("sqlite")
    monkeypatch.setattr(sqlite_facts, "migrations", lambda _: [*newest, (99, "")])
    assert "the database has schema" in run_on_server("doctor").stdout


# Other processes


def test_an_agent_does_not_get_the_password() -> None:
    """DB2: with it, a program that an agent starts could answer the agent's requests. A path is passed on."""
    assert "CALLSLIP_DB" not in agent_environment({"CALLSLIP_DB": URL})
    assert "CALLSLIP_DB" not in agent_environment({"CALLSLIP_DB": f"postgresql://db/app?password={SECRET}"})
    for kept in ("/home/ann/ledger.db", "sqlite:///ledger.db", "postgresql://ann@db/app"):
        assert agent_environment({"CALLSLIP_DB": kept})["CALLSLIP_DB"] == kept


@pytest.mark.anyio
async def test_a_worker_of_the_demo_gets_the_url_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """DB2: other users can see arguments."""
    started: list[tuple[tuple[str, ...], dict[str, str]]] = []

    async def start(*program: str, env: dict[str, str], **_: Any) -> Any:
        started.append((program, env))
        raise OSError("not started in this test")

    monkeypatch.setattr(workers.asyncio, "create_subprocess_exec", start)
    with pytest.raises(OSError, match="not started"):
        await workers.Workers(URL).start("s")
    ((program, env),) = started
    assert SECRET not in " ".join(program) and env["CALLSLIP_DB"] == URL
