"""The calls of one connection: which call a message is about, and what it says of it, as events.

Each request is a call, even one that takes the id of another: the ledger knows it by a namespace of its own
(`mcp.` and a mark of the connection), so that two connections which write into one session never share a call. In the
namespace `mcp` an id means the newest call that bears it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callslip.formats.json_fields import as_dict, as_list, as_str, leaves
from callslip.formats.mcp import results, tasks
from callslip.formats.mcp.wire import FORMAT, Message, kept, key_of, meta_leaves, more_than
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Alias, Event

CANCELLED = "the client cancelled it"
PARAMS = {"name", "arguments", "task"}
PROGRESS = {"progressToken", "progress", "total", "message"}


class Call(msgspec.Struct):
    """A call. `asked` is the id of the request that was not answered yet, `task` the name of its task if it has one.

    `told` is what was last told of the task; `end` is how the call ends if nobody fetches the result of the task.
    """

    aliases: tuple[Alias, ...]
    asked: str
    request: str = ""
    task: str = ""
    told: Any = None
    end: Event | None = None


class Calls:
    """All calls of one connection. `line` is a mark of the connection."""

    def __init__(self) -> None:
        self.line = ""
        self._newest: dict[str, Call] = {}
        self._uses: dict[str, int] = {}
        self._tokens: dict[str, Call] = {}
        self._tasks: dict[str, Call] = {}
        self._waiting: dict[str, list[Call]] = {}
        self._titles: dict[str, str] = {}

    def listed(self, read: Message) -> list[Event]:
        """What the server calls its tools, for people. The list itself is kept as it came."""
        for tool in map(as_dict, as_list(as_dict(read.result).get("tools"))):
            title = tool.get("title") or as_dict(tool.get("annotations")).get("title")
            if isinstance(tool.get("name"), str) and isinstance(title, str):
                self._titles[tool["name"]] = title
        return []

    # From the request to the answer

    def opened(self, read: Message) -> list[Event]:
        """A `tools/call`: a new call, or one that goes on with what it had asked for."""
        waited = self._waited(read)
        call = waited or Call(aliases=(self._alias(read.key),), asked=read.key)
        call.asked = read.key
        self._newest[read.key] = call
        if (token := key_of(as_dict(read.params.get("_meta")).get("progressToken"))) != "":
            self._tokens[token] = call
        mine = Alias(FORMAT, read.key)
        if waited is not None:
            working = {"status": "working"}
            return [ev.CallProgress(aliases=(*call.aliases, mine), progress=working), *kept(True, read)]
        call.request = _request(read.params)
        return [*self._opening(call, mine, read.params), *kept(_odd(read), read)]

    def _opening(self, call: Call, mine: Alias, params: dict[str, Any]) -> list[Event]:
        """Both events name the tool, so that arguments which are refused take nothing else with them."""
        name, given = params.get("name"), params.get("arguments")
        tool: dict[str, Any] = {"tool_name": name} if isinstance(name, str) and name else {}
        title = self._titles.get(name) if isinstance(name, str) else None
        told: dict[str, Any] = {**tool, **({"title": title} if title else {})}
        proposed = ev.CallProposed(aliases=call.aliases, input={} if given is None else given, **told)
        return [proposed, ev.CallStarted(aliases=(*call.aliases, mine), **told)]

    def _alias(self, key: str) -> Alias:
        uses = self._uses[key] = self._uses.get(key, 0) + 1
        return Alias(f"{FORMAT}.{self.line}" + (f".{uses}" if uses > 1 else ""), key)

    def _waited(self, read: Message) -> Call | None:
        """The call that a request goes on with: one that was answered by questions, and is asked for again."""
        if not read.params.keys() & {"inputResponses", "requestState"}:
            return None
        state = read.params.get("requestState")
        waiting = self._waiting.get(_request(read.params, state), [])
        return waiting.pop(0) if waiting else None

    def progressed(self, read: Message) -> list[Event]:
        call = self._tokens.get(key_of(read.params.get("progressToken")))
        if call is None:
            return []
        message = as_str(read.params.get("message"))
        amount = {name: read.params[name] for name in ("progress", "total") if read.params.get(name) is not None}
        told: dict[str, Any] = {"text": f"{message}\n"} if message else {}
        told |= {"progress": amount} if amount else {}
        return [ev.CallProgress(aliases=call.aliases, **told), *kept(more_than(read.params, PROGRESS), read)]

    def cancelled(self, read: Message) -> list[Event]:
        """The client gave up. What is answered already cannot be cancelled; a task is cancelled by its own request."""
        key = key_of(read.params.get("requestId"))
        call = self._newest.get(key)
        if call is None or not key or call.asked != key:
            return []
        call.asked = ""
        reason = as_str(read.params.get("reason")) or CANCELLED
        end = ev.CallCancelled(aliases=call.aliases, reason=reason)
        return [end, *kept(more_than(read.params, {"requestId", "reason"}), read)]

    def answered(self, read: Message) -> list[Event]:
        """A result, an error, a task, or questions; late if the client gave up before, or had an answer."""
        call = self._newest.get(read.key)
        if call is None:
            return []
        call.asked = "" if call.asked == read.key else call.asked
        if read.error is not UNSET:
            return [results.failed(call.aliases, read.error)]
        task, kind = tasks.handle(read.result), as_dict(read.result).get("resultType")
        if task is not None:
            return self._postponed(call, task, read)
        if kind == "input_required":
            return self._asks(call, read)
        return self._ended(call, read.result, read, kind in results.FINAL)

    def _ended(self, call: Call, result: Any, read: Message, plain: bool = True) -> list[Event]:
        call.end = None
        more = more_than(as_dict(result), results.KNOWN_FIELDS) or not plain or not isinstance(result, dict)
        return [results.ended(call.aliases, result), *kept(more, read)]

    def _asks(self, call: Call, read: Message) -> list[Event]:
        """The server wants answers first: the client asks again, with them, for the same."""
        state = as_dict(read.result).get("requestState")
        waits = codec.digest(f"{call.request} {_mark(state)}".encode())
        self._waiting.setdefault(waits, []).append(call)
        return [ev.CallProgress(aliases=call.aliases, progress={"status": "input_required"}), *kept(True, read)]

    # Tasks

    def _postponed(self, call: Call, told: dict[str, Any], read: Message) -> list[Event]:
        call.task = tasks.name_of(told)
        self._tasks[call.task] = call
        aliases = (*call.aliases, tasks.alias(call.task))
        call.told = tasks.where(told)
        made: list[Event] = [ev.CallProgress(aliases=aliases, **call.told)]
        return [*made, *(self._stands(call, told, read) or []), *kept(_task_leaves(as_dict(read.result)), read)]

    def polled(self, read: Message) -> list[Event] | None:
        """A question after a task that is followed: what is answered will tell."""
        known = tasks.name_of(read.params) in self._tasks
        return None if known and not more_than(read.params, {"taskId"}) else []

    def task_told(self, read: Message) -> list[Event] | None:
        """Where a task stands, by an answer or a notification."""
        told = as_dict(read.result) if read.kind == "answer" else read.params
        call = self._tasks.get(tasks.name_of(told) or tasks.name_of(read.params))
        if call is None or read.error is not UNSET or "status" not in told:
            return []
        stands = self._stands(call, told, read)
        if stands is None:
            return kept(_task_leaves(told), read) or None
        return [*stands, *kept(_task_leaves(told), read)]

    def _stands(self, call: Call, told: dict[str, Any], read: Message) -> list[Event] | None:
        """What a task's state says of its call; None if nothing that was not told before."""
        status = told.get("status")
        if status == "cancelled":
            return [tasks.cancelled(call.aliases, told)]
        if status == "completed" and "result" in told:
            return self._ended(call, told["result"], read)
        if status == "failed" and "error" in told:
            call.end = None
            return [results.failed(call.aliases, told["error"])]
        call.end = tasks.unfetched(call.aliases, told) or call.end
        where = tasks.where(told)
        if where == call.told:
            return None
        call.told = where
        return [ev.CallProgress(aliases=call.aliases, **where)]

    def fetched(self, read: Message) -> list[Event]:
        """The answer to `tasks/result` is the answer that the call would have had."""
        call = self._tasks.get(tasks.name_of(read.params))
        if call is None:
            return []
        if read.error is not UNSET:
            call.end = None
            return [results.failed(call.aliases, read.error)]
        return self._ended(call, read.result, read)

    def task_cancelled(self, read: Message) -> list[Event] | None:
        """The server may say that the task is cancelled now, or only that it heard."""
        call = self._tasks.get(tasks.name_of(read.params))
        if call is None or read.error is not UNSET:
            return []
        if "status" in as_dict(read.result):
            return self.task_told(read)
        call.end = call.end or ev.CallCancelled(aliases=call.aliases, reason=tasks.ABANDONED)
        return []

    def close(self) -> list[Event]:
        """The line ended: what is known of tasks that are over, and of which nobody asked for more."""
        ends = [call.end for call in self._tasks.values() if call.end is not None]
        self._tasks.clear()
        return ends


def _request(params: dict[str, Any], *state: Any) -> str:
    """What a request is known by when it comes again; with a state, as the one that goes on from there."""
    mark = _mark([params.get("name"), params.get("arguments")])
    return codec.digest(f"{mark} {_mark(*state)}".encode()) if state else mark


def _mark(value: Any) -> str:
    return codec.digest(codec.encode(value))


def _odd(read: Message) -> bool:
    """Whether a request is not as it should be, or says more than was taken over."""
    params = read.params
    wrong = not isinstance(params.get("name"), str) or not isinstance(params.get("arguments"), dict | None)
    return wrong or leaves(params, {*PARAMS, "_meta"}) or meta_leaves(params)


def _task_leaves(told: dict[str, Any]) -> bool:
    return more_than(told, tasks.KNOWN_FIELDS) or leaves(as_dict(told.get("task")), tasks.KNOWN_FIELDS)
