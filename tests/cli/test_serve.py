"""`callslip serve`, and commands that use a server: their results equal those on the file."""

from __future__ import annotations

import json
import re
import signal
import socket
import stat
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from callslip.api.ledger import LocalLedger
from callslip.cli import exit_status
from callslip.formats import registry
from callslip.model import events as ev
from callslip.model.events import Alias
from tests.support import scenarios
from tests.support.cli_process import (
    Process,
    ServeProcess,
    Terminal,
    run,
    run_in_process,
    running_process,
    serving,
    with_ledger,
)

OPTIONS = [{"optionId": "yes", "kind": "allow_once", "name": "Yes"}, {"optionId": "no", "kind": "reject_once"}]
END_EVENTS: dict[str, tuple[type[Any], dict[str, str]]] = {
    "completed": (ev.CallCompleted, {"output": "done"}),
    "failed": (ev.CallFailed, {"error": "broken"}),
    "cancelled": (ev.CallCancelled, {"reason": "enough"}),
    "lost": (ev.CallLost, {"reason": "gone"}),
    "expired": (ev.CallExpired, {"reason": "late"}),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with a call in every end state, one that waits for approval, one that runs, and two turns."""
    file = tmp_path / "ledger.db"

    async def fill(ledger: LocalLedger) -> None:
        for draft in scenarios.load_drafts("two_turns"):
            await ledger.log.append("two_turns", [draft], source="test")
        for state, (kind, fields) in END_EVENTS.items():
            aliases = (Alias("t", state),)
            proposal = ev.CallProposed(tool_name="t", title=state, scope="detached", aliases=aliases)
            await ledger.log.append(state, [proposal, ev.CallStarted(aliases=aliases), kind(aliases=aliases, **fields)])
        await request_approval(ledger, "denied")
        [request] = await ledger.approvals(session="denied")
        refusal = ev.ApprovalRefused(approval=request.id, call=request.call, by="Ada", reason="no")
        await ledger.log.append("denied", [refusal])
        await request_approval(ledger, "asking")
        await ledger.log.append(
            "running", [_make_proposal("running"), ev.CallStarted(aliases=(Alias("t", "running"),))]
        )

    with_ledger(file, fill)
    return file


def _make_proposal(name: str) -> ev.CallProposed:
    return ev.CallProposed(
        tool_name="rm", title="Remove", input={"path": "/"}, scope="detached", aliases=(Alias("t", name),)
    )


async def request_approval(ledger: LocalLedger, name: str) -> None:
    """Append a call that waits for approval; `name` is its foreign id and its session."""
    request = ev.ApprovalRequested(aliases=(Alias("t", name),), description="may I?", options=OPTIONS)
    await ledger.log.append(name, [_make_proposal(name), request])


def file_options(path: Path) -> list[str]:
    return ["--db", str(path)]


def server_options(server: ServeProcess) -> list[str]:
    return ["--server", server.url, "--token", server.token]


# The server


def test_serve_prints_its_url_and_writes_a_server_file(path: Path, home: Path) -> None:
    """stderr has the URL with the token; the file has no token, is private, and is deleted at the end."""
    with serving(path) as server:
        assert server.info == {"url": server.url, "token": server.token, "pid": server.pid, "db": str(path)}
        assert server.err == [f"serving {path}\n", f"Web UI: {server.url}/?token={server.token}\n"]
        file = path.with_name("ledger.db.server")
        entry = json.loads(file.read_text())
        assert (entry["url"], entry["pid"]) == (server.url, server.pid) and server.token not in file.read_text()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        token = home / ".local/share/callslip/token"
        assert token.read_text().strip() == server.token and stat.S_IMODE(token.stat().st_mode) == 0o600
        data = json.loads(run("doctor", "--json", *file_options(path)).stdout)
        assert data["server"] == {"url": server.url, "pid": server.pid}
        assert server.url in run_in_process("doctor", *file_options(path)).stdout
        assert server.signal(signal.SIGTERM) == exit_status.TERMINATED
        assert not file.exists()
    assert "not running" in run_in_process("doctor", *file_options(path)).stdout


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_ends_open_streams_at_once(path: Path, number: signal.Signals, status: int) -> None:
    """Streams end properly, waiting requests are answered, and nothing more is printed."""
    with serving(path) as server:
        headers = {"authorization": f"Bearer {server.token}"}
        with urlopen(Request(f"{server.url}/v1/sessions/running/stream", headers=headers), timeout=60) as stream:
            assert stream.readline() == b"retry: 1000\n"
            assert server.signal(number) == status
            stream.read()  # This raises an error if the last chunk is missing.
        assert "".join(server.err).count("\n") == 2


def test_a_port_in_use_is_reported(path: Path) -> None:
    """The message suggests --port 0, and no server file is left."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = run("serve", "--port", str(port), *file_options(path))
    assert result.returncode == exit_status.FAILED and not result.stdout
    assert f"port {port} of 127.0.0.1 is in use" in result.stderr and "--port 0" in result.stderr
    assert not path.with_name("ledger.db.server").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "192.0.2.1"], "must be an address of this machine"),
        (["--host", "no such host"], "must be an address of this machine"),
        (["--token", "with a blank"], "a token consists of letters"),
        (["--allow-origin", "nonsense"], "is not an origin"),
        (["--allow-host", "http://x"], "is not a host name"),
    ],
)
def test_invalid_serve_options_are_refused(path: Path, arguments: list[str], words: str) -> None:
    """The message is a single line, and the status is that of a usage error."""
    result = run("serve", "--port", "0", *arguments, *file_options(path))
    assert result.returncode == exit_status.USAGE and words in result.stderr and "Traceback" not in result.stderr


def test_serving_on_a_public_address_gives_a_warning(path: Path) -> None:
    """The printed URL uses 127.0.0.1 and works."""
    with serving(path, "--host", "0.0.0.0", "--port", "0", "--token", "a-token-of-my-own") as server:
        assert "warning: 0.0.0.0 can be reached from other machines" in server.err[0]
        assert server.url.startswith("http://127.0.0.1:") and server.token == "a-token-of-my-own"
        assert run_in_process("export", "asking", *server_options(server)).returncode == 0


def test_open_option_starts_the_browser_with_a_private_file(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other users can see command lines, so the token is in a file, which is deleted at the end."""
    browser, url_file = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\necho "$1" > {url_file}.part && mv {url_file}.part {url_file}\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", str(browser))
    with serving(path, "--open", "--port", "0") as server:
        for _ in range(1000):
            if url_file.exists():
                break
            time.sleep(0.02)
        page_file = Path(urlsplit(url_file.read_text().strip()).path)
        assert server.token not in url_file.read_text()
        assert f"{server.url}/?token={server.token}" in page_file.read_text()
        assert stat.S_IMODE(page_file.stat().st_mode) == 0o600
        assert server.signal(signal.SIGINT) == exit_status.INTERRUPTED
        assert not page_file.exists()


def test_a_second_server_keeps_the_server_file_of_the_first(path: Path) -> None:
    """Other commands find the first server, whichever ends first."""
    server_file = path.with_name("ledger.db.server")
    with serving(path) as first:
        with serving(path) as second:
            assert first.url in second.err[0]
            assert second.signal(signal.SIGTERM) == exit_status.TERMINATED
        assert json.loads(server_file.read_text())["url"] == first.url


def test_the_server_file_of_a_killed_server_is_ignored(path: Path) -> None:
    """Commands then write to the file directly."""
    with serving(path) as server:
        server.kill()
    assert path.with_name("ledger.db.server").exists()
    assert run_in_process("approve", "asking", *file_options(path)).returncode == 0
    with serving(path) as server:
        assert json.loads(path.with_name("ledger.db.server").read_text())["url"] == server.url


def test_serve_works_if_the_server_file_cannot_be_written(path: Path) -> None:
    """A warning reports that other commands will not find this server."""
    path.with_name("ledger.db.server").mkdir()
    with serving(path) as server:
        assert "other commands will not find this server" in server.err[0]
        assert run_in_process("export", "asking", *server_options(server)).returncode == 0


def test_an_in_memory_ledger_can_be_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves no file anywhere."""
    monkeypatch.chdir(tmp_path)
    with serving(Path(":memory:")) as server:
        assert server.info["db"] is None
        assert run_in_process("export", "@last", *server_options(server)).returncode == exit_status.NOT_FOUND
        assert not list(tmp_path.iterdir())


# The same commands on the file and through the server

COMMAND_LINES = [
    *[(["wait", state], exit_status.STATES[state]) for state in [*END_EVENTS, "denied"]],
    (["wait", "exp"], exit_status.NOT_FOUND),
    (["wait", "@last", "--session", "completed", "--json"], exit_status.OK),
    (["wait", "@last", "--session", "comp"], exit_status.OK),
    (["wait", "running", "--timeout", "0.1"], exit_status.TIMED_OUT),
    (["wait", "nothing"], exit_status.NOT_FOUND),
    (["wait", "exec_"], exit_status.USAGE),
    (["wait", "completed", "--session", "failed"], exit_status.NOT_FOUND),
    (["cancel", "completed"], exit_status.FAILED),
    (["cancel", "failed"], exit_status.FAILED),
    (["cancel", "denied"], exit_status.DENIED),
    (["cancel", "lost"], exit_status.ENDED),
    (["cancel", "expired"], exit_status.ENDED),
    (["cancel", "cancelled"], exit_status.OK),
    (["cancel", "nothing"], exit_status.NOT_FOUND),
    (["approve", "nothing"], exit_status.NOT_FOUND),
    (["approve", "completed"], exit_status.NOT_FOUND),
    (["approve", "denied"], exit_status.NOT_FOUND),
    (["approve", "@last", "--option", "maybe"], exit_status.USAGE),
    (["approve", "@last", "--option", "no"], exit_status.USAGE),
    (["deny", "@last", "--option", "yes"], exit_status.USAGE),
    (["export", "nothing"], exit_status.NOT_FOUND),
    (["export", "two_turns", "--at", "3"], exit_status.OK),
    (["export", "two_turns", "--at", "3", "--format", "events"], exit_status.OK),
    (["export", "two_turns", "--at", "999"], exit_status.USAGE),
    (["export", "two_turns", "--at", "999", "--format", "events"], exit_status.USAGE),
    (["export", "two"], exit_status.OK),
    (["export", "e"], exit_status.OK),
    (["export", "a", "--stream", "--format", "ui-v6", "--turn", "no"], exit_status.NOT_FOUND),
    (["tail", "nothing"], exit_status.NOT_FOUND),
    (["tail", "two_turns", "--until-end"], exit_status.OK),
    (["tail", "two_turns", "--until-end", "--format", "events"], exit_status.OK),
    (["tail", "two_turns", "--until-end", "--format", "events", "--from-start"], exit_status.OK),
    (["tail", "two_turns", "--until-end", "--from-start"], exit_status.OK),
    (["tail", "two_turns", "--until-end", "--after", "2"], exit_status.OK),
    (["tail", "two_turns", "--until-end", "--after", "999"], exit_status.USAGE),
]


def test_commands_give_the_same_output_for_file_and_server(path: Path) -> None:
    """Status, stdout and stderr are equal; only messages about parameter names and unknown turns may differ."""
    file_results = {tuple(line): run_in_process(*line, *file_options(path)) for line, _ in COMMAND_LINES}
    first_of_command = {line[0]: line for line, _ in reversed(COMMAND_LINES)}
    for line in first_of_command.values():
        on_file, process = file_results[tuple(line)], run(*line, *file_options(path))
        assert (on_file.returncode, on_file.stdout, on_file.stderr) == (
            process.returncode,
            process.stdout,
            process.stderr,
        )
    with serving(path) as server:
        for line, status in COMMAND_LINES:
            on_file, through_server = file_results[tuple(line)], run_in_process(*line, *server_options(server))
            assert (on_file.returncode, through_server.returncode) == (status, status), (
                line,
                on_file.stderr,
                through_server.stderr,
            )
            assert on_file.stdout == through_server.stdout, line
            if status != exit_status.USAGE and "--turn" not in line and "--session" not in line:
                assert on_file.stderr == through_server.stderr, line


FORMATS = registry.exportable()


def test_exports_are_the_same_for_file_and_server_in_every_format(path: Path) -> None:
    """Documents are identical to the byte, and so are all streams."""
    lines = [["export", "two_turns", "--format", name] for name in FORMATS]
    lines += [["export", "two_turns", "--format", name, "--stream"] for name in registry.streamable()]
    file_results = [run_in_process(*line, *file_options(path)) for line in lines]
    with serving(path) as server:
        for line, on_file in zip(lines, file_results, strict=True):
            through_server = run_in_process(*line, *server_options(server))
            assert on_file.returncode == through_server.returncode == 0, (line, on_file.stderr, through_server.stderr)
            assert on_file.stdout == through_server.stdout and on_file.stdout, line


def test_a_long_log_is_exported_in_pages_through_the_server(tmp_path: Path) -> None:
    """The log has more events than one response."""
    file = tmp_path / "long.db"

    async def fill(ledger: LocalLedger) -> None:
        await ledger.log.append("long", [ev.MessageDelta(text=f"{number} ", chunks="delta") for number in range(2500)])

    with_ledger(file, fill)
    lines = [["export", "long", "--format", "events", *options] for options in ([], ["--at", "1000"], ["--at", "1001"])]
    outputs = [run_in_process(*line, *file_options(file)).stdout for line in lines]
    with serving(file) as server:
        assert [run_in_process(*line, *server_options(server)).stdout for line in lines] == outputs
    assert [len(json.loads(text)["events"]) for text in outputs] == [2500, 1000, 1001]


def test_wait_prints_a_large_output_in_full(tmp_path: Path) -> None:
    """This works over HTTP too, where the output is a separate blob."""
    file, text = tmp_path / "large.db", "word " * 400_000

    async def fill(ledger: LocalLedger) -> None:
        await ledger.log.append("large", [ev.CallCompleted(tool_name="cat", output=text)])

    with_ledger(file, fill)
    with serving(file) as server:
        assert (
            run_in_process("wait", "@last", *server_options(server)).stdout
            == run_in_process("wait", "@last", *file_options(file)).stdout
            == text + "\n"
        )


# Cancelling and deciding


def test_cancel_works_for_file_and_server(path: Path) -> None:
    """Cancelling works on the file and through the server; a waiting command ends."""
    result = run_in_process(
        "cancel", "running", "--reason", "enough", "--json", *file_options(path), env={"USER": "ada", "LOGNAME": "ada"}
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["reason"] == "cancelled by ada: enough"
    with serving(path) as server, running_process("wait", "asking", *server_options(server)) as waiting:
        assert run_in_process("cancel", "asking", "--reason", "stop", *server_options(server)).stderr.endswith(
            "cancelled by user: stop\n"
        )
        assert waiting.end() == exit_status.ENDED
        assert run_in_process("cancel", "asking", *server_options(server)).returncode == exit_status.OK
    assert "no pending approvals" in run_in_process("approve", "@last", *file_options(path)).stderr


def test_a_decision_through_the_server_records_the_token_label(path: Path) -> None:
    """--by is refused."""
    token = run_in_process(
        "admin", "token", "create", "--can", "read,approve", "--label", "Grace", *file_options(path)
    ).stdout.strip()
    with serving(path) as server, running_process("wait", "asking", *server_options(server)) as waiting:
        with_name = run_in_process("approve", "asking", "--by", "Ada", *server_options(server))
        assert with_name.returncode == exit_status.USAGE and "label of your token" in with_name.stderr
        result = run_in_process("deny", "@last", "--json", "--server", server.url, env={"CALLSLIP_TOKEN": token})
        assert result.returncode == 0, result.stderr
        data = json.loads(result.stdout)
        assert (data["state"], data["by"], data["reason"]) == ("refused", "Grace", "denied by Grace")
        assert waiting.end() == exit_status.DENIED
        second = run_in_process("approve", data["approval"], *server_options(server))
        assert second.returncode == exit_status.FAILED and "it was denied by Grace" in second.stderr


def test_approve_can_edit_the_arguments_through_the_server(path: Path) -> None:
    """`--input` runs the call with other arguments."""
    with serving(path) as server:
        assert (
            run_in_process("approve", "asking", "--input", '{"path": "/tmp"}', *server_options(server)).returncode == 0
        )
    [entry] = [entry for entry in _export_entries(path, "asking") if entry["type"] == "tool_call"]
    assert entry["rawInput"] == {"path": "/tmp"}


def _export_entries(path: Path, session: str) -> list[Any]:
    return json.loads(run_in_process("export", session, *file_options(path)).stdout)["entries"]


# Tokens


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_a_decision_needs_a_token_while_a_server_runs(path: Path, verb: str) -> None:
    """The token must be passed: the token file, which any program of this user can read, is not used."""
    with serving(path) as server:
        result = run_in_process(verb, "asking", *file_options(path))
        assert result.returncode == exit_status.USAGE and not result.stdout
        assert f"a server runs for this ledger at {server.url}" in result.stderr
        assert "--token or CALLSLIP_TOKEN" in result.stderr and server.token not in result.stderr
        assert run_in_process(verb, "asking", "--server", server.url).returncode == exit_status.USAGE
        assert run_in_process(verb, "asking", *file_options(path), "--token", "wrong").returncode == exit_status.USAGE
        read_token = run_in_process("admin", "token", "create", "--can", "read", *file_options(path)).stdout.strip()
        refusal = run_in_process(verb, "asking", *file_options(path), "--token", read_token)
        assert refusal.returncode == exit_status.FAILED and "may not approve" in refusal.stderr
        assert run_in_process(verb, "asking", *file_options(path), env={"CALLSLIP_TOKEN": server.token}).returncode == 0
    [request] = [entry for entry in _export_entries(path, "asking") if entry["type"] == "permission_request"]
    assert request["by"] == "user"


def test_approve_prompts_for_the_token_at_a_terminal(path: Path) -> None:
    """The token is not echoed; Ctrl-C changes nothing."""
    with serving(path) as server:
        terminal = Terminal("approve", "asking", *file_options(path))
        terminal.until("Token")
        terminal.press("\x03")
        assert terminal.close() == exit_status.INTERRUPTED
        terminal = Terminal("approve", "asking", *file_options(path))
        terminal.until("Token")
        terminal.press(server.token + "\r")
        terminal.until("approved by user")
        assert terminal.close() == 0 and server.token not in terminal.screen_text


def test_read_commands_use_the_token_file_of_the_user(path: Path, home: Path) -> None:
    """They do so for a server on this machine. A wrong token is not reported as an unreachable server."""
    with serving(path) as server:
        assert run_in_process("export", "asking", "--server", server.url).returncode == 0
        assert (
            run_in_process(
                "export", "asking", env={"CALLSLIP_SERVER": f"{server.url}/?token={server.token}"}
            ).returncode
            == 0
        )
        (home / ".local/share/callslip/token").unlink()
        for options in ([], ["--token", "wrong"]):
            result = run_in_process("export", "asking", "--server", server.url, *options)
            assert result.returncode == exit_status.USAGE and "token" in result.stderr
        with_db = run_in_process("export", "asking", "--server", server.url, *file_options(path))
        assert with_db.returncode == exit_status.USAGE and "exclusive" in with_db.stderr


@pytest.mark.parametrize("line", ["tail", "wait x", "approve x --token t", "deny x --token t", "cancel x", "export x"])
def test_an_unreachable_server_is_status_6(line: str) -> None:
    """A URL of another scheme is a usage error."""
    result = run_in_process(*line.split(), "--server", "http://127.0.0.1:9")
    assert result.returncode == exit_status.UNREACHABLE and "http://127.0.0.1:9" in result.stderr
    assert "Traceback" not in result.stderr
    assert run_in_process(*line.split(), "--server", "ftp://x").returncode == exit_status.USAGE


def test_a_response_of_another_program_is_status_6(path: Path) -> None:
    """The message reports that it is not a Callslip server."""
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class OtherHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<h1>Welcome</h1>")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), OtherHandler) as other_server:
        thread = threading.Thread(target=other_server.serve_forever)
        thread.start()
        result = run_in_process("export", "@last", "--server", f"http://127.0.0.1:{other_server.server_port}")
        other_server.shutdown()
        thread.join()
    assert result.returncode == exit_status.UNREACHABLE and "not a Callslip server" in result.stderr


def wait_until_requested(server: ServeProcess, route: str) -> None:
    """Return once the server has answered a request on a route."""
    headers = {"authorization": f"Bearer {server.token}"}
    for _ in range(2000):
        with urlopen(Request(f"{server.url}/metrics", headers=headers), timeout=60) as answer:
            if f'"{route}"' in answer.read().decode():
                return
        time.sleep(0.02)
    raise AssertionError(f"no request for {route}")


def test_wait_continues_after_a_server_restart(path: Path) -> None:
    """It reports the lost connection, and continues when the server is back."""
    with serving(path) as first:
        port = re.sub(r".*:", "", first.url)
        waiting = Process("wait", "running", *server_options(first))
        try:
            wait_until_requested(first, "/v1/calls/{call}")
            first.kill()
            waiting.until("retrying")
            with serving(path, "--port", port):
                waiting.until("Reconnected to")
                run_in_process("cancel", "running", *file_options(path))
                assert waiting.end() == exit_status.ENDED
        finally:
            waiting.kill()
