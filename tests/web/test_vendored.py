"""The vendored files of the page have the recorded hashes, and are those of the packages that they are from."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

VENDOR = ROOT / "src" / "callslip" / "web" / "vendor"
OWN_FILES = re.compile(r"README\.md|LICENSES\.txt|.*\.d\.mts|__pycache__")
SOURCE_MAP = re.compile(rb"//# sourceMappingURL=\S+")
IMPORTS = {b"preact": b"./preact.mjs", b"preact/hooks": b"./hooks.mjs", b"@preact/signals-core": b"./signals-core.mjs"}


class Row(NamedTuple):
    """A row of the table in the folder's README."""

    file: str
    package: str
    version: str
    path: str
    licence: str
    sha256: str


def read_rows(folder: Path) -> dict[str, Row]:
    """Return the rows of the table by file."""
    lines = (folder / "README.md").read_text("utf-8").splitlines()
    cells = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return {row[0]: Row(*row) for row in cells}


def find_differences(folder: Path) -> list[str]:
    """Return the vendored files that differ from their recorded hash, have no row, or are missing."""
    rows = read_rows(folder)
    files = {path.name: path for path in folder.iterdir() if not OWN_FILES.fullmatch(path.name)}
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    return sorted(name for name in rows.keys() | files if name not in rows or hashes.get(name) != rows[name].sha256)


def test_every_vendored_file_has_its_recorded_hash() -> None:
    """EDGE4: Each file has a row with its package, version and hash."""
    assert read_rows(VENDOR) and find_differences(VENDOR) == []


def test_a_changed_vendored_file_is_found(tmp_path: Path) -> None:
    """EDGE4: Also a new one and a missing one."""
    folder = tmp_path / "vendor"
    shutil.copytree(VENDOR, folder)
    (folder / "htm.mjs").write_bytes((folder / "htm.mjs").read_bytes() + b" ")
    (folder / "new.mjs").write_bytes(b"")
    (folder / "hooks.mjs").unlink()
    assert find_differences(folder) == ["hooks.mjs", "htm.mjs", "new.mjs"]


@pytest.mark.parametrize("name", sorted(path.name for path in VENDOR.glob("*.mjs")))
def test_vendored_files_equal_those_of_their_packages(node: str, name: str) -> None:
    """EDGE4: But for source maps and the paths of imports. npm has checked the packages by the hashes in its lock."""
    row = read_rows(VENDOR)[name]
    package = Path(os.environ["CALLSLIP_NODE_MODULES"]) / row.package
    assert json.loads((package / "package.json").read_text("utf-8"))["version"] == row.version
    original = SOURCE_MAP.sub(b"", (package / row.path).read_bytes())
    expected = re.sub(rb'(?<=from")[^".]+(?=")', lambda match: IMPORTS[match[0]], original)
    assert (VENDOR / name).read_bytes() == expected
