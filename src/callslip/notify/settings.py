"""The settings file of notifications, `notify.toml`. It is the operator's: no other place can name a receiver.

[delays]                        # seconds
approval = 2
finished = 10
idle = 300

[[webhook]]
url = "https://example.org/hook"
format = "json"                 # json or slack
secret = "..."                  # json: signs each message
events = ["approval", "question", "finished", "idle"]
include_text = false            # titles and commands

allow_addresses = ["192.168.1.20", "10.1.0.0/16"]   # at the top: private addresses that may be reached
"""

from __future__ import annotations

import os
import re
import ssl
import stat
import tomllib
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import Meta

from callslip.errors import InvalidInputError, NotFoundError
from callslip.model import codec
from callslip.model.notices import NoticeDelays, NoticeKind

Network = IPv4Network | IPv6Network
MAX_FILE_BYTES = 2**20
MIN_SECRET_CHARS = 16
PORTS = {"http": 80, "https": 443}
DEFAULT_EVENTS: tuple[NoticeKind, ...] = ("approval", "question", "finished")
_URL = re.compile(r"[!-~]{1,2000}")


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A receiver. `ca_file` has the certificates that it is checked against, in place of those of the system."""

    url: str
    format: Literal["json", "slack"] = "json"
    secret: str = ""
    events: tuple[NoticeKind, ...] = DEFAULT_EVENTS
    include_text: bool = False
    allow_http: bool = False
    ca_file: str = ""

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)

    @property
    def name(self) -> str:
        """The host, for messages: the path of a URL may be a secret."""
        return self.parts.hostname or ""

    @property
    def port(self) -> int:
        return self.parts.port or PORTS[self.parts.scheme]

    @property
    def receiver(self) -> str:
        """What identifies the receiver in the ledger."""
        return codec.digest(self.url.encode())[:16]


class NotifySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file. `warning` is what the operator should change."""

    webhooks: tuple[Webhook, ...] = ()
    delays: NoticeDelays = NoticeDelays()
    networks: tuple[Network, ...] = ()
    warning: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    webhook: Annotated[list[Webhook], Meta(max_length=20)] = []
    delays: NoticeDelays = NoticeDelays()
    allow_addresses: list[str] = []


def read_settings(path: Path) -> NotifySettings:
    """Read the settings file, or raise InvalidInputError. No message repeats a URL or a secret."""
    try:
        with path.open("rb") as opened:
            mode, data = os.fstat(opened.fileno()), opened.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"no file {path}") from None
    except OSError as error:
        raise InvalidInputError("--notify", f"{path} cannot be read: {error.strerror}") from None
    if os.name == "posix" and (mode.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or mode.st_uid not in (0, os.getuid())):
        raise InvalidInputError("--notify", f"{path} can be changed by other users; use `chmod go-w` on it")
    file = _parse(path, data)
    for number, webhook in enumerate(file.webhook, 1):
        _check_webhook(webhook, f"{path}: webhook {number}")
    receivers = [webhook.receiver for webhook in file.webhook]
    if len(set(receivers)) < len(receivers):
        raise InvalidInputError("--notify", f"{path}: two webhooks have the same url")
    delays = file.delays
    if not all(0 <= seconds <= 86400 for seconds in (delays.approval, delays.finished, delays.idle)):
        raise InvalidInputError("--notify", f"{path}: delays are from 0 to 86400 seconds")
    is_readable = os.name == "posix" and mode.st_mode & (stat.S_IRGRP | stat.S_IROTH)
    warning = f"{path} can be read by other users, and may have secrets; use `chmod 600` on it" if is_readable else ""
    networks = tuple(_parse_network(text, path) for text in file.allow_addresses)
    return NotifySettings(webhooks=tuple(file.webhook), delays=delays, networks=networks, warning=warning)


def _parse(path: Path, data: bytes) -> _File:
    if len(data) > MAX_FILE_BYTES:
        raise InvalidInputError("--notify", f"{path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        return msgspec.convert(tomllib.loads(data.decode()), _File)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError("--notify", f"{path} is not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise InvalidInputError("--notify", f"{path}: {error}") from None


def _check_webhook(webhook: Webhook, place: str) -> None:
    try:
        parts, port = webhook.parts, webhook.parts.port
    except ValueError:
        raise InvalidInputError("--notify", f"{place}: the url is not valid") from None
    if not _URL.fullmatch(webhook.url) or parts.scheme not in PORTS or not parts.hostname or port == 0:
        raise InvalidInputError("--notify", f"{place}: the url must be https://HOST/PATH in ASCII")
    if parts.username is not None or parts.fragment:
        raise InvalidInputError("--notify", f"{place}: the url must have no user and no #")
    if parts.scheme == "http" and not webhook.allow_http:
        raise InvalidInputError(
            "--notify", f"{place}: http:// is not encrypted; use https://, or set allow_http = true"
        )
    if webhook.ca_file:
        try:
            ssl.create_default_context(cafile=webhook.ca_file)
        except (OSError, ValueError):  # An error of TLS is an OSError.
            raise InvalidInputError("--notify", f"{place}: the ca_file has no certificates that can be read") from None
    if webhook.secret and len(webhook.secret) < MIN_SECRET_CHARS:
        raise InvalidInputError("--notify", f"{place}: the secret must have at least {MIN_SECRET_CHARS} characters")
    if webhook.secret and webhook.format == "slack":
        raise InvalidInputError("--notify", f"{place}: messages to Slack cannot be signed; remove the secret")


def _parse_network(text: str, path: Path) -> Network:
    try:
        return ip_network(text)
    except ValueError:
        problem = f"{path}: allow_addresses has addresses and networks such as 192.168.1.0/24, got {text!r}"
        raise InvalidInputError("--notify", problem) from None
