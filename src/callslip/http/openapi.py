"""The OpenAPI document: made from the table of routes and the structs they name, so that it cannot say otherwise."""

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
from callslip.http.limits import Limits
from callslip.http.problems import TITLES, Problem
from callslip.http.request import RequestContext, Route, answer

Json = dict[str, Any]
REFERENCE = "#/components/schemas/{name}"
PROBLEM = "application/problem+json"
NAMES: dict[str, str] = {
    "session": "The session's name.",
    "call": "A call: its id, the beginning of it, or an id that a producer gave it.",
    "approval": "The id of a request for approval.",
    "hash": "The hash that an entry's `blob` names.",
    "file": "The name of a file of the page.",
    "module": "The name of a file of the page that others wrote.",
}
SECURITY: Json = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "The server's token, or one made for a part of it."},
    "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "What a browser got for the token."},
}
# Limits are the server's own, and not known where the parameters are declared.
PARAMETER_MAXIMUMS: dict[str, Callable[[Limits], float]] = {
    "limit": lambda limits: limits.most,
    "wait": lambda limits: limits.wait,
}


def document(routes: Sequence[Route], limits: Limits, root: str = "") -> Json:
    """The whole of it, for a server that is mounted at `root`."""
    schemas, components = _schemas(routes)
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas, limits)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Callslip", "version": __version__, "description": ABOUT},
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": SECURITY},
    }


ABOUT = (
    "Sessions, calls and approvals of AI agents. What goes wrong is told as a problem document (RFC 9457); `field` "
    "says what to change about the request, `current` what was there first."
)


def _schemas(routes: Sequence[Route]) -> tuple[dict[Any, Json], Json]:
    """A reference for every type that a route names, and what the references lead to."""
    named: list[Any] = [Problem]
    for route in routes:
        named += [one for kind in (route.body, *route.answers.values()) for one in _kinds(kind) if _is_type(one)]
    kinds = list(dict.fromkeys(named))
    made, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
    return dict(zip(kinds, made, strict=True)), components


def _kinds(kind: Any) -> tuple[Any, ...]:
    """An answer may be of one of several types."""
    return cast("tuple[Any, ...]", kind) if isinstance(kind, tuple) else (kind,)


def _is_type(kind: Any) -> bool:
    return not isinstance(kind, str | None)


def _operation(route: Route, schemas: Mapping[Any, Json], limits: Limits) -> Json:
    module = route.endpoint.__module__.rpartition(".")[2]
    made: Json = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "summary": route.about,
        "tags": [module],
        "parameters": [*_in_path(route), *_in_query(route, limits), *_in_headers(route)],
        "responses": _responses(route, schemas),
        "security": [{name: []} for name in SECURITY] if route.verb else [],
    }
    if route.query is not None:
        made["description"] = inspect.getdoc(route.query) or ""
    if route.verb:
        made["x-verb"] = route.verb
    if route.body is not None:
        made["requestBody"] = {"content": _content(route.body, schemas), "required": not _may_be_empty(route.body)}
    return made


# What is taken


def _in_path(route: Route) -> Iterator[Json]:
    for name in re.findall(r"{(\w+)", route.path):
        said = {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        yield {**said, "description": NAMES[name]} if name in NAMES else said


def _in_query(route: Route, limits: Limits) -> Iterator[Json]:
    for field in msgspec.structs.fields(route.query) if route.query else ():
        schema = _plain(msgspec.json.schema(field.type))
        about = schema.pop("description", "")
        if field.encode_name in PARAMETER_MAXIMUMS and schema.get("type") in ("integer", "number"):
            schema["maximum"] = PARAMETER_MAXIMUMS[field.encode_name](limits)
        if field.default not in (None, msgspec.NODEFAULT, ""):
            schema["default"] = field.default
        made = {"name": field.encode_name, "in": "query", "required": field.required, "schema": schema}
        yield {**made, "description": about} if about else made


def _plain(schema: Json) -> Json:
    """A parameter that is not given is left out; there is no way to write null."""
    kept = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    return kept[0] if len(kept) == 1 else schema


def _in_headers(route: Route) -> Iterator[Json]:
    for name, about in route.headers.items():
        yield {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": about}


def _may_be_empty(kind: Any) -> bool:
    """A body that may say null may be left out."""
    return _is_type(kind) and NoneType in get_args(kind)


# What is given


def _responses(route: Route, schemas: Mapping[Any, Json]) -> Json:
    made = {str(status): _response(status, kind, schemas) for status, kind in route.answers.items()}
    for status in sorted({*route.problems, *_always(route)}):
        told = {"description": TITLES.get(status, HTTPStatus(status).phrase)}
        made.setdefault(str(status), {**told, "content": {PROBLEM: {"schema": schemas[Problem]}}})
    return made


def _always(route: Route) -> set[int]:
    """What may happen to any request: nobody said who asks, they may not, the store is away, we are wrong."""
    return {500, 503, *((401, 403) if route.verb else ())}


def _response(status: int, kind: Any, schemas: Mapping[Any, Json]) -> Json:
    first = _kinds(kind)[0]
    about = (first.__doc__ or "").strip().partition("\n")[0] if _is_type(first) else HTTPStatus(status).phrase
    return {"description": about} if kind is None else {"description": about, "content": _content(kind, schemas)}


def _content(kind: Any, schemas: Mapping[Any, Json]) -> Json:
    """Media types and what they hold: JSON of a type, or the types of a text that names them."""
    if not _is_type(kind):
        return {media: {"schema": _held(media)} for media in _medias(kind)}
    found = [schemas[one] for one in _kinds(kind)]
    made: Json = {"application/json": {"schema": found[0] if len(found) == 1 else {"anyOf": found}}}
    if http_schemas.Document in _kinds(kind):
        made.update({entry.media: {"schema": {}} for entry in registry.FORMATS.values() if _apart(entry)})
    return made


def _held(media: str) -> Json:
    return {} if "json" in media or media == "text/event-stream" else {"type": "string"}


def _apart(entry: registry.Format) -> bool:
    return bool(entry.document) and entry.media != "application/json"


def _medias(named: str) -> list[str]:
    """The media types that a text names; streams of other formats may have others."""
    medias = [media.strip() for media in named.split(",")]
    if medias == ["text/event-stream"]:
        medias += [registry.streaming(name).headers.get("content-type", "") for name in registry.streamable()]
    return sorted({media.partition(";")[0] if media.startswith("text/event") else media for media in medias if media})


# The way to it


async def openapi(visit: RequestContext) -> Response:
    """The document of this server. It tells what can be asked and nothing of what is there, so anybody may have it."""
    server = visit.server
    return answer(document(server.routes, server.limits, visit.request.scope.get("root_path", "")))


ROUTES = (
    Route(
        method="GET",
        path="/openapi.json",
        endpoint=openapi,
        verb=None,
        about="This document.",
        answers={200: "application/json"},
    ),
)
