"""The words of texts and of searches, the same for every engine. Pure functions.

A word is a run of letters and digits. An identifier such as `readFileSync` or `read_file_sync` is a sequence of words,
and also the name `readfilesync`. Scripts that are written without spaces become pairs of characters. A search is a list
of phrases that must all occur: what is between its spaces, or in quotes, becomes words in the same way.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from callslip.errors import InvalidInputError

VERSION = 1
"""Increased whenever the same text gives other words. An index of another version is rebuilt."""
MAX_WORD_CHARS = 100
"""The rest of a longer word is not compared."""
MAX_REPEATS = 255
"""How many times the places of a word are stored. PostgreSQL stores no more."""
MAX_QUERY_CHARS = 2000
MAX_PHRASES = 50
GAP = "\ue000"
"""Is at places without a word. It is no letter, so no text has such a word."""
# Thai, Lao, Myanmar and Khmer; Chinese, Japanese and Korean.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3041-\u3096\u309d-\u309f"
    "\u30a1-\u30fa\u30fc-\u312f\u3131-\u318e\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
    "\uf900-\ufaff\uff66-\uff9f\U0001b000-\U0001b16f\U00020000-\U0003fffd"
)
_ASCII_NAME = re.compile(r"[0-9A-Za-z_]+")
_PLAIN_WORD = re.compile(r"[0-9a-z]+|[0-9A-Z]+")
_ACCENTS = re.compile("[\u0300-\u036f]")
_NO_WORD = re.compile(r"[\x00-\x2f\x3a-\x60\x7b-\x7f]")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\|$))")
"""The sequences of a terminal, such as colours. Their last letter is not a part of the word that follows."""
_PIECE = re.compile(r'"([^"]*)"|(\S+)')


class Token(NamedTuple):
    """A word and its place in the text. `name` is the identifier that begins here, `name_end` its end."""

    word: str
    start: int
    end: int
    name: str = ""
    name_end: int = 0
    is_char: bool = False


class IndexedText(NamedTuple):
    """What an index has of a text: its words in order, and others that have no place."""

    words: list[str]
    names: list[str]


class Phrase(NamedTuple):
    """Words that follow one another, or the `name` that they are together."""

    words: tuple[str, ...]
    name: str = ""


# Texts


@cache
def _any_name() -> re.Pattern[str]:
    """Return the pattern of identifiers and unspaced runs in any script. `re` has no class for combining marks."""
    marks = "".join(
        char
        for code in (*range(0x300, 0x1E94B), *range(0xE0100, 0xE01F0))
        if unicodedata.category(char := chr(code))[0] == "M"
    )
    letter = rf"[^\W{_UNSPACED}]"
    return re.compile(f"([{_UNSPACED}]+)|{letter}(?:{letter}|[{marks}])*")


def _fold(word: str) -> str:
    """Return a word in the form that is compared: without case, accents and variants of letters."""
    if word.isascii():
        return word.lower()[:MAX_WORD_CHARS]
    bare = _ACCENTS.sub("", unicodedata.normalize("NFKD", word[:MAX_WORD_CHARS]))
    folded = unicodedata.normalize("NFKC", bare).casefold()
    return _NO_WORD.sub("", folded)[:MAX_WORD_CHARS]


@lru_cache(maxsize=50_000)
def _name_words(name: str) -> tuple[tuple[str, ...], str]:
    words, whole = _split_name(name)
    return tuple(word for word, _, _ in words), whole


def _split_name(name: str) -> tuple[tuple[tuple[str, int, int], ...], str]:
    """Return the words of an identifier with their places in it, and all of it if it has several words."""
    if _PLAIN_WORD.fullmatch(name):
        return ((_fold(name), 0, len(name)),), ""
    words = tuple((word, start, end) for start, end in _parts(name) if (word := _fold(name[start:end])))
    whole = "".join(word for word, _, _ in words) if len(words) > 1 else ""
    return words, whole[:MAX_WORD_CHARS]


def _parts(name: str) -> Iterator[tuple[int, int]]:
    """Yield where the words of an identifier begin and end: at underscores and before capitals."""
    has_case = any(map(str.islower, name))
    start = -1
    end = min(len(name), MAX_WORD_CHARS)
    for at in range(end):
        char = name[at]
        if char == "_":
            if start >= 0:
                yield start, at
            start = -1
        elif start < 0:
            start = at
        elif has_case and char.isupper() and (not name[at - 1].isupper() or name[at + 1 : at + 2].islower()):
            yield start, at
            start = at
    if start >= 0:
        yield start, end


def _blank_escapes(text: str) -> str:
    """Replace the sequences of a terminal by as many spaces."""
    return _ESCAPES.sub(lambda match: " " * len(match[0]), text) if "\x1b" in text else text


def tokens(text: str) -> Iterator[Token]:
    """Yield the words of a text with their places. A run of an unspaced script has the pairs of its characters."""
    text = _blank_escapes(text)
    pattern = _ASCII_NAME if text.isascii() else _any_name()
    for match in pattern.finditer(text):
        begin, end = match.span()
        if match.lastindex:
            yield from _pairs(text, begin, end)
            continue
        words, name = _split_name(match[0])
        for number, (word, first, last) in enumerate(words):
            if name and not number:
                yield Token(word, begin + first, begin + last, name, end)
            else:
                yield Token(word, begin + first, begin + last)


def _pairs(text: str, begin: int, end: int) -> Iterator[Token]:
    if end - begin == 1:
        yield Token(_fold(text[begin]), begin, end, is_char=True)
    for at in range(begin, end - 1):
        yield Token(_fold(text[at : at + 2]), at, at + 2)


def index_texts(texts: Sequence[str], max_words: int, reserved: int) -> IndexedText:
    """Return what an index has of several texts, at most a number of words. No phrase is in two texts.

    A long text leaves room for `reserved` words of each later one.
    """
    words: list[str] = []
    names: set[str] = set()
    for later, text in zip(range(len(texts) - 1, -1, -1), map(_blank_escapes, texts), strict=True):
        if words:
            words.append(GAP)
        limit = max(0, max_words - len(words) - later * (reserved + 1))
        words += _ascii_words(text, limit, names) if text.isascii() else _any_words(text, limit, names)
    if len(words) > MAX_REPEATS:
        words = _limit_repeats(words)
    return IndexedText(words, sorted(names))


def _ascii_words(text: str, limit: int, names: set[str]) -> list[str]:
    words: list[str] = []
    for found in _ASCII_NAME.findall(text):
        parts, name = _name_words(found)
        words += parts
        if name:
            names.add(name)
        if len(words) >= limit:
            break
    return words[:limit]


def _any_words(text: str, limit: int, names: set[str]) -> list[str]:
    words: list[str] = []
    for match in _any_name().finditer(text):
        if match.lastindex:
            run = match[0][: limit - len(words) + 1]
            names.update(filter(None, map(_fold, set(run))))
            words += [token.word or GAP for token in _pairs(run, 0, len(run))]
        else:
            parts, name = _name_words(match[0])
            words += parts
            if name:
                names.add(name)
        if len(words) >= limit:
            break
    return words[:limit]


def _limit_repeats(words: list[str]) -> list[str]:
    counts: dict[str, int] = {}
    limited: list[str] = []
    for word in words:
        count = counts[word] = counts.get(word, 0) + 1
        limited.append(word if count <= MAX_REPEATS else GAP)
    return limited


# Searches


def parse_query(typed: str) -> list[Phrase]:
    """Return the phrases of a search. No character has a special meaning, except pairs of double quotes.

    There are none if the search has no letter or digit.
    """
    if len(typed) > MAX_QUERY_CHARS:
        raise InvalidInputError("q", f"must have at most {MAX_QUERY_CHARS} characters", MAX_QUERY_CHARS)
    phrases: dict[Phrase, None] = {}
    for match in _PIECE.finditer(typed):
        phrases.update(dict.fromkeys(_phrases(match[1] or match[2] or "")))
    if len(phrases) > MAX_PHRASES:
        raise InvalidInputError("q", f"must have at most {MAX_PHRASES} words or phrases", MAX_PHRASES)
    return list(phrases)


def _phrases(piece: str) -> Iterator[Phrase]:
    found = [token for token in tokens(piece) if token.word]
    words: list[str] = []
    for token in found:
        if token.is_char:  # In a text it is a part of pairs.
            if words:
                yield Phrase(tuple(words))
            yield Phrase((token.word,))
            words = []
        else:
            words.append(token.word)
    if words:
        is_name = bool(found[0].name) and found[0].name_end >= found[-1].end
        yield Phrase(tuple(words), found[0].name if is_name else "")


# Places of a search in a text


class Found(NamedTuple):
    """A place in a text: its characters from `start` to `end`, and the number of the phrase that is there."""

    start: int
    end: int
    phrase: int


def find_phrases(text: str, phrases: list[Phrase], limit: int) -> list[Found]:
    """Return the first places of phrases in a text, in order, at most `limit` of each."""
    first: dict[str, list[int]] = {}
    for number, phrase in enumerate(phrases):
        for word in {phrase.words[0], phrase.name} - {""}:
            first.setdefault(word, []).append(number)
    chars = {phrase.words[0]: number for number, phrase in enumerate(phrases) if len(phrase.words[0]) == 1}
    all_tokens = list(tokens(text))
    counts = [0] * len(phrases)
    places: set[Found] = set()
    for at, token in enumerate(all_tokens):
        for number in {*first.get(token.word, ()), *(first.get(token.name, ()) if token.name else ())}:
            if counts[number] < limit and (end := _phrase_end(all_tokens, at, phrases[number])):
                counts[number] += 1
                places.add(Found(token.start, end, number))
        if chars and token.end - token.start == 2 and not text[token.start].isascii():
            places |= _find_chars(text, token, chars, counts, limit)
    return sorted(places)


def _phrase_end(found: list[Token], at: int, phrase: Phrase) -> int:
    """Return where a phrase ends that begins at a token, 0 if it does not begin there."""
    token = found[at]
    if token.name and token.name in (phrase.name, phrase.words[0] if len(phrase.words) == 1 else ""):
        return token.name_end
    if phrase.name == token.word and phrase.name:
        return token.end
    following = found[at : at + len(phrase.words)]
    return following[-1].end if tuple(token.word for token in following) == phrase.words else 0


def _find_chars(text: str, pair: Token, chars: dict[str, int], counts: list[int], limit: int) -> set[Found]:
    places: set[Found] = set()
    for at in range(pair.start, pair.end):
        number = chars.get(_fold(text[at]))
        if number is not None and counts[number] < limit:
            counts[number] += 1
            places.add(Found(at, at + 1, number))
    return places
