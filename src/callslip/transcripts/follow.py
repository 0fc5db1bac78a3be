"""Follow the histories of agents: import what they write, soon after they write it.

Files are polled. All folders are listed every two seconds, which finds new transcripts; those that changed within the
last minutes are looked at four times a second. Looking is one `stat` for each, and only a changed one is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from callslip.ledger.aio import run_off_loop
from callslip.transcripts.importer import Report, TranscriptImporter
from callslip.transcripts.source import Source, Transcript

SCAN_S = 2.0
POLL_S = 0.25
ACTIVE_S = 600.0
"""How long after a change a transcript is looked at often."""
MAX_ACTIVE = 200

Target = tuple[Source, str]


class Follower:
    """Follows some folders. `on_report` is called with what was imported, if it was anything."""

    def __init__(
        self, importer: TranscriptImporter, targets: Sequence[Target], on_report: Callable[[Source, Report], None]
    ) -> None:
        self._importer = importer
        self._targets = targets
        self._on_report = on_report
        self._active: list[tuple[Source, Transcript]] = []
        self._reported: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Follow the folders until this task is cancelled."""
        await self._importer.load()
        while True:
            await self.scan()
            until = time.monotonic() + SCAN_S
            while time.monotonic() < until:
                await asyncio.sleep(POLL_S)
                await self.poll()

    async def scan(self) -> None:
        """List all folders, and import what changed."""
        await self._importer.load_deleted()
        active: list[tuple[Source, Transcript]] = []
        for source, path in self._targets:
            found = await run_off_loop(True, _find_all, source, path)
            await self._import(source, found)
            active += [(source, transcript) for transcript in found if _is_active(transcript)]
        active.sort(key=lambda pair: pair[1].changed_at, reverse=True)
        self._active = active[:MAX_ACTIVE]

    async def poll(self) -> None:
        """Look at the transcripts that changed recently, and import what changed."""
        changed: dict[str, tuple[Source, list[Transcript]]] = {}
        for source, transcript in self._active:
            newest = source.refresh(transcript)
            if newest is not None and not self._importer.is_unchanged(source, newest):
                changed.setdefault(source.name, (source, []))[1].append(newest)
        for source, transcripts in changed.values():
            await self._import(source, transcripts)

    async def _import(self, source: Source, transcripts: Sequence[Transcript]) -> None:
        report = await self._importer.run(source, transcripts)
        # A file that cannot be read is tried again, but reported only once.
        report.problems = [
            problem for problem in report.problems if (problem.path, problem.reason) not in self._reported
        ]
        self._reported.update((problem.path, problem.reason) for problem in report.problems if not problem.count)
        if report.events or report.problems:
            self._on_report(source, report)


def _find_all(source: Source, path: str) -> list[Transcript]:
    return list(source.find(path))


def _is_active(transcript: Transcript) -> bool:
    return transcript.changed_at / 1000 > time.time() - ACTIVE_S
