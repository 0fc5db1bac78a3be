"""Print a session on a terminal live: texts as they arrive, and a line for each change of a call or an approval.

It takes entries as a client has them and prints what has changed since the last time. Every text is escaped.
"""

from __future__ import annotations

from rich.cells import set_cell_size
from rich.console import Console
from rich.text import Text

from callslip.cli.terminal import formatting, timeline
from callslip.cli.terminal.escape import escape_block, escape_controls
from callslip.cli.terminal.patched_session import Json
from callslip.cli.terminal.timeline import INDENT, LABEL_WIDTH
from callslip.model.display import format_call_duration

TEXT_LABELS = {"message": ("agent", ""), "thought": ("thinking", "italic dim")}


class SessionPrinter:
    """Prints one session. `flags` are the options that make another command select the same ledger."""

    def __init__(self, out: Console, flags: str) -> None:
        self._out = out
        self._flags = flags
        self._states: dict[int, str] = {}
        self._lengths: dict[int, int] = {}
        self._open_text = 0
        self._headings = timeline.SubagentHeadings()

    def print_existing(self, omitted: list[Json], entries: list[Json]) -> None:
        """Print existing entries as `show` does, and the pending requests among the omitted ones."""
        if omitted:
            self._print_line(Text(f"… {len(omitted):,} earlier entries", "dim"))
        for entry in omitted + entries:
            is_pending = entry["type"] == "permission_request" and _state(entry) == "pending"
            if is_pending or entry["id"] >= (entries[0]["id"] if entries else 0):
                self._print_heading(entry)
                self._out.print(timeline.render_entry(entry, wrap=True))
            if is_pending:
                self._print_answer_commands(entry)
            self._states[entry["id"]] = _state(entry)
            self._lengths[entry["id"]] = len(entry.get("content") or "") if entry["type"] in TEXT_LABELS else 0

    def print_changes(self, entry: Json) -> None:
        """Print what is new in an entry."""
        if entry["type"] in TEXT_LABELS:
            self._print_text(entry)
        elif entry["type"] in ("tool_call", "permission_request"):
            before, now = self._states.get(entry["id"]), _state(entry)
            self._states[entry["id"]] = now
            if before != now and not (before and now == "queued"):  # The answer that queues a call is printed already.
                (self._print_call if entry["type"] == "tool_call" else self._print_request)(entry, now)
        elif entry["id"] not in self._states:
            self._states[entry["id"]] = ""
            self._print_heading(entry)
            self._out.print(timeline.render_entry(entry, wrap=True))

    def end_line(self) -> None:
        """End a line of text, so that the next output starts a new line."""
        if self._open_text:
            self._out.print()
        self._open_text = 0

    # Texts

    def _print_text(self, entry: Json) -> None:
        """Print the new part of a text; a text that was replaced by a shorter one is printed again."""
        text, before = str(entry.get("content") or ""), self._lengths.get(entry["id"], 0)
        self._lengths[entry["id"]] = len(text)
        new = text[before:] if len(text) >= before else text
        if not new:
            return
        name, style = timeline.user_label(entry) if entry.get("role") == "user" else TEXT_LABELS[entry["type"]]
        if self._open_text != entry["id"]:
            self._print_heading(entry)
            self._print_part(_line_start(entry, entry.get("at", 0), name, style))
        self._open_text = entry["id"]
        self._print_part(Text(escape_block(new).replace("\n", "\n" + " " * INDENT), style))

    def _print_part(self, text: Text) -> None:
        self._out.print(text, end="", soft_wrap=True)

    # Calls

    def _print_call(self, entry: Json, state: str) -> None:
        duration = format_call_duration(entry.get("startedAt", 0), entry.get("endedAt", 0), entry.get("durationMs"))
        when = entry.get("endedAt") or entry.get("startedAt") or entry.get("at", 0)
        self._print_heading(entry)
        line = _line_start(entry, when, str(entry.get("toolName") or entry.get("kind") or "call"), "bold")
        line.append_text(timeline.call_heading(entry, state)).append(f"  in {duration}" if duration else "", "dim")
        line.append(escape_controls(f"  {entry.get('callId', '')}"), "dim")
        if entry.get("reason"):
            line.append(escape_controls(f"  {entry['reason']}"), timeline.STATE_STYLES.get(state, ""))
        self._print_line(line)

    def _print_request(self, entry: Json, state: str) -> None:
        time = entry.get("responseTime") or entry.get("at", 0)
        self._print_heading(entry)
        line = _line_start(entry, time, "approval", "bold").append_text(timeline.request_heading(entry, state))
        if entry.get("reason"):
            line.append(escape_controls(f"  {entry['reason']}"))
        self._print_line(line)
        if state == "pending":
            self._print_answer_commands(entry)

    def _print_answer_commands(self, entry: Json) -> None:
        """Print the full arguments, which must be seen before approving, and the commands that answer here."""
        if entry.get("rawInput") is not None:
            self._print_line(Text(" " * INDENT + escape_controls(timeline.to_text(entry["rawInput"]))))
        for verb in () if entry.get("answerAt") else ("approve", "deny"):
            self._print_line(
                Text(
                    escape_controls(f"{' ' * INDENT}callslip {verb} {timeline.approval_id(entry)}{self._flags}"),
                    "yellow",
                )
            )

    def _print_heading(self, entry: Json) -> None:
        """End the open line, and print the heading of the sub-agent that an entry is of."""
        self.end_line()
        if (heading := self._headings.before(entry)) is not None:
            self._out.print(heading, soft_wrap=True)

    def _print_line(self, text: Text) -> None:
        self.end_line()
        self._out.print(text, soft_wrap=True)


def _state(entry: Json) -> str:
    if entry["type"] == "permission_request":
        return str(entry.get("state", "pending"))
    return str(entry.get("status", "none")) if entry["type"] == "tool_call" else ""


def _line_start(entry: Json, when: int, name: str, style: str) -> Text:
    name = timeline.label_of(entry, name)
    return (
        Text()
        .append(f"{formatting.format_time(when)}  ", "dim")
        .append(f"{set_cell_size(escape_controls(name), LABEL_WIDTH)}  ", style)
    )
