"""Test that the tables of `tests.support.engines` must describe the tests of a shared file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import engines


@pytest.fixture
def find_problems(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return a function that checks this test as a shared one, with a table of tests that run on SQLite only."""
    parent = request.node.parent
    monkeypatch.setattr(engines, "SHARED", (parent.nodeid,))

    def find(*sqlite_only: str) -> list[str]:
        monkeypatch.setattr(engines, "SQLITE_ONLY", dict.fromkeys(sqlite_only, "a reason"))
        return [
            problem.partition(": ")[2].partition(".")[0] for problem in engines.find_problems(parent, [request.node])
        ]

    return find


def test_a_test_on_one_engine_needs_a_reason(
    find_problems: Callable[..., list[str]], request: pytest.FixtureRequest
) -> None:
    """The reason may be that of the file. An entry without a test is an error."""
    test_id, file = request.node.nodeid, request.node.parent.nodeid
    assert find_problems() == [f"use the fixture `engine`, or name a reason in SQLITE_ONLY of {engines.TABLES[:-3]}"]
    assert find_problems(test_id) == find_problems(file) == []
    assert find_problems(test_id, f"{file}::test_removed") == ["no such test"]


def test_a_test_on_every_engine_needs_none(
    find_problems: Callable[..., list[str]], request: pytest.FixtureRequest
) -> None:
    """An entry that is left over is an error."""
    request.node.add_marker(pytest.mark.postgres)
    assert find_problems() == []
    assert find_problems(request.node.nodeid) == ["runs on PostgreSQL"]


def test_every_entry_names_a_shared_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a run that does not collect the file."""
    engines.check_tables()
    for file in ("tests/ledger/test_removed.py", "tests/docs/test_engine_tables.py"):
        monkeypatch.setattr(engines, "SQLITE_ONLY", {f"{file}::test_x": "a reason"})
        with pytest.raises(pytest.UsageError, match=file):
            engines.check_tables()
