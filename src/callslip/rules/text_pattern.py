"""Match a complete text with a pattern, in time that grows linearly with the text.

`*` is any text and `?` is one character. In a path both end at the next slash, and `**` does not. `exact:` before a
text means that text and no wildcards. After `regex:` follows a regular expression of Python: its speed is the
responsibility of its author, and a text of more than MAX_REGEX_TEXT_CHARS characters is not searched.
"""

from __future__ import annotations

import re

REGEX = "regex:"
EXACT = "exact:"
WILDCARD = re.compile(r"\*{2,}|\*|\?")
MAX_REGEX_TEXT_CHARS = 100_000


class TextPattern:
    """A pattern. `exact` is the only text that it matches, or None if it can match several."""

    def __init__(self, pattern: str, *, is_path: bool = False, ignore_case: bool = False) -> None:
        self._is_regex = pattern.startswith(REGEX)
        self._ignore_case = ignore_case
        is_exact = pattern.startswith(EXACT) or not (self._is_regex or WILDCARD.search(pattern))
        self.exact = pattern.removeprefix(EXACT) if is_exact else None
        self._expression: re.Pattern[str] | None = None
        self._path: _PathPattern | None = None
        if self._is_regex:
            flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
            self._expression = re.compile(pattern.removeprefix(REGEX), flags)
        elif self.exact is None and is_path:
            self._path = _PathPattern(self._fold(pattern))
        elif self.exact is None:
            self._expression = _compile_wildcards(self._fold(pattern))

    def matches(self, text: str) -> bool | None:
        """Return whether the complete text matches; None if it is too long for a regular expression."""
        if self._is_regex and len(text) > MAX_REGEX_TEXT_CHARS:
            return None
        if not self._is_regex:
            text = self._fold(text)
        if self._path is not None:
            return self._path.matches(text)
        if self._expression is not None:
            return self._expression.fullmatch(text) is not None
        return self.exact is not None and text == self._fold(self.exact)

    def _fold(self, text: str) -> str:
        return text.casefold() if self._ignore_case else text


def _compile_wildcards(pattern: str) -> re.Pattern[str]:
    """Return an expression that finds the parts between the stars from left to right.

    The first place of each part is as good as any later one. So its group is atomic, and no place is tried twice.
    """
    first, *others = (re.escape(part).replace(r"\?", ".") for part in re.split(r"\*+", pattern))
    middle = "".join(f"(?>.*?{part})" for part in others[:-1] if part)
    return re.compile(first + middle + "".join(f".*{last}" for last in others[-1:]), re.DOTALL)


class _PathPattern:
    """Wildcards in a path. All positions that the pattern can have reached are the bits of one number.

    The first place is not always good enough here: `*` may not pass the slash that a later place avoids.
    """

    def __init__(self, pattern: str) -> None:
        self._characters: dict[str, int] = {}
        self._one_bits = self._folder_bits = self._any_bits = 0
        self._end_bit = 1
        for token in re.findall(r"\*{2,}|.", pattern, re.DOTALL):
            if token == "?":
                self._one_bits |= self._end_bit
            elif token == "*":
                self._folder_bits |= self._end_bit
            elif token.startswith("**"):
                self._any_bits |= self._end_bit
            else:
                self._characters[token] = self._characters.get(token, 0) | self._end_bit
            self._end_bit <<= 1

    def matches(self, text: str) -> bool:
        """Return whether the complete path matches."""
        stars = self._any_bits | self._folder_bits
        positions = 1 | (1 & stars) << 1  # A star may also match nothing.
        for character in text:
            can_stay, can_pass = self._any_bits, self._characters.get(character, 0)
            if character != "/":
                can_stay |= self._folder_bits
                can_pass |= self._one_bits
            positions = positions & can_stay | (positions & can_pass) << 1
            positions |= (positions & stars) << 1
            if not positions:
                return False
        return bool(positions & self._end_bit)
