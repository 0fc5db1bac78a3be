"""Filter entries by terms: `tool:bash status:failed >5s "no such file" -kind:read`. Pure functions.

A call and its requests for approval are one unit: they match together. Each term is tested for each entry, and the
results of an entry are the bits of an integer, so the results of a unit are those of its entries combined by `or`.
The page filters an exported file, which has no server, in the same way (`web/filter_terms.js`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

from callslip.errors import InvalidInputError
from callslip.model.entries import Entry, Message, PermissionRequest, Thought, ToolCall
from callslip.rules.lifecycle import OPEN_STATES, TERMINAL_STATES

MAX_FILTER_CHARS = 2000
MAX_TERMS = 50
FACETS = ("tool", "status", "kind")

_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_TYPE_NAMES = {
    "call": "tool_call",
    "calls": "tool_call",
    "approval": "permission_request",
    "request": "permission_request",
    "mode": "mode_change",
    "agent": "assistant",
}
# Terms are separated by spaces. Quotes keep spaces within a term, also if the last quote is not closed.
_WORD = re.compile(r'-?(?:[a-z]+:)?(?:"[^"]*(?:"|\Z)|[^\s"]+)(?:,?"[^"]*(?:"|\Z)|[^\s"]+)*', re.I)
_SHAPE = re.compile(r"(-?)(?:([a-z]+):)?(.*)", re.I | re.S)
_TIME = re.compile(r"([<>]=?)([0-9]+(?:\.[0-9]+)?)(ms|s|min|m|h)", re.I)
_VALUE = re.compile(r'"([^"]*)"?|([^,"]+)')
_TURN_NUMBER = re.compile(r"t([0-9]+)")

Holds = Callable[[Entry, int], bool]
"""Whether a term holds for an entry at a time in ms, before `negated` is applied."""


class Term(NamedTuple):
    """One term. `text` is what a text term searches for, in lower case; any other term has `holds`."""

    field: str
    values: tuple[str, ...]
    negated: bool
    holds: Holds | None = None
    text: str = ""


# Parsing


def parse_terms(typed: str) -> list[Term]:
    """Parse a filter. A term without a known field is text; a field without a value is ignored."""
    if len(typed) > MAX_FILTER_CHARS:
        raise InvalidInputError("q", f"must have at most {MAX_FILTER_CHARS} characters", MAX_FILTER_CHARS)
    terms = [term for match in _WORD.finditer(typed) if (term := _parse_term(match[0])) is not None]
    if len(terms) > MAX_TERMS:
        raise InvalidInputError("q", f"must have at most {MAX_TERMS} terms", MAX_TERMS)
    return terms


def _parse_term(word: str) -> Term | None:
    shape = _SHAPE.fullmatch(word)
    assert shape is not None
    minus, field, values = shape[1], (shape[2] or "").lower(), shape[3]
    is_negated = bool(minus)
    if field in _FIELDS:
        return _field_term(field, tuple(a or b for a, b in _VALUE.findall(values)), is_negated) if values else None
    body = word[len(minus) :]
    time = _TIME.fullmatch(body)
    if time is not None:
        return Term("time", (body,), is_negated, _duration_test(time[1], float(time[2]) * _UNIT_MS[time[3].lower()]))
    text = body.replace('"', "")
    return Term("text", (text,), is_negated, text=text.lower()) if text else None


def _field_term(field: str, values: tuple[str, ...], is_negated: bool) -> Term:
    expanded = [one for value in values for one in _expand(field, value.lower())]
    tests = [_value_test(field, value) for value in expanded]
    read = _FIELDS[field]

    def holds(entry: Entry, now: int) -> bool:
        return any(test(str(value).lower()) for value in read(entry) if value is not None for test in tests)

    return Term(field, values, is_negated, holds)


def _expand(field: str, value: str) -> list[str]:
    """Expand short forms, such as `open` for all open states."""
    if field == "status":
        return sorted(OPEN_STATES) if value == "open" else [value.replace(" ", "_")]
    return [_TYPE_NAMES.get(value, value)] if field == "type" else [value]


def _value_test(field: str, value: str) -> Callable[[str], bool]:
    """Return a test for equality, where * matches anything. An id matches by prefix."""
    if field == "id" and not value.isdigit():
        return lambda text: text.startswith(value)
    if "*" not in value:
        return lambda text: text == value
    first, *middle, last = value.split("*")

    def matches(text: str) -> bool:
        if not text.startswith(first):
            return False
        at = len(first)  # The earliest place for each part leaves the most room for the next ones.
        for part in middle:
            found = text.find(part, at)
            if found < 0:
                return False
            at = found + len(part)
        return len(text) - len(last) >= at and text.endswith(last)

    return matches


def _duration_test(sign: str, limit: float) -> Holds:
    def holds(entry: Entry, now: int) -> bool:
        duration = _duration_of(entry, now)
        if duration is None:
            return False
        if duration == limit:
            return len(sign) == 2
        return duration > limit if sign[0] == ">" else duration < limit

    return holds


def _duration_of(entry: Entry, now: int) -> float | None:
    """Return how long a call ran, or for an open one has run or waited; None if that is not known."""
    if not isinstance(entry, ToolCall):
        return None
    if entry.status in TERMINAL_STATES:
        if entry.duration_ms is not None:
            return entry.duration_ms
        duration = entry.ended_at - entry.started_at
        return duration if entry.started_at and duration > 0 else None
    begin = entry.started_at or entry.at
    return max(0, now - begin) if begin else None


# The values of fields


def _tools(entry: Entry) -> Iterable[str | None]:
    if isinstance(entry, ToolCall):
        return entry.tool_name or "", entry.raw_tool_name or entry.tool_name or ""
    return (entry.tool_name,) if isinstance(entry, PermissionRequest) else ()


def _states(entry: Entry) -> Iterable[str]:
    if isinstance(entry, ToolCall):
        return (entry.status,)
    return (entry.state,) if isinstance(entry, PermissionRequest) else ()


def _types(entry: Entry) -> Iterable[str]:
    tag = str(entry.__struct_config__.tag)
    return (tag, entry.role) if isinstance(entry, Message) else (tag,)


def _turns(entry: Entry) -> Iterable[str]:
    number = _TURN_NUMBER.fullmatch(entry.turn)
    return (entry.turn, number[1]) if number else (entry.turn,)


def _ids(entry: Entry) -> Iterable[Any]:
    ids: list[Any] = [entry.id]
    if isinstance(entry, ToolCall | PermissionRequest):
        ids += [entry.call_id, entry.call_id.removeprefix("exec_"), entry.tool_call_id]
    if isinstance(entry, PermissionRequest):
        ids += [entry.request_id, entry.approval_id]
    if isinstance(entry, Message | Thought):
        ids.append(entry.message_id)
    return [value for value in ids if value]


_FIELDS: dict[str, Callable[[Entry], Iterable[Any]]] = {
    "tool": _tools,
    "status": _states,
    "kind": lambda entry: (entry.kind or "",) if isinstance(entry, ToolCall) else (),
    "type": _types,
    "turn": _turns,
    "id": _ids,
}


# Text

_SEARCHED_FIELDS = (
    *("content", "title", "tool_name", "raw_tool_name", "call_id", "tool_call_id", "raw_input", "input_text"),
    *("output", "output_text", "error", "reason", "description", "options", "by", "entries"),
    *("previous_mode_id", "new_mode_id"),
)


def entry_text(entry: Entry) -> str:
    """Return all text of an entry in lower case."""
    values = [getattr(entry, field, None) for field in _SEARCHED_FIELDS]
    if isinstance(entry, ToolCall) and entry.report is not None:
        values.append(entry.report.text)
    return "\n".join(as_text(value) for value in values if value).lower()


def as_text(value: Any) -> str:
    """Convert a value to text with unescaped strings, so that quotes and line breaks in them can be found."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return "\n".join(f"{name}: {as_text(inside)}" for name, inside in fields.items())
    if isinstance(value, list):
        return "\n".join(map(as_text, cast("list[Any]", value)))
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


# Matching


class _Unit:
    """A call with its requests: the terms that hold, its entries with theirs, and the call."""

    __slots__ = ("call", "call_held", "entries", "held")

    def __init__(self) -> None:
        self.held = 0
        self.entries: list[tuple[int, int]] = []
        self.call: tuple[str, str, str] | None = None
        self.call_held = 0

    def copy(self) -> _Unit:
        unit = _Unit()
        unit.held, unit.entries, unit.call, unit.call_held = self.held, [*self.entries], self.call, self.call_held
        return unit


class EntryFilter:
    """The terms of a filter, as bits."""

    def __init__(self, typed: str) -> None:
        self.terms = parse_terms(typed)
        bits = [(1 << number, term) for number, term in enumerate(self.terms)]
        self.text_bits = [(bit, term.text) for bit, term in bits if term.text]
        self._bits = bits
        self._negated = sum(bit for bit, term in bits if term.negated)
        # `-type:approval` hides the requests of a matching call, and not the call.
        self._hiding = sum(bit for bit, term in bits if term.negated and term.field == "type")
        self._required = sum(bit for bit, _ in bits) & ~self._hiding
        self._own = {facet: sum(bit for bit, term in bits if term.field == facet) for facet in FACETS}

    def test(self, entry: Entry, now: int) -> int:
        """Return the bits of the terms that hold for an entry."""
        held = sum(bit for bit, term in self._bits if term.holds is not None and term.holds(entry, now))
        text = entry_text(entry) if self.text_bits else ""
        return held + sum(bit for bit, part in self.text_bits if part in text)

    def selected(self, facet: str) -> set[str]:
        """Return the values of a facet that the filter selects, in lower case."""
        own = [term for term in self.terms if term.field == facet and not term.negated]
        return {value.lower() for term in own for value in term.values}

    def accepts(self, held: int) -> bool:
        """Return whether a unit matches for which these terms hold."""
        return not self._required & ~(held ^ self._negated)

    def shows(self, held: int) -> bool:
        """Return whether an entry of a matching unit is shown."""
        return not held & self._hiding

    def counts_for(self, facet: str, held: int, call_held: int) -> bool:
        """Return whether a call would match if the terms of a facet were left out."""
        failing = self._required & ~(held ^ self._negated) | call_held & self._hiding
        return not failing & ~self._own[facet]


def _paired_call(entry: Entry) -> str:
    """Return the call of a request, and of a call that has requests, else ""."""
    if isinstance(entry, PermissionRequest) or (isinstance(entry, ToolCall) and entry.approval):
        return entry.call_id
    return ""


class MatchCounts:
    """The matching entries, and counts. A unit counts when `finish` is called, as its entries may be far apart."""

    def __init__(self, filter: EntryFilter) -> None:
        self.filter = filter
        self.total = 0
        self.calls: Counter[str] = Counter()
        self.facets: dict[str, Counter[str]] = {facet: Counter() for facet in FACETS}
        self.ids: list[int] = []
        self._units: dict[str, _Unit] = {}

    def copy(self) -> MatchCounts:
        """Return a copy that can be extended."""
        counts = MatchCounts(self.filter)
        counts.total, counts.calls, counts.ids = self.total, self.calls.copy(), [*self.ids]
        counts.facets = {facet: values.copy() for facet, values in self.facets.items()}
        counts._units = {call: unit.copy() for call, unit in self._units.items()}
        return counts

    def add(self, entry: Entry, held: int) -> None:
        """Add an entry for which these terms hold."""
        self.total += 1
        call = _paired_call(entry)
        unit = self._units.setdefault(call, _Unit()) if call else _Unit()
        unit.held |= held
        unit.entries.append((entry.id, held))
        if isinstance(entry, ToolCall):
            self.calls[entry.status] += 1
            unit.call = (entry.tool_name or "", entry.status, entry.kind or "")
            unit.call_held = held
        if not call:
            self._count(unit)

    def finish(self) -> None:
        """Count the calls that have requests, and sort the matches. Nothing can be added after that."""
        for unit in self._units.values():
            self._count(unit)
        self._units = {}
        self.ids.sort()

    def _count(self, unit: _Unit) -> None:
        if self.filter.accepts(unit.held):
            self.ids += [entry for entry, held in unit.entries if self.filter.shows(held)]
        for facet, value in zip(FACETS, unit.call or (), strict=False):
            if self.filter.counts_for(facet, unit.held, unit.call_held):
                self.facets[facet][value] += 1
