"""A small agent of the Agent Client Protocol, which does what the prompt says.

acp_agent.py SESSION...      the ids that it gives to new sessions, in turn

A prompt is a word and its arguments:
    say TEXT               says it
    call ID                runs a call to its end
    begin ID               begins a call and ends the turn's answer never
    ask ID REQUEST         asks permission; REQUEST is JSON that is merged into the request's params
    recorded DB TEXT       says whether the ledger holds TEXT already
    signals                from now on says which signals come
    exit STATUS | die SIGNAL | quiet | noise BYTES
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


def update(session: str, what: str, **more: Any) -> None:
    send(method="session/update", params={"sessionId": session, "update": {"sessionUpdate": what, **more}})


def say(session: str, text: str) -> None:
    update(session, "agent_message_chunk", content={"type": "text", "text": text})


def heard() -> Any:
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
            self.take(heard())

    def take(self, message: Any) -> None:
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
        update(session, "tool_call", toolCallId="c1", title="told otherwise", status="completed", rawOutput="other")
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
            heard()

    def do_ask(self, session: str, rest: str) -> None:
        call, _, more = rest.partition(" ")
        self.requests += 1
        about = {"sessionId": session, "toolCall": {"toolCallId": call}, "options": OPTIONS}
        update(
            session,
            "tool_call",
            toolCallId=call,
            title="Do it",
            status="pending",
            _meta={"claudeCode": {"toolName": "mcp__x__Do"}},
        )
        send(id=self.requests, method="session/request_permission", params=about | json.loads(more or "{}"))
        while "method" in (answer := heard()):
            self.take(answer)
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
