"""Fixtures and settings for all tests: Hypothesis profiles, asyncio, Node, a browser, and a separate home folder."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import shutil
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support import engines, quick, slow_store
from tests.support.engines import DatabaseFactory
from tests.support.paths import ROOT, find_memory_folder
from tests.support.quick import (  # noqa: F401 (hooks of pytest)
    pytest_ignore_collect,
    pytest_runtest_protocol,
    pytest_runtest_teardown,
)

if TYPE_CHECKING:
    from tests.support.browser import Server

LONG = os.environ.get("CALLSLIP_LONG", "") not in ("", "0")
EXAMPLES = 20

# The same code must give the same result, so examples are random only in `make chaos`.
settings.register_profile(
    "short",
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("short"), max_examples=30 * EXAMPLES, derandomize=False)
settings.register_profile("quick", settings.get_profile("short"), max_examples=EXAMPLES // 4)
settings.load_profile("long" if LONG else "short")

# `make` installs Node and the JavaScript packages here; plain `pytest` finds them too.
os.environ["PATH"] = os.pathsep.join([str(ROOT / ".cache" / "node"), os.environ.get("PATH", os.defpath)])
os.environ.setdefault("CALLSLIP_NODE_MODULES", str(ROOT / ".cache" / "npm" / "node_modules"))

# A shell ignores SIGINT for background jobs, and the processes of tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of these tests."""
    quick.pytest_addoption(parser)
    parser.addoption("--all-agents", action="store_true", help="run the tests marked `agents` too")
    parser.addoption("--slow-reads", action="store_true", help="let every read of a store in this process wait")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the shared tests on every engine, and those of `slow_store.SUITES` a second time, with slow reads."""
    engines.parametrize(metafunc)
    if not metafunc.config.getoption("slow_reads"):
        slow_store.parametrize(metafunc)


def pytest_configure(config: pytest.Config) -> None:
    """Check the tables of `engines`, choose the folder of `tmp_path`, and run fewer examples with `--quick`."""
    engines.check_tables()
    # A ledger syncs each new file, and a disk takes longer for that than the rest of most tests.
    if memory := find_memory_folder():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))
    quick.pytest_configure(config)
    if config.getoption("quick"):
        settings.load_profile("quick")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Refuse a shared file whose tests the tables of `engines` do not describe, and leave out most slow reads."""
    report = yield
    if report.passed:
        is_whole = not collector.config.getoption("lf")  # `--last-failed` leaves tests out while they are collected.
        if is_whole and (problems := engines.find_problems(collector, report.result)):
            report.outcome, report.longrepr, report.result = "failed", "\n".join(problems), []
        report.result = slow_store.select_cases(report.result)
    return report


def pytest_collection() -> None:
    """Pause the garbage collector: while thousands of tests are created it takes most of the time, and frees little."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Start the garbage collector again, without the objects that stay until the end."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests that passed have counted (`record_property("counts", ...)`), whichever process ran them."""
    for report in terminalreporter.stats.get("passed", []):
        for name, text in report.user_properties:
            if name == "counts":
                terminalreporter.write_line(f"{report.nodeid}: {text}")


def pytest_unconfigure() -> None:
    """Stop the PostgreSQL server that tests of this process have used."""
    engines.close_server()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what `--quick` leaves out, and long runs of agents unless they are asked for."""
    if not config.getoption("all_agents"):
        removed = [item for item in items if item.get_closest_marker("agents")]
        items[:] = [item for item in items if not item.get_closest_marker("agents")]
        config.hook.pytest_deselected(items=removed)
    quick.pytest_collection_modifyitems(config, items)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run tests marked `anyio` on asyncio only."""
    return "asyncio"


@pytest.fixture(autouse=True)
def reads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Slow down the reads of all stores, in some runs."""
    if request.config.getoption("slow_reads"):
        slowed = slow_store.slow_reads()
    elif getattr(request, "param", "fast") == "slow":
        slowed = slow_store.slow_reads(count=slow_store.MAX_SLOW_READS)
    else:
        slowed = contextlib.nullcontext()
    with slowed:
        yield


_home_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of all home folders: pytest lists the parent of a temporary folder for each new one."""
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(autouse=True)
def home(homes: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a new home folder for each test, so that no test uses the ledger or the settings of the user."""
    folder = homes / str(next(_home_numbers))
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith(("XDG_", "CALLSLIP_"))]:
        if name not in ("CALLSLIP_LONG", "CALLSLIP_NODE_MODULES", "CALLSLIP_GOLDENS"):
            monkeypatch.delenv(name)
    from callslip.model.agent_env import AGENT_MARKS

    for name in AGENT_MARKS:  # The tests may be started by an agent.
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture(scope="session")
def engine() -> str:
    """Return the engine of a test. The shared tests have it as a parameter instead (`tests.support.engines`)."""
    return engines.SQLITE


@pytest.fixture
def new_db(engine: str, tmp_path: Path) -> Iterator[DatabaseFactory]:
    """Return a function that returns the URL of a new, empty ledger on the engine of the test."""
    with contextlib.ExitStack() as stack:
        numbers = itertools.count(1)

        def create() -> str:
            number = next(numbers)
            name = "ledger.db" if number == 1 else f"ledger-{number}.db"
            return stack.enter_context(engines.new_database(engine, tmp_path / name))

        yield create


@pytest.fixture
def db(new_db: DatabaseFactory) -> str:
    """Return the URL of an empty ledger on the engine of the test. Its SQLite file does not exist yet."""
    return new_db()


@pytest.fixture(scope="session")
def scale() -> int:
    """Return the factor for the length of fault and volume tests: 1, or 50 in `make chaos`."""
    return 50 if LONG else 1


@pytest.fixture(scope="session")
def prefix_step(pytestconfig: pytest.Config) -> int:
    """Return the step between the prefixes that a test tries: 1, or 5 with `--quick`."""
    return 5 if pytestconfig.getoption("quick") else 1


@pytest.fixture(scope="session")
def node() -> str:
    """Return the path of Node. Fail if Node or its packages are missing; `make test` installs both."""
    path = shutil.which("node")
    assert path, "no node on PATH and none in .cache/node; run `make test`"
    packages = os.environ["CALLSLIP_NODE_MODULES"]
    assert Path(packages).is_dir(), f"{packages} is missing; run `make test`"
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[None]:
    """Close the browser of `tests.support.browser.in_browser` after the last test."""
    from tests.support.browser import close_chromium

    yield
    close_chromium()


@pytest.fixture(scope="session")
def site(browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run `callslip serve` for all tests of the page; each test has its own sessions."""
    from tests.support.browser import serving

    with serving(tmp_path_factory.mktemp("site")) as server:
        yield server
