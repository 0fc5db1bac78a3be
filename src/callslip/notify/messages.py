"""The messages to receivers: generic JSON, and Slack. Pure.

Without `include_text` a message has no content of a session: no title, no command, no project, and of names only those
of the session, the agent and the tool.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from callslip.model.notices import Notice, NoticeKind
from callslip.notify.settings import Webhook

EVENTS: dict[NoticeKind, str] = {
    "approval": "approval.pending",
    "question": "question.pending",
    "finished": "agent.finished",
    "idle": "agent.idle",
}
TEST_EVENT = "test"
MAX_NAME_CHARS = 200
MAX_TEXT_CHARS = 1000
VERSION = 1
ASCII = "".join(map(chr, range(ord(" "), ord("~") + 1)))
"""What a header may have as it is. A producer may choose the id of a request, also with other characters."""


class Message(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A message. `id` is that of the notice: a message that is sent twice has the same one.

    `time` is in ms. Fields without a value are left out; `title`, `text` and `project` are there with `include_text`.
    """

    version: int
    id: str
    event: str
    time: int
    session: str = ""
    agent: str = ""
    tool: str = ""
    approval: str = ""
    answer_at: str = ""
    expires_at: int = 0
    url: str = ""
    title: str = ""
    text: str = ""
    project: str = ""


def make_message(notice: Notice, public_url: str, *, include_text: bool) -> Message:
    """Return the message about a notice."""
    has_request = notice.kind in ("approval", "question")
    message = Message(
        version=VERSION,
        id=notice.id,
        event=EVENTS[notice.kind],
        time=notice.at,
        session=_shorten(notice.session),
        agent=_shorten(notice.agent),
        tool=_shorten(notice.tool),
        approval=notice.approval,
        answer_at=_shorten(notice.answer_at),
        expires_at=notice.expires_at,
        url=make_link(public_url, notice.session, notice.entry if has_request else 0),
    )
    if include_text:
        message.title = _shorten(notice.title, MAX_TEXT_CHARS)
        message.text = _shorten(notice.text, MAX_TEXT_CHARS)
        message.project = _shorten(notice.project)
    return message


def example_message(now: int, public_url: str) -> Message:
    """Return the message of `callslip notify test`."""
    return Message(version=VERSION, id=f"test_{now}", event=TEST_EVENT, time=now, url=public_url)


def make_link(public_url: str, session: str, entry: int = 0) -> str:
    """Return the address of a request or a session on the page, "" without the address of the server.

    The page asks an unknown visitor to sign in first. No address answers a request by being opened.
    """
    if not public_url:
        return ""
    return f"{public_url}/s/{quote(session, safe='')}" + (f"#entry-{entry}" if entry else "")


def _shorten(text: str, limit: int = MAX_NAME_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


# Formats


def _encode_json(message: Message) -> bytes:
    return msgspec.json.encode(message)


SENTENCES = {
    "approval.pending": "{agent} asks for approval",
    "question.pending": "{agent} asks a question",
    "agent.finished": "{agent} has finished",
    "agent.idle": "{agent} is idle",
    TEST_EVENT: "This is a test of notifications",
}


def describe(message: Message) -> str:
    """Return a message as one sentence."""
    text = SENTENCES[message.event].format(agent=message.agent or "An agent")
    text += f": {message.tool}" if message.tool else ""
    return text + (f" in {message.session}" if message.session else "")


def _encode_slack(message: Message) -> bytes:
    """Return a message for Slack. Texts of agents are plain text, in which no markup, mention or link has an effect."""
    sentence = describe(message)
    lines = [sentence, message.title, message.text if message.text != message.title else "", message.project]
    lines += [f"Answer it in {message.answer_at}"] if message.answer_at else []
    content = _shorten("\n".join(line for line in lines if line), 3000)
    blocks: list[dict[str, Any]] = [
        {"type": "section", "text": {"type": "plain_text", "text": content, "emoji": False}}
    ]
    if message.url:
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": f"<{_escape(message.url)}|Open>"}})
    return msgspec.json.encode({"text": _escape(sentence), "blocks": blocks, "unfurl_links": False})


def _escape(text: str) -> str:
    """Replace the characters with which Slack marks links and mentions."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


ENCODERS: dict[str, Callable[[Message], bytes]] = {"json": _encode_json, "slack": _encode_slack}


def encode_message(webhook: Webhook, message: Message, now_s: int) -> tuple[bytes, dict[str, str]]:
    """Return the body for a receiver, and its headers."""
    body = ENCODERS[webhook.format](message)
    headers = {"content-type": "application/json"}
    if webhook.format == "json":
        headers["callslip-id"] = quote(message.id, safe=ASCII)
    if webhook.secret:
        headers["callslip-timestamp"] = str(now_s)
        headers["callslip-signature"] = f"v1={sign(webhook.secret, now_s, body)}"
    return body, headers


def sign(secret: str, now_s: int, body: bytes) -> str:
    """Return the HMAC-SHA256 of the time, a dot and the body, in hex."""
    return hmac.new(secret.encode(), f"{now_s}.".encode() + body, hashlib.sha256).hexdigest()
