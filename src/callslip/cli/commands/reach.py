"""How a server is reached, and whom it notifies: the options that `callslip serve` and `callslip up` share."""

from __future__ import annotations

import functools
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from callslip.cli.terminal import tables
from callslip.client.location import data_folder
from callslip.errors import InvalidInputError, StoreError

if TYPE_CHECKING:
    from callslip.notify.settings import NotifySettings

LOOPBACK = "127.0.0.1"
PROBES = ((socket.AF_INET, "198.51.100.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses for documentation: the system chooses our address for them, and nothing is sent."""
NOTIFY_FILE = "notify.toml"


@dataclass(frozen=True)
class Reach:
    """Where a server listens. With `lan` it listens on 127.0.0.1, and on `host` for other machines in the network.

    With `lan`, TLS is for `host` only: what stays on this machine needs none.
    """

    host: str
    lan: bool = False
    tls: ssl.SSLContext | None = None
    public_url: str = ""
    notify: NotifySettings | None = None

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """Names that requests may use, besides the address of the server and those of --allow-host."""
        host = urlsplit(self.public_url).hostname if self.public_url else None
        return (f"[{host}]" if ":" in host else host,) if host else ()

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        """The origin of the server's own pages, as a browser sees it behind a proxy."""
        parts = urlsplit(self.public_url)
        return (f"{parts.scheme}://{parts.netloc}",) if self.public_url else ()


OPTIONS = (
    click.option("--host", metavar="ADDRESS", help="The address to listen on. [default: 127.0.0.1]"),
    click.option(
        "--lan",
        is_flag=True,
        help="Also listen on the address of this machine in the local network, or on that of --host, and show a QR "
        "code to sign in with a phone.",
    ),
    click.option(
        "--tls-cert", metavar="FILE", help="The certificate for TLS, as PEM. With --lan, only the network uses TLS."
    ),
    click.option("--tls-key", metavar="FILE", help="The key of the certificate. [default: in the same file]"),
    click.option(
        "--public-url",
        metavar="URL",
        default="",
        help="The address of this server for other machines: for links in notifications, and the QR code.",
    ),
    click.option(
        "--notify",
        metavar="FILE",
        help=f"The settings of notifications. [default: {NOTIFY_FILE} in the user's data folder, if it exists]",
    ),
)


def reach_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options. The command gets their values as `reach`."""

    @functools.wraps(command)
    def run(
        *,
        host: str | None,
        lan: bool,
        tls_cert: str | None,
        tls_key: str | None,
        public_url: str,
        notify: str | None,
        **others: Any,
    ) -> int:
        reach = Reach(
            _find_host(host, lan),
            lan,
            _load_certificate(tls_cert, tls_key),
            check_public_url(public_url, "--public-url") if public_url else "",
            read_notify_settings(notify),
        )
        return command(reach=reach, **others)

    return functools.reduce(lambda decorated, option: option(decorated), reversed(OPTIONS), run)


def _find_host(host: str | None, lan: bool) -> str:
    """Return the address to listen on."""
    if host is None:
        return find_lan_address() if lan else LOOPBACK
    host = host.removeprefix("[").removesuffix("]")
    if lan and not _is_lan_address(host):
        raise InvalidInputError("--host", "must be one address in a network with --lan; leave it out for the usual one")
    return host


def _is_lan_address(host: str) -> bool:
    """Return whether a host is one address, and not the one on which a server with `lan` listens in any case."""
    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None)} if host else set[str]()
    except (OSError, UnicodeError):
        return True  # Listening there fails, with the reason.
    return bool(found) and LOOPBACK not in found and not any(ip_address(each).is_unspecified for each in found)


def find_lan_address() -> str:
    """Return the address of this machine that the system uses for other machines, unless the internet can reach it."""
    for family, target in PROBES:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                address = str(probe.getsockname()[0])
        except OSError:
            continue
        if ip_address(address).is_global:
            problem = f"{address} can be reached from the internet. To use it, name it with --host {address}"
            raise InvalidInputError("--lan", problem)
        return address
    raise StoreError("this machine has no address in a network; name one with --host")


def check_public_url(text: str, field: str) -> str:
    """Return a URL without a slash at its end, or raise InvalidInputError."""
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise InvalidInputError(field, "must be https://HOST or https://HOST/PATH") from None
    if not is_valid or parts.query or parts.fragment or parts.username is not None or not text.isascii():
        raise InvalidInputError(field, "must be https://HOST or https://HOST/PATH")
    return text.rstrip("/")


def _load_certificate(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    if cert is None:
        if key is not None:
            raise InvalidInputError("--tls-key", "needs --tls-cert")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ValueError) as error:  # An error of TLS is an OSError.
        reason = error.strerror if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) else ""
        files = f"{cert} and {key}" if key else cert
        problem = f"{files} cannot be used: {reason or 'no certificate with its key, without a password'}"
        raise InvalidInputError("--tls-cert", problem) from None
    return context


def read_notify_settings(path: str | None) -> NotifySettings | None:
    """Return the settings of notifications: of the file that is named, else of the default one; None without both."""
    default = data_folder() / NOTIFY_FILE
    if path is None and not default.exists():
        return None
    from callslip.notify.settings import read_settings

    settings = read_settings(Path(path) if path is not None else default)
    if settings.warning:
        tables.print_status(f"warning: {settings.warning}")
    return settings
