"""`callslip search`: results for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import callslip
from callslip.cli import exit_status, main
from callslip.ledger import search_index
from callslip.model import events as ev


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A ledger with two sessions. A search waits for the index, however busy the machine is."""
    monkeypatch.setattr(search_index, "READ_S", 600.0)
    file = str(tmp_path / "ledger.db")
    with callslip.sync.open(file) as ledger:
        call = "new:1"
        ledger.session("pets").append(
            ev.SessionInfo(title="Feed\x1b[2J the zebra", project="/pets"),
            ev.MessageUser(text="where is\n\tthe \x1b[31mzebra"),
            ev.CallProposed(call=call, tool_name="bash", input={"command": "find -name zebra"}),
            ev.CallStarted(call=call),
            ev.CallFailed(call=call, error="no zebra"),
        )
        ledger.session("zoo").append(*[ev.MessageUser(text=f"zebra {number}") for number in range(30)])
    yield file


def run_search(path: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["search", "--db", path, *arguments])


def test_results_show_session_tool_state_and_excerpt(path: str) -> None:
    """Control characters are escaped, and an excerpt is one line. SRCH13"""
    result = run_search(path, "zebra", "--session", "pets")
    assert result.exit_code == exit_status.OK
    blocks = [block.splitlines() for block in result.stdout.strip().split("\n\n")]
    assert [block[0].split("  ")[0] for block in blocks] == ["pets", "pets#2", "pets#3"]
    assert blocks[1][1] == "   the \\x1b[31mzebra"
    assert blocks[2][0].split("  ")[2:4] == ["bash", "failed"]
    assert "\x1b" not in result.stdout and result.stderr == ""


def test_json_has_the_answer_of_the_server(path: str) -> None:
    """Its cursor leads to the next page. SRCH13"""
    first = json.loads(run_search(path, "zebra", "--limit", "30", "--json").stdout)
    rest = json.loads(run_search(path, "zebra", "--limit", "30", "--json", "--cursor", first["cursor"]).stdout)
    assert (len(first["results"]), len(rest["results"]), rest["cursor"]) == (30, 3, "")
    assert first["words"] == ["zebra"] and not first["limited"] and not first["behind"]


def test_words_and_filters_are_arguments(path: str) -> None:
    """Words that begin with a dash follow `--`. SRCH13"""
    for arguments, count in (
        (("--tool", "bash", "--state", "failed", "zebra"), 1),
        (("--project", "/pets", "zebra"), 3),
        (("--until", "2001-01-01", "zebra"), 0),
        (("--since", "2001-01-01T10:00", "--session", "pets", "zebra"), 3),
        (("--", "find", "-name"), 1),
        (('"the zebra"',), 2),
        (("absent",), 0),
    ):
        found = json.loads(run_search(path, "--json", *arguments).stdout)
        assert len(found["results"]) == count, arguments


def test_a_search_without_results_says_why(path: str) -> None:
    """On stderr, so that a pipe gets nothing. SRCH13"""
    assert "nothing found" in run_search(path, "absent").stderr
    assert "no letters or digits" in run_search(path, "*").stderr
    assert "showing 20" in run_search(path, "zebra").stderr
    assert run_search(path, "zebra", "--session", "nope").exit_code == exit_status.NOT_FOUND
    assert run_search(path).exit_code == exit_status.USAGE
    assert run_search(path, "zebra", "--limit", "101").exit_code == exit_status.USAGE
