"""Where the hooks of a ledger leave their messages: a folder with the socket of the server and the spool."""

from __future__ import annotations

import os
from pathlib import Path

from callslip.client.location import LedgerLocation, data_folder
from callslip.model import codec

ID_DIGITS = 12


def hook_folder(location: LedgerLocation) -> Path:
    """Return the folder of a ledger. It need not exist."""
    name = location.url if location.is_server else os.path.realpath(location.path)
    return data_folder() / "hooks" / codec.digest(name.encode("utf-8", "surrogateescape"))[:ID_DIGITS]
