"""JSON-RPC as two peers wrote it: what each message is, who sent it, and what it answers.

A line is a message, a batch of them, or a row `{"t": seconds, "dir": "c2s" | "s2c", "msg": message or batch}`. Ids
count in each direction by themselves, and 1 is not "1". Without a direction the method tells who sent a request, and
the shape of an answer which request it suits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from callslip.formats.json_fields import as_dict, as_list, identifier, leaves, parsed, recorded_at
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Event

FORMAT = "mcp"
CLIENT, SERVER = "c2s", "s2c"
OTHER = {CLIENT: SERVER, SERVER: CLIENT, "": ""}
DIRECTIONS = {CLIENT: CLIENT, SERVER: SERVER, "c2a": CLIENT, "a2c": SERVER}
"""Who sent a row, by its word for it. Recordings of other protocols call the server an agent."""
CALL = "tools/call"
OWN_META = "io.modelcontextprotocol/"

# What only a server sends, and what both send. All else is the client's.
_SERVERS = re.compile(
    r"(sampling|elicitation)/.*|roots/list"
    r"|notifications/(progress|message|tasks.*|elicitation.*|subscriptions.*|resources.*|tools.*|prompts.*)"
)
_ANYBODYS = {"ping"}

# What a result must have one of, to be one of that request. A pong has nothing in it.
_HAVE: dict[str, set[str]] = {
    CALL: {"content", "structuredContent", "toolResult", "task", "resultType"},
    "sampling/createMessage": {"role", "task"},
    "elicitation/create": {"action", "task"},
    "roots/list": {"roots"},
    "initialize": {"protocolVersion"},
    "tools/list": {"tools"},
    "ping": set(),
}
_CLIENTS = {"role", "action", "roots"}
"""What only the client's answers have. They may have content as well."""

_LIKE_JSON = re.compile(r'-?[0-9.]+([eE].*)?|["\[{].*|true|false', re.DOTALL)

Kind = Literal["request", "notification", "answer", "odd"]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message. An answer has the method, params and key of the request that it answers, "" if that is unknown.

    `body` is the message as it came, in its row. `key` is the id of a request as text.
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


class ParsedLine(msgspec.Struct, frozen=True):
    """The messages of one line."""

    messages: list[Message]


class PendingRequest(msgspec.Struct):
    """A request, and the number of the message that it was."""

    message: Message
    number: int
    answered: bool = False


class Wire:
    """One connection, read from its beginning."""

    def __init__(self, *, started: int = 0) -> None:
        self._started = started
        self._asked: dict[tuple[str, str], PendingRequest] = {}
        self._number = 0

    def split(self, message: Any) -> list[tuple[str, ParsedLine]]:
        """A connection carries one conversation."""
        return [("", self.read(message))]

    def read(self, body: Any) -> ParsedLine:
        """What a line is. Any JSON value will do."""
        row = as_dict(body)
        direction = row.get("dir")
        if "msg" not in row or not isinstance(direction, str) or direction not in DIRECTIONS:
            return ParsedLine([self._message(one, Message(body=one)) for one in as_list(body) or [body]])
        at, sender = recorded_at(row.get("t"), self._started), DIRECTIONS[direction]
        said = parsed(row["msg"])
        if not as_list(said):
            return ParsedLine([self._message(said, Message(body=body, direction=sender, at=at))])
        rows = [{**row, "msg": one} for one in as_list(said)]
        return ParsedLine([self._message(one["msg"], Message(body=one, direction=sender, at=at)) for one in rows])

    def _message(self, given: Any, told: Message) -> Message:
        self._number += 1
        said = as_dict(given)
        method = said.get("method")
        if isinstance(method, str) and method:
            return self._request(method, said, told)
        if "id" in said and ("result" in said or "error" in said):
            return self._answer(said, told)
        return told

    def _request(self, method: str, said: dict[str, Any], told: Message) -> Message:
        key = key_of(said.get("id"))
        made = msgspec.structs.replace(
            told,
            kind="request" if key else "notification",
            direction=told.direction or _sender(method),
            method=method,
            params=as_dict(said.get("params")),
            key=key,
        )
        if key:
            self._asked[made.direction, key] = PendingRequest(made, self._number)
        return made

    def _answer(self, said: dict[str, Any], told: Message) -> Message:
        result, error = said.get("result", UNSET), said.get("error", UNSET)
        error = UNSET if error is None and result is not UNSET else error
        key = key_of(said["id"])
        asked = self._question(told.direction, key, result) or self._misspelt(told.direction, key, result)
        if asked is None:
            return msgspec.structs.replace(told, kind="answer", result=result, error=error)
        self._answered(asked)
        return msgspec.structs.replace(
            told,
            kind="answer",
            direction=OTHER[asked.message.direction],
            method=asked.message.method,
            params=asked.message.params,
            key=asked.message.key,
            result=result,
            error=error,
        )

    def _answered(self, asked: PendingRequest) -> None:
        """A call may be answered once more, which comes late; of other requests nothing more is known."""
        message = asked.message
        if message.method != CALL:
            self._asked.pop((message.direction, message.key), None)
            return
        asked.message = Message(body=None, direction=message.direction, method=CALL, key=message.key)
        asked.answered = True

    def _question(self, direction: str, key: str, result: Any) -> PendingRequest | None:
        """The request that is answered: the newest of those whose answer this may be."""
        asking = [OTHER[direction]] if direction else [CLIENT, SERVER, ""]
        found = [self._asked[sender, key] for sender in asking if (sender, key) in self._asked]
        found = [asked for asked in found if not asked.answered] or found
        if len(found) > 1:
            found = [asked for asked in found if _suits(asked.message.method, result)] or found
        return max(found, key=lambda asked: asked.number, default=None)

    def _misspelt(self, direction: str, key: str, result: Any) -> PendingRequest | None:
        """Some servers answer "7" to 7, or 7 to "7", and clients put up with it where it can mean nothing else."""
        other = key[1:-1] if key.startswith('"') else f'"{key}"'
        asked = self._question(direction, other, result) if key else None
        return asked if asked is not None and not asked.answered else None


def _sender(method: str) -> str:
    if method in _ANYBODYS:
        return ""
    return SERVER if _SERVERS.fullmatch(method) else CLIENT


def _suits(method: str, result: Any) -> bool:
    """Whether a result may be one of such a request. An error suits any."""
    have, said = _HAVE.get(method), as_dict(result).keys()
    if result is UNSET or have is None:
        return True
    if method == CALL and said & _CLIENTS:
        return False
    return bool(have & said) if have else not result


def key_of(given: Any) -> str:
    """An id as text: of a text that may be taken for another kind of id its JSON; "" for none."""
    if given is None:
        return ""
    plain = isinstance(given, str) and given and not _LIKE_JSON.fullmatch(given)
    return identifier(given if plain else codec.encode(given).decode())


def raw(read: Message) -> Event:
    """The message, whole."""
    return ev.Raw(format=FORMAT, body=read.body)


def kept(more: object, read: Message) -> list[Event]:
    """The message, whole, beside what was made of it, if there is more to it."""
    return [raw(read)] if more else []


def meta_leaves(said: dict[str, Any]) -> bool:
    """Whether there is metadata beside the protocol's own, which is the same in every message."""
    meta = said.get("_meta")
    own = {name for name in as_dict(meta) if name.startswith(OWN_META)}
    return leaves(as_dict(meta), {"progressToken", *own}) if isinstance(meta, dict) else meta is not None


def more_than(said: dict[str, Any], taken: Iterable[str]) -> bool:
    """Whether a message says more than was taken over."""
    return leaves(said, {"_meta", *taken}) or meta_leaves(said)
