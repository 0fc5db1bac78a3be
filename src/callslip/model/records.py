"""The rows a write decides from and a query reads: sessions, calls, approvals.

They are projections of the log, written in the same transaction as the events they follow from, so that deciding
about a call never folds a session. The log does not determine `owner`, `lease` and `change`, and nothing else.
"""

from __future__ import annotations

from typing import Any

import msgspec


class HeldText(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the redactor holds back, and the event that will bring it. `text` waits before it, free of secrets.

    `length` and `digest` tell the chunk that it ended, so that a cumulative chunk is known to bring it again; the chunk
    itself may hold a secret and is not kept.
    """

    tail: str
    length: int
    digest: str
    event: bytes
    text: str = ""


class SessionRecord(msgspec.Struct, gc=False):
    """One session: how far its log goes, and which turn is open ("" for none).

    `message` is the newest message id seen. `carry` has, by stream, the end of a text that may begin a secret and waits
    for more of it; it is replaced, never changed. `owner` is the first that the log names, `labels` are the last.
    """

    name: str
    id: int = 0
    last_seq: int = 0
    pruned_seq: int = 0
    turn: str = ""
    turns: int = 0
    title: str = ""
    calls: int = 0
    message: str = ""
    carry: dict[str, HeldText] = {}
    created_at: int = 0
    updated_at: int = 0
    owner: str = ""
    labels: Any = None
    turn_owner: str = ""


class CallRecord(msgspec.Struct, gc=False):
    """One call, as far as the log tells, and who keeps it alive. One with a `client` is a command.

    `change` grows with every write of any command, so that another process finds what it has not seen yet.
    """

    id: str
    session: str
    entry: int
    state: str = "none"
    client_call_id: str = ""
    tool: str = ""
    title: str = ""
    kind: str = ""
    source: str = ""
    turn: str = ""
    iteration: int = -1
    index: int = -1
    scope: str = "turn"
    idempotent: bool = False
    attempt: int = 0
    worker: str = ""
    approval: str = ""
    opening: str = ""
    ending: str = ""
    input_mark: str = ""
    deadline: int = 0
    created_at: int = 0
    started_at: int = 0
    ended_at: int = 0
    end: int = 0
    reason: str = ""
    owner: str = ""
    lease: int = 0
    client: str = ""
    timeout: int = 0
    change: int = 0


class ApprovalRecord(msgspec.Struct, gc=False):
    """One request for approval and its answer."""

    id: str
    session: str
    call: str
    entry: int
    state: str = "pending"
    input_mark: str = ""
    attempt: int = 0
    description: str = ""
    options: list[Any] = []
    expires_at: int = 0
    created_at: int = 0
    answered_at: int = 0
    option: str = ""
    by: str = ""
    reason: str = ""


class AliasRecord(msgspec.Struct, gc=False):
    """A foreign id and the newest call of the session that bears it."""

    session: str
    ns: str
    id: str
    call: str


class KeyRecord(msgspec.Struct, gc=False):
    """An idempotency key: what was compared, and the event that came of it."""

    session: str
    key: str
    mark: str
    seq: int


class OwnerRecord(msgspec.Struct, gc=False):
    """A process or connection that keeps calls alive until `until`."""

    id: str
    until: int


class TokenRecord(msgspec.Struct, frozen=True):
    """A token for a part of what the server does. The token itself is not kept: `hash` is how it is known again.

    `session` "" is every session, `expires_at` 0 is never.
    """

    id: str
    hash: str
    label: str
    session: str
    verbs: tuple[str, ...]
    created_at: int
    expires_at: int = 0


OPERATIONAL = ("owner", "lease", "change")
