"""Test that `.ci/run` repeats failed tests one at a time and passes nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PASSES = "def test_passes(): pass\n"
FAILS = "def test_fails(): assert False\n"
FLAKY = """
from pathlib import Path

def test_is_flaky():
    has_run = Path("ran").exists()
    Path("ran").touch()
    assert has_run
"""
CRASHES = "import os\n\ndef test_crashes(): os._exit(7)\n"
INTERRUPTED = FLAKY + "\ndef test_interrupts(): raise KeyboardInterrupt\n"
FLAKY_ID = "test_flaky.py::test_is_flaky"


def run_in(folder: Path, check: str = "true", workers: int = 0, **files: str) -> tuple[int, list[str]]:
    """Run `make check test` in a project with these test files; return the status and the lines printed."""
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -q\ncache_dir = .cache/pytest\n")
    pytest_command = f"{sys.executable} -m pytest" + (f" -p xdist -n {workers}" if workers else "")
    (folder / "Makefile").write_text(f"check:\n\t@{check}\ntest:\n\t@{pytest_command}\n")
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # Loading plugins takes long, and none is used here.
    command = [sys.executable, str(ROOT / ".ci" / "retry.py"), sys.executable, "make", "check", "test"]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert not result.stderr
    return result.returncode, result.stdout.splitlines()


def test_a_run_without_failures_runs_once(tmp_path: Path) -> None:
    """Without a failure the output is that of the command."""
    status, lines = run_in(tmp_path, passes=PASSES)
    assert status == 0 and lines[-1].startswith("1 passed in ")
    assert not any("once more" in line for line in lines)


def test_a_test_that_passes_alone_is_named_as_flaky(tmp_path: Path) -> None:
    """The run passes, and the closing line counts every test. Failures of an earlier run do not count."""
    last_failed = tmp_path / ".cache" / "pytest" / "v" / "cache" / "lastfailed"
    last_failed.parent.mkdir(parents=True)
    last_failed.write_text('{"test_removed.py::test_removed": true}')
    status, lines = run_in(tmp_path, workers=2, passes=PASSES, flaky=FLAKY + PASSES)
    assert status == 0
    assert lines[-3:-1] == ["Flaky tests (failed once, passed alone):", f"  {FLAKY_ID}"]
    assert lines[-1].startswith("3 passed, 1 rerun in ")


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    """Flaky tests are still named."""
    status, lines = run_in(tmp_path, passes=PASSES, flaky=FLAKY, fails=FAILS)
    assert status == 1
    assert lines[-3:-1] == ["Flaky tests (failed once, passed alone):", f"  {FLAKY_ID}"]
    assert lines[-1].startswith("1 failed, 2 passed, 2 rerun in ")


@pytest.mark.parametrize(
    ("workers", "files"),
    [
        pytest.param(2, {"syntax": "def"}, id="syntax error"),
        pytest.param(0, {"syntax": "def"}, id="syntax error in one process"),
        pytest.param(2, {"crashes": CRASHES}, id="crash of a worker"),
        pytest.param(0, {"gone": CRASHES}, id="crash of pytest"),
        pytest.param(0, {"interrupted": INTERRUPTED}, id="interrupt"),
    ],
)
def test_any_other_failure_fails_the_run_immediately(tmp_path: Path, workers: int, files: dict[str, str]) -> None:
    """Nothing is repeated, since tests that did not run the first time would be left out."""
    status, lines = run_in(tmp_path, workers=workers, flaky=FLAKY, **files)
    assert status == 2
    assert not any("once more" in line or "Flaky" in line for line in lines)


def test_a_failed_check_fails_the_run_immediately(tmp_path: Path) -> None:
    """No test runs."""
    status, lines = run_in(tmp_path, check="exit 1", flaky=FLAKY)
    assert status == 2 and len(lines) == 1 and "check" in lines[0]
    assert not (tmp_path / "ran").exists()


def test_the_counts_of_a_test_that_passes_are_printed(tmp_path: Path) -> None:
    """KILL1: also by a worker, whose output is hidden. Another property is not printed."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_terminal_summary\n")
    (tmp_path / "test_counting.py").write_text(
        "def test_counting(record_property):\n"
        "    record_property('counts', 'events 3, kills 2')\n"
        "    record_property('other', 'hidden')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "1", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert "test_counting.py::test_counting: events 3, kills 2\n" in result.stdout, result.stdout + result.stderr
    assert "hidden" not in result.stdout
