"""The user's data folder: the default ledger, the token file, and addresses of servers."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """Return the user's data folder by the XDG rules; a relative path in the variable is ignored."""
    folder = os.environ.get("XDG_DATA_HOME", "")
    return (Path(folder) if os.path.isabs(folder) else Path.home() / ".local" / "share") / "callslip"
