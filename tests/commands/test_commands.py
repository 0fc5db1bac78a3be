"""Commands from Python on a real file: submitting, polling, waiting, claiming and ending, each exactly once (S3)."""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import threading
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import apsw
import msgspec
import pytest
from msgspec import UNSET

import callslip
from callslip.api import approvals
from callslip.api.access import FULL_ACCESS, Access, FullAccess, Verb
from callslip.api.commands import ClaimOptions, CommandQueue
from callslip.api.ledger import LocalLedger
from callslip.commands import Claim, Command, DeadlineTracker, claims, monitor
from callslip.errors import (
    AmbiguousIdError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    QueueFullError,
    ReadOnlyStoreError,
    StaleClaimError,
    StoreError,
)
from callslip.ledger.liveness import Reaper
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.rules.lifecycle import is_terminal
from callslip.settings import Settings
from callslip.store import sqlite_open
from callslip.store.sql import migrations
from callslip.store.sqlite_rows import SQL
from tests.support.engines import fetch_rows, is_postgres, read_stored_bytes
from tests.support.invariants import find_faults, open_with_settings, read_events, sound_ledger, start_program
from tests.support.tasks import until, until_in

pytestmark = pytest.mark.anyio

T = TypeVar("T")
SECRET = "sk-ant-api03-" + "aB3" * 30
# The functions in which a poll and a worker wait.
READER_WAIT = "CommandMonitor._wait_notice"
WORKER_WAIT = "Waiter.wait"
QUICK_S = 20.0
"""Long enough for a busy machine, and much shorter than the polls of waiters (`no_polling`)."""


@pytest.fixture(autouse=True)
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the polls, so that a test passes only if waiters are woken."""
    monkeypatch.setattr(claims, "CLAIM_POLL_S", 1000.0)
    monkeypatch.setattr(monitor, "END_POLL_S", 1000.0)


class OneSessionAccess(FullAccess):
    """Allow one use of one session."""

    def __init__(self, session: str, verb: Verb) -> None:
        self.allowed = (session, verb)

    async def may(self, session: str, verb: Verb) -> bool:
        return (session, verb) == self.allowed


class BrokenAccess(FullAccess):
    """Fail at every check."""

    async def may(self, session: str, verb: Verb) -> bool:
        raise LookupError("the list of users is missing")


def ledger_of(commands: CommandQueue) -> LocalLedger:
    return LocalLedger(commands.log)


async def finish_soon(work: Awaitable[T]) -> T:
    """Return the result of `work`, which must be ready within QUICK_S."""
    async with asyncio.timeout(QUICK_S):
        return await work


@asynccontextmanager
async def running_commands(db: str, **settings: Any) -> AsyncGenerator[CommandQueue]:
    """Yield the commands of a ledger, which must be sound at the end."""
    async with sound_ledger(db, **settings) as ledger:
        commands = CommandQueue(ledger.log)
        try:
            yield commands
        finally:
            await commands.close()


@pytest.fixture
async def commands(db: str) -> AsyncIterator[CommandQueue]:
    async with running_commands(db, reaper_interval=0.05, reaper_grace=0.05) as queue:
        yield queue


async def claim_command(
    commands: CommandQueue, client: str = "default", access: Access = FULL_ACCESS, **options: Any
) -> Claim:
    claim = await commands.claim_as(access, client, ClaimOptions(**options))
    assert claim is not None
    return claim


async def answer_request(
    commands: CommandQueue, verb: Callable[..., Coroutine[Any, Any, Any]] = approvals.approve, **options: Any
) -> None:
    """Answer the only pending request."""
    (row,) = await ledger_of(commands).approvals()
    await verb(commands.log, row.id, by="ann", **options)


async def list_events(commands: CommandQueue, command_id: str) -> list[ev.CallEvent]:
    """Return the events of a command."""
    row = await commands.find(command_id)
    log = await read_events(ledger_of(commands), row.session)
    return [event for event in log if isinstance(event, ev.CallEvent) and event.call == row.id]


async def find_end(commands: CommandQueue, command_id: str) -> ev.CallEvent:
    """Return the only event that ended a command."""
    (end,) = [
        event for event in await list_events(commands, command_id) if event.verdict == "applied" and is_terminal(event)
    ]
    return end


class Clock:
    """The wall clock, which a test may set."""

    def __init__(self) -> None:
        self.offset_s = 0.0
        self.real = time.time

    def __call__(self) -> float:
        return self.real() + self.offset_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(time, "time", fake)
    return fake


# S3.1: submitting


async def test_submit_returns_at_once_without_a_worker(commands: CommandQueue) -> None:
    """S3.1: the result has the id to poll."""
    submitted = await commands.submit("execute_js", {"script": "document.title"})
    assert (submitted.status, submitted.final, submitted.action, submitted.client) == (
        "pending",
        False,
        "execute_js",
        "default",
    )
    assert submitted.correlation_id.startswith("exec_") and submitted.created_at.endswith("Z")
    assert (submitted.result, submitted.error, submitted.completed_at) == (UNSET, UNSET, UNSET)
    assert [type(event) for event in await list_events(commands, submitted.correlation_id)] == [ev.CallProposed]


async def test_the_same_correlation_id_is_the_same_command(commands: CommandQueue) -> None:
    """S3.1, C7: a retry of the submission makes no second command, also once the first has ended."""
    first = await commands.submit("a", {"n": 1}, correlation_id="mine", timeout=5)
    assert first.correlation_id == "mine"
    repeated = await commands.submit("a", {"n": 1}, correlation_id="mine", timeout=5)
    assert repeated == first
    await commands.complete("mine", "done")
    ended = await commands.submit("a", {"n": 1}, correlation_id="mine", timeout=5)
    assert (ended.status, ended.result) == ("complete", "done")
    assert (
        len((await ledger_of(commands).calls()).items) == 1
        and len(await read_events(ledger_of(commands), "commands")) == 2
    )


@pytest.mark.parametrize(
    "other",
    [
        {"action": "b"},
        {"params": {"n": 2}},
        {"params": None},
        {"timeout": 6},
        {"queue": "else"},
        {"idempotent": True},
        {"title": "t"},
        {"approval": True},
        {"key": "k2", "params": {"n": 2}},
    ],
)
async def test_a_correlation_id_with_other_arguments_is_a_conflict(
    commands: CommandQueue, other: dict[str, Any]
) -> None:
    """S3.1, C7: nothing is written, and the first command is unchanged."""
    arguments: dict[str, Any] = {"action": "a", "params": {"n": 1}, "timeout": 5}
    await commands.submit(**arguments, correlation_id="mine")
    with pytest.raises(ConflictError):
        await commands.submit(**arguments | other, correlation_id="mine")
    assert len(await read_events(ledger_of(commands), "commands")) == 1
    assert (await claim_command(commands)).params == {"n": 1}


async def test_a_repeated_submission_requests_approval_once(commands: CommandQueue) -> None:
    """S3.1, S2.7: a repetition without `approval` is a conflict."""
    for _ in range(2):
        await commands.submit("a", correlation_id="mine", approval=True)
    assert len((await ledger_of(commands).calls()).items) == len(await ledger_of(commands).approvals()) == 1
    with pytest.raises(ConflictError):
        await commands.submit("a", correlation_id="mine")


async def test_concurrent_submissions_with_the_same_id_create_a_single_command(commands: CommandQueue) -> None:
    """S3.1, C7: also in the same transaction as submissions that are refused."""
    requests: list[dict[str, Any]] = [{"params": {"n": n % 2}, "correlation_id": "mine"} for n in range(20)]
    results = await asyncio.gather(
        *(commands.submit("a", **arguments) for arguments in requests), return_exceptions=True
    )
    assert sum(isinstance(result, ConflictError) for result in results) == 10
    assert {result.correlation_id for result in results if isinstance(result, Command)} == {"mine"}
    assert len(await commands.pending()) == 1


async def test_a_correlation_id_is_unique_only_within_its_session(commands: CommandQueue) -> None:
    """S3.1: without a session an id of two sessions is ambiguous."""
    for session in ("one", "two"):
        await commands.submit(session, session=session, correlation_id="mine")
    assert (await commands.get("mine", session="two")).action == "two"
    with pytest.raises(AmbiguousIdError):
        await commands.get("mine")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("action", {"action": ""}),
        ("action", {"action": 7}),
        ("action", {"action": "x" * 201}),
        ("action", {"action": "a\nb"}),
        ("queue", {"queue": ""}),
        ("queue", {"queue": None}),
        ("queue", {"queue": "x" * 201}),
        ("timeout", {"timeout": 0}),
        ("timeout", {"timeout": -1}),
        ("timeout", {"timeout": float("nan")}),
        ("timeout", {"timeout": float("inf")}),
        ("timeout", {"timeout": 10**10}),
        ("correlation_id", {"correlation_id": "exec_0123456789ab"}),
        ("correlation_id", {"correlation_id": "@last"}),
        ("correlation_id", {"correlation_id": "x" * 201}),
        ("correlation_id", {"correlation_id": "\x00"}),
        ("params", {"params": {"x": object()}}),
        ("session", {"session": ""}),
    ],
)
async def test_an_invalid_command_is_refused_and_not_stored(
    commands: CommandQueue, field: str, wrong: dict[str, Any]
) -> None:
    """C11: the error names the field."""
    with pytest.raises(InvalidInputError) as refusal:
        await commands.submit(**{"action": "a"} | wrong)
    assert refusal.value.field.startswith(field)
    assert (await ledger_of(commands).calls()).items == [] and await commands.pending() == []


async def test_arguments_that_are_too_large_are_refused(db: str) -> None:
    """C11: the error has the limit of an event."""
    async with running_commands(db, max_event=10_000) as commands:
        with pytest.raises(InvalidInputError) as refusal:
            await commands.submit("a", {"text": "x" * 10_000})
        assert refusal.value.limit == 10_000 and await commands.pending() == []


# S3.2: polling


async def _complete(commands: CommandQueue, name: str) -> None:
    await commands.complete(name, {"title": "x"}, fence=(await claim_command(commands)).fence)


async def _fail(commands: CommandQueue, name: str) -> None:
    await commands.fail(name, "no such tab", fence=(await claim_command(commands)).fence)


async def _cancel(commands: CommandQueue, name: str) -> None:
    await commands.cancel(name, "changed my mind")


async def _expire(commands: CommandQueue, name: str) -> None:
    await commands.expire(name)


async def _time_out(commands: CommandQueue, name: str) -> None:
    await claim_command(commands)
    await commands.expire(name)


async def _deny(commands: CommandQueue, name: str) -> None:
    await answer_request(commands, approvals.deny, reason="not that")


async def _withdraw(commands: CommandQueue, name: str) -> None:
    await answer_request(commands, approvals.withdraw)


async def _lose(commands: CommandQueue, name: str) -> None:
    await claim_command(commands, worker="w7", lease=0.1)
    async with asyncio.timeout(QUICK_S):
        while not (await commands.get(name)).final:
            await asyncio.sleep(0.02)


ENDINGS: dict[str, tuple[Callable[[CommandQueue, str], Coroutine[Any, Any, None]], bool, str, dict[str, Any]]] = {
    "completed": (_complete, False, "complete", {"result": {"title": "x"}}),
    "failed": (_fail, False, "error", {"error": "no such tab"}),
    "cancelled": (_cancel, False, "cancelled", {"error": "changed my mind"}),
    "expired": (_expire, False, "expired", {"error": "no worker claimed it before its timeout"}),
    "timed out": (_time_out, False, "timeout", {"error": "timed out while running"}),
    "denied": (_deny, True, "error", {"error": "not that"}),
    "withdrawn": (_withdraw, True, "cancelled", {"error": "cancelled"}),
    "lost": (_lose, False, "error", {"error": "worker w7 stopped renewing its lease"}),
}


@pytest.mark.parametrize("end_kind", ENDINGS)
async def test_a_poll_returns_the_outcome_of_an_ended_command(commands: CommandQueue, end_kind: str) -> None:
    """S3.2, S3.10: with the documented status, the result or reason, and `final`."""
    end, needs_approval, status, expected = ENDINGS[end_kind]
    submitted = await commands.submit("a", correlation_id="c", approval=needs_approval)
    assert (submitted.status, submitted.final) == ("pending", False)
    await end(commands, "c")
    command = await commands.get("c")
    body: dict[str, Any] = msgspec.to_builtins(command)
    assert {key: body.pop(key) for key in ("correlation_id", "status", "final", "created_at")} == {
        "correlation_id": "c",
        "status": status,
        "final": True,
        "created_at": submitted.created_at,
    }
    assert command.completed_at != UNSET and str(command.completed_at) >= submitted.created_at
    assert {key: body[key] for key in ("result", "error") if key in body} == expected
    await find_end(commands, "c")


async def test_a_poll_returns_pending_for_an_open_command(commands: CommandQueue) -> None:
    """S3.2: a queued, running or unapproved command is pending and has no result."""
    await commands.submit("a", correlation_id="asks", approval=True)
    await commands.submit("a", correlation_id="queued")
    await commands.submit("a", correlation_id="runs", queue="other")
    await claim_command(commands, "other")
    for name in ("asks", "queued", "runs"):
        command = await commands.get(name)
        assert (command.status, command.final) == ("pending", False)
        assert command.result is command.error is command.completed_at is UNSET


@pytest.mark.parametrize("command_id", ["exec_0123456789ab", "nobody", "", "@last", "\ud800", "x" * 10_000])
async def test_an_unknown_id_is_not_found_without_waiting(commands: CommandQueue, command_id: str) -> None:
    """S3.2: waiting would not change it."""
    with pytest.raises(NotFoundError):
        await finish_soon(commands.get(command_id, wait=60))


async def test_a_call_that_is_no_command_cannot_be_claimed_or_ended(commands: CommandQueue) -> None:
    """S3.6: also not cancelled or expired here."""
    (event,) = await commands.log.append("a", [ev.CallProposed(tool_name="t", scope="detached")])
    assert isinstance(event, ev.CallEvent)
    assert await commands.claim() is None and await commands.queued() == []
    for verb in (commands.complete, commands.cancel, commands.expire):
        with pytest.raises(InvalidInputError, match="not a command"):
            await verb(event.call)
    assert (await commands.get(event.call)).status == "pending" and await commands.pending() == []


@pytest.mark.parametrize("result", [None, 0, "", [], {"a": [1, {"b": None}]}, "x" * 200_000, {"big": "y" * 200_000}])
async def test_a_result_of_any_type_and_size_is_returned_unchanged(commands: CommandQueue, result: Any) -> None:
    """S3.2: also if it is too large for the log; a repeated result returns the same."""
    await commands.submit("a", correlation_id="c")
    for _ in range(2):
        assert (await commands.complete("c", result)).result == result
    assert (await commands.get("c")).result == result
    (listed,) = await commands.completed()
    assert listed.result == result


async def test_a_large_error_is_returned_unchanged(commands: CommandQueue) -> None:
    """S3.2: for text and any other value."""
    for name, error in (("text", "e" * 100_000), ("more", {"trace": ["line"] * 20_000})):
        await commands.submit("a", correlation_id=name)
        submitted = await commands.fail(name, error)
        assert submitted.error == error or msgspec.json.decode(str(submitted.error)) == error


# S3.3: waiting


@pytest.mark.parametrize("end_kind", ENDINGS)
async def test_a_waiting_poll_returns_at_every_kind_of_end(commands: CommandQueue, end_kind: str) -> None:
    """S3.3: long before its timeout."""
    end, needs_approval, status, _ = ENDINGS[end_kind]
    await commands.submit("a", correlation_id="c", approval=needs_approval)
    polls = [asyncio.create_task(commands.get("c", wait=60)) for _ in range(3)]
    await until_in(READER_WAIT, *polls)
    await end(commands, "c")
    results = await finish_soon(asyncio.gather(*polls))
    assert [(result.status, result.final) for result in results] == [(status, True)] * 3


async def test_a_waiting_poll_returns_pending_after_its_timeout(commands: CommandQueue) -> None:
    """S3.3: a timeout of the poll is no error."""
    await commands.submit("a", correlation_id="c")
    started_at = time.monotonic()
    command = await finish_soon(commands.get("c", wait=0.1))
    assert time.monotonic() - started_at > 0.09
    assert (command.status, command.final, command.position) == ("pending", False, 1)


async def test_a_poll_for_an_ended_command_does_not_wait(commands: CommandQueue) -> None:
    """S3.3: the outcome is returned at once."""
    await commands.submit("a", correlation_id="c")
    await commands.complete("c")
    assert (await finish_soon(commands.get("c", wait=60))).final


async def test_a_waiting_poll_returns_when_another_process_ends_the_command(commands: CommandQueue, db: str) -> None:
    """S3.3: the processes share only the file."""
    await commands.submit("a", correlation_id="c")
    poll = asyncio.create_task(commands.get("c", wait=60))
    async with await open_with_settings(db) as ledger:
        other = CommandQueue(ledger.log)
        await other.complete("c", 1, fence=(await claim_command(other)).fence)
        assert (await finish_soon(poll)).result == 1


async def test_an_idle_process_notices_the_end_of_a_command_that_it_did_not_know(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.3: it does not wait for the next check, which is only for deleted commands."""
    monkeypatch.setattr(monitor, "END_POLL_S", 3600.0)
    async with await open_with_settings(db) as ledger, await open_with_settings(db) as other_ledger:
        commands, other = CommandQueue(ledger.log), CommandQueue(other_ledger.log)
        await commands.submit("a", correlation_id="b")
        await commands.complete("b", fence=(await claim_command(commands)).fence)
        watch = vars(vars(commands)["_monitor"])
        await until(lambda: watch["_watcher"] is None and not watch["_is_loading"])
        await other.submit("a", correlation_id="c")
        poll = asyncio.create_task(commands.get("c", wait=60))
        await until_in(READER_WAIT, poll)
        await other.complete("c", 1, fence=(await claim_command(other)).fence)
        assert (await finish_soon(poll)).result == 1


async def test_a_waiting_poll_raises_not_found_when_the_session_is_deleted(
    commands: CommandQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.3: at the next check."""
    monkeypatch.setattr(monitor, "END_POLL_S", 0.1)
    await commands.submit("a", {"key": SECRET}, correlation_id="c")
    call = (await commands.find("c")).id
    poll = asyncio.create_task(commands.get("c", wait=60))
    await until_in(READER_WAIT, poll)
    await commands.log.delete("commands")
    with pytest.raises(NotFoundError):
        await finish_soon(poll)
    assert await commands.claim() is None and await commands.pending() == []
    assert await commands.log.store.sealed(call) is None
    with pytest.raises(NotFoundError):
        await commands.complete("c")


async def test_commands_of_a_deleted_session_are_no_longer_tracked(commands: CommandQueue) -> None:
    """S3.8: at the latest when its deadline passes."""
    await commands.submit("a", timeout=0.1)
    await commands.log.delete("commands")
    async with asyncio.timeout(QUICK_S):
        while commands.tracker.pending:
            await asyncio.sleep(0.02)
    await commands.submit("a", correlation_id="c", timeout=0.1)
    assert (await commands.get("c", wait=5)).status == "expired"


async def test_closing_the_ledger_ends_waiting_polls_and_claims(db: str) -> None:
    """S3.3: the poll raises StoreError, and the claim returns None."""
    ledger = await open_with_settings(db)
    commands = CommandQueue(ledger.log)
    await commands.submit("a", correlation_id="c", queue="x")
    tasks = [asyncio.create_task(commands.get("c", wait=60)), asyncio.create_task(commands.claim(wait=60))]
    await until_in(READER_WAIT, tasks[0])
    await until_in(WORKER_WAIT, tasks[1])
    await ledger.close()
    poll_error, claim = await finish_soon(asyncio.gather(*tasks, return_exceptions=True))
    assert isinstance(poll_error, StoreError) and claim is None


# S3.4: time


async def test_an_unclaimed_command_expires_after_its_timeout(commands: CommandQueue) -> None:
    """S3.4: not before its timeout, and soon after it."""
    started_ms = commands.log.store.time_ms()
    await commands.submit("a", correlation_id="c", timeout=0.2)
    ended = await commands.get("c", wait=10)
    assert (ended.status, ended.error) == ("expired", "no worker claimed it before its timeout")
    assert 200 <= commands.log.store.time_ms() - started_ms < 200 + QUICK_S * 1000
    assert await commands.claim() is None


async def test_a_command_that_runs_too_long_times_out(commands: CommandQueue) -> None:
    """S3.4: its worker's result is too late, even while its lease lasts."""
    await commands.submit("a", correlation_id="c", timeout=1)
    claim = await claim_command(commands, lease=60)
    assert (await commands.get("c", wait=10)).status == "timeout"
    with pytest.raises(ConflictError):
        await commands.heartbeat("c", claim.fence)
    with pytest.raises(ConflictError) as refusal:
        await commands.complete("c", 1, fence=claim.fence)
    assert not isinstance(refusal.value, StaleClaimError) and refusal.value.current.state == "expired"  # type: ignore[attr-defined]
    assert (await commands.get("c")).status == "timeout"


async def test_a_command_expires_after_thirty_seconds_by_default(commands: CommandQueue) -> None:
    """S3.4: a submission can set another timeout."""
    submitted = {
        name: await commands.find((await commands.submit(name, **options)).correlation_id)
        for name, options in {"default": {}, "own": {"timeout": 5.5}}.items()
    }
    assert submitted["default"].deadline - submitted["default"].created_at == 30_000
    assert submitted["own"].deadline - submitted["own"].created_at == 5_500


async def test_the_timeout_starts_after_approval(commands: CommandQueue) -> None:
    """S3.4: an answer may take longer than the timeout; then the command has its full timeout."""
    await commands.submit("a", correlation_id="c", timeout=0.15, approval=True)
    assert (await commands.get("c", wait=0.3)).status == "pending" and await commands.claim() is None
    await answer_request(commands)
    assert (await commands.get("c", wait=10)).status == "expired"
    (granted,) = [event for event in await list_events(commands, "c") if isinstance(event, ev.ApprovalGranted)]
    row = await commands.find("c")
    assert row.deadline == granted.at + 150 <= row.ended_at < granted.at + 150 + 1000 * QUICK_S


async def test_a_completed_command_does_not_expire(commands: CommandQueue) -> None:
    """S3.4: the deadline passes and nothing changes; expiring it by hand is refused."""
    await commands.submit("a", correlation_id="c", timeout=1)
    await commands.complete("c", "x")
    before = await commands.get("c")
    await commands.submit("later", correlation_id="later", timeout=1.2)
    assert (await commands.get("later", wait=10)).status == "expired"
    assert await commands.get("c") == before
    with pytest.raises(ConflictError):
        await commands.expire("c")
    assert await commands.get("c") == before and len(await list_events(commands, "c")) == 3


async def test_commands_expire_in_the_order_of_their_deadlines(commands: CommandQueue) -> None:
    """S3.4: the last submitted command may be the first to expire."""
    for number, timeout in enumerate((3600, 1800, 0.2)):
        await commands.submit("a", correlation_id=f"c{number}", timeout=timeout)
    assert (await commands.get("c2", wait=60)).status == "expired"
    assert [(await commands.get(f"c{number}")).status for number in range(2)] == ["pending", "pending"]


async def test_a_command_of_a_closed_process_still_expires(db: str) -> None:
    """S3.4: any process that has the file open, or opens it later, expires the command."""
    async with await open_with_settings(db) as ledger:
        first = CommandQueue(ledger.log)
        await first.submit("a", correlation_id="c", timeout=0.1)
    await asyncio.sleep(0.11)
    async with running_commands(db, reaper_grace=0.1, reaper_interval=0.05) as commands:
        assert (await commands.get("c", wait=10)).status == "expired"
        await find_end(commands, "c")


async def test_a_clock_jump_does_not_expire_a_command_early(db: str, clock: Clock) -> None:
    """S3.4, C5: after sleep, executors have a grace period to continue."""
    async with running_commands(db, reaper_interval=1e6, reaper_grace=0.3) as commands:
        await commands.submit("before", correlation_id="before")
        await until(lambda: commands._monitor._cursor is not None)  # It watches the clock.
        started_at = time.monotonic()
        await commands.submit("a", correlation_id="c", timeout=0.3)
        clock.offset_s += 3600
        assert (await commands.get("c", wait=10)).status == "expired"
        assert time.monotonic() - started_at >= 0.59, "its own time, and then the grace"


# S3.5: lists


async def test_commands_are_listed_as_pending_and_recently_ended(db: str, clock: Clock) -> None:
    """S3.5: completed commands are listed for a minute; by id a command is always found."""
    async with running_commands(db) as commands:
        for name in ("first", "second", "third"):
            await commands.submit("a", correlation_id=name, timeout=1000)
        await commands.complete("first", 1)
        clock.offset_s += 59
        await commands.complete("second", 2)
        assert [command.correlation_id for command in await commands.completed()] == ["second", "first"]
        clock.offset_s += 2
        assert [command.correlation_id for command in await commands.completed()] == ["second"]
        clock.offset_s += 60
        assert await commands.completed() == [] and (await commands.get("first")).result == 1
        assert [command.correlation_id for command in await commands.pending()] == ["third"]


async def test_the_last_hundred_failures_are_listed(db: str) -> None:
    """S3.5: the 101st removes the first from the list, not from the log."""
    async with running_commands(db, synchronous="NORMAL", queue_limit=1000) as commands:
        for number in range(101):
            await commands.submit("a", correlation_id=f"c{number}")
            await commands.fail(f"c{number}", f"e{number}")
        failed = await commands.failed()
        assert [command.correlation_id for command in failed] == [f"c{number}" for number in range(100, 0, -1)]
        assert (await commands.get("c0")).error == "e0"
        assert len(await commands.failed(limit=5)) == 5 and len(await commands.failed(limit=1000)) == 100


async def test_every_end_except_completion_is_listed_as_failed(commands: CommandQueue) -> None:
    """S3.5: each command is in exactly one list, filtered by client or not."""
    for name, end in (("failed", _fail), ("cancelled", _cancel), ("expired", _expire), ("timeout", _time_out)):
        await commands.submit("a", correlation_id=name)
        await end(commands, name)
    await commands.submit("a", correlation_id="elsewhere", queue="other")
    await commands.complete("elsewhere")
    await commands.submit("a", correlation_id="open", queue="other")
    expected = [(command.correlation_id, command.status) for command in reversed(await commands.failed())]
    assert expected == [("failed", "error"), ("cancelled", "cancelled"), ("expired", "expired"), ("timeout", "timeout")]
    assert await commands.failed("other") == [] and len(await commands.completed("other")) == 1
    assert await commands.completed("default") == [] and await commands.pending("default") == []
    assert [command.correlation_id for command in await commands.pending("other")] == ["open"]


@pytest.mark.parametrize("limit", [0, -1, 2**63, 10**30])
async def test_an_invalid_list_limit_is_refused(commands: CommandQueue, limit: int) -> None:
    """S3.5: 0 and negative limits do not mean no limit, and a limit beyond 63 bits is refused too."""
    for list_commands in (commands.pending, commands.completed, commands.failed, commands.queued):
        with pytest.raises(InvalidInputError, match="limit"):
            await list_commands(limit=limit)


async def test_lists_skip_commands_that_the_caller_may_not_read(commands: CommandQueue) -> None:
    """S3.5: for any number of hidden commands in between."""
    access = OneSessionAccess("mine", "read")
    for number in range(20):
        await commands.submit("a", session="theirs", correlation_id=f"t{number}")
        await commands.submit("a", session="theirs", correlation_id=f"u{number}")
    await commands.submit("a", session="mine", correlation_id="done")
    await commands.submit("a", session="mine", correlation_id="open")
    await commands.complete("done")
    for number in range(20):
        await commands.complete(f"t{number}")
    for list_commands, name in ((commands.pending, "open"), (commands.completed, "done")):
        assert [command.correlation_id for command in await list_commands(limit=2, access=access)] == [name]
        assert {command.session for command in await list_commands(limit=2)} == {"theirs"}


async def test_pending_commands_are_listed_oldest_first(commands: CommandQueue) -> None:
    """S3.5: in any open state."""
    for number in range(4):
        await commands.submit("a", correlation_id=f"c{number}", approval=number == 1)
    await claim_command(commands)
    assert [command.correlation_id for command in await commands.pending()] == ["c0", "c1", "c2", "c3"]
    assert [command.correlation_id for command in await commands.pending(limit=2)] == ["c0", "c1"]


# S3.6: executors that poll


async def test_polling_the_queue_does_not_claim_commands(commands: CommandQueue) -> None:
    """S3.6: two polls return the same commands, oldest first, with all that is needed to run them."""
    for number in range(3):
        await commands.submit(f"a{number}", {"n": number}, correlation_id=f"c{number}")
    for _ in range(2):
        queued = await commands.queued()
        assert [(command.action, command.params, command.fence, command.attempt) for command in queued] == [
            (f"a{number}", {"n": number}, 0, 0) for number in range(3)
        ]
    assert len(await commands.queued(limit=2)) == 2 and await commands.queued("other") == []
    assert (await commands.get("c0")).status == "pending"


async def test_an_unclaimed_command_can_be_completed_without_a_fence(commands: CommandQueue) -> None:
    """S3.6: without a fence; the same result again returns the same answer, another one a conflict."""
    await commands.submit("a", correlation_id="c")
    first = await commands.complete("c", {"x": 1})
    assert (await commands.complete("c", {"x": 1})) == first == await commands.get("c")
    with pytest.raises(ConflictError, match="completed") as refusal:
        await commands.complete("c", {"x": 2})
    assert not isinstance(refusal.value, StaleClaimError) and refusal.value.current.state == "completed"  # type: ignore[attr-defined]
    with pytest.raises(ConflictError):
        await commands.fail("c", "x")
    verdicts = [event.verdict for event in await list_events(commands, "c")]
    assert verdicts == ["applied", "applied", "duplicate", "late", "late"]
    assert await commands.get("c") == first


async def test_a_claimed_command_cannot_be_completed_without_its_fence(commands: CommandQueue) -> None:
    """S3.6: the refused result is logged as late."""
    await commands.submit("a", correlation_id="c")
    claim = await claim_command(commands)
    for verb in (commands.complete, commands.fail):
        with pytest.raises(StaleClaimError):
            await verb("c", "from nobody")
    assert (await commands.get("c")).status == "pending"
    assert (await commands.complete("c", "mine", fence=claim.fence)).result == "mine"
    verdicts = [event.verdict for event in await list_events(commands, "c")]
    assert verdicts == ["applied", "applied", "late", "late", "applied"]


async def test_a_command_awaiting_approval_cannot_be_claimed_or_completed(commands: CommandQueue) -> None:
    """S3.6, S2.7: nor is it in the queue; after approval it can be run."""
    await commands.submit("a", correlation_id="c", approval=True)
    assert await commands.claim() is None and await commands.queued() == []
    for fence in (0, 1):
        with pytest.raises(StaleClaimError, match="approval"):
            await commands.complete("c", "sneaked in", fence=fence)
        with pytest.raises(StaleClaimError):
            await commands.heartbeat("c", fence)
    assert (await commands.get("c")).status == "pending"
    await answer_request(commands)
    assert (await commands.complete("c", "ran")).result == "ran"


# S3.6: executors that claim


async def test_commands_are_claimed_first_in_first_out(commands: CommandQueue) -> None:
    """S3.6: across sessions, each by a single worker."""
    names = [f"c{number}" for number in range(40)]
    for number, name in enumerate(names):
        await commands.submit("a", correlation_id=name, session=f"s{number % 3}")
        await asyncio.sleep(0.001)
    claimed_ids = [(await claim_command(commands)).correlation_id for _ in names]
    assert claimed_ids == names and await commands.claim() is None


async def test_concurrent_claims_give_each_command_to_a_single_worker(commands: CommandQueue) -> None:
    """S3.6: twenty workers in one process for ten commands."""
    for number in range(10):
        await commands.submit("a", correlation_id=f"c{number}")
    results = await asyncio.gather(*(commands.claim(worker=f"w{number}") for number in range(20)))
    assert sorted(claim.correlation_id for claim in results if claim) == [f"c{number}" for number in range(10)]
    assert {claim.fence for claim in results if claim} == {1}


async def test_a_claim_contains_all_fields_of_the_command(commands: CommandQueue) -> None:
    """S3.6: arguments, end of the lease and deadline."""
    await commands.submit("a", {"x": 1}, correlation_id="c", queue="tab", session="s", timeout=20, idempotent=True)
    before_ms = commands.log.store.time_ms()
    claim = await claim_command(commands, "tab", worker="w1", lease=5)
    assert (claim.correlation_id, claim.session, claim.action, claim.params) == ("c", "s", "a", {"x": 1})
    assert (claim.client, claim.fence, claim.attempt, claim.idempotent) == ("tab", 1, 1, True)
    assert before_ms + 5000 <= claim.lease_until <= commands.log.store.time_ms() + 5000
    assert claim.expires_at is not None and claim.expires_at > claim.created_at
    row = await commands.find("c")
    assert (row.id, row.worker, row.state) == (claim.call, "w1", "running")


async def test_each_new_command_wakes_a_single_waiting_worker(commands: CommandQueue) -> None:
    """S3.6: at once, in the same process."""
    workers = [asyncio.create_task(commands.claim(wait=60)) for _ in range(3)]
    await until_in(WORKER_WAIT, *workers)
    for number in range(3):
        await commands.submit("a", correlation_id=f"c{number}")
        done, _ = await finish_soon(asyncio.wait(workers, return_when=asyncio.FIRST_COMPLETED))
        assert len(done) == 1
        (task,) = done
        workers.remove(task)
        claim = task.result()
        assert claim is not None and claim.correlation_id == f"c{number}"


async def test_waiting_workers_query_the_queue_only_a_few_times(
    commands: CommandQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3.8: fifty waiting workers and a single command cause at most about a hundred queries."""
    query_count = 0
    query = commands.log.store.queued_commands

    async def count_query(*arguments: Any) -> Any:
        nonlocal query_count
        query_count += 1
        return await query(*arguments)

    monkeypatch.setattr(commands.log.store, "queued_commands", count_query)
    workers = [asyncio.create_task(commands.claim(wait=1)) for _ in range(50)]
    async with asyncio.timeout(QUICK_S):
        while query_count < 50:
            await asyncio.sleep(0.01)
    assert query_count == 50
    await commands.submit("a")
    results = await asyncio.gather(*workers)
    assert sum(claim is not None for claim in results) == 1
    assert query_count <= 2 * 50 + 2


@pytest.mark.parametrize("kind", ["approved", "requeued"])
async def test_an_approved_or_requeued_command_wakes_a_waiting_worker(commands: CommandQueue, kind: str) -> None:
    """S3.6: the same as a new command."""
    await commands.submit("a", correlation_id="c", approval=kind == "approved", idempotent=True)
    if kind == "requeued":
        await claim_command(commands, lease=0.2)
    worker = asyncio.create_task(commands.claim(wait=60))
    await until_in(WORKER_WAIT, worker)
    if kind == "approved":
        await answer_request(commands)
    claim = await finish_soon(worker)
    assert claim is not None and claim.attempt == (1 if kind == "approved" else 2)


async def test_a_command_of_another_process_wakes_a_waiting_worker(commands: CommandQueue, db: str) -> None:
    """S3.6: within moments."""
    with start_program("submit", db, "default", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
        for number in range(3):
            worker = asyncio.create_task(commands.claim(wait=60))
            await until_in(WORKER_WAIT, worker)
            process.stdin.write(f"action{number}\n")
            process.stdin.flush()
            name = (await asyncio.to_thread(process.stdout.readline)).strip()
            claim = await finish_soon(worker)
            assert claim is not None and (claim.call, claim.action) == (name, f"action{number}")
        _, errors = await asyncio.to_thread(process.communicate)
        assert errors == ""


async def test_a_command_is_not_lost_when_a_waiting_worker_is_cancelled(commands: CommandQueue) -> None:
    """S3.6: at any moment, also after its wake-up; no command stays claimed without a worker."""
    for loop_steps in range(12):
        leaving, staying = (asyncio.create_task(commands.claim(wait=60)) for _ in range(2))
        await until_in(WORKER_WAIT, leaving, staying)
        name = (await commands.submit("a", idempotent=True)).correlation_id
        for _ in range(loop_steps):
            await asyncio.sleep(0)
        leaving.cancel()
        async with asyncio.timeout(QUICK_S):
            result = (await asyncio.gather(leaving, return_exceptions=True))[0]
            if isinstance(result, Claim):
                await commands.submit("more")
            claim = await staying
        assert claim is not None and (isinstance(result, Claim) or claim.call == name)
        for held in (result, claim):
            if isinstance(held, Claim):
                await commands.complete(held.call, fence=held.fence)
    assert await commands.pending() == []


async def test_a_worker_claims_only_commands_of_sessions_it_may_execute(commands: CommandQueue) -> None:
    """S3.6: earlier commands of other sessions stay queued and wake other workers."""
    for number in range(40):
        await commands.submit("a", session="secret", correlation_id=f"s{number}")
    await commands.submit("a", session="open", correlation_id="o")
    access = OneSessionAccess("open", "execute")
    assert [command.correlation_id for command in await commands.queued(access=access)] == ["o"]
    assert (await claim_command(commands, access=access)).correlation_id == "o"
    assert await commands.claim_as(access, "default", {}) is None
    restricted = asyncio.create_task(commands.claim_as(access, "x", {"wait": 60}))
    await until_in(WORKER_WAIT, restricted)
    unrestricted = asyncio.create_task(commands.claim("x", wait=60))
    await until_in(WORKER_WAIT, unrestricted)
    await commands.submit("a", queue="x", session="secret")
    assert (await finish_soon(unrestricted)) is not None
    restricted.cancel()
    await asyncio.gather(restricted, return_exceptions=True)
    assert (await claim_command(commands, session="secret")).session == "secret"


# A command that is handed to a waiting worker


@asynccontextmanager
async def delaying_writes(commands: CommandQueue) -> AsyncGenerator[None]:
    """Delay all writes until the end of the block."""
    store = commands.log.store
    if is_postgres(store.url):
        writer: Any = store._writer  # type: ignore[attr-defined]
        with mock.patch.object(writer, "_take", lambda: ([], False)):
            yield
            await asyncio.sleep(0.02)
        writer._wake()
        return
    released = threading.Event()
    task = asyncio.ensure_future(store.transact(lambda unit: released.wait(10)))
    try:
        yield
        await asyncio.sleep(0.02)
    finally:
        released.set()
        await task


async def start_waiting_worker(
    commands: CommandQueue, client: str = "default", access: Access = FULL_ACCESS, **options: Any
) -> asyncio.Task[Claim | None]:
    """Start a worker that found no command and waits."""
    task = asyncio.create_task(commands.claim_as(access, client, ClaimOptions(**{"wait": 60} | options)))
    await until_in(WORKER_WAIT, task)
    return task


async def test_a_submission_with_a_waiting_worker_is_claimed_in_the_same_commit(commands: CommandQueue) -> None:
    """S3.6: the log has both events in order."""
    batches: list[list[type[ev.Event]]] = []
    commands.log.store.on_commit(lambda stored: batches.append([type(item.event) for item in stored]))
    worker = await start_waiting_worker(commands, worker="w1")
    submitted = await commands.submit("a", {"key": SECRET}, correlation_id="c")
    claim = await finish_soon(worker)
    assert batches == [[ev.CallProposed, ev.CallStarted]]
    assert claim is not None and (claim.correlation_id, claim.fence, claim.params) == ("c", 1, {"key": SECRET})
    assert (submitted.status, (await commands.find("c")).worker) == ("pending", "w1")
    assert (await commands.complete("c", 1, fence=claim.fence)).status == "complete"


@pytest.mark.parametrize("cause", ["cancelled", "timed out"])
async def test_a_command_is_requeued_when_its_worker_leaves_during_the_handover(
    commands: CommandQueue, cause: str
) -> None:
    """S3.6: no worker holds it, and it is claimed next."""
    worker = await start_waiting_worker(commands, wait=1.5 if cause == "timed out" else 30)
    async with delaying_writes(commands):
        submission = asyncio.create_task(commands.submit("a", correlation_id="c"))
        await asyncio.sleep(0.02)
        if cause == "cancelled":
            worker.cancel()
        (result,) = await asyncio.gather(worker, return_exceptions=True)
    await finish_soon(submission)
    assert result is None or isinstance(result, asyncio.CancelledError)
    assert [type(event) for event in await list_events(commands, "c")] == [
        ev.CallProposed,
        ev.CallStarted,
        ev.CallRequeued,
    ]
    assert (await claim_command(commands)).correlation_id == "c"


async def test_a_requeued_command_goes_to_the_next_waiting_worker(commands: CommandQueue) -> None:
    """S3.6: without polling."""
    leaving, staying = await start_waiting_worker(commands), await start_waiting_worker(commands)
    async with delaying_writes(commands):
        submission = asyncio.create_task(commands.submit("a", correlation_id="c"))
        await asyncio.sleep(0.02)
        leaving.cancel()
    await finish_soon(submission)
    claim = await finish_soon(staying)
    assert claim is not None and (claim.correlation_id, claim.attempt) == ("c", 2)
    await asyncio.gather(leaving, return_exceptions=True)


async def test_a_cancelled_submit_call_still_delivers_the_command(commands: CommandQueue) -> None:
    """S3.6: a submission that is being written is completed."""
    worker = await start_waiting_worker(commands)
    async with delaying_writes(commands):
        submission = asyncio.create_task(commands.submit("a", correlation_id="c"))
        await asyncio.sleep(0.02)
        submission.cancel()
    claim = await finish_soon(worker)
    assert claim is not None and (claim.correlation_id, claim.attempt) == ("c", 1)
    with pytest.raises(asyncio.CancelledError):
        await submission


@pytest.mark.parametrize("cause", ["conflict", "full", "too large"])
async def test_a_refused_submission_leaves_workers_waiting(db: str, cause: str) -> None:
    """S3.6, S3.7: the worker gets the next command."""
    async with running_commands(db, queue_limit=1, max_event=10_000) as commands:
        await commands.submit("a", correlation_id="known", session="other")
        if cause == "conflict":
            await commands.cancel("known")
        worker = await start_waiting_worker(commands, session="mine")
        fields: dict[str, Any] = {"session": "mine"}
        if cause == "conflict":
            await commands.submit("a", correlation_id="mine", session="mine")
            assert await finish_soon(worker) is not None
            worker = await start_waiting_worker(commands, session="mine")
            fields |= {"correlation_id": "mine", "params": 1}
        with pytest.raises((ConflictError, QueueFullError, InvalidInputError)):
            await commands.submit("a", "x" * 10_000 if cause == "too large" else fields.pop("params", None), **fields)
        if cause != "conflict":
            await commands.cancel("known")
        submitted = await commands.submit("a", session="mine")
        claim = await finish_soon(worker)
        assert claim is not None and claim.correlation_id == submitted.correlation_id


async def test_concurrent_commands_are_spread_over_the_waiting_workers(commands: CommandQueue) -> None:
    """S3.6: also in the same transaction, in the order of submission."""
    workers = [await start_waiting_worker(commands) for _ in range(3)]
    names = [f"c{number}" for number in range(3)]
    async with delaying_writes(commands):
        submissions = asyncio.gather(*(commands.submit("a", correlation_id=name) for name in names))
        await asyncio.sleep(0.02)
    await finish_soon(submissions)
    results = await finish_soon(asyncio.gather(*workers))
    assert [(claim.correlation_id, claim.fence) for claim in results if claim] == [(name, 1) for name in names]
    assert await commands.claim() is None


async def test_commands_beyond_the_waiting_workers_are_queued(commands: CommandQueue) -> None:
    """S3.6: each worker gets a single command, and no command is started twice."""
    workers = [await start_waiting_worker(commands) for _ in range(2)]
    async with delaying_writes(commands):
        submissions = asyncio.gather(*(commands.submit("a") for _ in range(6)))
        await asyncio.sleep(0.02)
    submitted = {command.correlation_id for command in await finish_soon(submissions)}
    results = [*await finish_soon(asyncio.gather(*workers)), *[await commands.claim() for _ in range(4)]]
    assert {claim.correlation_id for claim in results if claim} == submitted and await commands.claim() is None
    assert {claim.fence for claim in results if claim} == {1}


async def test_a_command_awaiting_approval_does_not_delay_later_commands(commands: CommandQueue) -> None:
    """S3.6: the waiting worker gets the second command while the first awaits approval."""
    worker = await start_waiting_worker(commands)
    async with delaying_writes(commands):
        first = asyncio.ensure_future(commands.submit("a", correlation_id="first", approval=True))
        second = asyncio.ensure_future(commands.submit("a", correlation_id="second"))
        await asyncio.sleep(0.02)
    await finish_soon(asyncio.gather(first, second))
    claim = await finish_soon(worker)
    assert claim is not None and claim.correlation_id == "second", "an unapproved command delays no other"


async def test_a_repeated_submission_is_handed_over_once(commands: CommandQueue) -> None:
    """S3.1, S3.6: the second of two waiting workers keeps waiting."""
    workers = [await start_waiting_worker(commands) for _ in range(2)]
    for _ in range(2):
        assert (await commands.submit("a", correlation_id="c")).correlation_id == "c"
    done, pending = await asyncio.wait(workers, timeout=0.2)
    assert [task.result() and task.result().fence for task in done] == [1] and len(pending) == 1
    await commands.submit("a", correlation_id="other")
    claim = await finish_soon(next(iter(pending)))
    assert claim is not None and claim.correlation_id == "other"


async def test_a_command_is_handed_only_to_a_worker_that_may_execute_it(commands: CommandQueue) -> None:
    """S3.6: workers without access that wait in front are skipped."""
    access = OneSessionAccess("open", "execute")
    restricted, other_session = (
        await start_waiting_worker(commands, access=access),
        await start_waiting_worker(commands, session="x"),
    )
    unrestricted = await start_waiting_worker(commands)
    secret = await commands.submit("a", session="secret")
    claim = await finish_soon(unrestricted)
    assert claim is not None and claim.correlation_id == secret.correlation_id
    visible = await commands.submit("a", session="open")
    claim = await finish_soon(restricted)
    assert claim is not None and claim.correlation_id == visible.correlation_id
    other_session.cancel()
    await asyncio.gather(other_session, return_exceptions=True)


async def test_an_error_of_a_waiting_worker_does_not_fail_the_submission(commands: CommandQueue) -> None:
    """S3.1: the worker gets the error, and the command stays for others."""
    worker = await start_waiting_worker(commands, access=BrokenAccess())
    submitted = await commands.submit("a")
    with pytest.raises(LookupError):
        await finish_soon(worker)
    assert (await claim_command(commands)).correlation_id == submitted.correlation_id


async def test_a_claim_cancelled_repeatedly_requeues_the_command(commands: CommandQueue) -> None:
    """S3.6: a caller may cancel it repeatedly."""
    assert await commands.claim() is None
    await commands.submit("a", correlation_id="c")
    async with delaying_writes(commands):
        claim_task = asyncio.create_task(commands.claim())
        for _ in range(3):
            await asyncio.sleep(0.01)
            claim_task.cancel()
    (result,) = await asyncio.gather(claim_task, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError) and (await claim_command(commands)).correlation_id == "c"


async def test_closing_the_ledger_during_a_handover_leaves_no_caller_waiting(db: str) -> None:
    """S3.3: a submission in progress is written or raises an error."""
    ledger = await open_with_settings(db)
    commands = CommandQueue(ledger.log)
    worker = await start_waiting_worker(commands)
    async with delaying_writes(commands):
        submission = asyncio.create_task(commands.submit("a", correlation_id="c"))
        await asyncio.sleep(0.02)
        closing = asyncio.create_task(ledger.close())
    await finish_soon(closing)
    submitted, claim = await finish_soon(asyncio.gather(submission, worker))
    assert claim is not None and claim.correlation_id == submitted.correlation_id == "c"


# S3.6: leases and fences


async def test_a_heartbeat_renews_the_lease(commands: CommandQueue) -> None:
    """S3.6: a heartbeat can also report progress."""
    await commands.submit("a", correlation_id="c", timeout=30)
    claim = await claim_command(commands, lease=2)
    lease_until = claim.lease_until
    for number in range(5):
        renewed = await commands.heartbeat(
            "c", claim.fence, lease=20 + number, text=f"step {number}\n", progress=number
        )
        assert renewed > lease_until
        lease_until = renewed
    async with asyncio.timeout(QUICK_S):
        while await commands.log.store.clock() <= claim.lease_until:
            await asyncio.sleep(0.02)
    assert (await commands.complete("c", "x", fence=claim.fence)).status == "complete"
    log = await list_events(commands, "c")
    assert sum(isinstance(event, ev.CallProgress) and event.verdict == "applied" for event in log) == 5


@pytest.mark.parametrize("idempotent", [False, True])
async def test_an_expired_lease_requeues_only_idempotent_commands(commands: CommandQueue, idempotent: bool) -> None:
    """S3.6: the others are lost, because the progress of the first worker is unknown."""
    await commands.submit("a", correlation_id="c", idempotent=idempotent)
    first = await claim_command(commands, worker="one", lease=0.15)
    if not idempotent:
        assert (await commands.get("c", wait=10)).status == "error"
        assert (await commands.find("c")).state == "lost" and await commands.claim() is None
        return
    second = await claim_command(commands, worker="two", wait=10)
    assert (second.call, second.fence, second.attempt) == (first.call, 2, 2)
    assert second.expires_at == first.expires_at, "a second attempt has no more time than the first"
    assert (await commands.complete("c", "two", fence=2)).result == "two"


async def test_a_late_result_is_refused_and_only_logged(commands: CommandQueue) -> None:
    """S3.6: while the command is queued again, while another worker runs it, and after its end."""
    await commands.submit("a", correlation_id="c", idempotent=True)
    stalled = await claim_command(commands, lease=0.1)
    async with asyncio.timeout(QUICK_S):
        while (await commands.find("c")).state != "queued":
            await asyncio.sleep(0.01)

    async def check_refused() -> None:
        for verb in (commands.complete, commands.fail):
            with pytest.raises(StaleClaimError):
                await verb("c", "zombie", fence=stalled.fence)
        with pytest.raises(ConflictError):
            await commands.heartbeat("c", stalled.fence)
        with pytest.raises(ConflictError):
            await commands.heartbeat("c", stalled.fence, text="zombie")

    await check_refused()
    assert (await commands.get("c")).status == "pending"
    second = await claim_command(commands)
    await check_refused()
    await commands.complete("c", "real", fence=second.fence)
    await check_refused()
    assert (await commands.get("c")).result == "real"
    zombies = [event for event in await list_events(commands, "c") if event.verdict == "late"]
    assert len(zombies) == 9, "each is kept in the log"
    assert (await find_end(commands, "c")).output == "real"  # type: ignore[attr-defined]
    snapshot = msgspec.json.encode((await commands.log.snapshot("commands")).entries)
    assert b"real" in snapshot and b"zombie" not in snapshot


@pytest.mark.parametrize("fence", [2, 999, 2**40])
async def test_an_unknown_fence_is_refused(commands: CommandQueue, fence: int) -> None:
    """S3.6: also by a heartbeat."""
    await commands.submit("a", correlation_id="c")
    with pytest.raises(StaleClaimError):
        await commands.complete("c", fence=fence)
    await claim_command(commands)
    for request in (commands.complete("c", fence=fence), commands.heartbeat("c", fence)):
        with pytest.raises(StaleClaimError):
            await request


@pytest.mark.parametrize("fence", [-1, "1", 1.5, None, 2**80])
async def test_an_invalid_fence_changes_nothing(commands: CommandQueue, fence: Any) -> None:
    """C11: refused for every type and value."""
    await commands.submit("a", correlation_id="c")
    await claim_command(commands)
    for request in (commands.complete("c", 1, fence=fence), commands.heartbeat("c", fence)):
        with pytest.raises((InvalidInputError, StaleClaimError)):
            await request
    assert (await commands.get("c")).status == "pending"


@pytest.mark.parametrize("lease", [0, -1, float("nan"), 10**10])
async def test_an_invalid_lease_worker_or_queue_is_refused(commands: CommandQueue, lease: float) -> None:
    """C11: it claims nothing."""
    await commands.submit("a", correlation_id="c")
    with pytest.raises(InvalidInputError):
        await commands.claim(lease=lease)
    claim = await claim_command(commands)
    with pytest.raises(InvalidInputError):
        await commands.heartbeat("c", claim.fence, lease=lease)
    for wrong in ({"worker": "a\nb"}, {"queue": ""}, {"queue": "x" * 201}):
        with pytest.raises(InvalidInputError):
            await commands.claim(**wrong)  # type: ignore[arg-type]


async def test_a_repeated_result_of_the_same_worker_is_accepted_once(commands: CommandQueue) -> None:
    """S3.6: for a worker that lost the response; another result is a conflict."""
    await commands.submit("a", correlation_id="c")
    claim = await claim_command(commands)
    first = await commands.complete("c", [1, 2], fence=claim.fence)
    assert await commands.complete("c", [1, 2], fence=claim.fence) == first
    with pytest.raises(ConflictError) as refusal:
        await commands.complete("c", [2, 1], fence=claim.fence)
    assert type(refusal.value) is ConflictError and refusal.value.current.id == claim.call  # type: ignore[attr-defined]


async def test_a_cancelled_command_refuses_the_workers_next_request(commands: CommandQueue) -> None:
    """S3.6: a second cancel changes nothing; a command that ended otherwise is not cancelled."""
    await commands.submit("a", correlation_id="c")
    claim = await claim_command(commands)
    first = await commands.cancel("c", "enough")
    assert first.status == "cancelled" and await commands.cancel("c", "really") == first
    for request in (commands.heartbeat("c", claim.fence), commands.complete("c", 1, fence=claim.fence)):
        with pytest.raises(ConflictError, match="cancelled"):
            await request
    await commands.submit("a", correlation_id="d")
    await commands.complete("d", 1, fence=(await claim_command(commands)).fence)
    for verb in (commands.cancel, commands.expire):
        with pytest.raises(ConflictError) as refusal:
            await verb("d")
        assert type(refusal.value) is ConflictError


# S3.7: full queues


async def test_a_full_queue_refuses_the_new_command(db: str) -> None:
    """S3.7: nothing is written; other clients have their own queues; a claim makes room."""
    async with running_commands(db, queue_limit=3) as commands:
        for number in range(3):
            await commands.submit("a", correlation_id=f"c{number}", approval=number == 2)
        head = len(await read_events(ledger_of(commands), "commands"))
        with pytest.raises(QueueFullError, match="queue 'default': full") as refusal:
            await commands.submit("a", correlation_id="c3")
        assert (refusal.value.queue, refusal.value.limit) == ("default", 3)
        assert len(await read_events(ledger_of(commands), "commands")) == head
        with pytest.raises(NotFoundError):
            await commands.get("c3")
        assert (await commands.submit("a", correlation_id="c1")).correlation_id == "c1", "a retry is no new command"
        await commands.submit("a", queue="other")
        await claim_command(commands)
        await commands.submit("a", correlation_id="c3")


async def test_a_queue_holds_a_hundred_commands_by_default(db: str) -> None:
    """S3.7: also for concurrent submissions from two ledgers on a file."""
    async with running_commands(db) as commands, await open_with_settings(db) as other:
        second = CommandQueue(other.log)
        submissions = [(commands, second)[number % 2].submit("a") for number in range(150)]
        results = await asyncio.gather(*submissions, return_exceptions=True)
        assert sum(isinstance(result, Command) for result in results) == 100
        assert sum(isinstance(result, QueueFullError) for result in results) == 50
        assert len(await commands.pending(limit=1000)) == 100
        await second.close()


async def test_a_full_queue_can_expire_its_oldest_command(db: str) -> None:
    """S3.7: it ends with a reason, and its secrets are deleted."""
    async with running_commands(db, queue_limit=5, queue_overflow="expire_oldest") as commands:
        submitted = [await commands.submit("a", {"key": SECRET, "n": n}, correlation_id=f"c{n}") for n in range(5)]
        poll = asyncio.create_task(commands.get("c0", wait=60))
        submitted += await asyncio.gather(
            *(commands.submit("a", {"key": SECRET}, correlation_id=f"d{n}") for n in range(7))
        )
        assert [command.correlation_id for command in await commands.pending()] == [f"d{n}" for n in range(2, 7)]
        first = await finish_soon(poll)
        assert (first.status, first.error) == ("expired", "a newer command took its place in a full queue")
        for command in submitted:
            row = await commands.find(command.correlation_id)
            assert (await commands.log.store.sealed(row.id) is not None) == (row.state == "queued")


# S3.8: polling and recording


async def test_polling_starts_no_write_transaction(commands: CommandQueue) -> None:
    """S3.8: a poll neither waits for a writer nor blocks one."""
    await commands.submit("a", correlation_id="c")
    written: list[object] = []
    transact = commands.log.store.transact
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            commands.log.store, "transact", lambda work, touched: written.append(work) or transact(work, touched)
        )
        for _ in range(50):
            await commands.get("c")
            await commands.pending()
            await commands.completed()
            await commands.failed()
        polls = [asyncio.create_task(commands.get("c", wait=60)) for _ in range(50)]
        await until_in(READER_WAIT, *polls)
        assert written == []
        await commands.log.append("chat", [ev.MessageUser(text="hello")])
        assert len(written) == 1
    await commands.complete("c")
    await asyncio.gather(*polls)


async def test_a_closed_command_queue_is_garbage_collected(commands: CommandQueue) -> None:
    """S3.8: for any number of queues opened and closed on a ledger."""
    trackers: list[weakref.ref[DeadlineTracker]] = []
    for _ in range(5):
        other = CommandQueue(commands.log)
        await other.submit("a")
        await other.close()
        trackers.append(weakref.ref(other.tracker))
    del other
    async with asyncio.timeout(60):
        while any(tracker() is not None for tracker in trackers[:-1]):  # A traceback may still refer to the last one.
            gc.collect()
            await asyncio.sleep(0.01)  # A thread that ends its work may refer to one.


async def test_executors_not_seen_for_a_long_time_are_removed(commands: CommandQueue, clock: Clock) -> None:
    """S3.11: the list of clients does not grow forever."""
    await commands.claim("old")
    clock.offset_s = 40 * 24 * 3600
    await commands.claim("new")
    assert list(await commands.log.store.executors()) == ["new"]


@pytest.mark.parametrize("client", ["", "x" * 201, "\ud800", None])
async def test_an_invalid_queue_name_is_refused_and_not_stored(commands: CommandQueue, client: Any) -> None:
    """S3.11, C11: for polls and claims."""
    for method in (commands.queued, commands.claim):
        with pytest.raises(InvalidInputError, match="queue"):
            await method(client)
    assert await commands.log.store.executors() == {}


INDEXED_QUERIES = (
    *("queued_commands", "commands_before", "pending_count", "oldest_pending", "commands_changed", "last_change"),
    *("pending_commands", "completed_commands", "failed_commands", "failed_commands_of", "alias_everywhere", "call"),
    *("calls_due", "calls_leased", "calls_of_owners", "approvals_due", "owned_calls", "open_calls", "all_open_calls"),
    *("open_owners", "turns_of_owners", "answered_approvals"),
)


@pytest.mark.parametrize("name", INDEXED_QUERIES)
def test_command_queries_use_an_index(name: str) -> None:
    """S3.8: no query scans all commands."""
    connection = apsw.Connection(":memory:")
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    for _, sql in migrations("sqlite"):
        connection.execute(sql)
    plan = connection.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", (None,) * _count_bindings(SQL[name])).fetchall()
    connection.close()
    allowed_scans = (
        "commands_",
        "calls_o",
        "approvals_answered",
        "CONSTANT ROW",
        "(subquery",
        "json_each",
        "SCAN of_",
        "SCAN found",
    )
    for step in (row[3] for row in plan):
        assert "SCAN" not in step or any(part in step for part in allowed_scans), plan
        assert "calls_by_session" not in step, plan


def _count_bindings(sql: str) -> int:
    numbers = [int(number) for number in re.findall(r"\?(\d+)", sql)]
    return max(numbers) if numbers else sql.count("?")


async def test_the_tracker_is_empty_when_no_commands_are_open(commands: CommandQueue) -> None:
    """S3.8: for any number of earlier commands and every kind of end."""
    submitted = [commands.submit("a", correlation_id=f"c{n}", timeout=0.5 if n % 2 else 30) for n in range(50)]
    await asyncio.gather(*submitted)
    assert len(commands.tracker.pending) == 50
    await asyncio.gather(*(commands.complete(f"c{n}") for n in range(0, 50, 2)))
    async with asyncio.timeout(QUICK_S):
        while commands.tracker.pending:
            await asyncio.sleep(0.02)
    assert commands.tracker.next_due == 0


# Secrets


async def test_secrets_are_shown_only_to_the_executor(commands: CommandQueue) -> None:
    """C12: log, entries and polls have them redacted; they are deleted after the end."""
    params = {"headers": {"Authorization": f"Bearer {SECRET}"}, "n": 1}
    await commands.submit("a", params, correlation_id="c")
    row = await commands.find("c")
    (queued,) = await commands.queued()
    claim = await claim_command(commands)
    assert queued.params == claim.params == params
    views = [await commands.get("c"), await commands.pending(), (await commands.log.snapshot("commands")).entries]
    log = [body for _, body in await commands.log.store.events("commands", 0, 100)]
    assert SECRET not in repr(views) and not any(SECRET.encode() in body for body in log)
    assert await commands.log.store.sealed(row.id) is not None
    await commands.complete("c", {"echo": SECRET}, fence=claim.fence)
    assert await commands.log.store.sealed(row.id) is None
    assert SECRET not in repr([await commands.get("c"), await commands.completed()])


@pytest.mark.parametrize("end_kind", ENDINGS)
async def test_every_kind_of_end_deletes_the_secrets(commands: CommandQueue, db: str, end_kind: str) -> None:
    """C12: from the file of SQLite too, not only from the tables."""
    end, needs_approval, _, _ = ENDINGS[end_kind]
    await commands.submit("a", {"key": SECRET}, correlation_id="c", approval=needs_approval)
    await end(commands, "c")
    assert fetch_rows(db, "SELECT count(*) FROM sealed") == [(0,)]
    if not is_postgres(db):
        fetch_rows(db, "PRAGMA wal_checkpoint(TRUNCATE)")
    assert SECRET.encode() not in read_stored_bytes(db)


async def test_editing_arguments_keeps_the_redacted_secrets(commands: CommandQueue) -> None:
    """S2.7, C12: a redacted value that the approver leaves unchanged is restored before the run."""
    params = {"key": SECRET, "url": "http://a", "deep": {"token": SECRET, "n": 1}}
    await commands.submit("a", params, correlation_id="c", approval=True)
    entry = next(e for e in (await commands.log.snapshot("commands")).entries if getattr(e, "raw_input", None))
    redacted: dict[str, Any] = entry.raw_input  # type: ignore[attr-defined]
    assert SECRET not in repr(redacted)
    await answer_request(commands, input=redacted | {"url": "http://b", "deep": {**redacted["deep"], "n": 2}})
    assert (await claim_command(commands)).params == {
        "key": SECRET,
        "url": "http://b",
        "deep": {"token": SECRET, "n": 2},
    }


async def test_editing_arguments_can_replace_a_secret(commands: CommandQueue) -> None:
    """S2.7: an approver may remove or replace it."""
    await commands.submit("a", {"key": SECRET, "other": SECRET}, correlation_id="c", approval=True)
    await answer_request(commands, input={"key": "none"})
    assert (await claim_command(commands)).params == {"key": "none"}


async def test_a_submission_that_differs_only_in_a_secret_is_a_conflict(commands: CommandQueue) -> None:
    """S3.1, C7: the redacted arguments are equal, but the full ones are compared."""
    await commands.submit("a", {"key": SECRET}, correlation_id="c")
    await commands.submit("a", {"key": SECRET}, correlation_id="c")
    with pytest.raises(ConflictError):
        await commands.submit("a", {"key": SECRET[:-3] + "zzz"}, correlation_id="c")
    assert (await claim_command(commands)).params == {"key": SECRET}


# S3.11: presence of executors


async def test_a_pending_command_has_its_position_and_executor_time(commands: CommandQueue) -> None:
    """S3.11: which is next, and when an executor of its client last asked for work."""
    for number in range(3):
        await commands.submit("a", correlation_id=f"c{number}")
    assert [(await commands.get(f"c{number}")).position for number in range(3)] == [1, 2, 3]
    assert (await commands.get("c0")).executor_seen_at is None
    await commands.claim("other")
    assert (await commands.get("c0")).executor_seen_at is None
    await claim_command(commands)
    second = await commands.get("c1")
    assert second.position == 1 and isinstance(second.executor_seen_at, str)
    assert second.executor_seen_at >= second.created_at
    assert (await commands.get("c0")).position is UNSET, "it runs"


async def test_polling_executors_are_seen_by_other_processes(commands: CommandQueue, db: str) -> None:
    """S3.11: the process that answers the poll may be another one."""
    await commands.submit("a", correlation_id="c")
    async with await open_with_settings(db) as ledger:
        other = CommandQueue(ledger.log)
        assert (await other.get("c")).executor_seen_at is None
        await commands.queued()
        assert (await other.get("c")).executor_seen_at is not None


# Retention, reopening, older files and reapers


async def test_open_commands_survive_retention(commands: CommandQueue) -> None:
    """S3.5, C9: they run with their arguments; ended commands are removed with their events."""
    await commands.submit("a", correlation_id="ended")
    await commands.complete("ended", 1)
    await commands.submit("a", {"n": 1, "key": SECRET}, correlation_id="queued")
    await commands.submit("a", {"n": 2}, correlation_id="asks", approval=True, queue="x")
    await commands.submit("a", {"n": 3}, correlation_id="runs", queue="y", idempotent=True)
    running = await claim_command(commands, "y", lease=0.3)
    await asyncio.sleep(0.002)
    assert await commands.log.prune(0) >= 7
    assert [str(fault) for fault in await verify(commands.log)] == []
    with pytest.raises(NotFoundError):
        await commands.get("ended")
    assert (await commands.submit("a", {"n": 1, "key": SECRET}, correlation_id="queued")).final is False
    with pytest.raises(ConflictError):
        await commands.submit("a", {"n": 9, "key": SECRET}, correlation_id="queued")
    assert (await claim_command(commands)).params == {"n": 1, "key": SECRET}
    await answer_request(commands)
    assert (await claim_command(commands, "x")).params == {"n": 2}
    second_claim = await claim_command(commands, "y", wait=10)
    assert (second_claim.params, second_claim.fence) == ({"n": 3}, running.fence + 1)
    with pytest.raises(StaleClaimError):
        await commands.complete("runs", "zombie", fence=running.fence)
    assert (await commands.complete("runs", "x", fence=second_claim.fence)).result == "x"
    assert not await find_faults(ledger_of(commands))


async def test_commands_survive_reopening_the_ledger(db: str) -> None:
    """S3.5: queued, claimed and ended; the worker continues with its fence."""
    async with await open_with_settings(db) as ledger:
        commands = CommandQueue(ledger.log)
        for name in ("ended", "runs", "queued"):
            await commands.submit("a", {"name": name, "key": SECRET}, correlation_id=name)
            if name == "ended":
                await commands.complete("ended", 7)
            if name == "runs":
                claim = await claim_command(commands)
        await commands.close()
    async with running_commands(db) as commands:
        assert (await commands.get("ended")).result == 7
        assert (await commands.complete("runs", 8, fence=claim.fence)).result == 8
        assert (await claim_command(commands)).params == {"name": "queued", "key": SECRET}


async def test_a_command_stays_queued_after_its_submitter_closes(db: str) -> None:
    """C5: the process that submitted it closes its ledger, and the command stays in the queue."""
    async with await open_with_settings(db) as ledger:
        submitted = await CommandQueue(ledger.log).submit("a", {"x": 1})
    async with running_commands(db) as commands:
        assert (await claim_command(commands)).call == submitted.correlation_id


async def create_second_schema(path: Path) -> None:
    """Create a file of the version before commands: a session with an ended call and an open one."""
    new = path.with_name("new.db")
    async with await callslip.open(f"sqlite:///{new}") as ledger:
        drafts = [
            ev.CallProposed(tool_name="old", scope="detached"),
            ev.CallProposed(tool_name="done", scope="detached"),
        ]
        events = await ledger.log.append("old", drafts)
        await ledger.log.append("old", [ev.CallCompleted(call=events[1].call, output="x")])  # type: ignore[attr-defined]
    connection = apsw.Connection(str(path))
    for number, sql in migrations("sqlite")[:2]:
        connection.execute(sql)
        connection.execute(f"PRAGMA user_version = {number}")
    connection.execute("INSERT INTO meta VALUES ('oldest_reader', '1')")
    connection.execute(f"PRAGMA application_id = {sqlite_open.APPLICATION_ID}")
    connection.execute("ATTACH ? AS new", (str(new),))
    for table in ("sessions", "events", "calls", "aliases"):
        rows = connection.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
        columns = ", ".join(f'"{name}"' for (name,) in rows)
        connection.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM new.{table}")
    connection.close()


async def test_a_file_without_command_tables_is_migrated(tmp_path: Path, db: str) -> None:
    """S1.7: it is migrated, its calls stay what they were, and commands work in it."""
    await create_second_schema(tmp_path / "ledger.db")
    async with running_commands(db) as commands:
        assert {row.tool: (row.state, row.client) for row in (await ledger_of(commands).calls()).items} == {
            "old": ("queued", ""),
            "done": ("completed", ""),
        }
        assert await commands.pending() == [] and await commands.claim() is None
        await commands.submit("a", {"key": SECRET}, session="old", correlation_id="c")
        claim = await claim_command(commands)
        assert claim.params == {"key": SECRET}
        assert (await commands.complete("c", 1, fence=claim.fence)).status == "complete"
        assert (await commands.find("c")).entry == 4


async def test_a_read_only_file_without_command_tables_has_no_commands(
    tmp_path: Path, db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.7: it is read unchanged, and a submission raises ReadOnlyStoreError."""
    await create_second_schema(tmp_path / "ledger.db")
    before = (tmp_path / "ledger.db").read_bytes()
    monkeypatch.setattr(sqlite_open, "is_writable", lambda path: False)
    async with await callslip.open(db) as ledger:
        commands = CommandQueue(ledger.log)
        assert await commands.pending() == await commands.completed() == await commands.failed() == []
        assert await commands.queued() == [] and await commands.claim(wait=0.05) is None
        (row,) = [row for row in (await ledger.calls()).items if row.tool == "done"]
        assert (await commands.get(row.id)).result == "x"
        with pytest.raises(ReadOnlyStoreError):
            await commands.submit("a")
        await commands.close()
    assert (tmp_path / "ledger.db").read_bytes() == before


@pytest.mark.parametrize("action", ["end", "delete"])
async def test_a_waiting_poll_returns_when_an_older_version_ends_the_command(
    db: str, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.7: the older version sends no notification and does not delete secrets."""
    if action == "delete":
        monkeypatch.setattr(monitor, "END_POLL_S", 0.1)
    async with await open_with_settings(db, reaper_interval=3600) as ledger:
        commands = CommandQueue(ledger.log)
        await commands.submit("a", {"key": SECRET}, correlation_id="c")
        call = (await commands.find("c")).id
        assert await ledger.log.store.sealed(call) is not None
        poll = asyncio.create_task(commands.get("c", wait=60))
        await until_in(READER_WAIT, poll)
        older = apsw.Connection(db.removeprefix("sqlite:///"))
        older.execute(
            "UPDATE calls SET state = 'cancelled', ended_at = 1, reason = 'by an older one' WHERE id = ?"
            if action == "end"
            else "DELETE FROM calls WHERE id = ?",
            (call,),
        )
        older.close()
        if action == "end":
            assert (await finish_soon(poll)).error == "by an older one" and not commands.tracker.pending
        else:
            with pytest.raises(NotFoundError):
                await finish_soon(poll)
        assert await ledger.log.store.sealed(call) is None
        await commands.submit("b", correlation_id="d")
        assert (await commands.find("d")).change == (3 if action == "end" else 2)


async def test_concurrent_reapers_end_a_command_once(db: str) -> None:
    """C4, S3.4: timers and reapers of three ledgers on one file, one end for each."""
    async with running_commands(db, reaper_interval=0.02, reaper_grace=0.02) as commands:
        other_ledgers = [await open_with_settings(db, reaper_interval=0.02, reaper_grace=0.02) for _ in range(2)]
        other_queues = [CommandQueue(ledger.log) for ledger in other_ledgers]
        names = [f"c{number}" for number in range(30)]
        for number, name in enumerate(names):
            await (commands, *other_queues)[number % 3].submit("a", correlation_id=name, timeout=0.2)
        results = await asyncio.gather(*(other_queues[n % 2].get(name, wait=10) for n, name in enumerate(names)))
        assert {result.status for result in results} == {"expired"}
        for name in names:
            assert len(await list_events(commands, name)) == 2
        for queue in other_queues:
            await queue.close()
            await queue.log.close()


async def test_the_reaper_spares_a_command_with_a_concurrent_heartbeat(db: str) -> None:
    """C5, S3.6: the heartbeat comes after the reaper has read the command."""
    async with running_commands(db, reaper_interval=1e6, reaper_grace=0.0) as commands:
        log = commands.log
        await commands.submit("a", correlation_id="c")
        claim = await claim_command(commands, lease=0.01)
        await asyncio.sleep(0.02)
        stale = await log.store.calls_due(2**62)
        await commands.heartbeat("c", claim.fence, lease=30)

        async def read_stale(until: int) -> Any:
            return stale

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log.store, "calls_due", read_stale)
            reaper = Reaper(log.store, log.write_context(source="callslip", strict=True), Settings(reaper_grace=0.0))
            assert await reaper.reap() == 0
        assert (await commands.complete("c", 1, fence=claim.fence)).status == "complete"
