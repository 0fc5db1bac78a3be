"""The parser of shell commands: simple commands and their words, and everything that is not simple."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.rules.shell_command import MAX_COMMAND_CHARS, MAX_PARTS, parse_arguments, parse_command, split_words
from tests.support.command_corpus import ORDINARY

SHELL_CHARACTERS = "aab1'\"\\$`;&|<>(){}~*?[]!#= \n\t,.-:^%@+é"


def words_of(text: str) -> list[str]:
    """Return the words of a simple command."""
    command = parse_command(text)
    assert not command.problem, command.problem
    return [word.text for word in command.words]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("git status", ["git", "status"]),
        ("  git \t status \n", ["git", "status"]),
        ("git commit -m 'a b' \"c d\" e\\ f", ["git", "commit", "-m", "a b", "c d", "e f"]),
        ("g\"i\"'t' log", ["git", "log"]),
        ("\\rm x", ["rm", "x"]),
        ("echo '' \"\"", ["echo", "", ""]),
        ("echo 'a;b' \"c|d\" e\\&f", ["echo", "a;b", "c|d", "e&f"]),
        ("echo '$HOME' '`id`' \"\\$HOME\" \"\\`\"", ["echo", "$HOME", "`id`", "$HOME", "`"]),
        ('echo "a\\b\\"c"', ["echo", 'a\\b"c']),
        ("echo a$ 5$ 'b$c' \"d$\"", ["echo", "a$", "5$", "b$c", "d$"]),
        ("echo a#b 'Hi!' wow! a=b", ["echo", "a#b", "Hi!", "wow!", "a=b"]),
        ("git show stash@{0} HEAD~1 {} {x}", ["git", "show", "stash@{0}", "HEAD~1", "{}", "{x}"]),
        ("ls ~/x *.py a?b [ab]", ["ls", "~/x", "*.py", "a?b", "[ab]"]),
        ("echo é 漢字 👩‍💻", ["echo", "é", "漢字", "👩‍💻"]),
        ("./run.sh", ["./run.sh"]),
    ],
)
def test_the_words_of_a_simple_command(text: str, words: list[str]) -> None:
    """Quotes are removed, and what they protect is ordinary text."""
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        (" \n ", "is empty"),
        ("''", "is empty"),
        *((f"a {operator} b", f"has the operator {operator}") for operator in (";", "&", "|", "&&", "||", "|&", ";;")),
        *(
            (f"a {operator} b", f"has the redirection {operator}")
            for operator in ("<", ">", ">>", "<<", "<<<", ">&", "&>")
        ),
        ("a\nb", "has more than one line"),
        ("a 'b\nc'", "has more than one line"),
        ("a \\\nb", "has more than one line"),
        ("(a)", "has the operator ("),
        ("a $(b)", "contains an expansion"),
        ('a "$(b)"', "contains an expansion"),
        ("a `b`", "contains a substitution"),
        ('a "`b`"', "contains an expansion"),
        ("a <(b)", "has the redirection <"),
        *(
            (f"a {expansion}", "contains an expansion")
            for expansion in ("$X", "${X}", "$1", "$@", "$'x'", '$"x"', "{a,b}", "$=X", "$~X", "$^X", "$+X", "$:X")
        ),
        ("a {1..3}", "contains an expansion"),
        ('a "$X"', "contains an expansion"),
        ("A=1 a", "sets a variable"),
        ("A[1]+=1 a", "sets a variable"),
        ("# a", "contains a comment"),
        ("a # b", "contains a comment"),
        ("a !b", "contains a history expansion"),
        ('a "!b"', "contains a history expansion"),
        ("a 'b", "has a quote that is not closed"),
        ('a "b', "has a quote that is not closed"),
        ("a \\", "has a quote that is not closed"),
        ("a \0", "contains control characters"),
        ("a \x1b[1m", "contains control characters"),
        ("a\r", "contains control characters"),
        ("a \u202e", "contains control characters"),
        ("a\u00a0b", "contains a blank that is not a space"),
        *(
            (f"{word} a", "does not begin with")
            for word in ("!", "{", "if", "while", "function", "time", "[[", "coproc")
        ),
        *(
            (f"{word} a", "does not begin with")
            for word in ("g*", "g?", "[g]", "~/g", "=g", "-g", "%1", "'a b'", "'a;b'")
        ),
        ("a " + "b" * MAX_COMMAND_CHARS, "is longer than"),
        ("a;" * MAX_PARTS + "a", "has the operator ;"),
    ],
)
def test_what_is_not_one_simple_command_has_a_problem(text: str, problem: str) -> None:
    """The problem has no words that a rule could match."""
    command = parse_command(text)
    assert command.problem.startswith(problem)
    assert command.words == ()


@pytest.mark.parametrize(
    ("text", "parts", "is_known"),
    [
        ("true; rm x", ["true", "rm x"], True),
        ("a && b || c | d & e", ["a", "b", "c", "d", "e"], True),
        ("a\nb", ["a", "b"], True),
        ("r\\\nm x", ["rm x"], True),
        ("if a; then rm x; fi", ["a", "rm x"], True),
        ("f() { rm x; }", ["f", "rm x"], True),
        ("A=1 B=2 rm x", ["rm x"], True),
        ("rm x >y 2>&1 <z", ["rm x"], True),
        (">y rm x", ["rm x"], True),
        ("{fd}>y rm x", ["rm x"], True),
        ("a {fd} >y", ["a {fd}"], True),
        ("=rm x", ["=rm x"], False),
        ("(cd x; rm y)", ["cd x", "rm y"], True),
        ("a # b; rm x\nc", ["a", "c"], True),
        ("echo $(rm x)", ["echo $", "rm x"], False),
        ("echo `rm x`", ["echo", "rm x"], False),
        ("$X x", ["$X x"], False),
        ("/bin/r? x", ["/bin/r? x"], False),
        ("r{m,} x", ["r{m,} x"], False),
        ("cat <<E; rm x\nrm y\nE", ["cat", "rm x"], False),
        ("a; 'b", ["a"], False),
        ("a;" * MAX_PARTS, ["a"] * MAX_PARTS, True),
        ("a;" * MAX_PARTS + "rm x", ["a"] * MAX_PARTS, False),
    ],
)
def test_the_commands_in_a_chain_are_found(text: str, parts: list[str], is_known: bool) -> None:
    """Assignments and redirections are omitted. If a word cannot be known, that is reported."""
    command = parse_command(text)
    assert [" ".join(word.text for word in part) for part in command.parts] == parts
    assert command.is_known is is_known


@pytest.mark.parametrize(
    ("arguments", "text", "problem"),
    [
        (["git", "commit", "-m", "a; b"], "git commit -m 'a; b'", ""),
        (["bash", "-lc", "git status"], "git status", ""),
        (["/bin/sh", "-c", "git status; id"], "git status; id", "has the operator ;"),
        (["/tmp/bash", "-c", "git status"], "/tmp/bash -c 'git status'", ""),
        (["/bash", "-c", "git status"], "/bash -c 'git status'", ""),
        (["bash", "-c", "git status", "x"], "bash -c 'git status' x", ""),
        (["git status; id"], "'git status; id'", "does not begin with"),
        ([], "", "is empty"),
        ([""], "''", "is empty"),
        (["a", "\0"], "a \0", "is too long or contains"),
    ],
)
def test_a_list_of_words_is_a_command(arguments: list[str], text: str, problem: str) -> None:
    """The script of a shell of the system is parsed; other lists are words, so that nothing in them is an operator."""
    command = parse_arguments(arguments)
    assert command.text == text
    assert command.problem.startswith(problem) if problem else not command.problem
    assert " ".join(arguments) in (command.text, *command.other_texts)


def test_only_words_without_operators_are_split() -> None:
    """The words of a pattern may have wildcards, also in the name of the program."""
    assert split_words("g* 'a b' *") == ["g*", "a b", "*"]
    assert split_words("a | b") is None
    assert split_words("a $X") is None


@given(st.text(SHELL_CHARACTERS, max_size=30))
def test_every_text_is_parsed(text: str) -> None:
    """Each result has words or a problem."""
    command = parse_command(text)
    assert bool(command.words) is not bool(command.problem)
    assert all(part and part[0].text is not None for part in command.parts)


def test_bash_sees_the_same_words(tmp_path: Path) -> None:
    """POL1: What the parser calls simple runs one program in bash, with these words: ordinary and random texts."""
    bash = shutil.which("bash")
    assert bash is not None
    program, folder = tmp_path / "bin" / "show", tmp_path / "empty"
    program.parent.mkdir()
    folder.mkdir()
    program.write_text('#!/bin/sh\n/usr/bin/printf \'%s\\n\' "$0" "$@"\n')
    program.chmod(0o755)
    rand = random.Random(1)
    texts = [f"show {command}" for command in ORDINARY]
    while len(texts) < len(ORDINARY) + 300:
        text = "show " + "".join(rand.choice(SHELL_CHARACTERS) for _ in range(rand.randint(1, 12)))
        texts += [text] * (not parse_command(text).problem)
    environment = {"PATH": str(program.parent), "HOME": "~", "LANG": "C.UTF-8"}
    script = "\n".join(f"( {text}\n)" for text in texts)
    result = subprocess.run(
        [bash, "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    expected = [line for text in texts for line in [str(program), *words_of(text)[1:]]]
    assert result.stdout.splitlines() == expected
    assert result.stderr == ""
    assert list(folder.iterdir()) == []
