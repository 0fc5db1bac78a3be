"""Ways around rules with wildcards, none of which is allowed, and ordinary commands, all of which are."""

from __future__ import annotations

from callslip.rules.command_pattern import CommandPattern, any_matches
from callslip.rules.shell_command import ShellCommand, parse_arguments, parse_command
from tests.support.command_corpus import COMMAND_RULES, ORDINARY, WAYS_AROUND

PATTERNS = [CommandPattern(rule) for rule in COMMAND_RULES]


def decide(command: ShellCommand) -> bool | None:
    """Return whether one of the rules allows a command; None if a person must decide."""
    return any_matches(pattern.allows(command) for pattern in PATTERNS)


def test_no_way_around_a_rule_is_allowed() -> None:
    """POL1: A command with another command in it, or that starts another program, is not allowed by a wildcard."""
    assert [command for command in WAYS_AROUND if decide(parse_command(command))] == []
    assert [command for command in WAYS_AROUND if decide(parse_arguments(["/bin/bash", "-lc", command]))] == []


def test_an_ordinary_command_is_allowed() -> None:
    """POL2: Quotes, wildcards for files and usual options are no reason to ask."""
    assert [command for command in ORDINARY if not decide(parse_command(command))] == []
    assert [command for command in ORDINARY if not decide(parse_arguments(["bash", "-c", command]))] == []


def test_every_command_is_allowed_by_its_exact_text() -> None:
    """POL3: A rule without wildcards allows its own text, and no other."""
    patterns = {command: CommandPattern(f"exact:{command.strip()}") for command in WAYS_AROUND if "\0" not in command}
    assert [command for command, pattern in patterns.items() if not pattern.allows(parse_command(command))] == []
    for prefix, suffix in (("", " x"), ("x; ", "")):
        commands = {f"{prefix}{command}{suffix}": pattern for command, pattern in patterns.items()}
        assert [command for command, pattern in commands.items() if pattern.allows(parse_command(command))] == []


def test_a_rule_names_the_program_of_every_way_around() -> None:
    """POL1: So a person decides about it because of what it does, not because no rule is about its program."""
    commands = {command: parse_command(command) for command in WAYS_AROUND}
    assert [text for text, command in commands.items() if command.words and decide(command) is False] == []


def test_the_corpus_is_large() -> None:
    """Each list has at least a hundred different commands."""
    assert len(set(WAYS_AROUND)) == len(WAYS_AROUND) >= 100
    assert len(set(ORDINARY)) == len(ORDINARY) >= 100
