"""Test that posted messages are durable as soon as they are acknowledged, also those that result in no event yet."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api.ledger import LocalLedger
from callslip.formats import registry
from callslip.model.entries import Message, ToolCall
from callslip.settings import Settings
from tests.support import format_cases
from tests.support.invariants import find_faults, normalize_entries
from tests.support.live_server import HttpResponse, fetch, serving_ledger

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
    for case in cases[:: max(1, len(cases) // 6)]:
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

    def count(work: Any) -> Any:
        def counted(unit: Any) -> Any:
            result = work(unit)
            for _, stored in unit.conversations.values():
                changes.extend(len(change.state) + len(change.input) for _, change in stored)
            return result

        return transact(counted)

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
