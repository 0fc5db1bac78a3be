"""Who answers: any endpoint that speaks OpenAI's chat completions, Anthropic's messages, or a script.

A model says which format its stream is in, and gives the stream; what it means is the format's decoder's business.
The SDKs are imported when a model is first asked, and are needed only then (`pip install "callslip[agent]"`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Protocol

from callslip.agent.tools import Tool
from callslip.errors import InvalidInputError

MAX_TOKENS = 8192


class Model(Protocol):
    """`format` is that of the stream and of the history it takes."""

    format: str

    def stream(self, messages: list[Any], *, system: str = "", tools: Sequence[Tool] = ()) -> AsyncGenerator[Any]:
        """The answer, chunk by chunk."""
        ...

    async def aclose(self) -> None:
        """Let go of its connections."""
        ...


class OpenAI:
    """Chat completions, of OpenAI or of anything that speaks like it (`base_url`)."""

    format = "openai"

    def __init__(self, model: str, **options: Any) -> None:
        from openai import AsyncOpenAI

        self.model = model
        self._client: Any = AsyncOpenAI(**options)

    async def stream(self, messages: list[Any], *, system: str = "", tools: Sequence[Tool] = ()) -> AsyncGenerator[Any]:
        said = [{"role": "system", "content": system}, *messages] if system else messages
        offered: dict[str, Any] = {"tools": [_openai(tool) for tool in tools]} if tools else {}
        answer = await self._client.chat.completions.create(model=self.model, messages=said, stream=True, **offered)
        async with answer:
            async for chunk in answer:
                yield chunk

    async def aclose(self) -> None:
        await self._client.close()


class Anthropic:
    """Anthropic's messages."""

    format = "anthropic"

    def __init__(self, model: str, *, max_tokens: int = MAX_TOKENS, **options: Any) -> None:
        from anthropic import AsyncAnthropic

        self.model = model
        self._most = max_tokens
        self._client: Any = AsyncAnthropic(**options)

    async def stream(self, messages: list[Any], *, system: str = "", tools: Sequence[Tool] = ()) -> AsyncGenerator[Any]:
        more: dict[str, Any] = {"system": system} if system else {}
        if tools:
            more["tools"] = [_anthropic(tool) for tool in tools]
        answer = await self._client.messages.create(
            model=self.model, max_tokens=self._most, messages=messages, stream=True, **more
        )
        async with answer:
            async for chunk in answer:
                yield chunk

    async def aclose(self) -> None:
        await self._client.close()


class Scripted:
    """Gives the answers it was given, one after the other, whatever it is asked. For tests and the demo.

    An answer is a list of chunks of the format. `asked` keeps every history that it was shown.
    """

    def __init__(self, answers: Iterable[Iterable[Any]], format: str = "openai") -> None:
        self.format = format
        self.asked: list[list[Any]] = []
        self._answers = iter(answers)

    async def stream(self, messages: list[Any], *, system: str = "", tools: Sequence[Tool] = ()) -> AsyncGenerator[Any]:
        self.asked.append(messages)
        answer = next(self._answers, None)
        if answer is None:
            raise InvalidInputError("model", "the script has no further answer")
        for chunk in answer:
            yield chunk

    async def aclose(self) -> None:
        pass


MODELS: dict[str, Any] = {"openai": OpenAI, "anthropic": Anthropic}


def find_model(name: str, **options: Any) -> Model:
    """A model as people write it: `openai:gpt-5`, `anthropic:claude-sonnet-4-5`."""
    maker, _, model = name.partition(":")
    if maker not in MODELS or not model:
        known = ", ".join(f"{maker}:NAME" for maker in MODELS)
        raise InvalidInputError("model", f"{name!r} is none of {known}")
    try:
        return MODELS[maker](model, **options)
    except ImportError as error:
        install = 'pip install "callslip[agent]", in a clone ".[agent]"'
        raise InvalidInputError("model", f"{maker} needs its SDK: {install}") from error
    except Exception as error:  # Each SDK has its own way to say that there is no key.
        raise InvalidInputError("model", f"{maker}: {error}") from error


def _openai(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _anthropic(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
