"""The law of the streams that cover a turn, as data and as a check: what the client saw is what the history contains.

A client is the real library in a Node process. A connection is the chunks that it is sent, with how many of them had
been sent after which event, so that one pass of the client answers for every event.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from callslip.api.ledger import open_ledger
from callslip.formats import registry
from callslip.formats.base import Restart
from callslip.ingest.importer import import_lines
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Event
from callslip.rules.fold import SessionFold
from tests.conftest import LONG
from tests.support import scenarios
from tests.support.paths import TESTS

CAPTURED = TESTS / "captures"
CAPTURES = sorted(path.stem for path in CAPTURED.glob("*.jsonl"))
WATCHED = 40 if LONG else 12
"""How many events a stream that begins in the middle is watched for, and from how many places, at most."""

CHECKED = 100
"""After how many events of a long log, at most, a client or a history is checked; `make chaos` checks all."""

Job = dict[str, Any]
T = TypeVar("T")


class Client:
    """A real client in a Node process: jobs in, answers out, as told in its harness under tests/js."""

    def __init__(self, node: str, harness: str, *arguments: str) -> None:
        command = [node, str(TESTS / "js" / harness), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, jobs: Sequence[Job]) -> list[Job]:
        """An answer for each job; equal ones are asked once."""
        bodies = [codec.encode(job) for job in jobs]
        answers: dict[bytes, Job] = {body: {} for body in bodies}
        sender = threading.Thread(target=self._send, args=(list(answers),))
        sender.start()
        assert self._process.stdout is not None
        for body in answers:
            line = self._process.stdout.readline()
            assert line, "the harness died; its complaint stands in stderr"
            answers[body] = json.loads(line, parse_int=number)
        sender.join()
        return [answers[body] for body in bodies]

    def _send(self, bodies: list[bytes]) -> None:
        assert self._process.stdin is not None
        for body in bodies:
            self._process.stdin.write(body + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.communicate()


def number(digits: str) -> int | float:
    """JavaScript has doubles only, and writes large ones without a point."""
    return int(digits) if len(digits) < 16 else float(digits)


def exact(value: Any) -> Any:
    """A value that equals another only if JSON does: to Python, 1 and True are equal."""
    if isinstance(value, dict):
        return {key: exact(member) for key, member in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    return str(value) if isinstance(value, bool) else value


def folded(log: Sequence[Event]) -> SessionFold:
    state = SessionFold()
    state.fold(log)
    return state


def turns_of(log: Sequence[Event]) -> list[str]:
    """The turns of a log."""
    return list(dict.fromkeys(e.turn for e in log if isinstance(e, ev.TurnStarted) and e.verdict == "applied"))


def checked(items: Iterable[T]) -> list[T]:
    """Return all items, or if there are very many some of them and the last ones."""
    every = list(items)
    step = 1 if LONG else 1 + len(every) // CHECKED
    return every[::step] + (every[-3:] if step > 1 else [])


def places(log: Sequence[Event]) -> Iterable[int]:
    """Where to begin in the middle of a log."""
    return range(1, len(log), 1 + len(log) // WATCHED)


async def imported(name: str) -> list[list[Event]]:
    """The logs of the sessions in a capture of a real agent."""
    async with await open_ledger("sqlite:///:memory:", scenarios.NO_REAPER) as ledger:
        with (CAPTURED / f"{name}.jsonl").open("rb") as lines:
            report = await import_lines(ledger.log, "capture", "acp", lines, started=scenarios.START_MS)
        return [[event async for event in ledger.events(session)] for session in report.sessions]


def captured(name: str) -> list[list[Event]]:
    return asyncio.run(imported(name))


class Segment:
    """One connection: its chunks, and how many had been sent after which event."""

    def __init__(self, turn: str, chunks: list[Any], seq: int) -> None:
        self.turn = turn
        self.chunks = list(chunks)
        self.reached = {seq: len(self.chunks)}

    def more(self, chunks: list[Any], seq: int) -> None:
        self.chunks += chunks
        self.reached[seq] = len(self.chunks)

    def checked(self) -> list[tuple[int, int]]:
        """Return the events after which the client is checked, with the number of chunks sent by then."""
        return sorted(set(checked(self.reached.items())))

    def job(self) -> Job:
        return {"id": 0, "chunks": self.chunks, "at": [count for _, count in self.checked()]}


class Law:
    """Stream and history of one format, held against each other by its real client.

    The harness answers a job `{"id", "chunks", "at"}` with `{"error", "messages"}`: what it shows after each number of
    chunks in `at`. `shown(history, turn)` is what it should show of that turn.
    """

    def __init__(self, client: Client, format: str, shown: Callable[[list[Any], str], Any]) -> None:
        self.client = client
        self.shown = shown
        self.encoder = registry.streaming(format).encoder
        self.history = registry.encoder(format)

    def histories(self, log: Sequence[Event]) -> list[list[Any]]:
        """The history after each number of events, read back from its JSON."""
        state, response = SessionFold(), [[]]
        for event in log:
            state.apply(event)
            response.append(json.loads(codec.encode(self.history(state)), parse_int=number))
        return response

    def connections(self, log: Sequence[Event], turn: str, after: int = 0, *, resume: bool = True) -> list[Segment]:
        """What a client that watches a turn from an event on is sent, connection by connection."""
        encoder = self.encoder(folded(log[:after]) if after else None, turn)
        segments = [Segment(turn, encoder.opening(), after)]
        for seq, event in enumerate(log[after:], after + 1):
            body = encoder.feed(event)
            if not isinstance(body, Restart):
                segments[-1].more(body, seq)
            elif resume:
                segments.append(Segment(turn, encoder.opening(), seq))
            else:
                break
        return segments

    def replays(self, log: Sequence[Event], turns: list[str]) -> list[Segment]:
        """A connection that begins after each event, up to its first moment."""
        state, created = SessionFold(), [Segment(turn, [], 0) for turn in turns]
        begins = set(checked(range(1, len(log) + 1)))
        for seq, event in enumerate(log, 1):
            state.apply(event)
            if seq in begins:
                created += [Segment(turn, self.encoder(state, turn).opening(), seq) for turn in turns]
        return created

    def joined(self, log: Sequence[Event], turn: str) -> list[Segment]:
        """What those are sent who come while others read: a replay, then what all are sent, up to the next restart."""
        encoder, state, begins = self.encoder(None, turn), SessionFold(), set(places(log))
        open_, created = list[Segment](), list[Segment]()
        for seq, event in enumerate(log, 1):
            state.apply(event)
            body = encoder.feed(event)
            if isinstance(body, Restart):
                encoder.opening()
                open_ = []
            else:
                for segment in open_:
                    segment.more(body, seq)
            if encoder.finished:
                open_ = []
            elif seq in begins:
                created.append(Segment(turn, self.encoder(state, turn).opening(), seq))
                open_ = [*open_[-2:], created[-1]]
        return created

    def check(self, segments: Sequence[Segment], response: list[list[Any]]) -> None:
        """The client, at every point of every connection, shows what the history holds."""
        for segment, answer in zip(segments, self.client.ask([segment.job() for segment in segments]), strict=True):
            assert answer["error"] is None
            for (seq, _), shown in zip(segment.checked(), answer["messages"], strict=True):
                expected = self.shown(response[seq], segment.turn)
                assert shown == expected and exact(shown) == exact(expected), f"turn {segment.turn} after event {seq}"

    def prove(self, log: Sequence[Event], resumed: Iterable[int]) -> None:
        """The whole law for one log: streams from its start, after every event, and going on after some."""
        response = self.histories(log)
        turns = turns_of(log)
        self.check([segment for turn in turns for segment in self.connections(log, turn)], response)
        self.check(self.replays(log, turns), response)
        self.check([segment for turn in turns for segment in self.joined(log, turn)], response)
        for after in resumed:
            part = log[: after + WATCHED]
            self.check([s for turn in turns for s in self.connections(part, turn, after, resume=False)], response)


def restarts(format: str, log: Sequence[Event]) -> list[str]:
    """Why the streams of a log's turns have to begin again."""
    reasons: list[str] = []
    for turn in turns_of(log):
        encoder = registry.streaming(format).encoder(None, turn)
        for event in log:
            body = encoder.feed(event)
            if isinstance(body, Restart):
                reasons.append(body.reason)
                encoder.opening()
    return reasons
