"""The page itself, for the file: its modules and its styles, taken from the package and put together once.

A module within a file has no address that others could import it by. So each is kept as pieces of its text, with the
name of a module that it imports between every two of them, and stands behind all those; `unpack.js` gives them
addresses that no text in the file can know. Which modules and styles are needed follows from what names them.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from functools import cache
from importlib.resources import files

import msgspec

from callslip.formats.html.markup import Html, element, joined
from callslip.formats.html.style import STYLE
from callslip.model import codec

NEEDS_A_SERVER = {"prompt.js", "scrubber.js"}
"""Parts of the view that it loads when it is shown, and does without where they are not to be had."""

_IMPORT = re.compile(r'((?:\bfrom|^import|(?:=>|await) import\()\s*")\./([\w./-]+\.m?js)(?=")', re.MULTILINE)
_LINK = re.compile(r'<link rel="stylesheet" href="\{root\}/web/([\w.]+)">')


class Embedded(msgspec.Struct, frozen=True):
    """What every file has: a policy that allows just this, what stands in its head, and its modules."""

    policy: str
    head: Html
    modules: Html


@cache
def embedded() -> Embedded:
    """The same for every session, so it is made once in a process."""
    first = _read("unpack.js")
    style = "\n".join(_read(name) for name in [*_LINK.findall(_read("index.html")), "shared.css"])
    modules: dict[str, list[str]] = {}
    _take("shared_page.js", modules)
    styles = [element("style", Html(STYLE)), element("style", Html(style), id="page", media="not all")]
    packed = base64.b64encode(gzip.compress(codec.encode(list(modules.items())), mtime=0)).decode()
    texts = {"modules": packed, "licences": _read("vendor/LICENSES.txt")}
    return Embedded(
        policy=_policy(first, STYLE, style),
        head=joined([*styles, element("script", Html(first))]),
        modules=joined(element("script", Html(text), id=name, type="text/plain") for name, text in texts.items()),
    )


def _read(name: str) -> str:
    return files("callslip.web").joinpath(name).read_text("utf-8")


def _take(name: str, modules: dict[str, list[str]]) -> None:
    """Put a module behind those that it imports: the pieces of its text, and their names in between."""
    source, folder = _read(name), name[: name.rfind("/") + 1]
    pieces, end = list[str](), 0
    for found in _IMPORT.finditer(source):
        begin, imported = found[1], folder + found[2]
        if imported in NEEDS_A_SERVER and begin.endswith('import("'):
            continue
        if imported not in modules:
            _take(imported, modules)
        pieces += [source[end : found.end(1)], imported]
        end = found.end()
    modules[name] = [*pieces, source[end:]]


def _policy(script: str, *styles: str) -> str:
    """One script and two styles by what they are, modules that the script made, and pictures that stand in the file."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)} blob:",
            f"style-src {' '.join(map(_hash, styles))}",
            "img-src data:",
            "connect-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
