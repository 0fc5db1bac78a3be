"""Compare the search index with what the stored entries give. The entries themselves are compared with the log."""

from __future__ import annotations

from callslip.ledger.checkpoint import VERSION as FOLD_VERSION
from callslip.ledger.checkpoint import load_checkpoint, load_state, read_entry
from callslip.ledger.search_index import (
    PAGE_BYTES,
    PAGE_ROWS,
    VERSION,
    index_entries,
    noted_entries,
    read_place,
    title_row,
)
from callslip.ledger.verify.problems import Report
from callslip.model.records import SessionRecord
from callslip.store.protocol import Checkpoint, Store
from callslip.store.search import SearchPlace, SearchRow

LAST = 2**62


async def check_index(store: Store, record: SessionRecord, report: Report) -> None:
    """Derive the index of a session again, and report the entries that differ.

    Entries that the index does not have yet are not compared, nor is an index of another version.
    """
    if not await store.has_search_index():
        return
    place, at = await store.search_place(record.name), await load_checkpoint(store, record.name)
    if place is None:
        for entry in await store.different_search_rows(record.name, -1, LAST, []):
            report.add("search", f"entry {entry} is in the index, which does not have this session yet")
    elif at is not None and (place.version, place.fold) == (VERSION, FOLD_VERSION):
        await _compare(store, record, report, place, at)


async def _compare(store: Store, record: SessionRecord, report: Report, place: SearchPlace, at: Checkpoint) -> None:
    known = read_place(place.body)
    ignored = {entry async for entry in noted_entries(store, record, known.noted, at.seq)}
    others: list[SearchRow] = []  # Those of entries that are not stored as rows.
    if place.seq == at.seq:
        state = await load_state(store, record.name, at, with_texts=True)
        state.render()
        others = await index_entries(store, record.id, state.entries.values())
    else:
        ignored.update(known.open)
    if place.seq == record.last_seq:
        others.append(title_row(record))
    else:
        ignored.add(0)
    after = -1
    while after < LAST:
        rows = await store.entries_from(record.name, max(after + 1, 1), PAGE_ROWS, PAGE_BYTES)
        upto = rows[-1][0] if rows else LAST
        entries = [read_entry(body) for entry, body in rows if entry <= known.last]
        derived = await index_entries(store, record.id, entries)
        derived += [row for row in others if after < row.entry <= upto]
        for entry in await store.different_search_rows(record.name, after, upto, derived):
            if entry not in ignored:
                report.add("search", f"entry {entry} has other words in the index than in the log")
        after = upto
