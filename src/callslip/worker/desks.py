"""Where a worker gets its commands and says what came of them: a ledger, or a server that has it. Both alike."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from callslip import codec, liveness
from callslip.commands import Claim, Commands
from callslip.events import CallRequeued
from callslip.ledger import Ledger, open_ledger
from callslip.place import data_folder, default_place, read_place
from callslip.remote import Address, read_address
from callslip.worker.link import Link, decoded

AT_ONCE = 0.001
"""A lease that is over when it is given."""


class Desk(Protocol):
    """What a worker does at it. Whoever speaks for a command that is not theirs any more is told so by Conflict."""

    where: str
    patience: float
    """How long to wait for a command in one go."""
    breaks_off: bool
    """Whether waiting may be cancelled without a command getting lost in the middle."""

    async def claim(self, client: str, *, worker: str, wait: float, lease: float, session: str) -> Claim | None:
        """The next command; None if there was none."""
        ...

    async def heartbeat(self, claim: Claim, lease: float, text: str) -> None:
        """Go on with it, and tell more of it."""
        ...

    async def complete(self, claim: Claim, result: Any) -> None:
        """What came of it."""
        ...

    async def fail(self, claim: Claim, error: str) -> None:
        """What went wrong."""
        ...

    async def give_back(self, claim: Claim, *, begun: bool) -> bool:
        """Let somebody else run it, if that may be: whether it may."""
        ...


class OnLedger:
    """The commands of a ledger in this process."""

    patience = 0.5
    breaks_off = False

    def __init__(self, commands: Commands, where: str) -> None:
        self.where = where
        self._commands = commands

    async def claim(self, client: str, *, worker: str, wait: float, lease: float, session: str) -> Claim | None:
        return await self._commands.claim(client, worker=worker, wait=wait, lease=lease, session=session)

    async def heartbeat(self, claim: Claim, lease: float, text: str) -> None:
        await self._commands.heartbeat(claim.call, claim.fence, lease=lease, text=text)

    async def complete(self, claim: Claim, result: Any) -> None:
        await self._commands.complete(claim.call, result, fence=claim.fence)

    async def fail(self, claim: Claim, error: str) -> None:
        await self._commands.fail(claim.call, error, fence=claim.fence)

    async def give_back(self, claim: Claim, *, begun: bool) -> bool:
        if begun and not claim.idempotent:
            return False
        ledger = self._commands.ledger
        row = await ledger.store.call(claim.call)
        if row is not None and (row.state, row.attempt) == ("running", claim.fence):
            event = CallRequeued(call=row.id, reason="the worker that ran this command was stopped")
            how = ledger.how(source="command", strict=True)
            await ledger.store.transact(lambda unit: liveness.end_if_unchanged(unit, row, event, how))
        return True


class OnServer:
    """The commands of a server."""

    patience = 20.0
    breaks_off = True

    def __init__(self, link: Link) -> None:
        self.where = link.url
        self._link = link

    async def claim(self, client: str, *, worker: str, wait: float, lease: float, session: str) -> Claim | None:
        asked = {"client": client, "worker": worker, "wait": wait, "lease": lease, "session": session}
        body = await self._link.post("/v1/calls/claim", asked, within=wait)
        return decoded(self._link.url, body, Claim) if body else None

    async def heartbeat(self, claim: Claim, lease: float, text: str) -> None:
        told = {"text": codec.text(text)} if text else {}
        await self._say(claim, "heartbeat", {"lease": lease, **told})

    async def complete(self, claim: Claim, result: Any) -> None:
        await self._say(claim, "result", {"result": codec.safe(result)})

    async def fail(self, claim: Claim, error: str) -> None:
        await self._say(claim, "result", {"error": codec.text(error)})

    async def give_back(self, claim: Claim, *, begun: bool) -> bool:
        """The server has no word for it; but one whose lease is over is given to others, if it may run twice."""
        if claim.idempotent:
            await self.heartbeat(claim, AT_ONCE, "")
        return claim.idempotent

    async def _say(self, claim: Claim, what: str, said: dict[str, Any]) -> None:
        body = await self._link.post(f"/v1/calls/{quote(claim.call, safe='')}/{what}", {"fence": claim.fence, **said})
        decoded(self._link.url, body, msgspec.Raw)


@contextlib.asynccontextmanager
async def opened(given: str | Ledger | None, token: str) -> AsyncGenerator[Desk]:
    """What a worker works for. If it was not told: CALLSLIP_SERVER, else the ledger that a command line means."""
    if isinstance(given, Ledger):
        async with _of_ledger(given, "the ledger") as desk:
            yield desk
        return
    said_by = "CALLSLIP_SERVER" if given is None else "server"
    said = os.environ.get("CALLSLIP_SERVER", "") if given is None else given
    if said.startswith(("http:", "https:")) or (said and given is None):
        link = _link(read_address(said, said_by), token)
        try:
            yield OnServer(link)
        finally:
            await link.close()
        return
    place = read_place(said, said_by) if said else default_place()
    place.prepare()
    async with await open_ledger(place.url) as ledger, _of_ledger(ledger, place.path or place.url) as desk:
        yield desk


@contextlib.asynccontextmanager
async def _of_ledger(ledger: Ledger, where: str) -> AsyncGenerator[Desk]:
    commands = Commands(ledger)
    try:
        yield OnLedger(commands, where)
    finally:
        await commands.close()


def _link(address: Address, token: str) -> Link:
    from callslip.http.token_file import checked, main_token

    known = token or os.environ.get("CALLSLIP_TOKEN", "") or address.token
    if not known and address.local and os.access(data_folder() / "token", os.R_OK):
        known = main_token(data_folder())
    return Link(address, checked(known, "token") if known else "")
