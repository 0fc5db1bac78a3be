"""Read the documents (their blocks, the paths and commands in them) and run their examples.

The words after a block's language are its role: an `example` is run and its output compared; `file NAME` is written
for the examples that follow; `fragment PATH` is a part of the test with that path.
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
from collections.abc import Generator, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from tests.docs.test_http_walk import free_port, install_curl, parse_steps
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from tests.support.postgres import PostgresServer

DOCS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
OWN_CODE_GUIDES = [
    ROOT / "docs" / "guides" / f"{name}.md"
    for name in ("shell-loop", "act-observe", "acp-backend", "browser-extension", "message-database")
]
"""The guides that start from the code of a user, who has the package but no clone."""
TOP_FOLDERS = ("src", "tests", "docs", "bench", "examples", ".ci")
TIMEOUT_S = 120
PORT = "7890"
"""The port in examples, which is replaced by a free one."""
POSTGRES = "db.example:5432"
"""The PostgreSQL server in examples, which is replaced by a new one."""

FENCE = re.compile(r"^(?P<mark>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=mark)[ \t]*$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"""(?:\]\(|src="|srcset=")(?!\w+:)([^)"\s#]*)(?:#([^)"\s]*))?[)"]""")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its info string, its text, and the text block directly after it, if there is one."""

    info: str
    body: str
    line: int
    output: str | None

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def role(self) -> str:
        """`example`, `file`, `fragment`, or an empty string."""
        return f"{self.info} ".split(" ")[1]

    @property
    def name(self) -> str:
        """The name of the file or the test."""
        return f"{self.info}  ".split(" ")[2]


def find_blocks(text: str) -> list[Block]:
    """Return all fenced blocks, in order."""
    fences = list(FENCE.finditer(text))
    found: list[Block] = []
    for fence, next_fence in zip_longest(fences, fences[1:]):
        is_adjacent = next_fence and not text[fence.end() : next_fence.start()].strip()
        output = next_fence["body"] if is_adjacent and next_fence["info"].strip() == "text" else None
        found.append(Block(fence["info"].strip(), fence["body"], text.count("\n", 0, fence.start()) + 1, output))
    return found


def strip_blocks(text: str) -> str:
    """Return the text without its fenced blocks."""
    return FENCE.sub("", text)


def link_exists(path: Path, link: str, heading: str) -> bool:
    """Return whether the file that a link names exists, with the heading in the link."""
    target = path.parent / link if link else path
    return target.exists() and (not heading or heading in heading_anchors(target.read_text("utf-8")))


def heading_anchors(text: str) -> set[str]:
    """Return the headings of a document as links name them."""
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in HEADING.findall(strip_blocks(text))}


def find_paths(text: str) -> set[str]:
    """Return repository paths in backticks: `src/...`, `tests/...::test`, `docs/*.md`, `bench/x.py:12`."""
    fragments = [block.name for block in find_blocks(text) if block.role == "fragment"]
    spans = [span.replace("::", "\0").split(":")[0].replace("\0", "::") for span in SPAN.findall(strip_blocks(text))]
    return {
        span
        for span in [*spans, *fragments]
        if not re.search("[ <{]", span) and "/" in span and span.split("/")[0] in TOP_FOLDERS
    }


def path_exists(path_or_pattern: str) -> bool:
    """Return whether a path or pattern matches a file, which has the test that the path names."""
    path, _, test = path_or_pattern.partition("::")
    matches = list(ROOT.glob(path.rstrip("/")))
    return bool(matches) and (not test or test.rpartition("::")[2] in _function_names(matches[0]))


def _function_names(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


# Commands


def find_commands(text: str) -> Iterator[list[str]]:
    """Yield the words after `callslip` for each command in backticks or in a shell block."""
    shell = [block.body for block in find_blocks(text) if block.language in ("", "sh", "bash", "console", "shell")]
    lines = "\n".join(shell).replace("\\\n", " ").splitlines()
    for line in [*lines, *SPAN.findall(strip_blocks(text))]:
        for part in re.split(r"\|\||&&|[|;&]|\$\(", line.partition(" # ")[0]):
            words = part.replace("'", "").replace('"', "").strip().removeprefix("$ ").split()
            while words and (re.match(r"[A-Z_]+=", words[0]) or words[0] in ("uvx", "uv", "run", "exec", "time")):
                words = words[1:]
            if len(words) > 1 and words[0] == "callslip":
                yield words[1:]


def find_unknown_command(group: click.Group, words: list[str]) -> str | None:
    """Return the first word that is not a command of the group or of a group below it."""
    context = click.Context(group)
    with_value = {
        name
        for parameter in group.params
        if isinstance(parameter, click.Option) and not parameter.is_flag and not parameter.count
        for name in parameter.opts
    }
    rest = iter(words)
    for word in rest:
        if word in with_value:
            next(rest, None)
        elif re.fullmatch(r"[a-z][a-z-]*", word):
            command = group.get_command(context, word)
            if command is None:
                return word
            return find_unknown_command(command, list(rest)) if isinstance(command, click.Group) else None
        elif not word.startswith("-"):
            return None  # a placeholder such as COMMAND or ...
    return None


# Examples


class Step(NamedTuple):
    """A command and its output according to the document, or None if the document does not show it."""

    place: str
    command: str
    expected: str | None


def write_files(text: str, folder: Path, port: str) -> list[Step]:
    """Write the files of a document, and return the commands to run, in order."""
    steps: list[Step] = []
    for block in find_blocks(text):
        body = block.body.replace(PORT, port)
        if block.role == "file":
            (folder / block.name).write_text(body, "utf-8")
        elif block.info.startswith("python example"):
            name = block.name or f"line_{block.line}.py"
            (folder / name).write_text(body, "utf-8")
            command = f"python -W error {name} 2>{name}.err || {{ cat {name}.err; false; }}"
            steps.append(Step(f"line {block.line}", command, block.output))
        elif block.info == "console example":
            for command, expected in parse_steps(body):
                steps.append(Step(f"line {block.line}: {command}", _shell_text(command, port), expected))
    return steps


def _shell_text(command: str, port: str) -> str:
    """Return a command with stderr in its output. For a server, wait until it answers or has ended."""
    if not command.endswith("&"):
        return f"{{ {command}\n}} 2>&1"
    return (
        f"{command[:-1]} >>server.log 2>&1 &\n"
        f"until curl -s -o /dev/null http://127.0.0.1:{port}/; do kill -0 $! || break; sleep 0.05; done"
    )


MARK = re.compile(r"\n?-- status (\d+) --\n")


def run_document(text: str, folder: Path, packages: Path | None = None) -> list[str]:
    """Run the examples of a document in order, in one folder. Return those whose output differs from the document.

    With `packages`, a folder with the installed package, the examples cannot use the files of the repository.
    """
    port = str(free_port())
    with postgres_server(text) as server:
        address = f"127.0.0.1:{server.port}" if server else ""
        steps = write_files(text.replace(POSTGRES, address) if server else text, folder, port)
        if not steps:
            return []
        programs = str(server.programs) if server else ""
        return _run_steps(steps, folder, packages, {port: PORT} | ({address: POSTGRES} if server else {}), programs)


@contextlib.contextmanager
def postgres_server(text: str) -> Generator[PostgresServer | None]:
    """Start a PostgreSQL server if the examples of a document use one."""
    if POSTGRES not in text:
        yield None
        return
    from tests.support.postgres import PostgresServer

    with PostgresServer() as server:
        yield server


def _run_steps(
    steps: list[Step], folder: Path, packages: Path | None, shown: dict[str, str], programs: str
) -> list[str]:
    """Run the steps of a document. `shown` is what the document has instead of texts that are printed."""
    install_curl(folder)
    for name in () if packages else ("docs", "tests"):  # Examples may name files of the repository.
        (folder / name).symlink_to(ROOT / name)
    lines = [f"{step.command}\nprintf '\\n-- status %s --\\n' $?" for step in steps]
    variables = {"PYTHONPATH": str(packages)} if packages else {}
    output = _run_in_shell(lines, folder, variables, programs)
    pieces = MARK.split(output)
    problems: list[str] = []
    printed_ids: dict[str, str] = {}
    for step, printed, status in zip_longest(steps, pieces[:-1:2], pieces[1::2]):
        printed = _replace(f"{printed or ''}\n", shown)
        if status != "0" or not (
            step.expected is None or matches_output(printed, _replace(step.expected, shown), printed_ids)
        ):
            problems.append(f"{step.place}\nstatus {status}, printed:\n{printed}")
    return problems


def _replace(text: str, replacements: dict[str, str]) -> str:
    for old, new in replacements.items():
        text = text.replace(old, new)
    return text


def _run_in_shell(lines: list[str], folder: Path, variables: dict[str, str], programs: str = "") -> str:
    """Run lines in a shell and return what it prints. `programs` is a folder whose programs they use first."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CALLSLIP_")}
    environment |= variables
    environment |= {
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder / "data"),
        "TZ": "UTC",
        "USER": "ann",
        "LOGNAME": "ann",
    }
    environment |= {"NO_COLOR": "1", "COLUMNS": "100"}
    environment["PATH"] = os.pathsep.join(
        [str(folder), str(Path(sys.executable).parent), *([programs] if programs else []), os.environ["PATH"]]
    )
    shell = subprocess.Popen(
        [shutil.which("bash") or "/bin/sh", "-c", "\n".join(lines)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        return shell.communicate(timeout=TIMEOUT_S)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGTERM)  # Servers that are still running.


ID = re.compile(r"\b(exec|appr|tok|rule)_[0-9a-f]{12}")

# Text that differs between runs, and its replacement in the printed and the expected output.
RUN_DEPENDENT = (
    (r"\bdemo-[0-9a-f]{4}\b", "demo-ID"),
    (r"\b1[0-9]{12}\b", "MOMENT"),
    (r"20[0-9]{2}-[0-9]{2}-[0-9]{2}(T[0-9:.]+Z)?|20[0-9]{6}-[0-9]{6}", "DAY"),
    (r"\b[0-9]{2}:[0-9]{2}:[0-9]{2}\b", "TIME"),
    (r"\+?\b[0-9.]+ (ms|s)\b( ago)?|\b[0-9]+ (min|h|d) ago\b|just now", "SPAN"),
    (r"\b[0-9]+ events\b", "N events"),
    (r"(?m)^id: [0-9]+\n", ""),  # Which frames of a live stream have an id depends on when its reader joined.
    (r"[ \t]+", " "),
)


def normalize(text: str) -> str:
    """Replace text that differs between runs, and strip spaces at the ends of lines."""
    for pattern, replacement in RUN_DEPENDENT:
        text = re.sub(pattern, replacement, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def matches_output(printed: str, expected: str, printed_ids: dict[str, str]) -> bool:
    """Return whether a program printed what a document shows. Times may differ; `...` matches any number of lines.

    Ids may differ too, but must be equal exactly where those in the document are. `printed_ids` has the printed id for
    each id that the document has shown so far.
    """
    groups: set[str] = set()

    def id_pattern(match: re.Match[str]) -> str:
        if match[0] in printed_ids:
            return printed_ids[match[0]]
        if match[0] in groups:
            return f"(?P={match[0]})"
        groups.add(match[0])
        return f"(?P<{match[0]}>{ID.pattern})"

    lines = [re.escape(f"{line}\n") if line != "..." else r"(?:.*\n)*?" for line in normalize(expected).splitlines()]
    pattern = ID.sub(id_pattern, "".join(lines))
    match = re.fullmatch(pattern, f"{normalize(printed)}\n" if printed.strip() else "")
    ids = printed_ids | match.groupdict() if match else {}
    is_equal = match is not None and len(set(ids.values())) == len(ids)
    printed_ids.update(ids if is_equal else {})
    return is_equal
