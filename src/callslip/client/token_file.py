"""Tokens: how they are created and compared, and the file that keeps the main token between two starts.

The main token allows everything, so it is in a file that only its owner can read. All others are created by
`callslip admin token create` for a session and for verbs, and only their hash is stored, in the ledger.
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
from callslip.model.agent_env import TOKEN_VARIABLE

log = logging.getLogger("callslip.http")

TOKEN_PREFIX = "callslip_"
"""The prefix of a new token: redaction and log scanners recognise it as a secret, and it never looks like an option."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,512}=*")
"""What may follow `Bearer`. None of it needs quoting in a header, a cookie or a shell."""

MIN_MAIN_TOKEN_CHARS = 16
"""Failed attempts are not counted, so the main token must be too long to guess."""


def mint_token() -> str:
    """Return a new token with 256 random bits."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def mint_code() -> str:
    """Return a new sign-in code with 128 random bits: it is valid for minutes, and a QR code of it stays small."""
    return secrets.token_urlsafe(16)


def hash_token(token: str) -> str:
    """Return what is stored of a token. The token has as many random bits as the hash, so a plain hash is safe."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def hashes_equal(one: str, other: str) -> bool:
    """Compare two hashes in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def check_token(token: str, field: str) -> str:
    """Return a token, or raise if it cannot be sent as one. The message does not contain it."""
    if not _TOKEN.fullmatch(token):
        raise InvalidInputError(field, "a token consists of letters, digits and -._~+/")
    return token


def check_main_token(token: str, field: str) -> str:
    """Return a token, or raise if it is too short to be the main token."""
    if len(check_token(token, field)) < MIN_MAIN_TOKEN_CHARS:
        raise InvalidInputError(field, f"the main token must have at least {MIN_MAIN_TOKEN_CHARS} characters")
    return token


def main_token(folder: Path, token: str = "") -> str:
    """Return the main token: the argument, else CALLSLIP_TOKEN, else that of the file, which is created if needed.

    A token from the argument or the variable is not stored.
    """
    if token:
        return check_main_token(token, "--token")
    if os.environ.get(TOKEN_VARIABLE):
        return check_main_token(os.environ[TOKEN_VARIABLE], TOKEN_VARIABLE)
    return stored_token(folder / "token")


def stored_token(path: Path) -> str:
    """Return the token of a file, which is created if needed."""
    try:
        if not path.exists():
            _create(path)
        return _read(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read or created: {error.strerror}") from error


def _create(path: Path) -> None:
    """Write the token to a temporary file and link it into place: two processes that start at once use the same one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".token-{secrets.token_hex(8)}")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "w") as out:
            out.write(mint_token() + "\n")
            out.flush()
            os.fsync(out.fileno())
        _link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _link(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:  # A file system without links: the last one wins, and is complete.
        os.replace(temporary, path)


def _read(path: Path) -> str:
    token = path.read_bytes()[:1024].decode("utf-8", "replace").strip()
    if not _TOKEN.fullmatch(token):
        raise StoreError(f"{path}: contains no token; delete it, and the next start creates one")
    if os.name == "posix" and path.stat().st_mode & 0o077:
        log.warning("%s can be read by other users, who can then do everything. Delete it to get a new token", path)
    return token
