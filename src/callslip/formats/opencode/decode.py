"""Read the sessions of opencode. A message is a row of its database, as JSON.

- `{"session": {id, parentID, forkedFrom, title, directory, version, time}}`, the fields of `session` in `opencode
  export`, and of which session it is a fork. opencode does not store that; who reads the database finds it.
- `{"message": {id, sessionID, role, time, ...}}`, the `info` of a message.
- `{"part": {id, sessionID, messageID, type, ...}, "role": "user", "created": 1794725315000}`: a part, with the role of
  its message and when that was created, in ms.
- `{"info": session, "messages": [{"info": ..., "parts": [...]}]}`, the output of `opencode export`: all of it at once.

A row is read again whenever it has changed. A fork is a copy with other ids of messages and parts, which keep their
times: so drafts are identified by these, and calls by their ids and the time of their message. A session with a parent
is that of a sub-agent, and belongs to the call of the tool `task` that names it.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET

from callslip.formats.json_fields import as_dict, as_list, as_str, first_text, identifier, text_digest
from callslip.formats.transcripts import (
    TranscriptDecoder,
    call_aliases,
    epoch_ms,
    key_of,
    remember,
    start_call,
    subagent_alias,
    token_count,
)
from callslip.model import events as ev
from callslip.model.events import Alias, Draft

FORMAT = "opencode"
Json = dict[str, Any]

TASK_TOOL = "task"
CURRENCY = "USD"
KINDS = {
    **dict.fromkeys(("bash", "shell"), "execute"),
    **dict.fromkeys(("edit", "write", "patch", "apply_patch"), "edit"),
    **dict.fromkeys(("grep", "glob"), "search"),
    **dict.fromkeys(("webfetch", "websearch"), "fetch"),
    **dict.fromkeys(("read", "list"), "read"),
    TASK_TOOL: "think",
}
NOISE_PARTS = frozenset({"step-start", "step-finish", "snapshot", "patch", "agent", "retry", "subtask"})
"""Parts that repeat the message or the call, or are state of the program itself."""
REASONS = {"length": "max_tokens", "content-filter": "refusal"}
CONTINUED = "tool-calls"
ABORTED = "MessageAbortedError"
_DEFAULT_TITLE = re.compile(r"(?:New|Child) session - [0-9]{4}-")
REFUSAL = "The user rejected permission to use this"


class OpencodeDecoder(TranscriptDecoder):
    """One session."""

    format = FORMAT

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        super().__init__(chunks=chunks, started=started)
        self._facts: Json = {}
        self._newest_turn = ""
        self._calls: dict[str, str] = {}
        self._next_turn: tuple[str, int] | None = None
        self._texts: dict[str, Json] = {}
        self._was_refused = False

    def feed(self, message: Any) -> list[Draft]:
        row = as_dict(message)
        drafts: list[Draft] | None = None
        if isinstance(row.get("messages"), list) and isinstance(row.get("info"), dict):
            return self._export(row)
        if isinstance(row.get("session"), dict):
            drafts = self._session(as_dict(row["session"]))
        elif isinstance(row.get("message"), dict):
            drafts = self._message(as_dict(row["message"]))
        elif isinstance(row.get("part"), dict):
            drafts = self._part(as_dict(row["part"]), as_str(row.get("role")), epoch_ms(row.get("created")))
        return self._raw(message) if drafts is None else self._begin_turn(drafts)

    def close(self, reason: str) -> list[Draft]:
        """Write the texts that were not complete, and end the turn."""
        drafts = [draft for part in list(self._texts.values()) for draft in self._release(part)]
        return [*drafts, *super().close(reason)]

    def holds_input(self) -> bool:
        return bool(self._texts)

    def _export(self, row: Json) -> list[Draft]:
        drafts = self._session(as_dict(row["info"])) or []
        for message in map(as_dict, as_list(row["messages"])):
            info = as_dict(message.get("info"))
            role, created = as_str(info.get("role")), _created(info)
            rows: list[tuple[Any, list[Draft] | None]] = []
            if role == "user":
                rows.append((info, self._message(info)))
            rows += [(part, self._part(as_dict(part), role, created)) for part in as_list(message.get("parts"))]
            if role != "user":
                rows.append((info, self._message(info)))
            drafts += [
                draft for row, found in rows for draft in (self._raw(row) if found is None else self._begin_turn(found))
            ]
        return drafts

    # Session

    def _session(self, session: Json) -> list[Draft] | None:
        identity = identifier(session.get("id"))
        if not identity:
            return None
        if identifier(session.get("parentID")):
            self._parent = subagent_alias(identity)
            return []
        time, title = as_dict(session.get("time")), as_str(session.get("title"))
        facts: Json = {
            "agent": FORMAT,
            "agent_version": as_str(session.get("version")),
            "foreign_id": identity,
            "project": as_str(session.get("directory")),
            "title": "" if _DEFAULT_TITLE.match(title) else title,
            "continues": identifier(session.get("forkedFrom")),
        }
        changed = {name: value for name, value in facts.items() if value and self._facts.get(name) != value}
        self._facts.update(changed)
        if not changed:
            return []
        event = ev.SessionInfo(**changed, at=epoch_ms(time.get("updated")) or epoch_ms(time.get("created")))
        return [self._draft(event, "session", identity, text_digest(*changed, *changed.values()))]

    # Messages

    def _message(self, info: Json) -> list[Draft] | None:
        identity, role, created = identifier(info.get("id")), info.get("role"), _created(info)
        if not identity or role not in ("user", "assistant"):
            return None
        if role == "user":
            return self._note_turn(identity, created)
        released = [draft for part in list(self._texts.values()) for draft in self._release(part)]
        completed = epoch_ms(as_dict(info.get("time")).get("completed"))
        error = as_dict(info.get("error"))
        if not completed and not error:
            return released
        at = completed or created
        if self._parent is not None:  # Nothing after it would show that its text is complete.
            released.append(self._draft(ev.MessageEnded(at=at), "text-end", str(created), str(at)))
        return [*released, *self._usage(info, created, at), *self._end_turn(info, error, at)]

    def _note_turn(self, turn: str, at: int) -> list[Draft]:
        """Note a message of the user, whose parts follow. Its row changes later, and then tells nothing new."""
        if self._parent is None and turn > self._newest_turn:
            self._newest_turn, self._next_turn = turn, (turn, at)
        return []

    def _begin_turn(self, drafts: list[Draft]) -> list[Draft]:
        """Start a turn directly before its prompt, or before what comes first if it has none."""
        if self._next_turn is None or not drafts:
            return drafts
        first = drafts[0].event
        if isinstance(first, ev.Raw) or (isinstance(first, ev.SessionInfo) and first.notice is UNSET):
            return drafts
        (self._turn_name, at), self._next_turn = self._next_turn, None
        return [self._draft(ev.TurnStarted(turn=self._turn_name, at=at), "turn", str(at or self._turn_name)), *drafts]

    def _end_turn(self, info: Json, error: Json, at: int) -> list[Draft]:
        """End the turn with its last message. opencode does not continue after a refused call."""
        turn = identifier(info.get("parentID"))
        finish = as_str(info.get("finish"))
        was_refused, self._was_refused = self._was_refused, False
        is_last = bool(error) or was_refused or (finish not in ("", CONTINUED) and info.get("summary") is not True)
        if not is_last or self._parent is not None or turn != self._turn_name or not turn:
            return []
        self._turn_name = ""
        reason, detail = REASONS.get(finish, "end_turn"), ""
        if error:
            data = as_dict(error.get("data"))
            reason = "cancelled" if error.get("name") == ABORTED else "error"
            detail = (as_str(data.get("message")) or as_str(error.get("name")))[:2000]
        event = ev.TurnEnded(turn=turn, reason=reason, detail=detail, at=at)
        return [self._draft(event, "turn-end", str(_created(info)), str(at))]

    def _usage(self, info: Json, created: int, at: int) -> list[Draft]:
        """Read the tokens. Each is apart: the input without the cache, the output without the thoughts."""
        tokens, cost = as_dict(info.get("tokens")), _cost_of(info)
        cache = as_dict(tokens.get("cache"))
        read, written = token_count(cache.get("read")), token_count(cache.get("write"))
        reasoning = token_count(tokens.get("reasoning"))
        input_tokens = token_count(tokens.get("input")) + read + written
        output_tokens = token_count(tokens.get("output")) + reasoning
        if not (input_tokens or output_tokens):
            return []
        model = "/".join(name for name in (as_str(info.get("providerID")), as_str(info.get("modelID"))) if name)
        identity = key_of(FORMAT, str(created), str(at), model)
        event = ev.UsageReported(
            id=identity,
            model=model,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cached_tokens=read,
            cache_write_tokens=written,
            reasoning_tokens=reasoning,
            cost=cost,
            currency="" if cost is None else CURRENCY,
            incomplete=bool(info.get("error")),
            at=at,
        )
        return [self._draft(event, "usage", identity)]

    # Parts

    def _part(self, part: Json, role: str, created: int) -> list[Draft] | None:
        kind = part.get("type")
        if not identifier(part.get("id")) or not isinstance(kind, str):
            return None
        if kind == "tool":
            return self._tool(part, created)
        if kind == "text" and role == "user":
            return self._prompt(part, created)
        if kind in ("text", "reasoning"):
            return self._text(part, created)
        if kind == "file" and role == "user":
            return self._file(part, created)
        if kind == "compaction":
            notice = {"severity": "info", "title": "The conversation was compacted"}
            return [self._draft(ev.SessionInfo(notice=notice, at=created), "compacted", str(created))]
        return [] if kind in NOISE_PARTS else None

    def _prompt(self, part: Json, created: int) -> list[Draft]:
        """Read a text of the user, unless the program added it."""
        text = as_str(part.get("text"))
        if not text or part.get("synthetic") is True or part.get("ignored") is True:
            return []
        event = ev.MessageUser(text=text, message_id=identifier(part.get("messageID")), at=created)
        return [self._draft(event, "prompt", str(created), text_digest(text))]

    def _file(self, part: Json, created: int) -> list[Draft]:
        """Read a file that the user attached. Its text is in a text of the program."""
        name, mime = first_text(part, "filename", "url")[:500], as_str(part.get("mime"))
        block = {"type": "resource_link", "uri": as_str(part.get("url")), "name": name, "mimeType": mime}
        event = ev.MessageUser(text="", message_id=identifier(part.get("messageID")), content=[block], at=created)
        return [self._draft(event, "file", str(created), text_digest(name, as_str(part.get("url"))))]

    def _text(self, part: Json, created: int) -> list[Draft]:
        """Read a text of the agent. The row of one that is still written is kept back."""
        if not as_str(part.get("text")) or part.get("ignored") is True:
            return []
        held = {**part, "created": created}
        if not epoch_ms(as_dict(part.get("time")).get("end")):
            self._texts[identifier(part["id"])] = held
            return []
        return self._release(held)

    def _release(self, part: Json) -> list[Draft]:
        self._texts.pop(identifier(part["id"]), None)
        time, text = as_dict(part.get("time")), part["text"]
        is_thought = part["type"] == "reasoning"
        at = epoch_ms(time.get("start")) or part["created"]
        # As over ACP, where a thought has the id of its part.
        message_id = identifier(part.get("id" if is_thought else "messageID")) or key_of(FORMAT, str(at))
        kind = ev.ThoughtDelta if is_thought else ev.MessageDelta
        event = kind(text=text, message_id=message_id, chunks="delta", at=at)
        return [self._draft(event, part["type"], str(part["created"]), str(at), text_digest(text))]

    # Calls

    def _tool(self, part: Json, created: int) -> list[Draft] | None:
        """Read a call. While its arguments are written, it is pending, and not a call yet."""
        state, call_id = as_dict(part.get("state")), identifier(part.get("callID"))
        status, time = state.get("status"), as_dict(state.get("time"))
        if not call_id or status not in ("pending", "running", "completed", "error"):
            return None
        begun = epoch_ms(time.get("start"))
        identity = f"{call_id}:{created or begun}"
        known = self._calls.get(identity, "")
        if status == "pending" or known in ("completed", "error"):
            return []
        metadata = as_dict(state.get("metadata"))
        agent = identifier(metadata.get("sessionId")) if part.get("tool") == TASK_TOOL else ""
        aliases = (*call_aliases(call_id), subagent_alias(agent)) if agent else call_aliases(call_id)
        drafts: list[Draft] = []
        if not known:
            tool = as_str(part.get("tool"))
            started: Json = {
                "aliases": aliases,
                "tool_name": tool or UNSET,
                "kind": KINDS.get(tool, UNSET),
                "input": state.get("input", UNSET),
                "title": as_str(state.get("title")) or UNSET,
                "at": begun or created,
            }
            drafts += start_call(started, key_of(FORMAT, "call", identity), self._parent)
        elif agent and known == "running":
            linked = ev.CallProgress(aliases=aliases, title=as_str(state.get("title")) or UNSET, at=begun)
            drafts.append(self._draft(linked, "agent", identity, agent))
        remember(self._calls, identity, "linked" if agent and status == "running" else str(status))
        if status != "running":
            drafts.append(self._end(part, state, identity, aliases))
        return drafts

    def _end(self, part: Json, state: Json, identity: str, aliases: tuple[Alias, ...]) -> Draft:
        """Return the end of a call. A command with another exit status than 0 failed; opencode says completed."""
        metadata, time = as_dict(state.get("metadata")), as_dict(state.get("time"))
        exit_status = metadata.get("exit")
        exit_status = exit_status if type(exit_status) is int else UNSET
        begun, at = epoch_ms(time.get("start")), epoch_ms(time.get("end"))
        fields: Json = {"title": as_str(state.get("title")) or UNSET, "at": at}
        if 0 < begun <= at:
            fields["duration_ms"] = at - begun
        if state["status"] == "error":
            error: Any = state.get("error")
            if isinstance(error, str) and error.startswith(REFUSAL):
                self._was_refused = True
                return self._draft(ev.CallDenied(aliases=aliases, reason=error[:2000], **fields), "call-end", identity)
            end = ev.CallCancelled if metadata.get("interrupted") is True else ev.CallFailed
            return self._draft(end(aliases=aliases, error=error, **fields), "call-end", identity)
        files = [as_dict(file) for file in as_list(state.get("attachments"))]
        output = state.get("output")
        if files:
            fields["content"] = [
                {"type": "content", "content": {"type": "text", "text": as_str(output)}},
                *({"type": "content", "content": _link_of(file)} for file in files),
            ]
        end = ev.CallFailed if exit_status not in (UNSET, 0) else ev.CallCompleted
        event = end(aliases=aliases, output=output, exit_status=exit_status, **fields)
        return self._draft(event, "call-end", identity)


def session_of_row(session: Any) -> str:
    """Return the session that a row of a session names, that of a sub-agent the session that started it."""
    fields = as_dict(session)
    return identifier(fields.get("parentID")) or identifier(fields.get("id"))


def _created(info: Json) -> int:
    return epoch_ms(as_dict(info.get("time")).get("created"))


def _cost_of(info: Json) -> float | None:
    cost = info.get("cost")
    return float(cost) if isinstance(cost, int | float) and cost is not True and 0 <= cost < 10**9 else None


def _link_of(file: Json) -> Json:
    """Return an attached file as a block of content."""
    url, mime = as_str(file.get("url")), as_str(file.get("mime"))
    head, _, data = url.partition(";base64,")
    if head.startswith("data:image/") and data:
        return {"type": "image", "mimeType": mime, "data": data}
    return {"type": "resource_link", "uri": url, "name": as_str(file.get("filename")), "mimeType": mime}
