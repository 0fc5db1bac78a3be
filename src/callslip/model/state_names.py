"""The name of each call state in every supported protocol and format."""

from __future__ import annotations

import msgspec


class StateNames(msgspec.Struct, frozen=True):
    """The names of one state. `error` is whether the outcome counts as an error."""

    error: bool
    shell: str  # toolStatus of a shell call
    act: str  # status in the act and observe format
    entry: str  # status of an entry, as agents report it
    command: str  # status of a command
    v4: str  # AI SDK 4 invocation state, also in message rows
    complete: bool  # isComplete in message rows
    v5: str
    v6: str
    v7: str
    ag_ui: str
    acp: str
    acp2: str
    mcp: str


def _open(shell: str, entry: str, ui: str, acp: str, mcp: str, act: str = "running") -> StateNames:
    return StateNames(
        error=False,
        shell=shell,
        act=act,
        entry=entry,
        command="pending",
        v4="call",
        complete=False,
        v5="input-available",
        v6=ui,
        v7=ui,
        ag_ui="interrupt" if ui == "approval-requested" else "open",
        acp=acp,
        acp2=acp,
        mcp=mcp,
    )


def _ended(command: str, *, error: bool = True, v7: str = "output-error", acp2: str = "failed", mcp: str = "completed"):
    return StateNames(
        error=error,
        shell="completed",
        act="failed" if error else "completed",
        entry="failed" if error else "completed",
        command=command,
        v4="result",
        complete=True,
        v5="output-error" if error else "output-available",
        v6="output-error" if error else "output-available",
        v7=v7 if error else "output-available",
        ag_ui="result",
        acp="failed" if error else "completed",
        acp2=acp2 if error else "completed",
        mcp=mcp,
    )


STATE_NAMES: dict[str, StateNames] = {
    "queued": _open("queued", "pending", "input-available", "pending", "working"),
    "awaiting_approval": _open("queued", "pending", "approval-requested", "pending", "input_required"),
    "running": _open("running", "in_progress", "input-available", "in_progress", "working"),
    "completed": _ended("complete", error=False),
    "failed": _ended("error"),
    "lost": _ended("error"),
    "denied": _ended("error", v7="output-denied"),
    "cancelled": _ended("cancelled", acp2="cancelled", mcp="cancelled"),
    "expired": _ended("expired"),
}


def command_state_name(state: str, ran: bool) -> str:
    """Return the status of a command: a deadline that passed while it ran is `timeout`, in the queue `expired`."""
    return "timeout" if state == "expired" and ran else STATE_NAMES[state].command


def ai_sdk_v7_state_name(state: str, refused: bool, granted: bool = False) -> str:
    """Return the AI SDK 7 state, where only an answered request is a denial and a granted request has its own state."""
    if state == "denied" and not refused:
        return "output-error"
    return "approval-responded" if granted and STATE_NAMES[state].v7 == "input-available" else STATE_NAMES[state].v7
