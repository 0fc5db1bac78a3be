"""`callslip run`: run an agent with a shell tool. Its messages go to stdout, lines about its calls to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click
from msgspec import structs

from callslip.cli import exit_status
from callslip.cli.options import ID, db_option, json_option, selected_location, wants_json
from callslip.cli.terminal import tables
from callslip.model.display import pluralize

if TYPE_CHECKING:
    from callslip.agent.loop import Agent, Outcome
    from callslip.api.ledger import LocalLedger

SYSTEM = "You help a user at a terminal. Commands run in {folder} with /bin/sh."
TAGS = (
    SYSTEM + " To run a command write <shell>the command</shell>; you are then shown what it printed. "
    "Write no tag once you are done."
)


@click.command()
@click.argument("prompt")
@click.option(
    "--model",
    "name",
    required=True,
    envvar="CALLSLIP_MODEL",
    metavar="PROVIDER:NAME",
    help="The model. [env: CALLSLIP_MODEL]",
)
@click.option("--base-url", metavar="URL", help="The base URL of the model's API. [default: the provider's]")
@click.option("--session", type=ID, help="The session to continue or to create. [default: a new one]")
@click.option("--tags", is_flag=True, help="The model writes commands as <shell> tags instead of calling a tool.")
@click.option("--yes", is_flag=True, help="Run all commands without approval.")
@click.option("--parallel", is_flag=True, help="Run the tool calls of one model response in parallel.")
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False),
    default=".",
    help="Run commands in this folder. [default: the current one]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="The timeout of each command, in seconds.",
)
@click.option(
    "--max-iterations",
    type=click.IntRange(min=1),
    default=25,
    show_default=True,
    help="The maximum number of model responses.",
)
@click.option("--system", metavar="TEXT", help="The system prompt.")
@db_option
@json_option
def run(
    prompt: str,
    name: str,
    base_url: str | None,
    session: str | None,
    tags: bool,
    yes: bool,
    parallel: bool,
    folder: str,
    timeout: float,
    max_iterations: int,
    system: str | None,
) -> int:
    """Run an agent with a shell tool.

    PROMPT is the message to the model; - reads it from stdin. The model is openai:NAME or anthropic:NAME, with the key
    in OPENAI_API_KEY or ANTHROPIC_API_KEY; --base-url selects any endpoint with the same API. Each command waits for
    approval: press y or n, or use `callslip approve` in another terminal. Ctrl-C cancels what is running.
    """
    import asyncio

    from callslip.agent.loop import Agent, Limits
    from callslip.agent.models import find_model
    from callslip.agent.shell_tool import shell_tool

    folder = os.path.abspath(folder)
    message = sys.stdin.read() if prompt == "-" else prompt
    if not message.strip():
        raise click.UsageError("PROMPT must not be empty")
    shell = shell_tool(cwd=folder, timeout=timeout, approval=not yes)
    model = find_model(name, **({"base_url": base_url} if base_url else {}))
    system_prompt = system if system is not None else (TAGS if tags else SYSTEM).format(folder=folder)
    location = selected_location()
    location.prepare()
    session_name = session or f"run-{os.urandom(3).hex()}"

    def create_agent(ledger: LocalLedger) -> Agent:
        limits = Limits(iterations=max_iterations, parallel=parallel)
        tools: dict[str, Any] = {"shell": shell} if tags else {"tools": [shell]}
        return Agent(ledger.session(session_name), model, **tools, system=system_prompt, limits=limits)

    is_json = wants_json()
    try:
        outcome = asyncio.run(_run_agent(location.url, create_agent, message, quiet=is_json))
    except asyncio.CancelledError:
        return exit_status.TERMINATED
    if is_json:
        tables.write_json({"session": session_name, **structs.asdict(outcome)})
    responses = pluralize(outcome.iterations, "model response")
    show_command = f"callslip show {session_name} --db {location.display_name}"
    tables.print_status(f"{outcome.reason} after {responses}; {show_command}")
    return exit_status.OK if outcome.reason == "end_turn" else exit_status.FAILED


async def _run_agent(url: str, create_agent: Callable[[LocalLedger], Agent], prompt: str, *, quiet: bool) -> Outcome:
    """Run the agent, print its session, and prompt for its approvals."""
    from callslip.api.ledger import open_ledger
    from callslip.cli.terminal.background import cancel_on_signal, run_in_background
    from callslip.cli.terminal.session_watch import SessionWatcher

    async with await open_ledger(url) as ledger:
        agent = create_agent(ledger)
        watcher = SessionWatcher(ledger, agent.session.name, quiet=quiet)
        await watcher.start()
        async with aclosing(agent.model), run_in_background(watcher.follow(), watcher.ask()), cancel_on_signal():
            outcome = await agent.run(prompt)
            await watcher.catch_up()
        return outcome
