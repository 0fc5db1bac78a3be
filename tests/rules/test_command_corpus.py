"""Ways around rules with wildcards, none of which is allowed, and ordinary commands, all of which are."""

from __future__ import annotations

import pytest

from callslip.rules.command_pattern import CommandPattern, any_matches
from callslip.rules.shell_command import parse_arguments, parse_command
from tests.support.command_corpus import COMMAND_RULES, ORDINARY, WAYS_AROUND

PATTERNS = [CommandPattern(rule) for rule in COMMAND_RULES]


def decide(command: str) -> bool | None:
    """Return whether one of the rules allows a command; None if a person must decide."""
    return any_matches(pattern.allows(parse_command(command)) for pattern in PATTERNS)


@pytest.mark.parametrize("command", WAYS_AROUND)
def test_no_way_around_a_rule_is_allowed(command: str) -> None:
    """POL1: A command with another command in it, or that starts another program, is not allowed by a wildcard."""
    assert decide(command) is not True
    assert (
        any_matches(pattern.allows(parse_arguments(["/bin/bash", "-lc", command])) for pattern in PATTERNS) is not True
    )


@pytest.mark.parametrize("command", ORDINARY)
def test_an_ordinary_command_is_allowed(command: str) -> None:
    """POL2: Quotes, wildcards for files and usual options are no reason to ask."""
    assert decide(command) is True
    assert any_matches(pattern.allows(parse_arguments(["bash", "-c", command])) for pattern in PATTERNS) is True


@pytest.mark.parametrize("command", [command for command in WAYS_AROUND if command.strip() and "\0" not in command])
def test_every_command_is_allowed_by_its_exact_text(command: str) -> None:
    """POL3: A rule without wildcards allows its own text, and no other."""
    pattern = CommandPattern(f"exact:{command.strip()}")
    assert pattern.allows(parse_command(command)) is True
    assert pattern.allows(parse_command(command + " x")) is not True
    assert pattern.allows(parse_command("x; " + command)) is not True


def test_the_corpus_is_large() -> None:
    """Each list has at least a hundred different commands."""
    assert len(set(WAYS_AROUND)) == len(WAYS_AROUND) >= 100
    assert len(set(ORDINARY)) == len(ORDINARY) >= 100
