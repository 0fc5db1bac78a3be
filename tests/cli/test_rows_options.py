"""Tools that require a user: the option of `callslip import` and of `callslip serve` for stored rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.support.cli_process import ServeProcess, run_in_process, serving

ROWS = [
    {"id": "m1", "entity": "USER", "content": "Mail it.", "creationDate": "2026-03-01T12:00:01Z"},
    {
        "id": "m2",
        "entity": "AI_TOOL",
        "content": {"content": ""},
        "creationDate": "2026-03-01T12:00:02Z",
        "toolCalls": [{"id": "a", "name": "send_mail", "arguments": "{}"}, {"id": "b", "name": "ls"}],
    },
]


def test_imported_calls_of_a_named_tool_had_a_request(tmp_path: Path) -> None:
    """ROW6, S4.3: only those; the option has no effect in another format, which is an error."""
    file, db = tmp_path / "chat.jsonl", ["--db", str(tmp_path / "ledger.db")]
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    imported = run_in_process("import", str(file), "--format", "rows", "--requires-validation", "send_mail", *db)
    assert imported.returncode == 0, imported.stderr
    entries = json.loads(run_in_process("export", "chat", "--format", "entries", *db).stdout)["entries"]
    requests = [entry["toolCallId"] for entry in entries if entry["type"] == "permission_request"]
    assert requests == ["a"]
    refused = run_in_process("import", str(file), "--format", "openai", "--requires-validation", "send_mail", *db)
    assert refused.returncode != 0 and "requires_validation: has no effect in the format 'openai'" in refused.stderr


def send(server: ServeProcess, path: str, value: Any = None) -> Any:
    headers = {"authorization": f"Bearer {server.token}", "content-type": "application/json"}
    body = None if value is None else json.dumps(value).encode()
    with urlopen(Request(server.url + path, body, headers)) as response:
        return json.loads(response.read())


def test_a_server_knows_the_tools_that_require_a_user(tmp_path: Path) -> None:
    """ROW6, S4.3: calls in posted rows wait for the user, and their annotations say so."""
    options = ("--port", "0", "--requires-validation", "send_mail", "--requires-validation", "rm")
    with serving(tmp_path / "ledger.db", *options) as server:
        send(server, "/v1/sessions/chat/events?format=rows", ROWS)
        answer, _ = send(server, "/v1/sessions/chat?format=vercel-v4")["messages"]
    assert answer["annotations"] == [
        {"toolCallId": "a", "validated": "pending", "isComplete": False},
        {"toolCallId": "b", "validated": "not_required", "isComplete": False},
        {"messageId": "turn-t1", "isComplete": False},
    ]
