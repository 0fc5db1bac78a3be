"""Prompts from the page: passed to the function that answers, in a turn that has started; refused without one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote

import pytest
from starlette.requests import HTTPConnection

import callslip
from callslip import http
from callslip.agent.loop import Agent
from callslip.agent.models import Scripted
from callslip.api.ledger import LocalLedger
from callslip.client.token_file import hash_token
from callslip.http.access import AllowAll, Authorizer, Principal, TokenAuthorizer, Verb
from callslip.http.app import build
from callslip.http.prompts import Answers
from callslip.ledger.session_log import wait_for_turn
from callslip.model import events as ev
from callslip.model.entries import Message, ToolCall
from callslip.model.records import SessionRecord, TokenRecord
from tests.support.live_server import TIMEOUT_S, ask, running

pytestmark = pytest.mark.anyio

PLACE = "/v1/sessions/talk/prompt"
WAVES = "\0" + "🌊" * 99_999


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db) as ledger:
        await ledger.log.append("talk", [ev.SessionInfo(title="a talk")])
        yield ledger


@contextlib.asynccontextmanager
async def answering(
    ledger: LocalLedger, answers: Answers | None, gate: Authorizer | None = None
) -> AsyncGenerator[str]:
    created = build(http.Server(ledger, gate or AllowAll(), answers=answers), http.ROUTES)
    async with running(created) as url:
        yield url + PLACE


async def ended(ledger: LocalLedger, turn: str) -> ev.TurnEnded:
    async with asyncio.timeout(TIMEOUT_S):
        return await wait_for_turn(ledger.log, "talk", turn, 0)


async def read_messages(ledger: LocalLedger) -> list[tuple[str, str]]:
    found = (await ledger.snapshot("talk")).entries
    return [(entry.role, entry.content) for entry in found if isinstance(entry, Message)]


async def echo(ledger: LocalLedger, session: str, text: str) -> str:
    async with ledger.session(session).call("look", {"at": text}) as call:
        call.complete("seen")
    return f"I saw {text}."


async def slow(ledger: LocalLedger, session: str, text: str) -> None:
    await ledger.session(session).say("Let me think.")
    await asyncio.Event().wait()


async def test_a_prompt_begins_a_turn_that_is_answered(ledger: LocalLedger) -> None:
    """The turn is returned at once, contains the prompt and the call, and ends with the answer."""
    async with answering(ledger, echo) as place:
        assert (await ask(place)).json() == {"answers": True, "why": ""}
        response = await ask(place, "POST", value={"text": "the sea"})
        assert response.status == 202, response.text
        turn = response.json()["turn"]
        assert (await ended(ledger, turn)).reason == "end_turn"
    assert await read_messages(ledger) == [("user", "the sea"), ("assistant", "I saw the sea.")]
    entries = (await ledger.snapshot("talk")).entries
    assert {entry.turn for entry in entries} == {turn}
    assert [entry.status for entry in entries if isinstance(entry, ToolCall)] == ["completed"]


async def test_an_agent_answers_in_the_turn_that_has_begun(ledger: LocalLedger) -> None:
    """The loop is given the open turn, and ends it itself; nothing is said or ended twice."""

    async def agent(ledger: LocalLedger, session: str, text: str) -> Any:
        row = await ledger.find_session(session)
        model = Scripted([[{"choices": [{"delta": {"content": "Good day."}, "finish_reason": "stop"}]}]])
        return await Agent(ledger.session(session), model).run(text, turn=row.turn)

    async with answering(ledger, agent) as place:
        turn = (await ask(place, "POST", value={"text": "hello"})).json()["turn"]
        await ended(ledger, turn)
    assert await read_messages(ledger) == [("user", "hello"), ("assistant", "Good day.")]
    events = [event async for event in ledger.events("talk")]
    assert len([event for event in events if isinstance(event, ev.TurnEnded)]) == 1


async def test_where_nobody_answers_that_is_said(ledger: LocalLedger) -> None:
    """In words that a page can show; and nothing is written."""
    before = await ledger.log.store.session("talk")
    async with answering(ledger, None) as place:
        response = (await ask(place)).json()
        assert response["answers"] is False and "answers no prompts" in response["why"]
        for way in ("", "/stop"):
            refused = await ask(place + way, "POST", value={"text": "hello"})
            assert (refused.status, refused.json()["detail"]) == (404, response["why"])
    assert await ledger.log.store.session("talk") == before


async def test_a_turn_under_way_is_not_cut_short(ledger: LocalLedger) -> None:
    """Neither one that is being answered, nor one that an agent elsewhere has begun."""
    async with answering(ledger, slow) as place:
        turn = (await ask(place, "POST", value={"text": "one"})).json()["turn"]
        response = await ask(place, "POST", value={"text": "two"})
        assert response.status == 409 and "in progress" in response.json()["detail"]
        assert (await ask(f"{place}/stop", "POST")).json() == {"stopped": True}
        assert (await ended(ledger, turn)).reason == "cancelled"
        await ledger.session("talk").start_turn("from elsewhere")
        assert (await ask(place, "POST", value={"text": "three"})).status == 409
    assert [text for role, text in await read_messages(ledger) if role == "user"] == ["one", "from elsewhere"]


async def test_of_two_prompts_at_once_one_is_answered(ledger: LocalLedger) -> None:
    """The other one gets a conflict, even at the same moment."""
    async with answering(ledger, slow) as place:
        response = await asyncio.gather(*(ask(place, "POST", value={"text": f"prompt {n}"}) for n in range(6)))
        assert sorted(one.status for one in response) == [202, 409, 409, 409, 409, 409]
        (turn,) = [one.json()["turn"] for one in response if one.status == 202]
        await ask(f"{place}/stop", "POST")
        await ended(ledger, turn)
    assert len([role for role, _ in await read_messages(ledger) if role == "user"]) == 1


async def test_stopping_cancels_whoever_answers(ledger: LocalLedger) -> None:
    """And a second time there is nothing to stop, which is no error."""
    stopped = asyncio.Event()

    async def patient(ledger: LocalLedger, session: str, text: str) -> None:
        try:
            async with ledger.session(session).call("wait"):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    async with answering(ledger, patient) as place:
        turn = (await ask(place, "POST", value={"text": "wait"})).json()["turn"]
        assert (await ask(f"{place}/stop", "POST")).json() == {"stopped": True}
        async with asyncio.timeout(TIMEOUT_S):
            await stopped.wait()
        assert (await ended(ledger, turn)).detail == "stopped by anonymous"
        assert (await ask(f"{place}/stop", "POST")).json() == {"stopped": False}


async def test_an_answer_that_fails_ends_its_turn(ledger: LocalLedger, caplog: pytest.LogCaptureFixture) -> None:
    """With what it was, and not with its text, which may hold anything; the next prompt is answered."""

    async def failing(ledger: LocalLedger, session: str, text: str) -> str:
        if text == "fail":
            raise RuntimeError("the password is xyzzy")
        return "fine"

    async with answering(ledger, failing) as place:
        turn = (await ask(place, "POST", value={"text": "fail"})).json()["turn"]
        end = await ended(ledger, turn)
        assert (end.reason, end.detail) == ("error", "the handler failed: RuntimeError")
        turn = (await ask(place, "POST", value={"text": "go on"})).json()["turn"]
        assert (await ended(ledger, turn)).reason == "end_turn"
    assert "xyzzy" in caplog.text


class Between(AllowAll):
    """Admit all callers, and let something happen between reading and writing."""

    def __init__(self, happens: Callable[[], Awaitable[Any]]) -> None:
        self._happens = [happens]

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal:
        while self._happens:
            await self._happens.pop()()
        return await super().admit(request, session, verb)


async def test_a_turn_that_begins_meanwhile_is_not_cut_short(ledger: LocalLedger) -> None:
    """The open turn is checked in the transaction that writes the prompt, not before."""
    async with answering(ledger, echo, Between(lambda: ledger.session("talk").start_turn("from elsewhere"))) as place:
        response = await ask(place, "POST", value={"text": "hello"})
        assert response.status == 409 and "in progress" in response.json()["detail"]
    assert await read_messages(ledger) == [("user", "from elsewhere")]
    assert not [event async for event in ledger.events("talk") if isinstance(event, ev.TurnEnded)]


async def test_a_turn_that_ends_meanwhile_is_not_stopped(ledger: LocalLedger) -> None:
    """It ended as it did, and nothing more is written."""
    await ledger.session("talk").start_turn("from elsewhere")
    async with answering(ledger, echo, Between(lambda: ledger.end_turn("talk"))) as place:
        assert (await ask(f"{place}/stop", "POST")).json() == {"stopped": False}
    ends = [event async for event in ledger.events("talk") if isinstance(event, ev.TurnEnded)]
    assert [end.reason for end in ends] == ["end_turn"]


@pytest.mark.parametrize("way", ["", "/stop"])
async def test_a_session_that_is_deleted_meanwhile_stays_so(ledger: LocalLedger, way: str) -> None:
    """A prompt does not create the session again, which would have no owner."""
    async with answering(ledger, echo, Between(lambda: ledger.delete("talk"))) as place:
        assert (await ask(place + way, "POST", value={"text": "hello"})).status == 404
    assert await ledger.log.store.session("talk") is None


async def test_a_reader_is_told_that_nothing_can_be_said(ledger: LocalLedger) -> None:
    """A user who may only read gets no prompt box, and is refused."""
    main, reading = "the-main-token-of-this-server", "a-token-that-only-reads"
    await ledger.log.store.put_token(TokenRecord("tok_1", hash_token(reading), "reader", "talk", ("read",), 0))
    async with answering(ledger, echo, TokenAuthorizer(ledger.log, main)) as place:
        headers = {"authorization": f"Bearer {reading}"}
        response = (await ask(place, headers=headers)).json()
        assert response["answers"] is False and "may read" in response["why"]
        assert (await ask(place, "POST", value={"text": "hello"}, headers=headers)).status == 403
        assert (await ask(place, headers={"authorization": f"Bearer {main}"})).json()["answers"] is True
        assert (await ask(place)).status == 401


@pytest.mark.parametrize("name", ["b:ü x", "a.b", "100%", "?", "🌊"])
async def test_a_session_is_prompted_by_any_name(ledger: LocalLedger, name: str) -> None:
    """A name as in an address; a prompt with unusual characters, and of full length."""
    await ledger.log.append(name, [ev.SessionInfo(title="a talk")])
    async with answering(ledger, echo) as place:
        there = place.replace("talk", quote(name, safe=""))
        response = await ask(there, "POST", value={"text": WAVES})
        assert response.status == 202, response.text
        async with asyncio.timeout(TIMEOUT_S):
            assert (await wait_for_turn(ledger.log, name, response.json()["turn"], 0)).reason == "end_turn"
    entries = (await ledger.snapshot(name)).entries
    assert isinstance(entries[0], Message) and entries[0].content == WAVES


@pytest.mark.parametrize(
    "value",
    [{"text": ""}, {"text": " \n"}, {"text": 1}, {}, [], None, {"text": "a", "more": 1}, {"text": "a" * 100_001}],
)
async def test_what_is_no_prompt_is_refused(ledger: LocalLedger, value: Any) -> None:
    """Before a turn begins."""
    async with answering(ledger, echo) as place:
        response = await ask(place, "POST", value=value)
        assert response.status == 400 and response.headers["content-type"] == "application/problem+json"
        assert (await ask(place.replace("talk", "none"), "POST", value={"text": "hello"})).status == 404
    assert await read_messages(ledger) == []
