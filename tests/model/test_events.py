"""Events in JSON: they read back the same, omit defaults, and distinguish absent and null."""

from __future__ import annotations

import json
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, structs

import callslip
from callslip.errors import CorruptDataError, InvalidInputError
from callslip.model import events as ev
from callslip.model.events import (
    EVENT_TYPES,
    STREAMED,
    TERMINAL,
    Alias,
    Blob,
    decode_event,
    encode_event,
    parse_event,
    read_event,
    type_of,
)
from tests.support.strategies import any_event, logs

TYPES = [
    *("session.capabilities", "session.commands", "session.mode", "session.info", "turn.started", "turn.ended"),
    *("message.user", "message.delta", "thought.delta", "message.ended", "plan.updated"),
    *("call.proposed", "call.inputDelta", "call.input", "call.started", "call.requeued", "call.progress"),
    *("call.completed", "call.failed", "call.denied", "call.cancelled", "call.expired", "call.lost"),
    *("call.reported", "usage.reported"),
    *("approval.requested", "approval.granted", "approval.refused", "approval.withdrawn", "approval.released", "raw"),
]
ENDS = ["completed", "failed", "denied", "cancelled", "expired", "lost"]
REQUIRED_FIELDS: dict[str, dict[str, Any]] = {
    "session.commands": {"commands": []},
    "session.mode": {"mode": "m"},
    "message.user": {"text": ""},
    "message.delta": {"text": ""},
    "thought.delta": {"text": ""},
    "plan.updated": {"entries": []},
    "call.inputDelta": {"text": ""},
}


def make_minimal_event(name: str) -> ev.Event:
    """Return an event with its required fields only."""
    return EVENT_TYPES[name](**REQUIRED_FIELDS.get(name, {}))


def test_the_event_types_are_those_of_the_design() -> None:
    """The complete list of event types."""
    assert sorted(EVENT_TYPES) == sorted(TYPES)
    assert [type_of(cls()) for cls in TERMINAL] == [f"call.{end}" for end in ENDS]
    assert {str(cls.__struct_config__.tag) for cls in STREAMED} == {
        "message.delta",
        "thought.delta",
        "call.inputDelta",
        "call.progress",
    }


@pytest.mark.parametrize("name", TYPES)
def test_defaults_are_left_out(name: str) -> None:
    """An event is encoded as its type and its fields without defaults."""
    event = make_minimal_event(name)
    assert json.loads(encode_event(event)) == {"type": name, **REQUIRED_FIELDS.get(name, {})}
    assert decode_event(encode_event(event)) == event
    assert type_of(event) == name


@given(any_event)
def test_an_event_reads_back_unchanged(event: ev.Event) -> None:
    """From bytes, and from decoded JSON."""
    assert decode_event(encode_event(event)) == event
    assert encode_event(decode_event(encode_event(event))) == encode_event(event)
    assert read_event(json.loads(encode_event(event))) == event


@given(logs)
def test_fields_added_by_the_ledger_read_back_unchanged(log: list[ev.Event]) -> None:
    """Seq, time, source, key, verdict, the call's id and the target of a late event."""
    for event in log:
        assert decode_event(encode_event(event)) == event
        assert event.seq and event.at and event.source


def test_json_field_names_are_camel_case() -> None:
    """Aliases are pairs."""
    fields = {"tool_name": "ls", "raw_tool_name": "mcp__x__ls", "exit_status": 3}
    event = ev.CallFailed(aliases=(Alias("acp", "1"),), blob=Blob("h", 9), **fields)
    assert json.loads(encode_event(event)) == {
        "type": "call.failed",
        "toolName": "ls",
        "rawToolName": "mcp__x__ls",
        "aliases": [["acp", "1"]],
        "exitStatus": 3,
        "blob": {"hash": "h", "size": 9},
    }


@pytest.mark.parametrize("name", [name for name in TYPES if issubclass(EVENT_TYPES[name], ev.CallUpdate)])
def test_absent_and_null_fields_are_distinct(name: str) -> None:
    """C10: an absent field is UNSET; null is None."""
    for field in ("title", "input", "content", "locations", "kind", "toolName"):
        attribute = {"toolName": "tool_name"}.get(field, field)
        assert getattr(decode_event(json.dumps({"type": name}).encode()), attribute) is UNSET
        null = decode_event(json.dumps({"type": name, field: None}).encode())
        assert getattr(null, attribute) is None
        assert json.loads(encode_event(null)) == {"type": name, field: None}


@pytest.mark.parametrize("value", [None, False, 0, 0.0, "", [], {}, -1, True])
def test_falsy_outputs_are_encoded(value: Any) -> None:
    """C10: null, false, zero and empty values are outputs."""
    event = decode_event(encode_event(ev.CallCompleted(output=value)))
    assert isinstance(event, ev.CallCompleted)
    assert event.output == value and type(event.output) is type(value)


def test_fields_of_a_newer_version_are_ignored() -> None:
    """S1.4: known fields are read."""
    assert decode_event(b'{"type":"message.user","text":"hi","mood":"good"}') == ev.MessageUser(text="hi")


@pytest.mark.parametrize("body", [b'{"type":"call.teleported"}', b"{}", b'{"type":7}', b"[]", b"null"])
def test_an_unknown_event_type_is_refused(body: bytes) -> None:
    """A decoder of stored events keeps such an event unchanged as `raw`."""
    with pytest.raises(msgspec.ValidationError):
        parse_event(body)
    with pytest.raises(InvalidInputError) as refused:
        read_event(json.loads(body))
    assert refused.value.field in ("type", "event")


@pytest.mark.parametrize(
    "fields", [{"type": "call.teleported", "to": "Mars"}, {"type": "call.started", "attempt": "many"}, {"text": "x"}]
)
def test_a_stored_event_of_a_newer_version_is_kept_as_raw(fields: dict[str, Any]) -> None:
    """C11, S1.7: so an older version can still read the session."""
    body = {"seq": 7, "at": 5, "source": "s", "key": "k", "verdict": "applied", **fields}
    event = decode_event(json.dumps(body).encode())
    assert event == ev.Raw(seq=7, at=5, source="s", key="k", format="events", body=body)
    for broken in (b"{}", b"[]", b"{", b'{"type":"call.teleported","seq":"7"}'):
        with pytest.raises(CorruptDataError):
            decode_event(broken)


@pytest.mark.anyio
async def test_a_session_with_an_event_of_a_newer_version_stays_readable(db: str) -> None:
    """C11: the other events can still be read, followed and extended."""
    async with await callslip.open(db) as ledger:
        await ledger.log.append("s", [ev.MessageUser(text=text) for text in ("before", "?", "after")])
        connection = apsw.Connection(db.removeprefix("sqlite:///"))
        connection.execute("""UPDATE events SET body = CAST('{"type":"message.sung","seq":2}' AS BLOB) WHERE seq = 2""")
        connection.close()
        assert [entry.content for entry in (await ledger.snapshot("s")).entries] == ["before", "after"]
        await ledger.log.project("s")
        await ledger.log.append("s", [ev.MessageUser(text="more")])
        assert [entry.content for entry in (await ledger.snapshot("s")).entries] == ["before", "after", "more"]
        assert [event.seq async for event in ledger.events("s")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"type": "message.user"}, "text"),
        ({"type": "message.user", "text": 7}, "text"),
        ({"type": "call.started", "attempt": "one"}, "attempt"),
        ({"type": "call.proposed", "scope": "world"}, "scope"),
        ({"type": "message.delta", "text": "", "chunks": "some"}, "chunks"),
        ({"type": "call.started", "aliases": [["acp"]]}, "aliases[0]"),
        ({"type": "call.completed", "blob": {"hash": 1}}, "blob.hash"),
    ],
)
def test_the_error_names_the_invalid_field(body: dict[str, Any], field: str) -> None:
    """For an invalid type or value."""
    with pytest.raises(InvalidInputError) as refused:
        read_event(body)
    assert refused.value.field == field


@given(st.sampled_from(TYPES))
def test_events_are_immutable(name: str) -> None:
    """Assignment raises."""
    with pytest.raises(AttributeError):
        make_minimal_event(name).seq = 2  # pyright: ignore[reportAttributeAccessIssue]
    assert structs.replace(make_minimal_event(name), seq=2).seq == 2
