"""The plugin for opencode, which has plugins instead of hooks: a marked part of one file in its folder of plugins."""

from __future__ import annotations

import json
import re
from pathlib import Path

from callslip.formats.json_fields import as_list
from callslip.hooks.command import HookCommand, own_command, parse_words
from callslip.hooks.events import WAIT_S

BEGIN = "// callslip hook: begin. `callslip hook uninstall opencode` removes this part."
END = "// callslip hook: end."
_PART = re.compile(rf"^{re.escape(BEGIN)}$.*?^{re.escape(END)}$(?:\r?\n)?", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^ *const COMMAND = (\[.*\]);?$", re.MULTILINE)
_SOURCE = Path(__file__).with_name("opencode_plugin.js")


def plugin_text(command: HookCommand) -> str:
    """Return our part of the file."""
    words = command.words()
    source = _SOURCE.read_text("utf-8").replace("const COMMAND = [];", f"const COMMAND = {json.dumps(words)};", 1)
    return f"{BEGIN}\n{source.strip()}\n{END}\n"


def find_command(text: str) -> HookCommand | None:
    """Return what the plugin starts, None if our part is not in the file."""
    part = _PART.search(text.replace("\r\n", "\n"))
    found = _COMMAND.search(part[0]) if part else None
    try:
        words = as_list(json.loads(found[1]) if found else None)
    except ValueError:
        return None
    return parse_words(words) if all(isinstance(word, str) for word in words) else None


def is_current(text: str) -> bool:
    """Return whether our part of the file is that of this version."""
    command, part = find_command(text), _PART.search(text.replace("\r\n", "\n"))
    return command is not None and part is not None and part[0].rstrip() == plugin_text(command).rstrip()


def has_plugin(text: str) -> bool:
    """Return whether our part is in the file."""
    return _PART.search(text.replace("\r\n", "\n")) is not None


def install(text: str, folder: str, *, approvals: bool = False, wait_s: int = WAIT_S) -> str:
    """Return the file with our part in its place, or at the start."""
    part = plugin_text(own_command("opencode", folder, approvals=approvals, wait_s=wait_s))
    if "\r\n" in text:
        part = part.replace("\n", "\r\n")
    if not has_plugin(text):
        return part + text
    return _replace(text, part)


def uninstall(text: str) -> str:
    """Return the file without our part."""
    return _replace(text, "")


def _replace(text: str, part: str) -> str:
    begin, end = re.escape(BEGIN), re.escape(END)
    pattern = re.compile(rf"^{begin}\r?$.*?^{end}(?:\r\n|\n|\r?\Z)", re.DOTALL | re.MULTILINE)
    return pattern.sub(lambda _: part, text)
