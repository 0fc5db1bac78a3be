"""Which turns of a replay enter the log: laws over any recorded and any replayed prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from callslip.rules import replayed_turns
from callslip.rules.replayed_turns import ReplayDecision, TurnEvidence, decide_turns

prompts = st.lists(st.sampled_from("abc"), max_size=8)  # Few different ones, as users repeat "continue".


def decide(recorded: Sequence[str], replayed: Iterable[str]) -> ReplayDecision:
    """Compare prompts without any id."""
    return decide_turns([TurnEvidence(prompt) for prompt in replayed], recorded, is_blank=not recorded)


def is_subsequence(part: Sequence[str], whole: Iterable[str]) -> bool:
    rest = iter(whole)
    return all(item in rest for item in part)


def added(decision: ReplayDecision, replayed: Sequence[str]) -> list[str]:
    return [replayed[number] for number in sorted(decision.unrecorded)] if decision.enters else []


@given(prompts, prompts)
def test_turns_that_follow_the_recording_enter(recorded: list[str], more: list[str]) -> None:
    """RPL1: exactly these; the log then has the prompts of the replay, and the same replay adds nothing more."""
    replayed = recorded + more
    decision = decide(recorded, replayed)
    assert decision.enters and recorded + added(decision, replayed) == replayed
    assert not decide(replayed, replayed).unrecorded


@given(prompts, prompts)
def test_added_turns_are_in_the_order_of_the_replay(recorded: list[str], replayed: list[str]) -> None:
    """RPL2: for any replay, the log then has the replayed prompts in their order, or nothing was added."""
    decision = decide(recorded, replayed)
    log = recorded + added(decision, replayed)
    left_out = not decision.enters and bool(decision.unrecorded)
    assert left_out or is_subsequence(replayed, log)
    assert not (left_out and is_subsequence(replayed, recorded))


@given(prompts.filter(bool), prompts, prompts.filter(bool))
def test_a_turn_between_recorded_turns_keeps_all_out(first: list[str], last: list[str], between: list[str]) -> None:
    """RPL2: new prompts between recorded ones, and after them."""
    recorded = [*first, "x", *last]
    replayed = [*first, *("new" for _ in between), "x", *last, "new"]
    decision = decide(recorded, replayed)
    assert (decision.enters, len(decision.unrecorded)) == (False, len(between) + 1)


def test_removed_turns_are_not_called_unrecorded() -> None:
    """RPL2: retention removed the beginning of the log, so earlier turns of the replay may have been recorded."""
    turns = [TurnEvidence(prompt) for prompt in ("a", "b", "c", "d")]
    decision = decide_turns(turns, ["c"], is_pruned=True)
    assert decision == ReplayDecision(frozenset({3}), enters=True, first=2)
    assert decide_turns(turns, ["c"]) == ReplayDecision(frozenset({0, 1, 3}), enters=False)


def test_a_log_without_prompts_proves_nothing_after_retention() -> None:
    """RPL2: only the call that was open is left of the first turn, so the others may have been recorded."""
    call = TurnEvidence("a", -1)
    for turns, recorded in (
        ([TurnEvidence("a"), TurnEvidence("b")], []),
        ([call, TurnEvidence("b")], []),
        ([call, TurnEvidence("b"), TurnEvidence("c")], ["c"]),
        ([TurnEvidence("a"), TurnEvidence("b")], ["c"]),
    ):
        assert not decide_turns(turns, recorded, is_pruned=True).unrecorded, (turns, recorded)
    newest = TurnEvidence("b", None, has_known_message=True, has_newest_message=True)
    decision = decide_turns([call, newest, TurnEvidence("c")], [], is_pruned=True)
    assert decision == ReplayDecision(frozenset({2}), enters=True, first=3)


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3), max_size=5), prompts)
def test_prompts_that_the_agent_joined_are_recorded(groups: list[list[str]], more: list[str]) -> None:
    """RPL1: those without an answer. What follows them enters, also in a log that begins with other prompts."""
    recorded = [prompt for group in groups for prompt in group]
    replayed = ["".join(group) for group in groups]
    decision = decide(recorded, replayed + more)
    assert decision.enters and added(decision, replayed + more) == more
    later = [*replayed, "y", "new"]
    assert added(decide(["x", *recorded, "y"], later), later) == ["new"]


def test_only_whole_recorded_prompts_are_joined() -> None:
    """RPL2: a prompt that begins like the recorded ones is another one, and one prompt is joined only once."""
    assert not decide(["a", "b"], ["abc", "d"]).enters
    assert not decide(["ab", "c"], ["a", "bc", "d"]).enters
    assert decide(["a", "b"], ["a", "b", "ab"]) == ReplayDecision(frozenset({2}), enters=True)
    assert decide(["a", "b"], ["ab", "b"]) == ReplayDecision(frozenset({1}), enters=True)


def test_calls_and_messages_decide_before_prompts() -> None:
    """RPL1: an agent may replay a prompt with other words."""
    known = [TurnEvidence("A", 0), TurnEvidence("B", None, has_known_message=True, has_newest_message=True)]
    assert decide_turns([*known, TurnEvidence("c")], ["a", "b"]) == ReplayDecision(frozenset({2}), enters=True)
    assert decide_turns([TurnEvidence("a", 1), TurnEvidence("a")], ["a", "b"]).enters
    assert not decide_turns([TurnEvidence("a"), TurnEvidence("b", 0)], ["b"]).enters


def test_a_replay_without_prompts_is_not_compared() -> None:
    """RPL2: nothing proves that it is new."""
    assert not decide_turns([TurnEvidence(None)], ["a"]).unrecorded
    assert decide_turns([TurnEvidence(None)], [], is_blank=True).enters


def test_long_lists_that_differ_are_not_compared_in_detail() -> None:
    """The cost is bounded; equal beginnings and ends cost nothing."""
    many = [str(number) for number in range(3000)]
    assert decide(many, [*many, "new"]).enters
    decision = decide(["x", *many], ["y", *many, "new"])
    assert not decision.enters and len(decision.unrecorded) <= len(many) + 2
    assert len(many) ** 2 > replayed_turns.MAX_COMPARISONS
