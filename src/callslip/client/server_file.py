"""The file in which a running server says where it listens.

It is beside the file of the database. For a database on a server it is in the user's data folder, so only commands of
the same user on the same machine find it.
"""

from __future__ import annotations

import msgspec

from callslip.client.location import LedgerLocation, data_folder
from callslip.ledger.liveness import is_dead
from callslip.model import codec
from callslip.settings import Settings

MAX_FILE_BYTES = 65536


class RunningServer(msgspec.Struct, frozen=True):
    """A server that runs for a ledger. `owner` identifies its process, `settings` are those of its ledger.

    `phone_url` is its address for other machines, "" if it has none.
    """

    url: str
    pid: int
    owner: str
    settings: Settings = Settings()
    phone_url: str = ""


def server_file(location: LedgerLocation) -> str:
    """Return the path of the file. The name of a database on a server is hashed, as it is no file name."""
    if location.is_server:
        return str(data_folder() / f"{codec.digest(location.display_name.encode())}.server")
    return f"{location.path}.server"


def running_server(location: LedgerLocation) -> RunningServer | None:
    """Return the server that runs for a ledger, unless its process is dead."""
    if location.is_in_memory:
        return None
    try:
        with open(server_file(location), "rb") as file:
            server = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=RunningServer)
    except (OSError, ValueError, msgspec.DecodeError):
        return None
    return None if is_dead(server.owner) else server
