"""Rows that are objects: of an ORM, dataclasses, pydantic models, named tuples and rows of database drivers."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel
from sqlalchemy import ForeignKey, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

import callslip
from callslip.errors import InvalidInputError
from callslip.formats.ai_sdk_v4 import format_messages_to_vercel
from callslip.model.events import Raw
from callslip.settings import Settings

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
Rows = list[Any]


class Entity(Enum):
    USER = "user"
    AI_TOOL = "ai_tool"
    TOOL = "tool"
    AI_MESSAGE = "ai_message"


class Fields(NamedTuple):
    """The values of one row, from which each kind of object is made."""

    id: str
    entity: Entity
    content: dict[str, Any]
    calls: tuple[dict[str, Any], ...] = ()


FIELDS = [
    Fields("m1", Entity.USER, {"role": "user", "content": "What's the weather in Paris?"}),
    Fields(
        "m2",
        Entity.AI_TOOL,
        {"role": "assistant", "content": "I'll check the weather"},
        ({"name": "get_weather", "arguments": '{"city": "Paris"}', "validated": None},),
    ),
    Fields("m3", Entity.TOOL, {"role": "tool", "tool_call_id": "call_123", "content": '{"temp": 20}'}),
    Fields("m4", Entity.AI_MESSAGE, {"role": "assistant", "content": "The weather in Paris is 20°C"}),
]
CALL_ID = "call_123"


def created(number: int) -> datetime:
    return NOON + timedelta(seconds=number)


def dict_rows() -> Rows:
    """Return the rows as dicts in camelCase, the other side of each comparison."""
    return [
        {
            "id": fields.id,
            "entity": fields.entity.name,
            "content": fields.content,
            "creationDate": created(number).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "isComplete": True,
            "toolCalls": [{"id": CALL_ID, **call} for call in fields.calls],
        }
        for number, fields in enumerate(FIELDS)
    ]


# SQLAlchemy


class Base(DeclarativeBase):
    pass


class StoredMessage(Base):
    __tablename__ = "messages"

    message_id: Mapped[str] = mapped_column(primary_key=True)
    thread_id: Mapped[str]
    creation_date: Mapped[datetime]
    entity: Mapped[Entity]
    content: Mapped[str]
    is_complete: Mapped[bool]
    tool_calls: Mapped[list[StoredCall]] = relationship()


class StoredCall(Base):
    __tablename__ = "tool_calls"

    tool_call_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    arguments: Mapped[str]
    validated: Mapped[bool | None]
    message_id: Mapped[str] = mapped_column(ForeignKey("messages.message_id"))


@pytest.fixture
def database() -> Iterator[Session]:
    """A database with the rows."""
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    session = Session(engine)
    for number, fields in enumerate(FIELDS):
        calls = [StoredCall(tool_call_id=CALL_ID, **call) for call in fields.calls]
        session.add(
            StoredMessage(
                message_id=fields.id,
                thread_id="t",
                creation_date=created(number).replace(tzinfo=None),
                entity=fields.entity,
                content=json.dumps(fields.content),
                is_complete=True,
                tool_calls=calls,
            )
        )
    session.commit()
    yield session
    session.close()
    engine.dispose()


def test_objects_of_an_orm_are_rows(database: Session) -> None:
    """S4.9, ROW1: as a query returns them, with calls in a related table; only rows with calls load them."""
    rows = database.scalars(select(StoredMessage).order_by(StoredMessage.creation_date.desc())).all()
    assert format_messages_to_vercel(rows) == format_messages_to_vercel(dict_rows())
    assert ["tool_calls" in row.__dict__ for row in reversed(rows)] == [False, True, False, False]
    columns = database.execute(select(StoredMessage.message_id, StoredMessage.entity, StoredMessage.content)).all()
    assert [message["id"] for message in format_messages_to_vercel(columns)] == ["m4", "m1"]


@pytest.mark.anyio
async def test_objects_of_an_orm_are_recorded(database: Session) -> None:
    """ROW1, ROW4: with their ids and times, as the messages that they are without a ledger."""
    rows = database.scalars(select(StoredMessage).order_by(StoredMessage.creation_date)).all()
    async with await callslip.open("sqlite:///:memory:") as ledger:
        session = ledger.session("thread")
        assert [row.message_id async for row in session.record(rows, "rows")] == ["m1", "m2", "m3", "m4"]
        messages = json.loads(await ledger.export("thread", "vercel-v4"))["messages"]
    for message in messages:
        message["parts"] = [part for part in message["parts"] if part["type"] != "step-start"]
    assert messages == format_messages_to_vercel(dict_rows())


# Other objects


@dataclass
class CallData:
    id: str
    name: str
    arguments: str
    validated: bool | None = None


@dataclass
class MessageData:
    id: str
    entity: Entity
    content: dict[str, Any]
    creation_date: datetime
    is_complete: bool = True
    tool_calls: list[CallData] = field(default_factory=list)


class CallModel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)
    tool_call_id: str
    name: str
    arguments: str
    validated: bool | None = None


class MessageModel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)
    message_id: str
    entity: Entity
    content: str
    creation_date: datetime
    is_complete: bool = True
    tool_calls: tuple[CallModel, ...] = ()


class CamelRow(NamedTuple):
    messageId: str
    entity: str
    content: str
    createdAt: datetime
    isComplete: bool
    toolCalls: tuple[Any, ...]


def make_dataclasses() -> Rows:
    return [
        MessageData(
            f.id, f.entity, f.content, created(n), tool_calls=[CallData(id=CALL_ID, **call) for call in f.calls]
        )
        for n, f in enumerate(FIELDS)
    ]


def make_models() -> Rows:
    return [
        MessageModel(
            message_id=f.id,
            entity=f.entity,
            content=json.dumps(f.content),
            creation_date=created(n),
            tool_calls=tuple(CallModel(tool_call_id=CALL_ID, **call) for call in f.calls),
        )
        for n, f in enumerate(FIELDS)
    ]


def make_tuples() -> Rows:
    call_class = make_dataclass("Call", ["toolCallId", "name", "arguments", "validated"])
    return [
        CamelRow(
            f.id,
            f.entity.name,
            json.dumps(f.content),
            created(n),
            True,
            tuple(call_class(CALL_ID, *call.values()) for call in f.calls),
        )
        for n, f in enumerate(FIELDS)
    ]


def make_attributes() -> Rows:
    """Return plain objects in camelCase, with `content` as an object too."""

    class Plain:
        def __init__(self, **fields: Any) -> None:
            self.__dict__.update(fields)

    return [
        Plain(**{**row, "content": Plain(**row["content"]), "toolCalls": [Plain(**call) for call in row["toolCalls"]]})
        for row in dict_rows()
    ]


@pytest.mark.parametrize("make_rows", [make_dataclasses, make_models, make_tuples, make_attributes])
def test_objects_with_attributes_are_rows(make_rows: Callable[[], Rows]) -> None:
    """S4.9, ROW1: dataclasses, pydantic models, named tuples and plain objects, in either spelling and mixed."""
    rows, expected = make_rows(), format_messages_to_vercel(dict_rows())
    assert format_messages_to_vercel(rows) == expected
    assert format_messages_to_vercel([*rows[:2], *dict_rows()[2:]]) == expected
    assert format_messages_to_vercel(iter(rows[::-1])) == expected


def test_rows_of_a_database_driver_are_rows() -> None:
    """ROW1: those of `sqlite3` have keys and no attributes."""
    with sqlite3.connect(":memory:") as database:
        database.row_factory = sqlite3.Row
        database.execute("CREATE TABLE m (id, entity, content, created_at)")
        values = [(f.id, f.entity.value, json.dumps(f.content), created(n).isoformat()) for n, f in enumerate(FIELDS)]
        database.executemany("INSERT INTO m VALUES (?, ?, ?, ?)", values)
        messages = format_messages_to_vercel(database.execute("SELECT * FROM m"))
    database.close()
    assert [message["id"] for message in messages] == ["m4", "m1"]
    assert messages[0]["content"] == "The weather in Paris is 20°C"


def test_objects_without_an_id_get_a_stable_one() -> None:
    """C2: from their values, not from their place in memory."""
    messages = []
    for _ in range(2):
        rows = make_dataclasses()
        for row in rows:
            row.id = ""
        messages.append(format_messages_to_vercel(rows))
    assert messages[0] == messages[1]
    assert len({message["id"] for message in messages[0]}) == 2


class Unrelated:
    """An object that is no row."""


@pytest.mark.parametrize("value", [Unrelated(), object(), StoredMessage, ("USER", "Hi"), b"{}", 3.5, lambda: 1])
def test_an_object_that_is_not_a_row_is_refused_with_its_index(value: Any) -> None:
    """S4.9, ROW2: its type is in the error too; a class is not one of its objects."""
    with pytest.raises(InvalidInputError, match=rf"^rows\[1\]: '{type(value).__name__}' without a field `entity`"):
        format_messages_to_vercel([make_dataclasses()[0], value])


@pytest.mark.anyio
@pytest.mark.parametrize("by", ["argument", "function", "settings"])
async def test_recorded_calls_of_a_named_tool_wait_for_the_user(by: str) -> None:
    """ROW6: by an argument of `record` or by the settings of the ledger."""
    required: Any = {"argument": {"get_weather": True}, "function": lambda tool: tool == "get_weather"}.get(by)
    settings = Settings(requires_validation=("get_weather",) if by == "settings" else ())
    async with await callslip.open("sqlite:///:memory:", settings) as ledger:
        session = ledger.session("thread")
        async for _ in session.record(make_models()[:2], "rows", requires_validation=required):
            pass
        [request] = await ledger.approvals(session="thread")
    assert request.answer_at == "the chat app that stores the rows"


@pytest.mark.anyio
async def test_recorded_objects_that_are_not_rows_are_kept_raw() -> None:
    """ROW2: between rows that are read."""
    first, *others = make_models()
    async with await callslip.open("sqlite:///:memory:") as ledger:
        session = ledger.session("thread")
        async for _ in session.record([first, 7, {"entity": "SYSTEM"}, *others], "rows"):
            pass
        events = [event async for event in ledger.events("thread")]
        entries = (await session.snapshot()).entries
    assert [event.body for event in events if isinstance(event, Raw)] == [7, {"entity": "SYSTEM"}]
    assert len(entries) == 4
