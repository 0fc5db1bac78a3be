"""What the search index has of an entry, and where a search is in it. Pure functions."""

from __future__ import annotations

from typing import NamedTuple

from callslip.model.entries import Entry, Message, Notice, PermissionRequest, Plan, Thought, ToolCall
from callslip.model.search import SearchResult
from callslip.rules.entry_filter import as_text
from callslip.rules.search_words import Found, IndexedText, Phrase, find_phrases, index_texts
from callslip.rules.streamed_text import utf16_length

MAX_TEXT_CHARS = 64 * 2**10
"""How much of each text can be found."""
MAX_ENTRY_WORDS = 16_000
"""How many words of an entry can be found. PostgreSQL compares the order of no more than 16,383."""
RESERVED_WORDS = 2_000
"""How many of these are left for each later text of the entry."""
EXCERPT_CHARS = 240
LEAD_CHARS = 60
"""How much of an excerpt may precede the first place."""
MAX_PLACES = 50
"""How many places of each phrase are compared to choose an excerpt."""
_LENGTHS = (16, 128, 1024)


class Field(NamedTuple):
    """A text of an entry, by the name that the field has in JSON."""

    name: str
    text: str


def entry_fields(entry: Entry, output: str = "") -> list[Field]:
    """Return the texts of an entry that can be found; none for a type of entry that has none.

    `output` is the beginning of an output that is stored as a blob.
    """
    values: list[tuple[str, object]]
    if isinstance(entry, ToolCall):
        is_blob = bool(output)
        values = [
            ("title", entry.title),
            ("toolName", entry.tool_name),
            ("reason", entry.reason),
            ("error", entry.error),
            ("report", entry.report.text if entry.report is not None else ""),
            ("rawInput", entry.raw_input),
            ("inputText", entry.input_text),
            ("output", output if is_blob else entry.output),
            ("outputText", "" if is_blob else entry.output_text),
            ("content", entry.content),
        ]
    elif isinstance(entry, PermissionRequest):
        values = [("description", entry.description), ("reason", entry.reason), ("responseInput", entry.response_input)]
    elif isinstance(entry, Message | Thought | Notice):
        values = [("content", entry.content)]
    else:
        values = [("entries", entry.entries)] if isinstance(entry, Plan) else []
    return [Field(name, text) for name, value in values if value and (text := as_text(value)[:MAX_TEXT_CHARS])]


def index_fields(fields: list[Field]) -> IndexedText:
    """Return the words of the texts of an entry."""
    return index_texts([field.text for field in fields], MAX_ENTRY_WORDS, RESERVED_WORDS)


def rank_entry(entry: Entry | None, count: int) -> int:
    """Return how early an entry with so many words is among the results. None is the title of a session.

    What people wrote precedes what agents wrote, and short texts precede long ones.
    """
    if entry is None:
        weight = 5
    elif isinstance(entry, Message):
        weight = 4 if entry.role == "user" and not entry.parent else 3
    else:
        weight = 2 if isinstance(entry, ToolCall | PermissionRequest) else 1
    return weight + sum(1 for length in _LENGTHS if count <= length)


def tools_of(entry: Entry) -> set[str]:
    """Return the names of the tool of an entry."""
    if isinstance(entry, ToolCall):
        return {name for name in (entry.tool_name, entry.raw_tool_name) if name}
    return {entry.tool_name} if isinstance(entry, PermissionRequest) and entry.tool_name else set()


def state_of(entry: Entry) -> str:
    """Return the state of a call or a request, else ""."""
    if isinstance(entry, ToolCall):
        return entry.status
    return entry.state if isinstance(entry, PermissionRequest) else ""


def describe_result(
    session: str, title: str, entry: Entry | None, fields: list[Field], phrases: list[Phrase]
) -> SearchResult:
    """Return a result with the excerpt that has most phrases. Without an entry the session itself was found."""
    result = SearchResult(session=session, title=title)
    if entry is not None:
        result.entry, result.at, result.turn = entry.id, entry.at, entry.turn
        result.type = str(entry.__struct_config__.tag)
        result.role = entry.role if isinstance(entry, Message) else ""
        result.state = state_of(entry)
        result.parent = getattr(entry, "parent", "")
    if isinstance(entry, ToolCall | PermissionRequest):
        result.call, result.tool = entry.call_id, entry.tool_name or ""
    best = 0
    for field in fields:
        places = find_phrases(field.text, phrases, MAX_PLACES)
        for number, place in enumerate(places):
            end = place.start + EXCERPT_CHARS - LEAD_CHARS
            near = {other.phrase for other in places[number : number + MAX_PLACES] if other.end <= end}
            if len(near | {place.phrase}) > best:
                best = len(near | {place.phrase})
                _set_excerpt(result, field, place.start, places[number:])
    if not best and fields:  # Its words are further in the text than an excerpt is looked for.
        _set_excerpt(result, fields[0], 0, [])
    return result


def _set_excerpt(result: SearchResult, field: Field, first: int, places: list[Found]) -> None:
    text = field.text
    start = max(0, first - LEAD_CHARS)
    line = text.rfind("\n", start, first)
    space = text.find(" ", start, first) if start else -1
    start = line + 1 if line >= 0 else space + 1 if space >= 0 else start
    end = min(len(text), start + EXCERPT_CHARS)
    result.field, result.offset, result.excerpt = field.name, utf16_length(text[:start]), text[start:end]
    ranges: list[tuple[int, int]] = []
    for place in places:
        if place.start >= end:
            break
        at, upto = utf16_length(text[start : place.start]), utf16_length(text[start : min(place.end, end)])
        if ranges and at <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], upto))
        else:
            ranges.append((at, upto))
    result.ranges = ranges
