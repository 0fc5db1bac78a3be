"""`ui-v5`, `ui-v6`, `ui-v7` in: the chunks of streams, whole messages, and what the client posts.

The three differ only in what they call the ids of calls. A word of a newer major is read wherever it comes, since no
major gives another meaning to a word of the one before.

Of a post only the news is taken: the prompt, answers to requests for approval, results that the client brings. The
history that comes with it was told before; if it was not, it is a second witness (S2.11).
"""

from __future__ import annotations

from typing import Any, ClassVar

from callslip.formats.ai_sdk import decode_messages
from callslip.formats.ai_sdk.account import Account
from callslip.formats.ai_sdk.conversation import Conversation, Events
from callslip.formats.ai_sdk.decode_messages import chunks_of, is_message, messages_in, remembered, turn_of
from callslip.formats.ai_sdk.reading import leaves, mark
from callslip.formats.ai_sdk.wire import Chunk, UIMessage
from callslip.formats.base import Unfinished
from callslip.formats.json_fields import as_dict, as_list, identifier
from callslip.model import events as ev
from callslip.model.events import CallEnd, Draft, Event

DONE = "[DONE]"
REGENERATE = "regenerate-message"
POST = {"id", "messages", "message", "trigger", "messageId"}
ANSWERS = (CallEnd, ev.ApprovalAnswer)
DOCUMENT = {"session", "seq", "messages"}


class UiDecoder:
    """One conversation, in whatever form each message of it comes."""

    FORMAT: ClassVar[str]

    def __init__(self, *, chunks: ev.Chunks | None = None, started: int = 0) -> None:
        self._talk = Conversation(self.FORMAT, chunks or "delta")
        self._past: set[str] = set()
        self._unfinished = Unfinished()

    def feed(self, message: Any) -> list[Draft]:
        made = self._drafts(message)
        made = [Draft(self._raw(message))] if made is None else made
        self._unfinished.see(made)
        return made

    def close(self, reason: str) -> list[Draft]:
        """The line ended, and the turn with it."""
        self._talk.end(reason)
        return _plain(self._unfinished.end(reason))

    def _drafts(self, message: Any) -> list[Draft] | None:
        """What a message says; None if it is not understood."""
        said = as_dict(message)
        if message == DONE:
            return _plain(self._stopped())
        if is_message(said):
            return _plain(self._stored(said))
        messages = messages_in(message)
        if messages and ("id" in said or "trigger" in said):
            return self._posted(said, messages)
        if messages:
            return self._listed(message, messages)
        return self._chunk(said)

    def _raw(self, body: Any) -> Event:
        return ev.Raw(format=self.FORMAT, body=body)

    def _chunk(self, chunk: Chunk) -> list[Draft] | None:
        made = self._talk.read(chunk)
        more = made is not None and self._talk.says_more(chunk)
        return None if made is None else _plain([*made, self._raw(chunk)] if more else made)

    def _stopped(self) -> Events:
        """A stream is over that did not say how it finished."""
        return self._talk.read({"type": "finish"}) or [] if self._talk.phase == "telling" else []

    # Whole messages

    def _listed(self, message: Any, messages: list[UIMessage]) -> list[Draft]:
        made = _plain([event for one in messages for event in self._stored(one)])
        rest = leaves(as_dict(message), DOCUMENT) or len(messages) < len(as_list(message))
        return [*made, Draft(self._raw(message))] if rest else made

    def _stored(self, message: UIMessage) -> Events:
        """A message as it is kept. What it tells beyond what was told before is news."""
        identity = identifier(message.get("id"))
        if message["role"] == "user":
            return (
                [] if identity in self._talk.prompts else [*self._talk.prompt(message), *self._whole(message, identity)]
            )
        kept = self._whole(message, identity)
        begun = self._talk.enter(identity)
        return [*begun, *self._parts(message), *kept, *(self._talk.read({"type": "finish"}) or [])]

    def _whole(self, message: UIMessage, identity: str) -> Events:
        """The message itself, where it first comes and says more than is made of it."""
        first = not identity or identity not in self._talk.messages
        said = message["role"] != "user" and decode_messages.says_more(message)
        return [self._raw(message)] if first and (said or leaves(message, decode_messages.MESSAGE)) else []

    def _parts(self, message: UIMessage) -> Events:
        return [event for chunk in chunks_of(message) for event in self._talk.read(chunk) or []]

    # Posts

    def _posted(self, body: dict[str, Any], messages: list[UIMessage]) -> list[Draft]:
        last = messages[-1]
        newest = max((at for at, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        made = [draft for at, one in enumerate(messages[:-1]) for draft in self._recalled(one, at, newest=at == newest)]
        if last["role"] == "user":
            made += self._prompted(last, anew=body.get("trigger") == REGENERATE)
        else:
            made += self._answered(messages)
        rest = {name: value for name, value in body.items() if name not in ("messages", "message")}
        odd = len(messages) < len(as_list(body.get("messages")))
        return made if made and not odd and not leaves(body, POST) else [*made, Draft(self._raw(body if odd else rest))]

    def _recalled(self, message: UIMessage, at: int, *, newest: bool) -> list[Draft]:
        """A message of the history: known, or told by nobody so far. One without id is known by its place."""
        identity, user = identifier(message.get("id")), message["role"] == "user"
        past = self._talk.prompts if user and identity else self._past
        name = identity or f"#{at}:{mark(message)}"
        if name in past:
            return []
        account = None if user else self._streamed(identity, newest=newest)
        if account is not None:
            return _plain(self._news_of(message, account))
        past.add(name)
        return [Draft(event, witness=True) for event in remembered(message, self.FORMAT)]

    def _prompted(self, message: UIMessage, *, anew: bool) -> list[Draft]:
        """The prompt, new or to be answered anew. Whoever reads each post by itself may have seen it: by its id the
        ledger knows."""
        identity = identifier(message.get("id"))
        if identity in self._talk.prompts:
            return _plain(self._talk.begin() if anew else [])
        begun, said = self._talk.prompt(message)
        begun = ev.TurnStarted() if anew else begun
        return [Draft(begun), Draft(said, witness=bool(identity)), *_plain(self._whole(message, identity))]

    def _answered(self, messages: list[UIMessage]) -> list[Draft]:
        """The client sends the agent's message back with its answers in it, for the agent to go on."""
        identity, turn = identifier(messages[-1].get("id")), turn_of(messages)
        account = self._streamed(identity, newest=True)
        if account is None:
            return self._taken_up(messages[-1], identity, turn)
        begun = self._talk.begin(turn) if self._talk.phase == "idle" else []
        made = self._news_of(messages[-1], account)
        self._talk.message, self._talk.phase = account, "held"
        return _plain([*begun, *made])

    def _taken_up(self, message: UIMessage, identity: str, turn: str) -> list[Draft]:
        """The stream that told the message was not seen here: the client is a witness of all but its own answers."""
        account = Account()
        told = self._talk.look_again(account, chunks_of(message))
        news = [event for event in told if isinstance(event, ANSWERS)]
        old = [Draft(event, witness=True) for event in told if not isinstance(event, ANSWERS)]
        begun = self._talk.begin(turn)
        self._talk.message, self._talk.phase = account, "held"
        self._talk.call_it(identity)
        return [*old, *_plain([*begun, *news])]

    def _streamed(self, identity: str, *, newest: bool) -> Account | None:
        """The account of a message that was told here. The newest may have been told without an id."""
        if newest:
            self._talk.adopt(identity)
        return self._talk.messages.get(identity)

    def _news_of(self, message: UIMessage, account: Account) -> Events:
        """What the client's copy of a message adds to what was told of it: how its calls went on."""
        account.read_again()
        told = self._talk.look_again(account, chunks_of(message))
        return [event for event in told if isinstance(event, ev.CallEvent)]


def _plain(events: Events) -> list[Draft]:
    return [Draft(event) for event in events]


class UiV5Decoder(UiDecoder):
    """npm `ai` 5."""

    FORMAT = "ui-v5"


class UiV6Decoder(UiDecoder):
    """npm `ai` 6."""

    FORMAT = "ui-v6"


class UiV7Decoder(UiDecoder):
    """npm `ai` 7."""

    FORMAT = "ui-v7"
