"""`callslip admin migrate`: the versions before and after, many processes at once, and databases that it refuses."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from callslip.cli import exit_status
from callslip.store.sql import migrations
from tests.support import engines
from tests.support.cli_process import CommandResult, run_in_process, running_process, with_ledger
from tests.support.paths import ROOT

PROCESSES = 4
OLDER_FILE = ROOT / "tests" / "fixtures" / "ledger-0.1" / "ledger.db"
NEWER_VERSION = str(ROOT / "tests" / "programs" / "migrate_further.py")
NewDatabase = Callable[[], str]


@pytest.fixture(params=[engines.SQLITE, pytest.param(engines.POSTGRES, marks=pytest.mark.postgres)])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of a database without tables; the SQLite file does not exist."""
    if request.param == engines.SQLITE:
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
    else:
        url = engines.server().create_database(template="template0")
        yield url
        engines.server().drop_database(url)


def newest(url: str) -> int:
    return migrations("postgres" if engines.is_postgres(url) else "sqlite")[-1][0]


def migrate(url: str, *arguments: str) -> CommandResult:
    return run_in_process("admin", "migrate", *arguments, env={"CALLSLIP_DB": url})


def versions(result: CommandResult) -> tuple[int, int]:
    assert result.returncode == exit_status.OK, result.stderr
    fields = json.loads(result.stdout)
    return fields["before"], fields["after"]


def migrate_at_once(url: str, program: str = "") -> list[tuple[int, int]]:
    """Migrate a database with several processes at the same time; return the versions that each one reports."""

    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                running_process("admin", "migrate", "--json", env={"CALLSLIP_DB": url}, program=program)
            )
            for _ in range(PROCESSES)
        ]

        ends = [(process.end(), process.err) for process in processes]
        assert [status for status, _ in ends] == [exit_status.OK] * PROCESSES, ends
        return [(line["before"], line["after"]) for process in processes for line in process.lines()]


def test_an_empty_database_gets_the_newest_schema(empty_database: str) -> None:
    """The command prints the version before and after. It does nothing the second time."""
    first, again = migrate(empty_database, "--json"), migrate(empty_database, "--json")
    assert versions(first) == (0, newest(empty_database))
    assert versions(again) == (newest(empty_database), newest(empty_database))
    assert "there were none before" in first.stderr
    assert f"the tables have schema {newest(empty_database)} already" in again.stderr


def test_an_older_file_is_migrated_and_keeps_its_sessions(tmp_path: Path) -> None:
    """The file of the first version is read by this one afterwards."""
    path = tmp_path / "ledger.db"
    path.write_bytes(OLDER_FILE.read_bytes())
    names = engines.fetch_rows(f"sqlite:///{path}", "SELECT name FROM sessions")
    result = migrate(str(path))
    assert result.stderr == f"migrated the tables from schema 3 to {newest('')}\n"
    listed = run_in_process("ls", "--json", "--limit", "100", "--db", str(path)).stdout.splitlines()
    assert {json.loads(line)["session"] for line in listed} == {name for (name,) in names} != set()


def test_processes_that_start_at_once_create_the_schema_once(empty_database: str) -> None:
    """All succeed, and only one of them reports that it has created the tables."""
    found = migrate_at_once(empty_database)
    last = newest(empty_database)
    assert sorted(found) == [(0, last)] + [(last, last)] * (PROCESSES - 1)


def test_processes_that_start_at_once_migrate_an_older_schema_once(empty_database: str) -> None:
    """A migration that cannot be applied twice is applied once, and the sessions stay."""
    assert versions(migrate(empty_database, "--json"))[0] == 0
    last = newest(empty_database)
    found = migrate_at_once(empty_database, NEWER_VERSION)
    assert sorted(found) == [(last, last + 1)] + [(last + 1, last + 1)] * (PROCESSES - 1)
    assert engines.fetch_rows(empty_database, "SELECT count(*) FROM added_later") == [(0,)]


def test_processes_that_open_an_empty_database_at_once_all_work(empty_database: str) -> None:
    """A normal start migrates as well: each process stores a token in a database that had no tables."""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(running_process("admin", "token", "create", env={"CALLSLIP_DB": empty_database}))
            for _ in range(PROCESSES)
        ]
        assert [process.end() for process in processes] == [exit_status.OK] * PROCESSES
    assert engines.fetch_rows(empty_database, "SELECT count(*) FROM tokens") == [(PROCESSES,)]


# What is refused


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    """It is not changed."""
    path = tmp_path / "other.db"
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE TABLE mail (body TEXT)")
    content = path.read_bytes()
    result = migrate(str(path))
    assert result.returncode == exit_status.FAILED
    assert "is a SQLite database of another program" in result.stderr
    assert path.read_bytes() == content
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other.db"]


@pytest.mark.postgres
@pytest.mark.parametrize("table", ["sessions", "events", "meta"])
def test_a_database_with_tables_of_another_program_is_refused(table: str) -> None:
    """It names the table, and creates none of its own."""
    url = engines.server().create_database(template="template0")
    try:
        engines.change_rows(url, f"CREATE TABLE {table} (body text)")
        result = migrate(url)
        assert result.returncode == exit_status.FAILED
        expected = "is not a ledger" if table == "meta" else f"has tables of another program ({table})"
        assert expected in result.stderr
        assert engines.fetch_rows(url, "SELECT relname::text FROM pg_stat_user_tables") == [(table,)]
    finally:
        engines.server().drop_database(url)


def test_a_newer_schema_that_this_version_cannot_read_is_refused(empty_database: str) -> None:
    """The error says which version is needed, and nothing changes."""
    assert versions(migrate(empty_database, "--json"))[0] == 0
    engines.change_rows(empty_database, "UPDATE meta SET value = '99' WHERE name = 'oldest_reader'")
    if engines.is_postgres(empty_database):
        engines.change_rows(empty_database, "UPDATE meta SET value = '99' WHERE name = 'schema'")
    else:
        engines.change_rows(empty_database, "PRAGMA user_version = 99")
    result = migrate(empty_database)
    assert result.returncode == exit_status.FAILED
    assert "needs a Callslip that supports schema 99" in result.stderr


def test_a_newer_schema_that_this_version_can_read_stays(empty_database: str) -> None:
    """It is no error, because such a migration only added something."""
    assert versions(migrate(empty_database, "--json"))[0] == 0
    if engines.is_postgres(empty_database):
        engines.change_rows(empty_database, "UPDATE meta SET value = '99' WHERE name = 'schema'")
    else:
        engines.change_rows(empty_database, "PRAGMA user_version = 99")
    assert versions(migrate(empty_database, "--json")) == (99, 99)


def test_a_file_that_can_only_be_read_is_migrated_only_if_nothing_is_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says that the file can only be read."""
    older, current = tmp_path / "older.db", tmp_path / "current.db"
    older.write_bytes(OLDER_FILE.read_bytes())
    with_ledger(current, lambda ledger: ledger.sessions())
    monkeypatch.setattr("callslip.store.sqlite_open.is_writable", lambda path: False)
    assert versions(migrate(str(current), "--json")) == (newest(""), newest(""))
    result = migrate(str(older))
    assert result.returncode == exit_status.FAILED
    assert result.stderr == f"callslip: {older} can only be read, so its schema cannot be migrated\n"
    assert older.read_bytes() == OLDER_FILE.read_bytes()


@pytest.mark.postgres
def test_a_user_that_may_not_create_tables_gets_a_clear_error() -> None:
    """The same user may migrate a database that another user has migrated: nothing is to do."""
    server = engines.server()
    url = server.create_database(template="template0")
    server.execute("CREATE ROLE may_read LOGIN")
    try:
        limited = url.replace("postgres@", "may_read@")
        refused = migrate(limited)
        assert refused.returncode == exit_status.FAILED
        assert "cannot be written (permission denied for schema public)" in refused.stderr
        read_only = migrate(f"{url}?default_transaction_read_only=on")
        assert "can only be read, so its schema cannot be migrated" in read_only.stderr
        assert versions(migrate(url, "--json")) == (0, newest(url))
        engines.change_rows(url, "GRANT SELECT ON meta TO may_read")
        assert versions(migrate(limited, "--json")) == (newest(url), newest(url))
    finally:
        server.drop_database(url)
        server.execute("DROP ROLE may_read")


def test_a_database_in_memory_is_refused() -> None:
    """It would end with the command."""
    result = migrate(":memory:")
    assert result.returncode == exit_status.NOT_FOUND
    assert "in memory" in result.stderr


@pytest.mark.postgres
def test_an_unreachable_server_is_named_without_its_password() -> None:
    """The password is masked."""
    result = migrate("postgresql://ann:S3cr3t@127.0.0.1:1/app")
    assert result.returncode == exit_status.FAILED
    assert "ann:***@127.0.0.1:1/app" in result.stderr
    assert "S3cr3t" not in result.stderr + result.stdout
