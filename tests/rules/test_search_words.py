"""How texts and queries are split into words, and where a query is in a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.model.entries import Message, ToolCall
from callslip.model.search import SearchResult, split_excerpt
from callslip.rules.search_text import (
    MAX_ENTRY_WORDS,
    RESERVED_WORDS,
    Field,
    describe_result,
    entry_fields,
    index_fields,
    rank_entry,
)
from callslip.rules.search_words import (
    GAP,
    MAX_REPEATS,
    MAX_WORD_CHARS,
    Phrase,
    find_phrases,
    index_texts,
    parse_query,
    tokens,
)
from callslip.store.search import SearchRow, WordQuery, fts5_query, range_marks, time_marks, tsquery, tsvector


@pytest.mark.parametrize(
    ("text", "words", "names"),
    [
        ("rm -rf /tmp/x", "rm rf tmp x", ""),
        ("readFileSync HTTPServer2", "read file sync http server2", "httpserver2 readfilesync"),
        ("SNAKE_case __init__ _x", "snake case init x", "snakecase"),
        ("A1B2C3 9F8E v1.2.3 sha256", "a1b2c3 9f8e v1 2 3 sha256", ""),
        ("Straße CAFÉ naïve", "strasse cafe naive", ""),
        ("cafe\u0301 नमस्ते", "cafe नमस्ते", ""),
        ("全文検索とPython", "全文 文検 検索 索と python", "と 全 文 検 索"),
        ("中", "中", "中"),
        ("ｆｕｌｌ ①", "full 1", ""),
        ("\x1b[1;31mError\x1b[0m \x1b]8;;http://x\x07link\x1b]8;;\x1b\\ \x1bc", "error link c", ""),
    ],
)
def test_a_text_is_split_into_words(text: str, words: str, names: str) -> None:
    """SRCH2"""
    indexed = index_texts([text], 100, 0)
    assert (" ".join(indexed.words), " ".join(indexed.names)) == (words, names)


@given(st.lists(st.text(max_size=40) | st.text("aB_9-é设 \n\"'", max_size=40), max_size=4))
def test_words_cannot_end_the_quotes_of_a_query_language(texts: list[str]) -> None:
    """They have ASCII letters and digits, and other characters, but no ASCII punctuation. SRCH2"""
    indexed = index_texts(texts, 1000, 0)
    for word in [*indexed.words, *indexed.names]:
        assert word and len(word) <= MAX_WORD_CHARS
        assert all(char.isalnum() or not char.isascii() for char in word) and word == word.lower()


@given(st.text(max_size=60) | st.text("aBc_9-é设定 .", max_size=60), st.data())
def test_a_part_of_a_text_between_spaces_is_found_in_it(text: str, data: st.DataObject) -> None:
    """The words of a query and those of a text are the same, and their place is found. SRCH2 SRCH3"""
    pieces = [piece for piece in text.replace('"', " ").split() if list(tokens(piece))]
    if not pieces:
        return
    phrases = parse_query(data.draw(st.sampled_from(pieces)))
    found = find_phrases(text, phrases, 1000)
    assert {place.phrase for place in found} == set(range(len(phrases)))
    assert all(0 <= place.start < place.end <= len(text) for place in found)


def test_only_so_many_places_of_a_word_are_stored() -> None:
    """The words after them keep their places. SRCH5"""
    indexed = index_texts(["x " * 1000 + "end"], 10_000, 0)
    assert indexed.words.count("x") == MAX_REPEATS
    assert (len(indexed.words), indexed.words[-1], set(indexed.words)) == (1001, "end", {"x", GAP, "end"})


def test_a_long_input_leaves_room_for_the_output() -> None:
    """SRCH5"""
    long = " ".join(f"w{number}" for number in range(12_000))
    indexed = index_fields([Field("rawInput", long), Field("content", long), Field("output", long)])
    assert len(indexed.words) <= MAX_ENTRY_WORDS
    assert indexed.words.count("w0") == 3 and indexed.words.count("w1999") == 3
    assert len(indexed.words) > MAX_ENTRY_WORDS - RESERVED_WORDS


@pytest.mark.parametrize(
    ("typed", "phrases"),
    [
        ("rm -rf", [Phrase(("rm",)), Phrase(("rf",))]),
        ("src/app.py", [Phrase(("src", "app", "py"))]),
        ('"no such" file', [Phrase(("no", "such")), Phrase(("file",))]),
        ('no "such', [Phrase(("no",)), Phrase(("such",))]),
        ("readFile", [Phrase(("read", "file"), "readfile")]),
        ("a a A", [Phrase(("a",))]),
        ("x中y", [Phrase(("x",)), Phrase(("中",)), Phrase(("y",))]),
        ("全文検索", [Phrase(("全文", "文検", "検索"))]),
    ],
)
def test_a_query_is_split_into_phrases(typed: str, phrases: list[Phrase]) -> None:
    """SRCH2"""
    assert parse_query(typed) == phrases


def test_queries_of_the_engines_have_the_same_words() -> None:
    """SRCH1"""
    query = WordQuery(phrases=parse_query("src/app readFile x"), sessions=[7], tool="Bash", states=["failed", "lost"])
    assert fts5_query(query).startswith('(words : "src app") AND (words : "read file" OR "readfile") AND "x" AND names')
    assert tsquery(query).startswith("('src' <-> 'app') & (('read' <-> 'file') | 'readfile') & ('x') & (")
    for mark in (f"{GAP}s7", f"{GAP}afailed", f"{GAP}alost"):
        assert f'"{mark}"' in fts5_query(query) and f"'{mark}'" in tsquery(query)
    row = SearchRow(1, 1, 1, ["a", GAP, "b", "a"], ["a", "ab"])
    assert tsvector(row) == "'a':1,4 'b':3 'ab'"


@given(*[st.integers(0, 2**43)] * 3)
def test_the_marks_of_a_range_are_those_of_its_times(since: int, length: int, at: int) -> None:
    """A day in the range has exactly one of them, another day none. There are few. SRCH6"""
    marks = list(range_marks(since, since + length + 1))
    count = len(set(marks) & set(time_marks(at)))
    is_inside = time_marks(since)[0][2:] <= time_marks(at)[0][2:] <= time_marks(since + length)[0][2:]
    assert (count, len(marks)) == (is_inside, len(set(marks))) and len(marks) <= 30 + 11 + 131 + 11 + 30


def test_an_excerpt_has_most_of_the_words() -> None:
    """SRCH3"""
    text = "alpha " + "filler " * 100 + "\nalpha beta gamma\n" + "filler " * 100
    entry = Message(id=4, role="user", content=text)
    result = describe_result("s", "t", entry, entry_fields(entry), parse_query("gamma alpha beta"))
    assert (result.offset, result.field) == (text.index("\nalpha") + 1, "content")
    assert [part for part, is_found in split_excerpt(result) if is_found] == ["alpha", "beta", "gamma"]
    assert "".join(part for part, _ in split_excerpt(result)) == result.excerpt


def test_parts_of_an_excerpt_count_as_javascript_does() -> None:
    """SRCH3"""
    result = SearchResult(session="s", excerpt="🙂 ab 🙂", ranges=[(3, 5)])
    assert split_excerpt(result) == [("🙂 ", False), ("ab", True), (" 🙂", False)]


def test_what_people_wrote_has_the_highest_rank() -> None:
    """SRCH7"""
    user, agent = (Message(id=1, role=role, content="") for role in ("user", "assistant"))
    call = ToolCall(id=1, call_id="c", tool_call_id="c")
    assert rank_entry(None, 5) > rank_entry(user, 5) > rank_entry(agent, 5) > rank_entry(call, 5)
    assert rank_entry(call, 5) > rank_entry(call, 100) > rank_entry(call, 1000) > rank_entry(call, 5000)
