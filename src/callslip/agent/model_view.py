"""What a model is shown of outputs that are too large to stand in the log: their beginning and their end.

An entry has only a preview of such an output. Here it is read whole, and cut to what a model can use of it.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec import structs

from callslip.api.session import Session
from callslip.errors import InvalidInputError, NotFoundError
from callslip.formats.shell.results import truncate_output
from callslip.model import codec
from callslip.model.entries import Snapshot, ToolCall

LIMIT = 30_000


class Shown:
    """A session as a model is shown it. What was cut once is remembered."""

    def __init__(self, session: Session, limit: int = LIMIT) -> None:
        self._session = session
        self._limit = limit
        self._known: dict[str, Any] = {}

    async def snapshot(self) -> Snapshot:
        snapshot = await self._session.snapshot()
        return structs.replace(snapshot, entries=[await self._entry(entry) for entry in snapshot.entries])

    async def _entry(self, entry: Any) -> Any:
        if not isinstance(entry, ToolCall) or entry.blob is None:
            return entry
        try:
            output = await self._output(entry.blob.hash, entry.blob.media)
        except (NotFoundError, InvalidInputError):  # Swept away, or no JSON that we read: the preview says what it can.
            return entry
        return structs.replace(entry, output=output, truncated=False, blob=None)

    async def _output(self, name: str, media: str) -> Any:
        if name not in self._known:
            data = await self._session.ledger.blob(name)
            whole = codec.parse_json(data, max_bytes=len(data)) if media == "application/json" else data.decode()
            self._known[name] = self._cut(whole)
        return self._known[name]

    def _cut(self, value: Any) -> Any:
        """A text, or the texts of an object, each cut by itself; anything else as JSON."""
        if isinstance(value, str):
            return truncate_output(value, self._limit)
        members = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if members and all(isinstance(member, str) for member in members.values()):
            return {name: truncate_output(member, self._limit) for name, member in members.items()}
        return truncate_output(codec.encode(cast(object, value)).decode(), self._limit)
