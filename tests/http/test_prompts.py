"""Prompts from the page: they start a turn and call the server's handler, or are refused if there is none."""

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
from tests.support.live_server import TIMEOUT_S, fetch, running

pytestmark = pytest.mark.anyio

PROMPT_PATH = "/v1/sessions/talk/prompt"
LONG_PROMPT = "\0" + "🌊" * 99_999


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db) as ledger:
        await ledger.log.append("talk", [ev.SessionInfo(title="a talk")])
        yield ledger


@contextlib.asynccontextmanager
async def serving_prompts(
    ledger: LocalLedger, answers: Answers | None, gate: Authorizer | None = None
) -> AsyncGenerator[str]:
    """Serve a ledger, and yield the URL for prompts to the session `talk`."""
    app = build(http.Server(ledger, gate or AllowAll(), answers=answers), http.ROUTES)
    async with running(app) as url:
        yield url + PROMPT_PATH


async def wait_for_end(ledger: LocalLedger, turn: str) -> ev.TurnEnded:
    async with asyncio.timeout(TIMEOUT_S):
        return await wait_for_turn(ledger.log, "talk", turn, 0)


async def read_messages(ledger: LocalLedger) -> list[tuple[str, str]]:
    entries = (await ledger.snapshot("talk")).entries
    return [(entry.role, entry.content) for entry in entries if isinstance(entry, Message)]


async def echo(ledger: LocalLedger, session: str, text: str) -> str:
    async with ledger.session(session).call("look", {"at": text}) as call:
        call.complete("seen")
    return f"I saw {text}."


async def wait_forever(ledger: LocalLedger, session: str, text: str) -> None:
    await ledger.session(session).say("Let me think.")
    await asyncio.Event().wait()


async def test_a_prompt_starts_a_turn_and_gets_an_answer(ledger: LocalLedger) -> None:
    """The response has the turn, which contains prompt and call and ends after the answer."""
    async with serving_prompts(ledger, echo) as prompt_url:
        assert (await fetch(prompt_url)).json() == {"answers": True, "why": ""}
        response = await fetch(prompt_url, "POST", value={"text": "the sea"})
        assert response.status == 202, response.text
        turn = response.json()["turn"]
        assert (await wait_for_end(ledger, turn)).reason == "end_turn"
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

    async with serving_prompts(ledger, agent) as prompt_url:
        turn = (await fetch(prompt_url, "POST", value={"text": "hello"})).json()["turn"]
        await wait_for_end(ledger, turn)
    assert await read_messages(ledger) == [("user", "hello"), ("assistant", "Good day.")]
    events = [event async for event in ledger.events("talk")]
    assert len([event for event in events if isinstance(event, ev.TurnEnded)]) == 1


async def test_a_prompt_without_a_handler_gives_404_with_a_reason(ledger: LocalLedger) -> None:
    """The page can show the reason, and nothing is written."""
    before = await ledger.log.store.session("talk")
    async with serving_prompts(ledger, None) as prompt_url:
        response = (await fetch(prompt_url)).json()
        assert response["answers"] is False and "accepts no prompts" in response["why"]
        for action in ("", "/stop"):
            refusal = await fetch(prompt_url + action, "POST", value={"text": "hello"})
            assert (refusal.status, refusal.json()["detail"]) == (404, response["why"])
    assert await ledger.log.store.session("talk") == before


async def test_a_prompt_during_a_turn_is_a_conflict(ledger: LocalLedger) -> None:
    """Both for a turn of this server and for a turn of another agent."""
    async with serving_prompts(ledger, wait_forever) as prompt_url:
        turn = (await fetch(prompt_url, "POST", value={"text": "one"})).json()["turn"]
        response = await fetch(prompt_url, "POST", value={"text": "two"})
        assert response.status == 409 and "in progress" in response.json()["detail"]
        assert (await fetch(f"{prompt_url}/stop", "POST")).json() == {"stopped": True}
        assert (await wait_for_end(ledger, turn)).reason == "cancelled"
        await ledger.session("talk").start_turn("from elsewhere")
        assert (await fetch(prompt_url, "POST", value={"text": "three"})).status == 409
    assert [text for role, text in await read_messages(ledger) if role == "user"] == ["one", "from elsewhere"]


async def test_only_the_first_of_concurrent_prompts_is_answered(ledger: LocalLedger) -> None:
    """The other requests get a conflict."""
    async with serving_prompts(ledger, wait_forever) as prompt_url:
        responses = await asyncio.gather(*(fetch(prompt_url, "POST", value={"text": f"prompt {n}"}) for n in range(6)))
        assert sorted(response.status for response in responses) == [202, 409, 409, 409, 409, 409]
        (turn,) = [response.json()["turn"] for response in responses if response.status == 202]
        await fetch(f"{prompt_url}/stop", "POST")
        await wait_for_end(ledger, turn)
    assert len([role for role, _ in await read_messages(ledger) if role == "user"]) == 1


async def test_stopping_a_turn_cancels_its_handler(ledger: LocalLedger) -> None:
    """A second stop finds nothing to stop and is no error."""
    stopped = asyncio.Event()

    async def wait_for_cancel(ledger: LocalLedger, session: str, text: str) -> None:
        try:
            async with ledger.session(session).call("wait"):
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    async with serving_prompts(ledger, wait_for_cancel) as prompt_url:
        turn = (await fetch(prompt_url, "POST", value={"text": "wait"})).json()["turn"]
        assert (await fetch(f"{prompt_url}/stop", "POST")).json() == {"stopped": True}
        async with asyncio.timeout(TIMEOUT_S):
            await stopped.wait()
        assert (await wait_for_end(ledger, turn)).detail == "stopped by anonymous"
        assert (await fetch(f"{prompt_url}/stop", "POST")).json() == {"stopped": False}


async def test_a_handler_error_ends_the_turn_without_its_text(
    ledger: LocalLedger, caplog: pytest.LogCaptureFixture
) -> None:
    """The turn has only the type of the error, and the next prompt is answered."""

    async def fail_or_answer(ledger: LocalLedger, session: str, text: str) -> str:
        if text == "fail":
            raise RuntimeError("the password is xyzzy")
        return "fine"

    async with serving_prompts(ledger, fail_or_answer) as prompt_url:
        turn = (await fetch(prompt_url, "POST", value={"text": "fail"})).json()["turn"]
        end = await wait_for_end(ledger, turn)
        assert (end.reason, end.detail) == ("error", "the handler failed: RuntimeError")
        turn = (await fetch(prompt_url, "POST", value={"text": "go on"})).json()["turn"]
        assert (await wait_for_end(ledger, turn)).reason == "end_turn"
    assert "xyzzy" in caplog.text


class InterveningAuthorizer(AllowAll):
    """Admit all callers, and run an action once, between the read and the write of a request."""

    def __init__(self, action: Callable[[], Awaitable[Any]]) -> None:
        self._actions = [action]

    async def admit(self, request: HTTPConnection, session: SessionRecord | None, verb: Verb) -> Principal:
        while self._actions:
            await self._actions.pop()()
        return await super().admit(request, session, verb)


async def test_a_prompt_conflicts_with_a_turn_started_concurrently(ledger: LocalLedger) -> None:
    """The open turn is checked in the transaction that writes the prompt, not before."""
    async with serving_prompts(
        ledger, echo, InterveningAuthorizer(lambda: ledger.session("talk").start_turn("from elsewhere"))
    ) as prompt_url:
        response = await fetch(prompt_url, "POST", value={"text": "hello"})
        assert response.status == 409 and "in progress" in response.json()["detail"]
    assert await read_messages(ledger) == [("user", "from elsewhere")]
    assert not [event async for event in ledger.events("talk") if isinstance(event, ev.TurnEnded)]


async def test_stopping_a_turn_that_ended_concurrently_changes_nothing(ledger: LocalLedger) -> None:
    """The turn keeps its end, and nothing more is written."""
    await ledger.session("talk").start_turn("from elsewhere")
    async with serving_prompts(ledger, echo, InterveningAuthorizer(lambda: ledger.end_turn("talk"))) as prompt_url:
        assert (await fetch(f"{prompt_url}/stop", "POST")).json() == {"stopped": False}
    ends = [event async for event in ledger.events("talk") if isinstance(event, ev.TurnEnded)]
    assert [end.reason for end in ends] == ["end_turn"]


@pytest.mark.parametrize("path", ["", "/stop"])
async def test_a_prompt_does_not_recreate_a_session_deleted_concurrently(ledger: LocalLedger, path: str) -> None:
    """The new session would have no owner."""
    async with serving_prompts(ledger, echo, InterveningAuthorizer(lambda: ledger.delete("talk"))) as prompt_url:
        assert (await fetch(prompt_url + path, "POST", value={"text": "hello"})).status == 404
    assert await ledger.log.store.session("talk") is None


async def test_a_user_with_only_read_access_cannot_send_prompts(ledger: LocalLedger) -> None:
    """The page gets the reason, and a prompt gives 403."""
    main_token, read_token = "the-main-token-of-this-server", "a-token-that-only-reads"
    await ledger.log.store.put_token(TokenRecord("tok_1", hash_token(read_token), "reader", "talk", ("read",), 0))
    async with serving_prompts(ledger, echo, TokenAuthorizer(ledger.log, main_token)) as prompt_url:
        headers = {"authorization": f"Bearer {read_token}"}
        response = (await fetch(prompt_url, headers=headers)).json()
        assert response["answers"] is False and "may read" in response["why"]
        assert (await fetch(prompt_url, "POST", value={"text": "hello"}, headers=headers)).status == 403
        assert (await fetch(prompt_url, headers={"authorization": f"Bearer {main_token}"})).json()["answers"] is True
        assert (await fetch(prompt_url)).status == 401


@pytest.mark.parametrize("name", ["b:ü x", "a.b", "100%", "?", "🌊"])
async def test_prompts_work_for_any_session_name(ledger: LocalLedger, name: str) -> None:
    """The name is quoted in the URL; the prompt has unusual characters and the maximum length."""
    await ledger.log.append(name, [ev.SessionInfo(title="a talk")])
    async with serving_prompts(ledger, echo) as prompt_url:
        url = prompt_url.replace("talk", quote(name, safe=""))
        response = await fetch(url, "POST", value={"text": LONG_PROMPT})
        assert response.status == 202, response.text
        async with asyncio.timeout(TIMEOUT_S):
            assert (await wait_for_turn(ledger.log, name, response.json()["turn"], 0)).reason == "end_turn"
    entries = (await ledger.snapshot(name)).entries
    assert isinstance(entries[0], Message) and entries[0].content == LONG_PROMPT


@pytest.mark.parametrize(
    "value",
    [{"text": ""}, {"text": " \n"}, {"text": 1}, {}, [], None, {"text": "a", "more": 1}, {"text": "a" * 100_001}],
)
async def test_an_invalid_prompt_is_refused(ledger: LocalLedger, value: Any) -> None:
    """Before a turn begins."""
    async with serving_prompts(ledger, echo) as prompt_url:
        response = await fetch(prompt_url, "POST", value=value)
        assert response.status == 400 and response.headers["content-type"] == "application/problem+json"
        assert (await fetch(prompt_url.replace("talk", "none"), "POST", value={"text": "hello"})).status == 404
    assert await read_messages(ledger) == []
