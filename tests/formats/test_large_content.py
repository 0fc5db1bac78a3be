"""Large content of a call beside its output: each is stored in full, and every view says which of them is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

import callslip
from callslip.agent.model_view import ModelView
from callslip.api.entry_filter import filter_entries
from callslip.api.ledger import LocalLedger
from callslip.cli import main
from callslip.formats import registry
from callslip.ingest.importer import import_lines
from callslip.model.entries import ToolCall
from tests.support.acp_session import call, call_update, prompt, prompt_response
from tests.support.invariants import find_faults

KB = 1000
CONTENT = [
    {"type": "content", "content": {"type": "text", "text": "c" * 100 * KB}},
    {"type": "diff", "path": "/a.txt", "oldText": "old", "newText": "THE CHANGE"},
]
DIFF = [{"type": "diff", "path": "/a.txt", "oldText": "", "newText": "d" * 100 * KB}]


async def store_session(ledger: LocalLedger, *messages: dict[str, Any], **end: Any) -> ToolCall:
    """Store a session with one call, and return its entry."""
    lines = [prompt(), call("in_progress", rawInput={"command": "ls"}), *messages, call_update("completed", **end)]
    await import_lines(ledger.log, "s", "acp", [json.dumps(line).encode() for line in [*lines, prompt_response()]])
    (entry,) = [entry for entry in (await ledger.snapshot("s")).entries if isinstance(entry, ToolCall)]
    return entry


async def read_as_model(ledger: LocalLedger) -> ToolCall:
    snapshot = await ModelView(ledger.session("s")).snapshot()
    (entry,) = [entry for entry in snapshot.entries if isinstance(entry, ToolCall)]
    return entry


def run_command(db: str, *arguments: str) -> str:
    result = CliRunner().invoke(main, [*arguments, "--db", db.removeprefix("sqlite:///")])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("end", "output"),
    [
        ({}, "c" * 100 * KB),
        ({"rawOutput": "r" * 100 * KB}, "r" * 100 * KB),
        ({"rawOutput": {"rows": ["r" * 100 * KB]}}, {"rows": ["r" * 100 * KB]}),
        ({"rawOutput": "ok"}, "ok"),
        ({"rawOutput": "r" * 100 * KB, "content": CONTENT}, "r" * 100 * KB),
    ],
    ids=["no output", "large text", "large JSON", "small text", "both in one"],
)
async def test_an_output_does_not_replace_large_content(db: str, end: dict[str, Any], output: Any) -> None:
    """ENT4, S2.8: content that arrived before the end is in `show --full`; a model reads the output."""
    async with callslip.open(db) as ledger:
        entry = await store_session(ledger, call_update("in_progress", content=CONTENT), **end)
        assert entry.truncated == (output != "ok") == (entry.blob is not None)
        assert b"THE CHANGE" not in json.dumps(entry.content).encode()
        shown = await read_as_model(ledger)
        text = shown.output if isinstance(shown.output, str) else json.dumps(shown.output)
        assert text[:1] == (output[:1] if isinstance(output, str) else "{") and not shown.truncated
        assert ("r" * 10 * KB in text) == ("r" * 10 * KB in json.dumps(output))
        assert not await find_faults(ledger)
    value = json.loads(run_command(db, "show", entry.call_id, "--full", "--json"))["toolCall"]
    assert value["content"] == CONTENT and value["output"] == output and "truncated" not in value
    assert "THE CHANGE" in run_command(db, "show", entry.call_id, "--full")
    assert "content: only the beginning; --full shows all" in run_command(db, "show", entry.call_id)


@pytest.mark.anyio
@pytest.mark.parametrize("name", registry.exportable())
async def test_a_complete_output_beside_large_content_is_not_cut(db: str, name: str) -> None:
    """ENT4: no export says that the output is cut; those that show the content say that the content is."""
    async with callslip.open(db) as ledger:
        await store_session(ledger, content=CONTENT[:1], rawOutput="the complete output")
    text = run_command(db, "export", "s", "--format", name)
    body = text if name != "html" else text[text.index("<body") :]
    assert ("the complete output" in body) == (name != "otel")  # It has no texts unless they are requested.
    for mark in ('"truncated":true', '"truncated": true', "[... cut here", "Truncated. Full output", "output.size"):
        assert mark not in body
    assert ("(cut: only the beginning" in body) == (name == "acp")
    assert ("Content: only the beginning of 100" in body) == (name == "html")


@pytest.mark.anyio
async def test_a_complete_output_beside_large_content_is_for_the_model(db: str) -> None:
    """ENT4: a model reads the output, not the content; `show` prints the content separately."""
    async with callslip.open(db) as ledger:
        entry = await store_session(ledger, content=CONTENT, rawOutput={"stdout": "hello"})
        shown = await read_as_model(ledger)
        assert shown.output == {"stdout": "hello"}
    printed = run_command(db, "show", entry.call_id)
    assert "│ hello" in printed and "truncated" not in printed and "content: only the beginning" in printed


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["openai", "anthropic", "act-observe", "shell"])
async def test_content_of_a_call_without_an_output_is_a_cut_output(db: str, name: str) -> None:
    """ENT4: exports show the content as the output then, and a model reads its beginning and its end."""
    async with callslip.open(db) as ledger:
        entry = await store_session(ledger, content=DIFF)
        assert entry.output is None and entry.truncated and entry.blob is not None
        shown = await read_as_model(ledger)
        assert "/a.txt" in shown.output and "d" * 10 * KB in shown.output
    assert any(mark in run_command(db, "export", "s", "--format", name) for mark in ("cut", '"truncated":true'))


@pytest.mark.anyio
async def test_large_content_is_searched(db: str) -> None:
    """ENT4: a filter finds a text in content that is stored outside the log, beside a large output."""
    async with callslip.open(db) as ledger:
        entry = await store_session(
            ledger, call_update("in_progress", content=CONTENT), rawOutput="r" * 99 * KB + "END"
        )
        for text in ("THE CHANGE", "rEND"):
            assert [one.id for one in (await filter_entries(ledger.log, "s", text)).entries] == [entry.id]
