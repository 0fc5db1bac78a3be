"""Test that `make quick` runs exactly the tests that start no process, and fails those that start one anyway."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support import browser, cli_process, live_server, scenarios, stream_checks
from tests.support.paths import ROOT
from tests.support.quick import MAX_CASES, find_starting_code

CONFTEST = """
from tests.support import quick
from tests.support.quick import *

quick.READ_PACKAGES += ("sample",)
"""
TESTS = """
import asyncio
import functools
import os
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

def start():
    subprocess.run([sys.executable, "-c", ""])

class Starter:
    def run(self):
        os.waitpid(os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}), 0)

@pytest.fixture
def process():
    return Starter()

def decorated(test):
    @functools.wraps(test)
    def wrapper():
        start()
        test()
    return wrapper

def test_direct(): start()
def test_by_a_fixture(process): process.run()
def test_by_a_method(): Starter().run()
@decorated
def test_by_a_decorator(): pass
@given(st.integers())
def test_by_examples(number): start()
def test_by_the_loop(): asyncio.run(asyncio.create_subprocess_exec(sys.executable))

def test_plain(): pass
@pytest.mark.parametrize("case", range(20))
def test_cases(case): pass
@given(st.integers())
def test_plain_examples(number): pass
"""
HIDDEN = """
import importlib
import sys

START = "subprocess"

def test_hidden(): importlib.import_module(START).run([sys.executable, "-c", ""])
def test_hidden_and_caught():
    try:
        importlib.import_module(START).run([sys.executable, "-c", ""])
    except BaseException:
        pass
def test_after(): pass
"""


def run_quick(folder: Path) -> tuple[str, dict[str, set[str]]]:
    """Run `pytest --quick` in a project with the tests above; return its output, and the tests for each outcome."""
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = sample\n")
    (folder / "sample").mkdir()
    for name, text in {"conftest": CONFTEST, "test_started": TESTS, "test_hidden": HIDDEN}.items():
        (folder / "sample" / f"{name}.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "--quick", "-rA", "--import-mode=importlib", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    outcomes: dict[str, set[str]] = {}
    for outcome, name in re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\w+)", result.stdout, re.MULTILINE):
        outcomes.setdefault(outcome, set()).add(name)
    return result.stdout + result.stderr, outcomes


def test_only_tests_without_processes_run(tmp_path: Path) -> None:
    """Tests that visibly start a process are deselected; others that start one fail, even if they catch the error."""
    output, outcomes = run_quick(tmp_path)
    assert outcomes.get("PASSED", set()) - {"test_hidden_and_caught"} == {
        "test_plain",
        "test_cases",
        "test_plain_examples",
        "test_after",
    }, output
    assert outcomes["FAILED"] == {"test_hidden"} and "test_hidden_and_caught" in outcomes["ERROR"], output
    assert output.count("::test_cases[") == MAX_CASES and f"{26 - MAX_CASES} deselected" in output
    assert "os.posix_spawn" not in output


def test_the_helpers_of_the_tests_are_known() -> None:
    """Commands, Node and the browser start processes; a server in the event loop of a test does not."""
    starting_helpers = [
        cli_process.run,
        cli_process.ServeProcess,
        cli_process.Terminal,
        stream_checks.Client,
        browser.chromium,
    ]
    other_helpers = [
        cli_process.run_in_process,
        live_server.serving_ledger,
        stream_checks.fold_log,
        scenarios.load_events,
    ]
    starting_ids = find_starting_code([*starting_helpers, *other_helpers])
    assert all(id(code) in starting_ids for code in starting_helpers)
    assert not any(id(code) in starting_ids for code in other_helpers)


def test_make_quick_needs_only_the_python_packages() -> None:
    """Neither Node nor a browser is installed for it."""
    assert re.search(r"^quick: \.venv/ready\n\t@\$\(PYTEST\) .*--quick", (ROOT / "Makefile").read_text(), re.MULTILINE)
