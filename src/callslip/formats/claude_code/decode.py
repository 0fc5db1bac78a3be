"""Decode `claude-code`: the lines of a session file of Claude Code, or of the file of one of its sub-agents.

A line is a message with one block of content, or a fact about the session. All blocks of a response have its id and
repeat its usage. A prompt starts a turn, which ends with the last text of a response that called no tool.

Lines without meaning for a reader are left out: what was attached for the model, snapshots of files, settings, and
messages that only the program shows. A line of an unknown type is raw.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import UNSET, structs

from callslip.formats.base import Events
from callslip.formats.claude_code import results
from callslip.formats.claude_code.prompts import Prompt, read_prompt
from callslip.formats.claude_code.results import AGENT_NAMESPACE
from callslip.formats.claude_code.usage import Usage
from callslip.formats.json_fields import Fields, as_dict, as_list, as_str, identifier, text_digest
from callslip.formats.transcripts import call_aliases, message_drafts, remember, time_ms
from callslip.model import events as ev
from callslip.model.events import Alias, Draft

FORMAT = "claude-code"
SYNTHETIC = "<synthetic>"
"""The model of messages that the program wrote itself."""
OPENING = "transcript"
"""The type of the message before the first line, which tells what only the name of the file does."""
NO_BRANCH = "HEAD"
FACTS = ("sessionId", "version", "gitBranch", "cwd", "forkedFrom")
NO_RESULT = "the agent's session file has no result of this call"
LINE_IDS = ("uuid", "sessionId", "leafUuid", "messageId", "agentId")
"""Each line has one of these."""

# The reasons of `turn.ended` for the model's stop reasons. After others the turn continues.
STOPS = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "refusal": "refusal",
}
KINDS = {
    "Bash": "execute",
    "BashOutput": "execute",
    "Edit": "edit",
    "Glob": "search",
    "Grep": "search",
    "MultiEdit": "edit",
    "NotebookEdit": "edit",
    "Read": "read",
    "WebFetch": "fetch",
    "WebSearch": "fetch",
    "Write": "edit",
}
SUBAGENT_TOOLS = ("Agent", "Task")
TITLES = ("command", "file_path", "notebook_path", "pattern", "path", "url", "query", "description", "prompt")
"""The arguments that tell best what a call does."""
MAX_TITLE_CHARS = 200
IGNORED = frozenset(
    {
        *("agent-color", "agent-name", "agent-setting", "attribution-snapshot", "bridge-session"),
        *("content-replacement", "ended-by-model", "file-history-delta", "file-history-snapshot", "fork-context-ref"),
        *("frame-link", "isolation-latch", "marble-origami-commit", "marble-origami-reset", "marble-origami-snapshot"),
        *("mode", "permission-mode", "pr-link", "progress", "queue-operation", "speculation-accept", "tag"),
        "worktree-state",
    }
)


class ClaudeCodeDecoder:
    """One session file. `_subagents` are the calls of sub-agents in this file, by the last line of each."""

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._turn = ""
        self._session = ""
        self._facts: dict[str, str] = {}
        self._seen: list[Any] = []
        self._titles = 0
        self._has_custom_title = False
        self._usage = Usage()
        self._open_calls: set[str] = set()
        self._parent: Alias | None = None
        self._tasks: dict[str, str] = {}
        self._subagents: dict[str, str] = {}
        self._last_line = ""

    def feed(self, message: Any) -> list[Draft]:
        fields = as_dict(message)
        kind = fields.get("type")
        if isinstance(kind, str) and any(isinstance(fields.get(name), str) for name in LINE_IDS):
            if (read := self._READERS.get(kind)) is not None:
                return read(self, fields)
            if kind in IGNORED:
                return []
        return [Draft(ev.Raw(format=FORMAT, body=message))]

    def close(self, reason: str) -> list[Draft]:
        turn, self._turn = self._turn, ""
        self._open_calls.clear()
        return [Draft(ev.TurnEnded(turn=turn, reason=reason, detail=NO_RESULT))] if turn else []

    def holds_input(self) -> bool:
        return False

    # Messages

    def _read_message(self, fields: Fields) -> list[Draft]:
        uuid, at = identifier(fields.get("uuid")), time_ms(fields.get("timestamp"))
        message = as_dict(fields.get("message"))
        if not message:
            return [Draft(ev.Raw(format=FORMAT, body=fields))]
        read = self._read_assistant if fields["type"] == "assistant" else self._read_user
        if fields.get("isSidechain") is True or self._parent is not None:
            parent = self._find_parent(fields, uuid, message)
            return message_drafts(read(fields, message, uuid, at, True), uuid, parent)
        self._last_line = uuid
        return message_drafts([*self._new_facts(fields, message, at), *read(fields, message, uuid, at, False)], uuid)

    def _read_user(self, fields: Fields, message: Fields, uuid: str, at: int, is_subagent: bool) -> Events:
        content = message.get("content")
        blocks = as_list(content)
        events: Events = []
        for block in map(as_dict, blocks):
            if block.get("type") == "tool_result":
                call_id = identifier(block.get("tool_use_id"))
                if call_id:
                    self._open_calls.discard(call_id)
                    if self._tasks:
                        self._tasks = {prompt: other for prompt, other in self._tasks.items() if other != call_id}
                    events.append(results.read_result(call_id, block, fields.get("toolUseResult"), at))
        if events or fields.get("isMeta") is True:
            return events
        prompt = read_prompt(content)
        if fields.get("isCompactSummary") is True:
            notice = {"severity": "info", "title": "The conversation was compacted", "description": prompt.text}
            return [ev.SessionInfo(notice=notice, at=at)]
        return self._read_prompt(prompt, uuid, at, is_subagent)

    def _read_prompt(self, prompt: Prompt, uuid: str, at: int, is_subagent: bool) -> Events:
        if prompt.kind == "interruption":
            return [] if is_subagent else self._end_turn("cancelled", at)
        if prompt.kind == "hidden":
            return []
        message = ev.MessageUser(text=prompt.text, content=prompt.content, message_id=uuid, at=at)
        if is_subagent or prompt.kind == "output":
            return [message]
        return [*self._start_turn(uuid, at), message]

    def _read_assistant(self, fields: Fields, message: Fields, uuid: str, at: int, is_subagent: bool) -> Events:
        message_id = identifier(message.get("id")) or uuid
        model, stop = as_str(message.get("model")), as_str(message.get("stop_reason"))
        # The program may continue without a prompt, for example if a hook did not let it stop.
        events: Events = [] if is_subagent or self._turn else self._start_turn(uuid, at)
        last_kind = ""
        for block in map(as_dict, as_list(message.get("content"))):
            last_kind = as_str(block.get("type"))
            events += self._read_block(last_kind, block, message_id, at, is_subagent)
        if model != SYNTHETIC:
            events += self._usage.read(message.get("usage"), message_id, model, fields.get("costUSD"), stop, at)
        if is_subagent:
            return events
        if fields.get("isApiErrorMessage") is True:
            return [*events, *self._end_turn("error", at, as_str(fields.get("error")))]
        return [*events, *self._end_turn(STOPS[stop], at)] if stop in STOPS and last_kind == "text" else events

    def _read_block(self, kind: str, block: Fields, message_id: str, at: int, is_subagent: bool) -> Events:
        if kind == "text":
            text = as_str(block.get("text"))
            return [ev.MessageDelta(text=text, message_id=message_id, chunks="delta", at=at)] if text else []
        if kind == "thinking":
            text = as_str(block.get("thinking"))
            return [ev.ThoughtDelta(text=text, message_id=message_id, chunks="delta", at=at)] if text else []
        if kind.endswith("tool_use"):
            return self._start_call(block, at, is_subagent)
        if kind.endswith("tool_result") and (call_id := identifier(block.get("tool_use_id"))):
            self._open_calls.discard(call_id)
            return [results.read_result(call_id, block, None, at)]
        return []

    def _start_call(self, block: Fields, at: int, is_subagent: bool) -> Events:
        call_id, name, arguments = identifier(block.get("id")), as_str(block.get("name")), block.get("input")
        if not call_id:
            return []
        call: dict[str, Any] = {
            "aliases": call_aliases(call_id),
            "tool_name": name or UNSET,
            "title": _title(arguments) or UNSET,
            "kind": KINDS.get(name, UNSET),
            "input": {} if arguments is None else arguments,
            "at": at,
        }
        if name in SUBAGENT_TOOLS and (prompt := as_str(as_dict(arguments).get("prompt"))):
            remember(self._tasks, text_digest(prompt), call_id)
        if is_subagent:
            return [ev.CallProposed(scope="detached", **call), ev.CallStarted(aliases=call["aliases"], at=at)]
        self._open_calls.add(call_id)
        return [ev.CallStarted(**call)]

    # Turns

    def _start_turn(self, uuid: str, at: int) -> Events:
        ended = self._end_turn("eof", at, NO_RESULT) if self._open_calls else self._end_turn("end_turn", at)
        self._turn = uuid
        return [*ended, ev.TurnStarted(turn=uuid, at=at)] if uuid else ended

    def _end_turn(self, reason: str, at: int, detail: str = "") -> Events:
        turn, self._turn = self._turn, ""
        self._open_calls.clear()
        return [ev.TurnEnded(turn=turn, reason=reason, detail=detail, at=at)] if turn else []

    # Sub-agents

    def _find_parent(self, fields: Fields, uuid: str, message: Fields) -> Alias | None:
        """Return the call of the sub-agent that wrote a line. Early versions tell it only by the sub-agent's prompt."""
        if self._parent is not None:
            return self._parent
        if agent := identifier(fields.get("agentId")):
            return Alias(AGENT_NAMESPACE, agent)
        call_id = self._subagents.pop(identifier(fields.get("parentUuid")), "")
        if not call_id and self._tasks:
            call_id = self._tasks.get(text_digest(read_prompt(message.get("content")).text), "")
        if call_id:
            remember(self._subagents, uuid, call_id)
        return call_aliases(call_id)[0] if call_id else Alias(AGENT_NAMESPACE, "unknown")

    # Facts about the session

    def _read_opening(self, fields: Fields) -> list[Draft]:
        self._session = identifier(fields.get("sessionId"))
        agent, call_id = identifier(fields.get("agentId")), identifier(fields.get("toolUseId"))
        if call_id:
            self._parent = call_aliases(call_id)[0]
        elif agent:
            self._parent = Alias(AGENT_NAMESPACE, agent)
        return []

    def _new_facts(self, fields: Fields, message: Fields, at: int) -> Events:
        """Return what a line tells about the session, unless an earlier line told the same."""
        seen = [fields.get(name) for name in FACTS]
        if seen == self._seen and (message.get("model") or SYNTHETIC) in (self._facts.get("model"), SYNTHETIC):
            return []
        self._seen = seen
        line_session = identifier(fields.get("sessionId"))
        session = self._session or line_session
        origin = identifier(as_dict(fields.get("forkedFrom")).get("sessionId")) or line_session
        model, branch = as_str(message.get("model")), as_str(fields.get("gitBranch"))
        facts = {
            "agent": FORMAT,
            "agent_version": as_str(fields.get("version")),
            "foreign_id": session,
            "continues": origin if origin != session else "",
            "project": self._facts.get("project") or as_str(fields.get("cwd")),
            "branch": branch if branch != NO_BRANCH else "",
            "model": model if model != SYNTHETIC else "",
        }
        new = {name: value for name, value in facts.items() if value and self._facts.get(name) != value}
        if not new:
            return []
        self._facts |= new
        return [structs.replace(ev.SessionInfo(at=at), **new)]

    def _read_title(self, fields: Fields) -> list[Draft]:
        """Read a title. One that the user chose stays, unless the user chooses another."""
        custom = as_str(fields.get("customTitle"))
        title = custom or ("" if self._has_custom_title else as_str(fields.get("aiTitle")))
        if fields["type"] == "summary" and not self._has_custom_title:  # It may be that of another session.
            title = as_str(fields.get("summary")) if identifier(fields.get("leafUuid")) == self._last_line else ""
        self._has_custom_title = self._has_custom_title or bool(custom)
        if not title or title == self._facts.get("title"):
            return []
        self._facts["title"] = title
        self._titles += 1
        return message_drafts([ev.SessionInfo(title=title)], f"title.{self._titles}")

    def _read_move(self, fields: Fields) -> list[Draft]:
        folder = as_str(fields.get("relocatedCwd"))
        if not folder or folder == self._facts.get("project"):
            return []
        self._facts["project"] = folder
        return message_drafts([ev.SessionInfo(project=folder)], "")

    def _read_system(self, fields: Fields) -> list[Draft]:
        if fields.get("subtype") != "turn_duration" or fields.get("isSidechain") is True:
            return []
        return message_drafts(self._end_turn("end_turn", time_ms(fields.get("timestamp"))), as_str(fields.get("uuid")))

    def _read_attachment(self, fields: Fields) -> list[Draft]:
        """Read a message that the user sent while the agent worked, and which reached the model with a result."""
        attachment = as_dict(fields.get("attachment"))
        is_message = attachment.get("type") == "queued_command" and attachment.get("isMeta") is not True
        if not is_message or fields.get("isSidechain") is True or self._parent is not None:
            return []
        prompt, uuid = read_prompt(attachment.get("prompt")), identifier(fields.get("uuid"))
        if prompt.kind == "hidden":
            return []
        at = time_ms(fields.get("timestamp"))
        return message_drafts([ev.MessageUser(text=prompt.text, content=prompt.content, message_id=uuid, at=at)], uuid)

    def _read_last_prompt(self, fields: Fields) -> list[Draft]:
        if fields.get("rewound") is not True:
            return []
        notice = {"severity": "info", "title": "The conversation was rewound: what follows does not continue the end"}
        return message_drafts([ev.SessionInfo(notice=notice)], "")

    _READERS: ClassVar[dict[str, Callable[[Any, Fields], list[Draft]]]] = {
        "user": _read_message,
        "assistant": _read_message,
        "system": _read_system,
        "attachment": _read_attachment,
        "custom-title": _read_title,
        "ai-title": _read_title,
        "summary": _read_title,
        "relocated": _read_move,
        "last-prompt": _read_last_prompt,
        OPENING: _read_opening,
    }


def _title(arguments: Any) -> str:
    """Return the first line of the argument that tells best what a call does, "" if there is none."""
    fields = as_dict(arguments)
    text = next((text for name in TITLES if (text := as_str(fields.get(name)).strip())), "")
    return text[:MAX_TITLE_CHARS].partition("\n")[0]
