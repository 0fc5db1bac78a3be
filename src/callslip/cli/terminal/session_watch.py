"""Print a session while an agent runs in this process, and prompt for its approvals.

The agent's messages go to stdout, so that a pipe gets nothing else; lines about calls go to stderr.
"""

from __future__ import annotations

import sys

import click

from callslip.api.ledger import LocalLedger
from callslip.cli.commands.answer import user_name
from callslip.cli.terminal import keys, tables, timeline
from callslip.cli.terminal.background import answer_request, first_result, read_answer
from callslip.cli.terminal.escape import escape_block
from callslip.cli.terminal.patched_session import Json, PatchedSession
from callslip.errors import NotFoundError
from callslip.model.display import CALL_STATES, call_state_name, format_call_duration
from callslip.model.entries import Put
from callslip.rules.lifecycle import TERMINAL_STATES

INTERRUPTING_STATES = {"running", "awaiting_approval"}
PRINTED_STATES = {*INTERRUPTING_STATES, *TERMINAL_STATES}


class SessionWatcher:
    """Prints what happens in a session after `start`."""

    def __init__(self, ledger: LocalLedger, session: str, *, quiet: bool = False) -> None:
        self._ledger = ledger
        self._session = session
        self._quiet = quiet
        self._view = PatchedSession()
        self._states: dict[int, str] = {}
        self._lengths: dict[int, int] = {}
        self._open_text = 0
        self._start_seq = 0

    async def start(self) -> None:
        """Skip what exists already."""
        if await self._last_seq():
            self._view.load(await self._ledger.snapshot(self._session))
        self._start_seq = self._view.seq
        for identity, entry in self._view.entries.items():
            self._states[identity] = entry.get("status", "")
            self._lengths[identity] = len(entry.get("content") or "")

    async def follow(self) -> None:
        """Print changes until cancelled."""
        async for seq, patches in self._ledger.log.patches(self._session, self._view.seq):
            self._view.apply(seq, patches)
            for patch in patches:
                identity = patch.entry.id if isinstance(patch, Put) else patch.id
                if identity:
                    self._print_changes(self._view.entries[identity])

    async def catch_up(self) -> None:
        """Return when everything that is in the log now is printed."""
        last_seq = await self._last_seq()
        await self._view.wait_until(lambda view: view.seq >= last_seq)
        self._end_line()

    async def _last_seq(self) -> int:
        """Return the last event of the session, or 0 if it has none yet."""
        try:
            record = await self._ledger.find_session(self._session)
        except NotFoundError:
            return 0
        return record.last_seq if record.name == self._session else 0

    def _print_changes(self, entry: Json) -> None:
        if entry["type"] == "message" and entry["role"] != "user":
            self._print_text(entry)
        elif entry["type"] == "tool_call" and self._states.get(entry["id"]) != entry["status"]:
            self._states[entry["id"]] = entry["status"]
            if entry["status"] in PRINTED_STATES:
                self._print_call(entry)

    def _print_text(self, entry: Json) -> None:
        """Print the new part of a text; a text that was replaced by a shorter one is printed again."""
        text, before = entry["content"], self._lengths.get(entry["id"], 0)
        self._lengths[entry["id"]] = len(text)
        if self._quiet:
            return
        if self._open_text != entry["id"]:
            self._end_line()
        self._open_text = entry["id"]
        new = text[before:] if len(text) >= before else f"\n{text}"
        click.echo(escape_block(new) if sys.stdout.isatty() else new, nl=False)

    def _end_line(self) -> None:
        if self._open_text:
            click.echo()
        self._open_text = 0

    def _print_call(self, entry: Json) -> None:
        if entry["status"] in INTERRUPTING_STATES:
            self._end_line()
        sign = CALL_STATES[entry["status"]][0]
        duration = format_call_duration(entry.get("startedAt", 0), entry.get("endedAt", 0), entry.get("durationMs"))
        title, reason = timeline.call_title(entry), entry.get("reason", "")
        parts = [sign, call_state_name(entry["status"]), entry.get("toolName") or "call", title, reason]
        tables.print_status("  ".join(part for part in [*parts, duration] if part))

    # Answering

    async def ask(self) -> None:
        """Prompt for each pending approval; without a terminal, print how to answer it."""
        while True:
            request = await self._view.wait_until(self._request)
            if keys.can_prompt():
                await self._prompt(request)
            else:
                identity = timeline.approval_id(request)
                tables.print_status(
                    f"   waiting for approval: callslip approve {identity}, or callslip deny {identity}"
                )
            await self._wait_answered(request)

    async def _prompt(self, request: Json) -> None:
        """Read keys before printing the prompt: earlier input is discarded, and an immediate answer counts."""
        async with keys.read_keys() as pressed_keys:
            tables.print_status(f"   Run? [y/n] {self._arguments(request)}")
            key = await first_result(read_answer(pressed_keys), self._wait_answered(request))
        if key in ("y", "n"):
            await answer_request(self._ledger, timeline.approval_id(request), yes=key == "y", by=user_name())

    async def _wait_answered(self, request: Json) -> None:
        await self._view.wait_until(lambda view: self._request(view) is not request)

    def _request(self, view: PatchedSession) -> Json | None:
        """Return the first pending request since the start. Earlier ones belong to other processes."""
        return view.pending_request(after=self._start_seq)

    def _arguments(self, request: Json) -> str:
        """Return the full arguments of the call, which must be seen before approving."""
        calls = (entry for entry in self._view.entries.values() if entry.get("callId") == request["callId"])
        call = next((entry for entry in calls if entry["type"] == "tool_call"), request)
        return timeline.to_text(call.get("rawInput") or call.get("title") or "")
