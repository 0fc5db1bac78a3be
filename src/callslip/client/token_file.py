"""Tokens: how they are made and known again, and the file that keeps the main one between two starts.

The main token opens everything, so it lives in one file that only its owner can read. All others are made by
`callslip admin token create`, for a session and for verbs, and only their hash is kept, in the ledger.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
from pathlib import Path

from callslip.errors import InvalidInputError, StoreError

log = logging.getLogger("callslip.http")

VARIABLE = "CALLSLIP_TOKEN"
SCOPED = "callslip_"
"""What a token for a part begins with: a reader of logs knows it for a secret, and it never looks like an option."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,512}=*")
"""What may follow `Bearer`. Nothing of it needs quoting in a header, a cookie or a shell."""

SHORTEST = 16
"""Of a token that opens everything: wrong ones are not counted, so it must not be found by trying."""


def mint_token() -> str:
    """A new token, with 256 bits of chance."""
    return secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """What is kept of a token. It has as much chance in it as the hash, so a plain hash cannot be guessed back."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def hashes_equal(one: str, other: str) -> bool:
    """Whether two hashes are the same, in a time that tells nothing."""
    return hmac.compare_digest(one.encode(), other.encode())


def check_token(token: str, said_by: str) -> str:
    """A token that can be sent as one, or Refused. The words do not repeat it."""
    if not _TOKEN.fullmatch(token):
        raise InvalidInputError(said_by, "a token has letters, digits and -._~+/ only, and at least one of them")
    return token


def check_main_token(token: str, said_by: str) -> str:
    """A token that may open everything, or Refused."""
    if len(check_token(token, said_by)) < SHORTEST:
        raise InvalidInputError(said_by, f"a token that opens everything has at least {SHORTEST} characters")
    return token


def main_token(folder: Path, given: str = "") -> str:
    """The token that opens everything: the given one, else CALLSLIP_TOKEN, else that of the file, made if need be.

    One that was given is used as long as this process runs, and is not stored.
    """
    if given:
        return check_main_token(given, "--token")
    if os.environ.get(VARIABLE):
        return check_main_token(os.environ[VARIABLE], VARIABLE)
    path = folder / "token"
    try:
        if not path.exists():
            _make(path)
        return _read(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be read or made: {error.strerror}") from error


def _make(path: Path) -> None:
    """Write it beside and link it into place: of two that start at once, both have the token of the first."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".token-{secrets.token_hex(8)}")
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "w") as out:
            out.write(mint_token() + "\n")
            out.flush()
            os.fsync(out.fileno())
        _link(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _link(beside: Path, path: Path) -> None:
    try:
        os.link(beside, path)
    except FileExistsError:
        pass
    except OSError:  # A file system without links: the last one wins, whole all the same.
        os.replace(beside, path)


def _read(path: Path) -> str:
    token = path.read_bytes()[:1024].decode("utf-8", "replace").strip()
    if not _TOKEN.fullmatch(token):
        raise StoreError(f"{path} holds no token; delete it, and the next start makes one")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        log.warning("%s can be read by others: they can do everything here. Delete it to get a new token", path)
    return token
