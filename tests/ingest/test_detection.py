"""Detect the format of recorded messages from the first of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.errors import InvalidInputError
from callslip.formats import registry
from callslip.ingest.conversations import Conversations
from callslip.ingest.detection import HEAD_BYTES, HEAD_LINES, detect_format, is_understood, read_head
from tests.support.paths import TESTS

FILES = [
    *sorted((TESTS / "inputs").glob("*/*.jsonl")),
    *sorted((TESTS / "captures").glob("*.jsonl")),
    *sorted((TESTS / "scenarios").glob("*.jsonl")),
]
FORMAT_OF_FOLDER = {"captures": "acp", "scenarios": "events"}
REFUSED = {"unknown_kinds", "unknown", "odd", "hostile_strings", "stored_messages", "stored_texts"}
"""Files that are mostly damaged, or that several formats read alike."""


def read_file(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return read_head(file)[0]


def format_of(path: Path) -> str:
    name = FORMAT_OF_FOLDER.get(path.parent.name, path.parent.name)
    return registry.find(name).read_as or name


def test_recorded_files_are_detected_and_none_is_mistaken() -> None:
    """IMP1: all inputs of the tests; a file that is damaged or ambiguous is refused and not mistaken."""
    refused: set[str] = set()
    for path in FILES:
        try:
            assert detect_format(read_file(path)) == format_of(path), path
        except InvalidInputError as error:
            assert error.field == "format"
            refused.add(path.stem)
    assert refused <= REFUSED


@pytest.mark.parametrize("name", [name for name in registry.readable() if registry.find(name).read_as])
def test_formats_with_the_same_decoder_give_the_same_events(name: str) -> None:
    """A file of the AI SDK 5 or 6 is detected as version 7; only the namespace of ids differs."""
    assert registry.find(registry.find(name).read_as).read_as == ""
    for path in sorted((TESTS / "inputs" / name).glob("*.jsonl")):
        own, other = (
            [draft for message in read_file(path) for _, _, drafts in reader.read(message) for draft in drafts]
            for reader in (Conversations(each, str) for each in (name, registry.find(name).read_as))
        )
        assert [type(draft.event) for draft in own] == [type(draft.event) for draft in other]


def test_an_ambiguous_head_lists_the_candidates() -> None:
    """IMP1: plain texts of a user and a model are the same in four formats."""
    head = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Good day."}]
    with pytest.raises(InvalidInputError, match=r"may be in any of anthropic, openai, responses, shell\. Pass"):
        detect_format(head)


@pytest.mark.parametrize("head", [[], [1, 2, 3], [{"a": 1}], [None], [[]], ["[DONE]"], [{"type": "user", "uuid": "u"}]])
def test_a_head_of_another_kind_is_refused(head: list[Any]) -> None:
    """IMP1: no format is guessed for input that none understands."""
    with pytest.raises(InvalidInputError, match=r"format: cannot be detected: .* Pass the format\."):
        detect_format(head)


@given(
    st.lists(
        st.sampled_from([b"\n", b"1\n", b'{"a":1}\n', b"no json\n", b"\xff\n", b'"' + b"x" * 70_000 + b'"\n', b"2"])
    )
)
def test_reading_the_head_loses_no_line(lines: list[bytes]) -> None:
    """IMP1: all lines are read again, in order, and only a bounded part is parsed."""
    head = read_head(iter(lines))
    assert list(head.lines) == lines
    assert len(head.messages) <= HEAD_LINES and not (head.messages and head.error)


def test_the_head_is_bounded_in_lines_and_bytes() -> None:
    """IMP1: an endless stream is read only as far as needed, and a very large line is not parsed."""

    def endless() -> Any:
        while True:
            yield b"1\n"

    assert len(read_head(endless())[0]) == HEAD_LINES
    large = json.dumps("x" * HEAD_BYTES).encode()
    assert read_head([large, b"1\n"])[0] == []
    assert read_head([b"1\n", large, b"2\n"])[0] == [1]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'{"a":1\n', "line 1: invalid JSON: unexpected end of input. Nothing was imported."),
        (b"\n\nno json\n", "line 3: invalid JSON: .* Nothing was imported."),
        ('{"a":1}\n'.encode("utf-16"), "line 1: is UTF-16 text. Save the file as UTF-8."),
        (b"event: message\ndata: {}\n", "line 1: is a server-sent event. Import only the data of the events"),
    ],
)
def test_a_first_line_without_a_message_is_the_error(data: bytes, error: str) -> None:
    """IMP1: with its number and the reason. Lines before it may be empty; one after a message is no such error."""
    lines = data.splitlines(keepends=True)
    found = read_head(lines)
    assert not found.messages and found.error is not None
    assert re.match(error, str(found.error)), found.error
    assert read_head([b"1\n", *lines])[::2] == ([1], None)


def test_messages_of_a_protocol_without_events_are_understood() -> None:
    """IMP2: a handshake is stored as raw and is understood; a message of another protocol is not."""
    handshake: Any = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    call: Any = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "ls", "arguments": {}}}
    listed = {"jsonrpc": "2.0", "id": 3, "method": "tools/list"}
    answer: Any = {"jsonrpc": "2.0", "id": 3, "result": {"tools": []}}
    assert is_understood("events", Conversations("events", str).read({"type": "raw", "body": 1, "seq": 1}))
    for format, expected in {"mcp": [True] * 4, "acp": [True, False, False, False]}.items():
        reader = Conversations(format, str)
        messages = (handshake, call, listed, answer)
        assert [is_understood(format, reader.read(message)) for message in messages] == expected
