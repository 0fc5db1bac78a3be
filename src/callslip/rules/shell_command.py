"""Parse the text of a shell command: is it one simple command, and which words does it have?

Written by hand, because `shlex` splits words but reports neither operators nor substitutions, and the dependencies of
Callslip contain no parser of the shell language. This is not one either: it knows one simple command (a program and its
words, with quotes) and describes everything else as a problem. It follows POSIX, bash and zsh. The shells of Windows
are out of scope: their commands may be split wrongly.

    parse_command('git log "a b"').words     git, log, a b
    parse_command("git status; rm x")        problem "has the operator ;", parts (git status) and (rm x)
    parse_arguments(["bash", "-lc", "ls"])   the same as parse_command("ls")
"""

from __future__ import annotations

import os
import re
import shlex
from typing import NamedTuple

import msgspec

MAX_COMMAND_CHARS = 100_000
"""Linux refuses a script of 128 KiB as an argument of a shell."""
MAX_PARTS = 100

_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+)
    | (?P<plain>[^\s'"\\;&|<>()$`\#!*?\[{}~]+)
    | '(?P<single>[^']*+)'
    | "(?P<double>(?:[^"\\]|\\.)*+)"
    | \\(?P<escaped>.)
    | (?P<operator>&&|\|\||;;&?|;&|\|&|&>>?|<<<|<<-?|[<>]&|<>|>>|>\||[;&|<>()\n])
    | (?P<special>.)""",
    re.DOTALL | re.VERBOSE,
)
_CONTROLS = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"  # Also of direction.
)
_EXPANSION = re.compile(r"[^\s;&|<>)]")
"""What follows a dollar sign that is not the end of a word. Which characters expand depends on the shell."""
_EXPANSION_IN_QUOTES = re.compile(rf"`|\${_EXPANSION.pattern}")
_HISTORY = re.compile(r"[^\s=(\"]")
"""What follows an exclamation mark that an interactive shell replaces."""
_DESCRIPTOR = re.compile(r"[0-9]+|\{\w+\}")
"""What precedes a redirection: the number of a file descriptor, or a variable for it."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
_PROGRAM = re.compile(r"(?![-=%^~])[^\s;&|<>()$`'\"\\*?\[\]{}!#=]+")
_RESERVED_WORDS = """
! { } [[ ]] (( )) if then elif else fi case esac for foreach select while until do done in end function time coproc
repeat always nocorrect noglob
"""
_RESERVED = frozenset(_RESERVED_WORDS.split())
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_SHELL_FOLDERS = frozenset(
    ("", "/bin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin", "/run/current-system/sw/bin")
)


class Word(NamedTuple):
    """A word after its quotes are removed. `glob` is the index of its first wildcard for file names, or -1."""

    text: str
    glob: int = -1


class ShellCommand(msgspec.Struct, frozen=True):
    """The text of a command, and what is known about the programs that it runs."""

    text: str
    """Without blanks around it."""
    problem: str = ""
    """Why this is not one simple command, to follow "the command ..."; empty if it is one."""
    words: tuple[Word, ...] = ()
    """The words of the simple command; none if there is a problem."""
    parts: tuple[tuple[Word, ...], ...] = ()
    """The words of each simple command in the text, without assignments and redirections."""
    is_known: bool = True
    """Whether the words of the parts are known. An expansion such as $X, for example, can be any word."""
    other_texts: tuple[str, ...] = ()
    """Other ways to write the complete command, which a rule that denies also matches."""


def parse_command(text: str) -> ShellCommand:
    """Parse a text that is executed by a shell."""
    text = text.strip(" \t\n")
    if len(text) > MAX_COMMAND_CHARS:
        return ShellCommand(text, f"is longer than {MAX_COMMAND_CHARS:,} characters", is_known=False)
    scan = _Scan(text)
    first = scan.parts[0][0] if scan.parts else _ScannedWord("", "")
    problem = scan.problem or _problem_of_program(first)
    parts = tuple(words for part in scan.parts if (words := _strip_prefixes(part)))
    is_known = scan.is_known and not any(part[0].glob >= 0 or part[0].text[:1] == "=" for part in parts)
    return ShellCommand(text, problem, () if problem else parts[0], parts, is_known)


def parse_arguments(arguments: list[str]) -> ShellCommand:
    """Parse a list of words. A program is executed with them, or a shell if it is the list of a shell and a script."""
    joined = " ".join(arguments)
    match arguments:
        case [shell, "-c" | "-lc", script] if is_shell(shell):
            return msgspec.structs.replace(parse_command(script), other_texts=(joined,))
        case _:
            pass
    if len(joined) > MAX_COMMAND_CHARS or "\0" in joined:
        return ShellCommand(joined, "is too long or contains a NUL character", is_known=False)
    words, program = tuple(map(Word, arguments)), arguments[0] if arguments else ""
    problem = _problem_of_program(_ScannedWord(program, program))
    parts = (words,) if words else ()
    return ShellCommand(shlex.join(arguments), problem, () if problem else words, parts, not problem, (joined,))


def split_words(text: str) -> list[str] | None:
    """Return the words of a text with their quotes removed; None if it has operators, expansions or open quotes."""
    scan = _Scan(text)
    return None if scan.problem else [word.text for part in scan.parts for word in part]


class ChainPart(NamedTuple):
    """A command of a chain. It `is_piped` if it reads the output of the one before."""

    text: str
    is_piped: bool


def split_chain(text: str) -> list[ChainPart]:
    """Return the commands in a chain (`a && b; c | d`); [] if it has anything but simple commands.

    `cd` runs the commands after it in another folder, as `git -C` does, so it may only go to a folder below this one.
    """
    parts: list[ChainPart] = []
    start = position = 0
    is_piped = False
    text = text.strip(" \t\n")
    while position < min(len(text), MAX_COMMAND_CHARS):
        token = _TOKEN.match(text, position)
        assert token is not None, "each character is a token"
        if token.lastgroup == "operator":
            if token["operator"] not in ("&&", "||", ";", "|"):
                return []
            parts.append(ChainPart(text[start:position].strip(" \t\n"), is_piped))
            start, is_piped = token.end(), token["operator"] == "|"
        position = token.end()
    parts.append(ChainPart(text[start:].strip(" \t\n"), is_piped))
    commands = [parse_command(part.text) for part in parts]
    if len(text) > MAX_COMMAND_CHARS or any(command.problem or not command.is_known for command in commands):
        return []
    return [] if any(_leaves_folder(command) for command in commands) else parts


def _leaves_folder(command: ShellCommand) -> bool:
    program, *others = [word.text for word in command.words]
    if program not in ("cd", "pushd", "popd", "chdir"):
        return False
    folder = others[0] if program == "cd" and len(others) == 1 else ""
    return not folder or folder[0] in "/-~" or ".." in folder.split("/")


def is_shell(program: str) -> bool:
    """Return whether a program is a shell that this module understands, in a folder of the system."""
    folder, name = os.path.split(program)
    return name in _SHELLS and folder in _SHELL_FOLDERS


class _ScannedWord(NamedTuple):
    """A word after its quotes are removed, and the same with `x` for each character that was quoted."""

    text: str
    unquoted: str


def _problem_of_program(word: _ScannedWord) -> str:
    """Return why a word is not the plain name of a program; empty if it is."""
    if not word.text:
        return "is empty"
    if _ASSIGNMENT.match(word.unquoted):
        return "sets a variable"
    if word.text in _RESERVED or not _PROGRAM.fullmatch(word.text) or not _PROGRAM.fullmatch(word.unquoted):
        return f"does not begin with the plain name of a program: {word.text[:40]!r}"
    return ""


def _strip_prefixes(words: list[_ScannedWord]) -> tuple[Word, ...]:
    """Return the words that follow assignments and words such as `then`."""
    start = 0
    while start < len(words) and (words[start].text in _RESERVED or _ASSIGNMENT.match(words[start].unquoted)):
        start += 1
    return tuple(Word(text, _first_glob(unquoted)) for text, unquoted in words[start:])


def _first_glob(unquoted: str) -> int:
    return min((index for index in map(unquoted.find, "*?[") if index >= 0), default=-1)


class _Scan:
    """The words of a text, divided at its operators."""

    def __init__(self, text: str) -> None:
        self.problem = ""
        self.is_known = True
        self.parts: list[list[_ScannedWord]] = []
        self._part: list[_ScannedWord] = []
        self._text: list[str] = []
        self._unquoted: list[str] = []
        self._is_target = False  # Whether the next word is the file of a redirection.
        if _CONTROLS.search(text):
            self._report("contains control characters", is_known=False)
        self._scan(text)
        self._end_part()

    def _scan(self, text: str) -> None:
        position, has_document = 0, False
        while position < len(text):
            if len(self.parts) >= MAX_PARTS:
                return self._report(f"contains more than {MAX_PARTS} commands", is_known=False)
            token = _TOKEN.match(text, position)
            assert token is not None, "each character is a token"
            position = token.end()
            kind, value = token.lastgroup, token[token.lastgroup or 0]
            if kind == "blank":
                self._end_word()
            elif kind == "plain":
                self._add(value, value)
            elif kind == "operator":
                if value == "\n" and has_document:
                    return  # What follows is the text of a here-document.
                has_document = has_document or value in ("<<", "<<-")
                self._add_operator(value)
            elif kind == "special" and value == "#" and not self._text:
                self._report("contains a comment")
                position = (text.find("\n", position) + 1 or len(text) + 1) - 1
            elif kind == "special" and value in "'\"\\":
                return self._report("has a quote that is not closed", is_known=False)
            elif kind == "special":
                self._add_special(value, text[position : position + 1])
            else:
                self._add_quoted(kind, value)

    def _report(self, problem: str, *, is_known: bool = True) -> None:
        self.problem = self.problem or problem
        self.is_known = self.is_known and is_known

    def _add(self, text: str, unquoted: str) -> None:
        self._text.append(text)
        self._unquoted.append(unquoted)

    def _add_quoted(self, kind: str | None, value: str) -> None:
        if "\n" in value:
            self._report("has more than one line")
        if kind == "double":
            escaped = re.sub(r"\\.", " ", value, flags=re.DOTALL)
            if _EXPANSION_IN_QUOTES.search(escaped):
                self._report("contains an expansion", is_known=False)
            if re.search("!" + _HISTORY.pattern, escaped):
                self._report("contains a history expansion")
            value = re.sub(r"\\([$`\"\\])|\\\n", r"\1", value)
        if kind == "escaped" and value == "\n":
            return  # The line continues: the shell removes both characters.
        self._add(value, "x" * len(value))

    def _add_special(self, character: str, following: str) -> None:
        if character == "`":
            self._report("contains a substitution", is_known=False)
            return self._end_part()
        if character == "$" and _EXPANSION.match(following):
            self._report("contains an expansion", is_known=False)
        elif character == "!" and _HISTORY.match(following):
            self._report("contains a history expansion")
        elif character.isspace():
            self._report("contains a blank that is not a space", is_known=False)
        self._add(character, character)

    def _add_operator(self, operator: str) -> None:
        if "<" not in operator and ">" not in operator:
            self._report("has more than one line" if operator == "\n" else f"has the operator {operator}")
            return self._end_part()
        self._report(f"has the redirection {operator}", is_known=not operator.startswith("<<"))
        if _DESCRIPTOR.fullmatch("".join(self._unquoted)):
            self._text.clear()
            self._unquoted.clear()
        self._end_word()
        self._is_target = True

    def _end_word(self) -> None:
        if not self._text:
            return
        text, unquoted = "".join(self._text), "".join(self._unquoted)
        self._text.clear()
        self._unquoted.clear()
        braces = unquoted[unquoted.find("{") : unquoted.rfind("}")] if "{" in unquoted else ""
        if "," in braces or ".." in braces:
            self._report("contains an expansion", is_known=False)
        if self._is_target:
            self._is_target = False
        else:
            self._part.append(_ScannedWord(text, unquoted))

    def _end_part(self) -> None:
        self._end_word()
        if self._part:
            self.parts.append(self._part)
        self._part = []
        self._is_target = False
