"""A call that was refused keeps what its agent wrote about it, and all its arguments, in every view."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import structs

import callslip
from callslip.api.ledger import LocalLedger
from callslip.cli import main
from callslip.formats import registry
from callslip.ingest.importer import import_lines
from callslip.ledger import checkpoint
from callslip.ledger.snapshot_pages import SnapshotSource
from callslip.ledger.verify import verify
from callslip.model import events as ev
from callslip.model.entries import ToolCall
from callslip.model.events import Alias
from callslip.rules.fold import SessionFold
from callslip.settings import Settings
from tests.support.paths import TESTS

pytestmark = pytest.mark.anyio

S = "s"
ONE = (Alias("t", "1"),)
SETTINGS = Settings(synchronous="NORMAL", reaper_interval=3600, checkpoint_every=10**9)
REFUSED = "User refused permission to run tool"
WHOLE = {"command": "rm -r build", "cwd": "/w", "description": "clean up"}
OPTIONS = [
    {"optionId": "once", "kind": "allow_once", "name": "Allow"},
    {"optionId": "reject", "kind": "reject_once", "name": "Reject"},
]


CONTENT = {"type": "content", "content": {"type": "text", "text": "no"}}


def update(kind: str, **fields: Any) -> dict[str, Any]:
    params = {"sessionId": "a", "update": {"sessionUpdate": kind, "toolCallId": "c1", **fields}}
    return {"jsonrpc": "2.0", "method": "session/update", "params": params}


def request(raw_input: Any) -> dict[str, Any]:
    tool_call = {"toolCallId": "c1", "status": "pending", "title": "rm -r build", "rawInput": raw_input}
    params = {"sessionId": "a", "toolCall": tool_call, "options": OPTIONS}
    return {"jsonrpc": "2.0", "id": 7, "method": "session/request_permission", "params": params}


def answer(option: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "result": {"outcome": {"outcome": "selected", "optionId": option}}}


def conversation(requested: Any, option: str = "reject") -> list[bytes]:
    """Return a call of an agent that shows only a part of the arguments in its request, and reports the refusal."""
    messages = [
        update("tool_call", title="bash", status="pending", rawInput={}),
        update("tool_call_update", status="in_progress", title="rm -r build", rawInput=WHOLE),
        request(requested),
        answer(option),
        update("tool_call_update", status="failed", rawOutput={"error": REFUSED}),
    ]
    return [json.dumps(message).encode() for message in messages]


async def read_call(ledger: LocalLedger, session: str = S) -> ToolCall:
    (call,) = [entry for entry in (await ledger.snapshot(session)).entries if isinstance(entry, ToolCall)]
    return call


def text_of(call: dict[str, Any]) -> str:
    """Return what an agent wrote about a call, from the JSON of the entry."""
    return call.get("report", {}).get("text", "")


async def test_a_refused_call_of_a_recorded_agent_keeps_its_words() -> None:
    """IMP3: a recording of Claude Code; the state is still that of the answer, and nothing is late."""
    lines = (TESTS / "captures" / "claude-reject.jsonl").read_bytes().splitlines()
    async with callslip.open("sqlite:///:memory:", SETTINGS) as ledger:
        await import_lines(ledger.log, S, "acp", lines)
        entries = json.loads(await ledger.export(S, "entries"))["entries"]
        (call,) = [entry for entry in entries if entry.get("status") == "denied"]
        assert text_of(call) == REFUSED
        assert call["rawInput"] == {"file_path": "/home/dev/project/hello.txt"}
        assert "late" not in call and "output" not in call


@pytest.mark.parametrize("requested", [{"command": "rm -r build"}, {}, WHOLE], ids=["some", "none", "all"])
async def test_a_refused_call_keeps_its_whole_input(requested: Any) -> None:
    """IMP3: a request that shows some of the arguments does not remove the others from the call."""
    async with callslip.open("sqlite:///:memory:", SETTINGS) as ledger:
        await import_lines(ledger.log, S, "acp", conversation(requested))
        entries = json.loads(await ledger.export(S, "entries"))["entries"]
        (call,) = [entry for entry in entries if entry["type"] == "tool_call"]
        assert (call["status"], call["rawInput"], text_of(call)) == ("denied", WHOLE, REFUSED)
        (request_entry,) = [entry for entry in entries if entry["type"] == "permission_request"]
        assert request_entry["rawInput"] == WHOLE


@pytest.mark.parametrize("requested", [{"command": "rm -r dist"}, {"path": "build"}, [], None])
async def test_a_request_with_other_arguments_replaces_them(requested: Any) -> None:
    """What a person is asked about is what the call has, unless it is only a part of it."""
    async with callslip.open("sqlite:///:memory:", SETTINGS) as ledger:
        await import_lines(ledger.log, S, "acp", conversation(requested))
        assert (await read_call(ledger)).raw_input == requested


@pytest.mark.parametrize("option", ["once", "reject"])
async def test_every_view_of_a_refused_call_is_the_same(option: str) -> None:
    """IMP3: live, from the store, from the patches and after a checkpoint (C9); a call that failed has no report."""
    async with callslip.open("sqlite:///:memory:", SETTINGS) as ledger:
        lines = conversation(WHOLE, option)
        if option == "reject":  # The entry is stored before the report arrives.
            await import_lines(ledger.log, S, "acp", lines[:4])
            assert (await read_call(ledger)).status == "denied"
            await checkpoint.project(ledger.log.store, S)
        await import_lines(ledger.log, S, "acp", lines)
        events = [event async for event in ledger.events(S)]
        fold = SessionFold(S)
        fold.fold(events)
        call = await read_call(ledger)
        assert call == next(entry for entry in fold.snapshot().entries if isinstance(entry, ToolCall))
        (report,) = [event.seq for event in events if isinstance(event, ev.CallFailed)]
        shown = json.loads(await ledger.export(S, "entries"))["entries"][0].get("report")
        assert shown == ({"seq": report, "text": REFUSED} if option == "reject" else None)
        await checkpoint.project(ledger.log.store, S)
        assert await read_call(ledger) == call
        assert await verify(ledger.log) == []


async def test_a_snapshot_that_is_read_later_has_no_newer_report() -> None:
    """IMP3: a slow reader gets the session as it was, with the reports up to then and without later ones (C9)."""
    async with callslip.open("sqlite:///:memory:", SETTINGS) as ledger:
        for number in range(20):
            aliases = (Alias("t", str(number)),)
            await ledger.log.append(S, [ev.CallStarted(aliases=aliases), ev.CallDenied(aliases=aliases)])
        await report(ledger, 1)
        await ledger.log.project(S)
        await report(ledger, 2)
        snapshot = await SnapshotSource(ledger.log.store, S, 400).open()
        expected = json.loads(checkpoint.encode((await ledger.log.state_at(S, snapshot.seq)).snapshot()))
        text = b""
        async for piece in snapshot.pieces():
            text += piece
            for number in (2, 3, 18):
                await report(ledger, number)
            await ledger.log.project(S)
        assert json.loads(text) == expected
        assert [entry["report"]["text"] for entry in expected["entries"] if "report" in entry] == ["1", "2"]
        assert await verify(ledger.log) == []


async def report(ledger: LocalLedger, number: int) -> None:
    end = ev.CallFailed(aliases=(Alias("t", str(number)),), error=str(number))
    await ledger.log.append(S, [end])


async def test_the_report_is_shown_and_exported(tmp_path: Any) -> None:
    """IMP3: by `callslip show`, as a page, and to a client of ACP."""
    db = str(tmp_path / "ledger.db")
    async with callslip.open(db, SETTINGS) as ledger:
        await import_lines(ledger.log, S, "acp", conversation({}))
        call = await read_call(ledger)
        html = await ledger.export(S, "html")
        assert REFUSED in (html.decode() if isinstance(html, bytes) else html)
        updates = registry.encoder("acp")([call])
        assert REFUSED in json.dumps(updates)
    shown = CliRunner().invoke(main, ["show", call.call_id, "--db", db])
    assert shown.exit_code in (0, 4) and f"agent's report  {REFUSED}" in " ".join(shown.stdout.split(" " * 3))


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (ev.CallFailed(error="no"), "no"),
        (ev.CallFailed(error={"code": 0, "message": "Request cancelled"}), "Request cancelled"),
        (ev.CallFailed(output={"error": "rejected"}), "rejected"),
        (ev.CallFailed(output=["a", 1]), '["a",1]'),
        (ev.CallFailed(content=[CONTENT, 3, {"type": "diff"}]), "no"),
        (ev.CallCancelled(output={"code": 1}), '{"code":1}'),
        (ev.CallFailed(), ""),
        (ev.CallFailed(output={}, error="", content=[]), ""),
        (ev.CallFailed(content="text", output=0), ""),
        (ev.CallCompleted(output="done anyway"), ""),
    ],
)
async def test_a_report_is_the_text_of_the_agents_own_end(end: ev.CallEnd, text: str) -> None:
    """IMP3: from the error, the output or the content; a result of a refused call is late and is no report."""
    async with callslip.open("sqlite:///:memory:", SETTINGS) as ledger:
        await ledger.log.append(S, [ev.CallStarted(aliases=ONE), ev.CallDenied(aliases=ONE, reason="policy")])
        await ledger.log.append(S, [structs.replace(end, aliases=ONE)])
        entry = await read_call(ledger)
        assert (entry.status, entry.reason) == ("denied", "policy")
        assert (entry.report.text if entry.report else "") == text
        assert bool(entry.late) == isinstance(end, ev.CallCompleted)


@pytest.mark.parametrize(
    ("end", "field"),
    [
        (ev.CallFailed(output="long " * 400), "output"),
        (ev.CallFailed(content=[{"type": "content", "content": {"type": "text", "text": "long " * 400}}]), "content"),
        (ev.CallFailed(error="short", output="long " * 400), ""),
    ],
)
async def test_a_report_that_is_cut_says_so(end: ev.CallEnd, field: str) -> None:
    """IMP3: a large value is stored outside of its event; the entry has the beginning, and the size of the whole."""
    settings = structs.replace(SETTINGS, inline_limit=1024, preview=256)
    async with callslip.open("sqlite:///:memory:", settings) as ledger:
        await ledger.log.append(S, [ev.CallStarted(aliases=ONE), ev.CallDenied(aliases=ONE, reason="policy")])
        await ledger.log.append(S, [structs.replace(end, aliases=ONE)])
        report = (await read_call(ledger)).report
        assert report is not None
        text, _, note = report.text.partition("\n")
        assert text == ("short" if not field else ("long " * 400)[: len(text)]) and len(text) <= 256
        assert bool(re.fullmatch(rf"\(cut: the whole {field} has 2,\d+ bytes\)", note)) == bool(field), report.text
