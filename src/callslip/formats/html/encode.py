"""A session as one file: a head that sums it up, every entry in its order, and behind them what draws them anew.

Without scripts the file is what stands here. Its own script shows the same snapshot with the page's own modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, cast

from callslip.formats.base import Source, snapshot_of
from callslip.formats.html import says
from callslip.formats.html.blocks import attached, listed
from callslip.formats.html.calls import STATES, call_card, request_card, state_css, state_words
from callslip.formats.html.markup import NOTHING, Html, block, data, element, empty, fold, joined, lines, name, text
from callslip.formats.html.page import embedded
from callslip.model import codec
from callslip.model.entries import (
    Entry,
    Message,
    Meta,
    ModeChange,
    PermissionRequest,
    Plan,
    Snapshot,
    Thought,
    ToolCall,
)

PLAN = {"completed": ("✓", "done"), "in_progress": ("●", "now"), "pending": ("○", "then")}
FOOT = "Made with Callslip. Times are UTC. This page loads nothing; its script only draws what stands in it."


def document(source: Source) -> bytes:
    """The page of a session, from its state, a snapshot of it, or its rendered entries."""
    snapshot = snapshot_of(source)
    title = snapshot.info.title or snapshot.session or "Session"
    shown = [_header(snapshot, title), element("main", *_entries(snapshot.entries)), _footer()]
    body = element("body", *shown, data("session", codec.encode(snapshot)), embedded().modules)
    page = element("html", _head(title), body, lang="en")
    return f"<!DOCTYPE html>\n{page}\n".encode()


def _head(title: str) -> Html:
    policy = empty("meta", http_equiv="Content-Security-Policy", content=embedded().policy)
    width = empty("meta", name="viewport", content="width=device-width, initial-scale=1")
    privacy = empty("meta", name="referrer", content="no-referrer")
    # Within a title there are no elements: only what is escaped may stand there.
    named = element("title", Html(_bare(title)))
    return element("head", empty("meta", charset="utf-8"), policy, width, privacy, named, embedded().head)


def _bare(title: str) -> str:
    return text("".join(mark if mark.isprintable() else " " for mark in title))


# The head of the page


def _header(source: Snapshot, title: str) -> Html:
    entries = source.entries
    session = name(source.session, "code") if source.session and source.session != title else NOTHING
    about = [session, _range(entries), text(f"as of event {source.seq:,}") if source.seq else NOTHING]
    return element(
        "header",
        element("h1", name(title)),
        element("p", joined(about, " · "), css="about"),
        _tally([entry.status for entry in entries if isinstance(entry, ToolCall)]),
    )


def _range(entries: list[Any]) -> Html:
    """From the first to the last time of the session."""
    times = [at for entry in entries for at in (entry.at, getattr(entry, "ended_at", 0)) if says.moment(at)]
    if not times:
        return NOTHING
    first, last = min(times), max(times)
    end = says.clock(last) if says.day(first) == says.day(last) else says.full(last)
    return says.full(first) if first == last else joined([says.full(first), end], " – ")


def _tally(states: list[str]) -> Html:
    """How many calls stand where."""
    if not states:
        return element("p", text("No calls."), css="about")
    counts = Counter(states)
    known = [state for state in STATES if state in counts] + sorted(set(counts) - set(STATES))
    items = [element("li", state_words(state, f"{counts[state]:,}"), css=state_css(state)) for state in known]
    return element("ul", element("li", text(says.counted(len(states), "call"))), *items, css="tally")


def _footer() -> Html:
    return element("footer", element("p", text(FOOT)))


# Entries


def _entries(entries: Iterable[Any]) -> list[Html]:
    """Every entry, under the day it was made on."""
    made: list[Html] = []
    today = ""
    for entry in entries:
        date = says.day(entry.at) or today
        if date != today:
            made.append(element("h2", text(date)))
        today = date
        made.append(_SHOWN.get(cast("type[Entry]", type(entry)), _other)(entry))
    return made


def _who(who: str, entry: Entry) -> Html:
    return element("div", element("b", text(who)), says.clock(entry.at), css="who")


def _message(entry: Message) -> Html:
    person = entry.role == "user"
    more = [attached(says.fields(item)) for item in listed(entry.blocks) if says.block_text(item) is None]
    inside = [_who("Person" if person else "Agent", entry), block(text(entry.content)), *more, _unfinished(entry)]
    return element("article", *inside, css="person" if person else "agent", id=f"e{entry.id}")


def _unfinished(entry: Message | Thought) -> Html:
    return element("p", text("(still being written)"), css="note") if entry.streaming else NOTHING


def _thought(entry: Thought) -> Html:
    label = joined([text("Thought"), says.clock(entry.at)], " ")
    inside = fold(label, block(text(entry.content)), _unfinished(entry), css="thought")
    return element("article", inside, id=f"e{entry.id}")


def _plan(entry: Plan) -> Html:
    items = [_step(item) for item in entry.entries]
    listed = element("ol", *items, css="list") if items else element("p", text("(empty)"), css="note")
    return element("article", _who("Plan", entry), listed, css="card plan", id=f"e{entry.id}")


def _step(item: Any) -> Html:
    told = says.fields(item)
    status = says.plain(told.get("status"))
    sign, css = PLAN.get(status, ("○", "then"))
    facts = [status.replace("_", " "), says.plain(told.get("priority"))]
    words = element("small", text(", ".join(fact for fact in facts if fact)))
    said = name(says.plain(told.get("content") if "content" in told else item))
    mark = element("span", text(sign), css=css, aria_hidden="true")
    return element("li", joined([mark, element("span", joined([said, words], " "))], " "))


def _mode(entry: ModeChange) -> Html:
    modes = joined([name(entry.previous_mode_id or "none"), name(entry.new_mode_id or "none")], " → ")
    return element("article", joined([text("Mode:"), modes, says.clock(entry.at)], " "), css="mode", id=f"e{entry.id}")


def _meta(entry: Meta) -> Html:
    """What the agent offered, closed: who needs it can open it."""
    offers = {"mode": entry.available_modes, "model": entry.available_models, "command": entry.available_commands}
    counts = ", ".join(says.counted(len(offered), noun) for noun, offered in offers.items() if offered)
    now = {"mode": entry.current_mode_id, "model": entry.current_model_id}
    current = name(", ".join(f"{word} {chosen}" for word, chosen in now.items() if chosen))
    label = joined([text(f"The agent offers {counts}" if counts else "The agent"), current], " · ")
    return element("article", fold(label, lines(text(says.json(entry))), css="offer"), id=f"e{entry.id}")


def _other(entry: Any) -> Html:
    """A kind of entry that this version does not know, whole."""
    return element("article", lines(text(codec.encode(entry).decode())))


_SHOWN: dict[type[Entry], Callable[[Any], Html]] = {
    Message: _message,
    Thought: _thought,
    ToolCall: call_card,
    PermissionRequest: request_card,
    Plan: _plan,
    ModeChange: _mode,
    Meta: _meta,
}
