"""Test that posted messages are durable as soon as they are acknowledged, also those that result in no event yet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api.access import FULL_ACCESS
from callslip.api.ledger import LocalLedger
from callslip.api.posts import Body, PostResult, Posts, _BodyWrite  # pyright: ignore[reportPrivateUsage]
from callslip.errors import ConflictError, StoreError
from callslip.formats import registry
from callslip.http.access import Principal
from callslip.ledger import liveness
from callslip.model import codec
from callslip.model.entries import Message, ToolCall
from callslip.model.records import ConversationChange, ConversationName
from callslip.settings import Settings
from tests.conftest import LONG
from tests.support import format_cases
from tests.support.invariants import find_faults, normalize_entries
from tests.support.live_server import HttpResponse, fetch, running, serving_ledger

pytestmark = pytest.mark.anyio

SETTINGS = Settings(synchronous="NORMAL", reaper_interval=3600)
READABLE = [name for name in registry.readable() if name != "events"]
SECRET = "sk-ant-" + "Qx7" * 12


class Servers:
    """Two servers on one file, each with a ledger of its own, as two processes have."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledgers: list[LocalLedger] = []
        self.urls: list[str] = []
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        for _ in range(2):
            self.ledgers.append(await self._stack.enter_async_context(await callslip.open(str(self.path), SETTINGS)))
            self.urls.append(await self._stack.enter_async_context(serving_ledger(self.ledgers[-1])))

    async def restart(self) -> None:
        """Forget everything that is not in the file."""
        await self.stop()
        await self.start()

    async def stop(self) -> None:
        await self._stack.aclose()
        self.ledgers, self.urls = [], []

    async def post(
        self, format: str, messages: Any, *, session: str = "s", server: int = 0, key: str = "", end: bool = False
    ) -> HttpResponse:
        headers = {"idempotency-key": key} if key else {}
        url = f"{self.urls[server]}/v1/sessions/{session}/events?format={format}{'&end=true' if end else ''}"
        return await fetch(url, "POST", value=messages, headers=headers)

    async def entries(self, session: str = "s") -> list[Any]:
        return list((await self.ledgers[0].snapshot(session)).entries)


@contextlib.asynccontextmanager
async def running_servers(path: Path) -> AsyncGenerator[Servers]:
    servers = Servers(path)
    await servers.start()
    try:
        yield servers
    finally:
        await servers.stop()


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with running_servers(tmp_path / "ledger.db") as servers:
        yield servers


async def count_rows(servers: Servers, table: str) -> int:
    store: Any = servers.ledgers[0].log.store
    return store._read.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]


async def test_half_a_tag_survives_a_restart(servers: Servers) -> None:
    """The command is complete when the other half arrives, and the text before it is not repeated."""
    assert (await servers.post("shell", ["Look: <shell>ls", " -l"])).status == 201
    await servers.restart()
    assert (await servers.post("shell", [" /tmp</sh", "ell> done"])).status == 200
    message, call, rest = await servers.entries()
    assert (message.content, call.title, rest.content) == ("Look: ", "ls -l /tmp", " done")
    assert not await find_faults(servers.ledgers[0])


async def test_a_lone_row_survives_a_restart(servers: Servers) -> None:
    """The order of rows is only known from the second row on."""
    row = json.loads(format_cases.lines_of("rows/weather")[0])
    assert (await servers.post("rows", [row])).json()["appended"] == 0
    await servers.restart()
    for line in format_cases.lines_of("rows/weather")[1:]:
        await servers.post("rows", [json.loads(line)])
    await servers.post("rows", [], end=True)
    first = (await servers.entries())[0]
    assert isinstance(first, Message) and first.role == "user"


@pytest.mark.parametrize("format", READABLE)
async def test_any_process_continues_a_conversation(servers: Servers, format: str) -> None:
    """Messages that are posted one by one, to two processes in turn, become the entries of one process."""
    cases = [case for case in format_cases.CASES if format_cases.format_of(case) == format]
    for case in cases if LONG else cases[:: max(1, len(cases) // 2)][:2]:
        messages = [json.loads(line) for line in format_cases.lines_of(case) if line.strip()]
        one, two = case.replace("/", "-") + "-one", case.replace("/", "-") + "-two"
        for number, message in enumerate(messages):
            assert (await servers.post(format, [message], session=one)).status < 300
            assert (await servers.post(format, [message], session=two, server=number % 2)).status < 300
        for session in (one, two):
            await servers.post(format, [], session=session, end=True)
        assert normalize_entries(await servers.entries(two)) == normalize_entries(await servers.entries(one)), case


async def test_the_end_of_a_conversation_shows_what_was_held(servers: Servers) -> None:
    """In another process than the one that read it; after that nothing is stored of the conversation."""
    await servers.post("shell", ["wait <shel"])
    await servers.post("shell", [], server=1, end=True)
    assert [entry.content for entry in await servers.entries()] == ["wait <shel"]
    assert await count_rows(servers, "conversations") == await count_rows(servers, "inputs") == 0


async def test_a_retry_of_a_body_without_events_changes_nothing(servers: Servers) -> None:
    """The key is stored with the input, in any process; with another body it is a conflict."""
    first = await servers.post("shell", ["<shell>echo a"], key="k1")
    await servers.restart()
    for server in (0, 1):
        again = await servers.post("shell", ["<shell>echo a"], key="k1", server=server)
        assert (again.status, again.json()) == (200, first.json())
    assert (await servers.post("shell", ["<shell>echo b"], key="k1")).status == 409
    await servers.post("shell", ["</shell>"], key="k2")
    assert [entry.title for entry in await servers.entries() if isinstance(entry, ToolCall)] == ["echo a"]


async def test_an_answer_never_says_that_the_last_event_is_0(servers: Servers) -> None:
    """For a session without events it names none; otherwise its last one, also when a retry is answered."""
    assert "seq" not in (await servers.post("shell", ["<shell>"], key="k1")).json()
    assert "seq" not in (await servers.post("shell", ["<shell>"], key="k1")).json()
    last = (await servers.post("shell", ["ls</shell><"], key="k2")).json()["seq"]
    for _ in range(2):
        body = (await servers.post("shell", ["shell>p"], key="k3")).json()
        assert (body["appended"], body["seq"]) == (0, last)
    assert (await servers.post("events", [])).json()["seq"] == last


async def test_held_input_adds_no_event_and_goes_with_its_session(servers: Servers) -> None:
    await servers.post("shell", ["a"], key="k1")
    before = [event.seq async for event in servers.ledgers[0].events("s")]
    await servers.post("shell", ["<shell>ls"], key="k2")
    assert [event.seq async for event in servers.ledgers[0].events("s")] == before
    await servers.ledgers[0].delete("s")
    for table in ("conversations", "inputs", "posts"):
        assert await count_rows(servers, table) == 0
    await servers.post("shell", ["</shell>."], server=1)
    assert [entry.content for entry in await servers.entries()] == ["</shell>."]


async def test_retention_deletes_held_input(servers: Servers) -> None:
    """A conversation without a body for longer than events are kept is deleted, and so are its keys."""
    await servers.post("shell", ["<shell>ls"], key="k1")
    await servers.ledgers[0].prune(3600)
    assert await count_rows(servers, "inputs") == 1
    await servers.ledgers[0].prune(-60)
    for table in ("conversations", "inputs", "posts"):
        assert await count_rows(servers, table) == 0


async def test_held_input_has_no_secret_at_rest(servers: Servers) -> None:
    """Of a secret in several bodies only the beginning is in the file, and the log has none of it."""
    await servers.post("shell", [f"<shell>echo {SECRET} "])
    await servers.post("shell", [f"{SECRET[:20]}"])
    await servers.post("shell", [SECRET[20:]])
    await servers.stop()
    data = b"".join(path.read_bytes() for path in servers.path.parent.glob("ledger.db*"))
    assert SECRET.encode() not in data and SECRET[20:].encode() not in data
    await servers.start()
    await servers.post("shell", ["Zz9</shell>"])
    (call,) = await servers.entries()
    assert call.title == "echo [redacted:anthropic] [redacted:anthropic]"


async def test_the_cost_of_a_body_does_not_grow(servers: Servers) -> None:
    """What is stored for a conversation is in proportion to what was posted, however long it is."""
    store: Any = servers.ledgers[0].log.store
    changes: list[int] = []
    transact = store.transact

    def count(work: Any, *touched: Any) -> Any:
        def counted(unit: Any) -> Any:
            result = work(unit)
            for _, stored in unit.conversations.values():
                changes.extend(len(change.state) + len(change.input) for _, change in stored)
            return result

        return transact(counted, *touched)

    store.transact = count
    chunk = {"id": "r", "choices": [{"index": 0, "delta": {"content": "word "}}]}
    posted = 0
    for _ in range(400):
        posted += len(json.dumps([chunk]))
        await servers.post("openai", [chunk])
    assert len(changes) == 400 and sum(changes) < 4 * posted


async def test_two_processes_that_read_one_conversation_at_once_lose_nothing(servers: Servers) -> None:
    """Each body is read once, in some order."""
    async with concurrent_requests() as start:
        for number in range(40):
            start(servers.post("shell", [f"<shell>echo {number}</shell>"], server=number % 2, key=f"k{number}"))
    titles = [entry.title for entry in await servers.entries() if isinstance(entry, ToolCall)]
    assert sorted(titles) == sorted(f"echo {number}" for number in range(40))
    assert not await find_faults(servers.ledgers[0])


@contextlib.asynccontextmanager
async def concurrent_requests() -> AsyncGenerator[Any]:
    """Run requests at the same time, and check that all succeed."""
    tasks: list[asyncio.Task[HttpResponse]] = []
    yield lambda request: tasks.append(asyncio.ensure_future(request))
    assert {response.status for response in await asyncio.gather(*tasks)} <= {200, 201}


# What a review found


def make_body(messages: list[Any], key: str = "") -> Body:
    raw = json.dumps(messages).encode()
    return Body(messages=messages, size=len(raw), digest=codec.digest(raw), key=key)


def make_row(name: str, entity: str, text: str, second: str) -> dict[str, Any]:
    content = json.dumps({"role": "user" if entity == "USER" else "assistant", "content": text})
    created = f"2026-01-01T10:00:{second}.000Z"
    return {"id": name, "threadId": "7", "creationDate": created, "entity": entity, "content": content}


def make_ui_message(name: str, role: str, text: str) -> dict[str, Any]:
    return {"id": name, "role": role, "parts": [{"type": "text", "text": text}]}


REPEATED = {
    "openai": [
        {"messages": [{"role": "user", "content": f"use {SECRET} please"}]},
        {"messages": [{"role": "user", "content": f"use {SECRET} please"}, {"role": "user", "content": "more"}]},
    ],
    "ui-v6": [
        make_ui_message("u1", "user", "q"),
        *[make_ui_message("a1", "assistant", f"key {SECRET}.")] * 2,
    ],
    "rows": [
        make_row("m1", "USER", "q", "01"),
        make_row("m2", "AI_MESSAGE", "a", "02"),
        *[make_row("m3", "AI_MESSAGE", f"b {SECRET}", "03")] * 2,
    ],
    "act-observe": [
        {"type": "text_delta", "delta": f"key is {SECRET} ok"},
        {"type": "text_end", "content": f"key is {SECRET} ok"},
    ],
}
"""Messages of which the last one repeats a text with a secret."""


@pytest.mark.parametrize("format", REPEATED)
async def test_a_repeated_text_with_a_secret_is_known_in_another_process(servers: Servers, format: str) -> None:
    """The secret is masked at rest, but the text is recognized, so that it is not shown twice."""
    *first, last = REPEATED[format]
    for session in ("one", "two"):
        for message in first:
            await servers.post(format, [message], session=session)
        await servers.post(format, [last], session=session, server=int(session == "two"))
    assert normalize_entries(await servers.entries("two")) == normalize_entries(await servers.entries("one"))


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_body_of_several_transactions_is_not_interrupted(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Another process that reads a body of the conversation meanwhile waits: no command is lost or shown twice."""
    first, second = (Posts(ledger.log) for ledger in servers.ledgers)
    name = ConversationName("s", "shell", "")
    await first.append(name, make_body(["start "]), FULL_ACCESS)
    transact, other = servers.ledgers[0].log.transact_drafts, list[asyncio.Task[Any]]()

    async def transact_beside_another(*args: Any, **more: Any) -> Any:
        result = await transact(*args, **more)
        if not other:
            body = make_body(["<shell>other</shell>"])
            other.append(asyncio.create_task(second.append(name, body, FULL_ACCESS)))
            await asyncio.sleep(0.05)
        return result

    monkeypatch.setattr(servers.ledgers[0].log, "transact_drafts", transact_beside_another)
    messages = [f"<shell>echo {number}</shell>text {number};" for number in range(800)]
    result = await first.append(name, make_body(messages, key), FULL_ACCESS)
    await other[0]
    assert result.appended > 1000
    entries = await servers.entries()
    titles = [entry.title for entry in entries if isinstance(entry, ToolCall)]
    assert titles == [*(f"echo {number}" for number in range(800)), "other"]
    texts = "".join(entry.content for entry in entries if isinstance(entry, Message))
    assert all(texts.count(f"text {number};") == 1 for number in range(800))


async def test_a_body_is_complete_only_with_its_conversation(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server dies before it has stored the conversation: the retry is not taken for a repeated body."""
    name, body = ConversationName("s", "shell", ""), make_body(["a<shell>ls"], "k")
    finish = _BodyWrite._finish  # pyright: ignore[reportPrivateUsage]

    def fail(*_: Any) -> Any:
        raise StoreError("the process died")

    async def refuse_first(self: Any, part: Any, drafts: Any) -> None:
        self._remaining += 1  # As after a message that was stored as raw in place of several drafts.
        await append(self, part, drafts)

    append = _BodyWrite._append  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(_BodyWrite, "_append", refuse_first)
    monkeypatch.setattr(_BodyWrite, "_finish", fail)
    with pytest.raises(StoreError):
        await Posts(servers.ledgers[0].log).append(name, body, FULL_ACCESS)
    monkeypatch.setattr(_BodyWrite, "_finish", finish)
    other = Posts(servers.ledgers[1].log)
    await other.append(name, body, FULL_ACCESS)
    await other.append(name, make_body(["</shell>"]), FULL_ACCESS)
    message, call = await servers.entries()
    assert (message.content, call.title) == ("a", "ls")


async def test_equal_keys_of_two_callers_do_not_fail_other_bodies(servers: Servers) -> None:
    """All three are written in one group: the second caller gets a conflict, the others succeed."""
    store, posts = servers.ledgers[0].log.store, Posts(servers.ledgers[0].log)
    started, is_blocked = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block(_: Any) -> None:
        loop.call_soon_threadsafe(started.set)
        is_blocked.wait(10)

    blocking = asyncio.ensure_future(store.transact(block))
    await started.wait()
    requests = [
        posts.append(ConversationName("s", "shell", caller), make_body(["<shell>"], "k"), FULL_ACCESS)
        for caller in ("a", "b")
    ]
    user = [{"type": "message.user", "text": "hi"}]
    requests.append(posts.append(ConversationName("other", "events", ""), make_body(user), FULL_ACCESS))
    tasks = [asyncio.ensure_future(request) for request in requests]
    await asyncio.sleep(0)
    is_blocked.set()
    first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
    await blocking
    assert sum(isinstance(result, ConflictError) for result in (first, second)) == 1
    assert isinstance(third, PostResult) and third.appended


async def test_input_of_the_greatest_depth_survives_a_restart(servers: Servers) -> None:
    """A body that was accepted can be read again."""
    value: Any = "x"
    for _ in range(codec.MAX_DEPTH - 4):
        value = [value]
    row = make_row("m1", "TOOL", "", "01") | {"content": {"tool_call_id": "c", "result": value}}
    for message in (row, make_row("m2", "AI_MESSAGE", "a", "02")):
        assert (await servers.post("rows", [message])).status < 300
        await servers.restart()


@pytest.mark.parametrize("damage", ["state = x'c1'", "state = substr(state, 1, 20)", "version = version"])
async def test_a_damaged_conversation_begins_again(servers: Servers, damage: str) -> None:
    """It does not stay unusable: other input is still of use."""
    await servers.post("shell", ["a <shell>"])
    await servers.stop()
    with contextlib.closing(sqlite3.connect(servers.path)) as connection, connection:
        connection.execute(f"UPDATE conversations SET {damage}")
        connection.execute("UPDATE inputs SET body = x'5b33'")
    await servers.start()
    assert (await servers.post("shell", ["b"])).status == 200
    assert (await servers.post("shell", [], end=True)).status == 200


LISTED = {"args": ["-k", SECRET]}
WITH_LIST: dict[str, dict[str, Any]] = {
    "mcp": {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "curl", "arguments": LISTED}},
    "acp": {
        "jsonrpc": "2.0",
        "id": 5,
        "method": "session/request_permission",
        "params": {"sessionId": "A", "toolCall": {"toolCallId": "c", "rawInput": LISTED}, "options": []},
    },
    "responses": {"type": "function_call", "call_id": "c", "name": "t", "arguments": json.dumps(LISTED)},
    "anthropic": {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "t", "input": LISTED}]},
    "ag-ui": {"type": "STATE_SNAPSHOT", "snapshot": LISTED},
}


@pytest.mark.parametrize("format", WITH_LIST)
async def test_a_secret_in_a_list_of_texts_is_masked_at_rest(servers: Servers, format: str) -> None:
    """Texts of a list are masked one by one, not only together."""
    assert (await servers.post(format, [WITH_LIST[format]])).status < 300
    await servers.stop()
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in servers.path.parent.glob("ledger.db*"))


async def test_arguments_with_a_masked_key_stay_json(servers: Servers) -> None:
    """Masking changes no escape: another process parses the same arguments."""
    arguments = json.dumps({"cmd": f'echo "-----BEGIN PRIVATE KEY-----\n{"A" * 50}\n" x'})
    fragment = {"index": 0, "id": "c1", "function": {"name": "sh", "arguments": arguments}}
    bodies = ({"delta": {"tool_calls": [fragment]}}, {"delta": {}, "finish_reason": "tool_calls"})
    for session in ("one", "two"):
        for number, choice in enumerate(bodies):
            body = [{"id": "r", "choices": [{"index": 0, **choice}]}]
            await servers.post("openai", body, session=session, server=number * int(session == "two"))
    assert normalize_entries(await servers.entries("two")) == normalize_entries(await servers.entries("one"))


async def test_held_input_of_a_session_without_events_can_be_deleted(servers: Servers) -> None:
    await servers.post("shell", ["<shell>ls"])
    await servers.ledgers[0].delete("s")
    assert await count_rows(servers, "inputs") == await count_rows(servers, "conversations") == 0


async def test_a_conversation_keeps_how_its_texts_are_split(servers: Servers) -> None:
    """Another value needs a new conversation."""
    url = f"{servers.urls[0]}/v1/sessions/s/events?format=shell&chunks="
    assert (await fetch(f"{url}cumulative", "POST", value=["one"])).status == 201
    assert (await fetch(f"{url}delta", "POST", value=["two"])).status == 400
    assert (await fetch(f"{url}cumulative", "POST", value=["one two"])).status == 200
    assert [entry.content for entry in await servers.entries()] == ["one two"]


async def test_a_secret_in_pieces_of_json_is_masked_at_rest(servers: Servers) -> None:
    """Only its beginning is stored, as for texts: messages of one stream have their texts at the same place."""
    for start in range(0, len(SECRET), 5):
        delta = {"content": SECRET[start : start + 5]}
        await servers.post("openai", [{"id": "r", "choices": [{"index": 0, "delta": delta}]}])
    store: Any = servers.ledgers[0].log.store
    rows = store._read.execute("SELECT body FROM inputs ORDER BY version").fetchall()
    bodies = [json.loads(row[0]) for row in rows]
    stored = "".join(body[0]["choices"][0]["delta"]["content"] for body in bodies)
    assert SECRET[30:] not in stored
    await servers.stop()
    data = b"".join(path.read_bytes() for path in servers.path.parent.glob("ledger.db*"))
    assert SECRET.encode() not in data


@pytest.mark.parametrize("text", ["see https://user:passw0rd@", "key " + SECRET, "export A_TOKEN=abcDEF1234567890xyz"])
async def test_a_body_may_end_with_any_secret(servers: Servers, text: str) -> None:
    """The next body begins where a secret ended or continues."""
    for message in (text, "more", "<shell>ls</shell>"):
        assert (await servers.post("shell", [message])).status < 300
        await servers.restart()
    assert [entry.title for entry in await servers.entries() if isinstance(entry, ToolCall)] == ["ls"]


async def test_equal_keys_of_two_formats_with_long_bodies_are_a_conflict(servers: Servers) -> None:
    """One is written, the other is refused with 409."""
    message = {"role": "user", "content": "hi"}
    requests = [servers.post(format, [message] * 1200, key="k") for format in ("openai", "anthropic")]
    statuses = sorted(response.status for response in await asyncio.gather(*requests))
    assert statuses[0] in (200, 201) and statuses[1] == 409


async def test_a_claim_of_a_dead_process_does_not_delay_others(servers: Servers) -> None:
    """Nor does one of a body that was refused leave a conversation behind."""
    store: Any = servers.ledgers[0].log.store
    dead = f"{liveness.new_owner().partition(' ')[0]} 999999999 1 1"
    name, change = ConversationName("s", "shell", ""), ConversationChange(claimed_by=dead, claimed_until=2**60)
    await store.transact(lambda unit: unit.change_conversation(name, change))
    async with asyncio.timeout(20):
        assert (await Posts(servers.ledgers[0].log).append(name, make_body(["hello."]), FULL_ACCESS)).appended == 1
    owner = {"type": "session.info", "owner": "me"}
    many = [{"type": "message.user", "text": "x"}] * 1200
    assert (await servers.post("events", [*many, owner], session="other")).status == 400
    names = store._read.execute("SELECT session FROM conversations").fetchall()
    assert names == [("s",)]


async def test_the_id_of_a_caller_may_contain_any_character(db: str) -> None:
    """DB1: a host chooses the ids of its users; a conversation is stored under an id without control characters."""
    principal = Principal("ann", id="a\0b")
    async with (
        callslip.open(db, SETTINGS) as ledger,
        running(callslip.asgi(ledger, authorize=lambda *_: principal)) as url,
    ):
        chunk = {"id": "r", "choices": [{"index": 0, "delta": {"content": "word "}}]}
        for _ in range(2):
            response = await fetch(f"{url}/v1/sessions/s/events?format=openai", "POST", value=[chunk])
            assert response.status in (200, 201), response.body
        connection = sqlite3.connect(db.removeprefix("sqlite:///"))
        ((caller,),) = connection.execute("SELECT caller FROM conversations").fetchall()
        connection.close()
    assert caller.startswith("digest:")
