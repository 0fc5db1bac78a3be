"""Folders of the repository that tests read, and a folder in memory for what they write."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PROGRAMS = TESTS / "programs"

MEMORY_FOLDER = Path("/dev/shm")
MIN_MEMORY_BYTES = 2 * 10**9


def find_memory_folder() -> Path | None:
    """Return a folder in memory, if there is one with enough space. It makes no test wait for a disk."""
    is_usable = MEMORY_FOLDER.is_dir() and os.access(MEMORY_FOLDER, os.W_OK)
    return MEMORY_FOLDER if is_usable and shutil.disk_usage(MEMORY_FOLDER).free >= MIN_MEMORY_BYTES else None
