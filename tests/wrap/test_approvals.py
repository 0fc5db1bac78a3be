"""`callslip wrap --approvals callslip`, run for real: requests wait in the ledger, and who answers there decides."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from callslip.api.approvals import approve
from callslip.api.ledger import Ledger
from callslip.formats.acp.decode import AcpDecoder
from callslip.model import events as ev
from callslip.model.entries import PermissionRequest
from callslip.model.records import ApprovalRecord
from callslip.settings import Settings
from callslip.wrap import held_requests
from callslip.wrap.approval_watch import outcome
from callslip.wrap.frames import AGENT as FROM_AGENT
from callslip.wrap.frames import ANSWER, ENDED, HELD, RELEASED, Frame, pack
from callslip.wrap.frames import CLIENT as FROM_CLIENT
from callslip.wrap.held_requests import HeldRequest, HeldRequests
from callslip.wrap.io import Outlet
from callslip.wrap.permission_filter import PermissionFilter
from callslip.wrap.policy import Policy
from callslip.wrap.recorder import RecorderProcess
from callslip.wrap.recorder_pipe import RecorderPipe
from callslip.wrap.session_names import Names
from tests.support.acp_process import (
    PROGRAMS,
    Client,
    calls,
    children,
    entries,
    eventually,
    is_alive,
    kill,
    log,
    reading,
    text_of,
    wrapping,
)
from tests.support.acp_session import OPTIONS, asks, c2a, call, chosen, done, may_i, more, prompt
from tests.support.invariants import sound_ledger
from tests.support.paths import ROOT

EXAMPLE = ROOT / ".cache" / "acp" / "examples" / "client.py"
ASKER = [sys.executable, str(PROGRAMS / "acp_asker.py")]
NAME = "acp_asker-one"
ODD = {"late", "illegal", "orphan", "duplicate"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the ledger will be."""
    return str(tmp_path / "ledger.db")


def held(path: str, *options: str, sessions: tuple[str, ...] = ("one",)) -> Client:
    """A client of an agent whose requests are held."""
    return Client([*wrapping(path, "--approvals", "callslip", *options), *ASKER, *sessions])


def begun(client: Client, text: str) -> str:
    """A session with a prompt under way."""
    session = client.begin()
    prompts(client, session, text)
    return session


def prompts(client: Client, session: str, text: str) -> int:
    return client.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])


def pending(path: str, many: int = 1) -> list[ApprovalRecord]:
    """The requests that wait, once there are so many."""

    async def read(ledger: Ledger) -> list[ApprovalRecord]:
        found = await ledger.approvals()
        return found if len(found) == many else []

    return eventually(lambda: Path(path).exists() and reading(path, read))


def waiting(path: str) -> list[ApprovalRecord]:
    """The requests that wait now."""

    async def read(ledger: Ledger) -> list[ApprovalRecord]:
        return await ledger.approvals()

    return reading(path, read)


def callslip(path: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    command = [sys.executable, "-m", "callslip", words[0], "--db", path, *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def hears(client: Client, text: str) -> None:
    """Wait until the agent has said it."""
    client.until(lambda message: text in text_of(message))


def requests(path: str, session: str = NAME) -> list[PermissionRequest]:
    return [entry for entry in entries(path, session) if isinstance(entry, PermissionRequest)]


def odd(path: str, session: str = NAME) -> list[Any]:
    """Events that the ledger wondered about."""
    return [event for event in log(path, session) if event.verdict in ODD]


# Answers


@pytest.mark.parametrize(
    ("words", "option", "status", "state"),
    [
        (["approve"], "yes", "completed", "granted"),
        (["approve", "--option", "always"], "always", "completed", "granted"),
        (["deny", "--reason", "not today"], "no", "denied", "refused"),
    ],
)
def test_an_answer_from_another_terminal_is_the_agents(
    path: str, words: list[str], option: str, status: str, state: str
) -> None:
    """The client is never asked; the agent gets its own option, and the log has one request and one answer."""
    with held(path) as client:
        begun(client, "c1=a")
        (request,) = pending(path)
        assert request.expires_at > request.created_at and len(request.options) == 3
        assert callslip(path, words[0], request.id, "--by", "ann", *words[1:]).returncode == 0
        hears(client, f"[c1 {option}]")
        client.until(lambda message: "stopReason" in json.dumps(message))
        assert client.asked == [] and client.end() == (0, b"")
    assert calls(path, NAME)["c1"].status == status
    (shown,) = requests(path)
    assert (shown.state, shown.by, shown.response_option) == (state, "ann", option)
    answers = [event for event in log(path, NAME) if isinstance(event, ev.ApprovalAnswer)]
    assert len(answers) == 1 and "request_permission" not in repr(
        [one for one in log(path, NAME) if type(one) is ev.Raw]
    )
    assert {type(event) for event in odd(path)} <= {ev.CallFailed}, "but that the agent says again what we know"


def test_a_client_that_cannot_answer_need_not(path: str, tmp_path: Path) -> None:
    """The example client refuses every request, and an agent of the protocol's own library takes our answers."""
    agent = [sys.executable, str(PROGRAMS / "acp_sdk_asker.py")]
    command = [sys.executable, str(EXAMPLE), *wrapping(path, "--approvals", "callslip"), *agent]
    with subprocess.Popen(
        command, bufsize=0, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as client:
        assert client.stdin is not None and client.stdout is not None
        for verb, said in (("approve", b"selected go"), ("deny", b"selected stop")):
            client.stdin.write(b"hello\n")
            assert callslip(path, verb, pending(path)[0].id).returncode == 0
            heard = b""
            while said not in heard:
                assert select.select([client.stdout], [], [], 30)[0], heard
                heard += os.read(client.stdout.fileno(), 1000)
        client.stdin.close()
        client.wait(30)
    assert [one.state for one in requests(path, "acp_sdk_asker-sdk")] == ["granted", "refused"]


def test_a_refusal_without_an_option_for_it_is_cancelled_to_the_agent(path: str) -> None:
    """It must not take the next best option for an answer."""
    with held(path) as client:
        begun(client, "= c1=a")
        assert callslip(path, "deny", pending(path)[0].id).returncode == 0
        hears(client, "[c1 cancelled]")
        client.end()
    assert calls(path, NAME)["c1"].status == "denied"


def test_other_arguments_cannot_be_told_to_the_agent(path: str) -> None:
    """Refused with exit status 2 and a reason, and the request waits on."""
    with held(path) as client:
        begun(client, "c1=a")
        (request,) = pending(path)
        refused = callslip(path, "approve", request.id, "--input", '{"n": 2}')
        assert refused.returncode == 2 and "cannot be told other arguments" in refused.stderr
        assert [row.id for row in waiting(path)] == [request.id]
        assert callslip(path, "approve", request.id).returncode == 0
        hears(client, "[c1 yes]")


def test_several_requests_wait_at_once_and_nothing_else_does(path: str) -> None:
    """In two sessions, answered in another order than asked; the client and the agent talk on meanwhile."""
    with held(path, sessions=("one", "two")) as client:
        first = client.begin()
        second = client.ask("session/new", cwd="/", mcpServers=[])["result"]["sessionId"]
        prompts(client, first, "c1=a c2=b")
        prompts(client, second, "c1=c")
        found = {(row.session, row.description): row.id for row in pending(path, 3)}
        assert client.ask("ping")["result"]["pid"] > 0
        for session, about, verb, said in (
            (NAME, "Do c2", "approve", "[c2 yes]"),
            ("acp_asker-two", "Do c1", "deny", "[c1 no]"),
            (NAME, "Do c1", "approve", "[c1 yes]"),
        ):
            assert callslip(path, verb, found[session, about]).returncode == 0
            hears(client, said)
        assert client.asked == [] and client.end() == (0, b"")
    assert [call.status for call in calls(path, NAME).values()] == ["completed", "completed"]
    assert [call.status for call in calls(path, "acp_asker-two").values()] == ["denied"]
    assert not odd(path)


def test_a_policy_decides_first(path: str, tmp_path: Path) -> None:
    """What a rule decides waits for nobody; what a rule asks, or none fits, is held."""
    rules = '[[rule]]\naction = "allow"\ntitle = "Do c1"\n[[rule]]\naction = "ask"\ntitle = "Do c2"\n'
    (tmp_path / "policy.toml").write_text(rules)
    with held(path, "--policy", str(tmp_path / "policy.toml")) as client:
        begun(client, "c1=a c2=b c3=c")
        hears(client, "[c1 yes]")
        assert sorted(row.description for row in pending(path, 2)) == ["Do c2", "Do c3"]
        assert client.asked == []


def test_it_goes_together_with_fail_closed(path: str) -> None:
    """Request and answer are recorded before the agent hears the answer."""
    with held(path, "--fail-closed") as client:
        begun(client, "c1=a c2=b")
        for request in pending(path, 2):
            assert callslip(path, "approve", request.id).returncode == 0
        hears(client, "[c2 yes]")
        assert client.end() == (0, b"")
    assert [call.status for call in calls(path, NAME).values()] == ["completed", "completed"]


def test_beside_the_held_requests_no_byte_is_changed(path: str, tmp_path: Path) -> None:
    """What the client sees is what the agent wrote, less the requests; what the agent gets is what the client wrote."""
    tee = [sys.executable, str(PROGRAMS / "tee.py")]
    inner = [*tee, str(tmp_path / "agent"), *ASKER, "one"]
    outer = [*tee, str(tmp_path / "client"), *wrapping(path, "--approvals", "callslip"), *inner]
    with Client(outer) as client:
        begun(client, "c1=a c2=b")
        for request in pending(path, 2):
            callslip(path, "approve", request.id)
        client.until(lambda message: "stopReason" in json.dumps(message))
        assert client.end()[0] == 0
    to_agent, from_agent, sent, received = (
        (tmp_path / name).read_bytes().splitlines() for name in ("agent/in", "agent/out", "client/in", "client/out")
    )
    assert [line for line in from_agent if b"request_permission" not in line] == received
    assert [line for line in to_agent if b"outcome" not in line] == sent
    assert len(from_agent) == len(received) + 2 and len(to_agent) == len(sent) + 2


# Ends without an answer


def test_a_client_that_cancels_has_the_requests_cancelled(path: str) -> None:
    """As ACP has it: those of that session, and no others; the log says whose wish it was."""
    with held(path, sessions=("one", "two")) as client:
        first = begun(client, "c1=a c2=b")
        second = client.ask("session/new", cwd="/", mcpServers=[])["result"]["sessionId"]
        prompts(client, second, "c1=c")
        pending(path, 3)
        client.send(method="session/cancel", params={"sessionId": first})
        hears(client, "[c2 cancelled]")
        client.until(lambda message: message.get("result", {}).get("stopReason") == "cancelled")
        (left,) = waiting(path)
        assert left.session == "acp_asker-two"
        assert callslip(path, "approve", left.id).returncode == 0
        hears(client, "[c1 yes]")
        assert client.end() == (0, b"")
    assert [call.status for call in calls(path, NAME).values()] == ["cancelled", "cancelled"]
    assert [(shown.state, shown.by) for shown in requests(path)] == [("withdrawn", "client")] * 2


def test_an_agent_that_is_killed_while_it_waits_leaves_nothing_pending(path: str) -> None:
    """C5: the request is moot and the call lost; a late answer is a conflict."""
    with held(path) as client:
        begun(client, "c1=a")
        (request,) = pending(path)
        kill(client.ask("ping")["result"]["pid"])
        assert client.left() == (137, b"")
    assert waiting(path) == []
    assert calls(path, NAME)["c1"].status == "lost" and [one.state for one in requests(path)] == ["moot"]
    late = callslip(path, "approve", request.id)
    assert late.returncode == 1 and "it was moot" in late.stderr


def test_a_client_that_hangs_up_leaves_nothing_pending(path: str) -> None:
    """Nobody could tell the agent any more: the request ends with the client."""
    with held(path) as client:
        begun(client, "c1=a")
        pending(path)
        assert client.end() == (0, b"")
    assert waiting(path) == [] and calls(path, NAME)["c1"].status in ("cancelled", "lost")


def test_an_agent_that_outlives_its_client_asks_nobody_in_vain(path: str) -> None:
    """It goes on after its client hung up: what it waits for is withdrawn at once."""
    agent = "import sys, time; sys.stdout.write(sys.argv[1] + '\\n'); sys.stdout.flush(); time.sleep(60)"
    line = json.dumps(may_i("a")["msg"])
    command = [*wrapping(path, "--approvals", "callslip", "--session", "s"), sys.executable, "-c", agent, line]
    with Client(command) as client:
        pending(path)
        assert client.process.stdin is not None
        client.process.stdin.close()
        assert eventually(lambda: not waiting(path))
        assert client.process.poll() is None
        client.process.terminate()
        client.process.wait(30)
    (shown,) = [one for one in entries(path, "s") if isinstance(one, PermissionRequest)]
    assert (shown.state, shown.reason) == ("withdrawn", "the client hung up")


def test_when_wrap_is_killed_nothing_stays_pending(path: str) -> None:
    """C5: its recorder ends what waits."""
    with held(path) as client:
        begun(client, "c1=a")
        pending(path)
        others = children(client.process.pid)
        kill(client.process.pid)
        client.process.wait()
        for process in others:
            eventually(lambda process=process: not is_alive(process))
    assert waiting(path) == [] and calls(path, NAME)["c1"].status == "lost"


SOON = """
from callslip.ledger import open_ledger
from callslip.settings import Settings
from callslip.wrap import recorder
settings = Settings(approval_expiry=0.3, reaper_interval=0.05)
recorder.open_ledger = lambda url, _: open_ledger(url, settings)
"""
IMPATIENT = "from callslip.wrap import held_requests; held_requests.RECORD_TIMEOUT_S = 0.5"


def changed(path: str, code: str) -> Client:
    """The same as `held`, in a process that has other settings."""
    options = ["wrap", "--db", path, "--approvals", "callslip", "--"]
    whole = f"{code}\nfrom callslip.cli import main\nmain()"
    return Client([sys.executable, "-c", whole, *options, *ASKER, "one"])


def test_nobodys_answer_in_time_is_no(path: str) -> None:
    """S2.7: approvals that Callslip holds expire; the agent is told its own option that refuses."""
    with changed(path, SOON) as client:
        begun(client, "c1=a")
        hears(client, "[c1 no]")
        assert client.asked == [] and client.end() == (0, b"")
    (shown,) = requests(path)
    assert (shown.state, shown.by, shown.reason) == ("refused", "expiry", "nobody answered in time")
    assert calls(path, NAME)["c1"].status == "denied"


def test_in_the_clients_mode_nothing_is_held_and_nothing_expires(path: str) -> None:
    """The default: the client is asked, and its request has all the time it wants."""
    with Client([*wrapping(path, "--approvals", "client"), *ASKER, "one"]) as client:
        begun(client, "c1=a")
        asked = client.until(lambda message: message.get("method") == "session/request_permission")
        (request,) = pending(path)
        assert request.expires_at == 0
        client.send(id=asked["id"], result={"outcome": {"outcome": "selected", "optionId": "no"}})
        hears(client, "[c1 no]")
        assert client.end() == (0, b"")


# When recording fails


def test_without_a_ledger_the_client_is_asked_and_the_person_told(path: str) -> None:
    """The file is no database: requests go where they would go without us."""
    Path(path).write_text("something else entirely, and long enough to be sure of it" * 10)
    with held(path) as client:
        begun(client, "c1=a")
        asked = client.until(lambda message: message.get("method") == "session/request_permission")
        client.send(id=asked["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}})
        hears(client, "[c1 yes]")
        status, said = client.end()
    assert status == 0
    assert b"recording fails" in said and b"its client is asked for permission meanwhile" in said


def test_a_recorder_that_dies_gives_what_waits_to_the_client(path: str) -> None:
    """The request reaches the client whole, and its answer the agent; later ones are the client's at once."""
    with held(path) as client:
        session = begun(client, "c1=a")
        pending(path)
        agent = client.ask("ping")["result"]["pid"]
        (recorder,) = [child for child in children(client.process.pid) if child != agent]
        kill(recorder)
        for call_, identity in (("c1", "a"), ("c2", "b")):
            asked = client.until(lambda message: message.get("method") == "session/request_permission")
            assert asked["id"] == identity and asked["params"]["toolCall"]["toolCallId"] == call_
            client.send(id=identity, result={"outcome": {"outcome": "selected", "optionId": "no"}})
            hears(client, f"[{call_} no]")
            if call_ == "c1":
                prompts(client, session, "c2=b")
        assert client.end()[0] == 0
    assert waiting(path) == []


def test_a_ledger_that_fails_for_a_while_gives_what_waits_to_the_client(path: str) -> None:
    """The client's answer counts then, and is recorded once recording goes on; later requests are held again."""
    small = ["sh", "-c", 'ulimit -S -f 600 && exec "$@"', "sh"]
    with Client([*small, *wrapping(path, "--approvals", "callslip"), *ASKER, "one"]) as client:
        session = begun(client, "c1=a")
        pending(path)
        agent = client.ask("ping")["result"]["pid"]
        (recorder,) = [child for child in children(client.process.pid) if child != agent]
        for number in range(30):
            client.send(method="noise", params={"x": "x" * 20_000, "number": number})
        asked = client.until(lambda message: message.get("method") == "session/request_permission")
        assert asked["id"] == "a"
        subprocess.run(["prlimit", "--fsize=unlimited", "--pid", str(recorder)], check=True)
        client.send(id="a", result={"outcome": {"outcome": "selected", "optionId": "no"}})
        hears(client, "[c1 no]")
        assert client.process.stderr is not None
        assert eventually(lambda: b"recording goes on" in client.process.stderr.readline())  # type: ignore[union-attr]
        prompts(client, session, "c2=b")
        (request,) = eventually(lambda: [row for row in waiting(path) if row.description == "Do c2"])
        assert callslip(path, "approve", request.id, "--by", "ann").returncode == 0
        hears(client, "[c2 yes]")
        assert client.end() == (0, b"")
    assert [call.status for call in calls(path, NAME).values()] == ["denied", "completed"]
    assert [(one.state, one.by) for one in requests(path)] == [
        ("superseded", ""),
        ("refused", "client"),
        ("granted", "ann"),
    ]


def test_a_recorder_that_stands_still_does_not_keep_a_request_for_ever(path: str) -> None:
    """It says nothing of its problem: after a while the client is asked."""
    with changed(path, IMPATIENT) as client:
        session = client.begin()
        agent = client.ask("ping")["result"]["pid"]
        (recorder,) = [child for child in children(client.process.pid) if child != agent]
        os.kill(recorder, signal.SIGSTOP)
        prompts(client, session, "c1=a")
        client.until(lambda message: message.get("method") == "session/request_permission")
        os.kill(recorder, signal.SIGCONT)
        client.send(id="a", result={"outcome": {"outcome": "selected", "optionId": "yes"}})
        hears(client, "[c1 yes]")
        assert client.end() == (0, b"")
    assert [(one.state, one.by) for one in requests(path)] == [("superseded", ""), ("granted", "client")]


# The desk, and the recorder's side


def line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


@pytest.mark.parametrize(
    ("message", "key"),
    [
        (may_i(7)["msg"], b"7"),
        (may_i('"\n')["msg"], b'"\\"\\n"'),
        (may_i(None)["msg"], None),
        (may_i(True)["msg"], None),
        (may_i([1])["msg"], None),
        (asks("session/request_permission", 1, toolCall={"toolCallId": "c"}, options=[]), None),
        (asks("session/request_permission", 1, toolCall={"toolCallId": "c"}, options=[{"name": "x"}]), None),
        (asks("session/request_permission", 1, toolCall="c", options=OPTIONS), None),
        (asks("fs/read_text_file", 1, path="request_permission"), None),
    ],
)
def test_only_what_can_be_answered_is_held(message: Any, key: bytes | None) -> None:
    """An odd id, no options, no call: the client may know what to do with it."""
    sorted_ = list(PermissionFilter(Policy(()), holds=True).sort(line(message)))
    assert sorted_ == [(line(message), None if key is None else HeldRequest(key))]
    assert list(PermissionFilter(Policy(())).sort(line(message))) == [(line(message), None)]


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (ev.ApprovalGranted(option="odd"), "odd"),
        (ev.ApprovalGranted(option="gone"), "yes"),
        (ev.ApprovalGranted(), "yes"),
        (ev.ApprovalGranted(by="agent"), None),
        (ev.ApprovalRefused(by="expiry"), "no"),
        (ev.ApprovalWithdrawn(option="yes"), None),
        (ev.CallCancelled(), None),
        (ev.CallCompleted(), None),
    ],
)
def test_the_agent_is_told_what_was_said_in_its_own_words(event: Any, told: str | None) -> None:
    """The option that was chosen, or one that says as much; whatever nobody allowed is cancelled."""
    found = outcome([None, {"kind": "allow_once"}, {"optionId": 5, "kind": "allow_once"}, *OPTIONS], event)
    assert found == ({"outcome": "selected", "optionId": told} if told else {"outcome": "cancelled"})


def test_where_the_tape_is_full_the_client_is_asked() -> None:
    """A request that cannot be recorded is not held, and is not counted as lost: it passes as any other line."""
    read, pipe = os.pipe()
    told, tell = os.pipe()
    tape = RecorderPipe(pipe, told, lambda _: None, room=2**20, patience=0.01)
    agent, client, work = Outlet(-1), Outlet(-1), list[Callable[[], None]]()
    requests = HeldRequests(tape, agent, client, work.append)
    assert requests.hold(b"1", b"request\n") and not requests.hold(b"1", b"again\n")
    for _ in range(30):
        tape.put(FROM_AGENT, b"x" * 99_999 + b"\n")
    lost = tape.lost
    assert lost and not requests.hold(b"2", b"request\n") and tape.lost == lost
    for end in (read, pipe, told, tell):
        os.close(end)


def test_many_requests_at_once_do_not_take_a_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a recorder that stands still, all of them go to the client in time."""
    monkeypatch.setattr(held_requests, "RECORD_TIMEOUT_S", 0.1)
    (read, pipe), (told, tell), (heard, client) = os.pipe(), os.pipe(), os.pipe()
    work: SimpleQueue[Callable[[], None]] = SimpleQueue()
    requests = HeldRequests(RecorderPipe(pipe, told, lambda _: None), Outlet(-1), Outlet(client), work.put)
    before = threading.active_count()
    lines = [b"%d\n" % number for number in range(200)]
    assert all(requests.hold(line.strip(), line) for line in lines)
    assert threading.active_count() <= before + 1
    passed = b""
    while passed != b"".join(lines):
        work.get(timeout=20)()
        passed += os.read(heard, 10_000) if select.select([heard], [], [], 0)[0] else b""
    for end in (read, pipe, told, tell, heard, client):
        os.close(end)


class Taped:
    """A recorder whose tape is in the hands of the test, and a ledger to answer in."""

    def __init__(self, db: str, **settings: Any) -> None:
        read, pipe = os.pipe()
        self.told: list[str] = []
        self._tape = os.fdopen(pipe, "wb", 0)
        recorder = RecorderProcess(
            db,
            lambda: None,
            Names(["agent"], "s"),
            self.told.append,
            settings=Settings(reaper_interval=0.02, **settings),
        )
        self._running = asyncio.create_task(recorder.run(read))

    def put(self, kind: bytes, row: Any) -> None:
        self.write(kind, line(row["msg"]))

    def write(self, kind: bytes, data: bytes) -> None:
        self._tape.write(pack(Frame(kind, time.time(), data)))

    async def until(self, wanted: Callable[[str], bool]) -> str:
        async with asyncio.timeout(20):
            while not (found := [one for one in self.told if wanted(one)]):
                await asyncio.sleep(0.005)
        return found[0]

    async def end(self) -> None:
        self.write(ENDED, b"why")
        self._tape.close()
        async with asyncio.timeout(20):
            await self._running


def is_settled(said: str) -> bool:
    return said[0] in "=~"


@pytest.mark.anyio
async def test_the_same_request_again_in_one_turn_is_the_clients(db: str) -> None:
    """To the ledger it is a repetition of what was answered, so that nobody could answer it there."""
    taped = Taped(db, approval_expiry=0.0, reaper_grace=0.02)
    taped.put(FROM_CLIENT, prompt())
    taped.put(HELD, may_i("a"))
    answer = await taped.until(is_settled)
    assert json.loads(answer.partition("\t")[2])["result"]["outcome"]["optionId"] == "no"
    taped.put(ANSWER, chosen("no", "a"))
    taped.put(HELD, may_i("b"))
    assert await taped.until(lambda said: is_settled(said) and said != answer) == '~"b"'
    taped.write(RELEASED, b'"b"')
    taped.put(FROM_CLIENT, chosen("yes", "b"))
    await taped.end()
    async with sound_ledger(db) as ledger:
        assert await ledger.approvals() == []


@pytest.mark.anyio
async def test_a_request_that_is_not_understood_is_the_clients(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of the decoder costs the message its meaning and keeps nobody waiting."""
    feed = AcpDecoder.feed

    def broken(self: Any, message: Any) -> Any:
        if "request_permission" in json.dumps(message.body):
            raise ZeroDivisionError
        return feed(self, message)

    monkeypatch.setattr(AcpDecoder, "feed", broken)
    taped = Taped(db)
    taped.put(HELD, may_i("a"))
    assert await taped.until(is_settled) == '~"a"'
    taped.write(RELEASED, b'"a"')
    await taped.end()
    async with sound_ledger(db) as ledger:
        assert await ledger.approvals() == []


@pytest.mark.anyio
async def test_an_agent_that_begins_without_an_answer_was_not_allowed_to(db: str) -> None:
    """The log says that it helped itself; what it is told is that nobody said yes."""
    taped = Taped(db)
    taped.put(FROM_CLIENT, prompt())
    taped.put(HELD, may_i("a"))
    taped.put(FROM_AGENT, more("in_progress"))
    answer = await taped.until(is_settled)
    assert json.loads(answer.partition("\t")[2])["result"]["outcome"] == {"outcome": "cancelled"}
    await taped.end()


@pytest.mark.anyio
async def test_a_second_request_for_the_same_call_gives_both_their_answer(db: str) -> None:
    """The second supersedes the first in the ledger; the agent still waits for both."""
    taped = Taped(db, approval_expiry=0.0, reaper_grace=0.02)
    taped.put(FROM_CLIENT, prompt())
    taped.put(FROM_AGENT, call())
    taped.put(HELD, may_i("a"))
    taped.put(HELD, may_i("b", title="More"))
    for key in ("a", "b"):
        answer = await taped.until(lambda said, key=key: said.startswith(f'="{key}"'))
        assert json.loads(answer.partition("\t")[2])["result"]["outcome"]["optionId"] == "no"
    await taped.end()


@pytest.mark.anyio
async def test_leave_for_another_request_is_none_for_this_one(db: str) -> None:
    """A person is asked the second question about a call and says yes to that; nobody said yes to the first."""
    taped = Taped(db)
    taped.put(FROM_CLIENT, prompt())
    taped.put(FROM_AGENT, call())
    taped.put(HELD, may_i("a"))
    taped.put(HELD, may_i("b", title="More"))
    await taped.until(lambda said: said == "+4")
    async with sound_ledger(db) as ledger:
        (request,) = await ledger.approvals()
        await approve(ledger, request.id, by="ann")
    told = [await taped.until(lambda said, key=key: said.startswith(f'="{key}"')) for key in "ab"]
    outcomes = [json.loads(said.partition("\t")[2])["result"]["outcome"] for said in told]
    assert outcomes == [{"outcome": "cancelled"}, {"outcome": "selected", "optionId": "yes"}]
    await taped.end()


@pytest.mark.anyio
async def test_a_request_that_crosses_with_its_cancellation_is_cancelled_too(db: str) -> None:
    """The agent asked before it read that its turn is over; it must not wait. In the next turn it may ask again."""
    taped = Taped(db)
    taped.put(FROM_CLIENT, prompt())
    taped.put(FROM_CLIENT, c2a({"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s1"}}))
    taped.put(HELD, may_i("a"))
    answer = await taped.until(is_settled)
    assert json.loads(answer.partition("\t")[2])["result"]["outcome"] == {"outcome": "cancelled"}
    taped.put(ANSWER, c2a({"jsonrpc": "2.0", "id": "a", "result": {"outcome": {"outcome": "cancelled"}}}))
    taped.put(FROM_AGENT, done(reason="cancelled"))
    taped.put(FROM_CLIENT, prompt(2))
    taped.put(HELD, may_i("b"))
    await taped.until(lambda said: said == "+7")
    async with sound_ledger(db) as ledger:
        (request,) = await ledger.approvals()
        shown = [one for one in (await ledger.snapshot("s")).entries if isinstance(one, PermissionRequest)]
    assert [(one.state, one.by) for one in shown] == [("withdrawn", "client"), ("pending", "")]
    assert request.id == shown[1].request_id and [said for said in taped.told if is_settled(said)] == [answer]
    await taped.end()


@pytest.mark.anyio
async def test_a_watch_that_breaks_gives_its_request_to_the_client(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong with us, no request waits for ever."""
    monkeypatch.setattr(Ledger, "follow", lambda *_: 1 / 0)
    taped = Taped(db)
    taped.put(HELD, may_i("a"))
    assert await taped.until(is_settled) == '~"a"'
    await taped.end()


@pytest.mark.anyio
async def test_an_agent_may_take_its_request_back(db: str) -> None:
    """By the id of its request: withdrawn, and answered as cancelled."""
    taped = Taped(db)
    taped.put(FROM_CLIENT, prompt())
    taped.put(HELD, may_i("a"))
    taped.put(FROM_AGENT, {"msg": {"jsonrpc": "2.0", "method": "$/cancel_request", "params": {"requestId": "a"}}})
    answer = await taped.until(is_settled)
    assert json.loads(answer.partition("\t")[2])["result"]["outcome"] == {"outcome": "cancelled"}
    await taped.end()
    async with sound_ledger(db) as ledger:
        (event,) = [one async for one in ledger.events("s") if isinstance(one, ev.ApprovalAnswer)]
        assert (event.by, event.reason) == ("agent", "the agent took its request back")


@pytest.mark.anyio
@pytest.mark.parametrize("reason", ["end_turn", "cancelled"])
async def test_a_request_ends_with_its_turn(db: str, reason: str) -> None:
    """However the turn ends: at once, or after the moment that its calls are given."""
    taped = Taped(db, turn_grace=0.05, reaper_grace=0.05)
    taped.put(FROM_CLIENT, prompt())
    taped.put(HELD, may_i("a"))
    taped.put(FROM_AGENT, done(reason=reason))
    answer = await taped.until(is_settled)
    assert json.loads(answer.partition("\t")[2])["result"]["outcome"] == {"outcome": "cancelled"}
    await taped.end()


@pytest.mark.anyio
async def test_a_session_that_somebody_deletes_gives_its_request_to_the_client(db: str) -> None:
    """There is nothing left to answer here."""
    taped = Taped(db)
    taped.put(FROM_CLIENT, prompt())
    taped.put(HELD, may_i("a"))
    await taped.until(lambda said: said == "+2")
    async with sound_ledger(db) as ledger:
        await ledger.delete("s")
        assert await taped.until(is_settled) == '~"a"'
    await taped.end()
