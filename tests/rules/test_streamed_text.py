"""Joining streamed text: each policy, and how the policy of an undeclared source is detected (S2.4)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from callslip.model import events as ev
from callslip.model.entries import Append, Patch, Put
from callslip.rules.fold import SessionFold
from callslip.rules.streamed_text import (
    MAX_PIECES,
    IncompleteTextError,
    StreamedText,
    merge_chunk,
    replace_if_cumulative,
    utf16_length,
)
from tests.support.strategies import pieces

CUMULATIVE = ["I", "I will", "I will look", "I will look at the tests"]  # three growths, the last of 24 characters


class TextSession:
    """A fold of text chunks."""

    def __init__(self) -> None:
        self.state = SessionFold("s")

    def add_chunks(
        self, *chunks: str, cls: Any = ev.MessageDelta, chunks_are: str = "auto", source: str = "a"
    ) -> list[Patch]:
        """Apply chunks and return their patches."""
        patches: list[Patch] = []
        for chunk in chunks:
            patches += self.apply(cls(text=chunk, chunks=chunks_are, source=source))
        return patches

    def end(self) -> list[Patch]:
        return self.apply(ev.MessageEnded())

    def apply(self, event: Any) -> list[Patch]:
        return self.state.apply(structs.replace(event, seq=self.state.seq + 1))

    @property
    def texts(self) -> list[str]:
        return [entry.content for entry in self.state.snapshot().entries]


def join_chunks(*chunks: str, chunks_are: str = "auto") -> str:
    """Return the text of these chunks after the end of the message."""
    session = TextSession()
    session.add_chunks(*chunks, chunks_are=chunks_are)
    session.end()
    return "".join(session.texts)


# Deltas


@given(st.lists(pieces, max_size=20))
def test_declared_deltas_are_joined_unchanged(parts: list[str]) -> None:
    """S2.4: any split of a text gives that text."""
    assert join_chunks(*parts, chunks_are="delta") == "".join(parts)


@given(st.sampled_from(["ha", "0", "\n", "é", "👩‍👧", "  "]), st.integers(1, 40))
def test_repeated_deltas_are_kept(token: str, times: int) -> None:
    """S2.4: a repeated delta is not a duplicate."""
    assert join_chunks(*[token] * times, chunks_are="delta") == token * times


@given(st.lists(pieces, max_size=20))
def test_the_length_of_a_text_is_in_utf16_units(parts: list[str]) -> None:
    """As in a browser, counted live or afterwards."""
    text = StreamedText()
    for part in parts:
        text.append(part)
    full_text = "".join(parts)
    assert text.length() == utf16_length(full_text) == len(full_text.encode("utf-16-le")) // 2
    text.counted = False
    assert (text.length(), text.value()) == (utf16_length(full_text), full_text)


def test_patch_offsets_are_in_utf16_units() -> None:
    """An emoji counts two, an e with a combining accent two, a CJK character one."""
    patches = TextSession().add_chunks("😀", "e\u0301", "日", "x", chunks_are="delta")
    assert [patch.offset for patch in patches if isinstance(patch, Append)] == [0, 2, 4, 5]


# Undeclared chunks


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        (["ha", "ha"], "haha"),
        (["1", "0", "0"], "100"),
        (["I", "I'll", "I'll check"], "I'll check"),
        (["I", "I'll"], "II'll"),  # one growth proves nothing
        (["a", "ab", "abc", "x"], "aababcx"),  # growths and then another chunk were deltas
        (["", "a", "", "ab", "", "abc", ""], "abc"),  # empty chunks prove nothing
        (["a", "ab", "ab", "abc"], "aabababc"),  # a repetition is not a growth
        (["the ", "the ", "end"], "the the end"),
        (CUMULATIVE, CUMULATIVE[-1]),
        ([*CUMULATIVE, CUMULATIVE[-1]], CUMULATIVE[-1]),
        ([*CUMULATIVE, "I will"], CUMULATIVE[-1]),
        ([*CUMULATIVE, "No."], "No."),
        ([*CUMULATIVE, ""], CUMULATIVE[-1]),
    ],
)
def test_an_undeclared_text_is_deltas_unless_proven_cumulative(chunks: list[str], text: str) -> None:
    """S2.4"""
    assert join_chunks(*chunks) == text


def test_an_undeclared_text_reads_as_deltas_until_its_end() -> None:
    """S2.4: `I` `I'll` `I'll check` is corrected at its end, by one put, and is streaming until then."""
    session = TextSession()
    session.add_chunks("I", "I'll", "I'll check")
    assert session.texts == ["II'llI'll check"]
    (repair,) = session.end()
    assert isinstance(repair, Put) and repair.entry.content == "I'll check" and not repair.entry.streaming
    assert session.texts == ["I'll check"]


def test_three_growths_to_24_characters_prove_a_cumulative_source() -> None:
    """S2.4: the text is replaced by one put; later chunks are full texts, of which the new part is appended."""
    session = TextSession()
    assert not [
        patch for patch in session.add_chunks(*CUMULATIVE[:3]) if isinstance(patch, Put) and patch.entry.content
    ]
    (repair,) = session.add_chunks(CUMULATIVE[3])
    assert isinstance(repair, Put) and repair.entry.content == CUMULATIVE[3] and repair.entry.streaming
    assert session.add_chunks(CUMULATIVE[3] + "!") == [Append(1, "content", 24, "!")]
    assert session.add_chunks(CUMULATIVE[3]) == session.add_chunks("I will") == session.add_chunks("") == []
    assert session.texts == [CUMULATIVE[3] + "!"]


def test_two_growths_of_any_length_prove_nothing() -> None:
    """S2.4: the third one does."""
    session = TextSession()
    session.add_chunks("x", "x" * 30, "x" * 60)
    assert not session.state.proven and session.texts == ["x" * 91]
    session.add_chunks("x" * 61)
    assert session.state.proven and session.texts == ["x" * 61]


def test_three_growths_below_24_characters_prove_nothing() -> None:
    """S2.4: 23 characters are one too few; the growth that reaches 24 proves it."""
    session = TextSession()
    session.add_chunks("a", "ab", "abc", "abc" + "d" * 20)
    assert not session.state.proven
    session.add_chunks("abc" + "d" * 21)
    assert session.state.proven == {("a", "message"): "cumulative"}
    assert session.texts == ["abc" + "d" * 21]


@pytest.mark.parametrize(
    ("first", "proof", "chunks", "text"),
    [
        (CUMULATIVE, "cumulative", ["Yes", "Yes, it"], "Yes, it"),
        (["one", " two"], "delta", ["I", "I'll", "I'll check"], "II'llI'll check"),
        (["one", " two"], "delta", CUMULATIVE, "".join(CUMULATIVE)),
    ],
)
def test_a_proven_policy_holds_for_its_source_and_kind(
    first: list[str], proof: str, chunks: list[str], text: str
) -> None:
    """S2.4: for the rest of the session, but not for another source or for thoughts."""
    session = TextSession()
    session.add_chunks(*first)
    session.end()
    assert session.state.proven == {("a", "message"): proof}
    session.add_chunks(*chunks)
    session.end()
    assert session.texts[1] == text
    session.add_chunks("1", "1 2", source="b")
    session.end()
    session.add_chunks("1", "1 2", cls=ev.ThoughtDelta)
    assert session.texts[2:] == ["11 2", "11 2"]
    assert len(session.state.proven) == 1


def test_a_growing_text_is_corrected_by_any_end() -> None:
    """S2.4, S2.12: a new entry or the end of the turn ends a text as `message.ended` does."""
    for ending in (ev.MessageUser(text="stop"), ev.TurnEnded(), ev.CallProposed(call="exec_0")):
        session = TextSession()
        session.add_chunks("I", "I'll", "I'll check")
        session.apply(ending)
        assert session.state.snapshot().entries[0].content == "I'll check"


@given(st.lists(pieces.filter(bool), min_size=2, max_size=12))
def test_an_undeclared_text_is_all_its_chunks_or_the_last_chunk(parts: list[str]) -> None:
    """S2.4: no text is lost: the result has every chunk, or the newest one, which has them all."""
    assert join_chunks(*parts) in ("".join(parts), parts[-1], *(p for p in parts if p.startswith(parts[-1])))


# Cumulative


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        (["a", "ab", "abc"], "abc"),
        (["abc", "abc", "ab", "", "a"], "abc"),
        (["abc", "xyz"], "xyz"),
        (["abc", "xyz", "xyz!"], "xyz!"),
        (["ha", "haha"], "haha"),
    ],
)
def test_a_cumulative_chunk_is_the_full_text(chunks: list[str], text: str) -> None:
    """S2.4: equal or shorter prefixes change nothing, anything else replaces."""
    assert join_chunks(*chunks, chunks_are="cumulative") == text


# Dedupe


def dedupe_reference(chunks: list[str]) -> str:
    """Join chunks: drop one that the text ends with, and replace the text by one that starts with it."""
    text = ""
    for chunk in chunks:
        if text and chunk.startswith(text):
            text = chunk
        elif not text.endswith(chunk):
            text += chunk
    return text


@given(st.lists(st.sampled_from(["a", "b", "aa", "ab", "aba", "😀", "a😀"]), max_size=12))
def test_dedupe_drops_suffixes_and_replaces_extensions(chunks: list[str]) -> None:
    """S2.4: other chunks are appended; genuine repetitions are lost."""
    assert join_chunks(*chunks, chunks_are="dedupe") == dedupe_reference(chunks)
    assert join_chunks("ha", "ha", chunks_are="dedupe") == "ha"


@given(st.lists(pieces, max_size=8), st.lists(pieces, max_size=3).map("".join), st.booleans())
def test_ends_with_works_across_chunks(parts: list[str], tail: str, is_suffix: bool) -> None:
    """It gives the same result as for the joined text."""
    text, full_text = StreamedText(), "".join(parts)
    for part in parts:
        text.pieces.append(part)
        if len(part) % 2:
            text.squash()
    tail = full_text[-len(tail) :] if is_suffix else tail
    if tail:
        assert text.ends_with(tail) == full_text.endswith(tail)


# Storage of pieces


def test_many_chunks_are_stored_as_few_strings() -> None:
    """C12: pieces are joined block by block, and the full text only when it is needed."""
    text = StreamedText()
    for _ in range(10 * MAX_PIECES + 7):
        merge_chunk(text, "x", "delta")
    assert (len(text.blocks), len(text.pieces)) == (10, 7)
    assert text.value() == "x" * (10 * MAX_PIECES + 7)
    assert (len(text.blocks), len(text.pieces)) == (1, 0)


@pytest.mark.parametrize("count", [MAX_PIECES - 1, MAX_PIECES, MAX_PIECES + 1, 2 * MAX_PIECES, 3 * MAX_PIECES + 5])
def test_a_live_text_is_stored_as_few_strings(count: int) -> None:
    """C12: chunks applied one by one become blocks too, and the text is complete at every block boundary."""
    session = TextSession()
    chunks = [f"{number} " for number in range(count)]
    session.add_chunks(*chunks, chunks_are="delta")
    assert session.state.stream is not None
    text = session.state.stream.text
    assert (len(text.blocks), len(text.pieces)) == divmod(count, MAX_PIECES)
    assert session.texts == ["".join(chunks)]


def test_a_text_read_in_bulk_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """C12: the first live chunk after a bulk read measures the text, the next ones do not read it again."""
    session = TextSession()
    session.state.fold(ev.MessageDelta(seq=number, text="😀", chunks="delta", source="a") for number in range(1, 101))
    value, read_at = StreamedText.value, list[int]()

    def counting_value(text: StreamedText) -> str:
        read_at.append(session.state.seq)
        return value(text)

    monkeypatch.setattr(StreamedText, "value", counting_value)
    patches = session.add_chunks(*"abcde", chunks_are="delta")
    assert [patch.offset for patch in patches if isinstance(patch, Append)] == [200, 201, 202, 203, 204]
    assert read_at == [100]


def test_a_replaced_text_has_its_new_length() -> None:
    """A cumulative chunk that replaces unmeasured deltas leaves no part of the old length in the next offset."""
    session = TextSession()
    session.state.fold(ev.MessageDelta(seq=number, text="old", chunks="delta", source="a") for number in range(1, 11))
    session.add_chunks("new 😀", chunks_are="cumulative")
    assert session.add_chunks("new 😀!", chunks_are="cumulative") == [Append(1, "content", 6, "!")]
    assert session.texts == ["new 😀!"]


def test_a_text_without_its_beginning_can_only_be_appended_to() -> None:
    """A comparison with the full text raises if its beginning is missing."""
    text = StreamedText()
    text.missing, text.missing_chars, text.units = 5, 5, 5
    assert merge_chunk(text, " more", "delta").added == " more"
    assert text.length() == 10
    for policy in ("cumulative", "dedupe"):
        with pytest.raises(IncompleteTextError):
            merge_chunk(text, "other", policy)
    assert not replace_if_cumulative(text)
