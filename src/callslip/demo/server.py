"""The demo as a server: a ledger, the page in front of it, and behind it the agent that plays and answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import socket
from collections.abc import AsyncGenerator, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callslip.agent.models import Model
from callslip.api.ledger import LocalLedger, open_ledger
from callslip.cli import exit_status
from callslip.cli.commands import serve
from callslip.cli.options import wants_json
from callslip.cli.terminal import tables
from callslip.client.location import LedgerLocation
from callslip.demo import browser
from callslip.demo.replies import COMMANDS, Replies
from callslip.demo.routes import routes
from callslip.demo.tour import PROMPT
from callslip.demo.workers import Workers
from callslip.http import standalone
from callslip.http.browser_guard import quiet_access_log
from callslip.http.turn_runner import Chat, TurnRunner
from callslip.ledger.session_log import wait_for_turn
from callslip.mcp import http_app
from callslip.model import events as ev
from callslip.settings import Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

HOST = "127.0.0.1"
SETTINGS = Settings(approval_expiry=180.0)
SHUTDOWN_S = 4.0
"""Seconds after which the tour begins though nobody looks."""


class Where(serve.Where):
    """Where the demo is, and how it says so."""

    def __init__(self, meant: LedgerLocation, url: str, token: str, folder: Path, browse: bool, session: str) -> None:
        super().__init__(meant, url, token, browse=False)
        self._folder = folder
        self._opens = browse
        self.session = session

    @property
    def page(self) -> str:
        return f"{self.url}/s/{self.session}?token={self.token}"

    def tell(self) -> None:
        if wants_json():
            told = {"url": self.url, "token": self.token, "pid": os.getpid(), "db": self.place.path}
            tables.write_json({**told, "session": self.session, "page": self.page})
        else:
            tables.write_text(f"the demo is at {self.page}\n")
        tables.print_status("commands run in a scratch folder that is removed at the end; Ctrl-C ends the demo")
        tables.print_status(f"from another terminal: export CALLSLIP_DB={shlex.quote(self.place.path)}")
        if self._opens:
            browser.open_page(self.page, self._folder)

    def close(self) -> None:
        logging.getLogger("callslip.chat").setLevel(logging.ERROR)  # That an answer is cut short is no news now.


def run(
    meant: LedgerLocation,
    token: str,
    folder: Path,
    own: Path,
    *,
    port: int | None,
    browse: bool,
    model: Model | None,
    pace: float,
) -> int:
    """Serve the demo until somebody ends it. Its exit status."""
    session = f"demo-{os.urandom(2).hex()}"
    with _listening(port) as listening:
        where = Where(meant, f"http://{HOST}:{listening.getsockname()[1]}", token, own, browse, session)
        with asyncio.Runner(loop_factory=serve.fast_loop()) as runner:
            return runner.run(_serve(where, listening, folder, model, pace))


def _listening(port: int | None) -> contextlib.AbstractContextManager[socket.socket]:
    """The port that was asked for, else the usual one, else any: two demos may run at once."""
    taken = port
    if taken is None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, serve.PORT))
                taken = serve.PORT
            except OSError:
                taken = 0
    return serve.listening(HOST, taken)


async def _serve(where: Where, listening: socket.socket, folder: Path, model: Model | None, pace: float) -> int:
    quiet_access_log()
    workers = Workers(where.place.url)
    async with await open_ledger(where.place.url, SETTINGS) as ledger:
        replies = Replies(folder, workers, model, pace)
        app = await _begin(ledger, where, workers, replies)
        made = serve.server(app, ledger, where)
        async with _playing(_play(ledger, where.session, replies, app.seen, SHUTDOWN_S * pace)):
            try:
                await made.serve(sockets=[listening])
            finally:
                await workers.close()
                if model is not None:
                    await model.aclose()
    return next((serve.STATUS[number] for number in made.asked), exit_status.OK)


async def _begin(ledger: LocalLedger, where: Where, workers: Workers, replies: Replies) -> Watched:
    """The two sessions, so that there is something to look at; then the app in front of them."""
    broken = f"break-it-{where.session[-4:]}"
    await ledger.session(broken).append(ev.SessionInfo(title="Break it"))
    await ledger.session(where.session).append(
        ev.SessionInfo(title="The demo", options={"breakIt": broken}), ev.SessionCommands(commands=COMMANDS)
    )
    return Watched(standalone(ledger, where.token, answers=replies, routes=routes(workers), mcp_app=http_app))


class Watched:
    """An app that notices the first visitor."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.seen = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/stream"):
            self.seen.set()
        await self._app(scope, receive, send)


@contextlib.asynccontextmanager
async def _playing(tour: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """As long as the block lasts, the tour may go on."""
    playing = asyncio.create_task(tour)
    try:
        yield
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


async def _play(ledger: LocalLedger, name: str, replies: Replies, seen: asyncio.Event, patience: float) -> None:
    """The tour begins when somebody looks, or after a while."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(seen.wait(), patience)
    session = ledger.session(name)
    row = await ledger.find_session(name)
    if row.turn:  # Somebody was faster and asked something; the tour can be had by its name.
        return
    turn = await session.start_turn(PROMPT, owned=True)
    answering = TurnRunner(ledger, partial(_tour, replies, ledger))
    answering.start(Chat(session, turn, PROMPT, {}, [], {}), row.last_seq)
    await wait_for_turn(ledger.log, name, turn, row.last_seq)


def _tour(replies: Replies, ledger: LocalLedger, chat: Chat) -> Any:
    return replies(ledger, chat.session.name, "/tour")
