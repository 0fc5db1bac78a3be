"""Take permission requests out of the agent's output: those that a rule answers, and those held for the ledger.

Only complete lines are inspected; a line beyond the limit passes uninspected, as does everything that is not a valid
request. Updates of calls are tracked, because a request may name only the call whose tool and input came earlier.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from callslip.formats.acp.permission import read_question
from callslip.formats.acp.update import ENDING, declared_fields, status_of
from callslip.formats.acp.wire import Message
from callslip.formats.json_fields import as_dict, identifier
from callslip.model import codec
from callslip.rules.approval_options import choose_option, option_ids
from callslip.rules.policy import Policy, permission_query
from callslip.rules.protected_calls import ProtectedPlaces, find_protected
from callslip.wrap.held_requests import HeldRequest

MAX_LINE_BYTES = 16 * 2**20
MAX_TRACKED_CALLS = 256
REQUEST_METHOD = "session/request_permission"
MARKERS = (b"request_permission", b"tool_call", b"\\u00")
"""Only lines with one of these are parsed. The last one is an escape, which may hide one of the words."""


class PolicyAnswer(NamedTuple):
    """The line that answers a request, and the reason that the rule gives."""

    line: bytes
    reason: str


class PermissionFilter:
    """Splits the output of one agent by a policy. With `holds`, requests that no rule decides are held."""

    def __init__(self, policy: Policy, *, holds: bool = False, places: ProtectedPlaces | None = None) -> None:
        self.holds = holds
        self._policy = policy
        self._places = places or ProtectedPlaces()
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._is_too_long = False
        self._calls: dict[tuple[str, str], dict[str, Any]] = {}

    def split(self, data: bytes) -> Iterator[tuple[bytes, PolicyAnswer | HeldRequest | None]]:
        """Yield in order what passes, with None, and each line that does not, with what happens to it."""
        passing: list[bytes] = []
        for line, is_complete in self._lines(data):
            action = self._inspect(line) if is_complete else None
            if action is None:
                passing.append(line)
                continue
            if passing:
                yield b"".join(passing), None
                passing.clear()
            yield line, action
        if passing:
            yield b"".join(passing), None

    def flush(self) -> Iterator[bytes]:
        """Yield the partial line at the end of the output."""
        if self._partial:
            yield self._take_partial()

    def _lines(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield lines and whether each is complete. A line that is too long is yielded in parts."""
        *ends, rest = data.split(b"\n")
        for end in ends:
            is_complete, self._is_too_long = not self._is_too_long, False
            yield self._take_partial() + end + b"\n", is_complete
        if self._is_too_long and rest:
            yield rest, False
        elif rest:
            self._partial.append(rest)
            self._partial_bytes += len(rest)
        if self._partial_bytes > MAX_LINE_BYTES:
            self._is_too_long = True
            self._calls.clear()  # The line may be an update of any call.
            yield self._take_partial(), False

    def _take_partial(self) -> bytes:
        partial = b"".join(self._partial)
        self._partial.clear()
        self._partial_bytes = 0
        return partial

    def _inspect(self, line: bytes) -> PolicyAnswer | HeldRequest | None:
        """Return what happens to a line; None if it passes."""
        if not any(marker in line for marker in MARKERS):
            return None
        try:
            message = as_dict(codec.parse_json(line, max_bytes=2 * MAX_LINE_BYTES))
            params = as_dict(message.get("params"))
            if message.get("method") == "session/update":
                self._track(params)
            return self._decide(message.get("id"), params) if message.get("method") == REQUEST_METHOD else None
        except Exception:  # Not JSON, or a bug, which must not stop the agent's output: the client decides.
            self._calls.clear()  # The line may be an update of any call.
            return None

    def _track(self, params: dict[str, Any]) -> None:
        update = as_dict(params.get("update"))
        call = (identifier(params.get("sessionId")), identifier(update.get("toolCallId")))
        if update.get("sessionUpdate") == "tool_call" or status_of(update) in ENDING:
            self._calls.pop(call, None)
        if call[1] and status_of(update) not in ENDING:
            self._calls[call] = {**self._calls.pop(call, {}), **declared_fields(update)}
        if len(self._calls) > MAX_TRACKED_CALLS:
            del self._calls[next(iter(self._calls))]

    def _decide(self, request_id: Any, params: dict[str, Any]) -> PolicyAnswer | HeldRequest | None:
        request = read_question(Message(body=None, method=REQUEST_METHOD, params=params, key=REQUEST_METHOD))
        if type(request_id) not in (int, str) or request is None:
            return None
        call = (identifier(params.get("sessionId")), identifier(request.update.get("toolCallId")))
        fields = {**declared_fields(request.new_call), **self._calls.get(call, {}), **declared_fields(request.update)}
        query = permission_query(fields)
        found = self._policy.find_rule(query)
        rule = found.rule
        if rule is not None and rule.action == "allow" and find_protected(fields, query, self._places):
            rule = None  # Such a call always needs a person.
        option = ""
        if rule is not None and rule.action != "ask":
            durations = ("always", "once") if rule.always else ("once",)
            option = choose_option(request.options, rule.action == "allow", durations)
        if rule is None or not option:
            can_be_answered = self.holds and option_ids(request.options)
            return HeldRequest(codec.encode(request_id), found.is_about) if can_be_answered else None
        result = {"outcome": {"outcome": "selected", "optionId": option}}
        return PolicyAnswer(codec.encode({"jsonrpc": "2.0", "id": request_id, "result": result}) + b"\n", rule.reason)
