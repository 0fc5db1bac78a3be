"""Record the messages of one conversation into a session as they arrive.

A recorded stream is passed on chunk by chunk, each after its events are durable. Input that the decoder holds back,
such as half of a tag, is durable with the chunk that completes it: the stream ends with its process in any case.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from callslip.formats import registry
from callslip.formats.base import Decoder, RequiresValidation
from callslip.ingest.answer_place import set_answer_place
from callslip.ingest.raw_fallback import append_or_keep_raw
from callslip.ingest.stream_parser import StreamParser
from callslip.ledger.aio import finish_despite_cancel
from callslip.model import events as ev
from callslip.model.events import CallEnd, CallEvent, Chunks, Draft, Event, replace_fields
from callslip.rules.lifecycle import TERMINAL_STATES, is_terminal

if TYPE_CHECKING:
    from callslip.ledger.session_log import SessionLog

T = TypeVar("T")
INTERRUPTED = "the stream was interrupted before this call could be run"


class Recorder:
    """Record one conversation of a format into one session.

    With `delivers_answers` the program passes answers in the ledger to its requests for approval on to the agent.
    """

    def __init__(
        self,
        log: SessionLog,
        session: str,
        format: str,
        *,
        chunks: Chunks | None = None,
        requires_validation: RequiresValidation | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        self.chunks = chunks
        self.requires_validation = requires_validation
        self.delivers_answers = False
        self.format = format
        self._open_calls = OpenCalls()
        self._log = log
        self._session = session
        required = settings_validation(log, format) if requires_validation is None else requires_validation
        self._decoder = decoder or registry.decoder(format, chunks=chunks, requires_validation=required)
        self._plain_object = registry.plain_object(format)
        self._keeps_times = registry.find(format).stored_messages
        self._parser = StreamParser(registry.find(format).plain)

    async def feed(self, chunk: Any) -> list[Event]:
        """Record a chunk of the stream, and return its events, one for each draft."""
        events: list[Event] = []
        for message in self._parser.feed(chunk if self._plain_object is None else self._plain_object(chunk)):
            events += await self.write(self._decoder.feed(message), message)
        return events

    async def finish(self) -> list[Event]:
        """Record the regular end of the stream. Its open calls are left to the program that runs them."""
        events = await self.feed(b"\n")
        ended = registry.find(self.format).ended
        events = events if ended is None else events + await self.feed(ended)
        self._open_calls = OpenCalls()
        return events

    async def write(self, drafts: list[Draft], message: Any = None) -> list[Event]:
        """Append the drafts of a message, or the message as raw where they are refused."""
        events: list[Event] = []

        async def append(drafts: list[Draft]) -> None:
            # The time in a chunk is when the response began, by another clock: the ledger's time is used instead.
            if not self._keeps_times and any(draft.event.at for draft in drafts):
                drafts = replace_fields(drafts, Event, at=0)
            written = await self._log.append(self._session, drafts, source=self.format, owner=self._log.owner)
            for event in written:
                self._open_calls.update(event)
            events.extend(written)

        drafts = list(drafts) if self.delivers_answers else set_answer_place(list(drafts), self.format)
        await append_or_keep_raw(append, drafts, self.format, message)
        return events

    async def close(self, reason: str, detail: str = "") -> None:
        """Record the early end of the stream: end its turn and its open calls, and drop an incomplete line."""
        self._parser = StreamParser(registry.find(self.format).plain)
        await self.write(self._decoder.close(reason))
        call_reason = f"{INTERRUPTED}: {detail}" if detail else INTERRUPTED
        end_class = ev.CallCancelled if reason == "cancelled" else ev.CallLost
        await self._open_calls.end(self._log, end_class, call_reason)


def settings_validation(log: SessionLog, format: str) -> RequiresValidation | None:
    """Return which tools the settings of a ledger require a user to accept; None if the format has no use for it."""
    known = registry.FORMATS.get(format)
    tools = log.required_tools if known is not None and known.has_validation else ()
    return dict.fromkeys(tools, True) if tools else None


class OpenCalls:
    """The open calls of a stream or a connection."""

    def __init__(self) -> None:
        self._calls: set[str] = set()

    def update(self, event: Event) -> None:
        """Track an event that was appended."""
        if isinstance(event, CallEvent) and event.verdict == "applied":
            (self._calls.discard if is_terminal(event) else self._calls.add)(event.call)

    async def end(self, log: SessionLog, end_class: type[CallEnd], reason: str) -> None:
        """End the calls that are still open."""
        for call in sorted(self._calls):
            record = await log.get_call(call)
            if record is not None and record.state not in TERMINAL_STATES:
                await log.append(record.session, [end_class(call=call, reason=reason)], source="callslip")
        self._calls.clear()


async def record_stream(recorder: Recorder, stream: AsyncIterable[T] | Iterable[T]) -> AsyncGenerator[T]:
    """Yield the chunks of a stream, each after it is recorded."""
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
    except BaseException:  # Cancelled, or the reader stopped reading.
        await finish_despite_cancel(recorder.close("cancelled"))
        raise
