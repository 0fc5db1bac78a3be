"""The small project that the demo agent works on, and the environment of its commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PARSER = '''\
"""Parse durations such as "1h 30m"."""

SECONDS = {"s": 1, "m": 60, "h": 360}


def parse(text):
    """Return a duration in seconds."""
    return sum(int(part[:-1]) * SECONDS[part[-1]] for part in text.split())
'''
FIXED_PARSER = PARSER.replace("360}", "3600}")
TESTS = """\
import os
import sys
import time

from app.parser import parse

STEP_S = float(os.environ.get("STEP_S", "0"))
GREEN, RED, RESET = (os.environ.get(name, "") for name in ("GREEN", "RED", "RESET"))
CASES = {"45s": 45, "5m": 300, "2h": 7200}

failures = 0
for text, expected in CASES.items():
    time.sleep(STEP_S)
    actual = parse(text)
    if actual == expected:
        print(f"{GREEN}PASS{RESET} parse({text!r}) == {expected}", flush=True)
    else:
        failures += 1
        print(f"{RED}FAIL{RESET} parse({text!r}) == {expected}, got {actual}", flush=True)
print(f"{failures} of {len(CASES)} tests failed" if failures else f"{len(CASES)} tests passed")
sys.exit(failures > 0)
"""
DEPLOY = """# Usage: sh deploy.sh staging | health | log
case "$1" in
staging)
  for step in 'Pack app' 'Upload app' 'Restart app'; do
    sleep "${STEP_S:-0}"; echo "$GREEN✓$RESET $step"
  done ;;
health) echo 'GET https://staging.example/health'; sleep 60 ;;
log) seq -f 'request %g: POST /parse 200' 1 6000 ;;
esac
"""
FILES = {
    "app/__init__.py": "",
    "app/parser.py": PARSER,
    "tests/__init__.py": "",
    "tests/test_parser.py": TESTS,
    "deploy.sh": DEPLOY,
}
STEP_S = 0.35
COLORS = {"GREEN": "\033[32m", "RED": "\033[31m", "RESET": "\033[0m"}


def write_files(folder: Path) -> None:
    """Write the project's files to a folder, without the changes of an earlier run."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


def command_env(pace: float, *, color: bool) -> dict[str, str]:
    """Return the environment of commands: this Python as `python3`, the delay of slow steps, and colors."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "STEP_S": f"{STEP_S * pace:g}",
        **{name: escape if color else "" for name, escape in COLORS.items()},
        # Bytecode is compared by whole seconds: that of the parser before the fix could be loaded after it.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
