"""Real agents against a scripted model server: what is imported from their histories is what the server knows."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_process import Client, wrap_command
from tests.support.cli_process import run_in_process
from tests.support.engines import POSTGRES, SQLITE, is_postgres
from tests.support.real_agents import (
    AGENTS,
    BRANCH,
    ENDLESS_COMMAND,
    ClaudeCode,
    Codex,
    CodexInCodeMode,
    RealAgent,
    wait_until,
)
from tests.support.recorded_work import Work, following, import_history, read_work
from tests.support.scripted_models import Call, Reply, ScriptedModels, Usage

PROMPT, SECOND_PROMPT = "Look around [[main]]", "Go on [[second]]"
THOUGHT = "**Look** Two commands will tell."
"""Gemini CLI takes the words in bold apart."""
LAST = Reply("Done.", usage=Usage(1200, 10, 1000))
DAY_S = 24 * 3600


ON_POSTGRES = pytest.param(POSTGRES, marks=pytest.mark.postgres)
on_every_engine = pytest.mark.parametrize("engine", [SQLITE, ON_POSTGRES], scope="session")
on_every_engine_between = pytest.mark.parametrize(
    ("engine", "imports_between"),
    [(SQLITE, False), (SQLITE, True), pytest.param(POSTGRES, True, marks=pytest.mark.postgres)],
    scope="session",
)
"""Imports between two runs of an agent, or not; on PostgreSQL only the former, because such a test takes long."""


def do_import(agent: RealAgent, db: str) -> Work:
    """Import the whole history of an agent, and return what the ledger has then."""
    import_history(db, agent.name, agent.home / agent.history_path.partition("*")[0])
    return read_work(db)


def check_calls(
    agent: RealAgent,
    work: Work,
    *scripts: str,
    failed: Mapping[str, int] | None = None,
    lost: Collection[str] = (),
) -> None:
    """Compare the calls with those of the scripts: each once, with its input and state.

    `failed` are the exit statuses of those that failed, by id, and `lost` the ids of those that never ended.
    """
    truth = agent.models.truth(*scripts)
    by_id = {call.id: call for call in truth.calls if agent.records_open_calls or call.id not in lost}
    recorded = {agent.recorded_id(call): call for call in by_id.values()}
    assert sorted(call.tool_call_id for call in work.calls) == sorted(recorded)
    for call in work.calls:
        sent = recorded[call.tool_call_id]
        # Over ACP, opencode adds the folder.
        assert {name: value for name, value in call.raw_input.items() if name != "cwd"} == sent.input
        if call.source != "acp":  # Over ACP tools have no names.
            assert (call.raw_tool_name or call.tool_name or "").endswith(sent.name.rpartition(".")[2])
        if sent.id in lost:
            assert call.status != "completed", call
        elif sent.id in (failed or {}):
            assert (call.status, call.exit_status) == ("failed", (failed or {})[sent.id]), call
        else:
            assert call.status == "completed", call


def check_texts(agent: RealAgent, work: Work, *scripts: str, prompts: Collection[str]) -> None:
    """Compare prompts, texts and thoughts, in their order."""
    truth = agent.models.truth(*scripts)
    assert work.prompts == [agent.recorded_prompt(prompt) for prompt in prompts]
    assert work.texts == truth.texts
    assert [" ".join(thought.split()) for thought in work.thoughts] == truth.thoughts


def check_usage(agent: RealAgent, work: Work, *scripts: str) -> None:
    """Compare the tokens of all responses."""
    truth = agent.models.truth(*scripts, *agent.recorded_scripts)
    assert (work.usage, work.responses) == (truth.usage, len(truth.replies))


def check_equal(before: Work, after: Work) -> None:
    """Check that nothing was added."""
    assert after.seqs == before.seqs and after.calls == before.calls and after.usage == before.usage


def two_rounds(agent: RealAgent) -> tuple[list[Reply], Call]:
    """Return a script with a thought, two calls at once and a call that fails, and that call."""
    first, second = agent.shell("echo one"), agent.shell("echo two")
    failing = agent.shell("echo partial; exit 3")
    replies = [
        Reply("I will look.", THOUGHT, (first, second), Usage(1000, 50, 600, 0)),
        Reply("One more.", calls=(failing,), usage=Usage(1100, 30, 900)),
        LAST,
    ]
    return replies, failing


def test_a_run_is_imported_as_it_was(agent: RealAgent, db: str) -> None:
    """AGT1: texts, thoughts, parallel calls, a failure and usage are those that the model sent; again adds nothing."""
    agent.models.scripts["main"], failing = two_rounds(agent)
    run = agent.run(PROMPT)
    work = do_import(agent, db)
    check_calls(agent, work, "main", failed={failing.id: 3})
    check_texts(agent, work, "main", prompts=[PROMPT])
    check_usage(agent, work, "main")
    (session,) = work.sessions
    assert session.name.endswith(agent.session_id(run))
    assert (session.agent, session.project) == (agent.name, str(agent.project))
    assert session.branch == (BRANCH if agent.records_branch else "")
    assert bool(session.agent_version) is agent.records_version
    assert session.model and session.state in ("idle", "ended")
    import_history(db, agent.name, home=agent.home)
    check_equal(work, read_work(db))


@pytest.mark.agents
def test_sub_agents_are_imported_with_the_calls_that_started_them(agent: RealAgent, db: str) -> None:
    """AGT2: each call, text and token of a sub-agent belongs to the call that started it."""
    scripts = agent.models.scripts
    failing, other = agent.shell("exit 4"), agent.shell("echo two")
    steps, starts = agent.delegate({"child-a": "Look left [[child-a]]", "child-b": "Look right [[child-b]]"})
    scripts["main"] = [*steps, LAST]
    scripts["child-a"] = [
        Reply("I look left.", calls=(agent.shell("echo one"), failing), usage=Usage(500, 20, 100)),
        agent.conclude("Left is fine.", Usage(600, 21, 400)),
    ]
    scripts["child-b"] = [
        Reply("I look right.", calls=(other,), usage=Usage(501, 22, 0)),
        agent.conclude("Right is fine.", Usage(601, 23, 401)),
    ]
    agent.run(PROMPT)
    work = do_import(agent, db)
    check_calls(agent, work, "main", "child-a", "child-b", failed={failing.id: 4})
    check_texts(agent, work, "main", prompts=[PROMPT])
    check_usage(agent, work, "main", "child-a", "child-b")
    assert len(work.sessions) == 1
    for script, start in zip(("child-a", "child-b"), starts, strict=True):
        parent, truth = work.call(agent.recorded_id(start)), agent.models.truth(script)
        assert parent.parent == ""
        calls = {call.tool_call_id for call in work.calls if call.parent == parent.call_id}
        assert calls == {agent.recorded_id(call) for call in truth.calls}
        assert work.delegated[parent.call_id] == truth.texts
        assert work.delegated_usage[parent.call_id] == truth.usage


def two_prompts(agent: RealAgent) -> None:
    """Set the scripts of two prompts with a call each."""
    agent.models.scripts["main"] = [
        Reply("I will look.", calls=(agent.shell("echo one"),), usage=Usage(1000, 50, 600)),
        LAST,
    ]
    agent.models.scripts["second"] = [
        Reply("Again.", calls=(agent.shell("echo two"),), usage=Usage(1300, 50, 1200)),
        Reply("Done twice.", usage=Usage(1400, 10, 1300)),
    ]


@pytest.mark.agents
@on_every_engine_between
def test_a_resumed_session_is_one_session(agent: RealAgent, db: str, imports_between: bool) -> None:
    """AGT3: both prompts are in one session, each call once, also if the history was imported in between."""
    two_prompts(agent)
    run = agent.run(PROMPT)
    if imports_between:
        do_import(agent, db)
    agent.run(SECOND_PROMPT, resume=agent.session_id(run))
    work = do_import(agent, db)
    assert len(work.sessions) == 1
    check_calls(agent, work, "main", "second")
    check_texts(agent, work, "main", "second", prompts=[PROMPT, SECOND_PROMPT])
    check_usage(agent, work, "main", "second")
    check_equal(work, do_import(agent, db))


WRAPPED = [agent for agent in AGENTS if agent.acp_options]


class RecordingClient(Client):
    """A client that keeps all messages in the form in which `callslip import` reads recorded traffic."""

    def __init__(self, command: list[str], **options: Any) -> None:
        super().__init__(command, **options)
        self.rows: list[Any] = []

    def send(self, **message: Any) -> None:
        self.rows.append({"t": time.time(), "dir": "c2a", "msg": {"jsonrpc": "2.0", **message}})
        super().send(**message)

    def read_line(self) -> bytes:
        line = super().read_line()
        self.rows.append({"t": time.time(), "dir": "a2c", "msg": json.loads(line)})
        return line


def talk(agent: RealAgent, start: list[str], prompt: str, load: str = "") -> tuple[str, list[Any]]:
    """Give an agent a prompt over ACP; return the id of the session and the messages."""
    command = [*start, *agent.start_of_command(), *agent.acp_options]
    with RecordingClient(command, cwd=agent.project, env=agent.whole_environment()) as client:
        client.ask("initialize", protocolVersion=1, clientCapabilities={})
        where = {"cwd": str(agent.project), "mcpServers": []}
        if load:
            assert "result" in client.ask("session/load", sessionId=load, **where)
        session = load or client.ask("session/new", **where)["result"]["sessionId"]
        assert client.prompt(session, prompt)["result"]["stopReason"] == "end_turn"
        assert client.end()[0] == 0
    return session, client.rows


@pytest.mark.agents
@pytest.mark.parametrize("agent", WRAPPED, indirect=True)
@on_every_engine
def test_what_wrap_recorded_and_its_history_are_one_session(agent: RealAgent, db: str) -> None:
    """AGT5: each call is there once, and gets what only the history knows: usage, and that a command failed."""
    agent.models.scripts["main"], failing = two_rounds(agent)
    agent.recorded_prompt = str  # Over ACP it is as it was sent.
    talk(agent, wrap_command(db), PROMPT)
    wrapped = read_work(db)
    ids = sorted(call.tool_call_id for call in wrapped.calls)
    assert ids == sorted(agent.recorded_id(call) for call in agent.models.truth("main").calls)
    check_texts(agent, wrapped, "main", prompts=[PROMPT])
    work = do_import(agent, db)
    assert sorted(call.tool_call_id for call in work.calls) == ids
    check_texts(agent, work, "main", prompts=[PROMPT])
    check_usage(agent, work, "main")
    call = work.call(agent.recorded_id(failing))
    assert 3 in (call.exit_status, call.report and call.report.exit_status)
    assert len([found for found in work.sessions if found.calls]) == 1
    check_equal(work, do_import(agent, db))


@pytest.mark.agents
@pytest.mark.parametrize("agent", WRAPPED, indirect=True)
@on_every_engine
def test_recorded_traffic_adds_nothing_to_a_history(agent: RealAgent, db: str, tmp_path: Path) -> None:
    """AGT5: a recording that is imported after the history adds no call and no usage."""
    agent.models.scripts["main"], failing = two_rounds(agent)
    agent.recorded_prompt = str  # Over ACP it is as it was sent.
    _, rows = talk(agent, [], PROMPT)
    work = do_import(agent, db)
    (session,) = (found.name for found in work.sessions if found.calls)
    recording = tmp_path / "recording.jsonl"
    recording.write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = run_in_process("import", "--format", "acp", "--session", session, str(recording), "--db", db)
    assert result.returncode == 0, result.stderr
    after = read_work(db)
    check_calls(agent, after, "main", failed={failing.id: 3})
    check_texts(agent, after, "main", prompts=[PROMPT])
    check_usage(agent, after, "main")
    check_equal(after, do_import(agent, db))


@pytest.mark.agents
@pytest.mark.parametrize("agent", WRAPPED, indirect=True)
@on_every_engine
def test_an_agent_is_wrapped_and_followed_at_once(agent: RealAgent, db: str) -> None:
    """AGT5: whichever of `wrap` and `watch` is first with a call, it is there once."""
    agent.models.scripts["main"], _ = two_rounds(agent)
    agent.recorded_prompt = str
    with following("watch", db, agent.home):
        talk(agent, wrap_command(db), PROMPT)
        wait_until(lambda: read_work(db).usage == agent.models.truth("main").usage, "the usage")
    work = read_work(db)
    ids = [agent.recorded_id(call) for call in agent.models.truth("main").calls]
    assert sorted(call.tool_call_id for call in work.calls) == sorted(ids)
    assert len([found for found in work.sessions if found.calls]) == 1
    check_texts(agent, work, "main", prompts=[PROMPT])
    check_equal(work, do_import(agent, db))


@pytest.mark.agents
@pytest.mark.parametrize("agent", WRAPPED, indirect=True)
@pytest.mark.parametrize("is_followed", [False, True])
def test_a_wrapper_that_is_killed_leaves_nothing_twice(agent: RealAgent, db: str, is_followed: bool) -> None:
    """AGT5: what it recorded until then and what the history has is there once."""
    gate = threading.Event()
    replies, _ = two_rounds(agent)
    agent.models.scripts["main"] = [replies[0], dataclasses.replace(LAST, pause=gate)]
    agent.recorded_prompt = str
    command = [*wrap_command(db), *agent.start_of_command(), *agent.acp_options]
    with following("watch", db, agent.home) if is_followed else contextlib.nullcontext():
        with Client(command, cwd=agent.project, env=agent.whole_environment()) as client:
            client.ask("initialize", protocolVersion=1, clientCapabilities={})
            session = client.ask("session/new", cwd=str(agent.project), mcpServers=[])["result"]["sessionId"]
            client.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": PROMPT}])
            wait_until(lambda: has_ended_calls(db, 2), "two calls")
            client.process.kill()
        gate.set()
    work = do_import(agent, db)
    calls = [agent.recorded_id(call) for call in replies[0].calls]
    assert sorted(call.tool_call_id for call in work.calls) == sorted(calls)
    assert work.prompts == [PROMPT] and work.texts in ([replies[0].text], [replies[0].text, LAST.text])
    assert [" ".join(thought.split()) for thought in work.thoughts] == [THOUGHT]
    check_equal(work, do_import(agent, db))


@pytest.mark.agents
@pytest.mark.parametrize("agent", [agent for agent in WRAPPED if agent.can_load], indirect=True)
@on_every_engine
def test_a_session_from_a_history_goes_on_under_wrap(agent: RealAgent, db: str) -> None:
    """AGT5: what the agent repeats when it loads the session is recognized; what it adds is there once."""
    two_prompts(agent)
    run = agent.run(PROMPT)
    do_import(agent, db)
    talk(agent, wrap_command(db), SECOND_PROMPT, load=agent.session_id(run))
    work = do_import(agent, db)
    check_calls(agent, work, "main", "second")
    assert work.texts == agent.models.truth("main", "second").texts
    check_usage(agent, work, "main", "second")
    assert len([found for found in work.sessions if found.calls]) == 1
    check_equal(work, do_import(agent, db))


@pytest.mark.agents
@pytest.mark.parametrize("agent", [agent for agent in AGENTS if agent.can_fork], indirect=True)
@on_every_engine_between
def test_a_fork_continues_its_origin(agent: RealAgent, db: str, imports_between: bool) -> None:
    """AGT3: both sessions have each call once, and no token is counted again."""
    two_prompts(agent)
    run = agent.run(PROMPT)
    if imports_between:
        do_import(agent, db)
    agent.run(SECOND_PROMPT, resume=agent.session_id(run), fork=True)
    work = do_import(agent, db)
    origin, fork = work.sessions
    assert (origin.continues, fork.continues) == ("", agent.session_id(run))
    first, second = ([call.id for call in agent.models.truth(script).calls] for script in ("main", "second"))
    assert [call.tool_call_id for call in work.calls if call.call_id in work.calls_of[origin.name]] == first
    # Some agents copy what came before, others only name it.
    copied = [call.tool_call_id for call in work.calls if call.call_id in work.calls_of[fork.name]]
    assert copied in (second, first + second)
    check_usage(agent, work, "main", "second")
    check_equal(work, do_import(agent, db))


@pytest.mark.agents
@pytest.mark.parametrize("agent", [CodexInCodeMode], indirect=True, ids=["codex"])
def test_the_scripts_of_codex_are_imported_with_their_commands(agent: CodexInCodeMode, db: str) -> None:
    """CDX1: each script and each command in it is a call, with the exit status of the command."""
    both = "await Promise.all([tools.exec_command({cmd: 'echo one'}), tools.exec_command({cmd: 'exit 6'})])"
    scripts = [agent.script(f"text({both});"), agent.script("throw new Error('mistake');")]
    agent.models.scripts["main"] = [
        *(Reply("Now.", calls=(script,), usage=Usage(1000, 50, 600)) for script in scripts),
        LAST,
    ]
    agent.run(PROMPT)
    work = do_import(agent, db)
    states = {call.tool_call_id: (call.raw_input, call.status) for call in work.calls if call.tool_name == "exec"}
    assert states == {
        script.id: (script.input, status) for script, status in zip(scripts, ("completed", "failed"), strict=True)
    }
    commands = {call.raw_input["command"][-1]: call for call in work.calls if call.tool_name == "exec_command"}
    ends = {name: (call.status, call.exit_status, call.output) for name, call in commands.items()}
    assert ends == {"echo one": ("completed", 0, "one\n"), "exit 6": ("failed", 6, "")}
    assert len(work.calls) == 4
    check_usage(agent, work, "main")


@pytest.mark.agents
@pytest.mark.parametrize("agent", [Codex], indirect=True, ids=["codex"])
@pytest.mark.parametrize("imports_between", [False, True])
def test_a_compressed_session_is_imported_once(agent: Codex, db: str, imports_between: bool) -> None:
    """CDX7: Codex compresses an old rollout while it runs another session, and decompresses it to resume."""
    two_prompts(agent)
    agent.models.scripts["other"] = [Reply("Nothing.", usage=Usage(100, 10, 0))]
    run = agent.run(PROMPT)
    if imports_between:
        do_import(agent, db)
    (rollout,) = agent.history()
    os.utime(rollout, (time.time() - 8 * DAY_S,) * 2)
    agent.enable_compression()
    agent.run("Nothing [[other]]")
    wait_until(agent.compressed_rollouts, "a compressed rollout")
    wait_until(lambda: not rollout.exists(), "the removal of the plain one")
    work = do_import(agent, db)
    check_calls(agent, work, "main")
    agent.run(SECOND_PROMPT, resume=agent.session_id(run))
    assert agent.compressed_rollouts() == []
    work = do_import(agent, db)
    assert len(work.sessions) == 2
    check_calls(agent, work, "main", "second")
    check_usage(agent, work, "main", "second", "other")
    check_equal(work, do_import(agent, db))


ORIGINS = [agent for agent in AGENTS if agent.can_fork and agent.tells_origin]


@pytest.mark.agents
@pytest.mark.parametrize("agent", ORIGINS, indirect=True)
def test_an_origin_that_is_used_after_its_fork_continues_nothing(agent: RealAgent, db: str) -> None:
    """AGT3 OPC7: the fork was used first, so it is read first. Still it is the one that continues the other."""
    two_prompts(agent)
    agent.models.scripts["third"] = [Reply("Done thrice.", usage=Usage(1500, 10, 1400))]
    run = agent.run(PROMPT)
    agent.run(SECOND_PROMPT, resume=agent.session_id(run), fork=True)
    agent.run("Once more [[third]]", resume=agent.session_id(run))
    work = do_import(agent, db)
    continued = {session.name.removeprefix(f"{agent.name}-"): session.continues for session in work.sessions}
    assert continued.pop(agent.session_id(run)) == ""
    assert list(continued.values()) == [agent.session_id(run)]
    check_usage(agent, work, "main", "second", "third")
    check_equal(work, do_import(agent, db))


@pytest.mark.agents
@pytest.mark.parametrize("imports_between", [False, True])
def test_a_compacted_session_keeps_its_calls(agent: RealAgent, db: str, imports_between: bool) -> None:
    """AGT3: the calls from before the compaction stay, each once, and so does the usage."""
    two_prompts(agent)
    agent.models.scripts["main"][-1] = Reply("Done.", usage=agent.usage_before_compaction)
    run = agent.run(PROMPT)
    if imports_between:
        do_import(agent, db)
    agent.compact(run, SECOND_PROMPT)
    work = do_import(agent, db)
    assert len(work.sessions) == 1
    check_calls(agent, work, "main", "second")
    check_usage(agent, work, "main", "second")
    assert [text for text in work.texts if text in agent.models.truth("main", "second").texts] == [
        "I will look.",
        "Done.",
        "Again.",
        "Done twice.",
    ]
    check_equal(work, do_import(agent, db))


@pytest.mark.agents
@pytest.mark.parametrize("imports_between", [False, True])
def test_a_killed_agent_leaves_calls_that_never_ended(agent: RealAgent, db: str, imports_between: bool) -> None:
    """AGT4: what was recorded before the kill is imported; a call without an end does not succeed, also if resumed."""
    two_prompts(agent)
    endless = agent.shell(ENDLESS_COMMAND)
    agent.models.scripts["main"] = [
        Reply("I will look.", calls=(agent.shell("echo one"),), usage=Usage(1000, 50, 600)),
        Reply("Now slowly.", calls=(endless,), usage=Usage(1100, 50, 600)),
    ]
    run = agent.start(PROMPT)
    agent.wait_for_history(endless.id if agent.records_open_calls else "Now slowly.")
    run.kill()
    if imports_between:
        work = do_import(agent, db)
        check_calls(agent, work, "main", lost={endless.id})
        check_equal(work, do_import(agent, db))
    agent.run(SECOND_PROMPT, resume="last")
    work = do_import(agent, db)
    assert len(work.sessions) == 1
    check_calls(agent, work, "main", "second", lost={endless.id})


# Followed live


@pytest.mark.agents
def test_a_running_agent_is_followed(agent: RealAgent, db: str) -> None:
    """AGT6: `callslip watch` has the calls while the agent runs, and everything soon after."""
    replies, failing = two_rounds(agent)
    gate = threading.Event()
    agent.models.scripts["main"] = [*replies[:-1], dataclasses.replace(LAST, pause=gate)]
    with following("watch", db, agent.home):
        run = agent.start(PROMPT)
        wait_until(lambda: has_ended_calls(db, 3), "three calls")
        assert run.process.poll() is None and LAST.text not in read_work(db).texts
        gate.set()
        run.succeed()
        wait_until(lambda: LAST.text in read_work(db).texts, "the last text")
        usage = agent.models.truth("main", *agent.recorded_scripts).usage
        wait_until(lambda: read_work(db).usage == usage, "the usage")  # It may be written after the text.
    work = read_work(db)
    check_calls(agent, work, "main", failed={failing.id: 3})
    check_texts(agent, work, "main", prompts=[PROMPT])
    check_usage(agent, work, "main")
    check_equal(work, do_import(agent, db))


def has_ended_calls(db: str, count: int) -> bool:
    """Return whether so many calls are recorded and have ended."""
    if not is_postgres(db) and not Path(db.removeprefix("sqlite:///")).exists():
        return False
    calls = read_work(db).calls
    return len(calls) >= count and all(call.status in ("completed", "failed") for call in calls)


@pytest.mark.agents
@on_every_engine
def test_two_agents_at_once_are_followed(models: ScriptedModels, tmp_path: Path, db: str) -> None:
    """AGT6: `callslip up` has the parallel calls and the sub-agents of two agents in one project while both run."""
    agents = [ClaudeCode(tmp_path, models), Codex(tmp_path, models)]
    gate = threading.Event()
    for agent in agents:
        steps, _ = agent.delegate({f"child-{agent.name}": f"Look left [[child-{agent.name}]]"})
        calls = (agent.shell("echo one"), agent.shell("echo two"))
        last = dataclasses.replace(LAST, pause=gate)
        models.scripts[f"main-{agent.name}"] = [Reply("I will look.", calls=calls), *steps, last]
        models.scripts[f"child-{agent.name}"] = [
            Reply("I look left.", calls=(agent.shell("echo three"),)),
            agent.conclude("Left is fine.", Usage()),
        ]
    scripts = list(models.scripts)
    with contextlib.closing(agents[0]), contextlib.closing(agents[1]), following("up", db, tmp_path / "home"):
        runs = [agent.start(f"Work [[main-{agent.name}]]") for agent in agents]
        for agent in agents:
            models.wait_for_requests(f"main-{agent.name}", len(models.scripts[f"main-{agent.name}"]))
        sent = sum(len(reply.calls) for reply in models.truth(*scripts).replies)
        wait_until(lambda: has_ended_calls(db, sent), "all calls of both")
        assert all(run.process.poll() is None for run in runs)
        gate.set()
        for run in runs:
            run.succeed()
        wait_until(lambda: read_work(db).texts.count(LAST.text) == 2, "both last texts")
    work = read_work(db)
    truth = models.truth(*scripts)
    assert sorted(call.tool_call_id for call in work.calls) == sorted(call.id for call in truth.calls)
    assert work.usage == truth.usage
    assert sorted(session.agent for session in work.sessions) == ["claude-code", "codex"]
    parents = {call.call_id: call.tool_name for call in work.calls}
    delegated = [call for call in work.calls if call.parent]
    assert len(delegated) == 2 and all(call.parent in parents for call in delegated)
