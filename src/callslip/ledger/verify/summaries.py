"""Derive the summary of a session and its usage again, and compare them with what is stored."""

from __future__ import annotations

from msgspec import structs

from callslip.errors import CorruptDataError
from callslip.ledger.verify.problems import Report, differences
from callslip.model.events import Event
from callslip.model.records import SessionRecord
from callslip.model.summaries import SessionSummary, UsageRecord, UsageTotals
from callslip.rules.session_summary import VERSION, add_event, add_to_totals, parse_summary
from callslip.store.protocol import Store

PAGE_ROWS = 1000


class SummaryCheck:
    """Compares the stored summary of a session, which may lack the newest events.

    After retention the log does not give it any more; then only its sum is compared with the responses in it.
    """

    def __init__(self, store: Store, record: SessionRecord, report: Report) -> None:
        self._store = store
        self._record = record
        self._report = report
        self._last = 0
        self._stored = self._derived = SessionSummary()
        self._used: dict[str, UsageRecord] = {}

    async def start(self) -> None:
        """Read the stored summary. One of another version is derived again before it is read."""
        stored = await self._store.summary(self._record.name)
        if stored is None or stored.version != VERSION:
            return
        try:
            self._stored = parse_summary(stored.body)
        except CorruptDataError as error:
            self._report.add("summary", str(error))
            return
        self._last = stored.seq

    def add(self, event: Event) -> None:
        """Add an event of the log that the stored summary has, too."""
        if event.seq > self._last or self._record.pruned_seq:
            return
        usage = add_event(self._derived, event)
        if usage is not None:
            self._used[usage.id] = usage

    async def finish(self) -> None:
        """Compare the summary and the usage of each response."""
        if not self._last:
            return
        totals, turn_totals, last = UsageTotals(), UsageTotals(), ""
        while rows := await self._store.usage_of_session(self._record.name, last, PAGE_ROWS):
            last = rows[-1].id
            for row in rows:
                add_to_totals(turn_totals if row.of_turn else totals, row)
                if not self._record.pruned_seq:
                    self._compare_usage(row)
        for identity in self._used:
            self._report.add("usage", f"{identity!r} is missing")
        for stored, derived in ((self._stored.usage, totals), (self._stored.turn_usage, turn_totals)):
            if difference := differences(_without_zero(stored), _without_zero(derived)):
                self._report.add("summary", f"usage: {difference}")
        if not self._record.pruned_seq:
            self._derived.usage, self._derived.turn_usage = self._stored.usage, self._stored.turn_usage
            if difference := differences(self._stored, self._derived):
                self._report.add("summary", difference)

    def _compare_usage(self, row: UsageRecord) -> None:
        derived = self._used.pop(row.id, None)
        if derived is None:
            self._report.add("usage", f"{row.id!r} is not in the log")
        elif difference := differences(row, derived):
            self._report.add("usage", f"{row.id!r}: {difference}")


def _without_zero(totals: UsageTotals) -> UsageTotals:
    """Return totals without costs of 0, which remain when an agent corrects the currency."""
    costs = {currency: round(cost, 6) for currency, cost in totals.costs.items()}
    return structs.replace(totals, costs={currency: cost for currency, cost in costs.items() if cost})
