"""What every test file may rely on: Hypothesis profiles, asyncio alone, Node, a browser, and a home of its own."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from tests.support.browser import Server

LONG = os.environ.get("CALLSLIP_LONG", "") not in ("", "0")
EXAMPLES = 40

# What changes nothing must not fail: chance has its place in `make chaos`.
settings.register_profile(
    "short",
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("long", settings.get_profile("short"), max_examples=15 * EXAMPLES, derandomize=False)
settings.load_profile("long" if LONG else "short")

# Where `make` puts what the JavaScript tests run on; plain `pytest` finds it too.
os.environ["PATH"] = os.pathsep.join([str(ROOT / ".cache" / "node"), os.environ.get("PATH", os.defpath)])
os.environ.setdefault("CALLSLIP_NODE_MODULES", str(ROOT / ".cache" / "npm" / "node_modules"))

# A shell lets what it runs in the background ignore this, and the processes of tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Tests marked `anyio` run on asyncio, once."""
    return "asyncio"


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new home for each test: no test reads or writes the ledger or the settings of whoever runs it."""
    folder = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith(("XDG_", "CALLSLIP_"))]:
        if name not in ("CALLSLIP_LONG", "CALLSLIP_NODE_MODULES", "CALLSLIP_GOLDENS"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def db(tmp_path: Path) -> str:
    """The URL of a SQLite ledger that does not exist yet."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture(scope="session")
def scale() -> int:
    """How many times longer than usual a fault or volume test goes on: 1, or 50 under `make chaos`."""
    return 50 if LONG else 1


@pytest.fixture(scope="session")
def node() -> str:
    """The path of Node. Without it and its packages the JavaScript tests fail: `make test` installs both."""
    found = shutil.which("node")
    assert found, "no node on PATH and none in .cache/node; run `make test`"
    packages = os.environ["CALLSLIP_NODE_MODULES"]
    assert Path(packages).is_dir(), f"{packages} is missing; run `make test`"
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[None]:
    """What `tests.support.browser.in_browser` asks for, so that the browser is closed after the last test."""
    from tests.support.browser import close_chromium

    yield
    close_chromium()


@pytest.fixture(scope="session")
def site(browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`callslip serve`, a real process for all tests of the page: each has sessions of its own there."""
    from tests.support.browser import serving

    with serving(tmp_path_factory.mktemp("site")) as server:
        yield server
