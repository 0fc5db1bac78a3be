"""Counters of a server, in the text format of Prometheus.

The format is small enough that a dependency is not worth it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from callslip.api.status import count_appended
from callslip.errors import SlowReaderError
from callslip.ledger.event_log import EventLog

Labels = Mapping[str, str]
Work = Callable[[Any], Awaitable[None]]
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metrics:
    """Counters since the server was created."""

    def __init__(self, log: EventLog) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.appended = 0
        self.cuts = 0
        count_appended(log, self._add_appended)

    def _add_appended(self, count: int) -> None:
        self.appended += count

    def count_request(self, route: str, method: str, status: int) -> None:
        """Count a request. The route is a pattern, so that no id becomes a label."""
        self.requests[route, method, status] += 1

    def count_cuts(self, work: Work) -> Work:
        """Return work that writes a stream, counting when its reader is disconnected for being slow."""

        async def counted(write: Any) -> None:
            try:
                await work(write)
            except (SlowReaderError, TimeoutError):
                self.cuts += 1
                raise

        return counted


class Family:
    """A metric with its values by label."""

    def __init__(self, name: str, kind: str, about: str, values: Iterable[tuple[Labels, int]]) -> None:
        self.name = f"callslip_{name}"
        self.kind = kind
        self.about = about
        self.values = values

    def lines(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.values:
            pairs = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())
            yield f"{self.name}{{{pairs}}} {value}" if pairs else f"{self.name} {value}"


def format_metrics(families: Iterable[Family]) -> str:
    """Return metrics as text."""
    return "".join(f"{line}\n" for family in families for line in family.lines())
