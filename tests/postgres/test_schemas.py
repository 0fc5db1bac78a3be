"""Which schema a ledger is in: the first one of search_path, also if a later one has a ledger, or other tables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.model import events as ev
from callslip.settings import Settings
from callslip.store.postgres_database import Database
from callslip.store.postgres_schema import created_names, find_path_problem, read_path
from tests.support import cli_process, engines
from tests.support.invariants import find_faults, read_events
from tests.support.pooler import Pooler
from tests.support.postgres import database_name
from tests.support.tasks import TIMEOUT_S

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
COUNT_OBJECTS = """
SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = ?::text::regnamespace)
  + (SELECT count(*) FROM pg_proc WHERE pronamespace = ?::text::regnamespace)
"""


@pytest.fixture(scope="session")
def engine() -> str:
    """Run these tests on PostgreSQL only."""
    return engines.POSTGRES


@pytest.fixture
def url(db: str) -> str:
    """Return the URL of a database with a ledger in the schema public, and an empty schema tenant_a."""
    engines.change_rows(db, "CREATE SCHEMA tenant_a")
    return db


@pytest.fixture
def role(db: str) -> Iterator[Callable[[str], str]]:
    """Return a function that creates a role with a search_path, and returns the URL of the database for that role."""
    name = f"role_of_{database_name(db)}"
    server = engines.server()
    server.execute(f"CREATE ROLE {name} LOGIN SUPERUSER")

    def set_path(path: str) -> str:
        server.execute(f"ALTER ROLE {name} SET search_path = {path}")
        return db.replace("postgres@", f"{name}@")

    yield set_path
    server.drop_database(db)
    server.execute(f"DROP ROLE {name}")


def with_path(url: str, path: str) -> str:
    return f"{url}?search_path={quote(path)}"


def count_objects(url: str, schema: str) -> int:
    """Return the number of tables, indexes, sequences and functions in a schema."""
    return engines.fetch_rows(url, COUNT_OBJECTS, schema, schema)[0][0]


async def use(ledger: LocalLedger, name: str) -> None:
    """Write and read with everything that has a table of its own, and check that no other session is there."""
    await ledger.log.append(name, [ev.MessageUser(text=name)])
    async with ledger.session(name).turn("Go."), ledger.session(name).call("t") as call:
        call.complete(name * 50_000)
    await ledger.commands.submit("t", {"in": name}, queue="q", session=name)
    claim = await ledger.commands.claim("q")
    assert claim is not None and claim.params == {"in": name}
    await ledger.commands.complete(claim.call, name, fence=claim.fence)
    await ledger.log.append(f"{name}-deleted", [ev.MessageUser(text=name)])
    await ledger.delete(f"{name}-deleted")
    assert [row.name for row in (await ledger.sessions()).items] == [name]
    assert await find_faults(ledger) == []


async def test_a_ledger_is_created_beside_the_one_in_public(url: str) -> None:
    """PGE5: the tables, sequences and functions of the first schema are used, and nothing of the second one."""
    async with await callslip.open(url) as public, await callslip.open(with_path(url, "tenant_a,public")) as tenant:
        assert count_objects(url, "tenant_a") == count_objects(url, "public")
        await use(public, "of-public")
        await use(tenant, "of-tenant-a")
        await use(public, "of-public")
        assert (await read_events(tenant, "of-public")) == []
        async with await callslip.open(with_path(url, "tenant_a")) as same:
            assert await read_events(same, "of-tenant-a") == await read_events(tenant, "of-tenant-a")
        for ledger in (tenant, public):
            await ledger.log.append("new", [ev.MessageUser(text="first")])
        following = asyncio.create_task(anext(tenant.follow("new", 1)))
        await public.log.append("new", [ev.MessageUser(text="in public")])
        async with await callslip.open(with_path(url, '"tenant_a", "$user"')) as same, asyncio.timeout(TIMEOUT_S):
            await same.log.append("new", [ev.MessageUser(text="in tenant_a")])
            event = await following
    assert isinstance(event, ev.MessageUser) and event.text == "in tenant_a"
    for schema, name in (("public", "of-public"), ("tenant_a", "of-tenant-a")):
        sql = f"SELECT DISTINCT name FROM {schema}.sessions WHERE name <> 'new'"
        assert engines.fetch_rows(url, sql) == [(name,)]


async def test_every_connection_uses_one_schema(url: str) -> None:
    """PGE5: so a statement finds nothing in a later schema of search_path, even if a table was removed."""
    database = Database(with_path(url, "tenant_a,public"), Settings())
    for _ in range(2):
        connection = await database.connect()
        assert [tuple(row) for row in await connection.fetch("SELECT current_setting('search_path')")] == [
            ("tenant_a",)
        ]
        await connection.close()


async def test_commands_create_a_ledger_in_the_first_schema(url: str, new_db: engines.DatabaseFactory) -> None:
    """PGE5: `admin migrate` and `admin copy` do, and commands that only read create none."""
    tenant = with_path(url, "tenant_a,public")
    async with await callslip.open(url) as ledger:
        await use(ledger, "of-public")
    result = await asyncio.to_thread(cli_process.run_in_process, "ls", "--db", tenant)
    assert result.returncode and "no ledger in" in result.stderr and count_objects(url, "tenant_a") == 0
    result = await asyncio.to_thread(cli_process.run_in_process, "admin", "migrate", "--db", tenant)
    assert result.stderr.startswith("created the tables"), result
    assert count_objects(url, "tenant_a") == count_objects(url, "public")
    result = await asyncio.to_thread(cli_process.run_in_process, "ls", "--db", tenant)
    assert "no sessions" in result.stderr, result
    source = new_db()
    async with await callslip.open(source) as ledger:
        await use(ledger, "copied")
        events = await read_events(ledger, "copied")
    result = await asyncio.to_thread(cli_process.run_in_process, "admin", "copy", source, tenant)
    assert result.returncode == 0, result
    async with await callslip.open(tenant) as copy, await callslip.open(url) as public:
        assert await read_events(copy, "copied") == events and await read_events(public, "copied") == []
        await use(public, "of-public")


async def test_the_schema_may_have_any_name(url: str) -> None:
    """PGE5: also one that must be quoted."""
    engines.change_rows(url, 'CREATE SCHEMA "Tenant B, ""new"""')
    async with await callslip.open(with_path(url, '"Tenant B, ""new""", public')) as ledger:
        await use(ledger, "of-tenant-b")
    async with await callslip.open(with_path(url, '"Tenant B, ""new"""')) as ledger:
        assert await read_events(ledger, "of-tenant-b")


@pytest.mark.parametrize("path", ["tenant_b,public", "tenant_b", '"Tenant_A",public'])
async def test_a_schema_that_does_not_exist_is_named(url: str, path: str) -> None:
    """PGE5: the next schema of search_path is not used instead."""
    name = read_path(path)[0]
    for open_database in (callslip.open, lambda url: Database.open(url, Settings(), create=False)):
        with pytest.raises(callslip.StoreError, match=f'schema "{name}" of search_path does not exist'):
            await open_database(with_path(url, path))
    for command in (["admin", "migrate"], ["ls"], ["doctor"]):
        result = await asyncio.to_thread(cli_process.run_in_process, *command, "--db", with_path(url, path))
        assert result.returncode and f'schema "{name}"' in result.stdout + result.stderr, result


async def test_a_role_sets_the_schema(url: str, role: Callable[[str], str]) -> None:
    """PGE5: as docs/guides/postgres.md says. A schema with the name of the role comes first only if it exists."""
    async with await callslip.open(role("tenant_a, public")) as tenant, await callslip.open(url) as public:
        await use(tenant, "of-tenant-a")
        await use(public, "of-public")
        # Connections that are opened later use the schema of the first one.
        role("public")
        engines.server().execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", f"role_of_{database_name(url)}"
        )
        await use(tenant, "of-tenant-a")
    with pytest.raises(callslip.StoreError, match='schema "tenant_b" of search_path does not exist'):
        await callslip.open(role("tenant_b, public"))
    async with await callslip.open(role('"$user", public')) as ledger:
        assert [row.name for row in (await ledger.sessions()).items] == ["of-public"]
    engines.change_rows(url, f"CREATE SCHEMA role_of_{database_name(url)}")
    async with await callslip.open(role('"$user", public')) as ledger:
        await use(ledger, "of-the-role")


async def test_tables_of_another_program_are_not_used(url: str) -> None:
    """PGE5: neither together with a ledger in a later schema, nor with one that is created."""
    engines.change_rows(url, "CREATE TABLE tenant_a.events (id int)")
    tenant = with_path(url, "tenant_a,public")
    with pytest.raises(callslip.InvalidDatabaseError, match=r"tables of another program \(events\)"):
        await callslip.open(tenant)
    with pytest.raises(callslip.NotFoundError, match="no ledger in"):
        await Database.open(tenant, Settings(), create=False)
    assert engines.fetch_rows(url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'tenant_a'") == [(1,)]


@pytest.mark.parametrize(
    "removed", ["TABLE tenant_a.events", "FUNCTION tenant_a.callslip_clock", "SEQUENCE tenant_a.lane_ids"]
)
async def test_what_a_ledger_lacks_is_not_taken_from_a_later_schema(
    url: str, role: Callable[[str], str], removed: str
) -> None:
    """PGE5: for example after a part of it was restored; also behind a pooler, where search_path stays as it is."""
    tenant = with_path(url, "tenant_a,public")
    async with await callslip.open(tenant):
        pass
    engines.change_rows(url, f"DROP {removed}")
    with Pooler(engines.server().port) as pooler:
        pooled = role("tenant_a, public").replace(f":{engines.server().port}/", f":{pooler.port}/")
        for address in (tenant, pooled):
            with pytest.raises(callslip.InvalidDatabaseError, match=f"does not have {removed.partition('.')[2]}"):
                await callslip.open(address)
            result = await asyncio.to_thread(cli_process.run_in_process, "doctor", "--db", address)
            assert "incomplete ledger" in result.stdout + result.stderr, result


async def test_the_schema_of_a_role_is_used_behind_a_pooler(url: str, role: Callable[[str], str]) -> None:
    """PGE5: connections are shared, so their search_path is checked, and not changed."""
    with Pooler(engines.server().port, size=2) as pooler:
        pooled = role("tenant_a, public").replace(f":{engines.server().port}/", f":{pooler.port}/")
        async with await callslip.open(pooled) as tenant, await callslip.open(url) as public:
            await use(tenant, "of-tenant-a")
            await use(public, "of-public")
            rows = await tenant.log.store._database.fetch("SELECT current_setting('search_path')")
            assert rows[0][0] == "tenant_a, public"
        async with await callslip.open(with_path(url, "tenant_a")) as direct:
            assert await find_faults(direct) == [] and await read_events(direct, "of-tenant-a")
    with Pooler(engines.server().port) as pooler:
        pooled = role("tenant_b, public").replace(f":{engines.server().port}/", f":{pooler.port}/")
        with pytest.raises(callslip.StoreError, match='schema "tenant_b" of search_path does not exist'):
            await callslip.open(pooled)


@pytest.mark.parametrize(
    ("path", "url_path", "schema", "problem"),
    [
        ('"$user", public', "", "public", ""),
        ('"$user", public', "", "ann", ""),
        ('"\\$user", public, extensions', "", "public", ""),
        ("Tenant_A, public", "tenant_a,public", "tenant_a", ""),
        ('"a""b", public', "", 'a"b', ""),
        ("x" * 70, "", "x" * 63, ""),
        ("tenant_a, public", "", "public", 'schema "tenant_a"'),
        ('"$user", tenant_a, public', "", "public", 'schema "tenant_a"'),
        ('"$user", public', "", "", 'schema "public"'),
        ('""', "", "", "names no schema"),
        ('"$user"', "", "", "names no schema"),
        ('"$user", public', "tenant_a", "public", "has no effect behind this pooler"),
    ],
)
def test_the_first_schema_of_a_path_must_be_used(path: str, url_path: str, schema: str, problem: str) -> None:
    """PGE5: a schema with the name of the user may be missing."""
    found = find_path_problem(path, url_path, schema, "ann")
    assert problem in found if problem else found == ""


def test_names_of_all_migrations_are_known() -> None:
    """They are checked when a ledger is opened."""
    tables, functions = created_names()
    assert {"meta", "events", "sessions", "lane_ids", "posts"} <= set(tables)
    assert {"callslip_apply", "callslip_clock"} <= set(functions)
    assert created_names(0) == ([], [])
