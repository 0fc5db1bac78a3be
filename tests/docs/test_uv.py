"""The Makefile installs uv only if the downloaded file has one of the recorded hashes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support.paths import ROOT

METADATA = "Metadata-Version: 2.1\nName: uv\nVersion: {version}\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def read_version() -> str:
    match = re.search(r"^UV_VERSION := (\S+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert match is not None
    return match[1]


def test_uv_is_installed_with_a_hash() -> None:
    """EDGE3: The lock has the version of the Makefile and the hashes of its files, and nothing else."""
    first, *hashes = (ROOT / "uv-requirements.lock").read_text("utf-8").splitlines()
    assert first == f"uv=={read_version()} \\"
    assert hashes and all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in hashes)


def make_wheel(folder: Path, version: str) -> None:
    """Create a file that pip would install as uv."""
    info = f"uv-{version}.dist-info"
    files = {f"{info}/METADATA": METADATA.format(version=version), f"{info}/WHEEL": WHEEL}
    files |= {f"uv-{version}.data/scripts/uv": "#!/bin/sh\necho another uv\n"}
    with zipfile.ZipFile(folder / f"uv-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))


def test_another_file_of_uv_is_not_installed(tmp_path: Path) -> None:
    """EDGE3: A file with the right name and version, from an index that is not to be trusted."""
    project, index = tmp_path / "project", tmp_path / "index"
    project.mkdir()
    index.mkdir()
    for path in (ROOT / "Makefile", *ROOT.glob("*.lock")):
        shutil.copy(path, project)
    make_wheel(index, read_version())
    # pip in the folder, as without ensurepip: a venv takes several seconds.
    python = project / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    run = subprocess.run(
        ["make", "UV=.tools/bin/uv", f"PYTHON={python}", ".tools/bin/uv"],
        cwd=project,
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_NO_CACHE_DIR": "1"},
        capture_output=True,
        text=True,
    )
    assert not (project / ".tools" / "bin" / "uv").exists()
    assert run.returncode != 0 and "DO NOT MATCH THE HASHES" in run.stderr, run.stderr
