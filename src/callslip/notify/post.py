"""Post a message to a webhook: one connection, one request, only the status of the answer.

Written on asyncio, so that one limit covers the name, the connection, TLS and a receiver that answers byte by byte, and
so that the connection goes to the address that was checked. Redirects are not followed, and proxies are not used.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from callslip._version import __version__
from callslip.notify.addresses import AddressNotAllowedError, Endpoint, find_endpoints
from callslip.notify.settings import Network, Webhook

TIMEOUT_S = 10.0
"""How long a delivery may take in all."""
CONNECT_TIMEOUT_S = 3.0
"""How long one of several addresses has to accept a connection, so that the next one is tried."""
MAX_HEAD_BYTES = 16 * 2**10
MAX_RETRY_AFTER_S = 600
RETRIED = frozenset((408, 425, 429, *range(500, 600)))
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r)")
_RETRY_AFTER = re.compile(rb"\r\nretry-after: *(\d{1,6}) *\r\n", re.IGNORECASE)


class Outcome(NamedTuple):
    """The result of a delivery. Without a `problem` it was accepted."""

    problem: str = ""
    may_retry: bool = False
    retry_after_s: int = 0


async def post(
    webhook: Webhook, body: bytes, headers: Mapping[str, str], networks: Sequence[Network], timeout_s: float = TIMEOUT_S
) -> Outcome:
    """Post a body. No problem contains the URL, which may be a secret."""
    try:
        async with asyncio.timeout(timeout_s):
            head = await _exchange(webhook, _encode(webhook, body, headers), networks)
    except AddressNotAllowedError as error:
        return Outcome(str(error))
    except TimeoutError:
        return Outcome(f"no answer within {timeout_s:g} s", may_retry=True)
    except ssl.SSLCertVerificationError as error:
        return Outcome(f"the certificate is not valid: {error.verify_message}", may_retry=True)
    except (OSError, EOFError) as error:
        return Outcome(f"cannot be reached: {_describe(error)}", may_retry=True)
    except (ValueError, asyncio.LimitOverrunError):
        return Outcome("does not speak HTTP/1.1", may_retry=True)
    return _read_outcome(head)


def _describe(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the connection was closed"
    return (error.strerror if isinstance(error, OSError) else "") or type(error).__name__


def _encode(webhook: Webhook, body: bytes, headers: Mapping[str, str]) -> bytes:
    parts = webhook.parts
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc
    lines = [f"POST {target} HTTP/1.1", f"host: {host}", f"user-agent: callslip/{__version__}", "connection: close"]
    lines += ["accept: */*", f"content-length: {len(body)}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


async def _exchange(webhook: Webhook, request: bytes, networks: Sequence[Network]) -> bytes:
    """Send a request, and return the head of the answer."""
    host = webhook.name
    context = _tls_context(webhook.ca_file) if webhook.parts.scheme == "https" else None
    connection = await _connect(await find_endpoints(host, webhook.port, networks))
    try:
        reader, writer = await asyncio.open_connection(
            sock=connection, ssl=context, server_hostname=host if context else None, limit=MAX_HEAD_BYTES
        )
    except BaseException:
        connection.close()
        raise
    try:
        writer.write(request)
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            match = _STATUS.match(head)
            if match is None:
                raise ValueError("no status")
            if int(match[1]) >= 200:
                return head
    finally:
        writer.transport.abort()


@lru_cache(32)
def _tls_context(ca_file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file or None)


async def _connect(endpoints: Sequence[Endpoint]) -> socket.socket:
    """Return a connection to the first address that accepts one."""
    loop = asyncio.get_running_loop()
    problem: OSError = OSError("no address")
    for number, (family, sockaddr) in enumerate(endpoints, 1):
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S if number < len(endpoints) else None):
                await loop.sock_connect(connection, sockaddr)
            return connection
        except OSError as error:
            connection.close()
            problem = error
        except BaseException:
            connection.close()
            raise
    raise problem


def _read_outcome(head: bytes) -> Outcome:
    match = _STATUS.match(head)
    status = int(match[1]) if match else 0
    if 200 <= status < 300:
        return Outcome()
    if 300 <= status < 400:
        return Outcome(f"answered {status}: redirects are not followed")
    delay = _RETRY_AFTER.search(head)
    retry_after_s = min(int(delay[1]), MAX_RETRY_AFTER_S) if delay else 0
    return Outcome(f"answered {status}", may_retry=status in RETRIED, retry_after_s=retry_after_s)
