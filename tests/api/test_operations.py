"""The same operations for every kind of ledger: in this process, without an event loop, and through a server."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from starlette.exceptions import HTTPException

import callslip
from callslip import http
from callslip.api.ledger import LocalLedger
from callslip.api.sync import SyncLedger
from callslip.http.access import AllowAll
from callslip.http.app import build
from callslip.model import events as ev
from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord
from callslip.settings import Settings
from tests.support.invariants import find_faults
from tests.support.live_server import running

pytestmark = pytest.mark.anyio
TIMEOUT_S = 30.0
SETTINGS = Settings(reaper_interval=0.05, reaper_grace=0.0, ingest_lease=1.0)


class AwaitableSync:
    """Make the methods of a sync object awaitable, so that the same tests can use it."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if name in ("commands", "session") or not callable(value):
            if name == "session":
                return lambda *args: AwaitableSync(value(*args))
            return AwaitableSync(value) if name == "commands" else value
        if name in ("complete", "fail", "expire") and type(self._target).__name__ == "SyncCall":
            return value
        if name in ("call", "turn"):
            return lambda *args, **kwargs: _enter(value(*args, **kwargs))
        if inspect.isgeneratorfunction(value) or name in ("events", "follow", "frames", "export_chunks", "record"):
            return lambda *args, **kwargs: _iterate(value(*args, **kwargs))

        async def run(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(value, *args, **kwargs)

        return run


@contextlib.asynccontextmanager
async def _enter(manager: contextlib.AbstractContextManager[Any]) -> AsyncGenerator[Any]:
    entered = await asyncio.to_thread(manager.__enter__)
    try:
        yield AwaitableSync(entered)
    except BaseException as error:
        if not await asyncio.to_thread(manager.__exit__, type(error), error, error.__traceback__):
            raise
    else:
        await asyncio.to_thread(manager.__exit__, None, None, None)


async def _iterate(items: Any) -> AsyncGenerator[Any]:
    end = object()
    try:
        while (item := await asyncio.to_thread(next, items, end)) is not end:
            yield item
    finally:
        await asyncio.to_thread(items.close)


@pytest.fixture
async def backend(db: str) -> AsyncIterator[LocalLedger]:
    """Open the ledger in this process, which a test uses to prepare and check data."""
    async with callslip.open(db, SETTINGS) as ledger:
        yield ledger
        assert await find_faults(ledger) == []


@pytest.fixture(params=["local", "sync", "remote"])
async def ledger(request: pytest.FixtureRequest, backend: LocalLedger, db: str) -> AsyncIterator[Any]:
    """Open the ledger under test, over the same database."""
    if request.param == "local":
        yield backend
    elif request.param == "sync":
        sync_ledger = await asyncio.to_thread(callslip.sync.open, db, SETTINGS)
        yield AwaitableSync(sync_ledger)
        await asyncio.to_thread(sync_ledger.close)
    else:
        server = build(http.Server(backend, AllowAll()), http.ROUTES)
        async with running(server) as url, callslip.connect(url, token="t" * 16) as remote:
            yield remote


async def start_call(backend: LocalLedger, session: str, tool: str) -> ev.CallStarted:
    """Start a call that lives as long as this process."""
    draft = ev.CallStarted(call="new:1", tool_name=tool)
    (event,) = await backend.log.append(session, [draft], owner=backend.log.owner)
    assert isinstance(event, ev.CallStarted)
    return event


async def wait_for_approval(ledger: Any) -> ApprovalRecord:
    """Return the pending approval, once there is one."""
    async with asyncio.timeout(TIMEOUT_S):
        while not (approvals := await ledger.approvals()):
            await asyncio.sleep(0.01)
    return approvals[0]


async def test_a_call_is_recorded_from_start_to_end(ledger: Any, backend: LocalLedger) -> None:
    """A call is running inside its block and completed after it, with its progress and its output."""
    session = ledger.session("s")
    async with session.call("read", {"path": "a.txt"}, title="Read a.txt") as call:
        assert (await backend.find_call(call.id)).state == "running"
        await call.progress("half\n")
        call.complete({"lines": 3})
    record = await ledger.find_call(call.id)
    assert (record.state, record.tool, record.title) == ("completed", "read", "Read a.txt")
    entry = await ledger.entry(call.id)
    assert entry is not None and (entry.raw_input, entry.output) == ({"path": "a.txt"}, {"lines": 3})
    assert entry.output_text == "half\n"


async def test_an_exception_fails_the_call(ledger: Any) -> None:
    """The exception leaves the block, and its text is the reason."""
    with pytest.raises(ValueError, match="broken"):
        async with ledger.session("s").call("t") as call:
            raise ValueError("broken")
    record = await ledger.wait(call.id, TIMEOUT_S)
    assert (record.state, record.reason) == ("failed", "ValueError: broken")


async def test_concurrent_calls_of_a_session_are_separate(ledger: Any) -> None:
    """Equal calls at the same time have an id each."""

    async def run(number: int) -> str:
        async with ledger.session("s").call("same", {"x": 1}) as call:
            call.complete(number)
        return call.id

    calls = await asyncio.gather(*(run(number) for number in range(5)))
    assert len(set(calls)) == 5
    outputs = sorted([(await ledger.entry(call)).output for call in calls])
    assert outputs == [0, 1, 2, 3, 4]


async def test_a_turn_is_ended_by_its_block(ledger: Any, backend: LocalLedger) -> None:
    """Completed at the end of the block, `error` with an exception."""
    session = ledger.session("s")
    async with session.turn("Do it") as turn:
        assert (await backend.find_session("s")).turn == turn.id
        await turn.say("Working")
    with pytest.raises(ValueError):
        async with session.turn("Again"):
            raise ValueError("no")
    ends = [event async for event in backend.events("s") if isinstance(event, ev.TurnEnded)]
    assert [(event.reason, event.detail) for event in ends] == [("end_turn", ""), ("error", "ValueError: no")]
    assert (await backend.find_session("s")).turn == ""


async def test_sessions_calls_and_approvals_are_found_by_ids_and_prefixes(ledger: Any, backend: LocalLedger) -> None:
    """By full ids, prefixes, producers' ids, approvals and @last; a text that matches several is ambiguous."""
    request = ev.ApprovalRequested(tool_name="deploy", options=[], aliases=(ev.Alias("acp", "call_7"),))
    (event,) = await backend.log.append("alpha", [request], owner=backend.log.owner)
    await backend.log.append("beta", [ev.MessageUser(text="hi")])
    assert isinstance(event, ev.ApprovalRequested)
    for id in (event.call, event.call[:12], "call_7", event.approval, "@last"):
        assert (await ledger.find_call(id)).id == event.call
    for id in (event.approval, event.approval[:12], event.call, "@last"):
        assert (await ledger.find_approval(id)).id == event.approval
    for id in ("beta", "bet", "@last"):
        assert (await ledger.find_session(id)).name == "beta"
    assert isinstance(await ledger.find("alpha"), SessionRecord)
    assert isinstance(await ledger.find(event.call), CallRecord)
    assert isinstance(await ledger.find(event.approval), ApprovalRecord)
    await backend.log.append("alpine", [ev.MessageUser(text="hi")])
    with pytest.raises(callslip.AmbiguousIdError):
        await ledger.find_session("alp")
    with pytest.raises(callslip.AmbiguousIdError):
        await ledger.find("alp")
    assert (await ledger.find("call_7", "alpha")).id == event.call
    with pytest.raises(callslip.NotFoundError):
        await ledger.find("call_7", "beta")
    for find in (ledger.find_session, ledger.find_call, ledger.find_approval, ledger.find):
        with pytest.raises(callslip.NotFoundError):
            await find("nothing")


async def test_sessions_and_calls_are_listed_in_pages(ledger: Any, backend: LocalLedger) -> None:
    """Sessions and calls come in pages, newest first, and can be filtered."""
    for number in range(5):
        await start_call(backend, f"s{number}", f"t{number}")
    page = await ledger.calls(limit=3)
    assert [record.tool for record in page.items] == ["t4", "t3", "t2"]
    rest = await ledger.calls(limit=3, cursor=page.cursor)
    assert [record.tool for record in rest.items] == ["t1", "t0"] and not rest.cursor
    assert [record.tool for record in (await ledger.calls(session="s1", states=["running"])).items] == ["t1"]
    assert [record.name for record in (await ledger.sessions(limit=2)).items] == ["s4", "s3"]


async def test_an_approved_call_runs(ledger: Any) -> None:
    """Entering the block waits for the answer; the answer may carry edited arguments."""

    async def run() -> Any:
        async with ledger.session("s").call("deploy", {"env": "prod"}, approval=True) as call:
            call.complete("done")
            return call.input, call.edited

    task = asyncio.create_task(run())
    request = await wait_for_approval(ledger)
    answered = await ledger.approve(request.id, input={"env": "staging"}, reason="not on a Friday")
    assert (answered.state, answered.call) == ("granted", request.call)
    async with asyncio.timeout(TIMEOUT_S):
        assert await task == ({"env": "staging"}, True)
    with pytest.raises(callslip.ConflictError):
        await ledger.deny(request.id)


async def test_a_denied_call_does_not_run(ledger: Any) -> None:
    """The block is not entered, and the exception has the reason."""

    async def run() -> None:
        async with ledger.session("s").call("deploy", approval=True):
            raise AssertionError("entered")

    task = asyncio.create_task(run())
    request = await wait_for_approval(ledger)
    await ledger.deny(request.call, reason="too risky")
    with pytest.raises(callslip.CallDeniedError, match="too risky"):
        async with asyncio.timeout(TIMEOUT_S):
            await task
    assert (await ledger.find_call(request.call)).state == "denied"


async def test_a_call_is_cancelled_once(ledger: Any, backend: LocalLedger) -> None:
    """Cancelling again changes nothing; a call that has ended otherwise is a conflict with its record."""
    started = await start_call(backend, "s", "t")
    assert (await ledger.cancel(started.call, reason="enough")).state == "cancelled"
    record = await ledger.cancel(started.call)
    assert record.state == "cancelled" and "enough" in record.reason
    async with ledger.session("s").call("t") as call:
        pass
    with pytest.raises(callslip.ConflictError) as conflict:
        await ledger.cancel(call.id)
    assert isinstance(conflict.value.current, CallRecord) and conflict.value.current.state == "completed"


async def test_waiting_ends_with_the_call_or_with_the_timeout(ledger: Any, backend: LocalLedger) -> None:
    """WaitTimeoutError is also a TimeoutError."""
    started = await start_call(backend, "s", "t")
    with pytest.raises(TimeoutError) as timeout:
        await ledger.wait(started.call, timeout=0.05)
    assert isinstance(timeout.value, callslip.WaitTimeoutError)
    waiter = asyncio.create_task(ledger.wait(started.call, TIMEOUT_S))
    await backend.log.append("s", [ev.CallCompleted(call=started.call, output=1)])
    assert (await waiter).state == "completed"


async def test_a_call_timeout_is_a_timeout_error(ledger: Any, backend: LocalLedger) -> None:
    """The call expires, and the block raises an exception that `except TimeoutError` catches."""
    with pytest.raises(TimeoutError) as timeout:
        async with ledger.session("s").call("t", timeout=0.05):
            await backend.wait("@last", TIMEOUT_S)  # Async: interrupted. Sync: until the call has expired.
    assert isinstance(timeout.value, callslip.CallTimeoutError) and timeout.value.state == "expired"
    assert (await backend.find_call("@last")).state == "expired"


async def test_a_missing_session_is_not_found(ledger: Any) -> None:
    """Reading and following fail instead of waiting for a session that may never exist."""
    reads = (
        ledger.events("nope"),
        ledger.follow("nope"),
        ledger.frames("nope"),
        ledger.export_chunks("nope", "events"),
    )
    for items in reads:
        async with asyncio.timeout(TIMEOUT_S):
            with pytest.raises(callslip.NotFoundError):
                await anext(items)
    for read in (ledger.snapshot("nope"), ledger.export("nope", "events"), ledger.find_session("nope")):
        with pytest.raises(callslip.NotFoundError):
            await read


async def test_a_missing_command_is_not_found(ledger: Any) -> None:
    """The exception has the id, and its class tells a client to stop polling."""
    with pytest.raises(callslip.CommandNotFoundError) as missing:
        await ledger.commands.get("nope")
    assert missing.value.correlation_id == "nope"


async def test_unknown_states_are_refused(ledger: Any) -> None:
    """A misspelt state is an error, not an empty list."""
    with pytest.raises(callslip.InvalidInputError, match="unknown state 'runing'") as calls:
        await ledger.calls(states=["runing"])
    with pytest.raises(callslip.InvalidInputError, match="unknown state 'open'") as approvals:
        await ledger.approvals(state="open")
    assert (calls.value.field, approvals.value.field) == ("states", "state")


async def test_followers_receive_every_event_once(ledger: Any, backend: LocalLedger) -> None:
    """A follower gets the stored events after its cursor, then the new ones."""
    for number in range(3):
        await backend.log.append("s", [ev.MessageUser(text=f"m{number}")])
    texts: list[str] = []

    async def follow() -> None:
        async with contextlib.aclosing(ledger.follow("s", 1)) as events:
            async for event in events:
                texts.append(event.text)
                if len(texts) == 4:
                    return

    task = asyncio.create_task(follow())
    for number in range(3, 5):
        await backend.log.append("s", [ev.MessageUser(text=f"m{number}")])
    async with asyncio.timeout(TIMEOUT_S):
        await task
    assert texts == ["m1", "m2", "m3", "m4"]
    assert [event.text async for event in ledger.events("s")] == ["m0", "m1", "m2", "m3", "m4"]


@pytest.mark.parametrize("format", ["events", "entries", "openai", "ui-v6", "otel"])
async def test_exports_are_the_same_for_every_ledger(ledger: Any, backend: LocalLedger, format: str) -> None:
    """Byte for byte, for the current session and for an earlier seq."""
    async with backend.session("s").turn("Hello"), backend.session("s").call("t", {"n": 1}) as call:
        call.complete("x" * 10)
    assert await ledger.export("s", format) == await backend.export("s", format)
    assert await ledger.export("s", format, at=3) == await backend.export("s", format, at=3)


async def test_frames_are_the_same_for_every_ledger(ledger: Any, backend: LocalLedger) -> None:
    """A snapshot, then the patches of each event."""
    await backend.log.append("s", [ev.MessageUser(text="one")])

    async def read_two_frames(source: Any) -> list[tuple[str, int]]:
        kinds: list[tuple[str, int]] = []
        async with contextlib.aclosing(source.frames("s")) as frames:
            async for frame in frames:
                kinds.append((frame.kind, frame.seq))
                if len(kinds) == 2:
                    break
                await backend.log.append("s", [ev.MessageUser(text="more")])
        return kinds

    async with asyncio.timeout(TIMEOUT_S):
        assert await read_two_frames(ledger) == [("snapshot", 1), ("patches", 2)]


async def test_a_stream_is_recorded_while_it_is_read(ledger: Any, backend: LocalLedger) -> None:
    """What the model proposes becomes a call that can be started by the model's id."""
    chunks = [
        {"id": "r", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Let me see."}}]},
        {
            "id": "r",
            "choices": [
                {
                    "index": 0,
                    "delta": {
                        "tool_calls": [
                            {"index": 0, "id": "call_1", "function": {"name": "add", "arguments": '{"a": 1}'}}
                        ]
                    },
                }
            ],
        },
        {"id": "r", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    ]

    async def model() -> AsyncIterator[Any]:
        for chunk in chunks:
            yield chunk

    session = ledger.session("s")
    stream = chunks if isinstance(ledger, AwaitableSync) else model()
    assert [chunk async for chunk in session.record(stream, "openai")] == chunks
    async with session.call("add", {"a": 1}, alias=("openai", "call_1")) as call:
        call.complete(2)
    record = await backend.find_call("call_1")
    assert (record.id, record.state, record.tool) == (call.id, "completed", "add")


async def test_large_output_is_stored_as_a_blob(ledger: Any) -> None:
    """The full output can be loaded by the hash of the blob."""
    async with ledger.session("s").call("t") as call:
        call.complete("x" * 300_000)
    entry = await ledger.entry(call.id)
    assert entry is not None and entry.blob is not None
    assert len(await ledger.blob(entry.blob.hash)) >= 300_000


async def test_commands_are_submitted_claimed_and_completed(ledger: Any) -> None:
    """With queue, lease and fence."""
    commands = ledger.commands
    command = await commands.submit("resize", {"width": 10}, queue="images", correlation_id="c1")
    assert (command.correlation_id, command.status, command.client) == ("c1", "pending", "images")
    assert [item.correlation_id for item in await commands.pending("images")] == ["c1"]
    claim = await commands.claim("images", worker="w", lease=30)
    assert claim is not None and (claim.params, claim.attempt) == ({"width": 10}, 1)
    assert await commands.heartbeat(claim.call, claim.fence, lease=60, text="half") > 0
    with pytest.raises(callslip.StaleClaimError):
        await commands.complete(claim.call, None, fence=claim.fence + 1)
    completed = await commands.complete(claim.call, {"ok": True}, fence=claim.fence)
    assert (completed.status, completed.result, completed.final) == ("complete", {"ok": True}, True)
    assert (await commands.get("c1", wait=1)).result == {"ok": True}
    assert [item.correlation_id for item in await commands.completed("images")] == ["c1"]
    assert await commands.claim("images") is None
    await commands.submit("resize", queue="images", correlation_id="c2")
    claim = await commands.claim("images")
    await commands.release(claim.call, claim.fence, "not me")
    claim = await commands.claim("images")
    assert (await commands.fail(claim.call, "too big", fence=claim.fence)).error == "too big"
    assert [item.correlation_id for item in await commands.failed("images")] == ["c2"]


@pytest.mark.parametrize(
    ("send_request", "field"),
    [
        (lambda ledger: ledger.commands.submit(""), "action"),
        (lambda ledger: ledger.export("s", "no-such-format"), "format"),
        (lambda ledger: ledger.export("s", "entries", at=99), "at"),
    ],
)
async def test_bad_input_is_refused_with_its_field(
    ledger: Any, backend: LocalLedger, send_request: Callable[[Any], Any], field: str
) -> None:
    """Every kind of ledger raises the same exception with the same field."""
    await backend.log.append("s", [ev.MessageUser(text="hi")])
    with pytest.raises(callslip.InvalidInputError) as refusal:
        await send_request(ledger)
    assert refusal.value.field == field


async def test_a_misspelt_option_is_refused(ledger: Any, backend: LocalLedger) -> None:
    """A call that was meant to need approval does not run because of a typing error."""
    with pytest.raises(TypeError, match="aproval"):
        async with ledger.session("s").call("t", aproval=True):
            raise AssertionError("entered")
    with pytest.raises(TypeError, match="aproval"):
        await ledger.commands.submit("deploy", aproval=True)
    with pytest.raises(TypeError, match="worker_name"):
        await ledger.commands.claim(worker_name="w")
    assert (await backend.sessions()).items == []


async def test_a_call_is_used_once_and_only_while_it_runs(backend: LocalLedger) -> None:
    """Progress before the block, or entering it twice, raises and writes nothing."""
    call = backend.session("s").call("t")
    for use in (call.progress("x"), call.result()):
        with pytest.raises(callslip.InvalidTransitionError, match="has not started"):
            await use
    async with call:
        pass
    with pytest.raises(callslip.InvalidTransitionError, match="was started before"):
        await call.__aenter__()
    turn = backend.session("s").turn()
    async with turn:
        pass
    with pytest.raises(callslip.InvalidTransitionError, match="was started before"):
        await turn.__aenter__()
    assert len((await backend.calls()).items) == 1


async def test_a_closed_ledger_raises_store_error(db: str) -> None:
    """Reading and writing after `close` raise StoreError, locally and through a server."""
    backend = await callslip.open(db)
    async with running(build(http.Server(backend, AllowAll()), http.ROUTES)) as url:
        async with callslip.connect(url, token="t" * 16) as remote:
            await remote.session("s").say("hi")
        for use in (remote.find_session("s"), remote.session("s").say("hi")):
            with pytest.raises(callslip.StoreError, match="the ledger is closed"):
                await use
    await backend.close()
    for use in (backend.find_session("s"), backend.session("s").say("hi")):
        with pytest.raises(callslip.StoreError, match="the ledger is closed"):
            await use


async def test_a_token_without_the_right_is_denied(db: str) -> None:
    """The exception has a class of its own, so that programs can tell it from other errors."""

    def authorize(request: Any, session: Any, verb: str) -> str:
        if verb != "read":
            raise HTTPException(403)
        return "ann"

    async with callslip.open(db) as backend:
        await backend.session("s").say("hi")
        server = callslip.asgi(backend, authorize=authorize)
        async with running(server) as url, callslip.connect(url, token="t" * 16) as remote:
            assert (await remote.find_session("s")).name == "s"
            with pytest.raises(callslip.PermissionDeniedError):
                await remote.session("s").say("no")


def test_plain_functions_are_tools_of_a_sync_ledger(db: str) -> None:
    """Calls are recorded with arguments, output and failure; outside a session the function does not run."""

    @callslip.sync.tool
    def divide(a: int, b: int = 2) -> float:
        return a / b

    @callslip.sync.tool(name="remove", approval=True)
    def delete(path: str) -> str:
        return f"deleted {path}"

    with pytest.raises(callslip.NoSessionError):
        divide(1)
    with callslip.sync.open(db) as ledger:
        session = ledger.session("s")
        with session.turn("Divide"):
            assert divide(5) == 2.5
            with pytest.raises(ZeroDivisionError):
                divide(1, b=0)
        with session.use(), concurrent.futures.ThreadPoolExecutor() as pool:
            removed = pool.submit(contextvars.copy_context().run, delete, "a.txt")
            while not (approvals := ledger.approvals()):
                assert not removed.done()
            ledger.approve(approvals[0].id, by="ann", input={"path": "b.txt"})
            assert removed.result(TIMEOUT_S) == "deleted b.txt"
        calls = ledger.calls().items
        assert [(call.tool, call.state) for call in calls] == [
            ("remove", "completed"),
            ("divide", "failed"),
            ("divide", "completed"),
        ]
        entry = ledger.entry(calls[-1].id)
        assert entry is not None and (entry.raw_input, entry.output) == ({"a": 5, "b": 2}, 2.5)


async def fetch_value() -> None:
    raise AssertionError


def generate_values() -> Iterator[int]:
    yield 1


async def stream_values() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("function", [fetch_value, generate_values, stream_values])
def test_async_functions_and_generators_are_no_sync_tools(function: Any) -> None:
    """The error names the decorator that accepts them."""
    with pytest.raises(TypeError, match=r"is async or a generator\. Use callslip\.tool"):
        callslip.sync.tool(function)


def test_a_sync_ledger_is_closed_by_its_block(db: str) -> None:
    """Its methods need no event loop."""
    with callslip.sync.open(db) as ledger:
        assert isinstance(ledger, SyncLedger)
        with ledger.session("s").call("t") as call:
            call.complete(1)
        assert ledger.wait(call.id, 1).state == "completed"
