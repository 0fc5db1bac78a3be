"""Bundle the modules and styles of the web page for the file.

A module within a file has no address to import it by. So each module is stored as pieces of its text with the names of
the imported modules between them, after these modules; `unpack.js` gives them blob addresses. The bundle contains the
modules and styles that the page refers to.
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

NEEDS_A_SERVER = {"fault_lab.js", "prompt.js", "rule_editor.js", "scrubber.js"}
"""Modules that the view loads on demand, and works without."""

_IMPORT = re.compile(r'((?:\bfrom|^import|(?:=>|await) import\()\s*")\./([\w./-]+\.m?js)(?=")', re.MULTILINE)
_LINK = re.compile(r'<link rel="stylesheet" href="\{root\}/web/([\w.]+)">')


class Embedded(msgspec.Struct, frozen=True):
    """What every file contains: a content security policy, the rest of its head, and its modules."""

    policy: str
    head: Html
    modules: Html


@cache
def embedded() -> Embedded:
    """Return the bundle. It is the same for every session."""
    first = _read("unpack.js")
    style = "\n".join(_read(name) for name in [*_LINK.findall(_read("index.html")), "shared.css"])
    modules: dict[str, list[str]] = {}
    _add_module("shared_page.js", modules)
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


def _add_module(name: str, modules: dict[str, list[str]]) -> None:
    """Add a module after those that it imports, as pieces of its text with their names in between."""
    source, folder = _read(name), name[: name.rfind("/") + 1]
    pieces, end = list[str](), 0
    for match in _IMPORT.finditer(source):
        begin, imported = match[1], folder + match[2]
        if imported in NEEDS_A_SERVER and begin.endswith('import("'):
            continue
        if imported not in modules:
            _add_module(imported, modules)
        pieces += [source[end : match.end(1)], imported]
        end = match.end()
    modules[name] = [*pieces, source[end:]]


def _policy(script: str, *styles: str) -> str:
    """Return a policy that allows one script and two styles by their hash, blob modules, and inline images."""
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
