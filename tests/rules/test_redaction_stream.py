"""Secrets in input of any kind: the bytes of the database file do not contain them.

Text that may begin a secret is held in the store until the next chunk, so the file may contain the beginning of a
secret, but never enough to match its pattern. `test_redaction.py` tests the splitting itself, `test_held_text.py` the
time after which held text is released.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import callslip
from callslip.api.ledger import LocalLedger
from callslip.model import events as ev
from callslip.model.entries import Message, ToolCall
from callslip.model.events import EVENT_TYPES, Alias, Draft
from callslip.settings import Settings
from tests.support.invariants import find_faults, open_with_settings, read_events, sound_ledger

pytestmark = pytest.mark.anyio

SECRET = "sk-Z9qR7wXk2LmN4pTvB8sDfG6hJ3aQ5eYcU1iO0z"
MARK = "[redacted:api-key]"
MIN_SECRET_CHARS = 24  # "sk-" and twenty characters are always a key.
NEVER_S = 3600.0  # No test here waits for the time after which held text is released.


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with sound_ledger(db, checkpoint_every=4, text_hold=NEVER_S) as instance:
        yield instance


def find_secret_parts(folder: Path) -> list[str]:
    """Return the parts of the secret in the files of a folder that are too long to be a beginning."""
    data = b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
    parts = [SECRET[at : at + MIN_SECRET_CHARS] for at in range(len(SECRET) - MIN_SECRET_CHARS + 1)]
    return [part for part in parts if part.encode() in data]


def split_text(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


TEXT = f"The key is {SECRET}, keep it."

STREAMS = {
    "message": lambda text: ev.MessageDelta(text=text, chunks="delta"),
    "message, undeclared": lambda text: ev.MessageDelta(text=text),
    "thought": lambda text: ev.ThoughtDelta(text=text, chunks="delta"),
    "output": lambda text: ev.CallProgress(text=text, aliases=(Alias("acp", "c"),)),
    "arguments": lambda text: ev.CallInputDelta(text=text, aliases=(Alias("acp", "c"),)),
}


def streamed_text(entry: Any) -> str:
    return entry.output_text or entry.input_text if isinstance(entry, ToolCall) else entry.content


@pytest.mark.parametrize("size", [1, 2, 5, 17, 100])
@pytest.mark.parametrize("stream", STREAMS)
async def test_a_secret_split_into_chunks_never_reaches_the_disk(
    ledger: LocalLedger, tmp_path: Path, stream: str, size: int
) -> None:
    """Split anywhere, in any kind of stream, each chunk acknowledged and durable before the next."""
    for piece in split_text(TEXT, size):
        await ledger.log.append("a", [STREAMS[stream](piece)])
        assert not find_secret_parts(tmp_path)
    await ledger.log.append("a", [ev.MessageUser(text="next")])
    shown = (await ledger.snapshot("a")).entries[0]
    assert streamed_text(shown) == TEXT.replace(SECRET, MARK)
    await ledger.log.project("a")
    assert not find_secret_parts(tmp_path)


@pytest.mark.parametrize("kind", sorted(EVENT_TYPES))
async def test_a_secret_in_any_field_never_reaches_the_disk(ledger: LocalLedger, tmp_path: Path, kind: str) -> None:
    """Titles, arguments, keys of objects, errors, reasons, options, and raw messages."""
    cls = EVENT_TYPES[kind]
    nested = {"a": [TEXT, {SECRET: TEXT}]}
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(cls):
        if field.name in ("text", "title", "reason", "detail", "description", "tool_name", "mode", "by", "option"):
            fields[field.name] = TEXT
        elif field.name in ("input", "output", "error", "content", "body", "usage", "notice", "progress"):
            fields[field.name] = nested
        elif field.name in ("entries", "commands", "modes", "models", "options") and cls is not ev.SessionInfo:
            fields[field.name] = [nested]
        elif cls is ev.UsageReported and field.name in ("id", "model"):
            fields[field.name] = {"id": "msg_1", "model": TEXT}[field.name]
    await ledger.log.append("a", [cls(**fields)])
    await ledger.log.append("a", [ev.MessageUser(text="next")])
    await ledger.log.project("a")
    assert not find_secret_parts(tmp_path)
    body = (await ledger.log.store.events("a", 0, 1))[0][1]
    assert not fields or MARK.encode() in body


async def test_events_that_are_not_applied_are_redacted(ledger: LocalLedger, tmp_path: Path) -> None:
    """C4: late, orphan, duplicate and replayed events are stored without secrets."""
    alias = (Alias("acp", "c"),)
    await ledger.log.append("a", [ev.CallStarted(aliases=alias), ev.CallCompleted(aliases=alias, output=TEXT)])
    verdicts = [
        (await ledger.log.append("a", [draft]))[0].verdict
        for draft in (
            ev.CallProgress(aliases=alias, text=TEXT),
            ev.CallInputDelta(aliases=alias, text=TEXT),
            ev.CallCompleted(aliases=alias, output=TEXT),
            ev.CallFailed(aliases=alias, error={"e": TEXT}),
            ev.CallLost(reason=TEXT),
            Draft(ev.CallProgress(aliases=alias, text=TEXT), witness=True),
        )
    ]
    assert verdicts == ["late", "late", "duplicate", "late", "orphan", "witness"]
    assert not find_secret_parts(tmp_path)


@pytest.mark.parametrize("caller", [None, "tok"])
async def test_a_caller_cannot_declare_a_part_of_a_text_whole(
    ledger: LocalLedger, tmp_path: Path, caller: str | None
) -> None:
    """RED1: only a session file that this process reads has whole texts, not an event or a body that names one."""
    source = "claude-code" if caller else ""
    event_source = "" if caller else "codex"
    for piece in split_text(TEXT, 16):
        for cls in (ev.MessageDelta, ev.ThoughtDelta):
            chunk = cls(text=piece, message_id="m", chunks="delta", source=event_source)
            for session, draft in (("chunks", chunk), ("drafts", Draft(chunk))):
                name = f"{session}-{cls.__name__}"
                await ledger.log.append(name, [draft], source=source, caller=caller)
    assert not find_secret_parts(tmp_path)


async def test_secrets_of_two_concurrent_streams_are_redacted(ledger: LocalLedger, tmp_path: Path) -> None:
    """Two calls write alternately, each in the middle of a secret."""
    calls = [(Alias("acp", name),) for name in ("one", "two", "three")]
    for pieces in zip(*(split_text(TEXT, 5) for _ in calls), strict=True):
        for alias, piece in zip(calls, pieces, strict=True):
            await ledger.log.append("a", [ev.CallProgress(aliases=alias, text=piece)])
    await ledger.log.append("a", [ev.CallCompleted(aliases=alias) for alias in calls])
    await ledger.log.append("a", [ev.MessageUser(text="next")])
    await ledger.log.project("a")
    outputs = [entry.output_text for entry in (await ledger.snapshot("a")).entries if isinstance(entry, ToolCall)]
    assert outputs == [TEXT.replace(SECRET, MARK)] * 3
    assert not find_secret_parts(tmp_path)


async def test_another_event_within_a_secret_does_not_reveal_it(ledger: LocalLedger, tmp_path: Path) -> None:
    """A title, a start or a plan between two pieces of an output: the output is still one text."""
    alias = (Alias("acp", "c"),)
    await ledger.log.append("a", [ev.CallStarted(aliases=alias)])
    between = [ev.CallProgress(aliases=alias, title="working"), ev.PlanUpdated(entries=[]), ev.SessionInfo(title="x")]
    for number, piece in enumerate(split_text(TEXT, 7)):
        await ledger.log.append("a", [ev.CallProgress(aliases=alias, text=piece), between[number % 3]])
    await ledger.log.append("a", [ev.CallCompleted(aliases=alias)])
    await ledger.log.project("a")
    (shown,) = [entry for entry in (await ledger.snapshot("a")).entries if isinstance(entry, ToolCall)]
    assert shown.output_text == TEXT.replace(SECRET, MARK)
    assert not find_secret_parts(tmp_path)


TEXT_ENDING_EVENTS = {
    "another message": ev.MessageDelta(text="x", message_id="other"),
    "a thought": ev.ThoughtDelta(text="x"),
    "a user message": ev.MessageUser(text="x"),
    "a call": ev.CallProposed(tool_name="t"),
    "output of a new call": ev.CallProgress(text="x"),
    "a request": ev.ApprovalRequested(tool_name="t"),
    "the end of the message": ev.MessageEnded(),
    "the end of the turn": ev.TurnEnded(),
    "another turn": ev.TurnStarted(),
    "a plan": ev.PlanUpdated(entries=[]),
    "a mode": ev.SessionMode(mode="x"),
    "capabilities": ev.SessionCapabilities(),
}


@pytest.mark.parametrize("name", TEXT_ENDING_EVENTS)
async def test_held_text_is_released_when_its_text_ends(ledger: LocalLedger, name: str) -> None:
    """Held text that is not a secret is released in its place as soon as nothing can be added to it."""
    await ledger.log.append("a", [ev.TurnStarted(), ev.MessageDelta(text="I like sk", message_id="m", chunks="delta")])
    assert [entry.content for entry in (await ledger.snapshot("a")).entries] == ["I like "]
    await ledger.log.append("a", [TEXT_ENDING_EVENTS[name]])
    shown = (await ledger.snapshot("a")).entries
    assert isinstance(shown[0], Message) and shown[0].content == "I like sk"


OTHER_EVENTS = {
    "usage": ev.SessionInfo(usage={"tokens": 5}),
    "commands": ev.SessionCommands(commands=[]),
    "a raw message": ev.Raw(body={}),
    "output of a call": ev.CallProgress(aliases=(Alias("acp", "c"),), text="x"),
    "a call begins": ev.CallStarted(aliases=(Alias("acp", "c"),)),
    "a call ends": ev.CallCompleted(aliases=(Alias("acp", "c"),)),
    "a late event": ev.CallProgress(aliases=(Alias("acp", "ended"),), text="x"),
    "an orphan": ev.CallLost(),
}


@pytest.mark.parametrize("name", OTHER_EVENTS)
async def test_an_event_that_does_not_end_a_text_does_not_reveal_its_secret(
    ledger: LocalLedger, tmp_path: Path, name: str
) -> None:
    """S2.12: a text continues after an event that adds no entry, and so does the secret in it."""
    ended = (Alias("acp", "ended"),)
    await ledger.log.append(
        "a", [ev.TurnStarted(), ev.CallProposed(aliases=(Alias("acp", "c"),)), ev.CallCompleted(aliases=ended)]
    )
    for piece in split_text(TEXT, 7):
        await ledger.log.append("a", [ev.MessageDelta(text=piece, chunks="delta"), OTHER_EVENTS[name]])
    await ledger.log.append("a", [ev.MessageEnded()])
    texts = [entry.content for entry in (await ledger.snapshot("a")).entries if isinstance(entry, Message)]
    assert texts == [TEXT.replace(SECRET, MARK)]
    await ledger.log.project("a")
    assert not find_secret_parts(tmp_path)


OUTPUT_ENDING_EVENTS = {
    "the call completes": ev.CallCompleted(aliases=(Alias("acp", "c"),)),
    "the call is lost": ev.CallLost(aliases=(Alias("acp", "c"),)),
    "the turn is cancelled": ev.TurnEnded(reason="cancelled"),
}


@pytest.mark.parametrize("name", OUTPUT_ENDING_EVENTS)
async def test_held_output_is_released_when_the_call_ends(ledger: LocalLedger, name: str) -> None:
    """For any kind of end, and no part of the output is late."""
    alias = (Alias("acp", "c"),)
    await ledger.log.append("a", [ev.TurnStarted(), ev.CallInputDelta(aliases=alias, text='{"a": "gh')])
    await ledger.log.append("a", [ev.CallStarted(aliases=alias), ev.CallProgress(aliases=alias, text="see sk")])
    (shown,) = (await ledger.snapshot("a")).entries
    assert (shown.input_text, shown.output_text) == ('{"a": "gh', "see ")
    await ledger.log.append("a", [OUTPUT_ENDING_EVENTS[name]])
    (shown,) = (await ledger.snapshot("a")).entries
    assert (shown.output_text, shown.late) == ("see sk", 0)
    row = await ledger.log.store.session("a")
    assert row is not None and row.carry == {}


async def test_held_output_is_released_when_the_approval_is_denied(ledger: LocalLedger) -> None:
    """A denial ends a call like any other end."""
    alias = (Alias("acp", "c"),)
    await ledger.log.append("a", [ev.CallProgress(aliases=alias, text="see sk"), ev.ApprovalRequested(aliases=alias)])
    await ledger.log.append("a", [ev.ApprovalRefused(aliases=alias, reason="no")])
    shown = (await ledger.snapshot("a")).entries[0]
    assert (shown.status, shown.output_text) == ("denied", "see sk")


async def test_held_arguments_are_released_when_the_approval_is_granted(ledger: LocalLedger) -> None:
    """No arguments follow an approval, so those that arrived before are complete."""
    alias = (Alias("acp", "c"),)
    await ledger.log.append(
        "a", [ev.ApprovalRequested(aliases=alias), ev.CallInputDelta(aliases=alias, text='{"a": "sk')]
    )
    assert (await ledger.snapshot("a")).entries[0].input_text == '{"a": "'
    await ledger.log.append("a", [ev.ApprovalGranted(aliases=alias)])
    shown = (await ledger.snapshot("a")).entries[0]
    assert (shown.status, shown.input_text) == ("queued", '{"a": "sk')


@pytest.mark.parametrize("answer", [ev.ApprovalRefused, ev.ApprovalWithdrawn])
async def test_a_second_answer_does_not_reveal_a_secret(
    ledger: LocalLedger, tmp_path: Path, answer: type[ev.ApprovalAnswer]
) -> None:
    """S2.7: it ends nothing, so the output of the approved call continues after it."""
    alias = (Alias("acp", "c"),)
    await ledger.log.append("a", [ev.ApprovalRequested(aliases=alias)])
    (request,) = await ledger.approvals()
    await ledger.log.append("a", [ev.ApprovalGranted(approval=request.id), ev.CallStarted(aliases=alias)])
    for piece in split_text(TEXT, 7):
        await ledger.log.append("a", [ev.CallProgress(aliases=alias, text=piece)])
        (second,) = await ledger.log.append("a", [answer(approval=request.id)])
        assert second.verdict == "late"
    await ledger.log.append("a", [ev.CallCompleted(aliases=alias)])
    shown = (await ledger.snapshot("a")).entries[0]
    assert (shown.status, shown.output_text) == ("completed", TEXT.replace(SECRET, MARK))
    await ledger.log.project("a")
    assert not find_secret_parts(tmp_path)


CRASHING_WRITER = """
import asyncio, os, sys, callslip
from callslip.model import events as ev
async def main():
    ledger = await callslip.open(sys.argv[1], callslip.Settings(text_hold=3600))
    await ledger.log.append("a", [ev.MessageDelta(text=sys.argv[2], chunks="delta")])
    os._exit(9)
asyncio.run(main())
"""


async def test_held_text_survives_a_killed_process(db: str, tmp_path: Path) -> None:
    """Each chunk is written by a process that dies right after: the secret is still found, and no text is lost."""
    for piece in split_text(TEXT, 13):
        assert subprocess.run([sys.executable, "-c", CRASHING_WRITER, db, piece]).returncode == 9
        assert not find_secret_parts(tmp_path)
    async with await callslip.open(db) as ledger:
        await ledger.log.append("a", [ev.MessageEnded()])
        assert (await ledger.snapshot("a")).entries[0].content == TEXT.replace(SECRET, MARK)
        assert not await find_faults(ledger)
    assert not find_secret_parts(tmp_path)


async def test_redaction_patterns_are_configurable(tmp_path: Path) -> None:
    """Patterns of the settings are used like the default ones; without redaction everything is stored."""
    patterns = (("house", "house-", "0-9", 4),)
    async with await open_with_settings(f"sqlite:///{tmp_path / 'own' / 'l.db'}", secret_patterns=patterns) as ledger:
        await ledger.log.append("a", [ev.MessageUser(text=f"house-12345 {SECRET}")])
        assert (await read_events(ledger, "a"))[0].text == f"[redacted:house] {MARK}"
    async with await open_with_settings(f"sqlite:///{tmp_path / 'none' / 'l.db'}", redact=False) as ledger:
        await ledger.log.append("a", [ev.MessageDelta(text=TEXT)])
        assert (await read_events(ledger, "a"))[0].text == TEXT
    assert find_secret_parts(tmp_path / "none") and not find_secret_parts(tmp_path / "own")


pieces = st.lists(
    st.tuples(
        st.sampled_from(["m", "t", "x", "y"]), st.sampled_from([*split_text(TEXT, 6), SECRET, "sk-", " ", "plain "])
    ),
    min_size=1,
    max_size=25,
)


@given(pieces)
def test_no_interleaving_of_streams_reveals_a_secret(writes: list[tuple[str, str]]) -> None:
    """For any events in any order, no text of an entry contains a secret."""
    asyncio.run(write_interleaved(writes))


async def write_interleaved(writes: list[tuple[str, str]]) -> None:
    make_event: dict[str, Any] = {
        "m": STREAMS["message"],
        "t": STREAMS["thought"],
        "x": lambda text: ev.CallProgress(text=text, aliases=(Alias("acp", "x"),)),
        "y": lambda text: ev.CallProgress(text=text, aliases=(Alias("acp", "y"),)),
    }
    async with await callslip.open("sqlite:///:memory:", Settings(checkpoint_every=3, text_hold=NEVER_S)) as ledger:
        for stream, piece in writes:
            await ledger.log.append("a", [make_event[stream](piece)])
        await ledger.log.append("a", [ev.MessageUser(text="end")])
        for entry in (await ledger.snapshot("a")).entries:
            text = streamed_text(entry)
            assert ledger.log.redactor.text(text) == text
        assert not await find_faults(ledger)


# Values too large for an event


async def test_large_output_is_stored_as_a_blob(ledger: LocalLedger, tmp_path: Path) -> None:
    """S2.8: the entry has a preview, a mark and the size of the full value, which has no secrets."""
    output = "line\n" * 50_000 + TEXT + "\nend" * 50_000
    async with ledger.session("a").call("cat") as call:
        call.complete(output)
    (shown,) = (await ledger.snapshot("a")).entries
    assert isinstance(shown, ToolCall) and shown.truncated and shown.blob is not None
    full_output = await ledger.blob(shown.blob.hash)
    assert full_output.decode() == output.replace(SECRET, MARK)
    assert shown.blob.size == len(full_output) and shown.blob.media == "text/plain"
    assert shown.output == output[: ledger.log.settings.preview]
    assert (await call.result()).state == "completed" and not find_secret_parts(tmp_path)


async def test_large_json_is_stored_as_a_blob(ledger: LocalLedger) -> None:
    """S2.8: it reads back as the same value."""
    rows = [{"number": number, "name": f"row {number} \u00e4\U0001f600"} for number in range(5000)]
    await ledger.log.append("a", [ev.CallCompleted(output=rows), ev.Raw(body={"all": rows})])
    stored = await read_events(ledger, "a")
    assert [event.blob.media for event in stored] == ["application/json"] * 2
    assert msgspec.json.decode(await ledger.blob(stored[0].blob.hash)) == rows
    assert msgspec.json.decode(await ledger.blob(stored[1].blob.hash)) == {"all": rows}
    assert all(len(msgspec.json.encode(event)) < 4096 for event in stored)


async def test_equal_outputs_are_stored_once(ledger: LocalLedger, tmp_path: Path) -> None:
    """S2.8: by their content, for any writer and any number of writes."""
    output = "the same\n" * 20_000
    await asyncio.gather(
        *(ledger.log.append(session, [ev.CallCompleted(output=output)]) for session in ("a", "a", "b", "b"))
    )
    hashes = [event.blob.hash for session in ("a", "b") for event in await read_events(ledger, session)]
    assert len(hashes) == 4 and len(set(hashes)) == 1
    connection = apsw.Connection(str(tmp_path / "ledger.db"), flags=apsw.SQLITE_OPEN_READONLY)
    assert connection.execute("SELECT count(*), sum(size) FROM blobs").fetchall() == [(1, len(output))]
    connection.close()


async def test_output_at_the_limit_stays_in_its_event(ledger: LocalLedger) -> None:
    """S2.8: a value at the limit is not truncated; one byte more is."""
    limit = ledger.log.settings.inline_limit
    await ledger.log.append("a", [ev.CallCompleted(output="x" * limit), ev.CallCompleted(output="x" * (limit + 1))])
    fits, too_large = (await ledger.snapshot("a")).entries
    assert (fits.truncated, fits.blob, len(fits.output)) == (False, None, limit)
    assert too_large.truncated and too_large.blob.size == limit + 1


async def test_a_preview_never_splits_a_character(db: str) -> None:
    """S2.8: the preview of text in any script is text."""
    async with await open_with_settings(db, preview=1001, inline_limit=2000) as ledger:
        await ledger.log.append("a", [ev.CallCompleted(output="\U0001f600" * 1000)])
        (shown,) = (await ledger.snapshot("a")).entries
        assert shown.output == "\U0001f600" * 250 and not await find_faults(ledger)


async def test_an_incomplete_blob_of_a_dead_process_is_written_again(db: str, tmp_path: Path) -> None:
    """S2.8: a blob exists once it is complete; a later write of the same value completes it."""
    data = b"z" * 3_000_000
    async with await callslip.open(db) as ledger:
        identity = await ledger.log.store.put_blob(data, "text/plain")
    connection = apsw.Connection(str(tmp_path / "ledger.db"))
    connection.execute("UPDATE blobs SET whole = 0; DELETE FROM blob_pieces WHERE number > 0").fetchall()
    connection.close()
    async with await callslip.open(db) as ledger:
        assert await ledger.log.store.blob(identity) is None
        assert await ledger.log.store.put_blob(data, "text/plain") == identity
        assert await ledger.blob(identity) == data


async def test_deleting_a_session_deletes_its_unshared_blobs(db: str, tmp_path: Path) -> None:
    """S2.8: blobs that another session uses stay."""
    async with await open_with_settings(db, inline_limit=1000) as ledger:
        await ledger.log.append(
            "a", [ev.CallCompleted(output="only a " * 1000), ev.CallCompleted(output="shared " * 1000)]
        )
        await ledger.log.append("b", [ev.CallCompleted(output="shared " * 1000)])
        unshared, shared = [event.blob.hash for event in await read_events(ledger, "a")]
        await ledger.delete("a")
        assert await ledger.log.store.blob(unshared) is None
        assert await ledger.blob(shared) == b"shared " * 1000
        assert not await find_faults(ledger)


async def test_retention_deletes_blobs_of_removed_events_and_unused_blobs(db: str, tmp_path: Path) -> None:
    """S2.8"""
    async with await open_with_settings(db, inline_limit=1000) as ledger:
        await ledger.log.append("a", [ev.CallCompleted(output="old " * 1000, at=1000), ev.MessageUser(text="x")])
        (old, _) = await read_events(ledger, "a")
        orphan = await ledger.log.store.put_blob(b"orphan" * 1000, "text/plain")
        await ledger.log.append("a", [ev.CallCompleted(output="new " * 1000)])
        new = (await read_events(ledger, "a"))[-1].blob.hash
        connection = apsw.Connection(str(tmp_path / "ledger.db"))
        connection.execute("UPDATE blobs SET created_at = 1000 WHERE hash = ?", (orphan,)).fetchall()
        connection.close()
        assert await ledger.prune(60) == 1
        assert await ledger.log.store.blob(old.blob.hash) is None and await ledger.log.store.blob(orphan) is None
        assert await ledger.blob(new) == b"new " * 1000 and not await find_faults(ledger)


async def test_retention_keeps_the_blob_of_an_open_call(db: str) -> None:
    """S2.8: the content of a call that still runs is there after its event was removed, and goes with the call."""
    content = [{"type": "content", "content": {"type": "text", "text": "shown " * 1000}}]
    one = (Alias("acp", "1"),)
    async with await open_with_settings(db, inline_limit=1000) as ledger:
        events = [ev.CallStarted(aliases=one, at=1000), ev.CallProgress(aliases=one, content=content, at=1000)]
        await ledger.log.append("a", events)
        hash = (await read_events(ledger, "a"))[-1].blob.hash
        assert await ledger.prune(60) == 2
        assert msgspec.json.decode(await ledger.blob(hash)) == content and not await find_faults(ledger)
        await ledger.log.append("a", [ev.CallCompleted(aliases=one, at=2000), ev.MessageUser(text="x")])
        assert await ledger.blob(hash) and not await find_faults(ledger)
        assert await ledger.prune(60) == 1
        assert await ledger.log.store.blob(hash) is None and not await find_faults(ledger)


async def test_a_blob_deleted_before_its_event_is_written_again(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2.8: after the blob is stored, another process may delete the last event that used it."""
    async with await open_with_settings(db, inline_limit=1000) as ledger:
        await ledger.log.append("a", [ev.CallCompleted(output="shared " * 1000)])
        put_blob = ledger.log.store.put_blob
        is_deleted = False

        async def put_then_delete(data: bytes, media: str) -> str:
            nonlocal is_deleted
            identity = await put_blob(data, media)
            if not is_deleted:
                is_deleted = True
                await ledger.delete("a")
                assert await ledger.log.store.blob(identity) is None
            return identity

        monkeypatch.setattr(ledger.log.store, "put_blob", put_then_delete)
        (event,) = await ledger.log.append("b", [ev.CallCompleted(output="shared " * 1000)])
        assert isinstance(event, ev.CallCompleted) and event.blob is not None and is_deleted
        assert await ledger.blob(event.blob.hash) == b"shared " * 1000


async def test_the_text_of_a_deleted_session_is_not_in_the_file(db: str, tmp_path: Path) -> None:
    """Deleted texts are not in any free page of the closed file."""
    async with await open_with_settings(db, inline_limit=1000) as ledger:
        await ledger.log.append("a", [ev.MessageUser(text="confide " * 20), ev.CallCompleted(output="confide " * 5000)])
        await ledger.log.append("b", [ev.MessageUser(text="other")])
        await ledger.log.project("a")
        await ledger.delete("a")
    assert b"confide confide" not in (tmp_path / "ledger.db").read_bytes()
