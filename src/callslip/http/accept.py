"""What whoever asks takes for an answer, by their Accept headers."""

from __future__ import annotations

import re

from starlette.requests import HTTPConnection

READING = ("GET", "HEAD")


def accepted(header: str) -> dict[str, bool]:
    """What an Accept header of any kind names, and whether that is wanted: a weight of nothing is a no."""
    weights: dict[str, bool] = {}
    for part in header.lower().split(","):
        name, _, weight = part.partition(";")
        weights[name.strip()] = not re.fullmatch(r"\s*q\s*=\s*0(\.0*)?\s*", weight)
    return weights


def takes_gzip(asked: HTTPConnection) -> bool:
    """By its name, or else by the star."""
    said = accepted(asked.headers.get("accept-encoding", ""))
    return said.get("gzip", said.get("x-gzip", said.get("*", False)))


def takes_page(asked: HTTPConnection) -> bool:
    """Whether a person asks, through a browser: a program that takes anything does not name HTML."""
    return asked.scope["method"] in READING and accepted(asked.headers.get("accept", "")).get("text/html", False)
