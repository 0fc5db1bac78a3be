"""The session as a model reads it: of outputs that are too large for the log, the beginning and the end.

An entry has only a preview of such an output. Here it is read completely and truncated for the model.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec import structs

from callslip.api.session import Session
from callslip.errors import NotFoundError
from callslip.formats.shell.results import truncate_output
from callslip.model import codec
from callslip.model.entries import Snapshot, ToolCall
from callslip.model.events import Blob
from callslip.rules.call_content import read_output

MAX_OUTPUT_CHARS = 30_000


class ModelView:
    """A session as a model reads it. Truncated outputs are cached."""

    def __init__(self, session: Session, max_chars: int = MAX_OUTPUT_CHARS) -> None:
        self._session = session
        self._max_chars = max_chars
        self._outputs: dict[str, Any] = {}

    async def snapshot(self) -> Snapshot:
        snapshot = await self._session.snapshot()
        return structs.replace(snapshot, entries=[await self._with_output(entry) for entry in snapshot.entries])

    async def _with_output(self, entry: Any) -> Any:
        if not isinstance(entry, ToolCall) or entry.blob is None:
            return entry
        try:
            output = await self._output(entry.blob)
        except (NotFoundError, *codec.DECODE_ERRORS):  # Pruned, or not valid JSON: the preview is left.
            return entry
        return structs.replace(entry, output=output, truncated=False, blob=None)

    async def _output(self, blob: Blob) -> Any:
        if blob.hash not in self._outputs:
            data = await self._session.ledger.blob(blob.hash)
            self._outputs[blob.hash] = self._truncate(read_output(blob, data))
        return self._outputs[blob.hash]

    def _truncate(self, value: Any) -> Any:
        """Truncate a string, or each string of an object; anything else as JSON."""
        if isinstance(value, str):
            return truncate_output(value, self._max_chars)
        members = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        if members and all(isinstance(member, str) for member in members.values()):
            return {name: truncate_output(member, self._max_chars) for name, member in members.items()}
        return truncate_output(codec.encode(cast(object, value)).decode(), self._max_chars)
