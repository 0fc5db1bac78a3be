"""Install and remove the hooks of one agent: what would change, and the change itself."""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from callslip.client.location import data_folder
from callslip.hooks import codex_trust, entries, opencode
from callslip.hooks.agents import Agent, Place
from callslip.hooks.events import WAIT_S
from callslip.hooks.settings_file import (
    NEW_FILE_MODE,
    NEW_FOLDER_MODE,
    SettingsError,
    SettingsFile,
    back_up,
    read_settings,
    replace_settings,
)
from callslip.model import codec

ID_DIGITS = 12


class Installation(msgspec.Struct, kw_only=True):
    """What a settings file had before the installation, as far as its text cannot tell it later.

    `is_new`: there was no file. `original` is the whole text of a file without content. `blanks` are the empty objects
    and lists that were filled.
    """

    path: str
    is_new: bool = False
    original: str | None = None
    blanks: dict[str, str] = {}


class Plan(NamedTuple):
    """A change of one settings file. `text` is the new text, None to delete the file."""

    agent: Agent
    file: SettingsFile
    text: str | None
    installation: Installation | None = None
    """What to remember; None after a removal."""

    @property
    def is_change(self) -> bool:
        """Whether the file would be different."""
        return self.text != (None if self.file.content is None else self.file.text)

    def diff(self) -> str:
        """Return the change as a unified diff."""
        before, after = (text.splitlines(keepends=True) for text in (self.file.text, self.text or ""))
        names = (self.file.path if self.file.content is not None else os.devnull, self.file.path)
        lines = difflib.unified_diff(before, after, *names)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at the end\n" for line in lines)


def plan_install(agent: Agent, path: str, folder: str, *, approvals: bool = False, wait_s: int = WAIT_S) -> Plan:
    """Return the change that installs the hooks of an agent for the hook folder of a ledger."""
    file = read_settings(path)
    text = file.text
    if agent.name == "opencode":
        is_installed = opencode.has_plugin(text)
        new_text = opencode.install(text, folder, approvals=approvals, wait_s=wait_s)
        blanks: Mapping[str, str] = {}
    else:
        root = entries.parse_settings(agent, path, text.strip() and text, has_bom=file.has_bom)
        is_installed = bool(entries.find_entries(root))
        new_text = entries.install(agent, path, text, folder, approvals=approvals, wait_s=wait_s)
        blanks = entries.blank_containers(agent, text)
    known = read_installation(file) if is_installed else None
    if known is None:
        original = None if text.strip() else text
        known = Installation(path=file.path, is_new=file.content is None, original=original)
    known.blanks = {**known.blanks, **blanks}
    return Plan(agent, file, new_text, known)


def plan_uninstall(agent: Agent, path: str) -> Plan:
    """Return the change that removes our hooks from the settings of an agent, for any ledger."""
    file = read_settings(path)
    text = file.text
    if file.content is None:
        return Plan(agent, file, None)
    known = read_installation(file) or Installation(path=path)
    if agent.name == "opencode":
        new_text = opencode.uninstall(text)
        is_empty = not new_text.strip()
        known.is_new = known.is_new or known.original is None
    else:
        entries.parse_settings(agent, path, text.strip() and text, has_bom=file.has_bom)
        new_text = entries.uninstall(text, known.blanks) if text.strip() else text
        is_empty = new_text == entries.EMPTY_DOCUMENT
    if new_text != text and is_empty:
        if known.is_new:
            return Plan(agent, file, None)
        new_text = new_text if known.original is None else known.original
    return Plan(agent, file, new_text)


def carry_out(plan: Plan) -> Path | None:
    """Back the file up and change it; return the copy, None if there was no file."""
    backup = back_up(plan.file, data_folder() / "hooks" / "backups", _file_id(plan))
    # Before the change: after it nothing would tell what was empty before.
    if plan.installation is not None:
        try:
            _write_installation(plan.file, plan.installation)
        except OSError as error:
            raise SettingsError(f"{data_folder()}: cannot be written ({error.strerror}); nothing was changed") from None
    replace_settings(plan.file, plan.text)
    if plan.installation is None:
        with contextlib.suppress(OSError):
            _installation_path(plan.file).unlink(missing_ok=True)
    return backup


def advice_after_install(agent: Agent, place: Place) -> list[str]:
    """Return what the user has to do or to know."""
    if agent.name != "codex":
        return []
    advice = ["Codex runs new or changed hooks only after you trust them: run /hooks in Codex"]
    try:
        if codex_trust.has_hooks(codex_trust.read_config(agent.config_folder(place))):
            advice.append("config.toml has hooks too: Codex runs all of them, and warns that there are two files")
    except SettingsError:
        pass
    return advice


# What was there before


def _file_id(plan: Plan) -> str:
    name = os.path.basename(plan.file.target).replace(os.sep, "")
    return f"{plan.agent.name}-{_digest(plan.file)}-{name}"


def _digest(file: SettingsFile) -> str:
    return codec.digest(os.fsencode(file.target))[:ID_DIGITS]


def _installation_path(file: SettingsFile) -> Path:
    return data_folder() / "hooks" / "installed" / f"{_digest(file)}.json"


def read_installation(file: SettingsFile) -> Installation | None:
    """Return what is known about a file from its installation, None if that is lost."""
    try:
        return msgspec.json.decode(_installation_path(file).read_bytes(), type=Installation)
    except (OSError, msgspec.MsgspecError):
        return None


def _write_installation(file: SettingsFile, installation: Installation) -> None:
    path = _installation_path(file)
    path.parent.mkdir(mode=NEW_FOLDER_MODE, parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, NEW_FILE_MODE)
    with open(descriptor, "wb") as opened:
        opened.write(msgspec.json.encode(installation))
    os.replace(temporary, path)
