"""`callslip wrap`: only requests that it holds can be answered in the ledger."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from callslip.api.ledger import LocalLedger
from callslip.errors import ConflictError
from callslip.model.entries import PermissionRequest
from callslip.model.records import ApprovalRecord
from tests.support.acp_process import (
    PROGRAMS,
    Client,
    child_ids,
    read_entries,
    text_of,
    wait_until,
    with_ledger,
    wrap_command,
)

ASKER = [sys.executable, str(PROGRAMS / "acp_asker.py")]
SESSION = "acp_asker-one"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return the path of a ledger that does not exist yet."""
    return str(tmp_path / "ledger.db")


def start_turn(client: Client) -> None:
    session = client.open_session()
    client.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": "c1=a"}])


def wait_pending(path: str, *, after: str = "") -> ApprovalRecord:
    """Wait for a pending request, another than `after`."""

    async def read(ledger: LocalLedger) -> list[ApprovalRecord]:
        return [record for record in await ledger.approvals() if record.id != after]

    return wait_until(lambda: Path(path).exists() and with_ledger(path, read))[0]


def assert_refused(path: str, approval: str) -> None:
    async def approve(ledger: LocalLedger) -> None:
        with pytest.raises(ConflictError, match="must be answered in the ACP client"):
            await ledger.approve(approval, by="ann")

    with_ledger(path, approve)


def answer_in_client(client: Client, received: dict[str, Any]) -> None:
    client.send(id=received["id"], result={"outcome": {"outcome": "selected", "optionId": "no"}})
    client.until(lambda message: "[c1 no]" in text_of(message))
    assert client.end()[0] == 0


def list_answers(path: str) -> list[tuple[str, str]]:
    requests = [entry for entry in read_entries(path, SESSION) if isinstance(entry, PermissionRequest)]
    return [(request.state, request.by) for request in requests]


def test_a_request_that_the_client_answers_cannot_be_answered_here(path: str) -> None:
    """The default of `--approvals`: the answer of the client counts."""
    with Client([*wrap_command(path), *ASKER, "one"]) as client:
        start_turn(client)
        received = client.until(lambda message: message.get("method") == "session/request_permission")
        assert_refused(path, wait_pending(path).id)
        answer_in_client(client, received)
    assert list_answers(path) == [("refused", "client")]


def test_a_released_request_cannot_be_answered_here_any_more(path: str) -> None:
    """While recording fails, a held request goes to the client. When recording works again, the ledger says so."""
    limit_file_size = ["sh", "-c", 'ulimit -S -f 700 && exec "$@"', "sh"]
    with Client([*limit_file_size, *wrap_command(path, "--approvals", "callslip"), *ASKER, "one"]) as client:
        start_turn(client)
        held = wait_pending(path)
        agent = client.ask("ping")["result"]["pid"]
        (recorder,) = [child for child in child_ids(client.process.pid) if child != agent]
        for number in range(30):
            client.send(method="noise", params={"x": "x" * 20_000, "number": number})
        received = client.until(lambda message: message.get("method") == "session/request_permission")
        raise_file_limit(recorder)
        assert_refused(path, wait_pending(path, after=held.id).id)
        answer_in_client(client, received)
    assert list_answers(path) == [("superseded", ""), ("refused", "client")]


def raise_file_limit(process: int) -> None:
    resource.prlimit(process, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
