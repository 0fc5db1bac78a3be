"""Real agents with the hook in their settings: what is recorded, and how far each lets the inbox answer."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from callslip.api.ledger import LocalLedger
from callslip.model.entries import PermissionRequest
from callslip.model.records import ApprovalRecord
from tests.support.acp_process import with_ledger
from tests.support.hooked_agents import Hooks
from tests.support.real_agents import AGENTS, RealAgent, Run, platform_name, program, wait_until
from tests.support.recorded_work import Work, import_history, read_work
from tests.support.scripted_models import Call, Reply, ScriptedModels

PROMPT = "Look around [[main]]"
REASON = "Not on Fridays."
ARGS = [pytest.param(agent, id=agent.name) for agent in AGENTS]
SHORT = [
    pytest.param(agent, id=agent.name, marks=[] if agent.name in ("claude-code", "codex") else pytest.mark.agents)
    for agent in AGENTS
]


@pytest.fixture
def models() -> Generator[ScriptedModels]:
    with ScriptedModels({}).running() as server:
        yield server


@pytest.fixture
def agent(request: pytest.FixtureRequest, models: ScriptedModels, tmp_path: Path) -> Generator[RealAgent]:
    with contextlib.closing(request.param(tmp_path / "agent", models)) as started:
        yield started


@pytest.fixture
def db(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


def hooked(agent: RealAgent, db: str, *, approvals: bool = False, wait_s: int = 60) -> Hooks:
    hooks = Hooks(db, agent.home, approvals=approvals, wait_s=wait_s)
    hooks.install(agent)
    if agent.name == "codex":  # Its user trusts hooks with /hooks.
        command = agent.start_of_command()
        agent.start_of_command = lambda: [*command, "--dangerously-bypass-hook-trust"]
    return hooks


def set_script(agent: RealAgent) -> Call:
    """Let the model make two equal calls at once, then one that fails, which is returned."""
    failing = agent.shell("echo partial; exit 3")
    equal = (agent.shell("echo one"), agent.shell("echo one"))
    agent.models.scripts["main"] = [
        Reply("I will look.", calls=equal),
        Reply("One more.", calls=(failing,)),
        Reply("Done."),
    ]
    return failing


def check_work(agent: RealAgent, work: Work, failing: Call) -> None:
    """Compare what is recorded with what the model sent: each prompt, text and call once, with its end."""
    truth = agent.models.truth("main")
    assert len(work.sessions) == 1 and work.prompts == [agent.recorded_prompt(PROMPT)]
    assert work.texts == truth.texts
    assert sorted(call.tool_call_id for call in work.calls) == sorted(map(agent.recorded_id, truth.calls))
    for call in work.calls:
        expected = ("failed", 3) if call.tool_call_id == agent.recorded_id(failing) else ("completed", call.exit_status)
        status = 3 in (call.exit_status, call.report and call.report.exit_status)
        assert (call.status, call.exit_status) == expected or status, call


@pytest.mark.parametrize("agent", SHORT, indirect=True)
def test_a_run_with_the_hook_is_recorded_once(agent: RealAgent, db: str) -> None:
    """HK5: each prompt, text and call once with its end; the session file, read once more, adds nothing."""
    hooks = hooked(agent, db)
    failing = set_script(agent)
    with hooks.served():
        agent.run(PROMPT)
        wait_until(lambda: not hooks.spooled() and "Done." in read_work(db).texts, "all messages")
    work = read_work(db)
    check_work(agent, work, failing)
    import_history(db, agent.name, home=agent.home)
    assert read_work(db).seqs == work.seqs


@pytest.mark.agents
@pytest.mark.parametrize("agent", ARGS, indirect=True)
def test_a_run_without_a_server_is_recorded_by_the_next_command(agent: RealAgent, db: str) -> None:
    """HK1: nothing that was stored is lost, and nothing is there twice."""
    hooks = hooked(agent, db)
    failing = set_script(agent)
    agent.run(PROMPT)
    assert hooks.spooled()
    with hooks.served("watch"):
        wait_until(lambda: not hooks.spooled() and "Done." in read_work(db).texts, "all messages")
    check_work(agent, read_work(db), failing)


@pytest.mark.agents
@pytest.mark.parametrize("agent", ARGS, indirect=True)
def test_a_killed_server_leaves_the_agent_working(agent: RealAgent, db: str) -> None:
    """HK1: in the middle of a run; the next server has everything once."""
    hooks = hooked(agent, db, approvals=True)
    failing = set_script(agent)
    with hooks.served() as process:
        run = agent.start(PROMPT)
        wait_until(lambda: Path(db).exists() and read_work(db).sessions, "the session")
        process.kill()
        run.succeed()
    with hooks.served():
        wait_until(lambda: not hooks.spooled() and "Done." in read_work(db).texts, "all messages")
    work = read_work(db)
    assert len(work.calls) == 3 and work.texts == agent.models.truth("main").texts
    assert failing.id in agent.models.truth("main").results
    assert with_ledger(db, LocalLedger.approvals) == []


# Approvals


def pending(db: str) -> list[ApprovalRecord]:
    return with_ledger(db, LocalLedger.approvals) if Path(db).exists() else []


@contextlib.contextmanager
def answering(db: str, verb: str) -> Generator[list[ApprovalRecord]]:
    """Answer each request as soon as it is in the inbox; yield those that were answered."""
    seen: list[ApprovalRecord] = []
    stopped = threading.Event()

    def work() -> None:
        while not stopped.wait(0.1):
            for request in pending(db):
                if request.id not in [each.id for each in seen]:
                    seen.append(request)
                    if verb:
                        with_ledger(db, lambda ledger, id=request.id: getattr(ledger, verb)(id, reason=REASON))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield seen
    finally:
        stopped.set()
        thread.join()


def close(process: subprocess.Popen[str]) -> None:
    """End a process by closing its pipes."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait(60)


def ask_claude(agent: RealAgent) -> str:
    """Run it without a rule that allows the call, as a user who is asked."""
    agent.arguments = lambda prompt, resume, fork: ["-p", prompt, "--output-format", "json"]
    agent.run(PROMPT)
    return "needs approval"


def ask_gemini(agent: RealAgent) -> str:
    agent.run(PROMPT)
    return ""


def ask_codex(agent: RealAgent) -> str:
    """Let a client of its server be the terminal, because `codex exec` does not ask. The client refuses."""
    command = [program(f"codex-{platform_name()}", "vendor", "*", "bin", "codex"), "app-server"]
    process = subprocess.Popen(
        command,
        cwd=agent.project,
        env=agent.whole_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    agent.runs.append(Run(process))
    assert process.stdin and process.stdout

    def send(**message: Any) -> None:
        assert process.stdin
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()

    def read_until(is_last: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        assert process.stdout
        for line in process.stdout:
            message = json.loads(line)
            if "requestApproval" in message.get("method", ""):
                send(id=message["id"], result={"decision": "decline"})
            if is_last(message):
                return message
        raise AssertionError("the server of Codex has ended")

    def call(number: int, method: str, **params: Any) -> Any:
        send(id=number, method=method, params=params)
        return read_until(lambda message: message.get("id") == number)["result"]

    call(1, "initialize", clientInfo={"name": "test", "version": "1"})
    send(method="initialized")
    found = call(2, "hooks/list", cwds=[str(agent.project)])["data"][0]["hooks"]
    trusted = {hook["key"]: {"trusted_hash": hook["currentHash"]} for hook in found}  # As /hooks does it.
    call(3, "config/batchWrite", edits=[{"keyPath": "hooks.state", "value": trusted, "mergeStrategy": "upsert"}])
    options = {"cwd": str(agent.project), "approvalPolicy": "on-request", "sandbox": "workspace-write"}
    thread = call(4, "thread/start", **options)["thread"]["id"]
    send(id=5, method="turn/start", params={"threadId": thread, "input": [{"type": "text", "text": PROMPT}]})
    read_until(lambda message: message.get("method") == "turn/completed")
    close(process)
    return "rejected by user"


def ask_opencode(agent: RealAgent) -> str:
    """Use its server, because `opencode run` refuses by itself what it would ask. A client refuses after a while."""
    path = agent.home / ".config" / "opencode" / "opencode.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "permission": {"bash": "ask"}}))
    process = subprocess.Popen(
        [*agent.start_of_command(), "serve", "--port", "0"],
        cwd=agent.project,
        env=agent.whole_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    agent.runs.append(Run(process))
    assert process.stdout
    url = next(line.split()[-1] for line in process.stdout if "listening" in line)

    def post(path: str, body: Any) -> Any:
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.loads(response.read() or b"null")

    session = post("/session", {})["id"]
    post(f"/session/{session}/message", {"parts": [{"type": "text", "text": PROMPT}]})
    process.terminate()
    close(process)
    return ""


ASK: dict[str, Callable[[RealAgent], str]] = {
    "claude-code": ask_claude,
    "codex": ask_codex,
    "gemini": ask_gemini,
    "opencode": ask_opencode,
}


def gated_call(agent: RealAgent) -> Call:
    """Let the model make one call about which the agent asks."""
    call = agent.shell("touch made")
    if agent.name == "codex":
        escalated = {"sandbox_permissions": "require_escalated", "justification": "I want it"}
        call = Call(call.name, {**call.input, **escalated})
    agent.models.scripts["main"] = [Reply("I will look.", calls=(call,)), Reply("Done.")]
    return call


@pytest.mark.agents
@pytest.mark.parametrize("verb", ["approve", "deny"])
@pytest.mark.parametrize("agent", ARGS, indirect=True)
def test_an_answer_in_the_inbox_decides(agent: RealAgent, db: str, verb: str) -> None:
    """HK9: an approval lets the call run, and the reason of a denial reaches the model. The call is there once."""
    hooks = hooked(agent, db, approvals=True)
    call = gated_call(agent)
    with hooks.served(), answering(db, verb) as answered:
        ASK[agent.name](agent)
        wait_until(lambda: not hooks.spooled() and "Done." in read_work(db).texts, "all messages")
        wait_until(lambda: all(call.ended_at for call in read_work(db).calls), "the end of the call")
    assert len(answered) == 1
    assert (agent.project / "made").exists() is (verb == "approve")
    assert (REASON in agent.models.truth("main").results[call.id]) is (verb == "deny")
    (recorded,) = read_work(db).calls
    assert recorded.status == ("completed" if verb == "approve" else "denied")


@pytest.mark.agents
@pytest.mark.parametrize("agent", [pytest.param(each, id=each.name) for each in AGENTS[:3]], indirect=True)
def test_without_an_answer_the_agent_decides(agent: RealAgent, db: str) -> None:
    """HK4: it asks in its terminal, where no person is, or follows its own rules, which allow it in Gemini CLI here."""
    hooks = hooked(agent, db, approvals=True, wait_s=1)
    call = gated_call(agent)
    with hooks.served():
        refusal = ASK[agent.name](agent)
        wait_until(lambda: not hooks.spooled() and "Done." in read_work(db).texts, "all messages")
        wait_until(lambda: all(call.ended_at for call in read_work(db).calls), "the end of the call")
    assert (agent.project / "made").exists() is (agent.name == "gemini")
    assert refusal in agent.models.truth("main").results[call.id]
    (recorded,) = read_work(db).calls
    expected = {"gemini": "completed", "codex": "denied", "claude-code": "failed"}
    assert recorded.status == expected[agent.name]

    async def read(ledger: LocalLedger) -> Any:
        (session,) = (await ledger.sessions()).items
        return (await ledger.snapshot(session.name)).entries

    (request,) = [entry for entry in with_ledger(db, read) if isinstance(entry, PermissionRequest)]
    assert request.state == "released"


class Host:
    """A program that uses Claude Code as an SDK does, and answers its questions like a terminal."""

    def __init__(self, agent: RealAgent, *, answers: bool) -> None:
        self.agent = agent
        self.answers = answers
        options = ["--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
        self.process = subprocess.Popen(
            [*agent.start_of_command(), "-p", *options, "--permission-prompt-tool", "stdio"],
            cwd=agent.project,
            env=agent.whole_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        agent.runs.append(Run(self.process))

    def send(self, **message: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def run(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.send(type="control_request", request_id="r1", request={"subtype": "initialize"})
        self.send(type="user", message={"role": "user", "content": PROMPT})
        for line in self.process.stdout:
            message = json.loads(line)
            if message["type"] == "control_request" and self.answers:
                response = {"behavior": "allow", "updatedInput": message["request"]["input"]}
                result = {"subtype": "success", "request_id": message["request_id"], "response": response}
                self.send(type="control_response", response=result)
            if message["type"] == "result":
                break
        close(self.process)


@pytest.mark.agents
@pytest.mark.parametrize("agent", ARGS[:1], indirect=True)
def test_the_terminal_of_claude_code_may_answer_first(agent: RealAgent, db: str) -> None:
    """HK11: it asks while the hook waits. Its answer ends the hook, and the request is released."""
    hooks = hooked(agent, db, approvals=True)
    gated_call(agent)
    host = Host(agent, answers=True)
    started = time.monotonic()
    with hooks.served():
        host.run()
        wait_until(lambda: not hooks.spooled() and "Done." in read_work(db).texts, "all messages")
        wait_until(lambda: not pending(db), "the release")
    assert (agent.project / "made").exists() and time.monotonic() - started < hooks.wait_s
    (recorded,) = read_work(db).calls
    assert recorded.status == "completed"


@pytest.mark.agents
@pytest.mark.parametrize("agent", ARGS[:1], indirect=True)
def test_a_question_of_claude_code_is_answered_in_the_inbox(agent: RealAgent, db: str) -> None:
    """HK9: the option that was chosen reaches the model as the answer."""
    hooks = hooked(agent, db, approvals=True)
    options = [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}]
    question = {"question": "Which colour?", "header": "Colour", "multiSelect": False, "options": options}
    call = Call("AskUserQuestion", {"questions": [question]})
    agent.models.scripts["main"] = [Reply("I ask.", calls=(call,)), Reply("Done.")]
    host = Host(agent, answers=False)

    def choose() -> None:
        wait_until(lambda: pending(db), "the question")
        (request,) = pending(db)
        with_ledger(db, lambda ledger: ledger.approve(request.id, option="choice-2"))

    chooser = threading.Thread(target=choose)
    with hooks.served():
        chooser.start()
        host.run()
        chooser.join()
    assert '"Which colour?"="Blue"' in agent.models.truth("main").results[call.id]
