"""Tasks: detached calls that a client polls by an unguessable id."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncGenerator
from typing import Any

from callslip.ledger.event_log import EventLog
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.names import SOURCE_PYTHON
from callslip.model.records import CallRecord

ALIAS_NAMESPACE = "task"
ID_PREFIX = "task_"
_NEW = "new:1"


class Task:
    """A task that runs in this process. `id` is for its client; `record` is the call as it began."""

    def __init__(self, log: EventLog, id: str, record: CallRecord, source: str) -> None:
        self.id = id
        self.record = record
        self._log = log
        self._source = source

    async def progress(self, progress: Any) -> int:
        """Record the progress of the task, and return the seq of its event."""
        return await self._append(ev.CallProgress(call=self.record.id, progress=progress))

    async def follow_progress(self, after: int) -> AsyncGenerator[Any]:
        """Yield the progress that any process records after an event."""
        async with contextlib.aclosing(self._log.follow(self.record.session, after)) as events:
            async for event in events:
                if isinstance(event, ev.CallProgress) and event.call == self.record.id:
                    yield event.progress

    async def complete(self, output: Any) -> None:
        """Complete the task."""
        await self._append(ev.CallCompleted(call=self.record.id, output=codec.to_json(output)))

    async def fail(self, error: Any, reason: str) -> None:
        """Fail the task."""
        await self._append(ev.CallFailed(call=self.record.id, error=codec.to_json(error), reason=reason))

    async def lose(self, reason: str) -> None:
        """End the task without an outcome, because this process stops running it."""
        await self._append(ev.CallLost(call=self.record.id, reason=reason))

    async def wait_ended(self) -> None:
        """Wait until the task has ended, in any process."""
        await self._log.feed.until_ended(self.record.session, self.record.id)

    async def _append(self, event: ev.Event) -> int:
        events = await self._log.append(self.record.session, [event], source=self._source, owner=self._log.owner)
        return events[-1].seq


async def begin_task(
    log: EventLog, session: str, tool: str, input: Any, *, ttl: float | None = None, source: str = SOURCE_PYTHON
) -> Task:
    """Record a running task. It expires after `ttl` seconds, and is not found from then on."""
    task_id = f"{ID_PREFIX}{secrets.token_hex(16)}"
    proposal = ev.CallProposed(
        call=_NEW,
        aliases=(ev.Alias(ALIAS_NAMESPACE, task_id),),
        tool_name=tool,
        input=codec.to_json(input),
        scope="detached",
        deadline=0 if ttl is None else await log.store.clock() + max(1, int(ttl * 1000)),
    )
    drafts = [proposal, ev.CallStarted(call=_NEW)]
    started = (await log.append(session, drafts, source=source, owner=log.owner, strict=True))[-1]
    assert isinstance(started, ev.CallStarted)
    record = await log.store.call(started.call)
    assert record is not None
    return Task(log, task_id, record, source)


async def find_task(log: EventLog, task_id: str, *, session: str = "") -> CallRecord | None:
    """Return the call of a task by its whole id, or None if there is none or its `ttl` has passed."""
    records = await log.store.alias(task_id, session) if task_id.startswith(ID_PREFIX) else []
    if not records or (records[0].deadline and await log.store.clock() > records[0].deadline):
        return None
    return records[0]


async def record_progress(log: EventLog, record: CallRecord, progress: Any, *, source: str = SOURCE_PYTHON) -> None:
    """Record progress of a task that another process runs."""
    await log.append(record.session, [ev.CallProgress(call=record.id, progress=progress)], source=source)
