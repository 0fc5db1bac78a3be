"""Credentials with their rights, sessions full of secrets, and requests that are checked for leaks.

The rights in `CREDENTIALS` are written by hand: they are what a test expects, not what the code under test computes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

import callslip
from callslip import http
from callslip.api.ledger import LocalLedger
from callslip.api.rules import NewRule, save_rule
from callslip.client.token_file import hash_token
from callslip.model import events as ev
from callslip.model.records import SessionRecord, TokenRecord
from callslip.settings import Limits, Settings
from tests.support.asgi_client import make_scope

ALL_VERBS = frozenset(("read", "write", "approve", "execute"))
NO_VERBS = frozenset[str]()
ALPHA, ALPHA_2, BETA = SESSIONS = ("alpha-s", "alpha-t", "beta-s")
"""Two sessions of tenant A, and one of tenant B."""
OWNERS = {ALPHA: "ann-7c1", ALPHA_2: "ann-7c1", BETA: "bob-9e2"}
MAIN_TOKEN = "the-main-token-of-this-server"
SETTINGS = Settings(
    synchronous="NORMAL", reaper_interval=3600, checkpoint_every=10**6, inline_limit=1000, preview=40, queue_limit=10**6
)
LIMITS = Limits(heartbeat=3600)
TIMEOUT_S = 30.0


class Credential(msgspec.Struct, frozen=True):
    """A caller: the server that it uses, its headers, its verbs in each session, and whether it may set labels.

    One that is not `known` gets 401 everywhere. Only some may use what is about `everything`, such as the metrics.
    """

    name: str
    headers: dict[str, str]
    verbs: dict[str, frozenset[str]]
    is_known: bool = True
    is_host_user: bool = False
    can_label: bool = False
    sees_everything: bool = False

    def may(self, session: str, verb: str) -> bool:
        return verb in self.verbs[session]

    def may_anywhere(self, verb: str) -> bool:
        return any(verb in verbs for verbs in self.verbs.values())


def _token(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-of-a-caller"}


def _in_all(verbs: frozenset[str]) -> dict[str, frozenset[str]]:
    return dict.fromkeys(SESSIONS, verbs)


def _in_alpha(verbs: frozenset[str]) -> dict[str, frozenset[str]]:
    return {**_in_all(NO_VERBS), ALPHA: verbs}


READ, WRITE, APPROVE, EXECUTE = (frozenset((verb,)) for verb in ("read", "write", "approve", "execute"))

CREDENTIALS = (
    Credential(
        "main",
        {"authorization": f"Bearer {MAIN_TOKEN}"},
        _in_all(ALL_VERBS),
        can_label=True,
        sees_everything=True,
    ),
    Credential("all-read", _token("all-read"), _in_all(READ), sees_everything=True),
    Credential("all-write", _token("all-write"), _in_all(WRITE)),
    Credential("all-approve", _token("all-approve"), _in_all(APPROVE)),
    Credential("all-execute", _token("all-execute"), _in_all(EXECUTE)),
    Credential("all-verbs", _token("all-verbs"), _in_all(ALL_VERBS), sees_everything=True),
    Credential("one-read", _token("one-read"), _in_alpha(READ)),
    Credential("one-write", _token("one-write"), _in_alpha(WRITE)),
    Credential("one-approve", _token("one-approve"), _in_alpha(APPROVE)),
    Credential("one-execute", _token("one-execute"), _in_alpha(EXECUTE)),
    Credential("one-verbs", _token("one-verbs"), _in_alpha(ALL_VERBS)),
    Credential("tenant-a", {"x-user": OWNERS[ALPHA]}, {**_in_all(ALL_VERBS), BETA: NO_VERBS}, is_host_user=True),
    Credential("tenant-b", {"x-user": OWNERS[BETA]}, {**_in_all(NO_VERBS), BETA: ALL_VERBS}, is_host_user=True),
    Credential("no-tenant", {}, _in_all(NO_VERBS), is_known=False, is_host_user=True),
    Credential("no-token", {}, _in_all(NO_VERBS), is_known=False),
    Credential("revoked", _token("revoked"), _in_all(NO_VERBS), is_known=False),
    Credential("expired", _token("expired"), _in_all(NO_VERBS), is_known=False),
)
TOKENS: dict[str, tuple[str, frozenset[str]]] = {
    **{f"all-{verb}": ("", frozenset((verb,))) for verb in ALL_VERBS},
    **{f"one-{verb}": (ALPHA, frozenset((verb,))) for verb in ALL_VERBS},
    "all-verbs": ("", ALL_VERBS),
    "one-verbs": (ALPHA, ALL_VERBS),
    "revoked": ("", ALL_VERBS),
    "expired": ("", ALL_VERBS),
}


async def add_tokens(ledger: LocalLedger) -> None:
    """Store the tokens of the credentials, one of them expired, and revoke one."""
    now = await ledger.log.store.clock()
    for name, (session, verbs) in TOKENS.items():
        token_hash = hash_token(f"{name}-of-a-caller")
        expires_at = now - 1 if name == "expired" else 0
        # All have the same label: a name identifies no caller.
        record = TokenRecord(f"tok_{name}", token_hash, "agent", session, tuple(verbs), now, expires_at)
        await ledger.log.store.put_token(record)
    assert await ledger.log.store.drop_token("tok_revoked")


async def authorize(request: HTTPConnection, session: SessionRecord | None, verb: str) -> str | None:
    """Give users access to their sessions, to those with the label of their name, and to new ones."""
    user = request.headers.get("x-user", "")
    if not user:
        raise HTTPException(401, "log in first")
    if session is None or session.owner == user or not (session.owner or session.labels):
        return user
    return user if isinstance(session.labels, dict) and session.labels.get("team") == user else None


async def ignore_prompt(ledger: LocalLedger, session: str, text: str) -> None:
    """Accept a prompt without an answer."""


class Apps:
    """The server with tokens and the app of a host, over one ledger."""

    def __init__(self, ledger: LocalLedger) -> None:
        self._token_app = http.standalone(ledger, MAIN_TOKEN, limits=LIMITS, answers=ignore_prompt)
        self._host_app = callslip.asgi(ledger, authorize=authorize, limits=LIMITS, answers=ignore_prompt)

    def of(self, credential: Credential) -> Any:
        return self._host_app if credential.is_host_user else self._token_app


# Sessions


class Secrets(msgspec.Struct):
    """A session, the ids in it, and texts that only some callers may receive."""

    session: str
    call: str = ""
    alias: str = ""
    approval: str = ""
    approval_2: str = ""
    hash: str = ""
    command: str = ""
    command_2: str = ""
    command_3: str = ""
    turn: str = ""
    rule: str = ""

    @property
    def content(self) -> str:
        """A text in everything that needs the right to read."""
        return f"content-5ecret-{self.session}"

    @property
    def command_content(self) -> str:
        """A text in commands, which workers receive as well."""
        return f"command-5ecret-{self.session}"

    def ids(self) -> dict[str, str]:
        return msgspec.structs.asdict(self)

    def hidden_from(self, credential: Credential) -> list[str]:
        """Return the texts that this caller must not receive."""
        verbs = credential.verbs[self.session]
        hidden: list[str] = []
        if "read" not in verbs:
            hidden.append(self.content)
            if not verbs & {"execute"}:
                hidden.append(self.command_content)
        if not verbs:
            hidden += [value for value in self.ids().values() if value]
        return hidden


async def add_session(ledger: LocalLedger, session: str, owner: str) -> Secrets:
    """Create a session whose every text has a secret: texts, calls, approvals, commands and a large output."""
    secrets = Secrets(session, alias=f"alias_{session}", turn=f"turn-{session}")
    content = secrets.content
    started = await ledger.log.append(
        session,
        [
            ev.SessionInfo(owner=owner, labels={"team": owner, "of": content}, title=content, usage={"n": content}),
            ev.TurnStarted(turn=secrets.turn),
            ev.MessageUser(text=content, message_id=content),
            ev.MessageDelta(text=content, chunks="delta"),
            ev.ThoughtDelta(text=content, chunks="delta"),
            ev.PlanUpdated(entries=[{"content": content}]),
            ev.SessionCommands(commands=[{"name": content}]),
            ev.SessionMode(mode=content),
            ev.CallStarted(
                call="new:1",
                tool_name=content,
                title=content,
                input={"x": content},
                aliases=(ev.Alias("openai", secrets.alias),),
            ),
            ev.CallStarted(call="new:2", tool_name=content),
            ev.CallCompleted(call="new:2", output=f"{content} " * 100),
        ],
    )
    requested = await ledger.log.append(
        session,
        [
            request
            for name in ("new:3", "new:4")
            for request in (
                ev.CallProposed(call=name, tool_name=content, title=content, input={"x": content}, scope="detached"),
                ev.ApprovalRequested(call=name, description=content, options=[{"optionId": content}]),
            )
        ],
    )
    new_rule = NewRule(action="deny", filters={"tool": "never"}, scope_value=session)
    secrets.rule = (await save_rule(ledger.log, new_rule)).id
    fields: dict[str, Any] = {"client": "default", "timeout": 10**7, "scope": "detached", "idempotent": True}
    text = secrets.command_content
    commands = await ledger.log.append(
        session,
        [
            command
            for name in ("new:5", "new:6", "new:7")
            for command in (
                ev.CallProposed(call=name, tool_name=text, input={"x": text}, **fields),
                ev.CallStarted(call=name, attempt=1),
            )
        ],
    )
    await ledger.log.append(session, [ev.CallProposed(tool_name=text, input={"x": text}, **fields)])
    await ledger.log.append(session, [ev.TurnEnded()])
    calls = [event for event in [*started, *requested, *commands] if isinstance(event, ev.CallEvent)]
    secrets.call = calls[0].call
    (secrets.hash,) = [blob.hash for event in started if (blob := ev.blob_of(event))]
    secrets.approval, secrets.approval_2 = [
        event.approval for event in requested if isinstance(event, ev.ApprovalRequested)
    ]
    secrets.command, secrets.command_2, secrets.command_3 = [
        event.call for event in commands if isinstance(event, ev.CallStarted)
    ]
    return secrets


# Requests


class Reply(msgspec.Struct):
    """A response: status, headers and body, or as much of a stream as was awaited."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = []
    body: bytes = b""

    @property
    def content(self) -> bytes:
        return b"\n".join([name + b": " + value for name, value in self.headers]) + b"\n\n" + self.body


async def request(
    app: Any,
    method: str,
    path: str,
    headers: Mapping[str, str],
    value: Any = None,
    *,
    until: Callable[[bytes], bool] | None = None,
) -> Reply:
    """Send a request. The client disconnects as soon as `until` accepts the body; without it, after the response."""
    body = b"" if value is None else json.dumps(value).encode()
    all_headers = {**headers, **({"content-type": "application/json"} if body else {})}
    messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]
    reply, is_read = Reply(), asyncio.Event()

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await is_read.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            reply.status, reply.headers = message["status"], list(message.get("headers", []))
        else:
            reply.body += message.get("body", b"")
            if until is not None and until(reply.body):
                is_read.set()

    async with asyncio.timeout(TIMEOUT_S):
        await app(make_scope(path, all_headers, method), receive, send)
    return reply


def find_leaks(credential: Credential, sessions: Mapping[str, Secrets], reply: Reply, sent: str = "") -> list[str]:
    """Return the texts in a response that the caller must not receive and did not send."""
    hidden = [text for secrets in sessions.values() for text in secrets.hidden_from(credential)]
    return [text for text in hidden if text.encode() in reply.content and text not in sent]


# Changes

_TABLES = ("sessions", "events", "keys", "calls", "aliases", "approvals", "blobs", "blob_uses", "sealed", "tokens")


def digest(ledger: LocalLedger) -> str:
    """Return a digest of the database without what follows from the log."""
    read = ledger.log.store._read  # type: ignore[attr-defined]
    rows = [read.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in _TABLES]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


async def describe_session(ledger: LocalLedger, session: str) -> tuple[Any, ...]:
    """Return the record of a session, how many rows it has, and the states of its approvals."""
    store = ledger.log.store
    approvals = [(row.id, row.state, row.by) for row in await store.approvals(session=session, state="", limit=1000)]
    return await store.session(session), await store.row_counts(session), approvals
