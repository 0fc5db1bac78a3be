"""The saved rules of a ledger, as programs use them: the same interface for a local ledger and one behind a server."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from callslip.api import rules
from callslip.api.rules import DecisionView, NewRule, PolicyView, RuleView
from callslip.formats.json_fields import as_dict
from callslip.ledger.event_log import EventLog
from callslip.model.views import CallView, CamelStruct, call_view


class RulePreview(CamelStruct):
    """The newest calls that a rule would have matched; `matched` of the `lookedAt` newest calls match."""

    calls: list[CallView]
    matched: int
    looked_at: int


class RuleTest(CamelStruct, forbid_unknown_fields=True):
    """A call to test rules with: a `command`, or the fields of any call."""

    command: str = ""
    tool_name: str = ""
    kind: str = ""
    title: str = ""
    input: Any = None
    paths: list[str] = msgspec.field(default_factory=list)
    session: str = ""
    project: str = ""

    def call_fields(self) -> dict[str, Any]:
        """Return the fields of the call. A command beside an input is a part of it."""
        input: Any = as_dict(self.input) | {"command": self.command} if self.command else self.input
        kind = self.kind or ("execute" if self.command else "")
        locations = [{"path": path} for path in self.paths] if self.paths else None
        tool = self.tool_name or None
        return {"tool_name": tool, "kind": kind, "title": self.title, "input": input, "locations": locations}


class RuleBook(Protocol):
    """The saved rules of a ledger."""

    async def list(self, session: str = "") -> list[RuleView]:
        """Return the rules, oldest first, also those that have ended; with `session` only its own."""
        ...

    async def policy(self) -> PolicyView | None:
        """Return the policy file, which beats the rules; None if there is none."""
        ...

    async def save(self, rule: NewRule, *, by: str = "") -> RuleView:
        """Save a rule. It answers requests from now on."""
        ...

    async def revoke(self, id_or_prefix: str) -> RuleView:
        """Delete a rule, and return it."""
        ...

    async def preview(self, rule: NewRule) -> RulePreview:
        """Return which of the newest calls a rule would have matched. It is not saved."""
        ...

    async def test(self, call: RuleTest) -> DecisionView:
        """Return what the rules decide about a call. Nothing is run."""
        ...


class LocalRuleBook(RuleBook):
    """The saved rules of a ledger in this process."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def list(self, session: str = "") -> list[RuleView]:
        now = await rules.clock(self._log)
        return [rules.rule_view(record, now) for record in await rules.list_rules(self._log, session=session)]

    async def policy(self) -> PolicyView | None:
        return await rules.view_policy(self._log)

    async def save(self, rule: NewRule, *, by: str = "") -> RuleView:
        record = await rules.save_rule(self._log, rule, by=by)
        return rules.rule_view(record, record.created_at)

    async def revoke(self, id_or_prefix: str) -> RuleView:
        record = await rules.revoke_rule(self._log, id_or_prefix)
        return rules.rule_view(record, await rules.clock(self._log))

    async def preview(self, rule: NewRule) -> RulePreview:
        found = await rules.preview_rule(self._log, rule)
        calls = [call_view(call) for call in found.calls]
        return RulePreview(calls=calls, matched=found.matched, looked_at=found.looked_at)

    async def test(self, call: RuleTest) -> DecisionView:
        fields = call.call_fields()
        decision = await rules.test_rules(self._log, fields, session=call.session, project=call.project)
        return rules.decision_view(decision)
