"""Reads both directions of one connection: each message by its own row of a table, by who sent it.

What a client answers to the server is never a tool's result, whatever its id. What has no row is kept as `raw`, whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from msgspec import structs

from callslip.formats.json_fields import as_dict
from callslip.formats.mcp.calls import Calls
from callslip.formats.mcp.wire import CALL, CLIENT, OWN_META, SERVER, Message, ParsedLine, Wire, raw
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Draft, Event

Rule: TypeAlias = Callable[[Calls, Message], list[Event] | None]
SERVER_INFO = OWN_META + "serverInfo"
VERSION = OWN_META + "protocolVersion"


class McpDecoder:
    """One connection, from its first message on."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._wire = Wire(started=started)
        self._calls = Calls()
        self._told: Any = None

    def feed(self, message: Any) -> list[Draft]:
        heard = message if isinstance(message, ParsedLine) else self._wire.read(message)
        return [draft for read in heard.messages for draft in self._drafts(read)]

    def close(self, reason: str) -> list[Draft]:
        """The line ended. What is open then, the ledger ends with the connection."""
        return [Draft(event) for event in self._calls.close()]

    def _drafts(self, read: Message) -> list[Draft]:
        self._calls.line = self._calls.line or codec.digest(codec.encode(codec.to_json(read.body)))[:8]
        rule = self._RULES.get((read.kind, read.direction, read.method))
        made = rule(self._calls, read) if rule else []
        events = [] if made is None else made or [raw(read)]
        return [Draft(structs.replace(event, at=read.at)) for event in [*self._facts(read), *events]]

    def _facts(self, read: Message) -> list[Event]:
        """Who the server says that it is, and by which version they speak: told once."""
        if read.kind != "answer" or read.direction != SERVER:
            return []
        result = as_dict(read.result)
        server = result.get("serverInfo") if read.method == "initialize" else None
        server = as_dict(server or as_dict(result.get("_meta")).get(SERVER_INFO))
        title = server.get("title") or server.get("name")
        if not isinstance(title, str) or not title or server == self._told:
            return []
        self._told = server
        version = result.get("protocolVersion") or as_dict(read.params.get("_meta")).get(VERSION)
        return [ev.SessionInfo(title=title[:200], options={"protocolVersion": version, "serverInfo": server})]

    _RULES: ClassVar[dict[tuple[str, str, str], Rule]] = {
        ("request", CLIENT, CALL): Calls.opened,
        ("answer", SERVER, CALL): Calls.answered,
        ("notification", SERVER, "notifications/progress"): Calls.progressed,
        ("notification", CLIENT, "notifications/cancelled"): Calls.cancelled,
        ("answer", SERVER, "tools/list"): Calls.listed,
        ("request", CLIENT, "tasks/get"): Calls.polled,
        ("request", CLIENT, "tasks/result"): Calls.polled,
        ("answer", SERVER, "tasks/get"): Calls.task_told,
        ("answer", SERVER, "tasks/result"): Calls.fetched,
        ("answer", SERVER, "tasks/cancel"): Calls.task_cancelled,
        ("notification", SERVER, "notifications/tasks/status"): Calls.task_told,
        ("notification", SERVER, "notifications/tasks"): Calls.task_told,
    }
