"""The options of `callslip serve` for commands: their timeout, the limit of a queue, and how long lists show them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from callslip.cli import exit_status
from tests.support.cli_process import TIMEOUT_S, ServeProcess, run_in_process, serving


def request(server: ServeProcess, path: str, body: Any = None) -> Any:
    """Send a GET request, or POST a value as JSON, and return the response body, also that of a problem."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {server.token}", "content-type": "application/json"}
    try:
        with urlopen(Request(server.url + path, data, headers), timeout=TIMEOUT_S) as response:
            return json.load(response)
    except HTTPError as error:
        return json.load(error)


def test_serve_options_change_what_happens_to_commands(tmp_path: Path) -> None:
    """GUIDE1: a full queue expires its oldest command, a command without a timeout uses that of the server, and a
    completed one leaves the list after the window. `callslip doctor` uses the settings of the running server."""
    path = tmp_path / "ledger.db"
    options = ["--queue-limit", "2", "--queue-overflow", "expire_oldest"]
    times = ["--command-timeout", "0.25", "--completed-window", "0.1"]
    with serving(path, "--port", "0", *options, *times) as server:
        for name in ("first", "second", "third"):
            queued = request(server, "/v1/calls", {"action": "go", "correlation_id": name, "timeout": 600})
            assert queued == {"status": "queued", "correlation_id": name}
        assert "queue default is full: 2 commands are pending" in run_in_process("doctor", "--db", str(path)).stdout
        lists = request(server, "/v1/commands")
        assert [row["correlation_id"] for row in lists["pending"]] == ["second", "third"]
        assert [(row["correlation_id"], row["status"]) for row in lists["failed"]] == [("first", "expired")]
        assert lists["failed"][0]["error"] == "a newer command took its place in a full queue"
        done = request(server, "/v1/calls/second/result", {"result": 3})
        assert done["status"] == "complete"
        # It waits for less than the default timeout.
        expired = request(server, "/v1/calls?wait=20", {"action": "go", "client": "other"})
        assert (expired["status"], expired["error"]) == ("expired", "no worker claimed it before its timeout")
        deadline = time.monotonic() + TIMEOUT_S
        while request(server, "/v1/commands")["completed"]:
            assert time.monotonic() < deadline
        assert request(server, "/v1/calls/second?format=command")["result"] == 3


def test_a_full_queue_of_a_server_refuses_by_default(tmp_path: Path) -> None:
    """GUIDE1: the limit is the one of the option, and a completed command stays in the list for the window."""
    with serving(tmp_path / "ledger.db", "--port", "0", "--queue-limit", "1", "--completed-window", "600") as server:
        request(server, "/v1/calls", {"action": "go", "correlation_id": "first", "timeout": 600})
        refused = request(server, "/v1/calls", {"action": "go"})
        assert (refused["status"], refused["type"]) == (429, "urn:callslip:queue_full"), refused
        assert "1 pending command" in refused["detail"]
        request(server, "/v1/calls/first/result", {"result": 1})
        assert [row["correlation_id"] for row in request(server, "/v1/commands")["completed"]] == ["first"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--command-timeout", "0"], "'--command-timeout': must be above 0 seconds, got 0"),
        (["--command-timeout", "-1"], "'--command-timeout': must be above 0 seconds, got -1"),
        (["--command-timeout", "nan"], "'--command-timeout': must be a finite number of seconds, got nan"),
        (["--command-timeout", "1e9"], "'--command-timeout': must be at most 31536000 seconds, got 1e9"),
        (["--completed-window", "-1"], "'--completed-window': must be at least 0 seconds, got -1"),
        (["--completed-window", "1e9"], "'--completed-window': must be at most 31536000 seconds, got 1e9"),
        (["--queue-limit", "0"], "'--queue-limit': 0 is not in the range 1<=x<=1000000"),
        (["--queue-limit", "many"], "'--queue-limit': 'many' is not a valid integer range"),
        (["--queue-overflow", "drop"], "'--queue-overflow': 'drop' is not one of 'refuse', 'expire_oldest'"),
    ],
)
def test_serve_refuses_invalid_command_options(tmp_path: Path, arguments: list[str], message: str) -> None:
    """GUIDE1: the message names the option, the limit and the value, and no database is created."""
    path = tmp_path / "ledger.db"
    result = run_in_process("serve", "--port", "0", "--db", str(path), *arguments)
    assert result.returncode == exit_status.USAGE and message in result.stderr
    assert not path.exists()


def test_connections_and_timeouts_of_a_database_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPS2: an option counts before its variable, and the variable before the default."""
    path = tmp_path / "ledger.db"
    monkeypatch.setenv("CALLSLIP_WRITE_CONNECTIONS", "3")
    monkeypatch.setenv("CALLSLIP_DATABASE_TIMEOUT", "7.5")
    with serving(path, "--port", "0", "--read-connections", "9", "--database-timeout", "60"):
        settings = json.loads(path.with_name("ledger.db.server").read_text())["settings"]
    names = ("read_connections", "write_connections", "statement_timeout", "database_timeout")
    assert [settings[name] for name in names] == [9, 3, 10.0, 60.0]
    refused = run_in_process("serve", "--write-connections", "0", "--db", str(path))
    assert refused.returncode == exit_status.USAGE and "--write-connections" in refused.stderr
