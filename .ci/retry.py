"""Run a command whose last step is `make test`, and run the tests that fail once more, one at a time.

Usage: retry.py PYTHON COMMAND..., in the folder that has pytest's cache in .cache/pytest. PYTHON has pytest.

A test that passes the second time is flaky: it is named, and the run passes. If the command fails for any other reason
than failed tests, nothing runs again.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

LAST_FAILED = Path(".cache/pytest/v/cache/lastfailed")
CLOSING = re.compile(r"^(?:=+ )?(\d+ \w+(?:, \d+ \w+)*) in ([\d.]+)s\b", re.MULTILINE)
# `make` always exits with 2. Its message has pytest's own status: 1 if all tests ran and some failed.
TESTS_FAILED = re.compile(r"^make(?:\[\d+\])?: \*\*\* \[(?:.*: )?test\] \S+ 1$", re.MULTILINE)
BAD = ("failed", "error", "errors")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
WORKER_CRASHED = re.compile(r"^worker '\w+' crashed while running", re.MULTILINE)
ONE_AT_A_TIME = ["-m", "pytest", "-p", "no:xdist", "--last-failed", "--last-failed-no-failures", "none"]


def run(command: list[str]) -> tuple[int, str]:
    """Run a command, show its output, and return its status and its output."""
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in process.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
            lines.append(COLOUR.sub("", line.decode("utf-8", "replace")))
    return process.returncode, "".join(lines)


def failed_tests() -> list[str]:
    """Return the ids of the failed tests, and the paths of files that could not be collected."""
    return sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []


def counts(output: str) -> tuple[Counter[str], float]:
    """Return what pytest's last closing line counts, and its seconds."""
    found = CLOSING.findall(output)
    if not found:
        return Counter(), 0.0
    words = [part.split() for part in found[-1][0].split(", ")]
    return Counter({word: int(number) for number, word in words}), float(found[-1][1])


def closing_line(count: Counter[str], seconds: float) -> str:
    """Return a line as pytest prints it."""
    return ", ".join(f"{number} {word}" for word, number in sorted(count.items()) if number) + f" in {seconds:.2f}s"


def main(python: str, *command: str) -> int:
    """Run the command, and the failed tests again if only tests failed."""
    LAST_FAILED.unlink(missing_ok=True)
    status, output = run(list(command))
    if status == 0:
        return 0
    count, seconds = counts(output)
    failed = failed_tests()
    only_tests = all("::" in name for name in failed) and not WORKER_CRASHED.search(output)
    if not (failed and only_tests and TESTS_FAILED.search(output)):
        if any(count[word] for word in BAD):
            print(closing_line(count, seconds))
        return status
    print(f"\nRunning the failed tests once more, one at a time: {len(failed)}", flush=True)
    status, output = run([python, *ONE_AT_A_TIME])
    again, more_seconds = counts(output)
    del again["deselected"]  # The rest of the files with failed tests.
    still_failed = failed_tests()
    flaky = [name for name in failed if name not in still_failed]
    if flaky:
        print("\nFlaky tests (failed once, passed alone):", *flaky, sep="\n  ")
    if again:  # Else pytest itself ended before its time, and what failed has not passed.
        for word in BAD:
            del count[word]
    print(closing_line(count + again + Counter(rerun=len(failed)), seconds + more_seconds))
    return status or int(again["passed"] != len(failed))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
