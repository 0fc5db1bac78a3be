"""Read the tokens of a response, which each of its lines repeats; the last line has them complete."""

from __future__ import annotations

from typing import Any

from callslip.formats.json_fields import as_dict
from callslip.model import events as ev
from callslip.model.events import Event

MAX_TOKENS = 10**12


class Usage:
    """The usage of one session file. `_last` is what was reported last."""

    def __init__(self) -> None:
        self._last: tuple[Any, ...] = ()

    def read(self, usage: Any, message_id: str, model: str, cost: Any, stop: str, at: int) -> list[Event]:
        """Return the tokens of a response, unless the line before it told the same."""
        fields = as_dict(usage)
        counts = [
            _count(fields.get(name))
            for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
        ]
        is_cost = isinstance(cost, int | float) and not isinstance(cost, bool) and 0 < cost <= ev.MAX_COST
        dollars = float(cost) if is_cost else None
        report = (message_id, *counts, dollars, not stop)
        if not fields or not message_id or report == self._last:
            return []
        self._last = report
        fresh, cached, written, output = counts
        return [
            ev.UsageReported(
                id=message_id,
                model=model,
                input_tokens=fresh + cached + written,
                output_tokens=output,
                cached_tokens=cached,
                cache_write_tokens=written,
                cost=dollars,
                currency="USD" if dollars is not None else "",
                incomplete=not stop,
                at=at,
            )
        ]


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < MAX_TOKENS else 0
