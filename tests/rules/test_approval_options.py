"""Which option of a permission request allows a call, and which one rejects it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.rules.approval_options import KINDS, choose_option, option_allows, option_ids

OPTIONS = [
    {"optionId": "R", "kind": "reject_always"},
    {"optionId": "A", "kind": "allow_always"},
    {"optionId": "a", "kind": "allow_once"},
    {"optionId": "second", "kind": "allow_once"},
    {"optionId": "odd", "kind": "allow_forever"},
    {"optionId": "bare"},
]
MALFORMED: list[Any] = [None, 1, "x", [], {}, {"kind": "allow_once"}, {"optionId": 5, "kind": "allow_once"}]
MALFORMED += [{"optionId": "", "kind": "allow_once"}, {"optionId": "list", "kind": ["allow_once"]}]

OPTION = st.fixed_dictionaries(
    {"optionId": st.sampled_from(["a", "b", "c", "", 5]), "kind": st.sampled_from([*KINDS, "odd", None])}
)


@pytest.mark.parametrize(
    ("allow", "durations", "option_id"),
    [
        (True, ("once", "always"), "a"),
        (True, ("always", "once"), "A"),
        (True, ("once",), "a"),
        (False, ("once", "always"), "R"),
        (False, ("once",), ""),
        (True, (), ""),
    ],
)
def test_earlier_durations_and_earlier_options_are_preferred(
    allow: bool, durations: tuple[str, ...], option_id: str
) -> None:
    """No option of the opposite meaning is chosen when none has the wanted one."""
    assert choose_option([*MALFORMED, *OPTIONS], allow, durations) == option_id


def test_an_option_for_a_single_call_is_the_default() -> None:
    """An agent may remember an option of kind `*_always`, so it is chosen only when there is no other."""
    assert choose_option(OPTIONS, allow=True) == "a"
    assert choose_option(OPTIONS, allow=False) == "R"


@pytest.mark.parametrize(
    ("option_id", "allows"),
    [("a", True), ("A", True), ("R", False), ("odd", None), ("bare", None), ("list", None), ("absent", None)],
)
def test_the_kind_of_an_option_decides_whether_it_allows(option_id: str, allows: bool | None) -> None:
    """None means that only the agent can interpret it."""
    assert option_allows([*MALFORMED, *OPTIONS], option_id) is allows


def test_malformed_options_cannot_be_chosen() -> None:
    """Only a non-empty text is an id."""
    assert option_ids(MALFORMED) == ["list"]
    assert choose_option(MALFORMED, allow=True) == choose_option([], allow=True) == ""


@given(st.lists(OPTION, unique_by=lambda option: option["optionId"]), st.booleans())
def test_a_chosen_option_is_offered_and_has_the_wanted_kind(options: list[Any], allow: bool) -> None:
    """For all lists of options with different ids."""
    option_id = choose_option(options, allow)
    if option_id:
        assert option_id in option_ids(options) and option_allows(options, option_id) is allow
    else:
        assert all(option_allows(options, other) is not allow for other in option_ids(options))
