"""The list of promises and the tests that prove them are held against each other."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.requirements import PARTS, REQUIREMENTS, Later
from tests.support.paths import ROOT

CITED = re.compile(r"\b(C\d+|S\d\.\d+)\b")
GROUPS = {"C": 13, "S0.": 9, "S1.": 9, "S2.": 15, "S3.": 12, "S4.": 10}
IDS = [f"{group}{number}" for group, count in GROUPS.items() for number in range(1, count + 1)]


@cache
def names_in(path: Path) -> set[str]:
    """The names pytest would collect from a file: `test_x` and `TestX::test_x`."""
    found: set[str] = set()
    for statement in ast.parse(path.read_text("utf-8")).body:
        if isinstance(statement, ast.ClassDef):
            inside = [member for member in statement.body if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{statement.name}::{member.name}" for member in inside}
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(statement.name)
        elif isinstance(statement, ast.Assign):  # a Hypothesis state machine: TestX = Machine.TestCase
            found |= {f"{target.id}::runTest" for target in statement.targets if isinstance(target, ast.Name)}
    return found


def proven(node: str) -> bool:
    """Whether a test of this name exists."""
    file, _, name = node.partition("::")
    path = ROOT / file
    return path.is_file() and name.partition("[")[0] in names_in(path)


def remarks(path: Path) -> Iterator[str]:
    """The docstrings and comments of a file, each with the place where it stands."""
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def test_every_id_has_one_row() -> None:
    """No promise is missing, repeated or made up."""
    assert Counter(row.id for row in REQUIREMENTS) == Counter(IDS)


def test_every_promise_is_a_sentence() -> None:
    """Each row says in one sentence of its own what is promised."""
    promises = [row.promise for row in REQUIREMENTS]
    assert all(promise.endswith(".") and len(promise) > 20 for promise in promises)
    assert len(set(promises)) == len(promises)


def test_every_promise_is_proven_or_put_off() -> None:
    """A promise of this release names its tests; one of a later release names the part that brings it."""
    assert not [row.id for row in REQUIREMENTS if row.proof == ()]
    assert not [row.id for row in REQUIREMENTS if isinstance(row.proof, Later) and row.proof.part not in PARTS]


def test_every_test_named_as_proof_exists() -> None:
    """A test that is renamed or removed takes its row along."""
    named = [(row.id, node) for row in REQUIREMENTS if not isinstance(row.proof, Later) for node in row.proof]
    assert not [(id, node) for id, node in named if not proven(node)]


def test_no_test_cites_an_unknown_id() -> None:
    """An id in a docstring or a comment of a test is one of the list."""
    cited = {
        (str(path.relative_to(ROOT)), id)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for remark in remarks(path)
        for id in CITED.findall(remark)
    }
    assert not sorted((file, id) for file, id in cited if id not in IDS)
