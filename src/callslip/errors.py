"""All exceptions that Callslip raises."""

from __future__ import annotations


class CallslipError(Exception):
    """The base class of all exceptions of Callslip."""


class InvalidInputError(CallslipError, ValueError):
    """The input is not valid and nothing was written; `field` and, if there is one, `limit` say why.

    `position` is the place of the refused event in a list of several, if it is known: -1 is the last.
    """

    def __init__(self, field: str, problem: str, limit: int | None = None) -> None:
        self.field = field
        self.problem = problem
        self.limit = limit
        self.position: int | None = None
        super().__init__(f"{field}: {problem}" + (f" (limit {limit})" if limit is not None else ""))


class ConflictError(CallslipError):
    """The request conflicts with an earlier write, for example with the same key; `current` is what that wrote."""

    def __init__(self, message: str, current: object = None) -> None:
        self.current = current
        super().__init__(message)


class AmbiguousIdError(ConflictError):
    """A prefix or an alias matches several objects; `current` lists them."""


class StaleClaimError(ConflictError):
    """A worker reported on a command that it no longer holds; the report is in the log as late."""


class QueueFullError(CallslipError):
    """The queue has the maximum number of pending commands, and nothing was written."""

    def __init__(self, queue: str, limit: int) -> None:
        self.queue = queue
        self.limit = limit
        super().__init__(f"queue {queue!r}: full, it has {limit} pending commands. Retry later.")


class InvalidTransitionError(CallslipError):
    """The lifecycle has no such transition, and nothing was written."""


class NotFoundError(CallslipError, LookupError):
    """There is no such session, call, approval or blob."""


class CommandNotFoundError(NotFoundError):
    """No command has this id. Do not retry."""

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


class CallTimeoutError(CallEndedError, TimeoutError):
    """The call took longer than its timeout, and has expired."""


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

    def __init__(self, cursor: int, pruned_seq: int) -> None:
        self.cursor = cursor
        self.pruned_seq = pruned_seq
        super().__init__(
            f"cursor: {cursor} expired, events up to {pruned_seq} were removed by retention. Read a snapshot."
        )


class StoreError(CallslipError):
    """The database operation failed and was rolled back."""


class ReadOnlyStoreError(StoreError):
    """The file or its folder is not writable; reading still works."""


class DatabaseUnavailableError(StoreError):
    """The server of the database cannot be reached, does not answer in time, or is behind its primary. Try again."""


class DiskFullError(StoreError):
    """The disk is full; reading still works, and writing does once there is space."""


class InvalidDatabaseError(StoreError):
    """The file is not a Callslip database, or it is damaged."""


class IncompleteCopyError(StoreError):
    """The database is the target of a copy that has not finished; finish it with `callslip admin copy`."""


class LostFileError(StoreError):
    """The file of the ledger was deleted or replaced while it was open; nothing was written to it."""


class CorruptDataError(StoreError):
    """Data in the database is unreadable; `callslip verify` lists what is wrong."""


class UnsupportedVersionError(StoreError):
    """A newer Callslip wrote this database, and this version cannot read it."""


class ServerUnavailableError(CallslipError):
    """The server does not answer, or the answer is not from a Callslip server."""


class AuthenticationError(CallslipError):
    """The server requires a token, or does not accept this one."""


class PermissionDeniedError(CallslipError):
    """The token does not have the right that the operation needs."""
