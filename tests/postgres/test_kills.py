"""Kill writers and PostgreSQL at seeded moments: nothing that was acknowledged is lost, and no run hangs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support import kill_run
from tests.support.engines import create_schema
from tests.support.kill_run import KillRun
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.chaos]
FIRST_SEED = int(os.environ.get("CALLSLIP_SEED", "0"))
"""Set it to a seed that was printed to repeat that run."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Start a server that keeps what it acknowledged when it is killed."""
    with PostgresServer(durable=True) as server:
        server.prepare_template(create_schema)
        yield server


def test_runs_with_kills_lose_nothing_and_end(server: PostgresServer, scale: int) -> None:
    """Two processes write while both and the server are killed. Every run ends before its deadline."""
    reports: list[kill_run.Report] = []
    for seed in range(FIRST_SEED, FIRST_SEED + (2 if scale == 1 else 50)):
        run = KillRun(server, seed)
        try:
            report = run.run()
        except BaseException:
            print(f"CALLSLIP_SEED={seed}: {', '.join(run.happened)}")
            raise
        assert not report.faults, f"CALLSLIP_SEED={seed}: {', '.join(run.happened)}\n{report}"
        reports.append(report)
    print(f"\n{len(reports)} runs from seed {FIRST_SEED}: {kill_run.total(reports)}")
