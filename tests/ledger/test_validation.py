"""Invalid and hostile input to the library is refused with the field and the limit, or stored and read back.

After any input, the session reads as before and nothing is partially written (C11).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import callslip
from callslip.api.ledger import LocalLedger
from callslip.errors import CallslipError, InvalidInputError
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import EVENT_TYPES, Alias, Draft, Event, read_event
from callslip.model.names import MAX_NAME_BYTES
from callslip.settings import Settings
from tests.support.engines import new_database, runs_example
from tests.support.invariants import find_faults, read_events

pytestmark = pytest.mark.anyio

LONE_SURROGATE = "\ud800"


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    instance = await callslip.open(db, Settings(max_event=100_000, max_blob=1_000_000))
    await instance.log.append("s", [ev.MessageUser(text="before")])
    try:
        yield instance
        await instance.log.append("s", [ev.MessageUser(text="after")])
        log = await read_events(instance, "s")
        assert (log[0].text, log[-1].text) == ("before", "after")
        assert (await instance.snapshot("s")).entries[-1].content == "after"
        assert not await find_faults(instance)
    finally:
        await instance.close()


def nest_list(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def make_cycle() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


# Values that are stored, and their canonical form.
STORED_VALUES: dict[str, tuple[Any, Any]] = {
    "NUL": ("a\x00b", "a\x00b"),
    "lone surrogate": (f"a{LONE_SURROGATE}b", "a\ufffdb"),
    "lone surrogate in a key": ({LONE_SURROGATE: 1}, {"\ufffd": 1}),
    "halves of a pair": ("\ud83d\ude00", "\U0001f600"),
    "bidi and ANSI": ("\u202e\x1b[31m", "\u202e\x1b[31m"),
    "a tuple": ((1, 2), [1, 2]),
    "keys that are numbers": ({1: "a", None: "b"}, {"1": "a", "null": "b"}),
    "a large integer": (2**64, 2**64),
    "300 digits": (10**300 - 1, 10**300 - 1),
    "128 levels": (nest_list(128), nest_list(128)),
    "an empty key": ({"": {}}, {"": {}}),
    "proto": ({"__proto__": {"x": 1}}, {"__proto__": {"x": 1}}),
}

# Values that JSON does not have, and the expected error.
REFUSED_VALUES: dict[str, tuple[Any, str]] = {
    "NaN": (math.nan, "input.*nan"),
    "infinity": ([1, math.inf], r"input\[1\].*inf"),
    "301 digits": ({"n": 10**300}, r"input\.n.*300"),
    "too deep": (nest_list(129), "input.*128"),
    "far too deep": (nest_list(100_000), "input.*128"),
    "inside itself": (make_cycle(), "input.*128"),
    "bytes": (b"x", "input.*bytes"),
    "an object": (object(), "input.*object"),
    "a set": ({1}, "input.*set"),
    "too large": ("x" * 200_000, "input.*100000"),
}


@pytest.mark.parametrize("name", STORED_VALUES)
async def test_unusual_values_are_stored_and_read_back(ledger: LocalLedger, name: str) -> None:
    """C11: any JSON is stored in its canonical form, in any field of JSON or text."""
    value, expected = STORED_VALUES[name]
    async with ledger.session("s").call("tool", value) as call:
        call.complete(value)
    (entry,) = [entry for entry in (await ledger.snapshot("s")).entries if getattr(entry, "call_id", "") == call.id]
    assert entry.raw_input == expected
    assert entry.output == expected
    if isinstance(value, str):
        appended = await ledger.log.append("s", [ev.MessageUser(text=value), ev.SessionMode(mode=value)])
        assert [event.text if isinstance(event, ev.MessageUser) else event.mode for event in appended] == [expected] * 2


@pytest.mark.parametrize("name", REFUSED_VALUES)
async def test_a_value_that_is_not_json_is_refused_with_its_field(ledger: LocalLedger, name: str) -> None:
    """C11: the error has the field, the path in it and the limit; nothing of the batch is written."""
    value, problem = REFUSED_VALUES[name]
    event_count = len(await read_events(ledger, "s"))
    with pytest.raises(InvalidInputError, match=problem):
        await ledger.log.append("s", [ev.MessageUser(text="x"), ev.CallProposed(tool_name="t", input=value)])
    with pytest.raises(InvalidInputError, match=problem):
        async with ledger.session("s").call("tool", value):
            raise AssertionError("entered")
    assert len(await read_events(ledger, "s")) == event_count and (await ledger.calls()).items == []


@pytest.mark.parametrize("name", REFUSED_VALUES)
async def test_any_result_of_a_tool_is_stored(ledger: LocalLedger, name: str) -> None:
    """S1.5: what a tool returns is converted to JSON for every type; the call completes."""
    value, _ = REFUSED_VALUES[name]
    async with ledger.session("s").call("tool") as call:
        call.complete(value)
    row = await call.result()
    assert row.state == "completed"
    ending = await ledger.log.ending_event(row)
    assert isinstance(ending, ev.CallCompleted) and (ending.output is not None or ending.blob is not None)


async def test_an_error_over_the_size_limit_still_ends_its_call(ledger: LocalLedger) -> None:
    """C5: a call whose outcome the ledger refuses fails with the reason."""
    with pytest.raises(RuntimeError):
        async with ledger.session("s").call("tool") as call:
            raise RuntimeError("x" * 5_000_000)
    row = await call.result()
    assert row.state == "failed" and "RuntimeError" in row.reason and len(row.reason) < 10_000
    async with ledger.session("s").call("tool") as call:
        call.fail({"trace": "y" * 5_000_000}, "it broke")
    row = await call.result()
    assert (row.state, row.reason) == ("failed", "it broke")


async def test_an_exception_without_a_printable_text_ends_its_call(ledger: LocalLedger) -> None:
    """C5: even if its `__str__` raises."""

    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    with pytest.raises(UnprintableError):
        async with ledger.session("s").call("tool") as call:
            raise UnprintableError
    assert (await call.result()).state == "failed"


# Fields of the wrong type, as a program that ignores type hints would send them.
INVALID_DRAFTS: list[tuple[str, Any]] = [
    ("text", ev.MessageUser(text=5)),
    ("text", ev.MessageUser(text=None)),
    ("text", ev.MessageDelta(text=b"x")),
    ("text", ev.MessageDelta(text=["x"])),
    ("chunks", ev.MessageDelta(text="x", chunks="sometimes")),
    ("chunks", ev.ThoughtDelta(text="x", chunks=None)),
    ("message_?[iI]d", ev.MessageDelta(text="x", message_id=7)),
    ("message_?[iI]d", ev.MessageDelta(text="x", message_id="a\nb")),
    ("at", ev.MessageDelta(text="x", at="yesterday")),
    ("at", ev.MessageDelta(text="x", at=-1)),
    ("at", ev.MessageDelta(text="x", at=1.5)),
    ("at", ev.MessageUser(text="x", at=math.nan)),
    ("at", ev.MessageUser(text="x", at=10**30)),
    ("at", ev.CallStarted(at=2**63)),
    ("source", ev.MessageDelta(text="x", source=5)),
    ("source", ev.MessageUser(text="x", source=["a"])),
    ("key", ev.MessageDelta(text="x", key=5)),
    ("deadline", ev.CallProposed(tool_name="t", deadline=2**63)),
    ("deadline", ev.CallProposed(tool_name="t", deadline=True)),
    ("iteration", ev.CallProposed(tool_name="t", iteration=-(2**70))),
    ("index", ev.CallProposed(tool_name="t", index="1")),
    ("attempt", ev.CallStarted(attempt=10**20)),
    ("expires_?[aA]t", ev.ApprovalRequested(expires_at=10**40)),
    ("scope", ev.CallProposed(tool_name="t", scope="world")),
    ("tool_?[nN]ame", ev.CallProposed(tool_name=5)),
    ("title", ev.CallProposed(title=["x"])),
    ("idempotent", ev.CallProposed(idempotent="yes")),
    ("call", ev.CallStarted(call=5)),
    ("call", ev.CallStarted(call="x" * 1000)),
    ("call", ev.CallStarted(call="exec_\x00")),
    ("approval", ev.ApprovalGranted(approval=["a"])),
    ("aliases", ev.CallStarted(aliases=("c1",))),
    ("aliases", ev.CallStarted(aliases=5)),
    ("aliases.ns", ev.CallStarted(aliases=(Alias("", "x"),))),
    ("aliases.id", ev.CallStarted(aliases=(Alias("acp", ""),))),
    ("aliases.id", ev.CallStarted(aliases=(Alias("acp", "y" * 1000),))),
    ("aliases.id", ev.CallStarted(aliases=(Alias("acp", 5),))),
    ("aliases.id", ev.CallStarted(aliases=(Alias("acp", LONE_SURROGATE),))),
    ("aliases.id", ev.CallStarted(aliases=(Alias("acp", "a\x00"),))),
    ("aliases.ns", ev.CallStarted(aliases=(Alias("a\x00", "x"),))),
    ("client", ev.CallProposed(tool_name="t", client="a\x00")),
    ("worker", ev.CallStarted(worker="a\x00")),
    ("worker", ev.CallStarted(worker=5)),
    ("message_id", ev.MessageUser(text="x", message_id="a\x00")),
    ("message_id", ev.MessageDelta(text="x", message_id="a\x00")),
    ("source", ev.MessageDelta(text="x", source="a\x00")),
    ("owner", ev.SessionInfo(owner="a\x00")),
    ("turn", ev.TurnStarted(turn="a\x00")),
    ("blob", ev.CallCompleted(blob={"hash": "x"})),
    ("reason", ev.TurnEnded(reason=5)),
    ("turn", ev.TurnStarted(turn="t" * 1000)),
    ("modes", ev.SessionCapabilities(modes="x")),
    ("entries", ev.PlanUpdated(entries=5)),
    ("commands", ev.SessionCommands(commands=None)),
    ("event", ev.Event()),
    ("event", ev.CallEvent()),
    ("event", ev.CallEnd()),
    ("event", Alias("a", "b")),
    ("event", {"type": "message.user", "text": "x"}),
    ("event", None),
    ("event", 5),
    ("event", Draft("x")),
    ("key", Draft(ev.MessageUser(text="x"), key=5)),
    ("key", Draft(ev.MessageUser(text="x"), key="k" * 1000)),
    ("key", Draft(ev.MessageDelta(text="x"), key="\x00")),
    ("mark", Draft(ev.MessageUser(text="x"), key="k", mark=5)),
    ("mark", Draft(ev.MessageUser(text="x"), key="k", mark=LONE_SURROGATE)),
]


@pytest.mark.parametrize(
    ("field", "draft"), INVALID_DRAFTS, ids=[f"{n}-{field}" for n, (field, _) in enumerate(INVALID_DRAFTS)]
)
async def test_a_field_of_the_wrong_type_is_refused_by_name(ledger: LocalLedger, field: str, draft: Any) -> None:
    """C11: nothing of its batch is written, and other batches are not affected."""
    other_write = asyncio.create_task(ledger.log.append("other", [ev.MessageUser(text="neighbour")]))
    with pytest.raises(InvalidInputError, match=f"^{field}"):
        await ledger.log.append("s", [ev.MessageUser(text="first"), draft, ev.MessageUser(text="last")])
    await other_write
    assert [event.text for event in await read_events(ledger, "s")] == ["before"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../x", "a\\b", "a\x00b", "a\nb", LONE_SURROGATE, "n" * 10_000, 5, None]
)
async def test_an_invalid_session_name_is_refused(ledger: LocalLedger, name: Any) -> None:
    """C11: a name must work in a URL and as a file name; if it is too long, the error has the limit."""
    with pytest.raises(InvalidInputError, match=r"^session") as refusal:
        ledger.session(name)
    assert refusal.value.limit == (MAX_NAME_BYTES if name == "n" * 10_000 else None)
    with pytest.raises(InvalidInputError, match=r"^session"):
        await ledger.log.append(name, [ev.MessageUser(text="x")])


@pytest.mark.parametrize("value", [LONE_SURROGATE, "x" * 1000, "a\x00b", 5])
async def test_invalid_source_and_owner_names_are_refused(ledger: LocalLedger, value: Any) -> None:
    """C11: they are checked like ids."""
    with pytest.raises(InvalidInputError, match=r"^source"):
        await ledger.log.append("s", [ev.MessageUser(text="x")], source=value)
    with pytest.raises(InvalidInputError, match=r"^owner"):
        await ledger.log.append("s", [ev.CallStarted()], owner=value)


async def test_an_event_over_the_size_limit_is_refused_for_every_type(ledger: LocalLedger) -> None:
    """C11: the error has the limit."""
    large = "x" * 150_000
    for draft in (
        ev.MessageUser(text=large),
        ev.MessageDelta(text=large),
        ev.ThoughtDelta(text=large),
        ev.CallProgress(text=large),
        ev.CallInputDelta(text=large),
        ev.CallProposed(tool_name="t", input={"a": large}),
        ev.PlanUpdated(entries=[large]),
        ev.CallFailed(error=large),
        ev.MessageUser(text="x", content=[large[:60_000], large[:60_000]]),
    ):
        with pytest.raises(InvalidInputError) as refusal:
            await ledger.log.append("s", [draft])
        assert refusal.value.limit == 100_000
    with pytest.raises(InvalidInputError) as refusal:
        await ledger.log.append("s", [ev.CallCompleted(output="x" * 1_100_000)])
    assert refusal.value.limit == 1_000_000


async def test_a_hundred_megabytes_are_refused_by_default(db: str) -> None:
    """C11: with the usual limits."""
    async with await callslip.open(db) as ledger:
        large = "x" * 100_000_000
        for draft in (ev.MessageUser(text=large), ev.MessageDelta(text=large), ev.CallProposed(input=large)):
            with pytest.raises(InvalidInputError) as refusal:
                await ledger.log.append("s", [draft])
            assert refusal.value.limit == 16 * 2**20
        with pytest.raises(InvalidInputError):
            codec.parse_json(b'"' + large.encode() + b'"')
        assert await ledger.log.store.session("s") is None


@pytest.mark.parametrize(
    "cursor", ["1", "zz", '["x"]', "[1]", "[1,2,3]", '["a","b","c"]', "null", "[[1],[2]]", "\x00", LONE_SURROGATE]
)
async def test_an_invalid_cursor_is_refused(ledger: LocalLedger, cursor: str) -> None:
    """No cursor silently restarts a list."""
    with pytest.raises(InvalidInputError, match=r"^cursor"):
        await ledger.sessions(cursor=cursor)
    with pytest.raises(InvalidInputError, match=r"^cursor"):
        await ledger.calls(cursor=cursor)


@pytest.mark.parametrize("invalid_id", [LONE_SURROGATE, "\x00", "x" * 100_000, "", "@", "%"])
async def test_queries_for_invalid_ids_raise_not_found(ledger: LocalLedger, invalid_id: str) -> None:
    """LookupError is raised, as for any unknown id."""
    for query in (
        ledger.find_call(invalid_id),
        ledger.snapshot(invalid_id),
        ledger.wait(invalid_id),
        ledger.blob(invalid_id),
        ledger.delete(invalid_id),
        ledger.log.state_at(invalid_id),
        ledger.find_approval(invalid_id),
    ):
        with pytest.raises(LookupError):
            await query


# Decoded JSON, as from HTTP and imports

BODIES: list[tuple[str, Any]] = [
    ("event", 5),
    ("event", []),
    ("event", None),
    ("type", {}),
    ("type", {"type": "call.exploded"}),
    ("type", {"type": 5}),
    ("type", {"type": ["message.user"]}),
    ("type", {"type": {"a": 1}}),
    ("text", {"type": "message.user"}),
    ("text", {"type": "message.user", "text": 5}),
    ("chunks", {"type": "message.delta", "text": "x", "chunks": "never"}),
    ("at", {"type": "message.user", "text": "x", "at": "now"}),
    ("iteration", {"type": "call.proposed", "iteration": 1.5}),
    ("aliases", {"type": "call.started", "aliases": "c1"}),
    ("aliases", {"type": "call.started", "aliases": [["acp"]]}),
    ("aliases", {"type": "call.started", "aliases": [["acp", 5]]}),
    ("verdict", {"type": "call.started", "verdict": "great"}),
    ("scope", {"type": "call.proposed", "scope": "all"}),
]


@pytest.mark.parametrize(("field", "body"), BODIES, ids=[str(number) for number in range(len(BODIES))])
def test_json_that_is_not_an_event_is_refused_with_the_field(field: str, body: Any) -> None:
    """C11: for an unknown type or an invalid field."""
    with pytest.raises(InvalidInputError, match=f"^{field}"):
        read_event(body)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "invalid JSON"),
        (b"{", "invalid JSON"),
        (b'{"a": NaN}', "invalid JSON"),
        (b"[Infinity]", "invalid JSON"),
        (b"-Infinity", "invalid JSON"),
        (b'"\xff"', "UTF-8"),
        (b'"a\x00b"', "invalid JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "128"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "128"),
        (b"[" * 100_000, "128"),
        (b"1" * 400, "300"),
        (b'{"a": 1} {"b": 2}', "invalid JSON"),
    ],
)
def test_text_that_is_not_json_is_refused(text: bytes, problem: str) -> None:
    """C11: with the field name that the caller passed, and the limit if there is one."""
    with pytest.raises(InvalidInputError, match=f"^line 3.*{problem}"):
        codec.parse_json(text, field="line 3")


async def test_fields_set_by_the_ledger_cannot_be_forged(ledger: LocalLedger) -> None:
    """Seq, verdict and notes of the ledger are ignored in input."""
    body = {"type": "message.user", "text": "x", "seq": 77, "verdict": "late"}
    (event,) = await ledger.log.append("s", [read_event(body)])
    assert (event.seq, event.verdict) == (2, "applied")
    body = {"type": "call.proposed", "toolName": "t", "reused": True, "entry": 1, "aliases": [["acp", "c1"]]}
    (event,) = await ledger.log.append("s", [read_event(body)])
    assert (event.reused, event.entry) == (False, 0)
    (event,) = await ledger.log.append("s", [read_event({**body, "type": "call.progress", "title": "more"})])
    assert (event.reused, event.entry) == (False, 0)


async def test_duplicate_keys_and_escaped_surrogates_are_normalized(ledger: LocalLedger) -> None:
    """C11: of equal keys the last counts, an escaped lone surrogate becomes U+FFFD, and both read back the same."""
    body = codec.parse_json(rb'{"type":"call.proposed","toolName":"a","toolName":"b\ud800","input":{"x":1,"x":2}}')
    (event,) = await ledger.log.append("s", [read_event(body)])
    assert isinstance(event, ev.CallProposed) and (event.tool_name, event.input) == ("b\ufffd", {"x": 2})


async def test_unknown_fields_are_ignored(ledger: LocalLedger) -> None:
    """S1.4: a newer producer's fields do not stop an older reader."""
    (event,) = await ledger.log.append(
        "s", [read_event({"type": "message.user", "text": "x", "mood": [1, {"a": None}]})]
    )
    assert isinstance(event, ev.MessageUser) and event.text == "x"


@pytest.mark.parametrize("kind", [ev.MessageDelta, ev.ThoughtDelta])
async def test_a_chunk_with_a_wrong_field_leaves_its_session_writable(ledger: LocalLedger, kind: type[Event]) -> None:
    """C11: it is refused, or stored without the field. Its text may be held, and is read again with the next event."""
    for field in msgspec.structs.fields(kind):
        for value in (None, b"x", (), [], {}, 0.0, "y", (Alias("acp", "c1"),)):
            with contextlib.suppress(CallslipError):
                await ledger.log.append("s", [kind(**{"text": "x", field.name: value})])
            await ledger.log.append("s", [ev.MessageUser(text="next")])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def hostile_events(cls: type[Event]) -> st.SearchStrategy[Event]:
    """Draw an event of this type with any values in its fields."""
    names = [field.name for field in msgspec.structs.fields(cls)]
    required = [field.name for field in msgspec.structs.fields(cls) if field.required]
    any_value = (
        json_values | st.binary(max_size=3) | st.just((Alias("acp", "c1"),)) | st.sampled_from(["delta", "turn"])
    )
    fields = st.dictionaries(st.sampled_from(names), any_value, max_size=4)
    return fields.map(lambda values: cls(**dict.fromkeys(required, "x") | values))


async def write_all(url: str, drafts: list[Event]) -> None:
    async with await callslip.open(url) as ledger:
        for draft in drafts:
            try:
                await ledger.log.append("s", [draft])
            except CallslipError:
                pass
        await ledger.log.append("s", [ev.MessageUser(text="after")])
        assert not await find_faults(ledger)
        assert (await ledger.snapshot("s")).entries[-1].content == "after"


@given(st.lists(st.one_of([hostile_events(cls) for cls in EVENT_TYPES.values()]), max_size=12))
def test_no_event_makes_a_session_unreadable(engine: str, drafts: list[Event]) -> None:
    """C11: each is refused with our own error or stored, and log, rows and entries stay consistent."""
    if runs_example(engine, drafts):
        with new_database(engine) as url:
            asyncio.run(write_all(url, drafts))


@given(json_values, st.sampled_from(sorted(EVENT_TYPES)))
def test_any_json_is_accepted_or_refused(value: Any, kind: str) -> None:
    """C11: decoded JSON raises only InvalidInputError."""
    bodies = [value, {"type": value}, {"type": kind, **(value if isinstance(value, dict) else {"text": value})}]
    for body in bodies:
        try:
            read_event(body)
        except InvalidInputError:
            pass


@given(st.binary(max_size=40) | st.text(st.characters(codec=None), max_size=40))
def test_any_text_is_parsed_or_refused(data: bytes | str) -> None:
    """C11: a parsed value equals that of Python's own parser, if that accepts the text."""
    try:
        value = codec.parse_json(data)
    except InvalidInputError:
        return
    assert json.loads(codec.encode(value)) == value
