"""The OpenAPI document matches the server: requests that it allows, and requests that it does not allow."""

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
from schemathesis.specs.openapi.schemas import OpenApiSchema

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
# Each path parameter is the id of an existing record or "nothing", except in routes that accept any name.
EXISTING_IDS = {"session": "demo", "call": "call_1", "approval": "appr_00000000000a", "hash": HASH}
EXISTING_IDS |= {"file": "app.js", "module": "preact.mjs"}
ACCEPT_ANY_NAME = ("/v1/sessions/{session}/events", "/v1/sessions/{session}/prompt", "/s/{session}", "/c/{call}")
# The response of /v1/stream never ends, so it has its own tests.
PATHS = sorted({route.path for route in http.ROUTES} - {"/v1/stream"})


def load_schema(path: str) -> OpenApiSchema:
    """Return the document as a client reads it, with one path and two values for each path parameter."""
    content = msgspec.json.decode(msgspec.json.encode(document(http.ROUTES, LIMITS)))
    operations = content["paths"][path]
    content["paths"] = {path: operations}
    for method, operation in operations.items():
        for parameter in operation["parameters"]:
            if parameter["in"] == "path" and path not in ACCEPT_ANY_NAME:
                # The session is needed by other cases, so it is not deleted.
                first = "none" if method == "delete" else EXISTING_IDS[parameter["name"]]
                parameter["schema"]["enum"] = [first, "nothing"]
    schema = schemathesis.openapi.from_dict(content, config=schemathesis.Config.from_dict({} if LONG else {"seed": 1}))
    schema.auth()(BearerAuth)
    return schema


@schemathesis.serializer("application/x-ndjson")
def encode_lines(context: Any, value: Any) -> bytes:
    """Encode one message per line."""
    return b"".join(msgspec.json.encode(item) + b"\n" for item in (value if isinstance(value, list) else [value]))


class BearerAuth:
    """Adds the token to each request, except where a check leaves it out."""

    def get(self, case: schemathesis.Case, context: Any) -> str:
        return f"Bearer {TOKEN}"

    def set(self, case: schemathesis.Case, data: str, context: Any) -> None:
        case.headers = {**(case.headers or {}), "Authorization": data}


async def add_records(ledger: callslip.LocalLedger) -> None:
    """Create the records of `EXISTING_IDS`."""
    session = ledger.session("demo")
    async with session.call("search", {"q": "cats"}, alias=("openai", "call_1")) as call:
        call.complete(LARGE)
    await session.append(
        ev.CallProposed(call="new:1", tool_name="rm", input={"path": "/"}),
        ev.ApprovalRequested(call="new:1", approval=EXISTING_IDS["approval"]),
    )


class ServerThread:
    """A server in a thread, because schemathesis blocks the thread of the test."""

    def __init__(self) -> None:
        self.url = ""
        self._ready, self._stopped = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with await callslip.open("sqlite:///:memory:") as ledger:
            await add_records(ledger)
            async with serving_ledger(ledger, gate=TokenAuthorizer(ledger.log, TOKEN), limits=LIMITS) as self.url:
                self._ready.set()
                await self._stopped.wait()

    def __enter__(self) -> str:
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S)
        return self.url

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(TIMEOUT_S)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ServerThread() as url:
        yield url


def excluded_checks(case: schemathesis.Case) -> list[CheckFunction]:
    """Return the checks that do not apply.

    A schema cannot express cursors, rules between parameters, or which names exist: other cases may have created a
    session with any name. The test sets `follow` of a stream, and entries are filtered by any text.
    """
    session = case.path_parameters.get("session", "nothing")
    accepts_any = case.operation.path.endswith(("/stream", "/entries"))
    accepts_any = accepts_any or session not in (EXISTING_IDS["session"], "none", "nothing")
    return [checks.positive_data_acceptance, *([checks.negative_data_rejection] if accepts_any else [])]


@pytest.fixture(params=PATHS)
def schema(request: pytest.FixtureRequest) -> OpenApiSchema:
    """Return the schema of one path. Building all of them during collection would slow down every run of pytest."""
    request.node._nodeid = request.node.nodeid  # schemathesis expects this attribute, which pytest 9.1 removed.
    return load_schema(request.param)


@pytest.mark.chaos
@schemathesis.pytest.from_fixture("schema").parametrize()
@settings(max_examples=180 if LONG else 8, deadline=None, suppress_health_check=list(HealthCheck))
def test_responses_match_the_openapi_document(case: schemathesis.Case, url: str) -> None:
    """Every status, type, header and body is documented; invalid input and a missing token are refused."""
    if case.operation.path.endswith("/stream"):  # A followed stream never ends.
        case.query = {**(case.query or {}), "follow": "false"}
    case.call_and_validate(base_url=url, excluded_checks=excluded_checks(case), timeout=TIMEOUT_S)


@pytest.mark.parametrize("format", registry.exportable())
def test_a_session_matches_the_openapi_document_in_every_format(format: str, url: str) -> None:
    """Each export has the documented status, type and body."""
    path = "/v1/sessions/{session}"
    operation = load_schema(path)[path]["GET"]
    case = operation.Case(
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
        descriptions = [
            parameter.get("description") or operation.get("description") for parameter in operation["parameters"]
        ]
        assert all(descriptions), operation["operationId"]
    open_to_all = {
        path
        for path, methods in response["paths"].items()
        if any(not operation["security"] for operation in methods.values())
    }
    assert open_to_all >= {"/openapi.json", "/healthz"}
    assert [path for path in open_to_all if path.startswith(("/v1", "/metrics"))] == ["/v1/sign-in"]


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
