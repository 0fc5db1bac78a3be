"""Settings files of agents: links, permissions, line ends, other writers, and files that cannot be changed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from callslip.hooks import settings_file
from callslip.hooks.settings_file import SettingsError, back_up, read_settings, replace_settings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "settings.json"


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_link_stays_a_link(tmp_path: Path, path: Path) -> None:
    """The file that a chain of links leads to is replaced; the links are kept."""
    real = tmp_path / "dotfiles" / "real.json"
    real.parent.mkdir()
    real.write_text("old")
    (tmp_path / "middle").symlink_to("dotfiles/real.json")
    path.symlink_to(tmp_path / "middle")
    replace_settings(read_settings(str(path)), "new")
    assert path.is_symlink() and (tmp_path / "middle").is_symlink()
    assert real.read_text() == "new" and names(real.parent) == ["real.json"]


def test_a_link_to_no_file_yet_is_followed(tmp_path: Path, path: Path) -> None:
    """The file is created where the link leads to."""
    path.symlink_to(tmp_path / "elsewhere" / "real.json")
    file = read_settings(str(path))
    assert (file.content, file.text) == (None, "")
    replace_settings(file, "new")
    assert path.is_symlink() and (tmp_path / "elsewhere" / "real.json").read_text() == "new"


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o660])
def test_permissions_stay(path: Path, mode: int) -> None:
    """The new file has the mode of the old one, and a new time of change."""
    path.write_text("old")
    path.chmod(mode)
    os.utime(path, (1, 1))
    replace_settings(read_settings(str(path)), "new")
    found = path.stat()
    assert stat.S_IMODE(found.st_mode) == mode and found.st_mtime > 1


def test_a_new_file_and_its_folder_are_private(tmp_path: Path) -> None:
    """Missing folders are created; only their owner can read them."""
    path = tmp_path / "a" / "b" / "settings.json"
    replace_settings(read_settings(str(path)), "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_byte_order_mark_and_line_ends_stay(path: Path) -> None:
    """The mark is not part of the text, and is written again; line ends are not translated."""
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\n")
    file = read_settings(str(path))
    assert file.has_bom and file.text == "a\r\nb\n"
    replace_settings(file, file.text + "c\r\n")
    assert path.read_bytes() == b"\xef\xbb\xbfa\r\nb\nc\r\n"


@pytest.mark.parametrize("change", ["content", "link", "deleted", "created"])
def test_a_change_of_another_program_is_not_lost(tmp_path: Path, path: Path, change: str) -> None:
    """[HI4] A file that changed after it was read is not replaced, and nothing is left beside it."""
    if change != "created":
        path.write_text("old")
    file = read_settings(str(path))
    if change == "deleted":
        path.unlink()
    elif change == "link":
        path.unlink()
        path.symlink_to(tmp_path / "other.json")
        (tmp_path / "other.json").write_text("old")
    else:
        path.write_text("theirs")
    before = names(tmp_path)
    with pytest.raises(SettingsError, match="another program changed it meanwhile; run the command again"):
        replace_settings(file, "new")
    assert names(tmp_path) == before
    if change in ("content", "created"):
        assert path.read_text() == "theirs"


def test_a_change_during_the_write_is_not_lost(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[HI4] The file is compared once more when the new one is complete."""
    path.write_text("old")
    sync = os.fsync

    def change_and_sync(descriptor: int) -> None:
        path.write_text("theirs")
        sync(descriptor)

    monkeypatch.setattr(settings_file.os, "fsync", change_and_sync)
    with pytest.raises(SettingsError, match="another program changed it meanwhile"):
        replace_settings(read_settings(str(path)), "new")
    assert path.read_text() == "theirs" and names(path.parent) == ["settings.json"]


def test_a_write_that_fails_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is full the old file stays, and nothing is left beside it."""
    path.write_text("old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(settings_file.os, "fsync", fail)
    with pytest.raises(SettingsError, match=r"cannot be written \(No space left on device\); nothing was changed"):
        replace_settings(read_settings(str(path)), "new")
    assert path.read_text() == "old" and names(path.parent) == ["settings.json"]


def test_a_read_only_file_is_refused(path: Path) -> None:
    """A file that its owner protected is not replaced."""
    path.write_text("old")
    path.chmod(0o444)
    with pytest.raises(SettingsError, match="is read-only; nothing was changed"):
        replace_settings(read_settings(str(path)), "new")
    assert path.read_text() == "old"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A folder, a named pipe, a file that is not UTF-8 and one that is too large are named as what they are."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "bytes").write_bytes(b"ab\xff")
    with open(tmp_path / "large", "wb") as large:
        large.truncate(settings_file.MAX_BYTES + 1)
    for name, problem in {"folder": "is a folder", "pipe": "is not a file", "large": "is larger than 16 MB"}.items():
        with pytest.raises(SettingsError, match=problem):
            read_settings(str(tmp_path / name))
    with pytest.raises(SettingsError, match="byte 2 is not UTF-8"):
        print(read_settings(str(tmp_path / "bytes")).text)


def test_a_backup_is_the_old_file(tmp_path: Path, path: Path) -> None:
    """Copies have the exact bytes, are private, and never replace each other."""
    path.write_bytes(b"\xef\xbb\xbfold\r\n")
    file = read_settings(str(path))
    copies = [back_up(file, tmp_path / "backups", "x") for _ in range(3)]
    assert len({str(copy) for copy in copies}) == 3
    for copy in copies:
        assert copy is not None
        assert copy.read_bytes() == path.read_bytes() and stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert back_up(read_settings(str(tmp_path / "missing")), tmp_path / "backups", "y") is None
