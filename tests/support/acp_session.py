"""Build messages between an ACP client and an agent, and decode them into a ledger in memory."""

from __future__ import annotations

import json
from typing import Any

from callslip.formats.acp.decode import AcpDecoder
from tests.support.decoder_harness import DecoderHarness
from tests.support.paths import TESTS
from tests.support.strategies import canonical_json

FOLDER = TESTS / "captures"
CAPTURES = {path.stem: path for path in sorted(FOLDER.glob("*.jsonl"))}


def rows(name: str) -> list[Any]:
    """Return the rows of a capture."""
    return [json.loads(line) for line in CAPTURES[name].read_text("utf-8").splitlines()]


def live_rows(name: str) -> list[Any]:
    """Return the rows of a capture before the session is loaded again."""
    captured = rows(name)
    marks = [number for number, row in enumerate(captured) if row["dir"] == "mark"]
    return captured[: marks[0]] if marks else captured


class AcpHarness(DecoderHarness):
    """The ACP decoder with a ledger in memory."""

    def __init__(self, **options: Any) -> None:
        super().__init__(AcpDecoder(**options))


def normalized_entries(harness: AcpHarness) -> list[Any]:
    """Return the entries as JSON without times, with numbers in place of generated ids."""
    text = canonical_json(harness.entries()).decode()
    for number, name in enumerate(harness.ledger.known_ids.calls + harness.ledger.known_ids.approvals):
        text = text.replace(name, f"#{number}")
    entries = json.loads(text)
    for entry in entries:
        for field in ("at", "startedAt", "endedAt", "responseTime"):
            entry.pop(field, None)
    return entries


# Messages


def rpc_request(method: str, key: Any, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "method": method, "params": {"sessionId": "s1", **params}}


def rpc_response(key: Any, **result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "result": result}


def rpc_error(key: Any, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "error": {"code": -1, "message": message}}


def c2a(message: Any) -> dict[str, Any]:
    return {"t": 1, "dir": "c2a", "msg": message}


def a2c(message: Any) -> dict[str, Any]:
    return {"t": 1, "dir": "a2c", "msg": message}


def update(update_kind: str, session: str = "s1", /, **fields: Any) -> dict[str, Any]:
    params = {"sessionId": session, "update": {"sessionUpdate": update_kind, **fields}}
    return a2c({"jsonrpc": "2.0", "method": "session/update", "params": params})


def agent_text(text: str, **fields: Any) -> dict[str, Any]:
    return update("agent_message_chunk", content={"type": "text", "text": text}, **fields)


def prompt(key: Any = 1, text: str = "go") -> dict[str, Any]:
    return c2a(rpc_request("session/prompt", key, prompt=[{"type": "text", "text": text}]))


def prompt_response(key: Any = 1, reason: str = "end_turn") -> dict[str, Any]:
    return a2c(rpc_response(key, stopReason=reason))


def call(status: str | None = "pending", name: str = "c1", **fields: Any) -> dict[str, Any]:
    values = {} if status is None else {"status": status}
    return update("tool_call", toolCallId=name, **{"title": "T", "kind": "execute", **values, **fields})


def call_update(status: str | None = None, name: str = "c1", **fields: Any) -> dict[str, Any]:
    values = {} if status is None else {"status": status}
    return update("tool_call_update", toolCallId=name, **values, **fields)


OPTIONS = [
    {"optionId": "yes", "name": "Go ahead", "kind": "allow_once"},
    {"optionId": "ever", "name": "Always", "kind": "allow_always"},
    {"optionId": "no", "name": "Rather not", "kind": "reject_once"},
    {"optionId": "odd", "name": "Hm", "kind": "ponder"},
]


def request_permission(key: Any = 0, name: str = "c1", **fields: Any) -> dict[str, Any]:
    tool_call = {"toolCallId": name, **fields}
    return a2c(rpc_request("session/request_permission", key, toolCall=tool_call, options=OPTIONS))


def permission_answer(option: str, key: Any = 0) -> dict[str, Any]:
    return c2a(rpc_response(key, outcome={"outcome": "selected", "optionId": option}))
