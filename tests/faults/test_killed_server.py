"""Kill a server with SIGKILL while messages of every format are posted to it.

Each message is posted with an idempotency key, and again after the restart if the server was killed meanwhile. A killed
request is sent byte by byte; the server dies at any byte of it, or while it is answered.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from callslip.api.ledger import LocalLedger
from callslip.formats import registry
from tests.conftest import LONG
from tests.support import format_cases
from tests.support.cli_process import ServeProcess, with_ledger
from tests.support.invariants import find_faults, normalize_entries

KILLS = 200 if LONG else 10
DAY_S = 86_400.0
CASES_PER_FORMAT = 6 if LONG else 1
CASES = ["shell/one_character_at_a_time", "rows/early_late_orphan", "acp/draft2-replay", "mcp/tasks-2025"]
"""These hold input back for many messages. Of other formats the longest cases are used."""


def choose_cases(format: str) -> list[str]:
    cases = [case for case in format_cases.CASES if format_cases.format_of(case) == format]
    cases.sort(key=lambda case: (case not in CASES, -len(format_cases.lines_of(case))))
    return cases[:CASES_PER_FORMAT]


def make_posts() -> list[tuple[str, str, bytes]]:
    """Return session, path and body of all posts. Those of different conversations are interleaved."""
    conversations: list[list[tuple[str, str, bytes]]] = []
    for format in registry.readable():
        for case in choose_cases(format):
            session = case.replace("/", "-")
            path = f"/v1/sessions/{session}/events?format={format}"
            lines = [line for line in format_cases.lines_of(case) if line.strip()]
            bodies = [json.dumps([json.loads(line)]).encode() for line in lines]
            posts = [(session, path, body) for body in bodies]
            conversations.append([*posts, (session, f"{path}&end=true", b"[]")])
    events = [{"type": "turn.started"}, {"type": "message.delta", "text": "hi"}, {"type": "turn.ended"}]
    path = "/v1/sessions/events/events?format=events"
    conversations.append([("events", path, json.dumps([event]).encode()) for event in events])
    longest = max(map(len, conversations))
    return [posts[number] for number in range(longest) for posts in conversations if number < len(posts)]


class Client:
    """Posts to a server."""

    def __init__(self, server: ServeProcess) -> None:
        address = urlsplit(server.url)
        self._host, self._port = str(address.hostname), int(address.port or 0)
        self._token = server.token
        self._connection = http.client.HTTPConnection(self._host, self._port, timeout=60)

    def post(self, path: str, body: bytes, key: str) -> Any:
        headers = {
            "authorization": f"Bearer {self._token}",
            "content-type": "application/json",
            "idempotency-key": key,
        }
        self._connection.request("POST", path, body, headers)
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        assert response.status < 300, answer
        assert answer.get("seq") != 0
        return answer

    def send_part(self, path: str, body: bytes, key: str, size: float) -> None:
        """Send a part of a request byte by byte; a `size` of 1 is all of it."""
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\nauthorization: Bearer {self._token}\r\n"
            f"content-type: application/json\r\nidempotency-key: {key}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        request = head.encode() + body
        with socket.create_connection((self._host, self._port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for number in range(int(len(request) * size)):
                connection.send(request[number : number + 1])

    def close(self) -> None:
        self._connection.close()


def read_sessions(path: Path) -> dict[str, str]:
    async def read(ledger: LocalLedger) -> dict[str, str]:
        assert not await find_faults(ledger)
        names = [row.name for row in (await ledger.sessions(limit=1000)).items]
        return {name: normalize_entries((await ledger.snapshot(name)).entries) for name in names}

    return with_ledger(path, read)


def start_server(path: Path) -> ServeProcess:
    """Start a server that leaves calls open, also after their turn: on a busy machine many restarts take long."""
    return ServeProcess(path, settings={"turn_grace": DAY_S, "ingest_lease": DAY_S})


def post_all(path: Path, kills: set[int], choose: random.Random) -> int:
    """Post everything to a server that is killed during some of the posts. Return how often it was killed."""
    count = 0
    server = start_server(path)
    client = Client(server)
    try:
        for number, (_, target, body) in enumerate(make_posts()):
            if number in kills:
                client.send_part(target, body, f"key-{number}", choose.choice((choose.random(), 1, 1)))
                time.sleep(choose.random() * 0.004)  # So that the kill finds the request at any point.
                client.close()
                server.kill()
                server, count = start_server(path), count + 1
                client = Client(server)
            first = client.post(target, body, f"key-{number}")
            if number in kills:  # A retry of what was acknowledged has the same answer.
                again = client.post(target, body, f"key-{number}")
                assert {"seq": first.get("seq"), "appended": first["appended"]}.items() <= again.items() or (
                    again["appended"] == first["appended"] and "seq" not in first
                )
        return count
    finally:
        client.close()
        server.kill()


@pytest.mark.chaos
def test_no_acknowledged_message_is_lost_if_the_server_is_killed(tmp_path: Path) -> None:
    """What is recorded is what a server records that is never killed, and no retry changes it."""
    choose = random.Random(None if LONG else 13)
    total = len(make_posts())
    kills = set(choose.sample(range(total), min(KILLS, total)))
    assert post_all(tmp_path / "killed.db", kills, choose) == KILLS
    assert post_all(tmp_path / "whole.db", set(), choose) == 0
    killed, whole = read_sessions(tmp_path / "killed.db"), read_sessions(tmp_path / "whole.db")
    assert killed.keys() == whole.keys()
    for name, entries in whole.items():
        assert json.loads(killed[name]) == json.loads(entries), name
