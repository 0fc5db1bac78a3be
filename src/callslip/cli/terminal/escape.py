"""Escape untrusted text: what a tool printed reaches a terminal only as visible characters.

Control characters (ANSI and OSC sequences start with one), bidirectional overrides and invisible characters are shown
as escapes, so that a person sees all of a text, in particular before approving a call.
"""

from __future__ import annotations

import re

# C0, DEL and C1; soft hyphen; bidi marks, embeddings, overrides and isolates; zero-width spaces; line
# separators; invisible fillers; tags; lone surrogates; annotations. Joiners have their own rule.
_HIDDEN = (
    "\\x00-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b\\u200e\\u200f"
    "\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff0-\\ufffb\\U000e0000-\\U000e0fff\\ud800-\\udfff"
)
# Persian, Indic scripts and emoji need joiners between their characters; next to ASCII they only hide something.
_JOINER = r"(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"

_LINE = re.compile(f"[{_HIDDEN}]|{_JOINER}")
_BLOCK = re.compile(f"(?![\n\t])[{_HIDDEN}]|{_JOINER}")


def escape_controls(text: str) -> str:
    """Escape a text for one line, including line breaks and tabs."""
    return text if text.isprintable() and text.isascii() else _LINE.sub(_escape, text)


def escape_block(text: str) -> str:
    """Escape a text of several lines; line breaks and tabs stay."""
    return _BLOCK.sub(_escape, text.replace("\r\n", "\n"))


def escape_json(data: bytes) -> bytes:
    """Escape JSON for a terminal without changing its value: only strings can contain such characters."""
    if data.isascii() and b"\x7f" not in data:
        return data
    return _BLOCK.sub(_json_escape, data.decode()).encode()


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return _NAMED.get(code) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


_NAMED = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
