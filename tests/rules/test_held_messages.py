"""Held text of undeclared chunks: which chunks belong to one message, and which repeat each other (S2.3, S2.4)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callslip.api.ledger import LocalLedger
from callslip.model import events as ev
from tests.support.invariants import sound_ledger

pytestmark = pytest.mark.anyio

SECRET = "sk-Z9qR7wXk2LmN4pTvB8sDfG6hJ3aQ5eYcU1iO0z"
MARK = "[redacted:api-key]"


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with sound_ledger(db, text_hold=3600.0) as instance:
        yield instance


async def write_chunks(ledger: LocalLedger, *chunks: tuple[str, str]) -> list[str]:
    """Write chunks with their message ids, each by itself, and return the texts of the entries."""
    for text, message_id in chunks:
        await ledger.log.append("a", [ev.MessageDelta(text=text, message_id=message_id)])
    await ledger.log.append("a", [ev.MessageEnded()])
    return [entry.content for entry in (await ledger.snapshot("a")).entries]


@pytest.mark.parametrize("ids", [("", "m1", "m1"), ("m1", "", ""), ("m1", "", "m1"), ("", "", "m1")])
async def test_a_message_id_on_some_chunks_does_not_reveal_a_secret(
    ledger: LocalLedger, tmp_path: Path, ids: tuple[str, str, str]
) -> None:
    """ENT11: chunks with and without the id of a message are one text, so a secret over them is replaced."""
    parts = ("The key is sk-Z9qR7w", SECRET[9:20], SECRET[20:] + ", keep it.")
    assert await write_chunks(ledger, *zip(parts, ids, strict=True)) == [f"The key is {MARK}, keep it."]
    assert all(SECRET[9:].encode() not in path.read_bytes() for path in tmp_path.iterdir() if path.is_file())


async def test_held_text_stays_in_its_message(ledger: LocalLedger) -> None:
    """S2.3: a chunk without an id takes over that of its message, so the next message does not get its end."""
    texts = await write_chunks(ledger, ("It is s", "m1"), ("o s", ""), ("Next", "m2"))
    assert texts == ["It is so s", "Next"]


async def test_equal_chunks_that_may_begin_a_secret_prove_nothing(ledger: LocalLedger) -> None:
    """ENT11: a repeated snapshot is no delta, so the growing texts of a cumulative source are recognized afterwards."""
    first, second = await write_chunks(ledger, ("sk-", ""), ("sk-", "")), ("I'll check", "I'll check the tasks")
    assert first == ["sk-sk-"]
    assert (await write_chunks(ledger, *((text, "") for text in second)))[1:] == [second[-1]]


@pytest.mark.parametrize("more", [("Z9qR", "Z9qR"), ("Z9qR", "Z9qR7w"), ("7", "7", "7")])
async def test_equal_deltas_within_a_secret_do_not_reveal_it(
    ledger: LocalLedger, tmp_path: Path, more: tuple[str, ...]
) -> None:
    """ENT11: a chunk that continues a secret is a delta, so a chunk that begins like it continues the secret too."""
    rest = "Xk2LmN4pTvB8sDfG6hJ3aQ5eYcU1iO0z"
    chunks = ("The key is sk-", *more, rest, ", keep it.")
    assert await write_chunks(ledger, *((text, "") for text in chunks)) == [f"The key is {MARK}, keep it."]
    assert all(rest.encode() not in path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
