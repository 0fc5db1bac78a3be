"""Hostile text made inert: nothing that a tool printed reaches a terminal as anything but visible characters.

Control characters (ANSI and OSC sequences begin with one), bidirectional overrides and invisible characters are shown
as escapes, so that what a person reads, above all before approving, is what there is.
"""

from __future__ import annotations

import re

# C0, DEL and C1; soft hyphen; bidi marks, embeddings, overrides and isolates; blanks without width; separators of
# lines; fillers that look like nothing; tags; halves of surrogate pairs; annotations. Joiners have their own rule.
_HIDDEN = (
    "\\x00-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b\\u200e\\u200f"
    "\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff0-\\ufffb\\U000e0000-\\U000e0fff\\ud800-\\udfff"
)
# Persian, Indic scripts and emoji need joiners between their characters; beside ASCII they only hide something.
_JOINER = r"(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"

_LINE = re.compile(f"[{_HIDDEN}]|{_JOINER}")
_BLOCK = re.compile(f"(?![\n\t])[{_HIDDEN}]|{_JOINER}")


def escape_controls(text: str) -> str:
    """A text for one line: line breaks and tabs are escapes too."""
    return text if text.isprintable() and text.isascii() else _LINE.sub(_escape, text)


def escape_block(text: str) -> str:
    """A text of several lines: line breaks and tabs stay."""
    return _BLOCK.sub(_escape, text.replace("\r\n", "\n"))


def escape_json(data: bytes) -> bytes:
    """JSON that means the same and is safe on a terminal: only strings can hold such characters."""
    if data.isascii() and b"\x7f" not in data:
        return data
    return _BLOCK.sub(_json_escape, data.decode()).encode()


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _NAMED.get(code) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


_NAMED = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}


def _json_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
