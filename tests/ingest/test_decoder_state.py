"""Test that a decoder can be stored after any message and continued elsewhere."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest

from callslip.formats.text_digest import TextDigest
from callslip.ingest.conversations import Conversations
from callslip.ingest.decoder_state import OBJECT, VERSION, StateMismatchError, encode_state, restore_state
from callslip.model import codec
from callslip.model import events as ev
from callslip.rules.redaction import DEFAULT, Redactor
from tests.support import format_cases

RECORDED_CLASSES = {3: "94f493acebcf9b12"}
SECRET = "sk-ant-" + "Qx7" * 12
REDACTOR = Redactor(DEFAULT)


def open_conversations(format: str) -> Conversations:
    return Conversations(format, lambda name: f"s:{name}" if name else "s")


def read_messages(case: str) -> list[Any]:
    return [codec.parse_json(line) for line in format_cases.lines_of(case) if line.strip()]


def decode(conversations: Conversations, message: Any) -> list[str]:
    return [repr((part.session, draft)) for part, _, drafts in conversations.read(message) for draft in drafts]


def close(conversations: Conversations) -> list[str]:
    return [repr((part.session, part.decoder.close("eof"))) for part in conversations.all.values()]


@pytest.mark.parametrize("case", format_cases.CASES)
def test_a_decoder_that_is_stored_after_every_message_returns_the_same_drafts(case: str) -> None:
    """The drafts are those of a decoder that reads all messages, and so is what the end of the input adds."""
    format = format_cases.format_of(case)
    expected, restored = open_conversations(format), open_conversations(format)
    for message in read_messages(case):
        assert decode(restored, message) == decode(expected, message)
        state = restored.dump(str)
        restored = open_conversations(format)
        restored.load(state)
    assert close(restored) == close(expected)


@pytest.mark.parametrize("case", format_cases.CASES)
def test_only_a_decoder_that_holds_input_has_content_left(case: str) -> None:
    """At any message: if no input is held back, the end of the input only ends what is open."""
    messages = read_messages(case)
    for count in range(1, len(messages) + 1):
        conversations = open_conversations(format_cases.format_of(case))
        for message in messages[:count]:
            conversations.read(message)
        for part in conversations.all.values():
            if not part.decoder.holds_input():
                events = [draft.event for draft in part.decoder.close("eof")]
                assert all(isinstance(event, ev.TurnEnded | ev.MessageEnded) for event in events), (count, events)


def test_objects_after_a_masked_text_are_restored() -> None:
    """A text of which only the length is kept leaves no gap in the numbers of objects."""
    conversations, expected = open_conversations("ui-v6"), open_conversations("ui-v6")
    opening: list[Any] = [
        {"type": "start", "messageId": "m"},
        {"type": "text-start", "id": "t"},
        {"type": "text-delta", "id": "t", "delta": f"key {SECRET} "},
        {"type": "tool-input-start", "toolCallId": "c", "toolName": "run"},
    ]
    for message in opening:
        assert decode(conversations, message) == decode(expected, message)
    state = conversations.dump(REDACTOR.mask)
    assert SECRET.encode() not in state
    restored = open_conversations("ui-v6")
    restored.load(state)
    for message in (
        {"type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": "{}"},
        {"type": "tool-input-available", "toolCallId": "c", "toolName": "run", "input": {}},
        {"type": "text-delta", "id": "t", "delta": "more"},
        {"type": "finish"},
    ):
        assert decode(restored, message) == decode(expected, message)


def describe_classes(encoded: Any, found: dict[str, set[str]]) -> None:
    """Collect the classes in a state with their attributes."""
    if isinstance(encoded, list):
        if len(encoded) == 3 and encoded[0] == OBJECT and isinstance(encoded[2], dict):
            found.setdefault(encoded[1], set()).update(encoded[2])
        for item in encoded:
            describe_classes(item, found)
    elif isinstance(encoded, dict):
        for item in encoded.values():
            describe_classes(item, found)


def is_struct(name: str) -> bool:
    """Return whether a class is a struct, whose other fields are noticed when it is restored."""
    module, _, kind = name.partition(":")
    return issubclass(getattr(sys.modules[module], kind), msgspec.Struct)


def test_the_version_of_a_state_changes_with_its_classes() -> None:
    """If this fails, increase VERSION in decoder_state.py, so that older states are not read, and record it here."""
    found: dict[str, set[str]] = {}
    for case in format_cases.CASES:
        conversations = open_conversations(format_cases.format_of(case))
        for message in read_messages(case):
            conversations.read(message)
            for part in conversations.all.values():
                describe_classes(msgspec.msgpack.decode(encode_state(part.decoder, str)), found)
    names = sorted(f"{kind} {sorted(fields)}" for kind, fields in found.items() if not is_struct(kind))
    assert {VERSION: codec.digest("\n".join(names).encode())[:16]} == RECORDED_CLASSES, "\n".join(names)


def test_a_stored_state_has_no_secret() -> None:
    """Also not one that is split over the pieces of a command, and the command is redacted as if it were whole."""
    conversations = open_conversations("shell")
    for piece in ("<shell>curl -H key:", SECRET[:9], SECRET[9:20], SECRET[20:]):
        conversations.read(piece)
    state = conversations.dump(REDACTOR.mask)
    assert all(part.encode() not in state for part in (SECRET, SECRET[:9] + "7", SECRET[9:20], SECRET[20:]))
    restored = open_conversations("shell")
    restored.load(state)
    (event,) = [draft.event for _, _, drafts in restored.read("AB</shell>") for draft in drafts]
    assert isinstance(event, ev.CallProposed)
    assert REDACTOR.value(event.input) == {"command": "curl -H key:[redacted:anthropic]"}


@pytest.mark.parametrize("text", ["", "no secret", f"a {SECRET} b", f"{SECRET}", f"{SECRET} {SECRET}."])
def test_a_masked_text_keeps_its_length_and_its_redaction(text: str) -> None:
    masked = REDACTOR.mask(text)
    assert len(masked) == len(text)
    assert REDACTOR.text(masked) == REDACTOR.text(text)
    assert SECRET not in masked


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02\x03",
        encode_state({"other": 1}, str),
        encode_state(TextDigest("x"), str),
        encode_state(open_conversations("acp").named("").decoder, str),
    ],
    ids=["empty", "invalid", "odd", "dict", "digest", "other"],
)
def test_a_state_of_another_decoder_is_refused(state: bytes) -> None:
    """So is damaged data; the decoder then begins again."""
    with pytest.raises(StateMismatchError):
        restore_state(open_conversations("shell").named("").decoder, state)


def test_a_state_names_only_classes_of_this_package() -> None:
    """A file cannot make the reader import a module or call a function."""
    state = encode_state(open_conversations("shell").named("").decoder, str)
    for other in (b"subprocess:Popen", b"callslip.model.codec:encode"):
        name = b"callslip.formats.shell.parse:ShellParser"
        damaged = state.replace(bytes([0xD9, len(name)]) + name, bytes([0xD9, len(other)]) + other)
        assert damaged != state
        with pytest.raises(StateMismatchError):
            restore_state(open_conversations("shell").named("").decoder, damaged)


@pytest.mark.parametrize("stored_after", [0, 1, 5, 11])
def test_a_restored_digest_recognizes_the_text(stored_after: int) -> None:
    digest, text = TextDigest(), "déjà vu 🙂 again"
    for number, character in enumerate(text):
        if number == stored_after:
            segments = digest.dump()
            digest = TextDigest()
            digest.load(segments)
        digest.add(character)
    assert digest.matches(text)
    assert not digest.matches(text.upper()) and not digest.matches(text[:-1]) and not digest.matches(f"{text} ")
