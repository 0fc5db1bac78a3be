"""Read JSON-RPC between a client and an agent: kind, sender, request and conversation of each message.

A line is a bare message, or a row `{"t": seconds, "dir": "c2a" | "a2c" | "mark", "msg": message}`. Ids count in each
direction separately and may be of any type, so a request is identified by its direction and its id as JSON.

An event may also be without JSON-RPC (`bare_events.py`).

Several conversations may share a connection. The first session id is the first conversation, "", which also gets all
messages without a session id; every other session id is its own conversation.
"""

from __future__ import annotations

from typing import Any, cast

from msgspec import UNSET, structs

from callslip.formats.acp.bare_events import read_bare_event
from callslip.formats.base import raw_if
from callslip.formats.json_fields import as_dict, as_str, first_text, identifier, parse_message, recording_time_ms
from callslip.formats.json_rpc import RpcMessage, is_response
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Event

FORMAT = "acp"
CLIENT, AGENT = "c2a", "a2c"
OTHER = {CLIENT: AGENT, AGENT: CLIENT, "": ""}

# The sender of a method by its longest matching prefix.
_SENDERS = {
    **dict.fromkeys(("initialize", "authenticate", "logout", "auth/", "session/", "providers/"), CLIENT),
    **dict.fromkeys(("tool_call/", "terminal/cancel", "nes/", "document/"), CLIENT),
    **dict.fromkeys(("session/update", "session/request_permission", "auth/status_update"), AGENT),
    **dict.fromkeys(("fs/", "terminal/", "elicitation/", "mcp/connect", "mcp/disconnect"), AGENT),
}
_SHARED_METHODS = ("mcp/message", "$/cancel_request")
"""Methods that both sides send."""

# An answer to a client's request differs from one to an agent's request with the same id by fields that only the one
# has, or that the other must have.
_AGENT_ANSWERS = (
    *("stopReason", "messageId", "sessionId", "protocolVersion"),
    *("modes", "models", "configOptions", "sessions", "title", "status"),
)
_MUST_HAVE = {
    "session/request_permission": "outcome",
    "terminal/create": "terminalId",
    "terminal/output": "output",
    "fs/read_text_file": "content",
    "elicitation/create": "action",
}


class Message(RpcMessage, frozen=True, kw_only=True):
    """One message. `version` is the protocol version that the peers agreed on, 0 if that was not seen.

    `id` is the id of a request as it was sent. An answer has the name and the version of the `agent`, if known.
    """

    id: Any = None
    session: str = ""
    conversation: str = ""
    version: int = 0
    agent: tuple[str, str] = ("", "")


class Wire:
    """One connection, read from its beginning."""

    def __init__(self, *, started: int = 0) -> None:
        self._started = started
        self._pending: dict[tuple[str, str], Message] = {}
        self._sessions: dict[str, str] = {}
        self._version = 0
        self._agent = ("", "")

    def split(self, message: Any) -> list[tuple[str, Message]]:
        """Return the conversations that a message concerns: all for the end of the connection."""
        parsed = self.read(message)
        if parsed.kind != "eof":
            return [(parsed.conversation, parsed)]
        return [(other, parsed) for other in self._sessions.values() or [""]]

    def read(self, body: Any) -> Message:
        """Read a line, which may be any JSON value."""
        row = as_dict(body)
        direction = row.get("dir")
        if "msg" not in row or direction not in (CLIENT, AGENT):
            return self._message(row, Message(body=body))
        at = recording_time_ms(row.get("t"), self._started)
        message = Message(body=body, direction=cast(str, direction), at=at)
        return self._message(as_dict(parse_message(row["msg"])), message)

    def _message(self, fields: dict[str, Any], message: Message) -> Message:
        if fields.get("_eof") is True:
            self._pending.clear()
            return structs.replace(message, kind="eof")
        bare = read_bare_event(fields)
        if bare is not None and "method" not in bare and "id" not in bare:
            return self._capabilities(as_dict(bare["result"]), message)
        fields = bare or fields
        if method := as_str(fields.get("method")):
            return self._request(method, fields, message)
        return self._answer(fields, message) if is_response(fields) else message

    def _request(self, method: str, fields: dict[str, Any], message: Message) -> Message:
        params = as_dict(fields.get("params"))
        direction = message.direction or _sender(method)
        key = _id_digest(fields["id"]) if fields.get("id") is not None else ""
        session = identifier(params.get("sessionId"))
        request = structs.replace(
            message,
            kind="request" if key else "notification",
            direction=direction,
            method=method,
            params=params,
            key=f"{direction} {key}" if key else "",
            id=fields.get("id"),
            session=session,
            conversation=self._conversation(session),
            version=self._version,
        )
        if key:
            self._pending[direction, key] = request
        return request

    def _answer(self, fields: dict[str, Any], message: Message) -> Message:
        result, error = fields.get("result", UNSET), fields.get("error", UNSET)
        error = UNSET if error is None else error
        request = self._pop_request(message.direction, _id_digest(fields["id"]), result)
        if request is None:
            return structs.replace(message, kind="answer", result=result, error=error, version=self._version)
        if request.method == "initialize":
            version = as_dict(result).get("protocolVersion")
            self._version = version if type(version) is int else 0
            agent = as_dict(as_dict(result).get("agentInfo"))
            self._agent = (first_text(agent, "title", "name"), as_str(agent.get("version")))
        created = identifier(as_dict(result).get("sessionId"))
        is_fork = request.method == "session/fork"
        session = (created or request.session) if is_fork else request.session or created
        return structs.replace(
            message,
            kind="answer",
            direction=OTHER[request.direction],
            method=request.method,
            params=request.params,
            key=request.key,
            result=result,
            error=error,
            session=session,
            conversation=self._conversation(session),
            version=self._version,
            agent=self._agent,
        )

    def _capabilities(self, result: dict[str, Any], message: Message) -> Message:
        """Return the capabilities of a session as if a new session had them."""
        session = identifier(result.get("sessionId"))
        conversation = self._conversation(session)
        known: dict[str, Any] = {
            "kind": "answer",
            "direction": AGENT,
            "method": "session/new",
            "version": self._version,
        }
        return structs.replace(message, result=result, session=session, conversation=conversation, **known)

    def _pop_request(self, direction: str, key: str, result: Any) -> Message | None:
        """Return the request that is answered. Without a direction, choose by the shape of the answer."""
        candidates = [OTHER[direction]] if direction else [AGENT, CLIENT, ""]
        senders = [sender for sender in candidates if (sender, key) in self._pending]
        if not senders:
            return None
        is_clients = len(senders) > 1 and CLIENT in senders and self._is_by_agent(key, result)
        return self._pending.pop((CLIENT if is_clients else senders[0], key))

    def _is_by_agent(self, key: str, result: Any) -> bool:
        """Return whether an answer fits the client's request better than the agent's with the same id."""
        fields = as_dict(result)
        request = self._pending.get((AGENT, key))
        required = _MUST_HAVE.get(request.method, "") if request else ""
        is_missing = result is not UNSET and bool(required) and required not in fields
        return is_missing or any(name in fields for name in _AGENT_ANSWERS if name != required)

    def _conversation(self, session: str) -> str:
        if not session:
            return ""
        return self._sessions.setdefault(session, session if self._sessions else "")


def _id_digest(raw_id: Any) -> str:
    return codec.digest(codec.encode(raw_id))


def _sender(method: str) -> str:
    prefixes = [prefix for prefix in _SENDERS if method.startswith(prefix)]
    return _SENDERS[max(prefixes, key=len)] if prefixes else ""


def is_protocol_message(message: Message) -> bool:
    """Return whether a message is one of the protocol, by its method or that of the request it answers, or a mark."""
    is_mark = message.kind == "eof" or as_dict(message.body).get("dir") == "mark"
    return is_mark or message.method.startswith((*_SENDERS, *_SHARED_METHODS))


def raw_message(message: Message) -> Event:
    """Return the full message as a raw event."""
    return ev.Raw(format=FORMAT, body=message.body)


def raw_message_if(condition: object, message: Message) -> list[Event]:
    """Return the full message as a raw event if other events do not carry all of it."""
    return raw_if(condition, FORMAT, message.body)
