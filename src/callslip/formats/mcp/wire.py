"""Read JSON-RPC between a client and a server: kind and sender of each message, and the request that it answers.

A line is a message, a batch of messages, or a row `{"t": seconds, "dir": "c2s" | "s2c", "msg": message or batch}`. Ids
count in each direction separately, and 1 is not "1". Without a direction the method determines the sender of a request,
and the shape of an answer its request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, structs

from callslip.formats.base import raw_if
from callslip.formats.json_fields import (
    as_dict,
    as_list,
    as_str,
    has_other_content,
    identifier,
    parse_message,
    recording_time_ms,
)
from callslip.formats.json_rpc import RpcMessage as Message
from callslip.formats.json_rpc import is_response
from callslip.model import codec
from callslip.model.events import Event

FORMAT = "mcp"
CLIENT, SERVER = "c2s", "s2c"
OTHER = {CLIENT: SERVER, SERVER: CLIENT, "": ""}
DIRECTIONS = {CLIENT: CLIENT, SERVER: SERVER, "c2a": CLIENT, "a2c": SERVER}
"""The sender of a row by its `dir`. Recordings of other protocols call the server an agent."""
CALL = "tools/call"
OWN_META = "io.modelcontextprotocol/"

# Methods that only a server sends, and those that both send. All others are the client's.
_SERVER_METHODS = re.compile(
    r"(sampling|elicitation)/.*|roots/list"
    r"|notifications/(progress|message|tasks.*|elicitation.*|subscriptions.*|resources.*|tools.*|prompts.*)"
)
_SHARED_METHODS = {"ping"}
_METHODS = (
    *("initialize", "ping", "server/", "tools/", "tasks/", "resources/", "prompts/", "completion/", "logging/"),
    *("sampling/", "elicitation/", "roots/", "subscriptions/", "notifications/"),
)
"""The beginnings of all methods."""

# A result of these requests has at least one of these fields. The result of a ping is empty.
_RESULT_FIELDS: dict[str, set[str]] = {
    CALL: {"content", "structuredContent", "toolResult", "task", "resultType"},
    "sampling/createMessage": {"role", "task"},
    "elicitation/create": {"action", "task"},
    "roots/list": {"roots"},
    "initialize": {"protocolVersion"},
    "tools/list": {"tools"},
    "ping": set(),
}
_CLIENT_RESULT_FIELDS = {"role", "action", "roots"}
"""Fields that only the client's answers have. They may have content as well."""

_LIKE_JSON = re.compile(r'-?[0-9.]+([eE].*)?|["\[{].*|true|false', re.DOTALL)


class ParsedLine(msgspec.Struct, frozen=True):
    """The messages of one line."""

    messages: list[Message]


class PendingRequest(msgspec.Struct):
    """A request and its position among the messages."""

    message: Message
    number: int
    is_answered: bool = False


class Wire:
    """One connection, read from its beginning."""

    def __init__(self, *, started: int = 0) -> None:
        self._started = started
        self._pending: dict[tuple[str, str], PendingRequest] = {}
        self._number = 0

    def split(self, message: Any) -> list[tuple[str, ParsedLine]]:
        """Return the only conversation of the connection."""
        return [("", self.read(message))]

    def read(self, body: Any) -> ParsedLine:
        """Read a line, which may be any JSON value."""
        row = as_dict(body)
        direction = row.get("dir")
        if "msg" not in row or not isinstance(direction, str) or direction not in DIRECTIONS:
            return ParsedLine([self._message(item, Message(body=item)) for item in as_list(body) or [body]])
        at, sender = recording_time_ms(row.get("t"), self._started), DIRECTIONS[direction]
        content = parse_message(row["msg"])
        rows = [{**row, "msg": item} for item in as_list(content)]
        bodies = [(item["msg"], item) for item in rows] or [(content, body)]
        return ParsedLine([self._message(item, Message(body=raw, direction=sender, at=at)) for item, raw in bodies])

    def _message(self, value: Any, message: Message) -> Message:
        self._number += 1
        fields = as_dict(value)
        if method := as_str(fields.get("method")):
            return self._request(method, fields, message)
        return self._answer(fields, message) if is_response(fields) else message

    def _request(self, method: str, fields: dict[str, Any], message: Message) -> Message:
        key = key_of(fields.get("id"))
        request = structs.replace(
            message,
            kind="request" if key else "notification",
            direction=message.direction or _sender(method),
            method=method,
            params=as_dict(fields.get("params")),
            key=key,
        )
        if key:
            self._pending[request.direction, key] = PendingRequest(request, self._number)
        return request

    def _answer(self, fields: dict[str, Any], message: Message) -> Message:
        result, error = fields.get("result", UNSET), fields.get("error", UNSET)
        error = UNSET if error is None and result is not UNSET else error
        key = key_of(fields["id"])
        request = self._find_request(message.direction, key, result)
        request = request or self._find_other_spelling(message.direction, key, result)
        if request is None:
            return structs.replace(message, kind="answer", result=result, error=error)
        self._mark_answered(request)
        return structs.replace(
            message,
            kind="answer",
            direction=OTHER[request.message.direction],
            method=request.message.method,
            params=request.message.params,
            key=request.message.key,
            result=result,
            error=error,
        )

    def _mark_answered(self, request: PendingRequest) -> None:
        """Remember an answered call, which may be answered again late; forget any other request."""
        message = request.message
        if message.method != CALL:
            self._pending.pop((message.direction, message.key), None)
            return
        request.message = Message(body=None, direction=message.direction, method=CALL, key=message.key)
        request.is_answered = True

    def _find_request(self, direction: str, key: str, result: Any) -> PendingRequest | None:
        """Return the newest request that an answer fits."""
        senders = [OTHER[direction]] if direction else [CLIENT, SERVER, ""]
        requests = [self._pending[sender, key] for sender in senders if (sender, key) in self._pending]
        requests = [request for request in requests if not request.is_answered] or requests
        if len(requests) > 1:
            requests = [request for request in requests if _fits(request.message.method, result)] or requests
        return max(requests, key=lambda request: request.number, default=None)

    def _find_other_spelling(self, direction: str, key: str, result: Any) -> PendingRequest | None:
        """Return an open request 7 for an answer "7", and the reverse: some servers confuse them, clients accept it."""
        other = key[1:-1] if key.startswith('"') else f'"{key}"'
        request = self._find_request(direction, other, result) if key else None
        return request if request is not None and not request.is_answered else None


def _sender(method: str) -> str:
    if method in _SHARED_METHODS:
        return ""
    return SERVER if _SERVER_METHODS.fullmatch(method) else CLIENT


def _fits(method: str, result: Any) -> bool:
    """Return whether a result may be one of such a request. An error fits any request."""
    expected, fields = _RESULT_FIELDS.get(method), as_dict(result).keys()
    if result is UNSET or expected is None:
        return True
    if method == CALL and fields & _CLIENT_RESULT_FIELDS:
        return False
    return bool(expected & fields) if expected else not result


def is_protocol_message(line: ParsedLine) -> bool:
    """Return whether a line has a message of the protocol, by its method or that of the request it answers."""
    return any(message.method.startswith(_METHODS) for message in line.messages)


def key_of(raw_id: Any) -> str:
    """Return an id as text: JSON for a text that looks like another kind of id; "" for none."""
    if raw_id is None:
        return ""
    is_plain = isinstance(raw_id, str) and raw_id and not _LIKE_JSON.fullmatch(raw_id)
    return identifier(raw_id if is_plain else codec.encode(raw_id).decode())


def raw_message_if(condition: object, message: Message) -> list[Event]:
    """Return the full message as a raw event if other events do not carry all of it."""
    return raw_if(condition, FORMAT, message.body)


def has_other_meta(fields: dict[str, Any]) -> bool:
    """Return whether there is metadata besides the protocol's own, which is the same in every message."""
    meta = fields.get("_meta")
    own = {name for name in as_dict(meta) if name.startswith(OWN_META)}
    return has_other_content(as_dict(meta), {"progressToken", *own}) if isinstance(meta, dict) else meta is not None


def needs_raw(fields: dict[str, Any], known: Iterable[str]) -> bool:
    """Return whether a message has more than the known fields."""
    return has_other_content(fields, {"_meta", *known}) or has_other_meta(fields)
