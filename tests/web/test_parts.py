"""Text functions of the page: the real modules in Node. Other tests use a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import callslip
from tests.support.stream_checks import Client

WEB = Path(callslip.__file__).parent / "web"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>"
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def client(node: str) -> Iterator[Client]:
    harness = Client(node, "page_parts.mjs", str(WEB))
    yield harness
    harness.close()


def run_part(client: Client, part: str, **job: Any) -> Any:
    return client.ask([{"part": part, **job}])[0]


@pytest.fixture(scope="module")
def ask(client: Client) -> Ask:
    return partial(run_part, client)


# Markdown


def strip_outer_element(drawn: str) -> str:
    """Return the content of the element that every text is drawn into."""
    return drawn.removeprefix('<div class="md">').removesuffix("</div>")


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("plain", '<p dir="auto">‹plain›</p>'),
        (
            "**a** *b* `c` ~~d~~",
            '<p dir="auto"><strong>‹a›</strong>‹ ›<em>‹b›</em>‹ ›<code>‹c›</code>‹ ›<del>‹d›</del></p>',
        ),
        ("snake_case_name and 2 * 3 * 4", '<p dir="auto">‹snake_case_name and 2 * 3 * 4›</p>'),
        ("## Only heading", '<h2 dir="auto">‹Only heading›</h2>'),
        ("- a\n- b", '<ul><li dir="auto">‹a›</li><li dir="auto">‹b›</li></ul>'),
        ("- a\n  1. b", '<ul><li dir="auto">‹a›<ol start=1><li dir="auto">‹b›</li></ol></li></ul>'),
        ("7. a", '<ol start=7><li dir="auto">‹a›</li></ol>'),
        ("```py\n*x*\n```", '<pre class="code" tabindex="0" data-language="py"><code>‹*x*›</code></pre>'),
        ("```\nnot ended", '<pre class="code" tabindex="0"><code>‹not ended›</code></pre>'),
        ("> a", '<blockquote dir="auto"><p dir="auto">‹a›</p></blockquote>'),
        ("a\nb", '<p dir="auto">‹a›<br></br>‹b›</p>'),
        ("---", "<hr></hr>"),
        ("**open", '<p dir="auto">‹**open›</p>'),
        (r"\*no\*", '<p dir="auto">‹*›‹no›‹*›</p>'),
    ],
)
def test_markdown_is_drawn_with_known_elements(ask: Ask, text: str, drawn: str) -> None:
    assert strip_outer_element(ask("markdown", text=text)) == drawn


def test_a_table_has_a_head_and_rows(ask: Ask) -> None:
    drawn = ask("markdown", text="|a|b|\n|-|-|\n|1|2|")
    assert '<th dir="auto">‹a›</th>' in drawn
    assert '<td dir="auto">‹2›</td>' in drawn


@pytest.mark.parametrize("address", ["https://a.b/c", "http://a.b", "mailto:a@b.c"])
def test_web_and_mail_links_are_allowed(ask: Ask, address: str) -> None:
    drawn = ask("markdown", text=f"[t]({address})")
    assert f'<a href="{address}" rel="noopener noreferrer nofollow" target="_blank">‹t›</a>' in drawn


@pytest.mark.parametrize(
    "address",
    ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "vbscript:x", "//a.b", "/x", "file:///x"],
)
def test_other_links_stay_text(ask: Ask, address: str) -> None:
    for text in (f"[t]({address})", f"![t]({address})", f"<{address}>"):
        assert "<a" not in ask("markdown", text=text)


def test_bare_url_is_a_link_without_the_full_stop(ask: Ask) -> None:
    assert '<a href="https://a.b/c"' in ask("markdown", text="see https://a.b/c.")


def test_html_in_markdown_is_text(ask: Ask) -> None:
    assert strip_outer_element(ask("markdown", text=HOSTILE)) == f'<p dir="auto">‹{HOSTILE}›</p>'


KNOWN_ELEMENTS = {
    "div",
    "p",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "ul",
    "ol",
    "li",
    "pre",
    "code",
    "blockquote",
    "strong",
    "em",
    "del",
}
KNOWN_ELEMENTS |= {"a", "br", "hr", "table", "thead", "tbody", "tr", "th", "td"}


@given(st.text(st.sampled_from("ab \n*_`~#>|-[]()!<1.\\:/h\u202e\x1b")))
def test_any_text_is_drawn_with_known_elements(client: Client, text: str) -> None:
    drawn = run_part(client, "markdown", text=text)
    outside = "".join(piece.rpartition("›")[2] for piece in drawn.split("‹"))
    names = {tag.partition(">")[0].strip("/").partition(" ")[0] for tag in outside.split("<")[1:]}
    assert names <= KNOWN_ELEMENTS
    assert "\x1b" not in drawn
    assert "\u202e" not in drawn


@pytest.mark.parametrize(
    "text", ["[", "**a ", "`", "> ", "- ", "* a\n", "|a|\n|-|\n", "_a*b~~c", "` `` ", "\x1b[", "\x1b]0;", "\r"]
)
def test_adversarial_text_is_parsed_in_linear_time(ask: Ask, text: str) -> None:
    """Less than a second; what grows with the square of the length takes minutes."""
    assert ask("duration", text=text, times=200_000 // len(text)) < 20_000


@pytest.mark.parametrize(
    "around", ["# {}x", "|\n{}x", "a{}b", "# #{}#", "- {}x", "`{}x`", "[a](b{}x", "```{}x", "{}", "***{}x"]
)
def test_line_of_many_spaces_is_parsed_quickly(ask: Ask, around: str) -> None:
    assert ask("duration", text=around.format(" " * 150_000), times=1) < 2000
    assert ask("duration", text=around.format("#" * 150_000), times=1) < 2000


# Terminal


def test_control_characters_and_direction_marks_are_escaped(ask: Ask) -> None:
    assert ask("inert", text="a\x1b[31m\u202eb\u200b\x00\r\nc\td") == "a\\x1b[31m\\u202eb\\u200b\\x00\nc\td"


def test_emoji_keep_their_joiners(ask: Ask) -> None:
    assert ask("inert", text="👩‍💻 a\u200db") == "👩‍💻 a\\u200db"


def test_colours_apply_until_reset(ask: Ask) -> None:
    ((plain, red, bold, after),) = ask("ansi", text="a\x1b[31mb\x1b[1mc\x1b[0md")
    assert plain == ["a", None]
    assert red[0] == "b"
    light, dark = red[1]["color"].removeprefix("light-dark(").removesuffix(")").split(", ")
    assert dark.startswith("rgb(255") and not light.startswith("rgb(255")
    assert bold[1]["fontWeight"] == "700"
    assert after == ["d", None]


def test_style_continues_across_lines(ask: Ask) -> None:
    first, second = ask("ansi", text="\x1b[1ma\nb\x1b[22m")
    assert first[0][1] == second[0][1] == {"fontWeight": "700"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10%\r20%", "20%"),
        ("abc\rX", "Xbc"),
        ("abc\r\x1b[KX", "X"),
        ("a\r\nb", "a\nb"),
        ("\x1b]8;;javascript:alert(1)\x07click\x1b]8;;\x07", "click"),
        ("\x1b]0;title\x1b\\x", "x"),
        ("\x1b]52;c;aGk=\x07x", "x"),
        ("\x1bPdata\x1b\\x", "x"),
        ("\x1b[2J\x1b[Hx\x1b[?25l", "x"),
        ("\x1b]0;never ended\nnext", "\nnext"),
        ("\u202ex\x07", "\\u202ex\\x07"),
        (HOSTILE, HOSTILE),
    ],
)
def test_terminal_commands_are_removed(ask: Ask, text: str, shown: str) -> None:
    assert "\n".join("".join(run[0] for run in line) for line in ask("ansi", text=text)) == shown


@given(st.lists(st.integers(0, 255), min_size=6, max_size=6))
def test_every_colour_is_readable_on_its_background(client: Client, parts: list[int]) -> None:
    """Also on those of both themes."""
    foreground, background = (";".join(map(str, part)) for part in (parts[:3], parts[3:]))
    text = f"\x1b[38;2;{foreground}ma\x1b[48;2;{background}mb\x1b[7mc\x1b[0m" + "".join(
        f"\x1b[{n}mx" for n in range(30, 38)
    )
    contrasts = run_part(client, "contrasts", text=text)
    assert contrasts
    assert min(contrasts) >= 4.5


def test_text_format_is_detected(ask: Ask) -> None:
    assert ask("isTerminal", text="\x1b[32mok\x1b[0m")
    assert not ask("isTerminal", text="ok [32m")
    assert ask("isMarkdown", text="# Title\n\nText")
    assert not ask("isMarkdown", text="#!/bin/sh\n# comment")


# Differences


def texts_of_kinds(lines: list[dict[str, Any]], kinds: tuple[str, str]) -> list[str]:
    return [line["text"] for line in lines if line["kind"] in kinds]


TEXTS = st.lists(st.sampled_from("abc"), max_size=12).map(lambda lines: "".join(f"{line}\n" for line in lines))


@given(TEXTS, TEXTS)
def test_diff_contains_both_texts(client: Client, before: str, after: str) -> None:
    lines = run_part(client, "compare", before=before, after=after)
    old = {line["old"]: line["text"] for line in lines if "old" in line}
    new = {line["new"]: line["text"] for line in lines if "new" in line}
    assert all(before.splitlines()[number - 1] == text for number, text in old.items())
    assert all(after.splitlines()[number - 1] == text for number, text in new.items())
    if before == after:
        assert not texts_of_kinds(lines, ("add", "del"))


def test_diff_shows_only_lines_near_a_change(ask: Ask) -> None:
    before = "".join(f"{n}\n" for n in range(50))
    lines = ask("compare", before=before, after=before.replace("25\n", "new\n"))
    assert [line["text"] for line in lines] == [
        "22 unchanged lines",
        "22",
        "23",
        "24",
        "25",
        "new",
        "26",
        "27",
        "28",
        "21 unchanged lines",
    ]


def test_unified_diff_is_detected_and_numbered(ask: Ask) -> None:
    diff = ask("diff", text="--- a/x\n+++ b/x\n@@ -7,2 +7,3 @@\n same\n-old\n+new\n+more\n")
    assert diff["is"]
    assert diff["tally"] == "+2 −1"
    assert [(line["kind"], line.get("old"), line.get("new")) for line in diff["lines"]] == [
        ("file", None, None), ("file", None, None), ("gap", None, None),
        ("same", 7, 7), ("del", 8, None), ("add", None, 8), ("add", None, 9),
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["a - b\n+ c", "--- \ntitle", "@@ no", "+1 -1"])
def test_other_texts_are_not_diffs(ask: Ask, text: str) -> None:
    assert not ask("diff", text=text)["is"]


# JSON


def test_closed_branch_has_a_summary(ask: Ask) -> None:
    assert ask("json", value={"a": 1, "b": "x"})["summary"] == '{a: 1, b: "x"}'
    assert ask("json", value=[[1], 2])["summary"] == "[2 items]"
    assert ask("json", value={"a": {"b": "\u202e"}})["line"] == '{"a":{"b":"\\u202e"}}'
    assert len(ask("json", value={"a": "x" * 5000})["line"]) <= 500


def test_text_is_json_only_if_all_of_it_is(ask: Ask) -> None:
    assert ask("parseJson", text=' {"a": [1]}\n') == {"a": [1]}
    assert ask("parseJson", text='{"a": 1} and more') is None
    assert ask("parseJson", text="3") is None


# Rows


@given(
    st.lists(st.integers(1, 40), unique=True, max_size=20),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 90)), max_size=20),
    st.integers(-50, 900),
)
def test_row_positions_are_sums_of_heights(
    client: Client, ids: list[int], measured: list[tuple[int, int]], y: int
) -> None:
    layout = run_part(client, "rows", ids=ids, measured=measured, y=y)
    measured_heights = dict(measured)
    heights = [measured_heights.get(id, 10 + id % 3) for id in ids]
    tops = list(accumulate(heights, initial=0))
    assert layout["tops"] == tops[:-1]
    assert layout["total"] == tops[-1]
    first, last = layout["between"]
    covered = range(first, last)
    assert all(at in covered for at in range(len(ids)) if tops[at] < y + 50 and tops[at + 1] > y)
