"""Export calls as spans of OpenTelemetry: valid OTLP in JSON, and objects for the exporters of the SDK."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv.attributes import error_attributes, service_attributes
from opentelemetry.trace import SpanKind, StatusCode

from callslip import otel
from callslip.formats import registry
from callslip.formats.otel.encode import document
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Info, Message, Snapshot, ToolCall
from callslip.model.events import Alias, Blob, Event
from callslip.model.state_names import STATE_NAMES
from callslip.rules.fold import SessionFold
from callslip.rules.lifecycle import TERMINAL_STATES
from tests.support import scenarios, stream_checks
from tests.support.strategies import scripts, write_script

START_MS = 1_700_000_000_000
DIGITS = re.compile(r"0|[1-9][0-9]{0,18}")
SPAN_FIELDS = {
    "traceId",
    "spanId",
    "parentSpanId",
    "name",
    "kind",
    "startTimeUnixNano",
    "endTimeUnixNano",
    "attributes",
    "status",
}


# The rules of OTLP in JSON


def find_problems(body: bytes) -> list[str]:
    """Return what a collector would reject or misread in a document."""
    document_json = json.loads(body)
    problems = [] if document_json.keys() == {"resourceSpans"} else [f"the document has {sorted(document_json)}"]
    for resource in document_json["resourceSpans"]:
        problems += [] if resource.keys() == {"resource", "scopeSpans"} else [f"a resource has {sorted(resource)}"]
        problems += attribute_problems(resource["resource"]["attributes"])
        for scope in resource["scopeSpans"]:
            problems += [] if scope["scope"]["name"] else ["a scope without a name"]
            problems += [problem for span in scope["spans"] for problem in span_problems(span)]
    span_ids = [(span["traceId"], span["spanId"]) for span in list_spans(body)]
    return problems + ([] if len(span_ids) == len(set(span_ids)) else ["a span is repeated"])


def span_problems(span: dict[str, Any]) -> Iterator[str]:
    if not SPAN_FIELDS - {"parentSpanId"} <= span.keys() <= SPAN_FIELDS:
        yield f"a span has {sorted(span)}"
    for name, length in (("traceId", 32), ("spanId", 16), ("parentSpanId", 16)):
        identity = span.get(name, "f" * length)
        if not re.fullmatch(rf"[0-9a-f]{{{length}}}", identity) or not int(identity, 16):
            yield f"{name} is {identity!r}"
    times = [span["startTimeUnixNano"], span["endTimeUnixNano"]]
    if not all(isinstance(time, str) and DIGITS.fullmatch(time) for time in times) or int(times[0]) > int(times[1]):
        yield f"from {times[0]!r} to {times[1]!r}"
    if type(span["kind"]) is not int or span["status"].get("code") not in (0, 1, 2):
        yield "the kind or the status code is not a known number"
    if not span["name"]:
        yield "a span without a name"
    yield from attribute_problems(span["attributes"])


def attribute_problems(attributes: list[Any]) -> Iterator[str]:
    names = [attribute["key"] for attribute in attributes]
    if len(names) != len(set(names)) or "" in names:
        yield f"attributes {names}"
    for attribute in attributes:
        ((kind, value),) = attribute["value"].items()
        if not isinstance(value, str) or kind not in ("stringValue", "intValue"):
            yield f"{attribute['key']} is {attribute['value']}"
        elif kind == "intValue" and not DIGITS.fullmatch(value):
            yield f"{attribute['key']} is not a number"


def list_spans(body: bytes) -> list[dict[str, Any]]:
    """Return the spans of a document."""
    scopes = [scope for resource in json.loads(body)["resourceSpans"] for scope in resource["scopeSpans"]]
    return [span for scope in scopes for span in scope["spans"]]


def attributes(span: dict[str, Any]) -> dict[str, str]:
    return {attribute["key"]: value for attribute in span["attributes"] for value in attribute["value"].values()}


def fold_states(log: Sequence[Event], session: str = "s") -> Iterator[SessionFold]:
    state = SessionFold(session)
    for event in log:
        state.apply(event)
        yield state


def ended_calls(state: SessionFold) -> list[ToolCall]:
    """Return the calls that have ended."""
    return [
        entry for entry in state.entries.values() if isinstance(entry, ToolCall) and entry.status in TERMINAL_STATES
    ]


def check_spans(state: SessionFold) -> None:
    """Check that each ended call is one valid span, and that no other call is."""
    body = document(state, content=True)
    assert not find_problems(body)
    spans = {attributes(span).get("callslip.call.id"): span for span in list_spans(body)}
    spans.pop(None, None)
    assert spans.keys() == {call.call_id for call in ended_calls(state)}
    for call in ended_calls(state):
        span, values = spans[call.call_id], attributes(spans[call.call_id])
        failed = STATE_NAMES[call.status].error
        assert (span["status"]["code"] == 2) is ("error.type" in values) is failed
        assert values["gen_ai.tool.call.id"] == call.tool_call_id
        assert ("parentSpanId" in span) is bool(call.turn)


@pytest.mark.parametrize("name", scenarios.NAMES)
def test_scenarios_give_a_span_for_every_ended_call(name: str) -> None:
    """In a document that a collector accepts."""
    log = scenarios.load_events(name)
    for state in fold_states(log):
        if name != "long" or state.seq % 25 == 0 or state.seq == len(log):
            check_spans(state)


@pytest.mark.parametrize("name", stream_checks.CAPTURE_NAMES)
def test_captures_give_a_span_for_every_ended_call(name: str) -> None:
    """Every session of every capture, at its end."""
    logs = stream_checks.load_capture(name)
    assert any(logs)
    for log in logs:
        *_, state = fold_states(log)
        check_spans(state)


@given(scripts())
def test_any_session_gives_a_span_for_every_ended_call(script: list[Event]) -> None:
    """For calls that ended in any way."""
    log = write_script(script).log
    for state in fold_states(log):
        if state.seq % 5 == 0 or state.seq == len(log):
            check_spans(state)


@given(scripts())
def test_an_exported_span_does_not_change(script: list[Event]) -> None:
    """A growing session has more spans, and the earlier ones are unchanged."""
    before: dict[str, Any] = {}
    for state in fold_states(write_script(script).log):
        now = {span["spanId"]: span for span in list_spans(document(state, content=True))}
        assert before.keys() <= now.keys()
        for identity, span in before.items():
            if span["name"] != "invoke_agent":
                assert now[identity] == span
        before = now


def test_the_checker_reports_invalid_documents() -> None:
    """One case for each rule."""
    *_, state = fold_states(scenarios.load_events("parallel_calls"))
    body = document(state)
    assert not find_problems(body) and len(list_spans(body)) > 2
    for field, value in (
        ("traceId", "AB" * 16),
        ("traceId", "0" * 32),
        ("spanId", "abc"),
        ("parentSpanId", ""),
        ("name", ""),
        ("kind", "SPAN_KIND_INTERNAL"),
        ("startTimeUnixNano", 5),
        ("startTimeUnixNano", "9" * 19),
        ("endTimeUnixNano", "1e9"),
        ("status", {}),
        ("attributes", [{"key": "a", "value": {"intValue": 1}}]),
        ("attributes", [{"key": "a", "value": {"stringValue": "x"}}] * 2),
        ("dropped", 1),
    ):
        parsed = json.loads(body)
        parsed["resourceSpans"][0]["scopeSpans"][0]["spans"][0][field] = value
        assert find_problems(codec.encode(parsed)), field
    parsed = json.loads(body)
    spans = parsed["resourceSpans"][0]["scopeSpans"][0]["spans"]
    spans.append(spans[0])
    assert find_problems(codec.encode(parsed)) == ["a span is repeated"]


# Content of the spans


def call(**fields: Any) -> ToolCall:
    defaults: dict[str, Any] = {"id": 2, "call_id": "exec_0123456789ab", "tool_call_id": "call_1", "tool_name": "ls"}
    times = {"at": START_MS, "started_at": START_MS + 10, "ended_at": START_MS + 1510, "turn": "t"}
    return ToolCall(**(defaults | times | {"status": "completed", "end": 3} | fields))


def snapshot_of(*entries: Any, turn: str = "") -> Snapshot:
    return Snapshot("thread-1", 9, Info(turn=turn), list(entries))


def span_of(entry: ToolCall, *, content: bool = False) -> dict[str, Any]:
    """Return the span of a call."""
    return list_spans(document(snapshot_of(entry, turn="t"), content=content))[0]


def test_a_call_is_a_span_by_the_semantic_conventions() -> None:
    """With name, start and end, and by default without content."""
    span = span_of(call(raw_input={"secret": 1}, output="secret", title="secret"))
    assert (span["name"], span["kind"], span["status"]) == ("execute_tool ls", 1, {"code": 0})
    assert span["startTimeUnixNano"] == "1700000000010000000" and span["endTimeUnixNano"] == "1700000001510000000"
    assert attributes(span) == {
        gen_ai.GEN_AI_OPERATION_NAME: gen_ai.GenAiOperationNameValues.EXECUTE_TOOL.value,
        gen_ai.GEN_AI_TOOL_NAME: "ls",
        gen_ai.GEN_AI_TOOL_CALL_ID: "call_1",
        gen_ai.GEN_AI_CONVERSATION_ID: "thread-1",
        "callslip.call.id": "exec_0123456789ab",
        "callslip.call.state": "completed",
    }


@pytest.mark.parametrize("state", sorted(TERMINAL_STATES))
def test_every_end_state_has_its_span_status(state: str) -> None:
    """Only `completed` is no error; the reason is content."""
    entry = call(status=state, error={"message": "secret"}, reason="secret")
    span = span_of(entry)
    assert attributes(span).get(error_attributes.ERROR_TYPE) == (None if state == "completed" else state)
    assert span["status"] == {"code": 0 if state == "completed" else 2}
    assert "secret" not in json.dumps(span)
    assert ("secret" in span_of(entry, content=True)["status"].get("message", "")) is (state != "completed")


def test_content_is_exported_only_on_request() -> None:
    """Arguments and result as text; a truncated result has its beginning and its full size."""
    entry = call(raw_input={"path": "/a"}, output="begin", truncated=True, blob=Blob("h", 9000))
    values = attributes(span_of(entry, content=True))
    assert values[gen_ai.GEN_AI_TOOL_CALL_ARGUMENTS] == '{"path":"/a"}'
    assert values[gen_ai.GEN_AI_TOOL_CALL_RESULT] == "begin\n(cut: only the beginning of 9000 bytes is shown)"
    without = attributes(span_of(entry))
    assert without["callslip.call.output.size"] == "9000"
    assert not {gen_ai.GEN_AI_TOOL_CALL_ARGUMENTS, gen_ai.GEN_AI_TOOL_CALL_RESULT} & without.keys()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"raw_tool_name": "mcp__acp__ls"}, "execute_tool ls"),
        ({"tool_name": None, "kind": "read"}, "execute_tool read"),
        ({"tool_name": ""}, "execute_tool unknown"),
    ],
)
def test_a_span_is_named_by_its_tool_without_the_server_prefix(fields: dict[str, Any], name: str) -> None:
    """So one tool has one span name."""
    assert span_of(call(**fields))["name"] == name


@pytest.mark.parametrize(
    ("fields", "times"),
    [
        ({"started_at": 0}, (START_MS * 10**6, (START_MS + 1510) * 10**6)),
        ({"ended_at": START_MS - 5}, ((START_MS + 10) * 10**6,) * 2),
        ({"at": 0, "started_at": 0, "ended_at": 0}, (0, 0)),
        ({"started_at": 2**62, "ended_at": 2**62}, (2**63 - 1,) * 2),
        ({"started_at": -5}, (0, (START_MS + 1510) * 10**6)),
    ],
)
def test_span_times_are_in_range_and_ordered(fields: dict[str, Any], times: tuple[int, int]) -> None:
    """Also for sources with wrong clocks; no span ends before it starts."""
    span = span_of(call(**fields))
    assert (int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])) == times


def test_a_turn_is_a_trace_with_a_parent_span_of_its_calls() -> None:
    """From its first entry to the end of the last call it waits for."""
    prompt = Message(id=1, at=START_MS - 20, turn="t", role="user", content="Go.")
    detached = call(id=5, call_id="exec_3", scope="detached", ended_at=START_MS + 10**6)
    turn, first, second, _ = list_spans(document(snapshot_of(prompt, call(), call(id=4, call_id="exec_2"), detached)))
    assert turn["name"] == "invoke_agent" and "parentSpanId" not in turn
    assert turn["startTimeUnixNano"] == "1699999999980000000" and turn["endTimeUnixNano"] == first["endTimeUnixNano"]
    assert first["parentSpanId"] == second["parentSpanId"] == turn["spanId"]
    assert first["traceId"] == second["traceId"] == turn["traceId"]
    assert first["spanId"] != second["spanId"]
    assert attributes(turn) == {
        gen_ai.GEN_AI_OPERATION_NAME: gen_ai.GenAiOperationNameValues.INVOKE_AGENT.value,
        gen_ai.GEN_AI_CONVERSATION_ID: "thread-1",
    }


@pytest.mark.parametrize(
    ("entries", "turn", "names"),
    [
        ([call()], "t", ["execute_tool ls"]),
        ([call(), call(call_id="exec_2", status="running", ended_at=0)], "", ["execute_tool ls"]),
        (
            [call(), call(call_id="exec_2", status="queued", ended_at=0, scope="detached")],
            "",
            ["invoke_agent", "execute_tool ls"],
        ),
        ([call(turn="")], "", ["execute_tool ls"]),
        ([call(status="awaiting_approval", ended_at=0)], "t", []),
    ],
)
def test_open_calls_and_open_turns_have_no_span(entries: list[ToolCall], turn: str, names: list[str]) -> None:
    """Nor has a turn that waits for a call, unless the call is detached."""
    assert [span["name"] for span in list_spans(document(snapshot_of(*entries, turn=turn)))] == names


def test_span_and_trace_ids_are_stable_and_unique() -> None:
    """They differ by session, turn and call; calls outside of turns share no trace."""
    first = span_of(call())
    assert first == span_of(call())
    others = [
        list_spans(document(Snapshot("thread-2", 9, Info(turn="t"), [call()])))[0],
        list_spans(document(snapshot_of(call(turn="u"), turn="u")))[0],
    ]
    outside_of_turns = list_spans(document(snapshot_of(call(turn=""), call(turn="", call_id="exec_2"))))
    assert len({span["traceId"] for span in [first, *others, *outside_of_turns]}) == 5
    assert len({span["spanId"] for span in [first, others[0], outside_of_turns[1]]}) == 3
    assert all("parentSpanId" not in span for span in outside_of_turns)


def test_a_session_without_calls_is_an_empty_document() -> None:
    """Without an empty resource."""
    assert document([]) == b'{"resourceSpans":[]}'
    assert registry.document("otel") is document


# The SDK


def test_the_sdk_exports_the_same_spans() -> None:
    """The objects for an exporter equal the spans of the document."""
    *_, state = fold_states(scenarios.load_events("call_fails"), "thread-1")
    exporter = InMemorySpanExporter()
    assert exporter.export(otel.spans(state, content=True)) is SpanExportResult.SUCCESS
    exported, expected = exporter.get_finished_spans(), list_spans(document(state, content=True))
    assert len(exported) == len(expected) > 1
    assert {span.status.status_code for span in exported} == {StatusCode.UNSET, StatusCode.ERROR}
    for span, document_span in zip(exported, expected, strict=True):
        assert span.context is not None and span.kind is SpanKind.INTERNAL
        assert span.resource.attributes[service_attributes.SERVICE_NAME] == "callslip"
        assert {name: str(value) for name, value in (span.attributes or {}).items()} == attributes(document_span)
        assert document_span == {
            "name": span.name,
            "traceId": f"{span.context.trace_id:032x}",
            "spanId": f"{span.context.span_id:016x}",
            **({"parentSpanId": f"{span.parent.span_id:016x}"} if span.parent else {}),
            "startTimeUnixNano": str(span.start_time),
            "endTimeUnixNano": str(span.end_time),
            "kind": 1,
            "attributes": document_span["attributes"],
            "status": {
                "code": span.status.status_code.value,
                **({"message": span.status.description} if span.status.description else {}),
            },
        }
        assert span.to_json()


def test_sdk_spans_have_content_only_on_request() -> None:
    """Like the document."""
    (span,) = otel.spans(snapshot_of(call(status="failed", error="secret", raw_input="secret"), turn="t"))
    assert "secret" not in span.to_json()


def test_the_document_does_not_need_the_opentelemetry_sdk() -> None:
    """The SDK is needed only for its own objects."""
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import callslip.otel\nfrom callslip.formats.otel.encode import document\nprint(document([]).decode())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == '{"resourceSpans":[]}'


def test_calls_closed_by_their_turn_have_its_error_type() -> None:
    """A cancelled turn ends its open call, whose span has the error type `cancelled`."""
    aliases = (Alias("t", "1"),)
    events = [ev.TurnStarted(), ev.CallStarted(aliases=aliases, tool_name="ls"), ev.TurnEnded(reason="cancelled")]
    turn, span = list_spans(document(write_script(events).state))
    assert (turn["name"], attributes(span)["error.type"]) == ("invoke_agent", "cancelled")
