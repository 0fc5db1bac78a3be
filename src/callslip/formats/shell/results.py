"""Format the results of commands for the model. The same results always give the same text.

A result is an object. Its `result` is the output: a text or an object with `stdout` and `stderr`, which may also be
fields of the result itself. It may have an exit status, an error and a flag that it failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
from msgspec import UNSET

from callslip.model import codec

MAX_OUTPUT_CHARS = 30_000
NO_OUTPUT = "(no output)"
LANGUAGE = "terminal"

# Names of the same field in different producers.
OUTPUTS = ("result", "output", "content")
EXITS = ("exitStatus", "exit_status", "exitCode", "exit_code")
FAILED = ("isError", "is_error")
STREAMS = ("stdout", "stderr")

_FENCES = re.compile("`+")
_OPENING = re.compile(f"(`{{3,}}){LANGUAGE}")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one command. An unknown `output` or `exit_status` is UNSET."""

    output: Any = UNSET
    exit_status: Any = UNSET
    error: Any = UNSET
    failed: bool = False


def outcome(fields: Mapping[str, Any]) -> Outcome:
    """Return the outcome of a command from a result or event."""
    output = _first(fields, OUTPUTS)
    if output is UNSET and any(name in fields for name in STREAMS):
        output = {name: fields[name] for name in STREAMS if name in fields}
    status = _first(fields, EXITS)
    if status in (UNSET, None):
        status = _first(_as_mapping(output), EXITS)
    error = fields.get("error") or UNSET
    failed = error is not UNSET or any(fields.get(name) is True for name in FAILED)
    return Outcome(output=output, exit_status=status, error=error, failed=failed)


def format_tool_results(results: Iterable[Mapping[str, Any]], limit: int = MAX_OUTPUT_CHARS) -> str:
    """Return one fenced block for each result, in their order. Each stream has at most `limit` characters."""
    return "\n\n".join(_block(_body(outcome(result), limit)) for result in results)


def truncate_output(text: str, limit: int = MAX_OUTPUT_CHARS) -> str:
    """Return the text if it has at most `limit` characters; else its beginning, how much was cut, and its end.

    The result fits the limit unless that is too small for the marker alone. The beginning gets more characters; the end
    usually has the error.
    """
    if len(text) <= limit:
        return text
    available = max(0, limit - len(_marker(len(text), len(text))))
    tail = available // 3
    cut = _marker(len(text) - available, len(text))
    return text[: available - tail] + cut + text[len(text) - tail :]


def split_tool_results(text: str) -> list[str] | None:
    """Return the text of each block of formatted results; None if the text is anything else."""
    blocks: list[str] = []
    lines = iter(text.split("\n"))
    for line in lines:
        opening = _OPENING.fullmatch(line)
        body = _read_until(lines, opening[1]) if opening else None
        if body is None or next(lines, "") != "":
            return None
        blocks.append("" if body == NO_OUTPUT else body)
    return blocks


def _read_until(lines: Iterable[str], fence: str) -> str | None:
    body: list[str] = []
    for line in lines:
        if line == fence:
            return "\n".join(body)
        body.append(line)
    return None


def _marker(cut: int, total: int) -> str:
    return f"\n[... {cut} of {total} characters cut ...]\n"


def _block(body: str) -> str:
    """Return a text in a fence that is longer than every run of backticks inside of it."""
    longest = max((len(run) for run in _FENCES.findall(body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{LANGUAGE}\n{body}\n{fence}"


def _body(end: Outcome, limit: int) -> str:
    """Return the output and then the failure, each with its own limit."""
    streams = _as_mapping(end.output)
    has_streams = any(name in streams for name in STREAMS)
    parts = [_cut(streams.get("stdout") if has_streams else end.output, limit)]
    stderr = _cut(streams.get("stderr") if has_streams else None, limit)
    if stderr:
        parts.append(f"[stderr]\n{stderr}")
    body = "\n".join(filter(None, parts)) or NO_OUTPUT
    return "\n".join([body, *_notes(end, limit)])


def _notes(end: Outcome, limit: int) -> list[str]:
    """Return the lines about a failure."""
    message = _first(_as_mapping(end.error), ("message", "error"))
    error = message if isinstance(message, str) else end.error
    notes = [f"[error: {_cut(error, limit)}]"] if end.error is not UNSET else []
    if end.exit_status not in (UNSET, None, 0):
        notes.append(f"[exit status {_plain(end.exit_status)}]")
    return notes or (["[failed]"] if end.failed else [])


def _cut(value: Any, limit: int) -> str:
    return truncate_output(_plain(value).rstrip("\n"), limit)


def _plain(value: Any) -> str:
    """Return a string as it is, any other value as JSON."""
    if value is None or value is UNSET:
        return ""
    return value if isinstance(value, str) else codec.encode(codec.to_json(value)).decode()


def _first(fields: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((fields[name] for name in names if name in fields), UNSET)


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
