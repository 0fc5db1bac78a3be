"""The demo's answers to prompts: scripted, or by a model if one is configured."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from callslip.agent.loop import Agent
from callslip.agent.models import Model
from callslip.agent.shell_tool import shell_tool
from callslip.api.ledger import LocalLedger
from callslip.api.session import Session
from callslip.demo.agent import DemoAgent
from callslip.demo.project import command_env, write_files
from callslip.demo.story import Story
from callslip.demo.workers import Workers

COMMANDS = [
    {"name": "weather", "description": "Sample weather in Paris or Tokyo", "input": {"hint": "Paris"}},
    {"name": "time", "description": "The time in Paris or Tokyo", "input": {"hint": "Tokyo"}},
    {
        "name": "run",
        "description": "Run a command in the scratch folder",
        "input": {"hint": "ls -l app"},
    },
    {"name": "tour", "description": "Play the demo again"},
]
CITIES = {"Paris": (20, "partly cloudy", "Europe/Paris", 1), "Tokyo": (24, "clear", "Asia/Tokyo", 9)}
"""Sample temperature in °C and sky; the time zone, and its hours ahead of UTC for systems without zone data."""
COMMAND_TIMEOUT_S = 60.0
SYSTEM = "You help a user of a demo. Commands run in a scratch folder with /bin/sh, each after the user approved it."
CLOSING = """

Your turn:

- Ask `What's the weather in Paris?` or `What time is it in Tokyo and what's the weather there?`
- Type `$` and a command, such as `$ cat app/parser.py`. It runs in a scratch folder after you approve it.
- Reload the page at any time: it shows the same.
- Open the **Fault lab** at the top and inject faults.

This agent is a script without a model. `/tour` plays it again.
"""
NO_MODEL = """\
No model is configured, so this prompt cannot be answered. These work without a model:

- `What's the weather in Paris?`
- `What time is it in Tokyo and what's the weather there?`
- `$ date`, or any other command

To use a model: `callslip demo --model openai:NAME` or `anthropic:NAME`, with its key in `OPENAI_API_KEY` or \
`ANTHROPIC_API_KEY`; in a terminal, `callslip run "..." --model openai:NAME`.
"""


class Replies:
    """The function that answers the prompts of one demo: `answers` of `http.standalone`."""

    def __init__(self, folder: Path, workers: Workers, model: Model | None = None, pace: float = 1.0) -> None:
        self._folder = folder
        self._workers = workers
        self._model = model
        self._pace = pace

    def __call__(self, ledger: LocalLedger, name: str, text: str) -> Any:
        session, prompt = ledger.session(name), text.strip()
        if prompt == "/tour":
            return self.play_story(session)
        agent = DemoAgent(session, self._folder, self._pace)
        if match := re.match(r"(?:\$|/run\b)\s*(.+)", prompt, re.DOTALL):
            return _run(agent, match[1])
        if questions := _find_questions(prompt):
            return _look_up(agent, questions)
        if self._model is not None:
            return self._ask_model(session, self._model, text)
        return agent.say(NO_MODEL)

    async def play_story(self, session: Session) -> None:
        """Play the story in the session's open turn."""
        write_files(self._folder)
        await Story(session, self._folder, self._workers, self._pace, closing=CLOSING).play()

    async def _ask_model(self, session: Session, model: Model, text: str) -> None:
        """Run the agent loop in the turn that started with this text."""
        record = await session.ledger.find_session(session.name)
        shell = shell_tool(cwd=str(self._folder), env=command_env(self._pace, color=False), approval=True)
        await Agent(session, model, tools=[shell], system=SYSTEM).run(text, turn=record.turn)


async def _run(agent: DemoAgent, command: str) -> AsyncGenerator[str]:
    result = await agent.run(command, approval=True, timeout=COMMAND_TIMEOUT_S)
    if result is None:
        yield "The command was cancelled."
    elif result.timed_out:
        yield f"The command was stopped after {COMMAND_TIMEOUT_S:g} s."
    elif result.exit_status:
        yield f"The command failed with exit status {result.exit_status}."
    else:
        yield "Done." if result.output.strip() else "Done, without output."


# Sample questions: two tools with fixed answers

Questions = list[tuple[str, str]]
"""Tools to call, and the city for each."""


def _find_questions(text: str) -> Questions:
    cities = [city for city in CITIES if re.search(rf"\b{city}\b", text, re.IGNORECASE)]
    tools = [
        tool
        for word, tool in (("time", "get_time"), ("weather", "get_weather"))
        if re.search(rf"\b{word}\b", text, re.IGNORECASE)
    ]
    return [(tool, city) for city in cities for tool in tools]


async def _look_up(agent: DemoAgent, questions: Questions) -> AsyncGenerator[str]:
    """Make all calls at once, then yield their results in sentences."""
    topics = dict.fromkeys(tool.removeprefix("get_") for tool, _ in questions)
    yield f"I'll check the {' and the '.join(topics)}."
    outputs = await asyncio.gather(*(_call_tool(agent, tool, city) for tool, city in questions))
    for (tool, city), output in zip(questions, outputs, strict=True):
        if tool == "get_time":
            yield f"In {city} it is {output['time']}. "
        else:
            yield f"The weather in {city} is {output['celsius']} °C, {output['sky']} (sample data). "


async def _call_tool(agent: DemoAgent, tool: str, city: str) -> dict[str, Any]:
    topic = tool.removeprefix("get_").capitalize()
    async with agent.session.call(tool, {"city": city}, title=f"{topic} in {city}", kind="fetch") as call:
        await agent.pause(1.2 if tool == "get_weather" else 0.7)
        output = {"city": city} | (_get_time(city) if tool == "get_time" else _get_weather(city))
        call.complete(output)
        return output


def _get_weather(city: str) -> dict[str, Any]:
    celsius, sky, _, _ = CITIES[city]
    return {"celsius": celsius, "sky": sky}


def _get_time(city: str) -> dict[str, Any]:
    _, _, zone, utc_hours = CITIES[city]
    try:
        now = datetime.now(ZoneInfo(zone))
    except ZoneInfoNotFoundError:
        now = datetime.now(timezone(timedelta(hours=utc_hours)))
    return {"time": f"{now:%H:%M}", "utc": f"{now:%z}"}
