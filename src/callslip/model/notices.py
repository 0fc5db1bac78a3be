"""Notices for a person: a request waits for an answer, or an agent has finished."""

from __future__ import annotations

from typing import Literal

import msgspec

NoticeKind = Literal["approval", "question", "finished", "idle"]
"""A pending request for approval, one that asks for more than yes or no, the end of a turn, a long pause after it."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A notice. Its `id` is the same in every process, so that each is sent once.

    `due` is when to send it, in ms. `title`, `text` and `project` are content: they may have the text of a command.
    """

    id: str
    kind: NoticeKind
    session: str
    at: int
    due: int
    agent: str = ""
    approval: str = ""
    entry: int = 0
    tool: str = ""
    answer_at: str = ""
    expires_at: int = 0
    title: str = ""
    text: str = ""
    project: str = ""


class NoticeDelays(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long something must last before a notice is sent, in seconds: a rule may answer a request at once."""

    approval: float = 2.0
    finished: float = 10.0
    idle: float = 300.0
