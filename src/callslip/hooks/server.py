"""The socket of a hook folder: it takes pings and requests for approval, and nothing else.

One process serves a folder. Another one waits until it is gone and takes over. A request is one line, and so is its
answer: the output of the hook. A connection that ends without an answer leaves the decision to the agent. Nothing here
lists, answers or changes anything, so a program that an agent runs gains nothing from the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import stat
import struct
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from callslip.api.ledger import LocalLedger
from callslip.api.rules import answer_by_rules
from callslip.client.location import LedgerLocation
from callslip.errors import CallslipError, InvalidInputError, StoreError
from callslip.formats.hooks import answers
from callslip.formats.json_fields import as_dict
from callslip.hooks.folder import LOCK, SOCKET, count_spooled, hook_folder, prepare_folder
from callslip.hooks.receiver import ANSWERED_THERE, HookReceiver, answer_output
from callslip.hooks.spool import MAX_FILE_BYTES, Message, parse_message
from callslip.ledger.event_log import EventLog
from callslip.model import codec
from callslip.model import events as ev
from callslip.model.display import pluralize

TAKE_OVER_S = 1.0
IMPORT_S = 1.0
POLL_S = 0.25
RETRY_S = 2.0
REQUEST_S = 10.0
"""How long a hook may take to send its request."""
MAX_WAIT_S = 24 * 3600.0
DEFAULT_WAIT_S = 600.0
MAX_CONNECTIONS = 200
MAX_PATH_BYTES = 100
"""The longest path of a socket on the systems that have the shortest one."""
PONG = b'{"ok":true}\n'

Report = Callable[[str], None]


@contextlib.asynccontextmanager
async def serving_hooks(ledger: LocalLedger, location: LedgerLocation, report: Report) -> AsyncGenerator[None]:
    """Serve the hook folder of a ledger while the block runs, when no other process does."""
    if location.is_in_memory or ledger.log.store.read_only or not hasattr(socket, "AF_UNIX"):
        yield
        return
    task = asyncio.ensure_future(_serve(ledger.log, hook_folder(location), report))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def import_once(log: EventLog, folder: Path, report: Report = lambda problem: None) -> None:
    """Import what waits in a folder, unless a server does."""
    if log.store.read_only:
        return
    with contextlib.suppress(CallslipError, OSError):
        prepare_folder(folder)
        with try_lock(folder) as is_locked:
            if is_locked:
                receiver = HookReceiver(log, folder, report)
                await receiver.release_abandoned()
                await receiver.import_spooled()


def is_served(folder: Path) -> bool:
    """Return whether a process serves a folder. Nothing is created."""
    try:
        with try_lock(folder, flags=0) as is_locked:
            return not is_locked
    except OSError:
        return False


@contextlib.contextmanager
def try_lock(folder: Path, *, flags: int = os.O_CREAT) -> Any:
    """Hold the lock of a folder while the block runs; yield whether no other process holds it."""
    flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(folder / LOCK, flags, 0o600), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


async def _serve(log: EventLog, folder: Path, report: Report) -> None:
    """Serve a folder until this task is cancelled: as soon as no other process does."""
    problem = ""
    while True:
        try:
            prepare_folder(folder)
            with try_lock(folder) as is_locked:
                if is_locked:
                    problem = ""
                    if waiting := count_spooled(folder):
                        report(f"importing {pluralize(waiting, 'stored message')} of hooks")
                    await HookServer(log, folder, report).run()
            await asyncio.sleep(TAKE_OVER_S)
        except Exception as error:
            if str(error) != problem:
                problem = str(error)
                report(f"hooks are not served: {_describe(error)}")
            await asyncio.sleep(RETRY_S)


class HookServer:
    """Serves one folder, of which this process holds the lock."""

    def __init__(self, log: EventLog, folder: Path, report: Report) -> None:
        self._folder = folder
        self._report = report
        self._receiver = HookReceiver(log, folder, report)
        self._log = log
        self._pinged = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until this task is cancelled."""
        await self._receiver.release_abandoned()
        server = await asyncio.start_unix_server(self._accept, sock=bind(self._folder), limit=MAX_FILE_BYTES)
        try:
            await self._import()
        finally:
            server.close()
            with contextlib.suppress(OSError):
                os.unlink(self._folder / SOCKET)
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _import(self) -> None:
        """Import what is stored: after a ping, and now and then in case that one was lost."""
        problem = ""
        while True:
            try:
                self._pinged.clear()
                await self._receiver.import_spooled()
                await self._receiver.transcripts.poll()
                await self._receiver.release_again()
                if problem:
                    problem = ""
                    self._report("recording of hooks works again")
            except Exception as error:  # Also of a bug in a reader of session files.
                if str(error) != problem:
                    problem = str(error)
                    self._report(f"recording of hooks fails, and is tried again: {_describe(error)}")
                await asyncio.sleep(RETRY_S)
            is_busy = self._receiver.has_held or self._receiver.transcripts.is_following
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S if is_busy else IMPORT_S):
                    await self._pinged.wait()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MAX_CONNECTIONS or not _is_same_user(writer.get_extra_info("socket")):
            writer.close()
            return
        task = asyncio.ensure_future(self._handle(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                line = await reader.readline()
            if not line.endswith(b"\n"):
                return
            fields = as_dict(codec.parse_json(line, max_bytes=MAX_FILE_BYTES))
            if fields.get("ping") is True:
                self._pinged.set()
                writer.write(PONG)
            elif "message" in fields:
                await self._answer(parse_message(line), _wait_of(fields.get("wait")), reader, writer)
        except (InvalidInputError, StoreError, OSError, TimeoutError, ValueError):
            pass  # Without an answer the agent asks by itself.
        except Exception as error:
            self._report(f"a request of a hook failed: {_describe(error)}")
        finally:
            writer.close()

    async def _answer(
        self, message: Message, wait_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Record a request and send the answer to it, unless the hook ends first or the time is over."""
        session, request = await self._receiver.request(message)
        if request is None:
            return
        answer = asyncio.ensure_future(self._receiver.wait_for_answer(session, request))
        closed = asyncio.ensure_future(reader.read(1))
        reason = "the server was stopped, so the agent asks in its terminal"
        try:
            await answer_by_rules(self._log, request.approval)
            done, _ = await asyncio.wait({answer, closed}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if answer in done:
                reason = ""
                await self._send(message, session, request, answer.result(), writer)
            elif done:
                reason = ANSWERED_THERE
            else:
                reason = f"no answer within {wait_s:g} s, so the agent asks in its terminal"
        except Exception as error:
            reason = reason and f"the request failed, so the agent asks in its terminal: {_describe(error)}"
            raise
        finally:
            if reason:
                await self._receiver.release(session, request, reason)
            answer.cancel()
            closed.cancel()
            await asyncio.gather(answer, closed, return_exceptions=True)

    async def _send(
        self,
        message: Message,
        session: str,
        request: ev.ApprovalRequested,
        answer: ev.Event,
        writer: asyncio.StreamWriter,
    ) -> None:
        output = answer_output(message.agent, message.payload, answer)
        if not output:
            return
        writer.write(output)
        await writer.drain()
        if isinstance(answer, ev.ApprovalGranted) and answers.lets_run(message.agent):
            await self._receiver.note_allowed(session, request)


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, CallslipError | OSError) else f"{type(error).__name__}: {error}"


def bind(folder: Path) -> socket.socket:
    """Listen on the socket of a folder, in place of one that a killed process left."""
    path = folder / SOCKET
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise StoreError(f"{path} is not a socket; delete it")
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        _bind_path(listener, path)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener


def _bind_path(listener: socket.socket, path: Path) -> None:
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        return listener.bind(str(path))
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if not os.path.isdir(f"/proc/self/fd/{folder}"):
            raise StoreError(f"{path} is too long for a socket; set XDG_DATA_HOME to a folder with a shorter name")
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def _is_same_user(connection: socket.socket) -> bool:
    """Return whether the program at the other end is of this user. Not on Linux, only the folder's mode decides."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return user == os.geteuid()


def _wait_of(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return min(float(value), MAX_WAIT_S) if is_number and value > 0 else DEFAULT_WAIT_S
