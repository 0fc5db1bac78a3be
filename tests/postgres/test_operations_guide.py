"""What `docs/guides/postgres.md` says about operations: settings, roles, backups, replicas and monitoring."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import asyncpg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import callslip
from callslip.api.databases import copy_ledger
from callslip.api.ledger import LocalLedger
from callslip.model import events as ev
from callslip.model.events import Alias, Draft
from callslip.settings import Settings
from callslip.store.postgres_database import Database
from tests.support import engines
from tests.support.doc_examples import find_blocks
from tests.support.fault_proxy import FaultProxy
from tests.support.invariants import find_faults, read_events
from tests.support.live_server import fetch, serving_ledger
from tests.support.paths import ROOT
from tests.support.postgres import PostgresServer, database_name
from tests.support.tasks import TIMEOUT_S

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
SPENT_TRANSACTIONS = 5000
SPEND_TRANSACTIONS = f"""
DO $$ BEGIN FOR n IN 1..{SPENT_TRANSACTIONS} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$
"""
OPTIONS = [{"optionId": "yes", "kind": "allow_once", "name": "Yes"}, {"optionId": "no", "kind": "reject_once"}]


@pytest.fixture(scope="session")
def engine() -> str:
    """Run these tests on PostgreSQL only."""
    return engines.POSTGRES


# Pools and timeouts


async def test_the_server_ends_a_read_that_was_given_up(db: str) -> None:
    """A read that takes longer than `statement_timeout` fails, and does not run on without a client."""
    settings = Settings(statement_timeout=0.2, database_timeout=0.2)
    async with await Database.open(db, settings) as database:
        with pytest.raises(callslip.StoreError, match="did not answer in time"):
            await database.fetch("SELECT pg_sleep(600)")
        running = "SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'"
        async with asyncio.timeout(TIMEOUT_S):
            while engines.fetch_rows(db, running):
                await asyncio.sleep(0.01)


# Roles, schemas, TLS


def find_sql(guide: str, name: str) -> str:
    """Return a file of SQL that a guide contains."""
    text = (ROOT / "docs" / "guides" / guide).read_text("utf-8")
    (block,) = [block for block in find_blocks(text) if block.info == f"sql file {name}"]
    return block.body


@pytest.fixture
def new_server() -> Iterator[PostgresServer]:
    """A server without databases, whose transactions have small numbers."""
    with PostgresServer() as server:
        yield server


def create_roles(server: PostgresServer) -> list[str]:
    """Create the roles and the database of the guide; return the URLs of its owner, its programs and its readers."""
    roles = server.folder / "roles.sql"
    roles.write_text(find_sql("postgres.md", "roles.sql"))
    server.run_program("psql", "--set=ON_ERROR_STOP=1", "--file", roles, server.url())
    url = server.url("callslip")
    return [url.replace("postgres@", f"callslip_{role}@") for role in ("owner", "app", "read")]


async def test_three_roles_own_write_and_read_a_ledger(new_server: PostgresServer) -> None:
    """OPS5: the owner creates the tables; the others can neither change them nor, to read, write rows."""
    owner, app, reader = create_roles(new_server)
    with pytest.raises(callslip.StoreError, match="permission denied"):
        await callslip.open(app)
    async with await callslip.open(owner):
        pass
    async with await callslip.open(app) as ledger:
        await fill(ledger)
        await ledger.delete("asking")
        await ledger.prune(0)
        assert await find_faults(ledger) == []
        async with await callslip.open(reader) as copy:
            assert await read_all(copy) == await read_all(ledger)
            with pytest.raises(callslip.ReadOnlyStoreError):
                await copy.log.append("work", [ev.MessageUser(text="refused")])
    for role, statement in (("app", "DROP TABLE events"), ("read", "DELETE FROM tokens")):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            new_server.execute(f"SET ROLE callslip_{role}; {statement}", database="callslip")
        new_server.execute("RESET ROLE", database="callslip")


async def test_the_owner_fills_a_database_and_a_reader_copies_it(new_server: PostgresServer, tmp_path: Path) -> None:
    """MOVE9: a role with fewer rights than a copy needs is refused at once. Others use what the owner copied."""
    owner, app, reader = create_roles(new_server)
    source, back = f"sqlite:///{tmp_path / 'source.db'}", f"sqlite:///{tmp_path / 'back.db'}"
    async with await callslip.open(source) as ledger:
        await fill(ledger)
        stored = await read_all(ledger)
    async with await callslip.open(owner):
        pass
    for role, right in ((app, "UPDATE on the sequence"), (reader, "INSERT on the table")):
        with pytest.raises(callslip.ReadOnlyStoreError, match=f"a copy needs rights .*{right}.* Use the owner"):
            await copy_ledger(source, role)
    async with await callslip.open(app) as ledger:
        assert await read_all(ledger) == {}  # The refused copy has begun nothing.
    assert (await copy_ledger(source, owner)).problems == []
    async with await callslip.open(app) as ledger:
        assert await read_all(ledger) == stored
        await ledger.log.append("new", [ev.MessageUser(text="hello")])
        assert await find_faults(ledger) == []
        stored = await read_all(ledger)
    assert (await copy_ledger(reader, back)).problems == []
    async with await callslip.open(back) as ledger:
        assert await read_all(ledger) == stored


async def test_ledgers_in_two_schemas_share_nothing(db: str) -> None:
    """OPS5: `search_path` in the URL chooses the schema, also for notifications."""
    urls = [f"{db}?search_path={name}" for name in ("tenant_a", "tenant_b")]
    for name in ("tenant_a", "tenant_b"):
        engines.change_rows(db, f"CREATE SCHEMA {name}")
    async with (
        await callslip.open(urls[0]) as one,
        await callslip.open(urls[0]) as same,
        await callslip.open(urls[1]) as other,
    ):
        await one.log.append("s", [ev.MessageUser(text="in a")])
        async with asyncio.timeout(TIMEOUT_S):
            event = await anext(same.follow("s"))
        assert isinstance(event, ev.MessageUser) and event.text == "in a"
        assert (await other.sessions()).items == []


class TlsProxy:
    """Forwards connections to a PostgreSQL server that has no TLS, with TLS between the client and the proxy."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._target = port
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            await reader.readexactly(8)  # The request for TLS.
            writer.write(b"S")
            await writer.start_tls(self._context)
            server_reader, server = await asyncio.open_connection("127.0.0.1", self._target)
            for pump in (_pump(reader, server), _pump(server_reader, writer)):
                task = asyncio.create_task(pump)
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


def make_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """Return the certificate of a new authority, and what a server on this machine uses."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "ca.pem", folder / "key.pem"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    options = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    private.write_bytes(key.private_bytes(*options))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    return public, context


async def test_tls_parameters_of_the_url_are_used(db: str, tmp_path: Path) -> None:
    """OPS5: with `sslmode=verify-full` only a server with a certificate for its name is used."""
    authority, context = make_certificate(tmp_path)
    async with TlsProxy(engines.server().port, context) as proxy:
        address = f"{proxy.port}/{database_name(db)}?sslmode=verify-full&sslrootcert={authority}"
        async with await callslip.open(f"postgresql://postgres@localhost:{address}") as ledger:
            await ledger.log.append("s", [ev.MessageUser(text="hello")])
            assert len((await read_all(ledger))["s"]) == 1
        with pytest.raises(callslip.StoreError, match="certificate"):
            await callslip.open(f"postgresql://postgres@127.0.0.1:{address}")


# Backups


async def fill(ledger: LocalLedger) -> None:
    """Write a session with calls, an answered and a pending approval, a blob, pruned events, and a pending command."""
    async with ledger.session("work").turn("Go."):
        for number in range(3):
            async with ledger.session("work").call("t", {"number": number}) as call:
                call.complete("done" * (1 + 50_000 * (number == 2)))
    aliases = (Alias("t", "asking"),)
    proposal = ev.CallProposed(tool_name="rm", title="Remove", input={"path": "/"}, scope="detached", aliases=aliases)
    request = ev.ApprovalRequested(aliases=aliases, description="may I?", options=OPTIONS)
    await ledger.log.append("asking", [Draft(proposal), Draft(request)])
    await ledger.commands.submit("echo", {"text": "hi"}, queue="w", session="queue", timeout=3600)


def copy_database(url: str, server: PostgresServer) -> str:
    """Restore a dump of a database on another server, and return the URL of the copy, which has the same name."""
    dump = engines.server().folder / "ledger.dump"
    engines.server().run_program("pg_dump", "--format=custom", f"--file={dump}", url)
    server.execute(f"CREATE DATABASE {database_name(url)} TEMPLATE template0")
    copy = server.url(database_name(url))
    server.run_program("pg_restore", "--exit-on-error", f"--dbname={copy}", dump)
    dump.unlink()
    return copy


async def read_all(ledger: LocalLedger) -> dict[str, list[bytes]]:
    """Return the stored events of all sessions."""
    names = [row.name for row in (await ledger.sessions(limit=1000)).items]
    return {name: [body for _, body in await ledger.log.store.events(name, 0, 10_000)] for name in names}


async def test_a_restored_dump_continues_on_a_new_server(db: str, new_server: PostgresServer) -> None:
    """OPS3: a dump of a ledger in use has everything that was acknowledged, and other processes learn of what changes.

    The rows of calls have numbers of transactions that the new server has not reached yet.
    """
    engines.server().execute(SPEND_TRANSACTIONS, database=database_name(db))
    async with await callslip.open(db) as source:
        await fill(source)
        stored = await read_all(source)
        copy = copy_database(db, new_server)
    numbers = "SELECT max(change::text::bigint), min(pg_current_xact_id()::text::bigint) FROM calls"
    ((restored, current),) = new_server.execute(numbers, database=database_name(copy))
    assert restored > current + SPENT_TRANSACTIONS / 2
    async with await callslip.open(copy) as one, await callslip.open(copy) as other:
        assert await find_faults(one) == [] and await read_all(one) == stored
        [queued] = await one.commands.pending("w")
        waiting = asyncio.create_task(one.commands.get(queued.correlation_id, wait=TIMEOUT_S))
        async with asyncio.timeout(TIMEOUT_S):
            claim = await other.commands.claim("w", wait=TIMEOUT_S)
            assert claim is not None and claim.params == {"text": "hi"}
            await other.commands.complete(claim.call, "hi", fence=claim.fence)
            assert (await waiting).result == "hi"
        [request] = await one.approvals(session="asking")
        await other.approve(request.id, by="Ada")
        assert await one.approvals(session="asking") == []
        await one.log.append("work", [Draft(ev.MessageUser(text="more"))])
        # The numbers of the new server reach those of the old one.
        for _ in range(2):
            new_server.execute(SPEND_TRANSACTIONS, database=database_name(copy))
        waiting = asyncio.create_task(one.commands.submit("echo", queue="w", session="queue", wait=TIMEOUT_S))
        async with asyncio.timeout(TIMEOUT_S):
            claim = await other.commands.claim("w", wait=TIMEOUT_S)
            assert claim is not None
            await other.commands.complete(claim.call, "again", fence=claim.fence)
            assert (await waiting).result == "again"
        assert await find_faults(other) == []


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    """A server that archives its log."""
    settings = {"archive_mode": "on", "archive_command": "cp %p ../archive/%f", "wal_level": "replica"}
    with PostgresServer(settings=settings) as server:
        archive = server.folder / "archive"
        archive.mkdir()
        archive.chmod(0o777)
        yield server


async def until(server: PostgresServer, condition: str, database: str = "") -> None:
    """Wait until a query returns true."""
    async with asyncio.timeout(TIMEOUT_S):
        while server.execute(condition, database=database) != [(True,)]:
            await asyncio.sleep(0.01)


async def test_a_base_backup_and_the_archived_log_have_every_event(primary: PostgresServer) -> None:
    """OPS3: a backup that was taken during writes, and the log after it, restore the ledger as it was last."""
    url = primary.create_database()
    settings = {"restore_command": f"cp {primary.folder}/archive/%f %p"}
    backup = PostgresServer(settings=settings, origin=primary)
    try:
        async with await callslip.open(url) as ledger:
            await fill(ledger)
            is_saved = asyncio.Event()

            async def write() -> None:
                while not is_saved.is_set():
                    await ledger.log.append("work", [ev.MessageUser(text="during the backup")])

            writing = asyncio.create_task(write())
            await asyncio.to_thread(backup.create)
            is_saved.set()
            await writing
            await ledger.log.append("work", [ev.MessageUser(text="after the backup")])
            stored = await read_all(ledger)
            ((file,),) = primary.execute("SELECT pg_walfile_name(pg_switch_wal())")
            await until(primary, f"SELECT last_archived_wal >= '{file}' FROM pg_stat_archiver")
        backup.start()
        await until(backup, "SELECT NOT pg_is_in_recovery()")
        async with await callslip.open(backup.url(database_name(url))) as restored:
            assert await read_all(restored) == stored
            assert await find_faults(restored) == []
            await restored.log.append("work", [ev.MessageUser(text="on the restored server")])
    finally:
        backup.close()


# Replicas


async def test_a_standby_is_read_and_can_take_over(primary: PostgresServer) -> None:
    """OPS4: a standby follows its primary and refuses writes. After its promotion it is the ledger."""
    url = primary.create_database()
    with PostgresServer(origin=primary, is_standby=True) as standby:
        async with await callslip.open(url) as ledger:
            await fill(ledger)
            ((position,),) = primary.execute("SELECT pg_current_wal_lsn()::text")
            await until(standby, f"SELECT pg_last_wal_replay_lsn() >= '{position}'")
            copy_url = standby.url(database_name(url))
            async with await callslip.open(copy_url) as copy:
                assert await read_all(copy) == await read_all(ledger)
                with pytest.raises(callslip.ReadOnlyStoreError):
                    await copy.log.append("work", [ev.MessageUser(text="refused")])
                session = await copy.log.get_session("work")
                assert session is not None
                following = asyncio.create_task(anext(copy.follow("work", session.last_seq)))
                await ledger.log.append("work", [ev.MessageUser(text="to the primary")])
                async with asyncio.timeout(TIMEOUT_S):
                    event = await following
                assert isinstance(event, ev.MessageUser) and event.text == "to the primary"
            expected = await read_all(ledger)
        standby.execute("SELECT pg_promote()")
        async with await callslip.open(copy_url) as promoted:
            assert await read_all(promoted) == expected
            await promoted.log.append("work", [ev.MessageUser(text="to the new primary")])
            assert await find_faults(promoted) == []


async def test_a_standby_waits_for_the_event_that_a_reader_needs(
    primary: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS7: with `min_seq`, or a cursor, of what was read elsewhere. If it does not arrive, the answer is 503."""
    url = primary.create_database()
    with PostgresServer(origin=primary, is_standby=True) as standby:
        async with await callslip.open(url) as ledger:
            await ledger.log.append("work", [ev.MessageUser(text="1")])
            ((position,),) = primary.execute("SELECT pg_current_wal_lsn()::text")
            await until(standby, f"SELECT pg_last_wal_replay_lsn() >= '{position}'")
            async with (
                await callslip.open(standby.url(database_name(url))) as copy,
                serving_ledger(copy) as copy_url,
                serving_ledger(ledger) as primary_url,
            ):
                standby.execute("SELECT pg_wal_replay_pause()")
                await ledger.log.append("work", [ev.MessageUser(text="2")])
                await ledger.log.append("new", [ev.MessageUser(text="1")])
                paths = [
                    "work?min_seq=2",
                    "new?format=openai&min_seq=1",
                    "work/entries?min_seq=2",
                    "work/stream?min_seq=2&follow=false",
                    "work/stream?format=events&after=2&follow=false",
                ]
                assert (await fetch(f"{copy_url}/v1/sessions/work")).json()["seq"] == 1
                with monkeypatch.context() as patch:
                    patch.setattr("callslip.api.sessions.STANDBY_WAIT_S", 0.05)
                    for path in paths:
                        answer = await fetch(f"{copy_url}/v1/sessions/{path}")
                        assert (answer.status, answer.json()["type"]) == (503, "urn:callslip:unavailable")
                        assert answer.headers["retry-after"] == "1" and "here yet" in answer.json()["detail"]
                monkeypatch.setattr("callslip.api.sessions.STANDBY_WAIT_S", TIMEOUT_S)
                waiting = [asyncio.create_task(fetch(f"{copy_url}/v1/sessions/{path}")) for path in paths]
                async with asyncio.timeout(TIMEOUT_S):
                    while copy.log.feed._watchers < len(paths):  # pyright: ignore[reportPrivateUsage]
                        await asyncio.sleep(0.01)
                standby.execute("SELECT pg_wal_replay_resume()")
                for path, task in zip(paths, waiting, strict=True):
                    answer, expected = await task, await fetch(f"{primary_url}/v1/sessions/{path}")
                    assert (answer.status, answer.body) == (200, expected.body)
                for path in ("work?min_seq=3", "work/entries?min_seq=3", "work/stream?min_seq=3"):
                    answer = await fetch(f"{primary_url}/v1/sessions/{path}")
                    assert (answer.status, answer.json()["field"]) == (400, "min_seq")
                assert (await fetch(f"{primary_url}/v1/sessions/none?min_seq=1")).status == 404


async def test_rows_of_a_server_that_was_replaced_are_forgotten(db: str, new_server: PostgresServer) -> None:
    """OPS4: after a failover that lost transactions, another process has written other rows at the same rev."""
    lost = (Alias("t", "lost"),)
    with FaultProxy(engines.server().port) as proxy:
        url = db.replace(f":{engines.server().port}/", f":{proxy.port}/")
        async with await callslip.open(url) as ledger:
            await ledger.log.append("s", [ev.MessageUser(text="kept")])
            copy = copy_database(db, new_server)
            await ledger.log.append("s", [Draft(ev.CallProposed(tool_name="t", scope="detached", aliases=lost))])
            async with await callslip.open(copy) as other:
                await other.log.append("s", [ev.MessageUser(text="after the failover")])
            proxy.target_port = new_server.port
            proxy.cut()
            await ledger.log.append("s", [ev.MessageUser(text="to the new server")])
            assert [type(event) for event in await read_events(ledger, "s")] == [ev.MessageUser] * 3
            assert (await ledger.calls(session="s")).items == []
            assert await find_faults(ledger) == []


# Monitoring and vacuum


async def test_the_monitoring_queries_show_what_they_say(primary: PostgresServer) -> None:
    """OPS6: sessions, open calls, leases, queues, owners, connections, transactions, tables, indexes and standbys."""
    url = primary.create_database()
    lines = find_sql("postgres-operations.md", "monitoring.sql").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("--"))
    queries = [query for query in text.split(";") if query.strip()]
    transaction: asyncpg.Connection[Any] = await asyncpg.connect(url)
    transaction_pid = transaction.get_server_pid()
    try:
        await transaction.execute("BEGIN")
        await transaction.execute("SELECT pg_current_xact_id()")
        queries[6] = queries[6].replace("10 seconds", "0 seconds")
        async with await callslip.open(url) as ledger:
            await fill(ledger)
            async with ledger.session("open").turn("Go."), ledger.session("open").call("t"):
                claim = await ledger.commands.claim("w")
                assert claim is not None
                await ledger.commands.submit("echo", queue="w", session="queue")
                with PostgresServer(origin=primary, is_standby=True):
                    rows = [primary.execute(query, database=database_name(url)) for query in queries]
    finally:
        await transaction.close()
    sessions, calls, leases, queues, owners, lanes, transactions, tables, indexes, standbys = rows
    assert sessions == [(4, 1)]
    assert [(state, count) for state, count, _ in calls] == [("awaiting_approval", 1), ("queued", 1), ("running", 2)]
    assert leases[0][:2] == (claim.call, "echo") and 0 < leases[0][2] <= 30
    assert queues == [("w", 1)]
    assert len(owners) == 1 and 0 < owners[0][1] <= 30
    assert sum(groups for _, groups, _ in lanes) > 10
    assert (transaction_pid, "idle in transaction") in [(pid, state) for pid, _, state, _ in transactions]
    sizes = {row[0]: row for row in tables}
    assert {"events", "calls", "sessions", "lanes"} <= sizes.keys() and sizes["events"][1] > 0
    assert "events_pkey" in {row[0] for row in indexes}
    assert [(state, kind) for _, state, kind, *_ in standbys] == [("streaming", "async")]


async def test_updates_of_sessions_and_write_connections_change_no_index(db: str) -> None:
    """OPS6: nearly all updates of these rows are HOT, so autovacuum has little to do."""
    async with await callslip.open(db) as ledger:
        for number in range(300):
            await ledger.log.append("s", [ev.MessageUser(text=str(number))])
    sql = "SELECT sum(n_tup_hot_upd)::int, sum(n_tup_upd)::int FROM pg_stat_user_tables WHERE relname = ?"
    for table in ("sessions", "lanes"):
        async with asyncio.timeout(TIMEOUT_S):
            while (counts := engines.fetch_rows(db, sql, table)[0])[1] < 299:
                await asyncio.sleep(0.05)  # A process reports its counts when its connection ends.
        assert counts[0] / counts[1] > 0.9, (table, counts)
