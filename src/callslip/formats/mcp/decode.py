"""Read both directions of one connection: each message by its entry of a table and its sender.

An answer of the client is never the result of a tool, even with the same id. A message without an entry is stored raw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

from callslip.formats.base import drafts_of
from callslip.formats.json_fields import as_dict
from callslip.formats.mcp.calls import Calls
from callslip.formats.mcp.wire import CALL, CLIENT, OWN_META, SERVER, Message, ParsedLine, Wire, raw_message_if
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Draft, Event

Handler: TypeAlias = Callable[[Calls, Message], list[Event] | None]
SERVER_INFO = OWN_META + "serverInfo"
VERSION = OWN_META + "protocolVersion"


class McpDecoder:
    """One connection, from its first message on."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._wire = Wire(started=started)
        self._calls = Calls()
        self._server: Any = None

    def feed(self, message: Any) -> list[Draft]:
        line = message if isinstance(message, ParsedLine) else self._wire.read(message)
        return [draft for parsed in line.messages for draft in self._drafts(parsed)]

    def close(self, reason: str) -> list[Draft]:
        """End the tasks whose results were not fetched. The ledger ends other open calls with the connection."""
        return drafts_of(self._calls.close())

    def holds_input(self) -> bool:
        return self._calls.hold_results()

    def _drafts(self, message: Message) -> list[Draft]:
        if not self._calls.connection:
            self._calls.connection = codec.digest(codec.encode(codec.to_json(message.body)))[:8]
        handler = self._HANDLERS.get((message.kind, message.direction, message.method))
        events = handler(self._calls, message) if handler else []
        events = [] if events is None else events or raw_message_if(True, message)
        return drafts_of([*self._server_info(message), *events], message.at)

    def _server_info(self, message: Message) -> list[Event]:
        """Return the name of the server and the protocol version, once."""
        if message.kind != "answer" or message.direction != SERVER:
            return []
        result = as_dict(message.result)
        server = result.get("serverInfo") if message.method == "initialize" else None
        server = as_dict(server or as_dict(result.get("_meta")).get(SERVER_INFO))
        title = server.get("title") or server.get("name")
        if not isinstance(title, str) or not title or server == self._server:
            return []
        self._server = server
        version = result.get("protocolVersion") or as_dict(message.params.get("_meta")).get(VERSION)
        return [ev.SessionInfo(title=title[:200], options={"protocolVersion": version, "serverInfo": server})]

    _HANDLERS: ClassVar[dict[tuple[str, str, str], Handler]] = {
        ("request", CLIENT, CALL): Calls.open,
        ("answer", SERVER, CALL): Calls.answer,
        ("notification", SERVER, "notifications/progress"): Calls.progress,
        ("notification", CLIENT, "notifications/cancelled"): Calls.cancel,
        ("answer", SERVER, "tools/list"): Calls.read_titles,
        ("request", CLIENT, "tasks/get"): Calls.poll_task,
        ("request", CLIENT, "tasks/result"): Calls.poll_task,
        ("answer", SERVER, "tasks/get"): Calls.update_task,
        ("answer", SERVER, "tasks/result"): Calls.task_result,
        ("answer", SERVER, "tasks/cancel"): Calls.cancel_task,
        ("notification", SERVER, "notifications/tasks/status"): Calls.update_task,
        ("notification", SERVER, "notifications/tasks"): Calls.update_task,
    }
