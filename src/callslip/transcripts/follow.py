"""Follow the histories of agents: import what they write, soon after they write it.

Files are polled. All folders are listed every two seconds, which finds new transcripts; those that changed within the
last minutes are looked at four times a second. Looking is one `stat` for each, and only a changed one is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from callslip.errors import StoreError
from callslip.ledger.aio import run_off_loop
from callslip.transcripts.importer import Report, Skipped, TranscriptImporter
from callslip.transcripts.source import Source, Transcript

SCAN_S = 2.0
POLL_S = 0.25
ACTIVE_S = 600.0
"""How long after a change a transcript is looked at often."""
MAX_ACTIVE = 200

Target = tuple[Source, str]


class Follower:
    """Follows some folders.

    `on_report` is called with what was imported, if it was anything, and `on_problem` when the ledger begins to fail,
    and with "" when it works again.
    """

    def __init__(
        self,
        importer: TranscriptImporter,
        targets: Sequence[Target],
        on_report: Callable[[Source, Report], None],
        on_problem: Callable[[str], None],
    ) -> None:
        self._importer = importer
        self._targets = targets
        self._on_report = on_report
        self._on_problem = on_problem
        self._problem = ""
        self._active: list[tuple[Source, Transcript]] = []
        self._reported: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Follow the folders until this task is cancelled."""
        is_loaded = False
        while True:
            try:
                if not is_loaded:
                    await self._importer.load()
                    is_loaded = True
                await self.scan()
                until = time.monotonic() + SCAN_S
                while time.monotonic() < until:
                    await asyncio.sleep(POLL_S)
                    await self.poll()
                self._set_problem("")
            except StoreError as error:  # For example, the disk is full. Nothing is lost: the files are read again.
                is_loaded = False
                self._set_problem(str(error))
                await asyncio.sleep(SCAN_S)

    def _set_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._on_problem(problem)

    async def scan(self) -> None:
        """List all folders, and import what changed."""
        active: list[tuple[Source, Transcript]] = []
        for source, path in self._targets:
            found, error = await run_off_loop(True, _find_all, source, path)
            if error is not None:
                self._report_failure(source, path, error)
            await self._import(source, found)
            active += [(source, transcript) for transcript in found if _is_active(transcript)]
        active.sort(key=lambda pair: pair[1].changed_at, reverse=True)
        self._active = active[:MAX_ACTIVE]

    async def poll(self) -> None:
        """Look at the transcripts that changed recently, and import what changed."""
        changed: dict[str, tuple[Source, list[Transcript]]] = {}
        for source, transcript in self._active:
            try:
                newest = source.refresh(transcript)
            except Exception as error:
                self._report_failure(source, transcript.shown_path, error)
                continue
            if newest is not None and not self._importer.is_unchanged(source, newest):
                changed.setdefault(source.name, (source, []))[1].append(newest)
        for source, transcripts in changed.values():
            await self._import(source, transcripts)

    def _report_failure(self, source: Source, path: str, error: Exception) -> None:
        """Report once that a folder or a transcript cannot be looked at. Others are still followed."""
        reason = f"{type(error).__name__}: {error}"
        if (path, reason) not in self._reported:
            self._reported.add((path, reason))
            self._on_report(source, Report(problems=[Skipped(path, 0, 0, reason)]))

    async def _import(self, source: Source, transcripts: Sequence[Transcript]) -> None:
        report = await self._importer.run(source, transcripts)
        # A file that cannot be read is tried again, but reported only once.
        report.problems = [
            problem for problem in report.problems if (problem.path, problem.reason) not in self._reported
        ]
        self._reported.update((problem.path, problem.reason) for problem in report.problems if not problem.count)
        if report.events or report.problems:
            self._on_report(source, report)


def _find_all(source: Source, path: str) -> tuple[list[Transcript], Exception | None]:
    """Return the transcripts of a folder, and the error that stopped the search."""
    found: list[Transcript] = []
    try:
        found.extend(source.find(path))
    except Exception as error:
        return found, error
    return found, None


def _is_active(transcript: Transcript) -> bool:
    return transcript.changed_at / 1000 > time.time() - ACTIVE_S
