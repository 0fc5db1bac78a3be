"""All exceptions that Callslip raises."""

from __future__ import annotations


class CallslipError(Exception):
    """The base class of all exceptions of Callslip."""


class InvalidInputError(CallslipError, ValueError):
    """The input is not valid and nothing was written; `field` and, if there is one, `limit` say why."""

    def __init__(self, field: str, problem: str, limit: int | None = None) -> None:
        self.field = field
        self.problem = problem
        self.limit = limit
        super().__init__(f"{field}: {problem}" + (f" (limit {limit})" if limit is not None else ""))


class ConflictError(CallslipError):
    """An earlier write wins, e.g. the same idempotency key with another body; `winner` is its result."""

    def __init__(self, message: str, winner: object = None) -> None:
        self.winner = winner
        super().__init__(message)


class AmbiguousIdError(ConflictError):
    """A prefix or an alias matches several objects; `winner` lists them."""


class StaleClaimError(ConflictError):
    """A worker reported on a command that it no longer holds; the report is in the log as late."""


class QueueFullError(CallslipError):
    """The client has as many pending commands as its queue allows, and nothing was written."""

    def __init__(self, client: str, limit: int) -> None:
        self.client = client
        self.limit = limit
        super().__init__(f"queue_full: client {client!r} already has {limit} pending commands. Retry later.")


class InvalidTransitionError(CallslipError):
    """The lifecycle has no such transition, and nothing was written."""


class NotFoundError(CallslipError, LookupError):
    """There is no such session, call, approval or blob."""


class CommandNotFoundError(NotFoundError):
    """No command has this id, so polling for it is of no use."""

    def __init__(self, correlation_id: str) -> None:
        self.correlation_id = correlation_id
        super().__init__(f"no command {correlation_id!r}")


class CallDeniedError(CallslipError):
    """A person or a policy refused the call; the message is for the model."""


class CallEndedError(CallslipError):
    """The awaited call ended in another state than completed."""

    def __init__(self, state: str, reason: str) -> None:
        self.state = state
        self.reason = reason
        super().__init__(f"{state}: {reason}" if reason else state)


class WaitTimeoutError(CallslipError, TimeoutError):
    """A wait took longer than its timeout."""


class NoSessionError(CallslipError):
    """A tool was called outside a session."""


class SlowReaderError(CallslipError):
    """A reader fell too far behind and was disconnected; it can resume after `cursor` without loss."""

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        super().__init__(f"reader too slow; resume after {cursor}")


class CursorExpiredError(CallslipError):
    """Retention removed the events after the cursor; read a snapshot and continue after its seq."""

    def __init__(self, cursor: int, low: int) -> None:
        self.cursor = cursor
        self.low = low
        super().__init__(f"cursor: {cursor} expired, events up to {low} were removed by retention. Read a snapshot.")


class StoreError(CallslipError):
    """The database operation failed and left nothing half-written."""


class ReadOnlyStoreError(StoreError):
    """The file or its folder is not writable; reading still works."""


class DiskFullError(StoreError):
    """The disk is full; reading still works, and writing does once there is space."""


class InvalidDatabaseError(StoreError):
    """The file is not a Callslip database, or it is damaged."""


class CorruptDataError(StoreError):
    """Data in the database is unreadable; `callslip verify` lists what is wrong."""


class UnsupportedVersionError(StoreError):
    """A newer Callslip wrote this database, and this version cannot read it."""


class ServerUnavailableError(CallslipError):
    """The server does not answer, or the answer is not from a Callslip server."""


class AuthenticationError(CallslipError):
    """The server requires a token, or does not accept this one."""
