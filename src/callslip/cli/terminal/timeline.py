"""Entries as lines that a person reads: one renderable per entry, for `show` and for the demo alike.

It takes entries as they are on the wire (decoded JSON), so that a view fed by patches and one read from the ledger go
through the same door. Nothing here decides anything; every text is made inert.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from rich.cells import set_cell_size
from rich.table import Table
from rich.text import Text

from callslip.cli.terminal import formatting
from callslip.cli.terminal.escape import escape_block, escape_controls
from callslip.model.codec import encode

Json = dict[str, Any]

# The sign and the style of each state; the word always stands beside it, for those who see no colour.
STATES: dict[str, tuple[str, str]] = {
    "queued": ("○", "dim"),
    "awaiting_approval": ("?", "yellow"),
    "running": ("●", "cyan"),
    "completed": ("✓", "green"),
    "failed": ("✗", "red"),
    "denied": ("✗", "red"),
    "cancelled": ("-", "magenta"),
    "expired": ("-", "magenta"),
    "lost": ("-", "magenta"),
}
PLAN = {"completed": ("✓", "green"), "in_progress": ("●", "cyan"), "pending": ("○", "dim")}
REQUEST = {"pending": "yellow", "granted": "green", "refused": "red"}

TITLE = 120
LINE = 600
NAME = 12
INDENT = 10 + NAME + 2


def styled_state(state: str) -> Text:
    """A state's word in its colour."""
    return Text(escape_controls(state), STATES.get(state.strip(), ("", ""))[1])


def row(entry: Json, *, wrap: bool, lines: int = 8, tail: bool = False) -> Table | Text:
    """One entry: when, who, what. Long texts show `lines` lines (0: all of them), the last ones if `tail`."""
    name, style, body = TYPES.get(str(entry.get("type")), _unknown)(entry, lines, tail)
    if not wrap:
        told = f"{formatting.clock(_number(entry, 'at'))}  {set_cell_size(escape_controls(name), NAME)}  {body.plain}"
        return Text(told.replace("\n", "\n" + " " * INDENT))
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=8, no_wrap=True)
    grid.add_column(width=NAME, no_wrap=True, overflow="ellipsis")
    grid.add_column(ratio=1, overflow="fold")
    grid.add_row(Text(formatting.clock(_number(entry, "at")), "dim"), Text(escape_controls(name), style), body)
    return grid


def text_of(value: Any) -> str:
    """Any value of an entry as text: text as it is, blocks of content by their text, the rest as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and set(cast(Json, value)) == {"error", "type"}:
        return f"{value['type']}: {value['error']}"
    if isinstance(value, list):
        parts = [_block(item) for item in cast("list[Any]", value)]
        if parts and None not in parts:
            return "\n".join(part for part in parts if part)
    return encode(cast(object, value)).decode()


def _block(item: Any) -> str | None:
    """The text of a block as agents send them, or None if it is something else."""
    if not isinstance(item, dict):
        return None
    block = cast(Json, item)
    inner = block.get("content")
    if isinstance(inner, dict):
        return _block(inner)
    if isinstance(block.get("text"), str):
        return block["text"]
    if block.get("type") == "diff":
        return f"changes {block.get('path', '?')}"
    return None


def said(call: Json) -> str:
    """What a call is, in one line: its title, or else what it was given."""
    given = call.get("title") or call.get("rawInput") or call.get("inputText") or ""
    line = " ".join(text_of(given).split("\n"))
    return line if len(line) <= TITLE else line[: TITLE - 1] + "…"


def outcome(call: Json) -> str:
    """What came out of a call so far: the error, the output, or what was streamed."""
    for field in ("error", "output", "outputText", "content"):
        value = call.get(field)
        if value not in (None, "", [], {}):
            return text_of(value)
    return ""


def block(text: str, lines: int, *, tail: bool = False, style: str = "") -> Text:
    """Several lines behind a bar; what is left out is said."""
    all_lines = escape_block(text).rstrip("\n").expandtabs().split("\n")
    more = len(all_lines) - lines if lines else 0
    shown = all_lines if more <= 0 else all_lines[-lines:] if tail else all_lines[:lines]
    shown = [_cut(line) for line in shown] if lines else shown
    note = f"… {formatting.pluralize(more, 'more line')}" if more > 0 else ""
    out = Text()
    for line in [note] * (bool(note) and tail) + shown + [note] * (bool(note) and not tail):
        out.append("\n" if out else "").append("│ ", "dim").append(line, "dim" if line is note else style)
    return out


def _cut(line: str) -> str:
    more = len(line) - LINE
    return line if more <= 0 else f"{line[:LINE]}… {formatting.pluralize(more, 'more character')}"


def _number(entry: Json, field: str) -> int:
    value = entry.get(field, 0)
    return value if isinstance(value, int) else 0


def _paragraph(entry: Json, lines: int, tail: bool) -> Text:
    text = escape_block(str(entry.get("content", ""))).strip("\n")
    return Text(text + ("▌" if entry.get("streaming") else ""))


Made = tuple[str, str, Text]


def _message(entry: Json, lines: int, tail: bool) -> Made:
    person = entry.get("role") == "user"
    return (
        ("person", "bold", _paragraph(entry, lines, tail)) if person else ("agent", "", _paragraph(entry, lines, tail))
    )


def _thought(entry: Json, lines: int, tail: bool) -> Made:
    body = _paragraph(entry, lines, tail)
    body.stylize("italic dim")
    return "thought", "dim", body


def _call(entry: Json, lines: int, tail: bool) -> Made:
    state = str(entry.get("status", "none"))
    sign, style = STATES.get(state, ("?", ""))
    body = Text().append(f"{sign} ", style).append(escape_controls(said(entry)) or "(no arguments)", "bold")
    body.append("  ").append(escape_controls(state), style).append_text(_details(entry, state))
    text = outcome(entry)
    if entry.get("reason") and str(entry["reason"]) not in text:
        body.append(f"\n{escape_controls(str(entry['reason']))}", style)
    if text:
        body.append("\n").append_text(block(text, lines, tail=tail))
    return str(entry.get("toolName") or entry.get("kind") or "call"), "bold", body


def _details(entry: Json, state: str) -> Text:
    done = formatting.format_duration(_number(entry, "startedAt"), _number(entry, "endedAt"))
    facts = [f"in {done}" if done else "", f"exit {text_of(entry['exitStatus'])}" if entry.get("exitStatus") else ""]
    facts += [escape_controls(str(entry.get("callId", ""))), "late news, see show" if entry.get("late") else ""]
    return Text("".join(f"  {escape_controls(fact)}" for fact in facts if fact), "dim")


def _request(entry: Json, lines: int, tail: bool) -> Made:
    state = str(entry.get("state", "pending"))
    body = Text().append(escape_controls(str(entry.get("description") or said(entry))), "bold")
    body.append("  ").append(escape_controls(state), REQUEST.get(state, "dim"))
    if entry.get("by"):
        body.append(escape_controls(f" by {entry['by']}"), REQUEST.get(state, "dim"))
    body.append(escape_controls(f"  {entry.get('requestId', '')}"), "dim")
    if entry.get("reason"):
        body.append(f"\n{escape_controls(str(entry['reason']))}")
    return "approval", "bold", body


def _plan(entry: Json, lines: int, tail: bool) -> Made:
    body = Text()
    for item in cast("list[Any]", entry.get("entries") or []):
        told = cast(Json, item) if isinstance(item, dict) else {"content": text_of(item)}
        sign, style = PLAN.get(str(told.get("status")), ("○", ""))
        body.append("\n" if body else "").append(f"{sign} ", style).append(
            escape_controls(text_of(told.get("content", "")))
        )
    return "plan", "", body if body else Text("(empty)", "dim")


def _meta(entry: Json, lines: int, tail: bool) -> Made:
    facts = [
        f"{word} {entry[field]}"
        for word, field in (("mode", "currentModeId"), ("model", "currentModelId"))
        if field in entry
    ]
    return "offers", "dim", Text(escape_controls(", ".join(facts) or "capabilities"), "dim")


def _mode(entry: Json, lines: int, tail: bool) -> Made:
    return (
        "mode",
        "dim",
        Text(escape_controls(f"{entry.get('previousModeId') or 'none'} → {entry.get('newModeId')}"), "dim"),
    )


def _unknown(entry: Json, lines: int, tail: bool) -> Made:
    return str(entry.get("type")), "dim", Text(escape_controls(encode(entry).decode()), "dim")


TYPES: dict[str, Callable[[Json, int, bool], Made]] = {
    "message": _message,
    "thought": _thought,
    "tool_call": _call,
    "permission_request": _request,
    "plan": _plan,
    "meta": _meta,
    "mode_change": _mode,
}
