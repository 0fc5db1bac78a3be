"""Read the content of a message: a text, or a list of parts of which some are texts."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from callslip.formats.json_fields import as_dict, as_list, as_str
from callslip.model import events as ev
from callslip.model.events import Event


def is_plain(content: Any) -> bool:
    """Return whether content is only text."""
    if isinstance(content, list):
        parts = map(as_dict, as_list(content))
        return all(part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts)
    return content is None or isinstance(content, str)


def join_texts(content: Any) -> str:
    """Return the text of content, its parts as lines."""
    texts = [as_str(as_dict(part).get("text")) for part in as_list(content) if as_dict(part).get("type") == "text"]
    return as_str(content) or "\n".join(texts)


def user_message(content: Any) -> Event:
    """Return the event of a user's message, with its parts if it has more than text."""
    return ev.MessageUser(text=join_texts(content), content=UNSET if is_plain(content) else content)


def plain_output(content: Any) -> Any:
    """Return the output of a tool: its text, or its parts if they are not all text."""
    return join_texts(content) if is_plain(content) else content
