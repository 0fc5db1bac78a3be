"""The twelve rules are in the docs and in the code, and nowhere else (S2.2, S2.15)."""

from __future__ import annotations

import re

from callslip.model.events import EVENT_TYPES
from callslip.rules import fold, fold_calls
from tests.support.paths import ROOT

MODULES = {"fold_state.py", "fold.py", "fold_calls.py"}


def cited_rules(text: str) -> set[int]:
    """Return the numbers of the rules that a text cites: RULE 4."""
    return {int(number) for number in re.findall(r"\bRULE (\d+)\b", text)}


def test_every_rule_is_documented_and_cited_in_code() -> None:
    """S2.15: the docs have twelve rules, and the fold cites exactly these."""
    documented = cited_rules((ROOT / "docs" / "entry-rules.md").read_text("utf-8"))
    implemented = set[int]().union(
        *(cited_rules((ROOT / "src" / "callslip" / "rules" / module).read_text("utf-8")) for module in MODULES)
    )
    assert documented == implemented == set(range(1, 13))


def test_a_rule_that_code_cites_exists() -> None:
    """S2.15: the package cites no rule beyond the twelve."""
    for path in (ROOT / "src").rglob("*.py"):
        assert cited_rules(path.read_text("utf-8")) <= set(range(1, 13)), path


def test_every_event_that_changes_entries_has_its_rule_in_the_fold() -> None:
    """S2.2: one table maps events to rules; only `raw` and `usage.reported` have none."""
    events_without_rule = [name for name, cls in EVENT_TYPES.items() if cls not in fold.RULES]
    assert events_without_rule == ["usage.reported", "raw"]
    assert {rule.__module__ for rule in fold.RULES.values()} == {fold.__name__, fold_calls.__name__}


def test_the_docs_name_every_event_that_makes_an_entry() -> None:
    """S2.15: the document names every event, except those about calls, which it names by kind."""
    text = (ROOT / "docs" / "entry-rules.md").read_text("utf-8")
    others = ("raw", "session.info", "usage.reported")
    expected = [name for name in EVENT_TYPES if not name.startswith("call.") and name not in others]
    assert not [name for name in expected if f"`{name}`" not in text]
