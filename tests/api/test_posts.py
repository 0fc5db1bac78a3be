"""Test bodies that callers post with a key, by processes that share a ledger."""

from __future__ import annotations

import json
from typing import Any

import pytest

import callslip
from callslip.api.access import FULL_ACCESS
from callslip.api.posts import Body, PostResult, Posts
from callslip.errors import ConflictError
from callslip.model import codec
from callslip.model.records import ConversationName
from tests.support.invariants import find_faults, read_events

pytestmark = pytest.mark.anyio


async def post(posts: Posts, format: str, messages: list[Any]) -> PostResult:
    """Post a body to the session `s`, always with the same key."""
    raw = json.dumps(messages).encode()
    body = Body(messages=messages, size=len(raw), digest=codec.digest(raw), key="one")
    return await posts.append(ConversationName("s", format, ""), body, FULL_ACCESS)


@pytest.mark.parametrize(
    ("format", "first", "second", "text"),
    [
        pytest.param(
            "events",
            [{"type": "message.user", "text": "a"}, {"type": "message.user", "text": "b"}],
            [{"type": "message.user", "text": "c"}],
            "c",
            id="a body with events",
        ),
        pytest.param("shell", ["<shell>ls"], [" -l"], " -l", id="a body without events"),
    ],
)
async def test_a_key_is_known_until_retention_removes_it(
    db: str, format: str, first: list[Any], second: list[Any], text: str
) -> None:
    """HELD3: in every process. Then the same key is accepted again, with any body."""
    async with await callslip.open(db) as ledger, await callslip.open(db) as other:
        posts = [Posts(ledger.log), Posts(other.log)]
        result = await post(posts[0], format, first)
        for keep_s in (None, 3600):
            if keep_s is not None:
                await ledger.prune(keep_s)
            for each in posts:
                assert await post(each, format, first) == result
                with pytest.raises(ConflictError, match="used before with another body"):
                    await post(each, format, second)
        await ledger.prune(-60)
        again = await post(posts[1], format, second)
        assert again.appended == 1
        for each in posts:
            assert await post(each, format, second) == again
        assert [event.text for event in await read_events(other, "s")] == [text]
        assert not await find_faults(ledger)
