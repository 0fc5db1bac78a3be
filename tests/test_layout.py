"""The shape of the package: which module may import which, how long a module may be, what an import costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
LONGEST = 400

# Lowest first. A module imports from its own layer and from those above it in this list, never from one below.
# `callslip` is the package itself, which hands out the public names.
LAYERS: dict[str, set[str]] = {
    "values": {
        "ids",
        "errors",
        "settings",
        "codec",
        "events",
        "rows",
        "words",
        "schemas",
        "patterns",
        "outward",
        "place",
        "remote",
    },
    "rules": {"lifecycle", "text", "entries"},
    "projection": {"board", "fold", "fold_calls", "project", "redact", "witness"},
    "ledger": {
        "store",
        "carry",
        "decide",
        "ledger",
        "feed",
        "checkpoint",
        "reading",
        "callview",
        "liveness",
        "intake",
        "formats.registry",
        "recording",
        "call",
        "functions",
        "session",
        "door",
        "verify",
    },
    "ways in and out": {"formats", "agent", "approvals", "commands"},
    "edges": {"wrap", "http", "mcp", "cli", "web", "otel", "demo", "worker", "callslip", "__main__"},
}
RANK = {name: rank for rank, names in enumerate(LAYERS.values()) for name in names}

# What all formats share. Everything else directly under formats/ is one format and knows of no other.
SHARED_BY_FORMATS = {
    "__init__",
    "conversations",
    "importing",
    "plain",
    "providers",
    "registry",
    "turn",
    "javascript",
    "outcome",
}

HEAVY = {"apsw", "asyncio", "click", "mcp", "openai", "anthropic", "rich", "starlette", "uvicorn"}


def module_name(path: Path, src: Path = SRC) -> str:
    """src/callslip/store/sqlite.py is callslip.store.sqlite; an __init__.py is its package."""
    parts = path.relative_to(src).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((SRC / "callslip").rglob("*.py"))}


def imports(path: Path, known: set[str], src: Path = SRC) -> Iterator[tuple[int, str]]:
    """Every module of the package that a file imports, at the top or inside a function, with the line."""
    package = list(path.relative_to(src).parent.parts)
    for statement in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(statement, ast.Import):
            targets = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            above = package[: len(package) - statement.level + 1] if statement.level else []
            base = ".".join([*above, *([statement.module] if statement.module else [])])
            inside = [f"{base}.{alias.name}" for alias in statement.names]
            targets = [name if name in known else base for name in inside]
        else:
            continue
        for target in targets:
            if target.split(".")[0] == "callslip":
                yield statement.lineno, target


def layer_name(module: str) -> str:
    """callslip.store.sqlite belongs to store; callslip belongs to itself.

    What a format is, and the list of them, stand below the formats: a stream is recorded without knowing them.
    """
    if module in ("callslip.formats", "callslip.formats.registry"):
        return "formats.registry"
    return module.split(".")[1] if "." in module else module


def format_name(module: str) -> str | None:
    """The format a module belongs to, if it belongs to one."""
    parts = module.split(".")
    if parts[:2] != ["callslip", "formats"] or len(parts) < 3 or parts[2] in SHARED_BY_FORMATS:
        return None
    return parts[2]


def wrong_imports(modules: dict[str, Path], src: Path = SRC) -> list[str]:
    """One line for each import that points the wrong way or out of one format into another."""
    wrong: list[str] = []
    for module, path in modules.items():
        own = layer_name(module)
        for line, target in imports(path, set(modules), src):
            theirs, where = layer_name(target), f"{path.relative_to(src)}:{line}"
            if own not in RANK or theirs not in RANK:
                continue  # told by test_every_module_has_a_layer
            if RANK[theirs] > RANK[own]:
                wrong.append(f"{where}: {own} may not import {theirs}, which stands above it")
            mine, other = format_name(module), format_name(target)
            if mine and other and mine != other:
                wrong.append(f"{where}: format {mine} may not import format {other}")
    return wrong


def test_every_module_has_a_layer() -> None:
    """A new module is given its place in LAYERS before anything is built on it."""
    missing = sorted({layer_name(module) for module in MODULES} - set(RANK))
    assert not missing, f"add to LAYERS in tests/test_layout.py: {', '.join(missing)}"


def test_a_module_stands_in_one_layer() -> None:
    """The table has no name twice."""
    assert len(RANK) == sum(len(names) for names in LAYERS.values())


def test_imports_point_one_way() -> None:
    """No module imports from a layer above its own, lazily or not, and no format imports another."""
    assert MODULES
    wrong = wrong_imports(MODULES)
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("callslip/fold.py", "def f():\n    from callslip.ledger import Ledger", "fold may not import ledger"),
        ("callslip/text.py", "from callslip import fold", "text may not import fold"),
        ("callslip/store/sqlite.py", "from ..http import app", "store may not import http"),
        ("callslip/ledger.py", "import callslip", "ledger may not import callslip"),
        ("callslip/formats/acp/decode.py", "from ..ag_ui import wire", "format acp may not import format ag_ui"),
        ("callslip/formats/acp/decode.py", "from callslip.formats import registry, Decoder", None),
        ("callslip/formats/acp/decode.py", "from . import wire\nfrom callslip.formats.acp.wire import X", None),
        ("callslip/fold.py", "import asyncio\nfrom callslip import text, events", None),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, module: str, source: str, complaint: str | None) -> None:
    """The rule above sees absolute, relative and lazy imports, and lets the permitted ones through."""
    others = ["fold", "text", "events", "ledger", "http/__init__", "formats/registry", "formats/acp/wire"]
    for other in [f"callslip/{name}.py" for name in [*others, "formats/ag_ui/wire", "formats/acp/__init__"]] + [module]:
        path = tmp_path / other
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source if other == module else "", "utf-8")
    found = wrong_imports({module_name(path, tmp_path): path for path in tmp_path.rglob("*.py")}, tmp_path)
    assert [line.partition(": ")[2].partition(",")[0] for line in found] == ([complaint] if complaint else [])


def test_no_module_is_too_long() -> None:
    """A module that outgrows its noun is split."""
    lengths = {name: len(path.read_text("utf-8").splitlines()) for name, path in MODULES.items()}
    assert not {name: length for name, length in lengths.items() if length > LONGEST}


def test_importing_the_package_loads_nothing_heavy() -> None:
    """Whoever only wants one pure function does not pay for a database, a server or an event loop."""
    code = "import sys; before = set(sys.modules); import callslip; print(*(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & {name.split(".")[0] for name in run.stdout.split()}


def test_the_lock_follows_pyproject() -> None:
    """Every declared dependency is locked at a version that the declaration allows, with hashes and no address."""
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    locked = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", lock, re.MULTILINE))
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    extras = project["project"]["optional-dependencies"].values()
    declared = sum(extras, project["project"]["dependencies"] + project["dependency-groups"]["dev"])
    stale = [text for text in declared if not locked_as_declared(Requirement(text), locked)]
    assert not stale, f"run `make lock`: {stale}"
    assert "--hash=sha256:" in lock and "://" not in lock


def locked_as_declared(wanted: Requirement, locked: dict[str, str]) -> bool:
    """Whether the lock has the package at a version within the declared bounds."""
    version = locked.get(wanted.name.lower().replace("_", "-"))
    return version is not None and wanted.specifier.contains(version, prereleases=True)
