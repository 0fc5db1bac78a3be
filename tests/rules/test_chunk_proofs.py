"""The proof of a cumulative source by one chunk that begins with the whole text so far (S2.4)."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from callslip.model import events as ev
from callslip.model.entries import Append, Message, Put
from callslip.rules.fold import SessionFold

SENTENCE = ("I'll check", "I'll check the weather in Paris.")


def fold_chunks(*chunks: str, state: SessionFold | None = None, end: bool = True) -> SessionFold:
    """Return a session after undeclared chunks and the end of their message."""
    state = state or SessionFold("s")
    events: list[ev.Event] = [ev.MessageDelta(text=chunk, source="a") for chunk in chunks]
    for event in [*events, *([ev.MessageEnded()] if end else [])]:
        state.apply(structs.replace(event, seq=state.seq + 1))
    return state


def texts_of(state: SessionFold) -> list[str]:
    return [entry.content for entry in state.snapshot().entries]


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        (SENTENCE, "I'll check the weather in Paris."),  # 10 characters are enough
        (("I'll chec", "I'll check it"), "I'll checI'll check it"),  # 9 are not
        (("I'll check", "I'll check"), "I'll checkI'll check"),  # an equal chunk is not longer
        (("-" * 12, "-" * 20), "-" * 32),  # a repetition of one character
        (("haha haha ", "haha haha haha"), "haha haha haha haha haha"),  # a repetition of a word
        (("|---|---|---|", "|---|---|---|---|\n"), "|---|---|---||---|---|---|---|\n"),  # the last piece is cut off
        (
            ("I'll check", "I'll check", "I'll checkI'll check!"),
            "I'll check" * 4 + "!",
        ),  # the whole text repeats itself
        (("Hello, Paris", "Hello, Berlin"), "Hello, ParisHello, Berlin"),  # begins with a part of the text only
        (("äöü ß 日本語 x", "äöü ß 日本語 xy"), "äöü ß 日本語 xy"),
    ],
)
def test_a_chunk_with_the_whole_text_proves_a_cumulative_source(chunks: tuple[str, ...], text: str) -> None:
    """S2.4, ENT9: one such chunk is enough if the text has 10 characters and is not a repetition."""
    assert texts_of(fold_chunks(*chunks)) == [text]


def test_the_proof_replaces_the_text_at_once_and_holds_for_later_messages() -> None:
    """S2.4: the text becomes the newest chunk by one put; the next message of the source is read so too."""
    state = fold_chunks(SENTENCE[0], end=False)
    (repair,) = state.apply(ev.MessageDelta(text=SENTENCE[1], source="a", seq=2))
    assert isinstance(repair, Put) and isinstance(repair.entry, Message)
    assert repair.entry.content == SENTENCE[1] and repair.entry.streaming
    assert state.apply(ev.MessageDelta(text=SENTENCE[1] + " 1", source="a", seq=3)) == [Append(1, "content", 32, " 1")]
    state.apply(ev.MessageEnded(seq=4))
    fold_chunks("It", "It is", "It is warm.", state=state)
    assert texts_of(state) == [SENTENCE[1] + " 1", "It is warm."]


@given(st.text("ab |-", min_size=1, max_size=8), st.integers(2, 6), st.data())
def test_deltas_of_a_repeated_piece_are_never_taken_as_cumulative(piece: str, times: int, data: st.DataObject) -> None:
    """S2.4: any two deltas of a text that only repeats a piece, at least twice in the first, are both kept."""
    first = piece * times + piece[: data.draw(st.integers(0, len(piece)))]
    second = first + data.draw(st.text("ab |-", min_size=1, max_size=4))
    assert texts_of(fold_chunks(first, second)) == [first + second]


@given(st.lists(st.text("abc d", min_size=1, max_size=6), min_size=1, max_size=12))
def test_cumulative_chunks_after_the_proof_give_the_text(words: list[str]) -> None:
    """S2.4: the text of a cumulative source is its last chunk, for any chunks after the proof."""
    chunks = ["".join((*SENTENCE[1:], *words[:count])) for count in range(len(words) + 1)]
    assert texts_of(fold_chunks(SENTENCE[0], *chunks)) == [chunks[-1]]


def test_the_proof_costs_no_more_than_its_chunk() -> None:
    """C12: a long text that almost repeats itself is compared in linear time."""
    first = "a" * 1_000_000 + "b"
    start = time.process_time()
    assert texts_of(fold_chunks(first, first + "c")) == [first + "c"]
    assert time.process_time() - start < 1
