"""The demo as a server: a ledger with the web page, and the agent that plays the story and answers prompts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import callslip
from callslip.agent.models import Model
from callslip.api.ledger import LocalLedger
from callslip.api.turns import start_turn_if_idle
from callslip.cli import exit_status
from callslip.cli.commands import serve
from callslip.cli.options import wants_json
from callslip.cli.terminal import tables
from callslip.client.location import LedgerLocation
from callslip.demo import browser
from callslip.demo.replies import COMMANDS, Replies
from callslip.demo.routes import routes
from callslip.demo.story import PROMPT, TITLE
from callslip.demo.workers import Workers
from callslip.errors import ConflictError
from callslip.http import standalone
from callslip.http.browser_guard import quiet_access_log
from callslip.http.turn_runner import Chat, TurnRunner
from callslip.ledger.aio import cancel_all, wait_for_event
from callslip.ledger.session_log import wait_for_turn
from callslip.mcp import http_app
from callslip.model import events as ev
from callslip.settings import Settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

HOST = "127.0.0.1"
SETTINGS = Settings(approval_expiry=180.0)
START_DELAY_S = 4.0
"""The time after which the story starts without a visitor."""


@dataclass(frozen=True)
class DemoInfo(serve.ServerInfo):
    """The address of the demo, and the output that announces it."""

    folder: Path
    session: str

    @property
    def page(self) -> str:
        return f"{self.url}/s/{self.session}?token={self.token}"

    def announce(self) -> None:
        if wants_json():
            fields = {"url": self.url, "token": self.token, "pid": os.getpid(), "db": self.location.display_name}
            tables.write_json({**fields, "session": self.session, "page": self.page})
        else:
            tables.write_text(f"Web UI: {self.page}\n")
        tables.print_status("Commands run in a scratch folder that is removed at the end. Press Ctrl-C to stop.")
        tables.print_status(f"From another terminal: export CALLSLIP_DB={shlex.quote(self.location.display_name)}")
        if self.opens_browser:
            browser.open_page(self.page, self.folder)

    def close(self) -> None:
        logging.getLogger("callslip.chat").setLevel(logging.ERROR)  # Interrupted answers are expected now.


def run(
    location: LedgerLocation,
    token: str,
    scratch: Path,
    folder: Path,
    *,
    port: int | None,
    opens_browser: bool,
    model: Model | None,
    pace: float,
) -> int:
    """Serve the demo until it is stopped, and return the exit status. Commands run in the folder `scratch`."""
    session = f"demo-{os.urandom(2).hex()}"
    with _listen(port) as listener:
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        info = DemoInfo(location, url, token, opens_browser, folder, session)
        with asyncio.Runner(loop_factory=serve.loop_factory()) as runner:
            return runner.run(_serve(info, listener, scratch, model, pace))


def _listen(port: int | None) -> contextlib.AbstractContextManager[socket.socket]:
    """Listen on a port; without one on the default port, or on any if that is in use by another demo."""
    if port is None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, serve.PORT))
                port = serve.PORT
            except OSError:
                port = 0
    return serve.open_socket(HOST, port)


async def _serve(info: DemoInfo, listener: socket.socket, scratch: Path, model: Model | None, pace: float) -> int:
    quiet_access_log()
    url = info.location.url
    async with callslip.open(url, SETTINGS) as ledger, Workers(url) as workers, contextlib.AsyncExitStack() as stack:
        if model is not None:
            stack.push_async_callback(model.aclose)
        replies = Replies(scratch, workers, model, pace)
        await _create_sessions(ledger, info.session)
        ledger.log.keep_searchable()
        app = standalone(ledger, info.token, answers=replies, routes=routes(workers), mcp_app=http_app)
        watched = VisitorWatch(app)
        server = serve.create_server(watched, ledger, info)
        playing = asyncio.create_task(_play(ledger, info.session, replies, watched.visited, START_DELAY_S * pace))
        try:
            await server.serve(sockets=[listener])
        finally:
            await cancel_all(playing)
    return next((serve.STATUS[number] for number in server.stop_signals), exit_status.OK)


async def _create_sessions(ledger: LocalLedger, name: str) -> None:
    """Create the session of the story and that of the fault lab."""
    fault_lab = f"fault-lab-{name[-4:]}"
    await ledger.session(fault_lab).append(ev.SessionInfo(title="Fault lab"))
    facts = ev.SessionInfo(title=TITLE, options={"breakIt": fault_lab})
    await ledger.session(name).append(facts, ev.SessionCommands(commands=COMMANDS))


class VisitorWatch:
    """An app that sets `visited` when the first visitor opens the page."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.visited = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/stream"):
            self.visited.set()
        await self._app(scope, receive, send)


async def _play(ledger: LocalLedger, name: str, replies: Replies, visited: asyncio.Event, max_wait: float) -> None:
    """Play the story when a visitor comes, or after `max_wait` seconds."""
    await wait_for_event(visited, max_wait)
    try:
        started = await start_turn_if_idle(ledger.log, name, PROMPT)
    except ConflictError:  # The visitor has sent a prompt first. `/tour` still plays the story.
        return
    runner = TurnRunner(ledger, lambda chat: replies.play_story(chat.session))
    runner.start(Chat(ledger.session(name), started.turn, PROMPT, {}, [], {}), started.seq)
    await wait_for_turn(ledger.log, name, started.turn, started.seq)
