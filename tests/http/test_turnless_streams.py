"""Sessions whose producers send no turns: every format that streams a turn streams a block of the history instead.

`tests/laws/test_stream_laws.py` compares the content with the history after every event, for every client.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import callslip
from callslip.api.ledger import LocalLedger
from callslip.cli import main
from callslip.formats import registry
from callslip.model import events as ev
from callslip.model.events import Alias, Event
from callslip.settings import Settings
from tests.support.live_server import TIMEOUT_S, StreamedResponse, fetch, requesting, running, serving_ledger
from tests.support.paths import TESTS

pytestmark = pytest.mark.anyio

SETTINGS = Settings(synchronous="NORMAL", reaper_interval=3600.0, text_hold=0.0)
S = "s"
ONE, TWO = (Alias("shell", "cmd-0-0"),), (Alias("shell", "cmd-0-1"),)
GO, MORE = ev.MessageUser(text="Go."), ev.MessageUser(text="More.")
STARTED = ev.CallStarted(aliases=ONE, tool_name="shell", input={"command": "ls"})
COMPLETED = ev.CallCompleted(aliases=ONE, output="seen")

ENDS = {
    "shell": b'"type":"done"',
    "act-observe": b'"type":"complete"',
    "ag-ui": b'"type":"RUN_FINISHED"',
    **dict.fromkeys(("ui-v5", "ui-v6", "ui-v7"), b'"type":"finish"'),
    "vercel-v4": b"\nd:",
}
"""The last chunk of a turn in each format."""


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db, SETTINGS) as ledger:
        yield ledger


@pytest.fixture(params=sorted(ENDS))
def format(request: pytest.FixtureRequest) -> str:
    return request.param


def text_delta(text: str) -> ev.MessageDelta:
    return ev.MessageDelta(text=text, chunks="delta")


async def append(ledger: LocalLedger, *events: Event) -> None:
    await ledger.log.append(S, list(events))


def stream_url(url: str, format: str, **query: str) -> str:
    return f"{url}/v1/sessions/{S}/stream?" + "&".join(
        f"{name}={text}" for name, text in {"format": format, **query}.items()
    )


async def read_stream(url: str, format: str, **query: str) -> bytes:
    """Return what a stream has so far."""
    reply = await fetch(stream_url(url, format, follow="false", **query))
    assert reply.status == 200, reply.text
    return reply.body


async def read_to_end(reply: StreamedResponse) -> bytes:
    async with asyncio.timeout(TIMEOUT_S):
        async for _ in reply.pieces():
            pass
    return reply.body


async def agent_ids(url: str, format: str) -> list[str]:
    """Return the ids of the agent's messages in the history, oldest first."""
    messages = (await fetch(f"{url}/v1/sessions/{S}?format={format}")).json()["messages"]
    ids = [message["id"] for message in messages if message.get("role") == "assistant"]
    return ids[::-1] if registry.find(format).newest_first else ids


# One block, live


async def test_a_session_without_turns_is_streamed_live(ledger: LocalLedger, format: str) -> None:
    """S0.10, STR1, STR3: under the ids of the history; the end is sent once, after the next user message."""
    await append(ledger, GO)
    async with serving_ledger(ledger) as url, requesting(stream_url(url, format)) as reply:
        for event, shown in ((text_delta("Look."), b"Look."), (STARTED, b"cmd-0-0"), (COMPLETED, b"seen")):
            await append(ledger, event)
            late = await read_stream(url, format)
            assert b"Look." in late and shown in late
            assert ENDS[format] not in late + await reply.until(shown)
        await append(ledger, MORE)
        body = await read_to_end(reply)
        assert body.count(ENDS[format]) == 1
        ids = await agent_ids(url, format) if format != "act-observe" else []
        assert format in ("shell", "act-observe") or (ids and all(f'"{id}"'.encode() in body for id in ids))
        assert b"seen" not in await read_stream(url, format)
    types = {type(event) for event in [event async for event in ledger.events(S)]}
    assert types == {ev.MessageUser, ev.MessageDelta, ev.CallStarted, ev.CallCompleted}


async def test_the_end_waits_for_the_calls_of_the_block(ledger: LocalLedger, format: str) -> None:
    """STR3: a call that is open when the user writes is still shown to its end."""
    await append(ledger, text_delta("Look."), STARTED)
    async with serving_ledger(ledger) as url, requesting(stream_url(url, format)) as reply:
        assert b"cmd-0-0" in await read_stream(url, format)
        await reply.until(b"cmd-0-0")
        await append(ledger, MORE, text_delta("Other."))
        assert ENDS[format] not in await read_stream(url, format, turn="msg-1")
        await append(ledger, COMPLETED)
        body = await read_to_end(reply)
        assert b"seen" in body and b"Other." not in body and body.count(ENDS[format]) == 1


async def test_a_turn_ends_the_block_before_it(ledger: LocalLedger, format: str) -> None:
    """STR3, STR4: the next reader without a name gets the turn, and after it what follows outside of turns."""
    await append(ledger, text_delta("Look."))
    async with serving_ledger(ledger) as url, requesting(stream_url(url, format)) as reply:
        assert b"Look." in await read_stream(url, format)
        await reply.until(b"Look.")
        await append(ledger, ev.TurnStarted(), text_delta("In a turn."))
        assert b"In a turn." not in await read_to_end(reply)
        assert reply.body.count(ENDS[format]) == 1
        assert b"In a turn." in await read_stream(url, format)
        await append(ledger, ev.TurnEnded(), text_delta("After it."))
        body = await read_stream(url, format)
        assert b"After it." in body and b"In a turn." not in body
        assert ENDS[format] in await read_stream(url, format, turn="t1")


@pytest.mark.parametrize("format", ["ui-v6", "ag-ui"])
async def test_what_precedes_the_first_text_is_streamed_with_it(ledger: LocalLedger, format: str) -> None:
    """STR1: a reader that waits for the first text also gets the plan before it, which the message shows."""
    await append(ledger, ev.PlanUpdated(entries=[{"content": "Look around", "status": "pending"}]))
    async with serving_ledger(ledger) as url, requesting(stream_url(url, format)) as reply:
        async with asyncio.timeout(TIMEOUT_S):
            while b"callslip_readers 1\n" not in (await fetch(f"{url}/metrics")).body:
                await asyncio.sleep(0.01)
        await append(ledger, text_delta("Look."))
        assert b"Look." in await read_stream(url, format)
        body = await reply.until(b"Look.")
        assert b"Look around" in body and b'"msg-1"' in body


# Several readers


async def test_a_reader_gets_the_newest_block_while_another_reads_the_one_before(ledger: LocalLedger) -> None:
    """STR4: the older block still has an open call. Readers share a stream only if they read the same block."""
    await append(ledger, GO, STARTED)
    async with serving_ledger(ledger) as url, requesting(stream_url(url, "shell")) as old:
        assert b"cmd-0-0" in await read_stream(url, "shell")
        await old.until(b"cmd-0-0")
        await append(ledger, MORE, text_delta("Other."))
        async with requesting(stream_url(url, "shell")) as new, requesting(stream_url(url, "shell")) as second:
            for reply in (new, second):
                assert b"cmd-0-0" not in await reply.until(b"Other.")
            await append(ledger, COMPLETED)
            assert b"seen" in await read_to_end(old) and b"Other." not in old.body
            await append(ledger, text_delta("Still."))
            for reply in (new, second):
                assert b"seen" not in await reply.until(b"Still.")


async def test_a_reader_that_reconnects_gets_the_block_from_its_start(ledger: LocalLedger) -> None:
    """STR4: as in a turn, also if the browser sends the last id that it received."""
    await append(ledger, GO, text_delta("Look."), STARTED)
    async with serving_ledger(ledger) as url:
        assert b"tool-start" in await read_stream(url, "shell")
        async with requesting(stream_url(url, "shell")) as first:
            assert b"id: 3\n" in await first.until(b"tool-start")
        await append(ledger, COMPLETED)
        async with requesting(stream_url(url, "shell"), headers={"last-event-id": "3"}) as again:
            body = await again.until(b"tool-result")
        assert b"Look." in body and b"tool-start" in body and b"id: 4\n" in body


# Names


async def test_a_block_is_named_by_the_id_of_any_of_its_messages(ledger: LocalLedger, format: str) -> None:
    """STR4: so a reader that knows a message of the history can follow it, also after later ones."""
    await append(ledger, GO, text_delta("Look."), MORE, text_delta("Other."), ev.TurnStarted(), GO, text_delta("Last."))
    async with serving_ledger(ledger) as url:
        first, second = [await read_stream(url, format, turn=name) for name in ("msg-1", "msg-3")]
        assert b"Look." in first and b"Other." not in first and ENDS[format] in first
        assert b"Other." in second and b"Look." not in second and ENDS[format] in second
        assert [await read_stream(url, format, turn=name) for name in ("msg-2", "msg-4")] == [first, second]


@pytest.mark.parametrize("name", ["msg-0", "msg-6", "msg-99", "msg--1", "msg-1x", "msg-" + "9" * 30])
async def test_a_name_of_no_block_is_not_found(ledger: LocalLedger, name: str) -> None:
    """STR4: no such message, or one that is in a turn."""
    await append(ledger, GO, text_delta("Look."), ev.MessageEnded(), ev.TurnStarted(), text_delta("In a turn."))
    async with serving_ledger(ledger) as url:
        reply = await fetch(stream_url(url, "shell", turn=name, follow="false"))
        assert (reply.status, reply.json()["detail"]) == (404, f"no turn {name!r} in session 's'")


async def test_a_turn_that_is_named_like_a_message_is_found(ledger: LocalLedger) -> None:
    """STR4: the name of a turn wins."""
    await append(ledger, text_delta("Outside."), ev.TurnStarted(turn="msg-1"), text_delta("Inside."), ev.TurnEnded())
    async with serving_ledger(ledger) as url:
        body = await read_stream(url, "shell", turn="msg-1")
        assert b"Inside." in body and b"Outside." not in body


# Retention, old files, the command line, chats


async def test_a_pruned_block_is_streamed_as_the_history_has_it(ledger: LocalLedger, format: str) -> None:
    """STR2: what retention removed is in neither."""
    old = [ev.MessageUser(text="Go.", at=1), ev.MessageDelta(text="Old.", chunks="delta", at=1), ev.MessageEnded(at=1)]
    await append(ledger, *old, STARTED, COMPLETED)
    await ledger.log.prune(3600.0)
    async with serving_ledger(ledger) as url:
        body = await read_stream(url, format)
        assert b"seen" in body and b"Old." not in body
        ids = await agent_ids(url, format) if format not in ("act-observe", "shell") else []
        assert all(f'"{id}"'.encode() in body for id in ids)


def test_a_session_of_an_old_ledger_is_streamed(tmp_path: Path, format: str) -> None:
    """STR2: its calls are in no turn, and the stream has those that the history has."""
    db = tmp_path / "ledger.db"
    db.write_bytes((TESTS / "fixtures" / "ledger-0.1" / "ledger.db").read_bytes())
    arguments = ["export", "commands", "--format", format, "--db", str(db)]
    history, stream = [CliRunner().invoke(main, [*arguments, *more]).stdout for more in ((), ("--stream",))]
    ids = set(re.findall(r'"(?:commandId|toolCallId|execution_id)":"([^"]+)"', history))
    assert len(ids) > 5
    assert [id for id in ids if f'"{id}"' not in stream] == []


async def test_the_command_line_takes_the_name_of_a_message(ledger: LocalLedger, db: str) -> None:
    """STR4: an unknown one is an error that lists the turns."""
    await append(ledger, GO, text_delta("Look."), MORE, text_delta("Other."))

    async def export(turn: str) -> Any:
        arguments = ["export", S, "--format", "shell", "--stream", "--turn", turn, "--db", db]
        return await asyncio.to_thread(CliRunner().invoke, main, arguments)

    found, missing = await export("msg-2"), await export("msg-9")
    assert "Look." in found.stdout and "Other." not in found.stdout and '"done"' in found.stdout
    assert missing.exit_code != 0 and "no turn 'msg-9'" in missing.stderr


async def test_a_chat_client_continues_the_block_that_waited_for_its_answer(ledger: LocalLedger) -> None:
    """STR5: it receives what is new in its message; the answer of a call outside of turns is accepted as in a turn."""
    request_event = ev.ApprovalRequested(aliases=TWO, tool_name="shell", input={"command": "rm"})
    await append(ledger, GO, text_delta("Look."), STARTED, COMPLETED, ev.CallProposed(aliases=TWO), request_event)
    (request,) = await ledger.approvals(session=S)
    part = {"type": "dynamic-tool", "toolCallId": "cmd-0-1", "toolName": "shell", "state": "approval-responded"}
    message = {
        "id": "msg-2",
        "role": "assistant",
        "parts": [{**part, "approval": {"id": request.id, "approved": True}}],
    }

    async def echo(chat: Any) -> str:
        return "unused"

    async with running(callslip.chat(ledger, echo)) as url:
        body = json.dumps({"id": S, "messages": [message]}).encode()
        headers = {"content-type": "application/json"}
        async with requesting(f"{url}/", "POST", headers=headers, body=body) as reply:
            assert reply.status == 200
            await append(ledger, ev.CallCompleted(aliases=TWO, output="gone"), text_delta("Removed."), MORE)
            stream = await read_to_end(reply)
        assert b"gone" in stream and b"Removed." in stream and b"Look." not in stream
        assert b'"messageId":"msg-2"' in stream and stream.count(ENDS["ui-v6"]) == 1
