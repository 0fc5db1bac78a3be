"""The `html` format: one file that shows every entry, and in which all foreign content is plain text.

`tests/web/test_share.py` tests the page with its scripts.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from msgspec import structs

from callslip.formats import registry
from callslip.formats.html.encode import document
from callslip.formats.html.page import NEEDS_A_SERVER
from callslip.formats.html.style import DARK, GROUNDS, INKS, LIGHT, STYLE
from callslip.model import codec
from callslip.model.display import APPROVAL_STATES, CALL_STATES
from callslip.model.entries import (
    AnyEntry,
    Blob,
    Entry,
    Info,
    Message,
    Meta,
    ModeChange,
    PermissionRequest,
    Plan,
    Snapshot,
    Thought,
    ToolCall,
)
from callslip.model.events import Event
from callslip.rules.lifecycle import OPEN_STATES, TERMINAL_STATES
from tests.support import scenarios, stream_checks
from tests.support.strategies import scripts, write_script

START_MS = scenarios.START_MS

# Other elements and attributes can only come from foreign text that was not escaped.
VOID_ELEMENTS = {"meta"}
ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "article", "h1", "h2", "p", "div"),
    *("span", "b", "small", "bdi", "code", "pre", "time", "ul", "ol", "li", "details", "summary", "script"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "id", "dir", "datetime", "open", "tabindex"),
    *("aria-hidden", "type", "media"),
}
CONTROL_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
TERMINAL_COLOURS = re.compile("\x1b\\[[0-9;:]*m")


class ParsedPage(HTMLParser):
    """The elements, attributes and texts of a page, without the names that it shows for control characters."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.source = page.decode()
        self.elements: list[str] = []
        self.attributes: dict[str, set[str | None]] = {}
        self.texts: dict[str, str] = {}
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(self.source)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS, tag
        assert {name for name, _ in attrs} <= ATTRIBUTES, attrs
        self.elements.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value)
        if tag not in VOID_ELEMENTS:
            self._open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][1].get("class") == "control":
            return
        for tag, attrs in self._open:
            key = str(attrs.get("id") or tag)
            if tag in ("article", "title", "style", "script", "h1", "header"):
                self.texts[key] = self.texts.get(key, "") + data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"a declaration: {data}")


def render_page(*entries: Entry) -> ParsedPage:
    return ParsedPage(document(Snapshot("s", 1, Info(), list(entries))))


def render_article(entry: Entry) -> str:
    return render_page(entry).texts[f"e{entry.id}"]


def visible_text(text: str) -> str:
    """Return a text without the characters that a page shows by name."""
    return CONTROL_CHARACTERS.sub("", text.replace("\r\n", "\n"))


def call(**fields: Any) -> ToolCall:
    return ToolCall(**{"id": 7, "call_id": "exec_0123456789ab", "tool_call_id": "t", "status": "completed", **fields})


# Every entry is shown


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_every_entry_of_every_scenario_is_shown(name: str) -> None:
    """Every entry shows its content, in a page of known elements without active content."""
    state = stream_checks.fold_log(scenarios.load_events(name))
    check_page(state.snapshot().entries, document(state))


@pytest.mark.parametrize("name", stream_checks.CAPTURE_NAMES)
def test_every_entry_of_a_capture_is_shown(name: str) -> None:
    """The same for recorded traffic of real agents."""
    for log in stream_checks.load_capture(name):
        check_page(stream_checks.fold_log(log).snapshot().entries, document(stream_checks.fold_log(log)))


@given(scripts())
def test_every_entry_of_any_session_is_shown(script: list[Event]) -> None:
    """The same for any session."""
    state = write_script(script).state
    check_page(state.snapshot().entries, document(state))


def check_page(entries: list[Any], body: bytes) -> None:
    page = ParsedPage(body)
    assert not CONTROL_CHARACTERS.search(page.source)
    for entry in entries:
        shown = page.texts[f"e{entry.id}"]
        for text in expected_texts(entry):
            assert visible_text(text) in shown, (entry, text)


def expected_texts(entry: AnyEntry) -> list[str]:
    """Return the texts that a page must show of an entry."""
    if isinstance(entry, Message | Thought):
        return [entry.content]
    if isinstance(entry, ToolCall):
        return [CALL_STATES[entry.status][1], entry.tool_name or "", entry.call_id[:13], *outcome_texts(entry)]
    if isinstance(entry, PermissionRequest):
        return [APPROVAL_STATES[entry.state][1], entry.description, entry.by, TERMINAL_COLOURS.sub("", entry.reason)]
    if isinstance(entry, ModeChange):
        return [entry.previous_mode_id, entry.new_mode_id]
    return []


def outcome_texts(entry: ToolCall) -> list[str]:
    values = (entry.output, entry.error, entry.output_text, entry.reason)
    return [entry.title or "", *(TERMINAL_COLOURS.sub("", value) for value in values if isinstance(value, str))]


def test_a_call_shows_its_state_and_its_fields() -> None:
    """Icon and name of its state, title, tool, id, times, exit status, input, output, error and reason."""
    times = {"at": START_MS, "started_at": START_MS, "ended_at": START_MS + 1500}
    failed = {"status": "failed", "error": {"message": "it broke"}, "reason": "no disk", "exit_status": 3}
    shown = render_article(
        call(title="make", tool_name="shell", raw_input={"a": [1]}, output="half", **failed, **times)
    )
    expected = ("✗ Failed", "make", "shell", "exec_01234567", "22:13:20", "1.5 s", "exit status 3", "half", "it broke")
    for text in (*expected, "no disk", '{\n  "a": [\n    1\n  ]\n}'):
        assert text in shown, text


def test_a_killed_process_shows_the_signal() -> None:
    """By name, and not as the JSON object of the log."""
    assert "ended by signal SIGKILL" in render_article(call(exit_status={"signal": "SIGKILL"}))
    for status in ({"exitCode": 3}, {"signal": None}, {"signal": 9}):
        assert "exit status {" in render_article(call(exit_status=status))


def test_every_state_has_an_icon_a_name_and_a_colour() -> None:
    """The label is readable without colours, and every state has a colour."""
    assert set(CALL_STATES) == OPEN_STATES | TERMINAL_STATES
    for state in CALL_STATES:
        page = render_page(call(status=state))
        assert " ".join(CALL_STATES[state]) in page.texts["e7"]
        assert f".{state.partition('_')[0]}" in STYLE
    assert all(f".{state}" in STYLE for state in APPROVAL_STATES)


def test_truncated_output_and_late_events_are_shown() -> None:
    """With the full size."""
    shown = render_article(call(output="x", truncated=True, blob=Blob("h", 5_243_123), late=44))
    assert "Truncated. Full output: 5.2 MB (5,243,123 bytes)." in shown
    assert "Event 44 arrived after the call had ended" in shown


def test_output_of_every_kind_is_shown_as_text() -> None:
    """Text, content blocks and printed output; other values as JSON. Nothing is shown twice."""
    block = {"type": "content", "content": {"type": "text", "text": "from a block"}}
    assert "from a block" in render_article(call(content=[block, {"type": "terminal", "terminalId": "x"}]))
    assert '"n": 1' in render_article(call(output={"n": 1}))
    shown_both = render_article(call(output="all of it", output_text="on the way"))
    assert "Printed" in shown_both and "on the way" in shown_both and "all of it" in shown_both
    assert render_article(call(output="once", output_text="once")).count("once") == 1
    assert "from pieces" in render_article(call(input_text="from pieces"))
    image = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
    shown = render_article(call(output={"raw": True}, content=[block, image]))
    assert "from a block" in shown and '"raw": true' in shown and "Attached: image, image/png, about 3 bytes" in shown


def test_a_file_diff_shows_removed_and_added_lines() -> None:
    """With a few lines of context."""
    old = "".join(f"line {n}\n" for n in range(20))
    diff = {"type": "diff", "path": "a.py", "oldText": old, "newText": old.replace("line 9\n", "line nine\nand more\n")}
    shown = render_article(call(content=[diff]))
    assert "a.py" in shown
    assert "  line 8\n- line 9\n+ line nine\n+ and more\n  line 10\n" in shown
    assert "line 5\n" not in shown and "line 13" not in shown
    new_file = {"type": "diff", "path": "b.py", "newText": "all new\n"}
    assert "+ all new\n" in render_article(call(content=[new_file]))


def test_an_answer_shows_author_time_option_and_reason() -> None:
    """In the entry of the request; a pending request shows its expiry."""
    options = [{"optionId": "y", "name": "Allow once"}, {"optionId": "n", "name": "Reject"}]
    request = PermissionRequest(id=3, request_id="a", call_id="exec_1", description="rm -rf /", options=options)
    answer = {"state": "refused", "by": "ann", "reason": "never", "response_time": START_MS, "response_option": "n"}
    shown = render_article(structs.replace(request, raw_input={"p": 1}, **answer))
    for text in ("rm -rf /", "Allow once", "Reject chosen", "⊘ Denied", "Denied by ann at 2023-11-14 22:13:20 UTC"):
        assert text in shown, text
    assert "never" in shown and '"p": 1' in shown
    assert "maybe" in render_article(structs.replace(request, options=["maybe", {"other": 1}]))
    waiting = render_article(structs.replace(request, expires_at=START_MS))
    assert "Pending" in waiting and "Expires at 2023-11-14 22:13:20 UTC" in waiting


def test_plans_modes_and_capabilities_are_shown() -> None:
    """Also with values of unexpected types."""
    steps = [{"content": "run", "status": "in_progress", "priority": "high"}, "bare", {"x": 1}, None]
    plan = render_article(Plan(id=1, entries=steps))
    assert "● run In progress, high" in plan and "bare" in plan and '"x": 1' in plan
    assert "ask → code" in render_article(ModeChange(id=1, previous_mode_id="ask", new_mode_id="code"))
    capabilities = render_article(Meta(id=1, available_modes=[{"id": "deep"}], current_mode_id="deep"))
    assert "1 mode" in capabilities and '"deep"' in capabilities


def test_user_attachments_are_listed_by_type_and_size() -> None:
    """The page shows texts only."""
    image = {"type": "image", "mimeType": "image/png", "data": "A" * 4000}
    shown = render_article(Message(id=1, role="user", content="see", blocks=[{"type": "text", "text": "see"}, image]))
    assert "Attached: image, image/png, about 3.0 KB" in shown and shown.count("see") == 1


def test_the_header_shows_name_times_and_call_counts() -> None:
    """Times are in UTC, and calls are counted by state."""
    entries = [call(id=1, at=START_MS), call(id=2, at=START_MS + 90_000, status="failed"), call(id=3, at=START_MS + 1)]
    header = ParsedPage(document(Snapshot("fix-login", 9, Info(title="Why?"), list(entries)))).texts["header"]
    assert "Why?" in header and "fix-login" in header and "as of event 9" in header
    assert "2023-11-14 22:13:20 UTC – 22:14:50" in header
    assert "3 calls" in header and "✓ 2 completed" in header and "✗ 1 failed" in header


def test_times_out_of_range_are_left_out() -> None:
    """A foreign clock may send any number."""
    shown = render_page(
        call(at=10**18, started_at=-5, ended_at=10**17), Message(id=9, at=START_MS, role="user", content="x")
    )
    assert "2023-11-14 22:13:20 UTC" in shown.texts["header"]


def test_a_state_a_snapshot_and_entries_are_accepted() -> None:
    """An empty session gives a page too."""
    state = stream_checks.fold_log(scenarios.load_events("two_turns"))
    page = document(state)
    assert document(state.snapshot()) == page
    main = page[page.index(b"<main>") : page.index(b"</main>")]
    assert main in document(iter(state.snapshot().entries))
    assert "No calls" in ParsedPage(document([])).texts["header"]


# No active content

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</style><script>alert(1)</script>",
    "</pre></div></article></main><iframe src=//evil.example></iframe>",
    "</title><svg onload=alert(1)>",
    "<!-- --><![CDATA[x]]><?php x ?><!DOCTYPE x>",
    '" onmouseover="alert(1)" x=\'',
    "&lt;script&gt;&#x3c;b&#62;&amp;",
    "\x1b[31mred\x1b[0m \x1b[2J\x1b[8mhidden",
    "\x1b]52;c;ZXZpbA==\x07 \x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "safe\u202egpj.exe\u202c \u2066x\u2069 \u200f\u061c",
    "a\x00b\x08c\x0cd\re\x7ff\x85g\u2028h\u2029i\ufeffj",
    "\n\nafter two line feeds\t.\r\nend",
    "javascript:alert(1)",
    "{{constructor}} ${x} `x`",
]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_text_is_escaped_in_every_field(value: str) -> None:
    """Every field of every kind of entry, and the session's name and title."""
    entries = hostile_entries(value)
    snapshot = Snapshot(value, 1, Info(title=value), list(entries))
    page = ParsedPage(document(snapshot))
    assert not CONTROL_CHARACTERS.search(page.source)
    plain_page = ParsedPage(document(Snapshot("x", 1, Info(title="y"), list(hostile_entries("plain")))))
    assert {name for name in page.elements if name != "span"} == {
        name for name in plain_page.elements if name != "span"
    }
    names = ("id", "datetime", "http-equiv", "content", "name")
    assert all(page.attributes[name] == plain_page.attributes[name] for name in names)
    fixed_parts = ("style", "page", "script", "modules", "licences")
    assert all(page.texts[name] == plain_page.texts[name] for name in fixed_parts)
    assert json.loads(page.texts["session"]) == json.loads(codec.encode(snapshot)) and "<" not in page.texts["session"]
    for entry in entries:
        for text in expected_texts(entry):
            assert visible_text(text) in page.texts[f"e{entry.id}"]


def hostile_entries(value: str) -> list[Entry]:
    """Return entries of every kind whose texts are all this value."""
    nested = {value: [value, {"name": value}]}
    fields = dict.fromkeys(("title", "tool_name", "kind", "reason", "exit_status", "output_text"), value)
    diff = {"type": "diff", "path": value, "oldText": value, "newText": f"{value}\n{value}"}
    content = [diff, {"type": "content", "content": {"type": "text", "text": value}}, value]
    option = {"optionId": value, "name": value, "kind": value}
    request = {"description": value, "tool_name": value, "options": [option, value], "raw_input": value}
    answer = {"response_option": value, "by": value, "reason": value}
    file = {"type": value, "mimeType": value, "data": value}
    user_message = Message(id=1, at=START_MS, role="user", content=value, blocks=[file, value])
    return [
        user_message,
        Message(id=2, role=value, content=value, streaming=True),
        Thought(id=3, content=value, streaming=True),
        call(id=4, call_id=value, raw_input=nested, output=nested, error=nested, content=content, **fields),
        call(id=5, call_id=value, input_text=value, output=value, error=value, locations=[{"path": value}], **fields),
        PermissionRequest(id=6, request_id=value, call_id=value, state="granted", **request, **answer),
        Plan(id=7, entries=[{"content": value, "status": value, "priority": value}, value, nested]),
        ModeChange(id=8, previous_mode_id=value, new_mode_id=value),
        Meta(id=9, available_modes=[nested], available_commands=[value], current_mode_id=value, current_model_id=value),
    ]


def test_terminal_colours_are_removed_and_controls_are_escaped() -> None:
    """Other control sequences are shown as text."""
    page = render_page(call(output="\x1b[1;31mred\x1b[0m \x1b]52;c;eA==\x07"))
    assert 'red <span class="control">ESC</span>]52;c;eA==<span class="control">BEL</span>' in page.source
    assert '<span class="control">U+202E</span>' in render_page(call(title="\u202e")).source


def test_right_to_left_text_does_not_affect_its_line() -> None:
    """Names are isolated within a line, and longer texts have their own direction."""
    page = render_page(call(title="\u05e9\u05dc\u05d5\u05dd", output="\u05e9"))
    assert "<bdi>\u05e9\u05dc\u05d5\u05dd</bdi>" in page.source
    assert '<pre dir="auto">\u05e9</pre>' in page.source


def test_the_csp_allows_only_the_files_own_script_and_styles() -> None:
    """By their hashes; modules only from blob URLs, and no requests."""
    page = ParsedPage(document(stream_checks.fold_log(scenarios.load_events("hostile_strings"))))
    policy = next(value for value in page.attributes["content"] if value and "default-src" in value)
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    assert directives["default-src"] == directives["connect-src"] == "'none'" and directives["img-src"] == "data:"
    assert directives["script-src"] == f"{csp_hash(page.texts['script'])} blob:"
    assert directives["style-src"] == f"{csp_hash(page.texts['style'])} {csp_hash(page.texts['page'])}"
    assert page.texts["style"] == STYLE
    assert not re.search(r"url\((?!\"data:image/svg)|@import|@font-face|expression", STYLE + page.texts["page"])
    policy_index = page.source.index("Content-Security-Policy")
    assert policy_index < page.source.index("<title>") < page.source.index("<style>") < page.source.index("<script>")


def csp_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# Modules of the page


def test_every_module_follows_the_modules_it_imports() -> None:
    """So each receives the URLs of the others; modules that need a server are left out."""
    page = ParsedPage(document([]))
    loaded: set[str] = set()
    for name, pieces in json.loads(gzip.decompress(base64.b64decode(page.texts["modules"]))):
        assert set(pieces[1::2]) <= loaded, name
        code = re.sub(r"/\*\*.*?\*/", "", "".join(pieces[::2]), flags=re.DOTALL)
        assert set(re.findall(r'"\./([^"]+)"', code)) <= NEEDS_A_SERVER, name
        loaded.add(name)
    assert {"vendor/preact.mjs", "session.js", "request.js", "waterfall.js", "filters.js"} <= loaded
    assert name == "shared_page.js" and "prompt.js" not in loaded
    assert "Copyright (c) 2015-present Jason Miller" in page.texts["licences"]


def test_the_fixed_part_of_a_file_is_small() -> None:
    """A file is not much larger than its session."""
    assert len(document([])) < 300_000


# Accessibility


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_every_text_has_enough_contrast(palette: dict[str, str]) -> None:
    """At least 4.5, in light and dark."""
    for text_color in INKS:
        for background in GROUNDS:
            assert contrast(palette[text_color], palette[background]) >= 4.5, (text_color, background)
    assert all(contrast(palette["text"], palette[background]) >= 4.5 for background in ("added", "removed"))


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours, as defined by the Web Content Accessibility Guidelines."""
    dark, light = sorted(luminance(colour) for colour in (first, second))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_class_is_styled_and_every_colour_is_defined() -> None:
    """In both themes."""
    assert LIGHT.keys() == DARK.keys()
    used_colors = set(re.findall(r"var\(--([a-z]+)", STYLE)) - {"tone"}
    assert used_colors == LIGHT.keys()
    assert "prefers-color-scheme:dark" in STYLE


def test_scrolling_output_can_be_focused_by_keyboard() -> None:
    """Elements that scroll can be focused."""
    assert "tabindex" in render_page(call(output="line\n" * 100)).attributes
    assert "tabindex" not in render_page(call(output="line\n" * 3)).attributes


# File size


def test_the_file_grows_linearly_with_the_session() -> None:
    """A deeply nested value is not much larger than its JSON."""
    sizes = [len(document([call(id=n, output={"n": ["x"] * 20}) for n in range(count)])) for count in (0, 100, 200)]
    assert 1.9 < (sizes[2] - sizes[0]) / (sizes[1] - sizes[0]) < 2.1
    nested: Any = "x"
    for _ in range(200):
        nested = {"k": [nested]}
    empty_size = len(document([call()]))
    assert len(document([call(output=nested)])) - empty_size < 10 * len(codec.encode(nested))


def test_the_registry_has_the_html_format() -> None:
    """By the name in the list of formats."""
    assert registry.document("html") is document
    assert registry.find("html").media.startswith("text/html")
