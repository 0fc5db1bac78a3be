"""The file beside a database in which a running server says where it listens."""

from __future__ import annotations

import msgspec

from callslip.client.location import LedgerLocation
from callslip.ledger.liveness import is_dead
from callslip.settings import Settings

MAX_FILE_BYTES = 65536


class RunningServer(msgspec.Struct, frozen=True):
    """A server that runs for a ledger. `owner` identifies its process, `settings` are those of its ledger."""

    url: str
    pid: int
    owner: str
    settings: Settings = Settings()


def server_file(location: LedgerLocation) -> str:
    """Return the path of the file."""
    return f"{location.path}.server"


def running_server(location: LedgerLocation) -> RunningServer | None:
    """Return the server that runs for a ledger, unless its process is dead."""
    if not location.path:
        return None
    try:
        with open(server_file(location), "rb") as file:
            server = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=RunningServer)
    except (OSError, ValueError, msgspec.DecodeError):
        return None
    return None if is_dead(server.owner) else server
