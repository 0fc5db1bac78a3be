"""The recorder process: turn frames from the front into lines, messages, drafts and events of the ledger.

While the front runs, a write that fails is retried, and the front receives the problem. When the front closes its pipe,
turns and calls that are still open end with the reason that the front sent.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import UNSET

from callslip.api.ledger import Ledger, open_ledger
from callslip.errors import InvalidInputError, ReadOnlyStoreError, StoreError
from callslip.formats.acp.wire import CLIENT, Message
from callslip.formats.json_fields import as_dict, as_str
from callslip.ingest.conversations import Connection, Conversation, Conversations
from callslip.ingest.stream_parser import MAX_LINE_BYTES
from callslip.ledger.aio import wait_for_event
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Draft, replace_fields
from callslip.settings import Settings
from callslip.wrap.approval_watch import ApprovalWatcher
from callslip.wrap.frames import (
    Frame,
    FrameDecoder,
    Kind,
    decode_policy_answer,
    decode_text,
    encode_count,
    encode_text,
)
from callslip.wrap.session_names import SessionNames

ACP, MCP = "acp", "mcp"
DIRECTIONS = {
    ACP: {
        Kind.CLIENT_BYTES: "c2a",
        Kind.AGENT_BYTES: "a2c",
        Kind.POLICY_ANSWER: "c2a",
        Kind.REQUEST_HELD: "a2c",
        Kind.PERSON_REQUEST_HELD: "a2c",
        Kind.ANSWER_SENT: "c2a",
    },
    MCP: {Kind.CLIENT_BYTES: "c2s", Kind.AGENT_BYTES: "s2c"},
}
FRONT_KILLED = "callslip wrap was killed before this call ended"
MAX_UNREAD_BYTES = 4 * 2**20
MAX_UNNAMED_BYTES = 2**20
RETRY_DELAY_S = 0.25
MAX_RETRY_DELAY_S = 5.0
FINAL_TRIES = 3
MAX_RAW_BYTES = 2048


class FrameReader(asyncio.Protocol):
    """Reads the pipe from the front. Beyond a limit, unread bytes stay in the pipe."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._data = bytearray()
        self._readable = asyncio.Event()
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._readable.set()
        if len(self._data) > MAX_UNREAD_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()
        self._readable.set()

    async def read(self) -> bytes:
        """Wait for bytes and return all of them; b"" at the end."""
        await self._readable.wait()
        data = bytes(self._data)
        self._data.clear()
        if not self.ended.is_set():
            self._readable.clear()
            if self._transport is not None:
                self._transport.resume_reading()
        return data


class GaveUpError(Exception):
    """The front has ended and the ledger still cannot be written."""


class RecorderProcess:
    """Records one run. `reply` sends a frame to the front.

    Messages that precede the first session wait for it, up to `max_unnamed_bytes`, and are recorded in it.
    """

    def __init__(
        self,
        url: str,
        prepare: Callable[[], None],
        names: SessionNames,
        reply: Callable[[Kind, bytes], None],
        *,
        format: str = ACP,
        chunks: ev.Chunks | None = None,
        max_unnamed_bytes: int = MAX_UNNAMED_BYTES,
        settings: Settings | None = None,
    ) -> None:
        self._url, self._prepare, self._names, self._reply = url, prepare, names, reply
        self._max_unnamed_bytes, self._settings = max_unnamed_bytes, settings
        self._format, self._directions = format, DIRECTIONS[format]
        self._conversations = Conversations(format, self._initial_session, chunks=chunks)
        self._agent_sessions: dict[str, tuple[str, bool]] = {}  # By conversation: its session id, and if it is new.
        self._partial_lines: dict[Kind, PartialLine] = {}
        self._line_count = self._refused_count = self._recorded_count = self._unnamed_count = self._unnamed_bytes = 0
        self._problem = self._unnamed_session = ""
        self._end_reason = FRONT_KILLED

    async def run(self, pipe: int) -> None:
        """Record frames until the front closes its pipe."""
        self._reader = FrameReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: self._reader, os.fdopen(pipe, "rb", 0))
        frames = FrameDecoder()
        try:
            async with await self._retry(self._open_ledger) as ledger:
                self._log, self._connection = ledger.log, Connection(ledger.log, self._format)
                self._requests = ApprovalWatcher(ledger.log, self._reply)
                while data := await self._reader.read():
                    await self._requests.read_clock()
                    for frame in frames.feed(data):
                        self._handle(frame)
                    await self._retry(self._flush)
                    self._requests.release_unrecorded()
                    self._report_count()
                await self._finish()
        except GaveUpError:
            self._reply(Kind.LINES_RECORDED, encode_count(self._recorded_count - self._unnamed_count))

    async def _open_ledger(self) -> Ledger:
        self._prepare()
        ledger = await open_ledger(self._url, self._settings)
        if ledger.log.store.read_only:
            await ledger.close()
            raise ReadOnlyStoreError(f"{ledger.log.store.display_name} cannot be written")
        return ledger

    # Reading frames

    def _handle(self, frame: Frame) -> None:
        if frame.kind is Kind.AGENT_ENDED:
            self._end_reason = decode_text(frame.payload)
        elif frame.kind is Kind.REQUEST_RELEASED:
            self._requests.on_released(frame.payload)
        elif frame.kind is Kind.CLIENT_CLOSED:
            self._requests.on_client_closed()
        elif frame.kind is Kind.LINES_MISSING:
            self._partial_lines.pop(Kind(frame.payload), None)
        elif frame.kind is Kind.POLICY_ANSWER:
            line, reason = decode_policy_answer(frame.payload)
            self._split_lines(frame.kind, line, frame.at, reason)
        else:
            self._split_lines(frame.kind, frame.payload, frame.at)

    def _split_lines(self, kind: Kind, data: bytes, at: float, reason: str = "") -> None:
        line = self._partial_lines.setdefault(kind, PartialLine())
        *ends, rest = data.split(b"\n")
        for end in ends:
            line.add(end)
            self._line_count += 1
            self._read_line(kind, line, at, reason)
        if rest:
            line.add(rest)

    def _read_line(self, kind: Kind, line: PartialLine, at: float, reason: str = "") -> None:
        """Decode a line and queue its drafts. A blank line has none."""
        size, message = line.size, line.take()
        if message == "":
            return
        row = {"t": at, "dir": self._directions[kind], "msg": message}
        for conversation, part, drafts in self._decode(row):
            self._note_session(conversation, part)
            if kind in (Kind.REQUEST_HELD, Kind.PERSON_REQUEST_HELD):
                needs_person = kind is Kind.PERSON_REQUEST_HELD
                drafts = self._requests.add(conversation, message, drafts, at, needs_person=needs_person)
            elif kind is Kind.ANSWER_SENT:
                drafts = self._requests.on_answer_sent(message, drafts)
            elif reason:
                # The policy is the author of the answer, because the client did not give it.
                drafts = replace_fields(drafts, ev.ApprovalAnswer, by="policy", reason=reason)
            conversation.keep(row, drafts)
            self._requests.on_message(conversation, part)
            self._unnamed_bytes += 0 if conversation.session else size

    def _decode(self, row: Any) -> list[tuple[Conversation, Any, list[Draft]]]:
        try:
            return self._conversations.read(row)
        except Exception:  # A bug of the decoder must not stop the recording: the message is kept as raw JSON.
            return [(self._conversations.named(""), None, [Draft(ev.Raw(format=self._format, body=row))])]

    # Naming sessions

    def _initial_session(self, conversation: str) -> str:
        if not self._names.chosen:
            return ""
        return self._names.secondary(conversation) if conversation else self._names.chosen

    def _note_session(self, conversation: Conversation, part: Any) -> None:
        """Note the first session id in a conversation, which names it. An id that the agent sends first is new.

        The name of the agent may be a part of that name.
        """
        if not isinstance(part, Message):
            return
        if part.kind == "answer" and part.method == "initialize":
            self._names.set_agent_name(as_str(as_dict(as_dict(part.result).get("agentInfo")).get("name")))
        if not part.session or part.conversation in self._agent_sessions:
            return
        self._agent_sessions[part.conversation] = part.session, part.direction != CLIENT
        if self._names.chosen:
            conversation.keep(None, [_foreign_id(part.session)])
        else:
            conversation.session = ""

    async def _name_sessions(self, *, all: bool = False) -> None:
        """Name conversations with a known session id. Others get a name once they exceed the limit, or with `all`."""
        for name, conversation in self._conversations.all.items():
            if conversation.session or not conversation.waiting:
                continue
            if session := self._agent_sessions.get(name):
                conversation.session = await self._names.for_agent_id(self._log, session[0], is_new=session[1])
                conversation.waiting.insert(0, (None, [_foreign_id(session[0])]))
            elif all or self._unnamed_bytes > self._max_unnamed_bytes:
                self._unnamed_session = self._unnamed_session or await self._names.for_unnamed(self._log)
                conversation.session = self._unnamed_session

    # Writing

    async def _flush(self) -> None:
        await self._name_sessions()
        await self._append()

    async def _append(self) -> None:
        while True:
            try:
                return await self._conversations.flush(self._write)
            except InvalidInputError as error:
                self._refused_count += 1
                self._set_problem(f"a message was refused ({error})")

    async def _write(self, conversation: Conversation, drafts: list[Draft]) -> None:
        if self._format == MCP and any(isinstance(draft.event, ev.SessionInfo) for draft in drafts):
            row = await self._log.store.session(conversation.session)
            if row is not None and row.title:  # The server's name is the title only of a session without one.
                drafts = replace_fields(drafts, ev.SessionInfo, title=UNSET)
        try:
            events = await self._connection.append(conversation.session, drafts)
        except (StoreError, InvalidInputError):
            raise
        except Exception as error:  # A message that cannot be written must not block the next ones.
            raise InvalidInputError("message", f"unexpected {type(error).__name__}: {error}") from error
        for event in events:
            self._connection.track(event)
            self._requests.on_event(conversation.session, event)

    async def _retry(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Retry until it succeeds. Raise GaveUpError if the front has ended and it still fails."""
        delay_s, tries = RETRY_DELAY_S, 0
        while True:
            try:
                result = await work()
                self._set_problem("")
                return result
            except (StoreError, OSError) as error:
                self._set_problem(str(error))
            tries += self._reader.ended.is_set()
            if tries >= FINAL_TRIES:
                raise GaveUpError
            if tries:
                await asyncio.sleep(RETRY_DELAY_S)
            else:
                await wait_for_event(self._reader.ended, delay_s)
            delay_s = min(2 * delay_s, MAX_RETRY_DELAY_S)

    def _set_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._reply(Kind.PROBLEM, encode_text(" ".join(problem.split())))

    def _report_count(self) -> None:
        """Send how many lines are recorded, or wait only for the name of their session."""
        self._recorded_count = self._line_count - self._refused_count
        self._unnamed_count = sum(len(conversation.waiting) for conversation in self._conversations.all.values())
        self._reply(Kind.LINES_RECORDED, encode_count(self._recorded_count))

    async def _finish(self) -> None:
        """End what is still open with the reason that the front sent."""
        if self._end_reason == FRONT_KILLED:  # Otherwise the front completes its lines, or counts them as lost.
            for kind in self._partial_lines.keys() & {Kind.CLIENT_BYTES, Kind.AGENT_BYTES}:
                self._read_line(kind, self._partial_lines[kind], time.time())
        await self._requests.close()
        for conversation in self._conversations.all.values():
            drafts = conversation.decoder.close("eof")
            conversation.keep(None, replace_fields(drafts, ev.TurnEnded, detail=self._end_reason))
        await self._retry(lambda: self._name_sessions(all=True))
        await self._retry(self._append)
        self._report_count()
        await self._retry(lambda: self._connection.close(self._end_reason))


def _foreign_id(agent_id: str) -> Draft:
    """Return the draft of the agent's own id of a session, by which the agent's file of it is found."""
    return Draft(ev.SessionInfo(foreign_id=agent_id), f"session.{codec.digest(agent_id.encode())}", "session")


class PartialLine:
    """A line that arrives in chunks. Only the beginning of a line that is too long is kept."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self.size = 0

    def add(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.size += len(chunk)
        if self.size > MAX_LINE_BYTES:
            self._chunks = [b"".join(self._chunks)[:MAX_RAW_BYTES]]

    def take(self) -> Any:
        """Return the JSON of the complete line, or its text if it is not JSON; "" if it is blank. Start a new line."""
        line, size = b"".join(self._chunks).strip(), self.size
        self._chunks, self.size = [], 0
        if size > MAX_LINE_BYTES:
            return {"bytes": size, "beginning": line.decode("utf-8", "backslashreplace")}
        try:
            return codec.parse_json(line, max_bytes=MAX_LINE_BYTES) if line else ""
        except InvalidInputError:
            return line.decode("utf-8", "backslashreplace")
