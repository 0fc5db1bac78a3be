"""What a client accepts, by its Accept headers."""

from __future__ import annotations

import re

from starlette.requests import HTTPConnection

READ_METHODS = ("GET", "HEAD")


def parse_accept(header: str) -> dict[str, bool]:
    """Return whether each value that an Accept header names is accepted: a weight of 0 means no."""
    weights: dict[str, bool] = {}
    for part in header.lower().split(","):
        name, _, weight = part.partition(";")
        weights[name.strip()] = not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight)
    return weights


def accepts_gzip(request: HTTPConnection) -> bool:
    """Return whether the client accepts gzip, by name or by `*`."""
    accepted = parse_accept(request.headers.get("accept-encoding", ""))
    return accepted.get("gzip", accepted.get("x-gzip", accepted.get("*", False)))


def accepts_html(request: HTTPConnection) -> bool:
    """Return whether a browser asks for a page: a program that accepts anything does not name HTML."""
    accepted = parse_accept(request.headers.get("accept", ""))
    return request.scope["method"] in READ_METHODS and accepted.get("text/html", False)
