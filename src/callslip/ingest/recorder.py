"""Taking the messages of one foreign conversation into a session, while they come.

A stream that is recorded is passed on chunk by chunk, each after it is durable (C6). Chunks are whatever its client
yields: plain JSON values, an SDK's objects, lines of an SSE response as text, or the bytes of one as they arrive.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import structs, to_builtins

from callslip.errors import InvalidInputError
from callslip.formats import registry
from callslip.formats.base import Decoder
from callslip.ledger.aio import finish_despite_cancel
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import CallEnd, CallEvent, Chunks, Draft, Event
from callslip.model.names import NEW_CALL_PREFIX
from callslip.rules.lifecycle import TERMINAL_STATES, is_terminal

if TYPE_CHECKING:
    from callslip.ledger.event_log import EventLog

T = TypeVar("T")
MAX_LINE_CHARS = 256 * 2**20
BROKE_OFF = "the stream broke off before this call could be run"


class Recorder:
    """One conversation of a format, going into one session."""

    def __init__(
        self,
        log: EventLog,
        session: str,
        format: str,
        *,
        chunks: Chunks | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        self.chunks = chunks
        self.format = format
        self._open = OpenCalls()
        self._log = log
        self._session = session
        self._decoder = decoder or registry.decoder(format, chunks=chunks)
        self._wire = StreamParser(registry.find(format).plain)

    async def feed(self, chunk: Any) -> list[Event]:
        """What a chunk of the stream made: one event for each draft, in order."""
        made: list[Event] = []
        for message in self._wire.messages(chunk):
            made += await self.write(self._decoder.feed(message), message)
        return made

    async def finish(self) -> list[Event]:
        """The stream ended as it should; its last line may lack its end. Whoever runs its calls has them now."""
        made = await self.feed(b"\n")
        ended = registry.find(self.format).ended
        made = made if ended is None else made + await self.feed(ended)
        self._open = OpenCalls()
        return made

    async def write(self, drafts: list[Draft], message: Any = None) -> list[Event]:
        """Append what was drafted from a message; of what the ledger refuses, as it came (C11)."""
        made = await append_or_keep_raw(self._append, drafts, self.format, message)
        for event in made:
            self._open.see(event)
        return made

    async def _append(self, drafts: Sequence[Draft]) -> list[Event]:
        """What comes live happens now: the time in a chunk is mostly when its answer began, by another clock."""
        drafts = [_now(draft) for draft in drafts]
        return await self._log.append(self._session, drafts, source=self.format, owner=self._log.owner)

    async def close(self, reason: str, detail: str = "") -> None:
        """The stream is over before its time: so are its last line, the turn that it began, and its calls."""
        self._wire = StreamParser(registry.find(self.format).plain)
        await self.write(self._decoder.close(reason))
        why = f"{BROKE_OFF}: {detail}" if detail else BROKE_OFF
        ending = ev.CallCancelled if reason == "cancelled" else ev.CallLost
        await self._open.end(self._log, ending, why)


class OpenCalls:
    """The calls that a stream or a connection told of and that have not ended."""

    def __init__(self) -> None:
        self._calls: set[str] = set()

    def see(self, event: Event) -> None:
        """Follow what was appended."""
        if isinstance(event, CallEvent) and event.verdict == "applied":
            (self._calls.discard if is_terminal(event) else self._calls.add)(event.call)

    async def end(self, log: EventLog, ending: type[CallEnd], reason: str) -> None:
        """Nobody goes on with them (C5)."""
        for call in sorted(self._calls):
            row = await log.store.call(call)
            if row is not None and row.state not in TERMINAL_STATES:
                await log.append(row.session, [ending(call=call, reason=reason)], source="callslip")
        self._calls.clear()


def _now(draft: Draft) -> Draft:
    return structs.replace(draft, event=structs.replace(draft.event, at=0)) if draft.event.at else draft


async def append_or_keep_raw(
    append: Callable[[Sequence[Draft]], Awaitable[list[Event]]], drafts: list[Draft], format: str, message: Any
) -> list[Event]:
    """Append the drafts of a message together; if that is refused, one by one, and the refused ones as raw (C11)."""
    if not drafts:
        return []
    try:
        return await append(drafts)
    except InvalidInputError:
        if all(isinstance(draft.event, ev.Raw) for draft in drafts):
            raise
    made: list[Event] = []
    for group in belonging_together(drafts):
        try:
            made += await append(group)
        except InvalidInputError:
            made += await append([as_it_came(group, format, message)])
    return made


def belonging_together(drafts: Iterable[Draft]) -> list[list[Draft]]:
    """Drafts that name the same new call cannot be parted; all others can."""
    groups: dict[str, list[Draft]] = {}
    for number, draft in enumerate(drafts):
        call = draft.event.call if isinstance(draft.event, CallEvent) else ""
        groups.setdefault(call if call.startswith(NEW_CALL_PREFIX) else f"#{number}", []).append(draft)
    return list(groups.values())


def as_it_came(refused: list[Draft], format: str, message: Any) -> Draft:
    """In place of refused drafts their message; where there is none, at the end of a stream, the drafts themselves."""
    body = codec.to_json([to_builtins(draft.event) for draft in refused] if message is None else message)
    return structs.replace(refused[0], event=ev.Raw(format=format, body=body), witness=False)


async def record_stream(recorder: Recorder, stream: AsyncIterable[T] | Iterable[T]) -> AsyncGenerator[T]:
    """The stream, recorded."""
    try:
        if isinstance(stream, AsyncIterable):
            async for chunk in stream:
                await recorder.feed(chunk)
                yield chunk
        else:
            for chunk in stream:
                await recorder.feed(chunk)
                yield chunk
        await recorder.finish()
    except Exception as error:
        await finish_despite_cancel(recorder.close("error", f"{type(error).__name__}: {error}"[:500]))
        raise
    except BaseException:  # Cancelled, or nobody reads on.
        await finish_despite_cancel(recorder.close("cancelled"))
        raise


class StreamParser:
    """Chunks of a stream as messages."""

    def __init__(self, plain_text: bool) -> None:
        self._plain_text = plain_text
        self._begun: list[bytes] = []
        self._size = 0

    def messages(self, chunk: Any) -> list[Any]:
        """The messages that are whole once this chunk has come."""
        if isinstance(chunk, bytes | bytearray):
            return self._bytes(bytes(chunk))
        if isinstance(chunk, str):
            return [chunk] if self._plain_text else self._text(chunk.encode("utf-8", "surrogatepass").strip())
        return [as_json(chunk)]

    def _bytes(self, data: bytes) -> list[Any]:
        """A line that comes in pieces is put together once, at its end (C12)."""
        *ends, rest = data.split(b"\n")
        found: list[Any] = []
        for end in ends:
            found += self._line(b"".join([*self._begun, end]))
            self._begun, self._size = [], 0
        self._begun.append(rest)
        self._size += len(rest)
        if self._size > MAX_LINE_CHARS:
            raise InvalidInputError("stream", "a line of it is too long", MAX_LINE_CHARS)
        return found

    def _text(self, text: bytes) -> list[Any]:
        """A line, a value over several lines, or several lines."""
        lines = text.split(b"\n")
        if len(lines) == 1:
            return self._line(text)
        try:
            return [codec.parse_json(text)]
        except InvalidInputError:
            return [message for line in lines for message in self._line(line)]

    def _line(self, line: bytes) -> list[Any]:
        """A line of an SSE response, or a JSON value; what is neither is passed on as the text it is."""
        line = line.strip()
        if line.startswith(b"data:"):
            line = line[5:].strip()
        elif not line or line.startswith((b":", b"event:", b"id:", b"retry:")):
            return []
        if line == b"[DONE]":
            return []
        try:
            return [codec.parse_json(line)]
        except InvalidInputError:
            return [line.decode("utf-8", "replace")]


def as_json(chunk: Any) -> Any:
    """An SDK's object as the JSON it was read from."""
    dump = getattr(chunk, "model_dump", None)
    if callable(dump):
        return cast(Any, dump(mode="json", by_alias=True, exclude_unset=True, warnings=False))
    return codec.to_json(chunk)
