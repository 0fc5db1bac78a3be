"""Open the page in a browser, if the user has one on this machine."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from callslip.cli.commands.serve import write_redirect

SSH_VARIABLES = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
DISPLAY_VARIABLES = ("DISPLAY", "WAYLAND_DISPLAY")


def is_available() -> bool:
    """Return whether there is a graphical browser: not over SSH, and on Linux only with a display."""
    if any(os.environ.get(name) for name in SSH_VARIABLES):
        return False
    if sys.platform.startswith(("linux", "freebsd")) and not any(os.environ.get(name) for name in DISPLAY_VARIABLES):
        return False
    import webbrowser

    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def open_page(page: str, folder: Path) -> None:
    """Open a page in a thread, since some browsers take long to start."""
    import webbrowser

    file = folder / "open.html"
    write_redirect(page, file)
    threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()
