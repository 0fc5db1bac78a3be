"""Run the real agents in such a way that they ask before a call, with a program in place of the person at the terminal.

The person waits until `may_answer` is set, and then gives the answer `verb` to each request that the agent still has.
Gemini CLI does not ask when it runs headless, so it has no such person: its own policy decides.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.support.real_agents import RealAgent, Run, platform_name, program, wait_until
from tests.support.scripted_models import Call

MAX_WAIT_S = 120
"""How long the person waits, so that a request that should not be at the terminal fails a test."""

DECLINED = {
    "claude-code": "The terminal says no.",
    "codex": "rejected by user",
    "opencode": "The person at opencode says no.",
}
"""What the model reads when the person at the terminal of an agent says no."""


class Terminal:
    """One agent that asks. `verb` is what its person answers: "approve" or "deny"."""

    def __init__(self, agent: RealAgent, *, verb: str = "deny") -> None:
        self.agent = agent
        self.verb = verb
        self.may_answer = threading.Event()

    def run(self, prompt: str, *options: str) -> None:
        """Give the agent a prompt, and wait until it has finished."""
        {"claude-code": self._claude, "codex": self._codex, "gemini": self._gemini, "opencode": self._opencode}[
            self.agent.name
        ](prompt, *options)

    def call(self, command: str) -> Call:
        """Return a call of the shell about which the agent asks."""
        call = self.agent.shell(command)
        if self.agent.name == "codex":
            escalated = {"sandbox_permissions": "require_escalated", "justification": "I want it"}
            call = Call(call.name, {**call.input, **escalated})
        return call

    def ask_before_commands(self) -> None:
        """Let opencode ask before it runs a command."""
        path = self.agent.home / ".config" / "opencode" / "opencode.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "permission": {"bash": "ask"}}))

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=self.agent.project,
            env=self.agent.whole_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.agent.runs.append(Run(process))
        return process

    def _gemini(self, prompt: str) -> None:
        self.agent.run(prompt)

    def _claude(self, prompt: str, *options: str) -> None:
        """Use it as an SDK does. It asks the program and its hook at once, so the program answers in its own thread."""
        streams = ["--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
        command = [*self.agent.start_of_command(), "-p", *streams, "--permission-prompt-tool", "stdio", *options]
        process = self._start(command)
        lines = _Lines(process)
        lines.send(type="control_request", request_id="r1", request={"subtype": "initialize"})
        lines.send(type="user", message={"role": "user", "content": prompt})

        def answer(message: Any) -> None:
            self.may_answer.wait()
            response = {"behavior": "deny", "message": DECLINED["claude-code"]}
            if self.verb == "approve":
                response = {"behavior": "allow", "updatedInput": message["request"]["input"]}
            result = {"subtype": "success", "request_id": message["request_id"], "response": response}
            with contextlib.suppress(OSError, ValueError):  # It may have ended since.
                lines.send(type="control_response", response=result)

        for message in lines:
            if message["type"] == "control_request":
                threading.Thread(target=answer, args=[message], daemon=True).start()
            if message["type"] == "result":
                break
        lines.close()

    def _codex(self, prompt: str) -> None:
        """Use its server, because `codex exec` does not ask. It asks the program only after its hook."""
        lines = _Lines(self._start([program(f"codex-{platform_name()}", "vendor", "*", "bin", "codex"), "app-server"]))

        def read_until(is_last: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            for message in lines:
                if "requestApproval" in message.get("method", ""):
                    assert self.may_answer.wait(MAX_WAIT_S), f"Codex asks at its terminal: {message}"
                    decision = "accept" if self.verb == "approve" else "decline"
                    lines.send(id=message["id"], result={"decision": decision})
                if is_last(message):
                    return message
            raise AssertionError("the server of Codex has ended")

        def call(number: int, method: str, **params: Any) -> Any:
            lines.send(id=number, method=method, params=params)
            return read_until(lambda message: message.get("id") == number)["result"]

        where = str(self.agent.project)
        call(1, "initialize", clientInfo={"name": "test", "version": "1"})
        lines.send(method="initialized")
        found = call(2, "hooks/list", cwds=[where])["data"][0]["hooks"]
        trusted = {hook["key"]: {"trusted_hash": hook["currentHash"]} for hook in found}  # As /hooks does it.
        call(3, "config/batchWrite", edits=[{"keyPath": "hooks.state", "value": trusted, "mergeStrategy": "upsert"}])
        thread = call(4, "thread/start", cwd=where, approvalPolicy="on-request", sandbox="workspace-write")["thread"]
        lines.send(id=5, method="turn/start", params={"threadId": thread["id"], "input": [_text(prompt)]})
        read_until(lambda message: message.get("method") == "turn/completed")
        lines.close()

    def _opencode(self, prompt: str) -> None:
        """Use its server, because `opencode run` refuses by itself what it would ask. It asks while its plugin does."""
        self.ask_before_commands()
        self.agent.recorded_prompt = str  # Its command line adds quotes.
        process = self._start([*self.agent.start_of_command(), "serve", "--port", "0"])
        assert process.stdout
        url = next(line.split()[-1] for line in process.stdout if "listening" in line)
        session = _http(f"{url}/session", {})["id"]
        has_ended = threading.Event()

        def answer() -> None:
            reply = {"reply": "once"}
            if self.verb == "deny":  # Without a message it would end the turn.
                reply = {"reply": "reject", "message": DECLINED["opencode"]}
            while not has_ended.wait(0.1):
                with contextlib.suppress(OSError):  # It may have ended since.
                    for request in _http(f"{url}/permission") if self.may_answer.is_set() else ():
                        _http(f"{url}/permission/{request['id']}/reply", reply)

        person = threading.Thread(target=answer)
        person.start()
        try:
            _http(f"{url}/session/{session}/message", {"parts": [_text(prompt)]})
        finally:
            has_ended.set()
            person.join()
            process.terminate()
            _close(process)


class _Lines:
    """The messages of a process, one per line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def send(self, **message: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> Any:
        assert self.process.stdout
        return json.loads(next(self.process.stdout))

    def close(self) -> None:
        _close(self.process)


def _close(process: subprocess.Popen[str]) -> None:
    """End a process by closing its pipes."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait(60)


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _http(url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.loads(response.read() or b"null")


class Background:
    """Something that runs in a thread; its error is raised at the end of the block."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._errors: list[BaseException] = []
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._errors.append(error)

    def __enter__(self) -> Background:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        wait_until(lambda: not self.thread.is_alive(), "the end of the agent")
        if self._errors:
            raise self._errors[0]
