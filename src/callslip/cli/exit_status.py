"""Exit statuses, and errors as one line of text. A traceback is shown only with CALLSLIP_DEBUG=1."""

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
    OK: "success; the call completed",
    FAILED: "the call failed, problems were found, or the operation failed",
    USAGE: "invalid command line, ambiguous id, or missing or invalid token",
    NOT_FOUND: "no such ledger, session, call or approval, or retention removed it",
    DENIED: "the call was denied",
    ENDED: "the call expired, was cancelled or was lost",
    UNREACHABLE: "the server cannot be reached",
    TIMED_OUT: "timed out",
    INTERRUPTED: "interrupted (Ctrl-C)",
    PIPE_CLOSED: "the reader of the output closed the pipe",
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

# The first match counts.
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
    """Print escapes for characters that the encoding of the terminal lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def report(error: BaseException) -> int:
    """Print an error as one line on stderr, and return the exit status."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else FAILED
    if not _flush():
        _discard_output()
    if not isinstance(error, BrokenPipeError) and os.environ.get("CALLSLIP_DEBUG", "") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
    elif not isinstance(error, _QUIET):
        click.echo(f"callslip: {escape_controls(describe(error))}", err=True)
    return status(error)


def status(error: BaseException) -> int:
    """Return the exit status of an error."""
    if isinstance(error, errors.CallEndedError):
        return STATES.get(error.state, FAILED)
    if isinstance(error, click.ClickException):
        return error.exit_code
    return next((code for kind, code in _STATUS if isinstance(error, kind)), FAILED)


def describe(error: BaseException) -> str:
    """Return the message of an error."""
    if isinstance(error, click.ClickException):
        # The messages of click begin with a capital and end with a full stop.
        message = " ".join(error.format_message().split()).removesuffix(".")
        context = error.ctx if isinstance(error, click.UsageError) else None
        hint = f" (see '{context.command_path} --help')" if context else ""
        return message[:1].lower() + message[1:] + hint
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, (errors.CallslipError, TimeoutError)):
        return str(error) or type(error).__name__
    return f"unexpected {type(error).__name__}: {error} (CALLSLIP_DEBUG=1 shows where)"


def _flush() -> bool:
    """Flush stdout, and return whether that was possible."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return False
    return True


def _discard_output() -> None:
    """Redirect stdout to the null device, so that the flush at exit does not fail again."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError, io.UnsupportedOperation):
        pass
