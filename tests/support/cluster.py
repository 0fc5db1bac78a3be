"""Two servers on one PostgreSQL database, as processes that count as running on different machines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from tests.support.cli_process import Process
from tests.support.live_server import HttpResponse, StreamedResponse, fetch, requesting
from tests.support.paths import PROGRAMS

TIMEOUT_S = 60.0
TOKEN = "the-main-token-of-these-tests"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
FAST = {"reaper_interval": 0.2, "reaper_grace": 0.2}
SHORT_LEASE_S = 3.0


class Server(Process):
    """A running server on a machine of its own."""

    def __init__(self, machine: str, database: str, home: Path, port: int = 0, **settings: Any) -> None:
        environment = {"CALLSLIP_DB": database, "CALLSLIP_TOKEN": TOKEN, "HOME": str(home / machine)}
        program = str(PROGRAMS / "serve_machine.py")
        arguments = (machine, json.dumps(FAST | settings), "--json", "--port", str(port))
        super().__init__(*arguments, env=environment, program=program)
        self.machine = machine
        self.until('"url"')
        self.url: str = json.loads(self.out[0])["url"]
        self.port = int(self.url.rpartition(":")[2])

    async def get(self, path: str) -> Any:
        """Return the JSON of a resource."""
        response = await fetch(self.url + path, headers=HEADERS)
        assert response.status == 200, response.text
        return response.json()

    async def post(self, path: str, value: Any = None, **headers: str) -> HttpResponse:
        """Send a request and return the response with any status."""
        return await fetch(self.url + path, "POST", value=value, headers={**HEADERS, **headers})

    async def append(self, session: str, *events: dict[str, Any]) -> int:
        """Append events to a session, and return the seq of the last one."""
        response = await self.post(f"/v1/sessions/{session}/events", list(events))
        assert response.status in (200, 201), response.text
        return response.json()["seq"]

    async def events(self, session: str) -> list[dict[str, Any]]:
        """Return the log of a session."""
        return (await self.get(f"/v1/sessions/{session}?format=events"))["events"]

    @asynccontextmanager
    async def streaming(self, path: str) -> AsyncGenerator[StreamedResponse]:
        async with requesting(self.url + path, headers=HEADERS) as response:
            assert response.status == 200
            yield response


class Cluster:
    """Two servers on one database."""

    def __init__(self, database: str, home: Path) -> None:
        self.database, self.home = database, home
        self.a = Server("machine-a", database, home)
        self.b = Server("machine-b", database, home)


@contextmanager
def running_cluster(database: str, home: Path) -> Generator[Cluster]:
    cluster = Cluster(database, home)
    try:
        yield cluster
    finally:
        cluster.a.kill()
        cluster.b.kill()


async def until(condition: Any, problem: str) -> Any:
    """Wait until a coroutine function returns a true value, and return it."""
    async with asyncio.timeout(TIMEOUT_S):
        while not (result := await condition()):
            await asyncio.sleep(0.02)
    assert result, problem
    return result


async def find_requests(server: Server, session: str) -> list[dict[str, Any]]:
    return (await server.get(f"/v1/approvals?state=pending&session={session}&limit=1000"))["approvals"]


async def find_calls(server: Server, session: str, state: str) -> list[dict[str, Any]]:
    return (await server.get(f"/v1/calls?session={session}&status={state}"))["calls"]


async def is_idle(server: Server, session: str) -> bool:
    """Return whether no turn of a session is open."""
    (record,) = (await server.get(f"/v1/sessions?id={session}"))["sessions"]
    return not record["turn"]


async def start_held_turn(server: Server, session: str) -> str:
    """Start a turn that a server answers until it is stopped, and wait for its call."""
    await server.append(session, {"type": "session.info", "title": "a talk"})
    turn = (await server.post(f"/v1/sessions/{session}/prompt", {"text": "hold"})).json()["turn"]
    await until(lambda: find_calls(server, session, "running"), "the turn has no call")
    return turn
