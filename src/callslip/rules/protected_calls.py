"""Find calls that rules never allow: those that touch Callslip's files, its command line or agents' settings.

Such a call could answer requests, write rules or switch the questions off, so a person must see it. The same
holds for questions and plans of an agent. This is a guard rail, not a sandbox: what a program does by itself, and a
name that a shell computes, cannot be seen here.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, cast
from urllib.parse import unquote

import msgspec

from callslip.rules.call_commands import PLACE_NAMES, plain_name
from callslip.rules.notices import question_kind
from callslip.rules.policy import PermissionQuery
from callslip.rules.shell_command import ShellCommand, Word

_CLI = re.compile(r"(?<![\w-])callslip(?![\w/-])|(?<![\w-])callslip/__main__|callslip_[a-z]", re.IGNORECASE)
"""The command, its module and its variables. A folder of this name, with a slash after it, is another thing."""
_SETTINGS = re.compile(
    r"(?<![\w-])(?:\.claude(?!/worktrees/\w)[\w.-]*|\.codex|\.gemini|\.opencode|\.mcp\.json|opencode\.jsonc?"
    r"|\.config/opencode)(?![\w-])",
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
_QUOTES = re.compile(r"""['"\\]|\$[@*]|\$\{[^{}]*\}""")
"""What divides a name in a script, and what is usually empty there: the words of an inner script are not known."""
_HOME = re.compile(r"(?:~|\$HOME|\$\{HOME\})(?=/|$)")
_LEADING_PLACES = re.compile(r"(?:\.{0,2}|~[^/]*|\$\w+|\$\{[^{}]*\})/+")
"""A folder at the beginning of a path that is not known here."""
_PATCH_NAMES = frozenset(("patch", "diff", "input", "changes"))
"""Members with the text of a patch, which names its files."""
_PATH_NAME = re.compile(r"path|file|folder|dir|directory|uri|files|paths|target|destination|source")
FILE_ENDS = ("", "-wal", "-shm", "-queue", "-work", ".server")
"""The ends of the names of files next to a database."""
MAX_PATH_CHARS = 4096
MAX_VALUES = 10_000
_CLI_PROBLEM = "uses the command line of Callslip"
_SETTINGS_PROBLEM = "touches the settings of an agent"
_FILE_PROBLEM = "touches a file of Callslip"


class ProtectedPlaces(msgspec.Struct, frozen=True):
    """Folders and files, as absolute paths, that no rule may give access to. `home` is the folder of the user."""

    folders: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    home: str = ""

    def names(self) -> set[str]:
        """Return the names of the files, and of the files next to a database."""
        return {os.path.basename(path).casefold() + end for path in self.files for end in FILE_ENDS}


def find_protected(call: dict[str, Any], query: PermissionQuery, places: ProtectedPlaces, project: str = "") -> str:
    """Return what a call touches that always needs a person, to follow "the call ..."; "" if nothing.

    `project` is the folder that relative paths are in, as far as the call itself names none.
    """
    kinds = [kind for tool in query.tools if (kind := question_kind(tool))]
    if kinds:
        return f"is a {kinds[0]} of the agent"
    commands = query.list_commands()
    if query.is_execute and query.title_command is not None:
        commands.append(query.title_command)
    checks = _Checks(places, _find_folder(query.input, project, places.home), project)
    for command in commands:
        if problem := checks.find_in_command(command):
            return problem
    for path in _list_paths(call, query):
        if problem := checks.find_in_path(path):
            return problem
    return f"has more than {MAX_VALUES:,} values" if len(_list_values(query.input)) > MAX_VALUES else ""


class _Checks:
    """The checks of one call. Relative paths are in `folder`. The `project` may contain a protected place."""

    def __init__(self, places: ProtectedPlaces, folder: str, project: str) -> None:
        self._places, self._folder = places, folder
        own = (project, *map(os.path.dirname, places.files))
        self._own = {form for path in own for form in _resolve(path, "", "")}
        self._forms = [form for place in (*places.folders, *places.files) for form in _resolve(place, "", "")]
        self._written = list(_written_forms(places))
        self._folders = [place.casefold().strip("/").split("/") for place in places.folders]

    def find_in_command(self, command: ShellCommand) -> str:
        unquoted = [" ".join(word.text for word in part) for part in command.parts]
        texts = (command.text, *command.other_texts)
        for text in map(_plain, (*texts, *unquoted, *(_QUOTES.sub("", text) for text in texts))):
            if _CLI.search(text):
                return _CLI_PROBLEM
            if _SETTINGS.search(text):
                return _SETTINGS_PROBLEM
            if any(form in text for form in self._written):
                return _FILE_PROBLEM
        parts = [part for part in (*command.parts, command.words) if not _goes_up(part)]
        words = [word for part in parts for word in part]
        return next((problem for word in words if (problem := self._find_in_word(word))), "")

    def _find_in_word(self, word: Word) -> str:
        for text in {word.text, word.text.partition("=")[2], word.text.rpartition(":")[2]}:
            if not text or len(text) > MAX_PATH_CHARS:
                continue
            if word.glob >= 0 and self._may_expand(text):
                return "may touch a file of Callslip, or the settings of an agent"
            if problem := self.find_in_path(text):
                return problem
        return ""

    def find_in_path(self, text: str) -> str:
        """Return what is wrong with a path, or with a patch, which names its files."""
        text = _plain(text)
        if _SETTINGS.search(text):
            return _SETTINGS_PROBLEM
        if not text or len(text) > MAX_PATH_CHARS or "\n" in text:
            return ""
        resolved = _resolve(text, self._places.home, self._folder)
        if any(_SETTINGS.search(form) for form in (os.path.normpath(text), *resolved)):
            return _SETTINGS_PROBLEM
        is_file = text.casefold().rpartition("/")[2] in self._places.names()
        if is_file or self._ends_like_place(text) or any(map(self._is_inside, resolved)):
            return _FILE_PROBLEM
        return "touches a folder with files of Callslip" if any(map(self._contains_place, resolved)) else ""

    def _ends_like_place(self, text: str) -> bool:
        """Return whether a path in an unknown folder goes into a protected one: `$X/callslip/token`."""
        while match := _LEADING_PLACES.match(text):
            text = text[match.end() :]
        parts = [part for part in text.casefold().split("/") if part not in ("", ".")]
        return any(
            len(parts) > count and parts[:count] == folder[-count:]
            for folder in self._folders
            for count in range(1, len(folder) + 1)
        )

    def _is_inside(self, path: str) -> bool:
        """Return whether a path is a protected file, one next to it of the same name, or in a protected folder."""
        return any(path == form or path.startswith((form + "/", form + "-")) for form in self._forms)

    def _contains_place(self, path: str) -> bool:
        """Return whether a path is a folder around a protected place: `rm -r` or `cp -r` of it touches the place.

        The project folder, and that of the ledger, are excepted: else each command about them would need a person.
        """
        return path not in self._own and any(form.startswith(path.rstrip("/") + "/") for form in self._forms)

    def _may_expand(self, text: str) -> bool:
        """Return whether a wildcard for file names may stand for a protected name. A leading dot must be written."""
        parts = text.casefold().split("/")
        names = (*_SETTINGS_NAMES, *self._places.names())
        for part in parts:
            is_narrow = re.search(r"[*?\[]", part) and len(re.findall(r"[\w.]", part)) >= 2
            if is_narrow and any(_expands_to(name, part) for name in names):
                return True
        if len(parts) < 2:
            return False
        for path in _resolve(text, self._places.home, self._folder)[:1]:
            pattern = path.split("/")
            folder = re.split(r"[*?\[]", path)[0].rpartition("/")[0]
            forms = [form.split("/") for form in self._forms]
            if folder not in self._own and any(all(map(_expands_to, form, pattern)) for form in forms):
                return True
        return False


def _goes_up(words: tuple[Word, ...]) -> bool:
    """Return whether a command only goes to a folder around this one. What is done there is another command."""
    return len(words) == 2 and words[0].text == "cd" and re.fullmatch(r"(?:\.\./?)+", words[1].text) is not None


def _plain(text: str) -> str:
    """Return a text without the differences of writing that some file systems ignore, and without escapes of URIs."""
    text = unicodedata.normalize("NFKC", text)
    if not text.isascii():
        text = "".join(character for character in text if unicodedata.category(character) != "Cf")
    return unquote(text) if "%" in text else text


def _expands_to(name: str, pattern: str) -> bool:
    return (not name.startswith(".") or pattern.startswith((".", "["))) and fnmatchcase(name, pattern)


def _written_forms(places: ProtectedPlaces) -> Iterator[str]:
    """Yield the ways to write protected places in a command."""
    for place in (*places.folders, *places.files):
        yield place
        if places.home and place.startswith(places.home.rstrip("/") + "/"):
            rest = place[len(places.home.rstrip("/")) :]
            yield from (f"~{rest}", f"$HOME{rest}", f"${{HOME}}{rest}")


def _resolve(text: str, home: str, folder: str) -> tuple[str, ...]:
    """Return an absolute path as it is written and with links resolved; none if it is relative to an unknown folder."""
    if home and (found := _HOME.match(text)):
        text = home + text[found.end() :]
    if not os.path.isabs(text):
        if not os.path.isabs(folder):
            return ()
        text = os.path.join(folder, text)
    if "\0" in text:
        return ()
    return (os.path.normpath(text).casefold(), os.path.realpath(text).casefold())


def _find_folder(input: Any, project: str, home: str) -> str:
    """Return the folder in which a call runs: the one that it names, or that of the project."""
    members = cast("dict[str, Any]", input) if isinstance(input, dict) else {}
    for name, value in members.items():
        if plain_name(name) in ("cwd", "workdir", "workingdirectory") and isinstance(value, str) and value:
            return os.path.join(project, re.sub(_HOME, lambda _: home or "~", value, count=1))
    return project


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
    for name, text in _list_values(query.input):
        if not name or not isinstance(text, str):
            continue
        plain = plain_name(name)
        is_path = plain in PLACE_NAMES or plain in _PATCH_NAMES or _PATH_NAME.search(plain) is not None
        is_like_path = "/" in text and "://" not in text and not re.search(r"\s", text)
        is_like_path = is_like_path or text.startswith(("/", "~", ".", "file:"))
        if is_path or (is_like_path and len(text) <= MAX_PATH_CHARS and "\n" not in text):
            yield text.removeprefix("file://")


def _list_values(input: Any) -> list[tuple[str, Any]]:
    """Return the values in an input, each with the name of the member that it is in; not many more than MAX_VALUES."""
    values: list[tuple[str, Any]] = [("", input)]
    for name, value in values:
        if len(values) > MAX_VALUES:
            break
        if isinstance(value, dict):
            values.extend(cast("dict[str, Any]", value).items())
        elif isinstance(value, list):
            values.extend((name, item) for item in cast("list[Any]", value))
    return values
