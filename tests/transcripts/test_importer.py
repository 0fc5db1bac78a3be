"""Import histories of agents: incremental, damaged and hostile files, forks, deleted sessions, live recordings."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import StoreError
from callslip.formats.json_fields import as_dict, as_str
from callslip.ingest.conversations import Conversations
from callslip.ingest.importer import import_lines
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model.entries import Message, ToolCall
from callslip.settings import Settings
from callslip.transcripts import importer as importing
from callslip.transcripts.agents import find_source
from callslip.transcripts.claude_code import ClaudeCode
from callslip.transcripts.follow import Follower
from callslip.transcripts.importer import Report, TranscriptImporter
from callslip.transcripts.json_lines import open_file
from callslip.transcripts.source import Transcript
from callslip.wrap.session_names import SessionNames
from tests.support.claude_files import PARALLEL, Script, lines_of, session_id, write_lines
from tests.support.paths import TESTS

pytestmark = pytest.mark.anyio
SETTINGS = Settings(reaper_interval=3600)
SOURCE = find_source("claude-code")
FIRST = f"claude-{session_id(1)}"


async def import_history(ledger: LocalLedger, *paths: Path, restores: bool = False) -> Report:
    """Import as a new process would."""
    importer = TranscriptImporter(ledger.log, restores=restores)
    await importer.load()
    return await importer.run(SOURCE, [transcript for path in paths for transcript in SOURCE.find(str(path))])


async def read_entries(ledger: LocalLedger, session: str) -> list[Any]:
    return list((await ledger.snapshot(session)).entries)


async def texts_and_calls(ledger: LocalLedger, session: str) -> list[Any]:
    """Return what a reader sees: the texts, and the calls with their states."""
    entries = await read_entries(ledger, session)
    return [
        entry.content if isinstance(entry, Message) else (entry.tool_call_id, entry.status)
        for entry in entries
        if isinstance(entry, Message | ToolCall)
    ]


async def all_events(ledger: LocalLedger, session: str) -> list[ev.Event]:
    return [event async for event in ledger.log.events(session)]


def age(path: Path, seconds: float) -> None:
    """Let a file be last written some time ago."""
    written_at = time.time() - seconds
    os.utime(path, (written_at, written_at))


START_S = 1_794_724_980
"""When the first line of a script was written."""
TURN_1 = ["prompt 1", ("toolu_1_1", "completed"), "answer 1"]
TURN_2 = ["prompt 2", ("toolu_1_2", "completed"), "answer 2"]


async def test_a_history_is_imported_once(db: str, tmp_path: Path) -> None:
    """TRN1, TRN2: facts of the session come from the file; again, only what is new is imported."""
    script = Script().turn(1)
    path = script.write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        first = await import_history(ledger, tmp_path)
        assert (first.sessions, first.messages, first.skipped) == ([FIRST], 4, 0)
        info = (await ledger.snapshot(FIRST)).info
        assert (info.agent, info.agent_version, info.model) == ("claude-code", "2.1.197", "claude-opus-4-8")
        assert (info.project, info.branch, info.foreign_id) == ("/home/dev/shop", "main", session_id(1))
        assert await texts_and_calls(ledger, FIRST) == TURN_1
        events = await all_events(ledger, FIRST)
        assert {event.at // 1000 for event in events} <= {1_794_724_980 + number for number in range(4)}
        again = await import_history(ledger, tmp_path)
        assert (again.transcripts, again.events) == (0, 0)
        write_lines(path, script.turn(2).lines[4:], "a")
        more = await import_history(ledger, tmp_path)
        assert more.messages == 4
        assert await texts_and_calls(ledger, FIRST) == TURN_1 + TURN_2
        assert await verify(ledger.log) == []


async def test_a_line_is_read_when_it_is_complete(db: str, tmp_path: Path) -> None:
    """TRN3: the beginning of a last line is left for the next time, wherever the file ends meanwhile."""
    script = Script().turn(1)
    data = b"".join(json.dumps(line).encode() + b"\n" for line in script.lines)
    path = script.path(tmp_path)
    path.parent.mkdir(parents=True)
    async with callslip.open(db, SETTINGS) as ledger:
        for end in [*range(0, len(data), 97), len(data)]:
            path.write_bytes(data[:end])
            assert not (await import_history(ledger, tmp_path)).skipped
        assert await texts_and_calls(ledger, FIRST) == TURN_1


async def test_lines_that_cannot_be_read_are_skipped(db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRN4: broken, huge and deep lines are counted with the first reason; control characters are kept as text."""
    monkeypatch.setattr("callslip.transcripts.json_lines.MAX_LINE_BYTES", 3 * 2**20)
    lines: list[Any] = list(Script().turn(1).prompt("\x00\x1b[31m\u202e red").lines)
    lines[1:1] = [
        "{broken",
        "\x00\x01",
        "[" * 100_000,
        '"' + "x" * 4_000_000 + '"',
        "17",
        '{"type": "new", "uuid": "u"}',
    ]
    write_lines(Script().path(tmp_path), lines)
    async with callslip.open(db, SETTINGS) as ledger:
        report = await import_history(ledger, tmp_path)
        ((path, count, line, reason),) = [(each.path, each.count, each.line, each.reason) for each in report.problems]
        assert (Path(path).stem, count, line) == (session_id(1), 4, 2) and "JSON" in reason
        assert await texts_and_calls(ledger, FIRST) == [*TURN_1, "\x00\x1b[31m\u202e red"]
        raws = [event.body for event in await all_events(ledger, FIRST) if isinstance(event, ev.Raw)]
        assert raws == [17, {"type": "new", "uuid": "u"}]


async def test_a_long_damaged_beginning_hides_nothing(db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRN4: what cannot be read is reported once, also if it is all there is, and what follows it is imported."""
    monkeypatch.setattr("callslip.transcripts.json_lines.PIECE_BYTES", 2**10)
    damaged = ["{broken " + "x" * 700] * 4
    path = write_lines(Script().path(tmp_path), damaged)
    async with callslip.open(db, SETTINGS) as ledger:
        importer = TranscriptImporter(ledger.log)
        report = await importer.run(SOURCE, SOURCE.find(str(tmp_path)))
        assert [(each.line, each.count) for each in report.problems] == [(1, 4)] and not report.sessions
        assert (await importer.run(SOURCE, SOURCE.find(str(tmp_path)))).transcripts == 0
        write_lines(path, list(Script().turn(1).lines), "a")
        report = await importer.run(SOURCE, SOURCE.find(str(tmp_path)))
        assert (report.skipped, report.sessions) == (4, [FIRST])
        assert await texts_and_calls(ledger, FIRST) == TURN_1


async def test_only_files_are_read(db: str, tmp_path: Path) -> None:
    """TRN4: in an agent's folder a link to another file is left out, and nothing waits for a pipe."""
    outside = write_lines(tmp_path / f"{session_id(2)}.jsonl", list(Script(2).turn(1).lines))
    home = tmp_path / "home"
    script = Script(agent="abc").prompt("look")
    details = script.write(home).with_suffix(".meta.json")
    os.mkfifo(details)
    os.symlink(outside, Script(2).path(home))
    os.mkfifo(Script(3).path(home))
    async with callslip.open(db, SETTINGS) as ledger:
        report = await import_history(ledger, home)
        assert (report.transcripts, report.sessions, report.problems) == (1, [FIRST], [])
        assert (await import_history(ledger, Script(2).path(home))).sessions == [f"claude-{session_id(2)}"]
    details.unlink()
    details.symlink_to(outside)
    for path, code in ((Script(3).path(home), errno.EINVAL), (details, errno.ELOOP)):
        with pytest.raises(OSError) as raised:
            open_file(str(path))
        assert raised.value.errno == code


async def test_a_file_that_fails_does_not_stop_the_others(
    db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRN4: a name that is not UTF-8 is read; an unexpected error is reported, and tried again after a change."""
    path = Script().turn(1).write(tmp_path)
    unnamed = os.path.join(os.fsencode(path.parent), b"\xff.jsonl")
    with open(unnamed, "w") as file:
        file.writelines(json.dumps({**line, "sessionId": ""}) + "\n" for line in Script(3).turn(1).lines)
    broken = Script(2).turn(1).write(tmp_path)
    session_of = type(SOURCE).session_of

    def fail_for_one(source: Any, transcript: Transcript, messages: Any) -> str:
        if transcript.path == str(broken):
            raise TypeError("a bug")
        return session_of(source, transcript, messages)

    async with callslip.open(db, SETTINGS) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(type(SOURCE), "session_of", fail_for_one)
            importer = TranscriptImporter(ledger.log)
            report = await importer.run(SOURCE, SOURCE.find(str(tmp_path)))
            assert [(each.path, each.reason) for each in report.problems] == [(str(broken), "TypeError: a bug")]
            assert len(report.sessions) == 2 and FIRST in report.sessions
            assert not (await importer.run(SOURCE, SOURCE.find(str(tmp_path)))).problems
        write_lines(broken, Script(2).turn(1).turn(2).lines[4:], "a")
        assert (await importer.run(SOURCE, SOURCE.find(str(tmp_path)))).sessions == [f"claude-{session_id(2)}"]


async def test_a_source_that_fails_does_not_stop_the_others(db: str, tmp_path: Path) -> None:
    """TRN4: a folder that cannot be listed is reported once, and the other folders are followed."""
    Script().turn(1).write(tmp_path)
    reports: list[Report] = []

    class Failing(ClaudeCode):
        def find(self, path: str) -> Iterator[Transcript]:
            raise ValueError("a bug")

    async with callslip.open(db, SETTINGS) as ledger:
        targets = [(Failing(), "/none"), (SOURCE, str(tmp_path))]
        follower = Follower(TranscriptImporter(ledger.log), targets, lambda _, report: reports.append(report), print)
        for _ in range(2):
            await follower.scan()
        assert [problem.path for report in reports for problem in report.problems] == ["/none"]
        assert await texts_and_calls(ledger, FIRST) == TURN_1


async def test_what_has_no_time_gets_that_of_its_transcript(db: str, tmp_path: Path) -> None:
    """TRN1: the time before it, at the start the first one, and without any that of the file; not of the import."""
    script, untimed = Script().prompt("go"), {"type": "new", "uuid": "u"}
    path = write_lines(script.path(tmp_path), [untimed, script.lines[0]])
    other = write_lines(Script(2).path(tmp_path), [{**untimed, "sessionId": session_id(2)}])
    for each in (path, other):
        age(each, importing.ABANDONED_S - 600)
    async with callslip.open(db, SETTINGS) as ledger:
        await import_history(ledger, tmp_path)
        script.line("new", timestamp="")
        script.text("future", stop="").lines[-1]["timestamp"] = "2999-01-01T00:00:00.000Z"
        script.line("new", timestamp="")
        write_lines(path, script.lines[1:], "a")
        await import_history(ledger, path)
        age(path, importing.ABANDONED_S + 60)
        await import_history(ledger, path)
        events = await all_events(ledger, FIRST)
        assert isinstance(events[-1], ev.TurnEnded)
        first = 1_794_724_980_000
        assert {event.at for event in events if isinstance(event, ev.Raw | ev.TurnEnded)} == {first}
        assert [event.at for event in await all_events(ledger, f"claude-{session_id(2)}")] == [
            os.stat(other).st_mtime_ns // 10**6
        ]


async def test_a_rewritten_file_is_read_again(db: str, tmp_path: Path) -> None:
    """TRN5: after a shorter or other content, only messages with new ids are added, and none is removed."""
    script = Script().turn(1).turn(2)
    path = script.write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        await import_history(ledger, tmp_path)
        write_lines(path, script.lines[:3] + script.lines[4:])
        assert (await import_history(ledger, tmp_path)).events == 0
        write_lines(path, script.lines[:2])
        assert (await import_history(ledger, tmp_path)).events == 0
        path.unlink()
        assert (await import_history(ledger, tmp_path)).events == 0
        assert await texts_and_calls(ledger, FIRST) == TURN_1 + TURN_2


async def test_secrets_are_redacted(db: str, tmp_path: Path) -> None:
    """TRN6: in texts, arguments and outputs, and in what is stored of the decoder."""
    secret = "sk-ant-" + "Abc123" * 8
    script = Script().prompt(f"use {secret}").call("t1", command=f"login {secret}").result("t1", f"ok {secret}")
    script.call("t2", "Task", prompt=f"with {secret}").text(f"done {secret}")
    script.write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        await import_history(ledger, tmp_path)
        assert len(await read_entries(ledger, FIRST)) == 4
        places = [record.state for _, record in await ledger.log.store.transcripts()]
        stored = [ev.encode_event(event) for event in await all_events(ledger, FIRST)] + places
        assert places and not [data for data in stored if secret.encode() in data]


# Sub-agents and tokens


@pytest.mark.parametrize("has_details", [True, False])
async def test_calls_of_a_sub_agent_have_its_call_as_parent(db: str, tmp_path: Path, has_details: bool) -> None:
    """TRN13, TRN15: also if the file of the sub-agent is listed first; its tokens count once for each response."""
    main = Script().prompt("go").call("task", "Agent", prompt="look around")
    main.result("task", "found it", agentId="abc", status="completed").text("It is there.")
    sub = Script(agent="abc").prompt("look around").call("inner", command="ls").result("inner", "a b")
    sub.text("found it", stop="", output_tokens=1).lines[-1]["uuid"] = "first"
    sub.lines.append({**sub.lines[-1], "uuid": "second"})
    sub.lines[-1]["message"] = {**sub.lines[-1]["message"], "stop_reason": "end_turn", "content": []}
    sub_path = sub.write(tmp_path)
    if has_details:
        sub_path.with_suffix(".meta.json").write_text(json.dumps({"agentType": "Explore", "toolUseId": "task"}))
    main.write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        await import_history(ledger, sub_path.parent, tmp_path)
        entries = await read_entries(ledger, FIRST)
        task, inner = (
            next(call for call in entries if getattr(call, "tool_call_id", "") == name) for name in ("task", "inner")
        )
        own = [entry for entry in entries if getattr(entry, "parent", "")]
        assert {entry.parent for entry in own} == {task.call_id}
        assert [inner.status, *(entry.content for entry in own if isinstance(entry, Message))] == [
            *("completed", "look around", "found it")
        ]
        reports = [event for event in await all_events(ledger, FIRST) if isinstance(event, ev.UsageReported)]
        assert {(event.id, event.parent) for event in reports if event.parent} == {
            *(("msg_1abc_1", task.call_id), ("msg_1abc_2", task.call_id))
        }
        assert [event.incomplete for event in reports if event.id == "msg_1abc_2"] == [True, False]
        assert all(event.input_tokens == 23 for event in reports)


async def test_the_last_text_of_a_file_is_complete(db: str, tmp_path: Path) -> None:
    """TRN1: also if no turn ends after it, and again nothing is added; more of the message is another text."""
    script = Script().prompt("go").call("task", "Agent").text("Meanwhile.", stop="")
    sub = Script(agent="abc").prompt("look").text("found", stop="")
    path, sub_path = script.write(tmp_path), sub.write(tmp_path)
    sub_path.with_suffix(".meta.json").write_text(json.dumps({"toolUseId": "task"}))
    async with callslip.open(db, SETTINGS) as ledger:
        await import_history(ledger, tmp_path)
        texts = [entry for entry in await read_entries(ledger, FIRST) if isinstance(entry, Message)]
        assert [(entry.content, entry.streaming) for entry in texts] == [
            *(("go", False), ("Meanwhile.", False), ("look", False), ("found", False))
        ]
        shutil.copytree(path.parent, tmp_path / "copy")
        assert (await import_history(ledger, tmp_path / "copy")).events == 0
        assert await verify(ledger.log) == []


async def test_a_file_does_not_end_the_text_that_is_recorded_live(db: str, tmp_path: Path) -> None:
    """MRG4: the file may have the whole text before its last part arrives live."""
    async with callslip.open(db, SETTINGS) as ledger:
        text = ev.MessageDelta(text="The ans", message_id="msg_1_1")
        live = [ev.SessionInfo(foreign_id=session_id(1)), ev.TurnStarted(), text]
        await ledger.log.append("live", live, source="acp")
        Script().text("The answer.", stop="").write(tmp_path)
        await import_history(ledger, tmp_path)
        await ledger.log.append("live", [ev.MessageDelta(text="wer.", message_id="msg_1_1")], source="acp")
        assert await texts_and_calls(ledger, "live") == ["The answer."]


FULL = "Hello world, all is done."
HALF = ev.MessageDelta(text="Hello wor", message_id="msg_1_1", chunks="delta")
THOUGHT = ev.ThoughtDelta(text="hm", message_id="msg_1_1", chunks="delta")
HELD = ev.MessageDelta(text="Hello sk-Z9qR7w", message_id="msg_1_1", chunks="delta")


@pytest.mark.parametrize(
    ("live", "text", "shown"),
    [
        ([HALF], FULL, [FULL]),
        ([THOUGHT], FULL, [FULL]),
        ([THOUGHT, HALF], FULL, [FULL]),
        ([HALF, ev.TurnEnded(reason="eof")], FULL, [HALF.text, "ld, all is done."]),
        ([HELD], f"{HELD.text} is no key.", [f"{HELD.text} is no key."]),
        # A text that has ended live is complete, and one that differs is another version of it.
        ([HALF, ev.MessageEnded()], FULL, [HALF.text]),
        ([HALF, ev.TurnEnded()], FULL, [HALF.text]),
        ([HALF], "Hello", [HALF.text]),
        ([HALF], f"{HALF.text}\n", [HALF.text]),
        ([HALF], "Bye.", [HALF.text]),
    ],
    ids=["half", "thought", "both", "eof", "held", "ended", "turn-ended", "shorter", "space", "other"],
)
async def test_the_file_completes_a_message_whose_recorder_was_killed(
    db: str, tmp_path: Path, live: list[ev.Event], text: str, shown: list[str]
) -> None:
    """MRG4: the file has the end of the newest message, or the text after its thought; all of it is there once."""
    Script().prompt("q").text(text).write(tmp_path)
    async with callslip.open(db, structs.replace(SETTINGS, text_hold=3600)) as ledger:
        at = 1_794_724_980_000
        prompt = [ev.SessionInfo(foreign_id=session_id(1)), ev.TurnStarted(at=at), ev.MessageUser(text="q", at=at)]
        await ledger.log.append("live", [*prompt, *live], source="acp")
        await import_history(ledger, tmp_path)
        texts = [each for each in await texts_and_calls(ledger, "live") if each != "q"]
        assert texts == shown
        if len(shown) == 1 and shown != [HALF.text]:
            late = ev.MessageDelta(text="ld, all", message_id="msg_1_1", chunks="delta")
            await ledger.log.append("live", [late], source="acp")
            assert await texts_and_calls(ledger, "live") == ["q", *shown]
        await import_history(ledger, tmp_path)
        assert await verify(ledger.log) == []


async def test_a_file_does_not_reveal_a_secret_that_arrives_live(db: str, tmp_path: Path) -> None:
    """MRG4, RED1: the end of a live text may be the beginning of a secret, whose rest arrives after the import."""
    rest = "Xk2LmN4pTvB8sDfG6hJ3aQ5eYcU1iO0z end"
    Script().prompt("q").text(HELD.text + rest).write(tmp_path)
    async with callslip.open(db, structs.replace(SETTINGS, text_hold=3600)) as ledger:
        at = 1_794_724_980_000
        prompt = [ev.SessionInfo(foreign_id=session_id(1)), ev.TurnStarted(at=at), ev.MessageUser(text="q", at=at)]
        await ledger.log.append("live", [*prompt, HELD], source="acp")
        await import_history(ledger, tmp_path)
        await ledger.log.append("live", [structs.replace(HELD, text=rest), ev.MessageEnded()], source="acp")
        stored = b"".join([ev.encode_event(event) async for event in ledger.events("live")])
        assert b"LmN4pTvB" not in stored and b"redacted" in stored


async def test_a_sub_agent_that_is_followed_waits_for_its_call(db: str, tmp_path: Path) -> None:
    """TRN14: its file may be written before the line with the call."""
    sub_path = Script(agent="abc").prompt("look").text("found").write(tmp_path)
    sub_path.with_suffix(".meta.json").write_text(json.dumps({"toolUseId": "task"}))
    async with callslip.open(db, SETTINGS) as ledger:
        importer = TranscriptImporter(ledger.log, is_live=True)
        await importer.load()
        assert (await importer.run(SOURCE, SOURCE.find(str(tmp_path)))).events == 0
        Script().prompt("go").call("task", "Agent").write(tmp_path)
        await importer.run(SOURCE, SOURCE.find(str(tmp_path)))
        _, task, *own = await read_entries(ledger, FIRST)
        assert [(entry.content, entry.parent) for entry in own] == [("look", task.call_id), ("found", task.call_id)]


# Copies


@pytest.mark.parametrize("is_marked", [True, False])
async def test_a_fork_has_its_history_once(db: str, tmp_path: Path, is_marked: bool) -> None:
    """MRG1: it continues the other session, shows what was copied, and counts only its own tokens."""
    script = Script().turn(1)
    script.write(tmp_path)
    fork = Script(2)
    marks = {"forkedFrom": {"sessionId": script.session, "messageUuid": ""}} if is_marked else {}
    fork.lines = [{**line, "sessionId": fork.session, **marks} for line in script.lines]
    fork.turn(2).write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        await import_history(ledger, script.path(tmp_path))
        await import_history(ledger, tmp_path)
        name = f"claude-{fork.session}"
        assert await texts_and_calls(ledger, name) == [*TURN_1, "prompt 2", ("toolu_2_2", "completed"), "answer 2"]
        assert (await ledger.snapshot(name)).info.continues == script.session
        counted = [event.id for event in await all_events(ledger, name) if isinstance(event, ev.UsageReported)]
        assert counted == ["msg_2_1", "msg_2_2"]
        assert await texts_and_calls(ledger, FIRST) == TURN_1


async def test_sessions_with_the_same_call_id_are_no_forks(db: str, tmp_path: Path) -> None:
    """MRG1: some programs count their calls from 0 in each session."""
    for number in (1, 2):
        Script(number).prompt("go").call("call_0", command="ls").result("call_0").text("ok").write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        for name in (await import_history(ledger, tmp_path)).sessions:
            assert (await ledger.snapshot(name)).info.continues == ""
            assert sum(isinstance(event, ev.UsageReported) for event in await all_events(ledger, name)) == 2


async def test_a_session_does_not_continue_its_fork(db: str, tmp_path: Path) -> None:
    """MRG1: also if the fork is imported first; tokens that both have count once."""
    script, fork = Script().turn(1), Script(2)
    mark = {"forkedFrom": {"sessionId": script.session, "messageUuid": ""}}
    fork.lines = [{**line, "sessionId": fork.session, **mark} for line in script.lines]
    fork.write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        await import_history(ledger, tmp_path)
        script.write(tmp_path)
        await import_history(ledger, tmp_path)
        name = f"claude-{fork.session}"
        assert (await ledger.snapshot(name)).info.continues == script.session
        assert (await ledger.snapshot(FIRST)).info.continues == ""
        events = [*await all_events(ledger, name), *await all_events(ledger, FIRST)]
        counted = [event.id for event in events if isinstance(event, ev.UsageReported)]
        assert len(counted) == len(set(counted)) == 2


@pytest.mark.parametrize("is_copy", [False, True])
async def test_the_origin_of_an_unmarked_fork_may_be_read_later(db: str, tmp_path: Path, is_copy: bool) -> None:
    """MRG1: a file that has nothing of its own is the origin, unless it was written long after its last message."""
    script, fork = Script().turn(1), Script(2)
    fork.lines = [{**line, "sessionId": fork.session} for line in script.lines]
    fork.turn(2).write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        await import_history(ledger, tmp_path)
        path = script.write(tmp_path)
        if not is_copy:
            os.utime(path, (START_S + 5, START_S + 5))
        await import_history(ledger, tmp_path)
        continued = [(await ledger.snapshot(name)).info.continues for name in (FIRST, f"claude-{fork.session}")]
        assert continued == ([fork.session, ""] if is_copy else ["", script.session])
        events = [*await all_events(ledger, FIRST), *await all_events(ledger, f"claude-{fork.session}")]
        counted = [event.id for event in events if isinstance(event, ev.UsageReported)]
        assert len(counted) == len(set(counted))
        write_lines(path, script.turn(3).lines[4:], "a")
        await import_history(ledger, tmp_path)
        assert await verify(ledger.log) == []


async def test_a_compacted_and_rewound_session_keeps_what_happened(db: str, tmp_path: Path) -> None:
    """MRG2: both are notices; a copied line, such as a preserved message, is not added again."""
    script = Script().turn(1)
    script.line("system", subtype="compact_boundary", content="Conversation compacted")
    script.line("user", isCompactSummary=True, message={"role": "user", "content": "This session is being continued."})
    script.lines += script.lines[:4]
    script.lines.append({"type": "last-prompt", "rewound": True, "leafUuid": "1-0", "sessionId": script.session})
    script.turn(2).write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        await import_history(ledger, tmp_path)
        assert await texts_and_calls(ledger, FIRST) == TURN_1 + TURN_2
        infos = [event for event in await all_events(ledger, FIRST) if isinstance(event, ev.SessionInfo)]
        titles = [as_str(as_dict(info.notice).get("title")).partition(":")[0] for info in infos]
        assert [title for title in titles if title] == [
            "The conversation was compacted",
            "The conversation was rewound",
        ]


# Sessions that were recorded live


def live_lines() -> list[bytes]:
    """Return the ACP traffic of the session, with the times of its own file."""
    lines = (TESTS / "captures/claude-allow.jsonl").read_bytes().splitlines()
    live = lines[: next(number for number, line in enumerate(lines) if b'"mark"' in line)]
    return [line for line in live if line.strip()]


async def import_live(ledger: LocalLedger, session: str, lines: Sequence[bytes]) -> None:
    """Record traffic as `callslip wrap` does, which notes the agent's id of the session."""
    await ledger.log.append(session, [ev.SessionInfo(foreign_id=PARALLEL)])
    await import_lines(ledger.log, session, "acp", lines, started=1_794_725_161_000)


LIVE = [
    "Use TOOL please",
    "Let me look. ",
    ("toolu_ea4cd311d51242dd", "completed"),
    ("toolu_a90c9a9a31d9461d", "completed"),
    "All done with tools.",
]


@pytest.mark.parametrize("order", ["live first", "file first"])
async def test_a_live_recording_and_its_file_are_one_session(db: str, tmp_path: Path, order: str) -> None:
    """MRG3: in either order each message and each call is there once."""
    write_lines(tmp_path / f"{PARALLEL}.jsonl", lines_of("parallel"))
    async with callslip.open(db, SETTINGS) as ledger:
        name = f"claude-{PARALLEL}"
        if order == "live first":
            name = "claude-acp-1"
            await import_live(ledger, name, live_lines())
        await import_history(ledger, tmp_path)
        if order == "file first":
            lines = (TESTS / "captures/claude-allow.jsonl").read_bytes().splitlines()
            replay = lines[next(number for number, line in enumerate(lines) if b'"mark"' in line) + 1 :]
            await import_live(ledger, name, replay)
        assert await texts_and_calls(ledger, name) == LIVE
        assert [row.name for row in (await ledger.sessions(limit=9)).items] == [name]
        assert (await ledger.snapshot(name)).info.turn == ""
        assert await verify(ledger.log) == []


@pytest.mark.parametrize("first", ["live", "file"])
async def test_two_recorders_at_once_add_nothing_twice(db: str, tmp_path: Path, first: str) -> None:
    """MRG4: the file is followed while the agent is recorded; whichever comes first with a step, it is there once."""
    path = tmp_path / f"{PARALLEL}.jsonl"
    lines, live = lines_of("parallel"), live_lines()
    # Steps of both sides: the prompt, the text with the calls, the results, the answer.
    live_ends = [5, 23, 29, len(live)]
    file_ends = [3, 8, 10, len(lines)]
    async with callslip.open(db, SETTINGS) as ledger:
        name = "claude-acp-1"
        await ledger.log.append(name, [ev.SessionInfo(foreign_id=PARALLEL)])
        conversations = Conversations("acp", lambda _: name, started=1_794_725_161_000)
        done = 0
        for live_end, file_end in zip(live_ends, file_ends, strict=True):
            for side in ("live", "file") if first == "live" else ("file", "live"):
                if side == "file":
                    write_lines(path, lines[:file_end])
                    await import_history(ledger, tmp_path)
                    continue
                for line in live[done:live_end]:
                    for _, _, drafts in conversations.read(json.loads(line)):
                        await ledger.log.append(name, drafts, source="acp")
                done = live_end
        assert sorted(map(str, await texts_and_calls(ledger, name))) == sorted(map(str, LIVE))
        assert not [event for event in await all_events(ledger, name) if event.verdict == "late"]
        assert await verify(ledger.log) == []


async def test_a_failure_that_only_the_file_knows_reaches_the_call(db: str, tmp_path: Path) -> None:
    """MRG5: the live recording says completed; the call keeps its state, and has the report."""
    Script().prompt("go").call("t1", command="false").result("t1", "Exit code 3\nbad", is_error=True).write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        alias = (ev.Alias("acp", "t1"),)
        live = [
            ev.SessionInfo(foreign_id=session_id(1)),
            ev.CallStarted(aliases=alias),
            ev.CallCompleted(aliases=alias),
        ]
        await ledger.log.append("live", live, source="acp")
        await import_history(ledger, tmp_path)
        (call,) = [entry for entry in await read_entries(ledger, "live") if isinstance(entry, ToolCall)]
        assert call.status == "completed" and call.report is not None
        assert (call.report.text, call.report.exit_status) == ("Exit code 3\nbad", 3)


async def test_a_call_id_that_returns_in_a_later_turn_is_a_new_call(db: str, tmp_path: Path) -> None:
    """C2: some providers number the calls of each turn from 0. A copied line is still the earlier call."""
    script = Script()
    for turn in ("one", "two"):
        script.prompt(turn).call("call_0", command=turn).result("call_0", f"output {turn}").text(f"answer {turn}")
    script.prompt("three").lines.append({**script.lines[1], "uuid": "copy"})
    script.write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        await import_history(ledger, tmp_path)
        calls = [entry for entry in await read_entries(ledger, FIRST) if isinstance(entry, ToolCall)]
        assert [(call.status, call.output) for call in calls] == [
            ("completed", "output one"),
            ("completed", "output two"),
        ]
        assert await verify(ledger.log) == []


# Calls without a result


async def test_a_call_ends_when_its_file_is_abandoned(db: str, tmp_path: Path) -> None:
    """TRN7: while the agent may still work the call is open, also after the importing process has ended."""
    path = Script().prompt("go").call("t1", command="sleep 9").write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        await import_history(ledger, tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        assert await texts_and_calls(ledger, FIRST) == ["go", ("t1", "running")]
        age(path, importing.ABANDONED_S + 60)
        await import_history(ledger, tmp_path)
        assert await texts_and_calls(ledger, FIRST) == ["go", ("t1", "lost")]
        assert (await ledger.snapshot(FIRST)).info.turn == ""
        assert (await import_history(ledger, tmp_path)).transcripts == 0


async def test_the_result_of_a_call_that_was_given_up_is_reported(db: str, tmp_path: Path) -> None:
    """TRN17: a person may answer an agent after a night; then the call has what its file says."""
    script = Script().prompt("go").call("t1", command="sleep 9").call("t2", command="make")
    path = script.write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        age(path, importing.ABANDONED_S + 60)
        await import_history(ledger, tmp_path)
        script.result("t1", "12 passed").result("t2", "Exit code 3\nbad", is_error=True).text("All done.").write(
            tmp_path
        )
        await import_history(ledger, tmp_path)
        calls = [entry for entry in await read_entries(ledger, FIRST) if isinstance(entry, ToolCall)]
        assert [(call.status, call.report and call.report.text) for call in calls] == [
            ("lost", "The call completed after it was lost.\n12 passed"),
            ("lost", "The call failed with exit status 3 after it was lost.\nExit code 3\nbad"),
        ]
        assert (await texts_and_calls(ledger, FIRST))[-1] == "All done."
        assert await verify(ledger.log) == []
        path.unlink()
        script.write(tmp_path)
        assert (await import_history(ledger, tmp_path)).events == 0


# Deleted sessions


async def test_a_deleted_session_stays_deleted(db: str, tmp_path: Path) -> None:
    """MRG6: also if its file grows, and in a process that had read it; on request it is imported again."""
    script = Script().turn(1)
    path = script.write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        importer = TranscriptImporter(ledger.log)
        await importer.load()
        await importer.run(SOURCE, SOURCE.find(str(tmp_path)))
        await ledger.delete(FIRST)
        write_lines(path, script.turn(2).lines[4:], "a")
        report = await importer.run(SOURCE, SOURCE.find(str(tmp_path)))
        assert (report.events, report.deleted) == (0, 1)
        assert (await import_history(ledger, tmp_path)).deleted == 1
        assert not (await ledger.sessions(limit=9)).items
        await import_history(ledger, tmp_path, restores=True)
        assert await texts_and_calls(ledger, FIRST) == TURN_1 + TURN_2
        assert (await import_history(ledger, tmp_path)).deleted == 0


async def test_another_session_of_a_deleted_id_is_still_imported(db: str, tmp_path: Path) -> None:
    """MRG6: of two sessions with the id of an agent one is deleted; the file is imported until both are."""
    script = Script().turn(1)
    path = script.write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        for name in ("first", "second", "third"):
            await ledger.log.append(name, [ev.SessionInfo(foreign_id=session_id(1))], source="acp")
        await ledger.delete("second")
        await import_history(ledger, tmp_path)
        names = SessionNames(["claude"])
        assert await names.for_agent_id(ledger.log, session_id(1), is_new=False) == "first"
        assert await texts_and_calls(ledger, "first") == TURN_1
        assert await texts_and_calls(ledger, "third") == []
        await ledger.delete("first")
        write_lines(path, script.turn(2).lines[4:], "a")
        await import_history(ledger, tmp_path)
        assert await texts_and_calls(ledger, "third") == TURN_1 + TURN_2
        await ledger.delete("third")
        assert (await import_history(ledger, tmp_path)).deleted == 1


async def test_a_deletion_is_respected_while_others_are_followed(db: str, tmp_path: Path) -> None:
    """MRG6: a session is not created that was deleted after the import had begun; the deletion is looked up again."""
    async with callslip.open(db, SETTINGS) as ledger:
        await ledger.log.append("wrapped", [ev.SessionInfo(foreign_id=session_id(1))], source="acp")
        importer = TranscriptImporter(ledger.log)
        await importer.load()
        await ledger.delete("wrapped")
        Script().turn(1).write(tmp_path)
        report = await importer.run(SOURCE, SOURCE.find(str(tmp_path)))
        assert (report.events, report.deleted) == (0, 1)
        assert not (await ledger.sessions(limit=9)).items


async def test_a_deleted_session_without_an_id_stays_deleted(db: str, tmp_path: Path) -> None:
    """MRG6: it is known by its file."""
    lines = [{**line, "sessionId": ""} for line in Script().turn(1).lines]
    path = write_lines(tmp_path / "notes.jsonl", lines)
    async with callslip.open(db, SETTINGS) as ledger:
        assert (await import_history(ledger, path)).sessions == ["claude-notes"]
        await ledger.delete("claude-notes")
        assert (await import_history(ledger, path)).deleted == 1
        write_lines(path, [{**line, "sessionId": ""} for line in Script(2).turn(2).lines], "a")
        assert (await import_history(ledger, path)).deleted == 1
        assert not (await ledger.sessions(limit=9)).items
        await import_history(ledger, path, restores=True)
        assert await texts_and_calls(ledger, "claude-notes")
        assert not (await import_history(ledger, path)).deleted


async def test_retention_is_respected(db: str, tmp_path: Path) -> None:
    """TRN8: what retention removed is not imported again, and what was read is still known."""
    script = Script().turn(1)
    path = script.write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        await import_history(ledger, tmp_path)
        await ledger.prune(0)
        assert (await import_history(ledger, tmp_path)).events == 0
        write_lines(path, script.turn(2).lines[4:], "a")
        await import_history(ledger, tmp_path)
        assert (await texts_and_calls(ledger, FIRST))[-3:] == TURN_2


@pytest.mark.parametrize("change", ["rewritten", "moved"])
async def test_a_rewritten_file_does_not_undo_retention(db: str, tmp_path: Path, change: str) -> None:
    """TRN8: events that retention removed, with their keys, do not return when their lines are read again."""
    script = Script().turn(1)
    path = script.write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        await import_history(ledger, tmp_path)
        assert await ledger.prune(0)
        write_lines(path, script.turn(2).lines[4:], "a")
        await import_history(ledger, tmp_path)
        kept = await texts_and_calls(ledger, FIRST)
        assert kept[-3:] == TURN_2
        if change == "moved":
            path = Path(shutil.move(path, tmp_path / path.name))
        write_lines(path, [script.lines[0], *script.turn(3).lines], "w")
        report = await import_history(ledger, tmp_path)
        assert await texts_and_calls(ledger, FIRST) == [*kept, "prompt 3", ("toolu_1_3", "completed"), "answer 3"]
        assert report.events and await verify(ledger.log) == []
        await ledger.prune(0)
        write_lines(path, [script.lines[1], *script.lines], "w")
        assert (await import_history(ledger, tmp_path)).events == 0


async def test_two_processes_import_the_same_history(db: str, tmp_path: Path) -> None:
    """TRN10: each continues where the other one ended, and neither adds anything twice."""
    script = Script().turn(1)
    path = script.write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        one, other = TranscriptImporter(ledger.log), TranscriptImporter(ledger.log)
        await one.load()
        await other.load()
        await one.run(SOURCE, SOURCE.find(str(tmp_path)))
        assert (await other.run(SOURCE, SOURCE.find(str(tmp_path)))).events == 0
        write_lines(path, script.turn(2).lines[4:], "a")
        assert (await other.run(SOURCE, SOURCE.find(str(tmp_path)))).events > 0
        assert (await one.run(SOURCE, SOURCE.find(str(tmp_path)))).events == 0
        assert await texts_and_calls(ledger, FIRST) == TURN_1 + TURN_2
        assert await verify(ledger.log) == []


async def test_an_error_while_writing_loses_nothing(db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRN10: the same importer reads the lines again that were not written."""
    Script().turn(1).write(tmp_path)
    async with callslip.open(db, SETTINGS) as ledger:
        importer = TranscriptImporter(ledger.log)
        await importer.load()
        with monkeypatch.context() as patch:
            patch.setattr(ledger.log, "transact_drafts", fail)
            with pytest.raises(StoreError):
                await importer.run(SOURCE, SOURCE.find(str(tmp_path)))
        await importer.run(SOURCE, SOURCE.find(str(tmp_path)))
        assert await texts_and_calls(ledger, FIRST) == TURN_1
        assert (await ledger.snapshot(FIRST)).info.agent == "claude-code"


def fail(*_: Any, **__: Any) -> None:
    raise StoreError("disk full")


async def test_a_moved_folder_adds_nothing(db: str, tmp_path: Path) -> None:
    """TRN9: the same files under another path, as in a copy of a home folder, have the same messages."""
    Script().turn(1).write(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    async with callslip.open(db, SETTINGS) as ledger:
        await import_history(ledger, tmp_path / "one")
        assert (await import_history(ledger, tmp_path / "two")).events == 0
