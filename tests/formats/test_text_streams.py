"""Join a thousand random texts with many repeats, split at random positions: each is unchanged (S2.4)."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise

import pytest

from tests.rules.test_streamed_text import join_chunks

TEXT_COUNT = 1000
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
def random_texts() -> list[str]:
    """Return texts of repeated tokens with ordinary words between them."""
    rng = random.Random(2024)

    def random_part() -> str:
        if rng.random() < 0.5:
            return rng.choice(TOKENS) * rng.randint(2, 12)
        return "".join(rng.choice(WORDS) for _ in range(rng.randint(1, 8)))

    return ["".join(random_part() for _ in range(rng.randint(1, 5))) for _ in range(TEXT_COUNT)]


def random_offsets(text: str, rng: random.Random) -> list[int]:
    """Return sorted offsets to split a text at: some random ones, or all."""
    if rng.random() < 0.3:
        return list(range(1, len(text)))
    count = rng.randint(0, min(40, max(0, len(text) - 1)))
    return sorted(rng.sample(range(1, len(text)), count)) if count else []


def split_randomly(text: str, rng: random.Random) -> list[str]:
    """Split a text at random offsets."""
    ends = [0, *random_offsets(text, rng), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


def always_extends(chunks: list[str]) -> bool:
    """Return whether every chunk starts with the previous one, as in a cumulative stream."""
    return len(chunks) > 2 and all(later.startswith(before) for before, later in pairwise(chunks))


def looks_cumulative(chunks: list[str]) -> bool:
    """Return whether the first chunks extend each other, three times in a row and up to at least 24 characters."""
    growth_count = 0
    for before, later in pairwise(chunks):
        if not later.startswith(before):
            return False
        growth_count = growth_count + 1 if len(later) > len(before) else 0
        if growth_count >= 3 and len(later) >= 24:
            return True
    return False


@pytest.mark.parametrize("policy", ["delta", "auto"])
def test_random_deltas_give_the_text_unchanged(policy: str) -> None:
    """Repeated text; undeclared, except for streams that look cumulative from their beginning."""
    rng = random.Random(7)
    skipped_count = 0
    for text in random_texts():
        chunks = split_randomly(text, rng)
        if policy == "auto" and (always_extends(chunks) or looks_cumulative(chunks)):
            skipped_count += 1
            continue
        assert join_chunks(*chunks, chunks_are=policy) == text, chunks
    assert skipped_count <= TEXT_COUNT // 50


@pytest.mark.parametrize("policy", ["cumulative", "auto"])
def test_cumulative_chunks_give_the_text_unchanged(policy: str) -> None:
    """Each chunk is the full text so far; an undeclared source needs at least two growths to be detected."""
    rng = random.Random(11)
    checked_count = 0
    for text in random_texts():
        chunks = [text[:end] for end in [*random_offsets(text, rng), len(text)]]
        if policy == "auto" and len(chunks) < 3:
            continue
        checked_count += 1
        assert join_chunks(*chunks, chunks_are=policy) == text, chunks
    assert checked_count > TEXT_COUNT // 2
