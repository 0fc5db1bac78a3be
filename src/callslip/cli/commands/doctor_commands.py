"""Why commands do not get done (S3.11): what the queues, the executors and the last failures tell of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from callslip.cli.terminal.formatting import format_age, pluralize, span
from callslip.model.records import CallRecord
from callslip.settings import Settings

THERE = 60_000
"""Whoever asked for work within so many ms counts as being there."""
SOON = 5_000
LATELY = 60 * 60_000
CLOCK = 60_000
"""So many ms are no matter of chance."""


class Finding(NamedTuple):
    """Something odd. A `problem` needs somebody; a `note` may be as it should."""

    level: str
    what: str
    cause: str
    advice: str


class Queues(NamedTuple):
    """The commands that are open, the last that failed, when each client's executors last asked, and the time."""

    open: list[CallRecord]
    failed: list[CallRecord]
    executors: dict[str, int]
    now: int

    def counts(self) -> dict[str, dict[str, int]]:
        """How many commands of each client are in which state."""
        clients = sorted({row.client for row in self.open})
        return {client: dict(Counter(row.state for row in self.of(client))) for client in clients}

    def of(self, client: str, state: str = "") -> list[CallRecord]:
        """The open commands of a client."""
        return [row for row in self.open if row.client == client and state in ("", row.state)]

    def nobody(self, client: str, before: int) -> str:
        """That no executor of a client has asked for work since then; "" if one has."""
        seen = self.executors.get(client)
        if seen is not None and seen >= before:
            return ""
        others = [name for name, at in sorted(self.executors.items()) if name != client and at > self.now - THERE]
        under = f"; executors ask under another name: {', '.join(others)}" if others else ""
        if seen is None:
            return f"nobody has ever asked for work of client {client}{under}"
        return f"nobody has asked for work of client {client} for {span((self.now - seen) / 1000)}{under}"


def about_commands(queues: Queues, settings: Settings) -> list[Finding]:
    """What is odd about commands, and why it may be so."""
    found = list(_about_clock(queues))
    for client in queues.counts():
        found += [*_about_queue(queues, client, settings), *_about_running(queues, client)]
    return [*found, *_about_expired(queues)]


def _about_clock(queues: Queues) -> Iterator[Finding]:
    ahead = [name for name, at in queues.executors.items() if at > queues.now + CLOCK]
    if ahead:
        what = f"executors of client {', '.join(sorted(ahead))} asked for work at a time that is still to come"
        cause = "the clock of this machine, or of another one that writes here, was moved"
        yield Finding("problem", what, cause, "set the clock; deadlines and leases go by it")


def _about_queue(queues: Queues, client: str, settings: Settings) -> Iterator[Finding]:
    queued, asking = queues.of(client, "queued"), queues.of(client, "awaiting_approval")
    if len(queued) + len(asking) >= settings.queue_limit:
        refused = settings.queue_overflow == "refuse"
        what = f"the queue of client {client} is full: {len(queued) + len(asking)} commands wait"
        cause = "more is submitted than its executors run" if queued else "they wait for approval"
        advice = (
            "new ones are refused until some are run or cancelled" if refused else "each new one expires the oldest"
        )
        yield Finding("problem", what, cause, advice)
    if asking:
        what = f"{pluralize(len(asking), 'command')} of client {client} not in the queue yet: {_names(asking)}"
        yield Finding(
            "note", what, "somebody must approve it first; its time has not begun", "answer the requests above"
        )
    if queued:
        yield from _about_waiting(queues, client, queued)


def _about_waiting(queues: Queues, client: str, queued: list[CallRecord]) -> Iterator[Finding]:
    over = [row for row in queued if 0 < row.deadline < queues.now - SOON]
    waiting = [row for row in queued if not 0 < row.deadline < queues.now - SOON]
    if over:
        cause = "their time is over, and no process has looked since"
        advice = "they expire once a server, a worker or `callslip wait` has the ledger open"
        yield Finding("note", _in_queue(queues, client, over), cause, advice)
    if not waiting:
        return
    what = _in_queue(queues, client, waiting)
    nobody, running = queues.nobody(client, queues.now - THERE), queues.of(client, "running")
    if nobody and not running:
        yield Finding("problem", what, nobody, _start(client))
    elif running:
        cause = f"its executors are at work on {_names(running)}"
        yield Finding("note", what, cause, "wait, or run more of them")
    elif queues.now - min(row.created_at for row in waiting) > SOON:
        asked = format_age(queues.executors[client], queues.now / 1000)
        cause = f"its executors asked {asked}, and took none up: they only poll, or may not run its session"
        yield Finding("note", what, cause, "see what its executors say; a token must have the verb execute")


def _in_queue(queues: Queues, client: str, rows: list[CallRecord]) -> str:
    waits = f"the oldest for {span((queues.now - min(row.created_at for row in rows)) / 1000)}"
    return f"{pluralize(len(rows), 'command')} in the queue of client {client}, {waits}: {_names(rows)}"


def _start(client: str) -> str:
    return f'start an executor for it: callslip.Worker(..., client="{client}")'


def _about_running(queues: Queues, client: str) -> Iterator[Finding]:
    for row in queues.of(client, "running"):
        left = row.lease - queues.now
        if row.lease and 0 < left < SOON:
            what = (
                f"command {_name(row)} is held by {row.worker or 'a worker'}, whose lease ends in {span(left / 1000)}"
            )
            becomes = "it is given to another one" if row.idempotent else "it is lost"
            cause = "the worker was not heard of lately, or holds commands only for a short time"
            yield Finding("note", what, cause, f"if the worker is not heard of until then, {becomes}")


def _about_expired(queues: Queues) -> Iterator[Finding]:
    """Grouped by client and cause: a hundred that failed for one reason are one finding."""
    groups: dict[tuple[str, str, str], list[CallRecord]] = {}
    for row in queues.failed:
        if row.state == "expired" and row.ended_at > queues.now - LATELY:
            groups.setdefault((row.client, *_why_expired(queues, row)), []).append(row)
    for (client, cause, advice), rows in groups.items():
        last = format_age(max(row.ended_at for row in rows), queues.now / 1000)
        what = f"{pluralize(len(rows), 'command')} of client {client} expired, the last {last}: {_names(rows)}"
        yield Finding("note", what, cause, advice)


def _why_expired(queues: Queues, row: CallRecord) -> tuple[str, str]:
    had = f"{row.timeout / 1000:g} s"
    if row.deadline and row.ended_at < row.deadline - SOON:
        return row.reason or "somebody ended it before its time", "run more executors, or submit more slowly"
    if row.deadline and row.ended_at > row.deadline + CLOCK:
        cause = "the machine slept, its clock was moved forward, or no process was there when its time was over"
        return cause, "submit it again"
    if row.started_at:
        return f"it was taken up, and its executor was not done within its {had}", "give it more time: --timeout"
    nobody = queues.nobody(row.client, row.created_at)
    if nobody:
        return nobody, _start(row.client)
    cause = f"its executors ask, but not within its {had}: they ask too seldom, were busy, or may not run its session"
    return cause, "give it more time: --timeout; or let them ask more often"


def _name(row: CallRecord) -> str:
    return row.client_call_id or row.id


def _names(rows: list[CallRecord]) -> str:
    """The first few."""
    return ", ".join(map(_name, rows[:3])) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")
