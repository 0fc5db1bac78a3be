"""Test shell commands: their results, and that no process of a command is left (S0.6, S0.7)."""

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
from callslip.agent.supervisor.output_limit import MAX_CHUNKS, OutputLimit
from callslip.agent.transcript import StreamOutput, Transcript
from callslip.errors import InvalidInputError
from tests.support.invariants import PROGRAMS, start_program

LIBC_SIGNALS = 0b11 << 31  # Signals 32 and 33, which the C library reserves.
PYTHON = sys.executable
MAX_DURATION_MS = 25_000  # A process that delays the result would do so for much longer.
OMITTED = re.compile(r"\n\[\.\.\. (\d+) bytes of (stdout|stderr) left out \.\.\.\]\n")


@pytest.fixture(params=[{}, {"use_uvloop": True}], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run commands on both common event loops."""
    return "asyncio", request.param


class TaggedShell:
    """Runs commands whose processes have a unique tag in their environment or arguments."""

    def __init__(self) -> None:
        self.tag = f"tag-{uuid.uuid4().hex}"
        self.env = {**os.environ, "SHELL_TEST": self.tag}

    async def run(self, command: str, **options: Any) -> ShellResult:
        return await run_shell(command.replace("TAG", self.tag), env=self.env, **options)

    def processes(self) -> list[str]:
        """Return the processes that have the tag, except this one."""
        found: list[str] = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != os.getpid():
                try:
                    text = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
                    if self.tag.encode() in text:
                        found.append(f"{folder.name}: {(folder / 'cmdline').read_bytes()!r}")
                except OSError:
                    continue
        return found

    def wait_until_gone(self, seconds: float) -> None:
        """Wait until no process has the tag."""
        deadline = time.monotonic() + seconds
        while remaining := self.processes():
            assert time.monotonic() < deadline, remaining
            time.sleep(0.01)


@pytest.fixture
def shell() -> Iterator[TaggedShell]:
    """Yield a shell, and check after the test that no process of it is left."""
    tagged = TaggedShell()
    yield tagged
    assert tagged.processes() == []


# How a command ends


@pytest.mark.anyio
@pytest.mark.parametrize("status", [0, 1, 3, 127, 255])
async def test_the_exit_status_is_that_of_the_shell(status: int) -> None:
    """The result has the status, no signal, no timeout and no problem."""
    result = await run_shell(f"exit {status}")
    assert (result.exit_status, result.signal, result.timed_out, result.problem) == (status, None, False, "")


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGUSR1"])
async def test_a_shell_that_dies_of_a_signal_has_no_status(name: str) -> None:
    """The result has the name of the signal."""
    result = await run_shell(f"kill -{name[3:]} $$")
    assert (result.exit_status, result.signal, result.timed_out) == (None, name, False)


@pytest.mark.anyio
async def test_a_failed_command_keeps_its_output() -> None:
    """The result has the status, stdout and stderr."""
    result = await run_shell("echo fine; ls /does/not/exist; exit 9")
    assert (result.exit_status, result.stdout) == (9, "fine\n")
    assert "/does/not/exist" in result.stderr and "fine" not in result.stderr


@pytest.mark.anyio
async def test_a_command_may_begin_with_a_dash() -> None:
    """It is not an option of the shell."""
    assert (await run_shell("-e; echo here")).stdout == "here\n"


# The input


@pytest.mark.anyio
async def test_the_input_is_empty_and_there_is_no_terminal() -> None:
    """A command cannot prompt for a password."""
    assert (await run_shell("cat; wc -c")).stdout.strip() == "0"
    assert (await run_shell("exec 3</dev/tty")).exit_status != 0


@pytest.mark.anyio
async def test_the_environment_is_inherited_or_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are not UTF-8 are passed unchanged."""
    monkeypatch.setenv("SHELL_TEST", "ours")
    assert (await run_shell('echo "$SHELL_TEST"')).stdout == "ours\n"
    env = {"A": "b=c\n", "B": os.fsdecode(b"\xff")}
    result = await run_shell('/usr/bin/env; printf %s "$B" | od -An -tx1', env=env)
    assert "A=b=c\n" in result.stdout and "ff" in result.stdout and "SHELL_TEST" not in result.stdout


@pytest.mark.anyio
async def test_the_folder_is_inherited_or_replaced(tmp_path: Path) -> None:
    """A folder may be a string or a Path."""
    assert (await run_shell("pwd")).stdout.strip() == os.getcwd()
    for folder in (tmp_path, str(tmp_path)):
        assert (await run_shell("pwd -P", cwd=folder)).stdout.strip() == str(tmp_path.resolve())


@pytest.mark.anyio
async def test_a_command_inherits_no_open_file_and_no_signal_setting() -> None:
    """Only the three standard streams are open, and no signal is ignored or blocked."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        result = await run_shell("ls /proc/self/fd; grep -E 'Sig(Ign|Blk)' /proc/self/status")
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    *files, ignored, blocked = result.stdout.splitlines()
    assert files == ["0", "1", "2", "3"]  # `ls` opens the folder as 3.
    assert {int(line.split()[1], 16) & ~LIBC_SIGNALS for line in (ignored, blocked)} == {0}


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
async def test_a_request_that_cannot_be_run_is_refused(command: str, options: dict[str, Any], field: str) -> None:
    """The error names the field and has a short message."""
    with pytest.raises(InvalidInputError) as refusal:
        await run_shell(command, **options)
    assert refusal.value.field == field and len(str(refusal.value)) < 200


@pytest.mark.anyio
async def test_the_longest_command_runs() -> None:
    """The limit is that of the system."""
    assert (await run_shell("echo here #".ljust(MAX_COMMAND_CHARS, "x"))).stdout == "here\n"


# The output


class Acknowledger:
    """Creates a file for each line that arrives, so that a command can wait until its output was read."""

    def __init__(self, folder: Path) -> None:
        self.chunks: list[tuple[str, str]] = []
        self._folder = folder

    async def progress(self, stream: str, text: str) -> None:
        self.chunks.append((stream, text))
        for word in text.split():
            (self._folder / word).touch()

    def wait_for(self, word: str) -> str:
        """Return a shell command that waits until a word was read."""
        return f"until [ -e {self._folder}/{word} ]; do sleep 0.01; done"


@pytest.mark.anyio
async def test_both_streams_are_kept_in_the_order_of_arrival(tmp_path: Path) -> None:
    """In each stream, and in the output of both."""
    reader = Acknowledger(tmp_path)
    steps = f"echo o$i; {reader.wait_for('o$i')}; echo e$i >&2; {reader.wait_for('e$i')}"
    result = await run_shell(f"for i in 1 2 3; do {steps}; done", progress=reader.progress)
    assert result.output == "".join(f"o{i}\ne{i}\n" for i in range(1, 4))
    assert result.stdout == "".join(f"o{i}\n" for i in range(1, 4))
    assert result.stderr == "".join(f"e{i}\n" for i in range(1, 4))
    assert (result.stdout_size, result.stderr_size, result.truncated) == (9, 9, False)


@pytest.mark.anyio
async def test_output_at_the_same_time_keeps_its_order() -> None:
    """A line on one stream directly after a line on the other one."""
    for _ in range(5):
        assert (await run_shell("echo first; echo second >&2")).output == "first\nsecond\n"
        assert (await run_shell("echo first >&2; echo second")).output == "first\nsecond\n"


@pytest.mark.anyio
async def test_characters_survive_being_split_and_bad_bytes_are_replaced(tmp_path: Path) -> None:
    """A character may come in two writes, with output on the other stream in between."""
    reader = Acknowledger(tmp_path)
    prints = r"printf 'a\342\202'", r"printf '\254 \377!'"
    command = f"{prints[0]}; {reader.wait_for('a')}; echo x >&2; {reader.wait_for('x')}; {prints[1]}"
    result = await run_shell(command, progress=reader.progress)
    assert (result.stdout, result.stderr, result.output) == ("a€ \ufffd!", "x\n", "ax\n€ \ufffd!")
    assert "".join(text for stream, text in reader.chunks if stream == "stdout") == "a€ \ufffd!"


@pytest.mark.anyio
async def test_too_much_output_is_truncated() -> None:
    """The command runs to its end. The result has the beginning and the end of the output, and the size of the rest."""
    result = await run_shell("seq 1 300000; echo short >&2; exit 7", cap=1000)
    assert (result.exit_status, result.stderr, result.stderr_cut) == (7, "short\n", 0)
    assert result.stdout.startswith("1\n2\n3\n") and result.stdout.endswith("\n299999\n300000\n")
    (note,) = OMITTED.finditer(result.stdout)
    assert int(note[1]) == result.stdout_cut == result.stdout_size - 1000
    assert result.stdout_size == sum(len(f"{n}\n") for n in range(1, 300001)) and result.truncated
    assert result.output == result.stdout + "short\n"


@pytest.mark.anyio
async def test_a_cap_of_zero_keeps_no_output() -> None:
    """The result still has the sizes."""
    result = await run_shell("echo hello; echo you >&2", cap=0)
    assert (result.stdout_size, result.stdout_cut, result.stderr_size, result.stderr_cut) == (6, 6, 4, 4)
    assert OMITTED.sub("", result.output) == ""


Writes = list[tuple[int, bytes]]


def transmit(writes: Writes, cap: int, chunk_bytes: int = 5) -> tuple[str, dict[int, StreamOutput]]:
    """Return the output for writes to the two streams, sent as the supervisor sends it to the host."""
    outputs = {1: OutputLimit(cap - cap // 2, cap // 2), 2: OutputLimit(cap - cap // 2, cap // 2)}
    sent, position = bytearray(), 0
    for stream, data in writes:
        live = outputs[stream].add(position, data)
        sent += wire.encode_frame(wire.LIVE[stream], position, live)
        position += len(data)
    for stream, output in outputs.items():
        for start, data in output.tail():
            sent += wire.encode_frame(wire.LAST[stream], start, data)
    transcript, inbox = Transcript(), bytearray()
    streams = process.LIVE_STREAMS | process.TAIL_STREAMS
    for offset in range(0, len(sent), chunk_bytes):
        inbox += sent[offset : offset + chunk_bytes]
        for kind, start, data in wire.take_frames(inbox):
            transcript.add(streams[kind], start, data, kind in process.TAIL_STREAMS)
    return transcript.render({stream: output.total_bytes for stream, output in outputs.items()})


WRITES = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=20)), max_size=30)


@given(WRITES, st.integers(1, 100))
def test_output_within_the_cap_is_complete(writes: Writes, chunk_bytes: int) -> None:
    """Each stream is the text of its bytes, in chunks of any size."""
    _, streams = transmit(writes, 2 * 30 * 20, chunk_bytes)
    for stream, output in streams.items():
        data = b"".join(data for number, data in writes if number == stream)
        assert output == StreamOutput(data.decode("utf-8", "replace"), len(data), 0)


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.text("abc\n", min_size=1)), max_size=30))
def test_output_within_the_cap_is_in_order(writes: list[tuple[int, str]]) -> None:
    """The text of both streams is in the order of the writes."""
    output, _ = transmit([(stream, text.encode()) for stream, text in writes], 10**6)
    assert output == "".join(text for _, text in writes)


@given(st.text("aé€😀", min_size=1, max_size=200), st.lists(st.integers(1, 9)), st.integers(0, 60))
def test_a_gap_splits_no_character(text: str, sizes: list[int], cap: int) -> None:
    """Beginning and end have complete characters, and the sizes add up."""
    data = text.encode()
    cuts = [0, *(sum(sizes[: n + 1]) for n in range(len(sizes))), len(data)]
    writes = [(1, data[start:end]) for start, end in pairwise(cuts) if data[start:end]]
    _, streams = transmit(writes, cap)
    output = streams[1]
    beginning, *rest = OMITTED.split(output.text)
    assert bool(rest) == (len(data) > cap) and "\ufffd" not in output.text
    end = rest[-1] if rest else ""
    assert text.startswith(beginning) and text.endswith(end)
    assert len((beginning + end).encode()) + output.cut == len(data) == output.size
    assert not rest or (int(rest[0]) == output.cut and len((beginning + end).encode()) <= cap)


@given(WRITES, st.integers(0, 100))
def test_each_stream_has_its_own_cap(writes: Writes, cap: int) -> None:
    """Much output on one stream leaves that of the other unchanged."""
    for stream, output in transmit(writes, cap)[1].items():
        alone = transmit([write for write in writes if write[0] == stream], cap)[1][stream]
        assert output == alone and output.size - output.cut <= cap


def test_the_number_of_chunks_is_limited() -> None:
    """Output that alternates between the streams with every byte costs memory for each chunk."""
    writes = [(1 + number % 2, b"x") for number in range(6 * MAX_CHUNKS)]
    output, streams = transmit(writes, 10**6, 10**6)
    assert {stream.size - stream.cut for stream in streams.values()} == {2 * MAX_CHUNKS}
    assert len(OMITTED.sub("", output)) == 4 * MAX_CHUNKS


# Progress


@pytest.mark.anyio
async def test_output_is_sent_while_the_command_runs(tmp_path: Path) -> None:
    """The command waits until its output was read."""
    reader = Acknowledger(tmp_path)
    command = f"echo a; {reader.wait_for('a')}; echo b >&2; {reader.wait_for('b')}; echo c"
    result = await run_shell(command, progress=reader.progress)
    assert result.exit_status == 0
    assert reader.chunks == [("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n")]


@pytest.mark.anyio
async def test_much_output_is_sent_in_few_chunks_up_to_the_limit() -> None:
    """The beginning, then one note, and nothing after it."""
    chunks: list[str] = []

    async def progress(stream: str, text: str) -> None:
        chunks.append(text)

    result = await run_shell("seq 1 1000000", cap=100_000, progress=progress)
    assert len(chunks) <= 2 + result.duration_ms / 1000 / output_stream.INTERVAL_S
    text = "".join(chunks)
    assert text.count(output_stream.MORE) == 1 and text.endswith(output_stream.MORE)
    assert result.stdout.startswith(text.removesuffix(output_stream.MORE)) and len(text) == 50_000 + len(
        output_stream.MORE
    )


@pytest.mark.anyio
async def test_alternating_streams_are_sent_in_few_chunks() -> None:
    """Many changes between two calls of the callback become one chunk for each stream."""
    chunks: list[tuple[str, str]] = []

    async def progress(stream: str, text: str) -> None:
        chunks.append((stream, text))
        await asyncio.sleep(0.2)

    command = "for i in $(seq 200); do echo o; echo e >&2; /bin/true; done"
    result = await run_shell(command, progress=progress)
    assert len(chunks) <= 2 + 8 * (2 + result.duration_ms / 200)
    assert "".join(text for stream, text in chunks if stream == "stdout") == "o\n" * 200
    assert "".join(text for stream, text in chunks if stream == "stderr") == "e\n" * 200


@pytest.mark.anyio
async def test_a_slow_callback_delays_neither_command_nor_timeout(shell: TaggedShell) -> None:
    """The command ends while the callback runs, which receives the rest of the output after that."""
    chunks: list[str] = []

    async def progress(stream: str, text: str) -> None:
        chunks.append(text)
        async with asyncio.timeout(25):
            while shell.processes():
                await asyncio.sleep(0.01)

    result = await shell.run("echo a; sleep 0.1; echo b; sleep 1000", timeout=2, progress=progress)
    assert result.timed_out and result.stdout == "".join(chunks) == "a\nb\n"


@pytest.mark.anyio
async def test_a_callback_that_fails_ends_the_command(shell: TaggedShell) -> None:
    """Its error is raised when no process of the command is left."""

    async def progress(stream: str, text: str) -> None:
        raise KeyError(text)

    with pytest.raises(KeyError, match="hello"):
        await shell.run("echo hello; setsid sleep 1000 & sleep 1000", timeout=None, progress=progress)
    assert shell.processes() == []


# All processes end

LEFTOVER_COMMANDS = {
    "background": "sleep 1000 &",
    "no hangup": "nohup sleep 1000 >/dev/null 2>&1 &",
    "new session": "setsid sleep 1000 &",
    "double fork": "(setsid sh -c 'sleep 1000 & sleep 1000 &' &)",
    "no output": "setsid sleep 1000 >/dev/null 2>&1 </dev/null &",
    "no environment": "env -i setsid sh -c ': TAG; sleep 1000; :' &",
    "ignored signals": "(trap '' TERM HUP INT; setsid sh -c 'while :; do sleep 1000; done' &)",
    "stopped": "sh -c 'kill -STOP $$; sleep 1000' &",
    "flooding": "setsid yes & yes >&2 &",
    "many": "for i in 1 2 3 4 5 6 7 8 9; do (sleep 1000 & setsid sleep 1000 &) & done",
    "other program": f"{PYTHON} -c 'import os, time; os.fork(); os.setpgid(0, 0); os.fork(); time.sleep(1000)' &",
    "threads": f"{PYTHON} -c 'import subprocess as s, threading as t\n"
    'for _ in range(3): t.Thread(target=s.run, args=(["sleep", "1000"],)).start()\' &',
}
"""Commands that leave a process running, by the way in which it would outlive the shell."""


@pytest.mark.anyio
@pytest.mark.parametrize("kind", LEFTOVER_COMMANDS)
async def test_no_process_outlives_the_shell(kind: str, shell: TaggedShell) -> None:
    """All processes that it started end with it, and open output does not delay the result."""
    result = await shell.run(f"{LEFTOVER_COMMANDS[kind]}\n sleep 0.1; echo done; exit 4", grace=0.1)
    assert shell.processes() == []
    assert (result.exit_status, result.timed_out, result.problem) == (4, False, "")
    assert ("done\n" in result.stdout or result.truncated) and result.duration_ms < MAX_DURATION_MS


@pytest.mark.anyio
@pytest.mark.parametrize("kind", LEFTOVER_COMMANDS)
async def test_no_process_outlives_a_timeout(kind: str, shell: TaggedShell) -> None:
    """All processes end, and the output before the timeout is kept."""
    result = await shell.run(f"echo begun; {LEFTOVER_COMMANDS[kind]}\n sleep 1000; echo no", timeout=1.5, grace=0.1)
    assert shell.processes() == []
    assert (result.exit_status, result.timed_out, result.problem) == (None, True, "")
    assert result.stdout.startswith("begun\n") and "no" not in result.stdout and result.duration_ms < MAX_DURATION_MS


@pytest.mark.anyio
async def test_sigterm_lets_a_command_clean_up(shell: TaggedShell) -> None:
    """A command that handles SIGTERM can still print, and its status is the result."""
    command = "trap 'echo bye; exit 3' TERM; echo ready; sleep 1000 & wait"
    result = await shell.run(command, timeout=2, grace=20)
    assert (result.exit_status, result.timed_out, result.stdout) == (3, True, "ready\nbye\n")
    assert result.duration_ms < MAX_DURATION_MS
    stopped = "sh -c 'trap \"echo bye; exit\" TERM; kill -STOP $$; :' & "
    stopped += "until grep -q '^State:.T' /proc/$!/status; do sleep 0.02; done"
    assert (await shell.run(stopped, grace=20)).stdout == "bye\n"


@pytest.mark.anyio
async def test_a_command_that_ignores_sigterm_is_killed(shell: TaggedShell) -> None:
    """It is killed after the grace period, or at once without one."""
    command = "trap 'echo caught' TERM; while :; do sleep 0.02; done"
    result = await shell.run(command, timeout=1.5, grace=0.5)
    assert (result.signal, result.timed_out, "caught" in result.stdout) == ("SIGKILL", True, True)
    assert result.duration_ms >= 2000
    assert (await shell.run(command, timeout=0.2, grace=0)).stdout == ""


@pytest.mark.anyio
async def test_a_command_that_ended_in_time_did_not_time_out(shell: TaggedShell) -> None:
    """The timeout may pass while its remaining processes are ended."""
    command = f"{LEFTOVER_COMMANDS['ignored signals']}\n sleep 0.05; exit 5"
    result = await shell.run(command, timeout=2.5, grace=3.0)
    assert (result.exit_status, result.timed_out) == (5, False) and result.duration_ms > 3000


@pytest.mark.anyio
async def test_processes_that_keep_forking_are_ended(shell: TaggedShell) -> None:
    """Many new processes, and a chain of processes that replace each other."""
    runaway = f"{PYTHON} {PROGRAMS / 'runaway.py'} 60"
    for command in (f"{runaway} & {runaway} & sleep 0.3", "while :; do setsid sleep 1000 & sleep 0.002; done"):
        result = await shell.run(command, timeout=0.5, grace=0)
        assert shell.processes() == [] and result.problem == ""


@pytest.mark.anyio
@pytest.mark.chaos
async def test_a_hundred_hostile_commands_leave_no_process(shell: TaggedShell, scale: int) -> None:
    """They fork, detach, print much and ignore signals, and end by themselves, by timeout or by cancellation."""
    leftovers = "\n".join(
        LEFTOVER_COMMANDS[kind] for kind in ("double fork", "ignored signals", "flooding", "no environment", "stopped")
    )
    ends = ("exit 0", "sleep 1000", "kill -9 $$", "kill -9 $PPID")

    async def run_one(number: int) -> ShellResult:
        command = f"{leftovers}\n sleep 0.05; {ends[number % 4]}"
        async with asyncio.timeout(0.3 if number % 5 == 0 else 60):
            return await shell.run(command, timeout=0.2, grace=0.02 * (number % 3), cap=10_000)

    outcomes: list[ShellResult | BaseException] = []
    for start in range(0, 12 if scale == 1 else 100, 4):
        numbers = range(start, start + 4)
        outcomes += await asyncio.gather(*map(run_one, numbers), return_exceptions=True)
        assert shell.processes() == []
    results = [outcome for outcome in outcomes if isinstance(outcome, ShellResult)]
    assert {type(outcome) for outcome in outcomes} <= {ShellResult, TimeoutError}
    assert len(results) >= len(outcomes) // 2 and any(result.truncated for result in results)


# Cancelling


@pytest.mark.anyio
async def test_cancelling_ends_all_processes_first(shell: TaggedShell) -> None:
    """When the cancelled task ends no process is left, also if it was cancelled several times."""
    for cancel_count in (1, 3):
        task = asyncio.create_task(shell.run("setsid sleep 1000 & trap '' TERM; sleep 1000; sleep 1000", timeout=None))
        async with asyncio.timeout(10):
            while len(shell.processes()) < 3:
                await asyncio.sleep(0.01)
        for _ in range(cancel_count):
            task.cancel()
            await asyncio.sleep(0.05)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert shell.processes() == []


@pytest.mark.anyio
async def test_cancelling_at_any_time_leaves_no_process(shell: TaggedShell) -> None:
    """The command is cancelled before, during or after its start."""
    for delay in (0, 0, 0.005, 0.01, 0.02, 0.03, 0.04):
        task = asyncio.create_task(shell.run("sleep 1000 & setsid sleep 1000", timeout=None))
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert shell.processes() == []


@pytest.mark.anyio
async def test_timeouts_of_asyncio_and_anyio_work(shell: TaggedShell) -> None:
    """They end the command and raise their usual errors."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await shell.run("sleep 1000", timeout=None)
    assert shell.processes() == []
    with anyio.move_on_after(0.2) as scope:
        await shell.run("trap '' TERM; sleep 1000; sleep 1000", timeout=None, grace=0.1)
    assert scope.cancelled_caught and shell.processes() == []


@pytest.mark.anyio
async def test_a_command_that_times_out_at_once_is_not_started(shell: TaggedShell, tmp_path: Path) -> None:
    """The timeout passes before the supervisor has started."""
    result = await shell.run(f"touch {tmp_path / 'made'}", timeout=1e-6)
    assert result.timed_out and "before the command was started" in result.problem
    assert not (tmp_path / "made").exists()


# Killed processes


@pytest.mark.anyio
async def test_a_command_that_kills_its_parent_is_ended(shell: TaggedShell) -> None:
    """The parent of a command is the relay and not the supervisor."""
    result = await shell.run("setsid sleep 1000 & echo x; sleep 0.1; kill -9 $PPID; sleep 1000")
    assert shell.processes() == [] and result.stdout == "x\n"
    assert result.exit_status is None and "killed its parent process" in result.problem
    stopped = await shell.run("setsid sleep 1000 & kill -STOP $PPID; sleep 0.1", timeout=0.5)
    assert shell.processes() == [] and stopped.problem == ""


@pytest.mark.anyio
async def test_killing_the_supervisor_ends_all_processes(shell: TaggedShell) -> None:
    """The output is kept, and the result says that the exit status is not known."""
    grandparent = "$(cut -d' ' -f4 /proc/$PPID/stat)"
    command = f"echo x; setsid sleep 1000 & sleep 0.1; kill -9 {grandparent}; sleep 1000"
    result = await shell.run(command, timeout=10)
    assert (result.exit_status, result.signal, result.stdout) == (None, None, "x\n")
    assert "was killed" in result.problem
    assert result.duration_ms < MAX_DURATION_MS and shell.processes() == []


@pytest.mark.anyio
async def test_a_supervisor_that_was_stopped_is_killed(shell: TaggedShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed after a timeout, and all processes end with it."""
    monkeypatch.setattr(process, "KILL_TIMEOUT_S", 0.2)
    command = "setsid sleep 1000 & kill -STOP $(cut -d' ' -f4 /proc/$PPID/stat); sleep 1000"
    result = await shell.run(command, timeout=1, grace=0.1)
    assert result.timed_out and "was killed" in result.problem and shell.processes() == []


@pytest.mark.anyio
async def test_sigterm_to_the_supervisor_ends_the_command(shell: TaggedShell) -> None:
    """For example by `pkill python` in a command."""
    result = await shell.run("setsid sleep 1000 & kill $(ps -o ppid= -p $PPID); sleep 1000", timeout=10)
    assert (result.signal, result.timed_out, result.problem) == ("SIGTERM", False, "") and shell.processes() == []


def start_host(shell: TaggedShell, command: str, *options: str) -> subprocess.Popen[str]:
    """Start a process that runs a command, and wait for its first line. Only the command has the tag."""
    host = start_program("shell_host", *options, stdin=subprocess.PIPE, start_new_session=True)
    assert host.stdin is not None and host.stdout is not None
    host.stdin.write(f"export SHELL_TEST={shell.tag}\n{command}")
    host.stdin.close()
    host.stdin = None
    assert host.stdout.readline() == "ready\n"
    return host


@pytest.mark.parametrize("fork", ["", "fork"])
def test_no_process_outlives_a_killed_host(shell: TaggedShell, fork: str) -> None:
    """`kill -9` of the host ends the command, also if a fork of the host still has its files open."""
    command = f"{LEFTOVER_COMMANDS['ignored signals']}\n{LEFTOVER_COMMANDS['double fork']}\necho ready; sleep 1000"
    host = start_host(shell, command, fork)
    deadline = time.monotonic() + 30
    while len(shell.processes()) < 5:
        assert time.monotonic() < deadline
    host.kill()
    try:
        shell.wait_until_gone(10)
    finally:
        os.killpg(host.pid, signal.SIGKILL)
        host.communicate()


def test_an_interrupt_at_the_terminal_ends_the_command_before_the_host(shell: TaggedShell) -> None:
    """Ctrl-C reaches only the host, which ends the command and then itself."""
    host = start_host(shell, f"{LEFTOVER_COMMANDS['double fork']}\necho ready; sleep 1000")
    os.killpg(host.pid, signal.SIGINT)
    _, errors = host.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors and shell.processes() == []


# Other systems


@pytest.fixture(params=["plain"])
def limited_supervisor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a supervisor on a system with fewer functions."""
    program = [PYTHON, "-I", "-S", str(PROGRAMS / "limited_supervisor.py")]
    monkeypatch.setattr(process, "SUPERVISOR", [*program, str(Path(process.__file__).parent), request.param])


@pytest.mark.anyio
@pytest.mark.usefixtures("limited_supervisor")
@pytest.mark.parametrize("limited_supervisor", ["powerless"], indirect=True)
async def test_a_process_that_cannot_be_ended_is_named(shell: TaggedShell) -> None:
    """A process of another user does not delay the result, which has its id."""
    result = await shell.run("sleep 1000 & echo $!", grace=0.1)
    assert result.exit_status == 0 and result.problem.endswith(f"could not be ended: {result.stdout.strip()}")
    os.kill(int(result.stdout), signal.SIGKILL)
    shell.wait_until_gone(10)


@pytest.mark.anyio
@pytest.mark.usefixtures("limited_supervisor")
async def test_without_adoption_the_process_group_is_ended(shell: TaggedShell) -> None:
    """Systems other than Linux have no adoption. Output, status and timeouts work there too."""
    result = await shell.run("echo a; echo b >&2; sleep 1000 & (sleep 1000 &); exit 6", grace=0.1)
    assert (result.exit_status, result.stdout, result.stderr, result.problem) == (6, "a\n", "b\n", "")
    shell.wait_until_gone(10)
    assert result.duration_ms < MAX_DURATION_MS
    result = await shell.run("(trap '' TERM; sleep 1000 &); yes & exec >&- 2>&-; sleep 1000", timeout=1.5, cap=100)
    assert (result.signal, result.timed_out, result.stdout_cut > 10_000) == ("SIGTERM", True, True)
    shell.wait_until_gone(10)


@pytest.mark.anyio
@pytest.mark.usefixtures("limited_supervisor")
async def test_without_adoption_an_outside_process_does_not_delay_the_result(
    shell: TaggedShell, tmp_path: Path
) -> None:
    """As documented, such a process is not ended."""
    printed = tmp_path / "printed"
    outside = f"setsid sh -c 'echo $$; touch {printed}; exec sleep 1000'"
    result = await shell.run(f"{outside} & until [ -e {printed} ]; do sleep 0.01; done")
    assert result.exit_status == 0 and result.duration_ms < MAX_DURATION_MS
    (remaining,) = shell.processes()
    assert remaining.startswith(f"{result.stdout.strip()}:")
    os.kill(int(result.stdout), signal.SIGKILL)
    shell.wait_until_gone(10)


def test_both_ways_to_find_children_agree() -> None:
    """The kernel's lists and a scan of all processes have the same result, at every depth."""
    tree = "sleep 1000 & sh -c 'sleep 1000 & sleep 1000' & sleep 1000"
    with subprocess.Popen(["/bin/sh", "-c", tree], start_new_session=True) as root:
        try:
            deadline = time.monotonic() + 30
            while len(pids := processes.descendants(root.pid, processes.listed_children)) < 5:
                assert time.monotonic() < deadline
            assert sorted(pids) == sorted(processes.descendants(root.pid, processes.scan_children()))
            assert processes.groups_of(pids) == {root.pid} and processes.exists(root.pid)
            assert not processes.exists(0) and processes.groups_of([os.getpid()]) == set()
        finally:
            processes.send({root.pid}, signal.SIGKILL)


def test_commands_run_in_any_thread(shell: TaggedShell) -> None:
    """An event loop outside of the main thread runs commands and ends them after a timeout."""
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(asyncio.run, shell.run("echo x; setsid sleep 1000 & sleep 1000", timeout=2)).result()
    assert (result.timed_out, result.stdout) == (True, "x\n") and shell.processes() == []


# Resources of the host


def open_files_and_children() -> tuple[list[str], list[int]]:
    """Return the open files and the children of this process."""
    files = sorted(os.listdir("/proc/self/fd"), key=int)
    return files, processes.listed_children(os.getpid())


@pytest.mark.anyio
async def test_no_open_file_and_no_zombie_is_left_in_the_host(shell: TaggedShell) -> None:
    """However a command ends: by itself, by timeout, by an error or by cancellation."""
    await run_shell("true")
    before = open_files_and_children()
    for command, options in (
        ("echo x", {}),
        ("sleep 1000 &", {}),
        ("sleep 1000", {"timeout": 0.1}),
        ("x", {"cwd": "?"}),
    ):
        try:
            await shell.run(command, **options)
        except InvalidInputError:
            pass
    task = asyncio.create_task(shell.run("sleep 1000"))
    async with asyncio.timeout(60):
        while not any("sleep" in line for line in shell.processes()):
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert open_files_and_children() == before


@pytest.mark.anyio
async def test_a_supervisor_that_cannot_be_started_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves no open file."""
    monkeypatch.setattr(process, "SUPERVISOR", ["/does/not/exist"])
    before = open_files_and_children()
    with pytest.raises(FileNotFoundError):
        await run_shell("true")
    assert open_files_and_children() == before


@pytest.mark.anyio
async def test_many_commands_run_at_once(shell: TaggedShell, tmp_path: Path) -> None:
    """Each waits until all have started, and their output is not mixed."""
    wait = "until [ $(ls | wc -l) -ge 12 ]; do sleep 0.05; done"
    commands = [f"touch {n}; {wait}; echo {n}; echo {n} >&2" for n in range(12)]
    results = await asyncio.gather(*(shell.run(command, cwd=tmp_path, timeout=60) for command in commands))
    assert [(result.stdout, result.stderr) for result in results] == [(f"{n}\n", f"{n}\n") for n in range(12)]


@pytest.mark.anyio
async def test_much_output_does_not_block_the_loop() -> None:
    """Output that is not kept is not sent to the host."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    result = await run_shell("yes", timeout=1)
    ticking.cancel()
    assert result.stdout_size > 2**20 and ticks > 10


@pytest.mark.chaos
def test_memory_stays_within_a_few_times_the_cap(scale: int) -> None:
    """For 200 MB of output, or 1 GB in `make chaos`."""
    size = 200 * 2**20 if scale == 1 else 2**30
    out, errors = start_program("shell_memory", f"head -c {size} /dev/zero", 2**20).communicate(timeout=300)
    assert errors == ""
    report = json.loads(out)
    assert (report["size"], report["cut"]) == (size, size - 2**20)
    assert report["grown"] < 16 and report["supervisor"] < 32
    assert report["progress"] <= 2 + report["seconds"] / output_stream.INTERVAL_S
