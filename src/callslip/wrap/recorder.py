"""The process that writes the ledger: pieces from the tape become lines, messages, drafts and events.

It never gives up while the front is there: what cannot be written waits, is tried again, and the front is told. When
the tape ends, so does the line: turns and calls that are open end with the reason that the front gave.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import UNSET, structs

from callslip.api.ledger import Ledger, open_ledger
from callslip.errors import InvalidInputError, ReadOnlyStoreError, StoreError
from callslip.formats.acp.wire import CLIENT as FROM_CLIENT
from callslip.formats.acp.wire import Message
from callslip.ingest.conversations import Connection, Conversation, Conversations
from callslip.ingest.importer import LINE_BYTES
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Draft
from callslip.settings import Settings
from callslip.wrap.approval_watch import ApprovalWatcher
from callslip.wrap.frames import AGENT, ANSWER, CLIENT, ENDED, GAP, GONE, HELD, POLICY, RELEASED, Frame, Unpacking
from callslip.wrap.session_names import Names

ACP, MCP = "acp", "mcp"
DIRECTIONS = {
    ACP: {CLIENT: "c2a", AGENT: "a2c", POLICY: "c2a", HELD: "a2c", ANSWER: "c2a"},
    MCP: {CLIENT: "c2s", AGENT: "s2c"},
}
CUT_OFF = "callslip wrap was killed before this call ended"
UNREAD = 4 * 2**20
WAITING = 2**20
RETRY_DELAY_S = 0.25
MAX_RETRY_DELAY_S = 5.0
LAST_TRIES = 3
MAX_RAW_CHARS = 2048


class Inlet(asyncio.Protocol):
    """The end of the tape. What is not read yet stays in the pipe beyond a limit."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._data = bytearray()
        self._came = asyncio.Event()
        self._pipe: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        self._pipe = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._came.set()
        if len(self._data) > UNREAD and self._pipe is not None:
            self._pipe.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
        self._came.set()

    async def read(self) -> bytes:
        """All that has come; nothing at the end."""
        await self._came.wait()
        data = bytes(self._data)
        self._data.clear()
        if not self.ended.is_set():
            self._came.clear()
            if self._pipe is not None:
                self._pipe.resume_reading()
        return data


class GaveUp(Exception):
    """The tape has ended and the ledger still cannot be written."""


class RecorderProcess:
    """One run. `tell` says to the front what became of it.

    What is said before any session has begun waits for it, up to `hold` bytes, to be recorded at its beginning.
    """

    def __init__(
        self,
        url: str,
        prepare: Callable[[], None],
        names: Names,
        tell: Callable[[str], None],
        *,
        format: str = ACP,
        hold: int = WAITING,
        settings: Settings | None = None,
    ) -> None:
        self._url, self._prepare, self._names, self._tell, self._hold = url, prepare, names, tell, hold
        self._settings = settings
        self._format, self._directions = format, DIRECTIONS[format]
        self._talks = Conversations(format, self._session_of)
        self._wanted: dict[str, tuple[str, bool]] = {}
        self._begun: dict[bytes, Line] = {}
        self._count = self._lost = self._done = self._unnamed = self._held = 0
        self._problem = self._nameless = ""
        self._why = CUT_OFF

    async def run(self, pipe: int) -> None:
        """From the first piece to the last."""
        self._inlet = Inlet()
        await asyncio.get_running_loop().connect_read_pipe(lambda: self._inlet, os.fdopen(pipe, "rb", 0))
        frames = Unpacking()
        try:
            async with await self._insist(self._opened) as ledger:
                self._ledger, self._line = ledger, Connection(ledger.log, self._format)
                self._requests = ApprovalWatcher(ledger, self._tell)
                while data := await self._inlet.read():
                    for frame in frames.push(data):
                        self._take(frame)
                    await self._insist(self._flush)
                    self._requests.give_back()
                    self._recorded()
                await self._finish()
        except GaveUp:
            self._tell(f"+{self._done - self._unnamed}")

    async def _opened(self) -> Ledger:
        self._prepare()
        ledger = await open_ledger(self._url, self._settings)
        if ledger.log.store.read_only:
            await ledger.close()
            raise ReadOnlyStoreError(f"{self._url.removeprefix('sqlite:///')} cannot be written")
        return ledger

    # Taking

    def _take(self, frame: Frame) -> None:
        if frame.kind == ENDED:
            self._why = frame.data.decode()
        elif frame.kind == RELEASED:
            self._requests.released(frame.data.decode())
        elif frame.kind == GONE:
            self._requests.client_gone()
        elif frame.kind == GAP:
            self._begun.pop(frame.data, None)
        else:
            self._split(frame)

    def _split(self, frame: Frame) -> None:
        begun = self._begun.setdefault(frame.kind, Line())
        *ends, rest = frame.data.split(b"\n")
        for end in ends:
            begun.add(end)
            self._count += 1
            self._message(frame, begun)
        if rest:
            begun.add(rest)

    def _message(self, frame: Frame, line: Line) -> None:
        """One line. Empty ones say nothing."""
        size, said = line.size, line.take()
        if said == "":
            return
        reason = ""
        if frame.kind == POLICY:
            said, reason = said["msg"], said["reason"]
        row = {"t": frame.at, "dir": self._directions[frame.kind], "msg": said}
        for talk, part, drafts in self._read(row):
            self._want(talk, part)
            talk.keep(row, self._meant(frame, talk, said, drafts, reason))
            self._requests.heard(talk, part)
            self._held += 0 if talk.session else size

    def _meant(self, frame: Frame, talk: Conversation, said: Any, drafts: list[Draft], reason: str) -> list[Draft]:
        """What a message says, by the way it went."""
        if frame.kind == HELD:
            return self._requests.take(talk, said, drafts, frame.at)
        if frame.kind == ANSWER:
            return self._requests.answered(said, drafts)
        return [_by_policy(draft, reason) for draft in drafts] if reason else drafts

    def _read(self, row: Any) -> list[tuple[Conversation, Any, list[Draft]]]:
        try:
            return self._talks.read(row)
        except Exception:  # A defect of the decoder costs one message its meaning, not the rest their record (C11).
            return [(self._talks.named(""), None, [Draft(ev.Raw(format=self._format, body=row))])]

    # Naming

    def _session_of(self, name: str) -> str:
        if not self._names.given:
            return ""
        return self._names.other(name) if name else self._names.given

    def _want(self, talk: Conversation, part: Any) -> None:
        """A conversation is named after the first session id in it; who said it shows whether it is a new one."""
        if self._names.given or not isinstance(part, Message) or not part.session:
            return
        if part.conversation not in self._wanted:
            self._wanted[part.conversation] = part.session, part.direction != FROM_CLIENT
            talk.session = ""

    async def _name(self, *, every: bool = False) -> None:
        """Name conversations whose session is known by now. One without any does not wait for ever."""
        for name, talk in self._talks.all.items():
            if talk.session or not talk.waiting:
                continue
            if wanted := self._wanted.get(name):
                talk.session = await self._names.session(self._ledger, wanted[0], made=wanted[1])
            elif every or self._held > self._hold:
                self._nameless = self._nameless or await self._names.nameless(self._ledger)
                talk.session = self._nameless

    # Writing

    async def _flush(self) -> None:
        await self._name()
        await self._append()

    async def _append(self) -> None:
        while True:
            try:
                return await self._talks.flush(self._write)
            except InvalidInputError as error:
                self._lost += 1
                self._trouble(f"a message was refused ({error})")

    async def _write(self, talk: Conversation, drafts: list[Draft]) -> None:
        if self._format == MCP and any(isinstance(draft.event, ev.SessionInfo) for draft in drafts):
            drafts = await self._untitled(talk.session, drafts)
        try:
            made = await self._line.append(talk.session, drafts)
        except (StoreError, InvalidInputError):
            raise
        except Exception as error:  # Whatever it is, it must not stand in the way of all that follow.
            raise InvalidInputError("message", f"unexpected {type(error).__name__}: {error}") from error
        for event in made:
            self._line.see(event)
            self._requests.see(talk.session, event)

    async def _untitled(self, session: str, drafts: list[Draft]) -> list[Draft]:
        """A server's own name is the title only of a session that has none."""
        row = await self._ledger.store.session(session)
        return [_without_title(draft) for draft in drafts] if row is not None and row.title else drafts

    async def _insist(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Until it is done; GaveUp if the tape has ended and it still cannot be."""
        pause, tries = RETRY_DELAY_S, 0
        while True:
            try:
                done = await work()
                self._trouble("")
                return done
            except (StoreError, OSError) as error:
                self._trouble(str(error))
            tries += self._inlet.ended.is_set()
            if tries >= LAST_TRIES:
                raise GaveUp
            await self._rest(RETRY_DELAY_S if tries else pause)
            pause = min(2 * pause, MAX_RETRY_DELAY_S)

    async def _rest(self, seconds: float) -> None:
        """Some time, but no longer than the tape goes on."""
        if self._inlet.ended.is_set():
            return await asyncio.sleep(seconds)
        try:
            await asyncio.wait_for(self._inlet.ended.wait(), seconds)
        except TimeoutError:
            pass

    def _trouble(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._tell("-" + " ".join(problem.split()))

    def _recorded(self) -> None:
        """Tell how many lines are written, or wait for nothing but the name of their session."""
        self._done = self._count - self._lost
        self._unnamed = sum(len(talk.waiting) for talk in self._talks.all.values())
        self._tell(f"+{self._done}")

    # The end

    async def _finish(self) -> None:
        """No more will come: what is open ends, by the reason that the front gave."""
        if self._why == CUT_OFF:  # A front that lives ends its lines, or counts them as lost.
            for kind in self._begun.keys() & {CLIENT, AGENT}:
                self._message(Frame(kind, time.time(), b""), self._begun[kind])
        await self._requests.close()
        for talk in self._talks.all.values():
            talk.keep(None, [_because(draft, self._why) for draft in talk.decoder.close("eof")])
        await self._insist(lambda: self._name(every=True))
        await self._insist(self._append)
        self._recorded()
        await self._insist(lambda: self._line.close(self._why))


class Line:
    """A line that comes in pieces. Of one that is too long only the beginning is kept."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.size += len(piece)
        if self.size > LINE_BYTES:
            self._pieces = [b"".join(self._pieces)[:MAX_RAW_CHARS]]

    def take(self) -> Any:
        """What the whole line says: JSON, or text if it is none; "" for a blank one. The next one begins."""
        line, size = b"".join(self._pieces).strip(), self.size
        self._pieces, self.size = [], 0
        if size > LINE_BYTES:
            return {"bytes": size, "beginning": line.decode("utf-8", "backslashreplace")}
        try:
            return codec.parse_json(line, max_bytes=LINE_BYTES) if line else ""
        except InvalidInputError:
            return line.decode("utf-8", "backslashreplace")


def _by_policy(draft: Draft, reason: str) -> Draft:
    """The answer is one that the client never gave."""
    if not isinstance(draft.event, ev.ApprovalAnswer):
        return draft
    return structs.replace(draft, event=structs.replace(draft.event, by="policy", reason=reason))


def _without_title(draft: Draft) -> Draft:
    if not isinstance(draft.event, ev.SessionInfo):
        return draft
    return structs.replace(draft, event=structs.replace(draft.event, title=UNSET))


def _because(draft: Draft, why: str) -> Draft:
    if not isinstance(draft.event, ev.TurnEnded):
        return draft
    return structs.replace(draft, event=structs.replace(draft.event, detail=why))
