"""Read the tokens that a response of a model used, in the shapes of the model APIs, the AI SDK and ACP."""

from __future__ import annotations

import math
from typing import Any

from callslip.formats.json_fields import Fields, as_dict, as_str, identifier
from callslip.model import events as ev

INPUT = ("input_tokens", "prompt_tokens", "inputTokens", "promptTokens")
OUTPUT = ("output_tokens", "completion_tokens", "outputTokens", "completionTokens")
CACHED = (
    *("cache_read_input_tokens", "cachedInputTokens", "cachedReadTokens", "input_tokens_details.cached_tokens"),
    *("prompt_tokens_details.cached_tokens", "inputTokenDetails.cacheReadTokens"),
)
CACHE_WRITE = ("cache_creation_input_tokens", "cachedWriteTokens", "inputTokenDetails.cacheWriteTokens")
REASONING = (
    *("reasoningTokens", "thoughtTokens", "output_tokens_details.reasoning_tokens"),
    *("completion_tokens_details.reasoning_tokens", "outputTokenDetails.reasoningTokens"),
)
APART = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Fields of an API whose input tokens do not include those of the cache."""
TOTAL = ("totalTokens", "total_tokens")


def read_usage(
    usage: Any, *, id: str = "", model: Any = "", incomplete: bool = False, of_turn: bool = False
) -> list[ev.Event]:
    """Return the report of a response with this `id`, or of a turn; nothing if the value has no number of tokens."""
    fields = as_dict(usage)
    counts = [_count(fields, names) for names in (INPUT, OUTPUT, CACHED, CACHE_WRITE, REASONING)]
    if counts == [None] * len(counts):
        return []
    input_tokens, output_tokens, cached, cache_write, reasoning = (count or 0 for count in counts)
    apart = input_tokens + output_tokens + cached + cache_write
    if any(name in fields for name in APART) or (cached + cache_write and _count(fields, TOTAL) == apart):
        input_tokens += cached + cache_write
    cost, currency = read_cost(fields.get("cost"))
    return [
        ev.UsageReported(
            id=identifier(id),
            model=as_str(model),
            input_tokens=min(input_tokens, ev.MAX_TOKENS),
            output_tokens=output_tokens,
            cached_tokens=cached,
            cache_write_tokens=cache_write,
            reasoning_tokens=reasoning,
            cost=cost,
            currency=currency,
            incomplete=incomplete,
            of_turn=of_turn,
        )
    ]


def _count(fields: Fields, names: tuple[str, ...]) -> int | None:
    """Return the first number of tokens among some fields; `a.b` is the field `b` of the object `a`."""
    for name in names:
        outer, _, inner = name.rpartition(".")
        value = (as_dict(fields.get(outer)) if outer else fields).get(inner)
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is int and 0 <= value <= ev.MAX_TOKENS:
            return value
    return None


def read_cost(value: Any) -> tuple[float | None, str]:
    """Return a cost and its currency, if it is stated."""
    fields = as_dict(value)
    amount: Any = fields.get("amount") if fields else value
    if type(amount) not in (int, float) or not math.isfinite(amount) or not 0 <= amount <= ev.MAX_COST:
        return None, ""
    return float(amount), as_str(fields.get("currency"))[:16]
