"""Who keeps a call alive, and how one that nobody keeps alive any more comes to its end (C5).

An owner is a process on a machine, told apart by boot, pid and start time, so that on one machine a dead owner is known
at once. Everything else is a matter of time, and clocks jump and laptops sleep: a reaper acts only when the store's
clock is past the due time and its own monotonic clock has watched as long as that should have taken.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable
from functools import cache
from itertools import count

import msgspec

from callslip.errors import ConflictError
from callslip.ledger.write import WriteContext, WriteOperation, write_events
from callslip.model import events as ev
from callslip.model.events import Draft, Event
from callslip.model.records import ApprovalRecord, CallRecord, SessionRecord
from callslip.rules.lifecycle import expires_at, given_up, next_state
from callslip.settings import Settings
from callslip.store.protocol import Store
from callslip.store.unit_of_work import UnitOfWork

_numbers = count(1)
LONG_AGO = 1
HORIZON = 2.0
"""Seconds that a reaper looks ahead, beside two of its rounds."""
FAR_AWAY = 2**62
TOGETHER = 500
DAY = 24 * 60 * 60 * 1000


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process began, in clock ticks since boot; "" for one that is gone, or where that cannot be known."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    gone = not fields or fields[0] in "ZX"  # A zombie has ended; only its parent has not looked yet.
    return "" if gone else fields[19]


@cache
def _place() -> str:
    """This boot of this machine, and the pid namespace within it: where a pid means something."""
    boot = _read("/proc/sys/kernel/random/boot_id") or f"{uuid.getnode():x}"
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{boot}/{namespace}"


def new_owner() -> str:
    """A name for something in this process that keeps calls alive."""
    pid = os.getpid()
    return f"{_place()} {pid} {_started(pid)} {next(_numbers)}"


def is_dead(owner: str) -> bool:
    """Whether the owner is known to be gone. One of another machine or container is never known to be."""
    place, _, rest = owner.partition(" ")
    parts = rest.split(" ")
    if place != _place() or len(parts) != 3 or not parts[0].isdigit():
        return False
    pid = int(parts[0])
    if parts[1]:
        return _started(pid) != parts[1]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def is_here(owner: str) -> bool:
    """Whether the owner is a process whose life can be seen from here, so that no lease need be asked."""
    return owner.partition(" ")[0] == _place()


class Due(msgspec.Struct, frozen=True):
    """Something to be ended once `at` (ms) has passed; at once if `at` is 0."""

    at: int
    event: ev.CallEvent | ev.TurnEnded
    call: CallRecord | None = None
    approval: ApprovalRecord | None = None
    session: SessionRecord | None = None

    @property
    def key(self) -> tuple[str, int]:
        """What is watched until then."""
        about = self.approval or self.call
        if about is not None:
            return about.id, self.at
        assert self.session is not None
        return f"{self.session.id} {self.session.turn}", self.at


class Reaper:
    """Ends what is due. Any process may run one; a draft of it counts only if nothing happened meanwhile."""

    def __init__(
        self, store: Store, how: WriteContext, settings: Settings, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._how = how
        self._settings = settings
        self._monotonic = monotonic
        self._watched: dict[tuple[str, int], tuple[float, float]] = {}
        self._offset: float | None = None

    async def reap(self, *, only_dead: bool = False) -> int:
        """One round. How many calls and turns it ended."""
        now = await self._store.clock()
        jump = self._jump(now)
        until = FAR_AWAY if jump else now + int((HORIZON + 2 * self._settings.reaper_interval) * 1000)
        over: list[Due] = []
        watched = {key: sight for key, sight in self._watched.items() if key[1] > until}
        for due in await self._dues(until):
            if due.at:
                key = due.key
                watched[key] = self._watched.get(key) or self._first_sight(due.at, now - jump)
                if only_dead or due.at > now or not self._watched_enough(watched[key]):
                    continue
            over.append(due)
        self._watched = watched
        ended = 0
        for start in range(0, len(over), TOGETHER):
            ended += sum(await asyncio.gather(*map(self._end, over[start : start + TOGETHER])))
        return ended

    async def forget_owners(self) -> None:
        """Owners that are gone. Calls that they may have left end without them."""
        now = await self._store.clock()
        for row in await self._store.owners():
            if is_dead(row.id) or row.until < now - DAY:
                await self._store.drop_owner(row.id)

    def _jump(self, now: int) -> int:
        """By how much the store's clock was set forward since the last round, or the machine slept, in ms.

        Whatever was open then has as much time left as it had before: nobody could renew it meanwhile.
        """
        offset = now - self._monotonic() * 1000
        jump = offset - self._offset if self._offset is not None else 0
        self._offset = offset
        return int(jump) if jump > self._settings.reaper_grace * 1000 else 0

    def _first_sight(self, at: int, now: int) -> tuple[float, float]:
        remaining = (at - now) / 1000
        return self._monotonic(), remaining if remaining > 0 else self._settings.reaper_grace

    def _watched_enough(self, sight: tuple[float, float]) -> bool:
        since, needed = sight
        return self._monotonic() - since >= needed

    async def _dues(self, until: int) -> list[Due]:
        """What may have to be ended by then, a little ahead of its time: what is due is watched before."""
        rows, working = await self._store.calls_due(until), await self._store.sessions_at_work()
        leases = {owner.id: owner.until for owner in await self._store.owners()} if rows or working else {}
        dues = [due for row in rows for due in self._dues_of(row, leases)]
        dues += [due for row in working for due in _turn_dues(row, leases)]
        for approval in await self._store.approvals_due(until):
            refusal = ev.ApprovalRefused(
                approval=approval.id, call=approval.call, by="expiry", reason="nobody answered in time"
            )
            dues.append(Due(at=approval.expires_at, event=refusal, approval=approval))
        return dues

    def _dues_of(self, row: CallRecord, leases: dict[str, int]) -> list[Due]:
        if row.owner and is_dead(row.owner):
            return [Due(at=0, event=given_up(row, "the process that ran this call ended"), call=row)]
        dues: list[Due] = []
        if expires_at(row):
            dues.append(Due(at=row.deadline, event=expired(row), call=row))
        lapses = _lapses(row.owner, leases) if row.owner else row.lease
        if lapses:
            dues.append(Due(at=lapses, event=given_up(row, _silence(row)), call=row))
        return dues

    async def _end(self, due: Due) -> int:
        how = self._how
        call, approval = due.call, due.approval
        event = due.event
        if call is not None and isinstance(event, ev.CallEvent):
            return int(await self._store.transact(lambda unit: end_if_unchanged(unit, call, event, how)) is not None)
        if approval is None:
            return int(await self._store.transact(lambda unit: end_turn_if_unchanged(unit, due, how)) is not None)
        try:
            await self._store.transact(lambda unit: write_events(unit, approval.session, [Draft(due.event)], how))
        except ConflictError:
            return 0
        return 1


def _lapses(owner: str, leases: dict[str, int]) -> int:
    """When an owner counts as gone if nothing is heard of it; 0 for one whose life can be seen from here."""
    return 0 if is_here(owner) else leases.get(owner, LONG_AGO)


def _turn_dues(row: SessionRecord, leases: dict[str, int]) -> list[Due]:
    """A turn whose owner is gone ends as if its line had been cut: nobody goes on with it."""
    dead = is_dead(row.turn_owner)
    lapses = 0 if dead else _lapses(row.turn_owner, leases)
    if not dead and not lapses:
        return []
    detail = "the process that worked on this turn ended" if dead else "whoever worked on this turn went silent"
    return [Due(at=lapses, event=ev.TurnEnded(turn=row.turn, reason="eof", detail=detail), session=row)]


def expired(row: CallRecord) -> ev.CallExpired:
    """That its time was over, and whether anybody had begun."""
    late = "its time ran out while it ran" if row.started_at else "nobody took it up in time"
    return ev.CallExpired(call=row.id, reason=late)


def _silence(row: CallRecord) -> str:
    if row.client:
        return f"nothing more was heard of {row.worker or 'the worker'} that ran this command"
    return "its owner went silent" if row.owner else "nothing more was heard of this call"


def close_owner(unit: UnitOfWork, owner: str, reason: str, how: WriteContext) -> int:
    """End every call and turn that this owner kept alive: nobody is left to finish them (C5). How many."""
    calls, turns = unit.owned_calls(owner), unit.owned_turns(owner)
    for row in calls:
        WriteOperation(unit, row.session, how).run([Draft(given_up(row, reason))])
    for row in turns:
        WriteOperation(unit, row.name, how).run([Draft(ev.TurnEnded(turn=row.turn, reason="eof", detail=reason))])
    return len(calls) + len(turns)


def end_turn_if_unchanged(unit: UnitOfWork, due: Due, how: WriteContext) -> Event | None:
    """The same for a turn."""
    seen = due.session
    assert seen is not None
    row = unit.session(seen.name)
    if row is None or (row.id, row.turn, row.turn_owner) != (seen.id, seen.turn, seen.turn_owner):
        return None
    return WriteOperation(unit, row.name, how).run([Draft(due.event)])[0]


def end_if_unchanged(unit: UnitOfWork, seen: CallRecord, event: ev.CallEvent, how: WriteContext) -> Event | None:
    """A reaper's verdict on a call, unless anything happened to it since the reaper looked."""
    row = unit.call(seen.id)
    if row is None or (row.state, row.attempt, row.lease, row.owner) != (
        seen.state,
        seen.attempt,
        seen.lease,
        seen.owner,
    ):
        return None
    if next_state(row.state, event) is None:
        return None
    return WriteOperation(unit, row.session, how).run([Draft(event)])[0]


def expire_if_due(unit: UnitOfWork, call: str, how: WriteContext) -> int:
    """End a command whose time is over. The deadline if that is still to come, 0 if it has ended anyhow."""
    row = unit.call(call)
    if row is None or not expires_at(row) or next_state(row.state, expired(row)) is None:
        return 0
    if row.deadline > unit.now:
        return row.deadline
    WriteOperation(unit, row.session, how).run([Draft(expired(row))])
    return 0
