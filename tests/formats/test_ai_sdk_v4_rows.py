"""Stored rows: decode them into a session, or convert them to messages of the AI SDK 4 without a ledger."""

from __future__ import annotations

import copy
import json
import random
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.errors import InvalidInputError
from callslip.formats.ai_sdk_v4 import format_messages_to_vercel, vercel_json
from callslip.formats.ai_sdk_v4.rows_decode import MAX_ROW_BYTES, RowsDecoder
from callslip.formats.ai_sdk_v4.threads import Threads
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Message, PermissionRequest, ToolCall
from tests.support import format_cases
from tests.support.strategies import MemoryLedger, canonical_json

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def time(number: int) -> str:
    return (NOON + timedelta(seconds=number)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def row(number: int, kind: str, content: Any, calls: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return a row as stored in a database: its content is JSON text."""
    fields = {"id": f"m{number}", "entity": kind, "content": json.dumps(content), "creationDate": time(number)}
    return {**fields, "isComplete": True, "toolCalls": calls or [], **more}


def call(identity: str, validated: Any = None, name: str = "get_weather", args: str = '{"city": "Paris"}') -> Any:
    return {"id": identity, "name": name, "arguments": args, "validated": validated}


def weather() -> list[dict[str, Any]]:
    """Return rows with a question, a call, its result and the answer."""
    return [
        row(1, "USER", {"content": "What's the weather in Paris?"}),
        row(2, "AI_TOOL", {"content": "I'll check the weather"}, [call("call_123")]),
        row(3, "TOOL", {"tool_call_id": "call_123", "content": '{"temp": 20}'}),
        row(4, "AI_MESSAGE", {"content": "The weather in Paris is 20°C"}),
    ]


def invocations(messages: list[Any]) -> list[Any]:
    """Return all calls of messages, oldest first."""
    parts = [part for message in reversed(messages) for part in message["parts"]]
    return [part["toolInvocation"] for part in parts if part["type"] == "tool-invocation"]


def notes(messages: list[Any], key: str) -> dict[str, Any]:
    """Return the annotations of calls or of messages by id."""
    annotations = [note for message in messages for note in message["annotations"] if key in note]
    assert len({note[key] for note in annotations}) == len(annotations)
    return {note[key]: note for note in annotations}


# Messages


def test_text_call_and_text_are_one_assistant_message() -> None:
    """S4.8: the question follows it, since the newest message is first."""
    answer, question = format_messages_to_vercel(weather()[::-1], {})
    assert answer == {
        "id": "m4",
        "role": "assistant",
        "createdAt": time(4),
        "content": "The weather in Paris is 20°C",
        "parts": [
            {"type": "text", "text": "I'll check the weather"},
            {
                "type": "tool-invocation",
                "toolInvocation": {
                    "state": "result",
                    "step": 0,
                    "toolCallId": "call_123",
                    "toolName": "get_weather",
                    "args": {"city": "Paris"},
                    "result": '{"temp": 20}',
                },
            },
            {"type": "text", "text": "The weather in Paris is 20°C"},
        ],
        "annotations": [
            {"toolCallId": "call_123", "validated": "not_required", "isComplete": True},
            {"messageId": "m4", "isComplete": True},
        ],
    }
    assert question == {
        "id": "m1",
        "role": "user",
        "createdAt": time(1),
        "content": "What's the weather in Paris?",
        "parts": [{"type": "text", "text": "What's the weather in Paris?"}],
        "annotations": [{"messageId": "m1", "isComplete": True}],
    }


RESULTS = [
    ({"tool_call_id": "c", "content": "out"}, "out"),
    ({"toolCallId": "c", "content": "out"}, "out"),
    ({"tool_call_id": "c", "result": "out"}, "out"),
    ({"tool_call_id": "c", "content": "", "result": "out"}, "out"),
    ({"tool_call_id": "c", "content": None, "result": {"a": 1}}, {"a": 1}),
    ({"tool_call_id": "c", "content": {"a": [1]}}, {"a": [1]}),
    ({"tool_call_id": "c", "content": 0}, 0),
    ({"tool_call_id": "c", "content": False, "result": "out"}, False),
    ({"tool_call_id": "c"}, ""),
]


def test_calls_are_read_from_a_column_with_json_text() -> None:
    """ROW1: a table without JSON columns has the list of calls as text, in dicts as in rows of a driver."""
    content = {"content": "Let me look."}
    calls = [{"id": "c1", "name": "search", "arguments": "{}"}]
    as_list = {"id": "a", "entity": "AI_TOOL", "content": content, "tool_calls": calls}
    as_text = {**as_list, "tool_calls": json.dumps(calls)}
    assert format_messages_to_vercel([as_text]) == format_messages_to_vercel([as_list])
    assert json.loads(vercel_json(json.dumps([as_text]))) == format_messages_to_vercel([as_list])
    (message,) = format_messages_to_vercel([as_text])
    assert message["parts"][-1]["toolInvocation"]["toolCallId"] == "c1"


@pytest.mark.parametrize(("content", "result"), RESULTS)
@pytest.mark.parametrize("as_text", [True, False])
def test_every_spelling_of_a_result_is_read(content: Any, result: Any, as_text: bool) -> None:
    """S4.1: either id; content before result, or else empty; a content column of text or of JSON."""
    rows = [*weather()[:1], row(2, "AI_TOOL", {}, [call("c")]), row(3, "TOOL", content)]
    if not as_text:
        rows[2]["content"] = content
    (invocation,) = invocations(format_messages_to_vercel(rows, {}))
    assert (invocation["state"], invocation["result"]) == ("result", result)
    assert json.loads(vercel_json(json.dumps(rows))) == format_messages_to_vercel(rows)


SNAKE_CASE = {
    "id": "message_id",
    "creationDate": "creation_date",
    "isComplete": "is_complete",
    "toolCalls": "tool_calls",
}
SPELLINGS = [
    {},
    SNAKE_CASE,
    {"id": "messageId", "creationDate": "createdAt"},
    {"creationDate": "created_at", "content": "msg_content"},
]


def rename_columns(rows: list[dict[str, Any]], names: dict[str, str]) -> list[dict[str, Any]]:
    return [{names.get(name, name): value for name, value in row.items()} for row in rows]


@pytest.mark.parametrize("names", SPELLINGS)
def test_every_spelling_of_a_column_is_read(names: dict[str, str]) -> None:
    """S4.1: camelCase, snake_case, and the names of the backend's own API."""
    rows = rename_columns(weather(), names)
    lowercase = [{**row, "entity": row["entity"].lower()} for row in rows]
    assert (
        format_messages_to_vercel(rows) == format_messages_to_vercel(lowercase) == format_messages_to_vercel(weather())
    )
    assert json.loads(vercel_json(json.dumps(rows))) == format_messages_to_vercel(weather())


class Entity(Enum):
    USER = "user"
    AI_MESSAGE = "ai_message"


def test_rows_can_have_values_of_database_drivers() -> None:
    """Enumerations, UUIDs and time objects are converted to JSON text."""
    identity = UUID(int=7)
    rows = [
        {"message_id": identity, "entity": Entity.USER, "content": "Hi", "creation_date": NOON.replace(tzinfo=None)},
        {"message_id": 8, "entity": Entity.AI_MESSAGE, "content": {"content": "Ho"}, "creation_date": NOON.timestamp()},
    ]
    answer, question = format_messages_to_vercel(rows)
    assert (question["id"], question["createdAt"]) == (str(identity), "2026-03-01T12:00:00.000Z")
    assert (answer["id"], answer["createdAt"]) == ("8", "2026-03-01T12:00:00.000Z")
    assert json.loads(json.dumps([answer, question])) == [answer, question]


def test_reasoning_precedes_text_and_each_part_has_an_annotation() -> None:
    """S4.2: also in a round of calls; the client sends the details back to a model."""
    content = {"content": "Looking", "reasoning": "Which city?"}
    rows = [
        row(1, "USER", {"content": "Weather?"}, isComplete=False),
        row(2, "AI_TOOL", content, [call("a"), call("b")], isComplete=False),
        row(3, "TOOL", {"tool_call_id": "a", "content": "x"}),
        row(4, "AI_MESSAGE", {"content": "Done", "reasoning": "Enough."}, isComplete=False),
    ]
    messages = format_messages_to_vercel(rows)
    parts = messages[0]["parts"]
    kinds = ["reasoning", "text", "tool-invocation", "tool-invocation", "reasoning", "text"]
    assert [part["type"] for part in parts] == kinds
    assert parts[0] == {
        "type": "reasoning",
        "reasoning": "Which city?",
        "details": [{"type": "text", "text": "Which city?"}],
    }
    assert {name: note["isComplete"] for name, note in notes(messages, "toolCallId").items()} == {"a": True, "b": False}
    assert {name: note["isComplete"] for name, note in notes(messages, "messageId").items()} == {
        "m1": False,
        "m4": False,
    }


VALIDATED = [
    (True, "accepted", "accepted"),
    (False, "rejected", "rejected"),
    (None, "pending", "not_required"),
    (1, "accepted", "accepted"),
    (0, "rejected", "rejected"),
    ("accepted", "accepted", "accepted"),
    ("not_required", "not_required", "not_required"),
    ([], "pending", "not_required"),
]


@pytest.mark.parametrize(("stored", "required", "optional"), VALIDATED)
def test_a_call_has_the_decision_of_the_user(stored: Any, required: str, optional: str) -> None:
    """S4.3: the stored decision, or else whether the tool requires approval, by a mapping or a function."""
    rows = [row(1, "AI_TOOL", {}, [call("c", stored)])]
    for approval_map, expected in (({"get_weather": True}, required), ({"other": True}, optional), (None, optional)):
        messages = format_messages_to_vercel(rows, approval_map)
        assert notes(messages, "toolCallId")["c"]["validated"] == expected
        assert json.loads(vercel_json(json.dumps(rows), approval_map)) == messages
        if approval_map is not None:
            assert format_messages_to_vercel(rows, lambda tool, names=approval_map: names.get(tool, False)) == messages


def test_calls_without_a_result_get_a_placeholder() -> None:
    """S4.4: with the time of the next USER row, or else of the last row."""
    rows = [
        *weather()[:3],
        row(7, "USER", {"content": "Never mind"}),
        row(8, "AI_TOOL", {"content": "Again"}, [call("b")]),
        row(9, "TOOL", {"tool_call_id": "b", "content": "x"}),
    ]
    last, _, first, _ = format_messages_to_vercel(rows)
    assert [message["createdAt"] for message in (first, last)] == [time(7), time(9)]
    assert [message["content"] for message in (first, last)] == ["", ""]
    assert [[part["type"] for part in message["parts"]] for message in (first, last)] == [
        ["text", "tool-invocation"]
    ] * 2
    assert first["annotations"][-1] == {"messageId": first["id"], "isComplete": False}
    assert first["id"] != last["id"] and UUID(first["id"]) and UUID(last["id"])


def test_the_id_of_a_placeholder_is_stable() -> None:
    """S4.4: for any rows after it and on any page."""
    rows = weather()[:2]
    (first, _), (again, _) = format_messages_to_vercel(rows), format_messages_to_vercel(weather()[:3])
    (alone,) = format_messages_to_vercel(rows[1:])
    later = format_messages_to_vercel([*rows, row(9, "USER", {"content": "And?"})])[1]
    assert first["id"] == again["id"] == alone["id"] == later["id"]
    longer = format_messages_to_vercel([*rows, row(8, "AI_TOOL", {"content": "And"}, [call("b")])])[0]
    assert len(longer["parts"]) == 4 and longer["id"] == first["id"]
    other = format_messages_to_vercel([{**rows[1], "id": "m77"}])[0]
    assert other["id"] != first["id"]


def test_a_call_is_in_state_call_until_its_result() -> None:
    """S4.7: then in state `result`."""
    before, after = (invocations(format_messages_to_vercel(weather()[:n]))[0] for n in (2, 3))
    assert before["state"] == "call" and "result" not in before
    assert after["state"] == "result" and {**before, "state": "result", "result": '{"temp": 20}'} == after


def test_the_step_of_a_call_is_its_round_in_the_message() -> None:
    """The client separates rounds by it for a model; a round without calls does not count."""
    rows = [
        row(1, "AI_TOOL", {}, [call("a"), call("b")]),
        row(2, "AI_TOOL", {"content": "hm"}),
        row(3, "AI_TOOL", {}, [call("c")]),
        row(4, "AI_MESSAGE", {"content": "."}),
        row(5, "AI_TOOL", {}, [call("d")]),
    ]
    steps = {
        invocation["toolCallId"]: invocation["step"] for invocation in invocations(format_messages_to_vercel(rows))
    }
    assert steps == {"a": 0, "b": 0, "c": 1, "d": 0}


# Bad input


def test_malformed_arguments_affect_only_their_call() -> None:
    """C11: they stay text; missing ones are an empty object."""
    arguments = ['{"city": ', "{}", "", "NaN", "[" * 200_000, '{"n": 1e5}', "\ud800"]
    calls = [call(str(number), args=args) for number, args in enumerate(arguments)]
    rows = [*weather(), row(5, "AI_TOOL", {}, calls)]
    parsed = [invocation["args"] for invocation in invocations(format_messages_to_vercel(rows))[1:]]
    assert parsed[:-1] == ['{"city": ', {}, {}, "NaN", "[" * 200_000, {"n": 1e5}]
    assert json.loads(vercel_json(json.dumps(rows[:-1]))) == format_messages_to_vercel(rows[:-1])
    rows[-1]["toolCalls"].pop()
    assert json.loads(vercel_json(json.dumps(rows))) == format_messages_to_vercel(rows)


def test_arguments_that_are_not_json_are_converted() -> None:
    """A value that contains itself, or of a type that JSON lacks."""
    cyclic: dict[str, Any] = {"set": {1}, 2: b"x"}
    cyclic["self"] = cyclic
    rows = [row(1, "AI_TOOL", {}, [{"id": "a", "name": "f", "arguments": cyclic}])]
    (invocation,) = invocations(format_messages_to_vercel(rows))
    assert invocation["args"] == {"set": [1], "2": "x", "self": "[cycle]"}


def test_rows_of_other_kinds_are_in_no_message() -> None:
    """A backend may store more than messages; other rows are not affected."""
    rows = [*weather()[:2], {"entity": "SYSTEM"}, *weather()[2:]]
    assert format_messages_to_vercel(rows) == format_messages_to_vercel(weather())
    assert json.loads(vercel_json(json.dumps(rows))) == format_messages_to_vercel(weather())


@pytest.mark.parametrize("value", [None, 3, "text", [], {}, {"entity": ["USER"]}, {"entity": None}, {"entity": ""}])
def test_a_value_that_is_not_a_row_is_refused_with_its_index(value: Any) -> None:
    """S4.9, ROW2: in a list of values and in JSON; in a ledger it is kept as it is."""
    rows = [*weather()[:2], value, *weather()[2:]]
    for convert in (format_messages_to_vercel, lambda rows: vercel_json(json.dumps(rows))):
        with pytest.raises(InvalidInputError, match=r"^rows\[2\]"):
            convert(rows)
    harness = RowsHarness().feed(*rows).close()
    assert [event.body for event in harness.log(ev.Raw)] == [value]
    assert [type(entry).__name__ for entry in harness.entries()] == ["Message", "Message", "ToolCall", "Message"]


def test_rows_and_calls_without_ids_get_stable_ids() -> None:
    """C2: the same on every read, and different for equal rows."""
    rows: list[dict[str, Any]] = [
        {"entity": "USER", "content": "Hi"},
        {"entity": "AI_TOOL", "toolCalls": [{"name": "ls"}, {"name": "ls"}]},
        {"entity": "AI_MESSAGE", "content": "Ho"},
        {"entity": "USER", "content": "Hi"},
        {"entity": "AI_TOOL", "toolCalls": [{"name": "ls"}]},
    ]
    messages = format_messages_to_vercel(rows)
    assert len({message["id"] for message in messages}) == 4
    assert len({invocation["toolCallId"] for invocation in invocations(messages)}) == 3
    assert [message["createdAt"] for message in messages] == [None] * 4
    assert format_messages_to_vercel(rows) == messages == json.loads(vercel_json(json.dumps(rows)))


def test_the_first_result_of_a_call_counts() -> None:
    """C4: neither a second result nor one after the end of the message changes it."""
    rows = [
        *weather(),
        row(5, "TOOL", {"tool_call_id": "call_123", "content": "other"}, isComplete=False),
        row(6, "TOOL", {"tool_call_id": "nobody", "content": "orphan"}),
        row(7, "TOOL", {"content": "of nobody"}),
    ]
    assert format_messages_to_vercel(rows) == format_messages_to_vercel(weather())


def test_early_and_late_results_find_their_call() -> None:
    """S4.1: a result before its call, and one after the message or the next question."""
    rows = [
        row(1, "USER", {"content": "Go"}),
        row(2, "TOOL", {"tool_call_id": "early", "content": 1}),
        row(3, "AI_TOOL", {}, [call("early"), call("late"), call("later")]),
        row(4, "AI_MESSAGE", {"content": "Done"}),
        row(5, "TOOL", {"tool_call_id": "late", "content": 2}),
        row(6, "USER", {"content": "More"}),
        row(7, "TOOL", {"tool_call_id": "later", "content": 3}),
    ]
    assert [invocation["result"] for invocation in invocations(format_messages_to_vercel(rows))] == [1, 2, 3]


def test_foreign_ids_reused_in_a_later_turn_are_new_calls() -> None:
    """C2: a result belongs to the newest call with its id, and never to one in a later turn."""
    rows = [
        row(1, "AI_TOOL", {}, [call("0")]),
        row(2, "USER", {"content": "stop"}),
        row(3, "TOOL", {"tool_call_id": "1", "content": "of an older page"}),
        row(4, "USER", {"content": "again"}),
        row(5, "AI_TOOL", {}, [call("0"), call("1")]),
        row(6, "TOOL", {"tool_call_id": "0", "content": "second"}),
    ]
    results = [invocation.get("result") for invocation in invocations(format_messages_to_vercel(rows))]
    assert results == [None, "second", None]


@pytest.mark.parametrize("order", [(2, 3), (3, 2)])
def test_a_reason_over_the_limit_is_stored_in_full(order: tuple[int, int]) -> None:
    """Once, whether the row that gives it follows its call or precedes it."""
    before, after = order
    reason_row = row(after, "TOOL", {"tool_call_id": "a", "content": "no " * 5000})
    thread = [row(1, "USER", {"content": "hi"}), row(before, "AI_TOOL", {}, [call("a", False)]), reason_row]
    decoder = RowsDecoder()
    events = [draft.event for line in sorted(thread, key=lambda line: line["id"]) for draft in decoder.feed(line)]
    assert [event.body for event in events if isinstance(event, ev.Raw)] == [reason_row]


def test_an_early_result_belongs_to_the_call_of_its_turn() -> None:
    """C2: also if an open call of an earlier turn has the same id; in messages and in the session."""
    rows = [
        row(1, "USER", {"content": "one"}),
        row(2, "AI_TOOL", {}, [call("0")]),
        row(3, "USER", {"content": "two"}),
        row(4, "TOOL", {"tool_call_id": "0", "content": "second"}),
        row(5, "AI_TOOL", {}, [call("0")]),
        row(6, "AI_MESSAGE", {"content": "Done"}),
    ]
    assert [invocation.get("result") for invocation in invocations(format_messages_to_vercel(rows))] == [None, "second"]
    entries = RowsHarness().feed(*rows).close().entries(ToolCall)
    assert [entry.output for entry in entries] == [None, "second"]


def test_rows_on_two_pages_are_shown_once() -> None:
    """Only equal rows are merged; rows that only share an id are not."""
    rows = weather()
    assert format_messages_to_vercel(rows + copy.deepcopy(rows[1:])) == format_messages_to_vercel(rows)
    assert json.loads(vercel_json(json.dumps(rows + rows[1:]))) == format_messages_to_vercel(rows)
    same_id = [row(n, "USER", {"content": f"question {n}"}, id="thread") for n in range(3)]
    assert [message["content"] for message in format_messages_to_vercel(same_id)] == [
        f"question {n}" for n in (2, 1, 0)
    ]


ORDERS = {
    "times": {},
    "numbers": {"creationDate": time(1)},
    "calls": {"creationDate": None},
}


@pytest.mark.parametrize("order", ORDERS)
def test_row_order_is_found_by_times_ids_or_calls(order: str) -> None:
    """S4.1: the result is newest first for either order of the input."""
    rows = [
        {**row, **ORDERS[order], "id": 10 + n if order == "numbers" else row["id"]} for n, row in enumerate(weather())
    ]
    forward, backward = format_messages_to_vercel(rows), format_messages_to_vercel(rows[::-1])
    assert forward == backward
    assert [message["role"] for message in forward] == ["assistant", "user"]
    assert len(forward[0]["parts"]) == 3


def test_rows_of_the_same_time_are_ordered_by_numeric_ids() -> None:
    """For any order of the input."""
    rows = [{**row, "id": 10 + n, "creationDate": time(1)} for n, row in enumerate(weather())]
    expected = format_messages_to_vercel(rows)
    for seed in range(10):
        assert format_messages_to_vercel(random.Random(seed).sample(rows, 4)) == expected


def test_rows_without_times_are_ordered_by_call_and_result() -> None:
    """Also on a page without a prompt."""
    rows = [{**row, "creationDate": None} for row in weather()[1:]]
    (message,) = format_messages_to_vercel(rows[::-1])
    assert [message] == format_messages_to_vercel(rows)
    assert len(message["parts"]) == 3


def test_a_row_without_a_time_stays_next_to_its_neighbours() -> None:
    """In either order of the input."""
    rows = [
        row(n, "USER", {"content": str(n)}, **({"creationDate": None} if n in (0, 2, 3, 5) else {})) for n in range(7)
    ]
    expected = [str(n) for n in reversed(range(7))]
    assert [message["content"] for message in format_messages_to_vercel(rows)] == expected
    assert [message["content"] for message in format_messages_to_vercel(rows[::-1])] == expected


def test_times_of_any_form_are_compared_as_times() -> None:
    """Text with and without fractions and zones, and milliseconds."""
    texts = ["2026-03-01T12:00:00Z", "2026-03-01T12:00:00.5Z", "2026-03-01 13:00:01+01", "2026-03-01T12:00:02"]
    times: list[Any] = [*texts, int(NOON.timestamp() * 1000) + 3000, "2026-03-01T12:00:04.000001+00:00"]
    rows = [row(n, "USER", {"content": str(n)}, creationDate=at) for n, at in enumerate(times)]
    for order in (rows, rows[::-1], random.Random(3).sample(rows, len(rows))):
        assert [message["content"] for message in format_messages_to_vercel(order)] == ["5", "4", "3", "2", "1", "0"]


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"rows": rows}, lambda rows: {"results": rows}])
def test_a_list_a_document_and_json_lines_are_accepted(wrap: Any) -> None:
    """All give the same messages; bytes that are not JSON are refused."""
    expected = format_messages_to_vercel(weather())
    lines = "\n".join(json.dumps(row, indent=None) for row in weather())
    assert json.loads(vercel_json(json.dumps(wrap(weather())).encode())) == expected
    assert json.loads(vercel_json(lines)) == json.loads(vercel_json(lines.encode() + b"\n\n")) == expected
    assert vercel_json(b"[]") == vercel_json(b"") == b"[]"
    with pytest.raises(ValueError, match="invalid JSON"):
        vercel_json(b"{")
    with pytest.raises(ValueError, match="UTF-8"):
        vercel_json(
            json.dumps([{**weather()[2], "content": {"tool_call_id": "a", "content": "@"}}])
            .encode()
            .replace(b"@", b"\xff")
        )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "one"}, {"type": "image"}, "two"], "one\ntwo"),
        ({"a": 1}, '{"a":1}'),
        (7, "7"),
        (None, ""),
    ],
)
@pytest.mark.parametrize("as_text", [True, False])
def test_content_is_always_one_text(content: Any, text: str, as_text: bool) -> None:
    """The texts of blocks, and the JSON of other values, since the client shows `content` unchanged."""
    message = {"role": "assistant", "content": content}
    rows = [*weather()[:3], {**row(4, "AI_MESSAGE", message), "content": json.dumps(message) if as_text else message}]
    messages = format_messages_to_vercel(rows)
    assert messages[0]["content"] == text
    assert json.loads(vercel_json(json.dumps(rows))) == messages


@pytest.mark.parametrize("names", [{}, SNAKE_CASE])
@pytest.mark.parametrize("as_text", [True, False])
def test_arguments_and_results_are_passed_without_parsing(names: dict[str, str], as_text: bool) -> None:
    """So a long thread is fast: bytes are unchanged, including white space, in both usual spellings."""
    spaced = '{"city" :  "Paris"}'
    rows = weather()
    rows[1] = row(2, "AI_TOOL", {"role": "assistant", "content": ""}, [call("call_123", args=spaced)])
    rows[3] = row(4, "AI_MESSAGE", {"role": "assistant", "content": None})
    rows_json = json.dumps(rename_columns(rows, names))
    if not as_text:
        rows = [{**row, "content": json.loads(row["content"])} for row in rows]
        rows_json = json.dumps(rename_columns(rows, names), separators=(" ,", ": ")).replace("20}", "20 }")
    assert spaced.encode() in vercel_json(rows_json)
    assert json.loads(vercel_json(rows_json)) == format_messages_to_vercel(json.loads(rows_json))


# Laws


class PlannedCall(NamedTuple):
    """A planned call; an open one has the result NO_RESULT."""

    id: str
    validated: bool | None
    args: Any
    result: Any


class Round(NamedTuple):
    text: str
    reasoning: str
    calls: list[PlannedCall]


class Turn(NamedTuple):
    """A planned turn; without an answer, the model did not end it."""

    question: str
    rounds: list[Round]
    answer: str


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(max_size=5)),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(st.text(max_size=3), inside, max_size=2),
    max_leaves=4,
)
words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)
maybe_words = st.just("") | words
NO_RESULT: Any = ...


@st.composite
def plans(draw: st.DrawFn) -> list[Turn]:
    """Draw a conversation as turns, rounds and calls."""
    ids = iter(range(1000))
    calls_strategy = st.builds(
        lambda validated, args, result: PlannedCall(f"call_{next(ids)}", validated, args, result),
        st.sampled_from([None, True, False]),
        st.dictionaries(st.text(max_size=3), values, max_size=2),
        st.just(NO_RESULT) | values.filter(lambda value: value not in (None, "")),
    )
    rounds = st.builds(Round, maybe_words, maybe_words, st.lists(calls_strategy, min_size=1, max_size=3))
    return draw(st.lists(st.builds(Turn, words, st.lists(rounds, max_size=3), maybe_words), min_size=1, max_size=4))


def rows_of(plan: list[Turn], pick: random.Random) -> list[dict[str, Any]]:
    """Return the rows that a backend would store for a plan, oldest first, with the results of a round in any order."""
    rows: list[dict[str, Any]] = []

    def add(kind: str, content: dict[str, Any], calls: list[Any] | None = None) -> None:
        rows.append(row(len(rows), kind, content, calls))

    for turn in plan:
        add("USER", {"content": turn.question})
        for round in turn.rounds:
            calls = [call(planned.id, planned.validated, args=json.dumps(planned.args)) for planned in round.calls]
            add("AI_TOOL", {"content": round.text, "reasoning": round.reasoning}, calls)
            for ended in pick.sample(
                [planned for planned in round.calls if planned.result is not NO_RESULT],
                sum(planned.result is not NO_RESULT for planned in round.calls),
            ):
                add("TOOL", {"tool_call_id": ended.id, "content": ended.result})
        if turn.answer:
            add("AI_MESSAGE", {"content": turn.answer})
    return rows


def expected_messages(plan: list[Turn]) -> list[tuple[str, list[Any]]]:
    """Return the role and the parts of every message that a plan should give, newest first."""
    messages: list[tuple[str, list[Any]]] = []
    for turn in plan:
        messages.append(("user", [turn.question]))
        parts: list[Any] = []
        for round in turn.rounds:
            parts += [("thought", round.reasoning)] if round.reasoning else []
            parts += [round.text] if round.text else []
            parts += [(*call[::2], call.result) for call in round.calls]
        parts += [turn.answer] if turn.answer else []
        messages += [("assistant", parts)] if parts else []
    return messages[::-1]


def part_content(part: Any) -> Any:
    """Return the content of a part in the form of `expected_messages`."""
    if part["type"] == "tool-invocation":
        invocation = part["toolInvocation"]
        assert invocation["state"] == ("result" if "result" in invocation else "call")
        return invocation["toolCallId"], invocation["args"], invocation.get("result", NO_RESULT)
    return ("thought", part["reasoning"]) if part["type"] == "reasoning" else part["text"]


@given(plans(), st.randoms(use_true_random=False))
def test_messages_have_every_text_call_and_result_once(plan: list[Turn], pick: random.Random) -> None:
    """S4.1: each text in its position and each result in its call."""
    messages = format_messages_to_vercel(rows_of(plan, pick), {})
    assert [
        (message["role"], [part_content(part) for part in message["parts"]]) for message in messages
    ] == expected_messages(plan)
    calls = {call.id: call.validated for turn in plan for round in turn.rounds for call in round.calls}
    decisions = {True: "accepted", False: "rejected", None: "not_required"}
    assert {name: note["validated"] for name, note in notes(messages, "toolCallId").items()} == {
        name: decisions[validated] for name, validated in calls.items()
    }
    assert set(notes(messages, "messageId")) == {message["id"] for message in messages}


@given(plans(), st.randoms(use_true_random=False), st.sampled_from(SPELLINGS))
def test_rows_in_any_order_give_the_same_messages(plan: list[Turn], pick: random.Random, names: dict[str, str]) -> None:
    """S4.1, S4.9: rows are sorted by time, as values and as JSON, and the input is not changed."""
    rows = rename_columns(rows_of(plan, pick), names)
    expected = canonical_json(format_messages_to_vercel(rows, {"get_weather": True}))
    shuffled = pick.sample(rows, len(rows))
    before = copy.deepcopy(shuffled)
    assert canonical_json(format_messages_to_vercel(shuffled, {"get_weather": True})) == expected
    assert shuffled == before
    assert canonical_json(json.loads(vercel_json(json.dumps(shuffled), {"get_weather": True}))) == expected
    objects = [{**row, **{k: json.loads(row[k]) for k in ("content", "msg_content") if k in row}} for row in shuffled]
    assert canonical_json(json.loads(vercel_json(json.dumps(objects), {"get_weather": True}))) == expected


@given(format_cases.streams("rows"))
def test_any_input_gives_messages(rows: list[Any]) -> None:
    """C11: also damaged rows; the input is not changed, and no message shares a value with it."""
    rows = [row for row in rows if isinstance(row, dict) and isinstance(row.get("entity"), str) and row["entity"]]
    before = copy.deepcopy(rows)
    messages = format_messages_to_vercel(rows)
    assert rows == before
    for message in messages:
        assert set(message) == {"id", "role", "createdAt", "content", "parts", "annotations"}
        for part in message["parts"]:
            part.get("toolInvocation", {}).clear()
    assert rows == before


# Sessions


class RowsHarness:
    """The rows decoder with a ledger in memory."""

    def __init__(self) -> None:
        self.decoder = RowsDecoder()
        self.memory = MemoryLedger(redact=False)

    def feed(self, *messages: Any) -> RowsHarness:
        for message in messages:
            self.write(self.decoder.feed(codec.parse_json(json.dumps(message))))
        return self

    def close(self) -> RowsHarness:
        self.write(self.decoder.close("eof"))
        return self

    def write(self, drafts: list[ev.Draft]) -> None:
        if drafts:
            self.memory.write(*drafts)

    def entries(self, kind: type[Any] = msgspec.Struct) -> list[Any]:
        return [entry for entry in self.memory.state.snapshot().entries if isinstance(entry, kind)]

    def log(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.memory.log if isinstance(event, kind)]

    def normalized_entries(self) -> bytes:
        """Return the entries as JSON, with numbers in place of generated ids."""
        text = canonical_json(self.entries()).decode()
        for number, name in enumerate(self.memory.known_ids.calls + self.memory.known_ids.approvals):
            text = text.replace(name, f"#{number}")
        return text.encode()


@given(plans(), st.randoms(use_true_random=False), st.integers(1, 5))
def test_oldest_first_and_newest_first_files_give_the_same_session(
    plan: list[Turn], pick: random.Random, page: int
) -> None:
    """So do pages, newest first, and one document with all rows in any order."""
    rows = rows_of(plan, pick)
    expected = RowsHarness().feed(*rows).close()
    newest = rows[::-1]
    pages = [{"results": newest[at : at + page]} for at in range(0, len(newest), page)]
    for lines in (newest, [rows], [newest], [pick.sample(rows, len(rows))], pages):
        assert RowsHarness().feed(*lines).close().normalized_entries() == expected.normalized_entries()


@given(plans(), st.randoms(use_true_random=False))
def test_session_and_messages_have_the_same_calls(plan: list[Turn], pick: random.Random) -> None:
    """C3: by id, with arguments and results; a rejected call has a reason and no result."""
    rows = rows_of(plan, pick)
    harness = RowsHarness().feed(*rows).close()
    entries = {entry.tool_call_id: entry for entry in harness.entries(ToolCall)}
    messages = {invocation["toolCallId"]: invocation for invocation in invocations(format_messages_to_vercel(rows))}
    assert list(entries) == list(messages)
    rejected = {
        invocation.id
        for turn in plan
        for round in turn.rounds
        for invocation in round.calls
        if invocation.validated is False
    }
    for name, entry in entries.items():
        assert entry.raw_input == messages[name]["args"]
        assert (entry.status == "denied") == (name in rejected)
        if name not in rejected:
            assert (entry.status == "completed") == ("result" in messages[name])
            assert entry.output == messages[name].get("result")


def test_rows_are_decoded_immediately_once_their_order_is_known() -> None:
    """Only the first row waits for the second one."""
    decoder = RowsDecoder()
    drafts = [decoder.feed(row) for row in weather()]
    assert [bool(batch) for batch in drafts] == [False, True, True, True]
    kinds = [type(draft.event) for batch in drafts for draft in batch]
    assert kinds == [
        ev.TurnStarted,
        ev.MessageUser,
        ev.MessageDelta,
        ev.MessageEnded,
        ev.CallProposed,
        ev.CallCompleted,
        ev.MessageDelta,
        ev.MessageEnded,
        ev.TurnEnded,
    ]
    assert [draft.event.at for draft in drafts[-1]] == [int((NOON.timestamp() + 4) * 1000)] * 3
    assert decoder.close("eof") == []


def test_a_user_row_begins_a_turn_and_an_ai_message_ends_it() -> None:
    """C5: a turn that the user interrupts ends as cancelled, and so do its calls."""
    interrupted = row(3, "AI_MESSAGE", {"content": "The wea"}, isComplete=False)
    harness = RowsHarness().feed(*weather()[:2], interrupted)
    assert [event.reason for event in harness.log(ev.TurnEnded)] == ["cancelled"]
    assert [entry.status for entry in harness.entries(ToolCall)] == ["cancelled"]
    assert not [entry for entry in harness.entries(Message) if entry.streaming]


def test_the_decision_of_the_user_is_recorded_as_an_answer() -> None:
    """S4.3, S4.6: accepted, rejected with or without a reason for the model, and not required."""
    calls = [call("yes", True), call("no", False), call("never", False), call("free")]
    harness = RowsHarness().feed(
        weather()[0],
        row(2, "AI_TOOL", {}, calls),
        row(3, "TOOL", {"tool_call_id": "no", "content": "Too dear."}),
        row(4, "TOOL", {"tool_call_id": "yes", "content": "ok"}),
        row(5, "TOOL", {"tool_call_id": "free", "content": "ok"}),
        row(6, "AI_MESSAGE", {"content": "Done"}),
    )
    outcomes = {entry.tool_call_id: (entry.status, entry.reason) for entry in harness.entries(ToolCall)}
    assert outcomes == {
        "yes": ("completed", ""),
        "no": ("denied", "Too dear."),
        "never": ("denied", ""),
        "free": ("completed", ""),
    }
    approvals = {
        entry.tool_call_id: (entry.state, entry.by, entry.reason) for entry in harness.entries(PermissionRequest)
    }
    assert approvals == {
        "yes": ("granted", "user", ""),
        "no": ("refused", "user", "Too dear."),
        "never": ("refused", "user", ""),
    }


def test_an_id_reused_in_the_next_round_is_another_call() -> None:
    """C2: even while the first is open."""
    harness = RowsHarness().feed(weather()[0], row(2, "AI_TOOL", {}, [call("0")]), row(3, "AI_TOOL", {}, [call("0")]))
    assert [(entry.iteration, entry.status) for entry in harness.entries(ToolCall)] == [(0, "queued"), (1, "queued")]


def test_a_rejected_call_waits_for_a_reason_until_the_next_round() -> None:
    """Then it is denied without one."""
    harness = RowsHarness().feed(weather()[0], row(2, "AI_TOOL", {}, [call("a", False)]))
    assert [entry.status for entry in harness.entries(ToolCall)] == ["awaiting_approval"]
    harness.feed(row(3, "AI_TOOL", {}, [call("b")]))
    assert [entry.status for entry in harness.entries(ToolCall)] == ["denied", "queued"]


def test_a_row_that_waits_for_approval_is_a_waiting_call() -> None:
    """S4.3: if the row itself has that state."""
    harness = RowsHarness().feed(weather()[0], row(2, "AI_TOOL", {}, [call("c", "pending"), call("d")]))
    assert [entry.status for entry in harness.entries(ToolCall)] == ["awaiting_approval", "queued"]


def test_an_incomplete_tool_row_is_a_cancelled_call() -> None:
    """C5: its output is stored."""
    stopped = row(3, "TOOL", {"tool_call_id": "call_123", "content": "Aborted."}, isComplete=False)
    (entry,) = RowsHarness().feed(*weather()[:2], stopped).entries(ToolCall)
    assert (entry.status, entry.output) == ("cancelled", "Aborted.")


def test_a_repeated_row_is_stored_and_shown_once() -> None:
    """Neither a text nor a call is shown again."""
    once, twice = RowsHarness().feed(*weather()), RowsHarness().feed(*(row for row in weather() for _ in range(2)))
    assert [entry.id for entry in twice.entries()] != []
    assert [type(entry) for entry in twice.entries()] == [type(entry) for entry in once.entries()]
    assert [event.body["id"] for event in twice.log(ev.Raw)] == ["m1", "m2", "m3", "m4"]


def test_unknown_content_is_stored_as_raw() -> None:
    """Unknown columns, parts of a content, and values that are no rows."""
    rows = [{**row, "model": "m"} if n == 0 else row for n, row in enumerate(weather())]
    rows[3] = row(4, "AI_MESSAGE", {"content": "Done", "sender": "Agent"})
    harness = RowsHarness().feed(*rows, 17, {"entity": "SYSTEM"}, [])
    assert [event.body for event in harness.log(ev.Raw)] == [rows[0], rows[3], 17, {"entity": "SYSTEM"}, []]
    assert len(harness.entries(Message)) == 3


@pytest.mark.parametrize("lines", [lambda rows: rows, lambda rows: rows[::-1], lambda rows: [rows]])
def test_a_row_over_the_size_limit_does_not_affect_others(lines: Any) -> None:
    """C11: among other rows it is stored as raw, since a refusal would refuse all of them."""
    rows = weather()
    rows[0] = row(1, "USER", {"content": "x" * MAX_ROW_BYTES})
    rows[2] = row(3, "TOOL", {"tool_call_id": "call_123", "content": "y" * MAX_ROW_BYTES})
    decoder = RowsDecoder()
    drafts = [draft for line in lines(rows) for draft in decoder.feed(line)] + decoder.close("eof")
    assert [draft.event.body for draft in drafts if isinstance(draft.event, ev.Raw)] == [rows[0]]
    kinds = [type(draft.event) for draft in drafts]
    assert {ev.CallProposed, ev.CallCompleted, ev.MessageDelta} < set(kinds) and ev.MessageUser not in kinds


def test_a_single_large_row_is_decoded() -> None:
    """The ledger checks its size, and a refusal affects no other row."""
    decoder = RowsDecoder()
    large = row(5, "USER", {"content": "x" * MAX_ROW_BYTES})
    drafts = [decoder.feed(line) for line in (*weather(), large)][-1]
    assert [type(draft.event) for draft in drafts] == [ev.TurnStarted, ev.MessageUser]


def test_threads_of_one_table_are_separate_conversations() -> None:
    """Their rows may be mixed, as lines or in one document."""
    first = [{**row, "threadId": "t-1"} for row in weather()]
    second = [{**row, "threadId": "t-2"} for row in weather()]
    shuffled = [row for pair in zip(first, second, strict=True) for row in pair]
    expected = RowsHarness().feed(*weather()).close().normalized_entries()
    for lines in (shuffled, [shuffled], [{"rows": shuffled[:3]}, *shuffled[3:]]):
        harnesses: dict[str, RowsHarness] = {}
        threads = Threads()
        for line in lines:
            for name, part in threads.split(line):
                harnesses.setdefault(name, RowsHarness()).feed(part)
        assert {name: harness.close().normalized_entries() for name, harness in harnesses.items()} == {
            "": expected,
            "t-2": expected,
        }
    assert Threads().split({"t": 1.0, "dir": "in", "msg": 3}) == [("", 3)]
    assert Threads().split([]) == [("", [])]
