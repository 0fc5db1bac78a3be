"""Stored messages to those of the AI SDK 4, against decoding and encoding the same bytes: the limit."""

from __future__ import annotations

import random

import msgspec
from measure import best, say

from callslip.formats.ai_sdk_v4 import format_messages_to_vercel
from callslip.formats.ai_sdk_v4.rows_convert_fast import vercel_json

MESSAGES = 10_000


def rows() -> list[dict[str, object]]:
    """Turns of a person, a call, its result and an answer."""
    rand = random.Random(3)
    messages: list[dict[str, object]] = []
    for number in range(MESSAGES // 4):
        call = f"call_{number}"
        text = " ".join(rand.choice(("the", "quick", "brown", "fox", "\u00fcber")) for _ in range(60))
        contents = (
            ("USER", {"role": "user", "content": text}, []),
            ("AI_TOOL", {"role": "assistant", "content": "Let me look."}, [(call, {"city": text[:40]})]),
            ("TOOL", {"role": "tool", "tool_call_id": call, "content": text * 3}, []),
            ("AI_MESSAGE", {"role": "assistant", "content": text}, []),
        )
        for entity, content, calls in contents:
            tools = [
                {
                    "id": name,
                    "name": "get_weather",
                    "arguments": msgspec.json.encode(arguments).decode(),
                    "validated": None,
                }
                for name, arguments in calls
            ]
            at = f"2026-01-01T{len(messages) // 3600:02}:{len(messages) // 60 % 60:02}:{len(messages) % 60:02}Z"
            messages.append(
                {
                    "id": f"m{len(messages)}",
                    "entity": entity,
                    "content": msgspec.json.encode(content).decode(),
                    "creationDate": at,
                    "isComplete": True,
                    "toolCalls": tools,
                }
            )
    return messages


def bench_rows() -> None:
    """From bytes to bytes, and from dicts to dicts."""
    print(f"rows: {MESSAGES:,} stored messages to AI SDK 4 messages")
    listed = rows()
    data = msgspec.json.encode(listed)
    limit, ours, plain = best(
        lambda: msgspec.json.encode(msgspec.json.decode(data)),
        lambda: vercel_json(data),
        lambda: format_messages_to_vercel(listed),
    )
    say("decode and encode the same bytes (the limit)", f"{limit * 1000:.1f} ms")
    say("JSON to JSON, to the limit", f"{ours / limit:.2f}x")
    say("dicts to dicts, to the limit", f"{plain / limit:.2f}x")


if __name__ == "__main__":
    bench_rows()
