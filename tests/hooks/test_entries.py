"""Entries in the settings of agents: added at the end, updated in place, removed without a trace."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callslip.hooks import entries, jsonc
from callslip.hooks.agents import KNOWN_AGENTS, Agent
from callslip.hooks.entries import find_entries, install, uninstall
from callslip.hooks.events import HOOKS
from callslip.hooks.settings_file import SettingsError
from tests.hooks.test_jsonc import WHOLE, comments

FOLDER, OTHER_FOLDER = "/data/hooks/0123456789ab", "/data/hooks/ba9876543210"
JSON_AGENTS = [KNOWN_AGENTS[name] for name in HOOKS]
THEIRS = {"type": "command", "command": "their-program"}


def install_into(agent: Agent, text: str, folder: str = FOLDER, **options: Any) -> str:
    return install(agent, "settings.json", text, folder, **options)


def first_events(agent: Agent) -> list[str]:
    return [hook.event for hook in HOOKS[agent.name]][:2]


@pytest.fixture(params=JSON_AGENTS, ids=[agent.name for agent in JSON_AGENTS])
def agent(request: pytest.FixtureRequest) -> Agent:
    return request.param


@pytest.mark.parametrize("approvals", [False, True])
def test_each_event_gets_one_entry(agent: Agent, approvals: bool) -> None:
    """[HI1] All events for recording are installed, and the gate only with approvals."""
    text = install_into(agent, "", approvals=approvals, wait_s=100)
    found = find_entries(jsonc.parse(text))
    wanted = [hook for hook in HOOKS[agent.name] if hook.records or approvals]
    assert [entry.event for entry in found] == [hook.event for hook in wanted]
    for entry, hook in zip(found, wanted, strict=True):
        waits = approvals and hook.is_gate
        assert (entry.command.agent, entry.command.folder) == (agent.name, FOLDER)
        assert (entry.command.approvals, entry.command.wait_s) == (waits, 100 if waits else 300)
        assert entry.fields["timeout"] == (130 if waits else hook.timeout_s) * agent.timeout_units_per_s


def test_a_second_installation_changes_nothing(agent: Agent) -> None:
    """[HI2] The result of an installation is its own result, also in one line and with other options."""
    for text in ("", "{}", '{"hooks": {}}', '{"a": [1]}', '{\n\t"hooks": {"Stop": []}\n}'):
        for options in ({}, {"approvals": True, "wait_s": 20}):
            once = install_into(agent, text, **options)
            assert install_into(agent, once, **options) == once


def test_entries_of_others_keep_their_places(agent: Agent) -> None:
    """[HI2] Ours come after them, in the same list: positions, by which Codex trusts hooks, do not change."""
    first, second = first_events(agent)
    theirs: dict[str, Any] = {first: [{"matcher": "x", "hooks": [THEIRS]}, {"hooks": [THEIRS, THEIRS]}]}
    theirs |= {"Unknown": [{"hooks": [THEIRS]}], second: []}
    text = json.dumps({"hooks": theirs, "z": 1}, indent=4)
    installed = json.loads(install_into(agent, text))
    assert list(installed) == ["hooks", "z"]
    assert list(installed["hooks"])[:3] == [first, "Unknown", second]
    assert installed["hooks"][first][:2] == theirs[first]
    assert len(installed["hooks"][first]) == 3 and len(installed["hooks"][second]) == 1


def test_approvals_are_added_and_removed_in_place(agent: Agent) -> None:
    """The gate is added to an installation, and removed again, and the rest keeps its places."""
    plain = install_into(agent, "")
    gated = install_into(agent, plain, approvals=True, wait_s=50)
    assert any(entry.command.approvals for entry in find_entries(jsonc.parse(gated)))
    assert install_into(agent, gated) == plain


def test_another_ledger_changes_only_the_commands(agent: Agent) -> None:
    """The entries are updated where they are."""
    first = install_into(agent, "", approvals=True)
    other = install_into(agent, first, OTHER_FOLDER, approvals=True)
    assert other == first.replace(FOLDER, OTHER_FOLDER)


def test_what_was_changed_in_an_entry_stays(agent: Agent) -> None:
    """What the user added to an entry survives; only a timeout that is too short for the gate is corrected."""
    event = first_events(agent)[0]
    text = install_into(agent, "", approvals=True, wait_s=60)
    gate = next(entry for entry in find_entries(jsonc.parse(text)) if entry.command.approvals)
    text = jsonc.set_member(text, ("hooks", event, 0, "hooks", 0), "timeout", 77)
    text = jsonc.set_member(text, ("hooks", event, 0), "matcher", "mine")
    text = jsonc.append(text, ("hooks", event, 0, "hooks"), THEIRS)
    shortened = jsonc.set_member(text, gate.path, "timeout", 1)
    assert install_into(agent, shortened, approvals=True, wait_s=60) == text
    left = json.loads(uninstall(text, {}))
    assert left == {"hooks": {event: [{"hooks": [THEIRS], "matcher": "mine"}]}}


def test_copies_of_our_entries_are_removed(agent: Agent) -> None:
    """If a list has two entries of ours, the first one stays."""
    once = install_into(agent, "")
    event = first_events(agent)[1]
    group = json.loads(once)["hooks"][event][0]
    twice = jsonc.append(jsonc.append(once, ("hooks", event), group), ("hooks", event), {"hooks": [THEIRS]})
    again = json.loads(install_into(agent, twice))
    assert again["hooks"][event] == [group, {"hooks": [THEIRS]}]


@given(st.sampled_from(JSON_AGENTS), WHOLE, st.booleans(), st.data())
def test_an_installation_and_its_removal_leave_no_trace(
    agent: Agent, text: str, approvals: bool, data: st.DataObject
) -> None:
    """[HI3] The text is as before, character by character, with any comments, blanks and empty lists in it."""
    if not isinstance(jsonc.parse(text).value, dict):
        return
    event = data.draw(st.sampled_from(first_events(agent)))
    if data.draw(st.booleans()):
        text = jsonc.set_member(
            text, (), "hooks", data.draw(st.sampled_from([{}, {event: []}, {event: [{}, 1]}, {"x": 1}]))
        )
    elif not isinstance(jsonc.parse(text).value.get("hooks", {}), dict):
        return
    blanks = entries.blank_containers(agent, text)
    installed = install_into(agent, text, approvals=approvals)
    assert comments(installed) == comments(text)
    assert uninstall(installed, blanks) == text


HAND_EDITED = """\
// Settings of mine.
{
  /* first */ "model": "fast", // a reason
  "hooks": { // all hooks
    // before a tool
    "EVENT": [
      { "hooks": [ { "type": "command", "command": "my-check" } ] } // mine
      // and nothing else
    ]
  },
  "last": [1, 2 /* two */] // the end
}
"""


def test_edits_by_hand_survive(agent: Agent) -> None:
    """[HI3] Install, edit, install again, uninstall: what is left is the file with the edits, with all comments."""
    first, second = first_events(agent)
    original = HAND_EDITED.replace("EVENT", first)

    def edit(text: str) -> str:
        text = text.replace('"fast", // a reason', '"slow",\n\n  // another reason\n  "new": {"a": null},')
        text = text.replace("// before a tool", "// before each tool\n    // (changed)")
        text = jsonc.append(text, ("hooks", first), {"hooks": [THEIRS]})
        text = text.replace('"last": [1, 2 /* two */]', '"last": [1, /* 1.5 */ 2 /* two */, 3]')
        return text.replace("// and nothing else", "// and one more")

    edited = edit(install_into(agent, original))
    again = install_into(agent, edited, OTHER_FOLDER, approvals=True)
    assert len(find_entries(jsonc.parse(again))) == len(HOOKS[agent.name])
    assert uninstall(again, {}) == edit(original)
    assert second not in uninstall(again, {})


@pytest.mark.parametrize("name", ["claude-code", "codex"])
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{\n  // c\n}", "line 2, column 3: a comment"),
        ('{"a": 1,}', "line 1, column 8: a comma after the last value"),
        ('{"a": 1', "line 1, column 8: expected , or }"),
    ],
)
def test_a_file_that_the_agent_does_not_read_is_refused(name: str, text: str, problem: str) -> None:
    """An entry in it would never run, so the place of the problem is reported instead."""
    with pytest.raises(SettingsError) as caught:
        entries.parse_settings(KNOWN_AGENTS[name], "f.json", text)
    title = KNOWN_AGENTS[name].title
    assert (
        str(caught.value)
        == f"f.json: {problem}: {title} does not read this file. Correct it first; nothing was changed"
    )


def test_settings_of_another_kind_are_refused(agent: Agent) -> None:
    """A list where an object belongs is named; it is not replaced."""
    event = first_events(agent)[0]
    for text, problem in (
        ("[]", "is not a JSON object"),
        ('{"hooks": []}', "'hooks' is not an object"),
        (json.dumps({"hooks": {event: {}}}), f"'hooks.{event}' is not a list"),
    ):
        with pytest.raises(SettingsError, match=problem):
            entries.parse_settings(agent, "f.json", text)
            install_into(agent, text)
    if agent.name != "claude-code":
        with pytest.raises(SettingsError, match="begins with a byte order mark"):
            entries.parse_settings(agent, "f.json", "{}", has_bom=True)
