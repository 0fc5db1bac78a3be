"""`callslip hook`: install the hooks of agents into their settings, remove them, and say what is true about them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from callslip.cli import exit_status
from callslip.cli.options import db_option, json_option, selected_flags, selected_location, wants_json
from callslip.cli.terminal import tables
from callslip.cli.terminal.escape import escape_controls
from callslip.errors import CallslipError, InvalidInputError
from callslip.hooks.agents import KNOWN_AGENTS, Agent, Place
from callslip.hooks.events import MAX_WAIT_S, WAIT_S
from callslip.hooks.folder import count_spooled, describe_spooled, hook_folder, prepare_folder
from callslip.hooks.install import Plan, advice_after_install, carry_out, plan_install, plan_uninstall
from callslip.hooks.server import is_served
from callslip.hooks.status import Status, read_status

agents_argument = click.argument("agents", nargs=-1, type=click.Choice(list(KNOWN_AGENTS)), metavar="[AGENT]...")
project_option = click.option(
    "--project",
    "is_project",
    is_flag=True,
    help="Use the settings of the project in this folder, not the user's.",
)
yes_option = click.option("--yes", is_flag=True, help="Do not prompt.")
dry_run_option = click.option("--dry-run", "is_dry_run", is_flag=True, help="Show the changes and write nothing.")


@click.group()
def hook() -> None:
    """Install hooks into agents, so that they record while they run."""


@hook.command()
@agents_argument
@click.option("--approvals", is_flag=True, help="Let Callslip answer the agent's permission requests, too.")
@click.option(
    "--wait-s",
    type=click.IntRange(1, MAX_WAIT_S),
    default=WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long the agent waits for an answer with --approvals; then it asks in its terminal.",
)
@project_option
@yes_option
@dry_run_option
@db_option
@json_option
def install(
    agents: tuple[str, ...], approvals: bool, wait_s: int, is_project: bool, yes: bool, is_dry_run: bool
) -> int:
    """Install hooks into the settings of agents.

    AGENT is claude-code, codex, gemini or opencode; without one, all that are found. The change is shown and confirmed
    before it is written, and the old file is kept in the data folder. Entries that are there keep their places. Run it
    again after Python or Callslip moved, or for another ledger. Without --approvals the hooks only record.
    """
    place = _place()
    folder = _hook_folder()

    def plan(agent: Agent) -> Plan:
        path = agent.project_path(place) if is_project else agent.user_path(place)
        return plan_install(agent, path, folder, approvals=approvals, wait_s=wait_s)

    def prepare() -> None:
        prepare_folder(hook_folder(selected_location()))

    done = _change(_select(agents, place), plan, "installed in", "already installed in", yes, is_dry_run, prepare)
    for agent in done.changed:
        for advice in advice_after_install(agent, place):
            tables.print_status(advice)
    return done.status


@hook.command()
@agents_argument
@project_option
@yes_option
@dry_run_option
@json_option
def uninstall(agents: tuple[str, ...], is_project: bool, yes: bool, is_dry_run: bool) -> int:
    """Remove the hooks from the settings of agents.

    AGENT is claude-code, codex, gemini or opencode; without one, all that are found. Only entries of Callslip are
    removed, for any ledger. All else stays as it is, also comments, layout and later changes.
    """
    place = _place()

    def plan(agent: Agent) -> Plan:
        return plan_uninstall(agent, agent.project_path(place) if is_project else agent.user_path(place))

    return _change(
        _select(agents, place), plan, "removed from", "not installed in", yes, is_dry_run, lambda: None
    ).status


@hook.command()
@agents_argument
@db_option
@json_option
def status(agents: tuple[str, ...]) -> int:
    """Say for each agent whether its hooks are installed and work.

    It looks at the settings of the user, and at those of the project in this folder, and says what waits for a server.
    The exit status is 1 if installed hooks do not work or settings cannot be read.
    """
    place, folder, flags = _place(), _hook_folder(), selected_flags()
    found: list[Status] = []
    for agent in [KNOWN_AGENTS[name] for name in dict.fromkeys(agents)] or list(KNOWN_AGENTS.values()):
        found.append(read_status(agent, place, folder, flags=flags))
        of_project = read_status(agent, place, folder, is_project=True, flags=flags)
        if found[-1].is_installed and of_project.is_installed:
            of_project.problems.append(("twice", "also installed for the user: remove one of them"))
        is_other = os.path.realpath(of_project.path) != os.path.realpath(found[-1].path)
        if is_other and (of_project.is_installed or of_project.state == "unreadable"):
            found.append(of_project)
    if wants_json():
        tables.write_json(*map(_status_json, found))
    else:
        rows = [[item.agent.name, item.scope, item.path, item.describe()] for item in found]
        tables.print_table(["AGENT", "SCOPE", "SETTINGS", "STATE"], rows)
        for line in _describe_folder(Path(folder), found, flags):
            tables.write_text(f"{line}\n")
    works = all(not item.problems if item.is_installed else item.state != "unreadable" for item in found)
    return exit_status.OK if works else exit_status.FAILED


def _describe_folder(folder: Path, found: Sequence[Status], flags: str) -> Iterator[str]:
    """Yield what does not happen because no server runs for the ledger."""
    if is_served(folder):
        return
    if waiting := count_spooled(folder):
        location = selected_location()
        is_missing = not location.is_server and not os.path.exists(location.path)
        missing = f", and {location.path} does not exist yet" if is_missing else ""
        yield f"{describe_spooled(waiting)}{missing}: run `callslip up{flags}`"
    commands = [item.command for item in found if item.command is not None and item.command.folder == str(folder)]
    if any(command.approvals for command in commands):
        yield f"no server runs, so requests for approval are only in the terminals: run `callslip up{flags}`"


def _status_json(item: Status) -> dict[str, Any]:
    command = item.command
    fields: dict[str, Any] = {
        "agent": item.agent.name,
        "scope": item.scope,
        "path": item.path,
        "isFound": item.is_found,
        "isInstalled": item.is_installed,
        "state": item.state,
        "problems": [{"state": state, "text": text} for state, text in item.problems],
    }
    if command is not None:
        fields |= {"folder": command.folder, "python": command.python, "script": command.script}
        fields |= {"approvals": command.approvals, "waitS": command.wait_s if command.approvals else None}
        folder = Path(command.folder)
        fields |= {"isServed": is_served(folder), "waiting": count_spooled(folder)}
    return fields


# What all commands share


def _place() -> Place:
    return Place(os.environ, os.path.expanduser("~"), os.getcwd())


def _hook_folder() -> str:
    location = selected_location()
    if location.is_in_memory:
        raise InvalidInputError("--db", "a ledger in memory ends with its process; name a file")
    return str(hook_folder(location))


def _select(names: Sequence[str], place: Place) -> list[Agent]:
    """Return the agents that were named, or all that are found."""
    if names:
        return [KNOWN_AGENTS[name] for name in dict.fromkeys(names)]
    found = [agent for agent in KNOWN_AGENTS.values() if agent.is_found(place)]
    if not found:
        raise click.UsageError(f"found none of {', '.join(KNOWN_AGENTS)}; name the agents")
    return found


class _Done:
    """The agents whose settings were changed, and the exit status."""

    def __init__(self) -> None:
        self.changed: list[Agent] = []
        self.status = exit_status.OK


def _change(
    agents: Sequence[Agent],
    make_plan: Callable[[Agent], Plan],
    done_text: str,
    unchanged_text: str,
    yes: bool,
    is_dry_run: bool,
    prepare: Callable[[], None],
) -> _Done:
    """Show what would change, ask, and change it. A problem with one agent does not stop the others."""
    done = _Done()
    plans: list[Plan] = []
    for agent in agents:
        try:
            plan = make_plan(agent)
        except CallslipError as error:
            _report(done, agent, error)
            continue
        if plan.is_change:
            plans.append(plan)
            if not wants_json():
                tables.write_text(plan.diff())
        else:
            tables.print_status(f"{agent.name}: {unchanged_text} {plan.file.path}")
            if wants_json():
                tables.write_json(_plan_json(plan, "unchanged", None))
    if plans and not (is_dry_run or yes or _confirm(plans)):
        tables.print_status("nothing was changed")
        done.status = exit_status.FAILED
    elif plans and is_dry_run:
        tables.print_status("nothing was changed (--dry-run)")
        for plan in plans if wants_json() else ():
            tables.write_json(_plan_json(plan, "planned", None))
    elif plans:
        prepare()
        for plan in plans:
            _carry_out(plan, done, done_text)
    return done


def _carry_out(plan: Plan, done: _Done, done_text: str) -> None:
    try:
        backup = carry_out(plan)
    except CallslipError as error:
        _report(done, plan.agent, error)
        return
    done.changed.append(plan.agent)
    copy = f"; the old file is {backup}" if backup is not None else ""
    tables.print_status(f"{plan.agent.name}: {done_text} {plan.file.path}{copy}")
    if wants_json():
        tables.write_json(_plan_json(plan, "changed", str(backup) if backup is not None else None))


def _plan_json(plan: Plan, result: str, backup: str | None) -> dict[str, Any]:
    fields = {"agent": plan.agent.name, "path": plan.file.path, "result": result, "backup": backup}
    return {**fields, "diff": plan.diff()}


def _report(done: _Done, agent: Agent, error: CallslipError) -> None:
    done.status = exit_status.FAILED
    tables.print_status(f"{agent.name}: {error}")


def _confirm(plans: Sequence[Plan]) -> bool:
    if not sys.stdin.isatty():
        raise click.UsageError("no terminal to prompt on; pass --yes, or --dry-run to see the changes")
    files = " and ".join(escape_controls(plan.file.path) for plan in plans)
    return click.confirm(f"Change {files}?", err=True)
