"""What a person can answer to a request of an agent's hook, and the hook's output for an answer.

The options are what the agent can honour: no other button is shown. A hook without output leaves the decision to the
agent, which asks in its own terminal or follows its own rules.

| agent | asks with | an answer can |
|---|---|---|
| Claude Code | PermissionRequest | allow, deny with a message, answer one question |
| Codex | PermissionRequest | allow, deny with a message |
| Gemini CLI | BeforeTool | deny with a message; it cannot allow: the agent's own policy follows |
| opencode | `permission.asked` | allow once, deny with a message |
"""

from __future__ import annotations

from typing import Any

from callslip.formats.json_fields import Fields, as_dict, as_list, as_str
from callslip.model.events import ApprovalAnswer, ApprovalGranted, ApprovalRefused

Json = dict[str, Any]
ALLOW = {"optionId": "allow", "name": "Allow", "kind": "allow_once"}
LEAVE = {"optionId": "leave", "name": "Let the agent decide", "kind": "allow_once"}
DENY = {"optionId": "deny", "name": "Deny", "kind": "reject_once"}
QUESTION_TOOL = "AskUserQuestion"
PLAN_TOOLS = ("ExitPlanMode", "EnterPlanMode")
"""Tools for which Claude Code ignores an approval that does not repeat the arguments."""
CHOICE = "choice"
"""The kind of an option that answers a question: it neither allows nor denies, so it must be named."""
MAX_CHOICES = 20
GEMINI_READS = frozenset(
    {
        *("read_file", "read_many_files", "list_directory", "glob", "grep_search", "search_file_content"),
        *("write_todos", "get_internal_docs", "complete_task", "update_topic", "ask_user", "cli_help"),
        *("activate_skill", "google_web_search", "enter_plan_mode", "exit_plan_mode", "codebase_investigator"),
        *("invoke_agent", "read_mcp_resource", "list_mcp_resources"),
        *("tracker_create_task", "tracker_update_task", "tracker_get_task", "tracker_list_tasks"),
        *("tracker_add_dependency", "tracker_visualize"),
    }
)
"""Tools that Gemini CLI runs without a question, or that ask themselves. A request for each would only delay it."""
REQUESTS = {
    "claude-code": "PermissionRequest",
    "codex": "PermissionRequest",
    "gemini": "BeforeTool",
    "opencode": "permission.asked",
}
"""The message of each agent that asks."""
NO_REASON = "Denied in Callslip."


def is_asked(agent: str, fields: Fields) -> bool:
    """Return whether a call that an agent is about to run is worth a request, for agents that do not tell it."""
    return agent != "gemini" or as_str(fields.get("tool_name")) not in GEMINI_READS


def is_request(agent: str, fields: Fields) -> bool:
    """Return whether a message is only there to ask."""
    return fields.get("hook_event_name") == REQUESTS.get(agent)


def options(agent: str, fields: Fields) -> list[Json]:
    """Return the options of a request; none if it can only be answered in the terminal."""
    if agent == "gemini":
        return [LEAVE, DENY]
    if agent == "claude-code" and fields.get("tool_name") == QUESTION_TOOL:
        choices = _choices(fields)
        return [*choices, {**DENY, "name": "Decline to answer"}] if choices else []
    return [ALLOW, DENY]


def description(agent: str, fields: Fields) -> str:
    """Return what a request asks, "" if the call says it."""
    if agent == "claude-code" and fields.get("tool_name") == QUESTION_TOOL:
        return "\n".join(as_str(question.get("question")) for question in _questions(fields))[:2000]
    if agent == "codex":
        return as_str(as_dict(fields.get("tool_input")).get("description"))[:2000]
    return ""


def encode(agent: str, fields: Fields, answer: ApprovalAnswer) -> Json | None:
    """Return the output of a hook for an answer; None if it has none."""
    if isinstance(answer, ApprovalRefused):
        reason = answer.reason or NO_REASON
        if agent == "gemini":
            return {"decision": "deny", "reason": reason}
        if agent == "opencode":
            return {"reply": "reject", "message": reason}
        return _decision({"behavior": "deny", "message": reason})
    if not isinstance(answer, ApprovalGranted) or agent == "gemini":
        return None
    if agent == "opencode":
        return {"reply": "once"}
    if agent == "claude-code" and fields.get("tool_name") == QUESTION_TOOL:
        chosen = next((one["name"] for one in _choices(fields) if one["optionId"] == answer.option), None)
        if chosen is None:
            return None
        question = as_str(_questions(fields)[0].get("question"))
        return _decision({"behavior": "allow", "updatedInput": {**_input(fields), "answers": {question: chosen}}})
    if agent == "claude-code" and fields.get("tool_name") in PLAN_TOOLS:
        return _decision({"behavior": "allow", "updatedInput": _input(fields)})
    return _decision({"behavior": "allow"})


def lets_run(agent: str) -> bool:
    """Return whether an agent runs a call that was allowed, without asking again."""
    return agent != "gemini"


def _decision(decision: Json) -> Json:
    return {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": decision}}


def _input(fields: Fields) -> Json:
    return as_dict(fields.get("tool_input"))


def _questions(fields: Fields) -> list[Json]:
    return [as_dict(question) for question in as_list(_input(fields).get("questions"))]


def _choices(fields: Fields) -> list[Json]:
    """Return an option for each answer to the only question; none if there are several, or several answers to it."""
    questions = _questions(fields)
    if len(questions) != 1 or questions[0].get("multiSelect") is True or not as_str(questions[0].get("question")):
        return []
    labels = [as_str(as_dict(option).get("label")) for option in as_list(questions[0].get("options"))]
    if not labels or not all(labels) or len(set(labels)) < len(labels) or len(labels) > MAX_CHOICES:
        return []
    return [{"optionId": f"choice-{number}", "name": label, "kind": CHOICE} for number, label in enumerate(labels, 1)]
