"""Messages of hooks in a ledger: once with the session file, hostile files, sessions without a file, places."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import callslip
from callslip.api.ledger import LocalLedger
from callslip.formats.hooks import decode
from callslip.hooks import receiver as receiving
from callslip.hooks.folder import prepare_folder
from callslip.hooks.receiver import HookReceiver, answer_output
from callslip.hooks.spool import MAX_FILE_BYTES, parse_message
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model.entries import Message, PermissionRequest, ToolCall
from callslip.settings import Settings
from callslip.transcripts.agents import find_source
from callslip.transcripts.importer import TranscriptImporter
from tests.support.claude_files import Script, write_lines

pytestmark = pytest.mark.anyio
SETTINGS = Settings(reaper_interval=3600)
HOOK_DECODERS = (decode.HookDecoder, decode.GeminiHookDecoder, decode.OpencodeHookDecoder)


class Spool:
    """A hook folder with messages, in a home with session files."""

    def __init__(self, ledger: LocalLedger, home: Path) -> None:
        self.ledger = ledger
        self.home = home
        self.folder = home / "hooks"
        self.problems: list[str] = []
        self.files = 0
        prepare_folder(self.folder)

    def receiver(self) -> HookReceiver:
        """Return a receiver as a new process has it."""
        return HookReceiver(self.ledger.log, self.folder, self.problems.append, environ={}, home=str(self.home))

    def put(self, payload: Any, *, agent: str = "claude-code", age_s: float = 60) -> Path:
        """Store a message as the script does."""
        self.files += 1
        at = int((time.time() - age_s) * 1000)
        path = self.folder / "spool" / f"{10**18 + self.files}-1-abcdef01.json"
        path.write_bytes(json.dumps({"agent": agent, "at": at, "message": payload}).encode())
        return path

    def left(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "spool").iterdir())

    async def entries(self, session: str) -> list[Any]:
        return list((await self.ledger.snapshot(session)).entries)

    async def calls(self, session: str) -> list[tuple[str, str]]:
        entries = await self.entries(session)
        return [(entry.tool_call_id, entry.status) for entry in entries if isinstance(entry, ToolCall)]


@pytest.fixture
async def spool(db: str, tmp_path: Path) -> AsyncIterator[Spool]:
    async with await callslip.open(db, SETTINGS) as ledger:
        yield Spool(ledger, tmp_path)
        assert await verify(ledger.log) == []


def claude(name: str, session: str = "s1", path: str = "", **fields: Any) -> dict[str, Any]:
    return {"session_id": session, "transcript_path": path, "cwd": "/w", "hook_event_name": name, **fields}


def bash(call: str, command: str = "ls") -> dict[str, Any]:
    return {"tool_name": "Bash", "tool_input": {"command": command}, "tool_use_id": call}


class History:
    """A session file of Claude Code with one prompt, one call and a last text."""

    def __init__(self, home: Path) -> None:
        self.script = Script()
        self.session = self.script.session
        self.path = home / ".claude" / "projects" / "-w" / f"{self.session}.jsonl"

    def write(self, *, ended: bool = True) -> list[Any]:
        self.script.prompt("Look")
        self.script.call("toolu_1", command="ls")
        if ended:
            self.script.result("toolu_1", "a")
            self.script.text("Done.")
        write_lines(self.path, self.script.lines)
        return self.script.lines

    def message(self, name: str, **fields: Any) -> dict[str, Any]:
        return claude(name, self.session, str(self.path), **fields)

    @property
    def name(self) -> str:
        return f"claude-{self.session}"

    def messages(self) -> list[dict[str, Any]]:
        return [
            self.message("SessionStart"),
            self.message("UserPromptSubmit", prompt="Look"),
            self.message("PreToolUse", **bash("toolu_1")),
            self.message("PostToolUse", **bash("toolu_1"), tool_response={"stdout": "a"}),
            self.message("Stop", last_assistant_message="Done."),
            self.message("SessionEnd", reason="other"),
        ]


@pytest.mark.parametrize("order", ["spool first", "file first", "imported before"])
async def test_each_thing_is_recorded_once(spool: Spool, order: str) -> None:
    """HK5: from the hook and from the session file, in any order, also when the spool is imported long after."""
    history = History(spool.home)
    if order == "imported before":
        history.write()
        importer = TranscriptImporter(spool.ledger.log)
        await importer.run(find_source("claude-code"), find_source("claude-code").find(str(history.path)))
    for message in history.messages():
        spool.put(message)
    if order == "file first":
        history.write()
    receiver = spool.receiver()
    await receiver.import_spooled()
    if order == "spool first":
        assert await spool.calls(history.name) == [("toolu_1", "completed")]
        history.write()
        await receiver.transcripts.read(receiver.transcripts.locate("claude-code", history.message("Stop")))
    assert spool.left() == spool.problems == []
    entries = await spool.entries(history.name)
    assert [entry.content for entry in entries if isinstance(entry, Message)] == ["Look", "Done."]
    assert await spool.calls(history.name) == [("toolu_1", "completed")]
    assert len((await spool.ledger.sessions()).items) == 1


async def test_a_call_is_recorded_from_the_hook_if_the_file_never_tells_it(spool: Spool) -> None:
    """HK5: the agent was killed before it wrote; the message waits for the file for a moment only."""
    history = History(spool.home)
    history.write(ended=False)
    write_lines(history.path, history.script.lines[:1])
    started = spool.put(history.message("PreToolUse", **bash("toolu_1")), age_s=0)
    receiver = spool.receiver()
    await receiver.import_spooled()
    if started.exists():
        assert receiver.has_held and await spool.calls(history.name) == []
    while started.exists():
        await receiver.import_spooled()
    assert await spool.calls(history.name) == [("toolu_1", "running")]
    spool.put(history.message("PostToolUse", **bash("toolu_1"), tool_response={"stdout": "a"}))
    await receiver.import_spooled()
    assert await spool.calls(history.name) == [("toolu_1", "completed")]


async def test_a_late_start_changes_nothing_that_the_file_told(spool: Spool) -> None:
    """HK5: Codex names its tools differently in both; a call that the file has keeps its name and arguments."""
    history = History(spool.home)
    history.write(ended=False)
    renamed = {"tool_name": "exec", "tool_input": {"cmd": "ls"}, "tool_use_id": "toolu_1"}
    spool.put(history.message("PreToolUse", **renamed))
    await spool.receiver().import_spooled()
    (call,) = [entry for entry in await spool.entries(history.name) if isinstance(entry, ToolCall)]
    assert (call.tool_name, call.raw_input, call.status) == ("Bash", {"command": "ls"}, "running")


async def test_a_file_that_was_not_deleted_adds_nothing(spool: Spool) -> None:
    """HK1: a process was killed between the commit and the deletion of the file."""
    messages = [claude("PreToolUse", **bash("c1")), claude("UserPromptSubmit", prompt="Hello")]
    paths = [spool.put(message) for message in messages]
    kept = [path.read_bytes() for path in paths]
    await spool.receiver().import_spooled()
    entries = await spool.entries("claude-s1")
    assert len(entries) == 2
    for path, data in zip(paths, kept, strict=True):
        path.write_bytes(data)
    await spool.receiver().import_spooled()
    assert spool.left() == [] and await spool.entries("claude-s1") == entries
    spool.put(claude("PreToolUse", **bash("c2")))  # An equal call is not taken for the first one again.
    requests = [await ask(spool.receiver(), claude("PermissionRequest", **bash("x"))) for _ in range(2)]
    assert [(await spool.ledger.find_call(request.call)).client_call_id for request in requests] == ["c1", "c2"]


async def test_hostile_files_are_left_out_and_affect_no_other(spool: Spool, tmp_path: Path) -> None:
    """HK6: links, pipes, folders, huge and broken files: deleted unread, and what follows is imported."""
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"agent": "claude-code", "at": 1, "message": claude("Stop", "stolen")}))
    (first, pipe, folder, huge, *broken) = [spool.put(claude("SessionStart", "x")) for _ in range(9)]
    for path in (first, pipe, folder):
        path.unlink()
    first.symlink_to(secret)
    os.mkfifo(pipe)
    folder.mkdir()
    with huge.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    bodies = [b"{", b"[]", b'{"agent":"other","message":{}}', b'{"agent":"codex","message":7}', b"\xff" * 100]
    for path, body in zip(broken, bodies, strict=True):
        path.write_bytes(body)
    for payload in ({}, {"session_id": 7}, {"session_id": "s", "hook_event_name": "New"}):
        spool.put(payload)
    deep: Any = 1
    for _ in range(90):
        deep = [deep]
    spool.put(claude("PreToolUse", "../../x", **bash("c", "ls"), extra=deep))
    spool.put(claude("PreToolUse", **bash("c1")))
    (spool.folder / "spool" / "no message").write_text("x")
    await spool.receiver().import_spooled()
    refused, other = spool.left()
    assert refused.startswith("1000000000000000003-1-abcdef01.json.") and other == "no message"
    assert await spool.calls("claude-s1") == [("c1", "running")]
    assert secret.exists() and len(spool.problems) >= 9
    assert "claude-stolen" not in [session.name for session in (await spool.ledger.sessions()).items]
    spool.problems.clear()
    await spool.receiver().import_spooled()
    assert spool.problems == []


async def test_a_folder_in_place_of_a_file_holds_nothing_up(spool: Spool) -> None:
    """HK6: also if a program has taken the name to which it would be renamed; what follows is imported."""
    for number in range(2):
        folder = spool.put(claude("SessionStart"))
        folder.unlink()
        folder.mkdir()
        for taken in (f"{folder.name}.refused", *spool.left()[:number]):
            (folder.parent / taken / "x").mkdir(parents=True, exist_ok=True)
        spool.put(claude("PreToolUse", **bash(f"c{number}")))
        await spool.receiver().import_spooled()
        assert not [name for name in spool.left() if name.endswith(".json")]
    assert [call for call, _ in await spool.calls("claude-s1")] == ["c0", "c1"]


async def test_only_files_in_the_history_of_the_agent_are_read(spool: Spool, tmp_path: Path) -> None:
    """HK6: a message may name any path, so one elsewhere, or a link that leads there, is not opened."""
    history = History(tmp_path / "elsewhere")
    history.write()
    inside = spool.home / ".claude" / "projects" / "-w"
    inside.mkdir(parents=True)
    link = inside / f"{history.session}.jsonl"
    link.symlink_to(history.path)
    for path in (str(history.path), str(link), f"{inside}/../../../elsewhere/x.jsonl", "/dev/zero", "a\0b.jsonl"):
        spool.put(claude("PreToolUse", history.session, path, **bash("toolu_1")))
        await spool.receiver().import_spooled()
    assert await spool.calls(history.name) == [("toolu_1", "running")]
    assert not [entry for entry in await spool.entries(history.name) if isinstance(entry, Message)]


async def test_a_session_without_a_file_has_the_texts_of_the_hook(spool: Spool) -> None:
    """HK5: if the session file cannot be read, prompts and last answers come from the hook."""
    for message in (
        claude("UserPromptSubmit", prompt="Hello"),
        claude("PreToolUse", **bash("c1")),
        claude("PostToolUseFailure", **bash("c1"), error="Exit code 3\nno"),
        claude("Stop", last_assistant_message="Sorry."),
    ):
        spool.put(message)
    await spool.receiver().import_spooled()
    prompt, call, answer = await spool.entries("claude-s1")
    assert (prompt.content, call.status, call.exit_status, answer.content) == ("Hello", "failed", 3, "Sorry.")
    assert (await spool.ledger.find_session("claude-s1")).turn == ""


async def test_a_stored_message_never_asks_or_answers(spool: Spool) -> None:
    """HK7: requests for approval in the spool are left out, for each agent, and an answer has no form there."""
    spool.put(claude("PreToolUse", **bash("c1")))
    spool.put(claude("PermissionRequest", **bash("c1")))
    shell: dict[str, Any] = {"tool_name": "run_shell_command", "tool_input": {"command": "ls"}}
    spool.put(claude("BeforeTool", "s2", **shell), agent="gemini")
    opencode = {"session_id": "s3", "hook_event_name": "permission.asked", "properties": {"tool": {"callID": "c3"}}}
    spool.put(opencode, agent="opencode")
    receiver = spool.receiver()
    await receiver.import_spooled()
    request = await ask(receiver, claude("PermissionRequest", **bash("c1")))
    for answer in ("approval.granted", "approval.refused", "approval.released"):
        spool.put({"type": answer, "approval": request.approval, "session_id": "s1", "hook_event_name": answer})
        spool.put(claude("PermissionRequest", **bash("c1"), decision={"behavior": "allow"}))
    await receiver.import_spooled()
    assert [each.id for each in await spool.ledger.approvals()] == [request.approval]
    sessions = [session.name for session in (await spool.ledger.sessions()).items]
    for name in sessions:
        requests = [entry for entry in await spool.entries(name) if isinstance(entry, PermissionRequest)]
        assert len(requests) == (name == "claude-s1")


QUESTIONS: dict[str, tuple[dict[str, Any] | None, dict[str, Any]]] = {
    "claude-code": (claude("PreToolUse", **bash("c1")), claude("PermissionRequest", **bash("c1"))),
    "codex": (claude("PreToolUse", **bash("c1")), claude("PermissionRequest", **bash("c1"))),
    "gemini": (None, claude("BeforeTool", tool_name="run_shell_command", tool_input={"command": "ls"})),
    "opencode": (
        claude("tool.execute.before", properties={"tool": "bash", "callID": "c1", "args": {"command": "ls"}}),
        claude("permission.asked", properties={"id": "p1", "permission": "bash", "tool": {"callID": "c1"}}),
    ),
}
"""The start of a call, and the question about it, of each agent."""


@pytest.mark.parametrize("agent", QUESTIONS)
async def test_no_stored_message_answers_a_request(spool: Spool, agent: str) -> None:
    """HK7: with any name and any fields. The waiting hook prints nothing, and no answer is recorded."""
    start, question = QUESTIONS[agent]
    receiver = spool.receiver()
    names = {name for known in HOOK_DECODERS for name in known.READERS}
    names |= {"permission.replied", "approval.granted", "PermissionResponse"}
    for number, name in enumerate(sorted(names)):
        session = {"session_id": f"s{number}"}
        if start is not None:
            spool.put({**start, **session}, agent=agent)
        request = await ask(receiver, {**question, **session}, agent)
        answer = {"behavior": "allow", "approval": request.approval, "option": "allow", "by": "ann", "reply": "once"}
        part = {"type": "tool", "callID": "c1", "state": {"status": "error", "error": "x"}}
        properties = {"tool": "bash", "callID": "c1", "args": {"command": "ls"}, "part": part, **answer}
        fields = {**question, **session, **answer, **bash("c1"), "call": request.call, "properties": properties}
        spool.put({**fields, "decision": answer, "hookSpecificOutput": answer, "hook_event_name": name}, agent=agent)
        spool.put({**fields, "type": "approval.granted", "hook_event_name": name}, agent=agent)
        await receiver.import_spooled()
        record = await spool.ledger.log.store.approval(request.approval)
        assert record is not None and record.state not in ("granted", "refused") and not record.by, name
        if record.state != "pending":
            event = await receiver.wait_for_answer(record.session, request)
            assert answer_output(agent, question, event) == b"", name
    assert spool.left() == []


async def ask(receiver: HookReceiver, payload: Any, agent: str = "claude-code") -> ev.ApprovalRequested:
    """Record a request as the server does."""
    body = {"agent": agent, "at": int(time.time() * 1000), "message": payload}
    _, request = await receiver.request(parse_message(json.dumps(body).encode()))
    assert request is not None
    return request


async def test_a_request_is_about_the_call_that_asks(spool: Spool) -> None:
    """HK8: it has no id; of equal calls each asks once, in their order, also after a restart in between."""
    for call in ("c1", "c2"):
        spool.put(claude("PreToolUse", **bash(call)))
    first = await ask(spool.receiver(), claude("PermissionRequest", **bash("x")))
    second = await ask(spool.receiver(), claude("PermissionRequest", **bash("x")))
    records = [await spool.ledger.find_call(request.call) for request in (first, second)]
    assert [record.client_call_id for record in records] == ["c1", "c2"]
    receiver = spool.receiver()
    body = {"agent": "claude-code", "at": 0, "message": claude("PermissionRequest", **bash("x"))}
    assert (await receiver.request(parse_message(json.dumps(body).encode())))[1] is None
    assert len(await spool.ledger.approvals()) == 2


async def test_a_request_with_other_arguments_is_about_the_only_call(spool: Spool) -> None:
    """HK8: another hook of the user may have changed them, and the request shows the new ones. Of several none asks."""
    spool.put(claude("PreToolUse", **bash("c1")))
    spool.put(claude("PreToolUse", tool_name="Read", tool_input={"file_path": "a"}, tool_use_id="c2"))
    request = await ask(spool.receiver(), claude("PermissionRequest", **bash("x", "wrapped ls")))
    (call, _) = [entry for entry in await spool.entries("claude-s1") if isinstance(entry, ToolCall)]
    assert (call.tool_call_id, call.raw_input, call.call_id) == ("c1", {"command": "wrapped ls"}, request.call)
    for name in ("c3", "c4"):
        spool.put(claude("PreToolUse", **bash(name, name)))
    body = {"agent": "claude-code", "message": claude("PermissionRequest", **bash("x", "wrapped c3"))}
    assert (await spool.receiver().request(parse_message(json.dumps(body).encode())))[1] is None


async def test_a_request_has_what_the_agent_can_honour(spool: Spool) -> None:
    """HK9: the options of each agent; several questions can only be answered in the terminal."""
    receiver = spool.receiver()
    question = {"question": "Which?", "options": [{"label": "Red"}, {"label": "Blue"}]}
    one, two = {"questions": [question]}, {"questions": [question, {**question, "question": "And?"}]}
    for call, tool_input in (("q1", one), ("q2", two)):
        tool: dict[str, Any] = {"tool_name": "AskUserQuestion", "tool_input": tool_input, "tool_use_id": call}
        spool.put(claude("PreToolUse", **tool))
    ask_one = claude("PermissionRequest", tool_name="AskUserQuestion", tool_input=one)
    request = await ask(receiver, ask_one)
    assert [option["name"] for option in request.options] == ["Red", "Blue", "Decline to answer"]
    with pytest.raises(callslip.InvalidInputError):  # Which answer it is must be named.
        await spool.ledger.approve(request.approval)
    body = {"agent": "claude-code", "message": {**ask_one, "tool_input": two}}
    session, nothing = await receiver.request(parse_message(json.dumps(body).encode()))
    assert nothing is None
    (terminal,) = [each for each in await spool.ledger.approvals(session=session) if each.answer_at]
    assert terminal.answer_at == "the agent's terminal" and terminal.description == "Which?\nAnd?"
    shell: dict[str, Any] = {"tool_name": "run_shell_command", "tool_input": {"command": "ls"}}
    request = await ask(receiver, claude("BeforeTool", "g1", **shell), "gemini")
    assert [option["name"] for option in request.options] == ["Let the agent decide", "Deny"]
    reads = {"agent": "gemini", "message": claude("BeforeTool", "g1", tool_name="read_file", tool_input={})}
    assert (await receiver.request(parse_message(json.dumps(reads).encode())))[1] is None


async def test_calls_without_ids_get_those_of_the_session_file(spool: Spool) -> None:
    """HK10: each equal call of Gemini CLI is there once, with the end that its chat file tells."""
    path = spool.home / ".gemini" / "tmp" / "w" / "chats" / "session-1.jsonl"
    start = {"sessionId": "g1", "projectHash": "h", "startTime": "2026-11-16T05:53:43.000Z"}
    write_lines(path, [start])
    shell: dict[str, Any] = {"tool_name": "run_shell_command", "tool_input": {"command": "ls"}}
    message = {**claude("BeforeTool", "g1", str(path), **shell)}
    receiver = spool.receiver()
    requests = [await ask(receiver, message, "gemini") for _ in range(3)]
    await spool.ledger.approve(requests[0].approval)
    await spool.ledger.deny(requests[1].approval, reason="no")
    await receiver.release("gemini-g1", requests[2], "x")
    ends = [("success", {"output": "a"}), ("error", {"error": "no"}), ("success", {"output": "b"})]
    calls = [
        {"id": f"id-{number}", "name": "run_shell_command", "args": {"command": "ls"}, "status": status}
        | {"result": [{"functionResponse": {"response": result}}]}
        for number, (status, result) in enumerate(ends)
    ]
    answer = {"id": "m1", "type": "gemini", "timestamp": "2026-11-16T05:53:50.000Z", "content": "", "toolCalls": calls}
    write_lines(path, [answer], "a")
    await receiver.transcripts.read(receiver.transcripts.locate("gemini", message))
    assert [status for _, status in await spool.calls("gemini-g1")] == ["completed", "denied", "completed"]
    for number, request in enumerate(requests):
        assert (await spool.ledger.find_call(f"id-{number}")).id == request.call
    more = {**answer, "id": "m2", "toolCalls": [{**calls[0], "id": "id-9"}]}
    write_lines(path, [more], "a")
    await receiver.transcripts.read(receiver.transcripts.locate("gemini", message))
    assert len(await spool.calls("gemini-g1")) == 4


async def test_a_released_request_claims_nothing(spool: Spool) -> None:
    """HK11: the call waits for the agent's report, which may be either; only calls of agents can be released."""
    receiver = spool.receiver()
    for call in ("c1", "c2"):
        spool.put(claude("PreToolUse", **bash(call)))
        request = await ask(receiver, claude("PermissionRequest", **bash(call)))
        await receiver.release("claude-s1", request, "answered there")
        assert (await spool.ledger.log.get_call(request.call)).state == "queued"  # pyright: ignore
    spool.put(claude("PostToolUse", **bash("c1"), tool_response="a"))
    spool.put(claude("PermissionDenied", **bash("c2"), reason="no"))
    await receiver.import_spooled()
    assert await spool.calls("claude-s1") == [("c1", "completed"), ("c2", "denied")]
    states = [entry.state for entry in await spool.entries("claude-s1") if isinstance(entry, PermissionRequest)]
    assert states == ["released", "released"]
    own = await spool.ledger.log.append("mine", [ev.ApprovalRequested(call="new:1", tool_name="t")], source="python")
    approval = next(event.approval for event in own if isinstance(event, ev.ApprovalRequested))
    (refused,) = await spool.ledger.log.append("mine", [ev.ApprovalReleased(approval=approval)], source="python")
    assert refused.verdict == "illegal"
    assert [each.id for each in await spool.ledger.approvals(session="mine")] == [approval]


async def test_requests_of_a_killed_server_are_released(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """HK11: nothing waits for their answers any more, so the inbox does not offer them."""
    receiver = spool.receiver()
    spool.put(claude("PreToolUse", **bash("c1")))
    request = await ask(receiver, claude("PermissionRequest", **bash("c1")))
    await spool.receiver().release_abandoned()
    assert [each.id for each in await spool.ledger.approvals()] == [request.approval]

    def is_dead(owner: str) -> bool:
        return owner == request.request_id

    monkeypatch.setattr(receiving, "is_dead", is_dead)
    await spool.receiver().release_abandoned()
    assert await spool.ledger.approvals() == []


async def test_messages_of_a_deleted_session_are_left_out(spool: Spool) -> None:
    """HK5: the user deleted it, so the agent that still runs does not bring it back."""
    spool.put(claude("PreToolUse", **bash("c1")))
    await spool.receiver().import_spooled()
    await spool.ledger.delete("claude-s1")
    spool.put(claude("PreToolUse", **bash("c2")))
    await spool.receiver().import_spooled()
    assert spool.left() == [] and (await spool.ledger.sessions()).items == []


async def test_a_time_of_a_message_is_plausible(spool: Spool) -> None:
    """HK6: a time in the future is replaced by now."""
    message = parse_message(json.dumps({"agent": "codex", "at": 10**13, "message": {}}).encode())
    assert abs(message.at - time.time() * 1000) < 60_000
    assert structs.replace(message, at=0).at == 0
