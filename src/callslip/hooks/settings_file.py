"""Read a settings file of an agent, and replace it as a whole without losing what others wrote or its permissions."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from callslip.errors import CallslipError

MAX_BYTES = 16 * 2**20
BOM = "\ufeff"
NEW_FILE_MODE = 0o600
NEW_FOLDER_MODE = 0o700
BACKUP_TRIES = 100


class SettingsError(CallslipError):
    """The settings of an agent cannot be read or changed; nothing was written."""


@dataclass(frozen=True)
class SettingsFile:
    """A settings file as it was read.

    `path` is as the agent names it, `target` the file that it leads to through symbolic links. `content` is None if
    there is no file yet.
    """

    path: str
    target: str
    content: bytes | None

    @property
    def has_bom(self) -> bool:
        """Whether the file begins with a byte order mark, which is not part of the text."""
        return self.content is not None and self.content.startswith(BOM.encode())

    @property
    def text(self) -> str:
        """The text, "" if there is no file."""
        try:
            return (self.content or b"").decode().removeprefix(BOM)
        except UnicodeDecodeError as error:
            raise SettingsError(f"{self.path}: byte {error.start} is not UTF-8; nothing was changed") from None

    def encode(self, text: str) -> bytes:
        """Return a text as the bytes of this file."""
        return (BOM * self.has_bom + text).encode()


def read_settings(path: str) -> SettingsFile:
    """Read a file through symbolic links. That it does not exist is no error."""
    target = os.path.realpath(path)
    return SettingsFile(path, target, _read(path, target))


def _read(path: str, target: str) -> bytes | None:
    try:
        with open(target, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise SettingsError(f"{path}: is not a file")
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise SettingsError(f"{path}: is a folder") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror})") from None
    if len(content) > MAX_BYTES:
        raise SettingsError(f"{path}: is larger than {MAX_BYTES >> 20} MB")
    return content


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a named pipe would otherwise block."""
    return os.open(path, flags | os.O_NONBLOCK)


def replace_settings(file: SettingsFile, text: str | None) -> None:
    """Replace a file with a text, or delete it, if it is still as it was read.

    Readers see the old or the new file, never a part of it. Links stay links, and permissions stay.
    """
    folder = os.path.dirname(file.target)
    _check_unchanged(file)
    try:
        _check_writable(file, folder)
        os.makedirs(folder, mode=NEW_FOLDER_MODE, exist_ok=True)
        if text is None:
            _check_unchanged(file)
            os.unlink(file.target)
        else:
            _write_beside(file, file.encode(text))
        _sync_folder(folder)
    except OSError as error:
        problem = f"{file.path}: cannot be written ({error.strerror}); nothing was changed"
        raise SettingsError(problem) from None


def _check_writable(file: SettingsFile, folder: str) -> None:
    """Refuse a file that its owner protected: a rename would replace it in spite of that."""
    if file.content is None:
        return
    if not os.stat(file.target).st_mode & stat.S_IWUSR or not os.access(file.target, os.W_OK):
        advice = f"Make it writable (chmod u+w {file.target}) and run the command again"
        raise SettingsError(f"{file.path}: is read-only; nothing was changed. {advice}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise SettingsError(f"{file.path}: its folder {folder} is not writable; nothing was changed")


def _write_beside(file: SettingsFile, content: bytes) -> None:
    """Write a new file in the same folder, and give it the name of the old one."""
    folder, name = os.path.split(file.target)
    temporary = os.path.join(folder, f".{name}.{secrets.token_hex(6)}.callslip")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, NEW_FILE_MODE)
    try:
        with open(descriptor, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(descriptor)
        if file.content is not None:
            _copy_permissions(file.target, temporary)
        _check_unchanged(file)
        os.replace(temporary, file.target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _copy_permissions(source: str, target: str) -> None:
    """Copy owner, mode and extended attributes, but not the times: other programs look at these for changes."""
    old = os.stat(source)
    if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(OSError):
            os.chown(target, old.st_uid, old.st_gid)
    shutil.copystat(source, target)
    os.utime(target)


def _check_unchanged(file: SettingsFile) -> None:
    if os.path.realpath(file.path) != file.target or _read(file.path, file.target) != file.content:
        raise SettingsError(f"{file.path}: another program changed it meanwhile; run the command again")


def _sync_folder(folder: str) -> None:
    """Make a rename durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:  # Not every file system can.
        pass
    finally:
        os.close(descriptor)


def back_up(file: SettingsFile, folder: Path, name: str) -> Path | None:
    """Copy a file into a folder, readable by its owner only, and return the copy; None if there is no file."""
    if file.content is None:
        return None
    try:
        return _copy_into(file.content, folder, name)
    except OSError as error:
        raise SettingsError(f"{folder}: cannot be written ({error.strerror}); nothing was changed") from None


def _copy_into(content: bytes, folder: Path, name: str) -> Path:
    folder.mkdir(mode=NEW_FOLDER_MODE, parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(BACKUP_TRIES):
        path = folder / f"{name}.{stamp}{f'-{number}' if number else ''}"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, NEW_FILE_MODE)
        except FileExistsError:
            continue
        with open(descriptor, "wb") as copy:
            copy.write(content)
            copy.flush()
            os.fsync(descriptor)
        return path
    raise SettingsError(f"{folder}: has {BACKUP_TRIES} backups of this second; nothing was changed")
