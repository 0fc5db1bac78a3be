"""Chats of a database of messages at the wire: posted rows give the literal messages, live and after a reload.

`tests/fixtures/rows/chats.json` has the rows of each chat, the messages that a chat backend makes of them, and as
`history` the messages of the ledger where they differ (docs/formats.md has the reasons).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from msgspec import structs

from callslip.api.ledger import LocalLedger, open_ledger
from callslip.formats.ai_sdk_v4 import format_messages_to_vercel, vercel_json
from tests.support import scenarios
from tests.support.live_server import fetch, serving_ledger
from tests.support.paths import TESTS
from tests.support.stream_checks import Client

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
CHATS: list[Json] = json.loads((TESTS / "fixtures" / "rows" / "chats.json").read_text("utf-8"))
PARIS, TOKYO, RUNNING, *_ = CHATS
EACH_CHAT = pytest.mark.parametrize("chat", CHATS, ids=lambda chat: chat["name"])


@pytest.fixture(scope="module")
def client(node: str) -> Iterator[Client]:
    """The real client of the AI SDK 4."""
    process = Client(node, "reduce_v4.mjs")
    yield process
    process.close()


@pytest.fixture
async def ledger() -> AsyncIterator[LocalLedger]:
    async with await open_ledger("sqlite:///:memory:", scenarios.NO_REAPER) as ledger:
        yield ledger


async def post(url: str, rows: Any, **query: Any) -> None:
    """Post rows to the session `chat`. A list in the query repeats its parameter."""
    items = [(name, each) for name, value in query.items() for each in (value if isinstance(value, list) else [value])]
    parameters = "".join(f"&{name}={value}" for name, value in items)
    answer = await fetch(f"{url}/v1/sessions/chat/events?format=rows{parameters}", "POST", value=rows)
    assert answer.status in (200, 201), answer.text


async def read_history(url: str) -> list[Json]:
    """Return the messages of the session without the parts that mark steps."""
    answer = await fetch(f"{url}/v1/sessions/chat?format=vercel-v4")
    return [without_steps(message) for message in answer.json()["messages"]]


def without_steps(message: Json) -> Json:
    return {**message, "parts": [part for part in message["parts"] if part["type"] != "step-start"]}


def with_placeholder(messages: list[Json]) -> list[Json]:
    """Return messages with a short name in place of a derived id."""
    text = json.dumps(messages)
    for message in messages:
        if len(message["id"]) == 36:
            text = text.replace(message["id"], "placeholder")
    return json.loads(text)


@EACH_CHAT
def test_a_chat_gives_its_literal_messages(chat: Json) -> None:
    """S4.1, S4.3, S4.8, ROW5: from values and from JSON, newest first."""
    required = dict.fromkeys(chat.get("requires_validation", ()), True)
    for rows in (chat["rows"], chat["rows"][::-1]):
        assert with_placeholder(format_messages_to_vercel(rows, required)) == chat["messages"]
        assert with_placeholder(json.loads(vercel_json(json.dumps(rows), required))) == chat["messages"]


@EACH_CHAT
async def test_a_posted_chat_gives_its_literal_history(ledger: LocalLedger, chat: Json) -> None:
    """S4.2, S4.7, ROW3, ROW4, ROW5: row by row, with the tools that require a user in the query."""
    required = chat.get("requires_validation", [])
    async with serving_ledger(ledger) as url:
        for row in chat["rows"]:
            await post(url, row, requires_validation=required)
        assert await read_history(url) == chat.get("history", chat["messages"])


@pytest.mark.parametrize("chat", [PARIS, TOKYO], ids=lambda chat: chat["name"])
async def test_a_client_sees_a_chat_live_as_after_a_reload(ledger: LocalLedger, client: Client, chat: Json) -> None:
    """S4.7, ROW5: its calls go from `call` to `result`, and the message ends with the id of its row."""
    *rows, last = chat["rows"]
    answer, _ = chat["messages"]
    async with serving_ledger(ledger) as url:
        stream = f"{url}/v1/sessions/chat/stream?format=vercel-v4"
        headers = {"connection": "close"}
        for number, row in enumerate(rows):
            await post(url, row)
            if number == 1:
                live = asyncio.to_thread(client.ask, [{"id": 0, "url": stream, "headers": headers}])
                reader = asyncio.ensure_future(live)
                async with asyncio.timeout(30):
                    while b"callslip_readers 1\n" not in (await fetch(f"{url}/metrics")).body:
                        await asyncio.sleep(0.01)
                states = [call["state"] for call in calls(await read_history(url))]
                assert set(states) == {"call"}
        assert {call["state"] for call in calls(await read_history(url))} == {"result"}
        await post(url, last)
        (seen,) = await reader
        reloaded = await read_history(url)
        (replayed,) = await asyncio.to_thread(client.ask, [{"id": 0, "url": stream, "headers": headers}])
    assert reloaded == chat["messages"]
    assert seen["error"] is None and seen["finish"] == "stop"
    assert seen["message"] == replayed["message"]
    message = without_steps(seen["message"])
    # The client has its own clock, and collects all text.
    texts = "".join(part["text"] for part in answer["parts"] if part["type"] == "text")
    assert message == {name: value for name, value in {**answer, "content": texts}.items() if name != "createdAt"}


def calls(messages: list[Json]) -> list[Json]:
    parts = [part for message in messages for part in message["parts"]]
    return [part["toolInvocation"] for part in parts if part["type"] == "tool-invocation"]


async def test_the_settings_name_the_tools_that_require_a_user() -> None:
    """S4.3, ROW6: for rows that are posted, unless the request names others."""
    settings = structs.replace(scenarios.NO_REAPER, requires_validation=("get_weather",))
    for query, validated in (({}, "pending"), ({"requires_validation": "other"}, "not_required")):
        async with await open_ledger("sqlite:///:memory:", settings) as ledger, serving_ledger(ledger) as url:
            await post(url, RUNNING["rows"], **query)
            answer, _ = await read_history(url)
            assert answer["annotations"][0] == {"toolCallId": "call_123", "validated": validated, "isComplete": False}


async def test_tools_that_require_a_user_are_refused_for_other_formats(ledger: LocalLedger) -> None:
    """ROW6: the request would expect an effect that it does not have."""
    async with serving_ledger(ledger) as url:
        target = f"{url}/v1/sessions/chat/events?format=openai&requires_validation=a"
        answer = await fetch(target, "POST", value={"role": "user", "content": "Hi"})
    assert answer.status == 400
    assert "requires_validation: has no effect in the format 'openai', only in 'rows'" in answer.text


async def test_rows_that_are_not_rows_are_kept_by_the_server(ledger: LocalLedger) -> None:
    """ROW2: as raw, among rows that are read."""
    question, *others = PARIS["rows"]
    async with serving_ledger(ledger) as url:
        target = f"{url}/v1/sessions/chat/events?format=rows&end=true"
        answer = await fetch(target, "POST", value=[question, 3, {"entity": None}, *others])
        assert answer.json()["notUnderstood"] == 2
        assert await read_history(url) == PARIS["messages"]
