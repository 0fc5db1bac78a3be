"""What two sources recorded of one session: live, and from the session file of its agent.

Each prompt, text and end of a call is shown once. The source that comes second repeats it, and its event is a witness.
This finds repetitions among what is stored; `write` writes the events.
"""

from __future__ import annotations

from typing import TypeGuard, cast

import msgspec
from msgspec import structs

from callslip.model import events as ev
from callslip.model.events import Event
from callslip.model.names import TRANSCRIPT_SOURCES
from callslip.model.records import CallRecord, SessionRecord, hold_text
from callslip.rules.agent_report import describe_end, report_text
from callslip.rules.continued_text import find_missing_text, starts_before
from callslip.rules.merged_prompts import RecordedPrompts
from callslip.rules.merged_texts import (
    MAX_COMPARED,
    LiveTexts,
    beginning_of,
    comparable_text,
    match_chunk,
    pack_expected,
    unpack_expected,
)
from callslip.rules.projection import (
    CONTINUED_NAMESPACE,
    LIVE_NAMESPACE,
    LIVE_PROMPT,
    MESSAGE_NAMESPACE,
    TRANSCRIPT_NAMESPACE,
    TRANSCRIPT_READ,
    TURN_NAMESPACE,
)
from callslip.rules.redaction import Redactor
from callslip.rules.streamed_text import ends_text
from callslip.store.unit_of_work import UnitOfWork

LOOK_BACK_EVENTS = (100, 2000)
"""How many of the newest events may be read to find the text of the newest live message: first few, then more."""
MAX_TURN_EVENTS = 10_000
"""How many of the newest events of a turn are read to compare its texts."""
EXPECTED_STREAMS = {ev.MessageDelta: "expected message", ev.ThoughtDelta: "expected thought"}
"""Where the texts are stored that the session file has and that may arrive live, beside the texts that are held."""


class MergedSession:
    """The session of one write, and what was compared in it so far.

    `source` is that of events without one, and `is_posted` whether a caller of a server sends them.
    `is_repeated` is whether another source has recorded the prompt of the turn that starts, None if no prompt follows,
    and `is_same_turn` if it has recorded the turn, too. `repeated_message` is the newest text of the file that was
    recorded live without an id.
    """

    __slots__ = (
        "_has_live",
        "_is_posted",
        "_live_start",
        "_live_texts",
        "_now",
        "_prompts",
        "_redactor",
        "_session",
        "_source",
        "_unit",
        "is_repeated",
        "is_same_turn",
        "repeated_message",
    )

    def __init__(
        self, unit: UnitOfWork, session: SessionRecord, source: str, redactor: Redactor, *, is_posted: bool
    ) -> None:
        self._unit = unit
        self._session = session
        self._source = source
        self._redactor = redactor
        self._is_posted = is_posted
        self._now = unit.now
        self._prompts: RecordedPrompts | None = None
        self._has_live: bool | None = None
        self._live_texts: LiveTexts | None = None
        self._live_start = 0
        """The live prompt with which the turn of `_live_texts` starts."""
        self.is_repeated: bool | None = None
        self.is_same_turn = False
        self.repeated_message = ""

    def is_of_transcript(self, event: Event) -> bool:
        """Return whether an event is from the session file of the agent."""
        return (event.source or self._source) in TRANSCRIPT_SOURCES

    def is_whole(self, event: ev.MessageDelta | ev.ThoughtDelta) -> bool:
        """Return whether a text is not continued, as in a session file that this process reads. Callers split texts."""
        is_own = not self._is_posted and event.source in ("", self._source)
        return is_own and self._source in TRANSCRIPT_SOURCES

    def is_known(self, identity: str) -> bool:
        """Return whether a message or a turn is known from the session file of the agent."""
        return self._unit.alias(self._session.name, TRANSCRIPT_NAMESPACE, identity) is not None

    def repeats_message(self, event: ev.MessageDelta | ev.ThoughtDelta | ev.MessageUser | ev.MessageEnded) -> bool:
        """Return whether another source has recorded a message with this id: live, or from the session file."""
        session, message = self._session, event.message_id
        if message and self.is_of_transcript(event):
            is_live = self._unit.alias(session.name, MESSAGE_NAMESPACE, message) is not None
            return is_live and self._unit.alias(session.name, CONTINUED_NAMESPACE, message) is None
        return bool(message) and message != session.message and self.is_known(message)

    def find_missing(self, event: ev.MessageDelta | ev.ThoughtDelta) -> str:
        """Return what the session file adds to the newest message that was recorded live."""
        if event.message_id != self._session.message or event.parent:
            return ""
        for count in LOOK_BACK_EVENTS:
            parts = self._read_newest_message(count)
            if parts is not None:
                return find_missing_text(parts, type(event), self._redactor.text(event.text))
        return ""

    def _read_newest_message(self, count: int) -> list[Event] | None:
        """Return the chunks of the newest live message, and what ended its texts; None if it has more events."""
        session = self._session
        first = max(session.pruned_seq, session.last_seq - count) + 1
        # All are read before any is looked at, because an engine reads what is missing in one step.
        events = [self._unit.event(session.name, seq) for seq in range(first, session.last_seq + 1)]
        parts: list[Event] = []
        for event in reversed(events):
            if event is None or event.verdict != "applied":
                continue
            if starts_before(event, session.message):
                return parts[::-1]
            is_chunk = isinstance(event, ev.CHUNKS) and not event.parent
            if is_chunk or ends_text(event, known=self.had_entry(event)):
                parts.append(event)
        return parts[::-1] if first == 1 else None

    def had_entry(self, event: Event) -> bool:
        """Return whether the call of an event had an entry before it."""
        record = self._unit.call(event.call) if isinstance(event, ev.CallEvent) else None
        return record is not None and record.entry != event.seq

    def repeats_prompt(self, prompt: ev.MessageUser) -> bool:
        """Return whether another source has recorded a prompt. One without an id is compared by its text."""
        if self.repeats_message(prompt):
            return True
        is_comparable = self.is_of_transcript(prompt) and not prompt.parent and self.has_live_prompts()
        return is_comparable and self._read_prompts().match_read(prompt) is not None

    def has_live_prompts(self) -> bool:
        """Return whether some prompts were recorded live."""
        if self._has_live is None:
            self._has_live = self._unit.alias(self._session.name, LIVE_NAMESPACE, LIVE_PROMPT) is not None
        return self._has_live

    def _read_prompts(self) -> RecordedPrompts:
        """Return the recorded prompts. The log of the session is read for them once in each write."""
        if self._prompts is None:
            self._prompts = RecordedPrompts(self._unit.all_user_messages(self._session.name))
        return self._prompts

    def repeats_turn(self, start: ev.TurnStarted, prompt: ev.MessageUser) -> bool:
        """Return whether another source has recorded the prompt of a new turn, and note whether its turn, too."""
        self.is_same_turn = False
        if self.is_of_transcript(start):
            self.is_same_turn = self.repeats_prompt(prompt)
            return self.is_same_turn
        if prompt.message_id or prompt.parent or not self.is_known(TRANSCRIPT_READ):
            return False
        recorded = self._read_prompts().match_live(structs.replace(prompt, at=prompt.at or self._now))
        if recorded is None:
            return False
        turn = recorded.message_id
        is_over = not self.has_live_turn() and self._session.turn != turn
        self.is_same_turn = self._session.turn == turn or (is_over and self._is_known_turn(turn))
        self._expect_texts_after(recorded.seq)
        return True

    def _is_known_turn(self, turn: str) -> bool:
        return bool(turn) and self._unit.alias(self._session.name, TURN_NAMESPACE, turn) is not None

    # Texts without an id. Of both sides, the one that comes second with a text repeats it.

    def repeats_text(self, end: ev.MessageEnded) -> bool:
        """Return whether the session file ends a text that was recorded live."""
        if not (end.message_id and self.is_of_transcript(end)):
            return False
        return end.message_id == self.repeated_message or self.repeats_message(end)

    def find_live_texts(self) -> LiveTexts | None:
        """Return the live texts of the turn that the file is at, None if that was not recorded live."""
        turn = self._read_prompts().turn
        if turn is None or not turn.live:
            return None
        if self._live_texts is None or self._live_start != turn.live:
            self._live_start = turn.live
            end = self._read_prompts().end_of_live(turn.live)
            events = self._read_events(turn.live, end - 1 if end else self._session.last_seq)
            parts = [each for each in events if _is_own_chunk(each) or ends_text(each, known=self.had_entry(each))]
            self._live_texts = LiveTexts(part for part in parts if part.verdict == "applied")
            for event in self._read_events(turn.read, self._session.last_seq) if turn.read else ():
                if _is_own_chunk(event) and event.verdict == "witness" and event.source in TRANSCRIPT_SOURCES:
                    self._live_texts.match(type(event), event.text)
        return self._live_texts

    def _read_events(self, after: int, last: int) -> list[Event]:
        """Return the events of a turn after its prompt; of very many, the newest."""
        first = max(after, self._session.pruned_seq, last - MAX_TURN_EVENTS) + 1
        events = [self._unit.event(self._session.name, seq) for seq in range(first, last + 1)]
        return [event for event in events if event is not None]

    def expect(self, kind: type[ev.MessageDelta | ev.ThoughtDelta], seq: int) -> None:
        """Note a text of the session file that may arrive live."""
        stream = EXPECTED_STREAMS[kind]
        expected = unpack_expected(self._session.carry.get(stream)).add(seq)
        hold_text(self._session, stream, pack_expected(expected))

    def expect_nothing(self) -> None:
        """Forget the texts that may arrive live."""
        for stream in EXPECTED_STREAMS.values():
            if stream in self._session.carry:
                hold_text(self._session, stream, None)

    def _expect_texts_after(self, prompt: int) -> None:
        """Note the texts of the session file that follow a prompt, which may arrive live now."""
        self.expect_nothing()
        for event in self._read_events(prompt, self._session.last_seq):
            is_read = event.source in TRANSCRIPT_SOURCES and event.verdict == "applied"
            if is_read and isinstance(event, ev.MessageUser) and not event.parent:
                break
            if is_read and _is_own_chunk(event):
                self.expect(type(event), event.seq)

    def match_expected(self, event: ev.MessageDelta | ev.ThoughtDelta) -> ev.MessageDelta | ev.ThoughtDelta | None:
        """Return a live chunk to write, None if the file has it. What was taken for a repetition comes first."""
        stream = EXPECTED_STREAMS[type(event)]
        if stream not in self._session.carry:
            return event
        expected = unpack_expected(self._session.carry[stream])
        events = [self._unit.event(self._session.name, seq) for seq in expected.seqs[:MAX_COMPARED]]
        texts = [each.text if isinstance(each, ev.CHUNKS) else "" for each in events]
        found = match_chunk(texts, expected.arrived, event.text)
        if found is not None:
            number, arrived = found
            rest = structs.replace(expected, seqs=expected.seqs[number:], arrived=arrived)
            hold_text(self._session, stream, pack_expected(rest))
            return None
        if not expected.arrived:
            return event
        rest = structs.replace(expected, seqs=expected.seqs[1:], arrived=0)
        hold_text(self._session, stream, pack_expected(rest) if rest.seqs else None)
        if expected.arrived == len(comparable_text(texts[0])):
            return event
        return structs.replace(event, text=beginning_of(texts[0], expected.arrived) + event.text)

    def is_within_live_turn(self, event: ev.TurnStarted) -> bool:
        """Return whether a turn without a prompt is a part of one that was recorded live."""
        live = self.find_live_texts() if self.has_live_prompts() else None
        return live is not None and event.at <= live.ended_at

    def has_live_turn(self) -> bool:
        """Return whether the open turn was started live."""
        return bool(self._session.turn) and not self.is_known(self._session.turn)

    def judge_repetition(self, event: ev.CallEvent, record: CallRecord) -> ev.CallEvent | None:
        """Return an event to write in place of one that cannot change a call, if the other source knows the call.

        None: both the call and its end are of the same source, so the event is judged like any other. What only the
        session file knows about the end of a call is a report.
        """
        is_read = self.is_of_transcript(event)
        if is_read and record.state == "lost" and isinstance(event, ev.CallEnd) and not isinstance(event, ev.CallLost):
            return self._report_end(event, lost=True)
        if record.state in ("lost", "expired") or not (is_read or self.is_known(TRANSCRIPT_READ)):
            return None
        end = self._unit.event(self._session.name, record.end) if record.end else None
        is_end_read = (end.source if end is not None else record.source) in TRANSCRIPT_SOURCES
        if (record.source in TRANSCRIPT_SOURCES) == is_end_read == is_read:
            return None
        status = event.exit_status if isinstance(event, ev.CallEnd) else msgspec.UNSET
        is_failure = isinstance(event, ev.CallEnd) and (
            not isinstance(event, ev.CallCompleted) or status not in (msgspec.UNSET, None, 0)
        )
        if not (is_read and is_failure and record.state == "completed" and not is_end_read):
            return event
        return self._report_end(cast(ev.CallEnd, event))

    def _report_end(self, end: ev.CallEnd, *, lost: bool = False) -> ev.CallReported:
        """Return what the session file says about the end of a call. Of a lost one, that says how it ended."""
        text, status = report_text(end), end.exit_status
        if lost:
            text = "\n".join(filter(None, (f"The call {describe_end(end)} after it was lost.", text)))
            status = msgspec.UNSET  # A lost call counts as failed already.
        return ev.CallReported(
            aliases=end.aliases, at=end.at, source=end.source, key=end.key, text=text, exit_status=status
        )


def _is_own_chunk(event: Event) -> TypeGuard[ev.MessageDelta | ev.ThoughtDelta]:
    """Return whether an event is a chunk of the agent itself, not of a sub-agent."""
    return isinstance(event, ev.CHUNKS) and not event.parent
