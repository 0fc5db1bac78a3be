"""What lists show of a session, and the tokens that responses of models used. All follows from the log."""

from __future__ import annotations

from typing import Literal

import msgspec

SessionState = Literal["running", "waiting", "idle", "ended"]
"""What a session does. `waiting`: for an approval. `ended`: its agent's program has ended."""


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one response of a model, by the last report of it. `seq` is the event of that report.

    `parent` is the call whose sub-agent used them. `cost` is what the agent stated, None if it did not.
    """

    id: str
    seq: int
    at: int = 0
    turn: str = ""
    parent: str = ""
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None
    currency: str = ""
    incomplete: bool = False


class UsageTotals(msgspec.Struct, rename="camel", omit_defaults=True):
    """Tokens and costs of several responses. `costs` are what agents stated, by currency.

    `inputTokens` includes the cached ones, `outputTokens` those of the reasoning. `incomplete` counts the responses
    whose numbers are not final.
    """

    responses: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    costs: dict[str, float] = {}
    incomplete: int = 0


class SessionSummary(msgspec.Struct, rename="camel", omit_defaults=True):
    """A session after event `seq`. `prompt` is the beginning of its first prompt, `failed` counts failed calls.

    `requests` are the pending requests for approval and their calls. Times are those of the events, in ms.
    """

    seq: int = 0
    prompt: str = ""
    agent: str = ""
    agent_version: str = ""
    model: str = ""
    project: str = ""
    branch: str = ""
    foreign_id: str = ""
    continues: str = ""
    turn: str = ""
    requests: dict[str, str] = {}
    ended: bool = False
    failed: int = 0
    started_at: int = 0
    active_at: int = 0
    usage: UsageTotals = msgspec.field(default_factory=UsageTotals)

    @property
    def state(self) -> SessionState:
        """What the session does now."""
        if self.requests:
            return "waiting"
        return "running" if self.turn else "ended" if self.ended else "idle"
