"""What polling costs those who write: events a second into a ledger at FULL, with and without 1,000 questions a second.

Everything goes over HTTP to a `callslip serve`. The one who asks is a process of its own and keeps to its pace. The one
who writes does so twice: as fast as it is answered, where every request costs the others, so that the limit is
the same number of questions about nothing (`/healthz`); and at a steady pace, as agents do, where it should not notice.
The ways to ask take turns, so that all meet the same machine.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import select
import statistics
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from exchange import Client, Place, callslip, served

PACE, TICK = 1000, 0.001
ASKING = 50
PENDING = 50
CONNECTIONS, BATCH = 8, 20
STEADY = 0.02
"""Seconds between two posts of one batch: 1,000 events a second."""
TURNS, SECONDS = 5, 2.0

BODY = json.dumps([{"type": "message.delta", "text": "some words ", "chunks": "delta"}] * BATCH).encode()
EMPTY = ["GET /healthz"]

Line = tuple[str, str, str]


# Asking


def _poll(url: str, token: str, results: Connection) -> None:
    """Ask these things for so many seconds, and tell how many answers came in each; told of none, it ends."""
    while questions := results.recv():
        clients = [Client(url, token) for _ in range(ASKING)]
        results.send(_ask_all(clients, itertools.cycle(questions)))
        for client in clients:
            client.close()


def _ask_all(free: list[Client], questions: Iterator[str]) -> float:
    """A slow server gets as many requests, as long as a connection is free."""
    begun = time.perf_counter()
    busy: list[Client] = []
    sent = answers = 0
    while (took := time.perf_counter() - begun) < SECONDS:
        while free and sent < took * PACE:
            client = free.pop()
            client.send(next(questions))
            busy.append(client)
            sent += 1
        for client in select.select(busy, [], [], TICK)[0]:
            status, body = client.answer()
            assert status in (200, 202), body
            answers += 1
            busy.remove(client)
            free.append(client)
    free += busy
    return answers / took


def _pending(client: Client) -> list[str]:
    """Commands that no worker runs, and the requests for them."""
    questions: list[str] = []
    for number in range(PENDING):
        command = {"action": "wait", "params": {"number": number}, "timeout": 600}
        status, queued = client.ask("POST /v1/calls", command)
        assert status == 202, queued
        questions.append(f"GET /v1/calls/{queued['correlation_id']}?format=command")
    return questions


# Writing


def _post(client: Client, number: int) -> None:
    client.send(f"POST /v1/sessions/writer-{number}/events", BODY)


def _taken(client: Client) -> None:
    status, body = client.answer()
    assert status in (200, 201) and b'"notUnderstood":0' in body, body


def _flat_out(clients: list[Client]) -> float:
    """Events a second, each client to a session of its own."""
    begun = time.perf_counter()
    events = 0
    while (took := time.perf_counter() - begun) < SECONDS:
        for number, client in enumerate(clients):
            _post(client, number)
        for client in clients:
            _taken(client)
        events += len(clients) * BATCH
    return events / took


def _steadily(clients: list[Client]) -> tuple[float, float]:
    """Events a second, and the seconds that the median post took."""
    begun = time.perf_counter()
    waits: list[float] = []
    while (took := time.perf_counter() - begun) < SECONDS:
        start = time.perf_counter()
        _post(clients[0], 0)
        _taken(clients[0])
        waits.append(time.perf_counter() - start)
        time.sleep(max(0.0, begun + len(waits) * STEADY - time.perf_counter()))
    return len(waits) * BATCH / took, statistics.median(waits)


# Both


class Turn:
    """One writer alone, with the questions, and with questions about nothing."""

    def __init__(self, clients: list[Client], poller: Any, questions: list[str], write: Any) -> None:
        self.alone = write(clients)
        poller.send(questions)
        self.polled = write(clients)
        self.answered = poller.recv()
        poller.send(EMPTY)
        self.empty = write(clients)
        poller.recv()


def _turns(folder: Path) -> tuple[list[float], list[Turn], list[Turn]]:
    with served(callslip(folder, "polling"), folder / "polling.log") as place:
        clients = [place.client() for _ in range(CONNECTIONS)]
        questions = _pending(clients[0])
        costs = [min(_cost(place, clients[0], what) for _ in range(TURNS)) for what in (questions[0], *EMPTY)]
        ours, theirs = multiprocessing.Pipe()
        asking = (place.url, place.token, theirs)
        poller = multiprocessing.get_context("fork").Process(target=_poll, args=asking, daemon=True)
        poller.start()
        theirs.close()  # So that one that fails is heard of.
        _flat_out(clients)
        hasty = [Turn(clients, ours, questions, _flat_out) for _ in range(TURNS)]
        steady = [Turn(clients, ours, questions, _steadily) for _ in range(TURNS)]
        ours.send([])
        poller.join(10)
        for client in clients:
            client.close()
    return costs, hasty, steady


def _cost(place: Place, client: Client, question: str) -> float:
    """Seconds of the server's processor for one question, asked one after another."""
    before = place.processor()
    for _ in range(PACE):
        client.send(question)
        client.answer()
    return (place.processor() - before) / PACE


def figures(folder: Path) -> Iterator[Line]:
    (cost, least), hasty, steady = _turns(folder)
    middle = statistics.median
    yield (
        "processor of a question, to an empty one",
        f"{cost / least:.2f}x  ({cost * 1e6:.0f} / {least * 1e6:.0f} us)",
        "",
    )
    answered = middle(turn.answered for turn in steady)
    rates = [middle(getattr(turn, kind)[0] for turn in steady) for kind in ("alone", "polled")]
    waits = [middle(getattr(turn, kind)[1] for turn in steady) * 1e3 for kind in ("alone", "polled", "empty")]
    yield "steady writing: events a second with them, to without", f"{rates[1] / rates[0]:.2f}x", ">= 0.9x"
    yield "  questions answered a second", f"{answered:,.0f}", f"{PACE:,}"
    yield "  p50 of a post without, with, with empty ones", " / ".join(f"{wait:.2f}" for wait in waits) + " ms", ""
    alone, polled, empty = (middle(getattr(turn, kind) for turn in hasty) for kind in ("alone", "polled", "empty"))
    answered = middle(turn.answered for turn in hasty)
    yield (
        "writing flat out: events a second with them, to without",
        f"{polled / alone:.2f}x  ({alone:,.0f}/s)",
        ">= 0.9x",
    )
    yield "  with as many empty ones (the limit)", f"{empty / alone:.2f}x", ""
    yield "  questions answered a second", f"{answered:,.0f}", f"{PACE:,}"
