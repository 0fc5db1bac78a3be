"""Secrets leave the text before anything is appended, and a text is cut the same however it was split into chunks.

A secret is a literal prefix and then at least so many characters of a class; all of it becomes `[redacted:NAME]`. It
begins where no ASCII letter or digit stands before it (`task-4f2a...` is no key; in `密钥是sk-...` and after an escape,
as in `\\nsk-...`, it is one) and not directly after another one. It ends where the class ends.

The law: for any split of a text, `feed` of every chunk and then `flush` give together what `text` gives of the whole.
`feed` holds back only what may still become a secret. That is the carry, a short string that may be stored:

    ""                  nothing is held: nearly always
    " " or "\\" + text   this text may begin a secret; the first character says what left before it: a backslash, or
                        something else after which a secret may begin
    "\\0" + prefix       this secret has been replaced already; what goes on with it is swallowed
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from itertools import groupby
from operator import is_
from typing import Any, cast

import msgspec

from callslip.errors import InvalidInputError
from callslip.model import codec

_WORD = "A-Za-z0-9"
_SLUG = "A-Za-z0-9_-"
_BASE64 = "A-Za-z0-9+/="
_TOKEN = "A-Za-z0-9._~+/=-"
_PEM = "A-Za-z0-9+/=\\\\ \\n\\r"  # with the backslash, as a key within JSON has `\n` for its line ends

_LONGEST_PREFIX = 64
_MOST = 256
_SWALLOW = "\0"
_NO_START = "x"  # after a letter no secret begins
_NOTHING = re.compile("")


class Pattern(msgspec.Struct, frozen=True):
    """What one kind of secret looks like: `prefix`, then `least` or more of `chars` (the inside of a regex class).

    `mixed`: a digit or capital must be among the first `least`, which tells keys from words-joined-by-hyphens.
    """

    name: str
    prefix: str
    chars: str
    least: int
    mixed: bool = False


# Of patterns that fit at the same place the one with the longest prefix wins.
DEFAULT: tuple[Pattern, ...] = (
    Pattern("anthropic", "sk-ant-", _SLUG, 20),
    Pattern("api-key", "sk-", _SLUG, 20, mixed=True),
    *(Pattern("stripe", prefix, _WORD, 16) for prefix in ("sk_live_", "rk_live_", "sk_test_", "whsec_")),
    *(Pattern("github", prefix, "A-Za-z0-9_", 30) for prefix in ("ghp_", "gho_", "ghu_", "ghs_", "ghr_")),
    Pattern("github", "github_pat_", "A-Za-z0-9_", 22),
    Pattern("gitlab", "glpat-", "A-Za-z0-9_.-", 20),
    *(Pattern("slack", prefix, "A-Za-z0-9-", 20) for prefix in ("xoxb-", "xoxp-", "xoxa-", "xoxs-", "xapp-")),
    Pattern("aws", "AKIA", "A-Z0-9", 16),
    Pattern("aws", "ASIA", "A-Z0-9", 16),
    Pattern("google", "AIza", _SLUG, 35),
    Pattern("google", "GOCSPX-", _SLUG, 20),
    Pattern("google", "ya29.", "A-Za-z0-9_.-", 20),
    Pattern("huggingface", "hf_", _WORD, 30),
    Pattern("npm", "npm_", _WORD, 30),
    Pattern("pypi", "pypi-", _SLUG, 50, mixed=True),
    Pattern("groq", "gsk_", _WORD, 30),
    Pattern("xai", "xai-", _WORD, 30),
    Pattern("sendgrid", "SG.", "A-Za-z0-9_.-", 40, mixed=True),
    Pattern("bearer", "Bearer ", _TOKEN, 16, mixed=True),
    Pattern("bearer", "bearer ", _TOKEN, 16, mixed=True),
    Pattern("basic", "Authorization: Basic ", _BASE64, 8),
    Pattern("basic", "authorization: Basic ", _BASE64, 8),
    # The base64 of {"alg": {"typ": and {"kid":, with which the header of a JWT begins; other JSON begins otherwise.
    *(Pattern("jwt", prefix, "A-Za-z0-9_.-", 20) for prefix in ("eyJhbGci", "eyJ0eXAi", "eyJraWQi")),
    *(
        Pattern("private-key", f"BEGIN {kind}PRIVATE KEY-----", _PEM, 40)
        for kind in ("", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED ")
    ),
)

_Search = Callable[[str, int], "re.Match[str] | None"]


class Redactor:
    """Replaces what fits one of the patterns. Without patterns it does nothing, at no cost."""

    __slots__ = ("_held", "_runs", "_whole", "patterns")

    def __init__(self, patterns: Iterable[Pattern] = DEFAULT) -> None:
        # In the order in which their groups stand in the regex: after all that have a longer prefix.
        self.patterns = tuple(sorted(patterns, key=lambda pattern: pattern.prefix + chr(0x10FFFF)))
        for pattern in self.patterns:
            _validate(pattern)
        self._runs = {pattern.prefix: re.compile(f"[{pattern.chars}]*") for pattern in self.patterns}
        if len(self._runs) < len(self.patterns):
            raise InvalidInputError("patterns", "two have the same prefix")
        starts = _starts(self.patterns)
        self._whole: _Search = re.compile(starts + _tree(self.patterns, held=False)).search
        self._held: _Search = re.compile(starts + _tree(self.patterns, held=True)).search

    def text(self, text: str) -> str:
        """The whole text without its secrets; the same object when it has none."""
        if not self.patterns:
            return text
        after = " " + text
        match = self._whole(after, 0)
        return text if match is None else self._cut(after, match, self._whole)[0]

    def value(self, value: Any) -> Any:
        """A JSON value without the secrets in its texts and keys; the same object when it has none."""
        return self._value(value) if self.patterns else value

    def restored(self, edited: Any, before: Any) -> Any:
        """What a person left as it was, as it was: they were shown it without its secrets."""
        if isinstance(edited, dict) and isinstance(before, dict):
            old, new = cast("dict[str, Any]", before), cast("dict[str, Any]", edited)
            return {name: self.restored(value, old[name]) if name in old else value for name, value in new.items()}
        shown = codec.encode(self.value(codec.to_json(before)))
        return before if shown == codec.encode(cast(Any, edited)) else cast(Any, edited)

    def feed(self, carry: str, chunk: str, before: str = "") -> tuple[str, str]:
        """What may leave now of the carry and a further chunk, and the new carry.

        `before` is the end of what left earlier (two characters suffice), and matters only when nothing is held.
        Without it the beginning of the chunk counts as a place where a secret may begin.
        """
        if carry:
            return self._resume(carry, chunk)
        if not self.patterns:
            return chunk, ""
        edge = _edge(before) if "\\" in before else before[-1:] or " "
        after = edge + chunk
        match = self._held(after, 0)
        return (chunk, "") if match is None else self._cut(after, match, self._held)

    def flush(self, carry: str) -> str:
        """What the carry comes to when nothing follows."""
        if not carry or carry[0] == _SWALLOW:
            return ""
        match = self._whole(carry, 0)
        return carry[1:] if match is None else self._cut(carry, match, self._whole)[0]

    def _resume(self, carry: str, chunk: str) -> tuple[str, str]:
        if carry[0] == _SWALLOW:
            return self._swallow(carry, chunk)
        after = carry + chunk
        match = self._held(after, 0)
        return (after[1:], "") if match is None else self._cut(after, match, self._held)

    def _swallow(self, carry: str, chunk: str) -> tuple[str, str]:
        run = self._runs.get(carry[1:], _NOTHING)  # the settings may have changed since the carry was stored
        rest = chunk[cast("re.Match[str]", run.match(chunk)).end() :]
        return self.feed("", rest, _NO_START) if rest else ("", carry)

    def _cut(self, after: str, match: re.Match[str] | None, search: _Search) -> tuple[str, str]:
        """Goes from match to match. The first character of `after` is context and has left before.

        Group 1 is what stands before a secret, and then each pattern has one. A match without the latter is the end of
        the text and not yet a secret.
        """
        out: list[str] = []
        at = 1
        while match is not None:
            out.append(after[at : match.end(1)])
            found = cast(int, match.lastindex) - 2
            if found < 0:
                return "".join(out), ("\\" if match[1] == "\\" else " ") + after[match.end(1) :]
            out.append(f"[redacted:{self.patterns[found].name}]")
            at = match.end()
            if at == len(after):
                return "".join(out), _SWALLOW + self.patterns[found].prefix
            match = search(after, at)
        out.append(after[at:])
        return "".join(out), ""

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            cut = {self.text(key): self._value(member) for key, member in members.items()}
            same = all(map(is_, cut, members)) and all(map(is_, cut.values(), members.values()))
            return members if same and len(cut) == len(members) else cut
        if isinstance(value, list):
            items = cast("list[Any]", value)
            inside = [self._value(item) for item in items]
            return items if all(map(is_, inside, items)) else inside
        return value


@cache
def make_redactor(on: bool, patterns: tuple[tuple[str, str, str, int], ...]) -> Redactor:
    """The one that settings ask for: the default patterns and these, or none. Made once."""
    return Redactor(DEFAULT + tuple(Pattern(*pattern) for pattern in patterns) if on else ())


def _starts(patterns: Iterable[Pattern]) -> str:
    """Group 1: what stands before a secret. It begins with one class of characters, to which the engine skips fast."""
    firsts = "".join(sorted({re.escape(pattern.prefix[0]) for pattern in patterns}))
    return f"([^{_WORD}](?:(?=[{firsts}])|(?<=\\\\)[{_WORD}]))" if firsts else "(?!)"


def _tree(patterns: Iterable[Pattern], held: bool, depth: int = 0) -> str:
    """One of the patterns, from that depth of their prefixes on; if `held`, also a part of one that ends the text."""
    branches: list[str] = []
    for first, group in groupby(patterns, key=lambda pattern: pattern.prefix[depth : depth + 1]):
        if first:
            branches.append(re.escape(first) + _tree(group, held, depth + 1))
        else:
            branches.extend(_run(pattern, held) for pattern in group)
    if held and depth:
        branches.append(r"\Z")
    return f"(?:{'|'.join(branches)})"


def _run(pattern: Pattern, held: bool) -> str:
    fewer = f"[{pattern.chars}]{{0,{pattern.least - 1}}}"
    mixed = f"(?={fewer}[A-Z0-9])" if pattern.mixed else ""
    run = f"({mixed}[{pattern.chars}]{{{pattern.least},}})"
    return rf"{run}|{fewer}\Z" if held else run


def _edge(before: str) -> str:
    """One character that stands for `before`: an escape such as `\\n` is as good as a space."""
    return " " if before[-2:-1] == "\\" and before[-1].isalnum() else before[-1]


def _validate(pattern: Pattern) -> None:
    """The limits keep the carry small; the name must not look like a secret itself."""
    field = f"pattern {pattern.name[:40]}"
    if not re.fullmatch(r"[a-z0-9.-]{1,40}", pattern.name):
        raise InvalidInputError(field, "its name is not 1 to 40 of a-z, 0-9, dot and hyphen")
    if not re.match(f"[{_WORD}]", pattern.prefix):
        raise InvalidInputError(field, "its prefix does not begin with an ASCII letter or digit")
    if len(pattern.prefix) > _LONGEST_PREFIX:
        raise InvalidInputError(field, "its prefix is too long", _LONGEST_PREFIX)
    if not 0 < pattern.least <= _MOST:
        raise InvalidInputError(field, "its least length is not positive or too great", _MOST)
    try:
        re.compile(f"[{pattern.chars}]")
    except re.error as error:
        raise InvalidInputError(field, f"its characters are not the inside of a regex class: {error}") from error
    if "]" in re.sub(r"\\.", "", pattern.chars):
        raise InvalidInputError(field, "a ] among its characters needs a backslash")
