"""Large bodies and exports: too large ones are refused, and the others are processed beside the event loop.

CPU times are compared, or the wait of one request with the time that another takes, so that the result is the same on a
busy machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip import http
from callslip.api.ledger import LocalLedger
from callslip.formats import registry
from callslip.http.access import AllowAll
from callslip.http.app import build
from callslip.model import events as ev
from callslip.model.events import Draft, Event
from tests.conftest import LONG
from tests.support import asgi_client
from tests.support.asgi_client import AsgiResponse

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}
LINES = {"content-type": "application/x-ndjson"}
EVENTS = "/v1/sessions/large/events"
TOKEN = "a-token-that-is-long-enough-for-the-main-one"
MAX_SHARE = 0.5
MIN_REQUEST_S = 0.5
MAX_ATTEMPTS = 5
KEYS = ",".join(f'"k{number}":1' for number in range(1_000_000))


@pytest.fixture
async def ledger() -> AsyncGenerator[LocalLedger]:
    async with await callslip.open("sqlite:///:memory:") as opened:
        yield opened


def make_app(ledger: LocalLedger) -> Any:
    return build(http.Server(ledger, AllowAll()), http.ROUTES)


def post(app: Any, path: str, body: str, headers: dict[str, str] = JSON) -> Awaitable[AsgiResponse]:
    return asgi_client.get(app, path, headers, "POST", body.encode())


def small_events(count: int) -> list[str]:
    return [f'{{"type":"message.delta","text":"{number} "}}' for number in range(count)]


TOO_LARGE = {
    "events in an array": (lambda: f"[{','.join(small_events(200_000))}]", JSON, 250_000),
    "events by line": (lambda: "\n".join(small_events(200_000)), LINES, 100_000),
    "lines": (lambda: "1\n" * 5_000_000, LINES, 100_000),
    "empty lines": (lambda: "\n" * 16_000_000, LINES, 100_000),
    "keys": (lambda: f"{{{KEYS}}}", JSON, 250_000),
    "keys of an input": (lambda: f'[{{"type":"call.proposed","input":{{{KEYS}}}}}]', JSON, 250_000),
    "keys in a line": (
        lambda: f"{{}}\n{{{KEYS[:4_000_000].rpartition(',')[0]}}}\n",
        LINES,
        250_000,
    ),
    "values": (lambda: f"[{'0,' * 5_000_000}0]", JSON, 250_000),
    "values in all lines": (lambda: f"[{'0,' * 99_999}0]\n" * 6, LINES, 500_000),
    "objects": (lambda: f"[{'{},' * 5_000_000}0]", JSON, 250_000),
    "messages in an array": (lambda: f"[{'0,' * 100_000}0]", JSON, 100_000),
}


@pytest.mark.parametrize("name", TOO_LARGE)
async def test_a_body_of_too_many_values_or_messages_is_refused(ledger: LocalLedger, name: str) -> None:
    """BODY1: The error names the limit, and nothing is written."""
    make_body, headers, limit = TOO_LARGE[name]
    response = await post(make_app(ledger), EVENTS, make_body(), headers)
    problem = json.loads(response.body)
    assert (response.status, problem["limit"]) == (413, limit), problem
    assert str(limit) in problem["detail"] and "in parts" in problem["detail"]
    assert await ledger.log.get_session("large") is None


async def test_every_route_limits_the_values_of_its_body(ledger: LocalLedger) -> None:
    """BODY1: Also those that take a single value, such as the parameters of a command."""
    await ledger.log.append("s", [ev.SessionInfo(title="s")])
    values = f"[{'0,' * 300_000}0]"
    for path, body in (
        ("/v1/calls", f'{{"session":"s","action":"x","params":{values}}}'),
        ("/v1/approvals/appr_1", f'{{"decision":"edit","input":{values}}}'),
        ("/v1/sessions/s/prompt", f'{{"text":{values}}}'),
    ):
        response = await post(make_app(ledger), path, body)
        assert (response.status, json.loads(response.body)["limit"]) == (413, 250_000), path


async def test_commas_and_brackets_inside_strings_are_not_values(ledger: LocalLedger) -> None:
    """BODY1: A long text with many of them is accepted, also after escaped quotes and backslashes."""
    text = 'a "quote" \\ [1,2] {,}' * 100_000
    for headers in (JSON, LINES):
        response = await post(make_app(ledger), EVENTS, json.dumps({"type": "message.delta", "text": text}), headers)
        assert response.status in (200, 201), response.body
    assert text in (await ledger.snapshot("large")).entries[0].content


# Beside the event loop


async def share_of_loop(work: Callable[[], Awaitable[Any]]) -> float:
    """Return which share of the CPU time of the process is spent in the thread of the event loop."""
    total, loop = time.process_time(), time.thread_time()
    await work()
    return (time.thread_time() - loop) / (time.process_time() - total)


def call_drafts(count: int) -> list[Event | Draft]:
    drafts: list[Event | Draft] = [ev.TurnStarted(turn="t1")]
    for number in range(count):
        alias = (ev.Alias("test", f"c{number}"),)
        drafts.append(ev.CallStarted(aliases=alias, tool_name="bash", input={"command": f"ls {number}"}))
        drafts.append(ev.CallCompleted(aliases=alias, output=f"{number} files\n" * 5))
    return drafts


FEWER_KEYS = KEYS[:400_000].rpartition(",")[0]
BODIES = {
    "small events": "\n".join(small_events(10_000)),
    "many keys": f'{{"type":"call.proposed","input":{{{FEWER_KEYS}}}}}',
    "a refused message": f'{{"type":"call.proposed","source":"{"x" * 999}","input":{{{FEWER_KEYS}}}}}',
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_large_body_is_processed_beside_the_event_loop(ledger: LocalLedger, name: str) -> None:
    """BODY2: Parsing, decoding and validating it takes most of the time, and happens in another thread."""
    app = make_app(ledger)
    await post(app, EVENTS, "{}")  # Imports the decoder.

    async def post_body() -> None:
        response = await post(app, EVENTS, BODIES[name], LINES)
        assert response.status == 200, response.body

    assert await share_of_loop(post_body) < 0.5


@pytest.mark.parametrize(
    "path",
    [
        *(f"/v1/sessions/large?format={format}" for format in ("html", "otel", "acp", "openai", "ui-v6", "vercel-v4")),
        "/v1/sessions/large?format=ui-v6&limit=1000",
        "/v1/sessions/large?format=html&at=2000",
    ],
)
async def test_a_large_session_is_exported_beside_the_event_loop(ledger: LocalLedger, path: str) -> None:
    """BODY3: Reading its entries and encoding them takes most of the time, and happens in another thread."""
    await ledger.log.append("large", call_drafts(1500))
    app = make_app(ledger)

    async def read() -> None:
        response = await asgi_client.get(app, path)
        assert response.status == 200 and len(response.body) > 100_000

    await asgi_client.get(app, path.replace("large", "none"))  # Imports the format.
    assert await share_of_loop(read) < 0.5


async def test_small_bodies_need_no_thread(ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """BODY2: A thread would cost more than the work."""
    app = make_app(ledger)
    started: list[Any] = []

    def run_in_executor(*work: Any) -> None:
        started.append(work)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "run_in_executor", run_in_executor)
        body = f"[{','.join(small_events(500))}]"
        assert (await post(app, EVENTS, body)).status == 201
        assert (await asgi_client.get(app, "/v1/sessions/large?format=html")).status == 200
    assert started == []


# With a real server


@contextlib.contextmanager
def serving_process(folder: Path) -> Generator[int]:
    """Run `callslip serve` and yield its port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "callslip", "serve", "--db", str(folder / "a.db"), "--port", str(port), "--json"]
    process = subprocess.Popen([*command, "--token", TOKEN], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield port
    finally:
        process.terminate()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def send(port: int, path: str, body: str | None = None, headers: dict[str, str] | None = None) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        data = None if body is None else body.encode()
        authorization = {"authorization": f"Bearer {TOKEN}", **(headers or {})}
        connection.request("GET" if body is None else "POST", path, data, authorization)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


@contextlib.contextmanager
def measuring_waits(port: int) -> Generator[list[float]]:
    """Ask for the health of a server all the time, and collect how long each answer takes."""
    waits: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            began = time.monotonic()
            assert send(port, "/healthz") == 200
            waits.append(time.monotonic() - began)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield waits
    finally:
        stop.set()
        thread.join()


@pytest.mark.alone
@pytest.mark.chaos
def test_other_requests_are_answered_during_a_large_one(tmp_path: Path) -> None:
    """BODY2: While large bodies are posted, and while a session of 20,000 calls is exported.

    `make test` has other processes on the same processors, so it runs a short form and only checks the answers.
    """
    calls = [json.dumps(message) for message in call_messages(20_000 if LONG else 500)]
    bodies = {**BODIES, "calls": "\n".join(calls)}
    if LONG:
        nested = "\n".join(["[" * 100 + "]" * 100] * 4900)
        bodies |= {"nested arrays": nested, "many events": "\n".join(small_events(80_000))}
    shares: dict[str, float] = {}
    with serving_process(tmp_path) as port:
        for name, (make_body, headers, _) in TOO_LARGE.items() if LONG else ():
            body = make_body()
            shares[name] = find_share(port, EVENTS, 413, body, headers)
        for name, body in bodies.items():
            shares[name] = find_share(port, f"/v1/sessions/{name.replace(' ', '-')}/events", 201, body, LINES)
        for format in registry.exportable():
            shares[format] = find_share(port, f"/v1/sessions/calls?format={format}", 200)
        for format in registry.streamable():
            path = f"/v1/sessions/calls/stream?follow=false&format={format}"
            shares[f"stream of {format}"] = find_share(port, path, 200)
    if LONG:
        assert {name: share for name, share in shares.items() if share > MAX_SHARE} == {}


def find_share(port: int, path: str, status: int, body: str | None = None, headers: dict[str, str] = JSON) -> float:
    """Return for which share of this request another one waits at most. It is 0 for a request that is answered quickly.

    Other processes may cause a wait too, so a large share counts only if it is found in each of several attempts.
    """
    shares: list[float] = []
    while not shares or (LONG and min(shares) > MAX_SHARE and len(shares) < MAX_ATTEMPTS):
        with measuring_waits(port) as waits:
            began = time.monotonic()
            answer = send(port, path, body, headers)
            took_s = time.monotonic() - began
        assert answer == status or (shares and answer == 200)  # Only the first body creates the session.
        shares.append(max(waits) / took_s if took_s > MIN_REQUEST_S else 0)
    return min(shares)


def call_messages(count: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"type": "turn.started", "turn": "t1"}]
    for number in range(count):
        alias = [["test", f"c{number}"]]
        messages.append({"type": "call.started", "aliases": alias, "toolName": "bash", "input": {"command": "ls"}})
        messages.append({"type": "call.completed", "aliases": alias, "output": f"{number} files\n" * 5})
    return messages
