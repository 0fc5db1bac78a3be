"""Models: endpoints with OpenAI's chat completions API or Anthropic's messages API, and a script.

A model names the format of its stream; the decoder of that format interprets it. The SDKs are imported when a model is
created, and are needed only then (`pip install "callslip[agent]"`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
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


class _Endpoint:
    """A model behind the client of an SDK."""

    def __init__(self, model: str, client: Any) -> None:
        self.model = model
        self._client = client

    async def _chunks(self, create: Callable[..., Awaitable[Any]], **request: Any) -> AsyncGenerator[Any]:
        answer = await create(model=self.model, stream=True, **request)
        async with answer:
            async for chunk in answer:
                yield chunk

    async def aclose(self) -> None:
        await self._client.close()


class OpenAI(_Endpoint):
    """Chat completions of OpenAI or of a compatible API (`base_url`)."""

    format = "openai"

    def __init__(self, model: str, **options: Any) -> None:
        from openai import AsyncOpenAI

        super().__init__(model, AsyncOpenAI(**options))

    def stream(self, messages: list[Any], *, system: str = "", tools: Sequence[Tool] = ()) -> AsyncGenerator[Any]:
        instructions = [{"role": "system", "content": system}] if system else []
        request: dict[str, Any] = {"messages": [*instructions, *messages]}
        if tools:
            request["tools"] = [{"type": "function", "function": _describe(tool, "parameters")} for tool in tools]
        return self._chunks(self._client.chat.completions.create, **request)


class Anthropic(_Endpoint):
    """Anthropic's messages API."""

    format = "anthropic"

    def __init__(self, model: str, *, max_tokens: int = MAX_TOKENS, **options: Any) -> None:
        from anthropic import AsyncAnthropic

        super().__init__(model, AsyncAnthropic(**options))
        self._max_tokens = max_tokens

    def stream(self, messages: list[Any], *, system: str = "", tools: Sequence[Tool] = ()) -> AsyncGenerator[Any]:
        request: dict[str, Any] = {"messages": messages, "max_tokens": self._max_tokens}
        if system:
            request["system"] = system
        if tools:
            request["tools"] = [_describe(tool, "input_schema") for tool in tools]
        return self._chunks(self._client.messages.create, **request)


def _describe(tool: Tool, schema_field: str) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, schema_field: tool.parameters}


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
