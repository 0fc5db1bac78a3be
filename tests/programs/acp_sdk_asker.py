"""Run an agent of the protocol's library that requests permission for every prompt and sends the answer as text."""

from __future__ import annotations

import asyncio
from typing import Any

from acp import (
    Agent,
    InitializeResponse,
    NewSessionResponse,
    PromptResponse,
    run_agent,
    text_block,
    update_agent_message,
)
from acp.schema import PermissionOption, ToolCallUpdate


class Asker(Agent):
    def on_connect(self, conn: Any) -> None:
        self.client = conn
        self.requests = 0

    async def initialize(self, protocol_version: int, **more: Any) -> InitializeResponse:
        return InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, cwd: str, **more: Any) -> NewSessionResponse:
        return NewSessionResponse(session_id="sdk")

    async def prompt(self, prompt: Any, session_id: str, **more: Any) -> PromptResponse:
        self.requests += 1
        answer = await self.client.request_permission(
            session_id=session_id,
            tool_call=ToolCallUpdate(tool_call_id=f"c{self.requests}", title="Do it"),
            options=[
                PermissionOption(option_id="go", name="Go", kind="allow_once"),
                PermissionOption(option_id="stop", name="Stop", kind="reject_once"),
            ],
        )
        text = f"{answer.outcome.outcome} {getattr(answer.outcome, 'option_id', '-')}"
        await self.client.session_update(session_id=session_id, update=update_agent_message(text_block(text)))
        return PromptResponse(stop_reason="end_turn")


if __name__ == "__main__":
    asyncio.run(run_agent(Asker()))
