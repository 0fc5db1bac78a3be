"""Read the input, the output and the end of a call, for every format that shows calls."""

from __future__ import annotations

from typing import Any

from callslip.formats.json_fields import as_dict, as_list, parse_json_or
from callslip.model import codec
from callslip.model.entries import ToolCall
from callslip.rules.call_content import block_text, content_text
from callslip.rules.lifecycle import TERMINAL_STATES


def is_open(entry: ToolCall) -> bool:
    """Return whether the message waits for this call. A detached call has its answer at once: that it is queued."""
    return entry.scope != "detached" and entry.status not in TERMINAL_STATES


def queued(entry: ToolCall) -> dict[str, str]:
    """Return the immediate answer of a detached call."""
    return {"status": "queued", "correlation_id": entry.call_id}


def parsed_input(entry: ToolCall) -> Any:
    """Return the arguments. Arguments that were only streamed are parsed, or returned as text if they are not JSON."""
    is_streamed = entry.raw_input is None and entry.input_text
    return parse_json_or(entry.input_text, entry.input_text) if is_streamed else entry.raw_input


def output_of(entry: ToolCall) -> Any:
    """Return the output, or else the content, or else the printed text; None if there is nothing.

    An output that only has the texts of the content is replaced by the content, which may have more than texts.
    """
    blocks = content_blocks(entry.content)
    if entry.output is not None and not (blocks and entry.output == content_text(blocks)):
        return entry.output
    if not blocks:
        return entry.output_text or None
    texts = [block_text(block) for block in blocks]
    return blocks if None in texts else "\n".join(text for text in texts if text)


# Errors

ERROR_FIELDS = ("message", "error")


def error_of(entry: ToolCall) -> Any:
    """Return the error of a call, as text if it has one: the message of an error object. None for no error."""
    return _message_of(entry.error) or _message_of(error_output(entry).get("error"))


def error_output(entry: ToolCall) -> dict[str, Any]:
    """Return the output of a failed call if it is an object with the same error, or the JSON text of one; else {}."""
    fields = _object_of(output_of(entry)) if entry.status == "failed" else {}
    if not fields.get("error"):
        return {}
    error = _message_of(entry.error)
    is_same = error is None or codec.json_equal(error, _message_of(fields["error"]))
    return fields if is_same else {}


def output_besides_error(entry: ToolCall) -> Any:
    """Return the output of a call; None if it has only the error."""
    return None if error_output(entry).keys() == {"error"} else output_of(entry)


def _message_of(error: Any) -> Any:
    """Return the message of an error object or of its JSON text, any other error as it is, None for an empty one."""
    fields = _object_of(error)
    message = next((fields[name] for name in ERROR_FIELDS if fields.get(name) and isinstance(fields[name], str)), None)
    if message is None and any(name in fields for name in ERROR_FIELDS):
        message = fields.get("type")  # An exception without a message.
    return message if message and isinstance(message, str) else error or None


def _object_of(value: Any) -> dict[str, Any]:
    """Return an object, or the object in a JSON text; {} for anything else."""
    is_text = isinstance(value, str) and value.lstrip().startswith("{")
    return as_dict(parse_json_or(value, None) if is_text else value)


def end_facts(entry: ToolCall) -> dict[str, Any]:
    """Return what several formats add to the state of a call. Values are null or empty if there is nothing to say."""
    return {
        "kind": entry.kind,
        "reason": entry.reason,
        "exitStatus": entry.exit_status,
        "truncated": entry.truncated or None,
        "size": entry.blob and entry.blob.size,
        "blob": entry.blob and entry.blob.hash,
    }


def content_blocks(content: Any) -> list[Any]:
    """Return one or several blocks as a list, without references to a terminal: its text is the printed output."""
    blocks = as_list(content) if isinstance(content, list) or content is None else [content]
    return [block for block in blocks if as_dict(block).get("type") != "terminal"]
