"""What lists show of a session, and the tokens that responses of models used. All follows from the log."""

from __future__ import annotations

from typing import Literal

import msgspec

RESPONSE_TOKENS, RESPONSE_COSTS = 1, 2
"""Single responses reported tokens or stated costs, so those of turns do not count as well."""
SessionState = Literal["running", "waiting", "idle", "ended"]
"""What a session does. `waiting`: for an approval. `ended`: its agent's program has ended."""


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one response of a model, by the last report of it. `seq` is the event of that report.

    `parent` is the call whose sub-agent used them. `cost` is what the agent stated, None if it did not. `of_turn`: it
    is the sum of a turn.
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
    of_turn: bool = False


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
    """A session after event `seq`. `prompt` is the beginning of its first prompt, `turn` the open turn.

    `lastTurn` is the turn that ended last, to which a report after its end belongs. `failed` counts calls that did not
    succeed: that failed, ran out of time or lost their worker, and completed ones of which the agent reported a
    failure. `usage` is that of responses, `turnUsage` that of turns. Times are those of the events, in ms.
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
    last_turn: str = ""
    ended: bool = False
    failed: int = 0
    started_at: int = 0
    active_at: int = 0
    usage: UsageTotals = msgspec.field(default_factory=UsageTotals)
    turn_usage: UsageTotals = msgspec.field(default_factory=UsageTotals)

    @property
    def has_responses(self) -> int:
        """What is known of single responses: RESPONSE_TOKENS, RESPONSE_COSTS, their sum, or 0."""
        has_tokens = msgspec.structs.replace(self.usage, costs={}) != UsageTotals()
        return RESPONSE_TOKENS * has_tokens + RESPONSE_COSTS * bool(self.usage.costs)

    @property
    def counted_usage(self) -> UsageTotals:
        """The sum over all responses; that over all turns for what only those reported: tokens, costs or both."""
        tokens = self.usage if self.has_responses & RESPONSE_TOKENS else self.turn_usage
        costs = self.usage.costs if self.has_responses & RESPONSE_COSTS else self.turn_usage.costs
        return msgspec.structs.replace(tokens, costs=costs)

    def state(self, open_calls: int, pending: int) -> SessionState:
        """Return what the session does now, with the number of its open calls and of those that need an approval."""
        if pending:
            return "waiting"
        return "running" if self.turn or open_calls else "ended" if self.ended else "idle"
