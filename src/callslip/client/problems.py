"""The exceptions that a server's problem documents and lost connections stand for."""

from __future__ import annotations

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


def connection_lost(url: str, error: BaseException) -> errors.ServerUnavailableError:
    """Return the exception for a server that cannot be reached."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return errors.ServerUnavailableError(f"{url}: cannot reach the server: {reason}")


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


def _cursor_expired(problem: _Problem) -> errors.CallslipError:
    error = errors.CursorExpiredError(0, problem.low)
    error.args = (problem.detail,)
    return error


def _queue_full(problem: _Problem) -> errors.CallslipError:
    error = errors.QueueFullError("", problem.limit or 0)
    error.args = (problem.detail,)
    return error


_EXCEPTIONS: dict[str, Callable[[_Problem], errors.CallslipError]] = {
    "unknown": lambda problem: errors.AuthenticationError(
        f"{problem.detail}; pass --token, token= or set CALLSLIP_TOKEN"
    ),
    "forbidden": lambda problem: errors.CallslipError(problem.detail),
    "ambiguous": lambda problem: errors.AmbiguousIdError(problem.detail, problem.current),
    "conflict": lambda problem: errors.ConflictError(problem.detail, problem.current),
    "stale-fence": lambda problem: errors.StaleClaimError(problem.detail, problem.current),
    "queue_full": _queue_full,
    "illegal": lambda problem: errors.InvalidTransitionError(problem.detail),
    "not-found": lambda problem: errors.NotFoundError(problem.detail),
    "gone": _cursor_expired,
    "refused": _invalid_input,
    "too-large": lambda problem: errors.InvalidInputError("request", problem.detail, problem.limit),
    "read-only": lambda problem: errors.ReadOnlyStoreError(problem.detail),
    "full": lambda problem: errors.DiskFullError(problem.detail),
    "busy": lambda problem: errors.ServerUnavailableError(problem.detail),
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
