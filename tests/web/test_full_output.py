"""What a card knows of the output of a call: the real module in Node. VIEW3"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import callslip
from tests.support.stream_checks import Client

WEB = Path(callslip.__file__).parent / "web"
MORE = "\n[... there is more; the last of it is shown at the end ...]\n"
BLOB = {"hash": "a" * 64, "size": 9, "media": "text/plain"}
JSON_BLOB = {**BLOB, "media": "application/json"}


@pytest.fixture(scope="module")
def client(node: str) -> Iterator[Client]:
    harness = Client(node, "page_parts.mjs", str(WEB))
    yield harness
    harness.close()


def run_part(client: Client, part: str, **job: Any) -> Any:
    return client.ask([{"part": part, **job}])[0]


@pytest.mark.parametrize(
    ("entry", "loaded", "output", "extent", "printed"),
    [
        # Without a blob: the result is the output, and the printed text is shown only if it differs.
        ({"outputText": "a\n"}, None, None, "all", "a\n"),
        ({"output": "a\nb\n", "outputText": "a\n"}, None, "a\nb\n", "all", ""),
        ({"output": "a\nb", "outputText": "a" + MORE}, None, "a\nb", "all", ""),
        ({"output": {"rows": 2}, "outputText": "10%\n"}, None, {"rows": 2}, "all", "10%\n"),
        # Both streams of a program: as printed if that is all, else from the result.
        ({"output": {"stdout": "a\n", "stderr": "b\n"}, "outputText": "b\na\n"}, None, "b\na\n", "all", ""),
        ({"output": {"stdout": "a" * 9, "stderr": "b"}, "outputText": "a" + MORE}, None, "aaaaaaaaa\nb", "all", ""),
        ({"output": {"stdout": "a", "code": 1}}, None, {"stdout": "a", "code": 1}, "all", ""),
        # With a blob: the preview is the beginning, until the end or all of it is loaded.
        ({"output": "a\nb", "blob": BLOB}, None, "a\nb", "beginning", ""),
        ({"output": "a\nb", "blob": BLOB}, {"tail": "y\nz"}, "y\nz", "end", ""),
        ({"output": "a\nb", "blob": BLOB}, {"output": "a\nb\nc\ny\nz", "tail": "z"}, "a\nb\nc\ny\nz", "all", ""),
        ({"output": "a\nb", "outputText": "a\nb\nc" + MORE, "blob": BLOB}, None, "a\nb\nc", "beginning", ""),
        ({"output": "a\nb", "outputText": "a\nb\nc" + MORE, "blob": BLOB}, {"tail": "z"}, "z", "end", ""),
        ({"output": "a\nb", "outputText": "a\nb\nc\ny\nz", "blob": BLOB}, None, "a\nb\nc\ny\nz", "all", ""),
        ({"output": "a\nb", "outputText": "10%\n", "blob": BLOB}, {"tail": "z"}, "z", "end", "10%\n"),
        # The preview of both streams is JSON, but what was printed is their text.
        ({"output": '{"stdout":"a', "outputText": "a\n", "blob": {**JSON_BLOB, "size": 28}}, None,
         "a\n", "all", ""),
        ({"output": '{"stdout":"a', "outputText": "a\n", "blob": {**JSON_BLOB, "size": 90}}, None,
         "a\n", "beginning", ""),
        ({"output": '{"stdout":"a', "blob": JSON_BLOB}, None, '{"stdout":"a', "beginning", ""),
    ],
)  # fmt: skip
def test_a_call_has_one_output(
    client: Client, entry: dict[str, Any], loaded: Any, output: Any, extent: str, printed: str
) -> None:
    """What is printed live, the preview and the stored output are parts of the same text, not several outputs."""
    known = run_part(client, "knownOutput", entry=entry, loaded=loaded)
    assert (known.get("output"), known["extent"], known["printed"]) == (output, extent, printed)


def test_a_large_error_is_loaded_as_an_error(client: Client) -> None:
    known = run_part(client, "knownOutput", entry={"error": "ab", "blob": BLOB}, loaded={"tail": "yz"})
    assert (known.get("output"), known["error"], known["extent"]) == (None, "yz", "end")


CONTENT_BLOB = {"hash": "c" * 64, "size": 99, "media": "application/json", "fields": ["content"]}


@pytest.mark.parametrize(
    ("entry", "loaded", "expected"),
    [
        # A complete output beside large content.
        ({"output": "ok", "contentBlob": CONTENT_BLOB}, None, {"Output": "beginning c", "Raw output": None}),
        ({"output": "ok", "contentBlob": CONTENT_BLOB}, {"values": {"content": [{"type": "text", "text": "xyz"}]}},
         {"Output": "all c", "Raw output": None}),
        # Both are large, and stored apart.
        ({"output": "y", "contentBlob": CONTENT_BLOB, "blob": BLOB}, None,
         {"Output": "beginning c", "Raw output": "beginning a"}),
        ({"output": "y", "contentBlob": CONTENT_BLOB, "blob": BLOB},
         {"values": {"content": [{"type": "text", "text": "xyz"}], "output": "yyy"}},
         {"Output": "all c", "Raw output": "all a"}),
        # Without an output, its blob is that of the content; the error is complete.
        ({"error": "no", "contentBlob": CONTENT_BLOB, "blob": CONTENT_BLOB}, None,
         {"Output": "beginning c", "Error": None}),
        # Complete content beside a large output.
        ({"output": "y", "blob": BLOB}, None, {"Output": None, "Raw output": "beginning a"}),
    ],
)  # fmt: skip
def test_each_part_has_its_own_blob(client: Client, entry: dict[str, Any], loaded: Any, expected: Any) -> None:
    """ENT4: a part says how much of it is known, of the blob that has all of it."""
    entry = {"content": [{"type": "text", "text": "x"}], **entry}
    parts = run_part(client, "outputParts", entry=entry, loaded=loaded)
    shown = {part["label"]: f"{part['extent']} {part['blob']['hash'][0]}" if "blob" in part else None for part in parts}
    assert shown == expected


def test_a_tail_begins_with_a_whole_line(client: Client) -> None:
    """The bytes may begin inside of a line, and inside of a character."""
    assert run_part(client, "decodeTail", bytes=list("é\nb\nc\n".encode()[1:])) == "b\nc\n"
    assert run_part(client, "decodeTail", bytes=list("éb".encode()[1:])) == "b"
    assert run_part(client, "decodeTail", bytes=list(b"one line\n")) == "one line\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("plain\ttext\r\n", False),
        ("\x1b[31mred\x1b[0m", False),
        ("a broken � character in a long line of text", False),
        ("\x7fELF\x02\x01\x01\x00", True),
        ("�PNG\r\n\x1a\n�IHDR��", True),
    ],
)
def test_binary_output_is_recognized(client: Client, text: str, expected: bool) -> None:
    assert run_part(client, "isBinary", text=text) is expected


def test_sizes_are_rounded_within_their_unit(client: Client) -> None:
    sizes = [run_part(client, "formatBytes", count=count) for count in (1, 999, 1000, 999_949, 999_950, 1_288_895)]
    assert sizes == ["1 byte", "999 bytes", "1.0 kB", "999.9 kB", "1.0 MB", "1.3 MB"]
