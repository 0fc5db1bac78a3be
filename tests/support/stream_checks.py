"""Check that what a client shows of a stream is what the history contains, after every event.

The client is a real library in a Node process. It reads the chunks of a connection once and reports what it shows after
each event, because a `Segment` records how many chunks had been sent by then.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from callslip.api.ledger import open_ledger
from callslip.formats import registry
from callslip.formats.base import Restart
from callslip.ingest.importer import import_lines
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Entry, Message
from callslip.model.events import Event
from callslip.rules.fold import SessionFold
from tests.conftest import LONG
from tests.support import scenarios
from tests.support.paths import TESTS

CAPTURES_FOLDER = TESTS / "captures"
CAPTURE_NAMES = sorted(path.stem for path in CAPTURES_FOLDER.glob("*.jsonl"))
RESUME_LIMIT = 40 if LONG else 6
"""How many events of a resumed stream are checked, and how many resumed streams of a log, at most."""

MAX_CHECKS = 40
"""After about how many events of a long log a client or a history is checked; `make chaos` checks all."""

Job = dict[str, Any]
T = TypeVar("T")


class Client:
    """A real client in a Node process: one answer for each job, as its harness in tests/js describes."""

    def __init__(self, node: str, harness: str, *arguments: str) -> None:
        command = [node, str(TESTS / "js" / harness), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, jobs: Sequence[Job]) -> list[Job]:
        """Return an answer for each job. Equal jobs are sent once."""
        bodies = [codec.encode(job) for job in jobs]
        answers: dict[bytes, Job] = {body: {} for body in bodies}
        sender = threading.Thread(target=self._send, args=(list(answers),))
        sender.start()
        assert self._process.stdout is not None
        for body in answers:
            line = self._process.stdout.readline()
            assert line, "the harness exited; its error is in stderr"
            answers[body] = json.loads(line, parse_int=parse_js_number)
        sender.join()
        return [answers[body] for body in bodies]

    def _send(self, bodies: list[bytes]) -> None:
        assert self._process.stdin is not None
        for body in bodies:
            self._process.stdin.write(body + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.communicate()


def parse_js_number(digits: str) -> int | float:
    """Parse a number of JavaScript, which has only doubles and writes large ones without a decimal point."""
    return int(digits) if len(digits) < 16 else float(digits)


def mark_booleans(value: Any) -> Any:
    """Replace booleans by strings, because 1 equals True in Python but not in JSON."""
    if isinstance(value, dict):
        return {key: mark_booleans(member) for key, member in value.items()}
    if isinstance(value, list):
        return [mark_booleans(item) for item in value]
    return str(value) if isinstance(value, bool) else value


def is_equal(shown: Any, expected: Any) -> bool:
    """Return whether two values are equal as JSON."""
    return shown == expected and mark_booleans(shown) == mark_booleans(expected)


def fold_log(log: Sequence[Event]) -> SessionFold:
    """Return the state of a session after these events."""
    state = SessionFold()
    state.fold(log)
    return state


class BlockName(str):
    """The name of a block outside of turns, and the range of its entries."""

    entries: range


def list_turns(log: Sequence[Event]) -> list[str]:
    """Return the turns of a log, in order, and then its blocks outside of turns."""
    turns = dict.fromkeys(e.turn for e in log if isinstance(e, ev.TurnStarted) and e.verdict == "applied")
    return [*turns, *list_blocks(log)]


def list_blocks(log: Sequence[Event]) -> list[BlockName]:
    """Return the blocks of a log outside of turns, in order: a user message, or a turn, ends a block."""
    names: list[BlockName] = []
    previous: Entry | None = None
    for entry in fold_log(log).entries.values():
        is_prompt = isinstance(entry, Message) and entry.role == "user"
        if not entry.turn and (previous is None or previous.turn or is_prompt):
            names.append(BlockName(f"msg-{entry.id}"))
        if not entry.turn:
            names[-1].entries = range(int(names[-1].removeprefix("msg-")), entry.id + 1)
        previous = entry
    return names


def is_answer(message: Mapping[str, Any], turn: str) -> bool:
    """Return whether a message is that of the agent in a turn, or in a block outside of turns."""
    if not isinstance(turn, BlockName):
        return message["id"] == f"turn-{turn}"
    number = message["id"].removeprefix("msg-")
    return message["role"] == "assistant" and number.isdigit() and int(number) in turn.entries


def sample_items(items: Iterable[T]) -> list[T]:
    """Return all items, or of very many only some and the last ones."""
    all_items = list(items)
    step = 1 if LONG else 1 + len(all_items) // MAX_CHECKS
    return all_items[::step] + (all_items[-3:] if step > 1 else [])


def resume_points(log: Sequence[Event]) -> Iterable[int]:
    """Return numbers of events after which a stream of a log resumes."""
    return range(1, len(log), 1 + len(log) // RESUME_LIMIT)


async def import_capture(name: str) -> list[list[Event]]:
    """Return the logs of the sessions in a capture of a real agent."""
    async with await open_ledger("sqlite:///:memory:", scenarios.NO_REAPER) as ledger:
        with (CAPTURES_FOLDER / f"{name}.jsonl").open("rb") as lines:
            report = await import_lines(ledger.log, "capture", "acp", lines, started=scenarios.START_MS)
        return [[event async for event in ledger.events(session)] for session in report.sessions]


def load_capture(name: str) -> list[list[Event]]:
    """Run `import_capture`, for tests that are not async."""
    return asyncio.run(import_capture(name))


class Segment:
    """The chunks of one connection, and how many of them had been sent after each event."""

    def __init__(self, turn: str, chunks: list[Any], seq: int) -> None:
        self.turn = turn
        self.chunks = list(chunks)
        self.chunk_counts = {seq: len(self.chunks)}

    def add(self, chunks: list[Any], seq: int) -> None:
        self.chunks += chunks
        self.chunk_counts[seq] = len(self.chunks)

    def list_checks(self) -> list[tuple[int, int]]:
        """Return the numbers of the events after which the client is checked, each with its chunk count."""
        return sorted(set(sample_items(self.chunk_counts.items())))

    def make_job(self) -> Job:
        return {"id": 0, "chunks": self.chunks, "at": [count for _, count in self.list_checks()]}


class Law:
    """Compares the stream and the history of one format by means of its real client.

    The harness answers a job `{"id", "chunks", "at"}` with `{"error", "messages"}`: what it shows after each number of
    chunks in `at`. `select_turn(history, turn)` returns what it should show of that turn, and `agrees(shown, expected)`
    whether it does.
    """

    def __init__(
        self,
        client: Client,
        format: str,
        select_turn: Callable[[list[Any], str], Any],
        agrees: Callable[[Any, Any], bool] = is_equal,
    ) -> None:
        self.client = client
        self.select_turn = select_turn
        self.agrees = agrees
        self.encoder = registry.streaming(format).encoder
        self.history = registry.encoder(format)

    def histories(self, log: Sequence[Event]) -> list[list[Any]]:
        """Return the history after each number of events, parsed from its JSON."""
        state, histories = SessionFold(), [[]]
        for event in log:
            state.apply(event)
            histories.append(json.loads(codec.encode(self.history(state)), parse_int=parse_js_number))
        return histories

    def connections(self, log: Sequence[Event], turn: str, after: int = 0, *, resume: bool = True) -> list[Segment]:
        """Return the connections of a client that follows a turn after an event: another one after each restart."""
        encoder = self.encoder(fold_log(log[:after]) if after else None, turn)
        segments = [Segment(turn, encoder.opening(), after)]
        for seq, event in enumerate(log[after:], after + 1):
            body = encoder.feed(event)
            if not isinstance(body, Restart):
                segments[-1].add(body, seq)
            elif resume:
                segments.append(Segment(turn, encoder.opening(), seq))
            else:
                break
        return segments

    def replays(self, log: Sequence[Event], turns: list[str]) -> list[Segment]:
        """Return a connection for each turn and event that begins after the event, with only its first chunks."""
        state, segments = SessionFold(), [Segment(turn, [], 0) for turn in turns]
        start_seqs = set(sample_items(range(1, len(log) + 1)))
        for seq, event in enumerate(log, 1):
            state.apply(event)
            if seq in start_seqs:
                begun = [turn for turn in turns if not isinstance(turn, BlockName) or seq >= turn.entries.start]
                segments += [Segment(turn, self.encoder(state, turn).opening(), seq) for turn in begun]
        return segments

    def late_connections(self, log: Sequence[Event], turn: str) -> list[Segment]:
        """Return connections that begin while another client reads: a replay, then the same chunks, up to a restart."""
        encoder, state, start_seqs = self.encoder(None, turn), SessionFold(), set(resume_points(log))
        open_segments, segments = list[Segment](), list[Segment]()
        for seq, event in enumerate(log, 1):
            state.apply(event)
            body = encoder.feed(event)
            if isinstance(body, Restart):
                encoder.opening()
                open_segments = []
            else:
                for segment in open_segments:
                    segment.add(body, seq)
            if encoder.finished:
                open_segments = []
            elif seq in start_seqs:
                segments.append(Segment(turn, self.encoder(state, turn).opening(), seq))
                open_segments = [*open_segments[-2:], segments[-1]]
        return segments

    def check_segments(self, segments: Sequence[Segment], histories: list[list[Any]]) -> None:
        """Check that the client shows what the history has, at every checked event of every connection."""
        for segment, answer in zip(
            segments, self.client.ask([segment.make_job() for segment in segments]), strict=True
        ):
            assert answer["error"] is None
            for (seq, _), shown in zip(segment.list_checks(), answer["messages"], strict=True):
                expected = self.select_turn(histories[seq], segment.turn)
                assert self.agrees(shown, expected), (segment.turn, seq, shown, expected)

    def check_log(self, log: Sequence[Event], resume_after: Iterable[int]) -> None:
        """Check streams from the start of a log, replays after each event, late connections and resumed streams."""
        histories = self.histories(log)
        turns = list_turns(log)
        self.check_segments([segment for turn in turns for segment in self.connections(log, turn)], histories)
        self.check_segments(self.replays(log, turns), histories)
        self.check_segments([segment for turn in turns for segment in self.late_connections(log, turn)], histories)
        for after in resume_after:
            part = log[: after + RESUME_LIMIT]
            segments = [s for turn in turns for s in self.connections(part, turn, after, resume=False)]
            self.check_segments(segments, histories)


def list_restarts(format: str, log: Sequence[Event]) -> list[str]:
    """Return the reason of each restart of the streams of a log."""
    reasons: list[str] = []
    for turn in list_turns(log):
        encoder = registry.streaming(format).encoder(None, turn)
        for event in log:
            body = encoder.feed(event)
            if isinstance(body, Restart):
                reasons.append(body.reason)
                encoder.opening()
    return reasons
