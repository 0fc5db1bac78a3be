"""The connection to PostgreSQL is lost at a commit: the caller gets the right result, and a retry changes nothing.

Each operation runs once without a fault. Then it runs again for each of its commits and each kind of fault, and its
results and all rows are compared with those of the first run:

- The server has committed, but the answer was lost. The writer finds out, and the caller notices nothing.
- The server never got the commit. The writer repeats the transaction.
- The same two, but the server cannot be reached any more: the caller gets an error, and tries again later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any, NamedTuple

import msgspec
import pytest

from callslip.api import approvals, cancel, tokens
from callslip.api.access import FULL_ACCESS
from callslip.api.ledger import LocalLedger, open_ledger
from callslip.api.posts import Body, Posts
from callslip.errors import CallslipError, ReadOnlyStoreError
from callslip.ledger import liveness
from callslip.ledger.search_index import index_entries
from callslip.ledger.summaries import summarize
from callslip.ledger.write import WriteContext, write_events
from callslip.model import codec, ids
from callslip.model import events as ev
from callslip.model.entries import Message
from callslip.model.events import Draft
from callslip.model.records import (
    ConversationChange,
    ConversationName,
    OwnerRecord,
    PostRecord,
    RuleRecord,
    SessionRecord,
    TokenRecord,
)
from callslip.rules.redaction import make_redactor
from callslip.settings import Settings
from callslip.store.postgres import PostgresStore
from callslip.store.protocol import Checkpoint, Progress, Store, Touched
from callslip.store.search import SearchPlace, SearchProgress
from callslip.store.shared_rows import CHUNK_BYTES, DAY_MS
from callslip.store.unit_of_work import UnitOfWork
from tests.support import engines
from tests.support.lost_answers import LostAnswer, Tables, describe

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]
NOW_MS = 1_790_000_000_000
FAR_MS = NOW_MS + 10 * DAY_MS
CONTEXT = WriteContext(redactor=make_redactor(False, ()))
SETTINGS = Settings(
    write_connections=1,  # The commits of an operation then have one order.
    database_timeout=60.0,
    reaper_interval=3600.0,
    checkpoint_every=10_000,
    inline_limit=1000,
    preview=10,
)
CONVERSATION = ConversationName("a", "shell", "me")
TOKEN = TokenRecord("tok_00000000000a", "hash", "label", "a", ("read",), NOW_MS)

RULE = RuleRecord("rule_00000000000a", "allow", {"tool": "x"}, scope="session", scope_value="a", uses_left=1)

READS = {
    *("session", "sessions", "events", "call", "calls", "alias", "approval", "approvals", "approvals_due"),
    "answered_approvals",
    *("open_calls", "open_states", "calls_due", "calls_of_owners", "turns_of_owners", "texts_due", "owners"),
    *("open_owners", "queued_commands", "commands_before", "pending_commands", "completed_commands"),
    *("failed_commands", "commands_changed", "change_cursor", "sealed", "executors", "executor_seen", "heads"),
    *("conversation", "inputs", "post", "token", "tokens", "checkpoint", "base", "entries", "entries_from"),
    *("entry_ids", "pieces", "blob", "blob_size", "sessions_with_blob", "read_snapshot", "row_counts", "keys"),
    *("aliases", "blob_piece", "used_blob", "check", "find_copy_faults", "clock", "meta", "list_meta"),
    *("summary", "stale_sessions", "open_call_states", "list_sessions", "add_up_usage", "usage_by_ids"),
    *("usage_of_session", "deleted_sessions", "transcripts", "sessions_with_alias", "search", "search_place"),
    *(
        "sessions_to_index",
        "sessions_of_project",
        "different_search_rows",
        "has_search_index",
        "rule",
        "rules",
        "rules_for",
    ),
}
"""The methods of `Store` that only read."""
LOCAL = {"on_commit", "on_commands", "on_sessions", "wait_changes", "time_ms", "close"}
"""The methods of `Store` that change no row."""


ALL_KINDS = [(True, False), (True, True), (False, False), (False, True)]
"""Whether the server has committed, and whether it cannot be reached afterwards."""
DONE_KINDS = ALL_KINDS[:2]

Opener = Callable[[], Awaitable[Any]]


class Operation(NamedTuple):
    """What is done to a store or a ledger. `prepare` writes what must exist before, and returns what `run` gets.

    `logs_repeats`: a repeat changes nothing but the log, which has it as a duplicate.
    """

    run: Callable[[Any, Any], Awaitable[Any]]
    prepare: Callable[[Any], Awaitable[Any]] | None = None
    logs_repeats: bool = False


def message(text: str, key: str = "") -> Draft:
    return Draft(ev.MessageUser(text=text), key=key)


def append(store: Store, session: str, *drafts: Draft) -> Awaitable[list[ev.Event]]:
    return store.transact(
        lambda unit: write_events(unit, session, list(drafts), CONTEXT), Touched((session,), list(drafts))
    )


# The methods of a store that write


async def add_events(store: Store) -> None:
    await append(store, "a", message("1"), message("2"))


async def append_once(store: Store, _: Any) -> Any:
    return await append(store, "a", message("once", "key"))


async def disturb(store: Store) -> None:
    """Let another process write to the session, so that it is locked before it is read."""
    await add_events(store)
    engines.change_rows(store.url, "UPDATE sessions SET rev = rev + 1")


async def append_to_two_sessions(store: Store, _: Any) -> Any:
    def work(unit: UnitOfWork) -> list[ev.Event]:
        return [write_events(unit, name, [message("both", "key")], CONTEXT)[0] for name in ("a", "b")]

    return await store.transact(work, Touched(("a", "b")))


async def open_owned(store: Store) -> None:
    """Let an owner have a call and a turn in two sessions."""
    context = WriteContext(redactor=CONTEXT.redactor, owner="other 1 2 3")

    def work(unit: UnitOfWork) -> None:
        unit.put_owner(OwnerRecord("other 1 2 3", unit.now + 30_000))
        write_events(unit, "a", [Draft(ev.CallProposed(tool_name="x")), Draft(ev.CallStarted(call="new:1"))], context)
        write_events(unit, "b", [Draft(ev.TurnStarted())], context)

    await store.transact(work, Touched(("a", "b")))


async def close_owner(store: Store, _: Any) -> Any:
    return await store.transact(
        lambda unit: liveness.close_owner(unit, "other 1 2 3", "closed", CONTEXT), Touched(owner="other 1 2 3")
    )


async def post_body(store: Store, _: Any) -> Any:
    """Write all that the transaction of a posted body does."""

    def work(unit: UnitOfWork) -> str:
        post = unit.post("a", "key")
        if post is None:
            unit.change_conversation(CONVERSATION, ConversationChange(chunks="delta", input=b"[1]"))
            unit.put_post(post := PostRecord("a", "key", "mark", b"answer"))
            write_events(unit, "a", [message("posted")], CONTEXT)
        return post.answer.decode()

    return await store.transact(work, Touched(("a",)))


async def add_owner(store: Store) -> None:
    await store.transact(lambda unit: unit.put_owner(OwnerRecord("other 1 2 3", unit.now)))


async def add_conversation(store: Store) -> None:
    await post_body(store, None)


async def add_token(store: Store) -> None:
    await store.put_token(TOKEN)


async def add_rule(store: Store) -> None:
    await add_events(store)
    await store.put_rule(RULE)


async def add_ended_rule(store: Store) -> None:
    await store.put_rule(msgspec.structs.replace(RULE, scope="everywhere", expires_at=5))


async def use_rule(store: Store, _: Any) -> Any:
    """Use a rule for one answer in the transaction of an event, as an answer does."""

    def work(unit: UnitOfWork) -> list[ev.Event]:
        rule = unit.rule(RULE.id)
        if rule is None or not rule.is_active(unit.now):
            return []
        unit.use_rule(RULE.id)
        return write_events(unit, "a", [message("answered")], CONTEXT)

    return await store.transact(work, Touched(("a",)))


async def save_checkpoint(store: Store, _: Any) -> Any:
    progress = Progress(
        session="a",
        after=0,
        checkpoint=Checkpoint(2, 1, b"state"),
        entries=[(1, b'{"id":1}')],
        notes=[(1, {"late": [2]})],
        pieces=[(2, "content", 0, "text")],
        dropped=[],
        rebuild=True,
    )
    return await store.save_progress(progress)


async def prune(store: Store, record: Any) -> Any:
    return await store.prune(record, 1, b"base", {})


async def add_unused_blob(store: Store) -> None:
    await store.put_blob(b"x", "text/plain")
    engines.change_rows(store.url, "UPDATE blobs SET created_at = 0")


async def add_session(store: Store) -> Any:
    await add_events(store)
    return await store.session("a")


async def add_usage(store: Store) -> Any:
    """Write what an agent says about its session, and return what is derived of it."""
    await append(store, "a", Draft(ev.SessionInfo(foreign_id="f")), Draft(ev.UsageReported(id="r", input_tokens=3)))
    return await summarize(store, "a")


async def delete_agent_session(store: Store) -> None:
    await add_usage(store)
    await store.delete("a")


async def add_words(store: Store) -> Any:
    """Write a message, and return its row in the search index."""
    record = await add_session(store)
    entry = Message(id=1, at=NOW_MS, role="user", content="1")
    rows = await index_entries(store, record.id, [entry])
    after = SearchPlace(seq=2, version=1, fold=1, body=b"")
    return SearchProgress(session="a", number=record.id, pruned_seq=0, before=None, after=after, rows=rows)


METHODS: dict[str, list[Operation]] = {
    "transact": [
        Operation(append_once),
        Operation(append_once, add_events),
        Operation(append_once, disturb),
        Operation(append_to_two_sessions, add_events),
        Operation(close_owner, open_owned),
        Operation(post_body, add_events),
        Operation(post_body),
        Operation(use_rule, add_rule),
    ],
    "drop_owner": [Operation(lambda store, _: store.drop_owner("other 1 2 3"), add_owner)],
    "put_executor": [Operation(lambda store, _: store.put_executor("queue", NOW_MS))],
    "drop_conversations": [Operation(lambda store, _: store.drop_conversations(FAR_MS), add_conversation)],
    "put_token": [Operation(lambda store, _: store.put_token(TOKEN))],
    "drop_token": [Operation(lambda store, _: store.drop_token(TOKEN.id), add_token)],
    "put_rule": [Operation(lambda store, _: store.put_rule(RULE), add_events)],
    "drop_rule": [Operation(lambda store, _: store.drop_rule(RULE.id), add_rule)],
    "drop_ended_rules": [Operation(lambda store, _: store.drop_ended_rules(FAR_MS), add_ended_rule)],
    "save_progress": [Operation(save_checkpoint, add_events)],
    "put_blob": [
        Operation(lambda store, _: store.put_blob(b"x", "text/plain")),
        Operation(lambda store, _: store.put_blob(b"x" * (CHUNK_BYTES + 1), "text/plain")),
    ],
    "prune": [Operation(prune, add_session)],
    "drop_unused_blobs": [Operation(lambda store, _: store.drop_unused_blobs(), add_unused_blob)],
    "delete": [
        Operation(lambda store, _: store.delete("a"), add_conversation),
        Operation(lambda store, _: store.delete("a"), add_usage),
    ],
    "forget_deletion": [Operation(lambda store, _: store.forget_deletion("f"), delete_agent_session)],
    "put_meta": [Operation(lambda store, _: store.put_meta("name", "value"))],
    "replace_meta": [Operation(lambda store, _: store.replace_meta("name", "", "value"))],
    "add_summaries": [Operation(lambda store, _: store.add_summaries(0), add_events)],
    "save_summaries": [Operation(lambda store, progress: store.save_summaries([progress]), add_usage)],
    "save_search": [Operation(lambda store, progress: store.save_search(progress), add_words)],
}
"""The methods of `Store` that write, with calls of each."""


# Operations of a ledger


async def submit(ledger: LocalLedger, **options: Any) -> Any:
    return await ledger.commands.submit("run", {"n": 1}, session="a", key="key", **options)


async def add_command(ledger: LocalLedger) -> Any:
    return (await submit(ledger)).correlation_id


async def add_claim(ledger: LocalLedger) -> Any:
    await submit(ledger)
    return await ledger.commands.claim(worker="w")


async def add_request(ledger: LocalLedger) -> Any:
    await submit(ledger, approval=True)
    return (await ledger.approvals())[0].id


async def add_log(ledger: LocalLedger) -> None:
    """Write a session with a command and a blob."""
    await submit(ledger)
    await ledger.log.append("a", [message("x" * 5000), message("2")])


async def make_token(ledger: LocalLedger) -> Any:
    return (await tokens.create_token(ledger.log, "hash", verbs=("read",))).id


async def revoke(ledger: LocalLedger, token: Any) -> None:
    await tokens.revoke_token(ledger.log, token)


async def post_messages(ledger: LocalLedger, _: Any) -> Any:
    messages = [{"type": "message.user", "text": "hello"}, {"type": "message.delta", "text": "hi"}]
    body = Body(messages=messages, size=100, digest=codec.digest(b"body"), key="key")
    return await Posts(ledger.log).append(ConversationName("a", "events", "me"), body, FULL_ACCESS)


async def post_half_a_tag(ledger: LocalLedger, _: Any) -> Any:
    """Post a text that ends in the middle of a command, so that a part of it waits for the next body."""
    body = Body(messages=["<shell>ls</shell> and <she"], size=100, digest=codec.digest(b"body"), key="key")
    return await Posts(ledger.log).append(ConversationName("a", "shell", "me"), body, FULL_ACCESS)


OPERATIONS: dict[str, Operation] = {
    "append": Operation(lambda ledger, _: ledger.log.append("a", [message("1", "k1"), message("2", "k2")])),
    "append a large value": Operation(lambda ledger, _: ledger.log.append("a", [message("x" * 5000, "key")])),
    "submit": Operation(lambda ledger, _: submit(ledger)),
    "submit with a secret": Operation(
        lambda ledger, _: ledger.commands.submit("run", {"password": "sk-ant-api03-" + "a1" * 20}, key="key")
    ),
    "submit for approval": Operation(lambda ledger, _: submit(ledger, approval=True)),
    "claim": Operation(lambda ledger, _: ledger.commands.claim(worker="w"), add_command),
    "heartbeat": Operation(
        lambda ledger, claim: ledger.commands.heartbeat(claim.call, claim.fence, lease=90), add_claim
    ),
    "release": Operation(lambda ledger, claim: ledger.commands.release(claim.call, claim.fence), add_claim),
    "complete": Operation(
        lambda ledger, claim: ledger.commands.complete(claim.call, 5, fence=claim.fence), add_claim, True
    ),
    "fail": Operation(
        lambda ledger, claim: ledger.commands.fail(claim.call, "no", fence=claim.fence), add_claim, logs_repeats=True
    ),
    "expire": Operation(lambda ledger, call: ledger.commands.expire(call), add_command, logs_repeats=True),
    "cancel": Operation(lambda ledger, call: cancel.cancel_call(ledger.log, call, by="me"), add_command),
    "approve": Operation(lambda ledger, request: approvals.approve(ledger.log, request, by="me"), add_request),
    "deny": Operation(lambda ledger, request: approvals.deny(ledger.log, request, by="me"), add_request),
    "withdraw": Operation(lambda ledger, request: approvals.withdraw(ledger.log, request, by="me"), add_request),
    "post": Operation(post_messages),
    "post a part": Operation(post_half_a_tag),
    "project": Operation(lambda ledger, _: ledger.log.project("a"), add_log),
    "prune": Operation(lambda ledger, _: ledger.prune(-60), add_log),
    "delete": Operation(lambda ledger, _: ledger.delete("a"), add_log),
    "revoke a token": Operation(revoke, make_token),
}


# The test


@pytest.fixture
def engine() -> str:
    """Run these tests on PostgreSQL only."""
    return engines.POSTGRES


class Clock:
    def time(self) -> float:
        return NOW_MS / 1000


@pytest.fixture(autouse=True)
def same_values(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the clock of the store, and let conversations be counted from the same number."""
    monkeypatch.setattr(ids, "first_version", lambda: 1 << 24)
    with ExitStack() as stack:
        for patch in engines.list_clock_patches(engines.POSTGRES, Clock()):
            stack.enter_context(patch)
        yield


async def attempt(operation: Operation, target: Any, prepared: Any) -> str:
    """Run an operation, and return its result or its error."""
    try:
        return describe(await operation.run(target, prepared))
    except CallslipError as error:
        return describe(error)


class Run(NamedTuple):
    """What two runs of an operation have returned, and the rows after each."""

    results: tuple[str, str]
    rows: tuple[list[str], list[str]]


async def run_twice(tables: Tables, operation: Operation, open_target: Opener, fault: LostAnswer) -> Run:
    """Run an operation with a fault, and again without it, on an empty database."""
    tables.clear()
    async with AsyncExitStack() as stack:
        stack.enter_context(fault.injected())
        target = await open_target()
        stack.push_async_callback(target.close)
        prepared = await operation.prepare(target) if operation.prepare else None
        fault.is_armed = True
        first = await attempt(operation, target, prepared)
        rows = tables.read()
        fault.is_armed = False
        second = await attempt(operation, target, prepared)
        return Run((first, second), (rows, tables.read()))


async def check_faults(db: str, operation: Operation, open_target: Opener, kinds: Sequence[tuple[bool, bool]]) -> None:
    """Compare the runs with each kind of fault, done or unreachable, at each commit with a run without a fault."""
    tables = Tables(db)
    counter = LostAnswer(0)
    expected = await run_twice(tables, operation, open_target, counter)
    assert operation.logs_repeats or expected.rows[0] == expected.rows[1], "the operation can be repeated"
    assert counter.count and not any("StoreError" in result for result in expected.results), expected.results
    for number in range(1, counter.count + 1):
        for is_done, is_unreachable in kinds:
            fault = LostAnswer(number, is_done=is_done, is_unreachable=is_unreachable)
            found = await run_twice(tables, operation, open_target, fault)
            assert fault.has_happened
            case = f"commit {number} of {counter.count}, done: {is_done}, unreachable: {is_unreachable}"
            if is_unreachable:  # The first attempt may have done nothing, so that the second one is the first.
                is_second = is_done and number == counter.count
                # When workers last asked is recorded again only some seconds later.
                rows = [[row for row in rows if not row.startswith("executors ")] for rows in expected.rows]
                found_rows = [row for row in found.rows[1] if not row.startswith("executors ")]
                assert found_rows in rows[is_second:], case
                assert found.results[1] in expected.results[is_second:], case
            else:
                assert found == expected, case


def test_every_method_of_a_store_is_covered() -> None:
    """A new method must be added to those that write, with a call of it, or to those that do not."""
    methods = {name for name, value in vars(Store).items() if callable(value) and not name.startswith("_")}
    assert not READS & LOCAL and not (READS | LOCAL) & METHODS.keys()
    assert methods == READS | LOCAL | METHODS.keys()


async def test_a_store_that_can_only_read_refuses_the_methods_that_write(db: str) -> None:
    """So the list of these methods is right."""
    record = SessionRecord("a")
    store = await PostgresStore.open(f"{db}?default_transaction_read_only=on", SETTINGS)
    try:
        for operations in METHODS.values():
            for operation in operations:
                with pytest.raises(ReadOnlyStoreError):
                    await operation.run(store, record)
    finally:
        await store.close()


@pytest.mark.chaos
@pytest.mark.parametrize("method", METHODS)
async def test_a_method_of_the_store_survives_a_lost_connection(db: str, method: str, scale: int) -> None:
    """Whether the server committed or not, the result is right and a retry changes nothing."""
    kinds = ALL_KINDS if scale > 1 else ALL_KINDS[:3]
    for operation in METHODS[method]:
        await check_faults(db, operation, lambda: PostgresStore.open(db, SETTINGS), kinds)


@pytest.mark.chaos
@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_survives_a_lost_connection(db: str, name: str, scale: int) -> None:
    """The same for the operations of a ledger, which may take several transactions."""
    kinds = ALL_KINDS if scale > 1 else DONE_KINDS
    await check_faults(db, OPERATIONS[name], lambda: open_ledger(db, SETTINGS), kinds)
