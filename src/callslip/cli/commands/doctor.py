"""`callslip doctor`: print the facts about a ledger, and for each problem its likely cause and what to do.

It changes nothing: calls of dead owners are reported, not ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from callslip.cli import exit_status
from callslip.cli.options import db_option, json_option, selected_location, wants_json
from callslip.cli.terminal import tables
from callslip.cli.terminal.escape import escape_controls
from callslip.cli.terminal.formatting import format_age
from callslip.client.server_file import running_server
from callslip.model.display import call_state_name, format_size, pluralize

if TYPE_CHECKING:
    from callslip.cli.commands.doctor_commands import Finding

Facts = dict[str, Any]
Lines = str | list[str]
"""The text of a fact: one line, or several, each of which is escaped by itself."""
VERSION_NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "python": "Python"}


@click.command()
@db_option
@json_option
def doctor() -> int:
    """Diagnose problems.

    Changes nothing. The exit status is 1 if there is a problem, 3 if there is no ledger.
    """
    import asyncio

    from callslip.cli.commands.doctor_checks import examine

    facts, findings = asyncio.run(examine(selected_location()))
    running = running_server(selected_location())
    facts["server"] = {"url": running.url, "pid": running.pid} if running else None
    if wants_json():
        tables.write_json({**facts, "findings": [finding._asdict() for finding in findings]})
    else:
        tables.print_facts(tables.console(), _describe_facts(facts))
        _print_findings(findings)
    if not facts["exists"]:
        return exit_status.NOT_FOUND
    return exit_status.FAILED if any(finding.level == "problem" for finding in findings) else exit_status.OK


def _describe_facts(facts: Facts) -> Iterator[tuple[str, Lines]]:
    """Yield the name and the text of each fact. A ledger that cannot be read has fewer of them."""
    suffix = "" if facts["exists"] else ", does not exist"
    yield "ledger", f"{selected_location().display_name} (set by {facts['saidBy']}{suffix})"
    versions, server = facts["versions"], facts["server"]
    names = (f"{VERSION_NAMES.get(name, name)} {version or 'missing'}" for name, version in versions.items())
    yield "versions", ", ".join(names)
    yield "server", f"{server['url']} (process {server['pid']})" if server else "not running"
    if "hooks" in facts:
        hooks = facts["hooks"]
        state = "served" if hooks["served"] else "no server"
        yield "hooks", f"{hooks['folder']}: {state}, {pluralize(hooks['waiting'], 'message')} waiting"
    if "access" in facts:
        yield "access", facts["access"]
    if "database" in facts:
        yield "database", _describe_database(facts["database"])
    if "files" in facts:
        yield "files", ", ".join(f"{name} {format_size(count)}" for name, count in facts["files"].items())
        yield "locks", ", ".join(f"{name} {state}" for name, state in facts["locks"].items())
    if "schema" in facts:
        schema, blobs = facts["schema"], facts["blobs"]
        readers = f"oldest reader {schema['oldestReader']}"
        yield "schema", f"version {schema['version']} (newest {schema['newest']}); {readers}"
        yield "sessions", f"{facts['sessions']:,}, {pluralize(facts['events'], 'event')}"
        states = ", ".join(f"{count:,} {call_state_name(state)}" for state, count in facts["calls"].items())
        yield "calls", f"{sum(facts['calls'].values()):,}" + (f" ({states})" if states else "")
        yield "blobs", f"{blobs['count']:,}, {format_size(blobs['bytes'])}"
    if "open" in facts:
        yield from _describe_open_work(facts)
    yield "settings", ", ".join(f"{name} {value}" for name, value in facts["settings"].items())


def _describe_database(database: Facts) -> str:
    connections = database["connections"]
    settings = ", ".join(f"{name} {value}" for name, value in database["settings"].items())
    kind = "standby, " if database["isStandby"] else ""
    used = f"{connections['used']} of {connections['max']} connections in use"
    return f"{kind}{format_size(database['bytes'])}, {used}, {settings}"


def _describe_open_work(facts: Facts) -> Iterator[tuple[str, Lines]]:
    calls = [f"{row['call']}  {call_state_name(row['state'])}  {row['tool']}  {row['owner']}" for row in facts["open"]]
    yield "open", calls or "none"
    approvals = [
        f"{row['approval']}  requested {format_age(row['createdAt'])}  {row['description']}"
        for row in facts["approvals"]
    ]
    yield "approvals", approvals or "none"
    commands = [
        f"{queue}  " + ", ".join(f"{count} {call_state_name(state)}" for state, count in counts.items())
        for queue, counts in facts["commands"].items()
    ]
    yield "commands", commands or "none pending"
    workers = [f"{name}  last seen {format_age(at)}" for name, at in facts["executors"].items()]
    yield "workers", workers or "none seen"


def _print_findings(findings: list[Finding]) -> None:
    from rich.text import Text

    out = tables.console()
    tables.print_block(out, Text())
    for finding in findings:
        is_problem = finding.level == "problem"
        sign = Text("✗ ", "red") if is_problem else Text("! ", "yellow")
        tables.print_block(out, sign.append(escape_controls(finding.what), "bold"))
        tables.print_block(out, Text(escape_controls(f"  likely cause: {finding.cause}")))
        tables.print_block(out, Text(escape_controls(f"  what to do:   {finding.advice}")))
    if not findings:
        tables.print_block(out, Text("✓ no problems found", "green"))
