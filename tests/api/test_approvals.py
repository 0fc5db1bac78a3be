"""Answers to requests for approval: yes, no with a reason, or other arguments that fit the tool (S4.6)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import pytest

import callslip
from callslip.agent.loop import Agent
from callslip.agent.models import Scripted
from callslip.agent.tools import tool
from callslip.api import approvals
from callslip.api.ledger import LocalLedger
from callslip.api.session import Session
from callslip.errors import AmbiguousIdError, CallDeniedError, ConflictError, InvalidInputError, NotFoundError
from callslip.model import events as ev
from callslip.model.entries import PermissionRequest
from callslip.model.events import Alias
from callslip.model.records import ApprovalRecord
from callslip.rules.function_schema import function_schema
from tests.support.invariants import events, opened, sound_ledger
from tests.support.model_server import calls, says

if TYPE_CHECKING:
    from decimal import Decimal

pytestmark = pytest.mark.anyio
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with sound_ledger(db, reaper_interval=0.02) as made:
        yield made


@pytest.fixture
async def session(ledger: LocalLedger) -> AsyncIterator[Session]:
    """The current session of the test, so that tools record their calls in it."""
    session = ledger.session("a")
    with session.use():
        yield session


async def asked(ledger: LocalLedger) -> ApprovalRecord:
    """The request that is pending, once there is one."""
    async with asyncio.timeout(10):
        while not (found := await ledger.approvals()):
            await asyncio.sleep(0.005)
    return found[0]


async def ran(session: Session, input: Any = None, schema: Any = SCHEMA) -> Any:
    """The arguments that a call ran with."""
    async with session.call("t", input or {"n": 5}, approval=True, schema=schema) as call:
        return call.input


# Arguments that somebody changed


async def test_arguments_that_do_not_fit_change_nothing_and_the_request_waits_on(
    ledger: LocalLedger, session: Session
) -> None:
    """S4.6: refused with the pointer to what is wrong, not one event more; the next answer counts."""
    running = asyncio.create_task(ran(session))
    request = await asked(ledger)
    before = await events(ledger, "a")
    wrong = [
        ({"n": 0}, "input/n"),
        ({}, "input/n"),
        ({"n": "1"}, "input/n"),
        ([], "input"),
        (None, "input"),
        ("n", "input"),
        ({"n": 1, "x": {1, 2}}, "input.x"),
    ]
    for given, field in wrong:
        with pytest.raises(InvalidInputError) as refusal:
            await ledger.approve(request.id, by="ann", input=given)
        assert refusal.value.field == field
    assert await events(ledger, "a") == before and await ledger.approvals() == [request]
    await ledger.approve(request.id, by="ann", input={"n": 7})
    assert await running == {"n": 7}


async def test_the_schema_stands_in_the_request_and_in_its_entry(db: str) -> None:
    """S4.6: another process that opens the ledger can check the arguments, and show a form for them."""
    async with await opened(db) as ledger, await opened(db) as other:
        running = asyncio.create_task(ran(ledger.session("a")))
        request = await asked(other)
        found = await approvals.request(other, request)
        assert found is not None and found.schema == SCHEMA
        (shown,) = [one for one in (await other.snapshot("a")).entries if isinstance(one, PermissionRequest)]
        assert shown.schema == SCHEMA
        with pytest.raises(InvalidInputError):
            await other.approve(request.id, by="ann", input={"n": 0})
        await other.approve(request.id, by="ann", input={"n": 2})
        assert await running == {"n": 2}


async def test_a_request_without_a_schema_says_nothing_of_one(ledger: LocalLedger, session: Session) -> None:
    """Any JSON may stand in place of the arguments then, and neither event nor entry has the field."""
    running = asyncio.create_task(ran(session, schema=None))
    request = await asked(ledger)
    assert all("schema" not in body.decode() for _, body in await ledger.log.store.events("a", 0, 100))
    await ledger.approve(request.id, by="ann", input=["any", 1])
    assert await running == ["any", 1]


async def test_a_request_that_retention_removed_takes_no_other_arguments(ledger: LocalLedger, session: Session) -> None:
    """Nobody knows any more what would fit; yes or no it still takes."""
    running = asyncio.create_task(ran(session))
    request = await asked(ledger)
    row = ApprovalRecord(id=request.id, session="a", call=request.call, entry=request.entry + 5)
    assert await approvals.load_request(ledger.log, row) is None
    with pytest.raises(InvalidInputError, match="no longer in the log"):
        approvals._fitting(None, {"n": 1})  # pyright: ignore[reportPrivateUsage]
    await ledger.approve(request.id, by="ann")
    assert await running == {"n": 5}


@pytest.mark.parametrize("edited", [["/tmp/x"], "x", 5, None, {"pth": "/tmp/x"}, {"path": "x", "more": 1}, {"path": 1}])
async def test_a_function_says_what_it_takes(ledger: LocalLedger, session: Session, edited: Any) -> None:
    """S4.6: names and annotations of a tool's function are its schema; what does not fit leaves the call waiting."""
    seen: list[Any] = []

    @callslip.tool(approval=True)
    def remove(path: str, force: bool = False) -> None:
        seen.append((path, force))

    running = asyncio.create_task(remove("/"))
    request = await asked(ledger)
    with pytest.raises(InvalidInputError):
        await ledger.approve(request.id, by="ann", input=edited)
    assert not seen and (await asked(ledger)).state == "pending"
    await ledger.approve(request.id, by="ann", input={"path": "/tmp/x", "force": True})
    await running
    assert seen == [("/tmp/x", True)]


async def test_arguments_of_every_kind_may_be_changed(ledger: LocalLedger, session: Session) -> None:
    """Those that a function collects are an array and an object, as they are shown."""
    seen: list[Any] = []

    @callslip.tool(approval=True)
    def take(a: int, /, *more: int, b: str = "x", **rest: float) -> None:
        seen.append((a, more, b, rest))

    running = asyncio.create_task(take(1, 2, c=3.0))
    request = await asked(ledger)
    for wrong in ({"a": 1, "more": ["x"]}, {"a": 1, "c": 1}, {"a": 1, "rest": {"c": "x"}}, {"b": "x"}):
        with pytest.raises(InvalidInputError):
            await ledger.approve(request.id, by="ann", input=wrong)
    await ledger.approve(request.id, by="ann", input={"a": 5, "more": [6, 7], "b": "y", "rest": {"d": 8}})
    await running
    assert seen == [(5, (6, 7), "y", {"d": 8})]


async def test_what_a_person_leaves_as_it_was_is_as_it_was(ledger: LocalLedger, session: Session) -> None:
    """They see no secrets and no objects of Python; what they changed nothing about is not made of what they saw."""
    seen: list[Any] = []
    secret = "ghp_" + "a1B2" * 9

    @callslip.tool(approval=True)
    def send(token: str, file: Path, options: dict[str, Any], limit: int = None, **more: Any) -> None:  # type: ignore[assignment]  # noqa: RUF013
        seen.append((token, file, options, limit, more))

    running = asyncio.create_task(send(secret, Path("/x"), {"key": secret, "n": 1}, deep=[secret]))
    request = await asked(ledger)
    (shown,) = [one for one in (await ledger.snapshot("a")).entries if isinstance(one, PermissionRequest)]
    given = cast("dict[str, Any]", shown.raw_input)
    assert secret not in repr(given) and given["limit"] is None
    given["options"]["n"] = 2
    await ledger.approve(request.id, by="ann", input=given)
    await running
    assert seen == [(secret, Path("/x"), {"key": secret, "n": 2}, None, {"deep": [secret]})]


def _plain(a, b: int | None, c: list[str], d: dict[str, float], e: Literal["x", 1], f: Path, g: None) -> None: ...  # type: ignore[no-untyped-def]


def _odd(a: Annotated[int, "n"], b: int = None, c: Any = None, *, d: Literal["x"] = "y") -> None: ...  # type: ignore[assignment]  # noqa: RUF013


def _unknown(a: Decimal, b: int = 1) -> None: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (
            _plain,
            {
                "a": {},
                "b": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "c": {"type": "array", "items": {"type": "string"}},
                "d": {"type": "object", "additionalProperties": {"type": "number"}},
                "e": {"enum": ["x", 1]},
                "f": {},
                "g": {"type": "null"},
            },
        ),
        (
            _odd,
            {
                "a": {"type": "integer"},
                "b": {"anyOf": [{"type": "integer"}, {"const": None}]},
                "c": {},
                "d": {"anyOf": [{"enum": ["x"]}, {"const": "y"}]},
            },
        ),
        (_unknown, {"a": {}, "b": {}}),
        (len, {"obj": {}}),
    ],
)
def test_annotations_that_say_nothing_in_json_are_no_limit(function: Callable[..., Any], expected: Any) -> None:
    """Simple ones are a schema; a class of somebody's, or a name that only a type checker knows, is not."""
    made = function_schema(function, inspect.signature(function))
    assert made["properties"] == expected and made["additionalProperties"] is False


async def test_the_tools_of_the_agent_loop_have_their_schema(ledger: LocalLedger) -> None:
    """S4.6: also of a call that the model's stream has proposed; the model reads what came of the edited one."""

    async def double(n: int) -> int:
        return 2 * n

    model = Scripted((calls(("c", "double", {"n": 1})), says("Ok.")), "openai")
    agent = Agent(ledger.session("s"), model, tools=[tool(double, approval=True)])
    running = asyncio.create_task(agent.run("Go."))
    request = await asked(ledger)
    for wrong, field in (({"n": "x"}, "input/n"), ({}, "input/n"), ({"n": 1, "m": 2}, "input/m"), ([1], "input")):
        with pytest.raises(InvalidInputError) as refusal:
            await ledger.approve(request.id, by="ann", input=wrong)
        assert refusal.value.field == field
    await ledger.approve(request.id, by="ann", input={"n": 21})
    await running
    ended = [event for event in await events(ledger, "s") if isinstance(event, ev.CallCompleted)]
    assert [event.output for event in ended] == [42]


@pytest.mark.parametrize("source", ["acp", "ui-v6", "responses"])
async def test_an_agent_that_runs_its_call_itself_takes_no_other_arguments(ledger: LocalLedger, source: str) -> None:
    """It hears only yes or no: an answer that it could not be told is refused, and the request waits on."""
    options = [{"optionId": "yes", "kind": "allow_once"}]
    await ledger.log.append(
        "a", [ev.ApprovalRequested(aliases=(Alias("acp", "c"),), input={"n": 1}, options=options)], source=source
    )
    request = await asked(ledger)
    with pytest.raises(InvalidInputError, match="cannot be told other arguments"):
        await ledger.approve(request.id, by="ann", input={"n": 1})
    done = await ledger.approve(request.id, by="ann")
    assert (done.state, done.option) == ("granted", "yes")


# Once, by somebody, in time


async def test_an_answer_says_whose_it_is_and_a_second_one_learns_it(ledger: LocalLedger, session: Session) -> None:
    """S4.6: whatever the second one says, and also if its arguments would not fit: it comes too late."""
    running = asyncio.create_task(ran(session))
    request = await asked(ledger)
    await ledger.approve(request.id, by="ann", reason="fine")
    await running
    late = [
        lambda: ledger.approve(request.id, by="bob"),
        lambda: ledger.approve(request.id, by="bob", input={"n": 0}),
        lambda: ledger.deny(request.id, by="bob"),
        lambda: ledger.withdraw(request.id, by="bob"),
    ]
    for answer in late:
        with pytest.raises(ConflictError) as conflict:
            await answer()
        assert isinstance(conflict.value.winner, ApprovalRecord)
        assert (conflict.value.winner.by, conflict.value.winner.state) == ("ann", "granted")
    (shown,) = [one for one in (await ledger.snapshot("a")).entries if isinstance(one, PermissionRequest)]
    assert (shown.by, shown.reason, shown.state) == ("ann", "fine", "granted")


async def test_what_came_too_late_is_denied_by_expiry(db: str) -> None:
    """S4.6: nobody answered; who comes then is told that time was up."""
    async with await opened(db, approval_expiry=0.1, reaper_interval=0.02) as ledger:
        running = asyncio.create_task(ran(ledger.session("a")))
        request = await asked(ledger)
        assert request.expires_at > request.created_at
        async with asyncio.timeout(20):
            with pytest.raises(CallDeniedError, match="no answer in time"):
                await running
        with pytest.raises(ConflictError) as conflict:
            await ledger.approve(request.id, by="ann", input={"n": 2})
        assert isinstance(conflict.value.winner, ApprovalRecord) and conflict.value.winner.by == "expiry"


async def test_an_answer_for_another_session_is_not_found(ledger: LocalLedger, session: Session) -> None:
    """S4.6: by whatever verb; the request waits on."""
    running = asyncio.create_task(ran(session))
    request = await asked(ledger)
    for answer in (approvals.approve, approvals.deny, approvals.withdraw):
        with pytest.raises(NotFoundError):
            await answer(ledger, request.id, by="ann", session="other")
    assert (await asked(ledger)).id == request.id
    await ledger.deny(request.id, by="ann", session="a", reason="no")
    with pytest.raises(CallDeniedError, match="no"):
        await running


async def test_arguments_that_change_at_the_same_moment_are_never_the_ones_that_run(
    ledger: LocalLedger, session: Session
) -> None:
    """S2.7: decided in the transaction. Either the approval was first or it is a conflict; also for proposed calls."""
    for number in range(20):
        proposed = (await ledger.log.append("a", [ev.CallProposed(tool_name="t", input={"n": 1})], source="openai"))[0]
        assert isinstance(proposed, ev.CallProposed)

        async def enter(call: str = proposed.call) -> None:
            async with session.call("t", {"n": 1}, approval=True, proposed=call):
                pass

        running = asyncio.create_task(enter())
        request = await asked(ledger)
        change = ev.CallInput(call=request.call, input={"n": number + 2})
        steps = [ledger.log.append("a", [change], source="openai"), ledger.approve(request.id, by="ann")]
        found = await asyncio.gather(*steps[:: 1 if number % 2 else -1], return_exceptions=True)
        log = [event for event in await events(ledger, "a") if event.verdict == "applied"]
        seen = [type(event) for event in log if isinstance(event, ev.CallEvent) and event.call == request.call]
        if any(isinstance(one, ConflictError) for one in found):
            assert ev.ApprovalGranted not in seen
            await ledger.deny(request.id, by="ann")
        else:
            assert seen.index(ev.ApprovalGranted) < seen.index(ev.CallInput)
        await asyncio.gather(running, return_exceptions=True)


async def test_an_agent_that_changes_its_mind_may_still_be_answered(ledger: LocalLedger) -> None:
    """An agent that runs its call itself tells its arguments as it goes; that is no reason to keep it waiting."""
    aliases = (Alias("acp", "c"),)
    await ledger.log.append("a", [ev.ApprovalRequested(aliases=aliases, input={"n": 1})], source="acp")
    await ledger.log.append("a", [ev.CallInput(aliases=aliases, input={"n": 2})], source="acp")
    assert (await ledger.approve((await asked(ledger)).id, by="ann")).state == "granted"


@pytest.mark.parametrize("ending", [ev.ApprovalGranted, ev.ApprovalRefused, ev.ApprovalWithdrawn, ev.CallCancelled])
async def test_a_call_names_the_request_it_waits_for_and_no_other(
    ledger: LocalLedger, ending: type[ev.CallEvent]
) -> None:
    """S2.7: after the answer, or an end without one, there is nothing to answer: a later answer is an orphan."""
    aliases = (Alias("acp", "c"),)
    await ledger.log.append("a", [ev.ApprovalRequested(aliases=aliases)], source="acp")
    request = await asked(ledger)
    assert (await ledger.find_call(request.call)).approval == request.id
    await ledger.log.append("a", [ending(aliases=aliases)], source="acp")
    assert (await ledger.find_call(request.call)).approval == ""
    (again,) = await ledger.log.append("a", [ev.ApprovalGranted(aliases=aliases)], source="acp")
    assert again.verdict == "orphan"


async def test_a_beginning_that_fits_two_of_a_session_is_neither(ledger: LocalLedger) -> None:
    """However many of other sessions begin so too: none is taken for the only one."""
    for name in ("b", *"cdefghij", "a", "a"):
        await ledger.session(name).append(ev.ApprovalRequested(call="new:1", approval=""))
    with pytest.raises(AmbiguousIdError):
        await ledger.find_approval("appr_", "a")
    (only,) = await ledger.log.store.approvals(session="b")
    assert await ledger.find_approval("appr_", "b") == only
    with pytest.raises(NotFoundError):
        await ledger.find_approval(only.id, "a")
