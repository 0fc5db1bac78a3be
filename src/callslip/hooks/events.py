"""Which events of each agent a hook is installed for.

Each list has the start and end of a call, its failure, prompts, and the start and end of sessions and turns, as far as
the agent has such events. The gate is the event whose hook may answer whether a call runs; it is installed only with
approvals.
"""

from __future__ import annotations

from typing import NamedTuple

AGENTS = ("claude-code", "codex", "gemini", "opencode")
WAIT_S = 300
"""How long a hook waits for an answer if nothing else is chosen."""
MAX_WAIT_S = 24 * 3600
GATE_MARGIN_S = 30
"""How much longer than the hook the agent waits, so that the hook can always end by itself."""
RECORD_TIMEOUT_S = 10
SESSION_END_TIMEOUT_S = 3
"""The most that Codex allows for this event."""


class Hook(NamedTuple):
    """An event with a hook. `records` is false for a gate that is not needed without approvals."""

    event: str
    is_gate: bool = False
    records: bool = True
    timeout_s: int = RECORD_TIMEOUT_S


HOOKS: dict[str, tuple[Hook, ...]] = {
    "claude-code": (
        Hook("SessionStart"),
        Hook("UserPromptSubmit"),
        Hook("PreToolUse"),
        Hook("PermissionRequest", is_gate=True, records=False),
        Hook("PostToolUse"),
        Hook("PostToolUseFailure"),
        Hook("Stop"),
        Hook("SessionEnd"),
    ),
    "codex": (
        Hook("SessionStart"),
        Hook("UserPromptSubmit"),
        Hook("PreToolUse"),
        Hook("PermissionRequest", is_gate=True, records=False),
        Hook("PostToolUse"),
        Hook("Stop"),
        Hook("SessionEnd", timeout_s=SESSION_END_TIMEOUT_S),
    ),
    "gemini": (
        Hook("SessionStart"),
        Hook("BeforeAgent"),
        Hook("BeforeTool", is_gate=True),
        Hook("AfterTool"),
        Hook("AfterAgent"),
        Hook("SessionEnd"),
    ),
}
"""opencode is missing: its plugin subscribes to events itself (opencode_plugin.js)."""


def wanted_hooks(agent: str, *, approvals: bool) -> tuple[Hook, ...]:
    """Return the events to install a hook for."""
    return tuple(hook for hook in HOOKS[agent] if hook.records or approvals)
