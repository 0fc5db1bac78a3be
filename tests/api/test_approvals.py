"""Test answers to approval requests: approve, deny with a reason, or approve with edited arguments (S4.6)."""

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
from callslip.formats.hooks.answers import LEAVE
from callslip.model import events as ev
from callslip.model.entries import PermissionRequest
from callslip.model.events import Alias
from callslip.model.records import ApprovalRecord
from callslip.rules.function_schema import function_schema
from tests.support.invariants import open_with_settings, read_events, sound_ledger
from tests.support.model_server import text_answer, tool_call_answer

if TYPE_CHECKING:
    from decimal import Decimal

pytestmark = pytest.mark.anyio
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}


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


async def wait_for_request(ledger: LocalLedger) -> ApprovalRecord:
    """Wait for a pending request and return it."""
    async with asyncio.timeout(10):
        while not (pending := await ledger.approvals()):
            await asyncio.sleep(0.005)
    return pending[0]


async def run_call(session: Session, input: Any = None, schema: Any = SCHEMA) -> Any:
    """Run a call that needs approval and return the arguments it ran with."""
    async with session.call("t", input or {"n": 5}, approval=True, schema=schema) as call:
        return call.input


# Edited arguments


async def test_arguments_that_do_not_match_the_schema_change_nothing(ledger: LocalLedger, session: Session) -> None:
    """S4.6: the error points to the wrong value, no event is added, and the next answer counts."""
    task = asyncio.create_task(run_call(session))
    request = await wait_for_request(ledger)
    before = await read_events(ledger, "a")
    wrong = [
        ({"n": 0}, "input/n"),
        ({}, "input/n"),
        ({"n": "1"}, "input/n"),
        ([], "input"),
        (None, "input"),
        ("n", "input"),
        ({"n": 1, "x": {1, 2}}, "input.x"),
    ]
    for edited, field in wrong:
        with pytest.raises(InvalidInputError) as refusal:
            await ledger.approve(request.id, by="ann", input=edited)
        assert refusal.value.field == field
    assert await read_events(ledger, "a") == before and await ledger.approvals() == [request]
    await ledger.approve(request.id, by="ann", input={"n": 7})
    assert await task == {"n": 7}


async def test_the_request_and_its_entry_have_the_schema(db: str) -> None:
    """S4.6: another process can check edited arguments and show a form for them."""
    async with await open_with_settings(db) as ledger, await open_with_settings(db) as other:
        task = asyncio.create_task(run_call(ledger.session("a")))
        request = await wait_for_request(other)
        event = await approvals.load_request(other.log, request)
        assert event is not None and event.schema == SCHEMA
        (entry,) = [item for item in (await other.snapshot("a")).entries if isinstance(item, PermissionRequest)]
        assert entry.schema == SCHEMA
        with pytest.raises(InvalidInputError):
            await other.approve(request.id, by="ann", input={"n": 0})
        await other.approve(request.id, by="ann", input={"n": 2})
        assert await task == {"n": 2}


async def test_a_request_without_a_schema_accepts_any_json(ledger: LocalLedger, session: Session) -> None:
    """Neither the event nor the entry has the field."""
    task = asyncio.create_task(run_call(session, schema=None))
    request = await wait_for_request(ledger)
    assert all("schema" not in body.decode() for _, body in await ledger.log.store.events("a", 0, 100))
    await ledger.approve(request.id, by="ann", input=["any", 1])
    assert await task == ["any", 1]


async def test_a_request_that_retention_removed_accepts_no_edited_arguments(
    ledger: LocalLedger, session: Session
) -> None:
    """The schema is gone, so only a plain approval or denial is accepted."""
    task = asyncio.create_task(run_call(session))
    request = await wait_for_request(ledger)
    row = ApprovalRecord(id=request.id, session="a", call=request.call, entry=request.entry + 5)
    assert await approvals.load_request(ledger.log, row) is None
    with pytest.raises(InvalidInputError, match="retention removed the request"):
        approvals._check_edited_input(None, {"n": 1})  # pyright: ignore[reportPrivateUsage]
    await ledger.approve(request.id, by="ann")
    assert await task == {"n": 5}


@pytest.mark.parametrize("edited", [["/tmp/x"], "x", 5, None, {"pth": "/tmp/x"}, {"path": "x", "more": 1}, {"path": 1}])
async def test_the_signature_of_a_function_is_its_schema(ledger: LocalLedger, session: Session, edited: Any) -> None:
    """S4.6: edited arguments that do not match parameter names and annotations leave the request pending."""
    received: list[Any] = []

    @callslip.tool(approval=True)
    def remove(path: str, force: bool = False) -> None:
        received.append((path, force))

    task = asyncio.create_task(remove("/"))
    request = await wait_for_request(ledger)
    with pytest.raises(InvalidInputError):
        await ledger.approve(request.id, by="ann", input=edited)
    assert not received and (await wait_for_request(ledger)).state == "pending"
    await ledger.approve(request.id, by="ann", input={"path": "/tmp/x", "force": True})
    await task
    assert received == [("/tmp/x", True)]


async def test_arguments_of_every_kind_can_be_edited(ledger: LocalLedger, session: Session) -> None:
    """`*args` are an array and `**kwargs` an object, as in the entry."""
    received: list[Any] = []

    @callslip.tool(approval=True)
    def take(a: int, /, *more: int, b: str = "x", **rest: float) -> None:
        received.append((a, more, b, rest))

    task = asyncio.create_task(take(1, 2, c=3.0))
    request = await wait_for_request(ledger)
    for wrong in ({"a": 1, "more": ["x"]}, {"a": 1, "c": 1}, {"a": 1, "rest": {"c": "x"}}, {"b": "x"}):
        with pytest.raises(InvalidInputError):
            await ledger.approve(request.id, by="ann", input=wrong)
    await ledger.approve(request.id, by="ann", input={"a": 5, "more": [6, 7], "b": "y", "rest": {"d": 8}})
    await task
    assert received == [(5, (6, 7), "y", {"d": 8})]


async def test_arguments_that_were_not_edited_keep_their_value(ledger: LocalLedger, session: Session) -> None:
    """The entry shows redacted text and JSON, but unedited arguments stay the original Python objects."""
    received: list[Any] = []
    secret = "ghp_" + "a1B2" * 9

    @callslip.tool(approval=True)
    def send(token: str, file: Path, options: dict[str, Any], limit: int = None, **more: Any) -> None:  # type: ignore[assignment]  # noqa: RUF013
        received.append((token, file, options, limit, more))

    task = asyncio.create_task(send(secret, Path("/x"), {"key": secret, "n": 1}, deep=[secret]))
    request = await wait_for_request(ledger)
    (entry,) = [item for item in (await ledger.snapshot("a")).entries if isinstance(item, PermissionRequest)]
    edited = cast("dict[str, Any]", entry.raw_input)
    assert secret not in repr(edited) and edited["limit"] is None
    edited["options"]["n"] = 2
    await ledger.approve(request.id, by="ann", input=edited)
    await task
    assert received == [(secret, Path("/x"), {"key": secret, "n": 2}, None, {"deep": [secret]})]


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
def test_annotations_without_a_json_type_allow_any_value(function: Callable[..., Any], expected: Any) -> None:
    """Builtin types become a schema; other classes and names that only a type checker knows do not."""
    schema = function_schema(function, inspect.signature(function))
    assert schema["properties"] == expected and schema["additionalProperties"] is False


async def test_the_tools_of_the_agent_loop_have_their_schema(ledger: LocalLedger) -> None:
    """S4.6: also for a call that the model's stream proposed; the model reads the result of the edited call."""

    async def double(n: int) -> int:
        return 2 * n

    model = Scripted((tool_call_answer(("c", "double", {"n": 1})), text_answer("Ok.")), "openai")
    agent = Agent(ledger.session("s"), model, tools=[tool(double, approval=True)])
    task = asyncio.create_task(agent.run("Go."))
    request = await wait_for_request(ledger)
    for wrong, field in (({"n": "x"}, "input/n"), ({}, "input/n"), ({"n": 1, "m": 2}, "input/m"), ([1], "input")):
        with pytest.raises(InvalidInputError) as refusal:
            await ledger.approve(request.id, by="ann", input=wrong)
        assert refusal.value.field == field
    await ledger.approve(request.id, by="ann", input={"n": 21})
    await task
    ended = [event for event in await read_events(ledger, "s") if isinstance(event, ev.CallCompleted)]
    assert [event.output for event in ended] == [42]


@pytest.mark.parametrize("source", ["acp", "ui-v6", "responses"])
async def test_the_arguments_of_an_external_agent_cannot_be_edited(ledger: LocalLedger, source: str) -> None:
    """The protocol has only options to choose from, so the request stays pending."""
    options = [{"optionId": "yes", "kind": "allow_once"}]
    await ledger.log.append(
        "a", [ev.ApprovalRequested(aliases=(Alias("acp", "c"),), input={"n": 1}, options=options)], source=source
    )
    request = await wait_for_request(ledger)
    with pytest.raises(InvalidInputError, match="cannot be edited"):
        await ledger.approve(request.id, by="ann", input={"n": 1})
    answered = await ledger.approve(request.id, by="ann")
    assert (answered.state, answered.option) == ("granted", "yes")


# Which answer counts


ALLOW = {"optionId": "allow", "name": "Allow", "kind": "allow_once"}
DENY = {"optionId": "deny", "name": "Deny", "kind": "reject_once"}
CHOICE = {"optionId": "1", "name": "A", "kind": "choice"}


@pytest.mark.parametrize(
    ("tool", "options", "source", "offer"),
    [
        ("bash", [], "python", ("call", True, True)),
        ("bash", [ALLOW, DENY], "codex-hook", ("call", True, False)),
        ("bash", [LEAVE, DENY], "gemini-hook", ("call", False, False)),
        ("ExitPlanMode", [ALLOW, DENY], "claude-code-hook", ("plan", True, False)),
        (
            "AskUserQuestion",
            [{"optionId": "1", "name": "A", "kind": "choice"}, DENY],
            "claude-code-hook",
            ("question", False, False),
        ),
    ],
)
async def test_an_offer_says_which_answers_the_agent_can_honour(
    ledger: LocalLedger, tool: str, options: list[Any], source: str, offer: tuple[str, bool, bool]
) -> None:
    """Whether an approval lets the call run, and with other arguments. Nothing is left once it was answered."""
    request = ev.ApprovalRequested(aliases=(Alias("t", "1"),), tool_name=tool, input={"x": 1}, options=options)
    await ledger.log.append("a", [request], source=source)
    (pending,) = await ledger.approvals()
    found = await approvals.read_offer(ledger.log, pending.id)
    assert (found.kind, found.can_allow, found.can_edit) == offer and found.can_answer
    await ledger.deny(pending.id)
    found = await approvals.read_offer(ledger.log, pending.id)
    assert (found.can_answer, found.can_allow, found.can_edit) == (False, False, False)


async def test_answered_requests_are_listed_with_the_newest_first(ledger: LocalLedger) -> None:
    """Without those that are pending, in one session or in all."""
    for session, number in (("a", 1), ("b", 2), ("a", 3), ("a", 4)):
        request = ev.ApprovalRequested(
            aliases=(Alias("t", str(number)),), tool_name=f"t{number}", description=str(number)
        )
        await ledger.log.append(session, [request], source="python")
    for record in await ledger.approvals():
        if record.description != "4":
            await ledger.deny(record.id)
    answered = await ledger.approvals(state="answered")
    assert sorted(one.description for one in answered) == ["1", "2", "3"]
    times = [one.created_at for one in answered]
    assert times == sorted(times, reverse=True)
    assert [one.description for one in await ledger.approvals(state="answered", session="a")] == ["3", "1"]
    assert [one.description for one in await ledger.approvals(state="answered", session="a", limit=1)] == ["3"]


async def test_a_second_answer_fails_with_the_first(ledger: LocalLedger, session: Session) -> None:
    """S4.6: a late answer is a conflict, even if its arguments do not match the schema."""
    task = asyncio.create_task(run_call(session))
    request = await wait_for_request(ledger)
    await ledger.approve(request.id, by="ann", reason="fine")
    await task
    late = [
        lambda: ledger.approve(request.id, by="bob"),
        lambda: ledger.approve(request.id, by="bob", input={"n": 0}),
        lambda: ledger.deny(request.id, by="bob"),
        lambda: ledger.withdraw(request.id, by="bob"),
    ]
    for answer in late:
        with pytest.raises(ConflictError) as conflict:
            await answer()
        assert isinstance(conflict.value.current, ApprovalRecord)
        assert (conflict.value.current.by, conflict.value.current.state) == ("ann", "granted")
    (entry,) = [item for item in (await ledger.snapshot("a")).entries if isinstance(item, PermissionRequest)]
    assert (entry.by, entry.reason, entry.state) == ("ann", "fine", "granted")


async def test_an_answer_after_the_expiry_is_a_conflict(db: str) -> None:
    """S4.6: the winner is the expiry, which denied the call."""
    async with await open_with_settings(db, approval_expiry=1.0, reaper_interval=0.02) as ledger:
        task = asyncio.create_task(run_call(ledger.session("a")))
        request = await wait_for_request(ledger)
        assert request.expires_at > request.created_at
        async with asyncio.timeout(20):
            with pytest.raises(CallDeniedError, match="no answer in time"):
                await task
        with pytest.raises(ConflictError) as conflict:
            await ledger.approve(request.id, by="ann", input={"n": 2})
        assert isinstance(conflict.value.current, ApprovalRecord) and conflict.value.current.by == "expiry"


async def test_an_answer_for_another_session_is_not_found(ledger: LocalLedger, session: Session) -> None:
    """S4.6: approve, deny and withdraw check the session; the request stays pending."""
    task = asyncio.create_task(run_call(session))
    request = await wait_for_request(ledger)
    for answer in (approvals.approve, approvals.deny, approvals.withdraw):
        with pytest.raises(NotFoundError):
            await answer(ledger.log, request.id, by="ann", session="other")
    assert (await wait_for_request(ledger)).id == request.id
    await approvals.deny(ledger.log, request.id, by="ann", session="a", reason="no")
    with pytest.raises(CallDeniedError, match="no"):
        await task


async def test_arguments_that_change_during_the_approval_never_run(ledger: LocalLedger, session: Session) -> None:
    """S2.7: either the approval is stored first or it is a conflict; also for proposed calls."""
    for number in range(20):
        proposed = (await ledger.log.append("a", [ev.CallProposed(tool_name="t", input={"n": 1})], source="openai"))[0]
        assert isinstance(proposed, ev.CallProposed)

        async def enter(call: str = proposed.call) -> None:
            async with session.call("t", {"n": 1}, approval=True, proposed=call):
                pass

        task = asyncio.create_task(enter())
        request = await wait_for_request(ledger)
        change = ev.CallInput(call=request.call, input={"n": number + 2})
        steps = [ledger.log.append("a", [change], source="openai"), ledger.approve(request.id, by="ann")]
        results = await asyncio.gather(*steps[:: 1 if number % 2 else -1], return_exceptions=True)
        log = [event for event in await read_events(ledger, "a") if event.verdict == "applied"]
        types = [type(event) for event in log if isinstance(event, ev.CallEvent) and event.call == request.call]
        if any(isinstance(result, ConflictError) for result in results):
            assert ev.ApprovalGranted not in types
            await ledger.deny(request.id, by="ann")
        else:
            assert types.index(ev.ApprovalGranted) < types.index(ev.CallInput)
        await asyncio.gather(task, return_exceptions=True)


async def test_an_external_call_whose_arguments_change_can_be_approved(ledger: LocalLedger) -> None:
    """An external agent may report arguments in several updates."""
    aliases = (Alias("acp", "c"),)
    await ledger.log.append("a", [ev.ApprovalRequested(aliases=aliases, input={"n": 1})], source="acp")
    await ledger.log.append("a", [ev.CallInput(aliases=aliases, input={"n": 2})], source="acp")
    assert (await ledger.approve((await wait_for_request(ledger)).id, by="ann")).state == "granted"


@pytest.mark.parametrize("end_type", [ev.ApprovalGranted, ev.ApprovalRefused, ev.ApprovalWithdrawn, ev.CallCancelled])
async def test_a_call_names_its_pending_request_only(ledger: LocalLedger, end_type: type[ev.CallEvent]) -> None:
    """S2.7: after an answer or the end of the call, a later answer is an orphan."""
    aliases = (Alias("acp", "c"),)
    await ledger.log.append("a", [ev.ApprovalRequested(aliases=aliases)], source="acp")
    request = await wait_for_request(ledger)
    assert (await ledger.find_call(request.call)).approval == request.id
    await ledger.log.append("a", [end_type(aliases=aliases)], source="acp")
    assert (await ledger.find_call(request.call)).approval == ""
    (late_answer,) = await ledger.log.append("a", [ev.ApprovalGranted(aliases=aliases)], source="acp")
    assert late_answer.verdict == "orphan"


async def test_a_prefix_of_two_requests_of_a_session_is_ambiguous(ledger: LocalLedger) -> None:
    """Requests of other sessions with the same prefix do not matter."""
    for name in ("b", *"cdefghij", "a", "a"):
        await ledger.session(name).append(ev.ApprovalRequested(call="new:1", approval=""))
    with pytest.raises(AmbiguousIdError):
        await ledger.find_approval("appr_", "a")
    (only,) = await ledger.log.store.approvals(session="b")
    assert await ledger.find_approval("appr_", "b") == only
    with pytest.raises(NotFoundError):
        await ledger.find_approval(only.id, "a")
