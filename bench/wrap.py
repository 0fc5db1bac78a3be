"""What `callslip wrap` costs a message: round trips over real pipes, with it and without, by turns.

The agent is `cat`, so that nothing but the pipes and the wrap is measured; the messages are chunks of text that are
decoded and recorded meanwhile. A round trip is two messages. `python bench/wrap.py` runs it by itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import say

TRIPS = 3000
RETRY_DELAY_S = 0.002
LARGE = 64 * 2**20


def message(number: int, size: int = 40) -> bytes:
    """A chunk of an agent's text, as one line."""
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": f"{number} " + "x" * size}}
    params = {"sessionId": "bench", "update": update}
    return json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}).encode() + b"\n"


class Peer:
    """A command that answers every line with itself."""

    def __init__(self, command: list[str]) -> None:
        begun = time.perf_counter()
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.trip(b"ready\n")
        self.started = time.perf_counter() - begun

    def trip(self, line: bytes) -> float:
        """Seconds from the first byte out to the last byte back."""
        assert self.process.stdin is not None and self.process.stdout is not None
        begun = time.perf_counter()
        self.process.stdin.write(line)
        left = len(line)
        while left:
            data = self.process.stdout.read(left)
            assert data, "the other side is gone"
            left -= len(data)
        return time.perf_counter() - begun

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def figures(seconds: list[float]) -> dict[str, float]:
    """Percentiles, in ms."""
    ordered = sorted(seconds)
    return {f"p{share}": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] * 1000 for share in (50, 99)}


def trips(direct: Peer, wrapped: Peer, pause: float, size: int = 40) -> tuple[dict[str, float], dict[str, float]]:
    """Round trips by turns, so that both meet the same noise."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(TRIPS):
        for peer, times in zip((direct, wrapped), taken, strict=True):
            times.append(peer.trip(message(number, size)))
            time.sleep(pause)
    return figures(taken[0]), figures(taken[1])


def bench_wrap() -> None:
    """Added time a message, added time to the start, and bytes a second."""
    print("wrap: between a client and `cat`, over pipes", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "callslip", "wrap", "--db", str(Path(folder) / "ledger.db"), "--", "cat"]
        direct, wrapped = Peer(["cat"]), Peer(command)
        for name, pause, size in (
            ("now and then", RETRY_DELAY_S, 40),
            ("one after the other", 0, 40),
            ("of 20 KB", 0, 20_000),
        ):
            plain, ours = trips(direct, wrapped, pause, size)
            added = {share: (ours[share] - plain[share]) / 2 for share in plain}
            figure = f"p50 {added['p50']:.3f}  p99 {added['p99']:.3f} ms"
            say(f"added to a message, {name}", figure, "under 1 ms")
        say(
            "until the first byte is back",
            f"{wrapped.started * 1000:.0f} ms",
            f"without: {direct.started * 1000:.0f} ms",
        )
        direct.close()
        wrapped.close()
        _throughput(command)


def _throughput(command: list[str]) -> None:
    """One long line through both, read as it comes."""
    for name, started in (("cat alone", ["cat"]), ("cat, wrapped", command)):
        say(f"a line of {LARGE // 2**20} MB, {name}", f"{LARGE / 2**20 / _drained(started):.0f} MB/s")


def _drained(command: list[str]) -> float:
    """How long a line takes to come out of a command."""
    line = f"head -c {LARGE} /dev/zero | tr '\\0' x"
    with subprocess.Popen(["sh", "-c", f'{line} | "$@"', "sh", *command], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        begun = time.perf_counter()
        left = LARGE
        while left:
            left -= len(process.stdout.read(min(left, 2**16)))
        taken = time.perf_counter() - begun
        assert not process.stdout.read()
        return taken


if __name__ == "__main__":
    bench_wrap()
