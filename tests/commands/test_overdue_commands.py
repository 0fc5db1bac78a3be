"""Test commands whose deadline passes while no process has the ledger open: all views agree that they have expired."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import callslip
from callslip.model import events as ev
from callslip.settings import Settings
from callslip.store.write_lock import WriteLock
from tests.support import cli_process, engines

pytestmark = pytest.mark.anyio

TIMEOUT_S = 60.0
AGE_S = 2 * TIMEOUT_S


class EarlierClock:
    """The clock of stores at a time before the timeouts of the commands."""

    def time(self) -> float:
        return REAL_TIME() - AGE_S


REAL_TIME = time.time


@contextlib.contextmanager
def earlier(db: str) -> Iterator[None]:
    """Let everything in the block happen before the timeouts."""
    engine = engines.POSTGRES if engines.is_postgres(db) else engines.SQLITE
    with contextlib.ExitStack() as stack:
        for patch in engines.list_clock_patches(engine, EarlierClock()):
            stack.enter_context(patch)
        yield


async def leave_command(db: str, *, is_claimed: bool = False) -> str:
    """Submit a command, and close the ledger before its deadline, which is over now. Return its call."""
    with earlier(db):
        async with await callslip.open(db) as ledger:
            await ledger.commands.submit("run", {"n": 1}, correlation_id="c", timeout=TIMEOUT_S)
            if is_claimed:
                assert await ledger.commands.claim(lease=600) is not None
            record = await ledger.commands.find("c")
    assert 0 < record.deadline < REAL_TIME() * 1000
    return record.id


def run_json(db: str, *arguments: str) -> list[Any]:
    """Run a command, and return the JSON of each line."""
    result = cli_process.run_in_process(*arguments, "--json", "--db", db)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def state_in_ls(db: str, call: str) -> str:
    return run_json(db, "ls", "commands")[0]["state"]


def state_in_ls_of_expired(db: str, call: str) -> str:
    return run_json(db, "ls", "--state", "expired")[0]["state"]


def state_in_ls_of_commands(db: str, call: str) -> str:
    (lists,) = run_json(db, "ls", "--commands")
    assert not lists["pending"] and not lists["completed"]
    assert lists["failed"][0]["final"]
    status = lists["failed"][0]["status"]
    return "expired" if status == "timeout" else status  # The name for one that was claimed.


def state_in_show_of_call(db: str, call: str) -> str:
    (shown,) = run_json(db, "show", call)
    assert shown["events"][-1]["type"] == "call.expired"
    assert shown["toolCall"]["status"] == shown["state"]
    return shown["state"]


def state_in_show_of_session(db: str, call: str) -> str:
    (shown,) = run_json(db, "show", "commands")
    assert shown["openCalls"] == 0
    return shown["entries"][-1]["status"]


VIEWS = (
    state_in_ls,
    state_in_ls_of_expired,
    state_in_ls_of_commands,
    state_in_show_of_call,
    state_in_show_of_session,
)


@pytest.mark.parametrize("read_state", VIEWS)
def test_an_overdue_command_is_expired_in_every_view(db: str, read_state: Callable[[str, str], str]) -> None:
    """The first program that reads the ledger already shows it, in any view."""
    assert read_state(db, asyncio.run(leave_command(db))) == "expired"


@pytest.mark.parametrize("read_state", VIEWS)
def test_an_overdue_command_that_ran_is_expired_in_every_view(db: str, read_state: Callable[[str, str], str]) -> None:
    """No other process has the ledger open, so none can extend its time."""
    assert read_state(db, asyncio.run(leave_command(db, is_claimed=True))) == "expired"


async def test_an_overdue_command_that_ran_ends_soon(db: str) -> None:
    """Also if it is not known whether other processes have the ledger open, as on a server."""
    call = await leave_command(db, is_claimed=True)
    async with await callslip.open(db, Settings(reaper_grace=0.1, reaper_interval=0.05)) as ledger:
        assert (await ledger.wait(call)).state == "expired"


async def test_the_first_read_of_a_library_shows_an_overdue_command_as_expired(db: str) -> None:
    """Records, lists and entries agree as soon as the ledger is open."""
    call = await leave_command(db)
    async with await callslip.open(db) as ledger:
        command = await ledger.commands.get("c")
        assert command.final and command.error == "no worker claimed it before its timeout"
        assert (await ledger.find_call(call)).state == "expired"
        assert [record.id for record in (await ledger.calls(states=["expired"])).items] == [call]
        assert [command.correlation_id for command in await ledger.commands.failed()] == ["c"]
        events = [event async for event in ledger.events("commands")]
        assert isinstance(events[-1], ev.CallExpired)


def test_a_server_shows_an_overdue_command_as_expired_at_its_start(db: str) -> None:
    """Its first answer already does."""
    call = asyncio.run(leave_command(db))
    with cli_process.serving(db) as server:
        result = cli_process.run("show", call, "--json", "--server", server.url, "--token", server.token)
        assert json.loads(result.stdout)["state"] == "expired"


async def test_a_running_command_is_left_to_a_process_that_watches_it(db: str) -> None:
    """If another process has the ledger open, its clocks decide, as the machine may have slept."""
    call = await leave_command(db, is_claimed=True)
    other = WriteLock(db.removeprefix("sqlite:///"))
    try:
        async with await callslip.open(db) as ledger:
            assert (await ledger.find_call(call)).state == "running"
    finally:
        other.close()
    async with await callslip.open(db) as ledger:
        assert (await ledger.find_call(call)).state == "expired"


async def test_a_command_that_awaits_approval_does_not_expire(db: str) -> None:
    """Its timeout starts with the approval, whose own time limit is a different one."""
    with earlier(db):
        async with await callslip.open(db) as ledger:
            await ledger.commands.submit("run", correlation_id="c", timeout=TIMEOUT_S, approval=True)
    async with await callslip.open(db) as ledger:
        assert (await ledger.commands.find("c")).state == "awaiting_approval"
