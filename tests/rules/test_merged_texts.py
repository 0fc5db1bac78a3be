"""Texts of the session file that are compared with what was recorded live."""

from __future__ import annotations

import random

from callslip.model import events as ev
from callslip.rules.merged_texts import MIN_COMMON_CHARS, LiveTexts

LONG = 1_000_000


def live(*chunks: str) -> LiveTexts:
    return LiveTexts(ev.MessageDelta(text=chunk, source="acp") for chunk in chunks)


def find_slowly(chunks: list[str], text: str) -> str | None:
    """Compare with every sequence of chunks, as the module docstring says it."""
    joined, ends = "".join(chunks), [len("".join(chunks[:count])) for count in range(len(chunks) + 1)]
    if any(joined[start:end] == text for start in ends for end in ends if start <= end):
        return ""
    starts = [0, *(start for start in ends if len(joined) - start >= MIN_COMMON_CHARS)]
    start = next((start for start in starts if start < len(joined) and text.startswith(joined[start:])), None)
    return None if start is None else text[len(joined) - start :]


def test_a_text_is_found_where_chunks_start_and_end() -> None:
    """MRG7: whole, or from its beginning if the live text may continue."""
    choices = random.Random(7)
    results: set[str] = set()
    for _ in range(1500):
        chunks = ["".join(choices.choices("ab", k=choices.randint(1, 8))) for _ in range(choices.randint(1, 5))]
        parts = choices.choices([*chunks, "a", "bb"], k=choices.randint(1, 4))
        text = "".join(chunks[choices.randrange(len(chunks)) :] + parts) if choices.random() < 0.5 else "".join(parts)
        expected = find_slowly(chunks, text)
        assert live(*chunks).match(ev.MessageDelta, text) == expected, (chunks, text)
        results.add("nothing" if expected is None else "all" if expected == "" else "the beginning")
    assert results == {"nothing", "all", "the beginning"}


def test_very_long_texts_are_compared_only_where_chunks_start() -> None:
    """MRG7: texts that are equal nearly everywhere do not delay the ledger."""
    texts = live("a" * LONG, *"b" * 10_000)
    for _ in range(10):
        assert texts.match(ev.MessageDelta, "a" * (LONG // 2)) is None
    assert texts.match(ev.MessageDelta, "a" * LONG) == ""
    unfinished = live(*(f"word {number} " for number in range(50_000)))
    for _ in range(10):
        assert unfinished.match(ev.MessageDelta, "another text of the file") is None
