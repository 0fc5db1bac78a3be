"""`callslip admin`: delete sessions and old events, migrate and copy databases, manage access tokens."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import click

from callslip.cli import exit_status
from callslip.cli.options import ID, db_option, json_option, refuse_agent, selected_location, wants_json, with_ledger
from callslip.cli.terminal import tables
from callslip.cli.terminal.escape import escape_controls
from callslip.cli.terminal.formatting import format_age, parse_duration
from callslip.client.location import parse_location
from callslip.errors import AmbiguousIdError, InvalidInputError, NotFoundError
from callslip.model.display import pluralize

if TYPE_CHECKING:
    from callslip.api.access import Verb
    from callslip.api.databases import CopyProgress, CopyReport
    from callslip.api.ledger import LocalLedger
    from callslip.model.records import TokenRecord

VERBS = ("read", "write", "approve", "execute")
MAX_LIFETIME_S = 2**31


@click.group()
def admin() -> None:
    """Manage sessions, retention, databases and tokens."""


@admin.command()
@click.argument("session", type=ID)
@click.option("--yes", is_flag=True, help="Do not prompt.")
@db_option
@json_option
def delete(session: str, yes: bool) -> int:
    """Delete a session with its events, calls and approvals.

    SESSION is the full name. On a terminal it prompts first; elsewhere --yes is required.
    """
    refuse_agent("delete sessions, because their rules are deleted with them")
    if not yes:
        with_ledger(lambda ledger: _check_session(ledger, session))
        if not sys.stdin.isatty():
            raise click.UsageError("no terminal to prompt on; pass --yes")
        if not click.confirm(f"Delete session {escape_controls(session)} permanently?", err=True):
            tables.print_status("nothing was deleted")
            return exit_status.FAILED
    with_ledger(lambda ledger: ledger.delete(session))
    if wants_json():
        tables.write_json({"session": session, "deleted": True})
    tables.print_status(f"deleted session {session}")
    return exit_status.OK


async def _check_session(ledger: LocalLedger, name: str) -> None:
    if await ledger.log.get_session(name) is None:
        raise NotFoundError(f"no session {name!r}")


@admin.command()
@click.option("--keep", required=True, metavar="TIME", help="The age to keep: 12h, 30d, 4w.")
@db_option
@json_option
def prune(keep: str) -> None:
    """Delete events older than --keep.

    Sessions continue: open calls stay complete, and clients that need deleted events start again from a snapshot.
    """
    age_s = parse_duration(keep, "--keep")
    removed = with_ledger(lambda ledger: ledger.prune(age_s))
    if wants_json():
        tables.write_json({"removedEvents": removed})
    tables.print_status(f"removed {pluralize(removed, 'event')} older than {keep}")


@admin.command()
@db_option
@json_option
def migrate() -> None:
    """Create or update the tables of a database.

    Every command that writes does this when it opens the database, and any number of processes may do it at once. Use
    this command to do it at a time of your choice, or by a user that may create tables. It prints the version of the
    schema before and after.
    """
    import asyncio

    from callslip.api import databases

    location = selected_location()
    if location.is_in_memory:
        location.require()
    location.prepare()
    before, after = asyncio.run(databases.migrate(location.url))
    if wants_json():
        tables.write_json({"database": location.display_name, "before": before, "after": after})
    if before == after:
        tables.print_status(f"the tables have schema {after} already")
    elif before:
        tables.print_status(f"migrated the tables from schema {before} to {after}")
    else:
        tables.print_status(f"created the tables with schema {after}; there were none before")


@admin.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--snapshot", is_flag=True, help="Copy the current state of a ledger that is in use.")
@json_option
def copy(source: str, target: str, snapshot: bool) -> int:
    """Copy a complete ledger to another database.

    FROM and TO are each a file, sqlite:///FILE or postgresql://HOST/NAME. TO must be empty, or must not exist yet.
    Other users can see arguments, so leave a password to ~/.pgpass or PGPASSWORD.

    A copy that was interrupted continues when the command is run again. Until it is complete, TO cannot be opened. At
    the end all rows of both databases are compared, and TO is verified.

    Stop all programs that use FROM before. With --snapshot they can stay, but TO will not have what they write later.
    """
    import asyncio

    from callslip.api import databases

    places = parse_location(source, "FROM"), parse_location(target, "TO")
    for place, name in zip(places, ("FROM", "TO"), strict=True):
        if place.is_in_memory:
            raise InvalidInputError(name, "a ledger in memory cannot be copied; name a file or a server")
    places[0].require()
    with _copy_progress() as listener:
        report = asyncio.run(databases.copy_ledger(places[0].url, places[1].url, snapshot=snapshot, listener=listener))
    if wants_json():
        tables.write_json(_report_json(report, snapshot))
    return _print_report(report, snapshot)


def _report_json(report: CopyReport, snapshot: bool) -> dict[str, Any]:
    return {
        "snapshot": snapshot,
        "wasComplete": bool(report.completed_at),
        "isResumed": report.is_resumed,
        "writtenRows": report.written,
        "rows": report.rows,
        "problems": report.problems,
    }


def _print_report(report: CopyReport, snapshot: bool) -> int:
    if report.completed_at:
        tables.print_status(f"nothing was copied: this copy was completed {format_age(report.completed_at)}")
        return exit_status.OK
    sessions, events = (pluralize(report.rows[name], name[:-1]) for name in ("sessions", "events"))
    tables.print_status(f"copied {sessions}, {events}")
    if report.is_resumed:
        tables.print_status(f"continued an earlier run: {pluralize(report.written, 'row')} were written now")
    if snapshot:
        tables.print_status("this is a snapshot: later writes to FROM are not included")
    if not wants_json():
        for problem in report.problems:
            click.echo(escape_controls(str(problem)))
    if report.problems:
        tables.print_status(f"all rows are equal, so FROM has the same {pluralize(len(report.problems), 'problem')}")
        return exit_status.FAILED
    tables.print_status("OK: all rows are equal, no problems found")
    return exit_status.OK


@contextlib.contextmanager
def _copy_progress() -> Generator[Callable[[CopyProgress], None] | None]:
    """Show on a terminal which table is copied, and how far the events are."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rows]}"), TimeElapsedColumn())
    with Progress(*columns, console=tables.console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None, rows="")

        def show(step: CopyProgress) -> None:
            progress.update(
                task,
                description=f"{step.step} {step.table.replace('_', ' ')}".rstrip(),
                completed=step.rows,
                total=step.total or None,
                rows=f"{pluralize(step.rows, 'row')}" if step.table else "",
            )

        yield show


@admin.group()
def token() -> None:
    """Manage tokens for the server."""


def _parse_verbs(ctx: click.Context, parameter: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    """Parse `--can read,write --can approve`."""
    verbs = {verb.strip() for value in values for verb in value.split(",")}
    unknown = sorted(verbs - set(VERBS))
    if unknown:
        raise click.BadParameter(f"must be one of {', '.join(VERBS)}, got {unknown[0]!r}")
    return tuple(verb for verb in VERBS if verb in verbs)


@token.command()
@click.option("--session", type=ID, help="Limit the token to this session (its full name). [default: all sessions]")
@click.option(
    "--can",
    "verbs",
    multiple=True,
    metavar="VERBS",
    default=("read",),
    callback=_parse_verbs,
    help="The rights of the token: read, write, approve, execute. Separate with commas, or repeat. [default: read]",
)
@click.option("--label", default="", metavar="TEXT", help="The name to record with answers that use the token.")
@click.option("--expires", metavar="TIME", help="The lifetime of the token: 12h, 30d, 4w. [default: no expiry]")
@db_option
@json_option
def create(session: str | None, verbs: tuple[Verb, ...], label: str, expires: str | None) -> None:
    """Create a token and print it.

    It is shown only once: the ledger stores a hash of it.
    """
    if "approve" in verbs:
        refuse_agent("create tokens that may approve")
    lifetime_s = parse_duration(expires, "--expires") if expires is not None else 0.0
    if expires is not None and not 0 < lifetime_s < MAX_LIFETIME_S:
        raise InvalidInputError("--expires", "must be more than 0 and less than 68 years")
    secret, record = with_ledger(lambda ledger: _create(ledger, session or "", verbs, label, lifetime_s), create=True)
    if wants_json():
        tables.write_json({"token": secret, **_token_json(record)})
    else:
        tables.write_text(secret)
    scope = f"session {record.session}" if record.session else "all sessions"
    expiry = f"expires in {expires}" if expires else "does not expire"
    tables.print_status(f"{record.id} can {', '.join(verbs)} in {scope}; {expiry}. It is not shown again")


async def _create(
    ledger: LocalLedger, session: str, verbs: tuple[Verb, ...], label: str, lifetime_s: float
) -> tuple[str, TokenRecord]:
    from callslip.api.tokens import create_token
    from callslip.client.token_file import hash_token, mint_token

    secret = mint_token()
    record = await create_token(
        ledger.log, hash_token(secret), session=session, verbs=verbs, label=label, lifetime_s=lifetime_s
    )
    if session and not await _has_session(ledger, session):
        tables.print_status(f"session {session} does not exist yet; the token is valid once it does")
    return secret, record


async def _has_session(ledger: LocalLedger, name: str) -> bool:
    try:
        return (await ledger.find_session(name)).name == name
    except (NotFoundError, AmbiguousIdError):
        return False


@token.command("qr")
@click.option(
    "--can",
    "verbs",
    multiple=True,
    metavar="VERBS",
    default=("read,approve",),
    callback=_parse_verbs,
    help="The rights of the token that the phone gets: read, write, approve, execute. [default: read,approve]",
)
@click.option("--label", default="phone", show_default=True, metavar="TEXT", help="The name to record with answers.")
@click.option("--url", metavar="URL", help="The address of the server. [default: that of `callslip serve --lan`]")
@db_option
@json_option
def show_qr_code(verbs: tuple[Verb, ...], label: str, url: str | None) -> None:
    """Show a QR code that signs a phone in.

    It has a code that works once, for two minutes, and can be revoked like a token. The phone gets a token of its own,
    which is valid for a week.
    """
    if "approve" in verbs:
        refuse_agent("sign in a phone that may approve")
    from callslip.cli.commands.phone import create_sign_in, print_qr_code
    from callslip.cli.commands.reach import check_public_url
    from callslip.client.server_file import running_server

    running = running_server(selected_location())
    address = check_public_url(url, "--url") if url is not None else running.phone_url if running is not None else ""
    if not address:
        raise NotFoundError("no server that a phone can reach; start `callslip serve --lan`, or pass --url")
    link, record = with_ledger(lambda ledger: create_sign_in(ledger, address, verbs, label))
    if wants_json():
        tables.write_json({"url": link, **_token_json(record)})
    else:
        tables.write_text(link)
        print_qr_code(link)
    tables.print_status(f"{record.id} works once, for two minutes")


@token.command("ls")
@db_option
@json_option
def list_tokens() -> None:
    """List tokens, oldest first, without their secrets."""
    from callslip.api import tokens

    records = with_ledger(lambda ledger: tokens.list_tokens(ledger.log))
    if wants_json():
        tables.write_json(*map(_token_json, records))
    elif records:
        head = ["TOKEN", "SESSION", "CAN", "CREATED", "EXPIRES", "LABEL"]
        cells: list[list[str]] = []
        for record in records:
            created, expires = format_age(record.created_at), format_age(record.expires_at)  # 0 is never.
            cells.append([record.id, record.session or "(all)", ",".join(record.verbs), created, expires, record.label])
        tables.print_table(head, cells)
    else:
        tables.print_status("no tokens")


@token.command()
@click.argument("identity", metavar="ID", type=ID)
@db_option
@json_option
def revoke(identity: str) -> None:
    """Revoke a token. ID is its id (tok_...), not the token itself."""
    from callslip.api.tokens import revoke_token

    record = with_ledger(lambda ledger: revoke_token(ledger.log, identity))
    if wants_json():
        tables.write_json({"id": record.id, "revoked": True})
    tables.print_status(f"revoked {record.id}" + (f" ({record.label})" if record.label else ""))


def _token_json(record: TokenRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "session": record.session or None,
        "can": record.verbs,
        "label": record.label,
        "createdAt": record.created_at,
        "expiresAt": record.expires_at or None,
    }
