"""Errors as problem documents (RFC 9457): one table from exception to status."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from callslip import errors
from callslip.http.schemas import to_view

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1


class RequestTooLargeError(errors.CallslipError):
    """The body is larger than a limit. 413"""

    def __init__(self, message: str, limit: int) -> None:
        super().__init__(message)
        self.limit = limit


class UnsupportedMediaTypeError(errors.CallslipError):
    """The body has a type that is not supported. 415"""


class TooManyReadersError(errors.CallslipError):
    """The server, or one principal, has as many readers as are allowed, or they hold too much data. 503"""


class TooManyAttemptsError(errors.CallslipError):
    """A client has tried too many wrong sign-in codes. 429"""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"too many wrong sign-in codes. Try again in {retry_after_s} s.")
        self.retry_after_s = retry_after_s


class Problem(msgspec.Struct, omit_defaults=True):
    """An error. `field` is the part of the request to change; `current` is the state that was in the way."""

    type: str
    title: str
    status: int
    detail: str = ""
    field: str = ""
    limit: int | None = None
    low: int | None = None
    current: Any = None
    correlation_id: str = ""
    final: bool = False


# The first match counts, so subclasses come before their base classes.
STATUS: tuple[tuple[type[BaseException], int, str], ...] = (
    (errors.AuthenticationError, 401, "unknown"),
    (errors.PermissionDeniedError, 403, "forbidden"),
    (RequestTooLargeError, 413, "too-large"),
    (UnsupportedMediaTypeError, 415, "unsupported"),
    (TooManyReadersError, 503, "busy"),
    (errors.QueueFullError, 429, "queue_full"),
    (TooManyAttemptsError, 429, "attempts"),
    (errors.StaleClaimError, 412, "stale-fence"),
    (errors.AmbiguousIdError, 409, "ambiguous"),
    (errors.ConflictError, 409, "conflict"),
    (errors.InvalidTransitionError, 409, "illegal"),
    (errors.NotFoundError, 404, "not-found"),
    (errors.CursorExpiredError, 410, "gone"),
    (errors.InvalidInputError, 400, "refused"),
    (errors.ReadOnlyStoreError, 503, "read-only"),
    (errors.DiskFullError, 507, "full"),
    (errors.DatabaseUnavailableError, 503, "unavailable"),
    (errors.StoreError, 503, "store"),
)
TITLES = {410: "Cursor expired", 412: "Claim lost", 416: "Range Not Satisfiable", 507: "Disk full"}
"""Titles that say more than the reason phrase of their status."""
QUEUE_FULL = "Queue full"


def title_of(status: int) -> str:
    """Return the title of problems with this status."""
    return TITLES.get(status) or HTTPStatus(status).phrase


def problem(error: BaseException) -> Problem:
    """Return an exception as a problem."""
    status, kind = next(((status, kind) for cls, status, kind in STATUS if isinstance(error, cls)), (500, "defect"))
    detail = str(error) if status != 500 else ""
    problem = Problem(type=f"urn:callslip:{kind}", title=title_of(status), status=status, detail=detail)
    if isinstance(error, errors.InvalidInputError):
        problem.field, problem.limit = error.field, error.limit
    elif isinstance(error, errors.QueueFullError | RequestTooLargeError):
        problem.limit = error.limit
        problem.title = QUEUE_FULL if isinstance(error, errors.QueueFullError) else problem.title
    elif isinstance(error, errors.CommandNotFoundError):
        problem.correlation_id, problem.final = error.correlation_id, True
    elif isinstance(error, errors.CursorExpiredError):
        problem.low = error.pruned_seq
    elif isinstance(error, errors.ConflictError):
        problem.current = to_view(error.current)
    return problem


def response(error: BaseException) -> Response:
    """Return the response to a request that raised."""
    document = problem(error)
    headers = {"www-authenticate": 'Bearer realm="callslip"'} if document.status == 401 else None
    if isinstance(error, TooManyReadersError | errors.DatabaseUnavailableError):
        headers = {"retry-after": str(RETRY_AFTER_S)}
    elif isinstance(error, TooManyAttemptsError):
        headers = {"retry-after": str(error.retry_after_s)}
    return Response(msgspec.json.encode(document), document.status, headers, MEDIA_TYPE)


def problem_response(status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a problem that has no exception."""
    document = Problem(type=f"urn:callslip:{kind}", title=title_of(status), status=status, detail=detail)
    return Response(msgspec.json.encode(document), status, headers, MEDIA_TYPE)
