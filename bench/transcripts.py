"""The import of session files: 50 MB of them, to the time that msgspec needs to decode the same lines.

The limit is what no import can leave out: decode the lines, search their texts for secrets, and insert the same rows
into an empty database with one statement for each table.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
from measure import best, say

import callslip
from callslip.rules.redaction import make_redactor
from callslip.transcripts.agents import find_source
from callslip.transcripts.importer import TranscriptImporter

TOTAL_BYTES = 50 * 2**20
FILE_BYTES = 2 * 2**20
SOURCE = find_source("claude-code")
WORDS = ["the ", "quick ", "test ", "src/app.py ", "return ", "error: ", "0.125 ", "ünï ", "def run(", "): ", "\n    "]


class SessionFile:
    """Makes a session file as Claude Code does: prompts, texts, and calls whose results are repeated in the line."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number)
        self._session = f"{number:08x}-0000-4000-8000-000000000000"
        self._number = 0
        self.lines: list[bytes] = []
        self.size = 0

    def write(self, folder: Path) -> None:
        while self.size < FILE_BYTES:
            self._turn()
        (folder / f"{self._session}.jsonl").write_bytes(b"".join(self.lines))

    def _text(self, size: int) -> str:
        return "".join(self._random.choices(WORDS, k=size // 7))

    def _line(self, kind: str, **fields: Any) -> None:
        self._number += 1
        line = {
            "parentUuid": f"{self._session}-{self._number - 1}",
            "isSidechain": False,
            **fields,
            "type": kind,
            "uuid": f"{self._session}-{self._number}",
            "timestamp": f"2026-11-15T{self._number // 3600 % 24:02}:{self._number // 60 % 60:02}:00.000Z",
            "userType": "external",
            "cwd": "/home/dev/project",
            "sessionId": self._session,
            "version": "2.1.197",
            "gitBranch": "main",
        }
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        self.lines.append(data)
        self.size += len(data)

    def _assistant(self, block: dict[str, Any], stop: str) -> None:
        usage = {"input_tokens": 9, "cache_read_input_tokens": self._number, "output_tokens": self._number % 900}
        message = {"id": f"msg_{self._session}_{self._number}", "type": "message", "role": "assistant"}
        self._line(
            "assistant",
            message={**message, "model": "claude", "content": [block], "stop_reason": stop, "usage": usage},
        )

    def _turn(self) -> None:
        self._line("user", message={"role": "user", "content": self._text(300)})
        for _ in range(self._random.randrange(3, 12)):
            call = f"toolu_{self._session}_{self._number}"
            self._assistant({"type": "text", "text": self._text(200)}, "tool_use")
            arguments = {"command": self._text(80), "description": "Run it"}
            self._assistant({"type": "tool_use", "id": call, "name": "Bash", "input": arguments}, "tool_use")
            output = self._text(self._random.choice([100, 400, 3000, 8000]))
            result = {"type": "tool_result", "tool_use_id": call, "content": output, "is_error": False}
            self._line(
                "user",
                message={"role": "user", "content": [result]},
                toolUseResult={"stdout": output, "stderr": "", "interrupted": False},
            )
        self._assistant({"type": "text", "text": self._text(600)}, "end_turn")


def bench_transcripts() -> None:
    print(f"transcripts: {TOTAL_BYTES // 2**20} MB of session files")
    with tempfile.TemporaryDirectory() as folder:
        history = Path(folder) / "history"
        history.mkdir()
        for number in range(TOTAL_BYTES // FILE_BYTES):
            SessionFile(number).write(history)
        lines = [line for file in history.iterdir() for line in file.read_bytes().splitlines()]
        decode = msgspec.json.Decoder().decode
        databases = iter(range(100))

        def import_all(database: int) -> None:
            asyncio.run(_import(history, f"{folder}/{database}.db"))

        decoding, first = best(lambda: [decode(line) for line in lines], lambda: import_all(next(databases)), rounds=3)
        (again,) = best(lambda: import_all(0), rounds=3)
        texts, redact = list(_stored_texts(f"{folder}/0.db")), make_redactor(True, ()).text

        def reach_limit(database: int) -> None:
            for line in lines:
                decode(line)
            for text in texts:
                redact(text)
            _copy_rows(f"{folder}/0.db", f"{folder}/{database}.db")

        (limit,) = best(lambda: reach_limit(next(databases)), rounds=3)
        figures = f"({first * 1e3:,.0f} / {decoding * 1e3:,.0f} ms)"
        say(f"import of {len(lines):,} lines, to decoding them", f"{first / decoding:.1f}x  {figures}", "<= 5x")
        say("decode, search for secrets, insert: to decoding", f"{limit / decoding:.1f}x  ({limit * 1e3:,.0f} ms)")
        say("import, to that limit", f"{first / limit:.1f}x")
        say("the same files again, to decoding them", f"{again / decoding:.2f}x  ({again * 1e3:,.0f} ms)", "<= 0.2x")


def _stored_texts(database: str) -> Iterator[str]:
    """Yield all texts in the events of a database."""
    values: list[Any] = [json.loads(body) for (body,) in apsw.Connection(database).execute("SELECT body FROM events")]
    while values:
        value = values.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            values += value.values() if isinstance(value, dict) else value


def _copy_rows(source: str, target: str) -> None:
    """Insert the rows of a database into a new one with the same tables and indexes."""
    connection = apsw.Connection(target)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("ATTACH ? AS source", (source,))
    schema = connection.execute("SELECT name, type, sql FROM source.sqlite_master WHERE sql IS NOT NULL").fetchall()
    for name, kind, statement in schema:
        if kind not in ("table", "index") or "search" in statement or name.startswith("sqlite_"):
            continue
        connection.execute(statement)
        if kind == "table":
            connection.execute(f'INSERT INTO main."{name}" SELECT * FROM source."{name}"')
    connection.close()


async def _import(history: Path, database: str) -> None:
    async with await callslip.open(database) as ledger:
        importer = TranscriptImporter(ledger.log)
        await importer.load()
        await importer.run(SOURCE, SOURCE.find(str(history)))
