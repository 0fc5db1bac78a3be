"""Where permission requests are kept from the client: the agent's lines pass here, those with another answer stay.

A request that a rule decides is answered at once. Others pass, or are held for whoever answers in the ledger.

A line is held until it is whole, up to a limit; a longer one passes unread. What is not understood passes. Calls are
followed by their updates, since a request may name only the call, and its tool or input was told before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from callslip.formats.acp.permission import question
from callslip.formats.acp.update import ENDING, status_of, told
from callslip.formats.acp.wire import Message
from callslip.formats.json_fields import as_dict, identifier
from callslip.model import codec
from callslip.wrap.held_requests import HeldRequest
from callslip.wrap.policy import Policy, Rule, permission_query

MAX_LINE_BYTES = 16 * 2**20
FOLLOWED = 256
REQUEST = "session/request_permission"
MARKS = (b"request_permission", b"tool_call", b"\\u00")
"""What a line must contain to be looked into: one of these words, or letters written so that it may be there unseen."""

OPTIONS: dict[tuple[str, bool], tuple[str, ...]] = {
    ("allow", False): ("allow_once",),
    ("allow", True): ("allow_always", "allow_once"),
    ("deny", False): ("reject_once",),
    ("deny", True): ("reject_always", "reject_once"),
}
"""Kinds of options, the best first, by what a rule says and whether the agent may remember it."""


class Answer(NamedTuple):
    """A line for the agent, and the same with its reason for the recorder."""

    line: bytes
    record: bytes


class PermissionFilter:
    """Sorts what one agent says by one policy. If it `holds`, what no rule decides is not the client's either."""

    def __init__(self, policy: Policy, *, holds: bool = False) -> None:
        self.holds = holds
        self._policy = policy
        self._held: list[bytes] = []
        self._size = 0
        self._long = False
        self._calls: dict[tuple[str, str], dict[str, Any]] = {}

    def sort(self, data: bytes) -> Iterator[tuple[bytes, Answer | HeldRequest | None]]:
        """What is to be passed on, and each line that is not, with what becomes of it; in the order they came in."""
        passing: list[bytes] = []
        for line, whole in self._lines(data):
            answer = self._judged(line) if whole else None
            if answer is None:
                passing.append(line)
                continue
            if passing:
                yield b"".join(passing), None
                passing.clear()
            yield line, answer
        if passing:
            yield b"".join(passing), None

    def rest(self) -> Iterator[bytes]:
        """What was held when the agent fell silent."""
        if self._held:
            yield self._take()

    def _lines(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Lines, and whether each is a whole one; of one that is too long there are only parts."""
        *ends, rest = data.split(b"\n")
        for end in ends:
            whole, self._long = not self._long, False
            yield self._take() + end + b"\n", whole
        if self._long and rest:
            yield rest, False
        elif rest:
            self._held.append(rest)
            self._size += len(rest)
        if self._size > MAX_LINE_BYTES:
            self._long = True
            self._calls.clear()  # It may have told anything of any call.
            yield self._take(), False

    def _take(self) -> bytes:
        held = b"".join(self._held)
        self._held.clear()
        self._size = 0
        return held

    def _judged(self, line: bytes) -> Answer | HeldRequest | None:
        try:
            return self._look(line)
        except Exception:  # Not JSON, or a defect of ours, which must not silence the agent: the client is asked.
            self._calls.clear()  # It may have told anything of any call.
            return None

    def _look(self, line: bytes) -> Answer | HeldRequest | None:
        """What becomes of a line that is a request, unless it is the client's."""
        if not any(mark in line for mark in MARKS):
            return None
        message = as_dict(codec.parse_json(line, max_bytes=2 * MAX_LINE_BYTES))
        params = as_dict(message.get("params"))
        if message.get("method") == "session/update":
            self._follow(params)
        return self._answer(message.get("id"), params) if message.get("method") == REQUEST else None

    def _follow(self, params: dict[str, Any]) -> None:
        update = as_dict(params.get("update"))
        call = (identifier(params.get("sessionId")), identifier(update.get("toolCallId")))
        if update.get("sessionUpdate") == "tool_call" or status_of(update) in ENDING:
            self._calls.pop(call, None)
        if call[1] and status_of(update) not in ENDING:
            self._calls[call] = {**self._calls.pop(call, {}), **told(update)}
        if len(self._calls) > FOLLOWED:
            del self._calls[next(iter(self._calls))]

    def _answer(self, identity: Any, params: dict[str, Any]) -> Answer | HeldRequest | None:
        asked = question(Message(body=None, method=REQUEST, params=params, key=REQUEST))
        if type(identity) not in (int, str) or asked is None:
            return None
        known = self._calls.get((identifier(params.get("sessionId")), identifier(asked.update.get("toolCallId"))), {})
        rule = self._policy.decide(permission_query({**told(asked.fresh), **known, **told(asked.update)}))
        option = _option(asked.options, rule) if rule is not None else ""
        if rule is None or not option:
            return HeldRequest(codec.encode(identity)) if self.holds and _can_be_answered(asked.options) else None
        outcome = {"outcome": "selected", "optionId": option}
        message = {"jsonrpc": "2.0", "id": identity, "result": {"outcome": outcome}}
        record = {"msg": message, "reason": rule.reason}
        return Answer(codec.encode(message) + b"\n", codec.encode(record) + b"\n")


def _can_be_answered(options: list[Any]) -> bool:
    return any(isinstance(as_dict(option).get("optionId"), str) for option in options)


def _option(options: list[Any], rule: Rule) -> str:
    """The agent's own option that says what the rule says; "" if it offers none, and the client is asked."""
    wanted = OPTIONS.get((rule.action, rule.always), ())
    offered = [as_dict(option) for option in options]
    found = (option.get("optionId") for kind in wanted for option in offered if option.get("kind") == kind)
    return next((option for option in found if isinstance(option, str) and option), "")
