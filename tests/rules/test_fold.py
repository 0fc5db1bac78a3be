"""The twelve rules of the fold: how each event changes the entries, and its patches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, structs

from callslip.formats.transcripts import subagent_alias
from callslip.model import events as ev
from callslip.model.entries import Append, Entry, Patch, Put, Set, ToolCall
from callslip.model.events import Alias, Event
from callslip.rules.fold import RULES, SessionFold
from callslip.rules.fold_state import MAX_PARENTLESS
from tests.support.strategies import call_events, canonical_json, json_values, maybe, write_script

ALIASES = (Alias("acp", "1"),)


class Session:
    """A fold that numbers its events like the ledger."""

    def __init__(self) -> None:
        self.state = SessionFold("s")

    def apply(self, *events: Event) -> list[Patch]:
        """Apply events and return the patches of the last one."""
        patches: list[Patch] = []
        for event in events:
            seq = self.state.seq + 1
            patches = self.state.apply(structs.replace(event, seq=seq, at=1000 + seq))
        return patches

    @property
    def entries(self) -> list[Any]:
        return self.state.snapshot().entries

    @property
    def last(self) -> Any:
        return self.entries[-1]


@pytest.fixture
def session() -> Session:
    return Session()


def message(text: str, **fields: Any) -> ev.MessageDelta:
    return ev.MessageDelta(text=text, chunks="delta", **fields)


def thought(text: str, **fields: Any) -> ev.ThoughtDelta:
    return ev.ThoughtDelta(text=text, chunks="delta", **fields)


def kinds(entries: list[Entry]) -> list[str]:
    return [str(type(entry).__struct_config__.tag) for entry in entries]


# RULES 1, 2, 8, 9: texts


def test_a_chunk_extends_the_last_entry_or_creates_an_entry(session: Session) -> None:
    """S2.3, RULE 1: the first chunk makes an entry, the next ones are appended to it."""
    new, added = session.apply(message("Hel"))
    assert isinstance(new, Put) and (new.entry.id, new.entry.streaming) == (1, True)
    assert added == Append(1, "content", 0, "Hel")
    assert session.apply(message("lo")) == [Append(1, "content", 3, "lo")]
    assert (session.last.content, session.last.role, session.last.at) == ("Hello", "assistant", 1001)


def test_thoughts_and_messages_do_not_extend_each_other(session: Session) -> None:
    """S2.3, RULE 9: a thought is an entry of its own, and ends the message before it."""
    session.apply(message("a"), thought("b"), thought("c"), message("d"))
    assert kinds(session.entries) == ["message", "thought", "message"]
    assert [entry.content for entry in session.entries] == ["a", "bc", "d"]
    assert [entry.streaming for entry in session.entries] == [False, False, True]


@pytest.mark.parametrize(
    ("ids", "texts"),
    [
        (["m1", "m1"], ["ab"]),
        (["m1", "m2"], ["a", "b"]),
        (["m1", ""], ["ab"]),
        (["", "m1"], ["ab"]),
        (["", "m1", "m2"], ["ab", "c"]),
        (["m1", "", "m1"], ["abc"]),
        (["m1", "m2", "m1"], ["a", "b", "c"]),
    ],
)
def test_chunks_with_different_message_ids_are_different_texts(
    session: Session, ids: list[str], texts: list[str]
) -> None:
    """S2.3: a chunk without an id continues the streaming text."""
    session.apply(*(message(text, message_id=identity) for text, identity in zip("abc", ids, strict=False)))
    assert [entry.content for entry in session.entries] == texts
    assert session.entries[0].message_id == next(filter(None, ids))


ENDING: list[Event] = [
    ev.MessageEnded(),
    ev.TurnEnded(),
    ev.TurnStarted(turn="t2"),
    ev.MessageUser(text="hi"),
    ev.CallProposed(call="exec_1"),
    ev.PlanUpdated(entries=[]),
    ev.SessionCapabilities(),
    ev.SessionMode(mode="code"),
    thought("hm"),
    message("other", message_id="m2"),
]
NOT_ENDING: list[Event] = [
    ev.MessageEnded(message_id="m9"),
    ev.CallProgress(call="exec_0", text="x"),
    ev.CallCompleted(call="exec_0"),
    ev.SessionCommands(commands=["/help"]),
    ev.SessionInfo(title="t", usage={"tokens": 1}),
    ev.SessionMode(mode="ask"),
    ev.Raw(body="?"),
    message(""),
    thought(""),
    ev.MessageUser(text="no", verdict="witness"),
    ev.CallProposed(call="exec_2", verdict="duplicate"),
]


@pytest.mark.parametrize("event", ENDING, ids=ev.type_of)
def test_a_new_entry_or_the_end_of_the_turn_ends_a_text(session: Session, event: Event) -> None:
    """S2.12, RULE 2: the next chunk starts another text."""
    session.apply(message("a", message_id="m1"))
    assert Set(1, {"streaming": None}) in session.apply(event)
    assert not session.entries[0].streaming
    session.apply(message("b", message_id="m1"))
    assert session.entries[0].content == "a" and session.last.content == "b"


@pytest.mark.parametrize("event", NOT_ENDING, ids=lambda event: f"{ev.type_of(event)}-{event.verdict}")
def test_events_that_make_no_entry_do_not_split_a_text(session: Session, event: Event) -> None:
    """S2.12: an update of a call, a usage figure, an empty chunk, a replay."""
    session.apply(ev.SessionMode(mode="ask"), ev.CallStarted(call="exec_0"), message("a", message_id="m1"))
    session.apply(event, message("b", message_id="m1"))
    assert (session.last.content, session.last.streaming) == ("ab", True)


def test_an_empty_chunk_creates_no_entry(session: Session) -> None:
    """RULE 1"""
    assert session.apply(message("")) == session.apply(thought("")) == []
    assert session.entries == []


def test_a_user_message_is_one_complete_entry(session: Session) -> None:
    """RULE 8: with its content other than text."""
    session.apply(ev.MessageUser(text="look", message_id="m1", content=[{"type": "image"}]), message("ok"))
    user, reply = session.entries
    assert (user.role, user.content, user.message_id, user.blocks) == ("user", "look", "m1", [{"type": "image"}])
    assert (reply.role, user.streaming) == ("assistant", False)


DELTAS = ["one", " two", *(f" {number}" for number in range(3, 50))]


@pytest.mark.parametrize("cls", [ev.MessageDelta, ev.ThoughtDelta])
@pytest.mark.parametrize(
    ("proof", "policy", "rule_runs"),
    [
        ([], "delta", 1),  # declared: from the second chunk on
        ([], "auto", 2),  # undeclared: the second chunk proves it
        (DELTAS[:2], "auto", 1),  # undeclared, proven by an earlier text of this source
    ],
)
def test_only_the_first_delta_of_a_text_is_compared(
    session: Session, monkeypatch: pytest.MonkeyPatch, cls: Any, proof: list[str], policy: Any, rule_runs: int
) -> None:
    """C12: once the chunks of a text are known to be deltas, the others are appended without a comparison."""
    session.apply(*(cls(text=chunk) for chunk in proof), ev.MessageEnded())
    rule, compared = RULES[cls], list[str]()

    def counting_rule(state: SessionFold, event: Any, out: list[Patch] | None) -> None:
        compared.append(event.text)
        rule(state, event, out)

    monkeypatch.setitem(RULES, cls, counting_rule)
    session.apply(*(cls(text=chunk, chunks=policy) for chunk in DELTAS))
    assert compared == DELTAS[:rule_runs]
    assert session.last.content == "".join(DELTAS)


# RULES 3, 4: calls


OPENINGS: list[ev.CallEvent] = [
    ev.CallProposed(),
    ev.CallInputDelta(text="{"),
    ev.CallInput(input={}),
    ev.CallStarted(),
    ev.CallProgress(text="x"),
    ev.CallCompleted(),
    ev.CallFailed(),
]


@pytest.mark.parametrize("event", OPENINGS, ids=ev.type_of)
def test_the_first_event_about_a_call_creates_its_entry(session: Session, event: ev.CallEvent) -> None:
    """S2.6, S2.9, RULE 3: for any type of event, and its seq is the id of the entry."""
    session.apply(ev.TurnStarted(turn="t1"))
    patches = session.apply(structs.replace(event, call="exec_1", aliases=ALIASES, source="agent"))
    assert isinstance(patches[0], Put)
    entry = session.last
    assert (entry.id, entry.call_id, entry.tool_call_id) == (2, "exec_1", "1")
    assert (entry.source, entry.turn, entry.at) == ("agent", "t1", 1002)
    if not isinstance(event, ev.CallEnd):
        session.apply(structs.replace(event, call="exec_1"), ev.CallProgress(call="exec_1", title="more"))
        assert [(entry.id, entry.title) for entry in session.entries] == [(2, "more")]


def test_tool_names_lose_their_server_prefix_and_keep_the_raw_name(session: Session) -> None:
    """S2.5, RULE 3: an explicit raw name wins."""
    session.apply(ev.CallProposed(call="exec_1", tool_name="mcp__acp__Read"))
    assert (session.last.tool_name, session.last.raw_tool_name) == ("Read", "mcp__acp__Read")
    session.apply(ev.CallProgress(call="exec_1", title="x"))
    assert session.last.tool_name == "Read"
    session.apply(ev.CallProgress(call="exec_1", tool_name="Write"))
    assert (session.last.tool_name, session.last.raw_tool_name) == ("Write", None)
    session.apply(ev.CallProgress(call="exec_1", tool_name="Write", raw_tool_name="fs_write"))
    assert (session.last.tool_name, session.last.raw_tool_name) == ("Write", "fs_write")


OPTIONAL_FIELDS = {
    "title": "title",
    "kind": "kind",
    "input": "raw_input",
    "content": "content",
    "locations": "locations",
}
ALL_FIELDS = {**OPTIONAL_FIELDS, "output": "output", "error": "error", "exit_status": "exit_status"}


@given(st.lists(st.fixed_dictionaries({name: maybe(json_values) for name in OPTIONAL_FIELDS}), min_size=1, max_size=5))
def test_an_update_replaces_present_fields_and_keeps_absent_ones(updates: list[dict[str, Any]]) -> None:
    """C10, RULE 4: null clears a field, and 1, 1.0 and true are three values."""
    updates = [
        {**update, **{n: UNSET if update[n] is UNSET else update[n] and "x" for n in ("title", "kind")}}
        for update in updates
    ]
    session = Session()
    session.apply(*(ev.CallProgress(call="exec_1", **update) for update in updates))
    for name, field in OPTIONAL_FIELDS.items():
        values = [update[name] for update in updates if update[name] is not UNSET]
        assert canonical_json(getattr(session.last, field)) == canonical_json(values[-1] if values else None)


@pytest.mark.parametrize("value", [-1, 0, False, "", [], {}, 1.0, "text"])
@pytest.mark.parametrize("name", ["output", "error", "exit_status", "content", "input"])
def test_any_output_value_is_shown(session: Session, name: str, value: Any) -> None:
    """C10: including -1, false and null."""
    session.apply(ev.CallStarted(call="exec_1"), ev.CallCompleted(call="exec_1", **{name: value}))
    assert canonical_json(getattr(session.last, ALL_FIELDS[name])) == canonical_json(value)


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, True), (1, 1.0), ([1], [True]), ({"a": 0}, {"a": False}), (0.0, -0.0), ({"a": [1]}, {"a": [1.0]}), ([], None)],
)
def test_a_change_from_1_to_true_is_a_change(session: Session, first: Any, second: Any) -> None:
    """C9, C10: entries are compared as JSON, live and in edited arguments of an approval."""
    session.apply(ev.CallProposed(call="exec_1", input=first), ev.CallProgress(call="exec_1", input=second))
    assert canonical_json(session.last.raw_input) == canonical_json(second)
    session.apply(ev.ApprovalRequested(call="exec_1", approval="a1"))
    session.apply(ev.ApprovalGranted(call="exec_1", approval="a1", input=first))
    assert canonical_json(session.entries[0].raw_input) == canonical_json(first)


def test_a_later_proposal_clears_no_field(session: Session) -> None:
    """C10: round, index and scope stay unless an event sets them again."""
    session.apply(ev.CallProposed(call="exec_1", iteration=2, index=0, scope="detached"))
    assert session.apply(ev.CallProposed(call="exec_1")) == []
    session.apply(ev.CallProposed(call="exec_1", index=1))
    assert (session.last.iteration, session.last.index, session.last.scope) == (2, 1, "detached")


def test_the_scope_of_a_call_cannot_change(session: Session) -> None:
    """A later proposal cannot detach a call that messages already show as part of its turn."""
    session.apply(ev.CallStarted(call="exec_1"))
    assert session.apply(ev.CallProposed(call="exec_1", scope="detached")) == []
    assert session.last.scope == "turn"


def test_output_and_argument_chunks_are_appended(session: Session) -> None:
    """RULE 4: with offsets in UTF-16 units, as in a browser."""
    session.apply(ev.CallInputDelta(call="exec_1", text='{"a":"😀'))
    assert session.apply(ev.CallInputDelta(call="exec_1", text='"}')) == [Append(1, "inputText", 8, '"}')]
    assert session.apply(ev.CallProgress(call="exec_1", text="é")) == [Append(1, "outputText", 0, "é")]
    assert session.apply(ev.CallProgress(call="exec_1", text="!")) == [Append(1, "outputText", 1, "!")]
    session.apply(ev.CallCompleted(call="exec_1", output="done"))
    assert (session.last.input_text, session.last.output_text) == ('{"a":"😀"}', "é!")


def test_complete_arguments_replace_streamed_ones(session: Session) -> None:
    """RULE 4: and later chunks start a new text."""
    session.apply(ev.CallInputDelta(call="exec_1", text='{"a"'))
    (patch,) = session.apply(ev.CallInput(call="exec_1", input={"a": 1}))
    assert patch == Set(1, {"rawInput": {"a": 1}, "inputText": None})
    assert (session.last.input_text, session.last.raw_input) == ("", {"a": 1})
    assert session.apply(ev.CallInputDelta(call="exec_1", text="{")) == [Append(1, "inputText", 0, "{")]


def test_a_patch_has_changed_fields_only(session: Session) -> None:
    """A new title does not send a long output again."""
    session.apply(ev.CallStarted(call="exec_1", title="a", input={"x": 1}))
    assert session.apply(ev.CallProgress(call="exec_1", title="b", input={"x": 1})) == [Set(1, {"title": "b"})]
    assert session.apply(ev.CallProgress(call="exec_1", title="b")) == []
    assert session.apply(ev.CallProgress(call="exec_1", title=None)) == [Set(1, {"title": None})]


def test_start_end_attempt_and_worker_are_recorded(session: Session) -> None:
    """A second start does not change the start time."""
    session.apply(ev.CallProposed(call="exec_1"), ev.CallStarted(call="exec_1", attempt=1, worker="w1"))
    session.apply(ev.CallStarted(call="exec_1"))
    assert (session.last.started_at, session.last.attempt, session.last.worker) == (1002, 1, "w1")
    session.apply(ev.CallRequeued(call="exec_1"), ev.CallStarted(call="exec_1", attempt=2, worker="w2"))
    assert (session.last.started_at, session.last.attempt, session.last.worker) == (1005, 2, "w2")
    session.apply(ev.CallFailed(call="exec_1", error="no", exit_status=3, reason="it broke"))
    entry = session.last
    assert (entry.status, entry.ended_at, entry.exit_status, entry.reason) == ("failed", 1006, 3, "it broke")


def test_a_nonzero_exit_status_does_not_override_the_agents_status(session: Session) -> None:
    """An exit status other than 0, reported as completed, stays completed and is shown."""
    session.apply(ev.CallCompleted(call="exec_1", exit_status=3))
    assert (session.last.status, session.last.exit_status) == ("completed", 3)


def test_an_output_stored_as_a_blob_is_marked_truncated(session: Session) -> None:
    """S2.8: with a preview, and the blob with its size."""
    blob = ev.Blob("hash", 10**6)
    session.apply(ev.CallCompleted(call="exec_1", output="the beginning", blob=blob))
    assert (session.last.output, session.last.blob, session.last.truncated) == ("the beginning", blob, True)


# RULES 5, 6: approvals


def request_approval(session: Session, **fields: Any) -> None:
    session.apply(ev.CallProposed(call="exec_1", tool_name="rm", title="remove it", input={"path": "/"}))
    session.apply(ev.ApprovalRequested(call="exec_1", approval="a1", **fields))


def test_a_request_entry_has_a_copy_of_the_arguments(session: Session) -> None:
    """RULE 5: with the options of the agent; the call awaits it."""
    options = [{"optionId": "yes", "name": "Go ahead"}]
    request_approval(session, options=options, expires_at=9)
    session.apply(ev.CallInput(call="exec_1", input={"path": "/tmp"}))
    call, request = session.entries
    assert (call.status, call.approval, call.raw_input) == ("awaiting_approval", "a1", {"path": "/tmp"})
    assert (request.id, request.request_id, request.call_id, request.state) == (2, "a1", "exec_1", "pending")
    assert (request.options, request.raw_input, request.expires_at) == (options, {"path": "/"}, 9)
    assert (request.tool_name, request.description) == ("rm", "remove it")


@pytest.mark.parametrize(
    ("answer", "state", "status"),
    [
        (ev.ApprovalGranted, "granted", "queued"),
        (ev.ApprovalRefused, "refused", "denied"),
        (ev.ApprovalWithdrawn, "withdrawn", "cancelled"),
    ],
)
def test_an_answer_is_recorded_on_its_request(session: Session, answer: Any, state: str, status: str) -> None:
    """S2.13, RULE 6: option, time, author and reason; nothing is pending after it."""
    request_approval(session)
    session.apply(answer(call="exec_1", approval="a1", option="opt", by="ann", reason="because"))
    call, request = session.entries
    assert (request.state, request.response_option, request.response_time) == (state, "opt", 1003)
    assert (request.by, request.reason, call.status) == ("ann", "because", status)
    assert call.reason == ("" if status == "queued" else "because")
    assert not session.state.requests


def test_an_answer_may_edit_the_arguments(session: Session) -> None:
    """RULE 6: after an edit the call has the new arguments, and the request has both."""
    request_approval(session)
    session.apply(ev.ApprovalGranted(call="exec_1", approval="a1", input={"path": "/tmp"}))
    call, request = session.entries
    assert (call.raw_input, request.raw_input) == ({"path": "/tmp"}, {"path": "/"})
    assert request.response_input == {"path": "/tmp"}


def test_the_end_of_a_call_makes_its_request_moot(session: Session) -> None:
    """RULE 6: a later answer changes nothing."""
    request_approval(session)
    session.apply(ev.CallCancelled(call="exec_1"))
    before = canonical_json(session.entries)
    assert session.entries[1].state == "moot" and not session.state.requests
    assert session.apply(ev.ApprovalGranted(call="exec_1", approval="a1")) == []
    assert canonical_json(session.entries) == before


def test_a_second_request_supersedes_the_first(session: Session) -> None:
    """RULE 5: a call awaits one answer at a time."""
    request_approval(session)
    session.apply(ev.ApprovalRequested(call="exec_1", approval="a2"))
    call, first, second = session.entries
    assert (first.state, second.state, call.approval) == ("superseded", "pending", "a2")


# RULES 7, 10, 11, 12: the session


def test_each_capabilities_event_creates_a_meta_entry(session: Session) -> None:
    """S2.10, RULE 7: with the commands listed before."""
    session.apply(ev.SessionCommands(commands=["/help"]))
    for mode in ("ask", "code"):
        session.apply(ev.SessionCapabilities(modes=["ask", "code"], models=["m"], current_mode=mode, current_model="m"))
    assert kinds(session.entries) == ["meta", "meta"]
    assert (session.last.current_mode_id, session.last.available_commands) == ("code", ["/help"])
    assert (session.state.info.current_mode_id, session.state.info.current_model_id) == ("code", "m")


def test_each_plan_is_a_separate_entry(session: Session) -> None:
    """RULE 10: each plan is complete and does not change an older one."""
    for status in ("pending", "completed"):
        session.apply(ev.PlanUpdated(entries=[{"content": "look", "priority": "high", "status": status}]))
    assert [plan.entries[0]["status"] for plan in session.entries] == ["pending", "completed"]


def test_a_mode_change_creates_an_entry(session: Session) -> None:
    """S2.10, RULE 11: with the previous mode; an unchanged mode creates none."""
    session.apply(ev.SessionMode(mode="ask"))
    assert session.apply(ev.SessionMode(mode="ask")) == []
    session.apply(ev.SessionMode(mode="code"))
    assert [(entry.previous_mode_id, entry.new_mode_id) for entry in session.entries] == [("", "ask"), ("ask", "code")]


def test_commands_change_the_session_and_create_no_entry(session: Session) -> None:
    """S2.10, S2.14, RULE 12: the page receives them as session fields, as entry 0 of the patches."""
    assert session.apply(ev.SessionCommands(commands=["/a"])) == [Set(0, {"availableCommands": ["/a"]})]
    assert session.apply(ev.SessionCommands(commands=[])) == [Set(0, {"availableCommands": None})]
    assert session.entries == []


def test_session_fields_stay_until_they_change(session: Session) -> None:
    """C10: an absent field is unchanged, null clears it."""
    session.apply(ev.SessionInfo(title="a", usage={"tokens": 1}))
    assert session.apply(ev.SessionInfo(usage={"tokens": 2})) == [Set(0, {"usage": {"tokens": 2}})]
    assert session.apply(ev.SessionInfo(title=None)) == [Set(0, {"title": None})]
    assert (session.state.info.title, session.state.info.usage) == (None, {"tokens": 2})
    assert session.apply(ev.SessionInfo()) == []


def test_entries_belong_to_the_turn_they_began_in(session: Session) -> None:
    """A call that continues in a later turn stays in its first turn."""
    session.apply(ev.TurnStarted(turn="t1"), ev.CallStarted(call="exec_1"), ev.TurnEnded(turn="t1"))
    session.apply(ev.TurnStarted(turn="t2"), ev.CallProgress(call="exec_1", title="x"), ev.MessageUser(text="hi"))
    assert [entry.turn for entry in session.entries] == ["t1", "t2"]


# Verdicts


@pytest.mark.parametrize("verdict", ["duplicate", "orphan", "illegal", "witness"])
@given(event=call_events())
def test_only_applied_events_change_entries(verdict: str, event: Event) -> None:
    """C4: all other events stay in the log and do not change entries."""
    session = Session()
    session.apply(ev.CallStarted(call="exec_1"))
    before = canonical_json(session.entries)
    assert session.apply(structs.replace(event, call="exec_1", verdict=verdict)) == []
    assert canonical_json(session.entries) == before


def test_every_event_type_has_a_rule_except_raw_and_usage() -> None:
    """S2.2: the rules are one table; only `raw` and the usage, which is in rows of its own, have no rule."""
    assert set(ev.EVENT_TYPES.values()) - set(RULES) == {ev.Raw, ev.UsageReported}


def test_the_rules_create_exactly_the_seven_entry_types() -> None:
    """S2.1"""
    memory = write_script(
        [
            ev.SessionCapabilities(modes=["ask"]),
            ev.SessionMode(mode="code"),
            ev.MessageUser(text="hi"),
            thought("hm"),
            message("ok"),
            ev.PlanUpdated(entries=[]),
            ev.ApprovalRequested(tool_name="rm"),
        ]
    )
    assert kinds(memory.state.snapshot().entries) == [
        *("meta", "mode_change", "message", "thought", "message", "plan", "tool_call", "permission_request")
    ]


def test_a_checkpoint_has_few_entries_of_unknown_sub_agents() -> None:
    """SUB5: the call of a sub-agent may never be known; the first entries still get it as their parent."""
    events = [
        ev.MessageUser(seq=number, text="look", message_id=f"p{number}", parent="agent-7")
        for number in range(1, MAX_PARENTLESS + 3)
    ]
    fold = SessionFold()
    fold.fold(events)
    assert sum(map(len, fold.parentless.values())) == MAX_PARENTLESS
    task = ev.CallStarted(seq=len(events) + 1, call="exec_000000000001", aliases=(subagent_alias("agent-7"),))
    fold.fold([task])
    entries = [entry for entry in fold.snapshot().entries if not isinstance(entry, ToolCall)]
    assert [entry.parent for entry in entries] == ["exec_000000000001"] * MAX_PARENTLESS + ["agent-7"] * 2
