"""The only place where markup is made: foreign text becomes `Html` by being made harmless, and in no other way.

A page is text that others wrote. Its markup characters are escaped; control characters, of which terminal sequences are
made, and characters that turn the direction of a line are shown by name instead of done. Colours of a terminal, which
change nothing but looks, are left out of what was printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import NewType

Html = NewType("Html", str)

NOTHING = Html("")

# C0 but for tab and line feed, DEL, C1; marks, embeddings, overrides and isolates of direction; separators of lines;
# halves of surrogate pairs, which no file can hold.
_ACTIVE = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ufeff\\ud800-\\udfff]"
)
_C0 = (
    *("NUL", "SOH", "STX", "ETX", "EOT", "ENQ", "ACK", "BEL", "BS", "TAB", "LF", "VT", "FF", "CR", "SO", "SI"),
    *("DLE", "DC1", "DC2", "DC3", "DC4", "NAK", "SYN", "ETB", "CAN", "EM", "SUB", "ESC", "FS", "GS", "RS", "US"),
)
_COLOURS = re.compile("\\x1b\\[[0-9;:]*m")


def text(value: str) -> Html:
    """A text that shows what it consists of, and does nothing."""
    return Html(_ACTIVE.sub(_named, escape(value.replace("\r\n", "\n"))))


def printed(value: str) -> Html:
    """What a program printed for a terminal, without the colours."""
    return text(_COLOURS.sub("", value))


def _named(found: re.Match[str]) -> str:
    code = ord(found[0])
    name = _C0[code] if code < 0x20 else f"U+{code:04X}"
    return f'<span class="control">{name}</span>'


def element(tag: str, *inside: Html, css: str = "", **attributes: str | int) -> Html:
    """An element. Its attributes are ours: no foreign text stands in one."""
    given = ({"class": css} if css else {}) | {key.replace("_", "-"): value for key, value in attributes.items()}
    told = "".join(f' {key}="{escape(str(value))}"' for key, value in given.items())
    return Html(f"<{tag}{told}>{''.join(inside)}</{tag}>")


def empty(name: str, /, **attributes: str) -> Html:
    """An element that has nothing inside."""
    told = "".join(f' {key.replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{told}>")


def data(identity: str, json: bytes) -> Html:
    """JSON for a script. What would mean something to whoever reads the file stands in it as an escape."""
    inside = _ACTIVE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.decode().replace("<", "\\u003c"))
    return element("script", Html(inside), id=identity, type="application/json")


def joined(parts: Iterable[Html], between: str = "") -> Html:
    """Several pieces, with a text of ours between them; those that are empty are left out."""
    return Html(escape(between).join(part for part in parts if part))


def name(value: str, element_name: str = "bdi", css: str = "") -> Html:
    """A foreign text within a line: its direction ends where it ends."""
    inside = text(value)
    return element(element_name, element("bdi", inside), css=css) if element_name != "bdi" else element("bdi", inside)


def block(inside: Html, css: str = "text") -> Html:
    """A foreign text of its own, as it was written: each line runs in its own direction."""
    return element("div", inside, css=css, dir="auto")


TALL = 24


def lines(inside: Html, css: str = "") -> Html:
    """What is read line by line. A tall one scrolls, also for those who have no mouse."""
    reach = {"tabindex": 0} if inside.count("\n") > TALL else {}
    first = "\n" if inside.startswith("\n") else ""  # Browsers drop a line feed at the beginning.
    return element("pre", Html(first + inside), css=css, dir="auto", **reach)


def fold(label: Html, *inside: Html, css: str = "", shown: bool = False) -> Html:
    """What can be opened and closed."""
    made = element("details", element("summary", label), *inside, css=css)
    return Html(made.replace("<details", "<details open", 1)) if shown else made
