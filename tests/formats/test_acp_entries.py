"""What the entries of an ACP session show: tool names, output, large content, requests, notices and plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import callslip
from callslip.cli import main
from callslip.model.entries import PermissionRequest
from tests.support.acp_session import CAPTURES, AcpHarness, a2c, call, call_update, prompt, request_permission, rows
from tests.support.invariants import find_faults
from tests.support.live_server import fetch, serving_ledger

KB = 1000


def text_item(text: str) -> dict[str, Any]:
    return {"type": "content", "content": {"type": "text", "text": text}}


# Tool names


@pytest.mark.parametrize(
    "fields",
    [
        {"toolName": "mcp__acp__Read"},
        {"title": "mcp__acp__Read"},
        {"toolName": "Read", "title": "mcp__acp__Read"},
        {"_meta": {"claudeCode": {"toolName": "mcp__acp__Read"}}},
        {"_meta": {"toolName": "mcp__acp__Read"}},
        {"_meta": {"my-agent": {"toolName": "mcp__acp__Read"}}},
    ],
)
def test_a_tool_name_is_cleaned_from_every_field(fields: dict[str, Any]) -> None:
    """ENT2, S2.5: the name has no prefix, the raw name is kept, and a title that is the name has no prefix either."""
    for messages in ([call(**fields)], [call_update(**fields)], [call(title="x"), call_update(**fields)]):
        shown = AcpHarness().feed(prompt(), *messages).call
        assert (shown.tool_name, shown.raw_tool_name) == ("Read", "mcp__acp__Read")
        assert shown.title in ("Read", "x") or "title" not in fields
    requested = AcpHarness().feed(prompt(), request_permission(**fields))
    assert [entry.tool_name for entry in requested.entries() if isinstance(entry, PermissionRequest)] == ["Read"]


@pytest.mark.parametrize("title", ["Read a.txt", "mcp__x", "use mcp__acp__Read", "mcp__acp__Read now", ""])
def test_another_title_is_no_tool_name(title: str) -> None:
    """ENT2: a title names the tool only if it is the full name of an MCP tool."""
    shown = AcpHarness().feed(prompt(), call(title=title)).call
    assert (shown.tool_name, shown.title) == (None, title)


def test_a_title_does_not_replace_a_tool_name() -> None:
    """ENT2: a call with a name keeps it, and a title with another name stays as it is."""
    harness = AcpHarness().feed(prompt(), call(toolName="search"), call_update(title="mcp__acp__Read"))
    assert (harness.call.tool_name, harness.call.title) == ("search", "mcp__acp__Read")


# Output


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_the_text_of_the_content_is_the_output_of_a_call_without_another(status: str) -> None:
    """ENT3: also if the content arrived before the end; rawOutput and printed text come first."""
    content = [text_item("18 degrees"), {"type": "diff", "path": "/a", "newText": "x"}, text_item("no wind")]
    at_once = AcpHarness().feed(prompt(), call(), call_update(status, content=content)).call
    earlier = AcpHarness().feed(prompt(), call(), call_update("in_progress", content=content), call_update(status)).call
    assert at_once.output == earlier.output == "18 degrees\nno wind"
    assert AcpHarness().feed(
        prompt(), call(), call_update(status, content=content, rawOutput={"a": 1})
    ).call.output == {"a": 1}


def test_content_that_is_not_a_result_is_no_output() -> None:
    """ENT3: the content of a permission request, of an open call and of a terminal."""
    proposal: dict[str, Any] = {"content": [text_item("I am going to write.")]}
    proposed = AcpHarness().feed(prompt(), call(), request_permission(**proposal), call_update("completed"))
    assert proposed.call.output is None and proposed.call.content == proposal["content"]
    assert AcpHarness().feed(prompt(), call("in_progress", **proposal)).call.output is None
    terminal = [{"type": "terminal", "terminalId": "t"}, text_item("ran")]
    assert AcpHarness().feed(prompt(), call(), call_update("completed", content=terminal)).call.output is None


# Large content


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"content": [text_item("héllo " * 50 * KB)]}, ["content"]),
        ({"content": [{"type": "diff", "path": "/a.txt", "oldText": "", "newText": "x" * 300 * KB}]}, ["content"]),
        ({"content": [text_item("a"), text_item("b" * 100 * KB)], "rawOutput": "r" * 100 * KB}, ["output", "content"]),
        ({"content": [text_item("a" * 100 * KB)], "rawOutput": {"small": 1}}, ["content"]),
    ],
)
async def test_large_content_is_stored_outside_the_log(db: str, fields: dict[str, Any], names: list[str]) -> None:
    """ENT4, S2.8: the entry has a preview and the size; the blob has all, over HTTP and in `show`."""
    started = call_update("in_progress", content=fields["content"])
    messages = [message["msg"] for message in (prompt(), call(), started, call_update("completed", **fields))]
    async with callslip.open(db) as ledger, serving_ledger(ledger) as url:
        session = f"{url}/v1/sessions/s"
        for message in messages:
            await fetch(f"{session}/events?format=acp", "POST", value=[message])
        entry = (await fetch(session)).json()["entries"][-1]
        assert len(json.dumps(entry)) < 10 * KB
        assert entry["contentBlob"]["fields"] == names
        if fields.get("rawOutput") == {"small": 1}:
            assert not {"truncated", "blob"} & entry.keys()
        else:
            assert entry["truncated"] is True and entry["blob"] == entry["contentBlob"]
        blob = (await fetch(f"{url}/v1/blobs/{entry['contentBlob']['hash']}")).json()
        assert len(json.dumps(blob)) > 60 * KB
        full = {"content": blob} if names == ["content"] else blob
        assert full["content"] == fields["content"] and full.get("output", "") in ("", fields.get("rawOutput"))
        sizes = [len(body) for _, body in await ledger.log.store.events("s", 0, 100)]
        assert max(sizes) < 10 * KB
        assert not await find_faults(ledger)
    path = db.removeprefix("sqlite:///")
    shown = CliRunner().invoke(main, ["show", entry["callId"], "--full", "--json", "--db", path])
    value = json.loads(shown.output)["toolCall"]
    assert value["content"] == fields["content"] and "truncated" not in value
    if "rawOutput" in fields:
        assert value["output"] == fields["rawOutput"]


@pytest.mark.anyio
@pytest.mark.parametrize(("output", "is_cut"), [({}, True), ({"rawOutput": "ok"}, False)])
async def test_a_model_reads_that_output_is_cut_only_if_it_is(db: str, output: dict[str, Any], is_cut: bool) -> None:
    """ENT4: large content does not make another, complete output a cut one."""
    end = call_update("completed", content=[text_item("x" * 100 * KB)], **output)
    async with callslip.open(db) as ledger, serving_ledger(ledger) as url:
        messages = [message["msg"] for message in (prompt(), call(), end)]
        await fetch(f"{url}/v1/sessions/s/events?format=acp", "POST", value=messages)
        (result,) = [
            message["content"]
            for message in (await fetch(f"{url}/v1/sessions/s?format=openai")).json()["messages"]
            if message["role"] == "tool"
        ]
    assert ("(cut: only the beginning" in result) == is_cut and (is_cut or result == "ok")


@pytest.mark.anyio
async def test_smaller_content_replaces_large_content(db: str) -> None:
    """ENT4: an update with small content leaves no reference to the large one; text is cut between characters."""
    async with callslip.open(db) as ledger, serving_ledger(ledger) as url:
        session = f"{url}/v1/sessions/s"
        shown: list[dict[str, Any]] = []
        for content in ([text_item("é" * 50 * KB)], [text_item("small")]):
            message = call(content=content)["msg"]
            await fetch(f"{session}/events?format=acp", "POST", value=[message])
            shown.append((await fetch(session)).json()["entries"][-1])
        large, small = shown
        assert set(large["content"][0]["content"]["text"]) == {"é"}
        assert large["contentBlob"]["size"] > 100 * KB and not {"truncated", "blob"} & large.keys()
        assert small["content"] == [text_item("small")] and "contentBlob" not in small
        assert not await find_faults(ledger)


# Permission requests


@pytest.mark.parametrize(
    ("sent", "shown"), [(5, 5), (0, 0), ("perm-1", "perm-1"), ("", ""), (10**40, str(10**40)), (1.5, "1.5")]
)
def test_the_request_id_is_that_of_the_protocol(sent: Any, shown: Any) -> None:
    """ENT5: beside it, the id by which the request is answered, which is unique."""
    message = a2c(request_permission()["msg"] | {"id": sent})
    (request,) = [
        entry for entry in AcpHarness().feed(prompt(), message).entries() if isinstance(entry, PermissionRequest)
    ]
    assert request.request_id == shown and type(request.request_id) is type(shown)
    assert request.approval_id == request.approval and request.approval.startswith("appr_")


@pytest.mark.anyio
async def test_equal_request_ids_of_two_sessions_are_two_requests(db: str) -> None:
    """ENT5: each has its own approval id, the only id that the API accepts."""
    async with callslip.open(db) as ledger, serving_ledger(ledger) as url:
        ids: list[str] = []
        for name in ("a", "b"):
            message = request_permission()["msg"] | {"id": 5}
            await fetch(f"{url}/v1/sessions/{name}/events?format=acp", "POST", value=[message])
            request = (await fetch(f"{url}/v1/sessions/{name}")).json()["entries"][-1]
            assert request["requestId"] == 5
            ids.append(request["approvalId"])
        assert len(set(ids)) == 2
        assert {row.id for row in await ledger.approvals()} == set(ids)
        assert (await fetch(f"{url}/v1/approvals/5", "POST", value={"decision": "approve"})).status == 404


# Notices, plans and terminals in a terminal


def import_and_show(path: Path, name: str, *messages: Any) -> str:
    """Import messages and return what `show` prints."""
    (path / f"{name}.jsonl").write_text("".join(json.dumps(message) + "\n" for message in messages))
    db = str(path / "ledger.db")
    imported = CliRunner().invoke(main, ["import", str(path / f"{name}.jsonl"), "--format", "acp", "--db", db])
    assert imported.exit_code == 0, imported.output
    return CliRunner().invoke(main, ["show", name, "--db", db]).output


@pytest.mark.parametrize("name", [name for name in CAPTURES if name.startswith("codex2")])
def test_a_notice_of_an_agent_is_on_the_timeline(tmp_path: Path, name: str) -> None:
    """ENT6: at its place, with its severity; of a real agent."""
    shown = import_and_show(tmp_path, name, *rows(name)).splitlines()
    (at,) = [number for number, line in enumerate(shown) if "Model metadata for `mock-1` not found" in line]
    assert "  warning  " in shown[at] and any("  agent  " in line for line in shown[at:])


@pytest.mark.parametrize(
    ("notice", "content", "details"),
    [
        ({"severity": "error", "title": "Full", "description": "No space."}, "Full\nNo space.", None),
        ({"message": "Hello"}, "Hello", None),
        ({"title": "T", "code": 7}, "T", {"code": 7}),
        ({"severity": 3, "code": 7}, "", {"code": 7}),
    ],
)
def test_a_notice_is_an_entry_that_ends_the_text_before_it(notice: dict[str, Any], content: str, details: Any) -> None:
    """ENT6: texts around it are two entries, and models never read it."""
    chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "one"}}
    params = [chunk, {"sessionUpdate": "notice", **notice}, chunk]
    messages = [
        a2c({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": one}})
        for one in params
    ]
    entries: list[Any] = AcpHarness().feed(*messages).entries()
    assert [type(entry).__name__ for entry in entries] == ["Message", "Notice", "Message"]
    assert (entries[1].content, entries[1].details) == (content, details) and not entries[0].streaming


def test_the_priorities_of_a_plan_are_shown(tmp_path: Path) -> None:
    """ENT7: behind each step; an unknown or missing one is no error."""
    steps = [
        {"content": "First", "priority": "high", "status": "completed"},
        {"content": "Second", "priority": "later", "status": "pending"},
        {"content": "Third"},
    ]
    update = {"sessionId": "s", "update": {"sessionUpdate": "plan", "entries": steps}}
    shown = import_and_show(tmp_path, "plan", {"jsonrpc": "2.0", "method": "session/update", "params": update})
    assert "✓ First  high\n" in shown and "○ Second  later\n" in shown and "○ Third\n" in shown


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({"output": "one\ntwo\n", "metadata": {"exit": 0}}, ["one", "two"]),
        ({"stdout": "one", "stderr": "two\n", "exit_code": 1}, ["one", "two"]),
        ({"aggregated_output": "one\ntwo", "stdout": "one", "stderr": ""}, ["one", "two"]),
        ({"stdout": "", "stderr": ""}, []),
        ({"stdout": 7}, ['{"stdout":7}']),
        ({"output": {"a": 1}}, ['{"output":{"a":1}}']),
    ],
)
def test_what_a_terminal_printed_is_text(tmp_path: Path, output: Any, text: list[str]) -> None:
    """ENT8: agents record it within an object; `show` prints the lines."""
    shown = import_and_show(tmp_path, "run", prompt(), call(title="make"), call_update("completed", rawOutput=output))
    assert [line.partition("│ ")[2] for line in shown.splitlines() if "│ " in line] == text
    db = str(tmp_path / "ledger.db")
    entries = json.loads(CliRunner().invoke(main, ["show", "run", "--json", "--db", db]).output)["entries"]
    assert [entry["output"] for entry in entries if entry["type"] == "tool_call"] == [output]
