"""Sign in with a code: the browser of a phone exchanges it for a cookie with a token of its own.

A code has 128 random bits and two minutes, so it cannot be guessed. The limit of attempts keeps a client that tries
from loading the server.
"""

from __future__ import annotations

import time
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from callslip.api.tokens import SIGNED_IN_LIFETIME_S, redeem_code
from callslip.client.token_file import hash_token, mint_token
from callslip.errors import AuthenticationError
from callslip.http.browser_guard import token_cookie
from callslip.http.problems import TooManyAttemptsError
from callslip.http.request import NoQuery, RequestContext, Route, json_response

MAX_ATTEMPTS = 10
ATTEMPTS_WINDOW_S = 60
MAX_CLIENTS = 1000
IPV6_PREFIX = 64
"""How many bits of an IPv6 address count: one client has all addresses of its network."""


class SignIn(msgspec.Struct, forbid_unknown_fields=True):
    """A sign-in code, as in the fragment of the address in a QR code."""

    code: Annotated[str, Meta(min_length=1, max_length=100)]


class SignedIn(msgspec.Struct, rename="camel"):
    """The token that the cookie has, by its id. `can` are its rights, `expiresAt` is its end in ms."""

    id: str
    label: str
    can: tuple[str, ...]
    expires_at: int


class Attempts:
    """The failed attempts of each client within the last minute. Only the newest clients are remembered."""

    def __init__(self) -> None:
        self._failed: dict[str, list[float]] = {}

    def begin(self, client: str) -> None:
        """Count an attempt as failed until it succeeds, or raise TooManyAttemptsError."""
        now = time.monotonic()
        times = [at for at in self._failed.pop(client, ()) if at > now - ATTEMPTS_WINDOW_S]
        self._failed[client] = times
        if len(times) >= MAX_ATTEMPTS:
            raise TooManyAttemptsError(max(1, round(times[0] + ATTEMPTS_WINDOW_S - now)))
        times.append(now)
        if len(self._failed) > MAX_CLIENTS:
            del self._failed[next(iter(self._failed))]

    def succeed(self, client: str) -> None:
        """Forget the attempts of a client that has signed in."""
        self._failed.pop(client, None)


def _client_of(context: RequestContext) -> str:
    client = context.request.client
    try:
        address = ip_address(client.host.partition("%")[0] if client else "")
    except ValueError:
        return ""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return str(ip_network((address, IPV6_PREFIX), strict=False))
    return str(address)


async def sign_in(context: RequestContext) -> Response:
    """Exchange a sign-in code for a cookie. A code works once."""
    server, client = context.server, _client_of(context)
    if not server.accepts_codes:
        raise AuthenticationError("this server accepts no sign-in codes")
    context.query(NoQuery)
    body = await context.body(SignIn)
    server.attempts.begin(client)
    token = mint_token()
    record = await redeem_code(context.ledger.log, hash_token(body.code), hash_token(token))
    server.attempts.succeed(client)
    cookie = token_cookie(context.request.scope, token, SIGNED_IN_LIFETIME_S)
    answer = SignedIn(record.id, record.label, record.verbs, record.expires_at)
    return json_response(answer, headers={"set-cookie": cookie})


ROUTES = (Route("POST", "/v1/sign-in", sign_in, None, NoQuery, SignIn, answers={200: SignedIn}, problems=(401, 429)),)
