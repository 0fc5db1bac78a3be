"""Sample sessions: calls in every state, hostile texts, a live run, ten thousand rows."""

from __future__ import annotations

import base64
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any, get_args

from callslip.rules.lifecycle import CallState

EventDict = dict[str, Any]

STATES = get_args(CallState)[1:]

OPTIONS = [
    {"optionId": "yes", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "always", "name": "Always allow this", "kind": "allow_always"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]

WEATHER = {"celsius": 20, "sky": ["clear", None, True]}
COLOURS = "\x1b[1;34mdocs\x1b[0m  \x1b[32mrun.sh\x1b[0m  notes.txt\n"
MARKDOWN = "That was **everything**: `nine` states.\n\n- one\n- two\n\n```sh\nls -la\n```\n"
DIFF = {
    "type": "diff",
    "path": "src/main.rs",
    "oldText": "fn main() {\n    go();\n}\n",
    "newText": "fn main() {\n    go(1);\n}\n",
}


def _sky_png() -> str:
    """Return a small PNG in base64: a gradient from blue to white."""
    rows = b"".join(b"\0" + bytes((100 + line * 4, 160 + line * 2, 250)) * 120 for line in range(36))
    parts = ((b"IHDR", struct.pack(">IIBBBBB", 120, 36, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n"
    for kind, data in parts:
        png += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return base64.b64encode(png).decode()


SKY = {"type": "content", "content": {"type": "image", "mimeType": "image/png", "data": _sky_png()}}

HOSTILE = (
    '<img src=x onerror="alert(1)"><script>alert(2)</script>"\'><svg onload=alert(3)>',
    "[link](javascript:alert(4)) ![i](http://192.0.2.1/x.png) <a href='javascript:alert(5)'>x</a>",
    "\x1b]8;;javascript:alert(6)\x07click\x1b]8;;\x07 \x1b[2J\x1b[31mred\u202e gnp.exe \u2066x\u2069",
)


IMAGE = {"type": "image", "mimeType": 'image/svg+xml" onload=alert(7) x="', "data": "PHN2Zy8+"}
LINK = {"type": "resource_link", "uri": "javascript:alert(8)"}


def event(kind: str, alias: str = "", /, **fields: Any) -> EventDict:
    """Return an event of the log. `alias` is the ID of the call."""
    return {"type": kind, **({"aliases": [["t", alias]]} if alias else {}), **fields}


def every_state() -> list[EventDict]:
    """Return a call in each of the nine states, and calls with other features of a card."""
    events = [
        event("turn.started"),
        event("session.info", title="Every state of a call"),
        event("message.user", text="Show me every state of a call."),
        event("thought.delta", text="One call for each state, then the special cases.", chunks="delta"),
        event(
            "plan.updated",
            entries=[
                {"content": "Nine states", "priority": "high", "status": "completed"},
                {"content": "Late and truncated ones", "priority": "medium", "status": "in_progress"},
                {"content": "Hostile ones", "priority": "low", "status": "pending"},
            ],
        ),
    ]
    for state in STATES:
        events += call_in_state(state)
    events += [
        *completed_call("late", "cargo test", output="ok. 12 passed", title="A result that arrived twice"),
        event("call.failed", "late", error="a second opinion"),
        *completed_call("truncated", "cat long.log", text="a line of the log\n" * 6000, title="A truncated output"),
        event(
            "call.proposed",
            "diff",
            toolName="edit",
            kind="edit",
            title="Edit src/main.rs",
            input={"path": "src/main.rs"},
        ),
        event("call.started", "diff"),
        event("call.completed", "diff", content=[DIFF], locations=[{"path": "src/main.rs", "line": 2}]),
        *completed_call("colours", "ls --color", text=COLOURS, title="ls --color"),
        event("call.completed", "json", toolName="get_weather", input={"city": "Paris"}, output=WEATHER),
        event("call.completed", "image", toolName="draw", title="Draw the sky", content=[SKY]),
        event("message.delta", text=MARKDOWN, chunks="delta"),
    ]
    return events


def call_in_state(state: str, alias: str = "") -> list[EventDict]:
    """Return the events of a call in this state."""
    call_alias = alias or state
    start = [
        event(
            "call.proposed",
            call_alias,
            toolName="bash",
            title=f"A call that is {state.replace('_', ' ')}",
            input={"command": f"echo {call_alias}"},
        )
    ]
    if state == "queued":
        return start
    if state == "awaiting_approval":
        request = event(
            "approval.requested",
            call_alias,
            description="Run a command?",
            options=OPTIONS,
            input={"command": f"echo {call_alias}"},
        )
        return [*start, request]
    if state != "denied":
        start.append(event("call.started", call_alias))
    if state == "running":
        return [*start, event("call.progress", call_alias, text="line one\nline two\n")]
    end = {
        "completed": {"output": f"{call_alias}\n", "exitStatus": 0},
        "failed": {"error": "no such file: missing.txt", "exitStatus": 2},
        "denied": {"reason": "not on a Friday"},
        "cancelled": {"reason": "the turn was cancelled"},
        "expired": {"reason": "no answer within 30 s"},
        "lost": {"reason": "the worker is gone"},
    }[state]
    return [*start, event(f"call.{state}", call_alias, **end)]


def completed_call(alias: str, command: str, *, output: Any = None, text: str = "", title: str = "") -> list[EventDict]:
    """Return the events of a completed call."""
    events = [
        event("call.proposed", alias, toolName="bash", title=title or command, input={"command": command}),
        event("call.started", alias),
    ]
    end = event("call.completed", alias, exitStatus=0, output=text if output is None else output)
    return [*events, end]


def hostile_session() -> list[EventDict]:
    """Return a session with hostile text in every place that displays text."""
    events = [event("turn.started"), event("session.info", title=HOSTILE[0])]
    for number, text in enumerate(HOSTILE):
        call_alias = f"h{number}{text[:20]}" if number < 2 else "h2"  # A call ID cannot contain control characters.
        events += [
            event("message.user", text=text),
            event("thought.delta", text=text, chunks="delta"),
            event("plan.updated", entries=[{"content": text, "priority": text, "status": text}]),
            event("session.mode", mode=text),
            event("session.commands", commands=[{"name": text, "description": text}]),
            event("call.proposed", call_alias, toolName=text, title=text, kind=text, input={text: text}),
            event("call.started", call_alias, worker=text),
            event("call.progress", call_alias, text=text, locations=[{"path": text}]),
            event(
                "call.completed",
                call_alias,
                output=text,
                content=[
                    {"type": "content", "content": {"type": "text", "text": text}},
                    {"type": "content", "content": IMAGE},
                    {"type": "content", "content": {**LINK, "name": text}},
                    {"type": "diff", "path": text, "oldText": text, "newText": text + "x"},
                ],
            ),
            event("call.failed", f"{call_alias} fails", toolName=text, error=text, reason=text),
            event(
                "approval.requested",
                f"{call_alias} asks",
                toolName=text,
                title=text,
                description=text,
                input={"x": text},
                options=[{"optionId": text, "name": text, "kind": "allow_once"}],
            ),
            event("message.delta", text=text, chunks="delta"),
        ]
    return events


WORD = "w" * 300
RIGHT_TO_LEFT = "שלום עולם (abc) 123. مرحبا"


def long_texts() -> list[EventDict]:
    """Return a session with long texts: a megabyte, five thousand lines, unbreakable words, right-to-left text."""
    lines = "\n".join(f"\x1b[3{number % 8}mline {number}\x1b[0m" for number in range(5000))
    old, new = ("\n".join(f"{side} {number}" for number in range(5000)) for side in ("old", "new"))
    return [
        event("turn.started"),
        event("session.info", title=WORD),
        event("message.user", text="a line\n" * 150_000),
        event("message.user", text=f"{WORD} {RIGHT_TO_LEFT}"),
        event("thought.delta", text=WORD * 9, chunks="delta"),
        *completed_call("bytes", WORD, text="b" * 1_000_000, title=RIGHT_TO_LEFT),
        *completed_call("lines", RIGHT_TO_LEFT, text=lines, title=WORD),
        *completed_call("object", "get", output={WORD: RIGHT_TO_LEFT, "list": list(range(5000)), "text": WORD * 9}),
        event("call.proposed", "grows", toolName=WORD, input={"path": WORD, "text": "c" * 1_000_000}),
        event("call.started", "grows"),
        event("call.progress", "grows", text=lines),
        event("call.completed", "diff", content=[{"type": "diff", "path": WORD, "oldText": old, "newText": new}]),
        event("call.failed", "fails", error=WORD * 9, reason=RIGHT_TO_LEFT),
        event("plan.updated", entries=[{"content": WORD, "priority": "high", "status": "in_progress"}]),
    ]


def live_run(seed: int, rounds: int) -> Iterator[list[EventDict]]:
    """Yield the events of a live run in small batches: growing texts, identical commands, approvals, every end state.

    The turn stays open, because the ledger would end its open calls with it.
    """
    rng = random.Random(seed)
    yield [event("turn.started"), event("session.info", title=f"Run {seed}"), event("message.user", text="Continue.")]
    for number in range(rounds):
        first, second = f"r{number}a", f"r{number}b"
        for word in ("I ", "look ", f"at **{number}**."):
            yield [event("message.delta", text=word, chunks="delta")]
        same_fields = {"toolName": "bash", "title": "ls", "input": {"command": "ls"}}
        yield [event("call.proposed", first, **same_fields), event("call.proposed", second, **same_fields)]
        yield [event("call.started", second)]
        yield [event("call.progress", second, text=f"out {number}\n")]
        yield [event("call.started", first), event("call.progress", second, text="more\n")]
        ends = ["completed", "failed", "cancelled", "lost", "expired"]
        yield [event(f"call.{rng.choice(ends)}", second, output=f"two {number}", exitStatus=number % 3)]
        yield [event("thought.delta", text=f"Hm {number}.", chunks="delta")]
        yield [event("call.completed", first, output={"files": [f"{number}.txt"]})]
        if rng.random() < 0.4:
            yield [
                event(
                    "approval.requested",
                    f"r{number}c",
                    toolName="rm",
                    title="Remove it",
                    options=OPTIONS,
                    input={"n": number},
                )
            ]
        if rng.random() < 0.4:
            yield [
                event("plan.updated", entries=[{"content": f"Step {number}", "priority": "high", "status": "pending"}])
            ]
    yield [event("message.delta", text="Done.", chunks="delta")]


def long_session(rows: int) -> Iterator[list[EventDict]]:
    """Yield a long session in batches, mostly of completed calls."""
    batch: list[EventDict] = [event("turn.started"), event("session.info", title=f"{rows} rows")]
    for number in range(rows):
        if number % 10 == 0:
            batch.append(event("message.user", text=f"Message {number}"))
        else:
            fields: EventDict = {"toolName": ("bash", "read", "edit")[number % 3], "title": f"Call {number}"}
            is_failed = number % 50 == 1
            end = {"error": "it broke"} if is_failed else {"output": f"output of {number}"}
            kind = "call.failed" if is_failed else "call.completed"
            batch.append(event(kind, f"m{number}", input={"n": number}, **fields, **end))
        if len(batch) >= 1000:
            yield batch
            batch = []
    yield [*batch, event("message.delta", text="The end.", chunks="delta"), event("turn.ended")]


PYTEST_OUTPUT = """\x1b[1m============ test session starts ============\x1b[0m
collected 4 items

test_prices.py \x1b[32m.\x1b[0m\x1b[32m.\x1b[0m\x1b[31mF\x1b[0m\x1b[32m.\x1b[0m                       [100%]

\x1b[31mFAILED\x1b[0m test_prices.py::test_rounding - assert 1.0 == 1.01
\x1b[31m========= 1 failed, 3 passed in 0.12s =========\x1b[0m
"""
BEFORE = "def total(prices):\n    return round(sum(prices), 1)\n"
AFTER = "def total(prices):\n    return round(sum(prices), 2)\n"
STEPS = ("Run the tests", "Find the rounding error", "Fix it", "Release")


def example_session(now: int) -> list[EventDict]:
    """Return the last minute and a half of an agent's work, with times."""

    def plan(done: int) -> EventDict:
        words = ["completed"] * done + ["in_progress"] + ["pending"] * (len(STEPS) - done - 1)
        steps = zip(STEPS, words, strict=True)
        return event("plan.updated", entries=[{"content": c, "priority": "medium", "status": s} for c, s in steps])

    def shell(
        alias: str, command: str, begins: float, runs: float, ends: float, **end: Any
    ) -> list[tuple[float, EventDict]]:
        fields = {"toolName": "bash", "kind": "execute", "title": command, "input": {"command": command}}
        ended = "call.failed" if "error" in end else "call.completed"
        return [
            (begins, event("call.proposed", alias, **fields)),
            (runs, event("call.started", alias)),
            (ends, event(ended, alias, **end)),
        ]

    edit = {"toolName": "edit", "kind": "edit", "title": "Edit prices.py", "input": {"path": "prices.py"}}
    diff = {"type": "diff", "path": "prices.py", "oldText": BEFORE, "newText": AFTER}
    push = {"command": "git push origin main"}
    timed_events: list[tuple[float, EventDict]] = [
        (0, event("turn.started")),
        (0, event("session.info", title="Fix the rounding of prices")),
        (0, event("message.user", text="One of the price tests fails. Fix it and release.")),
        (2, event("thought.delta", text="I list the files and run the tests first.", chunks="delta")),
        (3, plan(0)),
        *shell("ls", "ls", 4, 4.5, 9, output="prices.py\ntest_prices.py\n", exitStatus=0),
        *shell("ls again", "ls", 4, 6, 7, output="prices.py\ntest_prices.py\n", exitStatus=0),
        *shell("test", "pytest", 10, 11, 24, output=PYTEST_OUTPUT, error="1 of 4 tests failed", exitStatus=1),
        (26, event("message.delta", text="`total` rounds to **one** digit, but prices have two.", chunks="delta")),
        (27, plan(2)),
        (28, event("call.proposed", "edit", **edit)),
        (29, event("call.started", "edit")),
        (33, event("call.completed", "edit", content=[diff], locations=[{"path": "prices.py", "line": 2}])),
        *shell("test again", "pytest -q", 36, 37, 52, output="\x1b[32m4 passed\x1b[0m in 0.11s\n", exitStatus=0),
        *shell("lint", "ruff check", 36, 40, 44, error="ruff: command not found", exitStatus=127),
        (55, plan(3)),
        *shell("build", "make dist", 56, 57, 80, output="dist/prices-1.2.tar.gz\n", exitStatus=0),
        (82, event("call.proposed", "push", toolName="bash", kind="execute", title="git push origin main", input=push)),
        (83, event("approval.requested", "push", description="git push origin main", options=OPTIONS, input=push)),
    ]
    begin = now - 95_000
    return [
        {**event_fields, "at": begin + int(second * 1000)}
        for second, event_fields in sorted(timed_events, key=lambda pair: pair[0])
    ]
