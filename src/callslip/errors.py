"""Every exception Callslip raises. The type says whose fault it is: the caller's, the peer's, or the store's."""

from __future__ import annotations


class CallslipError(Exception):
    """The root of all of them."""


class InvalidInputError(CallslipError, ValueError):
    """The input is not acceptable; nothing was written. Names the field and, where there is one, the limit."""

    def __init__(self, field: str, problem: str, limit: int | None = None) -> None:
        self.field = field
        self.problem = problem
        self.limit = limit
        super().__init__(f"{field}: {problem}" + (f" (limit {limit})" if limit is not None else ""))


class ConflictError(CallslipError):
    """Something else was there first: an idempotency key with another body, an approval already answered."""

    def __init__(self, message: str, winner: object = None) -> None:
        self.winner = winner
        super().__init__(message)


class AmbiguousIdError(ConflictError):
    """A prefix or an alias that fits several things; `winner` lists the candidates."""


class StaleClaimError(ConflictError):
    """A worker spoke for a command that is not its own any more. Kept in the log as late; it changes nothing."""


class QueueFullError(CallslipError):
    """As many commands wait for this client as may. Nothing was written."""

    def __init__(self, client: str, limit: int) -> None:
        self.client = client
        self.limit = limit
        super().__init__(f"queue_full: {limit} commands wait for client {client!r} already")


class InvalidTransitionError(CallslipError):
    """Our own process asked for a transition that the lifecycle does not have. Nothing was written."""


class NotFoundError(CallslipError, LookupError):
    """No such session, call, approval or blob."""


class CommandNotFoundError(NotFoundError):
    """No command has this id, and waiting for it changes nothing."""

    def __init__(self, correlation_id: str) -> None:
        self.correlation_id = correlation_id
        super().__init__(f"no command {correlation_id!r}")


class CallDeniedError(CallslipError):
    """A person or a policy refused the call. The message is what the model reads."""


class CallEndedError(CallslipError):
    """A call that was waited for ended in another way than completing."""

    def __init__(self, state: str, reason: str) -> None:
        self.state = state
        self.reason = reason
        super().__init__(f"{state}: {reason}" if reason else state)


class SlowReaderError(CallslipError):
    """A reader fell too far behind and was dropped. Resume after `cursor`; nothing is lost."""

    def __init__(self, cursor: int) -> None:
        self.cursor = cursor
        super().__init__(f"reader too slow; resume after {cursor}")


class CursorExpiredError(CallslipError):
    """The cursor lies below what retention kept. Read a snapshot, then go on after its seq."""

    def __init__(self, cursor: int, low: int) -> None:
        self.cursor = cursor
        self.low = low
        super().__init__(f"events up to {low} were removed by retention; cursor {cursor} cannot be resumed")


class StoreError(CallslipError):
    """The database could not do it. Nothing half-written remains."""


class ReadOnlyStoreError(StoreError):
    """The file or its folder cannot be written. Reading goes on."""


class DiskFullError(StoreError):
    """The disk is full. Reading goes on; writing works again when there is room."""


class InvalidDatabaseError(StoreError):
    """The file is not a Callslip database, or it is damaged."""


class CorruptDataError(StoreError):
    """Something in the database cannot be read any more. `callslip verify` tells what is wrong with it."""


class UnsupportedVersionError(StoreError):
    """A newer Callslip wrote this database and says that this version cannot read it."""


class ServerUnavailableError(CallslipError):
    """The server does not answer, or what answers is no server of ours."""


class AuthenticationError(CallslipError):
    """The server asks for a token, or does not know the one that it was given."""


class WaitTimeoutError(CallslipError, TimeoutError):
    """A wait took longer than its timeout."""


class NoSessionError(CallslipError):
    """A tool was called outside a session."""
