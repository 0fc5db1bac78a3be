"""Follow a session as frames: its events, or its entries as a snapshot and the patches after it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import NamedTuple

import msgspec

from callslip.api.find import find_session
from callslip.errors import CursorExpiredError, SlowReaderError
from callslip.ledger.event_log import EventLog
from callslip.ledger.queries import state_after
from callslip.rules.fold import SessionFold


class Frame(NamedTuple):
    """A piece of a session: its `snapshot`, the `patches` of one event, or the `event` itself. `body` is JSON."""

    kind: str
    seq: int
    body: bytes


async def follow_frames(log: EventLog, session: str, format: str, after: int | None) -> AsyncGenerator[Frame]:
    """Yield frames after a cursor, then new ones as they are written.

    Without a cursor `entries` start with a snapshot and `events` with the oldest event. A reader that falls behind is
    resumed; one whose events retention removed meanwhile receives a new snapshot.
    """
    has_started = False
    while True:
        read = _entry_frames if format == "entries" else _event_frames
        try:
            async with contextlib.aclosing(read(log, session, after)) as frames:
                async for frame in frames:
                    has_started, after = True, frame.seq
                    yield frame
        except SlowReaderError as error:
            after = error.cursor
        except CursorExpiredError:
            if format != "entries" or not has_started:
                raise
            await find_session(log, session)  # Raises if the session was deleted.
            after = None


async def _event_frames(log: EventLog, session: str, after: int | None) -> AsyncGenerator[Frame]:
    if after is None:
        after = (await find_session(log, session)).pruned_seq
    async with contextlib.aclosing(log.batches(session, after)) as batches:
        async for batch in batches:
            for stored in batch:
                yield Frame("event", stored.event.seq, stored.body)


async def _entry_frames(log: EventLog, session: str, after: int | None) -> AsyncGenerator[Frame]:
    if after is None:
        snapshot = await log.snapshot(session)
        yield Frame("snapshot", snapshot.seq, msgspec.json.encode(snapshot))
        after = snapshot.seq
    async with contextlib.aclosing(log.batches(session, after)) as batches:
        state: SessionFold | None = None
        async for batch in batches:
            if state is None:
                state = await state_after(log.store, session, after) if after else SessionFold(session)
            for stored in batch:
                seq = stored.event.seq
                yield Frame("patches", seq, msgspec.json.encode({"seq": seq, "patches": state.apply(stored.event)}))
