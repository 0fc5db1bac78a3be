"""Read a rollout of Codex, line by line.

A rollout has everything twice: the items that the model sees, and events or completed items for the user. A message of
the agent, a thought and a call are read from the item of the model; a prompt is read from the event, because the
model's messages of the user also have instructions. An end of a call is read from what comes first: a completed item
has the exit status of a command also if the text for the model has none.

The rollout of a sub-agent begins with the session that started it. Everything in it belongs to the call that did, and
it has no turns. A fork begins with a copy of the rollout that it continues, which has the same keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec import UNSET

from callslip.formats.codex import results
from callslip.formats.json_fields import (
    as_dict,
    as_list,
    as_str,
    identifier,
    parse_arguments,
    parse_json_or,
    text_digest,
    value_digest,
)
from callslip.formats.transcripts import (
    TranscriptDecoder,
    call_aliases,
    epoch_ms,
    key_of,
    keyed_draft,
    remember,
    start_call,
    subagent_alias,
    time_ms,
    token_count,
)
from callslip.model import events as ev
from callslip.model.events import CallEnd, Draft

FORMAT = "codex"
Json = dict[str, Any]
ReadEnd = Callable[[Json], tuple[type[CallEnd], Json]]
Handlers = dict[str, Callable[["CodexDecoder", Json, int], "list[Draft] | None"]]

KINDS = {
    **dict.fromkeys(("exec_command", "shell", "local_shell", "write_stdin"), "execute"),
    "apply_patch": "edit",
    "web_search": "fetch",
    "view_image": "read",
}
PLAN_TOOL, SPAWN_TOOL, WRITE_TOOL = "update_plan", "spawn_agent", "write_stdin"
DEFAULT_NAMESPACE = "functions"
IN_BACKGROUND, ENDED = "background", "ended"


class CodexDecoder(TranscriptDecoder):
    """One rollout."""

    format = FORMAT

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        super().__init__(chunks=chunks, started=started)
        self._thread = ""
        self._first_ordinal = 0
        self._turn = ""
        self._turn_begun_at = 0
        self._has_turns = False
        self._model = ""
        self._has_usage_records = False
        self._last_usage = ""
        self._text_counts: dict[str, int] = {}
        self._open_calls: dict[str, str] = {}
        self._ended_calls: dict[str, str] = {}
        self._processes: dict[str, str] = {}
        self._written: dict[str, str] = {}
        self._agents: dict[str, str] = {}
        self._item_started = 0

    def feed(self, message: Any) -> list[Draft]:
        line = as_dict(message)
        kind, payload = line.get("type"), line.get("payload")
        if not isinstance(kind, str) or not isinstance(payload, dict):
            return self._raw(message, time_ms(line.get("timestamp")))
        item, table = as_dict(payload), self.TABLES.get(kind)
        name = kind if table is None else item.get("type")
        handler = (self.LINES if table is None else table).get(name) if isinstance(name, str) else None
        if handler is CodexDecoder._noise:
            return []
        if self._first_ordinal and type(ordinal := line.get("ordinal")) is int and ordinal < self._first_ordinal:
            return []  # Of the session that started this sub-agent.
        at = time_ms(line.get("timestamp"))
        drafts = None if handler is None else handler(self, item, at)
        if drafts is None:
            return self._raw(message, at)
        return self._begin_turn(drafts) if self._turn_begun_at and drafts else drafts

    # Lines

    def _noise(self, item: Json, at: int) -> list[Draft]:
        return []

    def _session_meta(self, meta: Json, at: int) -> list[Draft] | None:
        thread = identifier(meta.get("id"))
        if not thread:
            return None
        if self._thread:
            return []  # Repeated, or of the session whose copy follows.
        self._thread = thread
        if parent_thread(meta):
            self._parent = subagent_alias(thread)
            start = meta.get("subagent_history_start_ordinal")
            self._first_ordinal = start if type(start) is int and start > 0 else 0
            return []
        branch, continues = as_dict(meta.get("git")).get("branch"), identifier(meta.get("forked_from_id"))
        event = ev.SessionInfo(
            agent=FORMAT,
            agent_version=as_str(meta.get("cli_version")) or UNSET,
            project=as_str(meta.get("cwd")) or UNSET,
            branch=as_str(branch) or UNSET,
            foreign_id=thread,
            continues=continues or UNSET,
            at=at,
        )
        return [self._draft(event, "session", thread)]

    def _turn_context(self, context: Json, at: int) -> list[Draft]:
        model = as_str(context.get("model"))
        if not model or model == self._model:
            return []
        self._model = model
        if self._parent is not None:
            return []
        return [self._draft(ev.SessionInfo(model=model, at=at), "model", self._turn_of(context), model)]

    def _compacted(self, item: Json, at: int) -> list[Draft]:
        """Show that the history was replaced. What replaces it is a copy of what is recorded, and a summary."""
        message = as_str(item.get("message"))
        notice = {"severity": "info", "title": "The conversation was compacted", "description": message}
        name = as_str(item.get("window_id")) or text_digest(self._turn, message)
        return [self._draft(ev.SessionInfo(notice=notice, at=at), "compacted", name)]

    # Turns

    def _turn_of(self, fields: Json) -> str:
        """Return the turn that an item names, else the current one."""
        metadata = as_dict(fields.get("internal_chat_message_metadata_passthrough"))
        return identifier(metadata.get("turn_id")) or identifier(fields.get("turn_id")) or self._turn

    def _turn_started(self, event: Json, at: int) -> list[Draft]:
        """Note a turn. It starts with its prompt, or with what comes first if it has none."""
        ended = self._end_turn("error", at, "Codex ended before the turn did")
        self._turn = identifier(event.get("turn_id"))
        self._text_counts = {}
        if self._parent is None and self._turn:
            self._has_turns, self._turn_begun_at = True, at or 1
        return ended

    def _begin_turn(self, drafts: list[Draft]) -> list[Draft]:
        """Start the turn before the first message or call in it. It has the name of its prompt."""
        first = drafts[0].event
        is_fact = isinstance(first, ev.SessionInfo) and first.notice is UNSET
        if is_fact or isinstance(first, ev.TurnEnded | ev.UsageReported):
            return drafts
        name = first.message_id if isinstance(first, ev.MessageUser) else self._turn
        at, self._turn_begun_at = self._turn_begun_at, 0
        return [self._start_turn(name, at), *drafts]

    def _start_turn(self, name: str, at: int) -> Draft:
        self._turn_name = name
        return self._draft(ev.TurnStarted(turn=name, at=at), "turn", self._turn or name)

    def _turn_ended(self, event: Json, at: int) -> list[Draft]:
        turn = identifier(event.get("turn_id")) or self._turn
        if self._parent is not None:  # Nothing after it would show that its last text is complete.
            return [self._draft(ev.MessageEnded(at=at), "agent-end", turn or str(at))]
        if turn != self._turn:
            return []
        self._turn_begun_at = 0
        if event.get("type") != "turn_aborted":
            return self._end_turn("end_turn", at)
        why = as_str(event.get("reason"))[:200]
        return self._end_turn("cancelled", at, f"the turn was {why}" if why else "")

    def _end_turn(self, reason: str, at: int, detail: str = "") -> list[Draft]:
        name, self._turn_name = self._turn_name, ""
        if not name:
            return []
        event = ev.TurnEnded(turn=name, reason=reason, detail=detail, at=at)
        return [self._draft(event, "turn-end", self._turn or name)]

    def _rolled_back(self, event: Json, at: int) -> list[Draft]:
        notice = {"severity": "info", "title": f"Turns taken back: {event.get('num_turns')}"[:100]}
        return [self._draft(ev.SessionInfo(notice=notice, at=at), "rolled-back", self._turn, str(at))]

    # Texts

    def _text_key(self, kind: str, identity: str, turn: str, text: str) -> str:
        """Return the key of a text: its id, else its turn, its words and how often they came before in the turn."""
        if identity:
            return key_of(FORMAT, kind, identity)
        digest = text_digest(kind, turn, text)
        self._text_counts[digest] = count = self._text_counts.get(digest, 0) + 1
        return key_of(FORMAT, kind, digest, str(count))

    def _text(self, kind: type[ev.MessageDelta | ev.ThoughtDelta], item: Json, text: str, at: int) -> list[Draft]:
        """Return a text of the agent. Its key is its id if it has none."""
        if not text:
            return []
        identity = identifier(item.get("id"))
        name = "text" if kind is ev.MessageDelta else "thought"
        key = self._text_key(name, identity, self._turn_of(item), text)
        event = kind(text=text, message_id=identity or key, chunks="delta", at=at)
        return [keyed_draft(event, key, self._parent)]

    def _message(self, item: Json, at: int) -> list[Draft]:
        if item.get("role") != "assistant":
            return []  # Instructions and the surroundings; a prompt is an event, too.
        return self._text(ev.MessageDelta, item, _join_texts(item.get("content")), at)

    def _agent_message(self, item: Json, at: int) -> list[Draft] | None:
        """Read a message between agents: the answer of a sub-agent, or in its own rollout its prompt."""
        text, identity = _join_texts(item.get("content")), identifier(item.get("id"))
        call_id = self._agents.get(as_str(item.get("author")))
        if call_id and text:
            event = ev.CallReported(aliases=call_aliases(call_id), text=text, at=at)
            return [self._draft(event, "answer", call_id, identity or text_digest(text))]
        return self._prompt(identity, text, UNSET, at) if self._parent is not None and text else None

    def _reasoning(self, item: Json, at: int) -> list[Draft]:
        """Read a thought: its summary, or its full text. It may be encrypted."""
        text = _join_texts(item.get("summary"), "\n\n") or _join_texts(item.get("content"), "\n\n")
        return self._text(ev.ThoughtDelta, item, text, at)

    def _user_message(self, event: Json, at: int) -> list[Draft]:
        images = [*as_list(event.get("images")), *as_list(event.get("local_images"))]
        content = [{"type": "image", "image": image} for image in images] or UNSET
        return self._prompt("", as_str(event.get("message")), content, at)

    def _user_item(self, item: Json, at: int) -> list[Draft]:
        parts = as_list(item.get("content"))
        is_text = all(as_dict(part).get("type") == "text" for part in parts)
        return self._prompt(identifier(item.get("id")), _join_texts(parts), UNSET if is_text else parts, at)

    def _plan_item(self, item: Json, at: int) -> list[Draft]:
        """Read the plan that the agent proposes. It is no message of the model."""
        return self._text(ev.MessageDelta, item, as_str(item.get("text")), at)

    def _prompt(self, identity: str, text: str, content: Any, at: int) -> list[Draft]:
        if not text and content is UNSET:
            return []
        key = self._text_key("prompt", identity, self._turn, text)
        prompt = ev.MessageUser(text=text, message_id=identity or key, content=content, at=at)
        drafts = [keyed_draft(prompt, key, self._parent)]
        if self._has_turns or self._parent is not None:
            return drafts
        # Earlier versions do not store where turns begin and end.
        return [*self._end_turn("end_turn", at), self._start_turn(prompt.message_id, at), *drafts]

    # Calls

    def _function_call(self, item: Json, at: int) -> list[Draft] | None:
        call_id = identifier(item.get("call_id")) or identifier(item.get("id"))
        if not call_id:
            return None
        tool, input = _tool_of(item), _input_of(item)
        turn = self._turn_of(item)
        if tool == PLAN_TOOL:
            self._note_end(call_id, ENDED)
            return self._plan(call_id, turn, input, at)
        if tool == WRITE_TOOL:
            process = as_dict(input).get("session_id")
            self._written[call_id] = str(process) if isinstance(process, int | str) else ""
        self._ended_calls.pop(call_id, None)
        self._open_calls[call_id] = tool
        return self._start_call(call_id, tool, input, at, turn)

    def _start_call(self, call_id: str, tool: str, input: Any, at: int, turn: str) -> list[Draft]:
        call: Json = {"aliases": call_aliases(call_id), "tool_name": tool, "input": input, "at": at}
        if tool in KINDS:
            call["kind"] = KINDS[tool]
        return start_call(call, key_of(FORMAT, "call", call_id, turn or value_digest(input)), self._parent)

    def _plan(self, call_id: str, turn: str, input: Any, at: int) -> list[Draft]:
        steps = [as_dict(step) for step in as_list(as_dict(input).get("plan"))]
        entries = [
            {"content": as_str(step.get("step")), "status": as_str(step.get("status")), "priority": "medium"}
            for step in steps
        ]
        if self._parent is not None:
            return []
        return [self._draft(ev.PlanUpdated(entries=entries, at=at), "plan", call_id, turn)]

    def _function_output(self, item: Json, at: int) -> list[Draft] | None:
        call_id = identifier(item.get("call_id"))
        if not call_id:
            return None
        if call_id in self._ended_calls:
            return []
        output = item.get("output", item.get("tools"))
        result = results.read_result(output)
        end, fields = results.end_of(result, as_dict(output).get("success"))
        tool = self._open_calls.get(call_id, "")
        aliases = call_aliases(call_id)
        reports: list[Draft] = []
        if tool == WRITE_TOOL:
            reports = self._report_process(self._written.pop(call_id, ""), result, at)
            end = ev.CallCompleted if end is ev.CallFailed else end
        elif tool.endswith(SPAWN_TOOL) and isinstance(result.output, str):
            agent = identifier(as_dict(parse_json_or(result.output, None)).get("agent_id"))
            aliases += (subagent_alias(agent),) if agent else ()
        if result.process:
            remember(self._processes, result.process, call_id)
        self._note_end(call_id, IN_BACKGROUND if result.process else ENDED)
        event = end(aliases=aliases, at=at, **fields)
        return [*reports, self._end_draft(event, call_id, self._turn_of(item))]

    def _end_draft(self, event: CallEnd, call_id: str, turn: str) -> Draft:
        return self._draft(event, "call-end", call_id, turn or value_digest(event.output, event.error))

    def _note_end(self, call_id: str, how: str) -> None:
        self._open_calls.pop(call_id, None)
        remember(self._ended_calls, call_id, how)

    def _report_process(self, process: str, result: results.Result, at: int) -> list[Draft]:
        """Report how a command ended whose call had completed while the command still ran."""
        call_id = self._processes.get(process, "")
        if not call_id or result.exit_status is UNSET:
            return []
        del self._processes[process]
        return self._report(call_id, result.exit_status, result.output, at)

    def _report(self, call_id: str, exit_status: Any, output: Any, at: int) -> list[Draft]:
        if self._ended_calls.get(call_id) == IN_BACKGROUND:
            self._ended_calls[call_id] = ENDED
        if exit_status in (UNSET, 0):
            return []
        text = output if isinstance(output, str) else ""
        event = ev.CallReported(aliases=call_aliases(call_id), text=text, exit_status=exit_status, at=at)
        return [self._draft(event, "report", call_id, self._turn)]

    def _served_call(self, item: Json, at: int) -> list[Draft] | None:
        """Read a call that the model's provider ran."""
        kind, call_id = as_str(item.get("type")), identifier(item.get("id"))
        if not call_id:
            return [] if kind == "web_search_call" else None  # Its event has an id.
        if call_id in self._ended_calls:
            return []
        self._note_end(call_id, ENDED)
        names = ("action",) if kind == "web_search_call" else ("revised_prompt",)
        input = {name: item[name] for name in names if item.get(name) is not None}
        input = as_dict(input.get("action")) or input
        end = ev.CallFailed if item.get("status") == "failed" else ev.CallCompleted
        output = {"output": item["result"]} if item.get("result") is not None else {}
        tool = kind.removesuffix("_call")
        event = end(aliases=call_aliases(call_id), tool_name=tool, input=input, at=at, **output)
        return [self._end_draft(event, call_id, self._turn_of(item))]

    def _search_ended(self, item: Json, at: int) -> list[Draft]:
        call_id = identifier(item.get("call_id")) or identifier(item.get("id"))
        if not call_id or call_id in self._ended_calls:
            return []
        self._note_end(call_id, ENDED)
        input = as_dict(item.get("action")) or {"query": item.get("query")}
        results_field = {"output": item["results"]} if item.get("results") is not None else {}
        event = ev.CallCompleted(
            aliases=call_aliases(call_id), tool_name="web_search", input=input, at=at, **results_field
        )
        return [self._end_draft(event, call_id, self._turn)]

    # Completed items and their earlier events

    def _item_completed(self, event: Json, at: int) -> list[Draft] | None:
        """Read a completed item. None means that it is not understood."""
        item = as_dict(event.get("item"))
        ended_at = epoch_ms(event.get("completed_at_ms")) or at
        self._item_started = epoch_ms(event.get("started_at_ms"))
        kind = item.get("type")
        handler = self.COMPLETED.get(kind) if isinstance(kind, str) else None
        return None if handler is None else handler(self, item, ended_at)

    def _command(self, item: Json, at: int) -> list[Draft] | None:
        call_id = identifier(item.get("id"))
        if self._ended_calls.get(call_id) == IN_BACKGROUND:
            _, fields = results.command_end(item)
            return self._report(call_id, fields.get("exit_status", UNSET), fields.get("output"), at)
        if item.get("source") == "unified_exec_interaction":
            return []  # The result of `write_stdin`, which the model's items have.
        return self._item_end(item, at, results.command_end, "exec_command")

    def _patch(self, item: Json, at: int) -> list[Draft] | None:
        return self._item_end(item, at, results.patch_end, "apply_patch")

    def _mcp_call(self, item: Json, at: int) -> list[Draft] | None:
        invocation = as_dict(item.get("invocation")) or item
        tool = "__".join(("mcp", as_str(invocation.get("server")), as_str(invocation.get("tool"))))
        return self._item_end({**item, "arguments": invocation.get("arguments")}, at, results.mcp_end, tool)

    def _exec_end(self, item: Json, at: int) -> list[Draft] | None:
        return self._item_end(item, at, results.command_end, "exec_command")

    def _item_end(self, item: Json, at: int, read: ReadEnd, tool: str) -> list[Draft] | None:
        """End a call, unless it has ended. The user's own commands have no other item, so theirs has a tool."""
        call_id = identifier(item.get("call_id")) or identifier(item.get("id"))
        if not call_id:
            return None
        if call_id in self._ended_calls:
            return []
        end, fields = read(item)
        aliases = call_aliases(call_id)
        drafts: list[Draft] = []
        turn = self._turn
        if call_id not in self._open_calls:
            input = {name: item[name] for name in ("command", "cwd", "arguments", "changes") if item.get(name)}
            drafts = self._start_call(call_id, tool, input, self._item_started or at, turn)
        self._note_end(call_id, ENDED)
        return [*drafts, self._end_draft(end(aliases=aliases, at=at, **fields), call_id, turn)]

    def _dynamic_call(self, item: Json, at: int) -> list[Draft] | None:
        """Read the failure of a tool of the client; its result is in the output for the model."""
        if item.get("status") != "failed" and item.get("success") is not False:
            return []
        return self._item_end(item, at, _dynamic_end, as_str(item.get("tool")))

    # Sub-agents

    def _agent_call(self, item: Json, at: int) -> list[Draft]:
        if item.get("tool") != SPAWN_TOOL:
            return []
        threads = [identifier(thread) for thread in as_list(item.get("receiver_thread_ids"))]
        return [draft for thread in threads if thread for draft in self._link(identifier(item.get("id")), thread, at)]

    def _agent_started(self, item: Json, at: int) -> list[Draft]:
        if item.get("kind") != "started":
            return []
        call_id = identifier(item.get("id")) or identifier(item.get("event_id"))
        return self._link(call_id, identifier(item.get("agent_thread_id")), at, as_str(item.get("agent_path")))

    def _link(self, call_id: str, thread: str, at: int, path: str = "") -> list[Draft]:
        """Let the call that started a sub-agent be found by the sub-agent's id. `path` is its name in messages."""
        if call_id not in self._open_calls or not thread:
            return []
        if path:
            remember(self._agents, path, call_id)
        event = ev.CallProgress(aliases=(*call_aliases(call_id), subagent_alias(thread)), at=at)
        return [self._draft(event, "agent", call_id, thread)]

    # Usage

    def _usage_record(self, record: Json, at: int) -> list[Draft]:
        self._has_usage_records = True
        identity = identifier(record.get("response_id"))
        if not identity:
            total = as_dict(record.get("thread_token_usage"))
            identity = key_of(FORMAT, self._turn_of(record), str(token_count(total.get("total_tokens"))))
        return self._usage(identity, as_dict(record.get("usage")), at)

    def _token_count(self, event: Json, at: int) -> list[Draft]:
        """Read the tokens of the last response. The count is repeated when limits change, and its total then is equal.

        Newer versions store a record of each response before it.
        """
        info = as_dict(event.get("info"))
        last, total = as_dict(info.get("last_token_usage")), as_dict(info.get("total_token_usage"))
        if self._has_usage_records or not last:
            return []
        thread = self._thread if self._parent is not None else ""
        counts = [str(token_count(total.get(name))) for name in ("input_tokens", "output_tokens", "total_tokens")]
        identity = key_of(FORMAT, thread or self._turn, *counts)
        if identity == self._last_usage:
            return []
        self._last_usage = identity
        return self._usage(identity, last, at)

    def _usage(self, identity: str, usage: Json, at: int) -> list[Draft]:
        input_tokens, output_tokens = token_count(usage.get("input_tokens")), token_count(usage.get("output_tokens"))
        if not (input_tokens or output_tokens):
            return []  # The estimate after a compaction.
        event = ev.UsageReported(
            id=identity,
            model=self._model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=token_count(usage.get("cached_input_tokens")),
            cache_write_tokens=token_count(usage.get("cache_write_input_tokens")),
            reasoning_tokens=token_count(usage.get("reasoning_output_tokens")),
            at=at,
        )
        return [self._draft(event, "usage", identity)]

    # The readers by type. What has `_noise` repeats other lines, or is state of the program itself.

    LINES: ClassVar[Handlers] = {
        "session_meta": _session_meta,
        "turn_context": _turn_context,
        "token_usage_record": _usage_record,
        "compacted": _compacted,
        "world_state": _noise,
        "security_risk_score": _noise,
        "resume_metadata": _noise,
        "inter_agent_communication_metadata": _noise,
    }
    ITEMS: ClassVar[Handlers] = {
        "message": _message,
        "agent_message": _agent_message,
        "reasoning": _reasoning,
        **dict.fromkeys(("function_call", "custom_tool_call", "local_shell_call", "tool_search_call"), _function_call),
        **dict.fromkeys(("function_call_output", "custom_tool_call_output", "tool_search_output"), _function_output),
        "web_search_call": _served_call,
        "image_generation_call": _served_call,
        **dict.fromkeys(("compaction", "compaction_summary", "context_compaction", "ghost_snapshot"), _noise),
        "additional_tools": _noise,
    }
    EVENTS: ClassVar[Handlers] = {
        **dict.fromkeys(("task_started", "turn_started"), _turn_started),
        **dict.fromkeys(("task_complete", "turn_complete", "turn_aborted"), _turn_ended),
        "user_message": _user_message,
        "token_count": _token_count,
        "item_completed": _item_completed,
        "patch_apply_end": _patch,
        "mcp_tool_call_end": _mcp_call,
        "exec_command_end": _exec_end,
        "web_search_end": _search_ended,
        "sub_agent_activity": _agent_started,
        "thread_rolled_back": _rolled_back,
        **dict.fromkeys(("agent_message", "agent_reasoning", "agent_reasoning_raw_content"), _noise),
        **dict.fromkeys(("context_compacted", "thread_settings_applied", "image_generation_end"), _noise),
    }
    TABLES: ClassVar[dict[str, Handlers]] = {"response_item": ITEMS, "event_msg": EVENTS}
    COMPLETED: ClassVar[Handlers] = {
        "UserMessage": _user_item,
        "Plan": _plan_item,
        "CommandExecution": _command,
        "FileChange": _patch,
        "McpToolCall": _mcp_call,
        "DynamicToolCall": _dynamic_call,
        "CollabAgentToolCall": _agent_call,
        "SubAgentActivity": _agent_started,
        "WebSearch": _search_ended,
        **dict.fromkeys(("AgentMessage", "Reasoning", "ContextCompaction", "HookPrompt"), _noise),
        **dict.fromkeys(("ImageView", "ImageGeneration"), _noise),
    }


def parent_thread(meta: Json) -> str:
    """Return the session that started a sub-agent, from the first line of its rollout; "" for others."""
    source = meta.get("source")
    spawned = as_dict(as_dict(as_dict(source).get("subagent")).get("thread_spawn"))
    return identifier(spawned.get("parent_thread_id")) or identifier(meta.get("parent_thread_id"))


def session_of_line(line: Any) -> str:
    """Return the session that the first line of a rollout names, that of a sub-agent the session it works for."""
    fields = as_dict(line)
    meta = as_dict(fields.get("payload")) if fields.get("type") == "session_meta" else {}
    thread, session, parent = identifier(meta.get("id")), identifier(meta.get("session_id")), parent_thread(meta)
    if not parent:
        return thread
    return session if session and session != thread else parent


def _tool_of(item: Json) -> str:
    kind = as_str(item.get("type"))
    name, namespace = as_str(item.get("name")) or kind.removesuffix("_call"), as_str(item.get("namespace"))
    if namespace in ("", DEFAULT_NAMESPACE):
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def _input_of(item: Json) -> Any:
    if item.get("type") == "custom_tool_call":
        return as_str(item.get("input"))
    if item.get("type") == "local_shell_call":
        action = as_dict(item.get("action"))
        return {name: value for name, value in action.items() if name != "type" and value is not None}
    return parse_arguments(item.get("arguments"))


def _dynamic_end(item: Json) -> tuple[type[CallEnd], Json]:
    fields: Json = {"error": item.get("error") or item.get("content_items"), "duration_ms": UNSET}
    return ev.CallFailed, {**fields, "duration_ms": results.duration_ms(item.get("duration"))}


def _join_texts(parts: Any, separator: str = "") -> str:
    """Return the texts of a list of parts as one."""
    if isinstance(parts, str):
        return parts
    return separator.join(text for part in as_list(parts) if isinstance(text := as_dict(part).get("text"), str))
