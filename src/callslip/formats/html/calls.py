"""Cards of calls and of requests for approval."""

from __future__ import annotations

from typing import Any

from callslip.formats.html import says
from callslip.formats.html.blocks import listed, others, output, texts
from callslip.formats.html.markup import NOTHING, Html, block, element, fold, joined, lines, name, printed, text
from callslip.model.entries import PermissionRequest, ToolCall

# The sign of each state. Its word always stands beside it, for those who see no colour.
STATES = {
    "queued": "○",
    "awaiting_approval": "?",
    "running": "●",
    "completed": "✓",
    "failed": "✗",
    "denied": "⊘",
    "cancelled": "■",
    "expired": "!",
    "lost": "~",
}
ANSWERS = {
    "pending": ("?", "not answered yet"),
    "granted": ("✓", "granted"),
    "refused": ("⊘", "refused"),
    "withdrawn": ("■", "withdrawn"),
    "moot": ("■", "not needed any more"),
    "superseded": ("■", "asked anew"),
}


def state_css(state: str) -> str:
    """The class that gives a state its colour."""
    return state.partition("_")[0] if state in STATES or state in ANSWERS else ""


def signed(sign: str, word: str) -> Html:
    """A sign for the eye, and the word it stands for."""
    return joined([element("span", text(sign), aria_hidden="true"), text(word)], " ")


def state_words(state: str, count: str = "") -> Html:
    """A state of a call, as sign and word, and how many there are of it."""
    return signed(STATES.get(state, "·"), f"{count} {state.replace('_', ' ')}".strip())


# Calls


def call_card(entry: ToolCall) -> Html:
    """A call: how it stands, what it is, what it was given, what came of it."""
    tool = entry.tool_name or entry.kind or "unknown tool"
    top = element(
        "div",
        element("span", state_words(entry.status), css="state"),
        name(entry.title or tool, "span", "title"),
        css="top",
    )
    css = joined([Html("card call"), Html(state_css(entry.status))], " ")
    return element("article", top, _facts(entry, tool), *_given(entry), *_came(entry), css=css, id=f"e{entry.id}")


def _facts(entry: ToolCall, tool: str) -> Html:
    told = [
        name(tool, "code"),
        name(says.short(entry.call_id), "code"),
        says.clock(entry.at),
        text(says.took(entry.started_at, entry.ended_at)),
        text(_ended(entry.exit_status)) if entry.exit_status is not None else NOTHING,
        text(f"attempt {entry.attempt}") if entry.attempt > 1 else NOTHING,
        text("runs beside the turn") if entry.scope == "detached" else NOTHING,
    ]
    return element("p", joined(told, " · "), css="facts")


def _ended(status: Any) -> str:
    """How a process ended: with a status, or by a signal."""
    signal = says.fields(status).get("signal")
    return f"ended by signal {signal}" if isinstance(signal, str) else f"exit status {says.plain(status)}"


def _given(entry: ToolCall) -> list[Html]:
    """The arguments, and the places the call is about."""
    told = given(entry.raw_input) if entry.raw_input is not None else NOTHING
    if not told and entry.input_text:
        told = fold(text("Input, as it came"), lines(text(entry.input_text)))
    places = [_place(place) for place in listed(entry.locations)]
    where = element("p", joined([text("At"), joined(places, ", ")], " "), css="facts") if any(places) else NOTHING
    return [where, told]


def given(value: Any, called: str = "Input") -> Html:
    """Arguments, closed."""
    return fold(text(called), lines(text(value if isinstance(value, str) else says.json(value))))


def _place(place: Any) -> Html:
    path, line = says.fields(place).get("path"), says.fields(place).get("line")
    if not isinstance(path, str):
        return NOTHING
    return name(f"{path}:{line}" if isinstance(line, int) else path, "code")


def _came(entry: ToolCall) -> list[Html]:
    """What came out, why it ended so, and what there is to know about it."""
    return [*_outputs(entry), _labelled("error", "Error", _error(entry.error)), *_notes(entry)]


def _outputs(entry: ToolCall) -> list[Html]:
    """What the agent showed of it comes first; what it only recorded can be opened. Nothing is shown twice."""
    blocks = listed(entry.content)
    shown, result, stream = texts(blocks), says.plain(entry.output), entry.output_text
    told = [*others(blocks), output("Output", shown or result)]
    if stream not in (shown, result):
        told.insert(0, output("Printed" if shown or result else "Output", stream))
    if shown and result != shown:
        told.append(output("Raw output", result, shown=False))
    return [*told, output("Progress", says.plain(entry.progress), shown=False)]


def _error(error: Any) -> str:
    """What an error object says, or all of it if it says more than that."""
    said = says.fields(error).get("message") or says.fields(error).get("error")
    return said if isinstance(said, str) and len(says.fields(error)) == 1 else says.plain(error)


def _labelled(css: str, label: str, value: str) -> Html:
    return element("div", element("b", text(label)), block(printed(value)), css=css) if value else NOTHING


def _notes(entry: ToolCall) -> list[Html]:
    told = [_labelled("why", "Reason", entry.reason)] if entry.reason and entry.reason != entry.error else []
    if entry.truncated:
        whole = f" The whole has {says.size(entry.blob.size)} ({entry.blob.size:,} bytes)." if entry.blob else ""
        told.append(_note(f"The output is cut short here.{whole}"))
    if entry.late:
        told.append(_note(f"Something came after this call had ended (late, event {entry.late}); it changed nothing."))
    return told


def _note(said: str) -> Html:
    return element("p", text(said), css="note")


# Requests


def request_card(entry: PermissionRequest) -> Html:
    """A request for approval: what was asked, and who answered what, and when."""
    sign, word = ANSWERS.get(entry.state, ("·", entry.state))
    asked = entry.description or entry.tool_name or "A call"
    top = element("div", element("span", signed(sign, word), css="state"), name(asked, "span", "title"), css="top")
    told = [text("Approval"), name(entry.tool_name, "code") if entry.tool_name else NOTHING]
    told += [name(says.short(entry.call_id), "code"), says.clock(entry.at)]
    facts = element("p", joined(told, " · "), css="facts")
    given_input = given(entry.raw_input) if entry.raw_input is not None else NOTHING
    approved = given(entry.response_input, "Approved instead") if entry.response_input is not None else NOTHING
    css = joined([Html("card ask"), Html(state_css(entry.state))], " ")
    return element(
        "article", top, facts, given_input, _options(entry), *_answer(entry, word), approved, css=css, id=f"e{entry.id}"
    )


def _options(entry: PermissionRequest) -> Html:
    """What could be answered, in the words of whoever asked."""
    items = [_option(option, entry.response_option) for option in entry.options]
    return element("ul", *items, css="list") if items else NOTHING


def _option(given: Any, chosen: str | None) -> Html:
    option = says.fields(given)
    identity = says.plain(option.get("optionId") or option.get("id"))
    taken = bool(identity) and identity == chosen
    label = name(says.plain(option.get("name") or option.get("label")) or identity or says.plain(given))
    facts = ["chosen"] * taken + [says.plain(option.get("kind")).replace("_", " ")]
    word = element("small", text(", ".join(fact for fact in facts if fact)))
    sign = element("span", text("●" if taken else "○"), css="now" if taken else "then", aria_hidden="true")
    return element("li", joined([sign, element("span", joined([label, word], " "))], " "))


def _answer(entry: PermissionRequest, word: str) -> list[Html]:
    if entry.state == "pending":
        until = [text("Open until "), says.full(entry.expires_at)] if says.moment(entry.expires_at) else []
        return [element("p", *until, css="note")] if until else []
    known = {says.plain(says.fields(option).get("optionId")) for option in entry.options}
    told = [
        text(word.capitalize()),
        joined([text("by"), name(entry.by)], " ") if entry.by else NOTHING,
        joined([text("at"), says.full(entry.response_time)], " ") if says.moment(entry.response_time) else NOTHING,
    ]
    free = entry.response_option if entry.response_option and entry.response_option not in known else ""
    answer = joined([joined(told, " "), name(free) if free else NOTHING], ": ")
    return [element("p", answer, css="note"), _labelled("why", "Reason", entry.reason)]
