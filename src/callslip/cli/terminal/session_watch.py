"""Watching a session from a terminal while it is worked on: what the agent says, and a line for each thing it does.

The words go to stdout, so that a pipe gets them and nothing else; everything about calls goes to stderr.
"""

from __future__ import annotations

import sys

import click

from callslip.api.ledger import LocalLedger
from callslip.cli.commands.answer import user_name
from callslip.cli.terminal import keys, tables, timeline
from callslip.cli.terminal.background import answered, first, yes_or_no
from callslip.cli.terminal.escape import escape_block
from callslip.cli.terminal.formatting import format_duration
from callslip.cli.terminal.patched_session import Json, PatchedSession
from callslip.model.entries import Put
from callslip.rules.lifecycle import TERMINAL_STATES

BREAKS = {"running", "awaiting_approval"}
WORTH_A_LINE = {*BREAKS, *TERMINAL_STATES}


class SessionWatcher:
    """One session, from when `begin` was called."""

    def __init__(self, ledger: LocalLedger, session: str, *, quiet: bool = False) -> None:
        self._ledger = ledger
        self._session = session
        self._quiet = quiet
        self._view = PatchedSession()
        self._told: dict[int, str] = {}
        self._shown: dict[int, int] = {}
        self._speaking = 0
        self._since = 0

    async def begin(self) -> None:
        """What is there already is not told again."""
        if await self._ledger.log.store.session(self._session) is not None:
            self._view.load(await self._ledger.snapshot(self._session))
        self._since = self._view.seq
        for identity, entry in self._view.entries.items():
            self._told[identity] = entry.get("status", "")
            self._shown[identity] = len(entry.get("content") or "")

    async def follow(self) -> None:
        """Tell of everything that happens, for ever."""
        async for seq, patches in self._ledger.log.patches(self._session, self._view.seq):
            self._view.apply(seq, patches)
            for patch in patches:
                identity = patch.entry.id if isinstance(patch, Put) else patch.id
                if identity:
                    self._tell(self._view.entries[identity])

    async def catch_up(self) -> None:
        """Return when everything that is in the log now was told."""
        row = await self._ledger.log.store.session(self._session)
        head = row.last_seq if row else 0
        await self._view.until(lambda view: view.seq >= head)
        self._break()

    def _tell(self, entry: Json) -> None:
        if entry["type"] == "message" and entry["role"] != "user":
            self._say(entry)
        elif entry["type"] == "tool_call" and self._told.get(entry["id"]) != entry["status"]:
            self._told[entry["id"]] = entry["status"]
            if entry["status"] in WORTH_A_LINE:
                self._line(entry)

    def _say(self, entry: Json) -> None:
        """What is new of a text. One that was repaired is said again from its beginning."""
        text, before = entry["content"], self._shown.get(entry["id"], 0)
        self._shown[entry["id"]] = len(text)
        if self._quiet:
            return
        if self._speaking != entry["id"]:
            self._break()
        self._speaking = entry["id"]
        new = text[before:] if len(text) >= before else f"\n{text}"
        click.echo(escape_block(new) if sys.stdout.isatty() else new, nl=False)

    def _break(self) -> None:
        if self._speaking:
            click.echo()
        self._speaking = 0

    def _line(self, entry: Json) -> None:
        if entry["status"] in BREAKS:
            self._break()
        sign = timeline.STATES[entry["status"]][0]
        spent = format_duration(entry.get("startedAt", 0), entry.get("endedAt", 0))
        parts = [sign, entry["status"], entry.get("toolName") or "call", timeline.said(entry), entry.get("reason", "")]
        tables.print_status("  ".join(part for part in [*parts, spent] if part))

    # Answering

    async def ask(self) -> None:
        """Ask the person at the terminal; without one, say how to answer from elsewhere."""
        while True:
            request = await self._view.until(self._request)
            if keys.may_ask():
                await self._by_key(request)
            else:
                identity = request["requestId"]
                tables.print_status(f"   waits for: callslip approve {identity}, or callslip deny {identity}")
            await self._until_answered(request)

    async def _by_key(self, request: Json) -> None:
        """Listen first, then ask: what was typed before the question is no answer, what is typed at once is one."""
        async with keys.pressed() as pressed:
            tables.print_status(f"   run it? press y or n: {self._asked(request)}")
            said = await first(yes_or_no(pressed), self._until_answered(request))
        if said in ("y", "n"):
            await answered(self._ledger, request["requestId"], yes=said == "y", by=user_name())

    async def _until_answered(self, request: Json) -> None:
        await self._view.until(lambda view: self._request(view) is not request)

    def _request(self, view: PatchedSession) -> Json | None:
        """The first that waits. One that was there before was not told of here, and is for others to answer."""
        asked = (entry for identity, entry in view.entries.items() if identity > self._since)
        waiting = (entry for entry in asked if entry["type"] == "permission_request")
        return next((entry for entry in waiting if entry.get("state", "pending") == "pending"), None)

    def _asked(self, request: Json) -> str:
        """What is asked about, whole: nobody can approve what they cannot see."""
        calls = (entry for entry in self._view.entries.values() if entry.get("callId") == request["callId"])
        call = next((entry for entry in calls if entry["type"] == "tool_call"), request)
        return timeline.text_of(call.get("rawInput") or call.get("title") or "")
