"""The ledger by way of a server. A server that was reached once is waited for if it goes away."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Generator
from typing import Any, cast
from urllib.parse import quote

import msgspec

from callslip.cli import pieces
from callslip.cli.exit_status import STATES
from callslip.cli.reach import Json, News, Session, only
from callslip.cli.remote import Remote
from callslip.cli.terminal import tables
from callslip.errors import (
    CallslipError,
    ConflictError,
    CursorExpiredError,
    InvalidInputError,
    NotFoundError,
    ServerUnavailableError,
)
from callslip.formats import registry

MAX_PAGE = 1000
MAX_POLL_S = 30.0
"""How many seconds one request waits for the end of a call."""
SOONEST, LATEST = 0.2, 5.0
APPROVAL = "appr_"
_ID = re.compile(rb"^id: [0-9]+\n", re.MULTILINE)


class _Document(msgspec.Struct):
    session: str
    seq: int
    events: list[msgspec.Raw] = []
    entries: list[msgspec.Raw] = []
    messages: list[msgspec.Raw] = []
    cursor: str = ""


class OnServer:
    """Asks a server."""

    names_answerer = False

    def __init__(self, remote: Remote) -> None:
        self.flags = f" --server {shlex.quote(remote.url)}"
        self._remote = remote

    # Finding

    def session(self, given: str) -> Session:
        if given == "@last":
            return _found(only(self._sessions(limit=1), "session", "session", given))
        try:
            whole = self._remote.get(_path("sessions", given), {"limit": 1})
        except NotFoundError:
            return _found(only(self._sessions(limit=10, prefix=given), "session", "session", given))
        return Session(whole["session"], whole["seq"], whole["info"].get("turn", ""))

    def _sessions(self, **query: Any) -> list[Json]:
        return self._remote.get("/v1/sessions", query)["sessions"]

    def call(self, given: str, session: str = "") -> Json:
        if given == "@last":
            found = self._remote.get("/v1/calls", {"limit": 1, "session": session})["calls"]
            return only(found, "call", "call", given)
        try:
            return self._remote.get(_path("calls", given), {"session": session})
        except NotFoundError:
            if not given.startswith(APPROVAL):
                raise
            return self._remote.get(_path("calls", self._request(given)["call"]), {"session": session})

    def approval(self, given: str) -> Json:
        if given == "@last":
            waiting = self._approvals("pending")
            if not waiting:
                raise NotFoundError("nothing waits for approval")
            return waiting[-1]
        try:
            return self._request(given)
        except NotFoundError:
            call = self.call(given)
        if not call["approval"]:
            raise NotFoundError(f"call {call['call']} never asked for approval; it is {call['state']}")
        return self._request(call["approval"])

    def _request(self, given: str) -> Json:
        """A request by its id, or the beginning of one."""
        try:
            return self._remote.get(_path("approvals", given))
        except NotFoundError:
            if not (given.startswith(APPROVAL) or APPROVAL.startswith(given)):
                raise
        fitting = [row for row in self._approvals("") if row["approval"].startswith(given)]
        return only(fitting, "approval", "approval", given)

    def _approvals(self, state: str) -> list[Json]:
        return self._remote.get("/v1/approvals", {"state": state, "limit": MAX_PAGE})["approvals"]

    def blob(self, identity: str) -> bytes:
        return b"".join(self._remote.pieces(_path("blobs", identity)))

    # Doing

    def answer(self, approval: Json, answer: Json, by: str) -> Json:
        try:
            return self._remote.post(_path("approvals", approval["approval"]), answer)
        except InvalidInputError as error:
            offered = [cast(Json, option).get("optionId") for option in approval["options"] if isinstance(option, dict)]
            if error.field == "option" and answer.get("option") and answer["option"] not in offered:
                raise NotFoundError(error.problem) from error
            raise

    def cancel(self, call: str, reason: str, by: str) -> Json:
        try:
            return self._remote.post(_path("calls", call) + "/cancel", {"reason": reason})
        except ConflictError as error:
            ended = cast(Json, error.winner) if isinstance(error.winner, dict) else {}
            if "state" not in ended:
                raise
            return ended

    def submit(self, order: Json) -> Json:
        return self._remote.post("/v1/calls", order)

    def command(self, call: str) -> Json:
        return self._remote.get(_path("calls", call), {"format": "command"})

    def commands(self, client: str, limit: int) -> Json:
        return self._remote.get("/v1/commands", {"client": client, "limit": min(limit, MAX_PAGE)})

    def wait(self, call: str, timeout: float | None) -> Json:
        end = None if timeout is None else time.monotonic() + timeout
        again = _Again(self._remote.url, begun=True)
        while True:
            left = MAX_POLL_S if end is None else max(0.0, min(MAX_POLL_S, end - time.monotonic()))
            left = 0.0 if again.lost else left  # Whether it is back is known at once.
            try:
                row = self._remote.get(_path("calls", call), {"wait": f"{left:.3f}"}, within=left)
            except ServerUnavailableError as error:
                again.after(error, end)
                continue
            again.reached()
            if row["state"] in STATES:
                return row
            if end is not None and time.monotonic() >= end:
                raise TimeoutError

    # Whole sessions

    def export(self, session: Session, format: str, at: int | None) -> Generator[bytes]:
        field = pieces.field_of(format)
        if field == "events":
            yield from self._events(session, at)
        elif not field:
            yield b"".join(self._remote.pieces(_path("sessions", session.name), {"format": format, "at": at}))
        else:
            found = self._document(session, {"format": format, "at": at})
            yield pieces.head(found.session, found.seq, field)
            yield from pieces.items(map(bytes, getattr(found, field)))
            yield pieces.END

    def _events(self, session: Session, at: int | None) -> Generator[bytes]:
        """Page by page: however long a log is, little of it is in memory."""
        if at is not None:  # The server knows whether there is such a seq, and refuses to give pages of it.
            self._document(session, {"format": "entries", "at": at})
        found = self._document(session, {"format": "events", "limit": MAX_PAGE})
        last = found.seq if at is None else at
        yield pieces.head(found.session, last, "events")
        first = True
        while found.events:
            bodies = [body for body in map(bytes, found.events) if _seq(body) <= last]
            yield b"".join(pieces.items(bodies, first))
            first = first and not bodies
            if not found.cursor or int(found.cursor) >= last:
                break
            found = self._document(session, {"format": "events", "limit": MAX_PAGE, "cursor": found.cursor})
        yield pieces.END

    def _document(self, session: Session, query: Json) -> _Document:
        body = b"".join(self._remote.pieces(_path("sessions", session.name), query))
        return msgspec.json.decode(body, type=_Document)

    def turn(self, session: Session, format: str, at: int | None, turn: str) -> Generator[bytes]:
        if at is not None:
            raise InvalidInputError("--at", "a server streams a turn as it stands now; leave it out, or use the file")
        query = {"format": format, "turn": turn, "follow": "false"}
        data = b"".join(self._remote.pieces(_path("sessions", session.name) + "/stream", query))
        yield _ID.sub(b"", data) if registry.streaming(format).events else data

    def follow(self, session: str, format: str, after: int | None) -> Generator[News]:
        """Come back by the last seq as often as need be."""
        again, path = _Again(self._remote.url), _path("sessions", session) + "/stream"
        while True:
            try:
                last = "" if after is None else str(after)
                for frame in self._remote.frames(path, {"format": format, "after": after}, last):
                    again.reached()
                    if frame.event:
                        after = int(frame.id)
                        yield News(frame.event, after, frame.data)
                again.pause()
            except ServerUnavailableError as error:
                again.after(error)
            except CursorExpiredError:
                if format != "entries" or not again.begun:
                    raise
                after = None


class _Again:
    """Coming back to a server: the pauses in between, and what is said about it. The first time must succeed."""

    def __init__(self, url: str, *, begun: bool = False) -> None:
        self.begun = begun
        self._url = url
        self._pause = SOONEST
        self.lost = False

    def reached(self) -> None:
        if self.lost:
            tables.print_status(f"the server at {self._url} is back")
        self.begun, self.lost, self._pause = True, False, SOONEST

    def after(self, error: CallslipError, end: float | None = None) -> None:
        """Wait a little, and longer each time. TimeoutError when there is no time left."""
        if not self.begun:
            raise error
        if not self.lost:
            tables.print_status(f"{error}; trying again")
        self.lost = True
        if end is not None and time.monotonic() + self._pause >= end:
            raise TimeoutError from error
        self.pause()

    def pause(self) -> None:
        time.sleep(self._pause)
        self._pause = min(LATEST, self._pause * 2)


def _path(kind: str, name: str) -> str:
    return f"/v1/{kind}/{quote(name, safe='')}"


def _found(row: Json) -> Session:
    return Session(row["session"], row["seq"], row["turn"])


class _Numbered(msgspec.Struct):
    seq: int


def _seq(body: bytes) -> int:
    return msgspec.json.decode(body, type=_Numbered).seq
