"""Owners keep calls alive; a reaper ends the calls and turns whose owner is gone or whose time is over.

A reaper also releases the texts that are held back by a process that is gone.

An owner is a process, identified by machine, boot, pid and start time, so that a dead owner on the same machine is
known at once. Everything else depends on time. Clocks jump and laptops sleep, so a reaper acts only if the store's
clock is past the due time and its own monotonic clock has measured the same duration. While the database fails, no
process can renew a lease, so afterwards a reaper first gives all of them the time of a lease to do so.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
import uuid
from collections.abc import Callable
from functools import cache, partial
from itertools import count

import msgspec

from callslip.errors import CallslipError, ConflictError, CorruptDataError, StoreError
from callslip.ledger.write import WriteContext, WriteOperation, release_held_text, write_events
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Draft, Event
from callslip.model.records import ApprovalRecord, CallRecord, OwnerRecord, SessionRecord
from callslip.rules.lifecycle import expires_at, next_state, owner_lost_event
from callslip.settings import Settings
from callslip.store.protocol import Store
from callslip.store.unit_of_work import UnitOfWork

_owner_numbers = count(1)
LONG_AGO_MS = 1
LOOKAHEAD_S = 2.0
"""How far a reaper looks ahead, in addition to two of its rounds."""
FOREVER_MS = 2**62
MAX_CONCURRENT_ENDS = 500
MAX_HOLD_S = 60.0
"""A text that seems to be held for longer is due: the store's clock was set back."""
DAY_MS = 24 * 60 * 60 * 1000
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
MACHINE_ID_FILE = "/etc/machine-id"
NETWORK_FOLDER = "/sys/class/net"


def _read_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; "" if it is gone or the system does not say."""
    fields = _read_file(f"/proc/{pid}/stat").rpartition(")")[2].split()
    is_gone = not fields or fields[0] in "ZX"  # A zombie has ended, though its parent has not collected it yet.
    return "" if is_gone else fields[19]


def _network_addresses() -> list[str]:
    """Return the addresses of the built-in wired network cards. Those of docks and radios change in one boot."""
    try:
        names = sorted(os.listdir(NETWORK_FOLDER))
    except OSError:
        return []
    addresses: list[str] = []
    for folder in (os.path.join(NETWORK_FOLDER, name) for name in names):
        device = os.path.join(folder, "device")
        is_radio = os.path.exists(os.path.join(folder, "phy80211"))
        if os.path.exists(device) and not is_radio and "/usb" not in os.path.realpath(device):
            addresses.append(_read_file(os.path.join(folder, "address")))
    return addresses


def _host() -> str:
    """Return an id that differs between copies of one virtual machine, which may have the same boot id."""
    if not _read_file(BOOT_ID_FILE):
        return ""  # Then the boot is identified by a network card, which copies do not share.
    facts = [_read_file(MACHINE_ID_FILE), os.uname().nodename, *_network_addresses()]
    return codec.digest("\n".join(facts).encode("utf-8", "replace"))[:12]


@cache
def _machine() -> str:
    """Return an id of this machine, its boot and the pid namespace, in which pids are unique."""
    host = _host()
    return f"{_boot()}/{host}" if host else _boot()


@cache
def _boot() -> str:
    """Return an id of this boot and the pid namespace. Owners of earlier versions have only this."""
    boot = _read_file(BOOT_ID_FILE) or f"{uuid.getnode():x}"
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{boot}/{namespace}"


def new_owner() -> str:
    """Return a new owner id for this process, or for a connection in it."""
    pid = os.getpid()
    return f"{_machine()} {pid} {_start_time(pid)} {next(_owner_numbers)}"


def is_dead(owner: str) -> bool:
    """Return whether an owner is known to be gone. This is never known of another machine or container."""
    parts = owner.split(" ")[1:]
    if not is_here(owner) or len(parts) != 3 or not parts[0].isdigit():
        return False
    pid = int(parts[0])
    if parts[1]:
        return _start_time(pid) != parts[1]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def is_here(owner: str) -> bool:
    """Return whether an owner runs on this machine, where it needs no lease to be known alive."""
    return owner.partition(" ")[0] in (_machine(), _boot())


class Due(msgspec.Struct, frozen=True):
    """A call, approval or turn to end at a time in ms; at once if `at` is 0. `by_lease` if it can still be renewed."""

    at: int
    event: ev.CallEvent | ev.TurnEnded
    by_lease: bool = False
    call: CallRecord | None = None
    approval: ApprovalRecord | None = None
    session: SessionRecord | None = None

    @property
    def key(self) -> tuple[str, int]:
        """Identify this end while the reaper waits for it."""
        record = self.approval or self.call
        if record is not None:
            return record.id, self.at
        assert self.session is not None
        return f"{self.session.id} {self.session.turn}", self.at


class Reaper:
    """End what is due. Any process may run a reaper; an end is written only if the record has not changed meanwhile."""

    def __init__(
        self, store: Store, context: WriteContext, settings: Settings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._context = context
        self._settings = settings
        self._monotonic = monotonic
        self._watched: dict[tuple[str, int], tuple[float, float]] = {}
        self._offset: float | None = None
        self._has_failed = False
        self._leases_count_from = -math.inf

    async def reap(self, *, only_dead: bool = False) -> int:
        """Run one round, and return how many calls and turns it ended."""
        try:
            return await self._run_round(only_dead)
        except StoreError:
            self.reset()
            raise

    def reset(self) -> None:
        """Start again after the database failed: for one lease from the next round, end nothing by its lease."""
        self._watched = {}
        self._has_failed = True

    def reset_if_late(self, since: float) -> None:
        """Start again after a wait for the database in which leases may have ended.

        Reads and writes wait for a server that cannot be reached, and succeed once it is back. A lease that is renewed
        in time has at least this long left.
        """
        if self._monotonic() - since > min(self._settings.owner_lease, self._settings.command_lease) / 3:
            self.reset()

    async def _run_round(self, only_dead: bool) -> int:
        started = self._monotonic()
        if self._has_failed:
            await self._store.drop_owner("")  # Deletes nothing, but fails while no process can write.
        now = await self._store.clock()
        jump = self._jump(now)
        until = FOREVER_MS if jump else now + int((LOOKAHEAD_S + 2 * self._settings.reaper_interval) * 1000)
        dues: list[Due] = []
        watched = {key: start for key, start in self._watched.items() if key[1] > until}
        loaded = await self._load_dues(until)
        self.reset_if_late(started)
        if self._has_failed:
            self._has_failed = False
            lease = max(self._settings.owner_lease, self._settings.command_lease)
            self._leases_count_from = self._monotonic() + lease
        for due in loaded:
            if due.at:
                left_s = (due.at - now + jump) / 1000
                start = self._monotonic(), left_s if left_s > 0 else self._settings.reaper_grace
                since, needed_s = watched[due.key] = self._watched.get(due.key) or start
                if only_dead or due.at > now or self._monotonic() - since < needed_s:
                    continue
                if due.by_lease and self._monotonic() < self._leases_count_from:
                    continue
            dues.append(due)
        self._watched = watched
        await self._release_texts(now)
        ended = 0
        for start in range(0, len(dues), MAX_CONCURRENT_ENDS):
            ended += sum(await asyncio.gather(*map(self._end, dues[start : start + MAX_CONCURRENT_ENDS])))
        return ended

    async def expire_overdue(self, *, only_queued: bool) -> None:
        """Expire the commands whose deadline passed while no process had the ledger open.

        No clock was watched meanwhile, so the clock of the store decides. A queued command past its deadline is never
        claimed; one that runs may still end in time by the clock of another process.
        """
        now = await self._store.clock()
        overdue = [
            record.id
            for record in await self._store.calls_due(now)
            if record.client and 0 < expires_at(record) <= now and (record.state == "queued" or not only_queued)
        ]
        for start in range(0, len(overdue), MAX_CONCURRENT_ENDS):
            commands = overdue[start : start + MAX_CONCURRENT_ENDS]
            await asyncio.gather(*(self._expire(command) for command in commands))

    async def _expire(self, command: str) -> None:
        with contextlib.suppress(CallslipError):  # On a full disk the ledger can still be read.
            await self._store.transact(lambda unit: expire_if_due(unit, command, self._context))

    async def forget_owners(self) -> None:
        """Remove owners that are gone. Their calls end without the owner's record."""
        now = await self._store.clock()
        for owner in await self._store.owners():
            if is_dead(owner.id) or owner.until < now - DAY_MS:
                await self._store.drop_owner(owner.id)

    def _jump(self, now: int) -> int:
        """Return by how many ms the store's clock was set forward, or the machine slept, since the last round.

        Everything open keeps the time that it had left before, because it could not be renewed meanwhile.
        """
        offset = now - self._monotonic() * 1000
        jump = offset - self._offset if self._offset is not None else 0
        self._offset = offset
        return int(jump) if jump > self._settings.reaper_grace * 1000 else 0

    async def _load_dues(self, until: int) -> list[Due]:
        """Return what is due by then. It is loaded ahead of time, because it must be watched first.

        Of an owner that is alive only its name and lease are read, not its calls and turns.
        """
        dues: list[Due] = []
        ends = _ends_by(until, await self._store.open_owners())
        if ends:
            calls, turns = await self._store.calls_of_owners(ends), await self._store.turns_of_owners(ends)
            dues += [_lost_call(call, ends[call.owner]) for call in calls]
            dues += [_lost_turn(session, ends[session.turn_owner]) for session in turns]
        for call in await self._store.calls_due(until):
            dues += _call_dues(call)
        for approval in await self._store.approvals_due(until):
            refusal = ev.ApprovalRefused(
                approval=approval.id, call=approval.call, by="expiry", reason="no answer in time"
            )
            dues.append(Due(at=approval.expires_at, event=refusal, approval=approval))
        return dues

    async def _release_texts(self, now: int) -> None:
        """Release held texts that are due, as their writer is gone. The store's clock alone decides.

        A release that is too early shows no more of a secret than one in time, so it needs no second clock.
        """
        latest = now + int(max(self._settings.text_hold, MAX_HOLD_S) * 1000)
        for session, due in await self._store.texts_due(now, latest):
            with contextlib.suppress(CorruptDataError):  # `verify` reports it; others must not wait for it.
                release = partial(release_held_text, session=session, until=due, context=self._context)
                await self._store.transact(release)

    async def _end(self, due: Due) -> int:
        def end(unit: UnitOfWork) -> object:
            if due.approval is not None:
                return write_events(unit, due.approval.session, [Draft(due.event)], self._context)
            if due.call is not None and isinstance(due.event, ev.CallEvent):
                return end_if_unchanged(unit, due.call, due.event, self._context)
            return end_turn_if_unchanged(unit, due, self._context)

        try:
            return int(await self._store.transact(end) is not None)
        except (ConflictError, CorruptDataError):  # `verify` reports corrupt data; others must not wait for it.
            return 0


def _ends_by(until: int, owners: list[OwnerRecord]) -> dict[str, int]:
    """Return the owners that are dead, as 0, and those on other machines whose lease ends by `until`, as that time."""
    ends: dict[str, int] = {}
    for owner in owners:
        if is_dead(owner.id):
            ends[owner.id] = 0
        elif owner.until <= until and not is_here(owner.id):
            ends[owner.id] = owner.until or LONG_AGO_MS
    return ends


def _call_dues(record: CallRecord) -> list[Due]:
    """Return the ends of a call by its deadline and by its own lease, which it has if no owner keeps it alive."""
    dues: list[Due] = []
    if expires_at(record):
        dues.append(Due(at=record.deadline, event=expired(record), call=record))
    if record.lease and not record.owner:
        dues.append(_lost_call(record, record.lease))
    return dues


def _lost_call(record: CallRecord, at: int) -> Due:
    reason = _silence_reason(record) if at else "the process that ran this call ended"
    return Due(at=at, event=owner_lost_event(record, reason), by_lease=at > 0, call=record)


def _lost_turn(record: SessionRecord, at: int) -> Due:
    stopped, ended = "owns this turn stopped renewing its lease", "worked on this turn ended"
    event = ev.TurnEnded(turn=record.turn, reason="eof", detail=f"the process that {stopped if at else ended}")
    return Due(at=at, event=event, by_lease=at > 0, session=record)


def expired(record: CallRecord) -> ev.CallExpired:
    """Return the end of a call whose time is over."""
    reason = "timed out while running" if record.started_at else "no worker claimed it before its timeout"
    return ev.CallExpired(call=record.id, reason=reason)


def _silence_reason(record: CallRecord) -> str:
    if record.client:
        return (
            f"worker {record.worker} stopped renewing its lease"
            if record.worker
            else "the worker stopped renewing its lease"
        )
    if record.owner:
        return "the process that owns this call stopped renewing its lease"
    return "no event of this call arrived before its lease expired"


def close_owner(unit: UnitOfWork, owner: str, reason: str, context: WriteContext) -> int:
    """End the calls and turns of an owner, and return how many."""
    calls, turns = unit.owned_calls(owner), unit.owned_turns(owner)
    for call in calls:
        WriteOperation(unit, call.session, context).run([Draft(owner_lost_event(call, reason))])
    for session in turns:
        event = ev.TurnEnded(turn=session.turn, reason="eof", detail=reason)
        WriteOperation(unit, session.name, context).run([Draft(event)])
    return len(calls) + len(turns)


def end_turn_if_unchanged(unit: UnitOfWork, due: Due, context: WriteContext) -> Event | None:
    """End a turn, unless its session has changed since the reaper read it."""
    seen = due.session
    assert seen is not None
    current = unit.session(seen.name)
    if current is None or (current.id, current.turn, current.turn_owner) != (seen.id, seen.turn, seen.turn_owner):
        return None
    return WriteOperation(unit, current.name, context).run([Draft(due.event)])[0]


def end_if_unchanged(unit: UnitOfWork, seen: CallRecord, event: ev.CallEvent, context: WriteContext) -> Event | None:
    """Append an event to a call, unless the call has changed since it was read."""
    current = unit.call(seen.id)
    if current is None or next_state(current.state, event) is None:
        return None
    for field in ("state", "attempt", "lease", "owner"):
        if getattr(current, field) != getattr(seen, field):
            return None
    return WriteOperation(unit, current.session, context).run([Draft(event)])[0]


def expire_if_due(unit: UnitOfWork, call: str, context: WriteContext) -> int:
    """Expire a command whose time is over. Return its deadline if that is still ahead, else 0."""
    record = unit.call(call)
    if record is None or not expires_at(record) or next_state(record.state, expired(record)) is None:
        return 0
    if record.deadline > unit.now:
        return record.deadline
    WriteOperation(unit, record.session, context).run([Draft(expired(record))])
    return 0
