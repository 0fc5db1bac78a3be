"""The items that a conversation over Responses is made of: which of them are calls, which are results, what they say.

Pure reading: tables, and no state. Some tools are run by the provider; then the status of the item is that of the call.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callslip.formats.json_fields import arguments, as_dict, as_str, identifier, leaves, mark
from callslip.formats.json_fields import as_list as listed
from callslip.model import events as ev
from callslip.model.events import CallEnd

FORMAT = "responses"


class Kind(msgspec.Struct, frozen=True):
    """A kind of call: its tool, where its arguments and its output stand, and whether the provider runs it.

    `streamed` names the one field that comes in pieces; `text` says that it is not JSON.
    """

    tool: str = ""
    given: tuple[str, ...] = ()
    gives: str = ""
    served: bool = False
    streamed: str = ""
    text: bool = False


CALLS: dict[str, Kind] = {
    "function_call": Kind(streamed="arguments"),
    "custom_tool_call": Kind(streamed="input", text=True),
    "mcp_call": Kind(streamed="arguments", gives="output", served=True),
    "web_search_call": Kind("web_search", ("action",), served=True),
    "file_search_call": Kind("file_search", ("queries",), "results", served=True),
    "code_interpreter_call": Kind("code_interpreter", ("code", "container_id"), "outputs", served=True),
    "image_generation_call": Kind("image_generation", ("prompt", "revised_prompt"), "result", served=True),
    "tool_search_call": Kind("tool_search", ("arguments",), served=True),
    "program": Kind("program", ("code",), served=True),
    "computer_call": Kind("computer", ("action", "actions", "pending_safety_checks")),
    "local_shell_call": Kind("local_shell", ("action",)),
    "shell_call": Kind("shell", ("action", "environment")),
    "apply_patch_call": Kind("apply_patch", ("operation",)),
}
RESULTS = {
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "computer_call_output": "output",
    "local_shell_call_output": "output",
    "shell_call_output": "output",
    "apply_patch_call_output": "output",
    "program_output": "result",
    "tool_search_output": "tools",
}
ASKS, ANSWERS = "mcp_approval_request", "mcp_approval_response"

RUNNING = {"in_progress", "searching", "interpreting", "generating", "calling"}
ENDING: dict[str, type[CallEnd]] = {
    "completed": ev.CallCompleted,
    "failed": ev.CallFailed,
    "incomplete": ev.CallFailed,
}

# Why a response is not complete, in the words of `turn.ended`.
REASONS = {"max_output_tokens": "max_tokens", "content_filter": "refusal"}

# What no reader misses: ids, kinds, and the standing of an item, which is not that of its call.
ABOUT = {"id", "type", "call_id", "status", "name", "caller", "created_by", "namespace", "execution"}
MCP = {"server_label", "approval_request_id", "error"}
MESSAGE = {"id", "type", "role", "content", "status", "phase"}
PART = {"type", "text", "refusal", "logprobs"}
REASONING = {"id", "type", "summary", "content", "status"}


def kind_of(item: dict[str, Any]) -> str:
    """The kind of an item; a message may come without."""
    return as_str(item.get("type")) or ("message" if isinstance(item.get("role"), str) else "")


def call_id(item: dict[str, Any]) -> str:
    """The id that ties a call to its result; an item's own id is another, unless it has no other."""
    return identifier(item.get("call_id")) or identifier(item.get("id"))


# Calls


def name_of(item: dict[str, Any]) -> str:
    return as_str(item.get("name")) or CALLS[kind_of(item)].tool


def title_of(item: dict[str, Any]) -> dict[str, Any]:
    """Tools of an MCP server are shown with it."""
    label, name = as_str(item.get("server_label")), as_str(item.get("name"))
    return {"title": f"{label}: {name}"} if label and name else {}


def input_of(item: dict[str, Any]) -> Any:
    """The arguments of a whole item; UNSET if it has none."""
    kind = CALLS[kind_of(item)]
    if kind.streamed:
        return whole(kind, item.get(kind.streamed))
    given = {name: item[name] for name in kind.given if item.get(name) is not None}
    return given.get("arguments", given) if given else UNSET


def whole(kind: Kind, given: Any) -> Any:
    """Arguments that came in pieces, or might have."""
    return as_str(given) if kind.text else arguments(given)


def end_of(item: dict[str, Any]) -> type[CallEnd] | None:
    """How a call ended that the provider runs, if it did. Without a word on that, an item that is done is a result."""
    kind = CALLS[kind_of(item)]
    if not kind.served or kind_of(item) == "program" or item.get("execution") == "client":
        return None
    if item.get("error") is not None:
        return ev.CallFailed
    return ENDING.get(as_str(item.get("status")) or "completed")


def came_out(item: dict[str, Any]) -> dict[str, Any]:
    """What came of such a call."""
    kind, status = CALLS[kind_of(item)], as_str(item.get("status"))
    told: dict[str, Any] = {"output": item[kind.gives]} if kind.gives and item.get(kind.gives) is not None else {}
    if item.get("error") is not None:
        return {**told, "error": item["error"]}
    return {**told, "reason": status} if status == "incomplete" else told


def call_leaves(item: dict[str, Any]) -> bool:
    """Whether a call says more than is taken of it."""
    kind = CALLS[kind_of(item)]
    return leaves(item, {*ABOUT, *MCP, kind.streamed, kind.gives, *kind.given})


# Results


def result_of(item: dict[str, Any]) -> tuple[type[CallEnd], dict[str, Any]]:
    """How a result ends its call."""
    kind = kind_of(item)
    output, status = _texts(item.get(RESULTS[kind])), as_str(item.get("status"))
    if status == "failed" or (kind, status) == ("program_output", "incomplete"):
        return ev.CallFailed, {"error": output} if output is not None else {"reason": status}
    return ev.CallCompleted, {"output": output, **_exit_status(output)}


def _texts(output: Any) -> Any:
    """An output; parts that are all text are that text."""
    parts = [as_dict(part) for part in listed(output)]
    plain = [part["text"] for part in parts if as_str(part.get("type")).endswith("_text") and "text" in part]
    return "\n".join(map(str, plain)) if parts and len(plain) == len(parts) else output


def _exit_status(output: Any) -> dict[str, Any]:
    """Of several commands the first that went wrong counts."""
    outcomes = [as_dict(as_dict(part).get("outcome")) for part in listed(output)]
    codes = [outcome["exit_code"] for outcome in outcomes if type(outcome.get("exit_code")) is int]
    return {"exit_status": next((code for code in codes if code), 0)} if codes else {}


def result_leaves(item: dict[str, Any]) -> bool:
    return leaves(item, {*ABOUT, RESULTS[kind_of(item)], "max_output_length"})


# Speech


def parts_of(item: dict[str, Any]) -> list[tuple[str, int, str]]:
    """What a message or a thought says: the field, the place in it, the text."""
    if isinstance(item.get("content"), str):
        return [("content", 0, item["content"])]
    found = [
        (name, at, as_dict(part)) for name in ("summary", "content") for at, part in enumerate(listed(item.get(name)))
    ]
    return [(name, at, as_str(part.get("text")) or as_str(part.get("refusal"))) for name, at, part in found]


def said_in(item: dict[str, Any]) -> str:
    return "\n".join(said for _, _, said in parts_of(item) if said)


def refuses(item: dict[str, Any]) -> bool:
    return any(as_dict(part).get("type") == "refusal" for part in listed(item.get("content")))


def is_plain(item: dict[str, Any]) -> bool:
    """Whether a message is text and nothing else."""
    kinds = [as_dict(part).get("type") for part in listed(item.get("content"))]
    return all(kind in ("input_text", "output_text", "text", "refusal") for kind in kinds)


def speech_leaves(item: dict[str, Any]) -> bool:
    more = any(leaves(as_dict(part), PART) for part in listed(item.get("content")))
    return more or not is_plain(item) or leaves(item, MESSAGE)


# Marks


def item_mark(body: Any) -> str:
    """What an item is known by when it comes again; ids are kept by those who repeat them, texts may be trimmed."""
    item = as_dict(body)
    kind = kind_of(item)
    if kind in CALLS:
        return mark("call", call_id(item) or name_of(item))
    if kind in RESULTS:
        return mark("result", call_id(item))
    if kind != "message":
        return mark(kind, identifier(item.get("id")) or identifier(item.get("approval_request_id")))
    role = as_str(item.get("role"))
    return mark("system") if role in ("system", "developer") else mark(role, said_in(item))
