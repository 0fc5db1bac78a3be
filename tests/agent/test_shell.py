"""Shell commands: what comes back of them, and that nothing else is left (S0.6, S0.7)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.agent import output_stream, process
from callslip.agent.shell import MAX_COMMAND_CHARS, ShellResult, run_shell
from callslip.agent.supervisor import processes, wire
from callslip.agent.supervisor.output_limit import MAX_CHUNKS, Keep
from callslip.agent.transcript import Printed, Transcript
from callslip.errors import InvalidInputError
from tests.support.invariants import PROGRAMS, program

LIBC = 0b11 << 31  # signals 32 and 33, which the C library keeps to itself and lets nobody set
PYTHON = sys.executable
PROMPTLY = 25_000  # ms: what would hold a command up does so for much longer
MARK = re.compile(r"\n\[\.\.\. (\d+) bytes of (stdout|stderr) left out \.\.\.\]\n")


@pytest.fixture(params=[{}, {"use_uvloop": True}], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Commands are run on both event loops that people use."""
    return "asyncio", request.param


class Tagged:
    """Runs commands that can be told from all other processes by a word in their environment and arguments."""

    def __init__(self) -> None:
        self.tag = f"tag-{uuid.uuid4().hex}"
        self.env = {**os.environ, "SHELL_TEST": self.tag}

    async def run(self, command: str, **options: Any) -> ShellResult:
        return await run_shell(command.replace("TAG", self.tag), env=self.env, **options)

    def left(self) -> list[str]:
        """Every process that bears the tag, but the one that asks."""
        found: list[str] = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                try:
                    known = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
                    if self.tag.encode() in known:
                        found.append(f"{folder.name}: {(folder / 'cmdline').read_bytes()!r}")
                except OSError:
                    continue
        return found

    def gone_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while left := self.left():
            if time.monotonic() > until:
                raise AssertionError(left)
            time.sleep(0.01)
        return True


@pytest.fixture
def tagged() -> Iterator[Tagged]:
    """Whatever a test runs, nothing of it may be there when the test ends."""
    runs = Tagged()
    yield runs
    assert runs.left() == []


# How a command ends


@pytest.mark.anyio
@pytest.mark.parametrize("status", [0, 1, 3, 127, 255])
async def test_the_exit_status_is_the_shells(status: int) -> None:
    """S0.6: a status is a number, and says nothing of signals or time."""
    result = await run_shell(f"exit {status}")
    assert (result.exit_status, result.signal, result.timed_out, result.problem) == (status, None, False, "")


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGUSR1"])
async def test_a_shell_that_dies_of_a_signal_has_no_status(name: str) -> None:
    """S0.6: the signal is told by its name."""
    result = await run_shell(f"kill -{name[3:]} $$")
    assert (result.exit_status, result.signal, result.timed_out) == (None, name, False)


@pytest.mark.anyio
async def test_a_failure_keeps_what_was_printed() -> None:
    """S0.6: status, stdout and stderr all come back, each by itself."""
    result = await run_shell("echo fine; ls /does/not/exist; exit 9")
    assert (result.exit_status, result.stdout) == (9, "fine\n")
    assert "/does/not/exist" in result.stderr and "fine" not in result.stderr


@pytest.mark.anyio
async def test_a_command_may_begin_with_a_dash() -> None:
    """It is never taken for an option of the shell."""
    assert (await run_shell("-e; echo here")).stdout == "here\n"


# What it is given


@pytest.mark.anyio
async def test_there_is_nothing_to_read_and_nobody_to_ask() -> None:
    """Input is empty, and there is no terminal at which a password could be asked for."""
    assert (await run_shell("cat; wc -c")).stdout.strip() == "0"
    assert (await run_shell("exec 3</dev/tty")).exit_status != 0


@pytest.mark.anyio
async def test_the_environment_is_ours_or_the_one_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """A given environment replaces ours; bytes that are no text survive."""
    monkeypatch.setenv("SHELL_TEST", "ours")
    assert (await run_shell('echo "$SHELL_TEST"')).stdout == "ours\n"
    given = {"A": "b=c\n", "B": os.fsdecode(b"\xff")}
    result = await run_shell('/usr/bin/env; printf %s "$B" | od -An -tx1', env=given)
    assert "A=b=c\n" in result.stdout and "ff" in result.stdout and "SHELL_TEST" not in result.stdout


@pytest.mark.anyio
async def test_the_folder_is_ours_or_the_one_given(tmp_path: Path) -> None:
    """A folder may be named by text or path."""
    assert (await run_shell("pwd")).stdout.strip() == os.getcwd()
    for folder in (tmp_path, str(tmp_path)):
        assert (await run_shell("pwd -P", cwd=folder)).stdout.strip() == str(tmp_path.resolve())


@pytest.mark.anyio
async def test_no_open_file_and_no_signal_setting_of_ours_reaches_the_command() -> None:
    """Only the three standard streams are open, and no signal is ignored or blocked, whatever the host does."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        result = await run_shell("ls /proc/self/fd; grep -E 'Sig(Ign|Blk)' /proc/self/status")
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    *files, ignored, blocked = result.stdout.splitlines()
    assert files == ["0", "1", "2", "3"]  # The last is how `ls` reads the folder.
    assert {int(line.split()[1], 16) & ~LIBC for line in (ignored, blocked)} == {0}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("command", "options", "field"),
    [
        ("echo \0", {}, "command"),
        ("echo \ud800", {}, "command"),
        (": " + "x" * MAX_COMMAND_CHARS, {}, "command"),
        (": " + "é" * (MAX_COMMAND_CHARS // 2), {}, "command"),
        ("true", {"cwd": "/does/not/exist"}, "cwd"),
        ("true", {"cwd": "/etc/passwd"}, "cwd"),
        ("true", {"cwd": "a\0b"}, "cwd"),
        ("true", {"env": {"A": "\0"}}, "env"),
        ("true", {"env": {"A=B": "c"}}, "env"),
        ("true", {"env": {"": "c"}}, "env"),
        ("true", {"env": {"A": "x" * 10**6}}, "env"),
        ("true", {"timeout": 0}, "timeout"),
        ("true", {"timeout": float("nan")}, "timeout"),
        ("true", {"grace": -1}, "grace"),
        ("true", {"cap": -1}, "cap"),
    ],
)
async def test_what_cannot_be_run_is_refused_by_name(command: str, options: dict[str, Any], field: str) -> None:
    """The field at fault is named, and the message says what is wrong with it."""
    with pytest.raises(InvalidInputError) as refusal:
        await run_shell(command, **options)
    assert refusal.value.field == field and len(str(refusal.value)) < 200


@pytest.mark.anyio
async def test_the_longest_command_runs() -> None:
    """The limit is the system's own: one byte less than what is refused works."""
    assert (await run_shell("echo here #".ljust(MAX_COMMAND_CHARS, "x"))).stdout == "here\n"


# What it printed


@pytest.mark.anyio
async def test_both_streams_are_shown_in_the_order_of_arrival() -> None:
    """S0.6: apart and together."""
    lines = "for i in 1 2 3; do echo o$i; sleep 0.05; echo e$i >&2; sleep 0.05; done"
    result = await run_shell(lines)
    assert result.output == "".join(f"o{i}\ne{i}\n" for i in range(1, 4))
    assert result.stdout == "".join(f"o{i}\n" for i in range(1, 4))
    assert result.stderr == "".join(f"e{i}\n" for i in range(1, 4))
    assert (result.stdout_size, result.stderr_size, result.truncated) == (9, 9, False)


@pytest.mark.anyio
async def test_the_stream_that_spoke_first_comes_first() -> None:
    """Two lines at the same moment keep their order too."""
    for _ in range(5):
        assert (await run_shell("echo first; echo second >&2")).output == "first\nsecond\n"
        assert (await run_shell("echo first >&2; echo second")).output == "first\nsecond\n"


@pytest.mark.anyio
async def test_characters_survive_being_split_and_bad_bytes_are_replaced() -> None:
    """A character may come in two writes, with the other stream between them."""
    split = r"printf '\342\202'; sleep 0.1; echo x >&2; sleep 0.1; printf '\254 \377!'"
    heard: list[tuple[str, str]] = []

    async def progress(stream: str, text: str) -> None:
        heard.append((stream, text))

    result = await run_shell(split, progress=progress)
    assert (result.stdout, result.stderr, result.output) == ("€ \ufffd!", "x\n", "x\n€ \ufffd!")
    assert "".join(text for stream, text in heard if stream == "stdout") == "€ \ufffd!"


@pytest.mark.anyio
async def test_too_much_output_is_read_on_but_not_kept() -> None:
    """S0.6: the command goes on to its end; of what it printed the beginning and the end are there, and what is not."""
    result = await run_shell("seq 1 300000; echo short >&2; exit 7", cap=1000)
    assert (result.exit_status, result.stderr, result.stderr_cut) == (7, "short\n", 0)
    assert result.stdout.startswith("1\n2\n3\n") and result.stdout.endswith("\n299999\n300000\n")
    (mark,) = MARK.finditer(result.stdout)
    assert int(mark[1]) == result.stdout_cut == result.stdout_size - 1000
    assert result.stdout_size == sum(len(f"{n}\n") for n in range(1, 300001)) and result.truncated
    assert result.output == result.stdout + "short\n"


@pytest.mark.anyio
async def test_a_cap_of_nothing_keeps_nothing() -> None:
    """The sizes are told all the same."""
    result = await run_shell("echo hello; echo you >&2", cap=0)
    assert (result.stdout_size, result.stdout_cut, result.stderr_size, result.stderr_cut) == (6, 6, 4, 4)
    assert MARK.sub("", result.output) == ""


Writes = list[tuple[int, bytes]]


def kept(writes: Writes, cap: int, pieces: int = 5) -> tuple[str, dict[int, Printed]]:
    """What becomes of writes to the two streams, on the way that the supervisor and its host send them."""
    keeps = {1: Keep(cap - cap // 2, cap // 2), 2: Keep(cap - cap // 2, cap // 2)}
    sent, position = bytearray(), 0
    for stream, data in writes:
        live = keeps[stream].take(position, data)
        sent += wire.frame(wire.LIVE[stream], position, live)
        position += len(data)
    for stream, keep in keeps.items():
        for where, data in keep.rest():
            sent += wire.frame(wire.LAST[stream], where, data)
    transcript, inbox = Transcript(), bytearray()
    for start in range(0, len(sent), pieces):
        inbox += sent[start : start + pieces]
        for kind, where, data in wire.frames(inbox):
            stream, last = process.STREAMS[kind]
            transcript.add(stream, where, data, bool(last))
    return transcript.printed({stream: keep.total for stream, keep in keeps.items()})


WRITES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=20)), max_size=30)


@given(WRITES, st.integers(1, 100))
def test_what_fits_is_kept_whole(writes: Writes, pieces: int) -> None:
    """S0.6: with room for all, each stream is its bytes decoded, however they came."""
    _, streams = kept(writes, 2 * 30 * 20, pieces)
    for stream, printed in streams.items():
        data = b"".join(data for number, data in writes if number == stream)
        assert printed == Printed(data.decode("utf-8", "replace"), len(data), 0)


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.text("abc\n", min_size=1)), max_size=30))
def test_what_fits_is_kept_in_order(writes: list[tuple[int, str]]) -> None:
    """S0.6: with room for all, the text of both is what was written."""
    output, _ = kept([(stream, text.encode()) for stream, text in writes], 10**6)
    assert output == "".join(text for _, text in writes)


@given(st.text("aé€😀", min_size=1, max_size=200), st.lists(st.integers(1, 9)), st.integers(0, 60))
def test_a_gap_breaks_no_character(text: str, sizes: list[int], cap: int) -> None:
    """S0.6: beginning and end are the text's own, in whole characters, and the bytes add up."""
    data = text.encode()
    cuts = [0, *(sum(sizes[: n + 1]) for n in range(len(sizes))), len(data)]
    writes = [(1, data[start:end]) for start, end in pairwise(cuts) if data[start:end]]
    _, streams = kept(writes, cap)
    printed = streams[1]
    beginning, *rest = MARK.split(printed.text)
    assert bool(rest) == (len(data) > cap) and "\ufffd" not in printed.text
    end = rest[-1] if rest else ""
    assert text.startswith(beginning) and text.endswith(end)
    assert len((beginning + end).encode()) + printed.cut == len(data) == printed.size
    assert not rest or (int(rest[0]) == printed.cut and len((beginning + end).encode()) <= cap)


@given(WRITES, st.integers(0, 100))
def test_a_flood_of_one_stream_costs_the_other_nothing(writes: Writes, cap: int) -> None:
    """Each stream has its own room, and what is kept never exceeds it."""
    for stream, printed in kept(writes, cap)[1].items():
        alone = kept([write for write in writes if write[0] == stream], cap)[1][stream]
        assert printed == alone and printed.size - printed.cut <= cap


def test_streams_that_take_turns_for_ever_have_a_limit_too() -> None:
    """Order costs memory: of bytes that come one by one from both streams only so many runs are kept."""
    writes = [(1 + number % 2, b"x") for number in range(6 * MAX_CHUNKS)]
    output, streams = kept(writes, 10**6, 10**6)
    assert {printed.size - printed.cut for printed in streams.values()} == {2 * MAX_CHUNKS}
    assert len(MARK.sub("", output)) == 4 * MAX_CHUNKS


# Live


@pytest.mark.anyio
async def test_output_is_told_while_the_command_runs() -> None:
    """What is printed can be seen before the command ends, in order."""
    heard: list[tuple[str, str, float]] = []

    async def progress(stream: str, text: str) -> None:
        heard.append((stream, text, time.monotonic()))

    await run_shell("echo a; sleep 0.3; echo b >&2; sleep 0.3; echo c", progress=progress)
    assert [(stream, text) for stream, text, _ in heard] == [("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n")]
    assert time.monotonic() - heard[0][2] > 0.5


@pytest.mark.anyio
async def test_a_flood_is_told_in_few_pieces_and_then_no_more() -> None:
    """The beginning is told at a bearable pace, then one note, and nothing after it."""
    heard: list[str] = []

    async def progress(stream: str, text: str) -> None:
        heard.append(text)

    result = await run_shell("seq 1 1000000", cap=100_000, progress=progress)
    assert len(heard) <= 2 + result.duration_ms / 1000 / output_stream.INTERVAL
    told = "".join(heard)
    assert told.count(output_stream.MORE) == 1 and told.endswith(output_stream.MORE)
    assert result.stdout.startswith(told.removesuffix(output_stream.MORE)) and len(told) == 50_000 + len(
        output_stream.MORE
    )


@pytest.mark.anyio
async def test_two_streams_in_turn_are_told_in_few_pieces() -> None:
    """Many changes between two tellings become one piece for each stream."""
    heard: list[tuple[str, str]] = []

    async def progress(stream: str, text: str) -> None:
        heard.append((stream, text))
        await asyncio.sleep(0.2)

    lines = "for i in $(seq 200); do echo o; echo e >&2; /bin/true; done"
    result = await run_shell(lines, progress=progress)
    assert len(heard) <= 2 + 8 * (2 + result.duration_ms / 200)
    assert "".join(text for stream, text in heard if stream == "stdout") == "o\n" * 200
    assert "".join(text for stream, text in heard if stream == "stderr") == "e\n" * 200


@pytest.mark.anyio
async def test_a_slow_reader_delays_neither_command_nor_timeout(tagged: Tagged) -> None:
    """The command is over in time although its reader is not; the reader gets the rest when it is ready."""
    heard: list[str] = []
    alone: list[bool] = []

    async def progress(stream: str, text: str) -> None:
        heard.append(text)
        await asyncio.sleep(1.5)
        alone.append(not tagged.left())

    result = await tagged.run("echo a; sleep 0.1; echo b; sleep 1000", timeout=1, progress=progress)
    assert result.timed_out and result.stdout == "".join(heard) == "a\nb\n" and alone[0]


@pytest.mark.anyio
async def test_a_reader_that_fails_ends_the_command(tagged: Tagged) -> None:
    """Its error is raised when nothing is left of the command."""

    async def progress(stream: str, text: str) -> None:
        raise KeyError(text)

    with pytest.raises(KeyError, match="hello"):
        await tagged.run("echo hello; setsid sleep 1000 & sleep 1000", timeout=None, progress=progress)
    assert tagged.left() == []


# Nothing is left

WAYS_TO_STAY = {
    "background": "sleep 1000 &",
    "no hangup": "nohup sleep 1000 >/dev/null 2>&1 &",
    "new session": "setsid sleep 1000 &",
    "double fork": "(setsid sh -c 'sleep 1000 & sleep 1000 &' &)",
    "no output": "setsid sleep 1000 >/dev/null 2>&1 </dev/null &",
    "no environment": "env -i setsid sh -c ': TAG; sleep 1000; :' &",
    "deaf": "(trap '' TERM HUP INT; setsid sh -c 'while :; do sleep 1000; done' &)",
    "stopped": "sh -c 'kill -STOP $$; sleep 1000' &",
    "flooding": "setsid yes & yes >&2 &",
    "many": "for i in 1 2 3 4 5 6 7 8 9; do (sleep 1000 & setsid sleep 1000 &) & done",
    "other program": f"{PYTHON} -c 'import os, time; os.fork(); os.setpgid(0, 0); os.fork(); time.sleep(1000)' &",
    "threads": f"{PYTHON} -c 'import subprocess as s, threading as t\n"
    'for _ in range(3): t.Thread(target=s.run, args=(["sleep", "1000"],)).start()\' &',
}


@pytest.mark.anyio
@pytest.mark.parametrize("way", WAYS_TO_STAY)
async def test_nothing_outlives_the_shell(way: str, tagged: Tagged) -> None:
    """S0.7: the shell ends by itself, and what it started in any way ends with it; open output holds up nobody."""
    result = await tagged.run(f"{WAYS_TO_STAY[way]}\n sleep 0.1; echo done; exit 4", grace=0.1)
    assert tagged.left() == []
    assert (result.exit_status, result.timed_out, result.problem) == (4, False, "")
    assert ("done\n" in result.stdout or result.truncated) and result.duration_ms < PROMPTLY


@pytest.mark.anyio
@pytest.mark.parametrize("way", WAYS_TO_STAY)
async def test_nothing_outlives_a_timeout(way: str, tagged: Tagged) -> None:
    """S0.7: when the time is over all of it ends, and what was printed before is kept."""
    result = await tagged.run(f"echo begun; {WAYS_TO_STAY[way]}\n sleep 1000; echo no", timeout=0.6, grace=0.1)
    assert tagged.left() == []
    assert (result.exit_status, result.timed_out, result.problem) == (None, True, "")
    assert result.stdout.startswith("begun\n") and "no" not in result.stdout and result.duration_ms < PROMPTLY


@pytest.mark.anyio
async def test_who_is_asked_to_end_may_say_a_last_word(tagged: Tagged) -> None:
    """SIGTERM comes first: a command that heeds it can tidy up, and its status counts."""
    command = "trap 'echo bye; exit 3' TERM; echo ready; sleep 1000 & wait"
    result = await tagged.run(command, timeout=2, grace=20)
    assert (result.exit_status, result.timed_out, result.stdout) == (3, True, "ready\nbye\n")
    assert result.duration_ms < PROMPTLY
    stopped = "sh -c 'trap \"echo bye; exit\" TERM; kill -STOP $$; :' & "
    stopped += "until grep -q '^State:.T' /proc/$!/status; do sleep 0.02; done"
    assert (await tagged.run(stopped, grace=20)).stdout == "bye\n"


@pytest.mark.anyio
async def test_who_does_not_listen_is_killed(tagged: Tagged) -> None:
    """After the grace there is no more asking; with no grace there is none at all."""
    deaf = "trap 'echo asked' TERM; while :; do sleep 0.02; done"
    asked = await tagged.run(deaf, timeout=0.6, grace=0.2)
    assert (asked.signal, asked.timed_out, "asked" in asked.stdout) == ("SIGKILL", True, True)
    assert asked.duration_ms >= 800
    assert (await tagged.run(deaf, timeout=0.2, grace=0)).stdout == ""


@pytest.mark.anyio
async def test_a_command_that_ended_in_time_did_not_time_out(tagged: Tagged) -> None:
    """The time may run out while its leftovers are being ended; its own end counts."""
    command = f"{WAYS_TO_STAY['deaf']}\n sleep 0.05; exit 5"
    result = await tagged.run(command, timeout=0.8, grace=1.2)
    assert (result.exit_status, result.timed_out) == (5, False) and result.duration_ms > 1200


@pytest.mark.anyio
async def test_who_forks_for_ever_is_caught(tagged: Tagged) -> None:
    """S0.7: neither a storm of new processes nor one that is another process every moment gets away."""
    chain = f"{PYTHON} {PROGRAMS / 'runaway.py'} 60"
    for command in (f"{chain} & {chain} & sleep 0.3", "while :; do setsid sleep 1000 & sleep 0.002; done"):
        result = await tagged.run(command, timeout=0.5, grace=0)
        assert tagged.left() == [] and result.problem == ""


@pytest.mark.anyio
@pytest.mark.chaos
async def test_a_hundred_wild_commands_leave_nobody(tagged: Tagged, scale: int) -> None:
    """S0.7: forking, leaving, flooding and deaf ones, ended by themselves, by time or by cancelling, four at a time."""
    wild = "\n".join(WAYS_TO_STAY[way] for way in ("double fork", "deaf", "flooding", "no environment", "stopped"))
    ends = ("exit 0", "sleep 1000", "kill -9 $$", "kill -9 $PPID")

    async def one(number: int) -> ShellResult:
        command = f"{wild}\n sleep 0.05; {ends[number % 4]}"
        async with asyncio.timeout(0.3 if number % 5 == 0 else 60):
            return await tagged.run(command, timeout=0.2, grace=0.02 * (number % 3), cap=10_000)

    outcomes: list[ShellResult | BaseException] = []
    for start in range(0, 12 if scale == 1 else 100, 4):
        numbers = range(start, start + 4)
        outcomes += await asyncio.gather(*map(one, numbers), return_exceptions=True)
        assert tagged.left() == []
    results = [outcome for outcome in outcomes if isinstance(outcome, ShellResult)]
    assert {type(outcome) for outcome in outcomes} <= {ShellResult, TimeoutError}
    assert len(results) >= len(outcomes) // 2 and any(result.truncated for result in results)


# Cancelling


@pytest.mark.anyio
async def test_cancelling_ends_everything_first(tagged: Tagged) -> None:
    """When the cancelled caller goes on, nothing is left, however often and impatiently it was cancelled."""
    for times in (1, 3):
        task = asyncio.create_task(tagged.run("setsid sleep 1000 & trap '' TERM; sleep 1000; sleep 1000", timeout=None))
        async with asyncio.timeout(10):
            while len(tagged.left()) < 3:
                await asyncio.sleep(0.01)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0.05)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert tagged.left() == []


@pytest.mark.anyio
async def test_cancelling_at_any_moment_leaves_nothing(tagged: Tagged) -> None:
    """Before the start, while it starts, and at once after it."""
    for delay in (0, 0, 0.005, 0.01, 0.02, 0.03, 0.04):
        task = asyncio.create_task(tagged.run("sleep 1000 & setsid sleep 1000", timeout=None))
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert tagged.left() == []


@pytest.mark.anyio
async def test_other_peoples_timeouts_work(tagged: Tagged) -> None:
    """asyncio's and anyio's own time limits end the command and say what they always say."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await tagged.run("sleep 1000", timeout=None)
    assert tagged.left() == []
    with anyio.move_on_after(0.2) as scope:
        await tagged.run("trap '' TERM; sleep 1000; sleep 1000", timeout=None, grace=0.1)
    assert scope.cancelled_caught and tagged.left() == []


@pytest.mark.anyio
async def test_a_command_that_is_given_up_early_is_not_started(tagged: Tagged, tmp_path: Path) -> None:
    """Whoever gives up before the supervisor is up finds that nothing was done."""
    result = await tagged.run(f"touch {tmp_path / 'made'}", timeout=1e-6)
    assert result.timed_out and "before the command could be started" in result.problem
    assert not (tmp_path / "made").exists()


# Violence


@pytest.mark.anyio
async def test_a_command_that_kills_its_parent_gains_nothing(tagged: Tagged) -> None:
    """S0.7: the parent that a command sees is not the one that watches it."""
    result = await tagged.run("setsid sleep 1000 & echo x; sleep 0.1; kill -9 $PPID; sleep 1000")
    assert tagged.left() == [] and result.stdout == "x\n"
    assert result.exit_status is None and "killed its own parent" in result.problem
    stopped = await tagged.run("setsid sleep 1000 & kill -STOP $PPID; sleep 0.1", timeout=0.5)
    assert tagged.left() == [] and stopped.problem == ""


@pytest.mark.anyio
async def test_a_supervisor_that_is_killed_takes_everything_with_it(tagged: Tagged) -> None:
    """S0.7: what was printed is kept, the result says that the end is not known, and nothing runs on."""
    grandparent = "$(cut -d' ' -f4 /proc/$PPID/stat)"
    command = f"echo x; setsid sleep 1000 & sleep 0.1; kill -9 {grandparent}; sleep 1000"
    result = await tagged.run(command, timeout=10)
    assert (result.exit_status, result.signal, result.stdout) == (None, None, "x\n")
    assert "was killed" in result.problem
    assert result.duration_ms < PROMPTLY and tagged.left() == []


@pytest.mark.anyio
async def test_a_supervisor_that_was_stopped_is_not_waited_for(tagged: Tagged, monkeypatch: pytest.MonkeyPatch) -> None:
    """S0.7: one that hears nothing any more is killed in the end, and everything with it."""
    monkeypatch.setattr(process, "KILL_TIMEOUT_S", 0.2)
    command = "setsid sleep 1000 & kill -STOP $(cut -d' ' -f4 /proc/$PPID/stat); sleep 1000"
    result = await tagged.run(command, timeout=1, grace=0.1)
    assert result.timed_out and "was killed" in result.problem and tagged.left() == []


@pytest.mark.anyio
async def test_a_supervisor_that_is_asked_to_end_ends_the_command(tagged: Tagged) -> None:
    """`pkill python` in a command is heard by its supervisor, which tidies up."""
    result = await tagged.run("setsid sleep 1000 & kill $(ps -o ppid= -p $PPID); sleep 1000", timeout=10)
    assert (result.signal, result.timed_out, result.problem) == ("SIGTERM", False, "") and tagged.left() == []


def hosted(tagged: Tagged, command: str, *options: str) -> subprocess.Popen[str]:
    """A process of its own that runs a command, which has printed its first line. Only the command bears the tag."""
    host = program("shell_host", *options, stdin=subprocess.PIPE, start_new_session=True)
    assert host.stdin is not None and host.stdout is not None
    host.stdin.write(f"export SHELL_TEST={tagged.tag}\n{command}")
    host.stdin.close()
    host.stdin = None
    assert host.stdout.readline() == "ready\n"
    return host


@pytest.mark.parametrize("fork", ["", "fork"])
def test_nothing_outlives_a_host_that_is_killed(tagged: Tagged, fork: str) -> None:
    """S0.7: `kill -9` of the host ends the command, also if a fork of the host still has its files open."""
    command = f"{WAYS_TO_STAY['deaf']}\n{WAYS_TO_STAY['double fork']}\necho ready; sleep 1000"
    host = hosted(tagged, command, fork)
    until = time.monotonic() + 10
    while len(tagged.left()) < 5:
        assert time.monotonic() < until
    host.kill()
    try:
        assert tagged.gone_within(10)
    finally:
        os.killpg(host.pid, signal.SIGKILL)
        host.communicate()


def test_an_interrupt_at_the_terminal_ends_the_command_before_the_host(tagged: Tagged) -> None:
    """Ctrl-C reaches the host alone; it ends the command, then itself."""
    host = hosted(tagged, f"{WAYS_TO_STAY['double fork']}\necho ready; sleep 1000")
    os.killpg(host.pid, signal.SIGINT)
    _, errors = host.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors and tagged.left() == []


# Other systems


@pytest.fixture(params=["plain"])
def worse(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor that has not all it needs."""
    program = [PYTHON, "-I", "-S", str(PROGRAMS / "worse_supervisor.py")]
    monkeypatch.setattr(process, "SUPERVISOR", [*program, str(Path(process.__file__).parent), request.param])


@pytest.mark.anyio
@pytest.mark.usefixtures("worse")
@pytest.mark.parametrize("worse", ["powerless"], indirect=True)
async def test_what_cannot_be_ended_is_named(tagged: Tagged) -> None:
    """S0.7: a process that is not ours to end does not hold up the result, which says which one it is."""
    result = await tagged.run("sleep 1.5 & echo $!", grace=0.1)
    assert result.exit_status == 0 and result.problem.endswith(f"could not be ended: {result.stdout.strip()}")
    assert tagged.gone_within(10)


@pytest.mark.anyio
@pytest.mark.usefixtures("worse")
async def test_without_adoption_the_process_group_is_ended(tagged: Tagged) -> None:
    """Elsewhere than on Linux output, status and time limits work as well, and the command's group is ended."""
    result = await tagged.run("echo a; echo b >&2; sleep 1000 & (sleep 1000 &); exit 6", grace=0.1)
    assert (result.exit_status, result.stdout, result.stderr, result.problem) == (6, "a\n", "b\n", "")
    assert tagged.gone_within(1) and result.duration_ms < PROMPTLY
    result = await tagged.run("(trap '' TERM; sleep 1000 &); yes & exec >&- 2>&-; sleep 1000", timeout=0.6, cap=100)
    assert (result.signal, result.timed_out, result.stdout_cut > 10_000) == ("SIGTERM", True, True)
    assert tagged.gone_within(1)


@pytest.mark.anyio
@pytest.mark.usefixtures("worse")
async def test_without_adoption_who_leaves_the_group_holds_nobody_up(tagged: Tagged) -> None:
    """One that left is missed, as documented, but the command is over all the same."""
    result = await tagged.run("setsid sleep 2.5 & echo a; sleep 0.1")
    assert (result.exit_status, result.stdout) == (0, "a\n") and result.duration_ms < 2000
    assert len(tagged.left()) == 1 and tagged.gone_within(10)


def test_children_are_found_in_two_ways() -> None:
    """The kernel's lists and a look at all processes say the same, at every depth and from every thread."""
    tree = "sleep 1000 & sh -c 'sleep 1000 & sleep 1000' & sleep 1000"
    with subprocess.Popen(["/bin/sh", "-c", tree], start_new_session=True) as root:
        try:
            until = time.monotonic() + 10
            while len(found := processes.descendants(root.pid, processes.listed_children)) < 5:
                assert time.monotonic() < until
            assert sorted(found) == sorted(processes.descendants(root.pid, processes.scanned_children()))
            assert processes.groups_of(found) == {root.pid} and processes.exists(root.pid)
            assert not processes.exists(0) and processes.groups_of([os.getpid()]) == set()
        finally:
            processes.send({root.pid}, signal.SIGKILL)


def test_it_works_in_any_thread(tagged: Tagged) -> None:
    """A loop in another thread than the main one runs, times out and cancels commands as well."""
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(asyncio.run, tagged.run("echo x; setsid sleep 1000 & sleep 1000", timeout=0.6)).result()
    assert (result.timed_out, result.stdout) == (True, "x\n") and tagged.left() == []


# What it costs the host


def open_things() -> tuple[list[str], list[int]]:
    """The open files and the children of this process."""
    files = sorted(os.listdir("/proc/self/fd"), key=int)
    return files, processes.listed_children(os.getpid())


@pytest.mark.anyio
async def test_no_open_file_and_no_zombie_is_left_in_the_host(tagged: Tagged) -> None:
    """However commands end, the host has afterwards what it had before."""
    await run_shell("true")
    before = open_things()
    for command, options in (
        ("echo x", {}),
        ("sleep 1000 &", {}),
        ("sleep 1000", {"timeout": 0.1}),
        ("x", {"cwd": "?"}),
    ):
        try:
            await tagged.run(command, **options)
        except InvalidInputError:
            pass
    task = asyncio.create_task(tagged.run("sleep 1000"))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert open_things() == before


@pytest.mark.anyio
async def test_a_host_out_of_open_files_is_told_and_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor that cannot be started is an error, and leaves no open file."""
    monkeypatch.setattr(process, "SUPERVISOR", ["/does/not/exist"])
    before = open_things()
    with pytest.raises(FileNotFoundError):
        await run_shell("true")
    assert open_things() == before


@pytest.mark.anyio
async def test_many_commands_run_at_once(tagged: Tagged) -> None:
    """They do not wait for one another, nor mix their output."""
    began = time.monotonic()
    results = await asyncio.gather(*(tagged.run(f"sleep 0.5; echo {n}; echo {n} >&2") for n in range(12)))
    assert [(result.stdout, result.stderr) for result in results] == [(f"{n}\n", f"{n}\n") for n in range(12)]
    assert time.monotonic() - began < 6, "one after the other they take as long as that"


@pytest.mark.anyio
async def test_the_loop_goes_on_while_a_command_floods() -> None:
    """Output that is not kept never reaches the host."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    result = await run_shell("yes", timeout=1)
    ticking.cancel()
    assert result.stdout_size > 10 * 2**20 and ticks > 20


@pytest.mark.chaos
def test_memory_stays_within_the_cap_whatever_is_printed(scale: int) -> None:
    """S0.7: hundreds of megabytes (1 GB under chaos) cost host and supervisor a few times the cap."""
    size = 200 * 2**20 if scale == 1 else 2**30
    out, errors = program("shell_memory", f"head -c {size} /dev/zero", 2**20).communicate(timeout=300)
    assert errors == ""
    told = json.loads(out)
    assert (told["size"], told["cut"]) == (size, size - 2**20)
    assert told["grown"] < 16 and told["supervisor"] < 32
    assert told["progress"] <= 2 + told["seconds"] / output_stream.INTERVAL
