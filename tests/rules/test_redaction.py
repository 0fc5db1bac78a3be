"""Redaction replaces all secrets and nothing else, for any split of the text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callslip.errors import InvalidInputError
from callslip.rules.redaction import DEFAULT, MAX_NAME_CHARS, MAX_VALUE_CHARS, Pattern, Redactor

REDACTOR = Redactor()
NO_PATTERNS = Redactor(())

# Short patterns, so that Hypothesis finds every combination: a prefix of another prefix, a class without letters, one
# with the backslash, one that contains the prefix of another.
SMALL = (
    Pattern("one", "a-", "a-c0-9-", 3),
    Pattern("two", "a-b-", "a-c-", 4),
    Pattern("three", "b_", "0-9", 2),
    Pattern("four", "n", "nx\\\\", 2),
    Pattern("five", "na b", "A-Z0-9a ", 3, mixed=True),
    Pattern("six", "0", "^ ]".replace("]", "\\]"), 6),
    Pattern("seven", "c=", "a-c", 2, more="^ \\\\", shown=True),
    Pattern("eight", "/", "ab", 2, more="0-9:", shown=True, until="@"),
)
REDACTORS = {"small": Redactor(SMALL), "default": REDACTOR}


def make_secret(pattern: Pattern, length: int) -> str:
    """Return a text that matches the pattern, built here so that no scanner reports this file as a leak."""
    first, rest = (
        [char for char in map(chr, range(33, 127)) if re.match(f"[{chars}]", char)]
        for chars in (pattern.chars, pattern.rest)
    )
    value = [first[(7 * index) % len(first)] for index in range(length)]
    value[pattern.least :] = [rest[(7 * index) % len(rest)] for index in range(pattern.least, length)]
    if pattern.until:
        value = [first[0], ":", *(rest[(7 * index) % len(rest)] for index in range(length)), pattern.until]
    return pattern.prefix + "".join(value)


KEYS = {pattern.prefix: make_secret(pattern, 64) for pattern in DEFAULT if not pattern.shown}
KEY = KEYS["ghp_"]
CONTEXTS = ("{}", '{{"key": "{}"}}', "https://host/?key={}&x", "我的密钥是{}。", "A_{},", "\\n{}")


def texts_for(patterns: tuple[Pattern, ...]) -> st.SearchStrategy[str]:
    """Draw texts of prefixes and parts of them, runs of their classes, and characters that end or precede a secret."""
    prefixes = [pattern.prefix for pattern in patterns]
    parts = [prefix[:length] for prefix in prefixes for length in range(1, len(prefix) + 1)]
    runs = st.builds(
        lambda pattern, length: make_secret(pattern, length), st.sampled_from(patterns), st.integers(0, 70)
    )
    between = ["", "\\", "\\n", "n", "x", "1", " ", "-", "_", ".", "\n", "é", "是", "\0", '"', "]", "[redacted:one]"]
    between += [":", "/", "@", "'", "="]
    piece = st.sampled_from(prefixes) | st.sampled_from(parts) | runs | st.sampled_from(between)
    return st.lists(piece, max_size=12).map("".join)


@st.composite
def split_texts(draw: st.DrawFn) -> tuple[str, str, list[str]]:
    """Draw the name of a redactor, a text for it, and the text in chunks."""
    name = draw(st.sampled_from(sorted(REDACTORS)))
    alphabet = st.text("ab-_n0x1 \\A", max_size=25) | st.text(max_size=10)
    text = draw(texts_for(REDACTORS[name].patterns) | alphabet)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return name, text, [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def redact_chunks(redactor: Redactor, chunks: list[str]) -> tuple[list[str], list[str]]:
    """Redact chunks and return the output after each chunk and at the end, and the carries."""
    outputs: list[str] = []
    carries = [""]
    for chunk in chunks:
        out, carry = redactor.feed(carries[-1], chunk, "".join(outputs)[-2:])
        outputs.append(out)
        carries.append(carry)
    return [*outputs, redactor.flush(carries[-1])], carries


def redact_slowly(patterns: tuple[Pattern, ...], text: str) -> str:
    """Redact a text by a slow, literal version of the rule."""
    output, at, last_end, ends_hidden = "", 0, 0, False
    while at < len(text):
        before = text[last_end:at]
        is_in_word = before[-1:].isascii() and before[-1:].isalnum() and before[-2:-1] != "\\"
        match = None if is_in_word or (last_end == at and ends_hidden) else find_match(patterns, text, at)
        if match is None:
            output += text[at]
            at += 1
        else:
            shown = match[0].prefix if match[0].shown else ""
            output += f"{shown}[redacted:{match[0].name}]{match[0].until}"
            at = last_end = match[1]
            ends_hidden = not match[0].until
    return output


def find_match(patterns: tuple[Pattern, ...], text: str, at: int) -> tuple[Pattern, int] | None:
    """Return the pattern with the longest prefix that matches at an index, and its end."""
    for pattern in sorted(patterns, key=lambda pattern: -len(pattern.prefix)):
        if not text.startswith(pattern.prefix, at):
            continue
        start = at + len(pattern.prefix)
        if pattern.until:
            named = end_of_run(pattern.chars, text, start, MAX_NAME_CHARS)
            end = end_of_run(pattern.rest, text, named + 1, MAX_VALUE_CHARS)
            if text[named : named + 1] == ":" and end - named > pattern.least and text.startswith(pattern.until, end):
                return pattern, end + 1
            continue
        first = text[start : end_of_run(pattern.chars, text, start, pattern.least)]
        if len(first) == pattern.least and (not pattern.mixed or re.search("[A-Z0-9]", first)):
            return pattern, end_of_run(pattern.rest, text, start + len(first), len(text))
    return None


def end_of_run(chars: str, text: str, at: int, limit: int) -> int:
    """Return where a run of at most `limit` characters of a class ends."""
    end = at
    while end < len(text) and end - at < limit and re.match(f"[{chars}]", text[end]):
        end += 1
    return end


class TestLaws:
    @given(split_texts())
    @example(("small", "a-b-aaaa", ["a-b-aaa", "a"]))
    @example(("small", "\\na-abc", ["\\", "na-abc"]))
    @example(("small", "\\na-abc", ["\\n", "a-abc"]))
    @example(("small", "xa-abc", ["x", "a-abc"]))
    @example(("small", "b_12a-abc", ["b_12", "a-abc"]))
    @example(("small", "na ba0 ", ["n", "a", " ", "ba", "0", " "]))
    def test_any_split_gives_the_same_text(self, case: tuple[str, str, list[str]]) -> None:
        """The joined output of the chunks is the output of the full text."""
        name, text, chunks = case
        assert "".join(redact_chunks(REDACTORS[name], chunks)[0]) == REDACTORS[name].text(text)

    @given(split_texts())
    @example(("default", "//a:bcd@//c:def@ ", []))
    def test_single_characters_give_the_same_text(self, case: tuple[str, str, list[str]]) -> None:
        """The finest split is one of them."""
        name, text, _ = case
        assert "".join(redact_chunks(REDACTORS[name], list(text))[0]) == REDACTORS[name].text(text)

    @given(split_texts())
    def test_the_patterns_match_a_reference_implementation(self, case: tuple[str, str, list[str]]) -> None:
        """The compiled patterns find the same secrets as the rule applied letter by letter."""
        name, text, _ = case
        assert REDACTORS[name].text(text) == redact_slowly(REDACTORS[name].patterns, text)

    @given(split_texts())
    def test_held_text_is_short_and_may_become_a_secret(self, case: tuple[str, str, list[str]]) -> None:
        """It is shorter than the secret it may become; a recognized secret is not held."""
        name, _, chunks = case
        patterns = REDACTORS[name].patterns
        url_chars = MAX_NAME_CHARS + MAX_VALUE_CHARS + 2
        longest = max(len(pattern.prefix) + (url_chars if pattern.until else pattern.least) for pattern in patterns)
        for carry in filter(None, redact_chunks(REDACTORS[name], chunks)[1]):
            if carry[0] == "\0":
                assert carry[1:] in {pattern.prefix for pattern in patterns}
            else:
                assert carry[0] in " \\" and len(carry) <= longest
                starts = (pattern.prefix.startswith(carry[1 : 1 + len(pattern.prefix)]) for pattern in patterns)
                assert carry[1:] == "\\" or any(starts)

    @given(split_texts())
    def test_without_the_preceding_text_no_secret_is_missed(self, case: tuple[str, str, list[str]]) -> None:
        """A caller that does not pass earlier output may only redact more."""
        _, _, chunks = case
        carry, out = "", ""
        for chunk in [*chunks, " ", KEY, " \\", f"n{KEY}", " "]:
            more, carry = REDACTOR.feed(carry, chunk)
            out += more
        assert KEY not in out + REDACTOR.flush(carry)

    @given(
        st.recursive(
            st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
        )
    )
    def test_a_value_without_secrets_is_the_same_object(self, value: Any) -> None:
        """Nothing is copied when nothing changes."""
        assert REDACTOR.value(value) is value

    @given(st.text())
    def test_redaction_without_patterns_changes_nothing(self, text: str) -> None:
        """Without patterns all text is released at once, as the same object."""
        assert NO_PATTERNS.text(text) is text
        assert NO_PATTERNS.value([text])[0] is text
        assert NO_PATTERNS.feed("", text) == (text, "")


class TestSecrets:
    @pytest.mark.parametrize("prefix", KEYS)
    def test_every_default_pattern_finds_its_secret(self, prefix: str) -> None:
        """At the start, in an assignment, in JSON, in a URL and in Chinese text."""
        key = KEYS[prefix]
        name = next(pattern.name for pattern in DEFAULT if pattern.prefix == prefix)
        for context in ("-----{}-----END",) if name == "private-key" else (*CONTEXTS, "T={}\nnext", "\\n{}\\n"):
            assert REDACTOR.text(context.format(key)) == context.format(f"[redacted:{name}]")

    @pytest.mark.parametrize(
        "text",
        [
            "sk-" + "a1B2" * 12,
            "sk-proj-" + "x_Y-9" * 20,
            "sk-or-v1-" + "0f" * 32,
            "sk-" + hashlib.md5(b"a", usedforsecurity=False).hexdigest(),
            "sk-ant-api03-" + "x_Y-9" * 18 + "AA",
            "ghp_" + "a1B2" * 9,
            "github_pat_" + "1A" * 11 + "_" + "b2" * 29,
            "glpat-" + "a1_B-" * 4,
            "xoxb-" + "1" * 12 + "-" + "2" * 12 + "-" + "aB3" * 8,
            "AKIA" + "A1B2" * 4,
            "AIza" + "Sy_-1" * 7,
            "hf_" + "aBcD" * 8 + "ef",
            "npm_" + "a1B2" * 9,
            "Bearer " + "abc.DEF-_~+/" * 3 + "==",
            "authorization: bearer " + "0" * 16,
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0." + "s1-_" * 10,
            "Authorization: Basic " + base64.b64encode(b"user:password").decode(),
        ],
    )
    def test_typical_secrets_are_redacted(self, text: str) -> None:
        """Real keys are replaced completely."""
        assert re.fullmatch(r"\[redacted:[a-z-]+\]", REDACTOR.text(text))

    @pytest.mark.parametrize("newline", ["\n", "\r\n", "\\n"])
    def test_a_private_key_is_redacted_completely(self, newline: str) -> None:
        """All lines of a PEM key are replaced, also inside JSON; its last line stays."""
        body = newline.join(["MIIEvQIBADANBgkq+/" * 3] * 20)
        text = newline.join(["-----BEGIN PRIVATE KEY-----", body, "-----END PRIVATE KEY-----"])
        assert REDACTOR.text(text) == "-----[redacted:private-key]-----END PRIVATE KEY-----"

    @pytest.mark.parametrize(
        "text",
        [
            "A task-oriented-approach-to-everything-we-do, risk-adjusted-returns-over-2024-and-2025",
            "task-3f786850e387550fdab836ed7e6dc881de23001b desk-" + "a1B2" * 12,
            "sk-toggleable__control-hidden--visually sk-estimator-doc-link-hover sk-SK sk-learn",
            "src/callslip/store/sqlite.py:12 /usr/lib/x86_64-linux-gnu/libssl.so.3 C:\\sk-test\\npm_modules",
            "npm_config_registry_authentication_token_helper npm_lifecycle_event npm_package_json_path",
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 9e107d9d372bb6826bd81d3542a419d6",
            "The bearer of this letter; Bearer authentication-and-authorization; bearer token-authentication-flow",
            "hf_hub_download_with_retries_and_more_words ghp_ xoxb- AKIA AKIAlowercase0000000 AIzaShort",
            "cursor=eyJpZCI6MTIzNDU2LCJuZXh0IjoiMjAyNC0wMS0wMVQwMDowMDowMFoifQ==",
            "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
            "basic Authorization: Basic <credentials> Bearer $ACCESS_TOKEN Bearer <token>",
            "def ask_question(desk_id: int) -> list[str]: return [sk_learn, hf_model, npm_run]",
        ],
    )
    def test_ordinary_text_is_not_redacted(self, text: str) -> None:
        """Hyphenated words, paths, digests, settings, cursors and code are not secrets."""
        assert REDACTOR.text(text) is text

    def test_a_base64_image_is_not_redacted(self) -> None:
        """No secret begins inside a long run of base64, as a letter precedes every index in it."""
        image = base64.b64encode(b"".join(hashlib.sha256(bytes([n])).digest() for n in range(256)) * 20).decode()
        assert REDACTOR.text(f"data:image/png;base64,{image}").count("[redacted") == 0

    def test_the_longest_matching_prefix_names_the_secret(self) -> None:
        """An Anthropic key also matches the general pattern; the order of the patterns does not matter."""
        key = KEYS["sk-ant-"]
        assert REDACTOR.text(key) == Redactor(reversed(DEFAULT)).text(key) == "[redacted:anthropic]"

    def test_secrets_in_strings_and_keys_of_values_are_redacted(self) -> None:
        """Unchanged parts are shared, not copied."""
        plain = {"a": [1, None]}
        value = {"env": [f"T={KEY}", 1.5, True], KEY: plain, "plain": plain}
        assert REDACTOR.value(value) == {
            "env": ["T=[redacted:github]", 1.5, True],
            "[redacted:github]": plain,
            "plain": plain,
        }
        assert REDACTOR.value(value)["plain"] is plain

    def test_json_text_is_redacted_like_its_value(self) -> None:
        r"""Arguments are streamed as JSON text, where a secret may follow an escaped line end `\n`."""
        value = {"content": f"first\n{KEY}\n\t{KEYS['sk-']}"}
        assert json.loads(REDACTOR.text(json.dumps(value))) == REDACTOR.value(value)

    def test_custom_patterns_are_used(self) -> None:
        """With the default ones or alone."""
        custom = Pattern("badge", "corp-", "0-9", 4)
        assert Redactor((*DEFAULT, custom)).text(f"corp-12345 {KEY}") == "[redacted:badge] [redacted:github]"
        assert Redactor([custom]).text(f"corp-123 corp-1234x {KEY}") == f"corp-123 [redacted:badge]x {KEY}"

    @pytest.mark.parametrize(
        "pattern",
        [
            Pattern("Not A Name", "x-", "a-z", 8),
            Pattern("", "x-", "a-z", 8),
            Pattern("empty", "", "a-z", 8),
            Pattern("mark", "-x", "a-z", 8),
            Pattern("long", "x" * 65, "a-z", 8),
            Pattern("none", "x-", "a-z", 0),
            Pattern("many", "x-", "a-z", 257),
            Pattern("class", "x-", "", 8),
            Pattern("class", "x-", "z-a", 8),
            Pattern("class", "x-", "a]+", 8),
            Pattern("class", "x-", "a\\\\]+", 8),
            Pattern("class", "x-", "a\\", 8),
        ],
    )
    def test_an_invalid_pattern_is_refused(self, pattern: Pattern) -> None:
        """The settings are refused when they are read, with the name of the pattern."""
        with pytest.raises(InvalidInputError) as refused:
            Redactor([pattern])
        assert refused.value.field.startswith("pattern")

    def test_two_patterns_with_the_same_prefix_are_refused(self) -> None:
        """The held text identifies a secret by its prefix."""
        with pytest.raises(InvalidInputError):
            Redactor([*DEFAULT, Pattern("mine", "sk-", "a-z", 8)])


class TestCarry:
    def test_no_ordinary_text_is_held(self) -> None:
        """Neither inside nor at the end of a word, even if it ends like the start of a secret."""
        words = ["The", "bees", "begin", "sitting;", "engines", "sing,", "as", "risks", "rise."]
        before = ""
        for word in words:
            out, carry = REDACTOR.feed("", " " + word, before)
            assert (out, carry) == (" " + word, "")
            before = out

    def test_the_stored_held_text_never_contains_the_secret(self) -> None:
        """Up to the minimum length a part is held; after that only the prefix of the dropped secret."""
        outputs, carries = redact_chunks(REDACTOR, list(f"a {KEY} z"))
        assert "".join(outputs) == "a [redacted:github] z"
        assert max(map(len, carries)) == 1 + len("ghp_") + 29
        assert "\0ghp_" in carries and carries[-1] == ""
        assert not any(KEY[:40] in carry for carry in carries)

    def test_the_redaction_mark_is_released_when_the_secret_is_recognized(self) -> None:
        """A reader does not wait for the end of a long secret."""
        assert REDACTOR.feed("", f"x {KEY}") == ("x [redacted:github]", "\0ghp_")
        assert REDACTOR.feed("\0ghp_", "abc") == ("", "\0ghp_")
        assert REDACTOR.feed("\0ghp_", "") == ("", "\0ghp_")
        assert REDACTOR.feed("\0ghp_", "abc, then") == (", then", "")
        assert REDACTOR.flush("\0ghp_") == ""

    def test_held_text_is_released_completely(self) -> None:
        """Held text that is not a secret is released with the next chunk, or at the end."""
        out, carry = REDACTOR.feed("", "we use npm_", "")
        assert (out, carry) == ("we use ", " npm_")
        assert REDACTOR.feed(carry, "config") == ("", " npm_config")
        assert REDACTOR.feed(carry, "config_z") == ("npm_config_z", "")
        assert REDACTOR.flush(carry) == "npm_"

    def test_held_text_survives_a_change_of_patterns(self) -> None:
        """Text held with other patterns is released, and drops nothing more."""
        for redactor in (NO_PATTERNS, Redactor([Pattern("badge", "corp-", "0-9", 4)])):
            assert redactor.feed(" npm_abc", "def ") == ("npm_abcdef ", "")
            assert redactor.flush("\\npm_abc") == "npm_abc"
            assert redactor.feed("\0npm_", "abc") == ("abc", "")
            assert redactor.flush("\0npm_") == ""


class TestTime:
    """The limits are so wide that only more than linear growth exceeds them."""

    @pytest.mark.parametrize(
        "text",
        [
            "sk-" + "a1B" * 350_000,
            "sk-" * 350_000,
            "sk-aaaaaaaaaaaaaaaaaaa." * 45_000,
            "hf_aaaaaaaaaaaaaaaa-" * 50_000,
            "\\n" * 500_000,
            " " * 1_000_000,
            "BEGIN PRIVATE KEY-----" + "\\n" * 500_000,
            f"{KEY} " * 15_000,
        ],
        ids=["run", "prefixes", "lower case", "short runs", "escapes", "spaces", "pem", "many"],
    )
    def test_redacting_a_megabyte_takes_linear_time(self, text: str) -> None:
        """No text of a million characters takes seconds, whole or in chunks."""
        started = time.process_time()
        redacted = REDACTOR.text(text)
        outputs = redact_in_chunks(text, 1000)
        assert outputs == redacted
        assert time.process_time() - started < 5

    def test_a_long_secret_in_small_chunks_takes_linear_time(self) -> None:
        """A long secret does not grow the carry."""
        started = time.process_time()
        assert redact_in_chunks("ghp_" + "a1" * 100_000, 1) == "[redacted:github]"
        assert time.process_time() - started < 5


def redact_in_chunks(text: str, size: int) -> str:
    carry, outputs, before = "", [], ""
    for start in range(0, len(text), size):
        out, carry = REDACTOR.feed(carry, text[start : start + size], before)
        outputs.append(out)
        before = (before + out)[-2:]
    return "".join([*outputs, REDACTOR.flush(carry)])
