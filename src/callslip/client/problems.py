"""Map problem documents and connection errors to exceptions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from callslip import errors

T = TypeVar("T")


class _Problem(msgspec.Struct):
    type: str = ""
    detail: str = ""
    title: str = ""
    field: str = ""
    limit: int | None = None
    low: int = 0
    current: Any = None
    correlation_id: str = ""


def connection_lost(url: str, error: BaseException) -> errors.ServerUnavailableError:
    """Return the exception for a server that cannot be reached."""
    if isinstance(error, TimeoutError):
        problem = "the server did not respond in time"
    elif isinstance(error, EOFError):
        problem = "the server closed the connection"
    else:  # asyncio replaces the text of the error with its own, but keeps the number in it.
        number = re.search(r"\[Errno (\d+)\]", str(error))
        reason = os.strerror(int(number[1])).lower() if number else getattr(error, "strerror", None) or str(error)
        problem = f"cannot connect: {reason}"
    return errors.ServerUnavailableError(f"{url}: {problem}")


def not_a_server(url: str) -> errors.ServerUnavailableError:
    """Return the exception for an answer of another program."""
    return errors.ServerUnavailableError(f"{url}: not a Callslip server")


def decode_answer(url: str, body: bytes, kind: type[T]) -> T:
    """Decode the body of an answer, or raise if it is not what a Callslip server sends."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise not_a_server(url) from None


def _invalid_input(problem: _Problem) -> errors.CallslipError:
    """Remove the field and the limit, which the exception adds again."""
    text = problem.detail.removeprefix(f"{problem.field}: ").removesuffix(f" (limit {problem.limit})")
    return errors.InvalidInputError(problem.field or "request", text, problem.limit)


def _with_detail(error: errors.CallslipError, problem: _Problem) -> errors.CallslipError:
    """Return an exception with the message of the server."""
    error.args = (problem.detail,)
    return error


_EXCEPTIONS: dict[str, Callable[[_Problem], errors.CallslipError]] = {
    "unknown": lambda problem: errors.AuthenticationError(
        f"{problem.detail}. Pass a valid token or set CALLSLIP_TOKEN."
    ),
    "forbidden": lambda problem: errors.PermissionDeniedError(problem.detail),
    "ambiguous": lambda problem: errors.AmbiguousIdError(problem.detail, problem.current),
    "conflict": lambda problem: errors.ConflictError(problem.detail, problem.current),
    "stale-fence": lambda problem: errors.StaleClaimError(problem.detail, problem.current),
    "queue_full": lambda problem: _with_detail(errors.QueueFullError("", problem.limit or 0), problem),
    "illegal": lambda problem: errors.InvalidTransitionError(problem.detail),
    "not-found": lambda problem: (
        errors.CommandNotFoundError(problem.correlation_id)
        if problem.correlation_id
        else errors.NotFoundError(problem.detail)
    ),
    "gone": lambda problem: _with_detail(errors.CursorExpiredError(0, problem.low), problem),
    "refused": _invalid_input,
    "too-large": lambda problem: errors.InvalidInputError("request", problem.detail, problem.limit),
    "read-only": lambda problem: errors.ReadOnlyStoreError(problem.detail),
    "full": lambda problem: errors.DiskFullError(problem.detail),
    "busy": lambda problem: errors.ServerUnavailableError(problem.detail),
    "unavailable": lambda problem: errors.ServerUnavailableError(problem.detail),
}


def error_from_problem(url: str, status: int, body: bytes) -> errors.CallslipError:
    """Return the exception that a problem document stands for."""
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return not_a_server(url)
    prefix, _, kind = problem.type.rpartition(":")
    if prefix != "urn:callslip":
        return not_a_server(url)
    if kind in _EXCEPTIONS:
        return _EXCEPTIONS[kind](problem)
    return errors.StoreError(problem.detail or f"{url}: the server failed with status {status}")
