"""One connection for a page, and `callslip.js` at its other end: the real file, in Node, over a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.api import approvals
from callslip.api.ledger import Ledger
from callslip.errors import NotFoundError
from callslip.http.access import Principal
from callslip.http.limits import Limits
from callslip.model import events as ev
from callslip.model.events import Alias
from callslip.settings import Settings
from tests.support.live_server import ask, asking, running, served
from tests.support.strategies import canonical
from tests.support.stream_checks import Client

pytestmark = pytest.mark.anyio

WEB = Path(callslip.__file__).parent / "web"
SETTINGS = Settings(synchronous="NORMAL", reaper_interval=3600.0, redact=False)


@pytest.fixture(scope="module")
def client(node: str) -> Iterator[Client]:
    made = Client(node, "follow.mjs", str(WEB / "callslip.js"))
    yield made
    made.close()


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[Ledger]:
    async with await callslip.open(db, SETTINGS) as opened:
        yield opened


def said(text: str) -> ev.MessageDelta:
    return ev.MessageDelta(text=text, chunks="delta")


async def work(ledger: Ledger, session: str, rounds: int) -> None:
    """A session in which entries of every kind come and change."""
    for number in range(rounds):
        one = (Alias("t", str(number)),)
        await ledger.append(session, [ev.TurnStarted(), ev.MessageUser(text="Go 😀"), said("I go"), said(" now 🇺🇦")])
        await ledger.append(session, [ev.CallProposed(aliases=one, tool_name="look", input={"n": number})])
        await ledger.append(session, [ev.ApprovalRequested(aliases=one), ev.ThoughtDelta(text="hm")])
        (asked,) = await ledger.approvals(session=session)
        await approvals.approve(ledger, asked.id, by="ada")
        await ledger.append(session, [ev.CallStarted(aliases=one), ev.CallProgress(aliases=one, text="é💥 out")])
        await ledger.append(
            session, [ev.CallCompleted(aliases=one, output=[number]), ev.SessionInfo(title=f"T{number}")]
        )
        await ledger.append(session, [ev.PlanUpdated(entries=[{"content": "x"}]), ev.TurnEnded()])
        await ledger.append(session, [ev.CallProgress(aliases=one, text="late")])
        await asyncio.sleep(0)


def same(held: dict[str, Any], document: dict[str, Any]) -> bool:
    entries = sorted(held["entries"], key=lambda entry: entry["id"])
    return canonical([held["seq"], held["info"], entries]) == canonical(
        [document["seq"], document["info"], document["entries"]]
    )


@pytest.mark.parametrize("cut", [None, 7])
async def test_the_page_holds_what_the_ledger_holds(ledger: Ledger, client: Client, cut: int | None) -> None:
    """C9, S2.2: several sessions on one line, cut again and again or never, are in the end what a reader gets."""
    rounds = 12
    for name in ("a", "b:ü x"):
        await ledger.append(name, [said("first")])
    writing = asyncio.gather(work(ledger, "a", rounds), work(ledger, "b:ü x", rounds))
    async with served(ledger) as url:
        await asyncio.sleep(0)
        job = {"url": url, "sessions": ["a", "b:ü x"], "until": {"a": 1 + 15 * rounds, "b:ü x": 1 + 15 * rounds}}
        (held,) = await asyncio.to_thread(client.ask, [{**job, **({"cut": cut} if cut else {})}])
        await writing
        for name, quoted in (("a", "a"), ("b:ü x", "b%3A%C3%BC%20x")):
            document = (await ask(f"{url}/v1/sessions/{quoted}")).json()
            assert held["sessions"][name]["seq"] == 1 + 15 * rounds
            assert same(held["sessions"][name], document)
    assert bool(held["cuts"]) == bool(cut)


async def test_topics_are_told_whole_and_then_by_their_changes(ledger: Ledger, client: Client) -> None:
    """Sessions that come, requests that are asked and answered, commands: in the list, then out of it."""
    await ledger.append("a", [ev.CallProposed(aliases=(Alias("t", "1"),), tool_name="x"), said("hi")])
    async with served(ledger) as url:
        job = {"url": url, "topics": ["inbox", "sessions"], "rows": {"sessions": ["a", "b"]}}

        async def later() -> str:
            await asyncio.sleep(0.1)
            await ledger.append("a", [ev.ApprovalRequested(aliases=(Alias("t", "1"),))])
            await asyncio.sleep(0.1)
            await ledger.append("b", [said("hi")])
            return (await ledger.approvals())[0].id

        (held,), asked = await asyncio.gather(asyncio.to_thread(client.ask, [job]), later())
        assert {row["session"] for row in held["topics"]["sessions"]} == {"a", "b"}
        (held,) = await asyncio.to_thread(client.ask, [{"url": url, "topics": ["inbox"], "rows": {"inbox": [asked]}}])
        assert [row["approval"] for row in held["topics"]["inbox"]] == [asked]
        async with asking(f"{url}/v1/stream?topic=inbox") as reply:
            await reply.until(asked.encode())
            await approvals.deny(ledger, asked, by="ada", reason="no")
            await reply.until(b'"gone":true')
            frames = [json.loads(line[6:]) for line in reply.body.split(b"\n") if line.startswith(b"data: ")]
            assert (frames[-1]["row"]["state"], frames[-1]["row"]["by"]) == ("refused", "ada")


async def test_a_session_that_is_deleted_leaves_the_list(ledger: Ledger) -> None:
    """Its row goes, by name."""
    await ledger.append("a", [said("hi")])
    await ledger.append("b", [said("hi")])
    async with served(ledger) as url, asking(f"{url}/v1/stream?topic=sessions") as reply:
        await reply.until(b'"session":"b"')
        await ledger.delete("a")
        await reply.until(b'"id":"a","gone":true')


class Two:
    """Ada may see what begins with a, Bob the rest."""

    async def admit(self, request: Any, session: Any, verb: str) -> Principal:
        who = request.headers.get("who", "")
        if session is not None and session.name.startswith("a") != (who == "ada"):
            raise NotFoundError(f"no session {session.name!r}")
        return Principal(who)


async def test_rows_of_others_are_not_sent(ledger: Ledger) -> None:
    """Neither in the list nor among the changes, nor by name."""
    for name in ("ada-1", "bob-1"):
        await ledger.append(name, [said("hi"), ev.CallProposed(aliases=(Alias("t", "1"),))])
    async with (
        served(ledger, gate=Two()) as url,
        asking(f"{url}/v1/stream?topic=sessions&topic=inbox", headers={"who": "bob"}) as reply,
    ):
        await reply.until(b'"session":"bob-1"')
        for name in ("ada-2", "bob-2"):
            await ledger.append(name, [ev.CallProposed(aliases=(Alias("t", "1"),))])
            await ledger.append(name, [ev.ApprovalRequested(aliases=(Alias("t", "1"),))])
        await reply.until(b'"session":"bob-2","call"')
        assert b"ada" not in reply.body
        assert (await ask(f"{url}/v1/stream?session=ada-1", headers={"who": "bob"})).status == 404


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("", {}, 400),
        ("topic=weather", {}, 400),
        ("session=none", {}, 404),
        ("session=s&after=s:1:9", {}, 400),
        ("session=s&after=s:1", {}, 400),
        ("session=s&after=nonsense", {}, 400),
        ("session=s", {"last-event-id": "s:1:-1"}, 400),
        ("session=s", {"last-event-id": "s:1:1x"}, 400),
        ("session=s&limit=0", {}, 400),
        ("&".join(["session=s"] * 21), {}, 400),
    ],
)
async def test_what_cannot_be_followed_is_said(
    ledger: Ledger, query: str, headers: dict[str, str], status: int
) -> None:
    """A cursor or a name that makes no sense is a problem, not a stream."""
    await ledger.append("s", [said("hi")])
    async with served(ledger) as url:
        answer = await ask(f"{url}/v1/stream?{query}", headers=headers)
        assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text


async def test_the_client_stops_when_it_is_refused(ledger: Ledger, client: Client) -> None:
    """A session that is not there is no reason to ask for ever."""
    async with served(ledger) as url:
        (held,) = await asyncio.to_thread(client.ask, [{"url": url, "sessions": ["none"], "until": {"none": 1}}])
    assert held["statuses"][-1] == "refused"
    assert "no session" in held["error"]


async def test_one_session_that_is_gone_does_not_end_the_others(ledger: Ledger, client: Client) -> None:
    """One was never there and one is deleted under the open line: the third goes on, and so do the topics."""
    await ledger.append("kept", [said("one")])
    await ledger.append("left", [said("one")])
    async with served(ledger) as url:
        gone, rows = ["none", "left"], {"sessions": ["kept"]}
        job = {"url": url, "sessions": [*gone, "kept"], "topics": ["sessions"], "gone": gone, "rows": rows}
        job["until"] = {"kept": 2}
        asked = asyncio.ensure_future(asyncio.to_thread(client.ask, [job]))
        async with asyncio.timeout(20):
            while not (await ask(f"{url}/metrics")).body.count(b"callslip_readers 1"):
                await asyncio.sleep(0.02)
        await ledger.delete("left")
        await ledger.append("kept", [said("two")])
        (held,) = await asked
    assert list(held["sessions"]) == ["kept"] and held["sessions"]["kept"]["seq"] == 2
    assert held["gone"] == gone and "refused" not in held["statuses"]


async def test_the_client_comes_back_to_a_server_that_comes_back(ledger: Ledger, client: Client) -> None:
    """A server that ends and begins again under an open page is found again, and what was missed is caught up."""
    await ledger.append("s", [said("one")])
    async with served(ledger) as url:
        port = int(url.rpartition(":")[2])
        job = {"url": url, "sessions": ["s"], "until": {"s": 2}}
        asked = asyncio.ensure_future(asyncio.to_thread(client.ask, [job]))
        async with asyncio.timeout(20):
            while not (await ask(f"{url}/metrics")).body.count(b"callslip_readers 1"):
                await asyncio.sleep(0.02)
    await ledger.append("s", [said("two")])
    async with served(ledger, port=port):
        (held,) = await asked
    assert held["sessions"]["s"]["seq"] == 2
    assert "waiting" in held["statuses"] and held["statuses"].count("live") == 2


async def test_idle_pages_are_kept_alive(ledger: Ledger) -> None:
    """A comment now and then."""
    await ledger.append("s", [said("hi")])
    async with served(ledger, limits=Limits(heartbeat=0.02)) as url, asking(f"{url}/v1/stream?session=s") as reply:
        await reply.until(b"\n\n:\n\n:\n\n")


def test_the_types_are_those_of_the_client(node: str, tmp_path: Path) -> None:
    """A program that uses the client as its types say compiles, a wrong one does not, and the names are the same."""
    packages = Path(os.environ["CALLSLIP_NODE_MODULES"])
    used = f"""
import {{ Callslip, apply, frames, type Entry }} from "{WEB.as_posix()}/callslip.js";
const client = new Callslip({{ sessions: ["s"], topics: ["inbox"], onStatus: (status) => void status.length }});
const first: Entry | undefined = client.sessions.get("s")?.entries.get(1);
if (first?.type === "tool_call" && first.status === "awaiting_approval") console.log(first.toolName);
void client.open().then(() => client.close());
void [apply, frames];
"""
    names = (
        f"import('{(WEB / 'callslip.js').as_uri()}').then((m) => console.log(JSON.stringify(Object.keys(m).sort())))"
    )
    told = subprocess.run([node, "-e", names], capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(told) == ["Callslip", "apply", "frames"]
    for source, fine in ((used, True), (used.replace('"tool_call"', '"toolcall"'), False)):
        (tmp_path / "use.ts").write_text(source)
        command = [node, str(packages / "typescript/bin/tsc"), "--noEmit", "--strict", "--skipLibCheck"]
        shape = ["--module", "nodenext", "--target", "es2022"]
        ran = subprocess.run([*command, *shape, str(tmp_path / "use.ts")], capture_output=True, text=True, timeout=120)
        assert (ran.returncode == 0) == fine, ran.stdout


class Slow(Two):
    """The same, and it takes a while to say so of what is Ada's: as long as the test wants."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def admit(self, request: Any, session: Any, verb: str) -> Principal:
        if session is not None and session.name.startswith("a"):
            self.asked.set()
            await self.goes_on.wait()
        return await super().admit(request, session, verb)


async def test_what_comes_while_the_gate_thinks_is_not_forgotten(ledger: Ledger) -> None:
    """An event that comes while the page asks about rows of others is written when that has been settled."""
    gate = Slow()
    await ledger.append("bob-1", [said("hi")])
    async with (
        served(ledger, gate=gate, limits=Limits(heartbeat=3600.0)) as url,
        asking(f"{url}/v1/stream?session=bob-1&topic=inbox", headers={"who": "bob"}) as reply,
    ):
        await reply.until(b"id: bob-1")
        gate.goes_on.clear()
        asked = [ev.CallProposed(aliases=(Alias("t", "1"),)), ev.ApprovalRequested(aliases=(Alias("t", "1"),))]
        await ledger.append("ada-1", asked)
        await gate.asked.wait()
        await ledger.append("bob-1", [said("there")])
        await asyncio.sleep(0.1)  # The line has it by now; if not, the test proves less and still holds.
        gate.goes_on.set()
        await reply.until(b"there")


async def test_the_name_of_a_session_of_others_is_not_told_when_it_is_deleted(ledger: Ledger) -> None:
    """That it is gone is told to those who saw it."""
    for name in ("ada-1", "bob-1"):
        await ledger.append(name, [said("hi")])
    where = "/v1/stream?topic=sessions"
    async with (
        served(ledger, gate=Two()) as url,
        asking(f"{url}{where}", headers={"who": "bob"}) as bob,
        asking(f"{url}{where}", headers={"who": "ada"}) as ada,
    ):
        await bob.until(b'"session":"bob-1"')
        await ada.until(b'"session":"ada-1"')
        await ledger.delete("ada-1")
        await ada.until(b'"id":"ada-1","gone":true')
        await ledger.delete("bob-1")
        await bob.until(b'"id":"bob-1","gone":true')
        assert b"ada-1" not in bob.body


async def test_an_open_command_is_in_the_list_however_many_calls_came_since(ledger: Ledger) -> None:
    """Calls that are no commands take no place in the list of commands."""
    job = ev.CallProposed(aliases=(Alias("t", "1"),), tool_name="job", scope="detached", client="default")
    await ledger.append("a", [job])
    for start in range(0, 300, 100):
        calls = [(Alias("u", str(start + number)),) for number in range(100)]
        await ledger.append("a", [ev.CallStarted(aliases=one, tool_name="look") for one in calls])
    async with served(ledger) as url, asking(f"{url}/v1/stream?topic=commands") as reply:
        await reply.until(b'"topic":"commands"')
        assert b'"job"' in reply.body and b'"look"' not in reply.body


async def test_a_session_that_came_again_by_its_name_is_told_anew(ledger: Ledger) -> None:
    """A cursor of the one before is gone, however long the new one is: its patches belong to other entries."""
    await ledger.append("s", [said("old"), said("er")])
    async with served(ledger) as url:
        async with asking(f"{url}/v1/stream?session=s") as reply:
            cursor = await anext(frame["id"] async for frame in reply.frames() if "id" in frame)
        await ledger.delete("s")
        await ledger.append("s", [ev.MessageUser(text="new") for _ in range(5)])
        assert (await ask(f"{url}/v1/stream?session=s", headers={"last-event-id": cursor})).status == 410


PIECES = """
const { frames } = await import(process.argv[1]);
const bytes = new TextEncoder().encode(process.argv[2]);
const size = Number(process.argv[3]);
let at = 0;
const read = async () => ({ done: at >= bytes.length, value: bytes.slice(at, (at += size)) });
const got = [];
for await (const frame of frames({ getReader: () => ({ read, async cancel() {} }) })) got.push(frame);
console.log(JSON.stringify(got));
"""


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_frames_are_read_however_they_are_cut(node: str, size: int, end: str) -> None:
    """Inside a character, inside a line's end; also where a body cannot be looped over, as in older Safari."""
    sent = end.join(["retry: 5", "", ":", "", "id: 1", "event: a", 'data: {"x":"é😀: y"}', "", "id:2", "", "data: ha"])
    command = [node, "--input-type=module", "-e", PIECES, "--", (WEB / "callslip.js").as_uri(), sent, str(size)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    whole = {"id": "1", "event": "a", "data": '{"x":"é😀: y"}'}
    assert json.loads(told) == [{"retry": "5"}, {}, whole, {"id": "2"}]


async def test_the_client_leaves_a_line_that_is_silent(client: Client) -> None:
    """After a night's sleep a connection may be dead and not know it: no sign of life for long, and it asks again."""
    asked = 0
    shown = {"session": "s", "seq": 1, "info": {}, "entries": []}

    async def silent(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        asked += 1
        said = b":\n\n" if asked == 1 else b"event: snapshot\ndata: " + json.dumps(shown).encode() + b"\n\n"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": said, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    async with running(silent) as url:
        job = {"url": url, "sessions": ["s"], "until": {"s": 1}, "patience": 500}
        (held,) = await asyncio.to_thread(client.ask, [job])
    assert asked >= 2 and held["sessions"]["s"]["seq"] == 1
