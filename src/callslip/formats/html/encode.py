"""Encode a session as one HTML file: a summary, every entry in order, and the data and modules of the web page.

Without scripts the file shows the markup made here. Its script shows the same snapshot with the modules of the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, cast

from callslip.formats.base import Source, snapshot_of
from callslip.formats.html.blocks import render_attachment
from callslip.formats.html.calls import call_card, request_card, state_css, state_label
from callslip.formats.html.formatting import (
    as_text,
    block_text,
    date_and_time,
    date_of,
    indented_json,
    time_of_day,
)
from callslip.formats.html.markup import NO_HTML, Html, block, data, element, empty, fold, joined, lines, name, text
from callslip.formats.html.page import embedded
from callslip.formats.json_fields import as_dict
from callslip.formats.outcome import content_blocks
from callslip.model import codec
from callslip.model.display import CALL_STATES, parse_time, pluralize
from callslip.model.entries import (
    Entry,
    Message,
    Meta,
    ModeChange,
    Notice,
    PermissionRequest,
    Plan,
    Snapshot,
    Thought,
    ToolCall,
)

# The sign, the class and the label of each status of a plan step.
PLAN_STATUSES = {
    "completed": ("✓", "done", "Done"),
    "in_progress": ("●", "now", "In progress"),
    "pending": ("○", "then", "To do"),
}
FOOTER = "Made with Callslip. Times are UTC. This page loads nothing; its script shows the data in this file."


def document(source: Source) -> bytes:
    """Return the page of a session."""
    snapshot = snapshot_of(source)
    title = snapshot.info.title or snapshot.session or "Session"
    footer = element("footer", element("p", text(FOOTER)))
    shown = [_header(snapshot, title), element("main", *_entries(snapshot.entries)), footer]
    body = element("body", *shown, data("session", codec.encode(snapshot)), embedded().modules)
    page = element("html", _head(title), body, lang="en")
    return f"<!DOCTYPE html>\n{page}\n".encode()


def _head(title: str) -> Html:
    policy = empty("meta", http_equiv="Content-Security-Policy", content=embedded().policy)
    width = empty("meta", name="viewport", content="width=device-width, initial-scale=1")
    privacy = empty("meta", name="referrer", content="no-referrer")
    # A title cannot contain elements, so control characters have no names here.
    plain_title = text("".join(mark if mark.isprintable() else " " for mark in title))
    head = [empty("meta", charset="utf-8"), policy, width, privacy, element("title", plain_title), embedded().head]
    return element("head", *head)


# The summary


def _header(source: Snapshot, title: str) -> Html:
    entries = source.entries
    session = name(source.session, "code") if source.session and source.session != title else NO_HTML
    about = [session, _range(entries), text(f"as of event {source.seq:,}") if source.seq else NO_HTML]
    return element(
        "header",
        element("h1", name(title)),
        element("p", joined(about, " · "), css="about"),
        _tally([entry.status for entry in entries if isinstance(entry, ToolCall)]),
    )


def _range(entries: list[Any]) -> Html:
    """Render the first and the last time of the session."""
    times = [at for entry in entries for at in (entry.at, getattr(entry, "ended_at", 0)) if parse_time(at)]
    if not times:
        return NO_HTML
    first, last = min(times), max(times)
    end = time_of_day(last) if date_of(first) == date_of(last) else date_and_time(last)
    return date_and_time(first) if first == last else joined([date_and_time(first), end], " – ")


def _tally(states: list[str]) -> Html:
    """Render the number of calls in each state."""
    if not states:
        return element("p", text("No calls"), css="about")
    counts = Counter(states)
    ordered = [state for state in CALL_STATES if state in counts] + sorted(set(counts) - set(CALL_STATES))
    items = [element("li", state_label(state, f"{counts[state]:,}"), css=state_css(state)) for state in ordered]
    return element("ul", element("li", text(pluralize(len(states), "call"))), *items, css="tally")


# Entries


def _entries(entries: Iterable[Any]) -> list[Html]:
    """Render every entry, with a heading for each date. What one sub-agent did is a block."""
    rendered: list[Html] = []
    titles: dict[str, str] = {}
    today = ""
    for (date, parent), group in groupby(entries, lambda entry: (date_of(entry.at), getattr(entry, "parent", ""))):
        if date and date != today:
            rendered.append(element("h2", text(date)))
        today = date or today
        articles: list[Html] = []
        for entry in group:
            if isinstance(entry, ToolCall):
                titles[entry.call_id] = entry.title or entry.tool_name or entry.kind or ""
            articles.append(_RENDERERS.get(cast("type[Entry]", type(entry)), _other)(entry))
        rendered += [_subagent(titles.get(parent) or parent, articles)] if parent else articles
    return rendered


def _subagent(title: str, articles: list[Html]) -> Html:
    """Render what a sub-agent did, under the title of the call that started it."""
    heading = element("p", joined([element("b", text("Sub-agent")), name(title)], " "), css="who")
    return element("div", heading, *articles, css="sub")


def _heading(label: str, entry: Entry) -> Html:
    return element("div", element("b", text(label)), time_of_day(entry.at), css="who")


def _message(entry: Message) -> Html:
    is_user = entry.role == "user"
    blocks = [item for item in content_blocks(entry.blocks) if block_text(item) is None]
    attachments = [render_attachment(as_dict(item)) for item in blocks]
    label = ("Prompt" if entry.parent else "User") if is_user else "Agent"
    heading = _heading(label, entry)
    inside = [heading, block(text(entry.content)), *attachments, _unfinished(entry)]
    return element("article", *inside, css="person" if is_user else "agent", id=f"e{entry.id}")


def _unfinished(entry: Message | Thought) -> Html:
    return element("p", text("(incomplete)"), css="note") if entry.streaming else NO_HTML


def _thought(entry: Thought) -> Html:
    label = joined([text("Thinking"), time_of_day(entry.at)], " ")
    inside = fold(label, block(text(entry.content)), _unfinished(entry), css="thought")
    return element("article", inside, id=f"e{entry.id}")


def _plan(entry: Plan) -> Html:
    items = [_step(item) for item in entry.entries]
    steps = element("ol", *items, css="list") if items else element("p", text("(empty)"), css="note")
    return element("article", _heading("Plan", entry), steps, css="card plan", id=f"e{entry.id}")


def _step(item: Any) -> Html:
    fields = as_dict(item)
    status = as_text(fields.get("status"))
    sign, css, label = PLAN_STATUSES.get(status, ("○", "then", status.replace("_", " ")))
    facts = element("small", text(", ".join(fact for fact in (label, as_text(fields.get("priority"))) if fact)))
    content = name(as_text(fields.get("content") if "content" in fields else item))
    mark = element("span", text(sign), css=css, aria_hidden="true")
    return element("li", joined([mark, element("span", joined([content, facts], " "))], " "))


def _mode(entry: ModeChange) -> Html:
    modes = joined([name(entry.previous_mode_id or "none"), name(entry.new_mode_id or "none")], " → ")
    return element("article", joined([text("Mode:"), modes, time_of_day(entry.at)], " "), css="mode", id=f"e{entry.id}")


def _meta(entry: Meta) -> Html:
    """Render the capabilities of the agent, closed."""
    offers = {"mode": entry.available_modes, "model": entry.available_models, "command": entry.available_commands}
    counts = ", ".join(pluralize(len(offered), noun) for noun, offered in offers.items() if offered)
    now = {"mode": entry.current_mode_id, "model": entry.current_model_id}
    current = name(", ".join(f"{word} {chosen}" for word, chosen in now.items() if chosen))
    label = joined([text(f"Agent capabilities: {counts}" if counts else "Agent capabilities"), current], " · ")
    return element("article", fold(label, lines(text(indented_json(entry))), css="offer"), id=f"e{entry.id}")


def _notice(entry: Notice) -> Html:
    label = text(f"{(entry.severity or 'notice').capitalize()}:")
    content = name(entry.content or as_text(entry.details))
    return element("article", joined([label, content, time_of_day(entry.at)], " "), css="mode", id=f"e{entry.id}")


def _other(entry: Any) -> Html:
    """Render an entry of an unknown type as JSON."""
    return element("article", lines(text(codec.encode(entry).decode())))


_RENDERERS: dict[type[Entry], Callable[[Any], Html]] = {
    Message: _message,
    Thought: _thought,
    ToolCall: call_card,
    PermissionRequest: request_card,
    Plan: _plan,
    ModeChange: _mode,
    Meta: _meta,
    Notice: _notice,
}
