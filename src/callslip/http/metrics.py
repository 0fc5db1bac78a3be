"""What a server counts, and how Prometheus reads it.

Its text format is a name, labels and a number a line: ten lines of code here, against one more package for everybody
who installs this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol

from callslip.errors import SlowReaderError

Labels = Mapping[str, str]
Work = Callable[[Any], Awaitable[None]]
MEDIA = "text/plain; version=0.0.4; charset=utf-8"


class Committing(Protocol):
    """A store, as far as it tells what was written through it."""

    def on_commit(self, listener: Callable[[list[Any]], None]) -> None: ...


class Metrics:
    """Counts since the server was made."""

    def __init__(self, store: Committing) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.appended = 0
        self.cuts = 0
        store.on_commit(self._written)

    def _written(self, made: list[Any]) -> None:
        self.appended += len(made)

    def answered(self, route: str, method: str, status: int) -> None:
        """Count a request. The route is a pattern: no id becomes a label."""
        self.requests[route, method, status] += 1

    def watched(self, work: Work) -> Work:
        """The same work of writing a stream, which counts if its reader is cut off."""

        async def watching(write: Any) -> None:
            try:
                await work(write)
            except (SlowReaderError, TimeoutError):
                self.cuts += 1
                raise

        return watching


class Family:
    """One metric: what it is, and its values by their labels."""

    def __init__(self, name: str, kind: str, about: str, values: Iterable[tuple[Labels, int]]) -> None:
        self.name = f"callslip_{name}"
        self.kind = kind
        self.about = about
        self.values = values

    def lines(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.values:
            told = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            yield f"{self.name}{{{told}}} {value}" if told else f"{self.name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def written(families: Iterable[Family]) -> str:
    """Metrics as text."""
    return "".join(f"{line}\n" for family in families for line in family.lines())
