"""Read the results of calls: what the model saw, with the exit status in its first lines, and completed items."""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET, UnsetType

from callslip.formats.json_fields import as_dict, as_list, as_str, parse_json_or
from callslip.model import events as ev
from callslip.model.events import CallEnd

Json = dict[str, Any]

# Before the output of a command. The first form is that of the tool `exec_command`, the second that of `shell`.
_HEADER = re.compile(
    r"(?:Chunk ID: \S+\n)?Wall time: (?P<seconds>[0-9.]+) seconds\n"
    r"(?:Process exited with code (?P<code>-?[0-9]+)\n)?"
    r"(?:Process running with session ID (?P<process>\S+)\n)?"
    r"(?:Original token count: [0-9]+\n)?(?:Total output lines: [0-9]+\n)?Output:\n?"
)
_SHELL_HEADER = re.compile(
    r"Exit code: (?P<code>-?[0-9]+)\nWall time: (?P<seconds>[0-9.]+) seconds\n"
    r"(?:Total output lines: [0-9]+\n)?Output:\n?"
)
_REFUSAL = re.compile(
    r"(?:exec command |patch )?rejected by user\b"
    r'|exec_command failed: CreateProcess \{ message: "Rejected\('
    r"|approval policy is Never; reject command\b"
)
_ABORTED = re.compile(r"(?:Wall time: [0-9.]+ seconds\n)?(?:command )?aborted by user\b")
_FAILURE = re.compile(r"unsupported call: |exec_command failed: |failed to parse function arguments: |Script failed\n")
_MAX_TEXT_OF_JSON = 2**20


class Result:
    """The result of a call. `process` is the session id of a command that still runs; the model can write to it."""

    __slots__ = ("duration_ms", "exit_status", "output", "process")

    def __init__(self, output: Any, exit_status: int | UnsetType = UNSET, duration_ms: Any = UNSET) -> None:
        self.output = output
        self.exit_status = exit_status
        self.duration_ms = duration_ms
        self.process = ""


def read_result(output: Any) -> Result:
    """Read the output of a call, as the model saw it."""
    value = as_dict(output).get("content", output) if isinstance(output, dict) else output
    if isinstance(value, list):
        parts = [as_dict(part) for part in as_list(output)]
        texts = [part["text"] for part in parts if part.get("type") in ("input_text", "output_text", "text")]
        all_texts = len(texts) == len(parts) and all(isinstance(text, str) for text in texts)
        return Result("\n".join(texts) if all_texts else value)
    if not isinstance(value, str):
        return Result(value)
    header = _HEADER.match(value) or _SHELL_HEADER.match(value)
    if header is None:
        return _read_json_result(value) if value.startswith('{"output"') else Result(value)
    groups = header.groupdict()
    result = Result(value[header.end() :], _int_or_unset(groups["code"]), _seconds_to_ms(groups["seconds"]))
    result.process = groups.get("process") or ""
    return result


def _read_json_result(text: str) -> Result:
    """Read the form of older versions: {"output", "metadata": {"exit_code", "duration_seconds"}}."""
    fields = as_dict(parse_json_or(text, None)) if len(text) <= _MAX_TEXT_OF_JSON else {}
    metadata = as_dict(fields.get("metadata"))
    if "output" not in fields or "exit_code" not in metadata:
        return Result(text)
    code, seconds = metadata["exit_code"], metadata.get("duration_seconds")
    duration = int(seconds * 1000) if isinstance(seconds, int | float) and 0 <= seconds < 10**9 else UNSET
    return Result(fields["output"], code if type(code) is int else UNSET, duration)


def _int_or_unset(text: str | None) -> int | UnsetType:
    return int(text) if text and len(text) < 12 else UNSET


def _seconds_to_ms(text: str) -> int | UnsetType:
    try:
        return int(float(text) * 1000) if len(text) < 16 else UNSET
    except ValueError:
        return UNSET


def end_of(result: Result, success: Any = None) -> tuple[type[CallEnd], Json]:
    """Return how a call ended and the fields of its end. A command that failed has another exit status than 0."""
    fields: Json = {"output": result.output, "exit_status": result.exit_status, "duration_ms": result.duration_ms}
    if result.exit_status not in (UNSET, 0):
        return ev.CallFailed, fields
    if isinstance(result.output, str) and result.exit_status is UNSET:
        if _REFUSAL.match(result.output):
            return ev.CallDenied, {"reason": result.output[:2000]}
        if _ABORTED.match(result.output):
            return ev.CallCancelled, {"reason": result.output[:2000]}
        if _FAILURE.match(result.output):
            success = False
    if success is False:
        return ev.CallFailed, {"error": result.output, "duration_ms": result.duration_ms}
    return ev.CallCompleted, fields


# Completed items, which newer versions store in addition


def command_end(item: Json) -> tuple[type[CallEnd], Json]:
    """Return how a command ended."""
    code, status = item.get("exit_code"), item.get("status")
    if status == "declined":
        return ev.CallDenied, {"reason": "rejected by user"}
    printed = [as_str(item.get(name)) for name in ("stdout", "stderr")]
    output = as_str(item.get("aggregated_output")) or "".join(printed) or as_str(item.get("formatted_output"))
    exit_status = code if type(code) is int else UNSET
    is_failed = exit_status not in (UNSET, 0) or (status == "failed" and exit_status is UNSET)
    fields = {"output": output, "exit_status": exit_status, "duration_ms": duration_ms(item.get("duration"))}
    return ev.CallFailed if is_failed else ev.CallCompleted, fields


def patch_end(item: Json) -> tuple[type[CallEnd], Json]:
    """Return how a change of files ended."""
    status, changes = item.get("status"), as_dict(item.get("changes"))
    if status == "declined":
        return ev.CallDenied, {"reason": "rejected by user"}
    fields: Json = {"locations": [{"path": path} for path in changes]} if changes else {}
    if status == "failed" or item.get("success") is False:
        return ev.CallFailed, {**fields, "error": as_str(item.get("stderr")) or as_str(item.get("stdout"))}
    return ev.CallCompleted, {**fields, "output": as_str(item.get("stdout")) or as_str(item.get("stderr"))}


def mcp_end(item: Json) -> tuple[type[CallEnd], Json]:
    """Return how a call of an MCP server ended."""
    result = as_dict(item.get("result"))
    error = result["Err"] if "Err" in result else item.get("error")
    value = as_dict(result["Ok"]) if "Ok" in result else result
    fields: Json = {"duration_ms": duration_ms(item.get("duration"))}
    if error is not None:
        return ev.CallFailed, {**fields, "error": error}
    if value.get("isError") is True or value.get("is_error") is True or item.get("status") == "failed":
        return ev.CallFailed, {**fields, "error": value}
    return ev.CallCompleted, {**fields, "output": value}


def duration_ms(value: Any) -> int | UnsetType:
    """Return a duration {secs, nanos} in ms; UNSET for anything else."""
    fields = as_dict(value)
    seconds, nanos = fields.get("secs"), fields.get("nanos")
    if type(seconds) is not int or not 0 <= seconds < 10**9:
        return UNSET
    return seconds * 1000 + (nanos // 10**6 if type(nanos) is int and 0 <= nanos < 10**9 else 0)
