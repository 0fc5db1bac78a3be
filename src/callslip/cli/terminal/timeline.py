"""Render entries for a terminal, for `show`, `tail` and the demo.

It takes entries as JSON values, so that entries from patches and from the ledger are rendered alike. Every text is
escaped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from rich.cells import set_cell_size
from rich.table import Table
from rich.text import Text

from callslip.cli.terminal import formatting, tables
from callslip.cli.terminal.escape import escape_block, escape_controls
from callslip.model.codec import encode
from callslip.model.display import (
    CALL_STATES,
    approval_state_name,
    call_state_name,
    format_call_duration,
    format_size,
    pluralize,
)
from callslip.rules.call_content import printed_text

Json = dict[str, Any]

# The name and the sign of a state are always printed too, so that no colour is needed.
STATE_STYLES = {
    "queued": "dim",
    "awaiting_approval": "yellow",
    "running": "cyan",
    "completed": "green",
    **dict.fromkeys(("failed", "denied"), "red"),
    **dict.fromkeys(("cancelled", "expired", "lost"), "magenta"),
}
APPROVAL_STYLES = {"pending": "yellow", "granted": "green", "refused": "red"}
SEVERITY_STYLES = {"error": "red", "warning": "yellow", "info": "cyan"}
PLAN = {
    "completed": ("✓", "green"),
    "in_progress": ("●", "cyan"),
    "pending": ("○", "dim"),
    "cancelled": ("■", "magenta"),
}

PRIORITY_STYLES = {"high": "yellow"}

MAX_TITLE_CHARS = 120
MAX_LINE_CHARS = 600
LABEL_WIDTH = 12
INDENT = 10 + LABEL_WIDTH + 2


def styled_state(state: str) -> Text:
    """Return the name of a state in its colour."""
    return Text(escape_controls(call_state_name(state)), STATE_STYLES.get(state.strip(), ""))


def render_entry(entry: Json, *, wrap: bool, lines: int = 8, tail: bool = False) -> Table | Text:
    """Render an entry with its time and label. Long texts show `lines` lines (0: all), the last ones if `tail`."""
    name, style, body = TYPES.get(str(entry.get("type")), _unknown)(entry, lines, tail)
    name = label_of(entry, name)
    if not wrap:
        label = set_cell_size(escape_controls(name), LABEL_WIDTH)
        text = f"{formatting.format_time(_number(entry, 'at'))}  {label}  {body.plain}"
        return Text(text.replace("\n", "\n" + " " * INDENT))
    label = {"width": LABEL_WIDTH, "no_wrap": True, "overflow": "ellipsis"}
    grid = tables.grid({"width": 8, "no_wrap": True}, label, {"ratio": 1, "overflow": "fold"})
    grid.add_row(Text(formatting.format_time(_number(entry, "at")), "dim"), Text(escape_controls(name), style), body)
    return grid


def label_of(entry: Json, name: str) -> str:
    """Return the label of an entry. That of a sub-agent's entry is behind a bar, under the heading of the sub-agent."""
    return f"│ {name}" if entry.get("parent") else name


def user_label(entry: Json) -> tuple[str, str]:
    """Return the label of a user message and its style. A sub-agent's is not from the user, but from the agent."""
    return ("prompt" if entry.get("parent") else "user"), "bold"


class SubagentHeadings:
    """Returns a heading before entries of a sub-agent: the title and the id of the call that started it."""

    def __init__(self) -> None:
        self._titles: dict[str, str] = {}
        self._parent = ""

    def before(self, entry: Json) -> Text | None:
        """Return the heading to print before an entry, if it is of another sub-agent than the one printed before."""
        if entry.get("type") == "tool_call":
            self._titles[str(entry.get("callId"))] = call_title(entry)
        before, self._parent = self._parent, str(entry.get("parent") or "")
        if self._parent in ("", before):
            return None
        heading = Text(" " * 10).append(set_cell_size("sub-agent", LABEL_WIDTH), "dim")
        if title := self._titles.get(self._parent):
            heading.append(f"  {escape_controls(title)}", "bold")
        return heading.append(f"  {escape_controls(self._parent)}", "dim")


def to_text(value: Any) -> str:
    """Return a value of an entry as text: text, the text of content blocks, or JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and set(cast(Json, value)) == {"error", "type"}:
        return f"{value['type']}: {value['error']}"
    if isinstance(value, list):
        parts = [_block_text(item) for item in cast("list[Any]", value)]
        if parts and None not in parts:
            return "\n".join(part for part in parts if part)
    return encode(cast(object, value)).decode()


def _block_text(item: Any) -> str | None:
    """Return the text of a content block of an agent, or None if it is something else."""
    if not isinstance(item, dict):
        return None
    block = cast(Json, item)
    inner = block.get("content")
    if isinstance(inner, dict):
        return _block_text(inner)
    if isinstance(block.get("text"), str):
        return block["text"]
    if block.get("type") == "diff":
        return f"changes {block.get('path', '?')}"
    return None


def call_title(call: Json) -> str:
    """Return a call in one line: its title, or else its arguments."""
    value = call.get("title") or call.get("rawInput") or call.get("inputText") or ""
    line = " ".join(to_text(value).split("\n"))
    return line if len(line) <= MAX_TITLE_CHARS else line[: MAX_TITLE_CHARS - 1] + "…"


def call_heading(call: Json, state: str) -> Text:
    """Render the title and the state of a call."""
    sign, style = CALL_STATES.get(state, ("?", ""))[0], STATE_STYLES.get(state, "")
    heading = Text().append(f"{sign} ", style).append(escape_controls(call_title(call)) or "(no arguments)", "bold")
    return heading.append("  ").append(escape_controls(call_state_name(state)), style)


def request_heading(request: Json, state: str) -> Text:
    """Render the description, the state and the answer of a request for approval."""
    style = APPROVAL_STYLES.get(state, "dim")
    heading = Text().append(escape_controls(str(request.get("description") or call_title(request))), "bold")
    heading.append("  ").append(escape_controls(approval_state_name(state)), style)
    if request.get("answerAt"):
        heading.append(escape_controls(f", answer in {request['answerAt']}"), style)
    return heading.append(escape_controls(f" by {request['by']}") if request.get("by") else "", style)


def approval_id(request: Json) -> str:
    """Return the id by which a request for approval is answered."""
    return str(request.get("approvalId") or request.get("requestId", ""))


def outcome_text(call: Json) -> str:
    """Return the outcome of a call so far: the error, the output, or what was streamed.

    The preview of a large JSON value is the beginning of its JSON text. What was streamed is easier to read.
    """
    blob: Json = call.get("blob") or {}
    is_json_preview = isinstance(call.get("output"), str) and blob.get("media") == "application/json"
    for field in ("error", *(("outputText", "output") if is_json_preview else ("output", "outputText")), "content"):
        value = call.get(field)
        if value not in (None, "", [], {}):
            printed = printed_text(value) if field == "output" else None
            return to_text(value) if printed is None else printed
    return ""


def render_block(text: str, lines: int, *, tail: bool = False, style: str = "") -> Text:
    """Render several lines behind a bar, with the number of omitted lines."""
    all_lines = escape_block(text).rstrip("\n").expandtabs().split("\n")
    more = len(all_lines) - lines if lines else 0
    visible = all_lines if more <= 0 else all_lines[-lines:] if tail else all_lines[:lines]
    note = f"… {pluralize(more, 'more line')}" if more > 0 else ""
    out = Text()
    for line in [note] * (bool(note) and tail) + visible + [note] * (bool(note) and not tail):
        extra = len(line) - MAX_LINE_CHARS if lines else 0
        text = line if extra <= 0 else f"{line[:MAX_LINE_CHARS]}… {pluralize(extra, 'more character')}"
        out.append("\n" if out else "").append("│ ", "dim").append(text, "dim" if line is note else style)
    return out


def _number(entry: Json, field: str) -> int:
    value = entry.get(field, 0)
    return value if isinstance(value, int) else 0


def _paragraph(entry: Json) -> Text:
    text = escape_block(str(entry.get("content", ""))).strip("\n")
    return Text(text + ("▌" if entry.get("streaming") else ""))


Rendered = tuple[str, str, Text]
"""The label of an entry, the style of the label, and the body."""


def _message(entry: Json, lines: int, tail: bool) -> Rendered:
    label, style = user_label(entry) if entry.get("role") == "user" else ("agent", "")
    return label, style, _paragraph(entry)


def _thought(entry: Json, lines: int, tail: bool) -> Rendered:
    body = _paragraph(entry)
    body.stylize("italic dim")
    return "thinking", "dim", body


def _call(entry: Json, lines: int, tail: bool) -> Rendered:
    state = str(entry.get("status", "none"))
    body = call_heading(entry, state).append_text(_details(entry))
    text = outcome_text(entry)
    if entry.get("reason") and str(entry["reason"]) not in text:
        body.append(f"\n{escape_controls(str(entry['reason']))}", STATE_STYLES.get(state, ""))
    if text:
        body.append("\n").append_text(render_block(text, lines, tail=tail))
    if entry.get("truncated") and entry.get("blob"):
        body.append(f"\n│ … truncated; {format_size(entry['blob']['size'])} in all", "dim")
    return str(entry.get("toolName") or entry.get("kind") or "call"), "bold", body


def _details(entry: Json) -> Text:
    duration = format_call_duration(_number(entry, "startedAt"), _number(entry, "endedAt"), entry.get("durationMs"))
    facts = [
        f"in {duration}" if duration else "",
        f"exit {to_text(entry['exitStatus'])}" if entry.get("exitStatus") else "",
    ]
    facts += [escape_controls(str(entry.get("callId", ""))), "late events, see show" if entry.get("late") else ""]
    return Text("".join(f"  {escape_controls(fact)}" for fact in facts if fact), "dim")


def _request(entry: Json, lines: int, tail: bool) -> Rendered:
    body = request_heading(entry, str(entry.get("state", "pending")))
    body.append(escape_controls(f"  {approval_id(entry)}"), "dim")
    if entry.get("reason"):
        body.append(f"\n{escape_controls(str(entry['reason']))}")
    return "approval", "bold", body


def _plan(entry: Json, lines: int, tail: bool) -> Rendered:
    body = Text()
    for item in cast("list[Any]", entry.get("entries") or []):
        step = cast(Json, item) if isinstance(item, dict) else {"content": to_text(item)}
        sign, style = PLAN.get(str(step.get("status")), ("○", ""))
        body.append("\n" if body else "").append(f"{sign} ", style).append(
            escape_controls(to_text(step.get("content", "")))
        )
        if isinstance(step.get("priority"), str) and step["priority"]:
            body.append(escape_controls(f"  {step['priority']}"), PRIORITY_STYLES.get(step["priority"], "dim"))
    return "plan", "", body if body else Text("(empty)", "dim")


def _notice(entry: Json, lines: int, tail: bool) -> Rendered:
    severity, content = str(entry.get("severity", "")), str(entry.get("content", ""))
    text = escape_block(content or to_text(entry.get("details") or "")).strip("\n")
    return severity or "notice", SEVERITY_STYLES.get(severity, "dim"), Text(text)


def _meta(entry: Json, lines: int, tail: bool) -> Rendered:
    facts = [
        f"{label} {entry[field]}"
        for label, field in (("mode", "currentModeId"), ("model", "currentModelId"))
        if field in entry
    ]
    return "session", "dim", Text(escape_controls(", ".join(facts) or "capabilities"), "dim")


def _mode(entry: Json, lines: int, tail: bool) -> Rendered:
    return (
        "mode",
        "dim",
        Text(escape_controls(f"{entry.get('previousModeId') or 'none'} → {entry.get('newModeId')}"), "dim"),
    )


def _unknown(entry: Json, lines: int, tail: bool) -> Rendered:
    return str(entry.get("type")), "dim", Text(escape_controls(encode(entry).decode()), "dim")


TYPES: dict[str, Callable[[Json, int, bool], Rendered]] = {
    "message": _message,
    "thought": _thought,
    "tool_call": _call,
    "permission_request": _request,
    "plan": _plan,
    "notice": _notice,
    "meta": _meta,
    "mode_change": _mode,
}
