"""Run a real shell command as a call: its output is streamed, and its exit status decides how the call ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from callslip.agent.shell import ShellResult, run_shell
from callslip.agent.shell_tool import SCHEMA
from callslip.api.call import Call
from callslip.api.session import Session

COMMAND_TIMEOUT_S = 30.0


async def run_command(
    session: Session,
    command: str,
    folder: Path,
    *,
    env: Mapping[str, str] | None = None,
    approval: bool = False,
    timeout: float = COMMAND_TIMEOUT_S,
    stream: bool = True,
) -> ShellResult:
    """Run a command in a folder. Cancelling it ends every process that it started."""
    schema = SCHEMA if approval else None
    async with session.call(
        "shell", {"command": command}, title=command, kind="execute", approval=approval, schema=schema
    ) as call:

        async def progress(_: str, text: str) -> None:
            await call.progress(text)

        work = run_shell(
            _approved_command(call, command),
            cwd=folder,
            env=env,
            timeout=timeout,
            progress=progress if stream else None,
        )
        result = await call.run(work)
        _end_call(call, result, timeout)
        return result


def _approved_command(call: Call, command: str) -> str:
    """Return the command as the approver edited it."""
    arguments = cast("dict[str, Any]", call.input) if isinstance(call.input, dict) else {}
    edited = arguments.get("command")
    return edited if call.edited and isinstance(edited, str) else command


def _end_call(call: Call, result: ShellResult, timeout: float) -> None:
    """End the call with stdout and stderr in the order in which they were printed."""
    cut_bytes = result.stdout_cut + result.stderr_cut
    if result.timed_out:
        reason = f"the command did not end within {timeout:g} s and was stopped"
        call.expire(reason, output=result.output, cut_bytes=cut_bytes)
    elif result.exit_status == 0:
        call.complete(result.output, exit_status=0, cut_bytes=cut_bytes)
    else:
        status = result.exit_status if result.exit_status is not None else {"signal": result.signal}
        reason = f"exit status {status}" if isinstance(status, int) else f"ended by {result.signal}"
        call.fail(result.output or result.problem or reason, exit_status=status, cut_bytes=cut_bytes)
