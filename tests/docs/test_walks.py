"""The walks in docs/architecture.md name files that really lead to each other, and its layers are those of the code."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.test_layout import LAYERS, MODULES, find_imports, module_name
from tests.support.paths import ROOT

DOCUMENT = ROOT / "docs" / "architecture.md"
WALKS = (
    "An ACP message to the web UI",
    "A command from POST to a worker",
    "A write through one server to a reader of another, with PostgreSQL",
)
ROW = re.compile(r"^\| (?P<step>\d+) \| `(?P<path>[^`]+)` \| [^|]+ \| (?P<link>[^|]*)\|$", re.MULTILINE)
SHARED = re.compile(r"shares `([^`]+)`")


class Step(NamedTuple):
    """A row of a walk. The link says how it reaches the next row."""

    number: int
    path: Path
    link: str


def read_walk(text: str, heading: str) -> list[Step]:
    """Return the rows of the table under a heading."""
    section = text.partition(f"### {heading}\n")[2].partition("\n#")[0]
    return [Step(int(row["step"]), ROOT / row["path"], row["link"].strip()) for row in ROW.finditer(section)]


def uses(path: Path, other: Path) -> bool:
    """Return whether a file imports another; a script may also name the other's path."""
    if path.suffix == ".py":
        return module_name(other) in {target for _, target in find_imports(path, set(MODULES))}
    return re.search(rf"/{re.escape(other.name)}[\"`]", path.read_text("utf-8")) is not None


def contains(path: Path, text: str) -> bool:
    """Return whether a file contains a text, not as a part of a longer name."""
    return re.search(rf"(?<!\w){re.escape(text)}(?![\w/])", path.read_text("utf-8")) is not None


def is_linked(step: Step, following: Step) -> bool:
    """Return whether a step reaches the following one in the way that its link says."""
    if shared := SHARED.fullmatch(step.link):
        return contains(step.path, shared[1]) and contains(following.path, shared[1])
    if step.link == "calls":
        return uses(step.path, following.path)
    return step.link == "returns to" and uses(following.path, step.path)


@pytest.mark.parametrize("heading", WALKS)
def test_each_step_of_a_walk_leads_to_the_next(heading: str) -> None:
    """A step imports the next file, is imported by it, or shares the named string with it."""
    steps = read_walk(DOCUMENT.read_text("utf-8"), heading)
    assert [step.number for step in steps] == list(range(1, len(steps) + 1)) and len(steps) > 10
    assert not [step.number for step, following in pairwise(steps) if not is_linked(step, following)]
    assert steps[-1].link == ""


def test_a_wrong_step_is_found() -> None:
    """A file that is not imported, a string that is in one file only, and an unknown link are all reported."""
    web, rules = ROOT / "src/callslip/web", ROOT / "src/callslip/rules"
    fold, lifecycle = Step(2, rules / "fold.py", ""), Step(2, rules / "lifecycle.py", "")
    timeline, card = Step(1, web / "timeline.js", "calls"), Step(2, web / "card.js", "")
    assert is_linked(timeline, card) and is_linked(card._replace(link="returns to"), timeline)
    assert not is_linked(card._replace(link="calls"), timeline)
    assert not is_linked(timeline._replace(link="somehow"), card)
    assert not is_linked(lifecycle._replace(link="calls"), fold)
    assert is_linked(fold._replace(link="shares `SessionFold`"), fold)
    assert not is_linked(fold._replace(link="shares `SessionFold`"), lifecycle)
    assert not is_linked(fold._replace(link="shares `SessionFol`"), fold)


def test_the_layers_in_the_document_are_those_of_the_code() -> None:
    """Every package is in the table, with its layer."""
    rows = re.findall(r"^\| (\d+) \| (`\w+`(?:, `\w+`)*) \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert {name: int(layer) for layer, names in rows for name in re.findall(r"\w+", names)} == LAYERS
