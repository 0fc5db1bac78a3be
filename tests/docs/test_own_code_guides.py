"""The guides that start from a user's own code run outside of the repository, with the package as it is installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.doc_examples import OWN_CODE_GUIDES, ROOT, find_blocks, run_document


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the content of the wheel, as pip would install it."""
    folder = tmp_path_factory.mktemp("packages")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_guides_for_own_code_run_with_the_installed_package(packages: Path, tmp_path: Path) -> None:
    """GUIDE2: their examples print what they show, without a file of the repository."""

    def run_guide(path: Path) -> list[str]:
        folder = tmp_path / path.stem
        folder.mkdir()
        return [f"{path.name}, {problem}" for problem in run_document(path.read_text("utf-8"), folder, packages)]

    check = f"import callslip\nassert callslip.__file__.startswith({str(packages)!r})"
    assert not run_document(f"```python example\n{check}\n```\n", tmp_path, packages)
    with ThreadPoolExecutor(4) as pool:
        problems = [problem for guide_problems in pool.map(run_guide, OWN_CODE_GUIDES) for problem in guide_problems]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("path", OWN_CODE_GUIDES, ids=[path.stem for path in OWN_CODE_GUIDES])
def test_a_guide_for_own_code_shows_the_code_before_and_after(path: Path) -> None:
    """GUIDE2: the user's code without Callslip, then what changes, then the result; both indexes link to the guide."""
    text = path.read_text("utf-8")
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert headings[0].startswith("Your ") and headings[1:3] == ["What changes", "What you get"]
    own_code = text[text.index("\n## Your ") : text.index("\n## What changes")]
    assert "callslip" not in "".join(block.body for block in find_blocks(own_code))
    for index in (ROOT / "README.md", ROOT / "docs" / "README.md"):
        assert f"guides/{path.name})" in index.read_text("utf-8")
