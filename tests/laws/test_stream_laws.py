"""The law of all streams that cover a turn: what a client shows after any event is what the history has by then.

Each format has its real client, or a reader of its own where no library exists. `tests/http/test_stream_clients.py`
runs the same law over a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from callslip.formats import registry
from callslip.model import events as ev
from callslip.model.events import Event
from tests.conftest import LONG
from tests.formats import test_act_observe_out as act_observe
from tests.formats import test_ag_ui_out as ag_ui
from tests.formats import test_ai_sdk_out as ai_sdk
from tests.formats import test_ai_sdk_v4 as ai_sdk_v4
from tests.formats import test_shell_out as shell
from tests.support import scenarios, stream_checks
from tests.support.strategies import scripts, write_script
from tests.support.stream_checks import Client, Law


class Peer(NamedTuple):
    """How a format is checked: the law for a client, a log and the events after which streams resume, and its client.

    Without a harness the reader is part of the law.
    """

    prove: Callable[[Client, Sequence[Event], Iterable[int]], None]
    harness: tuple[str, ...] = ()


def _prove_ai_sdk(major: str) -> Peer:
    def prove(client: Client, log: Sequence[Event], resumed: Iterable[int]) -> None:
        ai_sdk.prove(Law(client, f"ui-{major}", ai_sdk.message_of), log, resumed)

    return Peer(prove, ("reduce_ui.mjs", major))


def _prove_ai_sdk_v4(client: Client, log: Sequence[Event], resumed: Iterable[int]) -> None:
    law = Law(client, "vercel-v4", ai_sdk_v4.message_of)
    ai_sdk_v4.check_histories(client, log, law.histories(log))
    law.prove(log, resumed)


PEERS = {
    **{f"ui-{major}": _prove_ai_sdk(major) for major in ai_sdk.MAJORS},
    "vercel-v4": Peer(_prove_ai_sdk_v4, ("reduce_v4.mjs",)),
    "ag-ui": Peer(ag_ui.prove, ("reduce_ag_ui.mjs",)),
    "shell": Peer(lambda _, log, resumed: shell.new_law().prove(log, resumed)),
    "act-observe": Peer(lambda _, log, resumed: act_observe.law_of(log).prove(log, resumed)),
}
Prove = Callable[[Sequence[Event], Iterable[int]], None]


@pytest.fixture(scope="module", params=list(PEERS))
def prove(request: pytest.FixtureRequest) -> Iterator[Prove]:
    """The law of a format, with one Node process for all tests of it."""
    peer = PEERS[request.param]
    client = Client(request.getfixturevalue("node"), *peer.harness) if peer.harness else None
    yield lambda log, resumed: peer.prove(client, log, resumed)
    if client:
        client.close()


def test_every_stream_has_the_law() -> None:
    """A new format with a stream needs a client here."""
    assert set(PEERS) == set(registry.streamable())


@pytest.mark.chaos
@pytest.mark.parametrize("name", scenarios.NAMES)
def test_stream_and_history_agree_after_every_event(prove: Prove, name: str) -> None:
    """C13, S0.4, S0.8, S1.1, S1.6, S4.7: live, replayed and resumed streams show what the history has."""
    log = scenarios.load_events(name)
    prove(log, stream_checks.places(log))


@pytest.mark.parametrize("name", stream_checks.CAPTURES)
def test_stream_and_history_agree_for_captures(prove: Prove, name: str) -> None:
    """S4.7: the same for the recorded traffic of real agents, as it is imported."""
    for log in stream_checks.captured(name):
        prove(log, stream_checks.places(log))


CLOCKS = st.none() | st.lists(st.sampled_from([0, 0, 1, 5]), min_size=1, max_size=9)


@settings(max_examples=settings().max_examples // (1 if LONG else 2))  # The law is the same for all formats.
@given(scripts(), st.booleans(), st.integers(0, 40), CLOCKS)
def test_stream_and_history_agree_for_any_log(
    prove: Prove, script: list[Event], in_turn: bool, after: int, clock: list[int] | None
) -> None:
    """The client agrees with the history for any events, in any order, with any clock, in turns and outside."""
    drafts = [*([ev.TurnStarted()] if in_turn else []), *script]
    if clock:
        drafts = [structs.replace(draft, at=1000 + clock[n % len(clock)]) for n, draft in enumerate(drafts)]
    log = write_script(drafts).log
    prove(log, [after] if after < len(log) else [])
