"""The documents tell the truth: paths they name exist, examples they print run, commands they mention are there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import click
import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted(
    path for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")] if path.exists()
)
DOC_IDS = [str(path.relative_to(ROOT)) for path in DOCS]
TOP = ("src", "tests", "docs", "bench", "examples", ".ci")

FENCE = re.compile(r"^(?P<mark>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=mark)[ \t]*$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(?:#[^)\s]*)?\)")
VARYING = re.compile(r"exec_[0-9a-f]{12}")


class Block(NamedTuple):
    """A fenced block: its info string, its text, and the text block that directly follows it, if one does."""

    info: str
    body: str
    line: int
    output: str | None


def blocks(text: str) -> list[Block]:
    """All fenced blocks, in order."""
    fences = list(FENCE.finditer(text))
    found: list[Block] = []
    for fence, after in zip_longest(fences, fences[1:]):
        adjoining = after and not text[fence.end() : after.start()].strip()
        output = after["body"] if adjoining and after["info"].strip() == "text" else None
        found.append(Block(fence["info"].strip(), fence["body"], text.count("\n", 0, fence.start()) + 1, output))
    return found


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return FENCE.sub("", text)


def named_paths(text: str) -> set[str]:
    """Paths of this repository that stand in backticks: `src/...`, `tests/...::test`, `docs/*.md`, `bench/x.py:12`."""
    spans = (span.split("::")[0].split(":")[0] for span in SPAN.findall(prose(text)))
    return {span for span in spans if " " not in span and "<" not in span and span.split("/")[0] in TOP and "/" in span}


def commands(text: str) -> Iterator[list[str]]:
    """The words after `callslip` wherever a document shows it being run, in backticks or in a shell block."""
    shell = [block.body for block in blocks(text) if block.info.split(" ")[0] in ("", "sh", "bash", "console", "shell")]
    lines = "\n".join(shell).replace("\\\n", " ").splitlines()
    for line in [*lines, *SPAN.findall(prose(text))]:
        for part in re.split(r"\|\||&&|[|;&]|\$\(", line.partition(" # ")[0]):
            words = part.replace("'", "").replace('"', "").strip().removeprefix("$ ").split()
            while words and (re.match(r"[A-Z_]+=", words[0]) or words[0] in ("uvx", "uv", "run", "exec", "time")):
                words = words[1:]
            if len(words) > 1 and words[0] == "callslip":
                yield words[1:]


def unknown_command(group: click.Group, words: list[str]) -> str | None:
    """The first word that the group, or a group below it, does not know as a command."""
    context = click.Context(group)
    valued = {
        name
        for parameter in group.params
        if isinstance(parameter, click.Option) and not parameter.is_flag and not parameter.count
        for name in parameter.opts
    }
    rest = iter(words)
    for word in rest:
        if word in valued:
            next(rest, None)
        elif re.fullmatch(r"[a-z][a-z-]*", word):
            command = group.get_command(context, word)
            if command is None:
                return word
            return unknown_command(command, list(rest)) if isinstance(command, click.Group) else None
        elif not word.startswith("-"):
            return None  # a placeholder such as COMMAND or ...
    return None


def examples() -> list[tuple[str, Block]]:
    """Every block that is marked to run: its info string is `python example`."""
    found = [(path, block) for path in DOCS for block in blocks(path.read_text("utf-8"))]
    return [
        (f"{path.relative_to(ROOT)}:{block.line}", block) for path, block in found if block.info == "python example"
    ]


@pytest.mark.parametrize("path", DOCS, ids=DOC_IDS)
def test_paths_named_in_the_docs_exist(path: Path) -> None:
    """A path in backticks is there; a pattern matches something."""
    named = named_paths(path.read_text("utf-8"))
    missing = [name for name in sorted(named) if not any(ROOT.glob(name.rstrip("/")))]
    assert not missing


@pytest.mark.parametrize("path", DOCS, ids=DOC_IDS)
def test_links_between_the_docs_lead_somewhere(path: Path) -> None:
    """A relative link ends at a file."""
    links = LINK.findall(prose(path.read_text("utf-8")))
    assert not [link for link in links if not (path.parent / link).exists()]


@pytest.mark.parametrize("path", DOCS, ids=DOC_IDS)
def test_commands_shown_in_the_docs_exist(path: Path) -> None:
    """Each `callslip <command>` is a command of the program."""
    shown = list(commands(path.read_text("utf-8")))
    if shown:
        from callslip.cli import main

        assert isinstance(main, click.Group), "callslip.cli.main is the click group"
        assert not [shlex.join(words) for words in shown if unknown_command(main, words)]


def test_examples_print_what_the_docs_say(tmp_path: Path) -> None:
    """A `python example` block runs in an empty folder; a `text` block right after it is its output, ids apart."""
    for place, block in examples():
        folder = tmp_path / re.sub(r"\W", "_", place)
        folder.mkdir()
        script = folder / "example.py"
        script.write_text(block.body, "utf-8")
        environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
        command = [sys.executable, "-W", "error", str(script)]
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, f"{place}\n{run.stderr}"
        if block.output is not None:
            assert VARYING.sub("exec_", run.stdout) == VARYING.sub("exec_", block.output), place


SAMPLE = """See `src/callslip/fold.py`, `tests/test_docs.py::test_x`, `a/b` and `callslip --db sqlite:///x.db show s`.

```console
$ callslip ls | callslip import --format acp -
$ CALLSLIP_DB=x callslip admin token # callslip nonsense
```

```python example
print("exec_0123456789ab")
```

```text
exec_ba9876543210
```
"""


def test_the_reader_of_the_docs_finds_what_is_in_them() -> None:
    """Paths, commands and examples are all picked out of a small document."""
    assert named_paths(SAMPLE) == {"src/callslip/fold.py", "tests/test_docs.py"}
    assert [words[0] for words in commands(SAMPLE)] == ["ls", "import", "admin", "--db"]
    assert [(block.info, block.output) for block in blocks(SAMPLE)][1] == ("python example", "exec_ba9876543210\n")


def test_an_unknown_command_is_told_from_a_known_one() -> None:
    """Options before the command are passed over with their values; groups are followed down."""
    token = click.Command("token")
    admin = click.Group("admin", commands=[token])
    main = click.Group("callslip", commands=[admin, click.Command("ls")], params=[click.Option(["--db"])])
    assert unknown_command(main, ["--db", "x", "ls", "nonsense"]) is None
    assert unknown_command(main, ["admin", "token"]) is None
    assert unknown_command(main, ["admin", "tokens"]) == "tokens"
    assert unknown_command(main, ["--db", "ls", "list"]) == "list"
    assert unknown_command(main, ["COMMAND"]) is None
