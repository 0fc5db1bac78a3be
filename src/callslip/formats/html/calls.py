"""Render calls and requests for approval as cards."""

from __future__ import annotations

from typing import Any

from callslip.formats.html.blocks import join_texts, render_others, render_output
from callslip.formats.html.formatting import (
    as_text,
    date_and_time,
    indented_json,
    shorten,
    time_of_day,
)
from callslip.formats.html.markup import NO_HTML, Html, block, element, fold, joined, lines, name, printed, text
from callslip.formats.json_fields import as_dict
from callslip.formats.outcome import content_blocks
from callslip.model.display import APPROVAL_STATES, CALL_STATES, format_call_duration, format_size, parse_time
from callslip.model.entries import PermissionRequest, ToolCall


def state_css(state: str) -> str:
    """Return the class that gives a state its colour."""
    return state.partition("_")[0] if state in CALL_STATES or state in APPROVAL_STATES else ""


def _sign_and_label(sign: str, label: str) -> Html:
    return joined([element("span", text(sign), aria_hidden="true"), text(label)], " ")


def state_label(state: str, count: str = "") -> Html:
    """Render the state of a call, or of several calls if there is a count."""
    sign, label = CALL_STATES.get(state, ("·", state.replace("_", " ")))
    return _sign_and_label(sign, f"{count} {label.lower()}" if count else label)


# Calls


def call_card(entry: ToolCall) -> Html:
    """Render a call: its state, title, facts, arguments and output."""
    tool = entry.tool_name or entry.kind or "unknown tool"
    top = element(
        "div",
        element("span", state_label(entry.status), css="state"),
        name(entry.title or tool, "span", "title"),
        css="top",
    )
    css = joined([Html("card call"), Html(state_css(entry.status))], " ")
    end = [*_outputs(entry), _labelled("error", "Error", _error_text(entry.error)), *_notes(entry)]
    return element("article", top, _facts(entry, tool), *_arguments(entry), *end, css=css, id=f"e{entry.id}")


def _facts(entry: ToolCall, tool: str) -> Html:
    facts = [
        name(tool, "code"),
        name(shorten(entry.call_id), "code"),
        time_of_day(entry.at),
        text(format_call_duration(entry.started_at, entry.ended_at, entry.duration_ms)),
        text(_exit_text(entry.exit_status)) if entry.exit_status is not None else NO_HTML,
        text(f"attempt {entry.attempt}") if entry.attempt > 1 else NO_HTML,
        text("Background") if entry.scope == "detached" else NO_HTML,
    ]
    return element("p", joined(facts, " · "), css="facts")


def _exit_text(status: Any) -> str:
    """Return how a process ended: with a status, or by a signal."""
    signal = as_dict(status).get("signal")
    return f"ended by signal {signal}" if isinstance(signal, str) else f"exit status {as_text(status)}"


def _arguments(entry: ToolCall) -> list[Html]:
    """Render the arguments and the locations of a call."""
    arguments = _input(entry.raw_input) if entry.raw_input is not None else NO_HTML
    if not arguments and entry.input_text:
        arguments = fold(text("Input as streamed"), lines(text(entry.input_text)))
    items = [_location(location) for location in content_blocks(entry.locations)]
    locations = element("p", joined([text("At"), joined(items, ", ")], " "), css="facts") if any(items) else NO_HTML
    return [locations, arguments]


def _input(value: Any, label: str = "Input") -> Html:
    return fold(text(label), lines(text(value if isinstance(value, str) else indented_json(value))))


def _location(location: Any) -> Html:
    path, line = as_dict(location).get("path"), as_dict(location).get("line")
    if not isinstance(path, str):
        return NO_HTML
    return name(f"{path}:{line}" if isinstance(line, int) else path, "code")


def _outputs(entry: ToolCall) -> list[Html]:
    """Render the content first, and the recorded output closed. Nothing is shown twice."""
    blocks = content_blocks(entry.content)
    content, result, printed_text = join_texts(blocks), as_text(entry.output), entry.output_text
    if entry.blob is not None and result and printed_text.startswith(result):
        result = printed_text  # The result is only the beginning of what was printed.
    sections = [*render_others(blocks), render_output("Output", content or result)]
    if printed_text not in (content, result):
        sections.insert(0, render_output("Printed" if content or result else "Output", printed_text))
    if content and result != content:
        sections.append(render_output("Raw output", result, is_open=False))
    return [*sections, render_output("Progress", as_text(entry.progress), is_open=False)]


def _error_text(error: Any) -> str:
    """Return the message of an error object that has nothing else, or the full error."""
    message = as_dict(error).get("message") or as_dict(error).get("error")
    return message if isinstance(message, str) and len(as_dict(error)) == 1 else as_text(error)


def _labelled(css: str, label: str, value: str) -> Html:
    return element("div", element("b", text(label)), block(printed(value)), css=css) if value else NO_HTML


def _notes(entry: ToolCall) -> list[Html]:
    notes = [_labelled("why", "Reason", entry.reason)] if entry.reason and entry.reason != entry.error else []
    if entry.report is not None:
        notes.append(_labelled("why", "Agent's report", entry.report.text))
    if entry.content_blob is not None:
        notes.append(_note(f"Content: only the beginning of {format_size(entry.content_blob.size)} is shown."))
    if entry.truncated and (entry.blob is None or entry.blob != entry.content_blob):
        size = f" Full output: {format_size(entry.blob.size)} ({entry.blob.size:,} bytes)." if entry.blob else ""
        notes.append(_note(f"Truncated.{size}"))
    if entry.cut_bytes:
        cut = format_size(entry.cut_bytes)
        notes.append(_note(f"{cut} in the middle of the output were cut when the tool ran. They were not stored."))
    if entry.late:
        notes.append(_note(f"Event {entry.late} arrived after the call had ended and was ignored."))
    return notes


def _note(value: str) -> Html:
    return element("p", text(value), css="note")


# Requests


def request_card(entry: PermissionRequest) -> Html:
    """Render a request for approval with its options and its answer."""
    sign, label = APPROVAL_STATES.get(entry.state, ("·", entry.state))
    title = name(entry.description or entry.tool_name or "A call", "span", "title")
    top = element("div", element("span", _sign_and_label(sign, label), css="state"), title, css="top")
    facts = [text("Approval"), name(entry.tool_name, "code") if entry.tool_name else NO_HTML]
    facts += [name(shorten(entry.call_id), "code"), time_of_day(entry.at)]
    options = [_option(option, entry.response_option) for option in entry.options]
    requested = _input(entry.raw_input) if entry.raw_input is not None else NO_HTML
    approved = _input(entry.response_input, "Approved with edits") if entry.response_input is not None else NO_HTML
    return element(
        "article",
        top,
        element("p", joined(facts, " · "), css="facts"),
        requested,
        _answer_place(entry),
        element("ul", *options, css="list") if options else NO_HTML,
        *_answer(entry, label),
        approved,
        css=joined([Html("card ask"), Html(state_css(entry.state))], " "),
        id=f"e{entry.id}",
    )


def _answer_place(entry: PermissionRequest) -> Html:
    """Render where a pending request must be answered, if it says so."""
    return element("p", text("Answer in "), name(entry.answer_at), css="facts") if entry.answer_at else NO_HTML


def _option(value: Any, chosen: str | None) -> Html:
    option = as_dict(value)
    identity = as_text(option.get("optionId") or option.get("id"))
    is_chosen = bool(identity) and identity == chosen
    label = name(as_text(option.get("name") or option.get("label")) or identity or as_text(value))
    facts = ["chosen"] * is_chosen + [as_text(option.get("kind")).replace("_", " ")]
    note = element("small", text(", ".join(fact for fact in facts if fact)))
    sign = element("span", text("●" if is_chosen else "○"), css="now" if is_chosen else "then", aria_hidden="true")
    return element("li", joined([sign, element("span", joined([label, note], " "))], " "))


def _answer(entry: PermissionRequest, label: str) -> list[Html]:
    if entry.state == "pending":
        expiry = [text("Expires at "), date_and_time(entry.expires_at)] if parse_time(entry.expires_at) else []
        return [element("p", *expiry, css="note")] if expiry else []
    listed = {as_text(as_dict(option).get("optionId")) for option in entry.options}
    facts = [
        text(label),
        joined([text("by"), name(entry.by)], " ") if entry.by else NO_HTML,
        joined([text("at"), date_and_time(entry.response_time)], " ") if parse_time(entry.response_time) else NO_HTML,
    ]
    free = entry.response_option if entry.response_option and entry.response_option not in listed else ""
    answer = joined([joined(facts, " "), name(free) if free else NO_HTML], ": ")
    return [element("p", answer, css="note"), _labelled("why", "Reason", entry.reason)]
