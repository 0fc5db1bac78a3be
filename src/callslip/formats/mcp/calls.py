"""The calls of one connection: find the call of a message and turn the message into events.

Each request is a call, even if it reuses an id: the ledger identifies it by a namespace of its own (`mcp.` and a digest
of the connection), so two connections that write into one session never share a call. In the namespace `mcp` an id
names the newest call with it.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.call_tracker import ENDED, CallTracker, TrackedCall
from callslip.formats.json_fields import as_dict, as_list, as_str, has_other_content
from callslip.formats.mcp import results, tasks
from callslip.formats.mcp.wire import FORMAT, Message, has_other_meta, key_of, needs_raw, raw_message_if
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, CallEnd, Event

CANCELLED = "the client cancelled it"
PARAMS = {"name", "arguments", "task"}
PROGRESS = {"progressToken", "progress", "total", "message"}


class McpCall(TrackedCall, kw_only=True):
    """A call. `pending_request` is the id of its unanswered request, `request_digest` identifies name and arguments.

    `task_progress` is the last state of its task; `task_end` is its end if the client does not fetch the result.
    """

    request_digest: str = ""
    task_progress: Any = None
    task_end: Event | None = None


class Calls:
    """All calls of one connection, which `connection` identifies."""

    def __init__(self) -> None:
        self.connection = ""
        self._calls: CallTracker[str, McpCall] = CallTracker(McpCall)
        self._by_token: dict[str, McpCall] = {}
        self._by_task: dict[str, McpCall] = {}
        self._awaiting_input: dict[str, list[McpCall]] = {}
        self._titles: dict[str, str] = {}

    def read_titles(self, message: Message) -> list[Event]:
        """Remember the titles of the server's tools. The list itself is stored raw."""
        for tool in map(as_dict, as_list(as_dict(message.result).get("tools"))):
            title = tool.get("title") or as_dict(tool.get("annotations")).get("title")
            if isinstance(tool.get("name"), str) and isinstance(title, str):
                self._titles[tool["name"]] = title
        return []

    # From the request to the answer

    def open(self, message: Message) -> list[Event]:
        """Read a `tools/call`: a new call, or one that continues with the input that it required."""
        resumed = call = self._find_resumed(message)
        if call is None:
            uses = self._calls.count_opening(message.key)
            namespace = f"{FORMAT}.{self.connection}" + (f".{uses}" if uses > 1 else "")
            call = McpCall(aliases=(Alias(namespace, message.key),))
        call.pending_request = message.key
        self._calls.add(call, message.key)
        if (token := key_of(as_dict(message.params.get("_meta")).get("progressToken"))) != "":
            self._by_token[token] = call
        aliases = (*call.aliases, Alias(FORMAT, message.key))
        if resumed is not None:
            working = ev.CallProgress(aliases=aliases, progress={"status": "working"})
            return [working, *raw_message_if(True, message)]
        call.request_digest = _request_digest(message.params)
        # Both events name the tool, because the ledger may reject the first one for its arguments.
        name, arguments = message.params.get("name"), message.params.get("arguments")
        fields: dict[str, Any] = {"tool_name": name} if isinstance(name, str) and name else {}
        title = self._titles.get(name) if isinstance(name, str) else None
        fields |= {"title": title} if title else {}
        proposed = ev.CallProposed(aliases=call.aliases, input={} if arguments is None else arguments, **fields)
        started = ev.CallStarted(aliases=aliases, **fields)
        return [proposed, started, *raw_message_if(_request_needs_raw(message.params), message)]

    def _find_resumed(self, message: Message) -> McpCall | None:
        """Return the call that a request continues: its answer required input, and the client sends it again."""
        if not message.params.keys() & {"inputResponses", "requestState"}:
            return None
        state = message.params.get("requestState")
        waiting = self._awaiting_input.get(_state_digest(_request_digest(message.params), state))
        return waiting.pop(0) if waiting else None

    def progress(self, message: Message) -> list[Event]:
        params = message.params
        call = self._by_token.get(key_of(params.get("progressToken")))
        if call is None:
            return []
        text = as_str(params.get("message"))
        amount = {name: params[name] for name in ("progress", "total") if params.get(name) is not None}
        fields: dict[str, Any] = {"text": f"{text}\n"} if text else {}
        fields |= {"progress": amount} if amount else {}
        event = ev.CallProgress(aliases=call.aliases, **fields)
        return [event, *raw_message_if(needs_raw(params, PROGRESS), message)]

    def cancel(self, message: Message) -> list[Event]:
        """Read a cancellation by the client. It affects neither an answered call nor a task."""
        key = key_of(message.params.get("requestId"))
        call = self._calls.find(key)
        if call is None or not key or call.pending_request != key:
            return []
        call.pending_request = ""
        reason = as_str(message.params.get("reason")) or CANCELLED
        end = _mark_ended(call, ev.CallCancelled(aliases=call.aliases, reason=reason))
        return [end, *raw_message_if(needs_raw(message.params, {"requestId", "reason"}), message)]

    def answer(self, message: Message) -> list[Event]:
        """Read a result, an error, a task or questions; it may be late, after a cancellation or another answer."""
        call = self._calls.find(message.key)
        if call is None:
            return []
        call.pending_request = "" if call.pending_request == message.key else call.pending_request
        if message.error is not UNSET:
            return [_mark_ended(call, results.error_end(call.aliases, message.error))]
        task, kind = tasks.task_handle(message.result), as_dict(message.result).get("resultType")
        if task is not None:
            return self._begin_task(call, task, message)
        if kind == "input_required":
            return self._await_input(call, message)
        return self._end(call, message.result, message, kind in results.FINAL)

    def _end(self, call: McpCall, result: Any, message: Message, is_final: bool = True) -> list[Event]:
        is_odd = needs_raw(as_dict(result), results.KNOWN_FIELDS) or not is_final or not isinstance(result, dict)
        return [_mark_ended(call, results.result_end(call.aliases, result)), *raw_message_if(is_odd, message)]

    def _await_input(self, call: McpCall, message: Message) -> list[Event]:
        """Read questions of the server: the client sends the same request again, with answers."""
        state = _state_digest(call.request_digest, as_dict(message.result).get("requestState"))
        self._awaiting_input.setdefault(state, []).append(call)
        event = ev.CallProgress(aliases=call.aliases, progress={"status": "input_required"})
        return [event, *raw_message_if(True, message)]

    # Tasks

    def _begin_task(self, call: McpCall, task: dict[str, Any], message: Message) -> list[Event]:
        name = tasks.task_id(task)
        self._by_task[name] = call
        call.task_progress = tasks.progress_fields(task)
        progress = ev.CallProgress(aliases=(*call.aliases, tasks.alias(name)), **call.task_progress)
        state = self._task_events(call, task, message) or []
        return [progress, *state, *raw_message_if(_task_needs_raw(as_dict(message.result)), message)]

    def poll_task(self, message: Message) -> list[Event] | None:
        """Skip a poll of a known task: its answer contains the news."""
        is_known = tasks.task_id(message.params) in self._by_task
        return None if is_known and not needs_raw(message.params, {"taskId"}) else []

    def update_task(self, message: Message) -> list[Event] | None:
        """Read the state of a task in an answer or a notification."""
        task = as_dict(message.result) if message.kind == "answer" else message.params
        call = self._by_task.get(tasks.task_id(task) or tasks.task_id(message.params))
        if call is None or message.error is not UNSET or "status" not in task:
            return []
        events, raw = self._task_events(call, task, message), raw_message_if(_task_needs_raw(task), message)
        return raw or None if events is None else events + raw

    def _task_events(self, call: McpCall, task: dict[str, Any], message: Message) -> list[Event] | None:
        """Return the events of a task's state; None if it is the same as before, or only repeats that it has ended."""
        status = task.get("status")
        if status == "cancelled":
            return [_mark_ended(call, tasks.cancelled(call.aliases, task))]
        if status == "completed" and "result" in task:
            return self._end(call, task["result"], message)
        if status == "failed" and "error" in task:
            return [_mark_ended(call, results.error_end(call.aliases, task["error"]))]
        end = tasks.end_without_result(call.aliases, task)
        if end is not None and call.end:
            return None
        call.task_end = end or call.task_end
        progress = tasks.progress_fields(task)
        if progress == call.task_progress:
            return None
        call.task_progress = progress
        return [ev.CallProgress(aliases=call.aliases, **progress)]

    def task_result(self, message: Message) -> list[Event]:
        """Read the answer to `tasks/result`, which is the answer to the call."""
        call = self._by_task.get(tasks.task_id(message.params))
        if call is None:
            return []
        if message.error is not UNSET:
            return [_mark_ended(call, results.error_end(call.aliases, message.error))]
        return self._end(call, message.result, message)

    def cancel_task(self, message: Message) -> list[Event] | None:
        """Read the answer to a cancellation: the task is cancelled, or the server only confirms the request."""
        call = self._by_task.get(tasks.task_id(message.params))
        if call is None or message.error is not UNSET:
            return []
        if "status" in as_dict(message.result):
            return self.update_task(message)
        if not call.end:
            call.task_end = call.task_end or ev.CallCancelled(aliases=call.aliases, reason=tasks.ABANDONED)
        return []

    def hold_results(self) -> bool:
        """Return whether the result of a task waits for its client to fetch it."""
        return any(call.task_end is not None for call in self._by_task.values())

    def close(self) -> list[Event]:
        """Return the ends of tasks whose results the client did not fetch."""
        ends = [call.task_end for call in self._by_task.values() if call.task_end is not None]
        self._by_task.clear()
        return ends


def _mark_ended(call: McpCall, end: CallEnd) -> CallEnd:
    """Mark a call as ended, so that the end of the input ends it no second time, and return its end."""
    call.end, call.task_end = ENDED, None
    return end


def _request_digest(params: dict[str, Any]) -> str:
    return _digest([params.get("name"), params.get("arguments")])


def _state_digest(request_digest: str, state: Any) -> str:
    """Return what identifies a request that continues from a state."""
    return codec.digest(f"{request_digest} {_digest(state)}".encode())


def _digest(value: Any) -> str:
    return codec.digest(codec.encode(value))


def _request_needs_raw(params: dict[str, Any]) -> bool:
    """Return whether a request is invalid or has more than its events carry."""
    is_invalid = not isinstance(params.get("name"), str) or not isinstance(params.get("arguments"), dict | None)
    return is_invalid or has_other_content(params, {*PARAMS, "_meta"}) or has_other_meta(params)


def _task_needs_raw(task: dict[str, Any]) -> bool:
    return needs_raw(task, tasks.KNOWN_FIELDS) or has_other_content(as_dict(task.get("task")), tasks.KNOWN_FIELDS)
