"""Writes the documents that follow from the code: docs/cli.md from the commands, docs/lifecycle.md from the tables.

`make docs` runs it. With --check it writes nothing and fails if a document is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import msgspec

from callslip.cli import exits, main
from callslip.events import EVENT_TYPES, Event
from callslip.lifecycle import ENDS, OPEN, TRANSITIONS
from callslip.words import WORDS, Words

DOCS = Path(__file__).resolve().parent
NOTICE = "<!-- Written by docs/generate.py; change the code, then run `make docs`. -->"
WIDTH = 100


# The command line


OUTPUT = """
stdout is data, stderr is everything else. With `--json` the data is JSON: one object per line for lists, one document
otherwise. Colours appear on a terminal only, and `NO_COLOR` switches them off. Nothing is asked where there is no
terminal. Text that came from tools is shown with its control characters as visible escapes. `CALLSLIP_DEBUG=1` adds a
traceback to an error.

The ledger is the file that `--db` names, before the command or after it; else the one that `CALLSLIP_DB` names; else
`callslip/ledger.db` under `XDG_DATA_HOME`, which is `~/.local/share` unless set. Commands that read make no file. They
end what dead processes left open, if they may write; `doctor` changes nothing at all.
"""


def cli() -> str:
    """The reference of the command line."""
    settings = {**main.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    root = click.Context(main, info_name="callslip", **settings)
    return "\n\n".join(["# The command line", NOTICE, OUTPUT.strip(), _statuses(), *_helps(root)]) + "\n"


def _statuses() -> str:
    rows = [f"| {status} | {meaning} |" for status, meaning in sorted(exits.MEANING.items())]
    return "\n".join(["## Exit status", "", "| status | meaning |", "|---|---|", *rows])


def _helps(context: click.Context) -> Iterator[str]:
    command = context.command
    yield f"## `{context.command_path}`\n\n```text\n{command.get_help(context).strip()}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _helps(click.Context(inner, info_name=name, parent=context))


# The lifecycle

STEPS = """
A call is in one state at a time. The steps between states are one table, `TRANSITIONS` in `src/callslip/lifecycle.py`,
and this page is drawn from it. Events that leave a call in its state are not in the picture.
"""
VERDICTS = """
A word in italics is the verdict on an event that is kept in the log and changes no state: *orphan* when there is no
such call, *illegal* when there is no such step (in one's own process that is an exception), *late* after the end, or
*duplicate* if that end was told before. A request for approval of an unknown call makes the call first.
"""


def lifecycle() -> str:
    """The states, the steps between them, and their words elsewhere."""
    sections = ["# The lifecycle of a call", NOTICE, STEPS.strip(), _diagram()]
    sections += ["## Every event in every state", VERDICTS.strip(), _steps()]
    sections += ["## The same states in other vocabularies", "From `src/callslip/words.py`.", _words()]
    return "\n\n".join(sections) + "\n"


def _diagram() -> str:
    lines = ["```mermaid", "stateDiagram-v2"]
    for state, steps in TRANSITIONS.items():
        targets: dict[str, list[str]] = {}
        for event, target in steps.items():
            if target != state:
                targets.setdefault(target, []).append(_name(event))
        begin = "[*]" if state == "none" else state
        lines += [f"    {begin} --> {target} : {', '.join(events)}" for target, events in targets.items()]
    lines += [f"    {state} --> [*]" for state in TRANSITIONS if state in ENDS]
    return "\n".join([*lines, "```"])


def _steps() -> str:
    """Open states have a column each; all ends share one."""
    columns = ["none", *(state for state in TRANSITIONS if state in OPEN)]
    events = [kind for kind in EVENT_TYPES.values() if any(kind in steps for steps in TRANSITIONS.values())]
    rows = [f"| event | {' | '.join(columns)} | an end |", "|---" * (len(columns) + 2) + "|"]
    for event in events:
        cells = [_step(state, event) for state in columns]
        rows.append(f"| `{_name(event)}` | {' | '.join(cells)} | *late* |")
    return "\n".join(rows)


def _step(state: str, event: type[Event]) -> str:
    steps = TRANSITIONS[state]  # pyright: ignore[reportArgumentType]
    return steps.get(event) or ("*orphan*" if state == "none" else "*illegal*")


def _words() -> str:
    names = [field.name for field in msgspec.structs.fields(Words)]
    rows = [f"| state | {' | '.join(HEADS.get(name, name) for name in names)} |", "|---" * (len(names) + 1) + "|"]
    for state, words in WORDS.items():
        said = [getattr(words, name) for name in names]
        cells = [("yes" if word else "no") if isinstance(word, bool) else word for word in said]
        rows.append(f"| {state} | {' | '.join(cells)} |")
    return "\n".join(rows)


HEADS = {
    "error": "is an error",
    "shell": "toolStatus",
    "act": "act and observe",
    "entry": "entry as agents say it",
    "command": "command",
    "v4": "AI SDK 4",
    "complete": "isComplete",
    "v5": "AI SDK 5",
    "v6": "AI SDK 6",
    "v7": "AI SDK 7",
    "ag_ui": "AG-UI",
    "acp": "ACP 1",
    "acp2": "ACP 2 draft",
    "mcp": "MCP task",
}


def _name(event: type[Event]) -> str:
    return str(event.__struct_config__.tag)


PAGES: dict[str, Callable[[], str]] = {"cli.md": cli, "lifecycle.md": lifecycle}


def stale() -> list[str]:
    """The documents that no longer say what the code says."""
    return [name for name, page in PAGES.items() if _written(name) != page()]


def _written(name: str) -> str:
    path = DOCS / name
    return path.read_text("utf-8") if path.exists() else ""


if __name__ == "__main__":
    found = stale()
    if "--check" in sys.argv[1:]:
        sys.exit(f"stale: {', '.join(found)}; run `make docs`" if found else 0)
    for name in found:
        (DOCS / name).write_text(PAGES[name](), "utf-8")
        print(f"wrote docs/{name}", file=sys.stderr)
