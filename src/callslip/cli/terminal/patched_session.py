"""A session as a client has it: entries that only patches change. It has no rules, like a page in a browser."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from callslip.model.entries import Patch, Snapshot

Json = dict[str, Any]


class PatchedSession:
    """A snapshot of a session with the patches applied so far."""

    def __init__(self) -> None:
        self.seq = 0
        self.info: Json = {}
        self.entries: dict[int, Json] = {}
        self._waiting: set[asyncio.Future[None]] = set()

    def load(self, snapshot: Snapshot) -> None:
        """Start with a snapshot."""
        self.seq = snapshot.seq
        self.info = _plain(snapshot.info)
        self.entries = {entry["id"]: entry for entry in _plain(snapshot.entries)}

    def apply(self, seq: int, patches: Sequence[Patch]) -> None:
        """Apply the patches of one event as JSON values, as a client receives them."""
        for patch in _plain(patches):
            OPERATIONS[patch["op"]](self, patch)
        self.seq = seq
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def target(self, entry: int) -> Json:
        """Return the entry that a patch changes; 0 is the info of the session."""
        return self.entries[entry] if entry else self.info

    async def wait_until(self, condition: Callable[[PatchedSession], Any]) -> Any:
        """Return the first true value of a condition, evaluated after each event."""
        while not (value := condition(self)):
            changed = asyncio.get_running_loop().create_future()
            self._waiting.add(changed)
            await changed
        return value

    def pending_request(self, after: int = 0) -> Json | None:
        """Return the first pending approval request with an id above `after` that can be answered here, if any."""
        entries = (entry for identity, entry in self.entries.items() if identity > after)
        requests = (entry for entry in entries if entry["type"] == "permission_request")
        pending = (entry for entry in requests if entry.get("state", "pending") == "pending")
        return next((entry for entry in pending if not entry.get("answerAt")), None)

    def equals(self, snapshot: Snapshot) -> bool:
        """Return whether a snapshot has the same JSON."""
        ours = {"seq": self.seq, "info": self.info, "entries": [self.entries[entry] for entry in sorted(self.entries)]}
        theirs = {"seq": snapshot.seq, "info": snapshot.info, "entries": snapshot.entries}
        return _canonical(ours) == _canonical(theirs)


def _canonical(value: Any) -> bytes:
    return msgspec.json.encode(_plain(value), order="sorted")


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _put(view: PatchedSession, patch: Json) -> None:
    view.entries[patch["entry"]["id"]] = patch["entry"]


def _set(view: PatchedSession, patch: Json) -> None:
    target = view.target(patch["id"])
    for field, value in patch["fields"].items():
        if value is None:
            target.pop(field, None)
        else:
            target[field] = value


def _append(view: PatchedSession, patch: Json) -> None:
    target = view.target(patch["id"])
    before = target.get(patch["field"], "")
    assert len(before.encode("utf-16-le")) == 2 * patch["offset"], "a patch is missing"
    target[patch["field"]] = before + patch["text"]


OPERATIONS: dict[str, Callable[[PatchedSession, Json], None]] = {"put": _put, "set": _set, "append": _append}
