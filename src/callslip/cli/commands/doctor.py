"""`callslip doctor`: print the facts about a ledger, and for each problem its likely cause and what to do.

It changes nothing: calls of dead owners are reported, not ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from callslip.cli import exit_status
from callslip.cli.options import db_option, json_option, selected_location, wants_json
from callslip.cli.terminal import tables
from callslip.cli.terminal.escape import escape_controls
from callslip.cli.terminal.formatting import format_age, format_size, pluralize, state_name
from callslip.client.server_file import running_server

if TYPE_CHECKING:
    from callslip.cli.commands.doctor_commands import Finding

Facts = dict[str, Any]
Lines = str | list[str]
"""The text of a fact: one line, or several, each of which is escaped by itself."""


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
        _print_facts(facts)
        _print_findings(findings)
    if not facts["exists"]:
        return exit_status.NOT_FOUND
    return exit_status.FAILED if any(finding.level == "problem" for finding in findings) else exit_status.OK


def _print_facts(facts: Facts) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, describe in _FACTS:
        content = describe(facts) if name in facts or name == "ledger" else ""
        if content:
            lines = [content] if isinstance(content, str) else content
            grid.add_row(name, Text("\n".join(map(escape_controls, lines))))
    tables.print_block(tables.console(), grid)


def _ledger(facts: Facts) -> str:
    suffix = "" if facts["exists"] else ", does not exist"
    return f"{facts['path'] or 'in memory'} (set by {facts['saidBy']}{suffix})"


def _versions(facts: Facts) -> str:
    versions = facts["versions"]
    return f"callslip {versions['callslip']}, SQLite {versions['sqlite']}, Python {versions['python']}"


def _schema(facts: Facts) -> str:
    schema = facts["schema"]
    return f"version {schema['version']} (newest {schema['newest']}); oldest reader {schema['oldestReader']}"


def _files(facts: Facts) -> str:
    return ", ".join(f"{name} {format_size(count)}" for name, count in facts["files"].items())


def _calls(facts: Facts) -> str:
    counts = facts["calls"]
    parts = ", ".join(f"{count:,} {state_name(state)}" for state, count in counts.items())
    return f"{sum(counts.values()):,}" + (f" ({parts})" if parts else "")


def _open(facts: Facts) -> Lines:
    calls = facts["open"]
    return [f"{row['call']}  {state_name(row['state'])}  {row['tool']}  {row['owner']}" for row in calls] or "none"


def _approvals(facts: Facts) -> Lines:
    rows = facts["approvals"]
    return [
        f"{row['approval']}  requested {format_age(row['createdAt'])}  {row['description']}" for row in rows
    ] or "none"


def _commands(facts: Facts) -> Lines:
    return [
        f"{client}  " + ", ".join(f"{count} {state_name(state)}" for state, count in counts.items())
        for client, counts in facts["commands"].items()
    ] or "none pending"


def _workers(facts: Facts) -> Lines:
    return [f"{name}  last seen {format_age(at)}" for name, at in facts["executors"].items()] or "none seen"


def _settings(facts: Facts) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts["settings"].items())


def _blobs(facts: Facts) -> str:
    return f"{facts['blobs']['count']:,}, {format_size(facts['blobs']['bytes'])}"


def _locks(facts: Facts) -> str:
    return ", ".join(f"{name} {state}" for name, state in facts["locks"].items())


def _sessions(facts: Facts) -> str:
    return f"{facts['sessions']:,}, {pluralize(facts['events'], 'event')}"


def _server(facts: Facts) -> str:
    server = facts["server"]
    return f"{server['url']} (process {server['pid']})" if server else "not running"


def _access(facts: Facts) -> str:
    return facts["access"]


_FACTS: tuple[tuple[str, Callable[[Facts], Lines]], ...] = (
    ("ledger", _ledger),
    ("versions", _versions),
    ("server", _server),
    ("access", _access),
    ("files", _files),
    ("locks", _locks),
    ("schema", _schema),
    ("sessions", _sessions),
    ("calls", _calls),
    ("blobs", _blobs),
    ("open", _open),
    ("approvals", _approvals),
    ("commands", _commands),
    ("executors", _workers),
    ("settings", _settings),
)


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
