"""JSON in and out: what is refused, what is fixed, and that everything else reads back the same."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import json
import math
import subprocess
import sys
import threading
import uuid
from collections import OrderedDict, UserDict, deque, namedtuple
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.errors import InvalidInputError
from callslip.model.codec import (
    MAX_DEPTH,
    MAX_DIGITS,
    clean_text,
    digest,
    encode,
    has_more_values,
    json_depth,
    parse_json,
    to_json,
    validate_json,
)

MAX_INTEGER = 10**MAX_DIGITS - 1

texts = st.text(st.characters(codec=None))  # With lone surrogates.
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)


class Hostile:
    """An object without repr, comparison or hash."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")


class Masked:
    """An object whose type cannot be read."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("no")


anything = st.recursive(
    scalars
    | texts
    | st.floats()
    | st.binary()
    | st.integers(10**400, 10**401)
    | st.decimals()
    | st.datetimes()
    | st.uuids()
    | st.builds(ValueError, texts)
    | st.builds(Hostile)
    | st.builds(object),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(texts | st.integers() | st.floats() | st.none() | st.tuples(st.integers()), inner)
    ),
    max_leaves=20,
)


def nest(depth: int, inner: Any = None) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


def is_canonical(value: Any) -> bool:
    """Return whether a value has the canonical form of the module."""
    if type(value) is dict:
        return all(type(key) is str and is_canonical(key) and is_canonical(member) for key, member in value.items())
    if type(value) is list:
        return all(map(is_canonical, value))
    if type(value) is str:
        return not any("\ud800" <= char <= "\udfff" for char in value)
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) is bool or (type(value) is int and abs(value) <= MAX_INTEGER)


def is_identical(one: Any, other: Any) -> bool:
    """Return whether two values and their types are equal: 1, 1.0 and True are three values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_identical(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_identical, one, other))
    return one == other


class TestParseJson:
    @given(values)
    def test_encoded_values_decode_to_the_same_value(self, value: Any) -> None:
        """With the same types."""
        assert is_identical(parse_json(encode(value)), value)

    @given(values)
    def test_json_of_other_libraries_is_read(self, value: Any) -> None:
        """JSON written by another library, as bytes or as text, gives the same value."""
        text = json.dumps(value)
        assert is_identical(parse_json(text), value) and is_identical(parse_json(text.encode()), value)

    @given(values)
    def test_other_libraries_read_our_json(self, value: Any) -> None:
        """What we write is read by another library as the same value."""
        assert is_identical(json.loads(encode(value)), value)

    @given(st.binary() | st.text(alphabet='[]{}:,"\\u0dD8cC9aA1.eE-+ntf\0 ').map(str.encode))
    def test_any_bytes_are_parsed_or_refused(self, data: bytes) -> None:
        """Input raises only InvalidInputError, and each value that is read is canonical and reads back the same."""
        try:
            value = parse_json(data)
        except InvalidInputError as refusal:
            assert refusal.field == "body"
            return
        assert is_canonical(value)
        assert is_identical(parse_json(encode(value)), value)

    @given(texts)
    def test_an_escaped_lone_surrogate_is_replaced(self, value: str) -> None:
        """JSON may escape half a character; it is read as U+FFFD, and its other escapes as they are."""
        assert parse_json(json.dumps({value: ["\\ud800", value]})) == {
            clean_text(value): ["\\ud800", clean_text(value)]
        }

    @pytest.mark.parametrize(
        ("data", "value"),
        [
            (rb'"\ud83d\ude00"', "😀"),
            (rb'"\ud83d"', "\ufffd"),
            (rb'"\ude00\ud83d"', "\ufffd\ufffd"),
            (rb'"\ud83d\ud83d\ude00\ude00"', "\ufffd😀\ufffd"),
            (rb'"\\ud83d \uD83D"', "\\ud83d \ufffd"),
            (rb'"\\\ud83d\\\\ud83d"', "\\\ufffd\\\\ud83d"),
            ('"\ud83d\ude00 \ud83d"', "😀 \ufffd"),
            (rb'{"a": 1, "b": 2, "a": 3}', {"a": 3, "b": 2}),
            (rb'{"\ud800": 1, "\udc00": 2}', {"\ufffd": 2}),
            (rb'"\u0000"', "\0"),
            (b" [1 ,\t2\r\n] ", [1, 2]),
            (b"18446744073709551617", 2**64 + 1),
            (b"1" * MAX_DIGITS, int("1" * MAX_DIGITS)),
            (b'"' + b"1" * 1000 + b'"', "1" * 1000),
            (b"0." + b"1" * 1000, 0.1111111111111111),
            (b"1e-400", 0.0),
            (b'"[[[" ', "[[["),
        ],
    )
    def test_unusual_but_valid_json_is_read(self, data: bytes | str, value: Any) -> None:
        """All valid JSON is accepted."""
        assert is_identical(parse_json(data), value)

    @pytest.mark.parametrize(
        "data",
        [
            *(b"", b" ", b"{", b"[1,]", b"[1] 2", b"{1: 2}", b"'a'", b"01", b"1.", b"+1", b"tru", b"\xef\xbb\xbf1"),
            *(b"NaN", b"[Infinity]", b"-Infinity", b"1e400", b"-1e400"),
            *(b'"\xff"', b'{"\xff": 1}', b'"\xed\xa0\x80"', b'"\0"', b'"\0\0 \\ud800"', b'"\n"', b'"\\x"', b'"\\ud8"'),
        ],
    )
    def test_invalid_json_is_refused(self, data: bytes) -> None:
        """Malformed text, numbers out of range and invalid UTF-8, with the name of the field."""
        with pytest.raises(InvalidInputError) as refused:
            parse_json(data, field="input")
        assert refused.value.field == "input"

    @pytest.mark.parametrize("digits", [MAX_DIGITS + 1, 1000, 5000, 100_000])
    def test_an_integer_with_too_many_digits_is_refused(self, digits: int) -> None:
        """The error has the limit, also if Python cannot print the number."""
        with pytest.raises(InvalidInputError) as refused:
            parse_json(b'{"n": [-' + b"7" * digits + b"]}")
        assert refused.value.limit == MAX_DIGITS

    def test_too_many_bytes_are_refused(self) -> None:
        """Bytes are counted, not characters."""
        assert parse_json('"ää"', max_bytes=6) == "ää"
        for data in ('"äää"', b'"12345"', '"12345"'):
            with pytest.raises(InvalidInputError) as refused:
                parse_json(data, field="output", max_bytes=6)
            assert (refused.value.field, refused.value.limit) == ("output", 6)

    @pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"\\"[":'])
    def test_deep_nesting_is_refused(self, opening: bytes) -> None:
        """Depth is counted before anything recurses, so that no depth overflows the stack (C11)."""
        for count in (MAX_DEPTH + 1, 100_000):
            with pytest.raises(InvalidInputError) as refused:
                parse_json(opening * count)
            assert refused.value.limit == MAX_DEPTH

    def test_nesting_up_to_the_limit_is_read(self) -> None:
        """Many brackets are not depth, and brackets in texts do not count."""
        deepest = nest(MAX_DEPTH)
        assert parse_json(encode(deepest)) == deepest
        wide: list[Any] = [[] for _ in range(1000)] + ['[{"\\' * 200]
        assert parse_json(encode(wide)) == wide
        with pytest.raises(InvalidInputError):
            parse_json(encode(nest(MAX_DEPTH + 1)))
        with pytest.raises(InvalidInputError):
            parse_json(b"[[1]]", max_depth=1)

    def test_nested_json_is_parsed_or_refused_near_the_stack_limit(self) -> None:
        """A caller in deep recursion gets an error; from Python 3.12 on the value is parsed."""
        data = encode(nest(MAX_DEPTH))

        def descend() -> None:
            try:
                descend()
            except RecursionError:
                assert encode(parse_json(data)) == data
                assert sys.version_info >= (3, 12), "the stack had room"

        with (
            pytest.raises((InvalidInputError, RecursionError))
            if sys.version_info < (3, 12)
            else contextlib.nullcontext()
        ):
            descend()

    @given(values)
    def test_the_scanned_depth_equals_the_depth_of_the_value(self, value: Any) -> None:
        """The scan over the text finds what a walk over the value finds."""

        def depth(value: Any) -> int:
            if isinstance(value, dict):
                value = list(value.values())
            return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0

        assert json_depth(encode(value)) == depth(value)

    @given(values, st.integers(1, 9))
    def test_the_scans_are_the_same_in_pieces_of_any_size(self, value: Any, size: int) -> None:
        """BODY1: Wherever a long text is divided, also inside of strings and escapes."""

        def count(value: Any) -> int:
            if isinstance(value, dict):
                value = list(value.values())
            return max(1, len(value)) + sum(map(count, value)) if isinstance(value, list) else 0

        data = encode(value)
        depth = json_depth(data)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("callslip.model.codec._PIECE_BYTES", size)
            assert json_depth(data) == depth
            assert has_more_values(data, count(value) - 1) and not has_more_values(data, count(value))

    @given(st.binary())
    def test_the_depth_scan_accepts_any_bytes(self, data: bytes) -> None:
        """It never raises."""
        assert 0 <= json_depth(data) <= len(data)


class TestValidateJson:
    @given(values)
    def test_a_json_value_is_returned_unchanged(self, value: Any) -> None:
        """A canonical value is returned unchanged."""
        assert is_identical(validate_json(value, "input"), value)

    @given(anything)
    def test_any_value_is_accepted_or_refused(self, value: Any) -> None:
        """Values raise only InvalidInputError; a result is canonical and reads back the same."""
        try:
            checked = validate_json(value, "input")
        except InvalidInputError as refusal:
            assert refusal.field.startswith(("input", "a key of input"))
            return
        assert is_canonical(checked)
        assert is_identical(parse_json(encode(checked)), checked)

    @pytest.mark.parametrize(
        ("value", "path"),
        [
            ({"items": [1, 2, 3, {"x": {1}}]}, "input.items[3].x"),
            ({"a": [math.nan]}, "input.a[0]"),
            ([-math.inf], "input[0]"),
            ({"when": datetime.date(2024, 1, 1)}, "input.when"),
            ({"data": b"bytes"}, "input.data"),
            ([10**MAX_DIGITS], "input[0]"),
            ({(1, 2): 3}, "input"),
            ({math.nan: 3}, "a key of input"),
            (object(), "input"),
            (Decimal(1), "input"),
            ({"a" * 100: {1}}, "input." + "a" * 40),
        ],
    )
    def test_a_value_that_is_not_json_is_refused_with_its_path(self, value: Any, path: str) -> None:
        """The error names the path of the invalid part."""
        with pytest.raises(InvalidInputError) as refused:
            validate_json(value, "input")
        assert refused.value.field == path

    def test_objects_that_cannot_be_printed_are_refused(self) -> None:
        """Objects whose repr raises, and integers beyond Python's limit. They cannot be pytest parameters."""
        for value in (Hostile(), 10**5000):
            with pytest.raises(InvalidInputError) as refused:
                validate_json([value], "input")
            assert refused.value.field == "input[0]"

    @pytest.mark.parametrize(
        ("value", "canonical"),
        [
            ((1, (2,)), [1, [2]]),
            (namedtuple("Point", "x y")(1, 2), [1, 2]),
            ({1: "a", 2.5: "b", None: "c"}, {"1": "a", "2.5": "b", "null": "c"}),
            ({1: "a", "1": "b"}, {"1": "b"}),
            ({False: 0, True: 1}, {"false": 0, "true": 1}),
            ({10**30: 0}, {"1" + "0" * 30: 0}),
            (OrderedDict(a=1), {"a": 1}),
            (type("Text", (str,), {})("a"), "a"),
            (type("Number", (int,), {})(1), 1),
            (type("Real", (float,), {})(1.5), 1.5),
            ({type("Text", (str,), {})("a"): 1}, {"a": 1}),
            (enum.StrEnum("Colour", {"RED": "red"})("red"), "red"),
            ([enum.IntEnum("Level", {"LOW": 1})(1)], [1]),
            ("\ud800", "\ufffd"),
            ("\ud83d\ude00" * 1000, "😀" * 1000),
            ({"\ud800": ["\udfff"]}, {"\ufffd": ["\ufffd"]}),
            (["1" * 1000], ["1" * 1000]),
        ],
    )
    def test_values_close_to_json_become_canonical(self, value: Any, canonical: Any) -> None:
        """Tuples, number keys, subclasses and lone surrogates are converted."""
        assert is_identical(validate_json(value, "input"), canonical)

    def test_the_result_is_a_copy(self) -> None:
        """Later changes of the value do not affect it."""
        value = {"a": [1]}
        checked = validate_json(value, "input")
        value["a"].append(2)
        assert checked == {"a": [1]}

    def test_deep_and_cyclic_values_are_refused(self) -> None:
        """A value that is too deep, or inside itself, is refused with the limit."""
        loop: list[Any] = []
        loop.append(loop)
        knot: dict[Any, Any] = {}
        knot.update(a=knot, b=(knot,))
        for value in (nest(MAX_DEPTH + 1), nest(5000), nest(MAX_DEPTH, (1,)), loop, knot):
            with pytest.raises(InvalidInputError) as refused:
                validate_json(value, "input")
            assert (refused.value.field, refused.value.limit) == ("input", MAX_DEPTH)
        assert validate_json(nest(MAX_DEPTH), "input") == nest(MAX_DEPTH)
        assert validate_json((((),),), "input", 3) == [[[]]]
        with pytest.raises(InvalidInputError):
            validate_json((((),),), "input", 2)

    def test_too_many_bytes_are_refused(self) -> None:
        """The size is that of the JSON text."""
        for value in ("x" * 2000, ["x" * 2000], ("x" * 2000,)):
            with pytest.raises(InvalidInputError) as refused:
                validate_json(value, "input", max_bytes=2000)
            assert refused.value.limit == 2000
            validate_json(value, "input", max_bytes=2004)


class TestToJson:
    @given(anything)
    def test_any_value_becomes_json(self, value: Any) -> None:
        """Any result of a tool becomes canonical (S1.5), and the same each time."""
        result = to_json(value)
        assert is_canonical(result)
        assert is_identical(parse_json(encode(result)), result)
        assert is_identical(validate_json(result, "output"), result)
        assert is_identical(to_json(value), result)

    @given(values)
    def test_json_values_are_unchanged(self, value: Any) -> None:
        """A value that is JSON already is not changed."""
        assert is_identical(to_json(value), value)

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (b"text", "text"),
            (bytearray("ä", "utf-8"), "ä"),
            (memoryview(b"\xff\x00"), {"base64": "/wA="}),
            (math.nan, "NaN"),
            ([math.inf, -math.inf], ["Infinity", "-Infinity"]),
            (10**300, str(10**300)),
            (True, True),
            ("\ud800", "\ufffd"),
            (datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), "2024-01-02T03:04:05+00:00"),
            (datetime.date(2024, 1, 2), "2024-01-02"),
            (datetime.time(3, 4), "03:04:00"),
            (datetime.timedelta(seconds=90), "0:01:30"),
            (Decimal("1.10"), "1.10"),
            (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
            (PurePosixPath("/a/b"), "/a/b"),
            (1 + 2j, "(1+2j)"),
            (ValueError("no such file"), {"error": "no such file", "type": "ValueError"}),
            (KeyboardInterrupt(), {"error": "", "type": "KeyboardInterrupt"}),
            ({3, 1, 2}, [1, 2, 3]),
            (frozenset({"b", "a", 1}), ["a", "b", 1]),
            (deque([1, 2]), [1, 2]),
            (namedtuple("Point", "x y")(1, b"\xff"), [1, {"base64": "/w=="}]),
            ({1: 1, None: 2, (1, "a"): 3, b"k": 4, 1.5: 5}, {"1": 1, "null": 2, '[1,"a"]': 3, "k": 4, "1.5": 5}),
            ({True: 1, math.nan: 2}, {"true": 1, "NaN": 2}),
            (enum.Enum("Colour", {"RED": (1, 2)})((1, 2)), [1, 2]),
            (enum.StrEnum("Tone", {"LOW": "low"})("low"), "low"),
            ({enum.IntEnum("Level", {"LOW": 1})(1): 2}, {"1": 2}),
            (UserDict({"a": {1}}), {"a": [1]}),
            (ValueError, "<class 'ValueError'>"),
        ],
    )
    def test_each_type_that_json_lacks_has_one_form(self, value: Any, expected: Any) -> None:
        """For example dates, bytes and sets."""
        assert is_identical(to_json(value), expected)

    def test_objects_that_cannot_be_printed_become_text(self) -> None:
        """Integers beyond Python's limit stay exact. These values cannot be pytest parameters."""
        result = to_json([1, Hostile(), Masked(), ValueError(Hostile()), -(10**5000)])
        placeholders = ["[unreadable Hostile]", "[unreadable Masked]", "[unreadable ValueError]"]
        assert result == [1, *placeholders, hex(-(10**5000))]

    def test_objects_with_fields_become_objects(self) -> None:
        """Dataclasses, Structs, and objects of pydantic and numpy are converted to their contents."""

        @dataclasses.dataclass
        class Row:
            at: datetime.date
            tags: set[str]

        class Event(msgspec.Struct, rename="camel"):
            call_id: str
            rows: list[Row]

        class Model:
            def model_dump(self) -> dict[str, Any]:
                return {"event": Event("c1", [Row(datetime.date(2024, 1, 2), {"b", "a"})])}

        class Array:
            def tolist(self) -> list[float]:
                return [1.5, math.nan]

        rows = [{"at": "2024-01-02", "tags": ["a", "b"]}]
        assert to_json(Model()) == {"event": {"callId": "c1", "rows": rows}}
        assert to_json(Array()) == [1.5, "NaN"]
        assert to_json(Row) == repr(Row)

    def test_a_cycle_is_marked_where_it_repeats(self) -> None:
        """A value that is used twice is converted twice."""
        loop: dict[str, Any] = {"a": 1}
        loop["self"] = [loop]
        assert to_json(loop) == {"a": 1, "self": ["[cycle]"]}
        shared = [1]
        assert to_json([shared, shared]) == [[1], [1]]

    def test_values_below_the_depth_limit_become_text(self) -> None:
        """Values below the depth limit are replaced by a text, at any depth."""
        assert to_json(nest(MAX_DEPTH, 1)) == nest(MAX_DEPTH, 1)
        assert to_json(nest(100_000)) == nest(MAX_DEPTH, "[too deep]")

    def test_an_object_that_converts_endlessly_is_cut(self) -> None:
        """An object that converts to another of its type is cut at the depth limit."""

        class Doll:
            def model_dump(self) -> Any:
                return Doll()

        class Mirror:
            def model_dump(self) -> Any:
                return self

        assert to_json(Doll()) == "[too deep]"
        assert to_json(Mirror()) == "[cycle]"

    def test_objects_that_all_refer_to_each_other_stop_at_the_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """They have too many paths for a complete conversion."""
        monkeypatch.setattr("callslip.model.codec.MAX_ITEMS", 5000)

        @dataclasses.dataclass(eq=False)
        class Node:
            peers: list[Any] = dataclasses.field(default_factory=list)

        web = [Node() for _ in range(30)]
        for node in web:
            node.peers = list(web)
        for value in (web[0], {"a": web}, list(range(6000)), dict.fromkeys(range(6000))):
            result = encode(to_json(value))
            assert b"[too many items]" in result and len(result) < 200_000

    def test_memory_addresses_are_removed_from_reprs(self) -> None:
        """An object without a JSON form is shown by its repr, which must be the same in every run."""
        text = to_json(object())
        assert text == "<object object>"
        assert "0x" not in to_json([threading.Lock(), lambda: None])[1]

    def test_sets_have_the_same_order_in_every_process(self) -> None:
        """The iteration order of a set depends on the process."""
        code = "from callslip.model.codec import to_json; print(to_json({'a', 'b', 'c', ('d',), 1}))"
        runs = {
            subprocess.run(
                [sys.executable, "-c", code],
                env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(sys.path)},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for seed in range(3)
        }
        assert len(runs) == 1


class TestCleanText:
    @given(texts)
    def test_lone_surrogates_are_replaced(self, value: str) -> None:
        """The result can be encoded; only surrogates are touched, and a second time changes nothing."""
        result = clean_text(value)
        result.encode()
        assert clean_text(result) is result
        if not any("\ud800" <= char <= "\udfff" for char in value):
            assert result is value

    def test_each_lone_surrogate_is_replaced_separately(self) -> None:
        """Each lone surrogate becomes U+FFFD; a pair becomes one character."""
        assert clean_text("a\ud800b\udc00\ud83d\ude00\ud83d") == "a\ufffdb\ufffd😀\ufffd"


def test_digest_is_stable() -> None:
    """The digest is stored, so it may never change."""
    assert digest(b"") == "cae66941d9efbd404e4d88758ea67670"
    assert digest(b"a") != digest(b"b") and len(digest(b"a")) == 32
