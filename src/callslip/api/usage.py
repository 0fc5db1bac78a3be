"""Add up the tokens and costs that agents reported."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TypedDict, get_args

import msgspec

from callslip.api.access import FULL_ACCESS, Access, can_see
from callslip.api.search import check_times
from callslip.errors import InvalidInputError
from callslip.ledger.event_log import EventLog
from callslip.model.summaries import UsageTotals
from callslip.rules.session_summary import COST_DIGITS
from callslip.store.summaries import Group, UsageQuery, UsageRow

GROUPS: tuple[str, ...] = get_args(Group)
EPOCH = date(1970, 1, 1)
MAX_DAYS = (date.max - EPOCH).days
MINUTE_MS = 60_000
MAX_OFFSET_MINUTES = 24 * 60


class UsageGroup(UsageTotals, kw_only=True):
    """The usage of a day (as 2026-11-19), model, project, agent, session or turn, or of the sub-agent of a call.

    The group is "" for what has none, and for the sum over everything. `tokensWithoutCost` are the tokens for which no
    agent stated a cost: if there are any, `costs` lack something.
    """

    group: str = ""
    tokens_without_cost: int = 0


class UsageReport(msgspec.Struct, frozen=True):
    """The usage by group. If it is not complete, it lacks some of what was reported last: ask again."""

    groups: list[UsageGroup]
    complete: bool = True


class UsageFilters(TypedDict, total=False):
    """Which usage to add up. Times are ms since the epoch. Days begin `utc_offset_minutes` before those of UTC."""

    session: str
    project: str
    agent: str
    model: str
    since: int
    until: int
    utc_offset_minutes: int


async def add_up_usage(
    log: EventLog, by: str = "", filters: UsageFilters | None = None, *, access: Access = FULL_ACCESS
) -> UsageReport:
    """Return the usage of each group, days in their order and others by the number of tokens.

    Without `by` all is one group. Turns and calls have names only within a session.
    """
    filters = filters or {}
    if by and by not in GROUPS:
        raise InvalidInputError("by", f"unknown group {by!r}; known are {', '.join(GROUPS)}")
    if by in ("turn", "call") and not filters.get("session"):
        raise InvalidInputError("session", f"is required with by={by}")
    minutes = filters.get("utc_offset_minutes", 0)
    if abs(minutes) > MAX_OFFSET_MINUTES:
        raise InvalidInputError("utcOffsetMinutes", f"must be at most {MAX_OFFSET_MINUTES} minutes", MAX_OFFSET_MINUTES)
    check_times(since=filters.get("since", 0), until=filters.get("until", 0))
    others = {name: value for name, value in filters.items() if name != "utc_offset_minutes"}
    query = UsageQuery(by=by or None, utc_offset_ms=minutes * MINUTE_MS, **others)  # pyright: ignore[reportArgumentType]
    is_complete = await log.summaries.refresh()
    rows = await log.store.add_up_usage(query)
    if access is not FULL_ACCESS:
        visible = {name for name in {row.session for row in rows} if await can_see(access, name, "read")}
        rows = [row for row in rows if row.session in visible]
    groups = _add_rows(rows, by)
    groups.sort(key=(lambda group: group.group) if by == "day" else _by_tokens)
    return UsageReport(groups, is_complete)


def _add_rows(rows: list[UsageRow], by: str) -> list[UsageGroup]:
    groups: dict[str, UsageGroup] = {}
    for row in rows:
        name = _day(row.group) if by == "day" else str(row.group)
        group = groups.setdefault(name, UsageGroup(group=name))
        for field in UsageRow._fields[3:9]:
            setattr(group, field, getattr(group, field) + getattr(row, field))
        group.incomplete += row.incomplete
        group.tokens_without_cost += row.tokens_without_cost
        if row.currency or row.cost:
            group.costs[row.currency] = round(group.costs.get(row.currency, 0.0) + row.cost, COST_DIGITS)
    return list(groups.values())


def _day(number: int) -> str:
    return (EPOCH + timedelta(days=max(0, min(number, MAX_DAYS)))).isoformat()


def _by_tokens(group: UsageGroup) -> tuple[int, str]:
    return -(group.input_tokens + group.output_tokens), group.group
