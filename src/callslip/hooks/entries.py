"""Our entries in the JSON settings of an agent: find them, add them, remove them.

All three agents have the same layout: `hooks` has a list for each event, an element of which has a list of handlers
under `hooks`. An entry of ours is an element with one handler, which is recognized by its command. What else is in the
file, also in our elements, belongs to the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from callslip.formats.json_fields import as_dict, as_list
from callslip.hooks import jsonc
from callslip.hooks.agents import Agent
from callslip.hooks.command import HookCommand, own_command, parse_command
from callslip.hooks.events import GATE_MARGIN_S, WAIT_S, Hook, wanted_hooks
from callslip.hooks.settings_file import SettingsError

EMPTY_DOCUMENT = "{}\n"
HOOK_NAME = "callslip"
"""Gemini CLI shows hooks by their names, and can switch them off by these."""
HOOKS_KEY = "hooks"

JsonPath = tuple[str | int, ...]


class Entry(NamedTuple):
    """A handler of ours: the event, its position, the handler as it is in the file, and what it starts."""

    event: str
    group: int
    handler: int
    fields: Mapping[str, Any]
    command: HookCommand

    @property
    def path(self) -> JsonPath:
        """The place of the handler in the document."""
        return (HOOKS_KEY, self.event, self.group, HOOKS_KEY, self.handler)


def parse_settings(agent: Agent, path: str, text: str, *, has_bom: bool = False) -> jsonc.Node:
    """Parse settings as strictly as the agent does, and check the parts that an installation changes."""
    if has_bom and not agent.has_bom:
        raise SettingsError(f"{path}: begins with a byte order mark, which {agent.title} refuses; remove it first")
    try:
        root = jsonc.parse(text or EMPTY_DOCUMENT, has_comments=agent.has_comments, has_trailing_commas=False)
    except jsonc.JsonTextError as error:
        problem = f"{path}: {error}: {agent.title} does not read this file. Correct it first; nothing was changed"
        raise SettingsError(problem) from None
    document = as_dict(root.value)
    if document is not root.value:
        raise SettingsError(f"{path}: is not a JSON object; nothing was changed")
    if not isinstance(document.get(HOOKS_KEY, {}), dict):
        raise SettingsError(f"{path}: {HOOKS_KEY!r} is not an object; nothing was changed")
    return root


def find_entries(root: jsonc.Node) -> list[Entry]:
    """Return our entries in the order of the document."""
    found: list[Entry] = []
    for event, groups in as_dict(as_dict(root.value).get(HOOKS_KEY)).items():
        for group_index, group in enumerate(as_list(groups)):
            for index, handler in enumerate(as_list(as_dict(group).get(HOOKS_KEY))):
                fields = as_dict(handler)
                if (command := parse_command(fields.get("command"))) is not None:
                    found.append(Entry(event, group_index, index, fields, command))
    return found


def handler_fields(agent: Agent, hook: Hook, folder: str, *, approvals: bool, wait_s: int) -> dict[str, Any]:
    """Return the handler of an event as it is installed."""
    waits = approvals and hook.is_gate
    command = own_command(agent.name, folder, approvals=waits, wait_s=wait_s).shell_text()
    timeout_s = wait_s + GATE_MARGIN_S if waits else hook.timeout_s
    name = {"name": HOOK_NAME} if agent.name == "gemini" else {}
    return {"type": "command", **name, "command": command, "timeout": timeout_s * agent.timeout_units_per_s}


def install(agent: Agent, path: str, text: str, folder: str, *, approvals: bool = False, wait_s: int = WAIT_S) -> str:
    """Return the settings with our entries for all events that are wanted, and no others of ours.

    Entries that are there keep their places and what was changed in them by hand. New ones come last.
    """
    text = text if text.strip() else EMPTY_DOCUMENT
    wanted = {hook.event: hook for hook in wanted_hooks(agent.name, approvals=approvals)}
    for event, hook in wanted.items():
        fields = handler_fields(agent, hook, folder, approvals=approvals, wait_s=wait_s)
        ours = [entry for entry in find_entries(jsonc.parse(text)) if entry.event == event]
        if ours:
            text = _update(text, ours[0], fields, waits=approvals and hook.is_gate)
        else:
            text = _add(path, text, event, {HOOKS_KEY: [fields]})
    while surplus := _find_surplus(text, wanted):
        text = _remove(text, surplus, {})
    return text


def _add(path: str, text: str, event: str, group: dict[str, Any]) -> str:
    root = jsonc.parse(text)
    if jsonc.find(root, (HOOKS_KEY,)) is None:
        text = jsonc.set_member(text, (), HOOKS_KEY, {})
        root = jsonc.parse(text)
    groups = jsonc.find(root, (HOOKS_KEY, event))
    if groups is None:
        return jsonc.set_member(text, (HOOKS_KEY,), event, [group])
    if not isinstance(groups.value, list):
        raise SettingsError(f"{path}: '{HOOKS_KEY}.{event}' is not a list; nothing was changed")
    return jsonc.append(text, (HOOKS_KEY, event), group)


def _update(text: str, entry: Entry, fields: dict[str, Any], *, waits: bool) -> str:
    """Change the command of an entry, and a timeout that would end before our own wait."""
    timeout = entry.fields.get("timeout")
    is_short = waits and not (isinstance(timeout, int | float) and timeout >= fields["timeout"])
    if entry.fields["command"] != fields["command"]:
        text = jsonc.set_member(text, entry.path, "command", fields["command"])
        is_short = is_short or timeout != fields["timeout"]
    return jsonc.set_member(text, entry.path, "timeout", fields["timeout"]) if is_short else text


def _find_surplus(text: str, wanted: Mapping[str, Hook]) -> Entry | None:
    """Return the last entry of ours for an event that is not wanted, or after the first one of an event."""
    entries = find_entries(jsonc.parse(text))
    first = {entry.event: entry for entry in reversed(entries) if entry.event in wanted}
    return next((entry for entry in reversed(entries) if first.get(entry.event) != entry), None)


def uninstall(text: str, blanks: Mapping[str, str]) -> str:
    """Return the settings without our entries.

    Objects and lists that are then empty are removed, too, unless they were there before the installation: `blanks` has
    what was inside these, by their paths.
    """
    while entries := find_entries(jsonc.parse(text)):
        text = _remove(text, entries[-1], blanks)
    return text


def _remove(text: str, entry: Entry, blanks: Mapping[str, str]) -> str:
    """Remove an entry, and what holds nothing else."""
    handlers = entry.path[:-1]
    text = jsonc.remove(text, entry.path)
    if jsonc.blank_inside(text, handlers) is None:
        return text
    path = handlers[:-1]
    while path:
        text = jsonc.remove(text, path, blanks.get(path_name(path[:-1]), ""))
        path = path[:-1]
        if not path or path_name(path) in blanks or jsonc.blank_inside(text, path) is None:
            return text
    return text


def blank_containers(agent: Agent, text: str) -> dict[str, str]:
    """Return what is inside the empty objects and lists that an installation may fill, by their paths."""
    paths: list[JsonPath] = [(), (HOOKS_KEY,)]
    paths += [(HOOKS_KEY, hook.event) for hook in wanted_hooks(agent.name, approvals=True)]
    inside = {path_name(path): jsonc.blank_inside(text, path) for path in paths} if text.strip() else {}
    return {name: blank for name, blank in inside.items() if blank is not None}


def path_name(path: JsonPath) -> str:
    """Return a path as text."""
    return "/".join(map(str, path))
