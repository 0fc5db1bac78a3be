"""Open a ledger wherever it is: a database file in this process, or a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from callslip.api.ledger import Ledger, LocalLedger, OpenLedger, open_ledger
from callslip.client.address import ServerAddress, parse_address
from callslip.client.http import HttpPool
from callslip.client.location import LedgerLocation, data_folder, default_location, parse_location
from callslip.client.remote_ledger import RemoteLedger
from callslip.client.token_file import check_token, main_token
from callslip.errors import InvalidInputError
from callslip.model.agent_env import TOKEN_VARIABLE, is_agent
from callslip.settings import Settings

SERVER_VARIABLE = "CALLSLIP_SERVER"


def open(url: str | Path | None = None, settings: Settings | None = None) -> OpenLedger[LocalLedger]:
    """Open a ledger in this process: `async with callslip.open("agent.db") as ledger`, or `await callslip.open(...)`.

    `url` is a path, `sqlite:///FILE`, `sqlite:///:memory:` or `postgresql://...`. The default is $CALLSLIP_DB, else a
    file in the user's data folder. The file, or the tables on a server, are created if needed.
    """
    location = parse_location(str(url), "url") if url is not None else default_location()
    return OpenLedger(lambda: open_location(location, settings))


async def open_location(
    location: LedgerLocation, settings: Settings | None = None, *, create: bool = True
) -> LocalLedger:
    """Open the ledger at a location, creating it if needed. Without `create` a server must have it."""
    location.prepare()
    return await open_ledger(location.url, settings, create=create)


def connect(
    url: str | None = None, *, token: str = "", report: Callable[[str], None] = lambda message: None
) -> OpenLedger[RemoteLedger]:
    """Use a ledger behind a server: `async with callslip.connect("http://host:7890", token=...) as ledger`.

    `url` defaults to $CALLSLIP_SERVER and `token` to $CALLSLIP_TOKEN, else to the token in the address, else, for a
    server on this machine, to the user's own. Connecting does no I/O. `report` is called with a line when the
    connection is lost and when it is back.
    """
    field, text = ("url", url) if url is not None else (SERVER_VARIABLE, os.environ.get(SERVER_VARIABLE, ""))
    if not text:
        raise InvalidInputError("url", f"no server given; pass its address or set {SERVER_VARIABLE}")
    address = parse_address(text, field)

    async def open_remote() -> RemoteLedger:
        return RemoteLedger(HttpPool(address, find_token(address, token)), report)

    return OpenLedger(open_remote)


def find_token(address: ServerAddress, token: str = "") -> str:
    """Return the token for a server: the given one, $CALLSLIP_TOKEN, that of the address, or the user's own file.

    The token file is only used for a server on this machine: no other machine may receive it. A process that an agent
    started does not use it.
    """
    known = token or os.environ.get(TOKEN_VARIABLE, "") or address.token
    if known:
        return check_token(known, "token")
    if address.is_local and not is_agent() and os.access(data_folder() / "token", os.R_OK):
        return main_token(data_folder())
    return ""


def open_any(target: str | None = None, *, token: str = "") -> OpenLedger[LocalLedger] | OpenLedger[RemoteLedger]:
    """Open the ledger that a URL or path names: a server for http(s), else a database. $CALLSLIP_SERVER by default."""
    if target is None and os.environ.get(SERVER_VARIABLE):
        return connect(token=token)
    if target is not None and target.startswith(("http:", "https:")):
        return connect(target, token=token)
    return open(target)


def describe(ledger: Ledger) -> str:
    """Return where a ledger is, for messages."""
    return ledger.url if isinstance(ledger, RemoteLedger) else "the ledger"
