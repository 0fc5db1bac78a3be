"""`callslip import`: the detected format, lines that were not understood, and pipes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from callslip.cli import exit_status, main
from tests.support.paths import TESTS

INPUTS = TESTS / "inputs"
OPENAI = [
    {"role": "user", "content": "How warm is it in Paris?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "20"},
    {"role": "assistant", "content": "It is 20 degrees."},
]


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


def run_import(db: str, *arguments: Any) -> Result:
    return CliRunner().invoke(main, ["import", *map(str, arguments), "--db", db])


def pipe_import(db: str, data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "callslip", "import", *arguments, "--db", db]
    return subprocess.run(command, input=data, capture_output=True, timeout=60)


def list_calls(db: str, session: str) -> list[tuple[str, str]]:
    result = CliRunner().invoke(main, ["export", session, "--db", db])
    assert result.exit_code == 0, result.stderr
    entries = json.loads(result.stdout)["entries"]
    return [(entry["toolName"], entry["status"]) for entry in entries if entry["type"] == "tool_call"]


def write_lines(path: Path, messages: list[Any]) -> Path:
    path.write_text("".join(json.dumps(message) + "\n" for message in messages))
    return path


@pytest.mark.parametrize(
    ("file", "format"),
    [
        ("captures/claude-reject.jsonl", "acp"),
        ("inputs/mcp/sdk-2025.jsonl", "mcp"),
        ("inputs/openai/two_rounds.jsonl", "openai"),
        ("inputs/anthropic/parallel.jsonl", "anthropic"),
        ("inputs/ui-v6/weather.jsonl", "ui-v7"),
        ("inputs/rows/weather.jsonl", "rows"),
        ("scenarios/parallel_calls.jsonl", "events"),
    ],
)
def test_the_format_is_detected_and_named(db: str, file: str, format: str) -> None:
    """IMP1: the format may be omitted; the detected one is printed, and is part of the JSON."""
    result = run_import(db, TESTS / file, "--session", "s", "--json")
    assert result.exit_code == 0, result.stderr
    assert f"detected format: {format}\n" in result.stderr
    report = json.loads(result.stdout)
    assert report["format"] == format and report["notUnderstood"] == 0
    assert list_calls(db, "s")


def test_an_ambiguous_file_is_refused_with_the_candidates(db: str, tmp_path: Path) -> None:
    """IMP1: nothing is written, not even a ledger, and the error says what to do."""
    file = write_lines(tmp_path / "talk.jsonl", [OPENAI[0], OPENAI[3]])
    result = run_import(db, file)
    assert result.exit_code == exit_status.USAGE
    assert "talk.jsonl: format: cannot be detected: the first 2 messages may be in any of" in result.stderr
    assert "anthropic, openai, responses" in result.stderr and "Pass the format" in result.stderr
    assert not Path(db).exists()
    assert run_import(db, file, "--format", "openai").exit_code == 0


def test_a_file_without_messages_is_refused_with_the_line_and_the_reason(db: str, tmp_path: Path) -> None:
    """IMP1: no other format would read it, so none is asked for; nothing is written."""
    file = tmp_path / "talk.jsonl"
    for data, error in (
        (b'{"role": "user"\n', "talk.jsonl: line 1: invalid JSON: "),
        ('{"role": "user"}\n'.encode("utf-16"), "talk.jsonl: line 1: is UTF-16 text. Save the file as UTF-8"),
        (b'data: {"a":1}\n\ndata: [DONE]\n', "talk.jsonl: line 1: is a server-sent event."),
        (b'{"session":"s","seq":1,"events":[\n', "talk.jsonl: document: is truncated"),
    ):
        file.write_bytes(data)
        result = run_import(db, file)
        assert result.exit_code == exit_status.FAILED
        assert error in result.stderr and "Pass the format" not in result.stderr
    file.write_bytes(b"\n")
    result = run_import(db, file)
    assert result.exit_code == exit_status.USAGE and "there is no JSON value in the first" in result.stderr
    assert not Path(db).exists()


def test_an_empty_exported_document_has_events(db: str, tmp_path: Path) -> None:
    """IMP1: an export of a session without events can be imported without its format."""
    file = tmp_path / "empty.json"
    file.write_text('{"session":"s","seq":0,"events":[\n]}\n')
    result = run_import(db, file)
    assert result.exit_code == exit_status.OK, result.stderr
    assert "detected format: events\n0 lines, 0 new events" in result.stderr


def test_a_detected_pipe_is_imported_whole(db: str) -> None:
    """IMP1: no byte of stdin is lost, neither with - nor with a path; the input is larger than what is looked at."""
    text = {"type": "act", "tool_name": "write", "tool_input": {"text": "x" * 10_000}}
    result = {"type": "observe", "tool_name": "write", "result": "ok"}
    calls = 60
    lines = [
        json.dumps({**message, "execution_id": f"exec_{number:012x}"}).encode()
        for number in range(calls)
        for message in (text, result)
    ]
    for path, session in (("-", "dash"), ("/dev/stdin", "path")):
        done = pipe_import(db, b"\n".join(lines), path, "--session", session, "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert (report["format"], report["lines"]) == ("act-observe", 2 * calls)
        assert list_calls(db, session) == [("write", "completed")] * calls


def test_a_wrong_format_fails_and_says_how_many_lines_it_did_not_understand(db: str, tmp_path: Path) -> None:
    """IMP2: messages of OpenAI that are read as those of Anthropic contain no call; the right format is named."""
    file = write_lines(tmp_path / "chat.jsonl", OPENAI)
    wrong = run_import(db, file, "--format", "anthropic", "--session", "wrong")
    assert wrong.exit_code == exit_status.FAILED
    assert "not understood: 2 of 4 lines as anthropic" in wrong.stderr
    assert "look like openai: pass --format openai" in wrong.stderr
    right = run_import(db, file, "--format", "openai", "--session", "right")
    assert right.exit_code == 0 and "not understood" not in right.stderr
    assert list_calls(db, "right") == [("weather", "completed")] and list_calls(db, "wrong") == []


@pytest.mark.parametrize(("bad", "good", "status"), [(3, 2, exit_status.FAILED), (2, 2, exit_status.OK)])
def test_the_exit_status_says_whether_most_lines_were_not_understood(
    db: str, tmp_path: Path, bad: int, good: int, status: int
) -> None:
    """IMP2: more than half; the lines are stored as raw in any case."""
    acts = [{"type": "act", "tool_name": "t", "execution_id": f"e{number}"} for number in range(good)]
    file = write_lines(tmp_path / "a.jsonl", [{"odd": number} for number in range(bad)] + acts)
    result = run_import(db, file, "--format", "act-observe", "--json")
    assert result.exit_code == status, result.stderr
    assert f"not understood: {bad} of {bad + good} lines as act-observe; they are stored as they are" in result.stderr
    assert json.loads(result.stdout)["notUnderstood"] == bad


def test_a_transcript_of_a_terminal_agent_is_not_mistaken_for_another_format(db: str, tmp_path: Path) -> None:
    """IMP2: such files resemble the messages inside of them. The session gets the agent's own id."""
    message = {"role": "user", "content": [{"type": "text", "text": "Use the tool"}]}
    lines: list[Any] = [
        {"type": "queue-operation", "operation": "enqueue", "sessionId": "s"},
        {"parentUuid": None, "type": "user", "message": message, "uuid": "u1", "sessionId": "s"},
        {"parentUuid": "u1", "type": "assistant", "message": {"role": "assistant", "content": []}, "uuid": "u2"},
    ]
    file = write_lines(tmp_path / "transcript.jsonl", lines)
    detected, summary = run_import(db, file).stderr.splitlines()
    assert detected == "detected format: claude-code" and summary.endswith("in 1 session")
    assert "claude-s" in CliRunner().invoke(main, ["ls", "--db", db]).stdout
    result = run_import(db, file, "--format", "anthropic")
    assert result.exit_code == exit_status.FAILED and "not understood: 3 of 3 lines" in result.stderr


def test_an_imported_call_shows_the_duration_of_its_producer_or_none(db: str, tmp_path: Path) -> None:
    """VIEW5: equal times say nothing, and the measurement of the producer counts for views and filters."""
    act = {"type": "act", "tool_name": "search", "tool_input": {}}
    observe = {"type": "observe", "tool_name": "search", "result": "found"}
    messages = [{**act, "execution_id": "e1"}, {**observe, "execution_id": "e1", "duration_ms": 7}]
    messages += [{**act, "execution_id": "e2"}, {**observe, "execution_id": "e2"}]
    result = run_import(db, write_lines(tmp_path / "runtime.jsonl", messages), "--format", "act-observe")
    assert result.exit_code == exit_status.OK, result.stderr
    shown = CliRunner().invoke(main, ["show", "runtime", "--db", db]).stdout
    assert (shown.count("in 7 ms"), shown.count(" ms")) == (1, 1), shown


def test_a_copied_log_without_its_large_values_says_so(db: str, tmp_path: Path) -> None:
    """IMP2: the exit status is 1, and the copy refers to nothing that it does not have."""
    events = [
        {"type": "call.started", "aliases": [["t", "1"]], "toolName": "bash"},
        {"type": "call.completed", "aliases": [["t", "1"]], "output": "line\n" * 50_000},
    ]
    run_import(db, write_lines(tmp_path / "large.jsonl", events), "--format", "events")
    exported = CliRunner().invoke(main, ["export", "large", "--format", "events", "--db", db]).stdout
    (tmp_path / "copy.json").write_text(exported)
    copy = str(tmp_path / "copy.db")
    result = run_import(copy, tmp_path / "copy.json", "--format", "events")
    assert result.exit_code == exit_status.FAILED and "missing: 1 large value" in result.stderr
    assert CliRunner().invoke(main, ["verify", "--db", copy]).exit_code == exit_status.OK
    entries = json.loads(CliRunner().invoke(main, ["show", "copy", "--json", "--full", "--db", copy]).stdout)["entries"]
    assert entries[0]["cutBytes"] == 250_000 - len(entries[0]["output"])
    assert run_import(db, tmp_path / "copy.json", "--format", "events", "--session", "same").exit_code == exit_status.OK
