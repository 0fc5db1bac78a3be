"""Patterns of texts and paths: what they match, and that their cost grows with the text only."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.rules.text_pattern import MAX_REGEX_TEXT_CHARS, TextPattern


def compile_slowly(pattern: str, *, is_path: bool) -> re.Pattern[str]:
    """Return the obvious regular expression for a pattern, which tries every place for every star."""
    one, many = ("[^/]", "[^/]*") if is_path else (".", ".*")
    wildcards = {"?": one, "*": many, "**": ".*"}
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    return re.compile("".join(wildcards.get(part) or re.escape(part) for part in parts), re.DOTALL)


@given(st.text("ab/*?.\n", max_size=8), st.text("ab/.\n", max_size=10), st.booleans())
def test_a_pattern_matches_what_its_expression_matches(pattern: str, text: str, is_path: bool) -> None:
    """POL8: The fast way and the obvious way agree, for texts and for paths."""
    expected = compile_slowly(pattern, is_path=is_path).fullmatch(text) is not None
    assert TextPattern(pattern, is_path=is_path).matches(text) is expected


@pytest.mark.parametrize(
    ("pattern", "text", "is_path"),
    [
        ("*rm*-r*f*/*", "rm -rf ", False),
        ("*a*a*a*a*a*b", "a", False),
        ("?*?*?*?*x", "ab", False),
        ("/**a*b**a*b**c", "/a", True),
        ("/*a*a*a*a*b", "a", True),
        ("**/**/**/**/x", "a/", True),
    ],
)
def test_the_time_grows_linearly_with_the_text(pattern: str, text: str, is_path: bool) -> None:
    """POL8: Eight times the text takes about eight times as long, however many stars there are."""

    def measure(count: int) -> float:
        long_text = text * (count // len(text))
        compiled = TextPattern(pattern, is_path=is_path)
        times: list[float] = []
        for _ in range(5):
            start = time.thread_time()
            assert compiled.matches(long_text) is False
            times.append(time.thread_time() - start)
        return min(times)

    assert measure(8 * 20_000) < 64 * max(measure(20_000), 1e-4)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("git *", "git log", True),
        ("git *", "git", False),
        ("exact:a*", "a*", True),
        ("exact:a*", "ab", False),
        ("exact:", "", True),
        ("regex:a|b", "b", True),
        ("regex:a", "ab", False),
        ("a.c", "abc", False),
        ("a\\?c", "a\\bc", True),
        ("*", "", True),
        ("*", "a\nb", True),
    ],
)
def test_prefixes_choose_the_kind_of_pattern(pattern: str, text: str, matches: bool) -> None:
    """`exact:` has no wildcards, `regex:` has the syntax of Python."""
    assert TextPattern(pattern).matches(text) is matches


def test_the_exact_text_of_a_pattern_is_known() -> None:
    """POL3: A pattern without wildcards matches one text."""
    assert [TextPattern(text).exact for text in ("a", "exact:a*", "a*", "a?", "regex:a")] == [
        "a",
        "a*",
        None,
        None,
        None,
    ]


def test_a_long_text_is_unknown_for_a_regular_expression() -> None:
    """POL8: The author of an expression does not choose the text, so its length is limited."""
    assert TextPattern("regex:.*").matches("x" * MAX_REGEX_TEXT_CHARS) is True
    assert TextPattern("regex:.*").matches("x" * (MAX_REGEX_TEXT_CHARS + 1)) is None


def test_paths_can_ignore_the_case_of_letters() -> None:
    """Some file systems do, so rules that deny do, too."""
    for pattern in ("/ETC/**", "/ETC/passwd", "regex:/ETC/.*"):
        assert TextPattern(pattern, is_path=True, ignore_case=True).matches("/etc/PASSWD".lower()) is True
        assert TextPattern(pattern, is_path=True).matches("/etc/passwd") is False
