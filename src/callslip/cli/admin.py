"""`callslip admin`: what cannot be taken back."""

from __future__ import annotations

import sys

import click

from callslip.cli import exits, output
from callslip.cli.ids import ID
from callslip.cli.inert import inert
from callslip.cli.phrases import counted, seconds
from callslip.cli.place import db_option, json_option, place, wants_json, with_ledger


@click.group()
def admin() -> None:
    """Delete sessions, forget what is old."""


@admin.command()
@click.argument("session", type=ID)
@click.option("--yes", is_flag=True, help="Do not ask.")
@db_option
@json_option
def delete(session: str, yes: bool) -> int:
    """Forget a session altogether: its log, its calls, its approvals.

    Only a session's whole name will do. On a terminal you are asked first; elsewhere --yes must be given.
    """
    place().require()
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nobody is there to ask; give --yes to delete")
        if not click.confirm(f"Delete session {inert(session)} for good?", err=True):
            output.say("nothing was deleted")
            return exits.FAILED
    with_ledger(lambda ledger: ledger.delete(session))
    if wants_json():
        output.write_json({"session": session, "deleted": True})
    output.say(f"deleted session {session}")
    return exits.OK


@admin.command()
@click.option("--keep", required=True, metavar="TIME", help="What to keep: 12h, 30d, 4w.")
@db_option
@json_option
def prune(keep: str) -> None:
    """Forget events that are older than --keep.

    Sessions go on from there: what was open stays whole, and readers of removed events are told to start afresh.
    """
    age = seconds(keep, "--keep")
    removed = with_ledger(lambda ledger: ledger.prune(age))
    if wants_json():
        output.write_json({"removedEvents": removed})
    output.say(f"removed {counted(removed, 'event')} older than {keep}")
