"""The pages that `show` prints for people. Facts first, then what went in, what came out, and the events in order."""

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
from callslip.cli.terminal.tables import emit
from callslip.model.events import CallEvent, Event, type_of
from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord

Json = dict[str, Any]
Fact = tuple[str, Text | str]

# What a verdict means to somebody who reads it for the first time.
VERDICTS = {
    "late": "came after the end; kept, changed nothing",
    "duplicate": "said before; changed nothing",
    "orphan": "named something unknown",
    "illegal": "not possible in that state; changed nothing",
    "witness": "the agent's own replay; changed nothing",
}


def session_page(row: SessionRecord, entries: Sequence[Json], *, lines: int, cut: bool) -> None:
    """A session from its beginning, or its newest entries."""
    out = tables.console()
    calls = Counter(str(entry.get("status")) for entry in entries if entry.get("type") == "tool_call")
    title = f"  {row.title}" if row.title else ""
    emit(out, Text(escape_controls(row.name), "bold").append(escape_controls(title)))
    facts = [
        formatting.pluralize(row.last_seq, "event"),
        escape_controls(formatting.tally(calls)),
        f"last {formatting.format_age(row.updated_at)}",
    ]
    emit(out, Text(" · ".join(facts), "dim"))
    if row.pruned_seq:
        emit(out, Text(f"events up to {row.pruned_seq:,} were removed by retention", "dim"))
    if cut:
        emit(out, Text(f"only the newest {len(entries):,} entries; --limit 0 shows all", "dim"))
    for day, of_day in groupby(entries, lambda entry: formatting.day(entry.get("at", 0))):
        emit(out, Text(f"\n{day}", "dim"))
        for entry in of_day:
            emit(out, timeline.row(entry, wrap=out.is_terminal, lines=lines))


def call_page(
    row: CallRecord, entry: Json, approval: ApprovalRecord | None, events: Sequence[CallEvent], *, lines: int, low: int
) -> None:
    """A call: its facts, its input, its outcome, the events about it."""
    out = tables.console()
    emit(out, Text(escape_controls(row.id), "bold").append("  ").append_text(timeline.styled_state(row.state)))
    _facts(out, [*_call_facts(row, entry), *(_approval_facts(approval) if approval else ())])
    given = entry.get("rawInput", entry.get("inputText"))
    _section(out, "input", _pretty(given), lines)
    _section(out, "error" if entry.get("error") else "output", timeline.outcome(entry), lines)
    if entry.get("blob"):
        size = formatting.size(entry["blob"]["size"])
        whole = f"the whole is {size}; --full shows it" if entry.get("truncated") else size
        emit(out, Text(f"  {whole}", "dim"))
    emit(out, Text("\nevents", "dim"))
    if row.entry <= low:
        emit(out, Text(f"  up to {low:,} they were removed by retention", "dim"))
    emit(out, _event_table(events, row.created_at))


def _call_facts(row: CallRecord, entry: Json) -> Iterable[Fact]:
    yield (
        "tool",
        Text(escape_controls(row.tool or "unknown"), "bold").append(
            f"  {escape_controls(row.kind)}" if row.kind else "", "dim"
        ),
    )
    if entry.get("rawToolName"):
        yield "named", str(entry["rawToolName"])
    if row.title:
        yield "title", row.title
    if row.client_call_id != row.id:
        yield "own id" if row.client else "agent's id", row.client_call_id
    place = [row.session, f"turn {row.turn}" if row.turn else "", f"entry {row.entry}"]
    yield "session", "  ".join(part for part in place if part)
    if row.source:
        yield "source", row.source
    if row.client:
        told = f"given out {row.attempt} times" if row.attempt > 1 else ""
        yield "client", "  ".join(part for part in (row.client, "idempotent" if row.idempotent else "", told) if part)
    if row.worker:
        yield "worker", row.worker
    created = f"{formatting.day(row.created_at)} {formatting.clock(row.created_at)}"
    yield "begun", f"{created}  ({formatting.format_age(row.created_at)})"
    if row.started_at:
        yield "started", formatting.clock(row.started_at)
    if row.client and row.deadline and not row.ended_at:
        yield "expires", f"{formatting.clock(row.deadline)}  ({formatting.format_age(row.deadline)})"
    if row.ended_at:
        took = formatting.format_duration(row.started_at or row.created_at, row.ended_at)
        yield "ended", formatting.clock(row.ended_at) + (f"  (after {took})" if took else "")
    if "exitStatus" in entry:
        yield "exit status", timeline.text_of(entry["exitStatus"])
    if row.reason:
        yield "reason", row.reason
    if entry.get("late"):
        yield "late", "something more was said after the end; see the events"


def _approval_facts(row: ApprovalRecord) -> Iterable[Fact]:
    by = f" by {row.by}" if row.by else ""
    option = f" ({row.option})" if row.option else ""
    yield "approval", Text(escape_controls(f"{row.id}  {row.state}{by}{option}"), timeline.REQUEST.get(row.state, ""))
    if row.description:
        yield "asked", row.description
    if row.state == "pending":
        offered = [str(cast(Json, option).get("optionId")) for option in row.options if isinstance(option, dict)]
        yield "options", ", ".join(offered) or "none"
        if row.expires_at:
            yield "expires", formatting.format_age(row.expires_at)
    if row.reason:
        yield "said", row.reason


def _facts(out: Any, facts: Iterable[Fact]) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(f"  {name}", value if isinstance(value, Text) else Text(escape_controls(value)))
    emit(out, grid)


def _section(out: Any, name: str, text: str, lines: int) -> None:
    if text:
        emit(out, Text(f"\n{name}", "dim"))
        emit(out, timeline.block(text, lines))


def _pretty(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _event_table(events: Sequence[CallEvent], begun: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("right", "right", "left", "left"):
        grid.add_column(justify=justify, no_wrap=justify == "right", overflow="fold")
    for (kind, verdict), alike in groupby(events, lambda event: (type_of(event), event.verdict)):
        run = list(alike)
        first, last = run[0], run[-1]
        seqs = f"{first.seq}" if first is last else f"{first.seq}–{last.seq}"
        name = kind if first is last else f"{kind} ×{len(run)}"
        grid.add_row(Text(f"  {seqs}", "dim"), Text(_offset(first, begun), "dim"), Text(name), _remark(verdict, first))
    return grid


def _offset(event: Event, begun: int) -> str:
    passed = event.at - begun
    return (
        f"+{passed} ms"
        if 0 <= passed < 1000
        else f"+{passed / 1000:.1f} s"
        if passed >= 0
        else formatting.clock(event.at)
    )


def _remark(verdict: str, event: CallEvent) -> Text:
    reason = escape_controls(str(getattr(event, "reason", "") or ""))
    if verdict == "applied":
        return Text(reason)
    said = timeline.outcome({"error": _set(event, "error"), "output": _set(event, "output")})
    note = Text(verdict, "yellow").append(f"  {VERDICTS.get(verdict, '')}", "dim")
    told = " ".join(part for part in (reason, escape_controls(said[:200])) if part)
    return note.append(f"  {told}") if told else note


def _set(event: CallEvent, field: str) -> Any:
    value = getattr(event, field, None)
    return None if value is msgspec.UNSET else value
