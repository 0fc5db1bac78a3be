"""Run an agent of the Agent Client Protocol that requests several permissions at once and keeps reading.

acp_asker.py SESSION...      the ids of new sessions, in order

A prompt is a list of requests, `CALL=ID` each; a single `=` before them leaves out the `reject` options. The agent
sends each answer as `[CALL OPTION]` and ends the turn when all are answered.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

OPTIONS = [
    {"optionId": "always", "name": "Always", "kind": "allow_always"},
    {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
    {"optionId": "no", "name": "No", "kind": "reject_once"},
]


def send(**message: Any) -> None:
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()


def update(session: str, update_type: str, **more: Any) -> None:
    send(method="session/update", params={"sessionId": session, "update": {"sessionUpdate": update_type, **more}})


class Turn:
    """A prompt that is not answered yet, with its pending requests: the call of each by its id."""

    def __init__(self, session: str, number: Any) -> None:
        self.session, self.number = session, number
        self.waiting: dict[str, str] = {}
        self.reason = "end_turn"


class Agent:
    def __init__(self, sessions: list[str]) -> None:
        self.sessions = sessions
        self.turns: list[Turn] = []

    def run(self) -> None:
        for line in sys.stdin.buffer:
            message = json.loads(line)
            method = message.get("method")
            if method is None:
                self.handle_answer(message)
            else:
                getattr(self, method.replace("/", "_"))(message.get("params") or {}, message.get("id"))

    def initialize(self, params: Any, number: Any) -> None:
        send(id=number, result={"protocolVersion": 1})

    def ping(self, params: Any, number: Any) -> None:
        send(id=number, result={"pid": os.getpid()})

    def noise(self, params: Any, number: Any) -> None:
        pass

    def session_new(self, params: Any, number: Any) -> None:
        send(id=number, result={"sessionId": self.sessions.pop(0)})

    def session_cancel(self, params: Any, number: Any) -> None:
        for turn in self.turns:
            if turn.session == params["sessionId"]:
                turn.reason = "cancelled"

    def session_prompt(self, params: Any, number: Any) -> None:
        turn = Turn(params["sessionId"], number)
        self.turns.append(turn)
        options = OPTIONS
        for word in params["prompt"][0]["text"].split():
            call, _, request_id = word.partition("=")
            if not call:
                options = OPTIONS[:2]
                continue
            turn.waiting[request_id] = call
            call_fields = {"toolCallId": call, "title": f"Do {call}", "rawInput": {"n": 1}}
            params = {"sessionId": turn.session, "toolCall": call_fields, "options": options}
            send(id=request_id, method="session/request_permission", params=params)

    def handle_answer(self, message: Any) -> None:
        for turn in [turn for turn in self.turns if message["id"] in turn.waiting]:
            call = turn.waiting.pop(message["id"])
            outcome = message.get("result", {}).get("outcome", {})
            option = outcome.get("optionId") or outcome.get("outcome")
            text = f"[{call} {option}]"
            update(turn.session, "agent_message_chunk", content={"type": "text", "text": text})
            allowed = option in ("yes", "always")
            if allowed:
                update(turn.session, "tool_call_update", toolCallId=call, status="in_progress")
            update(turn.session, "tool_call_update", toolCallId=call, status="completed" if allowed else "failed")
            if not turn.waiting:
                self.turns.remove(turn)
                send(id=turn.number, result={"stopReason": turn.reason})
            return
        raise AssertionError(f"no request for this answer: {message}")


if __name__ == "__main__":
    Agent(sys.argv[1:]).run()
