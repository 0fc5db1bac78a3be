"""What the demo answers when a visitor says something: scripted where it can be, honest where there is no model."""

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
from callslip.demo.agent import Actor
from callslip.demo.tour import Tour
from callslip.demo.workers import Workers

COMMANDS = [
    {"name": "weather", "description": "The weather in Paris or Tokyo, made up", "input": {"hint": "Paris"}},
    {"name": "time", "description": "What time it is in Paris or Tokyo", "input": {"hint": "Tokyo"}},
    {
        "name": "run",
        "description": "Run a command in the scratch folder, once you approve",
        "input": {"hint": "ls -l notes"},
    },
    {"name": "tour", "description": "Play the tour again"},
]
CITIES = {"Paris": (20, "partly cloudy", "Europe/Paris", 1), "Tokyo": (24, "clear", "Asia/Tokyo", 9)}
"""Degrees and sky, which are made up; the time zone, and its hours ahead of UTC where zones are not known."""
SYSTEM = (
    "You help a visitor of a demo. Commands run in a scratch folder with /bin/sh, each after the visitor approved it."
)
NO_MODEL = """\
No model is configured here, so nobody can answer that: the tour was a script. What works without one:

- `What's the weather in Paris?`
- `What time is it in Tokyo and what's the weather there?`
- `$ date`, or any other command

With a model: `callslip demo --model openai:NAME` or `anthropic:NAME`, with its key in `OPENAI_API_KEY` or \
`ANTHROPIC_API_KEY`; in a terminal, `callslip run "..." --model openai:NAME`.
"""


class Replies:
    """Whoever answers in one demo: `answers` of `http.standalone`."""

    def __init__(self, folder: Path, workers: Workers, model: Model | None = None, pace: float = 1.0) -> None:
        self._folder = folder
        self._workers = workers
        self._model = model
        self._pace = pace

    def __call__(self, ledger: LocalLedger, name: str, text: str) -> Any:
        session, said = ledger.session(name), text.strip()
        if found := re.match(r"(?:\$|/run\b)\s*(.+)", said, re.DOTALL):
            return _run(Actor(session, self._folder, self._pace), found[1])
        if re.fullmatch("/tour", said):
            return Tour(session, self._folder, self._workers, self._pace).play()
        asked = _asked(said)
        if asked:
            return _look_up(Actor(session, self._folder, self._pace), asked)
        if self._model is not None:
            return _answer(session, self._model, self._folder, text)
        return Actor(session, self._folder, self._pace).say(NO_MODEL)


async def _run(actor: Actor, command: str) -> AsyncGenerator[str]:
    result = await actor.run(command, approval=True, timeout=60.0)
    if result is None:
        yield "It was not run to its end."
    elif result.timed_out:
        yield "It took longer than a minute and was stopped."
    elif result.exit_status:
        yield f"It failed, with exit status {result.exit_status}."
    else:
        yield "Done." if result.output.strip() else "Done; it printed nothing."


# What seeds a conversation: two tools with known answers

Asked = list[tuple[str, str]]
"""Tools and the cities they are to be asked about."""


def _asked(text: str) -> Asked:
    cities = [city for city in CITIES if re.search(rf"\b{city}\b", text, re.IGNORECASE)]
    tools = [
        tool
        for word, tool in (("time", "get_time"), ("weather", "get_weather"))
        if re.search(rf"\b{word}\b", text, re.I)
    ]
    return [(tool, city) for city in cities for tool in tools]


async def _look_up(actor: Actor, asked: Asked) -> AsyncGenerator[str]:
    """One call for each, all at once; then what they came to, in a sentence."""
    things = {"get_time": "time", "get_weather": "weather"}
    yield f"I'll check the {' and the '.join(dict.fromkeys(things[tool] for tool, _ in asked))}."
    told = await asyncio.gather(*(_tool(actor, tool, city) for tool, city in asked))
    for (tool, city), output in zip(asked, told, strict=True):
        if tool == "get_time":
            yield f"In {city} it is {output['time']}. "
        else:
            yield f"The weather in {city} is {output['celsius']} °C, {output['sky']} (made up: no service is asked). "


async def _tool(actor: Actor, tool: str, city: str) -> dict[str, Any]:
    async with actor.session.call(
        tool, {"city": city}, title=f"{tool.removeprefix('get_')} in {city}", kind="fetch"
    ) as call:
        await actor.pause(1.2 if tool == "get_weather" else 0.7)
        output = {"city": city} | (_time(city) if tool == "get_time" else _weather(city))
        call.complete(output)
        return output


def _weather(city: str) -> dict[str, Any]:
    celsius, sky, _, _ = CITIES[city]
    return {"celsius": celsius, "sky": sky}


def _time(city: str) -> dict[str, Any]:
    _, _, zone, ahead = CITIES[city]
    try:
        there = datetime.now(ZoneInfo(zone))
    except ZoneInfoNotFoundError:
        there = datetime.now(timezone(timedelta(hours=ahead)))
    return {"time": f"{there:%H:%M}", "utc": f"{there:%z}"}


async def _answer(session: Session, model: Model, folder: Path, text: str) -> None:
    """The agent's loop, in the turn that has begun with this text."""
    row = await session.ledger.find_session(session.name)
    shell = shell_tool(cwd=str(folder), approval=True)
    await Agent(session, model, tools=[shell], system=SYSTEM).run(text, turn=row.turn)
