"""Check that every promise has existing tests, and that tests cite only known promises."""

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

GROUPS = {
    **{"C": 16, "S0.": 10, "S1.": 9, "S2.": 15, "S3.": 13, "S4.": 10, "API": 12, "OLD": 1},
    **{"ANS": 11, "POL": 8, "HELD": 5, "TEN": 7, "RDR": 4, "BODY": 3, "EDGE": 4},
    **{"FILE": 3, "RED": 4, "EXP": 1, "PAGE": 1, "TAIL": 6, "OUTAGE": 1, "HOST": 4},
    **{"IMP": 6, "RPL": 4, "ROW": 6, "JS": 3, "GUIDE": 2, "VIEW": 5, "ENT": 12, "IDS": 4, "STR": 5, "DB": 3},
    **{"KILL": 3, "DBF": 11, "PGE": 5, "PGS": 10, "MOVE": 9, "OPS": 9},
    **{"USE": 5, "SUB": 5, "LIST": 7, "TRN": 17, "MRG": 7, "CDX": 7, "GEM": 6, "OPC": 8, "SRCH": 14, "AGT": 6},
    **{"HK": 14, "HI": 8, "NTF": 12, "PHN": 8, "RUL": 15, "INB": 6},
}
CITED = re.compile(rf"\b((?:{'|'.join(map(re.escape, GROUPS))})\d+)\b")
IDS = [f"{group}{number}" for group, count in GROUPS.items() for number in range(1, count + 1)]


@cache
def collected_names(path: Path) -> set[str]:
    """Return the names that pytest collects from a file: `test_x` and `TestX::test_x`."""
    names: set[str] = set()
    for statement in ast.parse(path.read_text("utf-8")).body:
        if isinstance(statement, ast.ClassDef):
            methods = [
                member for member in statement.body if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
            names |= {f"{statement.name}::{member.name}" for member in methods}
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(statement.name)
        elif isinstance(statement, ast.Assign):  # A Hypothesis state machine: TestX = Machine.TestCase.
            names |= {f"{target.id}::runTest" for target in statement.targets if isinstance(target, ast.Name)}
    return names


def is_collected(node: str) -> bool:
    """Return whether a test with this name exists."""
    file, _, name = node.partition("::")
    path = ROOT / file
    return path.is_file() and name.partition("[")[0] in collected_names(path)


def comments_and_docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings and comments of a file."""
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def test_every_id_has_one_row() -> None:
    """No promise is missing, repeated or unknown."""
    assert Counter(row.id for row in REQUIREMENTS) == Counter(IDS)


def test_every_promise_is_a_sentence() -> None:
    """Each row has its own sentence."""
    promises = [row.promise for row in REQUIREMENTS]
    assert all(promise.endswith(".") and len(promise) > 20 for promise in promises)
    assert len(set(promises)) == len(promises)


def test_every_promise_has_tests_or_is_for_later() -> None:
    """A promise of this release names its tests; one of a later release names the part."""
    assert not [row.id for row in REQUIREMENTS if row.proof == ()]
    assert not [row.id for row in REQUIREMENTS if isinstance(row.proof, Later) and row.proof.part not in PARTS]


def test_every_test_named_as_proof_exists() -> None:
    """A renamed or removed test changes its row too."""
    named = [(row.id, node) for row in REQUIREMENTS if not isinstance(row.proof, Later) for node in row.proof]
    assert not [(id, node) for id, node in named if not is_collected(node)]


def test_no_test_cites_an_unknown_id() -> None:
    """An id in a docstring or a comment of a test is in the list."""
    known_ids = set(IDS)
    paths = sorted((ROOT / "tests").rglob("*.py"))
    paths_to_parse = [path for path in paths if not known_ids.issuperset(CITED.findall(path.read_text("utf-8")))]
    cited = {
        (str(path.relative_to(ROOT)), id)
        for path in paths_to_parse
        for text in comments_and_docstrings(path)
        for id in CITED.findall(text)
    }
    assert not sorted((file, id) for file, id in cited if id not in known_ids)
