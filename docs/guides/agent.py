"""A very small agent of the Agent Client Protocol, to try `callslip wrap` on. It lists files, and removes some.

An editor starts it and talks to it on stdin and stdout, one JSON message on each line. There is no model in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

OPTIONS = [
    {"optionId": "yes", "name": "Yes, do that", "kind": "allow_once"},
    {"optionId": "no", "name": "No, leave it", "kind": "reject_once"},
]


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def update(what: str, **more: Any) -> None:
    send(method="session/update", params={"sessionId": "s1", "update": {"sessionUpdate": what, **more}})


def receive() -> dict[str, Any]:
    """Read the next message of the editor, or exit at the end of its input."""
    line = sys.stdin.readline()
    return json.loads(line) if line else sys.exit()


def may(call: dict[str, Any]) -> bool:
    """Ask for permission, and wait for the answer."""
    params = {"sessionId": "s1", "toolCall": call, "options": OPTIONS}
    send(id="may-i", method="session/request_permission", params=params)
    while (answer := receive()).get("id") != "may-i":
        pass
    return answer["result"]["outcome"].get("optionId") == "yes"


def run(number: int, command: str, kind: str) -> str:
    """Announce a shell command, ask for permission if it deletes, run it, and report the result."""
    call = {"toolCallId": f"call_{number}", "title": command, "kind": kind, "rawInput": {"command": command}}
    update("tool_call", status="pending", **call)
    if kind == "delete" and not may(call):
        update("tool_call_update", toolCallId=call["toolCallId"], status="failed")
        return "I was not allowed to."
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    text = [{"type": "content", "content": {"type": "text", "text": done.stdout + done.stderr}}]
    status = "failed" if done.returncode else "completed"
    update("tool_call_update", toolCallId=call["toolCallId"], status=status, content=text)
    return "Done." if status == "completed" else "That did not work."


def answer(message: dict[str, Any]) -> dict[str, Any]:
    if message["method"] == "initialize":
        return {"protocolVersion": 1, "agentInfo": {"name": "small", "version": "1"}}
    if message["method"] == "session/new":
        return {"sessionId": "s1"}
    run(1, "ls -1 notes", "read")
    run(2, "ls -1 notes", "read")
    text = run(3, "rm -rf drafts", "delete") if "clean" in message["params"]["prompt"][0]["text"] else "Two files."
    update("agent_message_chunk", content={"type": "text", "text": text})
    return {"stopReason": "end_turn"}


while True:
    request = receive()
    if "id" in request and "method" in request:
        send(id=request["id"], result=answer(request))
