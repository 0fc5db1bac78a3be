"""Find calls that saved rules never allow: those that touch Callslip's files, its command line or agents' settings.

Such a call could answer requests, write rules or switch the questions off, so a person must see it. This is a guard
rail, not a sandbox: what a program does by itself, and a name that a shell computes, cannot be seen here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, cast

import msgspec

from callslip.rules.call_commands import PLACE_NAMES, plain_name
from callslip.rules.policy import PermissionQuery
from callslip.rules.shell_command import ShellCommand, Word

_CLI = re.compile(r"(?<![\w-])callslip(?![\w/-])|(?<![\w-])callslip/__main__|callslip_[a-z]", re.IGNORECASE)
"""The command, its module and its variables. A folder of this name, with a slash after it, is another thing."""
_SETTINGS = re.compile(
    r"(?<![\w-])(?:\.claude[\w.-]*|\.codex|\.gemini|\.opencode|\.mcp\.json|opencode\.jsonc?|\.config/opencode)(?![\w-])",
    re.IGNORECASE,
)
_SETTINGS_NAMES = (
    ".claude",
    ".claude.json",
    ".codex",
    ".gemini",
    ".opencode",
    ".mcp.json",
    "opencode.json",
    "callslip",
)
_PATCH_NAMES = frozenset(("patch", "diff", "input", "changes"))
"""Members with the text of a patch, which names its files."""
_PATH_NAME = re.compile(r"path|file|folder|dir|directory|uri|files|paths|target|destination|source")
MAX_PATH_CHARS = 4096
_MAX_STRINGS = 1000


class ProtectedPlaces(msgspec.Struct, frozen=True):
    """Folders and files, as absolute paths, that no rule may give access to. `home` is the folder of the user."""

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    home: str = ""

    def names(self) -> set[str]:
        """Return the names of the files, and of the files next to a database."""
        return {os.path.basename(path).casefold() + end for path in self.files for end in ("", "-wal", "-shm")}


def find_protected(call: dict[str, Any], query: PermissionQuery, places: ProtectedPlaces, project: str = "") -> str:
    """Return what a call touches that always needs a person, to follow "the call ..."; "" if nothing.

    `project` is the folder that relative paths are in, as far as the call itself names none.
    """
    commands = query.list_commands()
    if query.is_execute and query.title_command is not None:
        commands.append(query.title_command)
    folder = _find_folder(query.input) or project
    for command in commands:
        if problem := _find_in_command(command, places, folder, project):
            return problem
    for text in _list_paths(call, query):
        if _SETTINGS.search(text):
            return "touches the settings of an agent"
        if len(text) <= MAX_PATH_CHARS and "\n" not in text and _is_inside(text, places, folder):
            return "touches a file of Callslip"
    return ""


def _find_in_command(command: ShellCommand, places: ProtectedPlaces, folder: str, project: str) -> str:
    words = [word for part in (*command.parts, command.words) for word in part]
    unquoted = [" ".join(word.text for word in part) for part in command.parts]
    for text in (command.text, *command.other_texts, *unquoted):
        if _CLI.search(text):
            return "uses the command line of Callslip"
        if _SETTINGS.search(text):
            return "touches the settings of an agent"
        if any(form in text for form in _written_forms(places)):
            return "touches a file of Callslip"
    for word in words:
        if problem := _find_in_word(word, places, folder, project):
            return problem
    return ""


def _find_in_word(word: Word, places: ProtectedPlaces, folder: str, project: str) -> str:
    for text in {word.text, word.text.partition("=")[2], word.text.rpartition(":")[2]}:
        if not text or len(text) > MAX_PATH_CHARS:
            continue
        parts = text.casefold().split("/")
        if parts[-1] in places.names() or (len(parts) > 1 and parts[0] in map(_last_name, places.folders)):
            return "touches a file of Callslip"
        if word.glob >= 0 and _may_expand(parts, places):
            return "may touch a file of Callslip, or the settings of an agent"
        if _is_inside(text, places, folder) or _contains_place(text, places, project):
            return "touches a folder with files of Callslip"
    return ""


def _may_expand(parts: Iterable[str], places: ProtectedPlaces) -> bool:
    """Return whether a wildcard for file names may stand for a protected name. A leading dot must be written."""
    for part in parts:
        if not re.search(r"[*?\[]", part) or len(re.findall(r"[\w.]", part)) < 2:
            continue
        for name in (*_SETTINGS_NAMES, *places.names()):
            if (not name.startswith(".") or part.startswith((".", "["))) and fnmatchcase(name, part):
                return True
    return False


def _last_name(path: str) -> str:
    return os.path.basename(path.rstrip("/")).casefold()


def _written_forms(places: ProtectedPlaces) -> Iterator[str]:
    """Yield the ways to write protected places in a command."""
    for place in (*places.folders, *places.files):
        yield place
        if places.home and place.startswith(places.home.rstrip("/") + "/"):
            rest = place[len(places.home.rstrip("/")) :]
            yield from (f"~{rest}", f"$HOME{rest}", f"${{HOME}}{rest}")


def _resolve(text: str, home: str, folder: str) -> tuple[str, ...]:
    """Return an absolute path as it is written and with links resolved; none if it is relative to an unknown folder."""
    if home and (text == "~" or text.startswith("~/")):
        text = home + text[1:]
    if not os.path.isabs(text):
        if not os.path.isabs(folder):
            return ()
        text = os.path.join(folder, text)
    if "\0" in text:
        return ()
    return (os.path.normpath(text).casefold(), os.path.realpath(text).casefold())


def _is_inside(text: str, places: ProtectedPlaces, folder: str) -> bool:
    """Return whether a path is a protected file, one next to it of the same name, or in a protected folder."""
    for path in _resolve(text, places.home, folder):
        for place in (*places.folders, *places.files):
            for form in _resolve(place, "", ""):
                if path == form or path.startswith((form + "/", form + "-")):
                    return True
    return False


def _contains_place(text: str, places: ProtectedPlaces, project: str) -> bool:
    """Return whether a path is a folder around a protected place: `rm -r` or `cp -r` of it touches the place.

    The project folder may contain the ledger; otherwise each command about the project would need a person.
    """
    own = _resolve(project, "", "")
    for path in _resolve(text, places.home, ""):
        if path in own:
            continue
        for place in (*places.folders, *places.files):
            if any(form.startswith(path.rstrip("/") + "/") for form in _resolve(place, "", "")):
                return True
    return False


def _find_folder(input: Any) -> str:
    """Return the folder that a call names for itself."""
    members = cast("dict[str, Any]", input) if isinstance(input, dict) else {}
    for name, value in members.items():
        if plain_name(name) in ("cwd", "workdir", "workingdirectory") and isinstance(value, str):
            return value
    return ""


def _list_paths(call: dict[str, Any], query: PermissionQuery) -> Iterator[str]:
    """Yield the texts of a call that are paths, or may be, and patches."""
    yield from query.paths
    for items in (call.get("locations"), call.get("content")):
        for item in cast("list[Any]", items) if isinstance(items, list) else ():
            path = cast("dict[str, Any]", item).get("path") if isinstance(item, dict) else None
            if isinstance(path, str):
                yield path
    if isinstance(query.input, str):
        yield query.input
    for name, text in _list_strings(query.input):
        plain = plain_name(name)
        is_path = plain in PLACE_NAMES or plain in _PATCH_NAMES or _PATH_NAME.search(plain) is not None
        if is_path or (text.startswith(("/", "~", ".", "file:")) and len(text) <= MAX_PATH_CHARS and "\n" not in text):
            yield text.removeprefix("file://")


def _list_strings(input: Any) -> Iterator[tuple[str, str]]:
    """Yield the strings in an input, each with the name of the member that it is in."""
    values: list[tuple[str, Any]] = [("", input)]
    for name, value in values:
        if len(values) > _MAX_STRINGS:
            return
        if isinstance(value, dict):
            values.extend(cast("dict[str, Any]", value).items())
        elif isinstance(value, list):
            values.extend((name, item) for item in cast("list[Any]", value))
        elif isinstance(value, str) and name:
            yield name, value
