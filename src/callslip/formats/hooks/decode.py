"""Decode what the hooks of an agent send: one JSON object for each step of the agent.

The agent's session file says more, and with ids, so a reader takes from here only what it does not have yet: that a
call began or ended, and requests for approval. A request has no id of its call. It is about the oldest call with the
same tool and arguments that began and has neither ended nor asked before. Another hook of the user may change the
arguments in between: if there is none with the same arguments, it is about the only such call of the tool.

The calls of a sub-agent are only in its session file; its requests are here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import UNSET, structs

from callslip.formats.hooks import answers
from callslip.formats.json_fields import Fields, as_dict, as_list, as_str, identifier, value_digest
from callslip.formats.transcripts import call_aliases
from callslip.model import events as ev
from callslip.model.events import Alias, Draft, Event
from callslip.rules.unnamed_calls import unnamed_alias

MAX_OPEN = 200
"""How many calls that have not ended are remembered."""
MAX_TITLE_CHARS = 200
TOOL_CHARS = 16
TITLES = ("command", "file_path", "filePath", "notebook_path", "pattern", "path", "url", "query", "description")
"""The arguments that tell best what a call does."""
TERMINAL = "the agent's terminal"
_EXIT_STATUS = re.compile(r"(?:Error: )?Exit code (-?\d{1,9})\b")

Reader = Callable[[Any, Fields], list[Event]]


class OpenCall:
    """A call that began: its id, and the digest of its tool and arguments, which begins with that of the tool."""

    def __init__(self, call_id: str, digest: str) -> None:
        self.call_id = call_id
        self.digest = digest
        self.has_asked = False


class HookDecoder:
    """One session of an agent whose hooks have the names of those of Claude Code, as those of Codex do."""

    agent: ClassVar[str]

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        del chunks, started  # Texts are whole, and who feeds messages knows their times.
        self._facts: dict[str, str] = {}
        self._open: list[OpenCall] = []

    def feed(self, message: Any) -> list[Draft]:
        fields = as_dict(message)
        read = self.READERS.get(as_str(fields.get("hook_event_name")))
        if read is None or not identifier(fields.get("session_id")) or not self.is_own(fields):
            return [Draft(ev.Raw(format=f"{self.agent}-hook", body=message))]
        return [Draft(event) for event in (*self._new_facts(fields), *read(self, fields))]

    def close(self, reason: str) -> list[Draft]:
        return []

    def holds_input(self) -> bool:
        return False

    def is_own(self, fields: Fields) -> bool:
        """Return whether a message is of this agent and not of one with the same names."""
        return True

    def _new_facts(self, fields: Fields) -> list[Event]:
        facts = {
            "agent": self.agent,
            "foreign_id": identifier(fields.get("session_id")),
            "project": as_str(fields.get("cwd")),
            "model": as_str(fields.get("model")),
        }
        new = {name: value for name, value in facts.items() if value and name not in self._facts}
        self._facts |= new
        return [structs.replace(ev.SessionInfo(), **new)] if new else []

    # Calls

    def _call_fields(self, fields: Fields) -> dict[str, Any]:
        arguments = fields.get("tool_input")
        return {
            "tool_name": as_str(fields.get("tool_name")) or UNSET,
            "title": _title(arguments) or UNSET,
            "input": {} if arguments is None else arguments,
        }

    def _remember(self, call: OpenCall) -> None:
        if all(known.call_id != call.call_id for known in self._open):  # A message may be read twice, after a kill.
            self._open.append(call)
            del self._open[:-MAX_OPEN]

    def _forget(self, call_id: str) -> None:
        self._open = [call for call in self._open if call.call_id != call_id]

    def digest(self, fields: Fields) -> str:
        """Return a digest of the tool and the arguments of a call."""
        return call_digest(as_str(fields.get("tool_name")), fields.get("tool_input"))

    def _read_start(self, fields: Fields) -> list[Event]:
        call_id = identifier(fields.get("tool_use_id"))
        if not call_id:
            return []
        self._remember(OpenCall(call_id, self.digest(fields)))
        if fields.get("agent_id"):
            return []
        return [ev.CallStarted(aliases=call_aliases(call_id), **self._call_fields(fields))]

    def _read_end(self, fields: Fields) -> list[Event]:
        call_id = identifier(fields.get("tool_use_id"))
        if not call_id:
            return []
        self._forget(call_id)
        return [] if fields.get("agent_id") else [self.end_of(fields, call_aliases(call_id))]

    def end_of(self, fields: Fields, aliases: tuple[Alias, ...]) -> ev.CallEnd:
        """Return the end of a call."""
        common: dict[str, Any] = {"aliases": aliases, "duration_ms": _duration(fields.get("duration_ms"))}
        if fields["hook_event_name"] != "PostToolUseFailure":
            return ev.CallCompleted(output=fields.get("tool_response"), **common)
        error = fields.get("error")
        if fields.get("is_interrupt") is True:
            return ev.CallCancelled(reason="the user interrupted it", error=error, **common)
        status = _EXIT_STATUS.match(error) if isinstance(error, str) else None
        return ev.CallFailed(error=error, exit_status=int(status[1]) if status else UNSET, **common)

    def _read_denial(self, fields: Fields) -> list[Event]:
        call_id = identifier(fields.get("tool_use_id"))
        if not call_id:
            return []
        self._forget(call_id)
        if fields.get("agent_id"):
            return []
        return [ev.CallDenied(aliases=call_aliases(call_id), reason=as_str(fields.get("reason")))]

    def _read_request(self, fields: Fields) -> list[Event]:
        """Return a request for approval, unless no call began that it can be about."""
        digest = self.digest(fields)
        tool = digest[:TOOL_CHARS]
        of_tool = [call for call in self._open if call.digest.startswith(tool) and not call.has_asked]
        equal = [call for call in of_tool if call.digest == digest]
        if not equal and len(of_tool) != 1:
            return []
        call = (equal or of_tool)[0]
        call.has_asked = True
        return [self._request(fields, call_aliases(call.call_id))]

    def _request(self, fields: Fields, aliases: tuple[Alias, ...]) -> ev.ApprovalRequested:
        options = answers.options(self.agent, fields)
        update = self._call_fields(fields)
        if not update["input"]:  # The session file may have arguments that the hook does not get, such as a plan.
            update["input"] = UNSET
        return ev.ApprovalRequested(
            aliases=aliases,
            description=answers.description(self.agent, fields),
            options=options,
            answer_at="" if options else TERMINAL,
            **update,
        )

    # Texts, for a session whose file cannot be read

    def _read_prompt(self, fields: Fields) -> list[Event]:
        text = as_str(fields.get("prompt"))
        return [ev.TurnStarted(), ev.MessageUser(text=text)] if text else []

    def _read_stop(self, fields: Fields) -> list[Event]:
        text = as_str(fields.get("last_assistant_message")) or as_str(fields.get("prompt_response"))
        texts: list[Event] = [ev.MessageDelta(text=text, chunks="delta")] if text else []
        return [*texts, ev.TurnEnded()]

    def _read_session_end(self, fields: Fields) -> list[Event]:
        return [ev.SessionInfo(ended=True)]

    def _ignore(self, fields: Fields) -> list[Event]:
        """Return nothing: the message only tells that the session file may have something new."""
        return []

    READERS: ClassVar[dict[str, Reader]] = {
        "SessionStart": _ignore,
        "UserPromptSubmit": _read_prompt,
        "PreToolUse": _read_start,
        "PostToolUse": _read_end,
        "PostToolUseFailure": _read_end,
        "PermissionRequest": _read_request,
        "PermissionDenied": _read_denial,
        "Stop": _read_stop,
        "SessionEnd": _read_session_end,
        **dict.fromkeys(("PostToolBatch", "Notification", "StopFailure", "SubagentStart", "SubagentStop"), _ignore),
        **dict.fromkeys(("PreCompact", "PostCompact", "Interrupt"), _ignore),
    }


class ClaudeCodeHookDecoder(HookDecoder):
    """One session of Claude Code."""

    agent = "claude-code"

    def is_own(self, fields: Fields) -> bool:
        return "turn_id" not in fields and (fields["hook_event_name"] != "SessionStart" or "model" not in fields)


class CodexHookDecoder(HookDecoder):
    """One session of Codex. A request adds the model's reason to the arguments."""

    agent = "codex"

    def is_own(self, fields: Fields) -> bool:
        return "prompt_id" not in fields

    def digest(self, fields: Fields) -> str:
        arguments = {name: value for name, value in as_dict(fields.get("tool_input")).items() if name != "description"}
        return call_digest(as_str(fields.get("tool_name")), arguments)


class GeminiHookDecoder(HookDecoder):
    """One session of Gemini CLI, which tells no ids of calls."""

    agent = "gemini"

    def _read_before(self, fields: Fields) -> list[Event]:
        alias = unnamed_alias(as_str(fields.get("tool_name")), fields.get("tool_input"))
        return [self._request(fields, (alias,))] if answers.is_asked(self.agent, fields) else []

    READERS: ClassVar[dict[str, Reader]] = {
        "BeforeAgent": HookDecoder._read_prompt,
        "BeforeTool": _read_before,
        "AfterAgent": HookDecoder._read_stop,
        "SessionEnd": HookDecoder._read_session_end,
        **dict.fromkeys(("SessionStart", "AfterTool", "Notification", "PreCompress"), HookDecoder._ignore),
    }


class OpencodeHookDecoder(HookDecoder):
    """One session of opencode, whose plugin passes on what it is called with, and events, as `properties`."""

    agent = "opencode"

    def _read_before(self, fields: Fields) -> list[Event]:
        call_id, update = _opencode_call(as_dict(fields.get("properties")))
        return [ev.CallStarted(aliases=call_aliases(call_id), **update)] if call_id else []

    def _read_after(self, fields: Fields) -> list[Event]:
        properties = as_dict(fields.get("properties"))
        call_id, _ = _opencode_call(properties)
        exit_status = as_dict(properties.get("metadata")).get("exit")
        status = exit_status if type(exit_status) is int else UNSET
        end = ev.CallFailed if status not in (UNSET, 0) else ev.CallCompleted
        aliases, output = call_aliases(call_id), properties.get("output")
        return [end(aliases=aliases, output=output, exit_status=status)] if call_id else []

    def _read_part(self, fields: Fields) -> list[Event]:
        """Read the end of a call that failed; that of another one has its own message."""
        part = as_dict(as_dict(fields.get("properties")).get("part"))
        state, call_id = as_dict(part.get("state")), identifier(part.get("callID"))
        if part.get("type") != "tool" or state.get("status") != "error" or not call_id:
            return []
        return [ev.CallFailed(aliases=call_aliases(call_id), error=state.get("error"))]

    def _read_permission(self, fields: Fields) -> list[Event]:
        request = as_dict(fields.get("properties"))
        call_id = identifier(as_dict(request.get("tool")).get("callID"))
        if not call_id:
            return []
        patterns = [pattern for pattern in as_list(request.get("patterns")) if isinstance(pattern, str)]
        description = f"{as_str(request.get('permission'))}: {', '.join(patterns)}"[:2000]
        options = answers.options(self.agent, fields)
        return [ev.ApprovalRequested(aliases=call_aliases(call_id), description=description, options=options)]

    READERS: ClassVar[dict[str, Reader]] = {
        "tool.execute.before": _read_before,
        "tool.execute.after": _read_after,
        "message.part.updated": _read_part,
        "permission.asked": _read_permission,
        **dict.fromkeys(("chat.message", "session.created", "session.idle", "session.error"), HookDecoder._ignore),
    }


def _opencode_call(properties: Fields) -> tuple[str, dict[str, Any]]:
    """Return the id of a call and its fields."""
    arguments = properties.get("args")
    update: dict[str, Any] = {"tool_name": as_str(properties.get("tool")) or UNSET, "title": _title(arguments) or UNSET}
    return identifier(properties.get("callID")), {**update, "input": {} if arguments is None else arguments}


def call_digest(tool: str, arguments: Any) -> str:
    """Return a digest of a tool and its arguments, which begins with that of the tool."""
    return value_digest(tool)[:TOOL_CHARS] + value_digest(arguments)


def _title(arguments: Any) -> str:
    fields = as_dict(arguments)
    text = next((fields[name] for name in TITLES if isinstance(fields.get(name), str) and fields[name]), "")
    return text if len(text) <= MAX_TITLE_CHARS else text[: MAX_TITLE_CHARS - 1] + "…"


def _duration(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 10**12 else UNSET
