"""Make all markup of the page. Foreign text becomes `Html` only through the escaping functions here.

Markup characters are escaped. Control characters, which terminal sequences consist of, and characters that change the
direction of a line are shown by name. Terminal colours are removed from printed output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import NewType

Html = NewType("Html", str)

NO_HTML = Html("")

# C0 except tab and line feed, DEL, C1; marks, embeddings, overrides and isolates of direction; line separators;
# surrogates, which cannot be encoded.
_CONTROLS = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\ufeff\\ud800-\\udfff]"
)
_C0_NAMES = (
    *("NUL", "SOH", "STX", "ETX", "EOT", "ENQ", "ACK", "BEL", "BS", "TAB", "LF", "VT", "FF", "CR", "SO", "SI"),
    *("DLE", "DC1", "DC2", "DC3", "DC4", "NAK", "SYN", "ETB", "CAN", "EM", "SUB", "ESC", "FS", "GS", "RS", "US"),
)
_TERMINAL_COLOURS = re.compile("\\x1b\\[[0-9;:]*m")


def text(value: str) -> Html:
    """Return foreign text as harmless markup that shows its control characters."""
    return Html(_CONTROLS.sub(_control_name, escape(value.replace("\r\n", "\n"))))


def printed(value: str) -> Html:
    """Return terminal output as markup, without its colours."""
    return text(_TERMINAL_COLOURS.sub("", value))


def _control_name(match: re.Match[str]) -> str:
    code = ord(match[0])
    name = _C0_NAMES[code] if code < 0x20 else f"U+{code:04X}"
    return f'<span class="control">{name}</span>'


def element(tag: str, *inside: Html, css: str = "", **attributes: str | int) -> Html:
    """Return an element. No attribute contains foreign text."""
    named = ({"class": css} if css else {}) | {key.replace("_", "-"): value for key, value in attributes.items()}
    return Html(f"<{tag}{_attributes(named)}>{''.join(inside)}</{tag}>")


def empty(name: str, /, **attributes: str) -> Html:
    """Return an element without content."""
    return Html(f"<{name}{_attributes({key.replace('_', '-'): value for key, value in attributes.items()})}>")


def _attributes(values: Mapping[str, str | int]) -> str:
    return "".join(f' {key}="{escape(str(value))}"' for key, value in values.items())


def data(identity: str, json: bytes) -> Html:
    """Return JSON for a script, with escapes for all characters that have a meaning in HTML or in a terminal."""
    inside = _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.decode().replace("<", "\\u003c"))
    return element("script", Html(inside), id=identity, type="application/json")


def joined(parts: Iterable[Html], between: str = "") -> Html:
    """Join the pieces that are not empty."""
    return Html(escape(between).join(part for part in parts if part))


def name(value: str, element_name: str = "bdi", css: str = "") -> Html:
    """Return a foreign text within a line, isolated from the direction of the line."""
    inside = text(value)
    return element(element_name, element("bdi", inside), css=css) if element_name != "bdi" else element("bdi", inside)


def block(inside: Html, css: str = "text") -> Html:
    """Return a foreign text as a block in its own direction."""
    return element("div", inside, css=css, dir="auto")


TALL_LINES = 24


def lines(inside: Html, css: str = "") -> Html:
    """Return preformatted text. A tall one can be focused, so that it scrolls without a mouse."""
    focus = {"tabindex": 0} if inside.count("\n") > TALL_LINES else {}
    first = "\n" if inside.startswith("\n") else ""  # Browsers drop a line feed at the beginning.
    return element("pre", Html(first + inside), css=css, dir="auto", **focus)


def fold(label: Html, *inside: Html, css: str = "", is_open: bool = False) -> Html:
    """Return a section that can be opened and closed."""
    details = element("details", element("summary", label), *inside, css=css)
    return Html(details.replace("<details", "<details open", 1)) if is_open else details
