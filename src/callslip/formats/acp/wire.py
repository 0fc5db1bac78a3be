"""JSON-RPC as two peers wrote it: what each message is, who sent it, what it answers, which conversation it is of.

A line is a bare message, or a row `{"t": seconds, "dir": "c2a" | "a2c" | "mark", "msg": message}`. Ids count in each
direction by themselves and may be of any type, so that a request is known by its direction and its id as JSON.

Several conversations may share a wire. The first session id that is named is the first conversation, "", with all that
names none; every other session id is a conversation by itself.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET

from callslip import codec
from callslip.errors import Refused
from callslip.intake import identity

FORMAT = "acp"
CLIENT, AGENT = "c2a", "a2c"
OTHER = {CLIENT: AGENT, AGENT: CLIENT, "": ""}
EPOCH = 10**9
LAST = 10**11

# What agents ask of clients; everything else that has a name in the protocol clients ask of agents.
_FROM_AGENT = ("session/update", "session/request_permission", "fs/", "terminal/", "elicitation/")
_FROM_CLIENT = ("initialize", "authenticate", "logout", "session/", "providers/")
# How the answer to a client's request is told from one to an agent's request of the same id.
_AGENT_ANSWERS = ("stopReason", "sessionId", "protocolVersion", "modes", "models", "configOptions", "sessions")

Kind = Literal["request", "notification", "answer", "eof", "odd"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message. An answer has the method, params and key of the request that it answers, "" if that is unknown.

    `body` is the line as it came. `version` is the protocol version that the peers agreed on, 0 if that was not seen.
    """

    body: Any
    kind: Kind = "odd"
    direction: str = ""
    at: int = 0
    method: str = ""
    params: dict[str, Any] = {}
    key: str = ""
    result: Any = UNSET
    error: Any = UNSET
    session: str = ""
    conversation: str = ""
    version: int = 0


class Wire:
    """One connection, read from its beginning."""

    def __init__(self, *, started: int = 0) -> None:
        self._started = started
        self._asked: dict[tuple[str, str], Message] = {}
        self._sessions: dict[str, str] = {}
        self._version = 0

    def split(self, message: Any) -> list[tuple[str, Message]]:
        """The conversations that a message concerns: the end of the line concerns all."""
        read = self.read(message)
        if read.kind != "eof":
            return [(read.conversation, read)]
        return [(other, read) for other in self._sessions.values() or [""]]

    def read(self, body: Any) -> Message:
        """What a line is. Any JSON value will do."""
        row = fields(body)
        direction = row.get("dir")
        if "msg" not in row or direction not in (CLIENT, AGENT):
            return self._message(row, Message(body=body))
        inner = row["msg"]
        told = Message(body=body, direction=cast(str, direction), at=self._time(row.get("t")))
        return self._message(fields(_parsed(inner)), told)

    def _message(self, said: dict[str, Any], told: Message) -> Message:
        if said.get("_eof") is True:
            self._asked.clear()
            return msgspec.structs.replace(told, kind="eof")
        method = said.get("method")
        if isinstance(method, str) and method:
            return self._request(method, said, told)
        if "id" in said and ("result" in said or "error" in said):
            return self._answer(said, told)
        return told

    def _time(self, seconds: Any) -> int:
        """Milliseconds since the epoch; small numbers count from the start of the recording."""
        if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds < LAST:
            return 0
        since = 0 if seconds >= EPOCH else self._started
        return since + int(seconds * 1000) if since or seconds >= EPOCH else 0

    def _request(self, method: str, said: dict[str, Any], told: Message) -> Message:
        params = fields(said.get("params"))
        direction = told.direction or _sender(method)
        key = _key(said["id"]) if said.get("id") is not None else ""
        session = identifier(params.get("sessionId"))
        made = msgspec.structs.replace(
            told,
            kind="request" if key else "notification",
            direction=direction,
            method=method,
            params=params,
            key=f"{direction} {key}" if key else "",
            session=session,
            conversation=self._conversation(session),
            version=self._version,
        )
        if key:
            self._asked[direction, key] = made
        return made

    def _answer(self, said: dict[str, Any], told: Message) -> Message:
        result, error = said.get("result", UNSET), said.get("error", UNSET)
        error = UNSET if error is None else error
        asked = self._question(told.direction, _key(said["id"]), result)
        if asked is None:
            return msgspec.structs.replace(told, kind="answer", result=result, error=error, version=self._version)
        if asked.method == "initialize":
            version = fields(result).get("protocolVersion")
            self._version = version if type(version) is int else 0
        session = asked.session or identifier(fields(result).get("sessionId"))
        return msgspec.structs.replace(
            told,
            kind="answer",
            direction=OTHER[asked.direction],
            method=asked.method,
            params=asked.params,
            key=asked.key,
            result=result,
            error=error,
            session=session,
            conversation=self._conversation(session),
            version=self._version,
        )

    def _question(self, direction: str, key: str, result: Any) -> Message | None:
        """The request that is answered. Without a direction, the one that such an answer suits."""
        asking = [OTHER[direction]] if direction else [AGENT, CLIENT, ""]
        found = [sender for sender in asking if (sender, key) in self._asked]
        if not found:
            return None
        by_agent = any(name in fields(result) for name in _AGENT_ANSWERS)
        chosen = CLIENT if len(found) > 1 and CLIENT in found and by_agent else found[0]
        return self._asked.pop((chosen, key))

    def _conversation(self, session: str) -> str:
        if not session:
            return ""
        return self._sessions.setdefault(session, session if self._sessions else "")


def _parsed(inner: Any) -> Any:
    """A message that was written down as text."""
    if not isinstance(inner, str):
        return inner
    try:
        return codec.parse(inner)
    except Refused:
        return None


def _key(given: Any) -> str:
    return codec.digest(codec.encode(given))


def _sender(method: str) -> str:
    if method.startswith(_FROM_AGENT):
        return AGENT
    return CLIENT if method.startswith(_FROM_CLIENT) else ""


def fields(value: Any) -> dict[str, Any]:
    """The members of an object; of anything else none."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """The items of a list; of anything else none."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def identifier(value: Any) -> str:
    """A foreign id as one that can be kept: itself, or a digest of one too long or unprintable. "" for none."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value:
        return ""
    try:
        return identity(value, "id")
    except Refused:
        return f"digest:{codec.digest(value.encode())}"
