"""A thousand texts as models write them, full of repeats, cut at random: each comes out as it was (S2.4)."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise

import pytest

from tests.rules.test_streamed_text import joined

HOW_MANY = 1000
TOKENS = [
    "ha ",
    "0 ",
    "no ",
    "very ",
    "| --- ",
    "----",
    "=",
    "\n    ",
    "    return x\n",
    "}\n",
    "1",
    "00",
    "…",
    "é",
    "👍",
]
WORDS = ["The", " test", " passes", " in", " the", " end", ".", " So", " it", " does", ",", " twice"]


@cache
def texts() -> list[str]:
    """Runs of one token, tables, indented code, and ordinary words between them."""
    rand = random.Random(2024)

    def part() -> str:
        if rand.random() < 0.5:
            return rand.choice(TOKENS) * rand.randint(2, 12)
        return "".join(rand.choice(WORDS) for _ in range(rand.randint(1, 8)))

    return ["".join(part() for _ in range(rand.randint(1, 5))) for _ in range(HOW_MANY)]


def cuts(text: str, rand: random.Random) -> list[int]:
    """Places to cut a text at, in order: few or many, or one token after the other."""
    if rand.random() < 0.3:
        return list(range(1, len(text)))
    count = rand.randint(0, min(40, max(0, len(text) - 1)))
    return sorted(rand.sample(range(1, len(text)), count)) if count else []


def deltas(text: str, rand: random.Random) -> list[str]:
    """The text in pieces."""
    ends = [0, *cuts(text, rand), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


def always_extends(chunks: list[str]) -> bool:
    """Whether every chunk begins with the whole one before it, so that nothing tells it from a cumulative stream."""
    return len(chunks) > 2 and all(later.startswith(before) for before, later in pairwise(chunks))


def proves_itself_cumulative(chunks: list[str]) -> bool:
    """Whether a beginning of the stream does, three times longer and at least 24 characters in the end."""
    growths = 0
    for before, later in pairwise(chunks):
        if not later.startswith(before):
            return False
        growths = growths + 1 if len(later) > len(before) else 0
        if growths >= 3 and len(later) >= 24:
            return True
    return False


@pytest.mark.parametrize("policy", ["delta", "auto"])
def test_random_deltas_give_the_text_unchanged(policy: str) -> None:
    """Repeated text; undeclared, except for streams that look cumulative from their beginning."""
    rand = random.Random(7)
    alike = 0
    for text in texts():
        chunks = deltas(text, rand)
        if policy == "auto" and (always_extends(chunks) or proves_itself_cumulative(chunks)):
            alike += 1
            continue
        assert joined(*chunks, chunks_are=policy) == text, chunks
    assert alike <= HOW_MANY // 50


@pytest.mark.parametrize("policy", ["cumulative", "auto"])
def test_cumulative_chunks_give_the_text_unchanged(policy: str) -> None:
    """Each chunk is the full text so far; an undeclared source needs at least two growths to be detected."""
    rand = random.Random(11)
    looked_at = 0
    for text in texts():
        chunks = [text[:end] for end in [*cuts(text, rand), len(text)]]
        if policy == "auto" and len(chunks) < 3:
            continue
        looked_at += 1
        assert joined(*chunks, chunks_are=policy) == text, chunks
    assert looked_at > HOW_MANY // 2
