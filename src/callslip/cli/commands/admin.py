"""`callslip admin`: what cannot be taken back, and who may use the server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from callslip.cli import exit_status
from callslip.cli.options import ID, db_option, json_option, selected_location, wants_json, with_ledger
from callslip.cli.terminal import tables
from callslip.cli.terminal.escape import escape_controls
from callslip.cli.terminal.formatting import format_age, pluralize, seconds
from callslip.errors import AmbiguousIdError, InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from callslip.api.ledger import LocalLedger
    from callslip.model.records import TokenRecord

VERBS = ("read", "write", "approve", "execute")


@click.group()
def admin() -> None:
    """Delete sessions, forget what is old, give out tokens."""


@admin.command()
@click.argument("session", type=ID)
@click.option("--yes", is_flag=True, help="Do not ask.")
@db_option
@json_option
def delete(session: str, yes: bool) -> int:
    """Forget a session altogether: its log, its calls, its approvals.

    Only a session's whole name will do. On a terminal you are asked first; elsewhere --yes must be given.
    """
    selected_location().require()
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nobody is there to ask; give --yes to delete")
        if not click.confirm(f"Delete session {escape_controls(session)} for good?", err=True):
            tables.print_status("nothing was deleted")
            return exit_status.FAILED
    with_ledger(lambda ledger: ledger.delete(session))
    if wants_json():
        tables.write_json({"session": session, "deleted": True})
    tables.print_status(f"deleted session {session}")
    return exit_status.OK


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
        tables.write_json({"removedEvents": removed})
    tables.print_status(f"removed {pluralize(removed, 'event')} older than {keep}")


@admin.group()
def token() -> None:
    """Tokens that open a part of the server: one session or all, and only what they say."""


def _verbs(ctx: click.Context, parameter: click.Parameter, given: Sequence[str]) -> tuple[str, ...]:
    """`--can read,write --can approve`, in the order of the help."""
    said = {verb.strip() for one in given for verb in one.split(",")}
    unknown = sorted(said - set(VERBS))
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(VERBS)}")
    return tuple(verb for verb in VERBS if verb in said)


@token.command()
@click.option("--session", type=ID, help="The session it is for, by its whole name; all sessions if not given.")
@click.option(
    "--can",
    "verbs",
    multiple=True,
    metavar="VERBS",
    default=("read",),
    callback=_verbs,
    help="What it is for: read, write, approve, execute. Several with commas, or several times. [default: read]",
)
@click.option("--label", default="", metavar="TEXT", help="Whose it is: the name that its answers bear.")
@click.option("--expires", metavar="TIME", help="For how long it is good: 12h, 30d, 4w. For ever if not given.")
@db_option
@json_option
def create(session: str | None, verbs: tuple[str, ...], label: str, expires: str | None) -> None:
    """Make a token, and print it.

    This is the only time that it is shown: the ledger keeps no more than a hash of it.
    """
    age = seconds(expires, "--expires") if expires is not None else 0
    if expires is not None and not 0 < age < 2**31:
        raise InvalidInputError("--expires", "must be more than nothing, and less than 68 years")
    secret, row = with_ledger(lambda ledger: _create(ledger, session or "", verbs, label, age), create=True)
    if wants_json():
        tables.write_json({"token": secret, **_token_json(row)})
    else:
        tables.write_text(secret)
    until = f"it is good for {expires}" if expires else "it does not expire"
    tables.print_status(f"{row.id} may {', '.join(verbs)} in {_where(row)}; {until}. It is not shown again")


async def _create(
    ledger: LocalLedger, session: str, verbs: tuple[str, ...], label: str, age: float
) -> tuple[str, TokenRecord]:
    from secrets import token_hex

    from callslip.client.token_file import SCOPED, hash_token, mint_token
    from callslip.model.names import check_id, check_session_name
    from callslip.model.records import TokenRecord

    if session and await ledger.log.store.session(check_session_name(session)) is None:
        tables.print_status(f"there is no session {session} yet; the token is good for it once there is")
    label = check_id(label, "--label") if label else ""
    secret, now = SCOPED + mint_token(), await ledger.log.store.clock()
    until = now + int(age * 1000) if age else 0
    row = TokenRecord(f"tok_{token_hex(6)}", hash_token(secret), label, session, verbs, now, until)
    await ledger.log.store.put_token(row)
    return secret, row


@token.command("ls")
@db_option
@json_option
def list_tokens() -> None:
    """List the tokens that were made, the oldest first; not the tokens themselves."""
    rows = with_ledger(lambda ledger: ledger.log.store.tokens())
    if wants_json():
        tables.write_json(*(_token_json(row) for row in rows))
    elif rows:
        head = ["TOKEN", "SESSION", "CAN", "MADE", "EXPIRES", "LABEL"]
        cells = [[row.id, row.session or "(all)", ",".join(row.verbs), *_times(row), row.label] for row in rows]
        tables.columns(head, cells)
    else:
        tables.print_status("no tokens were made")


@token.command()
@click.argument("identity", metavar="ID", type=ID)
@db_option
@json_option
def revoke(identity: str) -> None:
    """Make a token worthless, from its next use on. ID is its id (tok_...), not the token itself."""
    row = with_ledger(lambda ledger: _revoke(ledger, identity))
    if wants_json():
        tables.write_json({"id": row.id, "revoked": True})
    tables.print_status(f"revoked {row.id}" + (f" ({row.label})" if row.label else ""))


async def _revoke(ledger: LocalLedger, identity: str) -> TokenRecord:
    rows = await ledger.log.store.tokens()
    fits = [row for row in rows if row.id == identity] or [row for row in rows if row.id.startswith(identity)]
    if len(fits) > 1:
        names = [row.id for row in fits]
        raise AmbiguousIdError(f"{identity!r} fits several: {', '.join(names)}", names)
    if not fits or not await ledger.log.store.drop_token(fits[0].id):
        raise NotFoundError("no such token; callslip admin token ls lists them")  # It may be the token: not repeated.
    return fits[0]


def _token_json(row: TokenRecord) -> dict[str, Any]:
    return {
        "id": row.id,
        "session": row.session or None,
        "can": row.verbs,
        "label": row.label,
        "createdAt": row.created_at,
        "expiresAt": row.expires_at or None,
    }


def _where(row: TokenRecord) -> str:
    return f"session {row.session}" if row.session else "every session"


def _times(row: TokenRecord) -> tuple[str, str]:
    return format_age(row.created_at), format_age(row.expires_at) if row.expires_at else "never"
