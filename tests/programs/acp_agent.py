"""Run a small agent of the Agent Client Protocol that executes the commands in its prompts.

acp_agent.py SESSION...      the ids of new sessions, in order

A prompt is a command and its arguments:
    say TEXT               send the text
    call ID                run a call to its end
    begin ID               start a call and never end the turn
    ask ID REQUEST         request permission; REQUEST is JSON that is merged into the params
    recorded DB TEXT       send how many events of the ledger contain TEXT
    signals                from now on send the names of received signals
    exit STATUS | die SIGNAL | noise BYTES | deaf PATH | leave PATH
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
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


def say(session: str, text: str) -> None:
    update(session, "agent_message_chunk", content={"type": "text", "text": text})


def receive() -> Any:
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit(0)
    return json.loads(line)


class Agent:
    def __init__(self, sessions: list[str]) -> None:
        self.sessions = sessions
        self.requests = 0

    def run(self) -> None:
        while True:
            self.handle(receive())

    def handle(self, message: Any) -> None:
        answer = getattr(self, str(message.get("method")).replace("/", "_"), None)
        if answer is not None:
            result = answer(message.get("params") or {})
            if "id" in message and result is not None:
                send(id=message["id"], result=result)

    def initialize(self, params: Any) -> Any:
        return {"protocolVersion": 1, "agentInfo": {"name": "small", "version": "1"}}

    def session_new(self, params: Any) -> Any:
        return {"sessionId": self.sessions.pop(0)}

    def session_load(self, params: Any) -> Any:
        session = params["sessionId"]
        update(session, "user_message_chunk", content={"type": "text", "text": "call c1"})
        update(session, "tool_call", toolCallId="c1", title="Other title", status="completed", rawOutput="other")
        return {}

    def session_prompt(self, params: Any) -> Any:
        word, _, rest = params["prompt"][0]["text"].partition(" ")
        return getattr(self, f"do_{word}")(params["sessionId"], rest) or {"stopReason": "end_turn"}

    def do_say(self, session: str, text: str) -> None:
        say(session, text)

    def do_call(self, session: str, call: str) -> None:
        update(session, "tool_call", toolCallId=call, title="List", kind="execute", status="in_progress")
        update(session, "tool_call_update", toolCallId=call, status="completed", rawOutput="a.txt")

    def do_begin(self, session: str, call: str) -> None:
        update(session, "tool_call", toolCallId=call, title=str(os.getpid()), kind="execute", status="in_progress")
        while True:
            receive()

    def do_ask(self, session: str, rest: str) -> None:
        call, _, more = rest.partition(" ")
        self.requests += 1
        params = {"sessionId": session, "toolCall": {"toolCallId": call}, "options": OPTIONS}
        update(
            session,
            "tool_call",
            toolCallId=call,
            title="Do it",
            status="pending",
            _meta={"claudeCode": {"toolName": "mcp__x__Do"}},
        )
        send(id=self.requests, method="session/request_permission", params=params | json.loads(more or "{}"))
        while "method" in (answer := receive()):
            self.handle(answer)
        assert answer["id"] == self.requests, answer
        chosen = answer.get("result", {}).get("outcome", {}).get("optionId", "none")
        say(session, f"answer {chosen}")
        status = "completed" if chosen in ("yes", "always") else "failed"
        update(session, "tool_call_update", toolCallId=call, status=status)

    def do_recorded(self, session: str, rest: str) -> None:
        import apsw

        db, _, text = rest.partition(" ")
        rows = apsw.Connection(db).execute("SELECT count(*) FROM events WHERE instr(body, ?)", (text,)).fetchall()
        say(session, f"recorded {rows[0][0]}")

    def do_signals(self, session: str, rest: str) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: say(session, signal.Signals(number).name))

    def do_exit(self, session: str, status: str) -> None:
        sys.stderr.buffer.write(b"last \xff words\r\n")
        sys.stderr.flush()
        os._exit(int(status))

    def do_die(self, session: str, number: str) -> None:
        os.kill(os.getpid(), int(number))
        time.sleep(10)

    def do_noise(self, session: str, size: str) -> None:
        sys.stdout.buffer.write(b"n" * int(size) + b"\n")

    def do_deaf(self, session: str, rest: str) -> None:
        """Close stdin and continue until a file exists."""
        os.close(0)
        while not os.path.exists(rest):
            time.sleep(0.02)
        os._exit(7)

    def do_leave(self, session: str, path: str) -> None:
        """End, but leave a child that keeps the output open and writes its process id to a file."""
        if child := os.fork():
            with open(path, "w") as file:
                file.write(str(child))
            os._exit(9)
        time.sleep(120)
        os._exit(0)


if __name__ == "__main__":
    Agent(sys.argv[1:]).run()
