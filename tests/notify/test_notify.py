"""Notifications to webhooks: what is sent, to which addresses, how often, and what happens if a receiver fails."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api import notices
from callslip.api.ledger import LocalLedger
from callslip.api.notices import KEY_PREFIX, NoticeClaims
from callslip.cli import exit_status
from callslip.errors import InvalidInputError, StoreError
from callslip.ledger import liveness
from callslip.model import events as ev
from callslip.model.events import Alias
from callslip.model.notices import NoticeDelays
from callslip.notify import notifier as notifier_module
from callslip.notify import post as post_module
from callslip.notify.addresses import may_reach
from callslip.notify.messages import make_link, sign
from callslip.notify.notifier import Notifier
from callslip.notify.post import Outcome, post
from callslip.notify.settings import NotifySettings, Webhook, read_settings
from callslip.settings import Settings
from tests.support.certificates import create_certificate
from tests.support.cli_process import ServeProcess, run_in_process
from tests.support.doc_examples import find_blocks
from tests.support.paths import ROOT
from tests.support.webhook_receiver import WebhookReceiver, answer, receiving

pytestmark = pytest.mark.anyio

SECRET = "a-secret-for-signatures"
COMMAND = "rm -rf /srv/private-5ecret"
LOCAL = ip_network("127.0.0.0/8")
SETTINGS = Settings(reaper_interval=3600.0)
NO_DELAYS = NoticeDelays(approval=0, finished=0, idle=0)
GUIDE = "docs/guides/notifications.md"
PUBLIC_URL = "https://callslip.example.org"


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with callslip.open(db, SETTINGS) as open_ledger:
        yield open_ledger


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with receiving() as running:
        yield running


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier_module, "COALESCE_S", 0.01)
    monkeypatch.setattr(notifier_module, "ERROR_DELAY_S", 0.01)


def write_settings(folder: Path, *webhooks: str, top: str = 'allow_addresses = ["127.0.0.1"]') -> NotifySettings:
    """Write a settings file with these webhooks, and read it."""
    delays = "[delays]\napproval = 0\nfinished = 0\nidle = 0\n"
    file = folder / "notify.toml"
    file.write_text("\n".join([top, delays, *(f"[[webhook]]\n{webhook}\n" for webhook in webhooks)]))
    file.chmod(0o600)
    return read_settings(file)


def plain(receiver: WebhookReceiver, *lines: str) -> str:
    return "\n".join([f'url = "http://127.0.0.1:{receiver.port}/hook?key=url-5ecret"', "allow_http = true", *lines])


def start(ledger: LocalLedger, settings: NotifySettings, reports: list[str] | None = None) -> Any:
    report: Callable[[str], None] = (reports if reports is not None else []).append
    return Notifier(ledger.log, settings, PUBLIC_URL, report, delays_s=(0.01,)).running()


async def ask(ledger: LocalLedger, session: str, tool: str = "Bash") -> str:
    """Append a request for approval, and return its id."""
    aliases = (Alias("t", f"call of {session}"),)
    proposal = ev.CallProposed(
        tool_name=tool, title=COMMAND, input={"command": COMMAND}, aliases=aliases, scope="detached"
    )
    await ledger.log.append(session, [proposal, ev.ApprovalRequested(aliases=aliases, description=COMMAND)])
    (request,) = await ledger.approvals(session=session)
    return request.id


async def run_turn(ledger: LocalLedger, session: str, *more: ev.Event, agent: str = "codex") -> None:
    info = ev.SessionInfo(agent=agent)
    await ledger.log.append(session, [info, ev.TurnStarted(), ev.MessageUser(text=COMMAND), ev.TurnEnded(), *more])


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(60):
        while not (value := await condition()):
            await asyncio.sleep(0.01)
        return value


async def states(ledger: LocalLedger) -> list[str]:
    """Return what is stored of notices: sent, failed or claimed."""
    return [value.partition(" ")[0] for _, value in await ledger.log.store.list_meta(KEY_PREFIX)]


# What is sent


async def test_a_request_is_sent_once_without_its_command(
    ledger: LocalLedger, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    """NTF1: with the names, the link, and a signature; a server that starts again sends nothing twice."""
    settings = write_settings(tmp_path, plain(receiver, f'secret = "{SECRET}"'))
    approval = await ask(ledger, "a b")
    async with start(ledger, settings):
        (delivery,) = await receiver.until_count(1)
        assert delivery.line == "POST /hook?key=url-5ecret HTTP/1.1"
        (request,) = await ledger.approvals(session="a b")
        assert delivery.json == {
            "version": 1,
            "id": approval,
            "event": "approval.pending",
            "time": request.created_at,
            "session": "a b",
            "tool": "Bash",
            "approval": approval,
            "url": f"{PUBLIC_URL}/s/a%20b#entry-{request.entry}",
        }
        headers = delivery.headers
        assert headers["host"] == f"127.0.0.1:{receiver.port}" and headers["callslip-id"] == approval
        signed = headers["callslip-timestamp"].encode() + b"." + delivery.body
        assert headers["callslip-signature"] == f"v1={hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()}"
        await until(lambda: _equals(states(ledger), ["sent"]))
    async with start(ledger, settings):
        second = await ask(ledger, "second")
        await receiver.until(lambda: any(one.json["id"] == second for one in receiver.deliveries))
    assert [one.json["id"] for one in receiver.deliveries] == [approval, second]


async def _equals(read: Awaitable[Any], value: Any) -> bool:
    return await read == value


async def test_texts_are_sent_only_if_enabled(ledger: LocalLedger, receiver: WebhookReceiver, tmp_path: Path) -> None:
    """NTF2: titles, commands and projects, in both formats; Slack gets them as plain text."""
    async with receiving() as silent, receiving() as slack:
        settings = write_settings(
            tmp_path,
            plain(receiver, "include_text = true"),
            plain(silent, 'format = "slack"'),
            plain(slack, 'format = "slack"', "include_text = true"),
        )
        async with start(ledger, settings):
            aliases = (Alias("t", "1"),)
            title = "<!channel> & <https://evil.example|click>"
            request = ev.ApprovalRequested(aliases=aliases, description=COMMAND)
            await ledger.log.append("s", [ev.CallProposed(tool_name="Bash", title=title, aliases=aliases), request])
            (verbose,), (short,), (full,) = [await one.until_count(1) for one in (receiver, silent, slack)]
    assert (verbose.json["title"], verbose.json["text"]) == (title, COMMAND)
    assert b"5ecret" not in short.body and b"evil" not in short.body
    section, link = full.json["blocks"]
    assert section["text"]["type"] == "plain_text" and title in section["text"]["text"]
    assert COMMAND in section["text"]["text"] and "<" not in full.json["text"]
    assert link["text"]["text"].startswith(f"<{PUBLIC_URL}/s/s#entry-") and link["text"]["text"].endswith("|Open>")


async def test_questions_and_the_ends_of_turns_are_sent(
    ledger: LocalLedger, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    """NTF3: by the state of the session; an agent that works or whose program has ended is not idle."""
    every = 'events = ["approval", "question", "finished", "idle"]'
    settings = write_settings(tmp_path, plain(receiver, every))
    await run_turn(ledger, "done")
    await run_turn(ledger, "ended", ev.SessionInfo(ended=True))
    await run_turn(ledger, "works", ev.TurnStarted())
    await ledger.log.append("without turns", [ev.MessageUser(text="hi")])
    await ask(ledger, "asks", "mcp__user__AskUserQuestion")
    async with start(ledger, settings):
        deliveries = await receiver.until_count(4)
        sent = {(one.json["event"], one.json["session"]) for one in deliveries}
        assert sent == {
            ("agent.finished", "done"),
            ("agent.idle", "done"),
            ("agent.finished", "ended"),
            ("question.pending", "asks"),
        }
        (finished,) = [one.json for one in deliveries if one.json["event"] == "agent.idle"]
        assert (finished["agent"], finished["url"]) == ("codex", f"{PUBLIC_URL}/s/done")
        await run_turn(ledger, "done")
        await receiver.until_count(6)
    assert [one.json["session"] for one in receiver.deliveries[4:]] == ["done", "done"]
    assert len({one.json["id"] for one in receiver.deliveries}) == 6


async def test_an_old_history_and_answered_requests_are_not_sent(
    ledger: LocalLedger, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    """NTF3: nor is what a delay keeps back."""
    settings = write_settings(tmp_path, plain(receiver))
    at = 1_500_000_000_000
    await ledger.log.append("old", [ev.TurnStarted(at=at), ev.MessageUser(text="hi", at=at), ev.TurnEnded(at=at)])
    approval = await ask(ledger, "answered")
    await ledger.deny(approval)
    later = NotifySettings(webhooks=settings.webhooks, networks=settings.networks, delays=NoticeDelays(approval=3600))
    async with start(ledger, later):
        await ask(ledger, "kept back")
        await run_turn(ledger, "also kept back")
        await asyncio.sleep(0)
    async with start(ledger, settings):
        await receiver.until_count(2)
    assert {one.json["session"] for one in receiver.deliveries} == {"kept back", "also kept back"}


# Several servers, and receivers that fail


async def test_several_servers_send_each_message_once(db: str, receiver: WebhookReceiver, tmp_path: Path) -> None:
    """NTF4: with the same settings on one ledger."""
    settings = write_settings(tmp_path, plain(receiver))
    async with (
        callslip.open(db, SETTINGS) as one,
        callslip.open(db, SETTINGS) as other,
        start(one, settings),
        start(other, settings),
        start(one, settings),
    ):
        approvals = [await ask(ledger, f"s{number}") for number, ledger in enumerate([one, other] * 10)]
        await receiver.until(lambda: {delivery.json["id"] for delivery in receiver.deliveries} >= set(approvals))
        await until(lambda: _equals(states(one), ["sent"] * 20))
    assert sorted(delivery.json["id"] for delivery in receiver.deliveries) == sorted(approvals)


async def test_another_server_continues_for_one_that_died(
    ledger: LocalLedger, receiver: WebhookReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NTF4: while the claim of a living server holds, no other server sends."""
    settings = write_settings(tmp_path, plain(receiver))
    approval, waiting = await ask(ledger, "s"), await ask(ledger, "t")
    (webhook,) = settings.webhooks
    dead = NoticeClaims(ledger.log, webhook.receiver)
    assert [await dead.claim(approval, 3600), await dead.claim(waiting, 0.3)] == [0, 0]
    other = NoticeClaims(ledger.log, webhook.receiver)
    until_ms = await other.claim(approval, 60)
    assert until_ms is not None and until_ms > await ledger.log.store.clock() + 3_000_000
    async with start(ledger, settings):
        await receiver.until_count(1)  # The claim of the other one has ended.
        assert receiver.deliveries[0].json["id"] == waiting
        await until(lambda: _equals(_sorted(states(ledger)), ["claimed", "sent"]))
        assert await dead.claim(waiting, 60) is None
    monkeypatch.setattr(liveness, "is_dead", lambda owner: owner == dead._owner)
    async with start(ledger, settings):
        await receiver.until_count(2)
    assert [delivery.json["id"] for delivery in receiver.deliveries] == [waiting, approval]


async def test_failures_are_retried_and_reported_once(
    ledger: LocalLedger, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    """NTF5: with the same id, until it is accepted; a refusal is not retried. Messages contain no URL."""
    settings = write_settings(tmp_path, plain(receiver))
    receiver.answers = [answer(503), answer(429, "Retry-After: 0"), b"nonsense\r\n\r\n", b"", answer(204), answer(404)]
    reports: list[str] = []
    async with start(ledger, settings, reports):
        first = await ask(ledger, "first")
        await receiver.until_count(5)
        refused = await ask(ledger, "refused")
        await receiver.until_count(6)
        third = await ask(ledger, "third")
        await receiver.until_count(7)
        await until(lambda: _equals(_sorted(states(ledger)), ["failed", "sent", "sent"]))
    assert [delivery.json["id"] for delivery in receiver.deliveries] == [first] * 5 + [refused, third]
    name = "127.0.0.1"
    assert reports == [
        f"notifications to {name} fail: answered 503",
        f"{name} is notified again",
        f"notifications to {name} fail: answered 404",
        f"{name} is notified again",
    ]


async def _sorted(read: Awaitable[list[str]]) -> list[str]:
    return sorted(await read)


async def test_what_was_sent_is_not_sent_again_if_the_ledger_fails(
    ledger: LocalLedger, receiver: WebhookReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NTF4: that it was sent is stored as soon as the ledger works again."""
    settings = write_settings(tmp_path, plain(receiver))
    replace, failures = ledger.log.store.replace_meta, [StoreError("the disk is full")] * 3

    async def fail_after_delivery(name: str, before: str, after: str) -> bool:
        if receiver.deliveries and failures:
            raise failures.pop()
        return await replace(name, before, after)

    monkeypatch.setattr(ledger.log.store, "replace_meta", fail_after_delivery)
    async with start(ledger, settings):
        await ask(ledger, "s")
        await until(lambda: _equals(states(ledger), ["sent"]))
    assert len(receiver.deliveries) == 1 and not failures


async def test_a_request_that_waits_for_weeks_is_sent_once(
    ledger: LocalLedger, receiver: WebhookReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NTF4: what is stored of it is kept as long as it is pending, also when a server starts."""
    settings = write_settings(tmp_path, plain(receiver))
    first = await ask(ledger, "first")
    async with start(ledger, settings):
        await until(lambda: _equals(states(ledger), ["sent"]))
    monkeypatch.setattr(notices, "KEPT_MS", -60_000)  # As if it were long ago.
    async with start(ledger, settings):
        second = await ask(ledger, "second")
        await receiver.until(lambda: any(one.json["id"] == second for one in receiver.deliveries))
    assert [one.json["id"] for one in receiver.deliveries] == [first, second]


async def test_the_id_of_a_request_may_have_any_characters(
    ledger: LocalLedger, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    """NTF1: in the header those that are not ASCII are percent-encoded."""
    settings = write_settings(tmp_path, plain(receiver))
    await ledger.log.append("s", [ev.ApprovalRequested(tool_name="Bash", approval="Frage ä 1")])
    async with start(ledger, settings):
        (delivery,) = await receiver.until_count(1)
    assert (delivery.json["id"], delivery.headers["callslip-id"]) == ("Frage ä 1", "frage %c3%a4 1")


async def test_an_answered_request_is_not_retried(
    ledger: LocalLedger, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    """NTF5: what needs no answer any more is left out, and nothing is stored of it."""
    settings = write_settings(tmp_path, plain(receiver))
    receiver.answers = [answer(500)] * 1000
    async with start(ledger, settings):
        approval = await ask(ledger, "s")
        await receiver.until_count(2)
        await ledger.approve(approval)
        await until(lambda: _equals(states(ledger), []))


async def test_a_slow_receiver_delays_no_write_and_no_other_receiver(
    ledger: LocalLedger, receiver: WebhookReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NTF6: its queue has a limit, and what does not fit is sent later."""
    monkeypatch.setattr(notifier_module, "MAX_QUEUED", 3)
    monkeypatch.setattr(notifier_module, "FULL_DELAY_MS", 10)
    async with receiving() as slow:
        slow.answers = [None]
        settings = write_settings(tmp_path, plain(receiver), plain(slow).replace("/hook", "/slow"))
        notifier = Notifier(ledger.log, settings, PUBLIC_URL, lambda text: None, delays_s=(0.01,))
        async with notifier.running():
            for number in range(8):
                await ask(ledger, f"s{number}")
            await receiver.until_count(8)
            assert len(slow.deliveries) == 1 and len(notifier.receivers[1]._queue) == 3
        async with start(ledger, settings):
            slow_ids = {delivery.json["id"] for delivery in receiver.deliveries}
            monkeypatch.setattr(liveness, "is_dead", lambda owner: True)
            await slow.until(lambda: {delivery.json["id"] for delivery in slow.deliveries} == slow_ids)


# Addresses and connections


async def test_only_public_and_listed_addresses_are_reached(tmp_path: Path) -> None:
    """NTF7: in every notation, also IPv4 addresses within IPv6 addresses."""
    public = ("93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "::ffff:93.184.215.14")
    private = (
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.9.9", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fd00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:80ff:fffe"),
        *("64:ff9b:1::7f00:1", "::127.0.0.1", "::ffff:0:127.0.0.1", "fec0::1", "5f00::1", "192.0.0.192"),
    )
    assert all(may_reach(address, ()) for address in public)
    assert not [address for address in private if may_reach(address, ())]
    listed = write_settings(tmp_path, top='allow_addresses = ["10.0.0.0/8", "fd00::/8"]').networks
    assert {address for address in private if may_reach(address, listed)} == {"10.0.0.1", "fd00::1"}


def name_resolves_to(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Let every name have these addresses, in turns. Return the names that were looked up."""
    looked_up: list[str] = []

    def resolve(host: str, port: int, *arguments: Any, **options: Any) -> list[Any]:
        address = answers[min(len(looked_up), len(answers) - 1)]
        looked_up.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return looked_up


async def test_a_name_of_a_private_address_is_not_reached(
    receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NTF7: the address counts that is connected to, so a name cannot change its meaning after the check."""
    webhook = Webhook(url=f"http://rebinding.example:{receiver.port}/", allow_http=True)
    looked_up = name_resolves_to(monkeypatch, "127.0.0.1")
    outcome = await post(webhook, b"{}", {}, ())
    assert "127.0.0.1, which is not public" in outcome.problem and not outcome.may_retry
    assert looked_up == ["rebinding.example"] and not receiver.connections
    for host in ("localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"):
        monkeypatch.undo()
        outcome = await post(Webhook(url=f"http://{host}:{receiver.port}/", allow_http=True), b"{}", {}, ())
        assert "is not public" in outcome.problem or "cannot be reached" in outcome.problem, (host, outcome)
    async with receiving(host="127.0.0.2", port=receiver.port) as listed:
        looked_up = name_resolves_to(monkeypatch, "127.0.0.2", "127.0.0.1")
        assert await post(webhook, b"{}", {}, (ip_network("127.0.0.2"),)) == Outcome()
        assert len(looked_up) == listed.connections == 1 and not receiver.connections


async def test_a_name_server_that_does_not_answer_holds_up_no_other_receiver(
    receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NTF6: not even if many names are looked up."""
    answers, resolve = threading.Event(), socket.getaddrinfo

    def wait_for_slow_names(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "slow.example":
            answers.wait()
        return resolve("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", wait_for_slow_names)
    slow, quick = (
        Webhook(url=f"http://{name}.example:{receiver.port}/", allow_http=True) for name in ("slow", "quick")
    )
    waiting = [asyncio.ensure_future(post(slow, b"{}", {}, (LOCAL,), timeout_s=60)) for _ in range(40)]
    try:
        await asyncio.sleep(0)
        assert await post(quick, b"{}", {}, (LOCAL,)) == Outcome()
        assert not any(one.done() for one in waiting)
    finally:
        answers.set()
        await asyncio.gather(*waiting)


async def test_of_several_addresses_one_that_does_not_answer_is_left_out(
    receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NTF6: the next one is tried in the same delivery."""
    monkeypatch.setattr(post_module, "CONNECT_TIMEOUT_S", 0.05)
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def connect_or_wait(connection: socket.socket, address: Any) -> None:
        await (asyncio.Event().wait() if address[0] == "127.0.0.2" else connect(connection, address))

    monkeypatch.setattr(loop, "sock_connect", connect_or_wait)
    endpoints = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", receiver.port)) for n in (2, 1)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: endpoints)
    webhook = Webhook(url=f"http://two.example:{receiver.port}/", allow_http=True)
    assert await post(webhook, b"{}", {}, (LOCAL,)) == Outcome()


async def test_redirects_are_not_followed(receiver: WebhookReceiver, tmp_path: Path) -> None:
    """NTF7: not even to a listed address, and they are no success."""
    settings = write_settings(tmp_path, plain(receiver))
    for status in (301, 302, 307, 308):
        receiver.answers = [answer(status, f"location: http://127.0.0.1:{receiver.port}/other")]
        outcome = await post(settings.webhooks[0], b"{}", {}, settings.networks)
        assert outcome == Outcome(f"answered {status}: redirects are not followed")
    assert len(receiver.deliveries) == 4


async def test_an_answer_has_a_limit_in_time_and_size(receiver: WebhookReceiver, tmp_path: Path) -> None:
    """NTF6: for a receiver that says nothing, and for one that sends headers without end."""
    settings = write_settings(tmp_path, plain(receiver))
    receiver.answers = [None]
    outcome = await post(settings.webhooks[0], b"{}", {}, settings.networks, timeout_s=0.1)
    assert outcome == Outcome("no answer within 0.1 s", may_retry=True)
    receiver.answers = [b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000]
    outcome = await post(settings.webhooks[0], b"{}", {}, settings.networks)
    assert outcome.problem == "does not speak HTTP/1.1" and outcome.may_retry


async def test_certificates_are_checked(tmp_path: Path) -> None:
    """NTF7: against those of the system, or a file, and for the name of the URL."""
    files = create_certificate(tmp_path, "127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(files.cert, files.key)
    async with receiving(tls) as receiver:
        url = f'url = "https://127.0.0.1:{receiver.port}/"'
        named = f'url = "https://localhost:{receiver.port}/"\nca_file = "{files.cert}"'
        settings = write_settings(tmp_path, url, named)
        for webhook in settings.webhooks:
            outcome = await post(webhook, b"{}", {}, settings.networks)
            assert outcome.problem.startswith("the certificate is not valid"), outcome
        assert not receiver.deliveries
        settings = write_settings(tmp_path, f'{url}\nca_file = "{files.cert}"')
        assert await post(settings.webhooks[0], b"{}", {}, settings.networks) == Outcome()


# Settings and the command


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[webhook]]\nurl = "http://example.org/5ecret"', "is not encrypted"),
        ('[[webhook]]\nurl = "ftp://example.org/5ecret"', "must be https://HOST/PATH"),
        ('[[webhook]]\nurl = "https://user:5ecret@example.org/"', "no user"),
        ('[[webhook]]\nurl = "https://example.org/5ecret\\r\\nx: y"', "must be https://HOST/PATH"),
        ('[[webhook]]\nurl = "https://example.org:99999/5ecret"', "not valid"),
        ('[[webhook]]\nurl = "https://a/"\n[[webhook]]\nurl = "https://a/"', "the same url"),
        ('[[webhook]]\nurl = "https://a/"\nsecret = "5ecret"', "at least 16 characters"),
        ('[[webhook]]\nurl = "https://a/"\nformat = "slack"\nsecret = "a-5ecret-of-enough-length"', "cannot be signed"),
        ('[[webhook]]\nurl = "https://a/"\nevents = ["everything"]', "everything"),
        ('[[webhook]]\nurl = "https://a/"\ninclude_texts = true', "include_texts"),
        ('[[webhook]]\nurl = "https://a/"\nca_file = "no-such-file.pem"', "no certificates"),
        ('allow_addresses = ["home"]', "allow_addresses"),
        ("[delays]\nidle = -1", "from 0 to 86400"),
        ("[[webhook", "not TOML"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, text: str, words: str) -> None:
    """NTF8: with the place, and without a URL or a secret."""
    file = tmp_path / "notify.toml"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(InvalidInputError) as error:
        read_settings(file)
    assert words in str(error.value) and "5ecret" not in str(error.value), error.value


def test_a_file_that_others_can_change_is_refused(tmp_path: Path) -> None:
    """NTF8: one that others can read gives a warning."""
    file = tmp_path / "notify.toml"
    file.write_text("")
    file.chmod(0o666)
    with pytest.raises(InvalidInputError, match="changed by other users"):
        read_settings(file)
    file.chmod(0o644)
    assert "can be read by other users" in read_settings(file).warning
    file.chmod(0o600)
    assert read_settings(file) == NotifySettings()


async def test_a_server_sends_by_its_file(receiver: WebhookReceiver, tmp_path: Path) -> None:
    """NTF8: `callslip serve` with `--notify`; a wrong file stops it at once."""
    write_settings(tmp_path, plain(receiver))
    file, db = tmp_path / "notify.toml", tmp_path / "ledger.db"
    options = ("--port", "0", "--notify", str(file), "--public-url", f"{PUBLIC_URL}/")
    with await asyncio.to_thread(ServeProcess, db, *options) as server:
        async with callslip.open(f"sqlite:///{db}", SETTINGS) as other:
            approval = await ask(other, "by another process")
            (delivery,) = await receiver.until_count(1)
        assert delivery.json["id"] == approval and delivery.json["url"].startswith(f"{PUBLIC_URL}/s/by%20another")
        assert not any("5ecret" in line for line in server.err if "token=" not in line)
    file.write_text("[[webhook]]")
    result = await asyncio.to_thread(run_in_process, "serve", *options, "--db", str(db))
    assert result.returncode == exit_status.USAGE and "url" in result.stderr


def test_the_guide_has_valid_settings_and_a_check_of_signatures(tmp_path: Path) -> None:
    """NTF1: as a receiver would use it."""
    blocks = {block.language: block.body for block in find_blocks((ROOT / GUIDE).read_text("utf-8"))}
    file = tmp_path / "notify.toml"
    file.write_text(blocks["toml"])
    file.chmod(0o600)
    settings = read_settings(file)
    assert [webhook.format for webhook in settings.webhooks] == ["json", "slack"] and len(settings.networks) == 1
    names: dict[str, Any] = {}
    exec(blocks["python"], names)
    signature = f"v1={sign(SECRET, 17, b'{}')}"
    assert names["is_valid"](SECRET, "17", signature, b"{}")
    assert not names["is_valid"](SECRET, "18", signature, b"{}") and not names["is_valid"]("x", "17", signature, b"{}")


async def test_the_test_command_reports_each_receiver(receiver: WebhookReceiver, tmp_path: Path, home: Path) -> None:
    """NTF9: it uses the named file, or the one in the data folder."""
    write_settings(tmp_path, plain(receiver), plain(receiver).replace("/hook", "/refuses"))
    receiver.answers = [answer(200), answer(403)]

    def run(*arguments: str) -> Any:
        return run_in_process("notify", "test", *arguments)

    result = await asyncio.to_thread(
        run, "--notify", str(tmp_path / "notify.toml"), "--public-url", PUBLIC_URL, "--json"
    )
    assert result.returncode == exit_status.FAILED
    problems = sorted(str(json.loads(line)["problem"]) for line in result.stdout.splitlines())
    assert problems == ["None", "answered 403"] and "url-5ecret" not in result.stdout + result.stderr
    body = receiver.deliveries[0].json
    assert (body["event"], body["url"]) == ("test", PUBLIC_URL)
    missing = await asyncio.to_thread(run)
    assert missing.returncode == exit_status.NOT_FOUND and "notify.toml" in missing.stderr
    folder = home / ".local" / "share" / "callslip"
    folder.mkdir(parents=True)
    write_settings(folder, plain(receiver))
    assert (await asyncio.to_thread(run)).returncode == 0 and len(receiver.deliveries) == 3


def test_a_link_opens_the_page_and_answers_nothing() -> None:
    """NTF10: it names a session and an entry."""
    assert make_link("", "s", 4) == ""
    assert make_link("https://h/callslip", "a b/c?d#e", 4) == "https://h/callslip/s/a%20b%2Fc%3Fd%23e#entry-4"
