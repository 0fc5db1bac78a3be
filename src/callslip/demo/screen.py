"""Draw the view: updated in place on a terminal, as plain lines in a pipe.

Final entries scroll away as ordinary text; only entries that can still change are drawn again.
"""

from __future__ import annotations

import time
from itertools import takewhile
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from callslip.cli.terminal import timeline
from callslip.cli.terminal.escape import escape_controls
from callslip.cli.terminal.patched_session import Json, PatchedSession
from callslip.cli.terminal.tables import print_block
from callslip.rules.lifecycle import TERMINAL_STATES

MAX_OPEN_LINES = 6
"""Lines of output that are shown of a call while it runs."""


def is_final(entry: Json) -> bool:
    """Return whether an entry can no longer change."""
    if entry["type"] == "tool_call":
        return entry.get("status") in TERMINAL_STATES
    if entry["type"] == "permission_request":
        return entry.get("state", "pending") != "pending"
    return not entry.get("streaming")


class Screen:
    """The output of the demo, used with `with`. While `is_asking` it shows the question."""

    def __init__(self, view: PatchedSession, console: Console) -> None:
        self._view = view
        self._console = console
        self.is_asking = self._has_asked = False
        self._last_printed = 0
        is_live = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if is_live else None

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.draw()
        if self._live is not None:
            self._live.update(Text(""), refresh=True)
            self._live.stop()

    def draw(self) -> None:
        """Print the entries that have become final, in order, and draw the rest."""
        pending = [entry for number, entry in sorted(self._view.entries.items()) if number > self._last_printed]
        final = list(takewhile(is_final, pending))
        if self._live is not None:
            rows = [
                timeline.render_entry(entry, wrap=True, lines=MAX_OPEN_LINES, tail=True)
                for entry in pending[len(final) :]
            ]
            self._live.update(Group(*rows, *self._question()), refresh=not final)
        for entry in final:
            self._last_printed = entry["id"]
            print_block(self._console, timeline.render_entry(entry, wrap=self._console.is_terminal))
        if self._live is None and self.is_asking and not self._has_asked:
            self._has_asked = True
            for line in self._question():
                print_block(self._console, line)

    def _question(self) -> list[Padding]:
        request = self._view.pending_request()
        if request is None or not self.is_asking:
            return []
        seconds_left = max(0, round(request.get("expiresAt", 0) / 1000 - time.time()))
        question = Text("Run ").append(escape_controls(str(request.get("description"))), "bold")
        question.append("? [y/n]", "bold yellow").append(f"   expires in {seconds_left} s", "dim")
        return [Padding(question, (1, 0, 0, timeline.INDENT))]
