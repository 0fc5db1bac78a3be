"""Real agents with the hooks that `callslip hook install` wrote: what is recorded, and how far the inbox can answer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from callslip.api.ledger import LocalLedger, open_ledger
from callslip.client.location import parse_location
from callslip.model.entries import PermissionRequest
from callslip.model.records import ApprovalRecord
from callslip.settings import Settings
from tests.support.acp_process import Client, with_ledger, wrap_command
from tests.support.agent_terminals import DECLINED, Background, Terminal
from tests.support.engines import POSTGRES
from tests.support.hooked_agents import Hooks
from tests.support.real_agents import AGENTS, RealAgent, wait_until
from tests.support.recorded_work import Work, import_history, read_work
from tests.support.scripted_models import Call, Reply

PROMPT = "Look around [[main]]"
REASON = "Not on Fridays."
ARGS = [pytest.param(agent, id=agent.name) for agent in AGENTS]
BY_NAME = {agent.name: param for agent, param in zip(AGENTS, ARGS, strict=True)}
BESIDE_THE_HOOK = [BY_NAME["claude-code"], BY_NAME["opencode"]]
"""Those that ask in the terminal while their hook waits."""
IN_SHORT = ("claude-code", "codex")
SHORT = [
    pytest.param(agent, id=agent.name, marks=[] if agent.name in IN_SHORT else pytest.mark.agents) for agent in AGENTS
]
ON_POSTGRES = pytest.param(POSTGRES, marks=pytest.mark.postgres)


def install(agent: RealAgent, db: str, *, approvals: bool = False, wait_s: int = 60) -> Hooks:
    """Install the hooks of an agent as its user does."""
    hooks = Hooks(db, agent.home, approvals=approvals, wait_s=wait_s)
    hooks.install(agent)
    return hooks


def wait_for_all(hooks: Hooks) -> Work:
    """Wait until the run is recorded up to its last text and the ends of all calls; return what is there."""

    def is_done() -> bool:
        if hooks.spooled():
            return False
        work = read_work(hooks.db)
        return "Done." in work.texts and all(call.ended_at for call in work.calls)

    wait_until(is_done, "all messages")
    return read_work(hooks.db)


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


def find_call(db: str, foreign_id: str) -> str:
    """Return the id of the call with an id of the agent."""
    return with_ledger(db, lambda ledger: ledger.find_call(foreign_id)).id


def check_work(agent: RealAgent, db: str, work: Work, ends: dict[str, str]) -> None:
    """Compare what is recorded with what the model sent: each prompt, text and call once, with its end.

    `ends` has the states of the calls that were not completed, by the ids of the model.
    """
    truth = agent.models.truth("main")
    assert len(work.sessions) == 1 and work.prompts == [agent.recorded_prompt(PROMPT)]
    assert work.texts == truth.texts
    assert len(work.calls) == len(truth.calls)
    recorded = {call.call_id: call for call in work.calls}
    for sent in truth.calls:
        call = recorded.pop(find_call(db, agent.recorded_id(sent)))
        is_failed = 3 in (call.exit_status, call.report and call.report.exit_status)
        wanted = ends.get(sent.id, "completed")
        assert call.status == wanted or (is_failed and wanted == "failed"), call


@pytest.mark.agents
@pytest.mark.parametrize("agent", ARGS, indirect=True)
def test_a_run_with_the_hook_is_recorded_once(agent: RealAgent, db: str) -> None:
    """HK5: each prompt, text and call once with its end; the session file, read once more, adds nothing."""
    hooks = install(agent, db)
    failing = set_script(agent)
    with hooks.served():
        agent.run(PROMPT)
        work = wait_for_all(hooks)
    check_work(agent, db, work, {failing.id: "failed"})
    import_history(db, agent.name, home=agent.home)
    assert read_work(db).seqs == work.seqs


@pytest.mark.agents
@pytest.mark.parametrize("agent", ARGS, indirect=True)
def test_a_run_without_a_server_is_recorded_by_the_next_command(agent: RealAgent, db: str) -> None:
    """HK1: nothing that was stored is lost, and nothing is there twice."""
    hooks = install(agent, db)
    failing = set_script(agent)
    agent.run(PROMPT)
    assert hooks.spooled() and hooks.status(agent)["waiting"] == len(hooks.spooled())
    with hooks.served("watch"):
        work = wait_for_all(hooks)
    check_work(agent, db, work, {failing.id: "failed"})


# Approvals


def exists(db: str) -> bool:
    return "postgresql" in db or Path(db.removeprefix("sqlite:///")).exists()


def pending(db: str) -> list[ApprovalRecord]:
    return with_ledger(db, LocalLedger.approvals) if exists(db) else []


def requests(db: str) -> list[PermissionRequest]:
    """Return all requests for approval, with their answers."""

    async def read(ledger: LocalLedger) -> Any:
        sessions = (await ledger.sessions()).items
        return [entry for session in sessions for entry in (await ledger.snapshot(session.name)).entries]

    entries = with_ledger(db, read) if exists(db) else []
    return [entry for entry in entries if isinstance(entry, PermissionRequest)]


@contextlib.contextmanager
def answering(db: str, verb_for: Callable[[str], str]) -> Generator[list[str]]:
    """Answer each request in the inbox by the title of its call; yield the titles of those that were answered."""
    titles: list[str] = []
    stopped = threading.Event()

    async def answer_all() -> None:
        async with await open_ledger(parse_location(db, "test").url, Settings(reaper_interval=3600)) as ledger:
            for request in await ledger.approvals():
                await answer(ledger, request)

    async def answer(ledger: LocalLedger, request: ApprovalRecord) -> None:
        for _ in (1,):
            title = (
                f"{(await ledger.find_call(request.call)).title} {request.description}"  # opencode has no title yet.
            )
            titles.append(title)
            await getattr(ledger, verb_for(title))(request.id, reason=REASON)

    def work() -> None:
        while not stopped.wait(0.1):
            asyncio.run(answer_all())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield titles
    finally:
        stopped.set()
        thread.join()


@pytest.mark.parametrize("agent", SHORT, indirect=True)
def test_a_run_is_answered_in_the_inbox_and_recorded_once(agent: RealAgent, db: str) -> None:
    """HK5, HK9: calls that were allowed run, and the model reads the reason of a denial. Each call is there once."""
    check_answers(agent, db)


@pytest.mark.agents
@pytest.mark.parametrize("engine", [ON_POSTGRES], scope="session")
@pytest.mark.parametrize("agent", ARGS[:1], indirect=True)
def test_a_run_is_answered_on_postgresql(agent: RealAgent, db: str) -> None:
    """HK5, HK9: the same on a server."""
    check_answers(agent, db)


def check_answers(agent: RealAgent, db: str) -> None:
    """Let an agent ask about four calls, of which the last one is denied."""
    hooks = install(agent, db, approvals=True)
    terminal = Terminal(agent)
    equal = (terminal.call("echo one >> made"), terminal.call("echo one >> made"))
    failing, denied = terminal.call("touch partial; exit 3"), terminal.call("touch denied")
    agent.models.scripts["main"] = [
        Reply("I will look.", calls=equal),
        Reply("One more.", calls=(failing,)),
        Reply("Another one.", calls=(denied,)),
        Reply("Done."),
    ]
    with hooks.served(), answering(db, lambda title: "deny" if "denied" in title else "approve") as titles:
        terminal.run(PROMPT)
        work = wait_for_all(hooks)
    check_work(agent, db, work, {failing.id: "failed", denied.id: "denied"})
    assert len(titles) == 4
    assert (agent.project / "made").read_text() == "one\none\n" and (agent.project / "partial").exists()
    assert not (agent.project / "denied").exists() and REASON in agent.models.truth("main").results[denied.id]
    assert [request.state for request in requests(db)] == ["granted"] * 3 + ["refused"]
    import_history(db, agent.name, home=agent.home)
    assert read_work(db).seqs == work.seqs


@pytest.mark.agents
@pytest.mark.parametrize("agent", ARGS, indirect=True)
def test_without_an_answer_the_agent_decides(agent: RealAgent, db: str) -> None:
    """HK4: it asks in its terminal, where this person says no. The rules of Gemini CLI allow it here."""
    hooks = install(agent, db, approvals=True, wait_s=1)
    terminal = Terminal(agent, verb="deny")
    call = terminal.call("touch made")
    agent.models.scripts["main"] = [Reply("I will look.", calls=(call,)), Reply("Done.")]
    with hooks.served(), Background(lambda: terminal.run(PROMPT)):
        wait_until(lambda: [request.state for request in requests(db)] == ["released"], "the end of the wait")
        terminal.may_answer.set()
        work = wait_for_all(hooks)
    is_run = agent.name not in DECLINED
    assert (agent.project / "made").exists() is is_run
    assert DECLINED.get(agent.name, "") in agent.models.truth("main").results[call.id]
    (recorded,) = work.calls
    assert (recorded.status == "completed") is is_run
    (request,) = requests(db)
    assert request.state == "released" and "no answer within 1 s" in request.reason


@pytest.mark.agents
@pytest.mark.parametrize("agent", [BY_NAME["claude-code"]], indirect=True)
def test_a_run_without_a_terminal_refuses(agent: RealAgent, db: str) -> None:
    """HK4: `claude -p` without an answer in time refuses the call, as without hooks."""
    hooks = install(agent, db, approvals=True, wait_s=1)
    agent.arguments = lambda prompt, resume, fork: ["-p", prompt, "--output-format", "json"]
    call = agent.shell("touch made")
    agent.models.scripts["main"] = [Reply("I will look.", calls=(call,)), Reply("Done.")]
    with hooks.served():
        agent.run(PROMPT)
        wait_for_all(hooks)
    assert not (agent.project / "made").exists()
    assert "needs approval" in agent.models.truth("main").results[call.id]


@pytest.mark.agents
@pytest.mark.parametrize("agent", [BY_NAME["opencode"]], indirect=True)
def test_opencode_run_refuses_by_itself(agent: RealAgent, db: str) -> None:
    """HK4: at once, before a person can answer; the request does not stay in the inbox."""
    hooks = install(agent, db, approvals=True, wait_s=3600)
    Terminal(agent).ask_before_commands()
    agent.models.scripts["main"] = [Reply("I will look.", calls=(agent.shell("touch made"),)), Reply("Done.")]
    with hooks.served():
        agent.run(PROMPT)
        wait_until(lambda: not hooks.spooled() and read_work(db).calls and not pending(db), "the release")
    assert not (agent.project / "made").exists()
    assert {request.state for request in requests(db)} <= {"released", "moot"}


@pytest.mark.agents
@pytest.mark.parametrize("agent", BESIDE_THE_HOOK, indirect=True)
def test_the_terminal_may_answer_first(agent: RealAgent, db: str) -> None:
    """HK11: the agent asks while its hook waits. An answer there ends the hook, and the request is released."""
    hooks = install(agent, db, approvals=True, wait_s=3600)
    terminal = Terminal(agent, verb="approve")
    agent.models.scripts["main"] = [Reply("I will look.", calls=(terminal.call("touch made"),)), Reply("Done.")]
    with hooks.served(), Background(lambda: terminal.run(PROMPT)):
        wait_until(lambda: pending(db), "the request")
        terminal.may_answer.set()
        (recorded,) = wait_for_all(hooks).calls
        wait_until(lambda: not pending(db), "the release")
    assert (agent.project / "made").exists() and recorded.status == "completed"
    (request,) = requests(db)
    assert request.state in ("released", "moot")  # Whether the hook or the call ended first.


@pytest.mark.agents
@pytest.mark.parametrize("agent", ARGS, indirect=True)
def test_a_killed_server_leaves_the_agent_working(agent: RealAgent, db: str) -> None:
    """HK1, HK4: killed while a hook waits for an answer; the next server has everything once."""
    hooks = install(agent, db, approvals=True, wait_s=3600)
    terminal = Terminal(agent, verb="approve")
    calls = [terminal.call("echo one >> made"), terminal.call("echo two >> made")]
    agent.models.scripts["main"] = [*(Reply("I will look.", calls=(call,)) for call in calls), Reply("Done.")]
    with hooks.served() as process, Background(lambda: terminal.run(PROMPT)):
        wait_until(lambda: pending(db), "the request")
        process.kill()
        process.wait()
        terminal.may_answer.set()
    assert (agent.project / "made").read_text() == "one\ntwo\n"
    assert hooks.spooled()
    with hooks.served():
        work = wait_for_all(hooks)
    check_work(agent, db, work, {})
    assert [request.state for request in requests(db)] == ["released"]


@pytest.mark.agents
@pytest.mark.parametrize("agent", ARGS, indirect=True)
def test_a_killed_agent_leaves_no_request_behind(agent: RealAgent, db: str) -> None:
    """HK11: its hook, which is still running, notices that its output is not read any more."""
    hooks = install(agent, db, approvals=True, wait_s=3600)
    terminal = Terminal(agent)
    agent.models.scripts["main"] = [Reply("I will look.", calls=(terminal.call("touch made"),)), Reply("Done.")]
    with hooks.served():
        with contextlib.suppress(Exception), Background(lambda: terminal.run(PROMPT)):
            wait_until(lambda: pending(db), "the request")
            agent.runs[-1].process.kill()
        wait_until(lambda: not pending(db), "the release")
    assert not (agent.project / "made").exists()


@pytest.mark.agents
@pytest.mark.parametrize("agent", [BY_NAME["gemini"], BY_NAME["opencode"]], indirect=True)
def test_under_wrap_only_the_client_is_asked(agent: RealAgent, db: str) -> None:
    """HK3: an agent that `wrap` runs has the hook in its settings as well; it asks once, and the call is there once."""
    install(agent, db, approvals=True)
    call = agent.shell("touch made")
    agent.models.scripts["main"] = [Reply("I will look.", calls=(call,)), Reply("Done.")]
    start = [option for option in agent.start_of_command() if option not in ("--approval-mode", "yolo")]
    command = [*wrap_command(db), *start, *agent.acp_options]
    if agent.name == "opencode":  # Gemini CLI asks by itself.
        Terminal(agent).ask_before_commands()
    with Hooks(db, agent.home).served(), Client(command, cwd=agent.project, env=agent.whole_environment()) as client:
        client.ask("initialize", protocolVersion=1, clientCapabilities={})
        session = client.ask("session/new", cwd=str(agent.project), mcpServers=[])["result"]["sessionId"]
        number = client.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": PROMPT}])
        request = client.until(lambda message: message.get("method") == "session/request_permission")
        chosen = next(option for option in request["params"]["options"] if option["kind"] == "allow_once")
        outcome = {"outcome": {"outcome": "selected", "optionId": chosen["optionId"]}}
        client.send(id=request["id"], result=outcome)
        client.until(lambda message: message.get("id") == number and "method" not in message)
        assert len([message for message in client.requests if "permission" in message["method"]]) == 1
    assert (agent.project / "made").exists()
    (recorded,) = read_work(db).calls
    assert recorded.tool_call_id == agent.recorded_id(call) and len(requests(db)) == 1


# Questions and plans of Claude Code

OPTIONS = [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}]
QUESTION = {"question": "Which colour?", "header": "Colour", "multiSelect": False, "options": OPTIONS}


@pytest.mark.agents
@pytest.mark.parametrize("agent", [BY_NAME["claude-code"]], indirect=True)
@pytest.mark.parametrize(
    ("call", "verb", "answer", "result"),
    [
        (
            Call("AskUserQuestion", {"questions": [QUESTION]}),
            "approve",
            {"option": "choice-2"},
            '"Which colour?"="Blue"',
        ),
        (
            Call("ExitPlanMode", {"plan": "First look, then leap."}),
            "approve",
            {},
            "User has approved exiting plan mode",
        ),
        (Call("ExitPlanMode", {"plan": "First look, then leap."}), "deny", {"reason": REASON}, REASON),
    ],
    ids=["question", "plan", "no-plan"],
)
def test_a_question_or_a_plan_is_answered_in_the_inbox(
    agent: RealAgent, db: str, call: Call, verb: str, answer: dict[str, Any], result: str
) -> None:
    """HK9: the option that was chosen, or the reason of a denial, reaches the model as the answer."""
    hooks = install(agent, db, approvals=True)
    agent.models.scripts["main"] = [Reply("I ask.", calls=(call,)), Reply("Done.")]
    mode = ["--permission-mode", "plan"] if call.name == "ExitPlanMode" else []
    with hooks.served(), Background(lambda: Terminal(agent).run(PROMPT, *mode)):
        wait_until(lambda: pending(db), "the question")
        (request,) = pending(db)
        with_ledger(db, lambda ledger: getattr(ledger, verb)(request.id, **answer))
    assert result in agent.models.truth("main").results[call.id]
