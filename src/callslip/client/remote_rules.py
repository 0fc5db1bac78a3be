"""The saved rules of a ledger behind a server."""

from __future__ import annotations

from typing import Any

import msgspec

from callslip.api.rule_book import RuleBook, RulePreview, RuleTest
from callslip.api.rules import DecisionView, NewRule, PolicyView, RuleView
from callslip.client.http import HttpPool
from callslip.client.problems import decode_answer
from callslip.client.remote_log import path_of


class _Rules(msgspec.Struct):
    rules: list[RuleView]
    policy: PolicyView | None = None


class RemoteRuleBook(RuleBook):
    """Lists, saves, previews, tests and revokes rules over HTTP."""

    def __init__(self, pool: HttpPool) -> None:
        self._pool = pool

    def _decode(self, body: bytes, kind: Any) -> Any:
        return decode_answer(self._pool.url, body, kind)

    async def list(self, session: str = "") -> list[RuleView]:
        return (await self._get(session)).rules

    async def policy(self) -> PolicyView | None:
        return (await self._get("")).policy

    async def _get(self, session: str) -> _Rules:
        return self._decode(await self._pool.get("/v1/rules", {"session": session}), _Rules)

    async def save(self, rule: NewRule, *, by: str = "") -> RuleView:
        return self._decode(await self._pool.post("/v1/rules", msgspec.to_builtins(rule), resend=False), RuleView)

    async def revoke(self, id_or_prefix: str) -> RuleView:
        return self._decode(await self._pool.delete(path_of("rules", id_or_prefix)), RuleView)

    async def preview(self, rule: NewRule) -> RulePreview:
        return self._decode(await self._pool.post("/v1/rules/preview", msgspec.to_builtins(rule)), RulePreview)

    async def test(self, call: RuleTest) -> DecisionView:
        return self._decode(await self._pool.post("/v1/rules/test", msgspec.to_builtins(call)), DecisionView)
