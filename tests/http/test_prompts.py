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


async def test_a_prompt_starts_a_turn_and_gets_an_answer(ledger: LocalLedger) -> None:
    """The response has the turn, which contains prompt and call and ends after the answer."""
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


async def test_an_agent_answers_in_the_open_turn(ledger: LocalLedger) -> None:
    """The agent loop gets the open turn and ends it; no message and no end is written twice."""

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


async def test_a_prompt_without_a_handler_gives_404_with_a_reason(ledger: LocalLedger) -> None:
    """The page can show the reason, and nothing is written."""
    before = await ledger.log.store.session("talk")
    async with answering(ledger, None) as place:
        response = (await ask(place)).json()
        assert response["answers"] is False and "accepts no prompts" in response["why"]
        for way in ("", "/stop"):
            refused = await ask(place + way, "POST", value={"text": "hello"})
            assert (refused.status, refused.json()["detail"]) == (404, response["why"])
    assert await ledger.log.store.session("talk") == before


async def test_a_prompt_during_a_turn_is_a_conflict(ledger: LocalLedger) -> None:
    """Both for a turn of this server and for a turn of another agent."""
    async with answering(ledger, slow) as place:
        turn = (await ask(place, "POST", value={"text": "one"})).json()["turn"]
        response = await ask(place, "POST", value={"text": "two"})
        assert response.status == 409 and "in progress" in response.json()["detail"]
        assert (await ask(f"{place}/stop", "POST")).json() == {"stopped": True}
        assert (await ended(ledger, turn)).reason == "cancelled"
        await ledger.session("talk").start_turn("from elsewhere")
        assert (await ask(place, "POST", value={"text": "three"})).status == 409
    assert [text for role, text in await read_messages(ledger) if role == "user"] == ["one", "from elsewhere"]


async def test_only_the_first_of_concurrent_prompts_is_answered(ledger: LocalLedger) -> None:
    """The other requests get a conflict."""
    async with answering(ledger, slow) as place:
        response = await asyncio.gather(*(ask(place, "POST", value={"text": f"prompt {n}"}) for n in range(6)))
        assert sorted(one.status for one in response) == [202, 409, 409, 409, 409, 409]
        (turn,) = [one.json()["turn"] for one in response if one.status == 202]
        await ask(f"{place}/stop", "POST")
        await ended(ledger, turn)
    assert len([role for role, _ in await read_messages(ledger) if role == "user"]) == 1


async def test_stopping_a_turn_cancels_its_handler(ledger: LocalLedger) -> None:
    """A second stop finds nothing to stop and is no error."""
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


async def test_a_handler_error_ends_the_turn_without_its_text(
    ledger: LocalLedger, caplog: pytest.LogCaptureFixture
) -> None:
    """The turn has only the type of the error, and the next prompt is answered."""

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


async def test_a_prompt_conflicts_with_a_turn_started_concurrently(ledger: LocalLedger) -> None:
    """The open turn is checked in the transaction that writes the prompt, not before."""
    async with answering(ledger, echo, Between(lambda: ledger.session("talk").start_turn("from elsewhere"))) as place:
        response = await ask(place, "POST", value={"text": "hello"})
        assert response.status == 409 and "in progress" in response.json()["detail"]
    assert await read_messages(ledger) == [("user", "from elsewhere")]
    assert not [event async for event in ledger.events("talk") if isinstance(event, ev.TurnEnded)]


async def test_stopping_a_turn_that_ended_concurrently_changes_nothing(ledger: LocalLedger) -> None:
    """The turn keeps its end, and nothing more is written."""
    await ledger.session("talk").start_turn("from elsewhere")
    async with answering(ledger, echo, Between(lambda: ledger.end_turn("talk"))) as place:
        assert (await ask(f"{place}/stop", "POST")).json() == {"stopped": False}
    ends = [event async for event in ledger.events("talk") if isinstance(event, ev.TurnEnded)]
    assert [end.reason for end in ends] == ["end_turn"]


@pytest.mark.parametrize("way", ["", "/stop"])
async def test_a_prompt_does_not_recreate_a_session_deleted_concurrently(ledger: LocalLedger, way: str) -> None:
    """The new session would have no owner."""
    async with answering(ledger, echo, Between(lambda: ledger.delete("talk"))) as place:
        assert (await ask(place + way, "POST", value={"text": "hello"})).status == 404
    assert await ledger.log.store.session("talk") is None


async def test_a_user_with_only_read_access_cannot_send_prompts(ledger: LocalLedger) -> None:
    """The page gets the reason, and a prompt gives 403."""
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
async def test_prompts_work_for_any_session_name(ledger: LocalLedger, name: str) -> None:
    """The name is quoted in the URL; the prompt has unusual characters and the maximum length."""
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
async def test_an_invalid_prompt_is_refused(ledger: LocalLedger, value: Any) -> None:
    """Before a turn begins."""
    async with answering(ledger, echo) as place:
        response = await ask(place, "POST", value=value)
        assert response.status == 400 and response.headers["content-type"] == "application/problem+json"
        assert (await ask(place.replace("talk", "none"), "POST", value={"text": "hello"})).status == 404
    assert await read_messages(ledger) == []
