"""The tool that runs shell commands. Output is progress of the call, and the exit status decides how the call ends."""

from __future__ import annotations

from typing import Any

from callslip.agent.shell import MAX_OUTPUT_BYTES, ShellResult, run_shell
from callslip.agent.tools import Tool
from callslip.api.call import Call

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "string", "description": "the command for /bin/sh"}},
    "required": ["command"],
}
DESCRIPTION = "Run a shell command and return its output. All processes that it starts end with it."


def shell_tool(
    *,
    name: str = "shell",
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    timeout: float | None = 60.0,
    cap: int = MAX_OUTPUT_BYTES,
    approval: bool = False,
) -> Tool:
    """Return a tool that runs a shell command in a folder. See `run_shell` for its limits."""

    async def run(call: Call, input: dict[str, Any]) -> Any:
        async def progress(stream: str, text: str) -> None:
            await call.progress(text)

        command = input.get("command")
        if not isinstance(command, str) or not command.strip():
            raise ValueError("command: must be a non-empty string")
        result = await run_shell(command, cwd=cwd, env=env, timeout=timeout, cap=cap, progress=progress)
        _end_call(call, result, timeout)

    return Tool(
        name=name,
        run=run,
        description=DESCRIPTION,
        parameters=SCHEMA,
        approval=approval,
        kind="execute",
        title=lambda input: str(input.get("command", "")),
    )


def _end_call(call: Call, result: ShellResult, timeout: float | None) -> None:
    """Complete the call for exit status 0, fail it for any other or a signal, and expire it after the timeout."""
    output: Any = {"stdout": result.stdout, "stderr": result.stderr} if result.stderr else result.stdout
    status = result.exit_status if result.exit_status is not None else {"signal": result.signal}
    cut_bytes = result.stdout_cut + result.stderr_cut
    if result.timed_out:
        reason = f"the command did not end within {timeout:g} s and was stopped"
        call.expire(reason, output=output, cut_bytes=cut_bytes)
    elif status == 0:
        call.complete(output, exit_status=0, cut_bytes=cut_bytes)
    else:
        why = f"exit status {status}" if isinstance(status, int) else f"ended by {result.signal or 'an unknown cause'}"
        call.fail(
            reason="; ".join(filter(None, [why, result.problem])),
            output=output,
            exit_status=status,
            cut_bytes=cut_bytes,
        )
