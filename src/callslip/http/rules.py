"""Saved rules over HTTP: list, save, preview, test and revoke them, and propose one for a request."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from callslip.api import rules
from callslip.api.rule_book import RulePreview, RuleTest
from callslip.http import schemas
from callslip.http.request import NoQuery, RequestContext, Route, json_response
from callslip.model.views import call_view


class RulesQuery(msgspec.Struct):
    """Filters for rules."""

    session: Annotated[str, Meta(description="Only rules for this session.")] = ""


async def list_rules(context: RequestContext) -> Response:
    """List the saved rules that the caller may revoke, oldest first, also those that have ended.

    A caller with rights in some sessions only sees their rules, and no policy; a token for one session must name it.
    """
    query = context.query(RulesQuery)
    if not query.session:
        await context.admit()
    records = await rules.list_rules(context.ledger.log, session=query.session, access=context.access)
    now = await rules.clock(context.ledger.log)
    policy = await rules.view_policy(context.ledger.log, access=context.access)
    return json_response(schemas.Rules(rules=[rules.rule_view(record, now) for record in records], policy=policy))


async def save_rule(context: RequestContext) -> Response:
    """Save a rule. It answers requests from now on.

    A rule for a session needs the right to approve in it, any other rule that right in all sessions.
    """
    await context.require_authenticated()
    context.query(NoQuery)
    log = context.ledger.log
    record = await rules.save_rule(log, await context.body(rules.NewRule), access=context.access)
    return json_response(rules.rule_view(record, record.created_at), 201)


async def preview_rule(context: RequestContext) -> Response:
    """Return which of the newest calls a rule would have matched, newest first. Nothing is saved."""
    await context.require_authenticated()
    context.query(NoQuery)
    rule = await context.body(rules.NewRule)
    preview = await rules.preview_rule(context.ledger.log, rule, access=context.access)
    calls = [call_view(call) for call in preview.calls]
    return json_response(RulePreview(calls=calls, matched=preview.matched, looked_at=preview.looked_at))


async def test_rules(context: RequestContext) -> Response:
    """Return what the rules decide about a call, and the rules that were looked at. Nothing is run.

    Without a session the rules for a project folder and those that are valid everywhere are looked at.
    """
    await context.require_authenticated()
    context.query(NoQuery)
    body = await context.body(RuleTest)
    decision = await rules.test_rules(
        context.ledger.log, body.call_fields(), session=body.session, project=body.project, access=context.access
    )
    return json_response(rules.decision_view(decision))


async def revoke_rule(context: RequestContext) -> Response:
    """Revoke a rule. It answers no request any more."""
    context.query(NoQuery)
    log = context.ledger.log
    record = await rules.revoke_rule(log, context.path_params["rule"], access=context.access)
    return json_response(rules.rule_view(record, await rules.clock(log)))


async def propose_rule(context: RequestContext) -> Response:
    """Return a rule that would have allowed a request, to change, preview and save it.

    `problem` says why no rule would answer such a request. Without the right to read the rule has no filters.
    """
    context.query(NoQuery)
    approval = context.path_params["approval"]
    return json_response(await rules.propose_rule(context.ledger.log, approval, access=context.access))


ROUTES = (
    Route("GET", "/v1/rules", list_rules, "approve", RulesQuery, answers={200: schemas.Rules}, problems=(404,)),
    Route("POST", "/v1/rules", save_rule, "approve", NoQuery, rules.NewRule, {201: rules.RuleView}, (404,)),
    Route(
        *("POST", "/v1/rules/preview", preview_rule, "approve", NoQuery, rules.NewRule),
        answers={200: RulePreview},
        problems=(404,),
    ),
    Route(
        *("POST", "/v1/rules/test", test_rules, "approve", NoQuery, RuleTest),
        answers={200: rules.DecisionView},
        problems=(404,),
    ),
    Route("DELETE", "/v1/rules/{rule}", revoke_rule, "approve", NoQuery, answers={200: rules.RuleView}),
    Route(*("GET", "/v1/approvals/{approval}/rule", propose_rule, "approve", NoQuery), answers={200: rules.Proposal}),
)
