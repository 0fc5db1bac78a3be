"""Read events of the protocol without JSON-RPC: as a library passes them to a client, or as the client keeps them.

`{"sessionId": ..., "update": {...}}` is the argument of such a library, an update alone is the same without a session.
The kind of an event is in `sessionUpdate` or `type`; names of fields may be in snake case, and content may be a text.
"""

from __future__ import annotations

from typing import Any

from callslip.formats.json_fields import as_dict, as_list, as_str

Json = dict[str, Any]

UPDATES = {
    *("user_message_chunk", "agent_message_chunk", "agent_thought_chunk", "message_end"),
    *("tool_call", "tool_call_update", "plan", "current_mode_update", "available_commands_update"),
}
TEXTS = {"user_message": "user_message_chunk", "user_message_chunk": "user_message_chunk"}
CHUNKS = {"user_message_chunk", "agent_message_chunk", "agent_thought_chunk"}
NAMES = {
    "session_id": "sessionId",
    "tool_call_id": "toolCallId",
    "tool_name": "toolName",
    "raw_input": "rawInput",
    "raw_output": "rawOutput",
    "message_id": "messageId",
    "current_mode_id": "currentModeId",
    "available_commands": "availableCommands",
    "request_id": "requestId",
    "option_id": "optionId",
    "selected_option_id": "optionId",
}


def read_bare_event(fields: Json) -> Json | None:
    """Return an event as a JSON-RPC message; None if it is something else.

    The capabilities of a session are returned as a result without an id: no request asked for them.
    """
    if "jsonrpc" in fields or "method" in fields:
        return None
    if "sessionUpdate" in as_dict(fields.get("update")):
        return _update({**as_dict(fields["update"]), "sessionId": fields.get("sessionId", fields.get("session_id"))})
    kind = fields.get("sessionUpdate", fields.get("type"))
    if not isinstance(kind, str):
        return None
    event = {NAMES.get(name, name): value for name, value in fields.items() if name not in ("type", "sessionUpdate")}
    if kind in UPDATES or kind in TEXTS or "sessionUpdate" in fields:
        return _update({"sessionUpdate": TEXTS.get(kind, kind), **event})
    return _READERS[kind](event) if kind in _READERS else None


def _update(update: Json) -> Json:
    session, content = update.pop("sessionId", None), update.get("content")
    if isinstance(content, str):
        text = {"type": "text", "text": content}
        is_chunk = update["sessionUpdate"] in CHUNKS
        update["content"] = text if is_chunk else [{"type": "content", "content": text}]
    return {"method": "session/update", "params": {**_session(session), "update": update}}


def _permission_request(event: Json) -> Json | None:
    """Return a request. Without the id of a call, the request is about a call of its own."""
    if event.get("requestId") is None:
        return None
    names = ("toolCallId", "toolName", "title", "kind", "rawInput", "content", "locations")
    call = {name: event[name] for name in names if name in event}
    params = {**_session(event.get("sessionId")), "toolCall": call, "options": as_list(event.get("options"))}
    if as_str(event.get("description")):
        params["description"] = event["description"]
    return {"id": event["requestId"], "method": "session/request_permission", "params": params}


def _permission_response(event: Json) -> Json | None:
    if event.get("requestId") is None:
        return None
    option = event.get("optionId")
    outcome = {"outcome": "cancelled"} if option is None else {"outcome": "selected", "optionId": option}
    return {"id": event["requestId"], "result": {"outcome": outcome}}


def _capabilities(event: Json) -> Json:
    return {"result": event}


def _session(session: Any) -> Json:
    return {} if session is None else {"sessionId": session}


_READERS = {
    "request_permission": _permission_request,
    "permission_response": _permission_response,
    "session_capabilities": _capabilities,
}
