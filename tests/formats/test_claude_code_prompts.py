"""Texts in which Claude Code marks commands with tags."""

from __future__ import annotations

import time

import pytest

from callslip.formats import registry
from callslip.formats.claude_code.prompts import Prompt, read_prompt
from callslip.model import events as ev

COMMAND = "<command-name>/review</command-name>"


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        (f"{COMMAND}\n<command-args> 12 \n now</command-args>", Prompt("prompt", "/review 12 \n now")),
        (f"<command-args>12</command-args>{COMMAND}", Prompt("prompt", "/review 12")),
        (f"{COMMAND}<command-args>12", Prompt("prompt", "/review")),
        (f"</command-name>{COMMAND}", Prompt("prompt", "/review")),
        ("<command-name></command-name>", Prompt("prompt", "")),
        (" <bash-input>ls </bash-input></bash-input>\n", Prompt("output", "! ls </bash-input>")),
        ("<bash-stdout>a</bash-stdout><bash-stderr></bash-stderr>", Prompt("output", "a")),
        ("<bash-stdout></bash-stdout>", Prompt("output", "(no output)")),
        ("<bash-stderr>e</bash-stderr>x<bash-stdout>a</bash-stdout>", Prompt("output", "e\na")),
        ("<bash-stdout>a<bash-stderr>b</bash-stderr>", Prompt("output", "b")),
        ("<bash-stdout>a<bash-stdout>b</bash-stdout></bash-stdout>", Prompt("output", "a<bash-stdout>b")),
    ],
)
def test_tags_of_commands_are_read(text: str, prompt: Prompt) -> None:
    assert read_prompt(text) == prompt


@pytest.mark.parametrize("text", ["<command-name>/x", "<bash-input>ls", "<bash-stdout>a", "<b>x</b>", "<"])
def test_other_texts_with_tags_are_prompts(text: str) -> None:
    assert read_prompt(text) == Prompt("prompt", text)


def test_the_time_to_read_tags_grows_linearly() -> None:
    """Texts of three million characters; with quadratic time each takes minutes."""
    texts = [(start + part * 3_000_000)[:3_000_000] + end for start, part, end in HOSTILE]
    began = time.process_time()
    kinds = [read_prompt(text).kind for text in texts]
    assert time.process_time() - began < 20
    assert kinds == ["prompt", "output", "output", "prompt", "prompt", "prompt", "prompt"]


HOSTILE = (
    ("", "<bash-stdout>", ""),
    ("<bash-stdout></bash-stdout>", "<bash-stdout><bash-stderr>", ""),
    ("", "<bash-stdout>a</bash-stdout>", "<bash-stderr>"),
    (COMMAND, "<command-args>", ""),
    ("<command-name>", "<command-name>", ""),
    ("<bash-input>", "</bash-input> ", "x"),
    ("<bash-input>", " ", "x"),
)


def test_the_time_for_the_results_of_many_sub_agents_grows_linearly() -> None:
    """Each result closes its task. How many open tasks a decoder remembers is limited."""
    decoder = registry.decoder("claude-code")
    count = 40_000
    ids = [f"toolu_{number}" for number in range(count)]
    calls = [{"type": "tool_use", "id": id, "name": "Task", "input": {"prompt": id}} for id in ids]
    results = [{"type": "tool_result", "tool_use_id": id, "content": "done"} for id in ids]
    began = time.process_time()
    starts = decoder.feed({"type": "assistant", "uuid": "a", "message": {"id": "m", "content": calls}})
    ends = decoder.feed({"type": "user", "uuid": "b", "message": {"content": results}})
    assert time.process_time() - began < 10
    assert sum(isinstance(draft.event, ev.CallStarted) for draft in starts) == len(ends) == count


def test_an_impossible_cost_is_no_cost() -> None:
    decoder = registry.decoder("claude-code")
    for cost in (10**300, 1e300, ev.MAX_COST + 1, -1, True, "1"):
        message = {"id": f"m{cost}", "content": [], "usage": {"input_tokens": 1}}
        usage = decoder.feed({"type": "assistant", "uuid": "a", "message": message, "costUSD": cost})[-1]
        assert isinstance(usage.event, ev.UsageReported) and usage.event.cost is None
