"""The OpenAPI document, generated from the table of routes and the structs that they name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from types import NoneType
from typing import Any, cast, get_args

import msgspec
from starlette.responses import Response

from callslip._version import __version__
from callslip.formats import registry
from callslip.http import schemas as http_schemas
from callslip.http.access import COOKIE
from callslip.http.problems import Problem, title_of
from callslip.http.request import RequestContext, Route, json_response
from callslip.settings import Limits

Json = dict[str, Any]
REFERENCE = "#/components/schemas/{name}"
PROBLEM = "application/problem+json"
NAMES: dict[str, str] = {
    "session": "The session's name.",
    "call": "A call: its id, a prefix of it, or an id of its producer (with `session` for `shell` and `act-observe`).",
    "approval": "The id of an approval.",
    "hash": "The hash in an entry's `blob` or `contentBlob`.",
    "file": "The name of a file of the page.",
    "module": "The name of a third-party file of the page.",
}
HEADERS: dict[str, str] = {
    "if-none-match": "The ETag of what you have; 304 if it is unchanged.",
    "if-range": "The ETag of the value that you have a part of.",
    "range": "The bytes to return: `bytes=0-1023`.",
    "last-event-id": "The id of the last frame that you have, as browsers send it.",
    "idempotency-key": "A name for this body: posting it again with the same name changes nothing.",
}
SECURITY: Json = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "The server's token, or one for a part of it."},
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "Set in browsers for the token.",
    },
}
# The limits belong to a server, so the parameters cannot declare them.
PARAMETER_MAXIMUMS: dict[str, Callable[[Limits], float]] = {
    "limit": lambda limits: limits.max_page_rows,
    "wait": lambda limits: limits.wait,
}


def document(routes: Sequence[Route], limits: Limits, root: str = "") -> Json:
    """Return the document of a server that is mounted at `root`."""
    schemas, components = _schemas(routes)
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, limits)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Callslip", "version": __version__, "description": DESCRIPTION},
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SECURITY},
    }


DESCRIPTION = (
    "Sessions, calls and approvals of AI agents. Errors are problem documents (RFC 9457): `field` is the part of the "
    "request to change, `current` the state that was in the way."
)


def _schemas(routes: Sequence[Route]) -> tuple[dict[Any, Json], Json]:
    """Return a reference for every type that a route names, and the schemas that they refer to."""
    types: list[Any] = [Problem]
    for route in routes:
        types += [one for kind in (route.body, *route.answers.values()) for one in _kinds(kind) if _is_type(one)]
    kinds = list(dict.fromkeys(types))
    references, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    return dict(zip(kinds, references, strict=True)), components


def _kinds(kind: Any) -> tuple[Any, ...]:
    """Return the types of a response, which may be one of several."""
    return cast("tuple[Any, ...]", kind) if isinstance(kind, tuple) else (kind,)


def _is_type(kind: Any) -> bool:
    return not isinstance(kind, str | None)


def _operation(route: Route, schemas: Mapping[Any, Json], limits: Limits) -> Json:
    module = route.endpoint.__module__.rpartition(".")[2]
    operation: Json = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "summary": route.about or " ".join((inspect.getdoc(route.endpoint) or "").split()),
        "tags": [module],
        "parameters": [*_in_path(route), *_in_query(route, limits), *_in_headers(route)],
        "responses": _responses(route, schemas),
        "security": [{name: []} for name in SECURITY] if route.verb else [],
    }
    if route.query is not None:
        operation["description"] = inspect.getdoc(route.query) or ""
    if route.verb:
        operation["x-verb"] = route.verb
    if route.body is not None:
        is_optional = _is_type(route.body) and NoneType in get_args(route.body)
        operation["requestBody"] = {"content": _content(route.body, schemas), "required": not is_optional}
    return operation


# Requests


def _in_path(route: Route) -> Iterator[Json]:
    for name in re.findall(r"{(\w+)", route.path):
        parameter = {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        yield {**parameter, "description": NAMES[name]} if name in NAMES else parameter


def _in_query(route: Route, limits: Limits) -> Iterator[Json]:
    for field in msgspec.structs.fields(route.query) if route.query else ():
        schema = _without_null(msgspec.json.schema(field.type))
        about = schema.pop("description", "")
        if field.encode_name in PARAMETER_MAXIMUMS and schema.get("type") in ("integer", "number"):
            schema["maximum"] = PARAMETER_MAXIMUMS[field.encode_name](limits)
        if field.default not in (None, msgspec.NODEFAULT, ""):
            schema["default"] = field.default
        parameter = {"name": field.encode_name, "in": "query", "required": field.required, "schema": schema}
        yield {**parameter, "description": about} if about else parameter


def _without_null(schema: Json) -> Json:
    """Return a schema without null: an absent parameter is left out."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else schema


def _in_headers(route: Route) -> Iterator[Json]:
    for name in route.headers:
        schema = {"type": "string"}
        yield {"name": name, "in": "header", "required": False, "schema": schema, "description": HEADERS[name]}


# Responses


def _responses(route: Route, schemas: Mapping[Any, Json]) -> Json:
    responses = {str(status): _response(status, kind, schemas) for status, kind in route.answers.items()}
    for status in sorted({*route.problems, *_implied_problems(route)}):
        content = {PROBLEM: {"schema": schemas[Problem]}}
        responses.setdefault(str(status), {"description": title_of(status), "content": content})
    return responses


def _implied_problems(route: Route) -> set[int]:
    """Return the errors of all routes with such fields: a body may be too large, a write may be a conflict, ..."""
    statuses = {500, 503}
    statuses |= {401, 403} if route.verb else set()
    statuses |= {404} if route.verb and "{" in route.path else set()
    statuses |= {400} if route.query is not None else set()
    statuses |= {413, 415} if route.body is not None else set()
    return statuses | {409, 507} if route.method == "POST" else statuses


def _response(status: int, kind: Any, schemas: Mapping[Any, Json]) -> Json:
    first = _kinds(kind)[0]
    about = (first.__doc__ or "").strip().partition("\n")[0] if _is_type(first) else HTTPStatus(status).phrase
    return {"description": about} if kind is None else {"description": about, "content": _content(kind, schemas)}


def _content(kind: Any, schemas: Mapping[Any, Json]) -> Json:
    """Return media types and their schemas: JSON of a type, or the media types that a text names."""
    if not _is_type(kind):
        return {media: {"schema": _media_schema(media)} for media in _media_types(kind)}
    references = [schemas[one] for one in _kinds(kind)]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    content: Json = {"application/json": {"schema": schema}}
    if http_schemas.Document in _kinds(kind):
        documents = (format.media for format in registry.FORMATS.values() if format.document)
        content.update({media: {"schema": {}} for media in documents if media != "application/json"})
    return content


def _media_schema(media: str) -> Json:
    return {} if "json" in media or media == "text/event-stream" else {"type": "string"}


def _media_types(names: str) -> list[str]:
    """Return the media types that a text names; the streams of some formats have other types."""
    medias = [media.strip() for media in names.split(",")]
    if medias == ["text/event-stream"]:
        medias += [registry.streaming(name).headers.get("content-type", "") for name in registry.streamable()]
    return sorted({media.partition(";")[0] if media.startswith("text/event") else media for media in medias if media})


# The route


async def openapi(context: RequestContext) -> Response:
    """Return this document. It contains no data, so it needs no token."""
    server = context.server
    return json_response(document(server.routes, server.limits, context.request.scope.get("root_path", "")))


ROUTES = (Route("GET", "/openapi.json", openapi, None, answers={200: "application/json"}),)
