"""Search over HTTP: entries and titles of the sessions that the caller may read."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.responses import Response

from callslip.api.search import MAX_RESULTS, MAX_TIME_MS, RESULTS, STATES, SearchFilters
from callslip.api.search import search as find_texts
from callslip.http.request import RequestContext, Route, json_response
from callslip.http.sessions import check_limit
from callslip.model.search import SearchResults

Time = Annotated[int, Meta(ge=0, le=MAX_TIME_MS, description="In ms since the epoch; 0 for no limit.")]


class SearchQuery(msgspec.Struct, kw_only=True):
    """What to search for, and where."""

    q: Annotated[str, Meta(description='The words to search for. "Two words" in quotes must follow one another.')] = ""
    session: Annotated[str, Meta(description="Only this session: its whole name.")] = ""
    project: Annotated[str, Meta(description="Only sessions in this folder.")] = ""
    tool: Annotated[str, Meta(description="Only calls of this tool and requests for it.")] = ""
    state: Annotated[str, Meta(description=f"Only calls and requests in these states: {', '.join(STATES)}.")] = ""
    since: Time = 0
    until: Time = 0
    limit: Annotated[
        int, Meta(ge=1, description=f"The maximum number of results; a page has at most {MAX_RESULTS}.")
    ] = RESULTS
    cursor: Annotated[str, Meta(description="The cursor of the previous page.")] = ""


async def search(context: RequestContext) -> Response:
    """Search messages, thoughts, inputs and outputs of calls, and titles, in the sessions that the caller may read."""
    await context.admit()
    query = context.query(SearchQuery)
    filters = SearchFilters(
        session=query.session,
        project=query.project,
        tool=query.tool,
        states=tuple(query.state.split(",")) if query.state else (),
        since=query.since,
        until=query.until,
    )
    results = await find_texts(
        context.ledger.log,
        query.q,
        filters,
        limit=check_limit(context, query.limit),
        cursor=query.cursor,
        access=context.access,
    )
    return json_response(results)


ROUTES = (Route("GET", "/v1/search", search, query=SearchQuery, answers={200: SearchResults}, problems=(400,)),)
