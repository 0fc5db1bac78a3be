"""Test the library as a program that runs tools uses it: calls, tools, approvals, waiting, sync use."""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import importlib
import pkgutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.api.session import Session
from callslip.errors import (
    AmbiguousIdError,
    CallDeniedError,
    CallEndedError,
    ConflictError,
    InvalidInputError,
    InvalidTransitionError,
    NotFoundError,
)
from callslip.model import events as ev
from callslip.model.entries import ToolCall
from callslip.model.events import Alias
from callslip.model.records import ApprovalRecord
from tests.support.invariants import PROGRAMS, open_with_settings, read_events, sound_ledger, start_program
from tests.support.tasks import until_in

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with sound_ledger(db, reaper_interval=0.02) as ledger:
        yield ledger


@pytest.fixture
async def session(ledger: LocalLedger) -> AsyncIterator[Session]:
    """Return the current session of the test, in which tools record their calls."""
    session = ledger.session("a")
    with session.use():
        yield session


async def load_entry(ledger: LocalLedger, call: str = "") -> ToolCall:
    """Return the entry of a call, by default of the last one."""
    calls = [item for item in (await ledger.snapshot("a")).entries if isinstance(item, ToolCall)]
    return [item for item in calls if call in ("", item.call_id)][-1]


# Calls


async def test_a_call_is_shown_while_it_runs_and_after(ledger: LocalLedger, session: Session) -> None:
    """C4: running inside the block, completed after it, with its output."""
    async with session.call("get_weather", {"city": "Paris"}, title="Weather", kind="fetch") as call:
        view = await load_entry(ledger)
        assert (view.status, view.raw_input, view.title, view.kind) == (
            "running",
            {"city": "Paris"},
            "Weather",
            "fetch",
        )
        await call.progress("asking ")
        await call.progress("them", title="Weather of Paris", locations=[{"path": "x"}])
        call.complete({"sky": "blue"})
        assert (await load_entry(ledger)).status == "running"
    view = await load_entry(ledger)
    assert (view.status, view.output, view.output_text) == ("completed", {"sky": "blue"}, "asking them")
    assert (view.title, view.locations) == ("Weather of Paris", [{"path": "x"}])
    assert view.call_id == call.id and (await call.result()).source == "python"


async def test_a_call_completes_without_an_explicit_result(ledger: LocalLedger, session: Session) -> None:
    """A block that sets no outcome completes with the output None."""
    async with session.call("touch"):
        pass
    assert ((await load_entry(ledger)).status, (await load_entry(ledger)).output) == ("completed", None)


async def test_a_call_may_fail_without_an_exception(ledger: LocalLedger, session: Session) -> None:
    """`fail` records an error, and the program continues."""
    async with session.call("grep") as call:
        call.fail({"exit": 2}, "no such file")
    view = await load_entry(ledger)
    assert (view.status, view.error, view.reason) == ("failed", {"exit": 2}, "no such file")


async def test_an_exception_fails_the_call_and_is_raised(ledger: LocalLedger, session: Session) -> None:
    """C5: the call has the error text, and the program gets its own exception."""
    with pytest.raises(ValueError, match="it broke") as raised:
        async with session.call("t"):
            raise ValueError("it broke")
    view = await load_entry(ledger)
    assert (view.status, view.reason) == ("failed", "ValueError: it broke")
    assert view.error == {"error": "it broke", "type": "ValueError"} and raised.value.__cause__ is None


async def test_an_exception_overrides_an_earlier_result(ledger: LocalLedger, session: Session) -> None:
    """C5: `complete` does not hide an exception that follows it."""
    with pytest.raises(ValueError):
        async with session.call("t") as call:
            call.complete("fine")
            raise ValueError
    assert (await load_entry(ledger)).status == "failed"


async def test_cancelling_cancels_the_call(ledger: LocalLedger, session: Session) -> None:
    """C5: a cancelled task leaves a cancelled call, and stays cancelled itself."""
    started = asyncio.Event()

    async def work() -> None:
        async with session.call("t"):
            started.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ((await load_entry(ledger)).status, (await load_entry(ledger)).reason) == (
        "cancelled",
        "cancelled by the program that ran it",
    )


async def test_cancelling_at_any_moment_leaves_no_call_open(ledger: LocalLedger, session: Session) -> None:
    """C5: also while the start or the end of the call is being stored."""

    async def work() -> None:
        async with session.call("t"):
            await asyncio.sleep(0)

    for steps in range(40):
        task = asyncio.create_task(work())
        for _ in range(steps):
            await asyncio.sleep(0.0002)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert await ledger.log.store.open_calls() == []
    assert {row.state for row in (await ledger.calls(limit=1000)).items} <= {"cancelled", "completed"}


async def test_a_timeout_expires_the_call(ledger: LocalLedger, session: Session) -> None:
    """C5: the call is expired, the work is cancelled, and the program gets CallEndedError."""
    stopped = False
    with pytest.raises(CallEndedError) as ended:
        async with session.call("t", timeout=0.02):
            try:
                await asyncio.sleep(60)
            finally:
                stopped = True
    assert stopped and ended.value.state == "expired" and "0.02 s" in ended.value.reason
    assert ((await load_entry(ledger)).status, (await load_entry(ledger)).reason) == (
        "expired",
        "no result within 0.02 s",
    )


async def test_a_timeout_error_of_the_program_is_a_failure(ledger: LocalLedger, session: Session) -> None:
    """A TimeoutError that the work raises fails the call; one from outside cancels it."""
    with pytest.raises(TimeoutError):
        async with session.call("t", timeout=60):
            raise TimeoutError("the server did not answer")
    assert (await load_entry(ledger)).status == "failed"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02), session.call("t", timeout=60):
            await asyncio.sleep(60)
    assert (await load_entry(ledger)).status == "cancelled"


async def test_a_call_that_was_ended_from_outside_stays_ended(ledger: LocalLedger, session: Session) -> None:
    """C4: a cancelled call does not complete; its result is stored as late."""
    async with session.call("t") as call:
        await ledger.log.append("a", [ev.CallCancelled(call=call.id, reason="a person stopped it")])
        call.complete("too late")
    view = await load_entry(ledger)
    assert (view.status, view.reason, view.output, bool(view.late)) == (
        "cancelled",
        "a person stopped it",
        None,
        True,
    )


async def test_the_same_call_twice_is_two_calls(ledger: LocalLedger, session: Session) -> None:
    """C3: with equal tools and arguments, sequentially or in parallel."""

    async def ls() -> str:
        async with session.call("ls", {"path": "."}) as call:
            await asyncio.sleep(0)
        return call.id

    ids = [await ls(), *await asyncio.gather(ls(), ls())]
    assert len(set(ids)) == 3 and len((await ledger.calls()).items) == 3


async def test_an_invalid_transition_raises(ledger: LocalLedger, session: Session) -> None:
    """C4: in the own process an invalid transition raises, and nothing is stored."""
    (event,) = await session.append(ev.CallProposed(tool_name="t"))
    assert isinstance(event, ev.CallProposed)
    with pytest.raises(InvalidTransitionError, match="queued"):
        await session.append(ev.CallRequeued(call=event.call))
    assert len(await read_events(ledger, "a")) == 1


async def test_a_session_records_prompts_thoughts_and_messages(ledger: LocalLedger, session: Session) -> None:
    """A session records the prompt, thoughts and messages of a turn."""
    assert await session.start_turn("hello") == "t1"
    await session.think("greet back. ")
    await session.say("Hi ")
    await session.say("there.")
    await session.end_turn()
    snapshot = await session.snapshot()
    assert [(item.type, item.content) for item in map(EntryView, snapshot.entries)] == [
        ("message", "hello"),
        ("thought", "greet back. "),
        ("message", "Hi there."),
    ]
    assert len((await session.snapshot(limit=1)).entries) == 1


class EntryView:
    """The type and the text of an entry."""

    def __init__(self, item: Any) -> None:
        self.type = type(item).__struct_config__.tag
        self.content = item.content


# Tools


async def test_functions_of_every_kind_are_tools(ledger: LocalLedger, session: Session) -> None:
    """Sync, async, generator and async generator: each returns its own result and records a call."""

    @callslip.tool
    def add(a: int, b: int = 2) -> int:
        return a + b

    @callslip.tool
    async def wait(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @callslip.tool
    def count(upto: int) -> Iterator[int]:
        yield from range(upto)

    @callslip.tool(name="lines")
    async def read() -> AsyncIterator[str]:
        yield "one\n"
        yield "two\n"

    assert await add(1) == 3 and await add(b=5, a=1) == 6
    assert await wait(0) == "done"
    assert await count(3) == 2
    assert await read() == "two\n"
    entries = [item for item in (await ledger.snapshot("a")).entries if isinstance(item, ToolCall)]
    assert [(item.tool_name, item.raw_input, item.output, item.output_text) for item in entries] == [
        ("add", {"a": 1, "b": 2}, 3, ""),
        ("add", {"a": 1, "b": 5}, 6, ""),
        ("wait", {"seconds": 0}, "done", ""),
        ("count", {"upto": 3}, 2, "0\n1\n2\n"),
        ("lines", {}, "two\n", "one\ntwo\n"),
    ]
    assert add.__name__ == "add" and {item.status for item in entries} == {"completed"}


async def test_a_tool_needs_a_session(ledger: LocalLedger) -> None:
    """Outside `session.use()` and turns the tool does not run; inside a turn it does."""
    paths: list[str] = []

    @callslip.tool
    def touch(path: str) -> None:
        paths.append(path)

    with pytest.raises(callslip.NoSessionError, match="no current session"):
        await contextvars.Context().run(lambda: asyncio.create_task(touch("a")))
    async with ledger.session("s").turn("Touch b"):
        await touch("b")
    assert paths == ["b"]


async def test_a_tool_takes_arguments_of_every_kind(session: Session) -> None:
    """Positional-only, variable and keyword arguments reach the function unchanged."""

    @callslip.tool
    def collect(first: int, /, second: int, *rest: int, named: int = 0, **more: int) -> list[Any]:
        return [first, second, rest, named, more]

    assert await collect(1, 2, 3, 4, named=5, other=6) == [1, 2, (3, 4), 5, {"other": 6}]
    with pytest.raises(TypeError):
        await collect()


async def test_a_sync_tool_does_not_block_the_loop(session: Session) -> None:
    """The loop runs while a sync tool waits for it."""

    released = threading.Event()

    @callslip.tool
    def wait() -> bool:
        return released.wait(10)

    results = asyncio.gather(wait(), wait())
    asyncio.get_running_loop().call_later(0.01, released.set)
    assert await results == [True, True]


async def test_a_tool_that_fails_fails_its_call(ledger: LocalLedger, session: Session) -> None:
    """C5: for every kind of function, at its start or in the middle."""

    @callslip.tool
    def now() -> None:
        raise ValueError("now")

    @callslip.tool
    async def later() -> AsyncIterator[int]:
        yield 1
        raise ValueError("later")

    @callslip.tool
    def halfway() -> Iterator[int]:
        yield 1
        raise ValueError("halfway")

    @callslip.tool(timeout=0.02)
    async def never() -> None:
        await asyncio.sleep(60)

    for tool in (now, later, halfway):
        with pytest.raises(ValueError):
            await tool()
    with pytest.raises(CallEndedError):
        await never()
    states = [row.state for row in (await ledger.calls()).items]
    assert sorted(states) == ["expired", "failed", "failed", "failed"]


async def test_any_arguments_and_results_are_shown_safely(ledger: LocalLedger, session: Session) -> None:
    """S1.5: the function receives and returns the original object, the ledger stores JSON."""
    cycle: list[Any] = [1]
    cycle.append(cycle)
    values = [b"\xff", b"text", datetime.date(2026, 1, 2), ValueError("x"), {1, 2}, cycle, float("nan"), object, ledger]

    @callslip.tool
    def return_unchanged(value: Any) -> Any:
        return value

    for value in values:
        assert await return_unchanged(value) is value
    outputs = [item.output for item in (await ledger.snapshot("a")).entries if isinstance(item, ToolCall)]
    assert outputs[:7] == [
        {"base64": "/w=="},
        "text",
        "2026-01-02",
        {"error": "x", "type": "ValueError"},
        [1, 2],
        [1, "[cycle]"],
        "NaN",
    ]
    assert all(isinstance(output, str) for output in outputs[7:])


# Approvals


async def wait_for_request(ledger: LocalLedger) -> ApprovalRecord:
    """Wait for a pending request and return it."""
    async with asyncio.timeout(10):
        while not (pending := await ledger.approvals()):
            await asyncio.sleep(0.005)
    return pending[0]


async def test_a_call_waits_for_its_approval(ledger: LocalLedger, session: Session) -> None:
    """S2.7, S2.13: nothing runs before the answer; then the call runs, and the request has its author."""
    paths: list[str] = []

    @callslip.tool(approval=True)
    def remove(path: str) -> str:
        paths.append(path)
        return "removed"

    task = asyncio.create_task(remove("x"))
    request = await wait_for_request(ledger)
    for _ in range(3):  # A tool that did not wait would have run by the end of these writes.
        await ledger.session("other").say("meanwhile")
    assert not paths and not task.done() and (await load_entry(ledger)).status == "awaiting_approval"
    assert request.call == (await load_entry(ledger)).call_id
    answered = await ledger.approve(request.id, by="ann", reason="go ahead")
    assert (answered.state, answered.by, answered.option) == ("granted", "ann", "approve")
    assert await task == "removed" and paths == ["x"]
    assert await ledger.approvals() == []


async def test_a_denied_call_does_not_run(ledger: LocalLedger, session: Session) -> None:
    """S2.7: the tool raises CallDeniedError with the reason, which the call has too."""

    @callslip.tool(approval=True)
    def remove(path: str) -> None:
        raise AssertionError("ran")

    task = asyncio.create_task(remove("x"))
    await ledger.deny((await wait_for_request(ledger)).id, by="ann", reason="that is my thesis")
    with pytest.raises(CallDeniedError, match="that is my thesis"):
        await task
    assert ((await load_entry(ledger)).status, (await load_entry(ledger)).reason) == ("denied", "that is my thesis")


async def test_edited_arguments_are_the_ones_that_run(ledger: LocalLedger, session: Session) -> None:
    """S2.7: the function gets the edited arguments, and the entry shows them."""

    @callslip.tool(approval=True)
    def remove(path: str, force: bool = False) -> str:
        return f"{path} {force}"

    task = asyncio.create_task(remove("/", force=True))
    await ledger.approve((await wait_for_request(ledger)).id, by="ann", input={"path": "/tmp/x"})
    assert await task == "/tmp/x False"
    assert (await load_entry(ledger)).raw_input == {"path": "/tmp/x"}


async def test_a_request_without_an_answer_is_denied(db: str) -> None:
    """C5, S2.7: after the expiry the call is denied, and the program gets CallDeniedError."""
    async with await open_with_settings(db, approval_expiry=0.1, reaper_interval=0.02) as ledger:
        async with asyncio.timeout(10):
            with pytest.raises(CallDeniedError, match="no answer in time"):
                async with ledger.session("a").call("t", approval=True):
                    raise AssertionError("entered")
        assert (await load_entry(ledger)).status == "denied"


async def test_one_of_many_answers_wins(ledger: LocalLedger, session: Session) -> None:
    """S2.7: the others raise ConflictError with the winner."""
    task = asyncio.create_task(_enter_call(session))
    request = await wait_for_request(ledger)
    results = await asyncio.gather(
        *(ledger.approve(request.id, by=f"p{n}") for n in range(5)),
        *(ledger.deny(request.id, by=f"q{n}") for n in range(5)),
        return_exceptions=True,
    )
    winners = [result for result in results if isinstance(result, ApprovalRecord)]
    conflicts = [result for result in results if isinstance(result, ConflictError)]
    assert len(winners) == 1 and len(conflicts) == 9
    assert all(isinstance(error.current, ApprovalRecord) and error.current.by == winners[0].by for error in conflicts)
    await asyncio.gather(task, return_exceptions=True)
    with pytest.raises(ConflictError):
        await ledger.approve(request.id, by=winners[0].by)


async def _enter_call(session: Session) -> None:
    async with session.call("t", approval=True):
        pass


async def test_an_answer_from_another_process_arrives(ledger: LocalLedger, session: Session, db: str) -> None:
    """S2.7: the answer wakes the call in this process."""
    task = asyncio.create_task(_enter_call(session))
    process = start_program("finish", db, "approve", (await wait_for_request(ledger)).id)
    assert await asyncio.to_thread(process.communicate) == ("", "")
    async with asyncio.timeout(10):
        await task
    assert (await load_entry(ledger)).status == "completed"


async def test_requests_and_answers_survive_a_restart(db: str) -> None:
    """S2.7: the request of an external agent is pending after a restart, and its answer survives the next."""
    alias = (Alias("acp", "c"),)
    options = [{"optionId": "yes", "name": "Do it", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
    async with await callslip.open(db) as ledger:
        await ledger.log.append(
            "a", [ev.ApprovalRequested(tool_name="rm", aliases=alias, input={"path": "/"}, options=options)]
        )
    async with await callslip.open(db) as ledger:
        (request,) = await ledger.approvals()
        assert request.options == options and (await ledger.find_call("c")).state == "awaiting_approval"
        await ledger.deny(request.id, by="ann", reason="no")
    async with await callslip.open(db) as ledger:
        answered = await ledger.find_approval(request.id)
        assert (answered.state, answered.by, answered.option) == ("refused", "ann", "no")
        with pytest.raises(ConflictError) as conflict:
            await ledger.approve(request.id, by="bob")
        assert conflict.value.current == answered and (await ledger.find_call("c")).state == "denied"


async def test_an_answer_is_bound_to_the_arguments_of_the_request(ledger: LocalLedger, session: Session) -> None:
    """For a call that this process runs, arguments that changed after the request make the answer a conflict."""
    task = asyncio.create_task(_enter_call(session))
    request = await wait_for_request(ledger)
    await session.append(ev.CallInput(call=request.call, input={"path": "/"}))
    with pytest.raises(ConflictError, match="changed"):
        await ledger.approve(request.id, by="ann")
    assert (await wait_for_request(ledger)).id == request.id
    await ledger.deny(request.id, by="ann")
    with pytest.raises(CallDeniedError):
        await task


async def test_approvals_are_found_and_options_checked(ledger: LocalLedger, session: Session) -> None:
    """A prefix must be unique; an option must be offered and must match the answer."""
    tasks = [asyncio.create_task(_enter_call(session)) for _ in range(2)]
    async with asyncio.timeout(10):
        while len(pending := await ledger.approvals()) < 2:
            await asyncio.sleep(0.005)
    first, second = pending
    assert (await ledger.find_approval(first.id[:-1])).id == first.id
    with pytest.raises(AmbiguousIdError):
        await ledger.find_approval("appr_")
    for wrong in ("", "appr_x", "nothing"):
        with pytest.raises(NotFoundError):
            await ledger.find_approval(wrong)
    with pytest.raises(NotFoundError):
        await ledger.find_approval(first.id, "another")
    with pytest.raises(InvalidInputError, match="offers no option 'perhaps'"):
        await ledger.approve(first.id, by="ann", option="perhaps")
    with pytest.raises(InvalidInputError, match="rejects the call"):
        await ledger.approve(first.id, by="ann", option="deny")
    with pytest.raises(InvalidInputError, match="allows the call"):
        await ledger.deny(first.id, by="ann", option="approve")
    await ledger.withdraw(first.id, by="ann", reason="asked by mistake")
    assert (await ledger.find_call(first.call)).state == "cancelled"
    await ledger.approve(second.id, by="ann", option="approve")
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["CallDeniedError", "NoneType"]


async def test_a_program_that_stops_waiting_cancels_the_call(ledger: LocalLedger, session: Session) -> None:
    """C5: no request is left that could still be approved."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), session.call("t", approval=True):
            raise AssertionError("entered")
    assert (await load_entry(ledger)).status == "cancelled" and await ledger.approvals() == []


async def test_closing_the_ledger_during_an_approval_does_not_run_the_call(db: str) -> None:
    """C5: closing is not taken for an approval."""
    ledger = await callslip.open(db)
    task = asyncio.create_task(_enter_call(ledger.session("a")))
    request = await wait_for_request(ledger)
    await ledger.close()
    async with asyncio.timeout(60):
        with pytest.raises(callslip.CallslipError):
            await task
    async with await callslip.open(db) as ledger:
        assert (await ledger.find_call(request.call)).state in ("lost", "cancelled")


# Waiting


async def test_waiting_for_a_call_returns_when_it_ends(ledger: LocalLedger, session: Session) -> None:
    """Every kind of end wakes all waiters, and waiting for an ended call returns immediately."""
    for end_type in (ev.CallCompleted, ev.CallFailed, ev.CallDenied, ev.CallCancelled, ev.CallExpired, ev.CallLost):
        (event,) = await ledger.log.append("a", [ev.CallStarted(tool_name="t")])
        assert isinstance(event, ev.CallStarted)
        waiters = [asyncio.create_task(ledger.wait(event.call)) for _ in range(3)]
        await until_in("_wait_for", *waiters)
        assert not any(task.done() for task in waiters)
        (end,) = await ledger.log.append("a", [end_type(call=event.call, reason="why")])
        async with asyncio.timeout(60):
            rows = await asyncio.gather(*waiters)
        assert {(row.state, row.end) for row in rows} == {(ev.type_of(end).partition(".")[2], end.seq)}
        assert await ledger.wait(event.call, timeout=0) == rows[0]
        assert await ledger.log.ending_event(rows[0]) == end


async def test_a_denied_request_wakes_the_waiter(ledger: LocalLedger) -> None:
    """A denial ends the call."""
    (event,) = await ledger.log.append("a", [ev.ApprovalRequested(tool_name="t")])
    assert isinstance(event, ev.ApprovalRequested)
    waiter = asyncio.create_task(ledger.wait(event.call))
    await until_in("_wait_for", waiter)
    await ledger.log.append("a", [ev.ApprovalRefused(approval=event.approval, reason="no")])
    async with asyncio.timeout(60):
        assert (await waiter).state == "denied"


async def test_waiting_ends_with_a_call_of_another_process(ledger: LocalLedger, db: str) -> None:
    """The end arrives by polling the file."""
    (event,) = await ledger.log.append("a", [ev.CallStarted(tool_name="t")])
    assert isinstance(event, ev.CallStarted)
    waiter = asyncio.create_task(ledger.wait(event.call))
    process = start_program("finish", db, "call", event.call)
    async with asyncio.timeout(10):
        row = await waiter
    assert await asyncio.to_thread(process.communicate) == ("", "")
    ending = await ledger.log.ending_event(row)
    assert isinstance(ending, ev.CallCompleted) and ending.output == "from another process"


async def test_waiting_has_a_timeout(ledger: LocalLedger) -> None:
    """TimeoutError is raised, the call is unchanged, and no channel is left."""
    (event,) = await ledger.log.append("a", [ev.CallStarted(tool_name="t")])
    assert isinstance(event, ev.CallStarted)
    with pytest.raises(TimeoutError):
        await ledger.wait(event.call, timeout=0.02)
    assert (await ledger.find_call(event.call)).state == "running" and not ledger.log.feed._channels
    with pytest.raises(NotFoundError):
        await ledger.wait("exec_nothing", timeout=0.02)


# Sync use, and idle cost


def test_a_script_needs_no_event_loop(db: str) -> None:
    """Outcomes, exceptions, Ctrl-C, timeouts and approvals work in a plain program."""
    run = subprocess.run(
        [sys.executable, "-W", "error", str(PROGRAMS / "script.py"), db], capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == [
        "completed completed",
        "raised it broke failed",
        "interrupted cancelled",
        "meanwhile expired",
        "timed out expired",
        "denied no answer in time",
        "entries 8",
        "threads []",
    ]


def test_a_sync_ledger_that_cannot_open_names_the_file(tmp_path: Path) -> None:
    """No thread is left."""
    (tmp_path / "diary").write_text("Dear diary" * 50)
    before = set(threading.enumerate())  # Servers of other tests may run in this process.
    with pytest.raises(callslip.CallslipError, match="diary"):
        callslip.sync.open(tmp_path / "diary")
    new = set(threading.enumerate()) - before
    assert not [thread for thread in new if thread.name.startswith("callslip")]


def test_importing_modules_changes_no_public_name() -> None:
    """A submodule does not replace a public name of the package."""
    before = {name: getattr(callslip, name) for name in callslip.__all__}
    for module in pkgutil.iter_modules(callslip.__path__):
        if module.name != "__main__":
            importlib.import_module(f"callslip.{module.name}")
    assert {name: getattr(callslip, name) for name in callslip.__all__} == before
    with pytest.raises(AttributeError, match="nothing"):
        _ = callslip.nothing  # type: ignore[attr-defined]


def test_threads_can_share_a_sync_ledger(db: str) -> None:
    """Calls of all threads are recorded."""
    with callslip.sync.open(db) as ledger:
        session = ledger.session("a")

        def work(number: int) -> None:
            for _ in range(10):
                with session.call(f"t{number}") as call:
                    call.complete(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows = ledger.calls(limit=100).items
        assert len(rows) == 40 and {row.state for row in rows} == {"completed"}


async def test_an_idle_ledger_uses_little_processor_time(ledger: LocalLedger, session: Session) -> None:
    """Measure two seconds with a reader, an open call and a waiter, and print the processor time."""
    async with session.call("t") as call:
        reader = asyncio.create_task(_read_batches(ledger))
        waiter = asyncio.create_task(ledger.wait(call.id))
        await asyncio.sleep(0.1)
        started_at, used_before = time.monotonic(), time.process_time()
        await asyncio.sleep(2)  # The duration is what is measured.
        used, elapsed = time.process_time() - used_before, time.monotonic() - started_at
    await waiter
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    print(f"\nidle, polling 40 times and reaping 50 times per second: {used / elapsed * 100:.2f} % of one processor")
    assert used < elapsed / 2


async def _read_batches(ledger: LocalLedger) -> None:
    async for _ in ledger.log.batches("a"):
        pass
