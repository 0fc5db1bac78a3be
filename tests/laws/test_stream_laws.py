"""Test for all streams of a turn that the client shows after any event what the history has by then.

Each format is read by its real client, or by a reader in its test module if there is no library.
`tests/http/test_stream_clients.py` tests the same over a socket.
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


class FormatCheck(NamedTuple):
    """Checks a log in one format with a client, resuming streams after the events with these numbers.

    `harness` starts the client; without one, `check_log` has its own reader.
    """

    check_log: Callable[[Client, Sequence[Event], Iterable[int]], None]
    harness: tuple[str, ...] = ()


def _ai_sdk_check(major: str) -> FormatCheck:
    def check_log(client: Client, log: Sequence[Event], resume_after: Iterable[int]) -> None:
        ai_sdk.check_log(Law(client, f"ui-{major}", ai_sdk.find_message), log, resume_after)

    return FormatCheck(check_log, ("reduce_ui.mjs", major))


def _check_ai_sdk_v4(client: Client, log: Sequence[Event], resume_after: Iterable[int]) -> None:
    law = Law(client, "vercel-v4", ai_sdk_v4.find_message, ai_sdk_v4.is_as_streamed)
    ai_sdk_v4.check_histories(client, log, law.histories(log))
    law.check_log(log, resume_after)


FORMAT_CHECKS = {
    **{f"ui-{major}": _ai_sdk_check(major) for major in ai_sdk.MAJORS},
    "vercel-v4": FormatCheck(_check_ai_sdk_v4, ("reduce_v4.mjs",)),
    "ag-ui": FormatCheck(ag_ui.check_log, ("reduce_ag_ui.mjs",)),
    "shell": FormatCheck(lambda _, log, resume_after: shell.new_law().check_log(log, resume_after)),
    "act-observe": FormatCheck(lambda _, log, resume_after: act_observe.law_of(log).check_log(log, resume_after)),
}
LogCheck = Callable[[Sequence[Event], Iterable[int]], None]


@pytest.fixture(scope="module", params=list(FORMAT_CHECKS))
def check_log(request: pytest.FixtureRequest) -> Iterator[LogCheck]:
    """Yield the check of a format, with one Node process for all tests of the format."""
    format_check = FORMAT_CHECKS[request.param]
    client = Client(request.getfixturevalue("node"), *format_check.harness) if format_check.harness else None
    yield lambda log, resume_after: format_check.check_log(client, log, resume_after)
    if client:
        client.close()


def test_every_stream_has_the_law() -> None:
    """A new format with a stream needs a client here."""
    assert set(FORMAT_CHECKS) == set(registry.streamable())


@pytest.mark.chaos
@pytest.mark.parametrize("name", scenarios.NAMES)
def test_stream_and_history_agree_after_every_event(check_log: LogCheck, name: str) -> None:
    """C13, S0.4, S0.8, S1.1, S1.6, S4.7: live, replayed and resumed streams show what the history has."""
    log = scenarios.load_events(name)
    check_log(log, stream_checks.resume_points(log))


@pytest.mark.parametrize("name", stream_checks.CAPTURE_NAMES)
def test_stream_and_history_agree_for_captures(check_log: LogCheck, name: str) -> None:
    """S4.7: the same for the imported captures of real agents."""
    for log in stream_checks.load_capture(name):
        check_log(log, stream_checks.resume_points(log))


CLOCKS = st.none() | st.lists(st.sampled_from([0, 0, 1, 5]), min_size=1, max_size=9)


@settings(max_examples=settings().max_examples // (1 if LONG else 2))  # It is the same check for all formats.
@given(scripts(), st.sampled_from(["in a turn", "with some turns", "without turns"]), st.integers(0, 40), CLOCKS)
def test_stream_and_history_agree_for_any_log(
    check_log: LogCheck, script: list[Event], turns: str, after: int, clock: list[int] | None
) -> None:
    """STR1: for any events, in any order, with any clock, in turns and outside."""
    drafts = [*([ev.TurnStarted()] if turns == "in a turn" else []), *script]
    if turns == "without turns":
        drafts = [draft for draft in drafts if not isinstance(draft, ev.TurnStarted | ev.TurnEnded)]
    if clock:
        drafts = [structs.replace(draft, at=1000 + clock[n % len(clock)]) for n, draft in enumerate(drafts)]
    log = write_script(drafts).log
    check_log(log, [after] if after < len(log) else [])
