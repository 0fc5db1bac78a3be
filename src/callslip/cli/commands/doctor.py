"""`callslip doctor`: the facts about a ledger, and for everything odd its likely cause and what to do.

It changes nothing: dead owners are named, not reaped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from callslip.cli import exit_status
from callslip.cli.options import db_option, json_option, selected_location, wants_json
from callslip.cli.terminal import tables
from callslip.cli.terminal.escape import escape_controls
from callslip.cli.terminal.formatting import format_age, pluralize, size
from callslip.client.server_file import running_server

Facts = dict[str, Any]
Lines = str | list[str]
"""What is told of a fact: one line, or several, each of which is made inert by itself."""


@click.command()
@db_option
@json_option
def doctor() -> int:
    """Look for what is wrong, and say what to do.

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
        _print(facts)
        _print_findings(findings)
    if not facts["exists"]:
        return exit_status.NOT_FOUND
    return exit_status.FAILED if any(finding.level == "problem" for finding in findings) else exit_status.OK


def _print(facts: Facts) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, tell in _LINES:
        told = tell(facts) if name in facts or name in _ALWAYS else ""
        if told:
            lines = [told] if isinstance(told, str) else told
            grid.add_row(name, Text("\n".join(map(escape_controls, lines))))
    tables.emit(tables.console(), grid)


_ALWAYS = ("ledger", "versions")


def _ledger(facts: Facts) -> str:
    state = "" if facts["exists"] else ", does not exist"
    return f"{facts['path'] or 'in memory'} (named by {facts['saidBy']}{state})"


def _versions(facts: Facts) -> str:
    found = facts["versions"]
    return f"callslip {found['callslip']}, SQLite {found['sqlite']}, Python {found['python']}"


def _schema(facts: Facts) -> str:
    found = facts["schema"]
    return f"version {found['version']} (this program knows {found['newest']}); oldest reader {found['oldestReader']}"


def _files(facts: Facts) -> str:
    return ", ".join(f"{name} {size(count)}" for name, count in facts["files"].items())


def _calls(facts: Facts) -> str:
    states = facts["calls"]
    parts = ", ".join(f"{count:,} {state}" for state, count in states.items())
    return f"{sum(states.values()):,}" + (f" ({parts})" if parts else "")


def _open(facts: Facts) -> Lines:
    return [f"{row['call']}  {row['state']}  {row['tool']}  {row['owner']}" for row in facts["open"]] or "none"


def _approvals(facts: Facts) -> Lines:
    rows = facts["approvals"]
    return [f"{row['approval']}  asked {format_age(row['createdAt'])}  {row['description']}" for row in rows] or "none"


def _commands(facts: Facts) -> Lines:
    told = [
        f"{client}  " + ", ".join(f"{count} {state}" for state, count in states.items())
        for client, states in facts["commands"].items()
    ]
    return told or "none is pending"


def _executors(facts: Facts) -> Lines:
    return [f"{name}  asked {format_age(at)}" for name, at in facts["executors"].items()] or "none has ever asked"


def _settings(facts: Facts) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts["settings"].items())


def _blobs(facts: Facts) -> str:
    return f"{facts['blobs']['count']:,}, {size(facts['blobs']['bytes'])}"


def _locks(facts: Facts) -> str:
    return ", ".join(f"{name} {state}" for name, state in facts["locks"].items())


def _sessions(facts: Facts) -> str:
    return f"{facts['sessions']:,}, {pluralize(facts['events'], 'event')}"


def _server(facts: Facts) -> str:
    found = facts["server"]
    return f"{found['url']} (process {found['pid']})" if found else "none runs"


def _access(facts: Facts) -> str:
    return facts["access"]


_LINES: tuple[tuple[str, Callable[[Facts], Lines]], ...] = (
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
    ("executors", _executors),
    ("settings", _settings),
)


def _print_findings(findings: list[Any]) -> None:
    from rich.text import Text

    out = tables.console()
    tables.emit(out, Text())
    for finding in findings:
        problem = finding.level == "problem"
        sign = Text("✗ ", "red") if problem else Text("! ", "yellow")
        tables.emit(out, sign.append(escape_controls(finding.what), "bold"))
        tables.emit(out, Text(escape_controls(f"  likely cause: {finding.cause}")))
        tables.emit(out, Text(escape_controls(f"  what to do:   {finding.advice}")))
    if not findings:
        tables.emit(out, Text("✓ nothing odd", "green"))
