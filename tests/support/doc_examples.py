"""Reads the documents: their blocks, the paths and commands they name; and runs the examples in them.

The words after a block's language say what it is: `example` is run, and what it prints is compared; `file NAME` is
written for the examples that follow; `fragment PATH` is a piece of something that a test of that name runs.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import click

from tests.docs.test_http_walk import curl, free_port, steps
from tests.support.paths import ROOT

DOCS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
TOP = ("src", "tests", "docs", "bench", "examples", ".ci")
TIMEOUT = 120
PORT = "7890"
"""The port that examples name; where they are run it is a free one."""

FENCE = re.compile(r"^(?P<mark>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=mark)[ \t]*$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"""(?:\]\(|src="|srcset=")(?!\w+:)([^)"\s#]*)(?:#([^)"\s]*))?[)"]""")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its info string, its text, and the text block that directly follows it, if one does."""

    info: str
    body: str
    line: int
    output: str | None

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def role(self) -> str:
        """`example`, `file`, `fragment`, or nothing."""
        return f"{self.info} ".split(" ")[1]

    @property
    def name(self) -> str:
        """What the role is of: a file, or a test."""
        return f"{self.info}  ".split(" ")[2]


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


def leads_somewhere(path: Path, link: str, heading: str) -> bool:
    """Whether a link in a document ends at a file, and at the heading of it that it names."""
    target = path.parent / link if link else path
    return target.exists() and (not heading or heading in headings(target.read_text("utf-8")))


def headings(text: str) -> set[str]:
    """The headings of a document as links name them."""
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in HEADING.findall(prose(text))}


def named_paths(text: str) -> set[str]:
    """Paths of this repository that stand in backticks: `src/...`, `tests/...::test`, `docs/*.md`, `bench/x.py:12`."""
    fragments = [block.name for block in blocks(text) if block.role == "fragment"]
    spans = [span.replace("::", "\0").split(":")[0].replace("\0", "::") for span in SPAN.findall(prose(text))]
    return {
        span
        for span in [*spans, *fragments]
        if not re.search("[ <{]", span) and "/" in span and span.split("/")[0] in TOP
    }


def is_there(named: str) -> bool:
    """Whether a path leads to a file, a pattern to some; and to the test in it, if it names one."""
    path, _, test = named.partition("::")
    found = list(ROOT.glob(path.rstrip("/")))
    return bool(found) and (not test or test.rpartition("::")[2] in _functions(found[0]))


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


# Commands


def commands(text: str) -> Iterator[list[str]]:
    """The words after `callslip` wherever a document shows it being run, in backticks or in a shell block."""
    shell = [block.body for block in blocks(text) if block.language in ("", "sh", "bash", "console", "shell")]
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


# Examples


class Step(NamedTuple):
    """Something to run, and what the document says it prints; None if it does not say."""

    place: str
    command: str
    expected: str | None


def prepared(text: str, folder: Path, port: str) -> list[Step]:
    """Writes the files of a document, and gives what there is to run, in order."""
    found: list[Step] = []
    for block in blocks(text):
        body = block.body.replace(PORT, port)
        if block.role == "file":
            (folder / block.name).write_text(body, "utf-8")
        elif block.info.startswith("python example"):
            name = block.name or f"line_{block.line}.py"
            (folder / name).write_text(body, "utf-8")
            command = f"python -W error {name} 2>{name}.err || {{ cat {name}.err; false; }}"
            found.append(Step(f"line {block.line}", command, block.output))
        elif block.info == "console example":
            for command, expected in steps(body):
                found.append(Step(f"line {block.line}: {command}", _in_shell(command, port), expected))
    return found


def _in_shell(command: str, port: str) -> str:
    """As at a terminal, where stderr is seen too. A server is waited for."""
    if not command.endswith("&"):
        return f"{{ {command}\n}} 2>&1"
    return (
        f"{command[:-1]} >>server.log 2>&1 &\nuntil curl -s -o /dev/null http://127.0.0.1:{port}/; do sleep 0.05; done"
    )


MARK = re.compile(r"\n?-- status (\d+) --\n")


def run(text: str, folder: Path) -> list[str]:
    """Runs the examples of a document, one after the other in one folder. Gives what was not as it says."""
    port = str(free_port())
    todo = prepared(text, folder, port)
    if not todo:
        return []
    curl(folder)
    for name in ("docs", "tests"):  # Examples may name what is in a clone.
        (folder / name).symlink_to(ROOT / name)
    told = _shell([f"{step.command}\nprintf '\\n-- status %s --\\n' $?" for step in todo], folder)
    pieces = MARK.split(told)
    wrong: list[str] = []
    known: dict[str, str] = {}
    for step, printed, status in zip_longest(todo, pieces[:-1:2], pieces[1::2]):
        printed = f"{printed or ''}\n".replace(port, PORT)
        if status != "0" or not (step.expected is None or agrees(printed, step.expected.replace(port, PORT), known)):
            wrong.append(f"{step.place}\nstatus {status}, printed:\n{printed}")
    return wrong


def _shell(lines: list[str], folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CALLSLIP_")}
    environment |= {
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder / "data"),
        "TZ": "UTC",
        "USER": "ann",
        "LOGNAME": "ann",
    }
    environment |= {"NO_COLOR": "1", "COLUMNS": "100"}
    environment["PATH"] = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    started = subprocess.Popen(
        [shutil.which("bash") or "/bin/sh", "-c", "\n".join(lines)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        return started.communicate(timeout=TIMEOUT)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGTERM)  # What it left running: servers.


ID = re.compile(r"\b(exec|appr|tok)_[0-9a-f]{12}")

# What else differs from run to run, and what it becomes on both sides.
DIFFERS = (
    (r"\bdemo-[0-9a-f]{4}\b", "demo-ID"),
    (r"\b1[0-9]{12}\b", "MOMENT"),
    (r"20[0-9]{2}-[0-9]{2}-[0-9]{2}(T[0-9:.]+Z)?|20[0-9]{6}-[0-9]{6}", "DAY"),
    (r"\b[0-9]{2}:[0-9]{2}:[0-9]{2}\b", "TIME"),
    (r"\+?\b[0-9.]+ (ms|s)\b( ago)?|just now", "SPAN"),
    (r"\b[0-9]+ events\b", "N events"),
    (r"(?m)^id: [0-9]+\n", ""),  # Which frames of a live stream have an id depends on when its reader came.
    (r"[ \t]+", " "),
)


def same(text: str) -> str:
    for pattern, instead in DIFFERS:
        text = re.sub(pattern, instead, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def agrees(printed: str, expected: str, known: dict[str, str]) -> bool:
    """Whether a program printed what a document says, ids and times apart. A line `...` stands for some left out.

    Ids are others than the document shows, but equal where those are, and only there: `known` has what was printed for
    each that it has shown so far.
    """
    groups: set[str] = set()

    def printed_for(shown: re.Match[str]) -> str:
        if shown[0] in known:
            return known[shown[0]]
        if shown[0] in groups:
            return f"(?P={shown[0]})"
        groups.add(shown[0])
        return f"(?P<{shown[0]}>{ID.pattern})"

    lines = [re.escape(f"{line}\n") if line != "..." else r"(?:.*\n)*?" for line in same(expected).splitlines()]
    wanted = ID.sub(printed_for, "".join(lines))
    found = re.fullmatch(wanted, f"{same(printed)}\n" if printed.strip() else "")
    told = known | found.groupdict() if found else {}
    fits = found is not None and len(set(told.values())) == len(told)
    known.update(told if fits else {})
    return fits
