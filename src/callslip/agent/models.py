"""Models: endpoints with OpenAI's chat completions API or Anthropic's messages API, and a script.

A model names the format of its stream; the decoder of that format interprets it. The SDKs are imported when a model is
created, and are needed only then (`pip install "callslip[agent]"`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, Protocol

from callslip.agent.tools import Tool
from callslip.errors import InvalidInputError

MAX_TOKENS = 8192


class Model(Protocol):
    """A model. `format` is the format of its stream and of the messages it reads."""

    format: str

    def stream(self, messages: list[Any], *, system: str = "", tools: Sequence[Tool] = ()) -> AsyncGenerator[Any]:
        """Yield the chunks of the answer."""
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


class OpenAI:
    """Chat completions of OpenAI or of a compatible API (`base_url`)."""

    format = "openai"

    def __init__(self, model: str, **options: Any) -> None:
        from openai import AsyncOpenAI

        self.model = model
        self._client: Any = AsyncOpenAI(**options)

    async def stream(self, messages: list[Any], *, system: str = "", tools: Sequence[Tool] = ()) -> AsyncGenerator[Any]:
        messages = [{"role": "system", "content": system}, *messages] if system else messages
        options: dict[str, Any] = {"tools": [_openai_tool(tool) for tool in tools]} if tools else {}
        answer = await self._client.chat.completions.create(model=self.model, messages=messages, stream=True, **options)
        async with answer:
            async for chunk in answer:
                yield chunk

    async def aclose(self) -> None:
        await self._client.close()


class Anthropic:
    """Anthropic's messages API."""

    format = "anthropic"

    def __init__(self, model: str, *, max_tokens: int = MAX_TOKENS, **options: Any) -> None:
        from anthropic import AsyncAnthropic

        self.model = model
        self._max_tokens = max_tokens
        self._client: Any = AsyncAnthropic(**options)

    async def stream(self, messages: list[Any], *, system: str = "", tools: Sequence[Tool] = ()) -> AsyncGenerator[Any]:
        options: dict[str, Any] = {"system": system} if system else {}
        if tools:
            options["tools"] = [_anthropic_tool(tool) for tool in tools]
        answer = await self._client.messages.create(
            model=self.model, max_tokens=self._max_tokens, messages=messages, stream=True, **options
        )
        async with answer:
            async for chunk in answer:
                yield chunk

    async def aclose(self) -> None:
        await self._client.close()


class Scripted:
    """Yields prepared answers in order, for tests and the demo.

    An answer is a list of chunks of the format. `histories` has the messages of every request.
    """

    def __init__(self, answers: Iterable[Iterable[Any]], format: str = "openai") -> None:
        self.format = format
        self.histories: list[list[Any]] = []
        self._answers = iter(answers)

    async def stream(self, messages: list[Any], *, system: str = "", tools: Sequence[Tool] = ()) -> AsyncGenerator[Any]:
        self.histories.append(messages)
        answer = next(self._answers, None)
        if answer is None:
            raise InvalidInputError("model", "the script has no further answer")
        for chunk in answer:
            yield chunk

    async def aclose(self) -> None:
        pass


MODELS: dict[str, Any] = {"openai": OpenAI, "anthropic": Anthropic}


def find_model(name: str, **options: Any) -> Model:
    """Return a model by its provider and name: `openai:gpt-5`, `anthropic:claude-sonnet-4-5`."""
    provider, _, model = name.partition(":")
    if provider not in MODELS or not model:
        choices = " or ".join(f"{provider}:NAME" for provider in MODELS)
        raise InvalidInputError("model", f"must be {choices}, got {name!r}")
    try:
        return MODELS[provider](model, **options)
    except ImportError as error:
        install = 'pip install "callslip[agent]", in a clone ".[agent]"'
        raise InvalidInputError("model", f"{provider} needs its SDK: {install}") from error
    except Exception as error:  # Each SDK raises its own error for a missing key.
        raise InvalidInputError("model", f"{provider}: {error}") from error


def _openai_tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _anthropic_tool(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
