"""How the view is shown: on a terminal it moves, in a pipe it is plain lines. Both show the view and nothing else.

What is finished scrolls away as ordinary text; only what can still change is drawn again and again.
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
from callslip.cli.terminal.tables import emit
from callslip.rules.lifecycle import TERMINAL_STATES

TAIL = 6


def settled(entry: Json) -> bool:
    """Whether an entry will be as it is from now on."""
    if entry["type"] == "tool_call":
        return entry.get("status") in TERMINAL_STATES
    if entry["type"] == "permission_request":
        return entry.get("state", "pending") != "pending"
    return not entry.get("streaming")


class Screen:
    """Use with `with`; `draw` as often as you like. The question is shown while keys are listened to: `asking`."""

    def __init__(self, view: PatchedSession, console: Console) -> None:
        self._view = view
        self._console = console
        self.asking = self._asked = False
        self._printed = 0
        moves = console.is_terminal and not console.is_dumb_terminal
        self._live = Live(console=console, auto_refresh=False, transient=True) if moves else None

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
        """Print what has become final, in order, and draw the rest."""
        waiting = [entry for number, entry in sorted(self._view.entries.items()) if number > self._printed]
        final = list(takewhile(settled, waiting))
        if self._live is not None:
            rows = [timeline.row(entry, wrap=True, lines=TAIL, tail=True) for entry in waiting[len(final) :]]
            self._live.update(Group(*rows, *self._question()), refresh=not final)
        for entry in final:
            self._printed = entry["id"]
            emit(self._console, timeline.row(entry, wrap=self._console.is_terminal))
        if self._live is None and self.asking and not self._asked:
            self._asked = True
            for line in self._question():
                emit(self._console, line)

    def _question(self) -> list[Padding]:
        request = self._view.request()
        if request is None or not self.asking:
            return []
        left = max(0, round(request.get("expiresAt", 0) / 1000 - time.time()))
        question = Text("May it run ")
        question.append(escape_controls(str(request.get("description"))), "bold").append("?  ")
        question.append(" y ", "reverse").append(" yes  ").append(" n ", "reverse").append(" no")
        question.append(f"   no answer in {left} s means no", "dim")
        return [Padding(question, (1, 0, 0, timeline.INDENT))]
