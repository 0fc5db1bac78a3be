"""Parse commands in a model's text: tags, ids, results for the model, and events of producers that run commands."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.formats.shell import (
    Command,
    ShellParser,
    Text,
    command_id,
    extract_commands,
    format_tool_results,
    parse,
    truncate_output,
)
from callslip.formats.shell.decode import ShellDecoder
from callslip.formats.shell.results import MAX_OUTPUT_CHARS, split_tool_results
from callslip.ingest.importer import import_lines
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.entries import Message
from callslip.model.events import Alias
from tests.support.decoder_harness import DecoderHarness
from tests.support.invariants import sound_ledger

# Random texts consist of these, so that complete, broken, empty and nested tags are frequent.
PIECES = ["<shell>", "</shell>", "<", "</", "<s", "shell>", "ls", " ", "\n", "<shell", "é", "😀", "`", "a<b", "</shell"]
texts = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def list_commands(text: str) -> list[str]:
    return [command for _, command in extract_commands(text)]


def split_text(text: str, offsets: list[int]) -> list[str]:
    """Split a text at these offsets, modulo its length."""
    ends = sorted({offset % (len(text) + 1) for offset in offsets})
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def parse_pieces(pieces: list[str]) -> tuple[str, list[Command]]:
    """Parse pieces of a text and return the text outside of commands, and the commands."""
    parser = ShellParser()
    parts = [piece for text in pieces for piece in parser.feed(text)] + parser.close()
    shown = "".join(piece.text for piece in parts if isinstance(piece, Text))
    return shown, [piece for piece in parts if isinstance(piece, Command)]


# Finding commands


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("Look: <shell>ls -la</shell>", ["ls -la"], id="one"),
        pytest.param("<shell>pwd</shell> <shell>id</shell> <shell>date</shell>", ["pwd", "id", "date"], id="several"),
        pytest.param("<shell>ls</shell> <shell>ls</shell>", ["ls", "ls"], id="the same twice"),
        pytest.param("<shell>cat <<X\none\n\ntwo\nX</shell>", ["cat <<X\none\n\ntwo\nX"], id="several lines"),
        pytest.param("<shell>\t  df -h \n\n</shell>", ["df -h"], id="white space around"),
        pytest.param("Nothing to run here.", [], id="no tags"),
        pytest.param("", [], id="no text"),
        pytest.param(
            """<shell>awk '$1 > "a.*" && !/x|y/' f</shell>""",
            ["""awk '$1 > "a.*" && !/x|y/' f"""],
            id="special characters",
        ),
        pytest.param("First\n<shell>a</shell>\nthen\n<shell>b</shell>\nend", ["a", "b"], id="between sentences"),
        pytest.param("<shell></shell><shell> \n </shell><shell>x</shell>", ["x"], id="empty ones"),
        pytest.param("<shell>never closed", [], id="not closed"),
        pytest.param("closed</shell> before <shell>w</shell>", ["w"], id="closed before it opens"),
        pytest.param("<shell>echo '<shell>'</shell>", ["echo '<shell>'"], id="a tag inside"),
        pytest.param("<shell>echo a</shell>b</shell>", ["echo a"], id="closed twice"),
        pytest.param("```\n<shell>make</shell>\n```", ["make"], id="in a code fence"),
        pytest.param("<SHELL>a</SHELL><shell >b</shell ><shel>c</shel>", [], id="other tags"),
        pytest.param("<<shell>a < b</shell>", ["a < b"], id="angle brackets around and inside"),
        pytest.param("<shell>echo </shel</shell>", ["echo </shel"], id="nearly closed before"),
        pytest.param("<shell>printf 'é 日本 😀'</shell>", ["printf 'é 日本 😀'"], id="not ASCII"),
    ],
)
def test_the_text_between_the_tags_is_the_command(text: str, expected: list[str]) -> None:
    """S0.1, S0.2: also if it arrives one character at a time."""
    assert list_commands(text) == expected
    assert [command.command for command in parse_pieces(list(text))[1]] == expected


def test_each_text_is_parsed_independently() -> None:
    """An unclosed tag does not affect the next text."""
    assert list_commands("<shell>one</shell> and <shell>half") == ["one"]
    assert list_commands("a line</shell> <shell>two</shell>") == ["two"]


@given(texts, st.lists(st.integers(0, 200), max_size=8))
def test_any_split_of_a_text_gives_the_same_commands(text: str, offsets: list[int]) -> None:
    """S0.1: in one piece, in chunks or in single characters; each command once."""
    expected = parse_pieces([text])
    assert parse_pieces(split_text(text, offsets)) == expected
    assert parse_pieces(list(text)) == expected


@given(texts)
def test_text_outside_of_commands_is_unchanged(text: str) -> None:
    """Text and commands are the full input, without the tags and the white space around commands."""
    shown, commands = parse_pieces(list(text))
    parser = ShellParser()
    pieces = [*parser.feed(text), *parser.close()]
    joined = "".join(part.text if isinstance(part, Text) else f"<shell>{part.command}</shell>" for part in pieces)
    assert "".join(joined.split()) == "".join(text.split())
    if not commands:
        assert shown == text


@given(texts)
def test_only_a_possible_tag_prefix_is_held_back(text: str) -> None:
    """Other text outside of commands is released immediately."""
    parser = ShellParser()
    shown = "".join(piece.text for piece in parser.feed(text) if isinstance(piece, Text))
    held = "".join(piece.text for piece in parser.close() if isinstance(piece, Text))
    assert "<shell>".startswith(held) or held.startswith("<shell>")
    assert held != "<shell>" or text.endswith("<shell>")
    assert (shown + held) == parse_pieces([text])[0]


def test_text_is_released_before_the_next_tag_is_complete() -> None:
    """As early as possible."""
    parser = ShellParser()
    assert parser.feed("Hi <she") == [Text("Hi ")]
    assert parser.feed("d>") == [Text("<shed>")]
    assert parser.feed("<shell>l") == []
    assert parser.feed("s</shell") == []
    assert parser.feed("> ok") == [Command("ls", 0), Text(" ok")]


def test_empty_and_unclosed_tags_are_text() -> None:
    """S0.2: they are shown unchanged."""
    assert parse_pieces(["say <shell> \n</shell>, then <shell>x"]) == ("say <shell> \n</shell>, then <shell>x", [])


def test_a_command_is_released_at_its_closing_tag() -> None:
    """S0.4: before the text that follows."""
    parser = ShellParser()
    released = [(character, parser.feed(character)) for character in "<shell>ls</shell>x"]
    assert [(character, pieces) for character, pieces in released if pieces] == [
        (">", [Command("ls", 0)]),
        ("x", [Text("x")]),
    ]


def test_command_numbers_restart_in_every_round() -> None:
    """`close` ends a round."""
    parser = ShellParser()
    assert parser.feed("<shell>a</shell><shell>b</shell><shell>") == [Command("a", 0), Command("b", 1)]
    assert parser.close() == [Text("<shell>")]
    assert parser.feed("<shell>c</shell>") == [Command("c", 0)]


def count_searched(pieces: list[str]) -> int:
    """Return how many characters the parser searches in total."""
    count = 0
    search = parse.find_tag

    def counting_search(text: str, tag: str, start: int) -> tuple[bool, int]:
        nonlocal count
        count += len(text) - start
        match = search(text, tag, start)
        if match[0]:
            count -= len(text) - match[1] - len(tag)
        return match

    with patch.object(parse, "find_tag", counting_search):
        parse_pieces(pieces)
    return count


@pytest.mark.parametrize("text", ["plain ", "<shell>", "<shell>ls</shell>", "<", "<shell>never closed ", "</shell"])
def test_parsing_time_grows_linearly_with_the_text(text: str) -> None:
    """S0.1: also one character at a time; no text is searched repeatedly."""
    short, long = list(text * 1000), list(text * 10_000)
    assert count_searched(long) <= 10 * count_searched(short) + 100
    assert count_searched(long) <= 9 * len(long)


# Ids


def test_ids_have_round_and_position() -> None:
    """S0.3: both count from 0."""
    assert command_id(0, 0) == "cmd-0-0"
    assert extract_commands("<shell>a</shell><shell>b</shell>") == [("cmd-0-0", "a"), ("cmd-0-1", "b")]
    assert extract_commands("<shell>a</shell>", iteration=3) == [("cmd-3-0", "a")]


def test_an_empty_command_is_not_numbered() -> None:
    """S0.2"""
    assert extract_commands("<shell>a</shell><shell> </shell><shell>b</shell>") == [("cmd-0-0", "a"), ("cmd-0-1", "b")]


@given(texts, st.integers(0, 5))
def test_command_ids_are_unique_and_consecutive(text: str, iteration: int) -> None:
    """S0.3"""
    ids = [name for name, _ in extract_commands(text, iteration)]
    assert ids == [f"cmd-{iteration}-{index}" for index in range(len(ids))]


# Results for the model


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        pytest.param({"command": "ls", "result": "a\nb\n"}, "a\nb", id="text"),
        pytest.param({"command": "touch x", "result": ""}, "(no output)", id="nothing"),
        pytest.param({"command": "x", "result": "\n\n"}, "(no output)", id="only line ends"),
        pytest.param({"command": "x"}, "(no output)", id="no field"),
        pytest.param({"stdout": "out\n", "stderr": "", "exitStatus": 0}, "out", id="streams"),
        pytest.param({"stdout": "out\n", "stderr": "warn\n"}, "out\n[stderr]\nwarn", id="both streams"),
        pytest.param(
            {"result": {"stdout": "half\n", "stderr": "broke\n", "exitStatus": 2}, "isError": True},
            "half\n[stderr]\nbroke\n[exit status 2]",
            id="failure with both streams",
        ),
        pytest.param({"result": "", "exit_code": 1}, "(no output)\n[exit status 1]", id="silent failure"),
        pytest.param({"result": "x", "error": "timed out"}, "x\n[error: timed out]", id="error"),
        pytest.param({"error": {"message": "no such tool"}}, "(no output)\n[error: no such tool]", id="error object"),
        pytest.param({"result": "x", "isError": True}, "x\n[failed]", id="failed without a reason"),
        pytest.param({"result": {"rows": 2}}, '{"rows":2}', id="an object"),
        pytest.param(
            {"result": "x", "exitStatus": {"signal": "KILL"}}, 'x\n[exit status {"signal":"KILL"}]', id="signal"
        ),
    ],
)
def test_a_result_is_formatted_as_one_terminal_block(result: dict[str, Any], expected: str) -> None:
    """S0.6: the output, and for a failure all known fields."""
    assert format_tool_results([result]) == f"```terminal\n{expected}\n```"


def test_results_are_formatted_in_order() -> None:
    """S0.6: one block each; equal results give equal texts."""
    results = [{"result": "one"}, {"result": ""}, {"result": "two"}]
    text = format_tool_results(results)
    assert text == "```terminal\none\n```\n\n```terminal\n(no output)\n```\n\n```terminal\ntwo\n```"
    assert text == format_tool_results(codec.parse_json(codec.encode(results)))
    assert format_tool_results([]) == ""


fences = st.lists(st.sampled_from(["`", "```", "````", "\n", "```\n", "terminal", "a", " "]), max_size=8).map("".join)


@given(st.lists(fences, min_size=1, max_size=4))
def test_no_output_can_close_its_fence(outputs: list[str]) -> None:
    """S0.6: a fence is longer than any fence in the output, so the blocks can be parsed."""
    outputs = [*outputs, "\n```\n\n```terminal"]
    text = format_tool_results([{"result": output} for output in outputs])
    assert split_tool_results(text) == [output.rstrip("\n") for output in outputs]


def test_a_text_that_is_not_a_list_of_results_is_not_parsed() -> None:
    """Text around the blocks, a block of another language, or an unclosed one."""
    for text in [
        "",
        "hello",
        "```terminal\nx",
        "```python\nx\n```",
        "```terminal\nx\n```\nand",
        "so\n```terminal\nx\n```",
    ]:
        assert split_tool_results(text) is None


def test_output_within_the_limit_is_not_truncated() -> None:
    """S0.6: including output of exactly the limit."""
    assert truncate_output("short", 100) == "short"
    assert truncate_output("a" * 100, 100) == "a" * 100
    assert truncate_output("a" * MAX_OUTPUT_CHARS) == "a" * MAX_OUTPUT_CHARS


def test_truncated_output_has_the_number_of_cut_characters() -> None:
    """S0.6: the beginning and the end are kept."""
    text = "begin " + "." * 500 + " end"
    truncated = truncate_output(text, 100)
    assert truncated.startswith("begin ") and truncated.endswith(" end")
    head, _, rest = truncated.partition("\n[... ")
    number, _, tail = rest.partition(" of 510 characters cut ...]\n")
    assert int(number) == len(text) - len(head) - len(tail)
    assert len(truncate_output("a" * (MAX_OUTPUT_CHARS + 1))) <= MAX_OUTPUT_CHARS


@given(st.text(max_size=400), st.integers(60, 300))
def test_truncating_twice_changes_nothing(text: str, limit: int) -> None:
    """S0.6: truncated output is within the limit, so live and reloaded texts are equal."""
    truncated = truncate_output(text, limit)
    assert len(truncated) <= limit
    assert truncate_output(truncated, limit) == truncated


def test_a_limit_smaller_than_the_note_keeps_only_the_note() -> None:
    """No character of the text is kept."""
    assert truncate_output("a" * 50, 3) == "\n[... 50 of 50 characters cut ...]\n"
    assert truncate_output("a" * 50, -1) == "\n[... 50 of 50 characters cut ...]\n"


def test_each_stream_has_its_own_limit() -> None:
    """S0.6: a long stdout does not remove stderr."""
    text = format_tool_results([{"stdout": "a" * 1000, "stderr": "b" * 50, "exitStatus": 1}], limit=100)
    assert "b" * 50 in text and "[exit status 1]" in text and "of 1000 characters cut" in text


# Decode events of producers


class ShellHarness(DecoderHarness):
    """The shell decoder with a ledger in memory."""

    def __init__(self, **options: Any) -> None:
        super().__init__(ShellDecoder(**options))


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


def event(kind: str, command: str = "", name: str = "", **more: Any) -> dict[str, Any]:
    named = {"commandId": name} if name else {}
    return {"type": kind, "command": command, **named, **more}


PROMPT = {"type": "user", "text": "Go"}
DONE = {"type": "done"}


def test_a_command_is_proposed_at_its_closing_tag() -> None:
    """S0.4: within the message, before the text that follows; its id is an alias."""
    decoder = ShellDecoder()
    assert not decoder.feed("<shell>ls</shell")
    (draft,) = decoder.feed(">")
    assert draft.event == ev.CallProposed(
        aliases=(Alias("shell", "cmd-0-0"),),
        tool_name="shell",
        title="ls",
        kind="execute",
        input={"command": "ls"},
        iteration=0,
        index=0,
    )


def test_events_move_a_call_from_queued_to_running_to_completed() -> None:
    """S0.4: matched by id, with any other fields."""
    harness = ShellHarness().feed(text("<shell>ls</shell>"))
    statuses = [harness.calls[0].status]
    for message in (
        event("tool-call", "ls", "cmd-0-0"),
        event("tool-start", "ls", "cmd-0-0"),
        event("tool-result", "ls", "cmd-0-0", result="a\n"),
    ):
        statuses.append(harness.feed(message).calls[0].status)
    assert statuses == ["queued", "queued", "running", "completed"]
    (call,) = harness.calls
    assert (call.tool_call_id, call.output, call.raw_input) == ("cmd-0-0", "a\n", {"command": "ls"})


def test_equal_commands_are_separate_calls() -> None:
    """C3: the second one runs and ends while the first one waits."""
    harness = ShellHarness().feed(text("<shell>ls</shell><shell>ls</shell>"))
    harness.feed(event("tool-start", "ls", "cmd-0-1"))
    assert [call.status for call in harness.calls] == ["queued", "running"]
    harness.feed(event("tool-result", "ls", "cmd-0-1", result="second"))
    assert [(call.status, call.output) for call in harness.calls] == [("queued", None), ("completed", "second")]
    harness.feed(event("tool-result", "ls", "cmd-0-0", result="first"))
    assert [call.output for call in harness.calls] == ["first", "second"]


def test_results_in_another_order_reach_their_commands() -> None:
    """Results may arrive in another order than the commands."""
    harness = ShellHarness().feed(text("<shell>a</shell><shell>b</shell><shell>c</shell>"))
    for name in ("cmd-0-2", "cmd-0-0", "cmd-0-1"):
        harness.feed(event("tool-start", "", name), event("tool-result", "", name, result=name))
    assert [call.output for call in harness.calls] == ["cmd-0-0", "cmd-0-1", "cmd-0-2"]


def test_command_numbers_restart_after_a_mark_or_a_start() -> None:
    """S0.3: an iteration mark ends a round, and so does the start of a command."""
    harness = ShellHarness().feed(text("<shell>a</shell><shell>b</shell>"), {"type": "iteration-end"})
    harness.feed(text("<shell>c</shell>"), event("tool-start", "c", "cmd-1-0"), text("<shell>d</shell>"))
    assert [call.tool_call_id for call in harness.calls] == ["cmd-0-0", "cmd-0-1", "cmd-1-0", "cmd-2-0"]
    assert [(call.iteration, call.index) for call in harness.calls] == [(0, 0), (0, 1), (1, 0), (2, 0)]


def test_an_iteration_mark_after_the_results_ends_no_second_round() -> None:
    """The results have already ended the round."""
    harness = ShellHarness().feed(text("<shell>a</shell>"), event("tool-result", "a", "cmd-0-0", result=""))
    harness.feed({"type": "iteration-end", "hasMoreCommands": True}, {"type": "iteration-start"})
    assert harness.feed("<shell>b</shell>").calls[1].tool_call_id == "cmd-1-0"


def test_an_id_reused_in_the_next_turn_is_another_call() -> None:
    """S0.3: ids are unique within a turn."""
    harness = ShellHarness()
    for day in ("Monday", "Tuesday"):
        harness.feed(PROMPT, text("<shell>date</shell>"), event("tool-call", "date", "cmd-0-0"))
        harness.feed(event("tool-result", "date", "cmd-0-0", result=day), DONE)
    assert [call.output for call in harness.calls] == ["Monday", "Tuesday"]
    assert [call.turn for call in harness.calls] == ["t1", "t2"]


@pytest.mark.parametrize("between", [[], [PROMPT]])
def test_round_numbers_restart_in_the_next_turn(between: list[Any]) -> None:
    """S0.3: with or without a prompt."""
    harness = ShellHarness()
    for _ in range(2):
        harness.feed(*between, "<shell>a</shell>", {"type": "iteration-end"}, "<shell>b</shell>", DONE)
    proposed = [event.aliases[0].id for event in harness.log(ev.CallProposed)]
    assert proposed == ["cmd-0-0", "cmd-1-0"] * 2
    assert len(harness.calls) == 4


def test_a_tool_call_event_repeats_the_command_of_the_text() -> None:
    """S0.4: the command in the text and repeated events are one call."""
    harness = ShellHarness().feed(text("<shell>ls</shell>"), *[event("tool-call", "ls", "cmd-0-0")] * 2)
    assert len(harness.calls) == 1
    harness.feed(event("tool-result", "ls", "cmd-0-0", result="a"), event("tool-call", "ls", "cmd-0-0"))
    assert len(harness.calls) == 1
    assert harness.verdicts[-1] == "duplicate"


def test_an_id_reused_for_another_command_is_another_call() -> None:
    """C2: after the first call ended; while it is open, it is the same call."""
    ids = {"commandId": "x"}
    first = [{"type": "tool-call", "command": "ls", **ids}, {"type": "tool-result", "result": "1", **ids}]
    again = [{"type": "tool-call", "command": "pwd", **ids}, {"type": "tool-start", "command": "pwd", **ids}]
    harness = ShellHarness().feed(*first, *again, {"type": "tool-result", "result": "2", **ids})
    assert [(call.title, call.status, call.output) for call in harness.calls] == [
        ("ls", "completed", "1"),
        ("pwd", "completed", "2"),
    ]
    assert [call.title for call in ShellHarness().feed(first[0], *again).calls] == ["pwd"]


def test_a_producers_own_id_is_an_alias_of_the_command() -> None:
    """Each `tool-call` takes the oldest unmatched command of the text, and both ids lead to the call."""
    harness = ShellHarness().feed(text("<shell>ls</shell><shell>id</shell><shell>ls</shell>"))
    for command, name in (("ls", "x1"), ("id", "x2"), ("ls", "x3")):
        harness.feed(event("tool-call", command, name))
    harness.feed(event("tool-result", "ls", "x3", result="third"), event("tool-call", "ls", "x3"))
    harness.feed(event("tool-start", "ls", "x1"), event("tool-result", "ls", "cmd-0-0", result="first"))
    assert [call.output for call in harness.calls] == ["first", None, "third"]
    harness.feed(event("tool-start", "ls", "x1"), event("tool-start", "ls", "cmd-0-2"))
    assert [bool(call.late) for call in harness.calls] == [True, False, True]


def test_an_id_collision_is_resolved_by_the_command() -> None:
    """A producer that skips repeated commands may use an id that we assigned to another command."""
    harness = ShellHarness().feed(text("<shell>ls</shell><shell>ls</shell><shell>id</shell>"))
    harness.feed(event("tool-call", "ls", "cmd-0-0"), event("tool-call", "id", "cmd-0-1"))
    harness.feed(event("tool-start", "id", "cmd-0-1"), event("tool-result", "id", "cmd-0-1", result="root"))
    assert [(call.status, call.output) for call in harness.calls] == [
        ("queued", None),
        ("queued", None),
        ("completed", "root"),
    ]


def test_rounds_counted_from_one_are_detected() -> None:
    """By the first id; from then on our ids match those of the producer."""
    harness = ShellHarness()
    for number in (1, 2, 3):
        harness.feed(text("<shell>ls</shell>"), event("tool-call", "ls", f"cmd-{number}-0"))
        harness.feed(event("tool-result", "ls", f"cmd-{number}-0", result=number), {"type": "iteration-end"})
    assert [call.output for call in harness.calls] == [1, 2, 3]
    assert [call.iteration for call in harness.calls] == [0, 1, 2]
    assert [call.tool_call_id for call in harness.calls] == ["cmd-0-0", "cmd-2-0", "cmd-3-0"]


def test_events_without_ids_are_matched_in_order() -> None:
    """C2: two equal commands, each started and ended once; a surplus result is a separate call."""
    harness = ShellHarness().feed(text("<shell>ls</shell><shell>ls</shell>"), *[event("tool-call", "ls")] * 2)
    harness.feed(event("tool-start", "ls"))
    assert [call.status for call in harness.calls] == ["running", "queued"]
    for number in range(3):
        harness.feed(event("tool-result", "ls", result=number))
    assert [(call.status, call.output) for call in harness.calls] == [("completed", number) for number in range(3)]


def test_an_event_without_an_id_matches_no_call_with_a_producer_id() -> None:
    """Calls that the producer identifies by id are not changed."""
    harness = ShellHarness().feed(text("<shell>ls</shell><shell>ls</shell>"), event("tool-start", "ls", "cmd-0-0"))
    harness.feed(event("tool-result", "ls", result="second"))
    assert [(call.status, call.output) for call in harness.calls] == [("running", None), ("completed", "second")]


def test_an_event_with_an_unknown_id_is_a_separate_call() -> None:
    """S0.4: other calls are not changed."""
    harness = ShellHarness().feed(text("<shell>ls</shell>"))
    harness.feed(event("tool-result", "ls", "cmd-7-7", result="whose"))
    assert [(call.tool_call_id, call.status) for call in harness.calls] == [
        ("cmd-0-0", "queued"),
        ("cmd-7-7", "completed"),
    ]


def test_late_events_do_not_change_an_ended_call() -> None:
    """C4: a start, another result, and a start without an id."""
    harness = ShellHarness().feed(text("<shell>ls</shell>"), event("tool-result", "ls", "cmd-0-0", result="a"))
    harness.feed(event("tool-start", "ls", "cmd-0-0"), event("tool-result", "ls", "cmd-0-0", result="b"))
    (call,) = harness.calls
    assert (call.status, call.output, bool(call.late)) == ("completed", "a", True)
    assert harness.verdicts[-2:] == ["late", "late"]


def test_a_result_after_done_counts() -> None:
    """It begins no turn."""
    harness = ShellHarness().feed(PROMPT, text("<shell>make</shell>"), event("tool-start", "make", "cmd-0-0"), DONE)
    harness.feed(event("tool-result", "make", "cmd-0-0", result="made"))
    assert [(call.status, call.output) for call in harness.calls] == [("completed", "made")]
    assert len(harness.log(ev.TurnStarted)) == 1


@pytest.mark.parametrize(
    ("fields", "status", "exit", "error"),
    [
        ({"result": "x"}, "completed", None, None),
        ({"result": "x", "exitStatus": 3}, "completed", 3, None),
        ({"result": {"stdout": "", "stderr": "e", "exitCode": 2}, "isError": True}, "failed", 2, None),
        ({"result": "", "error": "timed out"}, "failed", None, "timed out"),
        ({"stdout": "o", "stderr": "", "exit_status": 0}, "completed", 0, None),
        ({}, "completed", None, None),
    ],
)
def test_an_exit_status_alone_is_not_a_failure(fields: dict[str, Any], status: str, exit: Any, error: Any) -> None:
    """The exit status is shown."""
    (call,) = ShellHarness().feed("<shell>x</shell>", event("tool-result", "x", "cmd-0-0", **fields)).calls
    assert (call.status, call.exit_status, call.error) == (status, exit, error)


def test_stdout_and_stderr_of_a_result_are_stored() -> None:
    """S0.6: unchanged."""
    (call,) = ShellHarness().feed(event("tool-result", "x", "cmd-0-0", stdout="o", stderr="e", exitStatus=1)).calls
    assert (call.output, call.exit_status) == ({"stdout": "o", "stderr": "e"}, 1)


def test_commands_are_removed_from_the_shown_text() -> None:
    """Each call is at its position between the texts."""
    harness = ShellHarness().feed(PROMPT, *"Look: <shell>ls</shell> then <b> and <shell>cat").close()
    assert harness.texts == ["Go", "Look: ", " then <b> and <shell>cat"]
    assert [type(entry).__name__ for entry in harness.entries()] == ["Message", "Message", "ToolCall", "Message"]


def test_held_back_text_is_released_at_the_end_of_the_round() -> None:
    """A mark, a result, `done` and the end of the stream end the text."""
    for ending in ({"type": "iteration-end"}, event("tool-result", "x", "y", result=""), DONE, {"type": "error"}):
        assert ShellHarness().feed("a <sh", ending).texts == ["a <sh"]
    assert ShellHarness().feed("a <sh").close().texts == ["a <sh"]


@given(texts, st.lists(st.integers(0, 200), max_size=6))
def test_any_split_of_a_stream_gives_the_same_entries(text: str, offsets: list[int]) -> None:
    """S0.1: calls and texts do not depend on the message boundaries."""
    expected = ShellHarness().feed(text).close()
    pieces = ShellHarness().feed(*split_text(text, offsets)).close()
    assert pieces.texts == expected.texts
    assert [call.raw_input for call in pieces.calls] == [call.raw_input for call in expected.calls]


def test_a_cumulative_text_is_read_once() -> None:
    """Only the new part of each message counts."""
    full = "Hm <shell>ls</shell> <shell>id</shell>."
    harness = ShellHarness(chunks="cumulative").feed(*[text(full[:end]) for end in range(1, len(full) + 1)])
    assert [call.raw_input["command"] for call in harness.calls] == ["ls", "id"]
    assert harness.close().texts == ["Hm ", " ", "."]


def test_a_command_in_a_replaced_text_is_found_once() -> None:
    """S0.1: the text is parsed again, and its commands keep their ids."""
    harness = ShellHarness(chunks="cumulative").feed("<shell>ls</shell> hello", "<shell>ls</shell> help")
    assert [call.title for call in harness.calls] == ["ls"]


def test_a_prompt_begins_a_turn_and_done_ends_it_once() -> None:
    """A second `done` is ignored, and the reason is the producer's."""
    harness = ShellHarness().feed(PROMPT, "Hello", {"type": "done", "reason": "max_turn_requests"}, DONE).close()
    assert [event.reason for event in harness.log(ev.TurnEnded)] == ["max_turn_requests"]
    assert not any(entry.streaming for entry in harness.entries(Message))


def test_done_does_not_end_a_turn_of_the_caller() -> None:
    """A stream without a prompt leaves the turn to the caller; its text is still complete."""
    harness = ShellHarness().feed("Hello", DONE).close()
    assert not harness.log(ev.TurnStarted) and not harness.log(ev.TurnEnded)
    assert not any(entry.streaming for entry in harness.entries(Message))


def test_a_run_without_a_prompt_after_done_is_a_separate_turn() -> None:
    """Ids restart after `done` and must not match earlier calls."""
    harness = ShellHarness()
    for day in ("Monday", "Tuesday"):
        harness.feed("<shell>date</shell>", event("tool-result", "date", "cmd-0-0", result=day), DONE)
    assert [call.output for call in harness.calls] == ["Monday", "Tuesday"]


def test_an_error_ends_the_turn_and_its_commands() -> None:
    """C5: with a readable reason."""
    harness = ShellHarness().feed(PROMPT, "<shell>make</shell>", {"type": "error", "content": "overloaded"})
    assert [(call.status, call.reason) for call in harness.calls] == [("lost", "overloaded")]


def test_stored_parts_become_texts_and_calls() -> None:
    """S0.8: `{type: "tool", command, commandId, toolStatus, content}` among text parts."""
    states = [("queued", None), ("running", None), ("completed", "out")]
    parts: list[dict[str, Any]] = [{"type": "text", "content": "So:"}]
    for index, (status, content) in enumerate(states):
        name = f"cmd-0-{index}"
        parts.append({"type": "tool", "command": "ls", "commandId": name, "toolStatus": status, "content": content})
    harness = ShellHarness().feed(
        {"role": "user", "content": "Go"}, {"role": "assistant", "content": "So:", "parts": parts}
    )
    assert harness.texts == ["Go", "So:"]
    assert [(call.status, call.output) for call in harness.calls] == states


def test_stored_texts_and_result_blocks_become_calls() -> None:
    """Each result block that the model received is matched to its command."""
    answer = {"role": "assistant", "content": "<shell>ls</shell><shell>true</shell>"}
    message = {"role": "tool", "content": format_tool_results([{"result": "a"}, {"result": ""}])}
    harness = ShellHarness().feed(answer, message)
    assert [call.status for call in harness.calls] == ["completed", "completed"]
    assert [type(draft.event) for draft in harness.decoder.feed(message)] == [ev.Raw]
    harness.feed(answer, {"role": "tool", "content": "something else"})
    assert [call.tool_call_id for call in harness.calls] == ["cmd-0-0", "cmd-0-1", "cmd-1-0", "cmd-1-1"]
    assert [call.output for call in harness.calls] == ["a", "", None, None]
    assert [raw.body for raw in harness.log(ev.Raw)] == [{"role": "tool", "content": "something else"}]


def test_other_tool_calls_have_a_separate_id_namespace() -> None:
    """A call of another tool with the id of a command is another call."""
    harness = ShellHarness().feed("<shell>ls</shell>")
    harness.feed({"type": "agent-tool-call", "toolName": "search", "toolArgs": {"q": 1}, "toolCallId": "cmd-0-0"})
    harness.feed({"type": "agent-tool-result", "toolCallId": "cmd-0-0", "result": "found"})
    assert [(call.tool_name, call.status, call.output) for call in harness.calls] == [
        ("shell", "queued", None),
        ("search", "completed", "found"),
    ]


@pytest.mark.parametrize(
    "message",
    [
        None,
        7,
        [],
        {},
        {"type": "unheard"},
        {"type": 5},
        {"type": "text", "content": 5},
        {"type": "tool-call"},
        {"type": "tool-start"},
        {"type": "user"},
        {"role": "assistant"},
        {"role": "tool", "content": "x"},
        {"type": "tool", "command": "ls", "toolStatus": "odd"},
    ],
)
def test_a_message_of_unknown_kind_gives_one_raw_event(message: Any) -> None:
    """C11: one `raw`, and nothing else."""
    (draft,) = ShellDecoder().feed(message)
    assert draft.event == ev.Raw(format="shell", body=message)


def test_a_message_is_stored_as_raw_once() -> None:
    """For any number of reasons."""
    failed = {"type": "error", "error": "no model", "code": 7}
    assert ShellHarness().feed(failed).raws == [failed]


def test_nested_messages_are_stored_as_raw() -> None:
    """C11: at any depth."""
    message: Any = {"type": "text", "text": "a"}
    for _ in range(5000):
        message = {"role": "assistant", "parts": [message]}
    (draft, *_) = ShellDecoder().feed(message)
    assert isinstance(draft.event, ev.Raw) and draft.event.body is message["parts"][0]


def test_a_message_with_unknown_fields_is_also_stored_as_raw() -> None:
    """Its known fields are decoded."""
    message = event("tool-call", "ls", "cmd-0-0", risk="low")
    assert [type(draft.event) for draft in ShellDecoder().feed(message)] == [ev.CallProposed, ev.Raw]


@pytest.mark.anyio
async def test_an_imported_call_is_found_by_its_command_id(db: str) -> None:
    """S0.3, S0.4: in a store; a second import changes nothing."""
    messages = [PROMPT, text("<shell>ls</shell>"), event("tool-result", "ls", "cmd-0-0", result="a"), DONE]
    lines = [codec.encode(message) for message in messages]
    async with sound_ledger(db) as ledger:
        first = await import_lines(ledger.log, "s", "shell", lines)
        again = await import_lines(ledger.log, "s", "shell", lines)
        assert first.events and not again.events
        rows = [row for row in (await ledger.calls(session="s")).items if row.client_call_id == "cmd-0-0"]
        assert [(row.tool, row.state) for row in rows] == [("shell", "completed")]
