"""Write the documents that follow from the code: docs/cli.md from the commands, docs/lifecycle.md from the tables,
docs/events.md and docs/entries.md from the structs, docs/routes.md from the routes of the server.

`make docs` runs it. With --check it writes nothing and fails if a document is stale.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

import click
import msgspec

from callslip.cli import exit_status, main
from callslip.http import ROUTES
from callslip.http.openapi import document
from callslip.model.entries import AnyEntry, Append, Entry, Info, Put, Set
from callslip.model.events import EVENT_TYPES, ApprovalAnswer, CallEnd, CallEvent, CallUpdate, Event, read_event
from callslip.model.records import CallRecord
from callslip.model.state_names import STATE_NAMES, StateNames
from callslip.rules.lifecycle import TERMINAL_STATES, TRANSITIONS, classify_event
from callslip.settings import Limits

DOCS = Path(__file__).resolve().parent
NOTICE = "<!-- Written by docs/generate.py; change the code, then run `make docs`. -->"
WIDTH = 100


# The command line


OUTPUT = """
Data is printed on stdout, everything else on stderr. With `--json` the data is JSON: one object per line for lists, one
document otherwise. Colours are used only in a terminal, and `NO_COLOR` switches them off. Without a terminal no command
prompts. Control characters in the text of tools are shown as visible escapes. `CALLSLIP_DEBUG=1` adds a traceback to an
error.

The ledger is the file in `--db`, before or after the command; else the one in `CALLSLIP_DB`; else `callslip/ledger.db`
under `XDG_DATA_HOME` (default: `~/.local/share`). Commands that read create no file. They end what dead processes left
open, if they can write; `doctor` changes nothing.
"""


def cli() -> str:
    """Return the reference of the command line."""
    settings: dict[str, Any] = {**main.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    root = click.Context(main, info_name="callslip", **settings)
    return "\n\n".join(["# The command line", NOTICE, OUTPUT.strip(), _statuses(), *_helps(root)]) + "\n"


def _statuses() -> str:
    rows = [f"| {status} | {meaning} |" for status, meaning in sorted(exit_status.MEANING.items())]
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
A call is in one state at a time. The steps between states are one table, `TRANSITIONS` in
`src/callslip/rules/lifecycle.py`, and this page is generated from it. Events that do not change the state of a call are
not in the picture.
"""
VERDICTS = """
A word in italics is the verdict on an event that is stored in the log and changes no state: *orphan* if there is no
such call, *illegal* if there is no such step (in your own process that is an exception), *late* after the end, or
*duplicate* if it repeats that end. Agents report a denial or a cancellation again as a failure; that is a repetition.
After any end, the same end with the same result, and the same answer to a request, is a *duplicate* too. A request for
approval of an unknown call creates the call first. The verdicts are those of `classify_event` in the same file.
"""


def lifecycle() -> str:
    """Return the states, the steps between them, and their names in other protocols."""
    sections = ["# The lifecycle of a call", NOTICE, STEPS.strip(), _diagram()]
    sections += ["## Every event in every state", VERDICTS.strip(), _steps()]
    sections += ["## State names in other protocols", "From `src/callslip/model/state_names.py`.", _words()]
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
    lines += [f"    {state} --> [*]" for state in TRANSITIONS if state in TERMINAL_STATES]
    return "\n".join([*lines, "```"])


def _steps() -> str:
    """Return a table with a column for each open state and one for all ends with the same verdicts."""
    events = [kind for kind in EVENT_TYPES.values() if any(kind in steps for steps in TRANSITIONS.values())]
    columns: dict[tuple[str, ...], list[str]] = {}
    for state in TRANSITIONS:
        cells = tuple(_step(state, event) for event in events)
        columns.setdefault(cells if state in TERMINAL_STATES else (state, *cells), []).append(state)
    heads = [", ".join(states) for states in columns.values()]
    rows = [f"| event | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for number, event in enumerate(events, -len(events)):
        rows.append(f"| `{_name(event)}` | {' | '.join(cells[number] for cells in columns)} |")
    return "\n".join(rows)


def _step(state: str, event: type[Event]) -> str:
    """Return the next state after an event, or the verdict on an event that changes nothing."""
    row = None if state == "none" else CallRecord(id="", session="", entry=0, state=state, ending="another end")
    verdict = classify_event(row, cast(CallEvent, read_event({"type": _name(event), "text": ""})))
    return TRANSITIONS[state][event] if verdict == "applied" else f"*{verdict}*"  # pyright: ignore[reportArgumentType]


def _words() -> str:
    names = [field.name for field in msgspec.structs.fields(StateNames)]
    rows = [f"| state | {' | '.join(HEADS.get(name, name) for name in names)} |", "|---" * (len(names) + 1) + "|"]
    for state, words in STATE_NAMES.items():
        values = [getattr(words, name) for name in names]
        cells = [("yes" if value else "no") if isinstance(value, bool) else value for value in values]
        rows.append(f"| {state} | {' | '.join(cells)} |")
    return "\n".join(rows)


HEADS = {
    "error": "is an error",
    "shell": "toolStatus",
    "act": "act and observe",
    "entry": "entry for agents",
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


# The events

KINDS = """
The log of a session consists of these events, in the order of `seq`. `POST /v1/sessions/{session}/events` and `callslip
import --format events` accept them, and `format=events` returns them: a JSON object with its `type` and the fields
below. A field with its default value is omitted; fields in bold are required. Null, where allowed, clears a field; an
absent field keeps its value. [The lifecycle](lifecycle.md) describes the effect of an event on its call and the meaning
of `verdict`; [the entry rules](entry-rules.md) describe its entries, by the number of the RULE.

    {"type": "call.completed", "call": "exec_0d5b1c0a9f3e", "output": {"celsius": 20}, "seq": 5, "at": 1794765322451}

The ledger sets `seq` and `verdict`. A producer can name a call by its own id: `"aliases": [["me", "call_1"]]`.
"""
SHARED = {
    Event: "every event",
    CallEvent: "every event about a call",
    CallUpdate: "every update of a call",
    CallEnd: "the ends of a call",
    ApprovalAnswer: "the answers to a request",
}
GROUPS = {
    "session": "Sessions",
    "turn": "Turns",
    "message": "Texts and plans",
    "call": "Calls",
    "approval": "Approvals",
}
GROUP_OF = {"thought": "message", "plan": "message", "raw": "raw"}


def events() -> str:
    """Return the events that the log can contain."""
    sections = ["# Events", NOTICE, KINDS.strip(), "## Fields in common", _shared()]
    groups: dict[str, list[type[Event]]] = {}
    for name, event in EVENT_TYPES.items():
        first = name.partition(".")[0]
        groups.setdefault(GROUP_OF.get(first, first), []).append(event)
    for group, members in groups.items():
        rows = [f"| `{_name(event)}` | {_about(event)} | {_fields(event)} | {_also(event)} |" for event in members]
        head = ["| event | meaning | own fields | and those of |", "|---|---|---|---|"]
        sections += [f"## {GROUPS.get(group, 'Anything else')}", "\n".join([*head, *rows])]
    return "\n\n".join(sections) + "\n"


def _shared() -> str:
    rows = [f"| {named} | {_about(shared)} | {_fields(shared)} | {_also(shared)} |" for shared, named in SHARED.items()]
    return "\n".join(["| events | meaning | fields | and those of |", "|---|---|---|---|", *rows])


def _also(event: type[Event]) -> str:
    """Return the nearest family of the event; all events have the common fields."""
    return next((SHARED[above] for above in event.__mro__[1:] if above in SHARED and above is not Event), "")


def _about(struct: type[msgspec.Struct]) -> str:
    return " ".join(re.sub(r" \([CS][0-9.]+\)", "", inspect.getdoc(struct) or "").split())


def _fields(struct: type[msgspec.Struct]) -> str:
    """Return the fields of a struct that it does not share with its family."""
    families = [above for above in struct.__mro__[1:] if above in SHARED or above is Entry]
    inherited = {field.name for above in families for field in msgspec.structs.fields(above)}
    own = [field for field in msgspec.structs.fields(struct) if field.name not in inherited]
    return "; ".join(f"{_field(field)}: {_kind(field.type)}" for field in own)


def _field(field: msgspec.structs.FieldInfo) -> str:
    return f"**`{field.encode_name}`**" if field.required else f"`{field.encode_name}`"


WORD = {
    str: "text",
    int: "number",
    bool: "true or false",
    list: "list",
    tuple: "list",
    dict: "object",
    type(None): "null",
    Any: "JSON",
}


def _kind(hint: Any) -> str:
    """Return the type of a field in words."""
    origin = get_origin(hint)
    if origin is Literal:
        return "one of " + ", ".join(get_args(hint))
    if origin is Annotated:
        return _kind(get_args(hint)[0])
    if hint is AnyEntry:
        return "entry"
    if isinstance(hint, UnionType) or origin is Union:
        return " or ".join(_kind(part) for part in get_args(hint) if part is not msgspec.UnsetType)
    return WORD.get(origin or hint) or str(hint.__name__).lower()


# The entries

SEEN = """
Entries are what a reader sees of a session: `GET /v1/sessions/{session}` and `callslip export SESSION` return them.
They are computed from the [events](events.md) by [twelve rules](entry-rules.md). A field with its default value is
omitted; fields in bold are always present. Times are ms since the epoch, 0 for "not yet".
"""
LARGE = """
Output that is too large for its event is stored in full outside the log: the entry has a preview, `truncated`, and the
size and hash in `blob`. `GET /v1/blobs/{hash}` returns the full output. Large content is stored in the same way, with
its size and hash in `contentBlob`. Both are the same blob if its `fields` name both, or if the output is the text of
the content.
"""
CHANGES = """
A live reader receives a snapshot and then patches, of which there are three kinds. A reader that applies them in order
has the entries of a reload, byte for byte. It needs no rules for that, and the page has none.
"""


def entries() -> str:
    """Return what a reader receives, and how it changes."""
    head = ["| type | meaning | fields |", "|---|---|---|"]
    kinds = [f"| `{entry.__struct_config__.tag}` | {_about(entry)} | {_fields(entry)} |" for entry in AnyEntry.__args__]
    every = f"| every entry | {_about(Entry)} | {_fields(Entry)} |"
    patches = [
        f"| `{patch.__struct_config__.tag}` | {_about(patch)} | {_fields(patch)} |" for patch in (Put, Set, Append)
    ]
    sections = ["# Entries and patches", NOTICE, SEEN.strip(), "\n".join([*head, every, *kinds]), LARGE.strip()]
    sections += ["## The session itself", f"{_about(Info)} {_fields(Info)}."]
    sections += ["## Patches", CHANGES.strip(), "\n".join(["| `op` | meaning | fields |", head[1], *patches])]
    return "\n\n".join(sections) + "\n"


# The server


INTRODUCTION = """
Every route of the server, as in its OpenAPI document, which a running server returns at `/openapi.json`. Limits are the
defaults. [The HTTP API](http.md) has examples with curl and describes tokens. Errors are problem documents (RFC 9457).
"Needs" is the verb that the caller must be allowed.
"""


def routes() -> str:
    """Return every route of the server with its parameters and answers."""
    openapi = document(ROUTES, Limits())
    verbs = {(route.path, route.method.lower()): route.verb for route in ROUTES}
    sections = ["# Routes", NOTICE, INTRODUCTION.strip()]
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            sections += _route(path, method, operation, verbs[path, method])
    sections += [
        "## Bodies",
        "\n".join(_body(name, schema) for name, schema in openapi["components"]["schemas"].items()),
    ]
    return "\n\n".join(sections) + "\n"


def _route(path: str, method: str, operation: dict[str, Any], verb: str | None) -> list[str]:
    needs = f" Needs `{verb}`." if verb else " Open to all."
    head = [f"## `{method.upper()} {path}`", operation["summary"] + needs]
    inputs = [_parameter(parameter) for parameter in operation["parameters"]]
    if "requestBody" in operation:
        inputs.append(f"- body: {_medias(operation['requestBody'])}")
    answers = operation["responses"]
    problems = [status for status, answer in answers.items() if "problem" in str(answer.get("content", ""))]
    outputs = [
        f"- {status}: {answer['description']}{_content(answer)}"
        for status, answer in answers.items()
        if status not in problems
    ]
    return [*head, "\n".join([*inputs, *outputs, f"- problems: {', '.join(problems)}"])]


def _parameter(parameter: dict[str, Any]) -> str:
    about = f": {parameter['description']}" if parameter.get("description") else ""
    return f"- `{parameter['name']}` ({parameter['in']}{', required' if parameter['required'] else ''}){about}"


def _content(response: dict[str, Any]) -> str:
    return f" ({_medias(response)})" if "content" in response else ""


def _medias(body: dict[str, Any]) -> str:
    return ", ".join(_media(media, content["schema"]) for media, content in body["content"].items())


def _media(media: str, schema: dict[str, Any]) -> str:
    names = re.findall(r"#/components/schemas/(\w+)", str(schema))
    return " or ".join(f"`{name}`" for name in names) if names else f"`{media}`"


def _body(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    fields = [f"**`{field}`**" if field in required else f"`{field}`" for field in schema.get("properties", {})]
    about = " ".join(str(schema.get("description", "")).split())
    return f"- `{name}`: {about} {', '.join(fields)}".rstrip()


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli,
    "entries.md": entries,
    "events.md": events,
    "lifecycle.md": lifecycle,
    "routes.md": routes,
}


def stale() -> list[str]:
    """Return the documents that differ from the code."""
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
