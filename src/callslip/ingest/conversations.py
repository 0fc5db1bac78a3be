"""The conversations that share a wire, and the connection that writes them: what import and `wrap` have in common.

Each conversation has a decoder, a session, and drafts that wait, message by message. A message that the ledger refuses
is kept as it came and spoils none of the others (C11).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import structs

from callslip.errors import InvalidInputError
from callslip.formats import registry
from callslip.formats.base import Decoder, unwrapped
from callslip.ingest.recorder import OpenCalls, as_it_came, belonging_together
from callslip.ledger import liveness
from callslip.ledger.event_log import EventLog
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import CallEvent, Chunks, Draft, Event
from callslip.model.names import NEW_CALL_PREFIX, check_session_name

MAX_PENDING_DRAFTS = 1000


class Conversation(msgspec.Struct):
    """One conversation. As long as its session is not known its drafts wait."""

    decoder: Decoder
    session: str = ""
    waiting: list[tuple[Any, list[Draft]]] = []
    kept: int = 0

    def keep(self, message: Any, drafts: list[Draft]) -> None:
        """Put the drafts of a message with the others that wait. Very many of them do not go into one write."""
        self.kept += 1
        named = [_told_apart(draft, self.kept) for draft in drafts]
        groups = belonging_together(named) if len(named) > MAX_PENDING_DRAFTS else [named]
        for start in range(0, len(groups) if named else 0, MAX_PENDING_DRAFTS):
            part = [draft for group in groups[start : start + MAX_PENDING_DRAFTS] for draft in group]
            self.waiting.append((message, part))


Write: TypeAlias = Callable[[Conversation, list[Draft]], Awaitable[None]]


class Conversations:
    """All conversations of one wire. `session_of` gives the session of a new one, "" if it is not known yet."""

    def __init__(
        self, format: str, session_of: Callable[[str], str], *, chunks: Chunks | None = None, started: int = 0
    ) -> None:
        self.format = format
        self.all: dict[str, Conversation] = {}
        self._session_of = session_of
        self._made = lambda: registry.decoder(format, chunks=chunks, started=started)
        self._splitter = registry.splitter(format, started=started)
        self._started = started
        self._made()  # A format that cannot be read is refused before anything is.

    def read(self, message: Any) -> list[tuple[Conversation, Any, list[Draft]]]:
        """Which conversations a message concerns, what each gets of it, and what that says."""
        found: list[tuple[Conversation, Any, list[Draft]]] = []
        for name, part, at in self._parts(message):
            talk = self.named(name)
            found.append((talk, part, [_timed(draft, at) for draft in talk.decoder.feed(part)]))
        return found

    def named(self, name: str) -> Conversation:
        """A conversation by its name on the wire; the first one has none."""
        talk = self.all.get(name)
        if talk is None:
            talk = self.all[name] = Conversation(self._made(), self._session_of(name))
        return talk

    def _parts(self, message: Any) -> list[tuple[str, Any, int]]:
        """Which conversations a message concerns, what each gets of it, and when it came, in ms; 0 if unknown."""
        if self._splitter is not None:
            return [(name, part, 0) for name, part in self._splitter.split(message)]
        bare, seconds = unwrapped(message)
        return [("", bare, int(self._started + seconds * 1000) if self._started and seconds else 0)]

    async def flush(self, write: Write) -> None:
        """Append what waits, in few writes. What could not be written waits on."""
        for talk in self.all.values():
            while talk.session and talk.waiting:
                await self._append(talk, _fitting(talk.waiting), write)

    async def _append(self, talk: Conversation, count: int, write: Write) -> None:
        """Append messages together; if one of them is refused, each by itself."""
        try:
            await write(talk, [draft for _, drafts in talk.waiting[:count] for draft in drafts])
        except InvalidInputError:
            if count == 1:
                return await self._apart(talk, write)
            for _ in range(count):
                await self._append(talk, 1, write)
            return
        del talk.waiting[:count]

    async def _apart(self, talk: Conversation, write: Write) -> None:
        """Append what one message says piece by piece, and in place of a refused piece the message (C11).

        A piece that was written does not wait any more, so that a disk which fails in between makes none come twice.
        """
        message, drafts = talk.waiting[0]
        groups = belonging_together(drafts)
        refusal: InvalidInputError | None = None
        while groups:
            try:
                await write(talk, groups[0])
            except InvalidInputError as error:
                refusal = await self._as_it_came(talk, groups[0], message, write, error) or refusal
            del groups[0]
            talk.waiting[0] = message, [draft for group in groups for draft in group]
        del talk.waiting[0]
        if refusal is not None:
            raise refusal

    async def _as_it_came(
        self, talk: Conversation, refused: list[Draft], message: Any, write: Write, error: InvalidInputError
    ) -> InvalidInputError | None:
        """Why not even that could be kept: it would stand in the way of all that follow."""
        if isinstance(refused[0].event, ev.Raw):
            return error
        try:
            await write(talk, [as_it_came(refused, self.format, message)])
        except InvalidInputError as again:
            return again
        return None


def _fitting(waiting: list[tuple[Any, list[Draft]]]) -> int:
    """How many messages go into one write: all, or as many as do not keep other writers waiting."""
    total = 0
    for number, (_, drafts) in enumerate(waiting):
        total += len(drafts)
        if total > MAX_PENDING_DRAFTS:
            return max(1, number)
    return len(waiting)


def _told_apart(draft: Draft, number: int) -> Draft:
    """A draft whose name for a new call is not that of another message in the same write."""
    event = draft.event
    if not isinstance(event, CallEvent) or not event.call.startswith(NEW_CALL_PREFIX):
        return draft
    return structs.replace(
        draft, event=structs.replace(event, call=f"{NEW_CALL_PREFIX}{number}.{event.call[len(NEW_CALL_PREFIX) :]}")
    )


class Connection:
    """Who writes. It owns the calls that it tells of, and its end is theirs (C5)."""

    def __init__(self, log: EventLog, source: str) -> None:
        self._log = log
        self._source = source
        self._owner = liveness.new_owner()
        self._open = OpenCalls()

    async def append(self, session: str, drafts: Sequence[Draft]) -> list[Event]:
        """Append drafts. What they made is to be shown to `see`."""
        return await self._log.append(session, drafts, source=self._source, owner=self._owner)

    def see(self, event: Event) -> None:
        """Follow which calls are open."""
        self._open.see(event)

    async def close(self, reason: str) -> None:
        """End every call that is still open: those it owns, and those that an ended turn gave a moment."""
        await self._log.close_owner(self._owner, reason)
        await self._open.end(self._log, ev.CallLost, reason)


def joined(first: str, between: str, name: str) -> str:
    """A session's name made of two; of a second one that may not stand in a name only its digest does."""
    try:
        return check_session_name(f"{first}{between}{name}")
    except InvalidInputError:
        return check_session_name(f"{first[:150]}{between}{codec.digest(name.encode())[:12]}")


def _timed(draft: Draft, at: int) -> Draft:
    timed = draft.event.at or not at
    return draft if timed else structs.replace(draft, event=structs.replace(draft.event, at=at))
