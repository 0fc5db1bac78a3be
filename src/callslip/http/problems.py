"""Errors as RFC 9457 problem documents: one table from exception to status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from callslip import errors
from callslip.http.access import Forbidden, Unauthenticated
from callslip.http.schemas import to_view


class TooLarge(errors.CallslipError):
    """A body over the limit. 413"""


class Unsupported(errors.CallslipError):
    """A body of a type that cannot be read. 415"""


class TooMany(errors.CallslipError):
    """The server has as many readers as it takes. 503"""


class Problem(msgspec.Struct, omit_defaults=True):
    """What went wrong. `field` is what to change about the request; `current` is what was there first."""

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


# The first that fits counts, so the special ones stand before the general.
STATUS: tuple[tuple[type[BaseException], int, str], ...] = (
    (Unauthenticated, 401, "unknown"),
    (Forbidden, 403, "forbidden"),
    (TooLarge, 413, "too-large"),
    (Unsupported, 415, "unsupported"),
    (TooMany, 503, "busy"),
    (errors.QueueFullError, 429, "queue_full"),
    (errors.StaleClaimError, 412, "stale-fence"),
    (errors.AmbiguousIdError, 409, "ambiguous"),
    (errors.ConflictError, 409, "conflict"),
    (errors.InvalidTransitionError, 409, "illegal"),
    (errors.NotFoundError, 404, "not-found"),
    (errors.CursorExpiredError, 410, "gone"),
    (errors.InvalidInputError, 400, "refused"),
    (errors.ReadOnlyStoreError, 503, "read-only"),
    (errors.DiskFullError, 507, "full"),
    (errors.StoreError, 503, "store"),
)
TITLES = {
    400: "This cannot be accepted",
    401: "Say who you are",
    403: "You may not do this",
    404: "There is no such thing",
    405: "This is not done here",
    409: "Something else was there first",
    410: "This is not kept any more",
    412: "This is no longer yours",
    413: "This is too large",
    415: "This type is not read here",
    429: "Too much waits already",
    500: "Something is wrong with the server",
    503: "Not now",
    507: "There is no room",
}


def problem(error: BaseException) -> Problem:
    """The problem that an exception amounts to."""
    status, kind = next(((status, kind) for cls, status, kind in STATUS if isinstance(error, cls)), (500, "defect"))
    detail = str(error) if status != 500 else ""
    made = Problem(type=f"urn:callslip:{kind}", title=TITLES[status], status=status, detail=detail)
    if isinstance(error, errors.InvalidInputError):
        made.field, made.limit = error.field, error.limit
    elif isinstance(error, errors.QueueFullError):
        made.limit = error.limit
    elif isinstance(error, errors.CommandNotFoundError):
        made.correlation_id, made.final = error.correlation_id, True
    elif isinstance(error, errors.CursorExpiredError):
        made.low = error.low
    elif isinstance(error, errors.ConflictError):
        made.current = to_view(error.winner)
    return made


def response(error: BaseException) -> Response:
    """The answer to a request that raised."""
    made = problem(error)
    headers = {"www-authenticate": 'Bearer realm="callslip"'} if made.status == 401 else None
    return Response(msgspec.json.encode(made), made.status, headers, "application/problem+json")


def problem_response(status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """A problem that no exception stands for."""
    made = Problem(type=f"urn:callslip:{kind}", title=TITLES[status], status=status, detail=detail)
    return Response(msgspec.json.encode(made), status, headers, "application/problem+json")
