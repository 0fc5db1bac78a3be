"""Runs one real shell command as one call: its output is streamed while it runs, its exit status decides the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from callslip.agent.shell import ShellResult, run_shell
from callslip.agent.shell_tool import SCHEMA
from callslip.api.call import Call
from callslip.api.session import Session

TIMEOUT = 10.0


async def run(
    session: Session,
    command: str,
    folder: Path,
    *,
    approval: bool = False,
    timeout: float = TIMEOUT,
    stream: bool = True,
) -> ShellResult:
    """Run a command in a folder. Cancelled, it takes everything it started with it."""
    made = session.call(
        "shell",
        {"command": command},
        title=command,
        kind="execute",
        approval=approval,
        schema=SCHEMA if approval else None,
    )
    async with made as call:

        async def progress(_: str, text: str) -> None:
            await call.progress(text)

        asked = _command(call, command)
        shown = progress if stream else None
        result = await call.run(run_shell(asked, cwd=folder, timeout=timeout, progress=shown))
        _decide(call, result, timeout)
        return result


def _command(call: Call, command: str) -> str:
    """Whoever approved may have changed it."""
    given = cast("dict[str, Any]", call.input) if isinstance(call.input, dict) else {}
    edited = given.get("command")
    return edited if call.edited and isinstance(edited, str) else command


def _decide(call: Call, result: ShellResult, timeout: float) -> None:
    """What it printed stands in the order in which it came, whichever stream it took."""
    if result.timed_out:
        call.expire(f"the command did not end within {timeout:g} s and was stopped", output=result.output)
    elif result.exit_status == 0:
        call.complete(result.output, exit_status=0)
    else:
        ended = result.exit_status if result.exit_status is not None else {"signal": result.signal}
        said = f"exit status {ended}" if isinstance(ended, int) else f"ended by {result.signal}"
        call.fail(result.output or result.problem or said, exit_status=ended)
