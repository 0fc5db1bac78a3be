"""The checks of `callslip doctor` that explain why commands are not run: queues, workers and recent failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from callslip.cli.terminal.formatting import format_age, format_span
from callslip.model.display import pluralize
from callslip.model.records import CallRecord
from callslip.settings import Settings

ACTIVE_MS = 60_000
"""A worker that polled within this time counts as active."""
STUCK_MS = 10_000
"""A command that has been queued for longer is reported."""
SOON_MS = 5_000
RECENT_MS = 60 * 60_000
MAX_CLOCK_SKEW_MS = 60_000


class Finding(NamedTuple):
    """Something unusual. A `problem` needs action; a `note` may be intended."""

    level: str
    what: str
    cause: str
    advice: str


class Queues(NamedTuple):
    """The open commands, the last failed ones, when the workers of each queue last polled, and the time."""

    open: list[CallRecord]
    failed: list[CallRecord]
    workers: dict[str, int]
    now: int

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of open commands of each queue by state."""
        names = sorted({record.client for record in self.open})
        return {name: dict(Counter(record.state for record in self.select(name))) for name in names}

    def select(self, queue: str, state: str = "") -> list[CallRecord]:
        """Return the open commands of a queue."""
        return [record for record in self.open if record.client == queue and state in ("", record.state)]

    def explain_no_worker(self, queue: str, since: int) -> str:
        """Return that no worker has polled a queue since then, or "" if one has."""
        seen = self.workers.get(queue)
        if seen is not None and seen >= since:
            return ""
        others = [name for name, at in sorted(self.workers.items()) if name != queue and at > self.now - ACTIVE_MS]
        suffix = f"; active queues: {', '.join(others)}" if others else ""
        if seen is None:
            return f"no worker has polled queue {queue} yet{suffix}"
        return f"no worker has polled queue {queue} for {format_span((self.now - seen) / 1000)}{suffix}"


def check_commands(queues: Queues, settings: Settings) -> list[Finding]:
    """Return what is unusual about commands, with the likely causes."""
    findings = list(_check_clock(queues))
    for queue in queues.counts():
        findings += [*_check_queue(queues, queue, settings), *_check_leases(queues, queue)]
    return [*findings, *_check_expired(queues)]


def _check_clock(queues: Queues) -> Iterator[Finding]:
    ahead = [name for name, at in queues.workers.items() if at > queues.now + MAX_CLOCK_SKEW_MS]
    if ahead:
        what = f"workers of queue {', '.join(sorted(ahead))} polled at a time in the future"
        cause = "the clock of this machine or of another writer was changed"
        yield Finding("problem", what, cause, "set the clock; deadlines and leases depend on it")


def _check_queue(queues: Queues, queue: str, settings: Settings) -> Iterator[Finding]:
    queued, unapproved = queues.select(queue, "queued"), queues.select(queue, "awaiting_approval")
    count = len(queued) + len(unapproved)
    if count >= settings.queue_limit:
        what = f"queue {queue} is full: {count} commands are pending"
        cause = "more commands are submitted than its workers run" if queued else "they are waiting for approval"
        is_refusing = settings.queue_overflow == "refuse"
        advice = (
            "new ones are rejected until some are run or cancelled"
            if is_refusing
            else "each new one expires the oldest"
        )
        yield Finding("problem", what, cause, advice)
    if unapproved:
        what = f"{pluralize(len(unapproved), 'command')} of queue {queue} not queued yet: {_list_names(unapproved)}"
        cause = "waiting for approval; the timeout starts with the answer"
        yield Finding("note", what, cause, "answer the requests above")
    if queued:
        yield from _check_queued(queues, queue, queued)


def _check_queued(queues: Queues, queue: str, queued: list[CallRecord]) -> Iterator[Finding]:
    overdue = [record for record in queued if 0 < record.deadline < queues.now - SOON_MS]
    waiting = [record for record in queued if not 0 < record.deadline < queues.now - SOON_MS]
    if overdue:
        cause = "their timeout has passed while no process had the ledger open"
        advice = "they expire once a server, a worker or `callslip wait` has the ledger open"
        yield Finding("note", _describe_queued(queues, queue, overdue), cause, advice)
    if not waiting or queues.now - min(map(_queued_at, waiting)) <= STUCK_MS:
        return
    what = _describe_queued(queues, queue, waiting)
    no_worker, running = queues.explain_no_worker(queue, queues.now - ACTIVE_MS), queues.select(queue, "running")
    if no_worker and not running:
        yield Finding("problem", what, no_worker, _start_worker(queue))
    elif running:
        cause = f"its workers are running {_list_names(running)}"
        yield Finding("note", what, cause, "wait, or start more workers")
    else:
        age = format_age(queues.workers[queue], queues.now / 1000)
        cause = f"its workers polled {age} and claimed none: they only poll, or have no access to the session"
        yield Finding("note", what, cause, "check the output of its workers; a token needs the verb execute")


def _describe_queued(queues: Queues, queue: str, records: list[CallRecord]) -> str:
    age = f"the oldest for {format_span((queues.now - min(map(_queued_at, records))) / 1000)}"
    return f"{pluralize(len(records), 'command')} waiting in queue {queue}, {age}: {_list_names(records)}"


def _queued_at(record: CallRecord) -> int:
    """Return when a command was queued: its timeout starts after its approval."""
    return record.deadline - record.timeout if record.deadline else record.created_at


def _start_worker(queue: str) -> str:
    return f'start a worker for it: callslip.Worker(..., queue="{queue}")'


def _check_leases(queues: Queues, queue: str) -> Iterator[Finding]:
    for record in queues.select(queue, "running"):
        left_ms = record.lease - queues.now
        if record.lease and 0 < left_ms < SOON_MS:
            worker = record.worker or "a worker"
            what = f"command {_name(record)} is held by {worker}, whose lease ends in {format_span(left_ms / 1000)}"
            effect = "another worker gets it" if record.idempotent else "it is lost"
            cause = "the worker has not renewed the lease recently, or uses short leases"
            yield Finding("note", what, cause, f"if the worker does not renew the lease, {effect}")


def _check_expired(queues: Queues) -> Iterator[Finding]:
    """Yield one finding per queue and cause, for any number of commands."""
    groups: dict[tuple[str, str, str], list[CallRecord]] = {}
    for record in queues.failed:
        if record.state == "expired" and record.ended_at > queues.now - RECENT_MS:
            groups.setdefault((record.client, *_explain_expired(queues, record)), []).append(record)
    for (queue, cause, advice), records in groups.items():
        last = format_age(max(record.ended_at for record in records), queues.now / 1000)
        what = f"{pluralize(len(records), 'command')} of queue {queue} expired, the last {last}: {_list_names(records)}"
        yield Finding("note", what, cause, advice)


def _explain_expired(queues: Queues, record: CallRecord) -> tuple[str, str]:
    timeout = f"{record.timeout / 1000:g} s"
    if record.deadline and record.ended_at < record.deadline - SOON_MS:
        return record.reason or "it was ended before its timeout", "start more workers, or submit more slowly"
    if record.deadline and record.ended_at > record.deadline + MAX_CLOCK_SKEW_MS:
        cause = "the machine slept, its clock was moved forward, or no process was running when the timeout passed"
        return cause, "submit it again"
    if record.started_at:
        return f"it was claimed, and its worker did not finish within {timeout}", "give it more time: --timeout"
    no_worker = queues.explain_no_worker(record.client, record.created_at)
    if no_worker:
        return no_worker, _start_worker(record.client)
    cause = f"no worker claimed it within {timeout}: they were busy, poll too rarely, or have no access"
    return cause, "give it more time: --timeout; or let workers poll more often"


def _name(record: CallRecord) -> str:
    return record.client_call_id or record.id


def _list_names(records: list[CallRecord]) -> str:
    """Return the names of the first three, and the number of the others."""
    return ", ".join(map(_name, records[:3])) + (f" and {len(records) - 3} more" if len(records) > 3 else "")
