"""Match shell commands with the patterns of rules.

    pattern = CommandPattern("git *")
    pattern.allows(parse_command("git log"))          True
    pattern.allows(parse_command("git log; rm x"))    None: a person must decide
    pattern.allows(parse_command("npm test"))         False
    CommandPattern("rm *").finds(parse_command("true; rm x"))    True

A pattern with wildcards, or a regular expression, allows only one simple command that starts no other program. The
words are compared after their quotes are removed, and a blank inside a word is no blank of the pattern. A pattern
without wildcards allows exactly its own text, which may be any command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from callslip.rules.launchers import find_launch, is_interpreter, program_name
from callslip.rules.shell_command import ShellCommand, split_words
from callslip.rules.text_pattern import REGEX, TextPattern


def any_matches(results: Iterable[bool | None]) -> bool | None:
    """Return whether one of some results is True; None if that is not known."""
    listed = list(results)
    return True if True in listed else None if None in listed else False


def find_obstacle(command: ShellCommand) -> str:
    """Return why a pattern with wildcards does not allow a command, to follow "the command ..."; empty if it can."""
    return command.problem or find_launch(command.words)


class CommandPattern:
    """A pattern of a rule. `text` matches texts that are not commands."""

    def __init__(self, pattern: str) -> None:
        self.text = TextPattern(pattern)
        words = split_words(pattern)
        self._words = None if words is None else TextPattern(_join(words))
        if pattern.startswith(REGEX):
            self._words = self.text

    def allows(self, command: ShellCommand) -> bool | None:
        """Return whether a rule that allows this pattern allows a command; None if a person must decide."""
        if self.text.exact is not None:
            is_allowed = self.text.exact == command.text != ""
        else:
            words = _join(word.text for word in command.words)
            is_allowed = self._words is not None and not find_obstacle(command) and self._words.matches(words)
        return True if is_allowed else False if self._finds_text(command) is False else None

    def finds(self, command: ShellCommand) -> bool | None:
        """Return whether the text, or one of the commands in it, matches; None if that is not known.

        It is not known if the words are not, or if a program such as sudo runs a command from its arguments.
        """
        if not command.is_known or any(find_launch(part) and not is_interpreter(part) for part in command.parts):
            return self._finds_text(command) or None
        return self._finds_text(command)

    def _finds_text(self, command: ShellCommand) -> bool | None:
        return any_matches(self.text.matches(text) for text in dict.fromkeys(_list_texts(command)))


def _join(words: Iterable[str]) -> str:
    """Join words so that only the blanks between them are blanks. No command contains a NUL character."""
    return " ".join(re.sub(r"\s", "\0", word) or "\0" for word in words)


def _list_texts(command: ShellCommand) -> Iterator[str]:
    """Yield the text and each command in it: without quotes, also with the plain name of its program."""
    yield command.text
    yield from command.other_texts
    for part in command.parts:
        others = [word.text for word in part[1:]]
        yield " ".join([part[0].text, *others])
        yield " ".join([program_name(part), *others])
