"""A ledger of version 0.1 opens, verifies and exports the same, and can be used.

`tests/fixtures/ledger-0.1/README.md` describes its content. The tests use only the command line, HTTP and
`callslip.open`, because only these interfaces stay compatible.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
from click.testing import CliRunner

import callslip
from callslip.cli import main
from tests.support.paths import TESTS

FIXTURE = TESTS / "fixtures" / "ledger-0.1"
EXPORTS = FIXTURE / "exports"
SESSIONS = sorted(path.name for path in EXPORTS.iterdir())
TIMEOUT_S = 60.0

JSON = "application/json"
MAIN_TOKEN = "main"
"""The name in `answers.jsonl` for the token of the file `token`; other names are labels in `tokens.jsonl`."""

LEASED_COMMAND, LEASED_FENCE = "leased-1", 2
HELD_KEY = "C3d4E5f6G7h8I9j0K1l2M3"
HELD_BEARER = "GH34ij56KL78"


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the ledger, in a data folder with its token file."""
    folder = tmp_path / "callslip"
    folder.mkdir(mode=0o700)
    for name in ("ledger.db", "token"):
        shutil.copyfile(FIXTURE / name, folder / name)
    (folder / "token").chmod(0o600)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return folder / "ledger.db"


def run_cli(db: Path, *arguments: str) -> bytes:
    """Run a command on the copy, which must succeed, and return its output."""
    result = CliRunner().invoke(main, [*arguments, "--db", str(db)])
    assert result.exit_code == 0, result.stderr
    return result.stdout_bytes


def json_lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def read_fixture(name: str) -> list[Any]:
    """Return the values of a file of the fixture with a JSON value on each line."""
    return json_lines((FIXTURE / name).read_bytes())


def check_verify(db: Path) -> None:
    """Check that every projection agrees with the log."""
    assert run_cli(db, "verify", "--json") == b""


class Response(NamedTuple):
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Server(NamedTuple):
    """`callslip serve` on the copy."""

    url: str
    tokens: dict[str, str]

    def request(
        self, path: str, body: Any = None, *, token: str = MAIN_TOKEN, headers: dict[str, str] | None = None
    ) -> Response:
        """Send a request: GET without a body, else POST."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=TIMEOUT_S)
        all_headers = {"authorization": f"Bearer {self.tokens[token]}", "content-type": JSON, **(headers or {})}
        data = body if body is None or isinstance(body, str) else json.dumps(body)
        with contextlib.closing(connection):
            connection.request("GET" if body is None else "POST", path, data, all_headers)
            response = connection.getresponse()
            return Response(response.status, response.read())

    def request_json(self, path: str, body: Any = None, **more: Any) -> Any:
        """Send a request that must succeed and return the JSON of its response."""
        answer = self.request(path, body, **more)
        assert answer.status in (200, 201, 202), answer.body
        return answer.json()


@contextlib.contextmanager
def serving(db: Path) -> Iterator[Server]:
    """Run the server with its default settings, and with the token of the token file."""
    command = [sys.executable, "-m", "callslip", "serve", "--port", "0", "--json", "--db", str(db)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            tokens = {row["label"] or row["id"]: row["token"] for row in read_fixture("tokens.jsonl")}
            yield Server(ready["url"], {**tokens, MAIN_TOKEN: (db.parent / "token").read_text("utf-8").strip()})
        finally:
            process.terminate()


ADDED_FIELDS = {"shell": {"callslip_id"}, "act-observe": {"callslip_id", "call_id", "duration_ms"}}
"""The fields that items of a format have since 0.3. Everything else is the same byte for byte."""


SESSION_FIELDS = {
    *("state", "agent", "agentVersion", "model", "project", "branch", "prompt", "continues", "openCalls", "pending"),
    *("failed", "startedAt", "activeAt", "usage", "complete"),
}
"""The fields that sessions and their list have since 0.3."""


def check_same(format: str, old: str, new: str) -> None:
    """Compare an export or a stream with that of 0.1, apart from added fields."""
    if format not in ADDED_FIELDS or old == new:
        assert new == old, format
        return
    lines = list(zip(old.splitlines(), new.splitlines(), strict=True)) if old.startswith("data:") else [(old, new)]
    for old_line, new_line in lines:
        if old_line != new_line:
            old_value, new_value = (json.loads(line.removeprefix("data:")) for line in (old_line, new_line))
            check_superset(old_value, new_value, ADDED_FIELDS[format])


def check_superset(old: Any, new: Any, added: set[str]) -> None:
    """Check that a value is the same, or has more fields, which must be the added ones."""
    assert type(old) is type(new)
    if isinstance(old, dict):
        old_fields, new_fields = cast(dict[str, Any], old), cast(dict[str, Any], new)
        assert new_fields.keys() - old_fields.keys() <= added
        for name, value in old_fields.items():
            check_superset(value, new_fields[name], added)
    elif isinstance(old, list):
        for old_item, new_item in zip(cast(list[Any], old), cast(list[Any], new), strict=True):
            check_superset(old_item, new_item, added)
    else:
        assert old == new


def check_answers(server: Server) -> None:
    """Compare every stored answer of the server: its status, and the bytes of a success."""
    expected = read_fixture("answers.jsonl")
    assert expected
    for row in expected:
        answer = server.request(row["path"], token=row["token"])
        body = answer.body.decode() if answer.status == 200 else None
        assert (answer.status, body is None) == (row["status"], row["body"] is None), row["path"]
        path: str = row["path"]
        old, new = row["body"] or "", body or ""
        if urlsplit(path).path == "/v1/approvals" and body:  # 0.1 ordered those of one millisecond by random ids.
            old, new = (json.dumps(sorted(json.loads(text)["approvals"], key=str)) for text in (old, new))
        if urlsplit(path).path == "/v1/sessions" and body:
            check_superset(json.loads(old), json.loads(new), SESSION_FIELDS)
            continue
        if path.startswith("/v1/approvals") and body:
            check_superset(json.loads(old), json.loads(new), {"inputHash"})
            continue
        check_same(dict(parse_qsl(urlsplit(path).query)).get("format", ""), old, new)


def test_the_fixture_is_complete() -> None:
    """The files are there, and every session of the ledger is exported in the same formats."""
    formats = {name: sorted(path.name for path in (EXPORTS / name).iterdir()) for name in SESSIONS}
    assert {"events.json", "entries.json", "openai.json", "ui-v6.json", "otel.json"} <= set(formats["long"])
    assert all(names == formats["long"] for names in formats.values())
    assert sorted(row["session"] for row in read_fixture("ls.jsonl")) == SESSIONS


@pytest.mark.parametrize("session", SESSIONS)
def test_an_old_ledger_exports_the_same(db: Path, session: str) -> None:
    """Each session in each format has the same bytes, apart from what later versions add to it."""
    for path in sorted((EXPORTS / session).iterdir()):
        exported = run_cli(db, "export", session, "--format", path.stem)
        remove = REMOVE_ADDITIONS.get(path.stem, lambda output: output)
        check_same(path.stem, path.read_bytes().decode(), remove(exported).decode())


def _remove_open_notes(exported: bytes) -> bytes:
    """Remove what 0.3 adds to the messages of turns: annotations of calls and messages that are open."""
    lines = exported.splitlines(keepends=True)
    for number, line in enumerate(lines):
        item, end = (line[:-2], b",\n") if line.endswith(b",\n") else (line.rstrip(b"\n"), b"\n")
        if item.startswith(b'{"id":"turn-'):
            message = json.loads(item)
            notes = message["annotations"]
            message["annotations"] = [note for note in notes if note["isComplete"] or "approvalId" in note]
            lines[number] = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + end
    return b"".join(lines)


REMOVE_ADDITIONS: dict[str, Callable[[bytes], bytes]] = {"vercel-v4": _remove_open_notes}


def test_an_old_ledger_verifies_and_lists_the_same(db: Path) -> None:
    """`verify` finds nothing; `ls` and `admin token ls` print the same rows."""
    check_verify(db)
    check_superset(read_fixture("ls.jsonl"), json_lines(run_cli(db, "ls", "--json")), SESSION_FIELDS)
    assert run_cli(db, "ls", "--commands", "--json") == (FIXTURE / "ls-commands.json").read_bytes()
    tokens = [{name: row[name] for name in row if name != "token"} for row in read_fixture("tokens.jsonl")]
    assert json_lines(run_cli(db, "admin", "token", "ls", "--json")) == tokens
    calls = next(
        json.loads(row["body"])["calls"]
        for row in read_fixture("answers.jsonl")
        if row["path"].startswith("/v1/calls?")
    )
    for session in SESSIONS:
        listed = json_lines(run_cli(db, "ls", session, "--limit", "1000", "--json"))
        expected = [call for call in calls if call["session"] == session]
        assert listed == sorted(expected, key=lambda call: -call["entry"])


def test_an_old_ledger_answers_the_same(db: Path) -> None:
    """Entries, calls, approvals, commands, blobs, pages and streams over HTTP, and what each token may do."""
    with serving(db) as server:
        check_answers(server)
    check_verify(db)


def test_opening_an_old_ledger_ends_no_call(db: Path) -> None:
    """A reaper that runs with the default settings leaves every open call, turn, approval and command open.

    A call of another session whose deadline is over shows that the reaper has run, since only the reaper ends it.
    """
    with serving(db) as server:
        overdue = {"type": "call.proposed", "aliases": [["me", "probe"]], "scope": "detached", "deadline": 1}
        append_events(server, "probe", overdue)
        assert server.request_json(f"/v1/calls/probe?wait={TIMEOUT_S:g}")["state"] == "expired"
    run_cli(db, "admin", "delete", "probe", "--yes")
    states = asyncio.run(wait_for_states(db, "rm_2", "due", "silent", "count-1"))
    assert states == ["denied", "expired", "lost", "completed"]
    for session in SESSIONS:
        for name in ("events", "entries"):
            expected = (EXPORTS / session / f"{name}.json").read_bytes()
            assert run_cli(db, "export", session, "--format", name) == expected
    check_superset(read_fixture("ls.jsonl"), json_lines(run_cli(db, "ls", "--json")), SESSION_FIELDS)
    check_verify(db)


async def wait_for_states(db: Path, *calls: str) -> list[str]:
    """Wait for calls by their foreign ids with the library, and return their states."""
    async with await callslip.open(f"sqlite:///{db}") as ledger:
        return [(await ledger.wait(call, TIMEOUT_S)).state for call in calls]


# Use of an old ledger


def list_entries(server: Server, session: str) -> list[Any]:
    return server.request_json(f"/v1/sessions/{session}")["entries"]


def append_events(server: Server, session: str, *events: Any) -> None:
    assert server.request_json(f"/v1/sessions/{session}/events", list(events))["appended"] == len(events)


def test_a_pending_approval_of_an_old_ledger_is_answered(db: Path) -> None:
    """By a token in its own name, once; by the command line; and for a command that waits for it."""
    with serving(db) as server:
        pending = {row["call"]: row for row in server.request_json("/v1/approvals")["approvals"]}
        first, second = (server.request_json(f"/v1/calls/{name}")["call"] for name in ("rm_4", "rm_5"))
        path = f"/v1/approvals/{pending[first]['approval']}"
        assert server.request(path, {"decision": "approve"}, token="reader").status == 404
        refused = server.request(path, {"decision": "edit", "input": {"path": 4}}, token="operator")
        assert refused.status == 400, "the input does not match the schema of the request"
        answered = server.request_json(path, {"decision": "approve"}, token="operator")
        assert (answered["state"], answered["by"], answered["option"]) == ("granted", "operator", "allow")
        assert server.request(path, {"decision": "deny"}).status == 409
        assert server.request_json("/v1/calls/rm_4")["state"] == "queued"
        awaiting = server.request_json("/v1/calls/asked-1")
        assert server.request_json(f"/v1/approvals/{awaiting['approval']}", {"decision": "approve"})["by"] == "user"
        claim = server.request_json("/v1/calls/claim", {"worker": "w"})
        assert (claim["correlation_id"], claim["params"], claim["fence"]) == ("asked-1", {"to": "prod"}, 1)
    run_cli(db, "deny", pending[second]["approval"], "--reason", "not this one")
    (denied,) = [row for row in json_lines(run_cli(db, "ls", "decisions", "--json")) if row["call"] == second]
    assert (denied["state"], denied["reason"]) == ("denied", "not this one")
    check_verify(db)


def test_a_leased_command_of_an_old_ledger_is_completed_with_its_fence(db: Path) -> None:
    """A stale fence is refused; queued commands are claimed in order and with their full arguments."""
    with serving(db) as server:
        stale = server.request(f"/v1/calls/{LEASED_COMMAND}/result", {"result": "stale", "fence": LEASED_FENCE - 1})
        assert stale.status == 412
        server.request_json(f"/v1/calls/{LEASED_COMMAND}/heartbeat", {"fence": LEASED_FENCE, "text": "whole\n"})
        completed = server.request_json(f"/v1/calls/{LEASED_COMMAND}/result", {"result": [1, 2], "fence": LEASED_FENCE})
        assert (completed["status"], completed["result"]) == ("complete", [1, 2])
        assert server.request_json(f"/v1/calls/{LEASED_COMMAND}")["toolCall"]["outputText"] == "half\nwhole\n"
        claims = [server.request_json("/v1/calls/claim", {"client": "browser", "worker": "w"}) for _ in range(2)]
        assert [claim["correlation_id"] for claim in claims] == ["queued-1", "queued-2"]
        assert claims[0]["params"] == {"url": "https://example.com", "token": "sk-ant-" + "Abc123" * 6}
        for claim in claims:
            server.request_json(f"/v1/calls/{claim['call']}/result", {"result": None, "fence": claim["fence"]})
    check_verify(db)


def test_held_text_of_an_old_ledger_is_redacted_with_its_end(db: Path) -> None:
    """The held beginning of a secret is redacted together with its end, in a message and in an output."""
    with serving(db) as server:
        append_events(
            server,
            "held",
            {"type": "message.delta", "text": f"{HELD_KEY}. Keep it.", "chunks": "delta"},
            {"type": "call.progress", "aliases": [["me", "curl"]], "text": f"{HELD_BEARER}\nok\n"},
            {"type": "call.completed", "aliases": [["me", "curl"]], "output": None},
            {"type": "turn.ended"},
        )
        (message,) = [entry for entry in list_entries(server, "held") if entry.get("role") == "assistant"]
        assert message["content"] == "The key is [redacted:anthropic]. Keep it."
        call = server.request_json("/v1/calls/curl")["toolCall"]
        assert call["outputText"] == "> Authorization: [redacted:bearer]\nok\n"
    log = run_cli(db, "export", "held", "--format", "events").decode()
    assert not [part for part in ("a1B2", HELD_KEY, "abcdEF12", HELD_BEARER) if part in log]
    check_verify(db)


def test_an_old_session_continues_after_retention_and_a_checkpoint(db: Path) -> None:
    """Open texts and calls continue from their last state, and foreign ids still find their calls."""
    with serving(db) as server:
        append_events(
            server,
            "pruned",
            {"type": "call.progress", "aliases": [["me", "watch_1"]], "text": "third change\n"},
            {"type": "call.completed", "aliases": [["me", "watch_1"]], "output": 3},
            {"type": "message.delta", "text": "The rest.", "chunks": "delta"},
            {"type": "turn.ended"},
        )
        watch = server.request_json("/v1/calls/watch_1")
        assert watch["state"] == "completed"
        assert watch["toolCall"]["outputText"] == "one change\nanother change\nthird change\n"
        texts = [entry["content"] for entry in list_entries(server, "pruned") if entry.get("role") == "assistant"]
        assert texts == ["I begin a text that retention cuts in the middle.", "The rest."]
        before = list_entries(server, "long")[-1]
        assert before["streaming"] is True
        append_events(
            server,
            "long",
            {"type": "message.delta", "text": "and the end.", "chunks": "delta"},
            {"type": "call.completed", "aliases": [["me", "call_1"]], "output": "built"},
            {"type": "turn.ended"},
        )
        after = next(entry for entry in list_entries(server, "long") if entry["id"] == before["id"])
        assert after["content"] == before["content"] + "and the end."
        states = [entry["status"] for entry in list_entries(server, "long") if entry["type"] == "tool_call"]
        assert states == ["completed"] * 4
    check_verify(db)


def test_pages_of_an_old_session_have_every_entry_once(db: Path) -> None:
    """Both entries stored by a checkpoint and later ones."""
    with serving(db) as server:
        for session in SESSIONS:
            paged: list[Any] = []
            cursor = ""
            while True:
                page = server.request_json(
                    f"/v1/sessions/{session}?limit=3" + (f"&cursor={quote(cursor)}" if cursor else "")
                )
                paged = page["entries"] + paged
                cursor = page["cursor"]
                if not cursor:
                    break
            assert paged == list_entries(server, session)


def test_idempotency_keys_of_an_old_ledger_count(db: Path) -> None:
    """A body that was posted before changes nothing, and a file that was imported before adds only what is read since.

    That is the agent and its folder.
    """
    posted = json.loads((FIXTURE / "posted.json").read_bytes())
    key = {"idempotency-key": posted["key"]}
    with serving(db) as server:
        path = "/v1/sessions/posted/events"
        assert server.request(path, posted["body"], headers=key) == (200, posted["answer"].encode())
        assert server.request(path, [], headers=key).status == 409
    capture = str(TESTS / "captures" / "codex-cancel.jsonl")
    (report,) = json_lines(run_cli(db, "import", capture, "--format", "acp", "--session", "acp", "--json"))
    assert report["events"] == 1 and report["seen"] == report["drafts"] - 1 > 0
    for session, added in (("posted", 0), ("acp", 1)):
        events = json.loads(run_cli(db, "export", session, "--format", "events"))["events"]
        old = json.loads((EXPORTS / session / "events.json").read_bytes())["events"]
        assert events[: len(old)] == old and len(events) == len(old) + added
        assert all((event["type"], event["project"][:1]) == ("session.info", "/") for event in events[len(old) :])
    check_verify(db)
