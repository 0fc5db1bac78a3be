"""Sign in with a phone: codes, `serve --lan`, TLS, and `callslip admin token qr`."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import stat
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import pytest
import zxingcpp

import callslip
from callslip.api.ledger import LocalLedger
from callslip.api.tokens import CODE_LIFETIME_S, SIGNED_IN_LIFETIME_S, create_code, list_tokens, revoke_token
from callslip.cli import exit_status
from callslip.cli.terminal.qr_code import draw_text, encode_text
from callslip.client.token_file import hash_token, mint_code
from callslip.errors import InvalidInputError
from callslip.http import standalone
from callslip.http.sign_in import MAX_ATTEMPTS, Attempts
from callslip.settings import Settings
from tests.support.certificates import Certificate, create_certificate
from tests.support.cli_process import Terminal, run_in_process, serving
from tests.support.live_server import HttpResponse, fetch, running

MAIN_TOKEN = "the-main-token-of-this-test"
LAN = "127.0.0.2"
"""An address of this machine that is not the default one, in place of one in a local network."""


# Codes


@pytest.fixture
async def ledger() -> AsyncIterator[LocalLedger]:
    async with callslip.open("sqlite:///:memory:", Settings(reaper_interval=3600.0)) as open_ledger:
        yield open_ledger


async def new_code(ledger: LocalLedger, **options: Any) -> str:
    code = mint_code()
    await create_code(ledger.log, hash_token(code), verbs=("read", "approve"), label="phone", **options)
    return code


async def sign_in(url: str, code: Any, **headers: str) -> HttpResponse:
    body = json.dumps({"code": code}).encode()
    return await fetch(f"{url}/v1/sign-in", "POST", headers={"content-type": "application/json", **headers}, body=body)


def cookie_of(response: HttpResponse) -> tuple[str, Any]:
    """Return the header that sends a cookie back, and the cookie."""
    cookie = SimpleCookie(response.headers["set-cookie"])["callslip"]
    return f"callslip={cookie.value}", cookie


@pytest.mark.anyio
async def test_a_code_is_exchanged_once_for_a_token_with_an_end(ledger: LocalLedger) -> None:
    """PHN1: the cookie has a token of its own with the rights of the code, listed and revocable like any other."""
    code = await new_code(ledger)
    async with running(standalone(ledger, MAIN_TOKEN)) as url:
        answer = await sign_in(url, code)
        assert answer.status == 200, answer.text
        header, cookie = cookie_of(answer)
        assert cookie["httponly"] and cookie["samesite"] == "Strict" and cookie["max-age"] == str(SIGNED_IN_LIFETIME_S)
        assert cookie.value not in answer.text and code not in answer.text
        (record,) = await list_tokens(ledger.log)
        body = answer.json()
        assert body == {"id": record.id, "label": "phone", "can": ["read", "approve"], "expiresAt": record.expires_at}
        assert record.expires_at - record.created_at == SIGNED_IN_LIFETIME_S * 1000
        assert (await fetch(f"{url}/v1/sessions", headers={"cookie": header})).status == 200
        denied = await fetch(f"{url}/v1/sessions/x/events", "POST", headers={"cookie": header}, value=[])
        assert denied.status == 403, "it may not write"
        for again in (code, cookie.value):
            assert (await sign_in(url, again)).status == 401
        await revoke_token(ledger.log, record.id)
        assert (await fetch(f"{url}/v1/sessions", headers={"cookie": header})).status == 401


@pytest.mark.anyio
async def test_a_code_that_many_present_at_once_gives_one_token(ledger: LocalLedger) -> None:
    """PHN1: of any number of requests one gets a token, on two servers of one ledger."""
    code = await new_code(ledger)
    async with running(standalone(ledger, MAIN_TOKEN)) as url, running(standalone(ledger, MAIN_TOKEN)) as other:
        answers = await asyncio.gather(*(sign_in(address, code) for address in (url, other) * 4))
    assert sorted(answer.status for answer in answers) == [200] + [401] * 7
    assert len(await list_tokens(ledger.log)) == 1


@pytest.mark.anyio
async def test_a_code_is_no_token_and_ends_by_time_or_revocation(
    ledger: LocalLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PHN2: as a token, after two minutes, or after it was revoked, it gives no access."""
    code, late, revoked = [await new_code(ledger) for _ in range(3)]
    async with running(standalone(ledger, MAIN_TOKEN)) as url:
        for headers in ({"authorization": f"Bearer {code}"}, {"cookie": f"callslip={code}"}):
            assert (await fetch(f"{url}/v1/sessions", headers=headers)).status == 401
        page = await fetch(f"{url}/?token={code}", headers={"accept": "text/html"})
        assert "set-cookie" not in page.headers
        (of_revoked,) = [record for record in await list_tokens(ledger.log) if record.hash == hash_token(revoked)]
        await revoke_token(ledger.log, of_revoked.id)
        assert (await sign_in(url, revoked)).status == 401
        now, clock = await ledger.log.store.clock(), type(ledger.log.store).clock

        async def later(store: Any) -> int:
            return await clock(store) + CODE_LIFETIME_S * 1000

        monkeypatch.setattr(type(ledger.log.store), "clock", later)
        assert (await sign_in(url, late)).status == 401
        assert {record.expires_at - record.created_at for record in await list_tokens(ledger.log)} == {120_000}
        await new_code(ledger)
        (remaining,) = await list_tokens(ledger.log)
        assert remaining.created_at >= now + 120_000, "codes that have expired are deleted with the next new one"


@pytest.mark.anyio
async def test_guesses_are_limited(ledger: LocalLedger) -> None:
    """PHN3: after some wrong codes a client waits, also with a right one; pages of other origins may not try at all."""
    code = await new_code(ledger)
    async with running(standalone(ledger, MAIN_TOKEN)) as url:
        assert (await sign_in(url, code, origin="http://evil.example")).status == 403
        assert (await sign_in(url, code, host="evil.example")).status == 403
        for wrong in ("", "x" * 101, 5, None):
            assert (await sign_in(url, wrong)).status == 400
        assert (await fetch(f"{url}/v1/sign-in")).status == 405
        for _ in range(MAX_ATTEMPTS):
            assert (await sign_in(url, mint_code())).status == 401
        answer = await sign_in(url, code)
        assert answer.status == 429 and 1 <= int(answer.headers["retry-after"]) <= 60
    async with running(standalone(ledger, MAIN_TOKEN)) as url:
        assert (await sign_in(url, code)).status == 200, "the refused attempts did not use the code"
    async with running(standalone(ledger, MAIN_TOKEN, allow_origins=["*"])) as url:
        assert (await sign_in(url, await new_code(ledger))).status == 401, "this server sets no cookies"


def test_the_limit_remembers_few_clients() -> None:
    """PHN3: a client with many addresses cannot fill the memory."""
    attempts = Attempts()
    for number in range(5000):
        attempts.begin(str(number))
    assert len(attempts._failed) == 1000


# QR codes


def read_qr_code(lines: list[str]) -> str:
    """Read a code that is drawn with half blocks, with another implementation."""
    halves = {"█": (0, 0), "▀": (0, 1), "▄": (1, 0), " ": (1, 1)}
    rows = [[halves[character][half] for character in line] for line in lines for half in (0, 1)]
    scale = 3
    pixels = bytes(0 if dark else 255 for row in rows for _ in range(scale) for dark in row for _ in range(scale))
    image = memoryview(pixels).cast("B", (len(rows) * scale, len(rows[0]) * scale))
    (found,) = zxingcpp.read_barcodes(image)
    return found.text


def test_a_drawn_code_is_read_by_another_implementation() -> None:
    """PHN4: URLs of every length that fits, in all ten sizes."""
    sizes: set[int] = set()
    for length in [1, *range(12, 214, 13), 213]:
        text = ("http://192.168.100.200:7890/#sign-in=" + "aZ9_-é" * 40).encode()[:length].decode("utf-8", "ignore")
        assert read_qr_code(draw_text(text, has_colors=False).split("\n")) == text
        sizes.add(len(encode_text(text)))
    assert sizes == {17 + 4 * version for version in range(1, 11)}
    with pytest.raises(InvalidInputError, match="213"):
        encode_text("x" * 214)


# A server in the local network


def get(url: str, host: str = "", **options: Any) -> int:
    request = urllib.request.Request(url, headers={"host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=60, **options) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_lan_server_answers_at_its_address_and_no_other_name(tmp_path: Path) -> None:
    """PHN5: it warns without TLS, listens on two addresses, and refuses names that DNS may point at it."""
    with serving(tmp_path / "a.db", "--lan", "--host", LAN, "--port", "0") as server:
        assert "without --tls-cert" in server.err[0]
        phone_url = server.info["phoneUrl"]
        assert phone_url == server.url.replace("127.0.0.1", LAN)
        file = tmp_path / "a.db.server"
        assert json.loads(file.read_text())["phone_url"] == phone_url and stat.S_IMODE(file.stat().st_mode) == 0o600
        for url in (server.url, phone_url):
            assert get(f"{url}/healthz") == 200
            port = url.rpartition(":")[2]
            for host in ("evil.example", "192.168.1.1", "0.0.0.0", f"{LAN}.evil.example", "127.0.0.3"):
                assert get(f"{url}/healthz", f"{host}:{port}") == 403, host
        assert not any("#sign-in=" in line for line in server.err), "no code without a terminal"
        result = run_in_process("admin", "token", "qr", "--db", str(tmp_path / "a.db"))
        link, *picture = result.stdout.strip().split("\n"), *result.stderr.split("\n")
        assert link[0].startswith(f"{phone_url}/#sign-in=")
        assert read_qr_code([line for line in picture if line and set(line) <= set("█▀▄ ")]) == link[0]


def test_a_code_from_the_command_line_is_listed_and_revoked(tmp_path: Path) -> None:
    """PHN2: with its rights, until it was used."""
    db = ["--db", str(tmp_path / "a.db")]
    missing = run_in_process("admin", "token", "qr", "--url", "http://x", *db)
    assert missing.returncode == exit_status.NOT_FOUND
    with serving(tmp_path / "a.db") as server:
        refused = run_in_process("admin", "token", "qr", *db)
        assert refused.returncode == exit_status.NOT_FOUND and "serve --lan" in refused.stderr
        shown = run_in_process("admin", "token", "qr", "--url", server.url, "--can", "read", "--json", *db)
        code = json.loads(shown.stdout)
        assert code["url"].startswith(f"{server.url}/#sign-in=") and code["can"] == ["sign-in:read"]
        assert code["id"] in run_in_process("admin", "token", "ls", *db).stdout
        assert run_in_process("admin", "token", "revoke", code["id"], *db).returncode == 0
        answer = asyncio.run(sign_in(server.url, code["url"].partition("=")[2]))
        assert answer.status == 401
        long = run_in_process("admin", "token", "qr", "--url", f"https://example.org/{'x' * 200}", *db)
        assert long.returncode == 0 and "too long for a QR code" in long.stderr and "#sign-in=" in long.stdout


def test_a_key_shows_a_new_code_on_the_terminal(tmp_path: Path) -> None:
    """PHN4: the picture has the printed address; a new code replaces the one before."""
    terminal = Terminal("serve", "--lan", "--host", LAN, "--port", "0", "--db", str(tmp_path / "a.db"))
    try:
        terminal.until("Press q for a new one.")
        first = re.findall(r"http://\S+#sign-in=\S+", terminal.screen_text)
        picture = [line for line in terminal.screen_text.split("\n") if len(line) > 20 and set(line) <= set("█▀▄ ")]
        assert read_qr_code(picture) == first[0]
        terminal.press("q")
        terminal.until("Press q for a new one.", 2)
        _, second = re.findall(r"http://\S+#sign-in=\S+", terminal.screen_text)
        url, _, old = first[0].partition("/#sign-in=")
        assert asyncio.run(sign_in(url, old)).status == 401
        assert asyncio.run(sign_in(url, second.partition("=")[2])).status == 200
        terminal.press("\x03")
        assert terminal.close() == exit_status.INTERRUPTED
    finally:
        terminal.kill()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return create_certificate(tmp_path_factory.mktemp("tls"), LAN, "127.0.0.1")


def test_tls_is_for_the_network(tmp_path: Path, certificate: Certificate) -> None:
    """PHN6: phones get HTTPS and no warning is printed; this machine keeps HTTP; cookies of HTTPS are secure."""
    files = ("--tls-cert", certificate.cert, "--tls-key", certificate.key)
    trust = ssl.create_default_context(cafile=certificate.cert)
    with serving(tmp_path / "a.db", "--lan", "--host", LAN, "--port", "0", *files) as server:
        phone_url = server.info["phoneUrl"]
        assert phone_url.startswith("https://127.0.0.2:") and not any("warning" in line for line in server.err)
        assert get(f"{server.url}/healthz") == get(f"{phone_url}/healthz", context=trust) == 200
        with pytest.raises(OSError):
            get(f"{phone_url}/healthz".replace("https", "http"))
        link = run_in_process("admin", "token", "qr", "--db", str(tmp_path / "a.db")).stdout.strip()
        body = json.dumps({"code": link.partition("=")[2]}).encode()
        request = urllib.request.Request(f"{phone_url}/v1/sign-in", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60, context=trust) as answer:
            assert "Secure" in answer.headers["set-cookie"]
    with serving(tmp_path / "a.db", "--port", "0", *files) as server:
        assert server.url.startswith("https://127.0.0.1:") and get(f"{server.url}/healthz", context=trust) == 200


def test_wrong_options_are_refused(tmp_path: Path, certificate: Certificate) -> None:
    """PHN6: one line says what is wrong."""
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for arguments, words in (
        (["--lan", "--host", "0.0.0.0"], "must be one address"),
        (["--lan", "--host", "0"], "must be one address"),
        (["--lan", "--host", "::0"], "must be one address"),
        (["--lan", "--host", "localhost"], "must be one address"),
        (["--lan", "--host", "192.0.2.77"], "must be an address of this machine"),
        (["--tls-key", certificate.key], "needs --tls-cert"),
        (["--tls-cert", str(empty)], "cannot be used"),
        (["--tls-cert", str(tmp_path / "none")], "No such file"),
        (["--public-url", "example.org"], "must be https://HOST"),
        (["--public-url", "https://user@example.org"], "must be https://HOST"),
        (["--public-url", "https://example.org/?a=b"], "must be https://HOST"),
    ):
        result = run_in_process("serve", "--port", "0", *arguments, "--db", str(tmp_path / "a.db"))
        assert result.returncode == exit_status.USAGE and words in result.stderr, (arguments, result)


def test_a_public_url_is_accepted_as_a_host(tmp_path: Path) -> None:
    """PHN5: requests by that name, and from its page, are those of this server."""
    with serving(tmp_path / "a.db", "--port", "0", "--public-url", "https://callslip.example.org/") as server:
        assert server.info["phoneUrl"] == "https://callslip.example.org"
        assert get(f"{server.url}/healthz", "callslip.example.org") == 200
        assert get(f"{server.url}/healthz", "other.example.org") == 403
