"""Replace secrets in texts before they are stored, with the same result however a text is split into chunks.

A secret is a literal prefix followed by a minimum number of characters of a class; all of it becomes `[redacted:NAME]`.
If the prefix only introduces the secret, as in `API_KEY=...`, the prefix stays. No ASCII letter or digit may precede it
(`task-4f2a...` is not a key; in `密钥是sk-...` and after an escape, as in `\\nsk-...`, it is one), and no other secret
directly, unless that ends with a character that is shown. It ends where the class ends.

In JSON values a secret is also found by its position: in the environment and the headers of MCP servers, and in members
that are named like an assignment or a header of the patterns.

For any split of a text, the output of `feed` for every chunk and then of `flush` is that of `text` for the full text.
`feed` holds back only what may still become a secret: the carry, a short string that can be stored:

    ""                  nothing is held, nearly always
    " " or "\\" + text   this text may begin a secret, or is the backslash of an escape before one; the first character
                        stands for the one before it: a backslash, or another one after which a secret may begin
    "\\0" + prefix       this secret is already replaced; its remaining characters are dropped
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
_PEM = "A-Za-z0-9+/=\\\\ \\n\\r"  # with the backslash, as a key inside JSON has `\n` for its line ends

_VALUE = "A-Za-z0-9_+/=~-"
_PASSWORD = "^\\s\"'`\\\\$<>(){}[*.,;&|\\]"
_WORD_END = "^\\s\"'`\\\\"
_QUOTE_END = '^"\\\\\\n'
_USER = "A-Za-z0-9._~%!&+=-"
_URL_PASSWORD = "^\\s/?#@\"'`<>\\\\{}$*[\\]"

MAX_NAME_CHARS = 64
MAX_VALUE_CHARS = 128
_MAX_PREFIX_CHARS = 64
_MAX_LEAST_CHARS = 256
_DROP = "\0"
_NO_START = "x"  # No secret begins after a letter.
_EMPTY = re.compile("")


class Pattern(msgspec.Struct, frozen=True):
    """A kind of secret: `prefix`, then `least` or more of `chars` (the inside of a regex class).

    `mixed`: the first `least` must contain a digit or a capital, which distinguishes keys from words-with-hyphens.
    `more`: the characters after the first `least`, if they differ. `shown`: the prefix is not a part of the secret.
    `until`: instead, up to MAX_NAME_CHARS of `chars`, a colon, `least` to MAX_VALUE_CHARS of `more`, and this character
    must follow.
    """

    name: str
    prefix: str
    chars: str
    least: int
    mixed: bool = False
    more: str = ""
    shown: bool = False
    until: str = ""

    @property
    def rest(self) -> str:
        """The inside of the class of the characters after the first ones."""
        return self.more or self.chars

    @property
    def mark(self) -> str:
        """What replaces the secret."""
        return f"{self.prefix if self.shown else ''}[redacted:{self.name}]{self.until}"


# Ends of the names of variables, and what a value must look like to be a secret. Shorter values and those without a
# digit or a capital are ordinary ones (SORT_KEY=name), and so are those with a `$`, `<`, `(` or dot near their start.
_ASSIGNED: tuple[tuple[str, str, int, bool], ...] = (
    ("KEY", _VALUE, 16, True),
    ("TOKEN", ":" + _VALUE, 16, True),
    *((name, _VALUE, 8, True) for name in ("API_KEY", "APIKEY", "SECRET_KEY", "ACCESS_KEY", "API_TOKEN", "AUTH_TOKEN")),
    ("ACCESS_TOKEN", _VALUE, 8, True),
    ("SECRET", _PASSWORD, 8, False),
    *((name, _PASSWORD, 6, False) for name in ("PASSWORD", "PGPASSWORD", "PASSWD", "PASSPHRASE")),
)
# How a value follows its name: in a shell, in a text with quotes, in JSON, and in JSON inside of a JSON text.
_ASSIGNMENTS = {"=": _WORD_END, '="': _QUOTE_END, "='": "^'\\\\\\n", '=\\"': _QUOTE_END}
_MEMBERS = dict.fromkeys(('": "', '":"', '\\": \\"', '\\":\\"'), _QUOTE_END)
_HEADERS = {": ": _WORD_END, ":": _WORD_END, "': '": "^'\\\\\\n", **_MEMBERS}
_API_KEY_HEADERS = ("api-key", "Api-Key", "API-Key", "API-KEY")
_AUTHORIZATION = ("authorization", "Authorization")

# If several patterns match at the same place, the one with the longest prefix wins.
DEFAULT: tuple[Pattern, ...] = (
    Pattern("callslip", "callslip_", _SLUG, 40, mixed=True),
    *(
        Pattern("secret", name + between, chars, least, mixed, more, shown=True)
        for name, chars, least, mixed in _ASSIGNED
        for between, more in (_ASSIGNMENTS | _MEMBERS).items()
    ),
    *(
        Pattern("secret", name + between, _VALUE, 12, mixed=True, more=more, shown=True)
        for name in _API_KEY_HEADERS
        for between, more in _HEADERS.items()
    ),
    Pattern("url", "//", _USER, 3, more=_URL_PASSWORD, shown=True, until="@"),
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
    *(
        Pattern(
            kind.lower(), name + between + kind + " ", chars, least, mixed, shown="'" in between or between in _MEMBERS
        )
        for name in _AUTHORIZATION
        for between in _HEADERS
        for kind, chars, least, mixed in (
            ("bearer", _TOKEN, 16, True),
            ("basic", _BASE64, 8, False),
            ("Basic", _BASE64, 8, False),
        )
    ),
    # The base64 of {"alg": {"typ": and {"kid":, with which the header of a JWT begins, unlike other JSON.
    *(Pattern("jwt", prefix, "A-Za-z0-9_.-", 20) for prefix in ("eyJhbGci", "eyJ0eXAi", "eyJraWQi")),
    *(
        Pattern("private-key", f"BEGIN {kind}PRIVATE KEY-----", _PEM, 40)
        for kind in ("", "RSA ", "EC ", "DSA ", "OPENSSH ", "ENCRYPTED ", "ANY ", "TSS2 ", "ED25519 ")
    ),
    Pattern("private-key", "BEGIN PGP PRIVATE KEY BLOCK-----", _PEM + ":.,()@_", 40),
    Pattern("private-key", "BEGIN SSH2 ENCRYPTED PRIVATE KEY ----", _PEM + ":.,()@_", 40),
    # A PEM key with a password has header lines, and this is the last of them.
    *(
        Pattern("private-key", f"DEK-Info: {cipher},", _PEM, 40)
        for cipher in ("AES-128-CBC", "AES-192-CBC", "AES-256-CBC", "DES-EDE3-CBC", "DES-CBC")
    ),
)

_Search = Callable[[str, int], "re.Match[str] | None"]
MAX_KEYS, MAX_KEY_CHARS = 1000, 40
"""How many keys of objects are known to have no secret."""


class Redactor:
    """Replaces the matches of its patterns. Without patterns it does nothing, at no cost."""

    __slots__ = ("_clean_keys", "_complete", "_partial", "_runs", "patterns")

    def __init__(self, patterns: Iterable[Pattern] = DEFAULT) -> None:
        # In the order of their groups in the regex: longer prefixes first.
        self.patterns = tuple(sorted(patterns, key=lambda pattern: pattern.prefix + chr(0x10FFFF)))
        for pattern in self.patterns:
            _validate(pattern)
        self._runs = {
            pattern.prefix: _EMPTY if pattern.until else re.compile(f"[{pattern.rest}]*") for pattern in self.patterns
        }
        if len(self._runs) < len(self.patterns):
            raise InvalidInputError("patterns", "prefixes must be unique")
        self._clean_keys: set[str] = set()
        self._complete: _Search = self._compile_complete
        self._partial: _Search = self._compile_partial

    # The two expressions are compiled when they are first used: that takes longer than most commands that only read.

    def _compile_complete(self, text: str, at: int) -> re.Match[str] | None:
        self._complete = self._compile(held=False)
        return self._complete(text, at)

    def _compile_partial(self, text: str, at: int) -> re.Match[str] | None:
        self._partial = self._compile(held=True)
        return self._partial(text, at)

    def _compile(self, *, held: bool) -> _Search:
        return re.compile(_starts(self.patterns) + _regex(self.patterns, held)).search

    def text(self, text: str) -> str:
        """Return a full text without its secrets; the same object if it has none."""
        if not self.patterns:
            return text
        after = " " + text
        match = self._complete(after, 0)
        return text if match is None else self._replace(after, match, self._complete)[0]

    def value(self, value: Any) -> Any:
        """Return a JSON value without the secrets in its texts and keys; the same object if it has none."""
        return self._value(value, self.text) if self.patterns else value

    def mask(self, text: str) -> str:
        """Return a text of the same length with other characters in place of every secret. It is redacted like it."""
        after, out, at = " " + text, list[str](), 1
        match = self._complete(after, 0) if self.patterns else None
        while match is not None:
            pattern = self.patterns[cast(int, match.lastindex) - 2]
            start = match.end(1) + len(pattern.prefix)
            out += (after[at:start], _mask_secret(pattern, after[start : match.end()]))
            at = match.end()
            match = self._complete(after, _next_start(pattern, at))
        return "".join((*out, after[at:])) if out else text

    def mask_next(self, before: str, text: str) -> tuple[str, str]:
        """Mask a text that continues another one. Return it, and what the next text needs as `before`."""
        joined = self.mask(before + text)
        _, carry = self.feed("", joined)
        if carry[:1] == _DROP:
            pattern = next(pattern for pattern in self.patterns if pattern.prefix == carry[1:])
            carry = f" {pattern.prefix}{_mask_secret(pattern, 'x' * pattern.least)}"
        masked = joined[len(before) :]
        return text if masked == text else masked, carry or joined[-2:]

    def mask_value(self, value: Any) -> Any:
        """Return a JSON value with masked texts and keys."""
        return self._value(value, self.mask) if self.patterns else value

    def restore_secrets(self, edited: Any, before: Any) -> Any:
        """Return edited arguments with the secrets put back in unchanged parts: the editor only saw them redacted."""
        return _restore(edited, before, self.value(codec.to_json(before)))

    def feed(self, carry: str, chunk: str, before: str = "") -> tuple[str, str]:
        """Return the text to release after a further chunk, and the new carry.

        `before` is the end of the text released earlier (two characters are enough); it matters only if nothing is
        held. Without it a secret may begin at the start of the chunk.
        """
        if carry:
            return self._resume(carry, chunk)
        if not self.patterns:
            return chunk, ""
        edge = _edge(before) if "\\" in before else before[-1:] or " "
        return self._hold_end(edge + chunk, chunk)

    def flush(self, carry: str) -> str:
        """Return the text of the carry at the end of a text."""
        return self.release(carry)[0]

    def release(self, carry: str) -> tuple[str, str]:
        """Return the text of the carry, and the carry of a secret in it that more characters may continue."""
        if not carry or carry[0] == _DROP:
            return "", carry
        match = self._complete(carry, 0)
        return (carry[1:], "") if match is None else self._replace(carry, match, self._complete)

    def _resume(self, carry: str, chunk: str) -> tuple[str, str]:
        if carry[0] == _DROP:
            run = self._runs.get(carry[1:], _EMPTY)  # The patterns may have changed since the carry was stored.
            rest = chunk[cast("re.Match[str]", run.match(chunk)).end() :]
            return self.feed("", rest, _NO_START) if rest else ("", carry)
        after = carry + chunk
        return self._hold_end(after, after[1:])

    def _hold_end(self, after: str, text: str) -> tuple[str, str]:
        """Return the text to release and the carry of a text, which `after` has behind one character of context."""
        match = self._partial(after, 0)
        out, carry = (text, "") if match is None else self._replace(after, match, self._partial)
        # A letter after this backslash would be a part of the escape, and a secret may begin after an escape.
        return (out[:-1], " \\") if not carry and out[-1:] == "\\" else (out, carry)

    def _replace(self, after: str, match: re.Match[str] | None, search: _Search) -> tuple[str, str]:
        """Replace all matches; return the text and the carry. The first character of `after` is only context.

        Group 1 is what precedes a secret, and each pattern has a group of its own. A match without the latter is an end
        of the text that may become a secret.
        """
        out: list[str] = []
        at = 1
        while match is not None:
            out.append(after[at : match.end(1)])
            index = cast(int, match.lastindex) - 2
            if index < 0:
                return "".join(out), ("\\" if match[1] == "\\" else " ") + after[match.end(1) :]
            pattern = self.patterns[index]
            out.append(pattern.mark)
            at = match.end()
            if at == len(after):
                return "".join(out), "" if pattern.until else _DROP + pattern.prefix
            match = search(after, _next_start(pattern, at))
        out.append(after[at:])
        return "".join(out), ""

    def _value(self, value: Any, redact: Callable[[str], str]) -> Any:
        if isinstance(value, str):
            return redact(value)
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            clean = self._clean_keys
            cut = {
                key if key in clean else self._key(key, redact): self._member(key, member, redact)
                for key, member in members.items()
            }
            same = all(map(is_, cut, members)) and all(map(is_, cut.values(), members.values()))
            return members if same and len(cut) == len(members) else cut
        if isinstance(value, list):
            items = cast("list[Any]", value)
            inside = [self._value(item, redact) for item in items]
            return items if all(map(is_, inside, items)) else inside
        return value

    def _key(self, key: str, redact: Callable[[str], str]) -> str:
        """Return a key without its secrets. Those that have none are remembered: most objects have the same keys."""
        redacted = redact(key)
        if redacted is key and len(key) <= MAX_KEY_CHARS and len(self._clean_keys) < MAX_KEYS:
            self._clean_keys.add(key)
        return redacted

    def _member(self, name: str, value: Any, redact: Callable[[str], str]) -> Any:
        """Return the value of a member of an object without its secrets, of which the name may say more."""
        if isinstance(value, str):
            label = _secret_label(name)
            if label:
                redacted = redact(label + value)
                if redacted != label + value:
                    return redacted[len(label) :] if redacted.startswith(label) else redacted
            return redact(value)
        return self._value(_hide_mcp_secrets(value) if name == "mcpServers" else value, redact)


def _restore(edited: Any, before: Any, redacted: Any) -> Any:
    if isinstance(edited, dict) and isinstance(before, dict) and isinstance(redacted, dict):
        new, old = cast("dict[str, Any]", edited), cast("dict[str, Any]", before)
        shown = cast("dict[str, Any]", redacted)
        return {
            name: _restore(value, old[name], shown[name]) if name in old and name in shown else value
            for name, value in new.items()
        }
    is_unchanged = codec.encode(redacted) == codec.encode(cast(Any, edited))
    return cast(Any, before) if is_unchanged else cast(Any, edited)


_SECRET_NAMES = tuple(name for name, *_ in _ASSIGNED)


def _secret_label(name: str) -> str:
    """Return how a text introduces a value of this name, if a pattern has it, else ""."""
    if name.endswith(_SECRET_NAMES):
        return f"_{name}="
    if name[-1:] in "yYnN":
        header = name.lower()
        return "api-key: " if header.endswith("api-key") else "Authorization: " if header == "authorization" else ""
    return ""


def _hide_mcp_secrets(servers: Any) -> Any:
    """Return MCP servers, as ACP or a configuration file lists them, without the values of variables and headers."""
    if isinstance(servers, dict):
        return {name: _hide_server_secrets(server) for name, server in cast("dict[str, Any]", servers).items()}
    if isinstance(servers, list):
        return [_hide_server_secrets(server) for server in cast("list[Any]", servers)]
    return servers


def _hide_server_secrets(server: Any) -> Any:
    if not isinstance(server, dict):
        return server
    members = cast("dict[str, Any]", server)
    marks = {"env": "[redacted:env]", "headers": "[redacted:header]"}
    return {name: _hide_values(value, marks[name]) if name in marks else value for name, value in members.items()}


def _hide_values(variables: Any, mark: str) -> Any:
    """Return variables or headers, `{NAME: VALUE}` or `[{"name": NAME, "value": VALUE}]`, without their values."""
    if isinstance(variables, dict):
        return dict.fromkeys(cast("dict[str, Any]", variables), mark)
    if isinstance(variables, list):
        items = cast("list[Any]", variables)
        return [{**item, "value": mark} if isinstance(item, dict) and "value" in item else item for item in items]
    return variables


_KEPT_BY_MASK = re.compile(r"(\\.?|[\r\n])", re.DOTALL)


def _mask_secret(pattern: Pattern, secret: str) -> str:
    """Return as many other characters for what follows a prefix. Escapes and line ends stay, as they have a meaning."""
    start, end = (secret.index(":") + 1, len(secret) - 1) if pattern.until else (0, len(secret))
    parts = _KEPT_BY_MASK.split(secret[start:end])
    masked = [part if number % 2 else _filler(pattern) * len(part) for number, part in enumerate(parts)]
    return "".join((secret[:start], *masked, secret[end:]))


@cache
def _filler(pattern: Pattern) -> str:
    """Return a character that all classes of a pattern have: a digit or a capital if there is one."""
    classes = [
        re.compile(f"[{chars}]") for chars in ({pattern.rest} if pattern.until else {pattern.chars, pattern.rest})
    ]
    candidates = map(chr, (*range(48, 58), *range(65, 91), *range(33, 127)))
    return next((char for char in candidates if all(chars.match(char) for chars in classes)), "0")


@cache
def make_redactor(on: bool, patterns: tuple[tuple[str, str, str, int], ...]) -> Redactor:
    """Return a cached redactor with the default patterns and these, or with none if not `on`."""
    return Redactor(DEFAULT + tuple(Pattern(*pattern) for pattern in patterns) if on else ())


def _starts(patterns: Iterable[Pattern]) -> str:
    """Return group 1, what precedes a secret. It begins with one class of characters, which the engine finds fast."""
    firsts = "".join(sorted({re.escape(pattern.prefix[0]) for pattern in patterns}))
    return f"([^{_WORD}](?:(?=[{firsts}])|(?<=\\\\)[{_WORD}]))" if firsts else "(?!)"


def _regex(patterns: Iterable[Pattern], held: bool, depth: int = 0) -> str:
    """Return a regex for the patterns from a depth of their prefixes on; if `held`, an end may match partially."""
    branches: list[str] = []
    for first, group in groupby(patterns, key=lambda pattern: pattern.prefix[depth : depth + 1]):
        if first:
            branches.append(re.escape(first) + _regex(group, held, depth + 1))
        else:
            branches.extend(_run(pattern, held) for pattern in group)
    if held and depth:
        branches.append(r"\Z")
    return f"(?:{'|'.join(branches)})"


def _run(pattern: Pattern, held: bool) -> str:
    if pattern.until:
        name, rest = f"[{pattern.chars}]{{0,{MAX_NAME_CHARS}}}", f"[{pattern.rest}]"
        run = f"({name}:{rest}{{{pattern.least},{MAX_VALUE_CHARS}}}{re.escape(pattern.until)})"
        return rf"{run}|{name}(?::{rest}{{0,{MAX_VALUE_CHARS}}})?\Z" if held else run
    fewer = f"[{pattern.chars}]{{0,{pattern.least - 1}}}"
    mixed = f"(?={fewer}[A-Z0-9])" if pattern.mixed else ""
    run = f"({mixed}[{pattern.chars}]{{{pattern.least}}}[{pattern.rest}]*)"
    return rf"{run}|{fewer}\Z" if held else run


def _next_start(pattern: Pattern, end: int) -> int:
    """Return where to search after a match: the character that ends it and is shown may precede a further secret."""
    return end - len(pattern.until)


def _edge(before: str) -> str:
    """Return one character in place of `before`: an escape such as `\\n` counts as a space."""
    return " " if before[-2:-1] == "\\" and before[-1].isalnum() else before[-1]


def _validate(pattern: Pattern) -> None:
    """Check a pattern. The limits keep the carry small; the name must not look like a secret."""
    field = f"pattern {pattern.name[:40]}"
    if not re.fullmatch(r"[a-z0-9.-]{1,40}", pattern.name):
        raise InvalidInputError(field, "name must be 1 to 40 of a-z, 0-9, dot and hyphen")
    if not re.match(f"[{_WORD}/]", pattern.prefix):
        raise InvalidInputError(field, "prefix must begin with an ASCII letter, a digit or a slash")
    if len(pattern.prefix) > _MAX_PREFIX_CHARS:
        raise InvalidInputError(field, f"prefix must be at most {_MAX_PREFIX_CHARS} characters", _MAX_PREFIX_CHARS)
    if not 0 < pattern.least <= _MAX_LEAST_CHARS:
        raise InvalidInputError(field, f"minimum length must be 1 to {_MAX_LEAST_CHARS}", _MAX_LEAST_CHARS)
    for chars in (pattern.chars, pattern.rest):
        try:
            re.compile(f"[{chars}]")
        except re.error as error:
            raise InvalidInputError(field, f"characters must be the inside of a regex class: {error}") from error
        if "]" in re.sub(r"\\.", "", chars):
            raise InvalidInputError(field, "a ] in the characters needs a backslash")
