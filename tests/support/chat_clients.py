"""Run the real chat clients in Node without a browser, behind one interface, and a server for them."""

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
"""Clients that resume by themselves and replace their last message by the replay."""

_numbers = count(1)
Fields = dict[str, Any]


class Clients:
    """Node processes of the clients, each started when it is first used."""

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
    """A chat of a client."""

    def __init__(self, client: Client, format: str, url: str, id: str) -> None:
        self.format = format
        self.url = url
        self.id = id
        self._client = client
        self._name = str(next(_numbers))

    async def do(self, action: str, **options: Any) -> Fields:
        job = {"do": action, "chat": self._name, "api": f"{self.url}/", "id": self.id, **options}
        (answer,) = await asyncio.to_thread(self._client.ask, [job])
        return answer

    async def send(self, text: str, **options: Any) -> Fields:
        return await self.do("send", text=text, **options)

    async def history(self) -> list[Any]:
        return (await live_server.fetch(f"{self.url}/{self.id}")).json()

    async def reopen(self, **options: Any) -> Fields:
        """Open the page again: load the server's messages, then resume the answer in progress, which they omit.

        Version 4 cannot name the answer to resume: if no chunk arrives, the answer has ended, and the messages have it.
        """
        response = await live_server.fetch(f"{self.url}/{self.id}")
        result = await self.do("new", messages=response.json(), **options)
        turn = response.headers.get(OMITTED_TURN, "")
        if not turn and self.format in ("vercel-v4", "ag-ui"):
            return result
        result = await self.do("resume", **({"turn": turn} if turn else {}))
        has_ended = self.format == "vercel-v4" and turn and result["chunks"] == 0
        return await self.reopen(**options) if has_ended else result

    async def reconnect(self) -> Fields:
        """Reconnect after a lost connection, as this client does."""
        if self.format in RESUMING_CLIENTS:
            return await self.do("resume")
        return await self.reopen()


class Server:
    """A chat route on a socket, and the pages that use it."""

    def __init__(self, clients: Clients, ledger: LocalLedger, url: str, format: str) -> None:
        self.ledger = ledger
        self.url = url
        self.format = format
        self._clients = clients

    async def open_page(self, id: str = "", **options: Any) -> Page:
        page = Page(self._clients[self.format], self.format, self.url, id or f"chat-{next(_numbers)}")
        await page.do("new", **options)
        return page

    async def post(self, value: Any, path: str = "/", **more: Any) -> live_server.HttpResponse:
        return await live_server.fetch(self.url + path, "POST", value=value, **more)


@contextlib.asynccontextmanager
async def serving_chat(
    clients: Clients, db: str, handler: Callable[..., Any], format: str, **options: Any
) -> AsyncGenerator[Server]:
    """Serve the chat route of a format with a handler and a new ledger."""
    async with (
        await callslip.open(db) as ledger,
        live_server.running(callslip.chat(ledger, handler, format=format, **options)) as url,
    ):
        yield Server(clients, ledger, url, format)


def agent_messages(messages: list[Any]) -> list[Any]:
    """Return the agent's messages. User messages have ids of the client until it reads the history.

    The time is omitted, because version 4 takes it from the client's clock.
    """
    return [
        {name: value for name, value in message.items() if name != "createdAt"}
        for message in messages
        if message["role"] != "user"
    ]


def user_texts(messages: list[Any]) -> Iterator[str]:
    """Yield the texts of the user messages."""
    for message in messages:
        if message["role"] == "user":
            parts = message.get("parts") or [{"type": "text", "text": message["content"]}]
            yield "".join(part["text"] for part in parts if part["type"] == "text")
