"""A ledger with rows in every table, to test that a copy has all of them.

It is the ledger of version 0.1 in `tests/fixtures` (calls in every state, retention, held text, approvals, commands,
tokens, keys), with what later versions store: a posted conversation, its keys, owners, and texts of all kinds.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec

from callslip.api.access import FULL_ACCESS
from callslip.api.ledger import LocalLedger, open_ledger
from callslip.api.posts import Body, Posts
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.events import Draft
from callslip.model.records import ConversationName, HeldText, RuleRecord
from tests.support import engines
from tests.support.paths import TESTS

FIXTURE = TESTS / "fixtures" / "ledger-0.1"
CONVERSATION = ConversationName("posts", "shell", "ann")
FIRST_HALF, SECOND_HALF = "Look: <shell>ls -", "la</shell>"
POST_KEY, EVENT_KEY = "post-key", "event-key"
OTHER_MACHINE = "another-machine 1 2 3"
"""The owner of a call. It does not run here, so only its lease keeps the call alive."""
LARGE_TEXT = "0123456789abcdef" * 2**17 + "\u00e9\U0001f600"
"""A text of more than two pieces of a blob."""
SECRET_ARGUMENT = "sk-ant-" + "Abc123" * 6
RULES = (
    RuleRecord("rule_00000000000a", "deny", {"input": {"command": "rm \U0001f600*"}}, "no", created_at=4102444800000),
    RuleRecord("rule_00000000000b", "allow", {"tool": ["a", "b"]}, scope="session", scope_value="texts", uses_left=1),
    RuleRecord(
        "rule_00000000000c", "ask", {}, "", "project", "/home/dev/\u00e9", 4102444800000, -1, 5, "ann", 6, 2**40
    ),
)
DERIVED_TABLES = ("meta", "lanes", "queues", "sqlite_sequence")
"""The tables that are not copied."""
SQLITE_TABLES = (
    *("sessions", "events", "keys", "calls", "aliases", "approvals", "owners", "entries", "pieces", "checkpoints"),
    *("bases", "blobs", "blob_pieces", "blob_uses", "tokens", "sealed", "executors", "conversations", "inputs"),
    *("posts", "summaries", "usage", "deleted_sessions", "rules"),
)


def create_full_ledger(path: Path) -> str:
    """Create the ledger in a file, and return its URL."""
    shutil.copyfile(FIXTURE / "ledger.db", path)
    url = f"sqlite:///{path}"
    asyncio.run(_add_rows(url))
    # A ledger that is closed ends what its owners have open, so the owner is another machine whose lease has not ended.
    engines.change_rows(url, "INSERT INTO owners VALUES (?, 4102444800000)", OTHER_MACHINE)
    engines.change_rows(url, "UPDATE calls SET owner = ?, lease = 0 WHERE tool = 'remote'", OTHER_MACHINE)
    engines.change_rows(url, "UPDATE sessions SET turn_owner = ? WHERE name = 'owned'", OTHER_MACHINE)
    engines.change_rows(url, "INSERT INTO blobs (hash, size, media, created_at) VALUES ('interrupted', 9, '', 1)")
    engines.change_rows(url, "INSERT INTO blob_pieces VALUES ('interrupted', 0, x'00')")
    return url


async def _add_rows(url: str) -> None:
    async with await open_ledger(url) as ledger:
        await ledger.log.append("texts", text_events())
        await ledger.log.append("texts", [Draft(ev.MessageUser(text="once"), key=EVENT_KEY)])
        await post(ledger, FIRST_HALF, POST_KEY)
        proposed = ev.CallProposed(call="new:1", tool_name="remote", scope="detached")
        await ledger.log.append("owned", [ev.TurnStarted(turn="open"), proposed, ev.CallStarted(call="new:1")])
        await ledger.commands.submit(
            "go", {"token": SECRET_ARGUMENT}, queue="moved", correlation_id="moved-1", timeout=9e5
        )
        await ledger.commands.submit("go", {"n": 2}, queue="moved", correlation_id="moved-2", timeout=9e5)
        await ledger.log.append("deleted", [ev.MessageUser(text="gone"), ev.SessionInfo(foreign_id="of-the-agent")])
        await ledger.delete("deleted")  # Its id was the highest, and is not given again.
        for rule in RULES:
            await ledger.log.store.put_rule(rule)
        await ledger.log.store.put_executor("moved", await ledger.log.store.clock())
        assert await ledger.log.summaries.refresh()


def text_events() -> list[ev.Event]:
    """Return events whose texts an engine may store differently: NUL, emoji, other scripts, much text."""
    return [
        ev.SessionInfo(title="NUL \0 and \U0001f600", labels={"n": 2**53, "list": [1.5, None, "\u00e9"]}),
        ev.MessageUser(text="A\0B \u0645\u0631\u062d\u0628\u0627 \U0001f469\u200d\U0001f680 \\u0000 \ufffd"),
        ev.MessageUser(text=LARGE_TEXT),
        ev.CallProposed(call="new:1", aliases=[ev.Alias("t", "\u00fc-1")], tool_name="t", input={"\u00e9": "\0"}),
        ev.CallCompleted(call="new:1", output={"text": LARGE_TEXT}),
        ev.UsageReported(id="r1", model="m", input_tokens=7, output_tokens=2**31, cost=0.1, currency="USD"),
        ev.UsageReported(id="r2", cached_tokens=3, incomplete=True),
    ]


async def post(ledger: LocalLedger, text: str, key: str = "") -> Any:
    """Post a body to the conversation, and return the result."""
    raw = json.dumps([text]).encode()
    body = Body(messages=[text], size=len(raw), digest=codec.digest(raw), key=key)
    return await Posts(ledger.log).append(CONVERSATION, body, FULL_ACCESS)


def list_rows(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of all tables of a file that a copy must have, without the numbers of changes.

    Held texts are decoded: those of older versions have fewer fields.
    """
    tables: dict[str, list[tuple[Any, ...]]] = {}
    for table in SQLITE_TABLES:
        columns = ", ".join(f'"{name}"' for name in engines.list_columns(url, table) if name not in ("change", "carry"))
        where = {"blobs": "WHERE whole", "blob_pieces": "WHERE hash <> 'interrupted'"}.get(table, "")
        tables[table] = sorted(engines.fetch_rows(url, f"SELECT {columns} FROM {table} {where}"), key=repr)
    held = engines.fetch_rows(url, "SELECT name, carry FROM sessions WHERE carry IS NOT NULL ORDER BY name")
    tables["held texts"] = [(name, msgspec.json.decode(carry, type=dict[str, HeldText])) for name, carry in held]
    return tables
