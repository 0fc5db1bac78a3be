"""The OpenAPI document against the server it describes: everything it allows is asked, and things it does not allow."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi import checks

import callslip
from callslip import http
from callslip.formats import registry
from callslip.http.access import TokenAuthorizer
from callslip.http.openapi import document
from callslip.model import events as ev
from callslip.settings import Limits
from tests.conftest import LONG
from tests.support.live_server import TIMEOUT_S, fetch, serving_ledger

TOKEN = "a-token-that-is-long-enough-for-the-main-one"
LIMITS = Limits(wait=0.05, body_bytes=200_000, max_page_rows=50)
LARGE = "large " * 20_000
HASH = hashlib.blake2b(LARGE.encode(), digest_size=32).hexdigest()
# What path parameters may be: something that is there, and something that is not. Under NEW any name is allowed.
THERE = {"session": "demo", "call": "call_1", "approval": "appr_00000000000a", "hash": HASH}
THERE |= {"file": "app.js", "module": "preact.mjs"}
NEW = ("/v1/sessions/{session}/events", "/s/{session}", "/c/{call}")


def described() -> dict[str, Any]:
    """The document as a client reads it, with paths that lead somewhere."""
    created = msgspec.json.decode(msgspec.json.encode(document(http.ROUTES, LIMITS)))
    for path, operations in created["paths"].items():
        for parameter in [one for operation in operations.values() for one in operation["parameters"]]:
            if parameter["in"] == "path" and path not in NEW:
                parameter["schema"]["enum"] = [THERE[parameter["name"]], "nothing"]
    return created


# What the page follows has no end at all; its own tests read it.
SCHEMA = schemathesis.openapi.from_dict(described()).exclude(path="/v1/stream")


@schemathesis.serializer("application/x-ndjson")
def lines(context: Any, value: Any) -> bytes:
    """One message a line."""
    return b"".join(msgspec.json.encode(item) + b"\n" for item in (value if isinstance(value, list) else [value]))


@SCHEMA.auth()
class Bearer:
    """The token, unless a check omits it."""

    def get(self, case: schemathesis.Case, context: Any) -> str:
        return f"Bearer {TOKEN}"

    def set(self, case: schemathesis.Case, data: str, context: Any) -> None:
        case.headers = {**(case.headers or {}), "Authorization": data}


async def filled(ledger: callslip.LocalLedger) -> None:
    session = ledger.session("demo")
    async with session.call("search", {"q": "cats"}, alias=("openai", "call_1")) as call:
        call.complete(LARGE)
    await session.append(
        ev.CallProposed(call="new:1", tool_name="rm", input={"path": "/"}),
        ev.ApprovalRequested(call="new:1", approval=THERE["approval"]),
    )


class Apart:
    """A server in a thread of its own: schemathesis asks and waits in this one."""

    def __init__(self) -> None:
        self.url = ""
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with await callslip.open("sqlite:///:memory:") as ledger:
            await filled(ledger)
            async with serving_ledger(ledger, gate=TokenAuthorizer(ledger.log, TOKEN), limits=LIMITS) as self.url:
                self._ready.set()
                await self._over.wait()

    def __enter__(self) -> str:
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S)
        return self.url

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(TIMEOUT_S)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Apart() as url:
        yield url


def excluded(case: schemathesis.Case) -> list[CheckFunction]:
    """Rules between parameters, cursors and names on offer cannot be told in a schema; `follow` is not asked freely."""
    streamed = case.operation.path.endswith("/stream")
    return [checks.positive_data_acceptance, *([checks.negative_data_rejection] if streamed else [])]


@pytest.mark.chaos
@SCHEMA.parametrize()
@settings(max_examples=180 if LONG else 8, deadline=None, suppress_health_check=list(HealthCheck))
def test_responses_match_the_openapi_document(case: schemathesis.Case, url: str) -> None:
    """Every status, type, header and body is documented; invalid input and a missing token are refused."""
    if case.operation.path.endswith("/stream"):  # One that is followed has no end.
        case.query = {**(case.query or {}), "follow": "false"}
    case.call_and_validate(base_url=url, excluded_checks=excluded(case), timeout=TIMEOUT_S)


@pytest.mark.parametrize("format", registry.exportable())
def test_a_session_matches_the_openapi_document_in_every_format(format: str, url: str) -> None:
    """Also in formats that are not JSON of ours."""
    case = SCHEMA["/v1/sessions/{session}"]["GET"].Case(
        path_parameters={"session": "demo"}, query={"format": format}, headers={"Authorization": f"Bearer {TOKEN}"}
    )
    assert case.call_and_validate(base_url=url, timeout=TIMEOUT_S).status_code == 200


@pytest.mark.anyio
async def test_the_openapi_document_needs_no_token_and_lists_every_route() -> None:
    """Its operations are exactly the routes of the server."""
    async with (
        await callslip.open("sqlite:///:memory:") as ledger,
        serving_ledger(ledger, gate=TokenAuthorizer(ledger.log, TOKEN)) as base,
    ):
        answer = await fetch(f"{base}/openapi.json")
    assert answer.status == 200 and answer.headers["content-type"] == "application/json"
    response = answer.json()
    assert response["openapi"] == "3.1.0" and response["info"]["version"] == callslip.__version__
    operations = {(method.upper(), path) for path, methods in response["paths"].items() for method in methods}
    assert operations == {(route.method, route.path) for route in http.ROUTES}


def test_every_openapi_operation_is_described() -> None:
    """Each has a unique id, a summary, descriptions of its parameters and its required verb."""
    response = document(http.ROUTES, LIMITS)
    operations = [operation for methods in response["paths"].values() for operation in methods.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for operation in operations:
        assert operation["summary"] and operation["responses"]
        target = [parameter.get("description") or operation.get("description") for parameter in operation["parameters"]]
        assert all(target), operation["operationId"]
    open_to_all = {
        path for path, methods in response["paths"].items() if any(not one["security"] for one in methods.values())
    }
    assert open_to_all >= {"/openapi.json", "/healthz"}
    assert not [path for path in open_to_all if path.startswith(("/v1", "/metrics"))]


def test_the_openapi_document_contains_the_configured_limits() -> None:
    """Parameter maximums are those of the configured `Limits`."""
    response = document(http.ROUTES, Limits(max_page_rows=7, wait=3.0))
    found = {
        parameter["name"]: parameter["schema"]["maximum"]
        for parameter in [
            *response["paths"]["/v1/calls"]["get"]["parameters"],
            *response["paths"]["/v1/calls/{call}"]["get"]["parameters"],
        ]
        if "maximum" in parameter["schema"]
    }
    assert found == {"limit": 7, "wait": 3.0}


def test_the_openapi_document_contains_the_mount_prefix() -> None:
    """The server URL is the prefix, so paths are relative to it."""
    assert document(http.ROUTES, LIMITS, "/callslip")["servers"] == [{"url": "/callslip"}]
    assert document(http.ROUTES, LIMITS)["servers"] == [{"url": "/"}]
