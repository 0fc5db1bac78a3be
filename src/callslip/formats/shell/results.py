"""What a model is told of the commands it wrote (S0.6): the same text whenever it is made from the same results.

A result is an object. What was printed is its `result`, a text or an object with `stdout` and `stderr`, or stands there
itself as `stdout` and `stderr`; an exit status, an error and the mark that it failed may stand beside either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET

from callslip.model import codec

LIMIT = 30_000
NOTHING = "(no output)"
LANGUAGE = "terminal"

# What producers call the same thing.
PRINTED = ("result", "output", "content")
EXITS = ("exitStatus", "exit_status", "exitCode", "exit_code")
FAILED = ("isError", "is_error")
STREAMS = ("stdout", "stderr")

_FENCES = re.compile("`+")
_OPENING = re.compile(f"(`{{3,}}){LANGUAGE}")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one command. `output` is UNSET where nothing was said of it, and so is `exit_status`."""

    output: Any = UNSET
    exit_status: Any = UNSET
    error: Any = UNSET
    failed: bool = False


def outcome(told: Mapping[str, Any]) -> Outcome:
    """What an object says about the end of a command."""
    output = _first(told, PRINTED)
    if output is UNSET and any(name in told for name in STREAMS):
        output = {name: told[name] for name in STREAMS if name in told}
    status = _first(told, EXITS)
    if status in (UNSET, None):
        status = _first(_fields(output), EXITS)
    error = told.get("error") or UNSET
    failed = error is not UNSET or any(told.get(name) is True for name in FAILED)
    return Outcome(output=output, exit_status=status, error=error, failed=failed)


def format_tool_results(results: Iterable[Mapping[str, Any]], limit: int = LIMIT) -> str:
    """One fenced block for each result, in their order (S0.9). No stream of one is longer than `limit` characters."""
    return "\n\n".join(_block(_body(outcome(result), limit)) for result in results)


def truncate_output(text: str, limit: int = LIMIT) -> str:
    """The text if it has at most `limit` characters; else its beginning, how much was cut, and its end (S0.9).

    All of it fits the limit, unless that is too small for the words alone. More is kept of the beginning; the end is
    where commands say what went wrong.
    """
    if len(text) <= limit:
        return text
    room = max(0, limit - len(_marker(len(text), len(text))))
    tail = room // 3
    cut = _marker(len(text) - room, len(text))
    return text[: room - tail] + cut + text[len(text) - tail :]


def split_tool_results(text: str) -> list[str] | None:
    """What stands in each block of formatted results; None if the text is anything else."""
    found: list[str] = []
    lines = iter(text.split("\n"))
    for line in lines:
        opening = _OPENING.fullmatch(line)
        body = _until(lines, opening[1]) if opening else None
        if body is None or next(lines, "") != "":
            return None
        found.append("" if body == NOTHING else body)
    return found


def _until(lines: Iterable[str], fence: str) -> str | None:
    body: list[str] = []
    for line in lines:
        if line == fence:
            return "\n".join(body)
        body.append(line)
    return None


def _marker(cut: int, whole: int) -> str:
    return f"\n[... {cut} of {whole} characters cut ...]\n"


def _block(body: str) -> str:
    """A fence is longer than every run of backticks inside of it."""
    longest = max((len(run) for run in _FENCES.findall(body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{LANGUAGE}\n{body}\n{fence}"


def _body(told: Outcome, limit: int) -> str:
    """What was printed, then why it failed: nothing of that pushes out the rest."""
    streams = _fields(told.output)
    split = any(name in streams for name in STREAMS)
    printed = streams.get("stdout") if split else told.output
    shown = [_cut(printed, limit)]
    complaint = _cut(streams.get("stderr") if split else None, limit)
    if complaint:
        shown.append(f"[stderr]\n{complaint}")
    body = "\n".join(filter(None, shown)) or NOTHING
    return "\n".join([body, *_notes(told, limit)])


def _notes(told: Outcome, limit: int) -> list[str]:
    """What is said of a failure."""
    said = _first(_fields(told.error), ("message", "error"))
    error = said if isinstance(said, str) else told.error
    notes = [f"[error: {_cut(error, limit)}]"] if told.error is not UNSET else []
    if told.exit_status not in (UNSET, None, 0):
        notes.append(f"[exit status {_plain(told.exit_status)}]")
    return notes or (["[failed]"] if told.failed else [])


def _cut(value: Any, limit: int) -> str:
    return truncate_output(_plain(value).rstrip("\n"), limit)


def _plain(value: Any) -> str:
    """A value as text: itself, or its JSON."""
    if value is None or value is UNSET:
        return ""
    return value if isinstance(value, str) else codec.encode(codec.to_json(value)).decode()


def _first(told: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((told[name] for name in names if name in told), UNSET)


def _fields(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
