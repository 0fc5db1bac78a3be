"""The event stream of a page, and `callslip.js` as its client: the real file, in Node, over a real socket."""

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
from callslip.api.ledger import LocalLedger
from callslip.errors import NotFoundError
from callslip.http.access import Principal
from callslip.model import events as ev
from callslip.model.events import Alias
from callslip.settings import Limits, Settings
from tests.support.live_server import fetch, requesting, running, serving_ledger
from tests.support.strategies import canonical_json
from tests.support.stream_checks import Client

pytestmark = pytest.mark.anyio

WEB = Path(callslip.__file__).parent / "web"
SETTINGS = Settings(synchronous="NORMAL", reaper_interval=3600.0, redact=False)


@pytest.fixture(scope="module")
def client(node: str) -> Iterator[Client]:
    harness = Client(node, "follow.mjs", str(WEB / "callslip.js"))
    yield harness
    harness.close()


@pytest.fixture
async def ledger(db: str) -> AsyncIterator[LocalLedger]:
    async with await callslip.open(db, SETTINGS) as open_ledger:
        yield open_ledger


def make_delta(text: str) -> ev.MessageDelta:
    return ev.MessageDelta(text=text, chunks="delta")


async def append_rounds(ledger: LocalLedger, session: str, rounds: int) -> None:
    """Append entries of every kind to a session, and change them."""
    for number in range(rounds):
        aliases = (Alias("t", str(number)),)
        await ledger.log.append(
            session, [ev.TurnStarted(), ev.MessageUser(text="Go 😀"), make_delta("I go"), make_delta(" now 🇺🇦")]
        )
        await ledger.log.append(session, [ev.CallProposed(aliases=aliases, tool_name="look", input={"n": number})])
        await ledger.log.append(session, [ev.ApprovalRequested(aliases=aliases), ev.ThoughtDelta(text="hm")])
        (request,) = await ledger.approvals(session=session)
        await ledger.approve(request.id, by="ada")
        await ledger.log.append(
            session, [ev.CallStarted(aliases=aliases), ev.CallProgress(aliases=aliases, text="é💥 out")]
        )
        await ledger.log.append(
            session, [ev.CallCompleted(aliases=aliases, output=[number]), ev.SessionInfo(title=f"T{number}")]
        )
        await ledger.log.append(session, [ev.PlanUpdated(entries=[{"content": "x"}]), ev.TurnEnded()])
        await ledger.log.append(session, [ev.CallProgress(aliases=aliases, text="late")])
        await asyncio.sleep(0)


def equals_document(state: dict[str, Any], document: dict[str, Any]) -> bool:
    entries = sorted(state["entries"], key=lambda entry: entry["id"])
    return canonical_json([state["seq"], state["info"], entries]) == canonical_json(
        [document["seq"], document["info"], document["entries"]]
    )


@pytest.mark.parametrize("cut", [None, 7])
async def test_client_state_equals_the_ledger(ledger: LocalLedger, client: Client, cut: int | None) -> None:
    """Several sessions on one connection, interrupted often or never, end up as the API returns them."""
    rounds = 12
    for name in ("a", "b:ü x"):
        await ledger.log.append(name, [make_delta("first")])
    writing = asyncio.gather(append_rounds(ledger, "a", rounds), append_rounds(ledger, "b:ü x", rounds))
    async with serving_ledger(ledger) as url:
        await asyncio.sleep(0)
        job = {"url": url, "sessions": ["a", "b:ü x"], "until": {"a": 1 + 15 * rounds, "b:ü x": 1 + 15 * rounds}}
        (result,) = await asyncio.to_thread(client.ask, [{**job, **({"cut": cut} if cut else {})}])
        await writing
        for name, quoted in (("a", "a"), ("b:ü x", "b%3A%C3%BC%20x")):
            document = (await fetch(f"{url}/v1/sessions/{quoted}")).json()
            assert result["sessions"][name]["seq"] == 1 + 15 * rounds
            assert equals_document(result["sessions"][name], document)
    assert bool(result["cuts"]) == bool(cut)


async def test_topics_are_sent_in_full_and_then_by_changes(ledger: LocalLedger, client: Client) -> None:
    """New sessions, new requests and answered requests are added to their lists and removed from them."""
    await ledger.log.append("a", [ev.CallProposed(aliases=(Alias("t", "1"),), tool_name="x"), make_delta("hi")])
    async with serving_ledger(ledger) as url:
        job = {"url": url, "topics": ["inbox", "sessions"], "rows": {"sessions": ["a", "b"]}}

        async def append_later() -> str:
            await asyncio.sleep(0.1)
            await ledger.log.append("a", [ev.ApprovalRequested(aliases=(Alias("t", "1"),))])
            await asyncio.sleep(0.1)
            await ledger.log.append("b", [make_delta("hi")])
            return (await ledger.approvals())[0].id

        (result,), approval = await asyncio.gather(asyncio.to_thread(client.ask, [job]), append_later())
        assert {row["session"] for row in result["topics"]["sessions"]} == {"a", "b"}
        (result,) = await asyncio.to_thread(
            client.ask, [{"url": url, "topics": ["inbox"], "rows": {"inbox": [approval]}}]
        )
        assert [row["approval"] for row in result["topics"]["inbox"]] == [approval]
        async with requesting(f"{url}/v1/stream?topic=inbox") as reply:
            await reply.until(approval.encode())
            await ledger.deny(approval, by="ada", reason="no")
            await reply.until(b'"gone":true')
            frames = [json.loads(line[6:]) for line in reply.body.split(b"\n") if line.startswith(b"data: ")]
            assert (frames[-1]["row"]["state"], frames[-1]["row"]["by"]) == ("refused", "ada")


async def test_deleted_session_leaves_the_list(ledger: LocalLedger) -> None:
    """Its row is removed by name."""
    await ledger.log.append("a", [make_delta("hi")])
    await ledger.log.append("b", [make_delta("hi")])
    async with serving_ledger(ledger) as url, requesting(f"{url}/v1/stream?topic=sessions") as reply:
        await reply.until(b'"session":"b"')
        await ledger.delete("a")
        await reply.until(b'"id":"a","gone":true')


class TwoUsers:
    """Ada may see sessions that start with a, Bob the others."""

    async def admit(self, request: Any, session: Any, verb: str) -> Principal:
        user = request.headers.get("who", "")
        if session is not None and session.name.startswith("a") != (user == "ada"):
            raise NotFoundError(f"no session {session.name!r}")
        return Principal(user)


async def test_rows_of_other_users_are_not_sent(ledger: LocalLedger) -> None:
    """They are neither in the list nor in the changes, and cannot be requested by name."""
    for name in ("ada-1", "bob-1"):
        await ledger.log.append(name, [make_delta("hi"), ev.CallProposed(aliases=(Alias("t", "1"),))])
    async with (
        serving_ledger(ledger, gate=TwoUsers()) as url,
        requesting(f"{url}/v1/stream?topic=sessions&topic=inbox", headers={"who": "bob"}) as reply,
    ):
        await reply.until(b'"session":"bob-1"')
        for name in ("ada-2", "bob-2"):
            await ledger.log.append(name, [ev.CallProposed(aliases=(Alias("t", "1"),))])
            await ledger.log.append(name, [ev.ApprovalRequested(aliases=(Alias("t", "1"),))])
        await reply.until(b'"session":"bob-2","call"')
        assert b"ada" not in reply.body
        assert (await fetch(f"{url}/v1/stream?session=ada-1", headers={"who": "bob"})).status == 404


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
async def test_invalid_stream_requests_return_a_problem(
    ledger: LocalLedger, query: str, headers: dict[str, str], status: int
) -> None:
    """An invalid cursor or name returns a problem and not a stream."""
    await ledger.log.append("s", [make_delta("hi")])
    async with serving_ledger(ledger) as url:
        answer = await fetch(f"{url}/v1/stream?{query}", headers=headers)
        assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text


async def test_client_stops_when_it_is_refused(ledger: LocalLedger, client: Client) -> None:
    """The client does not retry for a session that does not exist."""
    async with serving_ledger(ledger) as url:
        (result,) = await asyncio.to_thread(client.ask, [{"url": url, "sessions": ["none"], "until": {"none": 1}}])
    assert result["statuses"][-1] == "refused"
    assert "no session" in result["error"]


async def test_missing_session_does_not_end_the_others(ledger: LocalLedger, client: Client) -> None:
    """One session never existed and one is deleted while followed; the third and the topics are still followed."""
    await ledger.log.append("kept", [make_delta("one")])
    await ledger.log.append("left", [make_delta("one")])
    async with serving_ledger(ledger) as url:
        gone, rows = ["none", "left"], {"sessions": ["kept"]}
        job = {"url": url, "sessions": [*gone, "kept"], "topics": ["sessions"], "gone": gone, "rows": rows}
        job["until"] = {"kept": 2}
        answer = asyncio.ensure_future(asyncio.to_thread(client.ask, [job]))
        async with asyncio.timeout(20):
            while not (await fetch(f"{url}/metrics")).body.count(b"callslip_readers 1"):
                await asyncio.sleep(0.02)
        await ledger.delete("left")
        await ledger.log.append("kept", [make_delta("two")])
        (result,) = await answer
    assert list(result["sessions"]) == ["kept"] and result["sessions"]["kept"]["seq"] == 2
    assert result["gone"] == gone and "refused" not in result["statuses"]


async def test_client_reconnects_after_a_server_restart(ledger: LocalLedger, client: Client) -> None:
    """The client reconnects to a restarted server and receives what it missed."""
    await ledger.log.append("s", [make_delta("one")])
    async with serving_ledger(ledger) as url:
        port = int(url.rpartition(":")[2])
        job = {"url": url, "sessions": ["s"], "until": {"s": 2}}
        answer = asyncio.ensure_future(asyncio.to_thread(client.ask, [job]))
        async with asyncio.timeout(20):
            while not (await fetch(f"{url}/metrics")).body.count(b"callslip_readers 1"):
                await asyncio.sleep(0.02)
    await ledger.log.append("s", [make_delta("two")])
    async with serving_ledger(ledger, port=port):
        (result,) = await answer
    assert result["sessions"]["s"]["seq"] == 2
    assert "waiting" in result["statuses"] and result["statuses"].count("live") == 2


async def test_idle_streams_are_kept_alive(ledger: LocalLedger) -> None:
    """The server sends comments as heartbeats."""
    await ledger.log.append("s", [make_delta("hi")])
    async with (
        serving_ledger(ledger, limits=Limits(heartbeat=0.02)) as url,
        requesting(f"{url}/v1/stream?session=s") as reply,
    ):
        await reply.until(b"\n\n:\n\n:\n\n")


def test_types_match_the_client(node: str, tmp_path: Path) -> None:
    """A correct use of the client compiles, a wrong one does not, and the exported names are the same."""
    packages = Path(os.environ["CALLSLIP_NODE_MODULES"])
    source_code = f"""
import {{ Callslip, apply, frames, type Entry }} from "{WEB.as_posix()}/callslip.js";
import {{ ShellMessages, Timeline, followSession }} from "{WEB.as_posix()}/callslip.js";
const client = new Callslip({{ sessions: ["s"], topics: ["inbox"], onStatus: (status) => void status.length }});
const first: Entry | undefined = client.sessions.get("s")?.entries.get(1);
if (first?.type === "tool_call" && first.status === "awaiting_approval") console.log(first.toolName);
void client.open().then(() => client.close());
void [apply, frames];
const shell = new ShellMessages();
shell.begin("turn-t1");
shell.apply({{ type: "tool-call", command: "ls", commandId: "cmd-0-0" }});
const status: "queued" | "running" | "completed" | undefined = shell.command("turn-t1", "cmd-0-0")?.toolStatus;
const timeline = new Timeline();
const output: unknown = timeline.execution("msg-1", "exec_1")?.toolOutput;
void [status, output, followSession(shell, {{ session: "s" }}), followSession(timeline, {{ session: "s" }})];
"""
    list_names = (
        f"import('{(WEB / 'callslip.js').as_uri()}').then((m) => console.log(JSON.stringify(Object.keys(m).sort())))"
    )
    output = subprocess.run([node, "-e", list_names], capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(output) == ["Callslip", "ShellMessages", "Timeline", "apply", "followSession", "frames"]
    for source, compiles in ((source_code, True), (source_code.replace('"tool_call"', '"toolcall"'), False)):
        (tmp_path / "use.ts").write_text(source)
        command = [node, str(packages / "typescript/bin/tsc"), "--noEmit", "--strict", "--skipLibCheck"]
        options = ["--module", "nodenext", "--target", "es2022"]
        result = subprocess.run(
            [*command, *options, str(tmp_path / "use.ts")], capture_output=True, text=True, timeout=120
        )
        assert (result.returncode == 0) == compiles, result.stdout


class SlowUsers(TwoUsers):
    """Like TwoUsers, but checks of Ada's sessions wait until the test continues them."""

    def __init__(self) -> None:
        self.is_checking = asyncio.Event()
        self.may_continue = asyncio.Event()
        self.may_continue.set()

    async def admit(self, request: Any, session: Any, verb: str) -> Principal:
        if session is not None and session.name.startswith("a"):
            self.is_checking.set()
            await self.may_continue.wait()
        return await super().admit(request, session, verb)


async def test_event_during_an_access_check_is_sent(ledger: LocalLedger) -> None:
    """An event that arrives while access to another row is checked is sent after the check."""
    authorizer = SlowUsers()
    await ledger.log.append("bob-1", [make_delta("hi")])
    async with (
        serving_ledger(ledger, gate=authorizer, limits=Limits(heartbeat=3600.0)) as url,
        requesting(f"{url}/v1/stream?session=bob-1&topic=inbox", headers={"who": "bob"}) as reply,
    ):
        await reply.until(b"id: bob-1")
        authorizer.may_continue.clear()
        request = [ev.CallProposed(aliases=(Alias("t", "1"),)), ev.ApprovalRequested(aliases=(Alias("t", "1"),))]
        await ledger.log.append("ada-1", request)
        await authorizer.is_checking.wait()
        await ledger.log.append("bob-1", [make_delta("there")])
        await asyncio.sleep(0.1)  # The stream has it by now; otherwise the test proves less but still passes.
        authorizer.may_continue.set()
        await reply.until(b"there")


async def test_deletion_of_a_session_is_only_sent_to_users_who_may_see_it(ledger: LocalLedger) -> None:
    """Other users do not receive the name of a deleted session."""
    for name in ("ada-1", "bob-1"):
        await ledger.log.append(name, [make_delta("hi")])
    path = "/v1/stream?topic=sessions"
    async with (
        serving_ledger(ledger, gate=TwoUsers()) as url,
        requesting(f"{url}{path}", headers={"who": "bob"}) as bob,
        requesting(f"{url}{path}", headers={"who": "ada"}) as ada,
    ):
        await bob.until(b'"session":"bob-1"')
        await ada.until(b'"session":"ada-1"')
        await ledger.delete("ada-1")
        await ada.until(b'"id":"ada-1","gone":true')
        await ledger.delete("bob-1")
        await bob.until(b'"id":"bob-1","gone":true')
        assert b"ada-1" not in bob.body


async def test_open_command_stays_in_the_list_after_many_calls(ledger: LocalLedger) -> None:
    """Calls that are not commands take no place in the list of commands."""
    job = ev.CallProposed(aliases=(Alias("t", "1"),), tool_name="job", scope="detached", client="default")
    await ledger.log.append("a", [job])
    for start in range(0, 300, 100):
        calls = [(Alias("u", str(start + number)),) for number in range(100)]
        await ledger.log.append("a", [ev.CallStarted(aliases=alias, tool_name="look") for alias in calls])
    async with serving_ledger(ledger) as url, requesting(f"{url}/v1/stream?topic=commands") as reply:
        await reply.until(b'"topic":"commands"')
        assert b'"job"' in reply.body and b'"look"' not in reply.body


async def test_cursor_of_a_deleted_session_is_expired(ledger: LocalLedger) -> None:
    """A new session of the same name has other entries, so the old cursor is not valid for it."""
    await ledger.log.append("s", [make_delta("old"), make_delta("er")])
    async with serving_ledger(ledger) as url:
        async with requesting(f"{url}/v1/stream?session=s") as reply:
            cursor = await anext(frame["id"] async for frame in reply.frames() if "id" in frame)
        await ledger.delete("s")
        await ledger.log.append("s", [ev.MessageUser(text="new") for _ in range(5)])
        assert (await fetch(f"{url}/v1/stream?session=s", headers={"last-event-id": cursor})).status == 410


READ_FRAMES = """
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
def test_frames_are_read_from_chunks_of_any_size(node: str, size: int, end: str) -> None:
    """Chunks may split a character or a line end; the body need not be iterable, as in older Safari."""
    sent = end.join(["retry: 5", "", ":", "", "id: 1", "event: a", 'data: {"x":"é😀: y"}', "", "id:2", "", "data: ha"])
    command = [node, "--input-type=module", "-e", READ_FRAMES, "--", (WEB / "callslip.js").as_uri(), sent, str(size)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    frame = {"id": "1", "event": "a", "data": '{"x":"é😀: y"}'}
    assert json.loads(output) == [{"retry": "5"}, {}, frame, {"id": "2"}]


async def test_client_reconnects_when_the_stream_is_silent(client: Client) -> None:
    """A connection may be dead without an error, for example after a sleep: after a long silence, it is replaced."""
    requests = 0
    snapshot = {"session": "s", "seq": 1, "info": {}, "entries": []}

    async def silent_app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal requests
        requests += 1
        body = b":\n\n" if requests == 1 else b"event: snapshot\ndata: " + json.dumps(snapshot).encode() + b"\n\n"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    async with running(silent_app) as url:
        job = {"url": url, "sessions": ["s"], "until": {"s": 1}, "silenceTimeout": 500}
        (result,) = await asyncio.to_thread(client.ask, [job])
    assert requests >= 2 and result["sessions"]["s"]["seq"] == 1
