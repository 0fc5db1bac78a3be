"""Find and read the histories of Codex, Gemini CLI and opencode, as these keep them in a home folder."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import callslip
from callslip.api.ledger import LocalLedger
from callslip.formats import registry
from callslip.ingest.importer import import_lines
from callslip.model import events as ev
from callslip.model.entries import Message, ToolCall
from callslip.transcripts import opencode
from callslip.transcripts.agents import find_source
from callslip.transcripts.importer import Report, TranscriptImporter
from callslip.transcripts.source import Piece, Source, Transcript
from tests.support import format_cases
from tests.support.invariants import find_faults
from tests.support.strategies import MemoryLedger

SESSION = "f486816d-e2f1-4f72-8e24-a5531e2a8729"
NOW_MS = int(time.time() * 1000)
TABLES = """
CREATE TABLE session (id text PRIMARY KEY, parent_id text, title text NOT NULL, directory text NOT NULL,
    version text NOT NULL, time_created integer NOT NULL, time_updated integer NOT NULL);
CREATE TABLE message (id text PRIMARY KEY, session_id text NOT NULL, time_created integer NOT NULL,
    time_updated integer NOT NULL, data text NOT NULL);
CREATE TABLE part (id text PRIMARY KEY, message_id text NOT NULL, session_id text NOT NULL,
    time_created integer NOT NULL, time_updated integer NOT NULL, data text NOT NULL);
"""


def write_lines(path: Path, *messages: Any) -> Path:
    """Write a file of JSON lines, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(message) + "\n" for message in messages), "utf-8")
    return path


def copy_case(case: str, path: Path) -> Path:
    """Copy a case of tests/inputs to a place in a home folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(format_cases.input_path(case).read_bytes())
    return path


def found(source: Source, folder: Path) -> list[Transcript]:
    return list(source.find(str(folder)))


def read_all(source: Source, transcript: Transcript, position: bytes = b"") -> list[Piece]:
    return list(source.read(transcript, position))


def messages_of(pieces: list[Piece]) -> list[Any]:
    return [message for piece in pieces for message in piece.messages]


# Codex


def test_codex_keeps_its_sessions_in_its_own_folder() -> None:
    """CDX6: in CODEX_HOME, else in the home folder; archived sessions are next to the others."""
    codex = find_source("codex")
    assert codex.folders({}, "/home/dev") == ["/home/dev/.codex/sessions", "/home/dev/.codex/archived_sessions"]
    assert codex.folders({"CODEX_HOME": "/c"}, "/home/dev")[0] == "/c/sessions"


def test_a_rollout_of_a_sub_agent_belongs_to_the_session_that_started_it(tmp_path: Path) -> None:
    """CDX4 CDX6: the rollouts are found in order, and each names its session."""
    codex, day = find_source("codex"), tmp_path / "2026" / "11" / "19"
    copy_case("codex/agents", day / "rollout-2026-11-19T17-56-44-01a1f4f4-279c.jsonl")
    copy_case("codex/agent", day / "rollout-2026-11-19T17-56-45-01a1f4f4-28a7-7ae2-9d95-413277114caf.jsonl")
    (day / "rollout-empty.jsonl").touch()
    (day / "notes.txt").write_text("no rollout")
    line = json.loads(format_cases.lines_of("codex/agent")[0])
    main, agent, empty = found(codex, tmp_path)
    assert [main.is_secondary, agent.is_secondary, empty.is_secondary] == [False, True, False]
    session = "01a1f4f4-279c-7872-88c2-bd197744e080"
    assert [codex.session_of(each, messages_of(read_all(codex, each))) for each in (main, agent)] == [session] * 2
    assert agent.session == session and codex.session_of(structs.replace(agent, session=""), [line]) == session


def test_a_compressed_rollout_is_reported_once(tmp_path: Path) -> None:
    """CDX6: unless it is also there as it was."""
    codex = find_source("codex")
    write_lines(tmp_path / "rollout-a.jsonl", {})
    (tmp_path / "rollout-a.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    (tmp_path / "rollout-b.jsonl.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    transcripts = found(codex, tmp_path)
    assert [Path(transcript.path).name for transcript in transcripts] == ["rollout-a.jsonl", "rollout-b.jsonl.zst"]
    (piece,) = read_all(codex, transcripts[1])
    assert piece.problem is not None and "zstd" in piece.problem.reason and piece.skipped == 1
    assert read_all(codex, transcripts[1], piece.position) == []


# Gemini CLI


def test_gemini_chats_are_found_in_their_projects(tmp_path: Path) -> None:
    """GEM6: no other file of JSON is, and a sub-agent's chat is known as one."""
    gemini = find_source("gemini")
    assert gemini.folders({}, "/home/dev") == ["/home/dev/.gemini/tmp"]
    assert gemini.folders({"GEMINI_CLI_HOME": "/g"}, "/home/dev") == ["/g/.gemini/tmp"]
    project = tmp_path / "project"
    copy_case("gemini/agent", project / "chats" / SESSION / "6af32275-7c3c-445c-9330-6ee5e1629d3b.jsonl")
    chat = copy_case("gemini/agents", project / "chats" / "session-2026-11-19T18-03-f486816d.jsonl")
    write_lines(project / "logs" / "session-f486816d.jsonl", {"log": 1})
    write_lines(project / "chats" / "checkpoint.json", {})
    (project / ".project_root").write_text("/home/dev/project\n")
    first, second = sorted(found(gemini, tmp_path), key=lambda transcript: transcript.is_secondary)
    assert first.path == str(chat) and second.session == SESSION
    assert gemini.opening(first) == ({"project": "/home/dev/project"},) and gemini.opening(second) == ()
    assert gemini.session_of(first, messages_of(read_all(gemini, first))) == SESSION
    decoder = registry.decoder("gemini")
    messages = [*gemini.opening(first), *messages_of(read_all(gemini, first))]
    info = next(draft.event for message in messages for draft in decoder.feed(message))
    assert isinstance(info, ev.SessionInfo) and (info.project, info.foreign_id) == ("/home/dev/project", SESSION)


def test_a_chat_in_one_object_is_read_again_after_each_change(tmp_path: Path) -> None:
    """GEM6: earlier versions write the whole file again; the same decoder takes only what is new."""
    gemini, (chat, longer) = find_source("gemini"), map(json.loads, format_cases.lines_of("gemini/whole_chat"))
    path = write_lines(tmp_path / "chats" / "session-old.json", chat)
    decoder, ledger = registry.decoder("gemini"), MemoryLedger()
    (transcript,) = found(gemini, tmp_path)
    (piece,) = read_all(gemini, transcript)
    ledger.write(*(draft for message in piece.messages for draft in decoder.feed(message)))
    assert read_all(gemini, transcript, piece.position) == []
    write_lines(path, longer)
    changed = gemini.refresh(transcript)
    assert changed is not None and changed.mark != transcript.mark
    new = [
        draft for message in messages_of(read_all(gemini, changed, piece.position)) for draft in decoder.feed(message)
    ]
    assert [draft.event.text for draft in new if isinstance(draft.event, ev.MessageDelta)] == ["Bye."]
    path.write_text("{")
    broken = gemini.refresh(transcript)
    assert broken is not None and (problem := read_all(gemini, broken, b"x")[0].problem) is not None
    assert "invalid JSON" in problem.reason


# opencode


class Store:
    """A database of opencode that is open for writing, as a running opencode has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.executescript(TABLES)

    def add_session(self, session: str, parent: str | None = None, updated: int = NOW_MS) -> None:
        row = (session, parent, "Title", "/home/dev/project", "1.18.33", updated, updated)
        self.connection.execute("INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def put_message(self, session: str, message: str, updated: int, **data: Any) -> None:
        row = (message, session, updated, updated, json.dumps(data))
        self.connection.execute("INSERT OR REPLACE INTO message VALUES (?, ?, ?, ?, ?)", row)

    def put_part(self, session: str, message: str, part: str, updated: int, data: Any) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        row = (part, message, session, updated, updated, text)
        self.connection.execute("INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?, ?, ?)", row)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "opencode.db")
    store.add_session("ses_1")
    store.put_message("ses_1", "msg_1", NOW_MS, role="user", time={"created": NOW_MS})
    store.put_part("ses_1", "msg_1", "prt_1", NOW_MS, {"type": "text", "text": "Go"})
    yield store
    store.connection.close()


def tool_part(status: str, **state: Any) -> dict[str, Any]:
    state = {"status": status, "input": {"command": "make"}, "time": {"start": NOW_MS + 2}, **state}
    return {"type": "tool", "tool": "bash", "callID": "call_1", "state": state}


def test_the_database_of_opencode_is_found(tmp_path: Path, store: Store) -> None:
    """OPC6: with each session in it, the sub-agents' last; another file is no database."""
    source = find_source("opencode")
    assert source.folders({}, "/home/dev") == ["/home/dev/.local/share/opencode/opencode.db"]
    assert source.folders({"XDG_DATA_HOME": "/x"}, "/home/dev") == ["/x/opencode/opencode.db"]
    assert source.folders({"OPENCODE_DB": "/o.db"}, "/home/dev") == ["/o.db"]
    store.add_session("ses_0", "ses_1", NOW_MS - 5)
    store.add_session("ses_00", "ses_0", NOW_MS - 4)
    store.add_session("ses_2")
    transcripts = found(source, tmp_path)
    assert [(each.part, each.session) for each in transcripts] == [
        ("ses_1", "ses_1"),
        ("ses_2", "ses_2"),
        ("ses_0", "ses_1"),
        ("ses_00", "ses_1"),
    ]
    assert [source.refresh(each) for each in transcripts] == transcripts
    other = tmp_path / "other.db"
    other.write_text("no database, but a text of more than a few bytes")
    assert found(source, other) == [] and found(source, tmp_path / "none.db") == []


def test_a_running_opencode_is_read_while_it_writes(store: Store) -> None:
    """OPC6: only what changed since is read, also in rows that were read before, and nothing is written."""
    source = find_source("opencode")
    (transcript,) = found(source, store.path)
    pieces = read_all(source, transcript)
    assert [next(iter(message)) for message in messages_of(pieces)] == ["session", "message", "part"]
    store.put_message("ses_1", "msg_2", NOW_MS + 1, role="assistant", time={"created": NOW_MS + 1}, parentID="msg_1")
    store.put_part("ses_1", "msg_2", "prt_2", NOW_MS + 2, tool_part("running"))
    changed = source.refresh(transcript)
    assert changed is not None and changed.mark != transcript.mark
    pieces += read_all(source, changed, pieces[-1].position)
    end = {"output": "ok", "title": "make", "metadata": {"exit": 0}, "time": {"start": NOW_MS + 2, "end": NOW_MS + 9}}
    store.put_part("ses_1", "msg_2", "prt_2", NOW_MS + 9, tool_part("completed", **end))
    last = read_all(source, changed, pieces[-1].position)
    assert [message["part"]["state"]["status"] for message in messages_of(last) if "part" in message] == ["completed"]
    decoder, ledger = registry.decoder("opencode"), MemoryLedger()
    for message in messages_of(pieces + last):
        ledger.write(*decoder.feed(message))
    assert [event.verdict for event in ledger.log] == ["applied"] * len(ledger.log)
    assert [type(event) for event in ledger.log][-2:] == [ev.CallStarted, ev.CallCompleted]
    for message in messages_of(read_all(source, changed, last[-1].position)):  # Rows of the same millisecond.
        assert ledger.write(*decoder.feed(message)) == []
    with closing(sqlite3.connect(store.path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_reading_leaves_no_files_behind(tmp_path: Path) -> None:
    """OPC6: a database that no program has open is read without a log of its own."""
    store = Store(tmp_path / "opencode.db")
    store.add_session("ses_1")
    store.connection.close()
    source = find_source("opencode")
    (transcript,) = found(source, tmp_path)
    assert len(messages_of(read_all(source, transcript))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["opencode.db"]


def test_a_message_of_the_agent_follows_its_parts(store: Store) -> None:
    """OPC6: it tells their end. Rows that cannot be read are skipped and reported, and others are read."""
    store.put_message("ses_1", "msg_2", NOW_MS, role="assistant", time={"created": NOW_MS, "completed": NOW_MS + 1})
    for number in range(3):
        store.put_part("ses_1", "msg_2", f"prt_2{number}", NOW_MS, {"type": "text", "text": str(number)})
    store.put_part("ses_1", "msg_2", "prt_3", NOW_MS, "{no json")
    store.connection.execute("INSERT INTO message VALUES ('msg_3', 'ses_1', 1, 1, '{no json')")
    source = find_source("opencode")
    (transcript,) = found(source, store.path)
    (piece,) = read_all(source, transcript)
    rows = [message.get("part", message.get("message", {})).get("id") for message in piece.messages]
    assert rows == [None, "msg_1", "prt_1", "prt_20", "prt_21", "prt_22", "msg_2"]
    assert piece.skipped == 2 and piece.problem is not None and piece.problem.reason.startswith("prt_3: ")


def test_a_large_session_is_read_in_pieces(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPC6: each continues after the one before, also in another process; what changes meanwhile is read later."""
    monkeypatch.setattr(opencode, "PIECE_ROWS", 3)
    for number in range(10):
        store.put_part("ses_1", "msg_1", f"prt_5{number}", NOW_MS + number, {"type": "text", "text": str(number)})
    source = find_source("opencode")
    (transcript,) = found(source, store.path)
    position, names = b"", list[str]()
    while True:
        piece = next(source.read(transcript, position))
        if position == piece.position:
            break
        if not position:
            store.put_part("ses_1", "msg_1", "prt_0", NOW_MS + 50, {"type": "text", "text": "late"})
        position = piece.position
        names += [message["part"]["id"] for message in piece.messages if "part" in message]
    assert names[:11] == ["prt_1", *(f"prt_5{number}" for number in range(10))]
    assert "prt_0" in names[11:]


def test_an_export_of_opencode_is_a_file_of_its_own(tmp_path: Path) -> None:
    """OPC1 OPC6: the file is one object, on as many lines as opencode writes."""
    (export,) = map(json.loads, format_cases.lines_of("opencode/export"))
    path = tmp_path / "session.json"
    path.write_text(json.dumps(export, indent=2))
    source = find_source("opencode")
    (transcript,) = found(source, path)
    (piece,) = read_all(source, transcript)
    assert piece.messages == [export] and source.refresh(transcript) == transcript
    assert source.session_of(transcript, piece.messages) == export["info"]["id"]
    assert read_all(source, transcript, piece.position) == []
    rows = copy_case("opencode/agents", tmp_path / "rows.jsonl")
    (transcript,) = found(source, rows)
    assert source.session_of(transcript, messages_of(read_all(source, transcript))) == export["info"]["id"]
    child = {**export, "info": {"id": "ses_x", "parentID": "ses_y"}}
    assert source.session_of(transcript, [child]) == "ses_y"


def test_a_session_that_was_deleted_is_gone(store: Store) -> None:
    """OPC6: reading it gives nothing."""
    source = find_source("opencode")
    (transcript,) = found(source, store.path)
    store.connection.execute("DELETE FROM session")
    assert source.refresh(transcript) is None and read_all(source, transcript) == []


def test_rows_with_an_older_time_are_read(store: Store) -> None:
    """OPC6: a clock that is set back hides nothing: rows that were added or changed are read."""
    source = find_source("opencode")
    (transcript,) = found(source, store.path)
    position = read_all(source, transcript)[-1].position
    changes = (("prt_0", 2000), ("prt_2", 3_600_000), ("prt_2", 1_800_000), ("prt_2", 2_000_000))
    for part, ago in changes:
        store.put_part("ses_1", "msg_1", part, NOW_MS - ago, {"type": "text", "text": part})
        pieces = read_all(source, transcript, position)
        texts = [message["part"]["text"] for message in messages_of(pieces) if "part" in message]
        assert part in texts
        position = pieces[-1].position
    assert "prt_2" not in str(messages_of(read_all(source, transcript, position)))


def test_rows_that_cannot_be_read_are_skipped(tmp_path: Path) -> None:
    """OPC6: a row without a time is read, and one whose data is not JSON is counted, in a folder of any name."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff/opencode.db"))
    path.parent.mkdir()
    with closing(sqlite3.connect(os.fsencode(path))) as connection:
        columns = (
            "session(id, parent_id, title, directory, version, time_created, time_updated)",
            "message(id, session_id, time_updated, data)",
            "part(id, message_id, session_id, time_updated, data)",
        )
        connection.executescript(";".join(f"CREATE TABLE {table}" for table in columns))
        connection.execute("INSERT INTO session VALUES ('s', NULL, CAST(X'ff' AS TEXT), 7, NULL, NULL, NULL)")
        user = json.dumps({"role": "user", "time": {"created": NOW_MS}})
        for identity, updated, data in (("m1", None, user), ("m2", 3, 12), ("m3", "soon", b"\xff"), ("m4", 4, user)):
            connection.execute("INSERT INTO message VALUES (?, 's', ?, ?)", (identity, updated, data))
        connection.execute("INSERT INTO part VALUES ('p1', 'm1', 's', NULL, ?)", ('{"type": "text", "text": "Go"}',))
        connection.commit()
    source = find_source("opencode")
    (transcript,) = found(source, path)
    pieces = read_all(source, transcript)
    assert [next(iter(message)) for message in messages_of(pieces)] == ["session", "message", "part", "message"]
    assert sum(piece.skipped for piece in pieces) == 2 and pieces[0].problem is not None
    assert transcript.name.isprintable() and transcript.name.encode()


# Imported


async def import_history(ledger: LocalLedger, name: str, path: Path) -> Report:
    """Import what is new, as a new process would."""
    source, importer = find_source(name), TranscriptImporter(ledger.log)
    await importer.load()
    return await importer.run(source, source.find(str(path)))


def fill_home(tmp_path: Path) -> dict[str, Path]:
    """Write a session with a sub-agent as each agent keeps it; return the places of the histories."""
    day, chats = tmp_path / "codex" / "2026" / "11" / "19", tmp_path / "gemini" / "project" / "chats"
    # The rollout of the session is the last to change, as it is when the session ends.
    copy_case("codex/agent", day / "rollout-2026-11-19T17-56-45-01a1f4f4-28a7-7ae2-9d95-413277114caf.jsonl")
    copy_case("codex/agents", day / "rollout-2026-11-19T17-56-44-01a1f4f4-279c-7872-88c2-bd197744e080.jsonl")
    copy_case("gemini/agent", chats / SESSION / "6af32275-7c3c-445c-9330-6ee5e1629d3b.jsonl")
    copy_case("gemini/agents", chats / "session-2026-11-19T18-03-f486816d.jsonl")
    store = Store(tmp_path / "opencode.db")
    for case in ("opencode/agents", "opencode/agent"):
        for row in map(json.loads, format_cases.lines_of(case)):
            if "session" in row:
                session = row["session"]
                store.add_session(session["id"], session["parentID"], session["time"]["updated"])
            elif "message" in row:
                store.put_message(row["message"]["sessionID"], row["message"]["id"], NOW_MS, **row["message"])
            else:
                part = row["part"]
                store.put_part(part["sessionID"], part["messageID"], part["id"], NOW_MS, part)
    store.connection.close()
    return {"codex": tmp_path / "codex", "gemini": tmp_path / "gemini", "opencode": tmp_path / "opencode.db"}


@pytest.mark.anyio
async def test_a_session_and_its_sub_agent_are_imported_once(tmp_path: Path) -> None:
    """CDX4 GEM4 OPC4: in one session, each call once and with its parent; again, nothing is added."""
    async with await callslip.open("sqlite:///:memory:") as ledger:
        for name, path in fill_home(tmp_path).items():
            report = await import_history(ledger, name, path)
            assert len(report.sessions) == 1 and not report.problems, name
            (session,) = report.sessions
            snapshot = await ledger.snapshot(session)
            calls = [entry for entry in snapshot.entries if isinstance(entry, ToolCall)]
            parents = {call.parent for call in calls if call.parent}
            assert len(parents) == 1 and parents < {call.call_id for call in calls}, name
            assert len({call.tool_call_id for call in calls}) == len(calls)
            assert (snapshot.info.agent, snapshot.info.turn) == (name, "")
            assert (await import_history(ledger, name, path)).events == 0
        assert not await find_faults(ledger)


def gemini_turn(number: int) -> list[dict[str, Any]]:
    at = f"2026-11-15T06:{number:02}:00.000Z"
    call: dict[str, Any] = {
        "id": f"c{number}",
        "name": "glob",
        "args": {},
        "status": "success",
        "result": [],
        "timestamp": at,
    }
    answer = {"id": f"a{number}", "timestamp": at, "type": "gemini", "content": f"answer {number}", "model": "m"}
    return [
        {"id": f"u{number}", "timestamp": at, "type": "user", "content": f"prompt {number}"},
        {"id": f"t{number}", "timestamp": at, "type": "gemini", "content": "", "model": "m", "toolCalls": [call]},
        {**answer, "tokens": {"input": 2, "output": 1}},
    ]


async def read_session(ledger: LocalLedger, session: str) -> tuple[list[str], int, int]:
    """Return the entries of a session, and how many turns and notices it has."""
    entries = (await ledger.snapshot(session)).entries
    shown = [entry.content if isinstance(entry, Message) else type(entry).__name__ for entry in entries]
    events = [event async for event in ledger.log.events(session)]
    ends = [event.turn for event in events if isinstance(event, ev.TurnEnded)]
    assert len(ends) == len(set(ends)) == sum(isinstance(event, ev.TurnStarted) for event in events)
    return shown, len(ends), shown.count("Notice")


@pytest.mark.anyio
@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_long_chat_that_is_stored_again_adds_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    """GEM2: also if it is longer than what the decoder remembers of it. A compression is still shown once."""
    monkeypatch.setattr("callslip.formats.transcripts.MAX_REMEMBERED", 10)
    head = {"sessionId": SESSION, "projectHash": "h", "startTime": "2026-11-15T06:00:00.000Z", "kind": "main"}
    path = tmp_path / "project" / "chats" / ("session-1.json" if is_whole else "session-1.jsonl")
    expected: list[str] = []
    async with callslip.open(str(tmp_path / "c.db")) as ledger:
        for turns in (8, 9, 12):
            messages = [message for number in range(turns) for message in gemini_turn(number)]
            chat: Any = {**head, "messages": messages}
            if not is_whole:
                lines = messages if turns == 8 else [{"$set": {"messages": messages}}]
                chat = [*([head] if turns == 8 else json.loads(path.with_suffix(".all").read_text())), *lines]
                write_lines(path.with_suffix(".all"), chat)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(chat)) if is_whole else write_lines(path, *chat)
            await import_history(ledger, "gemini", tmp_path)
            expected = [
                text for number in range(turns) for text in (f"prompt {number}", "ToolCall", f"answer {number}")
            ]
            assert await read_session(ledger, f"gemini-{SESSION}") == (expected, turns, 0)
        if not is_whole:
            summary = {**gemini_turn(30)[0], "content": "<summary>"}
            copies = [{**message, "id": f"x{message['id']}"} for message in gemini_turn(11)]
            for _ in range(2):
                chat.append({"$set": {"messages": [summary, *copies]}})
                write_lines(path, *chat)
                await import_history(ledger, "gemini", tmp_path)
            assert await read_session(ledger, f"gemini-{SESSION}") == ([*expected, "Notice"], 12, 1)


@pytest.mark.anyio
async def test_a_call_that_outlasts_many_others_gets_its_end(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPC2: also if the decoder does not remember its start; the start is not repeated."""
    monkeypatch.setattr("callslip.formats.transcripts.MAX_REMEMBERED", 10)
    store.put_message("ses_1", "msg_2", NOW_MS, role="assistant", time={"created": NOW_MS}, parentID="msg_1")
    for number in range(20):
        call = tool_part("completed" if number else "running", output="ok")
        store.put_part("ses_1", "msg_2", f"prt_2{number:02}", NOW_MS, {**call, "callID": f"c{number}"})
    async with callslip.open(str(tmp_path / "c.db")) as ledger:
        await import_history(ledger, "opencode", store.path)
        ended = {**tool_part("completed", output="late"), "callID": "c0"}
        store.put_part("ses_1", "msg_2", "prt_200", NOW_MS + 9, ended)
        report = await import_history(ledger, "opencode", store.path)
        calls = [each for each in (await ledger.snapshot("opencode-ses_1")).entries if isinstance(each, ToolCall)]
        assert (len(calls), calls[0].status) == (20, "completed") and report.events


@pytest.mark.anyio
@pytest.mark.parametrize("is_live_first", [True, False])
async def test_a_wrapped_codex_and_its_rollout_are_one_session(tmp_path: Path, is_live_first: bool) -> None:
    """CDX3: recorded by `wrap` and read from the rollout, in either order, the call is one."""
    copy_case("codex/wrapped", tmp_path / "rollout-2026-11-15T06-48-35-01a1ddf7-0281-7302-a1e3-322171f3ffa3.jsonl")
    session = "codex-01a1ddf7-0281-7302-a1e3-322171f3ffa3"
    lines = (format_cases.CAPTURES / "codex2-allow.jsonl").read_bytes().splitlines()
    async with await callslip.open("sqlite:///:memory:") as ledger:
        if is_live_first:
            await import_lines(ledger.log, session, "acp", lines)
        assert (await import_history(ledger, "codex", tmp_path)).sessions == [session]
        if not is_live_first:
            await import_lines(ledger.log, session, "acp", lines)
        (call,) = [entry for entry in (await ledger.snapshot(session)).entries if isinstance(entry, ToolCall)]
        assert (call.tool_call_id, call.status, call.exit_status) == ("call_9e16d53b40cf", "completed", 0)
