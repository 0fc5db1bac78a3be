"""Several servers on one PostgreSQL with clients, workers and readers, all of which are killed at any time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from tests.support.chaos_run import ChaosRun
from tests.support.engines import create_schema
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.anyio, pytest.mark.postgres, pytest.mark.chaos]
SEED = os.environ.get("CALLSLIP_SEED", "")
"""Set it to the seed that a run has printed to repeat its kills."""


async def test_servers_workers_and_the_database_are_killed(
    scale: int, record_property: Callable[[str, object], None]
) -> None:
    """Every acknowledged event is there once, every call has ended once, and every reader has received everything."""
    seed = SEED or (str(time.time_ns()) if scale > 1 else "1")
    with PostgresServer(durable=True) as postgres:
        postgres.prepare_template(create_schema)
        run = ChaosRun(seed, seconds=15.0 if scale == 1 else 120.0)
        try:
            report = await run.run(postgres)
        finally:
            print(f"\nCALLSLIP_SEED={seed}: {', '.join(run.kills)}")
    record_property("counts", f"CALLSLIP_SEED={seed}, {report}")
    assert not report.faults, str(report)
    assert report.counts["commands"] and report.counts["approvals"] and report.counts["kills"]
