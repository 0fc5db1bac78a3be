"""Chunks: the short form of a beginning, its pieces and an end. Each producer within a run has one open at a time.

A chunk without an id continues what its producer has open; any other event of that producer ends it.
"""

from __future__ import annotations

from typing import NamedTuple


class Stream(NamedTuple):
    """An open stream: its kind, `text`, `reasoning` or `tool`, and its id."""

    kind: str
    id: str


class ChunkTarget(NamedTuple):
    """The stream of a chunk, whether the chunk begins it, and the streams that end before it."""

    stream: Stream
    begins: bool = False
    ended: tuple[Stream, ...] = ()


class ChunkStreams:
    """The open stream of each producer: the agent itself is "", a subagent is the id of its run."""

    def __init__(self) -> None:
        self._open: dict[str, Stream] = {}

    def find(self, kind: str, stream_id: str, producer: str) -> ChunkTarget | None:
        """Return the target of a chunk; None if it has no id and no stream of its kind is open."""
        owner = self._producer_of(kind, stream_id, producer)
        current = self._open.get(owner) if owner is not None else None
        if current is not None and current.kind == kind and stream_id in ("", current.id):
            return ChunkTarget(current)
        if owner is None or not stream_id:
            return None
        self._open[owner] = Stream(kind, stream_id)
        return ChunkTarget(self._open[owner], begins=True, ended=(current,) if current is not None else ())

    def _producer_of(self, kind: str, stream_id: str, producer: str) -> str | None:
        if stream_id:
            return next((owner for owner, stream in self._open.items() if stream == (kind, stream_id)), producer)
        owners = [owner for owner, stream in self._open.items() if stream.kind == kind]
        if producer or "" in owners:
            return producer
        return owners[0] if len(owners) == 1 else None

    def close(self, producer: str) -> list[Stream]:
        """Close and return the stream of a producer."""
        return [self._open.pop(producer)] if producer in self._open else []

    def close_all(self) -> list[Stream]:
        """Close and return all streams."""
        closed, self._open = list(self._open.values()), {}
        return closed
