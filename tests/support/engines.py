"""Run the same tests on every engine: which tests, on which databases, by which clock.

A test of `SHARED` that uses the fixture `engine`, mostly by `db`, runs once per engine. Those that cannot are in
`SQLITE_ONLY` with the reason. Tests on PostgreSQL have the marker `postgres`. A shared file is not collected if one of
its tests does neither, or if `SQLITE_ONLY` has an entry for it that names no test.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
import zlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import apsw
import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from tests.support.postgres import PostgresServer

SQLITE, POSTGRES = "sqlite", "postgres"
SHARED = (
    "tests/api/",
    "tests/commands/",
    "tests/hooks/test_receiver.py",
    "tests/http/test_prompts.py",
    "tests/ledger/",
    "tests/transcripts/test_importer.py",
    "tests/laws/test_command_laws.py",
    "tests/laws/test_machine.py",
    "tests/store/test_store.py",
)
"""The folders and files whose tests run on every engine."""

TABLES = Path(__file__).relative_to(ROOT).as_posix()
"""Where the tables below are."""

POSTGRES_SHARE = 4
"""PostgreSQL runs one of this many examples of a property test, because each takes many round trips. `make chaos` runs
all of them."""
BUSY_TIMEOUT_MS = 60_000
"""How long a test waits for a transaction of a ledger in a file."""

NO_LEDGER = "uses no ledger"
OLDER_FILE = "a file of an older version, which only SQLite has"
ONE_FILE = "what is in the files of SQLite, or how they are named"
QUERY_PLAN = "query plans of SQLite"
TRACE = "reads the statements that a connection of SQLite runs"
STEPS = "counts the rows that SQLite reads"
NOT_STORED = "refused before the store is used; many examples"
ONLY_RULES = "rules for texts, which depend on no engine; many examples"

SQLITE_ONLY: dict[str, str] = {
    "tests/api/test_approvals.py::test_annotations_without_a_json_type_allow_any_value": NO_LEDGER,
    "tests/api/test_entry_filter.py::test_the_server_finds_what_the_page_finds_in_a_file": NO_LEDGER,
    "tests/api/test_entry_filter.py::test_a_call_and_its_requests_match_together_in_any_order": NO_LEDGER,
    "tests/api/test_entry_filter.py::test_facet_counts_ignore_the_facets_own_term": NO_LEDGER,
    "tests/api/test_entry_filter.py::test_any_text_is_a_filter": NO_LEDGER,
    "tests/api/test_entry_filter.py::test_text_is_found_across_pieces": NO_LEDGER,
    "tests/api/test_operations.py::test_async_functions_and_generators_are_no_sync_tools": NO_LEDGER,
    "tests/api/test_public_names.py": NO_LEDGER,
    "tests/api/test_python_api.py::test_a_sync_ledger_that_cannot_open_names_the_file": ONE_FILE,
    "tests/api/test_python_api.py::test_importing_modules_changes_no_public_name": NO_LEDGER,
    "tests/commands/test_commands.py::test_command_queries_use_an_index": QUERY_PLAN,
    "tests/commands/test_commands.py::test_a_file_without_command_tables_is_migrated": OLDER_FILE,
    "tests/commands/test_commands.py::test_a_read_only_file_without_command_tables_has_no_commands": OLDER_FILE,
    "tests/commands/test_commands.py::test_a_waiting_poll_returns_when_an_older_version_ends_the_command": OLDER_FILE,
    "tests/commands/test_deadlines.py": NO_LEDGER,
    "tests/commands/test_overdue_commands.py::test_a_running_command_is_left_to_a_process_that_watches_it": (
        "a lock file shows that another process has the file open"
    ),
    "tests/commands/test_overdue_commands.py::test_an_overdue_command_that_ran_is_expired_in_every_view": (
        "a lock file shows that no other process has the file open"
    ),
    "tests/commands/test_sealed_params.py": ONE_FILE,
    "tests/hooks/test_receiver.py::test_a_time_of_a_message_is_plausible": NO_LEDGER,
    "tests/ledger/test_aio.py": NO_LEDGER,
    "tests/ledger/test_held_text.py::test_an_idle_ledger_finds_due_texts_by_index": QUERY_PLAN,
    "tests/ledger/test_held_text.py::test_an_older_version_releases_a_held_text_once": OLDER_FILE,
    "tests/ledger/test_held_text.py::test_text_that_an_older_version_holds_is_released": OLDER_FILE,
    "tests/ledger/test_held_text.py::test_a_damaged_held_text_does_not_keep_the_ledger_from_opening": (
        "damages a column that PostgreSQL does not have"
    ),
    "tests/ledger/test_held_text.py::test_marks_in_any_order_lose_no_text": NO_LEDGER,
    "tests/ledger/test_held_text.py::test_a_text_of_deltas_is_the_same_for_any_pauses": ONLY_RULES,
    "tests/ledger/test_held_text.py::test_a_cumulative_text_is_the_same_for_any_pauses": ONLY_RULES,
    "tests/ledger/test_held_text.py::test_a_cumulative_text_with_secrets_is_redacted_for_any_pauses": ONLY_RULES,
    "tests/ledger/test_held_text.py::test_no_pause_reveals_a_secret": ONLY_RULES,
    "tests/ledger/test_held_text.py::test_a_copy_of_a_log_has_the_same_text": ONLY_RULES,
    "tests/ledger/test_held_text.py::test_a_secret_that_is_complete_before_a_pause_has_one_mark": ONLY_RULES,
    "tests/ledger/test_held_text.py::test_a_single_chunk_is_written_like_a_draft": ONLY_RULES,
    "tests/ledger/test_checkpoint.py::test_a_repeated_checkpoint_changes_nothing": TRACE,
    "tests/ledger/test_checkpoint.py::test_each_checkpoint_stores_only_new_text": TRACE,
    "tests/ledger/test_liveness.py::test_a_round_does_not_read_the_calls_of_living_owners": STEPS,
    "tests/ledger/test_liveness.py::test_a_reused_pid_is_not_the_owner": NO_LEDGER,
    "tests/ledger/test_liveness.py::test_a_copy_of_a_machine_is_another_machine": NO_LEDGER,
    "tests/ledger/test_liveness.py::test_docks_radios_and_bridges_do_not_change_a_machine": NO_LEDGER,
    "tests/ledger/test_ledger_fixture.py": OLDER_FILE,
    "tests/ledger/test_queries.py::test_a_history_is_made_block_by_block": NO_LEDGER,
    "tests/ledger/test_queries.py::test_a_page_cursor_is_json": NO_LEDGER,
    "tests/ledger/test_record_texts.py::test_an_older_ledger_with_nul_is_migrated": OLDER_FILE,
    "tests/ledger/test_slow_reads.py::test_every_read_of_a_store_is_slowed_down": NO_LEDGER,
    "tests/ledger/test_summaries.py::test_the_usual_lists_use_an_index": QUERY_PLAN,
    "tests/ledger/test_validation.py::test_json_that_is_not_an_event_is_refused_with_the_field": NO_LEDGER,
    "tests/ledger/test_validation.py::test_text_that_is_not_json_is_refused": NO_LEDGER,
    "tests/ledger/test_validation.py::test_any_json_is_accepted_or_refused": NO_LEDGER,
    "tests/ledger/test_validation.py::test_any_text_is_parsed_or_refused": NO_LEDGER,
    "tests/ledger/test_validation.py::test_a_field_of_the_wrong_type_is_refused_by_name": NOT_STORED,
    "tests/ledger/test_validation.py::test_an_invalid_session_name_is_refused": NOT_STORED,
    "tests/ledger/test_validation.py::test_invalid_source_and_owner_names_are_refused": NOT_STORED,
    "tests/ledger/test_verify.py::test_a_damaged_file_is_reported_once": "damage that SQLite finds in its file",
    "tests/store/test_store.py::test_listed_sessions_include_owner_and_labels": NO_LEDGER,
    "tests/store/test_store.py::test_only_the_first_owner_gives_a_patch": NO_LEDGER,
    "tests/store/test_store.py::test_migration_fills_labels_from_the_log": OLDER_FILE,
    "tests/store/test_store.py::test_migration_keeps_the_turn_names_of_an_older_file": OLDER_FILE,
    "tests/store/test_store.py::test_an_older_file_with_damage_is_migrated_and_reported": OLDER_FILE,
    "tests/store/test_store.py::test_a_failed_migration_leaves_the_file_unchanged": OLDER_FILE,
    "tests/store/test_store.py::test_later_writes_by_the_first_version_are_valid": OLDER_FILE,
    "tests/store/test_store.py::test_an_older_read_only_file_is_read_without_migration": OLDER_FILE,
    "tests/store/test_store.py::test_the_first_version_can_read_and_write_a_migrated_file": OLDER_FILE,
    "tests/store/test_store.py::test_damaged_labels_are_reported_and_do_not_break_lists": (
        "damages a column that PostgreSQL does not have"
    ),
    "tests/store/test_store.py::test_an_in_memory_ledger_works_and_creates_no_file": ONE_FILE,
    "tests/store/test_store.py::test_an_in_memory_ledger_can_be_read_during_writes": ONE_FILE,
    "tests/store/test_store.py::test_a_ledger_file_can_have_any_name": ONE_FILE,
    "tests/store/test_store.py::test_relative_and_home_paths_are_resolved": ONE_FILE,
    "tests/store/test_store.py::test_a_closed_ledger_leaves_no_wal_file": ONE_FILE,
}
"""The ids of tests and files that do not run on PostgreSQL, with the reason."""

POSTGRES_CLASSES = {
    "tests/laws/test_command_laws.py::TestMachine": "TestPostgresMachine",
    "tests/laws/test_machine.py::TestMachine": "TestPostgresMachine",
    "tests/store/test_store.py::TestSqlite": "TestPostgres",
}
"""The classes whose tests run on SQLite only, and the class of the same file that has the same tests on PostgreSQL."""


# Selection


def find_reason(test_id: str) -> str:
    """Return why a test does not run on PostgreSQL, "" if it does. The id may have parameters."""
    path, _, name = test_id.partition("[")[0].partition("::")
    parts = name.split("::")
    ids = [path, *("::".join([path, *parts[:count]]) for count in range(1, len(parts) + 1))]
    return next((SQLITE_ONLY[found] for found in ids if found in SQLITE_ONLY), "")


def is_shared(test_id: str) -> bool:
    """Return whether a test is one of those that run on every engine, unless `SQLITE_ONLY` names it."""
    return test_id.startswith(SHARED)


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Let a shared test run on every engine. A class may have a fixture `engine` of its own instead."""
    test_id = metafunc.definition.nodeid
    if (
        "engine" in metafunc.fixturenames
        and is_shared(test_id)
        and not find_reason(test_id)
        and not hasattr(metafunc.cls, "engine")
    ):
        engines = [SQLITE, pytest.param(POSTGRES, marks=pytest.mark.postgres)]
        metafunc.parametrize("engine", engines, scope="session")  # The tests of an engine run one after another.


def check_tables() -> None:
    """Raise an error if an entry of a table names a file that does not exist or is not shared."""
    files = {test_id.partition("::")[0] for test_id in [*SQLITE_ONLY, *POSTGRES_CLASSES]}
    if unknown := sorted(file for file in files if not is_shared(file) or not (ROOT / file).is_file()):
        raise pytest.UsageError(f"{TABLES}: {', '.join(unknown)}: no such shared file. Remove its entries.")


def find_problems(collector: pytest.Collector, nodes: Sequence[pytest.Item | pytest.Collector]) -> list[str]:
    """Return what the tables do not say correctly about a file or class, which contains these nodes."""
    if not isinstance(collector, pytest.Module | pytest.Class) or not is_shared(collector.nodeid):
        return []
    on_postgres: dict[str, bool] = {}
    for item in nodes:
        if isinstance(item, pytest.Function):
            test_id = item.nodeid.partition("[")[0]
            on_postgres[test_id] = on_postgres.get(test_id, False) or _runs_on_postgres(item)
    missing = [test_id for test_id, is_run in on_postgres.items() if not is_run and not find_reason(test_id)]
    unneeded = [test_id for test_id, is_run in on_postgres.items() if is_run and find_reason(test_id)]
    names = {node.nodeid.partition("[")[0] for node in nodes}
    prefix = f"{collector.nodeid}::"
    inside = [test_id for test_id in [*SQLITE_ONLY, *POSTGRES_CLASSES] if test_id.startswith(prefix)]
    unknown = [test_id for test_id in inside if prefix + test_id.removeprefix(prefix).partition("::")[0] not in names]
    return [
        *(f"{test_id}: use the fixture `engine`, or name a reason in SQLITE_ONLY of {TABLES}." for test_id in missing),
        *(f"{test_id}: runs on PostgreSQL. Remove it from SQLITE_ONLY of {TABLES}." for test_id in unneeded),
        *(f"{test_id}: no such test. Remove the entry of {TABLES}." for test_id in unknown),
    ]


def _runs_on_postgres(item: pytest.Function) -> bool:
    """Return whether a test runs on PostgreSQL: itself, or the same test of the class for it."""
    name = POSTGRES_CLASSES.get(item.nodeid.rpartition("::")[0], "")
    other = getattr(item.module, name, None)
    marks: list[pytest.Mark] = getattr(other, "pytestmark", [])
    return item.get_closest_marker("postgres") is not None or (
        hasattr(other, item.originalname) and any(mark.name == "postgres" for mark in marks)
    )


# Databases

_server: PostgresServer | None = None


def server() -> PostgresServer:
    """Return the server of this process, whose new databases have the schema of Callslip. Start it if necessary."""
    global _server
    if _server is None:
        # By name, as `pytest --quick` deselects what refers to code that starts a process.
        started: PostgresServer = importlib.import_module("tests.support.postgres").PostgresServer()
        started.start()
        _server = started
        started.prepare_template(create_schema)
        _follow_clock()
    return _server


def close_server() -> None:
    """Stop the server of this process, if there is one."""
    global _server
    if _server is not None:
        _server.close()
        _server = None


def create_schema(url: str) -> None:
    """Create the schema of Callslip in a database."""
    database = importlib.import_module("callslip.store.postgres_database")
    postgres = importlib.import_module("tests.support.postgres")
    postgres.run_connected(url, lambda connection: database.prepare(connection, url, migrate=True))


@contextlib.contextmanager
def new_database(engine: str, path: Path | None = None) -> Generator[str]:
    """Yield the URL of an empty ledger: in PostgreSQL, or in a file of SQLite, or without a path in memory."""
    if engine == POSTGRES:
        url = server().create_database()
        try:
            yield url
        finally:
            server().drop_database(url)
    else:
        yield f"sqlite:///{path or ':memory:'}"


def runs_example(engine: str, *example: object) -> bool:
    """Return whether to run an example of a property test on an engine. The same one always gives the same answer."""
    is_long = os.environ.get("CALLSLIP_LONG", "") not in ("", "0")
    return engine == SQLITE or is_long or zlib.crc32(repr(example).encode()) % POSTGRES_SHARE == 0


def is_postgres(url: str) -> bool:
    return url.startswith("postgresql:")


def read_only_url(url: str, patch: pytest.MonkeyPatch) -> str:
    """Return the URL that opens a ledger for reading only. Other ledgers that are open stay writable."""
    if is_postgres(url):
        return f"{url}?default_transaction_read_only=on"
    patch.setattr("callslip.store.sqlite_open.is_writable", lambda path: False)
    return url


def fetch_rows(url: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run a query with another connection. Placeholders are `?`, and `convert_to` and `convert_from` exist."""
    if is_postgres(url):
        return server().execute(_number_placeholders(sql), *values, database=_database_name(url))
    with contextlib.closing(_connect_to_file(url)) as connection:
        return connection.execute(sql, values).fetchall()


def change_rows(url: str, sql: str, *values: Any) -> int:
    """Run a statement with another connection, and return how many rows it changed."""
    if is_postgres(url):
        return server().change(_number_placeholders(sql), *values, database=_database_name(url))
    with contextlib.closing(_connect_to_file(url)) as connection:
        connection.execute(sql, values)
        return connection.changes()


def list_tables(url: str) -> list[str]:
    """Return the names of all tables."""
    if is_postgres(url):
        sql = "SELECT relname::text FROM pg_stat_user_tables"
    else:
        sql = "SELECT name FROM sqlite_schema WHERE type = 'table'"
    return [name for (name,) in fetch_rows(url, sql)]


def list_columns(url: str, table: str) -> list[str]:
    """Return the names of the columns of a table, in their order."""
    if is_postgres(url):
        sql = "SELECT attname::text FROM pg_attribute WHERE attrelid = ?::text::regclass AND attnum > 0 ORDER BY attnum"
    else:
        sql = "SELECT name FROM pragma_table_info(?) ORDER BY cid"
    return [name for (name,) in fetch_rows(url, sql, table)]


def read_stored_bytes(url: str) -> bytes:
    """Return everything that is stored: the files of SQLite, or the rows of all tables of PostgreSQL."""
    if not is_postgres(url):
        path = Path(url.removeprefix("sqlite:///"))
        return b"".join(file.read_bytes() for file in path.parent.iterdir() if file.is_file())
    name, tables = _database_name(url), list_tables(url)
    server().execute("SET bytea_output = 'escape'", database=name)
    rows = [row for table in tables for row in server().execute(f"SELECT t::text FROM {table} t", database=name)]
    assert tables, "the database has no tables"
    return "\n".join(text for (text,) in rows).encode()


def _connect_to_file(url: str) -> apsw.Connection:
    connection = apsw.Connection(url.removeprefix("sqlite:///"))
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)  # An open ledger may be writing a checkpoint.
    connection.create_scalar_function("convert_from", lambda data, encoding: data.decode(encoding), 2)
    connection.create_scalar_function("convert_to", lambda text, encoding: text.encode(encoding), 2)
    return connection


def _number_placeholders(sql: str) -> str:
    first, *others = sql.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(others, 1))


def _database_name(url: str) -> str:
    return importlib.import_module("tests.support.postgres").database_name(url)


# Clocks
#
# SQLite uses `time.time`, and PostgreSQL the clock of its server. In tests on PostgreSQL that clock follows the one of
# this process, so that a test that replaces `time.time` sets the time of both.

_real_time = time.time


def _read_time() -> float:
    return time.time()


_read_real_time = _read_time


def _is_faked() -> bool:
    return time.time is not _real_time or _read_time is not _read_real_time


def _follow_clock() -> None:
    """Add the difference between `time.time` and the real time to the clock of PostgreSQL, in this process."""
    database: Any = importlib.import_module("callslip.store.postgres_database").Database
    time_ms = database.time_ms

    def read_time_ms(self: Any) -> int:
        return int(_read_time() * 1000) if _is_faked() else time_ms(self)

    def read_shift_ms(self: Any) -> int:
        return round((_read_time() - _real_time()) * 1000) if _is_faked() else 0

    database.time_ms = read_time_ms
    database.clock_shift_ms = property(read_shift_ms, lambda self, value: None)


def list_clock_patches(engine: str, clock: Any) -> list[Any]:
    """Return patches that give the stores of an engine, and nothing else, the time of `clock.time()`."""
    if engine == POSTGRES:
        # An event loop may use this clock too. A query must not time out because a test sets it.
        timeouts = ("database.CONNECT_TIMEOUT_S", "notify.TIMEOUT_S", "notify.PROBE_S")
        patches = [mock.patch(f"callslip.store.postgres_{name}", 10**6) for name in timeouts]
        return [mock.patch(f"{__name__}._read_time", clock.time), *patches]
    names = ("sqlite", "sqlite_rows", "sqlite_maintenance")
    return [mock.patch(f"callslip.store.{name}.time", clock) for name in names]


DatabaseFactory = Callable[[], str]
"""Returns the URL of a new, empty ledger."""
