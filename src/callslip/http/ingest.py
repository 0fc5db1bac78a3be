"""Messages of any readable format, posted in one or more bodies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from callslip.api.posts import Body
from callslip.formats import registry
from callslip.formats.json_fields import identifier
from callslip.http import schemas
from callslip.http.body import MEDIA_JSON, MEDIA_LINES, parse_messages
from callslip.http.request import RequestContext, Route, json_response
from callslip.ledger.aio import LARGE_BYTES, run_off_loop
from callslip.model import codec
from callslip.model.events import Chunks, decode_event
from callslip.model.names import check_session_name
from callslip.model.receipts import event_receipt
from callslip.model.records import ConversationName


class PostQuery(msgspec.Struct, kw_only=True):
    """The format of the body. `chunks` sets how its texts are split; `end=true` marks the last body."""

    format: Annotated[
        str, Meta(description="The format of the body.", extra_json_schema={"enum": registry.readable()})
    ] = "events"
    chunks: Annotated[Chunks, Meta(description="How texts are split, if not as usual for the format.")] | None = None
    end: Annotated[bool, Meta(description="Whether this is the last body of the conversation.")] = False
    delivers_answers: Annotated[
        bool,
        Meta(description="Whether you pass answers to requests for approval in this body on to the agent yourself."),
    ] = False
    requires_validation: Annotated[
        list[str],
        Meta(description="A tool whose calls a user must accept if the row has no answer, for the format `rows`."),
    ] = []
    returns: Annotated[
        Literal["summary", "events"], Meta(description="`events`: also return the appended events of this session.")
    ] = msgspec.field(default="summary", name="return")


async def post(context: RequestContext) -> Response:
    """Append messages of any readable format to a session. A new session belongs to the caller.

    Without the right to read, returned events have only their ids, seq, time and verdict.
    """
    name = check_session_name(context.path_params["session"])
    record, principal = await context.admit_to(name, "write")
    query = context.query(PostQuery)
    body = await context.raw((MEDIA_JSON, *MEDIA_LINES))
    is_large = len(body) >= LARGE_BYTES
    posted = Body(
        messages=await run_off_loop(is_large, parse_messages, body, context.media_type, context.server.limits),
        size=len(body),
        digest=await run_off_loop(is_large, codec.digest, body),
        key=context.request.headers.get("idempotency-key", ""),
        chunks=query.chunks,
        is_end=query.end,
        delivers_answers=query.delivers_answers,
        requires_validation=query.requires_validation,
        with_events=query.returns == "events",
    )
    conversation = ConversationName(name, query.format, identifier(principal.caller))
    result = await context.server.posts.append(conversation, posted, context.access)
    appended = schemas.Appended(
        session=name,
        seq=result.seq or msgspec.UNSET,
        appended=result.appended,
        not_understood=result.not_understood,
        others=result.others,
    )
    if result.events is not None:
        may_read = await context.access.allows(name, "read")
        appended.events = [msgspec.Raw(event) if may_read else _make_receipt(event) for event in result.events]
    return json_response(appended, 201 if record is None and appended.appended else 200)


def _make_receipt(event: bytes) -> Any:
    return event_receipt(decode_event(event))


ROUTES = (
    Route(
        "POST",
        "/v1/sessions/{session}/events",
        post,
        "write",
        PostQuery,
        headers=("idempotency-key",),
        body="application/json, application/x-ndjson",
        answers={200: schemas.Appended, 201: schemas.Appended},
    ),
)
