"""Record what hooks send, and let people answer their requests for approval.

The session file of an agent has the same calls with the same ids, and all texts. So after each message that file is
read, and of the message only that is written which the file does not have within a moment: then a call is recorded
once, as the file tells it, and nothing is lost if the agent is killed before it writes. Only of a session whose file
is not in the agent's own history the texts in the messages count as well.

A message that was stored by a hook is deleted when its events are durable. It can add calls and texts; a request for
approval, and any answer, in it is left out, as every program of this user can write such files.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import structs

from callslip.errors import CallslipError, InvalidInputError, StoreError
from callslip.formats import registry
from callslip.formats.base import Decoder
from callslip.formats.hooks import answers
from callslip.hooks.spool import Message, delete_spooled, read_spooled, spooled_names
from callslip.hooks.transcripts import FollowedTranscripts, Located
from callslip.ingest.conversations import joined
from callslip.ingest.decoder_state import StateMismatchError, encode_state, restore_state
from callslip.ingest.raw_fallback import append_or_keep_raw
from callslip.ledger.event_log import EventLog
from callslip.ledger.liveness import is_dead, new_owner
from callslip.ledger.write import WriteContext, WriteOperation
from callslip.model import codec, ids
from callslip.model import events as ev
from callslip.model.events import CallEvent, Draft, Event, replace_fields
from callslip.model.names import HOOK_SOURCES
from callslip.model.records import ApprovalRecord, CallRecord, ConversationChange, ConversationName
from callslip.rules.lifecycle import TERMINAL_STATES, is_terminal
from callslip.rules.projection import SESSION_NAMESPACE
from callslip.store.unit_of_work import UnitOfWork
from callslip.transcripts.agents import SOURCES

CALLER = "hook"
LEASE_S = 24 * 3600.0
START_GRACE_S, END_GRACE_S = 0.5, 3.0
"""How long the session file has to tell the start and the end of a call before the message counts."""
FILE_POLL_S = 0.05
MAX_SESSIONS = 200
MAX_PENDING = 1000
MAX_TRIES = 5
RETRY_DELAY_S = 0.25
SERVER_KILLED = "the server that waited for an answer was stopped"
ANSWERED_THERE = "answered in the terminal, or the agent was stopped"
_TEXTS = (ev.TurnStarted, ev.TurnEnded, ev.MessageUser, ev.MessageDelta)
_NEVER_SPOOLED = (ev.ApprovalRequested, ev.ApprovalAnswer)


class _Session(msgspec.Struct):
    """What is remembered of the messages of one session, as it is stored with its events."""

    name: ConversationName
    decoder: Decoder
    version: int = 0


class _Held(msgspec.Struct):
    """A stored message that was read, and may wait for the session file."""

    message: Message
    located: Located
    session: str
    drafts: list[Draft]


class _Done(msgspec.Struct):
    """The result of a write: the events, and the version of what is stored of the session."""

    events: list[Event]
    version: int


class StaleError(Exception):
    """Another process has read a message of the session."""


class HookReceiver:
    """Records the messages of one hook folder in one ledger. `on_problem` is called with what cannot be read."""

    def __init__(
        self,
        log: EventLog,
        folder: Path,
        on_problem: Callable[[str], None] = lambda problem: None,
        *,
        environ: Mapping[str, str] | None = None,
        home: str = "",
    ) -> None:
        self._log = log
        self._folder = folder
        self._on_problem = on_problem
        self._sessions: dict[ConversationName, _Session] = {}
        self._lock = asyncio.Lock()
        self._held: dict[str, _Held] = {}
        self._unreleased: dict[str, tuple[str, str, str]] = {}
        self._owner = new_owner()
        self.transcripts = FollowedTranscripts(log, environ, home)

    # Stored messages

    async def import_spooled(self) -> None:
        """Import the messages that wait, in order, and delete those that are recorded. Some wait for a moment."""
        async with self._lock:
            for name in spooled_names(self._folder):
                await self._import_file(name)

    async def _import_file(self, name: str) -> None:
        try:
            is_done = await self._import(name)
        except FileNotFoundError:  # Another process has imported it.
            is_done = True
        except StaleError:
            return
        except (StoreError, OSError):
            raise
        except InvalidInputError as error:
            self._on_problem(f"a message of a hook was left out: {error}")
            is_done = True
        except Exception as error:  # A bug must not block the next messages.
            self._on_problem(f"a message of a hook was left out: {type(error).__name__}: {error}")
            is_done = True
        if is_done:
            self._held.pop(name, None)
            delete_spooled(self._folder, name)

    @property
    def has_held(self) -> bool:
        """Whether messages wait for the session file of their agent."""
        return bool(self._held)

    async def _import(self, name: str) -> bool:
        """Record a stored message; return whether it is done, or waits for the session file."""
        held = self._held.get(name)
        if held is None:
            message = read_spooled(self._folder, name)
            located = await self._locate(message)
            if located is None:
                return True
            await self.transcripts.read(located)
            if answers.is_request(message.agent, message.payload):
                return True  # Its decoder must not take the call for one that has asked.
            session = await self._find_session(located)
            state = await self._load(session, message.agent)
            left_out = _NEVER_SPOOLED if not located.is_readable else (*_NEVER_SPOOLED, *_TEXTS)
            drafts = [draft for draft in self._feed(state, message) if not isinstance(draft.event, left_out)]
            held = self._held[name] = _Held(message, located, session, drafts)
        events = [draft.event for draft in held.drafts]
        is_awaited = held.located.is_readable and time.time() - held.message.at / 1000 < _grace_s(events)
        if is_awaited and not await self._has_all(held.session, events):
            return False
        await self._append(await self._load(held.session, held.message.agent), held.message, held.drafts)
        return True

    def _feed(self, state: _Session, message: Message) -> list[Draft]:
        """Return the drafts of a message with its time, the first one with a key of the file."""
        found = [draft for draft in state.decoder.feed(message.payload) if not isinstance(draft.event, ev.Raw)]
        drafts = [_with_time(draft, message.at) for draft in found]
        if drafts and message.name:
            drafts[0] = structs.replace(drafts[0], key=f"hook.{message.name.removesuffix('.json')}", mark=CALLER)
        return drafts

    async def _locate(self, message: Message) -> Located | None:
        """Return where a message belongs; None if it is of no known agent, or of a session that was deleted."""
        if message.agent not in SOURCES:
            raise InvalidInputError("agent", f"unknown agent {message.agent[:50]!r}")
        located = self.transcripts.locate(message.agent, message.payload)
        if not located.session:
            raise InvalidInputError("session_id", "is missing")
        deleted = await self._log.store.deleted_sessions()
        return None if located.session in deleted else located

    async def _find_session(self, located: Located) -> str:
        """Return the session of an agent's id: the one that has it, or a new one."""
        known = await self._log.store.sessions_with_alias(SESSION_NAMESPACE, located.session)
        return known[0] if known else joined(located.source.session_prefix, "-", located.session)

    async def _has_all(self, session: str, events: Sequence[Event]) -> bool:
        """Return whether all calls in a message are recorded, and have ended if it tells their ends."""
        for event in events:
            if isinstance(event, CallEvent):
                record = await self._find_call(session, event)
                if record is None or (isinstance(event, ev.CallEnd) and record.state not in TERMINAL_STATES):
                    return False
        return True

    async def _find_call(self, session: str, event: CallEvent) -> CallRecord | None:
        for alias in event.aliases:
            found = await self._log.store.alias(alias.id, session)
            if found:
                return found[0]
        return None

    # Writing

    async def _load(self, session: str, agent: str) -> _Session:
        """Return what is remembered of a session, as it is stored."""
        name = ConversationName(session, f"{agent}-hook", CALLER)
        record = await self._log.store.conversation(name)
        version = record.version if record is not None else 0
        known = self._sessions.get(name)
        if known is not None and known.version == version:
            return known
        state = _Session(name, registry.decoder(name.format), version)
        if record is not None and record.state:
            with contextlib.suppress(StateMismatchError):
                restore_state(state.decoder, record.state)
        self._sessions[name] = state
        while len(self._sessions) > MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return state

    async def _append(self, state: _Session, message: Message, drafts: list[Draft]) -> list[Event]:
        """Append the drafts of a message, with what is remembered of the session."""
        write = _MessageWrite(state, encode_state(state.decoder, self._log.redactor.mask))
        events: list[Event] = []

        async def append(part: list[Draft]) -> None:
            source, session = state.name.format, state.name.session
            done = await self._log.transact_drafts(session, part, write.run, source=source, strict=False)
            events.extend(done.events)
            state.version = done.version

        try:
            if drafts:
                await append_or_keep_raw(append, list(drafts), state.name.format, message.payload)
            else:
                await append([])
        except BaseException:
            self._forget(state.name)
            raise
        return events

    def _forget(self, name: ConversationName) -> None:
        """Forget what is remembered of a session, and read the messages that wait again."""
        self._sessions.pop(name, None)
        self._held = {file: held for file, held in self._held.items() if held.session != name.session}

    # Requests for approval

    async def request(self, message: Message) -> tuple[str, ev.ApprovalRequested | None]:
        """Record the request in a message; return its session, and None if nothing waits for an answer from here."""
        for _ in range(MAX_TRIES):
            with contextlib.suppress(StaleError):
                return await self._request(message)
        return "", None

    async def _request(self, message: Message) -> tuple[str, ev.ApprovalRequested | None]:
        if not answers.is_request(message.agent, message.payload):
            return "", None
        await self.import_spooled()
        located = await self._locate(message)
        if located is None:
            return "", None
        await self.transcripts.read(located)
        session = await self._find_session(located)
        async with self._lock:
            state = await self._load(session, message.agent)
            drafts = [draft for draft in self._feed(state, message) if not isinstance(draft.event, _TEXTS)]
        if not any(isinstance(draft.event, ev.ApprovalRequested) for draft in drafts):
            return "", None
        await self._wait_for_call(located, session, [draft.event for draft in drafts])
        fields = {"approval": ids.approval_id(), "request_id": self._owner}
        drafts = replace_fields(drafts, ev.ApprovalRequested, **fields)
        async with self._lock:
            events = await self._append(await self._load(session, message.agent), message, drafts)
        for event in events:
            if isinstance(event, ev.ApprovalRequested) and event.verdict == "applied" and not event.answer_at:
                return session, event
        return "", None

    async def _wait_for_call(self, located: Located, session: str, events: Sequence[Event]) -> None:
        """Wait for a moment until the session file has the call, so that what came before it is recorded before it."""
        events = [event for event in events if not _is_unnamed(event)]
        end = time.monotonic() + START_GRACE_S
        while located.is_readable and not await self._has_all(session, events) and time.monotonic() < end:
            await asyncio.sleep(FILE_POLL_S)
            await self.transcripts.read(located)

    async def wait_for_answer(self, session: str, request: ev.ApprovalRequested) -> Event:
        """Wait until a request is answered or replaced, or its call has ended, and return that event.

        An approval of another request for the same call, which replaces this one, is no answer to it.
        """
        after = request.seq
        while True:
            try:
                async with contextlib.aclosing(self._log.follow(session, after)) as events:
                    async for event in events:
                        after = event.seq
                        if event.verdict == "applied" and _ends_wait(event, request):
                            return event
            except StoreError:
                await asyncio.sleep(RETRY_DELAY_S)
            else:
                await asyncio.sleep(RETRY_DELAY_S)

    async def release(self, session: str, request: ev.ApprovalRequested, reason: str) -> None:
        """Leave a request to the agent, unless it was answered."""
        await self._release(session, request.approval, request.call, reason)

    async def _release(self, session: str, approval: str, call: str, reason: str) -> None:
        released = ev.ApprovalReleased(call=call, approval=approval, reason=reason)
        self._unreleased.pop(approval, None)
        try:
            await self._log.append(session, [released], source="callslip")
        except StoreError:
            self._unreleased[approval] = (session, call, reason)
        except CallslipError:  # It was answered meanwhile, or its session was deleted.
            pass

    async def release_again(self) -> None:
        """Release the requests that could not be released because the database failed."""
        for approval, (session, call, reason) in list(self._unreleased.items()):
            await self._release(session, approval, call, reason)

    async def note_allowed(self, session: str, request: ev.ApprovalRequested) -> None:
        """Record that the agent runs a call that was allowed."""
        await self._log.append(session, [ev.CallStarted(call=request.call)], source=request.source, strict=False)

    async def release_abandoned(self) -> None:
        """Leave requests to their agents for whose answer no process waits any more, because it was killed."""
        for record in await self._log.store.approvals(state="pending", limit=MAX_PENDING):
            if await self._is_abandoned(record):
                await self._release(record.session, record.id, record.call, SERVER_KILLED)

    async def _is_abandoned(self, record: ApprovalRecord) -> bool:
        event = await self._log.event_at(record.session, record.entry)
        if not isinstance(event, ev.ApprovalRequested) or event.source not in HOOK_SOURCES:
            return False
        return isinstance(event.request_id, str) and is_dead(event.request_id)


class _MessageWrite:
    """Writes a message, with what its decoder remembers after it."""

    def __init__(self, state: _Session, memory: bytes) -> None:
        self._state = state
        self._memory = memory

    def run(self, unit: UnitOfWork, drafts: list[Draft], context: WriteContext) -> _Done:
        """Write it in a transaction, unless another process has read a message of the session."""
        name = self._state.name
        record = unit.conversation(name)
        if (record.version if record is not None else 0) != self._state.version:
            raise StaleError
        events: list[Event] = []
        is_known = bool(drafts and drafts[0].key and unit.key(name.session, drafts[0].key) is not None)
        if drafts and not is_known:
            operation = WriteOperation(unit, name.session, structs.replace(context, ingest_lease=LEASE_S))
            events = operation.run([draft for draft in drafts if not self._repeats_start(unit, draft.event)])
        if unit.session(name.session) is None:
            return _Done(events, self._state.version)
        change = ConversationChange(state=self._memory, drops_inputs=True)
        return _Done(events, unit.change_conversation(name, change))

    def _repeats_start(self, unit: UnitOfWork, event: Event) -> bool:
        """Return whether a call whose start this is is known: the session file tells more about it."""
        if not isinstance(event, ev.CallStarted):
            return False
        return any(unit.alias(self._state.name.session, alias.ns, alias.id) for alias in event.aliases)


def answer_output(agent: str, payload: Mapping[str, object], answer: Event) -> bytes:
    """Return the line that a hook prints for an answer; b"" if it prints nothing."""
    if not isinstance(answer, ev.ApprovalAnswer):
        return b""
    output = answers.encode(agent, dict(payload), answer)
    return b"" if output is None else codec.encode(output) + b"\n"


def _ends_wait(event: Event, request: ev.ApprovalRequested) -> bool:
    if isinstance(event, ev.ApprovalAnswer) and event.approval == request.approval:
        return True
    is_about_call = isinstance(event, CallEvent) and event.call == request.call
    return is_about_call and (is_terminal(event) or isinstance(event, ev.ApprovalRequested))


def _grace_s(events: Sequence[Event]) -> float:
    if any(isinstance(event, ev.CallEnd) for event in events):
        return END_GRACE_S
    return START_GRACE_S if any(isinstance(event, CallEvent) for event in events) else 0


def _is_unnamed(event: Event) -> bool:
    return isinstance(event, CallEvent) and all(alias.ns != "acp" for alias in event.aliases)


def _with_time(draft: Draft, at: int) -> Draft:
    return draft if draft.event.at else structs.replace(draft, event=structs.replace(draft.event, at=at))
