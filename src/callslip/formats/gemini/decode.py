"""Read a chat file of Gemini CLI: one record per line, or in older versions the whole chat as one object.

A message is stored again, with the same id, whenever its calls or its tokens change. `$set` changes facts of the
session, or all messages at once: after a compression it has a summary and copies, whose calls are recorded already.
Calls are stored when they have ended, and say `success` for a command that failed; the exit status is in the text of
the result. A prompt starts a turn. Nothing in the file tells its end, so a text without calls ends it; what follows
without a prompt is another turn.

A sub-agent has a chat file of its own. All of it belongs to the call whose record names the sub-agent.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET

from callslip.formats.json_fields import as_dict, as_list, as_str, identifier, text_digest
from callslip.formats.transcripts import (
    TranscriptDecoder,
    call_aliases,
    key_of,
    remember,
    start_call,
    subagent_alias,
    time_ms,
    token_count,
)
from callslip.model import events as ev
from callslip.model.events import CallEnd, Draft

FORMAT = "gemini"
Json = dict[str, Any]

SHELL_TOOL = "run_shell_command"
MAX_TITLE_CHARS = 500
KINDS = {
    SHELL_TOOL: "execute",
    **dict.fromkeys(("write_file", "replace"), "edit"),
    **dict.fromkeys(("read_file", "read_many_files", "list_directory"), "read"),
    **dict.fromkeys(("glob", "grep_search", "search_file_content"), "search"),
    **dict.fromkeys(("web_fetch", "google_web_search"), "fetch"),
}
IGNORED_STARTS = ("<session_context>", "<hook_context>")
"""How texts of the user start that the program adds itself."""
NOTICES = ("error", "warning")
METADATA = frozenset({"sessionId", "projectHash", "startTime", "lastUpdated", "kind", "directories", "summary"})
NOISE_METADATA = METADATA | {"messages", "memoryScratchpad", "messageCount", "userMessageCount", "firstUserMessage"}
PROJECT = "project"
"""The field of a message that is not from the chat file: the folder of the project, which another file names."""

# At the end of the result of a command. The lines without a command's status are not there if it has none.
_EXIT_CODE = re.compile(
    r"\nExit Code: (-?[0-9]{1,10})(?:\nSignal: [^\n]*)?(?:\nBackground PIDs: [^\n]*)?"
    r"(?:\nProcess Group PGID: [0-9]+)?\s*(?:</untrusted_context>\s*)?\Z"
)
_TAIL_CHARS = 2000
_CALL_TIME = re.compile(r"_([0-9]{13})_[0-9]+\Z")
"""The time in ms at which a call was made, in its id."""


class GeminiDecoder(TranscriptDecoder):
    """One chat."""

    format = FORMAT

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        super().__init__(chunks=chunks, started=started)
        self._session = ""
        self._facts: Json = {}
        self._new_facts: Json = {}
        self._texts: dict[str, str] = {}
        self._counts: dict[str, str] = {}
        self._calls: dict[str, str] = {}

    def feed(self, message: Any) -> list[Draft]:
        record = as_dict(message)
        if isinstance(record.get("$rewindTo"), str):
            return self._rewind(record["$rewindTo"])
        if identifier(record.get("id")) and isinstance(record.get("type"), str) and "timestamp" in record:
            drafts = self._message(record)
            return self._raw(message) if drafts is None else drafts
        if isinstance(record.get("$set"), dict) and len(record) == 1:
            return self._set(as_dict(record["$set"]), message)
        if isinstance(record.get("sessionId"), str) and ("projectHash" in record or "messages" in record):
            return self._session_record(record)
        if set(record) == {PROJECT} and isinstance(record[PROJECT], str):
            self._new_facts[PROJECT] = record[PROJECT]
            return []
        return self._raw(message)

    def _raw(self, message: Any, at: int = 0) -> list[Draft]:
        return super()._raw(message, at or time_ms(as_dict(message).get("timestamp")))

    # Session

    def _session_record(self, record: Json) -> list[Draft]:
        """Read the first line of a file, which is repeated on resume, or a whole chat."""
        session, at = identifier(record["sessionId"]), time_ms(record.get("startTime"))
        self._session = self._session or session
        if record.get("kind") == "subagent":
            self._parent = self._parent or subagent_alias(session)
        facts, self._new_facts = self._new_facts, {}
        drafts = self._info(at, agent=FORMAT, foreign_id=session, **facts)
        drafts += self._metadata(record, time_ms(record.get("lastUpdated")) or at)
        return drafts + self._messages(record.get("messages"), is_replaced=False)

    def _metadata(self, fields: Json, at: int) -> list[Draft]:
        folders = [folder for folder in as_list(fields.get("directories")) if isinstance(folder, str) and folder]
        facts = {"project": folders[0] if folders else "", "title": as_str(fields.get("summary"))}
        return self._info(at, **{name: value for name, value in facts.items() if value})

    def _info(self, at: int, **facts: Any) -> list[Draft]:
        """Return the facts that are new. Those of a sub-agent are not those of the session."""
        facts = {name: value for name, value in facts.items() if self._facts.get(name) != value}
        self._facts.update(facts)
        if not facts or self._parent is not None:
            return []
        return [
            self._draft(ev.SessionInfo(**facts, at=at), "session", self._session, text_digest(*facts, *facts.values()))
        ]

    def _set(self, fields: Json, message: Any) -> list[Draft]:
        if len(fields) == 1 and "lastUpdated" in fields:
            return []
        if not set(fields) <= NOISE_METADATA:
            return self._raw(message)
        at = time_ms(fields.get("lastUpdated"))
        return self._metadata(fields, at) + self._messages(fields.get("messages"), is_replaced=bool(self._texts))

    def _messages(self, messages: Any, *, is_replaced: bool) -> list[Draft]:
        """Read a list of messages. In one that replaces what is recorded, unknown texts come from a compression."""
        drafts: list[Draft] = []
        remembered = dict(self._texts)
        known = set(remembered.values()) - {"", text_digest("")} if is_replaced else set[str]()
        records = as_list(messages)
        end = self._end_of_known(records, is_replaced=is_replaced)
        for number, message in enumerate(records):
            record = as_dict(message)
            identity = identifier(record.get("id"))
            if not identity or not isinstance(record.get("type"), str):
                drafts += self._raw(message)
            elif identity not in remembered and (number < end or _digest_of(record) in known):
                drafts += self._replacement(record, identity, known)
            else:
                found = self._message(record, is_repeated=number < end)
                drafts += self._raw(message) if found is None else found
        if end == len(records):  # There is no message that is newer than those it remembers.
            for record in map(as_dict, records):
                identity = identifier(record.get("id"))
                if identity and identity not in remembered:
                    remember(self._texts, identity, _digest_of(record))
        return drafts

    def _end_of_known(self, records: list[Any], *, is_replaced: bool) -> int:
        """Return how many messages of a list come before the last one that is remembered. What follows it is new.

        What comes before it was read and forgotten, or comes from a compression, which keeps only messages that the
        program added. If no other one is remembered, all of a list that replaces the history is from a compression.
        """
        for number in range(len(records) - 1, -1, -1):
            record = as_dict(records[number])
            if identifier(record.get("id")) in self._texts and not _is_added(record):
                return number
        return len(records) if is_replaced else 0

    def _replacement(self, record: Json, identity: str, known: set[str]) -> list[Draft]:
        """Show a text that is only in a replaced history, unless it is a copy under another id."""
        text = _join_texts(record.get("content"))
        calls = self._tool_calls(record, identity)
        is_known = _digest_of(record) in known or _is_added(record)
        if record["type"] != "user" or not text.strip() or is_known:
            return calls
        notice = {"severity": "info", "title": "The conversation was compacted", "description": text}
        at = time_ms(record.get("timestamp"))
        # A prompt that was read before has this key.
        return [self._draft(ev.SessionInfo(notice=notice, at=at), "prompt", identity), *calls]

    def _rewind(self, message_id: str) -> list[Draft]:
        notice = {"severity": "info", "title": "The conversation was rewound: what follows does not continue the end"}
        return [self._draft(ev.SessionInfo(notice=notice), "rewound", self._session, message_id)]

    # Messages

    def _message(self, record: Json, *, is_repeated: bool = False) -> list[Draft] | None:
        identity, at = identifier(record["id"]), time_ms(record.get("timestamp"))
        kind = record["type"]
        if kind == "user":
            return self._prompt(record, identity, at)
        if kind == "gemini":
            return self._answer(record, identity, at, is_repeated=is_repeated)
        if kind in NOTICES:
            is_new = identity not in self._texts
            remember(self._texts, identity, kind)
            notice = {"severity": kind, "title": _join_texts(record.get("content"))}
            return [self._draft(ev.SessionInfo(notice=notice, at=at), "notice", identity)] if is_new else []
        return [] if kind == "info" else None

    def _prompt(self, record: Json, identity: str, at: int) -> list[Draft]:
        """Read a message of the user. The results of calls are in the message of the calls, too."""
        content = record.get("content")
        text = _join_texts(content)
        if identity in self._texts:
            return []
        remember(self._texts, identity, text_digest(text))
        others = [part for part in as_list(content) if not ({"text", "functionResponse"} & set(as_dict(part)))]
        if not (text.strip() or others) or text.lstrip().startswith(IGNORED_STARTS):
            return []
        prompt = ev.MessageUser(text=text, message_id=identity, content=as_list(content) if others else UNSET, at=at)
        drafts = self._start_turn(identity, at)
        return [*drafts, self._draft(prompt, "prompt", identity)]

    def _start_turn(self, turn: str, at: int) -> list[Draft]:
        if self._parent is not None:
            return []
        ended = self._end_turn(at)
        self._turn_name = turn
        return [*ended, self._draft(ev.TurnStarted(turn=turn, at=at), "turn", turn)]

    def _end_turn(self, at: int) -> list[Draft]:
        turn, self._turn_name = self._turn_name, ""
        return [self._draft(ev.TurnEnded(turn=turn, at=at), "turn-end", turn)] if turn else []

    def _answer(self, record: Json, identity: str, at: int, *, is_repeated: bool) -> list[Draft]:
        text = _join_texts(record.get("content"))
        drafts: list[Draft] = []
        is_new_text = bool(text) and not self._texts.get(identity)
        if identity not in self._texts:
            drafts += self._thoughts(record, identity, at)
        if is_new_text:
            event = ev.MessageDelta(text=text, message_id=identity, chunks="delta", at=at)
            drafts.append(self._draft(event, "text", identity))
            if self._parent is not None:  # Nothing after it would show that it is complete.
                drafts.append(self._draft(ev.MessageEnded(at=at), "text-end", identity))
        if is_new_text or identity not in self._texts:
            remember(self._texts, identity, text_digest(text) if is_new_text else "")
        drafts += self._tool_calls(record, identity)
        if drafts and not self._turn_name and not is_repeated:
            drafts = [*self._start_turn(drafts[0].key, drafts[0].event.at or at), *drafts]
        drafts += self._usage(record, identity, at)
        return drafts + self._end_turn(at) if is_new_text and not record.get("toolCalls") else drafts

    def _thoughts(self, record: Json, identity: str, at: int) -> list[Draft]:
        drafts: list[Draft] = []
        for number, thought in enumerate(map(as_dict, as_list(record.get("thoughts")))):
            subject, description = as_str(thought.get("subject")), as_str(thought.get("description"))
            text = f"**{subject}** {description}".rstrip() if subject else description
            if text:
                name = f"{identity}.{number}"
                thought_at = time_ms(thought.get("timestamp")) or at
                event = ev.ThoughtDelta(text=text, message_id=identifier(name), chunks="delta", at=thought_at)
                drafts.append(self._draft(event, "thought", name))
        return drafts

    def _usage(self, record: Json, identity: str, at: int) -> list[Draft]:
        """Read the tokens. The input has what is cached, the output not the thoughts; what tools add is apart."""
        tokens = as_dict(record.get("tokens"))
        if not tokens:
            return []
        counts = {name: token_count(tokens.get(name)) for name in ("input", "output", "cached", "thoughts", "tool")}
        digest = ".".join(map(str, counts.values()))
        if self._counts.get(identity) == digest:
            return []
        remember(self._counts, identity, digest)
        event = ev.UsageReported(
            id=identity,
            model=as_str(record.get("model")),
            input_tokens=counts["input"] + counts["tool"],
            output_tokens=counts["output"] + counts["thoughts"],
            cached_tokens=counts["cached"],
            reasoning_tokens=counts["thoughts"],
            at=at,
        )
        return [self._draft(event, "usage", identity, digest)]

    # Calls

    def _tool_calls(self, record: Json, identity: str) -> list[Draft]:
        return [
            draft
            for call in map(as_dict, as_list(record.get("toolCalls")))
            for draft in self._tool_call(call, identity, time_ms(record.get("timestamp")))
        ]

    def _tool_call(self, call: Json, identity: str, at: int) -> list[Draft]:
        """Read a call, which is repeated in later versions of its message."""
        call_id = identifier(call.get("id"))
        end = _ENDING.get(as_str(call.get("status")))
        if not call_id or self._calls.get(call_id) or (end is None and call_id in self._calls):
            return []
        aliases = call_aliases(call_id)
        drafts: list[Draft] = []
        if call_id not in self._calls:
            tool = as_str(call.get("name"))
            started: Json = {"aliases": aliases, "tool_name": tool or UNSET, "input": call.get("args", UNSET)}
            started |= {"kind": KINDS.get(tool, UNSET), "at": _call_time(call_id) or at}
            title = as_str(call.get("description"))  # Of a call that could not be made, it describes the tool.
            if 0 < len(title) <= MAX_TITLE_CHARS and end is not ev.CallFailed:
                started["title"] = title
            drafts += start_call(started, key_of(FORMAT, "call", call_id), self._parent)
        remember(self._calls, call_id, "ended" if end is not None else "")
        if end is not None:
            agent = identifier(call.get("agentId"))
            aliases = (*aliases, subagent_alias(agent)) if agent else aliases
            end, fields = _read_end(end, call)
            event = end(aliases=aliases, at=time_ms(call.get("timestamp")) or at, **fields)
            drafts.append(self._draft(event, "call-end", call_id))
        return drafts


_ENDING: dict[str, type[CallEnd]] = {
    "success": ev.CallCompleted,
    "error": ev.CallFailed,
    "cancelled": ev.CallCancelled,
}


def _read_end(end: type[CallEnd], call: Json) -> tuple[type[CallEnd], Json]:
    """Return how a call ended and the fields of its end."""
    output, error = _result_of(call.get("result"))
    content = _diff_of(call.get("resultDisplay"))
    fields: Json = {"content": content} if content else {}
    if end is ev.CallCancelled:
        return end, {**fields, "reason": (error if isinstance(error, str) else as_str(output))[:2000]}
    if end is ev.CallFailed or error is not None:
        return ev.CallFailed, {**fields, "error": output if error is None else error}
    if call.get("name") == SHELL_TOOL and isinstance(output, str):
        found = _EXIT_CODE.search(output, max(0, len(output) - _TAIL_CHARS))
        if found and int(found[1]):
            return ev.CallFailed, {**fields, "output": output, "exit_status": int(found[1])}
    return ev.CallCompleted, {**fields, "output": output}


def _result_of(result: Any) -> tuple[Any, Any]:
    """Return the output and the error that the model saw. Other parts, such as images, are kept with the output."""
    parts = as_list(result)
    responses = [as_dict(as_dict(as_dict(part).get("functionResponse")).get("response")) for part in parts]
    if len(parts) != 1 or len(responses[0]) != 1:
        return result, None
    return responses[0].get("output", None if "error" in responses[0] else responses[0]), responses[0].get("error")


def _diff_of(display: Any) -> list[Json]:
    """Return the change of a file that a call shows."""
    fields = as_dict(display)
    old, new = fields.get("originalContent"), fields.get("newContent")
    path = as_str(fields.get("filePath")) or as_str(fields.get("fileName"))
    if not isinstance(new, str) or not path:
        return []
    return [{"type": "diff", "path": path, "oldText": old if isinstance(old, str) else None, "newText": new}]


def _call_time(call_id: str) -> int:
    found = _CALL_TIME.search(call_id)
    return int(found[1]) if found else 0


def _join_texts(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = as_list(content) or [content]
    return "".join(part if isinstance(part, str) else _text_of(as_dict(part)) for part in parts)


def _digest_of(record: Json) -> str:
    return text_digest(_join_texts(record.get("content")))


def _is_added(record: Json) -> bool:
    """Return whether the program itself added a message of the user."""
    return _join_texts(record.get("content")).lstrip().startswith(IGNORED_STARTS)


def _text_of(part: Json) -> str:
    return "" if part.get("thought") else as_str(part.get("text"))
