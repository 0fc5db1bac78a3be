"""Read the messages that hooks have stored, of which any program of this user may be the author.

A file is read only if it is a file, of this user, and not too large. What cannot be read is deleted.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from pathlib import Path
from typing import Any

import msgspec

from callslip.errors import InvalidInputError
from callslip.formats.json_fields import as_dict, as_str
from callslip.formats.transcripts import epoch_ms
from callslip.hooks.folder import MAX_MESSAGE_BYTES, SPOOL, check_folder
from callslip.model import codec

MAX_FILE_BYTES = MAX_MESSAGE_BYTES + 1024
ABANDONED_S = 3600
"""After this time a file that was not renamed is left by a process that was killed."""
MAX_AGE_MS = 30 * 24 * 3600 * 1000
_NAME = re.compile(r"\d{10,25}-\d{1,12}-[0-9a-f]{4,32}\.json")


class Message(msgspec.Struct, frozen=True):
    """What a hook sent: the agent, when, and the payload. `name` is that of its file, "" for a request."""

    agent: str
    at: int
    payload: dict[str, Any]
    name: str = ""


def spooled_names(folder: Path) -> list[str]:
    """Return the names of the files in the order in which they were written; delete what is no message."""
    spool = folder / SPOOL
    try:
        check_folder(spool)
        names = os.listdir(spool)
    except OSError:
        return []
    for name in [name for name in names if not _NAME.fullmatch(name)]:
        _delete_abandoned(spool / name)
    return sorted(name for name in names if _NAME.fullmatch(name))


def read_spooled(folder: Path, name: str) -> Message:
    """Return a message, or raise InvalidInputError if the file has none. Raise OSError if it is gone."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(folder / SPOOL / name, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InvalidInputError(name, f"is no file of a message: {error.strerror}") from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise InvalidInputError(name, "is no file of this user")
        if status.st_size > MAX_FILE_BYTES:
            raise InvalidInputError(name, f"has more than {MAX_FILE_BYTES:,} bytes")
        with open(file, "rb", closefd=False) as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(file)
    return parse_message(data, name)


def parse_message(data: bytes, name: str = "") -> Message:
    """Return the message in the bytes of a file or of a request, or raise InvalidInputError."""
    fields = as_dict(codec.parse_json(data, max_bytes=MAX_FILE_BYTES))
    payload, agent = fields.get("message"), as_str(fields.get("agent"))
    if not isinstance(payload, dict):
        raise InvalidInputError(name or "message", "is not an object")
    now = int(time.time() * 1000)
    at = epoch_ms(fields.get("at"))
    return Message(agent, at if now - MAX_AGE_MS < at <= now else now, as_dict(payload), name)


def delete_spooled(folder: Path, name: str) -> None:
    """Delete a file; a folder under its name is renamed instead, so that it is not looked at again."""
    path = folder / SPOOL / name
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError:
        os.rename(path, folder / SPOOL / f"{name}.{secrets.token_hex(4)}.refused")


def _delete_abandoned(path: Path) -> None:
    try:
        if path.name.endswith(".part") and os.lstat(path).st_mtime < time.time() - ABANDONED_S:
            os.unlink(path)
    except OSError:
        return
