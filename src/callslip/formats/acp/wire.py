"""JSON-RPC as two peers wrote it: what each message is, who sent it, what it answers, which conversation it is of.

A line is a bare message, or a row `{"t": seconds, "dir": "c2a" | "a2c" | "mark", "msg": message}`. Ids count in each
direction by themselves and may be of any type, so that a request is known by its direction and its id as JSON.

Several conversations may share a wire. The first session id that is named is the first conversation, "", with all that
names none; every other session id is a conversation by itself.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Literal, cast

import msgspec
from msgspec import UNSET

from callslip.formats.json_fields import as_dict, identifier, parsed, recorded_at
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Event

FORMAT = "acp"
CLIENT, AGENT = "c2a", "a2c"
OTHER = {CLIENT: AGENT, AGENT: CLIENT, "": ""}

# Who sends what, by the longest beginning that fits. `mcp/message` and `$/cancel_request` both of them send.
_SENDERS = {
    **dict.fromkeys(("initialize", "authenticate", "logout", "auth/", "session/", "providers/"), CLIENT),
    **dict.fromkeys(("tool_call/", "terminal/cancel", "nes/", "document/"), CLIENT),
    **dict.fromkeys(("session/update", "session/request_permission", "auth/status_update"), AGENT),
    **dict.fromkeys(("fs/", "terminal/", "elicitation/", "mcp/connect", "mcp/disconnect"), AGENT),
}
# How the answer to a client's request is told from one to an agent's request of the same id: by what only the one
# has in it, or by what the other must have.
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
        row = as_dict(body)
        direction = row.get("dir")
        if "msg" not in row or direction not in (CLIENT, AGENT):
            return self._message(row, Message(body=body))
        inner = row["msg"]
        told = Message(body=body, direction=cast(str, direction), at=recorded_at(row.get("t"), self._started))
        return self._message(as_dict(parsed(inner)), told)

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

    def _request(self, method: str, said: dict[str, Any], told: Message) -> Message:
        params = as_dict(said.get("params"))
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
            version = as_dict(result).get("protocolVersion")
            self._version = version if type(version) is int else 0
        made = identifier(as_dict(result).get("sessionId"))
        session = (made or asked.session) if asked.method == "session/fork" else asked.session or made
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
        chosen = CLIENT if len(found) > 1 and CLIENT in found and self._by_agent(key, result) else found[0]
        return self._asked.pop((chosen, key))

    def _by_agent(self, key: str, result: Any) -> bool:
        """Whether an answer is rather one to the client's request than to the agent's, which has the same id."""
        said = as_dict(result)
        asked = self._asked.get((AGENT, key))
        must = _MUST_HAVE.get(asked.method, "") if asked else ""
        lacks = result is not UNSET and bool(must) and must not in said
        return lacks or any(name in said for name in _AGENT_ANSWERS if name != must)

    def _conversation(self, session: str) -> str:
        if not session:
            return ""
        return self._sessions.setdefault(session, session if self._sessions else "")


def _key(given: Any) -> str:
    return codec.digest(codec.encode(given))


def _sender(method: str) -> str:
    fitting = [name for name in _SENDERS if method.startswith(name)]
    return _SENDERS[max(fitting, key=len)] if fitting else ""


def raw(read: Message) -> Event:
    """The message, whole."""
    return ev.Raw(format=FORMAT, body=read.body)


def kept(more: object, read: Message) -> list[Event]:
    """The message, whole, beside what was made of it, if there is more to it."""
    return [raw(read)] if more else []


def leaves(said: dict[str, Any], taken: Set[str]) -> bool:
    """Whether there is more to a message than was taken over. Null says nothing."""
    return not said.keys() <= taken and any(said[name] is not None for name in said.keys() - taken)
