"""Find and read the histories of Codex, Gemini CLI and opencode, as these keep them in a home folder."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sqlite3
import time
import tracemalloc
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
from callslip.transcripts.zstd_file import load_zstd
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


def compress(path: Path) -> Path:
    """Compress a rollout as Codex does: the file without `.zst` is removed, and the times are kept."""
    compressed = Path(f"{path}.zst")
    compressed.write_bytes(load_zstd().compress(path.read_bytes()))
    shutil.copystat(path, compressed)
    path.unlink()
    return compressed


def decompress(path: Path) -> Path:
    """Decompress a rollout as Codex does when its session is resumed."""
    plain = path.with_suffix("")
    plain.write_bytes(load_zstd().decompress(path.read_bytes()))
    path.unlink()
    return plain


def test_a_compressed_rollout_is_read_like_the_plain_one(tmp_path: Path) -> None:
    """CDX7: in equal pieces with equal positions, from each of which the rest is read."""
    codex = find_source("codex")
    lines = [
        {"type": "event_msg", "payload": {"type": "noise", "text": f"{number:07}" * 40_000}} for number in range(20)
    ]
    path = write_lines(tmp_path / "rollout-a.jsonl", *lines, *({"number": number} for number in range(1000)))
    (plain,) = found(codex, tmp_path)
    pieces = read_all(codex, plain)
    assert len(pieces) > 5
    compress(path)
    (compressed,) = found(codex, tmp_path)
    assert (compressed.name, codex.refresh(plain)) == (plain.name, compressed) and compressed.mark != plain.mark
    assert read_all(codex, compressed) == pieces
    for number, piece in enumerate(pieces[:-1], 1):
        assert read_all(codex, compressed, piece.position) == pieces[number:]


def test_a_compressed_rollout_of_a_sub_agent_belongs_to_its_session(tmp_path: Path) -> None:
    """CDX7: its first line tells that, as in a plain one."""
    codex = find_source("codex")
    name = "rollout-2026-11-19T17-56-45-01a1f4f4-28a7-7ae2-9d95-413277114caf.jsonl"
    compress(copy_case("codex/agent", tmp_path / name))
    (transcript,) = found(codex, tmp_path)
    assert transcript.is_secondary and transcript.session == "01a1f4f4-279c-7872-88c2-bd197744e080"


@pytest.mark.anyio
async def test_a_rollout_that_is_compressed_and_resumed_is_imported_once(tmp_path: Path) -> None:
    """CDX7: neither form adds what the other had, also in a new process, and what follows is added."""
    lines = format_cases.lines_of("codex/parallel")
    name = "rollout-2026-11-19T17-56-44-01a1f4f4-279c-7872-88c2-bd197744e080.jsonl"
    path = tmp_path / name
    path.write_bytes(b"".join(line + b"\n" for line in lines[:9]))
    async with await callslip.open("sqlite:///:memory:") as ledger:
        first = await import_history(ledger, "codex", tmp_path)
        assert first.events and not first.problems
        compressed = compress(path)
        again = await import_history(ledger, "codex", tmp_path)
        assert (again.transcripts, again.events, again.problems) == (1, 0, [])
        assert (await import_history(ledger, "codex", tmp_path)).transcripts == 0  # It is not decompressed again.
        path = decompress(compressed)
        with path.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in lines[9:]))
        last = await import_history(ledger, "codex", tmp_path)
        assert last.messages == len(lines) - 9 and last.sessions == first.sessions
        compress(path)
        assert (await import_history(ledger, "codex", tmp_path)).events == 0
        assert len((await ledger.sessions()).items) == 1
        ids = [
            entry.tool_call_id
            for entry in (await ledger.snapshot(*last.sessions)).entries
            if isinstance(entry, ToolCall)
        ]
        assert len(ids) == len(set(ids)) == len(calls_started(lines))


def calls_started(lines: list[bytes]) -> set[str]:
    """Return the ids of the calls in a rollout."""
    items = [json.loads(line)["payload"] for line in lines]
    return {item["call_id"] for item in items if item.get("type") in ("function_call", "custom_tool_call")}


def test_a_rollout_in_both_forms_is_read_once(tmp_path: Path) -> None:
    """CDX7: while Codex compresses it, both are there for a moment."""
    codex = find_source("codex")
    path = write_lines(tmp_path / "rollout-a.jsonl", {"number": 1})
    compressed = compress(write_lines(tmp_path / "copy" / "rollout-a.jsonl", {"number": 2}))
    compressed.rename(f"{path}.zst")
    (transcript,) = found(codex, tmp_path)
    assert messages_of(read_all(codex, transcript)) == [{"number": 1}]
    path.unlink()
    assert messages_of(read_all(codex, transcript)) == [{"number": 2}]
    (alone,) = found(codex, Path(f"{path}.zst"))
    assert alone.name == transcript.name


def test_a_compressed_line_that_is_too_long_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CDX7: the size of the content counts, not that of the file; no more than a few pieces are in memory."""
    codex, limit = find_source("codex"), 3 * 2**20
    monkeypatch.setattr("callslip.transcripts.json_lines.MAX_LINE_BYTES", limit)
    path = write_lines(tmp_path / "rollout-a.jsonl", {"number": 1}, {"text": " " * 20 * limit}, {"number": 2})
    assert compress(path).stat().st_size < 2**20
    (transcript,) = found(codex, tmp_path)
    tracemalloc.start()
    pieces = read_all(codex, transcript)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert messages_of(pieces) == [{"number": 1}, {"number": 2}] and sum(piece.skipped for piece in pieces) == 1
    assert peak < 8 * limit


@pytest.mark.parametrize("is_readable", [True, False])
def test_what_precedes_the_damage_of_a_compressed_rollout_is_read(tmp_path: Path, is_readable: bool) -> None:
    """CDX7: the rest is reported, and read when the file is whole."""
    codex = find_source("codex")
    lines = [{"number": number, "text": os.urandom(2**15).hex()} for number in range(60)]
    compressed = compress(write_lines(tmp_path / "rollout-a.jsonl", *lines))
    whole = compressed.read_bytes()
    compressed.write_bytes(whole[: len(whole) // 2] if is_readable else b"x")
    (transcript,) = found(codex, tmp_path)
    pieces = read_all(codex, transcript)
    messages = messages_of(pieces)
    assert messages == lines[: len(messages)] and bool(messages) is is_readable and len(messages) < 60
    assert [piece.problem is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].problem is not None and "cannot be decompressed" in pieces[-1].problem.reason
    compressed.write_bytes(whole)
    assert messages + messages_of(read_all(codex, transcript, pieces[-1].position)) == lines


@pytest.mark.anyio
async def test_without_the_package_a_compressed_rollout_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CDX7: with what to do, and read when the package is there."""
    path = copy_case(
        "codex/parallel", tmp_path / "rollout-2026-11-19T17-56-44-01a1f4f4-279c-7872-88c2-bd197744e080.jsonl"
    )
    compress(path)
    async with await callslip.open("sqlite:///:memory:") as ledger:
        with monkeypatch.context() as patch:
            patch.setattr("callslip.transcripts.codex.load_zstd", lambda: None)
            report = await import_history(ledger, "codex", tmp_path)
            (problem,) = report.problems
            assert problem.path == str(path) and "install callslip[zstd]" in problem.reason and not report.events
        report = await import_history(ledger, "codex", tmp_path)
        assert report.events and not report.problems


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

    def add_session(
        self, session: str, parent: str | None = None, updated: int = NOW_MS, created: int = 0, title: str = "Title"
    ) -> None:
        row = (session, parent, title, "/home/dev/project", "1.18.33", created or updated, updated)
        self.connection.execute("INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def put_message(self, session: str, message: str, updated: int, **data: Any) -> None:
        row = (message, session, data.get("time", {}).get("created", updated), updated, json.dumps(data))
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


class Forks:
    """A database with sessions and their forks. Each prompt has a time of its own, which its copies share."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._numbers = itertools.count(1)

    def add(self, session: str, title: str, *prompts: int, forked: int = 0) -> None:
        """Add a session of prompts at these times. A fork was created at `forked`, and has copies of the older ones."""
        self.store.add_session(session, created=forked or prompts[0], updated=max(forked, *prompts), title=title)
        for at in prompts:
            message, updated = f"msg_{next(self._numbers):03}", max(forked, at)
            self.store.put_message(session, message, updated, role="user", time={"created": at})
            text = {"type": "text", "text": f"Prompt {at}"}
            self.store.put_part(session, message, message.replace("msg", "prt"), updated, text)


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    store = Store(tmp_path / "opencode.db")
    yield Forks(store)
    store.connection.close()


def origins(store: Store) -> dict[str, str]:
    """Return the origin of each session that is read as a fork."""
    source = find_source("opencode")
    rows = [
        message["session"]
        for transcript in found(source, store.path)
        for message in messages_of(read_all(source, transcript))
        if "session" in message
    ]
    return {row["id"]: row["forkedFrom"] for row in rows if "forkedFrom" in row}


def test_a_fork_of_opencode_names_its_origin(forks: Forks) -> None:
    """OPC7: the earlier session that has the last copied message; if several have it, the titles tell."""
    at = NOW_MS - 10_000
    forks.add("ses_a", "Work", at, at + 10)
    forks.add("ses_b", "Work (fork #1)", at, at + 30, forked=at + 20)
    forks.add("ses_c", "Work (fork #2)", at, at + 50, forked=at + 40)
    forks.add("ses_d", "Renamed", at, at + 30, at + 70, forked=at + 60)
    forks.add("ses_e", "Also renamed", at, at + 10, at + 90, forked=at + 80)
    forks.add("ses_f", "Work (fork #1)", at + 200, at + 210)
    assert origins(forks.store) == {"ses_b": "ses_a", "ses_c": "ses_b", "ses_d": "ses_b", "ses_e": "ses_a"}


def test_messages_that_are_older_than_their_session_make_no_fork(forks: Forks) -> None:
    """OPC7: without a session that has the message there is no origin, and a sub-agent's session is no fork."""
    at = NOW_MS - 10_000
    forks.add("ses_b", "Work (fork #1)", at, at + 30, forked=at + 20)
    assert origins(forks.store) == {}
    forks.add("ses_a", "Work", at, at + 10)
    assert origins(forks.store) == {"ses_b": "ses_a"}
    forks.store.connection.execute("UPDATE session SET parent_id = 'ses_a' WHERE id = 'ses_b'")
    assert origins(forks.store) == {}


def test_the_origin_of_a_fork_is_found_when_its_messages_are_copied(forks: Forks) -> None:
    """OPC7: also after the session itself was read, and not looked for again when more follows."""
    at = NOW_MS - 10_000
    forks.add("ses_a", "Work", at, at + 10)
    forks.store.add_session("ses_b", created=at + 20, updated=at + 20, title="Work (fork #1)")
    source = find_source("opencode")
    transcript = found(source, forks.store.path)[-1]
    (piece,) = read_all(source, transcript)
    assert "forkedFrom" not in piece.messages[0]["session"]
    read: list[str | None] = []
    for message, updated, created in (
        ("msg_91", at + 21, at),
        ("msg_92", at + 40, at + 30),
        ("msg_93", at + 60, at + 50),
    ):
        forks.store.put_message("ses_b", message, updated, role="user", time={"created": created})
        (piece,) = read_all(source, transcript, piece.position)
        read.append(piece.messages[0]["session"].get("forkedFrom"))
    assert read[0] == "ses_a" and read[-1] is None


@pytest.mark.anyio
async def test_a_fork_of_opencode_continues_an_origin_that_is_read_later(forks: Forks) -> None:
    """OPC7: the origin was used after the fork, so it is read after it; there are no tokens in either."""
    at = NOW_MS - 10_000
    forks.add("ses_a", "Work", at, at + 90)
    forks.add("ses_b", "Work (fork #1)", at, at + 30, forked=at + 20)
    async with await callslip.open("sqlite:///:memory:") as ledger:
        report = await import_history(ledger, "opencode", forks.store.path)
        assert report.sessions == ["opencode-ses_b", "opencode-ses_a"]
        continued = [(await ledger.snapshot(session)).info.continues for session in report.sessions]
        assert continued == ["ses_a", ""]


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


def write_value(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), "utf-8")
    return path


def write_files(data: Path, *cases: str) -> None:
    """Write cases as opencode stored its sessions before version 1.2."""
    storage = data / "storage"
    for row in (json.loads(line) for case in cases for line in format_cases.lines_of(case)):
        if "session" in row:
            write_value(storage / "session" / "project" / f"{row['session']['id']}.json", row["session"])
        elif "message" in row:
            info = row["message"]
            write_value(storage / "message" / info["sessionID"] / f"{info['id']}.json", info)
        else:
            part = row["part"]
            write_value(storage / "part" / part["messageID"] / f"{part['id']}.json", part)


@pytest.mark.anyio
async def test_sessions_of_opencode_in_files_are_imported_like_those_of_its_database(tmp_path: Path) -> None:
    """OPC8: with their sub-agents, and once, also if the database has them later."""
    places = fill_home(tmp_path)
    write_files(tmp_path / "old", "opencode/agents", "opencode/agent")
    old = tmp_path / "old" / "opencode.db"
    async with (
        await callslip.open("sqlite:///:memory:") as ledger,
        await callslip.open("sqlite:///:memory:") as other,
    ):
        report = await import_history(ledger, "opencode", old)
        assert not report.problems and report.events
        expected = await import_history(other, "opencode", places["opencode"])
        assert (report.sessions, report.events) == (expected.sessions, expected.events)
        (session,) = report.sessions
        shown, known = [(await each.snapshot(session)).entries for each in (ledger, other)]
        assert [(type(each), getattr(each, "content", "")) for each in shown] == [
            (type(each), getattr(each, "content", "")) for each in known
        ]
        assert (await import_history(ledger, "opencode", old)).transcripts == 0
        shutil.copy(places["opencode"], old)
        await import_history(ledger, "opencode", old)  # Only the title in its row is another one.
        assert (await ledger.snapshot(session)).entries == shown


def test_sessions_in_files_that_the_database_has_are_not_read(tmp_path: Path) -> None:
    """OPC8: version 1.2 copied them. A session that changed is read again."""
    write_files(tmp_path, "opencode/agents", "opencode/agent")
    source = find_source("opencode")
    main, child = found(source, tmp_path)
    assert (main.is_secondary, child.is_secondary, child.session) == (False, True, main.session)
    assert [source.refresh(each) for each in (main, child)] == [main, child]
    (piece,) = read_all(source, main)
    assert read_all(source, main, piece.position) == []
    write_value(Path(main.path), {**piece.messages[0]["session"], "title": "A longer title"})
    changed = source.refresh(main)
    assert changed is not None and len(messages_of(read_all(source, changed, piece.position))) == len(piece.messages)
    store = Store(tmp_path / "opencode.db")
    store.add_session(main.session)
    store.add_session("ses_new")
    sessions = [(each.session, each.part) for each in found(source, tmp_path)]
    assert sessions == [(main.session, main.session), ("ses_new", "ses_new"), (main.session, "")]
    store.connection.close()


def test_files_of_opencode_that_cannot_be_read_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OPC8: and counted; a large session is read in pieces."""
    write_files(tmp_path, "opencode/parallel")
    source = find_source("opencode")
    (transcript,) = found(source, tmp_path)
    (piece,) = read_all(source, transcript)
    monkeypatch.setattr("callslip.transcripts.opencode_files.PIECE_BYTES", 500)
    pieces = read_all(source, transcript)
    assert len(pieces) > 3 and messages_of(pieces) == list(piece.messages)
    assert messages_of(read_all(source, transcript, pieces[0].position)) == list(piece.messages)
    part = min((tmp_path / "storage" / "part").rglob("*.json"))
    part.write_text("{")
    pieces = read_all(source, transcript)
    assert sum(piece.skipped for piece in pieces) == 1 and len(messages_of(pieces)) == len(piece.messages) - 1
    assert part.name in str([piece.problem for piece in pieces])


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
