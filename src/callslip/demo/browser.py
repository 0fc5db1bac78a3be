"""Opens the page, where there is a browser on the screen that the person sits at."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from callslip.cli.commands.serve import lead_to

FAR_AWAY = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")


def is_there() -> bool:
    """Not at the other end of an SSH line, and on Linux only with a display: else it would be one for text."""
    if any(os.environ.get(name) for name in FAR_AWAY):
        return False
    if sys.platform.startswith(("linux", "freebsd")) and not any(os.environ.get(name) for name in SCREENS):
        return False
    import webbrowser

    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def open_page(page: str, folder: Path) -> None:
    """Some browsers take their time to come up."""
    import webbrowser

    file = folder / "open.html"
    lead_to(page, file)
    threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()
