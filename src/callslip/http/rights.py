"""What the caller of a request may do, so that a page shows only what its user can use."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from callslip.api.access import VERBS, Verb
from callslip.errors import InvalidInputError
from callslip.http.request import RequestContext, Route, json_response
from callslip.model.views import CamelStruct

MAX_SESSIONS = 200


class RightsQuery(msgspec.Struct):
    """The sessions that a page shows."""

    session: Annotated[list[str], Meta(description="The rights in this session; may be repeated.")] = []


class Rights(CamelStruct):
    """The name under which the caller answers, and its rights in all sessions and in those that were named.

    A session in which it has no right is missing, like one that does not exist.
    """

    name: str
    everywhere: list[Verb]
    sessions: dict[str, list[Verb]]


async def rights(context: RequestContext) -> Response:
    """Return what the caller may do: read, write, approve (answer requests, and use rules), execute."""
    principal = await context.admit()
    names = list(dict.fromkeys(context.query(RightsQuery).session))
    if len(names) > MAX_SESSIONS:
        raise InvalidInputError("session", f"must be given at most {MAX_SESSIONS} times", MAX_SESSIONS)
    access = context.access
    everywhere: list[Verb] = [verb for verb in VERBS if await access.allows_everywhere(verb)]
    sessions: dict[str, list[Verb]] = {}
    for name in names:
        verbs: list[Verb] = [verb for verb in VERBS if await access.may(name, verb)]
        if verbs:
            sessions[name] = verbs
    return json_response(Rights(name=principal.name, everywhere=everywhere, sessions=sessions))


ROUTES = (Route("GET", "/v1/rights", rights, query=RightsQuery, answers={200: Rights}),)
