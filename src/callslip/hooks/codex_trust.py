"""Read whether Codex trusts a hook. Nothing here writes: only the user trusts hooks, with `/hooks` in Codex.

Codex keeps the hash of each hook that was trusted in `config.toml`, under the file, the event and the position of the
hook. A hook whose hash differs was changed since, and does not run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Literal

from callslip.formats.json_fields import as_dict, as_list
from callslip.hooks.entries import HOOKS_KEY, Entry
from callslip.hooks.settings_file import SettingsError, read_settings

CONFIG_FILE = "config.toml"
DEFAULT_TIMEOUT_S = 600
SESSION_END_TIMEOUT_S = 1
MAX_SESSION_END_TIMEOUT_S = 3
CONTEXT_LIMIT = 2500
WITHOUT_MATCHER = ("UserPromptSubmit", "Stop")
FEATURE_NAMES = ("hooks", "codex_hooks")

Trust = Literal["trusted", "untrusted", "modified", "disabled"]


def read_config(folder: str) -> dict[str, Any]:
    """Return the configuration in a folder, {} if there is none."""
    path = os.path.join(folder, CONFIG_FILE)
    try:
        return tomllib.loads(read_settings(path).text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: {error}") from None


def has_hooks(config: Mapping[str, Any]) -> bool:
    """Return whether the configuration itself has hooks: Codex then warns that there are two files with hooks."""
    return any(as_list(value) for value in as_dict(config.get(HOOKS_KEY)).values())


def are_hooks_disabled(config: Mapping[str, Any]) -> bool:
    """Return whether the configuration switches all hooks off."""
    features = as_dict(config.get("features"))
    return any(features.get(name) is False for name in FEATURE_NAMES)


def trust_of(entry: Entry, matcher: object, path: str, config: Mapping[str, Any]) -> Trust:
    """Return whether Codex runs an entry of the file at `path`."""
    states = as_dict(as_dict(config.get(HOOKS_KEY)).get("state"))
    state: dict[str, Any] = {}
    for name in hook_keys(entry, path):
        state |= as_dict(states.get(name))
    if state.get("enabled") is False:
        return "disabled"
    trusted = state.get("trusted_hash")
    if trusted is None:
        return "untrusted"
    return "trusted" if trusted == hook_hash(entry, matcher) else "modified"


def hook_keys(entry: Entry, path: str) -> list[str]:
    """Return the names under which Codex may keep the state of a hook: its folder may be reached through a link."""
    folder, name = os.path.split(path)
    files = dict.fromkeys([path, os.path.join(os.path.realpath(folder), name)])
    return [f"{file}:{event_label(entry.event)}:{entry.group}:{entry.handler}" for file in files]


def event_label(event: str) -> str:
    """Return the name of an event as Codex writes it in hashes: PreToolUse is pre_tool_use."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event).lower()


def hook_hash(entry: Entry, matcher: object) -> str:
    """Return the hash that Codex compares: that of the event, the matcher and the handler with its defaults."""
    fields = entry.fields
    timeout = fields.get("timeout")
    if entry.event == "SessionEnd":
        timeout = max(1, min(SESSION_END_TIMEOUT_S if timeout is None else timeout, MAX_SESSION_END_TIMEOUT_S))
    else:
        timeout = max(1, DEFAULT_TIMEOUT_S if timeout is None else timeout)
    handler = {"type": "command", "command": fields.get("command"), "timeout": timeout}
    handler["async"] = fields.get("async", False)
    for name in ("statusMessage", "additionalContextLimit"):
        if fields.get(name) is not None and (name, fields[name]) != ("additionalContextLimit", CONTEXT_LIMIT):
            handler[name] = fields[name]
    identity: dict[str, Any] = {"event_name": event_label(entry.event), HOOKS_KEY: [handler]}
    if matcher is not None and entry.event not in WITHOUT_MATCHER:
        identity["matcher"] = matcher
    text = json.dumps(identity, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
