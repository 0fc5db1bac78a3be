"""The commands of a ledger behind a server."""

from __future__ import annotations

from typing import Any, Unpack
from uuid import uuid4

import msgspec

from callslip.api.commands import DEFAULT_QUEUE, DEFAULT_SESSION, ClaimOptions, Commands, SubmitOptions
from callslip.api.keywords import check_keywords
from callslip.client.address import READ_TIMEOUT_S
from callslip.client.problems import decode_answer
from callslip.client.remote_log import RemoteLog, path_of
from callslip.commands import Claim, Command
from callslip.model import codec

PAGE_ROWS = 1000
MIN_HEARTBEAT_TIMEOUT_S = 1.0
"""A server has at least this long to answer a heartbeat before it is repeated over another connection."""
_NO_WAIT_S = 0.001
"""A submission with any wait is answered with the command itself instead of its id alone."""


class _Lists(msgspec.Struct):
    pending: list[Command]
    completed: list[Command]
    failed: list[Command]


class _Lease(msgspec.Struct):
    lease_until: int


class RemoteCommands(Commands):
    """Submits, reads and runs commands over HTTP."""

    max_claim_wait_s = 20.0
    can_cancel_claim = True

    def __init__(self, log: RemoteLog) -> None:
        self._log = log
        self._pool = log.pool

    def _decode(self, body: bytes, kind: Any) -> Any:
        return decode_answer(self._pool.url, body, kind)

    async def submit(self, action: str, params: Any = None, **options: Unpack[SubmitOptions]) -> Command:
        check_keywords("submit", options, SubmitOptions)
        wait = options.get("wait", 0.0)
        body = {
            "action": action,
            "params": params,
            "client": options.get("queue", DEFAULT_QUEUE),
            "session": options.get("session", DEFAULT_SESSION),
            "timeout": options.get("timeout"),
            "idempotent": options.get("idempotent", False),
            "approve": "ask" if options.get("approval") else "",
            "correlation_id": options.get("correlation_id", ""),
            "title": options.get("title", ""),
        }
        query, headers = {"wait": max(wait, _NO_WAIT_S)}, {"idempotency-key": options.get("key") or uuid4().hex}
        answer = await self._log.retry(lambda: self._pool.post("/v1/calls", body, query, headers=headers, wait=wait))
        return self._decode(answer, Command)

    async def get(self, id_or_prefix: str, *, wait: float = 0.0, session: str = "") -> Command:
        query = {"format": "command", "wait": wait or None, "session": session}
        return self._decode(await self._pool.get(path_of("calls", id_or_prefix), query, wait=wait), Command)

    async def _lists(self, queue: str, limit: int) -> _Lists:
        query = {"client": queue, "limit": min(limit, PAGE_ROWS)}
        return self._decode(await self._pool.get("/v1/commands", query), _Lists)

    async def pending(self, queue: str = "", limit: int = 100) -> list[Command]:
        return (await self._lists(queue, limit)).pending

    async def completed(self, queue: str = "", limit: int = 100) -> list[Command]:
        return (await self._lists(queue, limit)).completed

    async def failed(self, queue: str = "", limit: int | None = None) -> list[Command]:
        return (await self._lists(queue, 100 if limit is None else limit)).failed

    async def claim(self, queue: str = DEFAULT_QUEUE, **options: Unpack[ClaimOptions]) -> Claim | None:
        check_keywords("claim", options, ClaimOptions)
        wait = options.get("wait", 0.0)
        request = {
            "client": queue,
            "worker": options.get("worker", ""),
            "wait": wait,
            "lease": options.get("lease"),
            "session": options.get("session", ""),
        }
        body = await self._pool.post("/v1/calls/claim", request, wait=wait, accept_late=True)
        return self._decode(body, Claim) if body else None

    async def heartbeat(self, command: str, fence: int, *, lease: float | None = None, text: str = "") -> int:
        request: dict[str, Any] = {"fence": fence, "lease": lease}
        if text:
            request["text"] = codec.clean_text(text)
        # A heartbeat without an answer must leave time to repeat it while the lease lasts.
        timeout = READ_TIMEOUT_S if lease is None else min(READ_TIMEOUT_S, max(MIN_HEARTBEAT_TIMEOUT_S, lease / 3))
        body = await self._pool.post(path_of("calls", command, "heartbeat"), request, timeout=timeout)
        return self._decode(body, _Lease).lease_until

    async def release(self, command: str, fence: int, reason: str = "") -> None:
        await self._pool.post(path_of("calls", command, "release"), {"fence": fence, "reason": reason})

    async def complete(self, command: str, result: Any = None, *, fence: int = 0) -> Command:
        return await self._finish(command, {"fence": fence, "result": codec.to_json(result)})

    async def fail(self, command: str, error: Any, *, fence: int = 0) -> Command:
        error = codec.clean_text(error) if isinstance(error, str) else codec.to_json(error)
        return await self._finish(command, {"fence": fence, "error": error})

    async def _finish(self, command: str, request: dict[str, Any]) -> Command:
        return self._decode(await self._pool.post(path_of("calls", command, "result"), request), Command)
