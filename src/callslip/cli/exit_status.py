"""What every outcome is worth to a shell: one status per kind, one line of text, never a traceback unasked."""

from __future__ import annotations

import io
import os
import sys

import click

from callslip import errors
from callslip.cli.terminal.escape import escape_controls

OK, FAILED, USAGE, NOT_FOUND, DENIED, ENDED, UNREACHABLE = range(7)
TIMED_OUT, INTERRUPTED, PIPE_CLOSED, TERMINATED = 124, 130, 141, 143


MEANING: dict[int, str] = {
    OK: "it went well; the call completed",
    FAILED: "the call failed, problems were found, or the ledger could not do it",
    USAGE: "the command line makes no sense, an id fits several things, or a token is missing or wrong",
    NOT_FOUND: "no such ledger, session, call or approval, or retention removed it",
    DENIED: "the call was denied",
    ENDED: "the call expired, was cancelled or got lost",
    UNREACHABLE: "the server cannot be reached",
    TIMED_OUT: "what was waited for took longer than the timeout",
    INTERRUPTED: "interrupted (Ctrl-C)",
    PIPE_CLOSED: "whoever read the output stopped reading",
    TERMINATED: "terminated (SIGTERM)",
}

STATES: dict[str, int] = {
    "completed": OK,
    "failed": FAILED,
    "denied": DENIED,
    "expired": ENDED,
    "cancelled": ENDED,
    "lost": ENDED,
}

# The first that fits.
_STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (errors.AmbiguousIdError, USAGE),
    (errors.NotFoundError, NOT_FOUND),
    (errors.CursorExpiredError, NOT_FOUND),
    (errors.CallDeniedError, DENIED),
    (errors.InvalidInputError, USAGE),
    (errors.AuthenticationError, USAGE),
    (errors.ServerUnavailableError, UNREACHABLE),
    (TimeoutError, TIMED_OUT),
    (click.Abort, INTERRUPTED),
    (KeyboardInterrupt, INTERRUPTED),
    (BrokenPipeError, PIPE_CLOSED),
)
_QUIET = (click.Abort, KeyboardInterrupt, BrokenPipeError)


def keep_text_printable() -> None:
    """A terminal that lacks a character shows its number instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def report(error: BaseException) -> int:
    """Say an error in one line on stderr. Gives the exit status."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if not _flushed():
        _stop_writing()
    if not isinstance(error, BrokenPipeError) and os.environ.get("CALLSLIP_DEBUG", "") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
    elif not isinstance(error, _QUIET):
        click.echo(f"callslip: {escape_controls(line(error))}", err=True)
    return status(error)


def status(error: BaseException) -> int:
    """The exit status of an error."""
    if isinstance(error, errors.CallEndedError):
        return STATES.get(error.state, FAILED)
    if isinstance(error, click.ClickException):
        return error.exit_code
    return next((code for kind, code in _STATUS if isinstance(error, kind)), FAILED)


def line(error: BaseException) -> str:
    """What is wrong, in the words of whoever found it."""
    if isinstance(error, click.UsageError):
        asked = f" (see '{error.ctx.command_path} --help')" if error.ctx else ""
        return _plain(error.format_message()) + asked
    if isinstance(error, click.ClickException):
        return _plain(error.format_message())
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, (errors.CallslipError, TimeoutError)):
        return str(error) or type(error).__name__
    return f"unexpected {type(error).__name__}: {error} (CALLSLIP_DEBUG=1 shows where)"


def _plain(message: str) -> str:
    """click's sentence in our form: one line, no capital, no full stop."""
    message = " ".join(message.split()).removesuffix(".")
    return message[:1].lower() + message[1:]


def _flushed() -> bool:
    """Whether what was said so far could be written."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return False
    return True


def _stop_writing() -> None:
    """Whatever Python still wants to flush at its end goes nowhere, instead of failing once more."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError, io.UnsupportedOperation):
        pass
