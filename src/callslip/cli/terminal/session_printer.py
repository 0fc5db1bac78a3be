"""A session on a terminal as it goes on: texts as they come, a line for each change of a call, who is asked what.

It is fed with entries as a client holds them, and remembers what it has told of each. Every text is made inert.
"""

from __future__ import annotations

from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from callslip.cli.terminal import formatting, timeline
from callslip.cli.terminal.escape import escape_block, escape_controls
from callslip.cli.terminal.patched_session import Json
from callslip.cli.terminal.timeline import INDENT, NAME

SPOKEN = {"message": ("agent", ""), "thought": ("thought", "italic dim")}
PERSON = ("person", "bold")
ANSWERED = {"granted": "green", "refused": "red"}


class SessionPrinter:
    """Tells of one session. `flags` is what a command needs to mean the same ledger."""

    def __init__(self, out: Console, flags: str) -> None:
        self._out = out
        self._flags = flags
        self._states: dict[int, str] = {}
        self._lengths: dict[int, int] = {}
        self._speaking = 0

    def past(self, left_out: list[Json], entries: list[Json]) -> None:
        """What was there before, as `show` has it. Of what is left out, requests that wait are told all the same."""
        if left_out:
            self._line(Text(f"… {len(left_out):,} before", "dim"))
        for entry in left_out + entries:
            waits = entry["type"] == "permission_request" and _state(entry) == "pending"
            if waits or entry["id"] >= (entries[0]["id"] if entries else 0):
                self._out.print(timeline.row(entry, wrap=True))
            if waits:
                self._how_to_answer(entry)
            self._know(entry)

    def _know(self, entry: Json) -> None:
        """Nothing that this entry says now is news."""
        self._states[entry["id"]] = _state(entry)
        self._lengths[entry["id"]] = len(entry.get("content") or "") if entry["type"] in SPOKEN else 0

    def tell(self, entry: Json) -> None:
        """Whatever is new about an entry."""
        if entry["type"] in SPOKEN:
            self._say(entry)
        elif entry["type"] in ("tool_call", "permission_request"):
            before, now = self._states.get(entry["id"]), _state(entry)
            self._states[entry["id"]] = now
            if before != now and not (before and now == "queued"):  # That is what an answer brings, and it was told.
                (self._call if entry["type"] == "tool_call" else self._request)(entry, now)
        elif entry["id"] not in self._states:
            self._states[entry["id"]] = ""
            self.end_line()
            self._out.print(timeline.row(entry, wrap=True))

    def end_line(self) -> None:
        """Whatever comes next begins on a line of its own."""
        if self._speaking:
            self._out.print()
        self._speaking = 0

    # Texts

    def _say(self, entry: Json) -> None:
        """What is new of a text. One that was repaired is said again from its beginning."""
        text, before = str(entry.get("content") or ""), self._lengths.get(entry["id"], 0)
        self._lengths[entry["id"]] = len(text)
        new = text[before:] if len(text) >= before else text
        if not new:
            return
        name, style = PERSON if entry.get("role") == "user" else SPOKEN[entry["type"]]
        if self._speaking != entry["id"]:
            self.end_line()
            self._piece(_lead(entry.get("at", 0), name, style))
        self._speaking = entry["id"]
        self._piece(Text(escape_block(new).replace("\n", "\n" + " " * INDENT), style))

    def _piece(self, text: Text) -> None:
        self._out.print(text, end="", soft_wrap=True)

    # Calls

    def _call(self, entry: Json, state: str) -> None:
        sign, style = timeline.STATES.get(state, ("?", ""))
        spent = formatting.format_duration(entry.get("startedAt", 0), entry.get("endedAt", 0))
        when = entry.get("endedAt") or entry.get("startedAt") or entry.get("at", 0)
        line = _lead(when, str(entry.get("toolName") or entry.get("kind") or "call"), "bold")
        line.append(f"{sign} ", style).append(escape_controls(timeline.said(entry)) or "(no arguments)")
        line.append(f"  {escape_controls(state)}", style).append(f"  in {spent}" if spent else "", "dim")
        line.append(escape_controls(f"  {entry.get('callId', '')}"), "dim")
        if entry.get("reason"):
            line.append(escape_controls(f"  {entry['reason']}"), style)
        self._line(line)

    def _request(self, entry: Json, state: str) -> None:
        asked = entry.get("responseTime") or entry.get("at", 0)
        line = _lead(asked, "approval", "bold")
        line.append(escape_controls(str(entry.get("description") or timeline.said(entry))), "bold")
        line.append(f"  {escape_controls(state)}", ANSWERED.get(state, "yellow"))
        line.append(escape_controls(f" by {entry['by']}") if entry.get("by") else "", ANSWERED.get(state, "yellow"))
        if entry.get("reason"):
            line.append(escape_controls(f"  {entry['reason']}"))
        self._line(line)
        if state == "pending":
            self._how_to_answer(entry)

    def _how_to_answer(self, entry: Json) -> None:
        """With what is asked about, whole: nobody can approve what they cannot see."""
        if entry.get("rawInput") is not None:
            self._line(Text(" " * INDENT + escape_controls(timeline.text_of(entry["rawInput"]))))
        for verb in ("approve", "deny"):
            self._line(
                Text(escape_controls(f"{' ' * INDENT}callslip {verb} {entry['requestId']}{self._flags}"), "yellow")
            )

    def _line(self, text: Text) -> None:
        self.end_line()
        self._out.print(text, soft_wrap=True)


def _state(entry: Json) -> str:
    if entry["type"] == "permission_request":
        return str(entry.get("state", "pending"))
    return str(entry.get("status", "none")) if entry["type"] == "tool_call" else ""


def _lead(when: int, name: str, style: str) -> Text:
    return (
        Text()
        .append(f"{formatting.clock(when)}  ", "dim")
        .append(f"{set_cell_size(escape_controls(name), NAME)}  ", style)
    )
