"""Chat pages without a page: the real clients in Node, behind the same few verbs, and a server for them to talk to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import count
from typing import Any

import callslip
from callslip.api.ledger import LocalLedger
from callslip.http.chat import OMITTED_TURN
from tests.support import live_server
from tests.support.stream_checks import Client

HARNESSES: dict[str, tuple[str, ...]] = {
    "ui-v5": ("chat_ui.mjs", "v5"),
    "ui-v6": ("chat_ui.mjs", "v6"),
    "ui-v7": ("chat_ui.mjs", "v7"),
    "vercel-v4": ("chat_v4.mjs",),
    "ag-ui": ("chat_ag_ui.mjs",),
}
FORMATS = tuple(HARNESSES)
RESUMING_CLIENTS = ("ui-v6", "ui-v7")
"""Clients that come back by themselves, and put the replay in the place of what they have."""

_numbers = count(1)
Fields = dict[str, Any]


class Clients:
    """One Node process for each client that is asked for."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._open: dict[str, Client] = {}

    def __getitem__(self, format: str) -> Client:
        if format not in self._open:
            self._open[format] = Client(self._node, *HARNESSES[format])
        return self._open[format]

    def close(self) -> None:
        for client in self._open.values():
            client.close()


class Page:
    """One chat on one page."""

    def __init__(self, client: Client, format: str, url: str, id: str) -> None:
        self.format = format
        self.url = url
        self.id = id
        self._client = client
        self._name = str(next(_numbers))

    async def do(self, what: str, **job: Any) -> Fields:
        response = {"do": what, "chat": self._name, "api": f"{self.url}/", "id": self.id, **job}
        (answer,) = await asyncio.to_thread(self._client.ask, [response])
        return answer

    async def send(self, text: str, **job: Any) -> Fields:
        return await self.do("send", text=text, **job)

    async def history(self) -> list[Any]:
        return (await live_server.fetch(f"{self.url}/{self.id}")).json()

    async def reopen(self, **job: Any) -> Fields:
        """Open the page again: the messages of the server, and the answer in progress, which they omit.

        Version 4 cannot say which answer it comes back for: if nothing comes, it has ended in between and stands.
        """
        response = await live_server.fetch(f"{self.url}/{self.id}")
        shown = await self.do("new", messages=response.json(), **job)
        turn = response.headers.get(OMITTED_TURN, "")
        if not turn and self.format in ("vercel-v4", "ag-ui"):
            return shown
        shown = await self.do("resume", **({"turn": turn} if turn else {}))
        ended = self.format == "vercel-v4" and turn and shown["chunks"] == 0
        return await self.reopen(**job) if ended else shown

    async def reconnect(self) -> Fields:
        """Come back after the connection was lost, as this client does."""
        if self.format in RESUMING_CLIENTS:
            return await self.do("resume")
        return await self.reopen()


class Server:
    """A chat route on a socket, and pages that talk to it."""

    def __init__(self, clients: Clients, ledger: LocalLedger, url: str, format: str) -> None:
        self.ledger = ledger
        self.url = url
        self.format = format
        self._clients = clients

    async def open_page(self, id: str = "", **job: Any) -> Page:
        page = Page(self._clients[self.format], self.format, self.url, id or f"chat-{next(_numbers)}")
        await page.do("new", **job)
        return page

    async def post(self, value: Any, path: str = "/", **more: Any) -> live_server.HttpResponse:
        return await live_server.fetch(self.url + path, "POST", value=value, **more)


@contextlib.asynccontextmanager
async def serving_chat(
    clients: Clients, db: str, handler: Callable[..., Any], format: str, **options: Any
) -> AsyncGenerator[Server]:
    """The route of one format, answered by a handler, over a ledger of its own."""
    async with (
        await callslip.open(db) as ledger,
        live_server.running(callslip.chat(ledger, handler, format=format, **options)) as url,
    ):
        yield Server(clients, ledger, url, format)


def agent_messages(messages: list[Any]) -> list[Any]:
    """What the agent said and did: all but what people said, whose ids are the client's own until it reads them.

    Version 4 takes the time of a message from its own clock.
    """
    return [
        {name: value for name, value in message.items() if name != "createdAt"}
        for message in messages
        if message["role"] != "user"
    ]


def user_texts(messages: list[Any]) -> Iterator[str]:
    """What people said."""
    for message in messages:
        if message["role"] == "user":
            parts = message.get("parts") or [{"type": "text", "text": message["content"]}]
            yield "".join(part["text"] for part in parts if part["type"] == "text")
