"""What a client holds: entries that change by patches alone. It has no rules, as a page in a browser has none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from callslip.model.entries import Patch, Snapshot

Json = dict[str, Any]


class PatchedSession:
    """A session as far as its patches have told it."""

    def __init__(self) -> None:
        self.seq = 0
        self.info: Json = {}
        self.entries: dict[int, Json] = {}
        self._waiting: set[asyncio.Future[None]] = set()

    def load(self, snapshot: Snapshot) -> None:
        """Begin with a session as it stands."""
        self.seq = snapshot.seq
        self.info = _plain(snapshot.info)
        self.entries = {entry["id"]: entry for entry in _plain(snapshot.entries)}

    def apply(self, seq: int, patches: Sequence[Patch]) -> None:
        """Take the patches of one event, as they would come over a wire."""
        for patch in _plain(patches):
            OPERATIONS[patch["op"]](self, patch)
        self.seq = seq
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def target(self, entry: int) -> Json:
        """Entry 0 is the session's own facts."""
        return self.entries[entry] if entry else self.info

    async def until(self, true: Callable[[PatchedSession], Any]) -> Any:
        """The first answer that is not false, looked for after each event."""
        while not (answer := true(self)):
            changed = asyncio.get_running_loop().create_future()
            self._waiting.add(changed)
            await changed
        return answer

    def request(self) -> Json | None:
        """The request for approval that waits for an answer, if there is one."""
        asked = (entry for entry in self.entries.values() if entry["type"] == "permission_request")
        return next((entry for entry in asked if entry.get("state", "pending") == "pending"), None)

    def same_as(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot says the same, to the byte."""
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
    assert len(before.encode("utf-16-le")) == 2 * patch["offset"], "a patch was missed"
    target[patch["field"]] = before + patch["text"]


OPERATIONS: dict[str, Callable[[PatchedSession, Json], None]] = {"put": _put, "set": _set, "append": _append}
