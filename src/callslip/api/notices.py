"""Find the notices for a person, and agree between processes which of them sends one.

Notices follow from the rows of approvals and sessions, so nothing is missed while no process looks. Each notice
has a value in the database: who sends it until when, or that it was sent. Several servers may have the same settings;
the one that replaces the value first sends it. If that server dies, another one continues after `until`, and at once
if it runs on the same machine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from callslip.api.session_list import list_sessions
from callslip.errors import CallslipError
from callslip.ledger import liveness
from callslip.ledger.event_log import EventLog
from callslip.model.notices import Notice, NoticeDelays, NoticeKind
from callslip.model.records import ListedSession
from callslip.rules.notices import approval_notice, session_notices

MAX_APPROVALS = 10_000
MAX_SESSIONS = 200
KEY_PREFIX = "notice:"
KEPT_MS = 7 * 24 * 60 * 60 * 1000
"""How long it is remembered that a notice was sent after it has ended."""
NOTHING: Mapping[str, Notice] = {}
SENT, FAILED, CLAIMED = "sent", "failed", "claimed"


def ledger_time(log: EventLog) -> int:
    """Return the time of the ledger in ms, to which the times of notices are compared."""
    return log.store.time_ms()


async def find_notices(
    log: EventLog,
    delays: NoticeDelays,
    kinds: Collection[NoticeKind],
    since: int,
    known: Mapping[str, Notice] = NOTHING,
) -> dict[str, Notice]:
    """Return all current notices of these kinds by id, also those that are not due yet.

    Turns that ended before `since` (ms) are left out: a history that is imported is no news. `known` are the notices of
    the last time: a request among them is not read again.
    """
    sessions: dict[str, ListedSession] = {}
    notices: list[Notice] = []
    if "finished" in kinds or "idle" in kinds:
        page = await list_sessions(log, {}, limit=MAX_SESSIONS)
        sessions = {record.name: record for record in page.items}
        for session in page.items:
            if session.active_at >= since:
                notices += session_notices(session, delays)
    if "approval" in kinds or "question" in kinds:
        notices += await _approval_notices(log, delays, sessions, known)
    return {notice.id: notice for notice in notices if notice.kind in kinds}


async def _approval_notices(
    log: EventLog, delays: NoticeDelays, sessions: Mapping[str, ListedSession], known: Mapping[str, Notice]
) -> list[Notice]:
    notices: list[Notice] = []
    for approval in await log.store.approvals(state="pending", limit=MAX_APPROVALS):
        notice = known.get(approval.id)
        if notice is None:
            call = await log.store.call(approval.call)
            notice = approval_notice(approval, call, sessions.get(approval.session), delays)
        notices.append(notice)
    return notices


async def complete_notice(log: EventLog, notice: Notice) -> Notice:
    """Return a notice with the agent and the project of its session, which only its summary has."""
    record = await log.get_session(notice.session)
    if notice.agent or record is None:
        return notice
    try:
        session = await log.summaries.with_summary(record)
    except CallslipError:
        return notice
    return replace(notice, agent=session.agent, project=session.project)


# Claims


class NoticeClaims:
    """The notices that this process sends for one receiver."""

    def __init__(self, log: EventLog, receiver: str) -> None:
        self._log = log
        self._prefix = f"{KEY_PREFIX}{receiver}:"
        self._owner = liveness.new_owner()
        self._held: dict[str, str] = {}

    async def claim(self, notice: str, hold_s: float) -> int | None:
        """Claim a notice, or renew its claim, for some seconds.

        Return 0 if this process may send it, None if it was sent or given up, else when to try again (ms).
        """
        store, name = self._log.store, self._prefix + notice
        now = await store.clock()
        before = await store.meta(name)
        if before and before != self._held.get(notice):
            state, until, owner = _parse(before)
            if state != CLAIMED:
                return None
            if until > now and not liveness.is_dead(owner):
                return until
        after = f"{CLAIMED} {now + int(hold_s * 1000)} {self._owner}"
        if not await store.replace_meta(name, before, after):
            return now + 1000  # Another process was faster.
        self._held[notice] = after
        return 0

    async def finish(self, notice: str, *, is_sent: bool) -> None:
        """Store that a notice was sent, or that it was given up."""
        before = self._held.get(notice, "")
        if before:
            after = f"{SENT if is_sent else FAILED} {await self._log.store.clock()}"
            await self._log.store.replace_meta(self._prefix + notice, before, after)
            del self._held[notice]

    async def release(self, notice: str) -> None:
        """Let another process send a notice that this one does not send."""
        before = self._held.get(notice, "")
        if before:
            await self._log.store.replace_meta(self._prefix + notice, before, "")
            del self._held[notice]

    async def forget_old(self, current: Collection[str]) -> None:
        """Delete what is stored of notices that ended long ago."""
        before = await self._log.store.clock() - KEPT_MS
        for name, value in await self._log.store.list_meta(self._prefix):
            if name.removeprefix(self._prefix) not in current and _parse(value)[1] < before:
                await self._log.store.replace_meta(name, value, "")


def _parse(value: str) -> tuple[str, int, str]:
    """Return the state, the time (ms) and the owner in a stored value."""
    state, _, rest = value.partition(" ")
    time, _, owner = rest.partition(" ")
    return state, int(time) if time.isdecimal() else 0, owner
