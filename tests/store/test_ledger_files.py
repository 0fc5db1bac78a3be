"""Test the files of a ledger: who can read them, and what happens if one is deleted or replaced while it is open."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import callslip
from callslip.errors import StoreError
from callslip.model import events as ev
from tests.support import cli_process

pytestmark = pytest.mark.anyio

FILES = ("ledger.db", "ledger.db-queue", "ledger.db-shm", "ledger.db-use", "ledger.db-wal", "ledger.db-work")
TIMEOUT_S = 10.0
TRY_EXCLUSIVE_LOCK = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)
except OSError:
    sys.exit(0)
sys.exit("another process could lock the file")
"""
"""Take the lock with which SQLite closes the last connection to a file and deletes its WAL."""


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def message(text: str) -> list[Any]:
    return [ev.MessageUser(text=text)]


@pytest.mark.parametrize("mask", [0, 0o022, 0o277])
async def test_new_files_are_for_their_owner_only(tmp_path: Path, mask: int) -> None:
    """The database, its WAL, its shared memory and its locks have mode 0600 with any umask."""
    folder = tmp_path / "ledger"
    folder.mkdir()
    with umask(mask):
        async with await callslip.open(f"sqlite:///{folder / 'ledger.db'}") as ledger:
            await ledger.log.append("a", message("hello"))
            assert modes(folder) == dict.fromkeys(FILES, 0o600)


async def test_a_file_behind_a_link_is_for_its_owner_only(tmp_path: Path) -> None:
    """A link that names a file of another folder creates that file with mode 0600."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "ledger.db"
    link.symlink_to(tmp_path / "real" / "ledger.db")
    with umask(0):
        async with await callslip.open(f"sqlite:///{link}") as ledger:
            await ledger.log.append("a", message("hello"))
            assert set(modes(tmp_path / "real").values()) == {0o600}


async def test_an_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    """A ledger that its owner shares with a group stays shared, and so do its other files."""
    path = tmp_path / "ledger.db"
    async with await callslip.open(f"sqlite:///{path}") as ledger:
        await ledger.log.append("a", message("hello"))
    path.chmod(0o640)
    async with await callslip.open(f"sqlite:///{path}") as ledger:
        await ledger.log.append("a", message("again"))
        assert modes(tmp_path)["ledger.db"] == modes(tmp_path)["ledger.db-wal"] == 0o640


@pytest.mark.parametrize("name", ["ledger.db-queue", "ledger.db-work", "ledger.db-use"])
async def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    """Neither is the file that the link names created, nor is the ledger."""
    target = tmp_path / "target"
    (tmp_path / name).symlink_to(target)
    with pytest.raises(StoreError, match="the lock file is a symbolic link"):
        await callslip.open(f"sqlite:///{tmp_path / 'ledger.db'}")
    assert not target.exists() and not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize("name", ["ledger.db", "ledger.db-wal", "ledger.db-shm"])
@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_lost_file_is_not_written_to(tmp_path: Path, name: str, is_replaced: bool) -> None:
    """Writing and reading raise an error, no file is created again, and both work once the file is back."""
    path, away = tmp_path / name, tmp_path / "away"
    async with await callslip.open(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        await ledger.log.append("a", message("before"))
        path.rename(away)
        if is_replaced:
            path.write_bytes(b"another file")
        word = "replaced" if is_replaced else "deleted"
        with pytest.raises(StoreError, match=f"{name} was {word} while the ledger was open; nothing was written"):
            await ledger.log.append("a", message("lost"))
        with pytest.raises(StoreError, match=f"{name} was {word}"):
            await ledger.sessions()
        with pytest.raises(StoreError, match=f"{name} was {word}"):
            async with ledger.log.store.read_snapshot():
                raise AssertionError("a snapshot of a lost file")
        assert path.exists() == is_replaced
        away.rename(path)
        await ledger.log.append("a", message("after"))
        texts = [event.text async for event in ledger.events("a") if isinstance(event, ev.MessageUser)]
        assert texts == ["before", "after"]


async def test_a_wal_without_its_database_is_not_deleted(tmp_path: Path) -> None:
    """A ledger whose file is gone is not created again silently while the WAL still has its events."""
    path, wal = tmp_path / "ledger.db", tmp_path / "ledger.db-wal"
    async with await callslip.open(f"sqlite:///{path}") as ledger:
        await ledger.log.append("a", message("hello"))
        left_over = wal.read_bytes()
    path.rename(tmp_path / "away")
    wal.write_bytes(left_over)
    with pytest.raises(StoreError, match=r"ledger\.db-wal has events of it"):
        await callslip.open(f"sqlite:///{path}")
    assert wal.read_bytes() == left_over and not path.exists()


async def test_opening_a_ledger_twice_keeps_its_locks(tmp_path: Path) -> None:
    """Reading the header for a second ledger of the same process does not release the locks of the first."""
    path = tmp_path / "ledger.db"
    async with await callslip.open(f"sqlite:///{path}") as first:
        async with await callslip.open(f"sqlite:///{path}"):
            pass
        await first.log.append("a", message("hello"))
        subprocess.run([sys.executable, "-c", TRY_EXCLUSIVE_LOCK, str(path)], check=True)


async def test_followers_of_a_lost_file_get_the_error(tmp_path: Path) -> None:
    """A reader that waits for events does not wait forever for those of a file that is gone."""
    path = tmp_path / "ledger.db"
    async with await callslip.open(f"sqlite:///{path}") as ledger:
        await ledger.log.append("a", message("hello"))
        events = ledger.follow("a")
        assert (await anext(events)).seq == 1
        path.rename(tmp_path / "away")
        with pytest.raises(StoreError, match="was deleted"):
            async with asyncio.timeout(TIMEOUT_S):
                await anext(events)
        await events.aclose()
        (tmp_path / "away").rename(path)


def request(server: cli_process.ServeProcess, path: str, body: Any = None) -> tuple[int, Any]:
    """Send a request, and return the status and the JSON of the answer."""
    headers = {"authorization": f"Bearer {server.token}", "content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers), timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def until_status(server: cli_process.ServeProcess, path: str, status: int) -> Any:
    """Request until the server answers with this status, and return the answer."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found, answer = request(server, path)
        if found == status:
            return answer
        assert time.monotonic() < deadline, (found, answer)
        time.sleep(0.02)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_server_whose_file_is_lost_answers_503(tmp_path: Path, is_replaced: bool) -> None:
    """Writes, reads and the health check say so, streams end, and no empty ledger is created."""
    path, away = tmp_path / "ledger.db", tmp_path / "away"
    event = {"events": [{"type": "message.user", "text": "hello"}]}
    with cli_process.serving(path) as server:
        assert request(server, "/v1/sessions/a/events", event)[0] == 201
        headers = {"authorization": f"Bearer {server.token}"}
        stream = urllib.request.urlopen(
            urllib.request.Request(server.url + "/v1/stream?session=a&topic=sessions", headers=headers), timeout=30
        )
        assert stream.readline().startswith(b"retry:")
        path.rename(away)
        if is_replaced:
            path.touch()
        status, problem = request(server, "/v1/sessions/a/events", event)
        word = "replaced" if is_replaced else "deleted"
        assert status == 503 and problem["type"] == "urn:callslip:store"
        assert f"ledger.db was {word} while the ledger was open; nothing was written" in problem["detail"]
        assert f"was {word}" in until_status(server, "/v1/sessions/a", 503)["detail"]
        assert until_status(server, "/healthz", 503)["status"] == "unavailable"
        reader = threading.Thread(target=stream.read, daemon=True)
        reader.start()
        reader.join(TIMEOUT_S)
        assert not reader.is_alive(), "the stream did not end"
        assert path.exists() == is_replaced and (not is_replaced or path.stat().st_size == 0)
        away.rename(path)
        assert len(until_status(server, "/v1/sessions/a", 200)["entries"]) == 1
