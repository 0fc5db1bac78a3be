"""Every real client, over a real socket: at every prefix of a scenario it shows what GET gives in the same format.

The encoders have their own tests of the same law, chunk by chunk and on every scenario. Here the server sends the
chunks, so four scenarios are enough; `make chaos` runs all of them.
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
from callslip.model import events as ev
from callslip.model.events import Draft
from callslip.rules.lifecycle import TERMINAL_STATES
from tests.conftest import LONG
from tests.formats.test_ag_ui_out import of_turn, parse_calls
from tests.formats.test_ai_sdk_out import message_of as ui_message
from tests.formats.test_ai_sdk_v4 import message_of as v4_message
from tests.support import scenarios
from tests.support.live_server import ask, served
from tests.support.stream_checks import Client, exact, number, restarts, turns_of

pytestmark = pytest.mark.anyio

S = scenarios.SESSION
BUSY = threading.Lock()
# These four have more kinds of events, verdicts and restarts than any other four.
SCENARIOS = scenarios.NAMES if LONG else ("commands", "cumulative_text", "orphans", "streamed_arguments")
PLACES = 24
"""At how many of its prefixes a long scenario is looked at."""


class Peer(NamedTuple):
    """A client: its harness, what it shows of a turn, and what is the same to it when it watched the turn live."""

    format: str
    harness: tuple[str, ...]
    shown: Callable[[list[Any], str], Any]
    live: Callable[[Any], Any] = lambda shown: shown


PEERS = (
    Peer("ui-v5", ("reduce_ui.mjs", "v5"), ui_message),
    Peer("ui-v6", ("reduce_ui.mjs", "v6"), ui_message),
    Peer("ui-v7", ("reduce_ui.mjs", "v7"), ui_message),
    Peer("vercel-v4", ("reduce_v4.mjs",), v4_message),
    Peer("ag-ui", ("reduce_ag_ui.mjs",), of_turn, parse_calls),
)


@pytest.fixture(scope="module", params=PEERS, ids=lambda peer: peer.format)
def peer(request: pytest.FixtureRequest) -> Peer:
    return request.param


@pytest.fixture(scope="module")
def client(node: str, peer: Peer) -> Iterator[Client]:
    """The real client: one Node process for all tests of a format."""
    created = Client(node, *peer.harness)
    yield created
    created.close()


@pytest.fixture
async def ledger() -> AsyncIterator[LocalLedger]:
    async with await open_ledger("sqlite:///:memory:", scenarios.QUIET) as opened:
        yield opened


async def append(ledger: LocalLedger, draft: Draft) -> None:
    """As `scenarios.record` does."""
    try:
        await ledger.log.append(S, [draft], source="scenario")
    except CallslipError as error:
        pytest.fail(str(error))


async def read_history(url: str, format: str, at: int | None = None) -> list[Any]:
    """The history that the server gives."""
    answer = await ask(f"{url}/v1/sessions/{S}?format={format}" + ("" if at is None else f"&at={at}"))
    assert answer.status == 200, answer.text
    return json.loads(answer.body, parse_int=number)["messages"]


async def read(client: Client, url: str, **query: str) -> Any:
    """What the client shows after reading a stream to its end."""
    requests = "&".join(f"{name}={value}" for name, value in query.items())
    once = {"connection": "close"}  # The next server may stand at the same port.
    job = {"id": 0, "url": f"{url}/v1/sessions/{S}/stream?{requests}", "headers": once}
    answer = await asyncio.to_thread(_alone, client, job)
    assert answer["error"] is None
    return answer["message"]


def _alone(client: Client, job: dict[str, Any]) -> dict[str, Any]:
    """The harness does one thing after the other."""
    with BUSY:
        return client.ask([job])[0]


async def last_turn(ledger: LocalLedger) -> str:
    info = (await ledger.snapshot(S)).info
    return info.turn or info.last_turn


@pytest.mark.chaos
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_stream_replayed_after_any_event_equals_the_history(
    client: Client, ledger: LocalLedger, peer: Peer, name: str
) -> None:
    """C13, S4.7: after every event the replayed turn equals the stored turn."""
    drafts = scenarios.drafts(name)
    every = 1 + len(drafts) // PLACES if len(drafts) > 4 * PLACES else 1
    async with served(ledger) as url:
        for number, draft in enumerate(drafts):
            await append(ledger, draft)
            if number % every and number < len(drafts) - 3:
                continue
            turn = await last_turn(ledger)
            if not turn:
                continue
            shown = await read(client, url, format=peer.format, follow="false")
            expected = peer.shown(await read_history(url, peer.format), turn)
            assert exact(shown) == exact(expected), f"after {number + 1} drafts"


@pytest.mark.chaos
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_stream_followed_from_the_start_equals_the_history(
    client: Client, ledger: LocalLedger, peer: Peer, name: str
) -> None:
    """C13: a client that follows from the first event and reconnects after a restart sees the same."""
    async with served(ledger) as url:
        watching: dict[str, asyncio.Future[Any]] = {}
        for draft in scenarios.drafts(name):
            await append(ledger, draft)
            row = await ledger.log.store.session(S)
            assert row is not None
            if row.turn and row.turn not in watching:
                watching[row.turn] = asyncio.ensure_future(read(client, url, format=peer.format, turn=row.turn))
                await asyncio.sleep(0)
        log = [event async for event in ledger.events(S)]
        for turn in [turn for turn in turns_of(log) if await _is_over(ledger, turn)]:
            expected = peer.shown(await read_history(url, peer.format), turn)
            shown = await watching[turn]
            if restarts(peer.format, log):
                shown = await read(client, url, format=peer.format, turn=turn)
            assert exact(peer.live(shown)) == exact(peer.live(expected)), turn
        for unfinished in watching.values():
            unfinished.cancel()


async def test_a_client_receives_ten_thousand_chunks_live(client: Client, ledger: LocalLedger, peer: Peer) -> None:
    """C12: a live client and one that joins during the answer both get all of it."""
    await ledger.log.append(S, [ev.TurnStarted(), ev.MessageUser(text="Count.")])
    async with served(ledger) as url:
        watching = asyncio.ensure_future(read(client, url, format=peer.format))
        async with asyncio.timeout(30):
            while b"callslip_readers 1\n" not in (await ask(f"{url}/metrics")).body:
                await asyncio.sleep(0.01)
        for start in range(0, 10_000, 100):
            await ledger.log.append(S, [ev.MessageDelta(text=f"{start + n} ", chunks="delta") for n in range(100)])
        await ledger.log.append(S, [ev.TurnEnded()])
        shown = await watching
        expected = peer.shown(await read_history(url, peer.format), "t1")
        assert "9999 " in json.dumps(expected)
        assert exact(shown) == exact(expected) == exact(await read(client, url, format=peer.format))


async def _is_over(ledger: LocalLedger, turn: str) -> bool:
    """Whether a turn has ended and so have the calls that its stream waits for."""
    row = await ledger.log.store.session(S)
    calls = (await ledger.calls(session=S, limit=1000)).items
    waits = any(call.turn == turn and call.scope != "detached" and call.state not in TERMINAL_STATES for call in calls)
    return row is not None and row.turn != turn and not waits
