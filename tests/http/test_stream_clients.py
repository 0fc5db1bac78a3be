"""Real clients over a real socket: after every prefix of a scenario each shows what GET returns in the same format.

The encoders have their own tests of the same rule, chunk by chunk and on every scenario. Here the server sends the
chunks, so five scenarios are enough; `make chaos` runs all of them.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from callslip.api.ledger import LocalLedger, open_ledger
from callslip.errors import CallslipError
from callslip.formats.outcome import is_open
from callslip.formats.turn_scope import Turn
from callslip.model import events as ev
from callslip.model.entries import ToolCall
from callslip.model.events import Draft
from callslip.rules.entry_blocks import current_block
from callslip.rules.fold import SessionFold
from tests.conftest import LONG
from tests.formats.test_ag_ui_out import of_turn, parse_calls
from tests.formats.test_ai_sdk_out import find_message as ui_message
from tests.formats.test_ai_sdk_v4 import find_message as v4_message
from tests.formats.test_ai_sdk_v4 import is_as_streamed
from tests.support import scenarios
from tests.support.live_server import fetch, serving_ledger
from tests.support.stream_checks import (
    Client,
    is_equal,
    list_restarts,
    list_turns,
    mark_booleans,
    parse_js_number,
)

pytestmark = pytest.mark.anyio

S = scenarios.SESSION
CLIENT_LOCK = threading.Lock()
# The first four have more kinds of events, verdicts and restarts than any other four.
SCENARIOS = scenarios.NAMES if LONG else ("commands", "cumulative_text", "orphans", "streamed_arguments", "no_turns")
MAX_PREFIXES = 24
"""How many prefixes of a long scenario are checked."""


class ClientCase(NamedTuple):
    """A client: its harness, how to find its messages of a turn, and how to normalize messages that it read live."""

    format: str
    harness: tuple[str, ...]
    find_turn: Callable[[list[Any], str], Any]
    normalize_live: Callable[[Any], Any] = lambda messages: messages
    agrees: Callable[[Any, Any], bool] = is_equal


CLIENT_CASES = (
    ClientCase("ui-v5", ("reduce_ui.mjs", "v5"), ui_message),
    ClientCase("ui-v6", ("reduce_ui.mjs", "v6"), ui_message),
    ClientCase("ui-v7", ("reduce_ui.mjs", "v7"), ui_message),
    ClientCase("vercel-v4", ("reduce_v4.mjs",), v4_message, agrees=is_as_streamed),
    ClientCase("ag-ui", ("reduce_ag_ui.mjs",), of_turn, parse_calls),
)


@pytest.fixture(scope="module", params=CLIENT_CASES, ids=lambda case: case.format)
def case(request: pytest.FixtureRequest) -> ClientCase:
    return request.param


@pytest.fixture(scope="module")
def client(node: str, case: ClientCase) -> Iterator[Client]:
    """Run the real client in a Node process for all tests of a format."""
    client = Client(node, *case.harness)
    yield client
    client.close()


@pytest.fixture
async def ledger() -> AsyncIterator[LocalLedger]:
    async with await open_ledger("sqlite:///:memory:", scenarios.NO_REAPER) as ledger:
        yield ledger


async def append(ledger: LocalLedger, draft: Draft) -> None:
    """Append a draft, and fail the test if the ledger refuses it."""
    try:
        await ledger.log.append(S, [draft], source="scenario")
    except CallslipError as error:
        pytest.fail(str(error))


async def read_history(url: str, format: str, at: int | None = None) -> list[Any]:
    """Return the history that the server sends."""
    answer = await fetch(f"{url}/v1/sessions/{S}?format={format}" + ("" if at is None else f"&at={at}"))
    assert answer.status == 200, answer.text
    return json.loads(answer.body, parse_int=parse_js_number)["messages"]


async def read_stream(client: Client, url: str, **query: str) -> Any:
    """Return the message of the client after it read a stream to its end."""
    parameters = "&".join(f"{name}={value}" for name, value in query.items())
    headers = {"connection": "close"}  # A reused connection could reach the next server on the same port.
    job = {"id": 0, "url": f"{url}/v1/sessions/{S}/stream?{parameters}", "headers": headers}
    answer = await asyncio.to_thread(_ask_client, client, job)
    assert answer["error"] is None
    return answer["message"]


def _ask_client(client: Client, job: dict[str, Any]) -> dict[str, Any]:
    """Send a job to the client, which handles one job at a time."""
    with CLIENT_LOCK:
        return client.ask([job])[0]


async def current_turn(ledger: LocalLedger) -> str:
    """Return the turn, or the block outside of turns, that a reader gets who names none."""
    name = current_block(await ledger.log.state_at(S))
    return next((turn for turn in list_turns([event async for event in ledger.events(S)]) if turn == name), name)


@pytest.mark.chaos
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_stream_replayed_after_any_event_equals_the_history(
    client: Client, ledger: LocalLedger, case: ClientCase, name: str
) -> None:
    """C13, S4.7, STR1: after every event the replayed turn, or block outside of turns, equals the stored one."""
    drafts = scenarios.load_drafts(name)
    step = 1 + len(drafts) // MAX_PREFIXES if len(drafts) > 4 * MAX_PREFIXES else 1
    async with serving_ledger(ledger) as url:
        for number, draft in enumerate(drafts):
            await append(ledger, draft)
            if number % step and number < len(drafts) - 3:
                continue
            turn = await current_turn(ledger)
            if not turn:
                continue
            message = await read_stream(client, url, format=case.format, follow="false")
            expected = case.find_turn(await read_history(url, case.format), turn)
            assert case.agrees(message, expected), f"after {number + 1} drafts"


@pytest.mark.chaos
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_stream_followed_from_the_start_equals_the_history(
    client: Client, ledger: LocalLedger, case: ClientCase, name: str
) -> None:
    """C13, STR1: a client that follows from the first event and reconnects after a restart sees the same."""
    async with serving_ledger(ledger) as url:
        readers: dict[str, asyncio.Future[Any]] = {}
        state = SessionFold(S)
        for draft in scenarios.load_drafts(name):
            await append(ledger, draft)
            state.fold([event async for event in ledger.events(S, after=state.seq)])
            turn = current_block(state)
            if turn and turn not in readers:
                readers[turn] = asyncio.ensure_future(read_stream(client, url, format=case.format, turn=turn))
                await asyncio.sleep(0)
        log = [event async for event in ledger.events(S)]
        for turn in [turn for turn in list_turns(log) if turn in readers and _has_ended(state, turn)]:
            expected = case.find_turn(await read_history(url, case.format), turn)
            message = await readers[turn]
            if list_restarts(case.format, log):
                message = await read_stream(client, url, format=case.format, turn=turn)
            assert mark_booleans(case.normalize_live(message)) == mark_booleans(case.normalize_live(expected)), turn
        for reader in readers.values():
            reader.cancel()


async def test_a_client_receives_ten_thousand_chunks_live(
    client: Client, ledger: LocalLedger, case: ClientCase
) -> None:
    """C12: a live client and one that joins during the answer both get all of it."""
    await ledger.log.append(S, [ev.TurnStarted(), ev.MessageUser(text="Count.")])
    async with serving_ledger(ledger) as url:
        reader = asyncio.ensure_future(read_stream(client, url, format=case.format))
        async with asyncio.timeout(30):
            while b"callslip_readers 1\n" not in (await fetch(f"{url}/metrics")).body:
                await asyncio.sleep(0.01)
        for start in range(0, 10_000, 100):
            await ledger.log.append(S, [ev.MessageDelta(text=f"{start + n} ", chunks="delta") for n in range(100)])
        await ledger.log.append(S, [ev.TurnEnded()])
        message = await reader
        expected = case.find_turn(await read_history(url, case.format), "t1")
        assert "9999 " in json.dumps(expected)
        assert (
            mark_booleans(message)
            == mark_booleans(expected)
            == mark_booleans(await read_stream(client, url, format=case.format))
        )


def _has_ended(state: SessionFold, turn: str) -> bool:
    """Return whether a turn has ended, and so have the calls that its stream waits for."""
    scope = Turn(state, turn)
    return scope.ended and not any(isinstance(entry, ToolCall) and is_open(entry) for entry in scope.entries())
