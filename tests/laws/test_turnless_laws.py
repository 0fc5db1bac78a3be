"""When the stream of a block outside of turns ends, and which block a reader gets who names none, for any session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from callslip.formats import registry
from callslip.formats.base import Restart
from callslip.model import events as ev
from callslip.model.entries import Entry, Message, Thought, ToolCall
from callslip.model.events import Event
from callslip.rules.entry_blocks import split_blocks
from callslip.rules.fold import SessionFold
from callslip.rules.lifecycle import TERMINAL_STATES
from tests.support.strategies import scripts, write_script

SHELL = registry.streaming("shell")
CONTINUED = "the turn continued after its end"


def write_log(script: list[Event], has_turns: bool) -> list[Event]:
    drafts = script if has_turns else [e for e in script if not isinstance(e, ev.TurnStarted | ev.TurnEnded)]
    return write_script(drafts).log


def fold_log(log: Sequence[Event]) -> SessionFold:
    state = SessionFold()
    state.fold(log)
    return state


def is_over(state: SessionFold, block: list[Entry]) -> bool:
    """Return whether another block or a turn has begun, and no call of the block is open."""
    calls = [entry for entry in block if isinstance(entry, ToolCall) and entry.scope != "detached"]
    is_followed = bool(state.info.turn) or max(state.entries) > block[-1].id
    return is_followed and all(call.status in TERMINAL_STATES for call in calls)


@settings(max_examples=settings().max_examples // 2)
@given(scripts(), st.booleans())
def test_a_block_has_no_done_while_it_is_open_and_one_after_it(script: list[Event], has_turns: bool) -> None:
    """STR3: exactly when the next block or turn has begun and its calls have ended, for every block of a session."""
    log = write_log(script, has_turns)
    all_blocks = split_blocks(fold_log(log).entries.values())
    encoders = {block[0].id: SHELL.encoder(None, f"msg-{block[0].id}") for block in all_blocks if not block[0].turn}
    chunks: dict[int, list[Any]] = {first: [] for first in encoders}
    state = SessionFold()
    for event in log:
        state.apply(event)
        blocks = {block[0].id: block for block in split_blocks(state.entries.values())}
        for first, encoder in encoders.items():
            body = encoder.feed(event)
            # A turn without entries is not in the history: what follows it belongs to the block before.
            assert not isinstance(body, Restart) or body.reason != CONTINUED or has_turns
            sent = chunks[first] = encoder.opening() if isinstance(body, Restart) else chunks[first] + body
            done = [chunk for chunk in sent if chunk["type"] == "done"]
            assert len(done) == (first in blocks and is_over(state, blocks[first]))
            assert done == sent[-1:] or not done


@settings(max_examples=settings().max_examples // 2)
@given(scripts(), st.booleans())
def test_a_reader_who_names_no_turn_gets_the_current_one(script: list[Event], has_turns: bool) -> None:
    """STR4: the open turn, or else the last block with a message, thought or call; live as after a reload."""
    state = SessionFold()
    for event in write_log(script, has_turns):
        state.apply(event)
        talk = [block for block in split_blocks(state.entries.values()) if any(map(is_talk, block))]
        name = state.info.turn or state.info.last_turn
        if talk and not talk[-1][0].turn and not state.info.turn:
            name = f"msg-{talk[-1][0].id}"
        expected = SHELL.encoder(state, name).opening() if name else []
        assert SHELL.encoder(state, "").opening() == expected


def is_talk(entry: Entry) -> bool:
    return isinstance(entry, Message | Thought | ToolCall)
