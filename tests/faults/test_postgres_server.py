"""The PostgreSQL server that other tests use: it starts, recovers from a crash, and never outlives the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support.fault_proxy import FaultProxy
from tests.support.paths import ROOT
from tests.support.postgres import PostgresServer, connect, database_name

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def durable() -> Iterator[PostgresServer]:
    with PostgresServer(durable=True) as server:
        yield server


def test_a_durable_server_has_the_settings_of_production(durable: PostgresServer) -> None:
    """What it has acknowledged survives a loss of power."""
    for name in ("fsync", "synchronous_commit", "full_page_writes", "autovacuum"):
        assert durable.execute(f"SHOW {name}") == [("on",)], name


def test_committed_rows_survive_a_kill_of_all_processes(durable: PostgresServer) -> None:
    """And the server has the same address afterwards."""
    durable.execute("CREATE TABLE survivors (n int)")
    url = durable.url()
    for number in range(3):
        durable.execute("INSERT INTO survivors VALUES ($1::int)", number)
        durable.kill9()
        assert not durable.is_running
        durable.start()
        assert "was not properly shut down" in durable.read_log()
    assert durable.execute("SELECT n FROM survivors ORDER BY n") == [(0,), (1,), (2,)]
    durable.restart()
    assert durable.url() == url and "was not properly shut down" not in durable.read_log()


def test_databases_are_copies_that_share_nothing(durable: PostgresServer) -> None:
    """A new database has what the template has, and dropping it ends its connections."""
    durable.prepare_template(lambda url: durable.execute("CREATE TABLE t (n int)", database=database_name(url)))
    first, second = durable.create_database(), durable.create_database()
    names = [database_name(url) for url in (first, second)]
    assert durable.change("INSERT INTO t VALUES ($1)", 1, database=names[0]) == 1
    assert [durable.execute("SELECT count(*) FROM t", database=name) for name in names] == [[(1,)], [(0,)]]
    for url in (first, second):
        durable.drop_database(url)
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        durable.execute("SELECT 1", database=names[0])


@pytest.mark.anyio
@pytest.mark.parametrize("way", ["tcp", "socket", "proxy"])
async def test_a_server_is_reached_in_every_way(durable: PostgresServer, way: str) -> None:
    """By its port, by its Unix socket, and through a proxy."""
    with FaultProxy(durable.port) as proxy:
        url = durable.url(port=proxy.port if way == "proxy" else 0, is_socket=way == "socket")
        connection = await connect(url, timeout=TIMEOUT_S)
        try:
            assert await connection.fetchval("SELECT current_user") == "postgres"
            assert len(proxy.connections) == (1 if way == "proxy" else 0)
        finally:
            await connection.close(timeout=TIMEOUT_S)


OWNER = """
import sys
from tests.support.postgres import PostgresServer, connect, database_name
server = PostgresServer()
server.start()
print(server.pid, server.folder, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_a_server_ends_with_the_process_that_started_it(signal_number: int) -> None:
    """Also if that process is killed: no server and no folder are left."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        assert Path(folder).is_dir() and is_server(int(pid))
        owner.send_signal(signal_number)
        owner.wait(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while Path(folder).exists() or is_server(int(pid)):
        assert time.monotonic() < deadline, f"the server {pid} in {folder} is left"
        time.sleep(0.02)


def is_server(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
