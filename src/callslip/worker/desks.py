"""Where a worker gets its commands and says what came of them: a ledger, or a server that has it. Both alike."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from callslip.api.ledger import Ledger, open_ledger
from callslip.client.address import READ_TIMEOUT_S, ServerAddress, parse_address
from callslip.client.http import HttpPool, decoded
from callslip.client.location import data_folder, default_location, parse_location
from callslip.commands import Claim, Commands
from callslip.model import codec

GIVEN_BACK = "the worker that ran this command was stopped"
PROMPT = 1.0
"""A server has at least so long to answer a heartbeat, in s, before it is asked again over another connection."""


class CommandSource(Protocol):
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
        await self._commands.release(claim.call, claim.fence, GIVEN_BACK)
        return True


class OnServer:
    """The commands of a server."""

    patience = 20.0
    breaks_off = True

    def __init__(self, link: HttpPool) -> None:
        self.where = link.url
        self._link = link

    async def claim(self, client: str, *, worker: str, wait: float, lease: float, session: str) -> Claim | None:
        asked = {"client": client, "worker": worker, "wait": wait, "lease": lease, "session": session}
        body = await self._link.post("/v1/calls/claim", asked, within=wait, late=True)
        return decoded(self._link.url, body, Claim) if body else None

    async def heartbeat(self, claim: Claim, lease: float, text: str) -> None:
        """An answer that does not come must leave time to ask again while the lease lasts."""
        told = {"text": codec.text(text)} if text else {}
        await self._say(claim, "heartbeat", {"lease": lease, **told}, min(READ_TIMEOUT_S, max(PROMPT, lease / 3)))

    async def complete(self, claim: Claim, result: Any) -> None:
        await self._say(claim, "result", {"result": codec.to_json(result)})

    async def fail(self, claim: Claim, error: str) -> None:
        await self._say(claim, "result", {"error": codec.text(error)})

    async def give_back(self, claim: Claim, *, begun: bool) -> bool:
        if begun and not claim.idempotent:
            return False
        await self._say(claim, "release", {"reason": GIVEN_BACK})
        return True

    async def _say(self, claim: Claim, what: str, said: dict[str, Any], patience: float = READ_TIMEOUT_S) -> None:
        path = f"/v1/calls/{quote(claim.call, safe='')}/{what}"
        body = await self._link.post(path, {"fence": claim.fence, **said}, patience=patience)
        if body:
            decoded(self._link.url, body, msgspec.Raw)


@contextlib.asynccontextmanager
async def opened(given: str | Ledger | None, token: str) -> AsyncGenerator[CommandSource]:
    """What a worker works for. If it was not told: CALLSLIP_SERVER, else the ledger that a command line means."""
    if isinstance(given, Ledger):
        async with _of_ledger(given, "the ledger") as desk:
            yield desk
        return
    said_by = "CALLSLIP_SERVER" if given is None else "server"
    said = os.environ.get("CALLSLIP_SERVER", "") if given is None else given
    if said.startswith(("http:", "https:")) or (said and given is None):
        link = _link(parse_address(said, said_by), token)
        try:
            yield OnServer(link)
        finally:
            await link.close()
        return
    place = parse_location(said, said_by) if said else default_location()
    place.prepare()
    async with await open_ledger(place.url) as ledger, _of_ledger(ledger, place.path or place.url) as desk:
        yield desk


@contextlib.asynccontextmanager
async def _of_ledger(ledger: Ledger, where: str) -> AsyncGenerator[CommandSource]:
    commands = Commands(ledger)
    try:
        yield OnLedger(commands, where)
    finally:
        await commands.close()


def _link(address: ServerAddress, token: str) -> HttpPool:
    from callslip.client.token_file import checked, main_token

    known = token or os.environ.get("CALLSLIP_TOKEN", "") or address.token
    if not known and address.local and os.access(data_folder() / "token", os.R_OK):
        known = main_token(data_folder())
    return HttpPool(address, checked(known, "token") if known else "")
