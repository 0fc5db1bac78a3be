"""The project uses ordinary words: no avoided word in prose, no avoided name in code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.language import Finding, checked_files, find_avoided
from tests.support.paths import ROOT

# Texts that are stored in ledgers or compared with recorded data, and so cannot change.
STORED_TEXTS = {
    ("src/callslip/formats/ai_sdk/decode_calls.py", "anew"),
    ("src/callslip/formats/openai/responses_output.py", "broke off"),
    ("src/callslip/formats/providers/conversation.py", "broke off"),
}


def find_replaceable(path: Path) -> list[Finding]:
    """Return the words and names of a file that should be replaced."""
    return [finding for finding in find_avoided(path) if (str(finding.path), finding.text) not in STORED_TEXTS]


def test_no_avoided_word_or_name_is_used() -> None:
    """`python -m tests.support.language` lists what is wrong, and tests/support/language.py what to write instead."""
    findings = [finding for path in checked_files() for finding in find_replaceable(path)]
    assert not findings, "\n" + "\n".join(map(str, findings))


def test_exceptions_still_exist() -> None:
    """A text that was changed leaves the list of exceptions."""
    words = {(str(finding.path), finding.text) for name, _ in STORED_TEXTS for finding in find_avoided(ROOT / name)}
    assert words >= STORED_TEXTS


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", '"""Whoever asks is told."""\n', ["Whoever", "is told"]),
        ("a.py", "x = 1  # nobody waits\n", ["nobody"]),
        ("a.py", 'raise ValueError("will do")\n', ["will do"]),
        ("a.md", "It goes on\nand on.\n", ["goes on"]),
        ("a.js", "// mended\n", ["mended"]),
        ("a.py", "def told(given, asked=1):\n    said, MOST = given, 1\n", ["told", "given", "asked", "said", "MOST"]),
        ("a.py", "class A:\n    def f(self):\n        self._made = 1\n", ["_made"]),
        (
            "a.py",
            "with a as made:\n    for b, given in c:\n        d[(asked := 1)].said += 1\n",
            ["made", "given", "asked", "said"],
        ),
        ("a.py", 'x = "it will " "do", "\\nobody", "\\nnobody"\n', ["will do", "nobody"]),
        ("a.py", "@given(told)\ndef f(a):\n    return said.made\n", []),
        ("a.py", '"""Return the caller\'s name."""\ncount = 1\n', []),
    ],
)
def test_avoided_words_and_names_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, expected: list[str]
) -> None:
    """In docstrings, comments, strings, Markdown, scripts and the names that code binds."""
    monkeypatch.setattr("tests.support.language.ROOT", tmp_path)
    (tmp_path / name).write_text(text, "utf-8")
    assert sorted(finding.text for finding in find_avoided(tmp_path / name)) == sorted(expected)
