"""The folder through which the hooks of agents reach a ledger: a socket, and files that wait to be imported.

It belongs to one ledger and one user. The hook is started with its path, so it needs nothing else to find a server.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from callslip.client.location import LedgerLocation, data_folder
from callslip.errors import StoreError
from callslip.model import codec
from callslip.model.display import pluralize

FOLDER_MODE = 0o700
SOCKET, SPOOL, LOCK, SUFFIX = "socket", "spool", "lock", ".json"
"""The names in the folder: the server's socket, the folder of messages that wait, and the lock of the server; and how
the names of messages end."""
MAX_MESSAGE_BYTES = 4 * 2**20
"""How large one message of a hook may be. What is larger is only in the session file of the agent."""
ID_CHARS = 12


def hook_folder(location: LedgerLocation) -> Path:
    """Return the folder of a ledger. It need not exist."""
    name = os.path.realpath(location.path) if location.path else location.display_name
    return data_folder() / "hooks" / codec.digest(name.encode("utf-8", "surrogateescape"))[:ID_CHARS]


def prepare_folder(folder: Path) -> None:
    """Create the folder, and raise StoreError unless only this user can use it."""
    try:
        for path in (folder, folder / SPOOL):
            os.makedirs(path, mode=FOLDER_MODE, exist_ok=True)
            check_folder(path)
    except OSError as error:
        raise StoreError(f"cannot create {folder}: {error.strerror}") from error


def check_folder(path: Path) -> None:
    """Raise StoreError if a path is not a folder that belongs to this user alone."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(f"{path} is not a folder")
    if status.st_uid != os.geteuid():
        raise StoreError(f"{path} belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise StoreError(f"other users can access {path}; run chmod 700 on it")


def has_spooled(folder: Path) -> bool:
    """Return whether a message waits. This is called by every command, and is cheap."""
    return next(_waiting(folder), None) is not None


def count_spooled(folder: Path) -> int:
    """Return how many messages wait."""
    return sum(1 for _ in _waiting(folder))


def describe_spooled(count: int) -> str:
    """Return how many messages wait, as text."""
    return f"{pluralize(count, 'stored message')} of hooks not imported yet"


def _waiting(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder / SPOOL) as found:
            yield from (entry.name for entry in found if entry.name.endswith(SUFFIX))
    except OSError:
        return
