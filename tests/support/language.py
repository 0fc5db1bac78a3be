"""Find words and names that the project avoids: `python -m tests.support.language [PATH...]` lists them.

Prose means comments, docstrings, string literals of the package, Markdown and the page's scripts. Names are those that
a module binds: variables, parameters, functions, classes and attributes.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.paths import ROOT

# Pattern and what to write instead.
AVOIDED_WORDS = {
    r"\b(who|what)(so)?ever\b": "the caller, the client, any",
    r"\b(some|any|no|every)body\b": "a user, a process, a worker",
    r"\banew\b": "again",
    r"\bunder way\b": "in progress",
    r"\bat work\b": "running",
    r"\bcomes? to be\b": "is created",
    r"\ball the same\b": "still",
    r"\b(goes|go) on\b": "continues",
    r"\b(is|are|was) told\b": "receives",
    r"\btells? (of|otherwise|apart)\b": "reports, differs",
    r"\bin the hands of\b": "held by",
    r"\bbeside the log\b": "outside the log",
    r"\bif need be\b": "if needed",
    r"\b(of late|lately)\b": "recently",
    r"\bwhat (became|came) of\b": "the result of",
    r"\bbroke off\b": "was interrupted",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bthrow\w* away\b": "delete",
    r"\bat hand\b": "available",
    r"\bwill do\b": "is enough",
    r"\bstands? (in|beside|behind)\b": "is in",
}
AVOIDED_NAMES = {"told", "said", "made", "given", "asked", "meant"}
AVOIDED_CONSTANTS = {"LONGEST", "MOST", "SHOWN", "PATIENCE", "PAUSE"}

_WORDS = re.compile("|".join(f"(?:{pattern})" for pattern in AVOIDED_WORDS), re.IGNORECASE)
# What is between the parts of a text in source code: escapes, and the quotes between adjacent literals.
_SEAMS = re.compile(r"""\\(?:\n|x..|u....|.)|["']\s*[bfru]{0,2}["']""", re.IGNORECASE)
_NAMES = f"_*(?:{'|'.join(sorted(AVOIDED_NAMES | AVOIDED_CONSTANTS))})_*"
# A name and what follows it where it may be bound. Prose and plain uses rarely look like this.
_BINDINGS = re.compile(rf"\b{_NAMES}\s*(?:[=:,)\]}}|]|[-+*/&^%@<>]+=|(?:in|if)\b)|\b(?:def|class)\s+{_NAMES}\b")


class Finding(NamedTuple):
    """A word or name that should be replaced."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}"


def checked_files(root: Path = ROOT) -> list[Path]:
    """Return the files whose language is checked."""
    src, docs = root / "src" / "callslip", root / "docs"
    found = [
        *src.rglob("*.py"),
        *src.rglob("*.sql"),
        *(src / "web").glob("*.*"),
        *docs.rglob("*.md"),
        *docs.rglob("*.py"),
    ]
    found += [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")]
    found += [*(root / "bench").glob("*.py"), *(root / "tests").rglob("*.py")]
    unchecked = (
        root / "src" / "callslip" / "web" / "vendor",
        root / "tests" / "fixtures",
        root / "tests" / "support" / "language.py",
    )
    return sorted(path for path in set(found) if not any(path.is_relative_to(other) for other in unchecked))


def find_avoided(path: Path) -> list[Finding]:
    """Return the avoided words in the prose of a file, and the avoided names that it binds."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        places = [(number, match.group()) for number, match in _find_words(enumerate(text.splitlines(), 1))]
    else:
        places = _find_in_python(text, with_strings=not path.is_relative_to(ROOT / "tests"))
    return [Finding(path.relative_to(ROOT), number, found) for number, found in places]


def _find_words(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, re.Match[str]]]:
    for number, line in lines:
        for match in _WORDS.finditer(line):
            yield number, match


def _find_in_python(text: str, *, with_strings: bool) -> Iterator[tuple[int, str]]:
    # Parsing takes longer than everything else, so it is left out for files in which a search finds nothing.
    has_words = _WORDS.search(_SEAMS.sub("", text)) is not None
    if not has_words and not _BINDINGS.search(text):
        return
    nodes = list(ast.walk(ast.parse(text)))
    if has_words:
        lines = [*_find_comments(text), *_find_strings(nodes, with_strings=with_strings)]
        yield from ((number, match.group()) for number, match in _find_words(lines))
    for node in nodes:
        for name in _bound_names(node):
            if name.strip("_") in AVOIDED_NAMES | AVOIDED_CONSTANTS:
                yield getattr(node, "lineno", 0), name


def _find_comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _find_strings(nodes: list[ast.AST], *, with_strings: bool) -> Iterator[tuple[int, str]]:
    docstrings = {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if with_strings or id(node) in docstrings:
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line


def _bound_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.id if isinstance(node, ast.Name) else node.attr
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.MatchAs | ast.MatchStar):
        yield node.name or ""


def main(arguments: list[str]) -> int:
    """Print the findings under the given paths, or under all checked ones."""
    chosen = [Path(argument).resolve() for argument in arguments]
    findings = [
        finding
        for path in checked_files()
        if not chosen or any(path.is_relative_to(other) for other in chosen)
        for finding in find_avoided(path)
    ]
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
