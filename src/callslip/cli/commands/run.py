"""`callslip run`: a small agent with a shell, around any model. What it says goes to stdout, what it does to stderr."""

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
from callslip.cli.terminal.formatting import pluralize

if TYPE_CHECKING:
    from callslip.agent.loop import Agent, Outcome
    from callslip.api.ledger import LocalLedger

SYSTEM = "You help a person at a terminal. Commands run in {folder} with /bin/sh."
TAGS = (
    SYSTEM + " To run a command write <shell>the command</shell>; you are then shown what it printed. "
    "Write no tag once you are done."
)


@click.command()
@click.argument("prompt")
@click.option("--model", "name", required=True, envvar="CALLSLIP_MODEL", metavar="MAKER:NAME", show_envvar=True)
@click.option("--base-url", metavar="URL", help="Where the model is, if it only speaks like its maker's.")
@click.option("--session", type=ID, help="Go on with this session, or begin it; a new one unless given.")
@click.option("--tags", is_flag=True, help="The model writes commands as <shell> tags instead of calling a tool.")
@click.option("--yes", is_flag=True, help="Run every command without asking.")
@click.option("--parallel", is_flag=True, help="Run the calls of one answer at the same time.")
@click.option("--folder", type=click.Path(exists=True, file_okay=False), default=".", help="Where commands run.")
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Seconds a command has."
)
@click.option("--max-iterations", type=click.IntRange(min=1), default=25, show_default=True)
@click.option("--system", metavar="TEXT", help="What the model is told first.")
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
    """Let a model answer, with a shell at hand.

    PROMPT is what it is asked; - reads it from stdin. The model is openai:NAME or anthropic:NAME, with the key in
    OPENAI_API_KEY or ANTHROPIC_API_KEY; --base-url names any endpoint that speaks like OpenAI's. Each command waits for
    approval: press y or n, or use `callslip approve` from another terminal. Ctrl-C ends what runs.
    """
    import asyncio

    from callslip.agent.loop import Agent, Limits
    from callslip.agent.models import find_model
    from callslip.agent.shell_tool import shell_tool

    folder = os.path.abspath(folder)
    said = sys.stdin.read() if prompt == "-" else prompt
    if not said.strip():
        raise click.UsageError("there is no prompt")
    shell = shell_tool(cwd=folder, timeout=timeout, approval=not yes)
    model = find_model(name, **({"base_url": base_url} if base_url else {}))
    told = system if system is not None else (TAGS if tags else SYSTEM).format(folder=folder)
    meant = selected_location()
    meant.prepare()
    chosen = session or f"run-{os.urandom(3).hex()}"

    def agent(ledger: LocalLedger) -> Agent:
        limits = Limits(iterations=max_iterations, parallel=parallel)
        tools: dict[str, Any] = {"shell": shell} if tags else {"tools": [shell]}
        return Agent(ledger.session(chosen), model, **tools, system=told, limits=limits)

    json = wants_json()
    try:
        outcome = asyncio.run(_answered(meant.url, agent, said, quiet=json))
    except asyncio.CancelledError:
        return exit_status.TERMINATED
    if json:
        tables.write_json({"session": chosen, **structs.asdict(outcome)})
    answers = pluralize(outcome.iterations, "answer")
    tables.print_status(f"{outcome.reason} after {answers}; callslip show {chosen} --db {meant.path}")
    return exit_status.OK if outcome.reason == "end_turn" else exit_status.FAILED


async def _answered(url: str, made: Callable[[LocalLedger], Agent], prompt: str, *, quiet: bool) -> Outcome:
    """Run the agent, with somebody watching it and answering for it."""
    from callslip.api.ledger import open_ledger
    from callslip.cli.terminal.background import beside, ended_politely
    from callslip.cli.terminal.session_watch import SessionWatcher

    async with await open_ledger(url) as ledger:
        agent = made(ledger)
        watch = SessionWatcher(ledger, agent.session.name, quiet=quiet)
        await watch.begin()
        async with aclosing(agent.model), beside(watch.follow(), watch.ask()), ended_politely():
            outcome = await agent.run(prompt)
            await watch.catch_up()
        return outcome
