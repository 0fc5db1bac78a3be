"""`callslip rules`: list, add, test and revoke saved rules, which answer requests for approval."""

from __future__ import annotations

import json
from typing import Any, cast

import click
import msgspec

from callslip.api.rule_book import RulePreview, RuleTest
from callslip.api.rules import LIFETIMES, NewRule, PolicyView, RuleView
from callslip.cli.commands.answer import user_name
from callslip.cli.options import (
    ID,
    SelectedLedger,
    db_option,
    json_option,
    open_selected,
    refuse_agent,
    server_options,
    wants_json,
)
from callslip.cli.terminal import tables
from callslip.cli.terminal.formatting import format_age
from callslip.errors import InvalidInputError
from callslip.model.display import pluralize

SHOWN_CALLS = 5


@click.group()
def rules() -> None:
    """List, add, test and revoke saved rules.

    Saved rules answer requests for approval. They guard against accidents and are no sandbox.
    """


@rules.command("ls")
@click.option("--session", type=ID, metavar="NAME", help="Only rules for this session.")
@server_options
@db_option
@json_option
def list_rules(session: str | None) -> None:
    """List saved rules, oldest first, also those that have ended.

    If a server runs for the ledger, the rules of its policy file are printed first, on stderr.
    """
    with open_selected(asks_server=True) as selected:
        policy = selected.ledger.rules.policy()
        found = selected.ledger.rules.list(session or "")
    if policy is not None:
        _print_policy(policy)
    if wants_json():
        tables.write_json(*map(_rule_json, found))
    elif found:
        head = ["RULE", "ACTION", "SCOPE", "FOR", "STATE", "USES", "LAST USED", "BY", "FILTERS"]
        cells = [
            [
                *(rule.rule, rule.action, rule.scope_value or rule.scope, rule.lifetime, rule.state, str(rule.uses)),
                *(format_age(rule.used_at), rule.created_by, json.dumps(rule.filters, ensure_ascii=False)),
            ]
            for rule in found
        ]
        tables.print_table(head, cells)
    else:
        tables.print_status("no rules")


def _print_policy(policy: PolicyView) -> None:
    """Print the policy file on stderr: its rules cannot be changed here."""
    tables.print_status(f"policy file {policy.file}, before saved rules: {policy.problem or 'the first match decides'}")
    for rule in policy.rules:
        place = f"line {rule.line}" if rule.line else rule.rule
        tables.print_status(f"  {place}  {rule.action:5}  {json.dumps(rule.filters, ensure_ascii=False)}")


def _add_pattern(members: dict[str, Any], path: list[str], pattern: str) -> None:
    *parents, last = path
    for parent in parents:
        inner: Any = members.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise click.BadParameter(f"{parent!r} has a pattern already")
        members = cast("dict[str, Any]", inner)
    patterns: Any = members.setdefault(last, [])
    if not isinstance(patterns, list):
        raise click.BadParameter(f"{last!r} is an object already")
    cast("list[str]", patterns).append(pattern)


def _parse_filter(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    """Parse `--input command='git *'`; a name with dots is that of an inner member."""
    members: dict[str, Any] = {}
    for value in values:
        name, separator, pattern = value.partition("=")
        if not separator or not name:
            raise click.BadParameter("write NAME=PATTERN")
        _add_pattern(members, name.split("."), pattern)
    return members


@rules.command()
@click.argument("action", type=click.Choice(["allow", "ask", "deny"]))
@click.option("--command", "commands", multiple=True, metavar="PATTERN", help="A shell command; may be repeated.")
@click.option("--tool", "tools", multiple=True, metavar="PATTERN", help="The name of the tool; may be repeated.")
@click.option("--kind", "kinds", multiple=True, metavar="PATTERN", help="The kind of the call; may be repeated.")
@click.option("--title", "titles", multiple=True, metavar="PATTERN", help="The title of the call; may be repeated.")
@click.option("--path", "paths", multiple=True, metavar="PATTERN", help="Each file of the call; may be repeated.")
@click.option(
    "--input", "members", multiple=True, metavar="NAME=PATTERN", callback=_parse_filter, help="A member of the input."
)
@click.option("--session", type=ID, metavar="NAME", help="Valid in this session.")
@click.option("--project", metavar="FOLDER", help="Valid in the sessions of this project folder.")
@click.option("--everywhere", is_flag=True, help="Valid in all sessions.")
@click.option(
    "--for", "lifetime", type=click.Choice(LIFETIMES), default="until-revoked", show_default=True, help="How long."
)
@click.option("--reason", default="", help="The reason, shown with its answers; the model reads that of a denial.")
@click.option("--dry-run", is_flag=True, help="Only show which of the newest calls it would have matched.")
@server_options
@db_option
@json_option
def add(
    action: str,
    commands: tuple[str, ...],
    tools: tuple[str, ...],
    kinds: tuple[str, ...],
    titles: tuple[str, ...],
    paths: tuple[str, ...],
    members: dict[str, Any],
    session: str | None,
    project: str | None,
    everywhere: bool,
    lifetime: str,
    reason: str,
    dry_run: bool,
) -> None:
    """Save a rule that allows, asks or denies.

    It shows first which of the newest calls the rule would have matched. Patterns match as in a policy file: * is any
    text, and a command must be one simple command. All filters must match, and one pattern of each.

    If a server runs for the ledger, it takes the rule and requires a token that may approve. Programs that an agent
    started may not save rules.
    """
    refuse_agent("save rules")
    scopes = {"session": session, "project": project, "everywhere": "" if everywhere else None}
    chosen = [(scope, value) for scope, value in scopes.items() if value is not None]
    if len(chosen) != 1:
        raise click.UsageError("pass one of --session, --project and --everywhere")
    scope, value = chosen[0]
    if scope == "project":
        import os

        value = os.path.abspath(os.path.expanduser(value))
    input = {**members, **({"command": list(commands)} if commands else {})}
    patterns = {"tool": tools, "kind": kinds, "title": titles, "path": paths}
    filters: dict[str, Any] = {name: list(texts) for name, texts in patterns.items() if texts}
    filters |= {"input": input} if input else {}
    rule = NewRule(
        action=cast(Any, action),
        filters=filters,
        reason=reason,
        scope=cast(Any, scope),
        scope_value=value,
        lifetime=cast(Any, lifetime),
    )
    with open_selected(for_answer=True) as selected:
        preview = selected.ledger.rules.preview(rule)
        saved = None if dry_run else _save(selected, rule)
    if wants_json():
        tables.write_json(_rule_json(saved) if saved is not None else msgspec.to_builtins(preview))
    _print_preview(preview)
    if saved is not None:
        place = {"everywhere": "everywhere"}.get(saved.scope, f"in {saved.scope} {saved.scope_value}")
        tables.print_status(f"saved {saved.rule}: {saved.action} {place}, {saved.lifetime}")


def _save(selected: SelectedLedger, rule: NewRule) -> RuleView:
    return selected.ledger.rules.save(rule, by="" if selected.is_remote else user_name())


def _print_preview(preview: RulePreview) -> None:
    calls = pluralize(preview.looked_at, "call")
    tables.print_status(f"matches {preview.matched} of the newest {calls}")
    for call in preview.calls[:SHOWN_CALLS]:
        tables.print_status(f"  {call.call}  {call.title or call.tool_name}")


@rules.command()
@click.argument("command", required=False, default="")
@click.option("--tool", default="", help="The name of the tool.")
@click.option("--kind", default="", help="The kind of the call. [default: execute, with a command]")
@click.option("--title", default="", help="The title of the call.")
@click.option("--path", "paths", multiple=True, metavar="PATH", help="A file of the call; may be repeated.")
@click.option("--input", "input", metavar="JSON", help="The input of the call.")
@click.option("--session", type=ID, metavar="NAME", help="The session of the call.")
@click.option("--project", metavar="FOLDER", default="", help="The project folder of the call.")
@server_options
@db_option
@json_option
def test(
    command: str,
    tool: str,
    kind: str,
    title: str,
    paths: tuple[str, ...],
    input: str | None,
    session: str | None,
    project: str,
) -> None:
    """Show what the rules decide about a call. Nothing is run.

    COMMAND is a shell command. It prints allow, ask or deny, and the rules that were looked at.
    """
    from callslip.model import codec

    parsed = codec.parse_json(input, field="--input") if input is not None else None
    if not (command or tool or kind or title or paths or parsed is not None):
        raise InvalidInputError("command", "pass a command, or another field of a call")
    call = RuleTest(
        command=command,
        tool_name=tool,
        kind=kind,
        title=title,
        input=parsed,
        paths=list(paths),
        session=session or "",
        project=project,
    )
    with open_selected(asks_server=True) as selected:
        decision = selected.ledger.rules.test(call)
    if wants_json():
        tables.write_json(msgspec.to_builtins(decision))
    else:
        tables.write_text(decision.action)
    for step in decision.steps:
        result = {True: "matches", False: "does not match", None: "a person must decide"}[step.matches]
        tables.print_status(f"  {step.rule}  {step.action:5}  {result}")
    tables.print_status(decision.reason)


@rules.command()
@click.argument("rule", type=ID)
@server_options
@db_option
@json_option
def revoke(rule: str) -> None:
    """Revoke a rule. RULE is its id, or a prefix of it.

    If a server runs for the ledger, it requires a token that may approve. Programs that an agent started may not revoke
    rules.
    """
    refuse_agent("revoke rules")
    with open_selected(for_answer=True) as selected:
        revoked = selected.ledger.rules.revoke(rule)
    if wants_json():
        tables.write_json(_rule_json(revoked))
    tables.print_status(f"revoked {revoked.rule}")


def _rule_json(rule: RuleView) -> dict[str, Any]:
    return msgspec.to_builtins(rule)
