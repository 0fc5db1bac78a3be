"""Checks for ids and session names, and the names that Callslip reserves."""

from __future__ import annotations

import re

from callslip.errors import InvalidInputError

MAX_NAME_BYTES = 200
MAX_ID_BYTES = 500

NEW_CALL_PREFIX = "new:"
"""The prefix of ids for calls that do not exist yet: `new:1` is the same call in all drafts of one write."""
SOURCE_PYTHON = "python"
"""The source of calls that run in this process. They run with the arguments that were approved."""
SOURCE_LEDGER = "callslip"
"""The alias namespace of call ids from another log, by which a copied call is found."""

SHELL_NAMESPACE = "shell"
"""The alias namespace of commands in a text; a producer starts its ids again in every turn."""
EXECUTION_NAMESPACE = "act-observe"
"""The alias namespace of the execution ids of an agent runtime."""
MODEL_CALL_NAMESPACE = "act-observe.call"
"""The alias namespace of the ids that a model gave its calls in an agent runtime: an id may return in every turn."""
RETURNED_NAMESPACES = frozenset({SHELL_NAMESPACE, EXECUTION_NAMESPACE, MODEL_CALL_NAMESPACE})
"""The alias namespaces whose ids readers of the same format get back as the producer gave them.

Producers start them again in every turn, so they name a call only within its session.
"""

SUBAGENT_NAMESPACE = "subagent"
"""The alias namespace by which a call is also found: the agent's own id of the sub-agent that the call started."""

TRANSCRIPT_SOURCES = frozenset({"claude-code", "codex", "gemini", "opencode"})
"""The sources of events from the session files of agents. Another source may have recorded the same session live."""

HOOK_SOURCES = frozenset(f"{source}-hook" for source in TRANSCRIPT_SOURCES)
"""The sources of events from the hooks of the same agents."""
UNNAMED_NAMESPACE = "unnamed"
"""The alias namespace of calls whose id the hook of their agent does not tell, until its session file does."""

_CONTROL_CHARS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def check_session_name(name: object) -> str:
    """Return `name` if it works in a URL, a file name and a column, else raise InvalidInputError."""
    checked = check_id(name, "session", MAX_NAME_BYTES)
    if "/" in checked or "\\" in checked or checked in (".", ".."):
        raise InvalidInputError("session", "must not contain '/' or '\\' and must not be '.' or '..'")
    return checked


def check_id(value: object, field: str, limit: int = MAX_ID_BYTES) -> str:
    """Return `value` if it is an acceptable id or name, else raise InvalidInputError."""
    if type(value) is str and 0 < len(value) <= limit and value.isascii() and value.isprintable():
        return value
    if not isinstance(value, str):
        raise InvalidInputError(field, f"must be text, got {type(value).__name__}")
    if not value:
        raise InvalidInputError(field, "must not be empty")
    if (size := len(value.encode("utf-8", "surrogatepass"))) > limit:
        raise InvalidInputError(field, f"must be at most {limit} bytes, got {size}", limit)
    if _CONTROL_CHARS.search(value):
        raise InvalidInputError(field, "must not contain control characters")
    return value
