"""Print a session or a call for `show`: the facts, the input, the outcome and the events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, cast

import msgspec
from rich.table import Table
from rich.text import Text

from callslip.cli.terminal import formatting, tables, timeline
from callslip.cli.terminal.escape import escape_controls
from callslip.cli.terminal.tables import print_block
from callslip.model.display import approval_state_name, format_call_duration, format_size, pluralize
from callslip.model.events import CallEvent, Event, type_of
from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord
from callslip.rules.call_content import describe_content

Json = dict[str, Any]
Fact = tuple[str, Text | str]

# The meaning of each verdict.
VERDICTS = {
    "late": "after the end; recorded, no effect",
    "duplicate": "repeated; no effect",
    "orphan": "unknown call or approval; no effect",
    "illegal": "not possible in that state; no effect",
    "witness": "the agent's own replay; no effect",
}


def print_session(record: SessionRecord, entries: Sequence[Json], *, active_at: int, lines: int, is_cut: bool) -> None:
    """Print a session from its start, or its newest entries. `active_at` is the time of its last activity."""
    out = tables.console()
    calls = Counter(str(entry.get("status")) for entry in entries if entry.get("type") == "tool_call")
    title = f"  {record.title}" if record.title else ""
    print_block(out, Text(escape_controls(record.name), "bold").append(escape_controls(title)))
    facts = [
        pluralize(record.last_seq, "event"),
        escape_controls(formatting.format_counts(calls)),
        f"last {formatting.format_age(active_at)}",
    ]
    print_block(out, Text(" · ".join(facts), "dim"))
    if record.pruned_seq:
        print_block(out, Text(f"events up to {record.pruned_seq:,} were removed by retention", "dim"))
    if is_cut:
        print_block(out, Text(f"only the newest {len(entries):,} entries; --limit 0 shows all", "dim"))
    headings = timeline.SubagentHeadings()
    for day, of_day in groupby(entries, lambda entry: formatting.format_date(entry.get("at", 0))):
        print_block(out, Text(f"\n{day}", "dim"))
        for entry in of_day:
            if (heading := headings.before(entry)) is not None:
                print_block(out, heading)
            print_block(out, timeline.render_entry(entry, wrap=out.is_terminal, lines=lines))


def print_call(
    record: CallRecord,
    entry: Json,
    approval: ApprovalRecord | None,
    events: Sequence[CallEvent],
    *,
    lines: int,
    pruned_seq: int,
) -> None:
    """Print a call: its facts, its input, its outcome and its events."""
    out = tables.console()
    print_block(
        out, Text(escape_controls(record.id), "bold").append("  ").append_text(timeline.styled_state(record.state))
    )
    approval_facts = _approval_facts(approval, record.reason) if approval else ()
    tables.print_facts(out, [*_call_facts(record, entry), *approval_facts], indent="  ")
    call_input = entry.get("rawInput", entry.get("inputText"))
    call_input = "" if call_input is None else call_input  # {} and 0 are arguments too.
    is_text = isinstance(call_input, str)
    pretty_input = call_input if is_text else msgspec.json.format(msgspec.json.encode(call_input), indent=2).decode()
    _section(out, "input", pretty_input, lines)
    outcome = timeline.outcome_text(entry)
    _section(out, "error" if entry.get("error") else "output", outcome, lines)
    if entry.get("blob") and entry["blob"] != entry.get("contentBlob"):
        size = format_size(entry["blob"]["size"])
        note = f"truncated; --full shows all {size}" if entry.get("truncated") else size
        print_block(out, Text(f"  {note}", "dim"))
    if entry.get("contentBlob"):
        _print_content(out, entry, outcome, lines)
    print_block(out, Text("\nevents", "dim"))
    if record.entry <= pruned_seq:
        print_block(out, Text(f"  events up to {pruned_seq:,} were removed by retention", "dim"))
    print_block(out, _event_table(events, record.created_at))


def _call_facts(record: CallRecord, entry: Json) -> Iterable[Fact]:
    yield (
        "tool",
        Text(escape_controls(record.tool or "unknown"), "bold").append(
            f"  {escape_controls(record.kind)}" if record.kind else "", "dim"
        ),
    )
    if entry.get("rawToolName"):
        yield "full name", str(entry["rawToolName"])
    if record.title:
        yield "title", record.title
    if record.client_call_id != record.id:
        yield "correlation id" if record.client else "agent's id", record.client_call_id
    place = [record.session, f"turn {record.turn}" if record.turn else "", f"entry {record.entry}"]
    yield "session", "  ".join(part for part in place if part)
    if record.source:
        yield "source", record.source
    if record.client:
        attempts = f"claimed {record.attempt} times" if record.attempt > 1 else ""
        parts = (record.client, "idempotent" if record.idempotent else "", attempts)
        yield "queue", "  ".join(part for part in parts if part)
    if record.worker:
        yield "worker", record.worker
    created = f"{formatting.format_date(record.created_at)} {formatting.format_time(record.created_at)}"
    yield "created", f"{created}  ({formatting.format_age(record.created_at)})"
    if record.started_at:
        yield "started", formatting.format_time(record.started_at)
    if record.client and record.deadline and not record.ended_at:
        yield "expires", f"{formatting.format_time(record.deadline)}  ({formatting.format_age(record.deadline)})"
    if record.ended_at:
        duration = format_call_duration(record.started_at or record.created_at, record.ended_at)
        yield "ended", formatting.format_time(record.ended_at) + (f"  (after {duration})" if duration else "")
    if "exitStatus" in entry:
        yield "exit status", timeline.to_text(entry["exitStatus"])
    if record.reason:
        yield "reason", record.reason
    if "report" in entry:
        yield "agent's report", str(entry["report"]["text"])
    if entry.get("late"):
        yield "late", "events arrived after the end; see below"


def _approval_facts(record: ApprovalRecord, call_reason: str) -> Iterable[Fact]:
    by = f" by {record.by}" if record.by else ""
    option = f" ({record.option})" if record.option else ""
    state = approval_state_name(record.state)
    yield (
        "approval",
        Text(escape_controls(f"{record.id}  {state}{by}{option}"), timeline.APPROVAL_STYLES.get(record.state, "")),
    )
    if record.description:
        yield "request", record.description
    if record.answer_at:
        yield "answer in", record.answer_at
    elif record.state == "pending":
        options = [str(cast(Json, option).get("optionId")) for option in record.options if isinstance(option, dict)]
        yield "options", ", ".join(options) or "none"
        if record.expires_at:
            yield "expires", formatting.format_age(record.expires_at)
    if record.reason and record.reason != call_reason:
        yield "comment", record.reason


def _print_content(out: Any, entry: Json, outcome: str, lines: int) -> None:
    """Print content that is stored outside the log, unless it is the outcome, and say if it is cut."""
    text = describe_content(entry.get("content"))
    if text != outcome:
        _section(out, "content", text, lines)
    size = format_size(entry["contentBlob"]["size"])
    note = f"content: only the beginning; --full shows all {size}" if lines else f"content: {size}"
    print_block(out, Text(f"  {note}", "dim"))


def _section(out: Any, name: str, text: str, lines: int) -> None:
    if text:
        print_block(out, Text(f"\n{name}", "dim"))
        print_block(out, timeline.render_block(text, lines))


def _event_table(events: Sequence[CallEvent], created_at: int) -> Table:
    number, note = {"justify": "right", "no_wrap": True}, {"overflow": "fold"}
    grid = tables.grid(number, number, note, note)
    for (kind, verdict), alike in groupby(events, lambda event: (type_of(event), event.verdict)):
        run = list(alike)
        first, last = run[0], run[-1]
        seqs = f"{first.seq}" if first is last else f"{first.seq}–{last.seq}"
        name = kind if first is last else f"{kind} ×{len(run)}"
        grid.add_row(
            Text(f"  {seqs}", "dim"), Text(_offset(first, created_at), "dim"), Text(name), _remark(verdict, first)
        )
    return grid


def _offset(event: Event, created_at: int) -> str:
    passed = event.at - created_at
    return (
        f"+{passed} ms"
        if 0 <= passed < 1000
        else f"+{passed / 1000:.1f} s"
        if passed >= 0
        else formatting.format_time(event.at)
    )


def _remark(verdict: str, event: CallEvent) -> Text:
    reason = escape_controls(str(getattr(event, "reason", "") or ""))
    if verdict == "applied":
        return Text(reason)
    outcome = timeline.outcome_text({"error": _value(event, "error"), "output": _value(event, "output")})
    note = Text(verdict, "yellow").append(f"  {VERDICTS.get(verdict, '')}", "dim")
    detail = " ".join(part for part in (reason, escape_controls(outcome[:200])) if part)
    return note.append(f"  {detail}") if detail else note


def _value(event: CallEvent, field: str) -> Any:
    value = getattr(event, field, None)
    return None if value is msgspec.UNSET else value
