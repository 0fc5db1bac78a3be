"""Chunks: the shorthand for a beginning, its pieces and an end. Each producer within a run has one under way.

A chunk without an id goes on with what its producer has open; any other event of that producer ends it.
"""

from __future__ import annotations

from typing import NamedTuple


class Stream(NamedTuple):
    """What is open: `text`, `reasoning` or `tool`, and its id."""

    kind: str
    id: str


class Taken(NamedTuple):
    """What a chunk is about, whether it begins it, and what ends before it."""

    stream: Stream
    begins: bool = False
    ended: tuple[Stream, ...] = ()


class Lanes:
    """What each producer has open: the agent itself is "", a subagent is its run."""

    def __init__(self) -> None:
        self._open: dict[str, Stream] = {}

    def take(self, kind: str, identity: str, owner: str) -> Taken | None:
        """What a chunk is about; None if it names nothing, and nothing of its kind is open."""
        lane = self._lane(kind, identity, owner)
        before = self._open.get(lane) if lane is not None else None
        if before is not None and before.kind == kind and identity in ("", before.id):
            return Taken(before)
        if lane is None or not identity:
            return None
        self._open[lane] = Stream(kind, identity)
        return Taken(self._open[lane], begins=True, ended=(before,) if before is not None else ())

    def _lane(self, kind: str, identity: str, owner: str) -> str | None:
        if identity:
            return next((lane for lane, stream in self._open.items() if stream == (kind, identity)), owner)
        found = [lane for lane, stream in self._open.items() if stream.kind == kind]
        if owner or "" in found:
            return owner
        return found[0] if len(found) == 1 else None

    def close(self, owner: str) -> list[Stream]:
        """What ends when a producer does something else."""
        return [self._open.pop(owner)] if owner in self._open else []

    def close_all(self) -> list[Stream]:
        """What ends with the run."""
        closed, self._open = list(self._open.values()), {}
        return closed
